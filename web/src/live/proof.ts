/** Proof: every edge of a side cut in turn, and every head silenced (src/qkv/lens/edge_ablation.py, explore/scenes.py).
 *
 * Some cuts run side by side, as rows of a pass. Between two passes the page draws how far it is, and a reader who has
 * left stops the work. Letters: Q queries, S keys, T target tokens, H heads. */
import { Kept, LOWEST, Tensor, pass_through, range, slice, tensor, type Tap } from "../../../src/qkv/specialize/runtime";
import { Trouble, type Answer, type Watch } from "../client";
import type { Pass, Run } from "./engine";

const MOST = 32; // tokens of the longest text whose every edge is cut
const ROWS = 4; // cuts that run side by side

/** What a text says of each target token: its log-probability, and the likeliest token there; 0 for the start. */
interface Scores { logprobs: Float64Array; best: Int32Array }
/** A text with the words written after it, of which `target[at]` is the first. */
export interface Case { source: number[]; target: number[]; at: number; free: number }
/** A pass of some rows, and where its results go. */
type Job = () => void;

export function case_of({ model, ids, written }: Pass): Case {
  const { kind, start } = model.said, both = kind === "encoder-decoder", given = [...(both ? [] : ids), ...start];
  return { source: both ? ids : [], target: [...given, ...written.map((w) => w.id)], at: given.length, free: kind === "prefix" ? ids.length : 0 };
}

/** Each token by itself: of a cut character its bytes. */
const spell = ({ tokenizer }: Run["model"], ids: ArrayLike<number>): string[] => Array.from(ids, (id) => tokenizer.pieces([id])[0]!.text);
const copy_of = (x: Tensor): Tensor => new Tensor(x.numbers().slice(), x.shape);

/** Hides one key from one query in each row, in every head of these attentions; `first` is the query of row 0 of the scores. */
const hide = (paths: string[], edges: [number, number][], first = 0): Tap => (module, name, x) => {
  if (name !== "score" || !paths.includes(module.path)) return x;
  const copy = copy_of(x), [, heads, queries, keys] = x.shape as [number, number, number, number];
  edges.forEach(([q, k], row) => { for (let h = 0; h < heads; h++) copy.data[((row * heads + h) * queries + q - first) * keys + k] = LOWEST; });
  return copy;
};

/** Silences head `heads[i]` of an attention in row i. */
const silence = (path: string, heads: number[]): Tap => (module, name, x) => {
  if (name !== "z" || module.path !== path) return x;
  const copy = copy_of(x), size = x.size / x.shape[0]! / x.shape[1]!;
  heads.forEach((head, row) => copy.data.fill(0, (row * x.shape[1]! + head) * size, (row * x.shape[1]! + head + 1) * size));
  return copy;
};

/** A model with a text and what it wrote, read whole again under a tap. */
class Reading {
  readonly kept = new Kept();
  readonly whole: Scores;
  private readonly given: Tensor[];

  constructor(private readonly core: any, private readonly said: Case) {
    this.given = this.encode(1, pass_through);
    this.whole = this.read(1, pass_through, { kept: this.kept })[0]!;
  }

  /** The encoder's states of as many equal sources as there are cuts, or how far a prefix reaches. */
  encode(rows: number, tap: Tap): Tensor[] {
    const { source, free } = this.said;
    if (source.length) return [this.core.encode(tensor(range(rows).flatMap(() => source), [rows, source.length]), tap)];
    return free ? [tensor([free])] : [];
  }

  /** The scores of every row; with `from` the tokens before it come from the cache of the whole text. */
  read(rows: number, tap: Tap, { given = this.given, kept = new Kept(), from = 0 } = {}): Scores[] {
    const ids = this.said.target.slice(from, -1), zero = tensor(range(rows).map(() => 0));
    if (from) {
      kept.own = this.kept.own.map(([k, v]) => [k, v].map((x) => x.index(slice(), slice(), slice(0, from)).pick([zero])) as [Tensor, Tensor]);
      kept.length = from;
    }
    if (given === this.given) kept.memory = this.kept.memory; // of the same states: computed once
    const logits: Tensor = this.core.forward(tensor(range(rows).flatMap(() => ids), [rows, ids.length]), ...given, tap, kept);
    return range(rows).map((row) => this.score(logits.index(row), from));
  }

  private score(logits: Tensor, from: number): Scores {
    const { target } = this.said, [size, words] = logits.shape as [number, number], all = logits.numbers();
    const logprobs = this.whole ? this.whole.logprobs.slice() : new Float64Array(target.length), best = this.whole ? this.whole.best.slice() : new Int32Array(target.length);
    for (let t = 0; t < size; t++) {
      const row = all.subarray(t * words, (t + 1) * words), to = from + t + 1;
      let top = 0, sum = 0;
      for (let i = 1; i < words; i++) if (row[i] > row[top]) top = i;
      for (let i = 0; i < words; i++) sum += Math.exp(row[i] - row[top]);
      logprobs[to] = row[target[to]!] - row[top] - Math.log(sum);
      best[to] = top;
    }
    return { logprobs, best };
  }
}

/** The passes that cut every edge (in a prefix a cut changes what stands before it too); their results come to lie in `found` [Q][S]. */
function edge_jobs(reading: Reading, { source, target, free }: Case, side: string, paths: string[], found: Scores[][]): Job[] {
  const queries = side === "encoder" ? source.length : target.length - 1, keys = found[0]!.length; // after the last token nothing is written
  const of = (q: number): [number, number][] => range(side === "decoder" ? (q && q + 1) : keys > 1 ? keys : 0).map((k) => [q, k]);
  const lists = side === "encoder" ? [range(queries).flatMap(of)] : range(queries).map(of);
  return lists.flatMap((edges) => range(Math.ceil(edges.length / ROWS)).map((i) => (): void => {
    const some = edges.slice(i * ROWS, (i + 1) * ROWS), from = side === "encoder" || some[0]![0] < free ? 0 : some[0]![0], tap = hide(paths, some, from);
    const scores = side === "encoder" ? reading.read(some.length, tap, { given: reading.encode(some.length, tap) }) : reading.read(some.length, tap, { from });
    some.forEach(([q, k], row) => (found[q]![k] = scores[row]!));
  }));
}

/** The passes that silence every head; their results come to lie in `found` [L][H]. */
function head_jobs(reading: Reading, side: string, paths: string[], heads: number, found: Scores[][]): Job[] {
  return paths.flatMap((path, layer) => range(Math.ceil(heads / ROWS)).map((i) => (): void => {
    const some = range(heads).slice(i * ROWS, (i + 1) * ROWS), tap = silence(path, some);
    const scores = reading.read(some.length, tap, side === "encoder" ? { given: reading.encode(some.length, tap) } : {});
    some.forEach((head, row) => (found[layer]![head] = scores[row]!));
  }));
}

/** Does the jobs one after another; the page draws between two of them. */
async function work(jobs: Job[], watch?: Watch): Promise<void> {
  for (const [i, job] of jobs.entries()) {
    await new Promise((go) => setTimeout(go));
    if (watch && !watch.wanted()) throw new Trouble({ zh: "已经停下：没有人在等这个结果", en: "stopped: nobody waits for this any more" });
    job();
    watch?.share((i + 1) / jobs.length);
  }
}

export const python = (ids: number[]): string => `(${ids.join(", ")}${ids.length === 1 ? "," : ""})`;

function lines_of({ source, target, at, free }: Case, side: string): { before: string; after: string; heads: string } {
  const module = "qkv.lens.edge_ablation", made = `${module}.Case(${python(source)}, ${python(target)}, ${at}, ${free})`;
  const edges = `${module}.cut_every_edge(t.core, ${made}, side='${side}')`, silent = `${module}.cut_every_head(t.core, ${made}, side='${side}')`;
  const four = (x: string): string => `torch.round(${x}.exp().double(), decimals=4)`;
  return { before: four(`${edges}[0]`), after: four(`${edges}[1]`), heads: `[${four("h")} for h in ${silent}]` };
}

/** How much a cut takes from a target token: the drop of its log-probability; -1 where nothing is asked. */
type Drop = (query: number, key: number, goal: number) => number;

/** The place of the largest number; of equals the first. */
const place_of = (x: number[]): number => x.reduce((top, v, i) => (v > x[top]! ? i : top), 0);

/** The written token with which to start across: the last that a cut turns into another word of the text, else the one
 * that rests most on one word of the source. */
function choose_across(run: Run, whole: Scores, found: Scores[][], drop: Drop, pieces: string[]): number {
  const target = pieces.map((p) => p.trim()), { said } = run.model;
  const chances = (goal: number): number[] => found[goal - 1]!.map((s, k) => (drop(goal - 1, k, goal) > -1 ? Math.exp(whole.logprobs[goal]!) - Math.exp(s.logprobs[goal]!) : -1));
  const lost = range(pieces.length).map((goal) => (goal ? chances(goal) : [-1])), key = lost.map(place_of), most = lost.map((x, goal) => x[key[goal]!]!);
  for (let goal = pieces.length - 1; goal > 0; goal--) {
    const now = spell(run.model, [found[goal - 1]![key[goal]!]!.best[goal]!])[0]!.trim();
    if (most[goal]! > 0.2 && now !== target[goal] && target.includes(now) && !said.plain.includes(now.toLowerCase()) && /^\p{L}+$/u.test(now)) return goal;
  }
  return place_of(most.slice(1)) + 1;
}

/** Where to start: the query of a word, or the one that a cut moves most, and the written token that needs it most. */
function choose_start(run: Run, made: Case, side: string, whole: Scores, found: Scores[][], word: string): { query: number; at: number; asked: boolean } {
  const { said } = run.model, { target, at } = made, pieces = spell(run.model, side === "encoder" ? made.source : target);
  const silent = target.map((id, t) => t < at || (t > at && said.eos.includes(id)));
  const drop: Drop = (q, k, t) => (silent[t] || (side !== "cross" && q === k) ? -1 : whole.logprobs[t]! - found[q]![k]!.logprobs[t]!);
  if (side === "cross") {
    const goal = choose_across(run, whole, found, drop, pieces);
    return { query: goal - 1, at: goal, asked: false };
  }
  const largest = (q: number, t: number): number => Math.max(...found[q]!.map((_, k) => drop(q, k, t)));
  const named = word ? pieces.slice(0, pieces.length - +(side === "decoder")).findIndex((p) => p.includes(word)) : -1;
  const query = named >= 0 ? named : place_of(found.map((_, q) => Math.max(...target.map((_, t) => largest(q, t)))));
  return { query, at: place_of(target.map((_, t) => largest(query, t))), asked: named >= 0 };
}

/** The answer to "proof". */
export async function proof(run: Run, query: Record<string, string>, watch?: Watch): Promise<Answer> {
  const { core, said, tokenizer } = run.model, both = said.kind === "encoder-decoder", made = case_of(run), { source, target } = made;
  const side = query.side ?? (both ? "encoder" : "decoder"), paths = run.model.parts.find((p) => p.part === side)?.paths;
  if (said.kind === "encoder" || !paths) throw new Trouble({ zh: "这个模型不写词，没有可证明的", en: "this model writes no words: there is nothing to prove" });
  if (!run.written.length) throw new Trouble({ zh: "什么也没有写出来", en: "nothing was written" });
  if (Math.max(source.length, target.length) > MOST) throw new Trouble({ zh: `逐边剪断只做到 ${MOST} 个词元的文本`, en: `every edge is cut for texts of up to ${MOST} tokens` });
  const reading = new Reading(core, made), { whole } = reading, heads = run.trace.get(`${paths[0]}.z`).shape[1]!;
  const [queries, keys] = [side === "encoder" ? source.length : target.length, side === "decoder" ? target.length : source.length];
  const found = range(queries).map(() => new Array<Scores>(keys).fill(whole)), silent = paths.map(() => new Array<Scores>(heads).fill(whole));
  await work([...edge_jobs(reading, made, side, paths, found), ...head_jobs(reading, side, paths, heads, silent)], watch);
  const chances = (s: Scores): number[] => Array.from(s.logprobs, (x) => Math.round(Math.exp(x) * 1e4) / 1e4), lines = lines_of(made, side);
  return {
    side, ...choose_start(run, made, side, whole, found, query.ask ?? "它"),
    before: chances(whole), after: found.map((row) => row.map(chances)), heads: silent.map((row) => row.map(chances)),
    instead: found.map((row) => row.map((s) => spell(run.model, s.best))),
    asking: tokenizer.pieces(side === "encoder" ? source : target), target: tokenizer.pieces(target), given: made.at, line: lines.after, lines,
  };
}
