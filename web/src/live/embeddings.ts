/** Words in the embedding table and their way through the layers (src/qkv/explore/embeddings.py): the panel Word shift. */
import { Cache, best_of, tensor, type Tensor } from "../../../src/qkv/specialize/runtime";
import { Trouble, type Answer } from "../client";
import { Trace, type Model, type Run } from "./engine";

type Vector = Float64Array;
type Query = Record<string, string>;
const ANCHORS = 8;

const vector = (x: Tensor): Vector => Float64Array.from(x.numbers());
const dot = (a: Vector, b: Vector): number => a.reduce((sum, x, i) => sum + x * b[i]!, 0);
const length = (a: Vector): number => Math.sqrt(dot(a, a));
const cosine = (a: Vector, b: Vector): number => dot(a, b) / Math.max(1e-8, length(a) * length(b));
const mix = (a: Vector, b: Vector, of: (x: number, y: number) => number): Vector => a.map((x, i) => of(x, b[i]!));
/** A text as Python shows it. */
const python = (word: string): string => (/['\\]/.test(word) ? JSON.stringify(word) : `'${word}'`);
const listed = (words: string[]): string => `[${words.map(python).join(", ")}]`;

/** The ids of a word without the tokens that a template puts around a text. */
function word_ids({ said, tokenizer }: Model, word: string): number[] {
  const ids = tokenizer.encode(word, false);
  if (!ids.length) throw new Trouble({ zh: `“${word}”没有词元：换一个词`, en: `"${word}" has no token; give a word` });
  if (ids.includes(said.unknown ?? -1)) throw new Trouble({ zh: `“${word}”不在这个模型的词表里：换一个词`, en: `"${word}" is not in this model's vocabulary; give another word` });
  return ids;
}

/** The mean of a word's rows of the embedding table. */
function word_vector(model: Model, ids: number[]): Vector {
  const rows = ids.map((id) => vector(model.core.embed.weight.index(id)));
  return rows[0]!.map((_, d) => rows.reduce((sum, row) => sum + row[d]!, 0) / rows.length);
}

function nearest(model: Model, to: Vector, n: number, without: number[], line: string): Answer {
  const table: Tensor = model.core.embed.weight, cosines = Float64Array.from({ length: table.shape[0]! }, (_, id) => (without.includes(id) ? -Infinity : cosine(vector(table.index(id)), to)));
  const near = best_of(cosines, n).map((id, i) => ({ id, text: model.tokenizer.pieces([id])[0]!.text, cosine: cosines[id], line: `${line}[${i}].cosine` }));
  return { near, line };
}

const some = (query: Query, usual: number): number => Math.max(1, Math.min(100, Number(query.n ?? usual) || usual));

/** The tokens nearest to a word in the embedding table. */
export function neighbours(model: Model, query: Query): Answer {
  const word = (query.word ?? "").trim(), ids = word_ids(model, word), n = some(query, 10);
  return nearest(model, word_vector(model, ids), n, ids, `model.trace().neighbours(${python(word)}, ${n})`);
}

/** a is to b as c is to… (Mikolov et al. 2013, section 4). */
export function analogy(model: Model, query: Query): Answer {
  const words = ["a", "b", "c"].map((key) => (query[key] ?? "").trim()), ids = words.map((word) => word_ids(model, word)), n = some(query, 5);
  const [a, b, c] = ids.map((one) => word_vector(model, one)).map((v) => v.map((x) => x / length(v))) as [Vector, Vector, Vector];
  return nearest(model, mix(mix(b, a, (x, y) => x - y), c, (x, y) => x + y), n, ids.flat(), `model.trace().analogy(${words.map(python).join(", ")}, n=${n})`);
}

/** The states of a position before the first layer and after each. */
function states_at({ core }: Model, trace: Trace, pos: number): Vector[] {
  const stack = core.encoder ?? core.decoder, dot = stack.path ? `${stack.path}.` : "";
  return [`${dot}embed`, ...stack.layers.map((_: unknown, i: number) => `${dot}layers.${i}.resid_out`)].map((name) => vector(trace.get(name).index(0, pos)));
}

/** The states of a word's last piece where the word is the whole text. */
function read_alone(model: Model, word: string): Vector[] {
  const { core } = model, ids = word_ids(model, word), one = tensor(ids, [1, ids.length]), trace = new Trace();
  if (core.encoder && core.decoder) core.encode(one, trace.tap());
  else core.forward(one, ...(model.said.kind === "prefix" ? [tensor([0])] : []), trace.tap(), new Cache()); // no prefix: nothing is given
  return states_at(model, trace, ids.length - 1);
}

/** How a word moves through the layers: its cosine to each anchor, the anchors' own, and the word's read alone. */
export function shift(run: Run, query: Query): Answer {
  const { model, trace } = run, both = model.core.encoder && model.core.decoder, read = model.core.encoder ? run.ids : run.read, pos = Number(query.pos ?? 0);
  if (!(Number.isInteger(pos) && pos >= 0 && pos < read.length)) throw new Trouble({ zh: `pos=${query.pos}：应是 0 到 ${read.length - 1} 的整数`, en: `pos=${query.pos}: expected a whole number, 0 to ${read.length - 1}` });
  const tokens = model.tokenizer.pieces(read), typed = (query.anchors ?? "").split(/[,，]/).map((w) => w.trim()).filter(Boolean);
  const anchors = typed.length ? typed : near_words(model.said.plain, tokens, pos);
  if (!anchors.length) return { pos, anchors, line: "t" }; // a text of one word: the page says so
  if (anchors.length > ANCHORS) throw new Trouble({ zh: `参照词：写 1 到 ${ANCHORS} 个，用逗号隔开`, en: `anchors: give 1 to ${ANCHORS} words with commas between them` });
  const call = `t.shift(${pos}, ${listed(anchors)}, side=${both ? "'encoder.'" : "''"})`, own = states_at(model, trace, pos), alone = anchors.map((word) => read_alone(model, word));
  const to = (goal: Vector[]): number[] => own.map((x, l) => cosine(x, goal[l]!)), word = whole_word(tokens[pos]!.text), itself = word ? to(read_alone(model, word)) : null;
  const between = alone.length === 2 ? own.map((x, l) => { const way = mix(alone[1]![l]!, alone[0]![l]!, (p, q) => p - q); return dot(mix(x, alone[0]![l]!, (p, q) => p - q), way) / Math.max(1e-30, dot(way, way)); }) : null;
  const at = (w: string): string => `qkv.lens.residual_drift.read_word_alone(t, ${python(w)}, ${call}.names)`;
  const side = both ? "'encoder.'" : "''", rows = "(lambda x: (x - x.mean(0)) @ torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh[:2].T)";
  return {
    word: tokens[pos]!.text, pos, anchors, layers: ["embed", ...own.slice(1).map((_, i) => String(i + 1))], cosines: Object.fromEntries(anchors.map((name, i) => [name, to(alone[i]!)])), between, path: plane(own),
    ...(anchors.length > 1 ? { apart: alone[0]!.map((x, l) => cosine(x, alone[1]![l]!)) } : {}), ...(itself ? { itself } : {}), line: `${call}.cosine`,
    lines: {
      cosines: `${call}.cosine.T`, between: `${call}.between`, path: `${rows}(torch.stack([t[n][0, ${pos}].float() for n in ${call}.names]))`,
      ...(anchors.length > 1 ? { apart: `torch.nn.functional.cosine_similarity(${anchors.slice(0, 2).map(at).join(", ")}, dim=-1)` } : {}),
      ...(itself ? { itself: `t.shift(${pos}, ${listed([word])}, side=${side}).cosine[:, 0]` } : {}),
    },
  };
}

/** A token's word, "" where it is none. */
function whole_word(text: string): string {
  const bare = text.replace(/^[ ▁Ġ#]+/, "").trim();
  return /^[\p{L}\p{N}]+$/u.test(bare) ? bare : "";
}

/** The first two words of a text that the one at `at` may move towards: none too plain, no lone letter. */
function near_words(plain: string[], tokens: { text: string }[], at: number): string[] {
  const fits = tokens.map((t) => whole_word(t.text)).filter((w, i) => i !== at && ([...w].length > 1 || w > "\u2e80") && !plain.includes(w.toLowerCase()));
  return [...new Set(fits)].slice(0, 2);
}

/** A way in the plane in which it is longest: the two strongest directions of its points, by power iteration. */
function plane(states: Vector[]): [number, number][] {
  const middle = states[0]!.map((_, d) => states.reduce((sum, x) => sum + x[d]!, 0) / states.length), x = states.map((s) => mix(s, middle, (p, q) => p - q));
  const gram = x.map((a) => Float64Array.from(x, (b) => dot(a, b))), axes: Vector[] = [];
  for (let axis = 0; axis < 2; axis++) {
    let now = Float64Array.from(x, (_, i) => Math.cos(3 * i + axis)), size = 0;
    for (let turn = 0; turn < 500; turn++) {
      now = Float64Array.from(gram, (row) => dot(row, now));
      size = length(now);
      if (!size) break;
      now = now.map((v) => v / size);
    }
    axes.push(now.map((v) => v * Math.sqrt(size)));
    for (let i = 0; i < x.length; i++) gram[i] = gram[i]!.map((v, j) => v - size * now[i]! * now[j]!);
  }
  return x.map((_, i) => [axes[0]![i]!, axes[1]![i]!]);
}
