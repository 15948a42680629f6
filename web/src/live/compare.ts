/** Two texts in one model (src/qkv/lens/compare.py), and a state of one put into the other (explore/activation_patching.py).
 *
 * Letters: L layers, N tokens that both texts have, T positions. */
import { Cache, Tensor, best_of, log_softmax, tensor } from "../../../src/qkv/specialize/runtime";
import { Trouble, type Answer } from "../client";
import { Trace, output_of, read_text, type Change, type Model, type Pass, type Run } from "./engine";
import { case_of, python, type Case } from "./proof";

type Query = Record<string, string>;
type Logs = { before: number; after: number; donor: number };

const refused = (): Trouble => new Trouble({ zh: "比较要两段文字：再写一段", en: "two texts are compared: write a second one" });

/** The blocks that two sequences share, in their order: the longest first, then those before and after it (difflib). */
function shared_pairs(a: number[], b: number[], from = [0, 0], to = [a.length, b.length]): [number, number][] {
  let size = 0, at: [number, number] = [0, 0], ends = new Map<number, number>(); // how long the match is that ends at j
  for (let i = from[0]!; i < to[0]!; i++) {
    const next = new Map<number, number>();
    for (let j = from[1]!; j < to[1]!; j++) {
      if (a[i] !== b[j]) continue;
      const long = (ends.get(j - 1) ?? 0) + 1;
      next.set(j, long);
      if (long > size) [size, at] = [long, [i - long + 1, j - long + 1]];
    }
    ends = next;
  }
  if (!size) return [];
  const inside = Array.from({ length: size }, (_, n): [number, number] => [at[0] + n, at[1] + n]);
  return [...shared_pairs(a, b, from, at), ...inside, ...shared_pairs(a, b, [at[0] + size, at[1] + size], to)];
}

const row_of = (x: Tensor, position: number): Float64Array => Float64Array.from(x.index(0, position).numbers());
const norm = (x: Float64Array): number => Math.sqrt(x.reduce((sum, v) => sum + v * v, 0));

/** The divergence of a's next-token distribution from b's, in nats (Kullback and Leibler 1951). */
function divergence_of(a: Float64Array, b: Float64Array): number {
  const [p, q] = [log_softmax(a), log_softmax(b)];
  return p.reduce((sum, x, i) => sum + Math.exp(x) * (x - q[i]!), 0);
}

/** The sides whose states can be moved: their layers, and the ids that each text had there; none where no word is guessed. */
function movable(run: Run): Record<string, { depth: number; texts: number[][] }> {
  const { core, said } = run.model, texts: Pass[] = [run, run.second!];
  if (!core.head || (!core.decoder && !texts.every((one) => one.ids.includes(said.mask ?? -1)))) return {};
  const sides = [...(core.encoder ? ["encoder"] : []), ...(core.decoder ? ["decoder"] : [])];
  return Object.fromEntries(sides.map((side) => [side, { depth: core[side].layers.length, texts: texts.map((one) => (side === "encoder" ? one.ids : one.read)) }]));
}

/** The likeliest words after a given text. */
function next_words(one: Pass, name: string): Answer | null {
  const { core, tokenizer } = one.model, pos = one.given - 1;
  if (!core.decoder || !core.head) return null;
  const p = log_softmax(one.trace.get("logits").index(0, pos).numbers()).map(Math.exp);
  return { pos, top: best_of(p, 10).map((id) => ({ id, text: tokenizer.pieces([id])[0]!.text, p: p[id] })), line: `${name}.choices(${pos})[0]` };
}

/** The answer to "diff": how far apart the states are at the tokens that both texts have, and what each would say next. */
export function diff(run: Run): Answer {
  const { model, second } = run, { core, tokenizer } = model;
  if (!second) throw refused();
  const pairs = shared_pairs(run.read, second.read), stack = core.decoder ?? core.encoder, dot = stack.path ? `${stack.path}.` : "";
  if (!pairs.length) throw new Trouble({ zh: "两段文字没有相同的词元", en: "the two texts have no token in common" });
  const names = [`${dot}embed`, ...stack.layers.map((_: unknown, i: number) => `${dot}layers.${i}.resid_out`)] as string[];
  const far = names.flatMap((name) => pairs.map(([i, j]) => {
    const [x, y] = [row_of(run.trace.get(name), i), row_of(second.trace.get(name), j)];
    return norm(x.map((v, d) => v - y[d]!)) / Math.max(norm(y), 1e-30);
  }));
  const apart = core.head ? pairs.map(([i, j]) => divergence_of(row_of(run.trace.get("logits"), i), row_of(second.trace.get("logits"), j))) : null;
  const sides = ([["t", run], ["t2", second]] as [string, Pass][]).map(([name, one]) => ({ text: one.text, output: output_of(one), tokens: tokenizer.pieces(one.read), next: next_words(one, name) }));
  const grafts = Object.fromEntries(Object.entries(movable(run)).map(([side, { depth, texts }]) => [side, { depth, texts: texts.map((ids) => tokenizer.pieces(ids)) }]));
  return {
    tokens: pairs.map(([i]) => sides[0]!.tokens[i]), pairs, layers: ["embed", ...names.slice(1).map((_, i) => String(i + 1))], sides, divergence: apart, grafts,
    line: "t.diff(t2).distance", lines: { distance: "t.diff(t2).distance", divergence: "t.diff(t2).divergence" },
    arrays: { changed: { data: Float32Array.from(far), shape: [names.length, pairs.length] } },
  };
}

/** Puts a state at a position of what a tap carries. */
const put = (name: string, pos: number, state: Float64Array): Change => (key, x, begin) => {
  const [rows, count, wide] = x.shape as [number, number, number], at = pos - begin;
  if (key !== name || at < 0 || at >= count) return x;
  const copy = new Tensor(x.numbers().slice(), x.shape);
  for (let b = 0; b < rows; b++) copy.data.set(state, (b * count + at) * wide);
  return copy;
};

/** A case read once: the log-probability of `target[at]`, and what the pass computed. */
function score({ core, said }: Model, { source, target, at, free }: Case, changes: Change[] = []): { log: number; trace: Trace } {
  const trace = new Trace(), tap = trace.tap(changes), alone = said.kind === "encoder", ids = alone ? source : target.slice(0, at);
  const given = alone ? [] : source.length ? [core.encode(tensor(source, [1, source.length]), tap)] : free ? [tensor([free])] : [];
  const logits: Tensor = core.forward(tensor(ids, [1, ids.length]), ...given, tap, new Cache());
  return { log: log_softmax(logits.index(0, alone ? at : at - 1).numbers())[target[at]!]!, trace };
}

/** The first place where two answers differ, and the word that each has there; an encoder answers at its first mask. */
function differences(run: Run, second: Pass): [number, number][] {
  const { said, core } = run.model, [a, b] = [run, second].map((one) => one.written.map((w) => w.id)) as [number[], number[]];
  if (!core.decoder) {
    const best = [run, second].map((one) => best_of(one.trace.get("logits").index(0, one.ids.indexOf(said.mask!)).numbers(), 1)[0]!);
    return [...new Set(best)].map((id) => [0, id]);
  }
  const place = a.findIndex((id, i) => i < b.length && id !== b[i]);
  return place < 0 ? a.slice(0, 1).map((id) => [0, id]) : [[place, a[place]!], [place, b[place]!]];
}

/** A word's chance in the second text before and after the graft, and in the first. */
function measure(run: Run, [place, wanted]: [number, number], at: { name: string; source: number; pos: number }): Answer {
  const { model, second } = run, { said } = model, alone = said.kind === "encoder";
  const [donor, own] = [run, second!].map((one): Case => {
    const made = case_of(one), first = alone ? one.ids.indexOf(said.mask!) : made.at, before = alone ? one.ids.slice(0, first) : made.target.slice(0, first + place);
    return { ...made, source: alone ? one.ids : made.source, target: [...before, wanted], at: before.length };
  }) as [Case, Case];
  const there = score(model, donor), state = there.trace.get(at.name);
  if (at.source >= state.shape[1]!) throw new Trouble({ zh: `第 ${at.source + 1} 个位置在要比较的词之后：选前面的位置`, en: `position ${at.source + 1} comes after the word that is compared: choose one before it` });
  const after = score(model, own, [put(at.name, at.pos, row_of(state, at.source))]), logs: Logs = { before: score(model, own).log, after: after.log, donor: there.log };
  const both = [donor, own].map((c) => `qkv.lens.edge_ablation.Case(${python(c.source)}, ${python(c.target)}, ${c.at}, ${c.free})`).join(", ");
  const line = `qkv.lens.activation_patching.patch_activation(model.core, ${both}, name='${at.name}', source=${at.source}, pos=${at.pos})`;
  return { text: model.tokenizer.pieces([wanted])[0]!.text, id: wanted, ...logs, line };
}

/** The answer to "patch": what the second text says with the state that the first had after `layer` (0: the embedding). */
export function patch(run: Run, query: Query): Answer {
  const { model, second, question } = run, there = second ? movable(run) : {}, side = query.part ?? Object.keys(there)[0]!, found = there[side];
  if (!second) throw refused();
  if (!found) throw new Trouble({ zh: "需要两段文字，以及会写词的模型，或者两段里都有 [MASK]", en: "two texts are needed, and a model that writes words, or [MASK] in both" });
  const [layer, source, pos] = (["layer", "source", "pos"] as const).map((key, i) => {
    const high = i ? found.texts[i - 1]!.length - 1 : found.depth, x = Number(query[key] ?? 0);
    if (!Number.isInteger(x) || x < 0 || x > high) throw new Trouble({ zh: `${key}=${query[key]}：应是 0 到 ${high} 的整数`, en: `${key}=${query[key]}: expected a whole number, 0 to ${high}` });
    return x;
  }) as [number, number, number];
  const dot = model.core.encoder && model.core.decoder ? `${side}.` : "", name = layer ? `${dot}layers.${layer - 1}.resid_out` : `${dot}embed`;
  const moved = read_text(model, second.text, question, [put(name, pos, row_of(run.trace.get(name), source))]);
  const words = differences(run, second).map((one) => measure(run, one, { name, source, pos }));
  return { name, output: output_of(moved), before: output_of(second), donor: output_of(run), words, line: words[0]?.line };
}
