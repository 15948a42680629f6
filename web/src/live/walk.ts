/** The seven steps of one position with the numbers of this run (src/qkv/lens/step_by_step.py), each with its line. */
import { LOWEST, Tensor, best_of, slice, softmax_row, tensor, type At } from "../../../src/qkv/specialize/runtime";
import type { Answer } from "../client";
import type { Run } from "./engine";

interface Strip { name: string; line: string; data: number[]; dims: number; letters: string; whole: number[]; words?: string[] }
/** Where a walk goes: one head, one query and one key of an attention. */
interface Place { run: Run; path: string; layer: string; dot: string; stack: any; part: string; head: number; query: number; key: number; reason: string }

const LETTERS: Record<string, string> = { q_pre: "B H T K", q: "B H T K", k_pre: "B G S K", k: "B G S K", v: "B G S K", z: "B H T K", pattern: "B H T S", up: "B T F", gate: "B T F", act: "B T F", logits: "B T E", index: "B T J", weight: "B T J" };
const MOST = 64;

const made = (name: string, line: string, data: ArrayLike<number>, more: Partial<Strip> = {}): Strip => ({ name, line, data: Array.from(data), dims: 1, letters: "", whole: [], ...more });
const scalar = (name: string, line: string, x: number): Strip => made(name, line, [x], { dims: 0 });

/** A strip cut out of a tap; ":" is all of an axis, and without an index it is the query's. */
function take({ run, query }: Place, label: string, name: string, ...index: (number | ":")[]): Strip {
  const x = run.trace.get(name), at = index.length ? index : [0, query], found = x.index(...at.map((i): At => (i === ":" ? slice() : i)));
  return { name: label, line: `t["${name}"][${at.join(", ")}]`, data: found.tolist(), dims: found.shape.length, letters: LETTERS[name.split(".").at(-1)!] ?? "B T D", whole: x.shape };
}

function pieces({ run, part, layer }: Place): Strip[] {
  const ids = part === "encoder" ? run.ids : run.read, words = run.model.tokenizer.pieces(ids).map((t) => (t.bytes ? `${t.text} ${t.bytes}` : t.text));
  return [made("ids", `t.ran("${layer}", None).ids[0]`, ids, { letters: "B T", whole: [1, ids.length], words })];
}

function embedding(at: Place): Strip[] {
  const { run, part, stack, dot, query } = at, { core, said } = run.model, table: Tensor = core.embed.weight;
  const token = (part === "encoder" ? run.ids : run.read)[query]!, how = said.stacks[part === "encoder" ? "encoder" : "decoder"]!, side = part === "encoder" ? "encoder" : "decoder";
  const row = made("row", `t.core.embed.weight[${token}]`, table.index(token).tolist(), { letters: "V D", whole: table.shape }), found = [row];
  const scaled = row.data.map((x) => x * how.scale), embed = take(at, "embed", `${dot}embed`);
  if (how.scale !== 1) found.push(made("scaled", `${row.line} * ${how.scale}`, scaled));
  if (how.positions === "learned") found.push(made("position", `t.core.${side}.positions.weight[${query + how.offset}]`, stack.positions.weight.index(query + how.offset).tolist(), { letters: "T D", whole: stack.positions.weight.shape }));
  else if (how.positions) found.push(made("position", `qkv.core.positions.sinusoid(torch.tensor(${query + how.offset}), ${scaled.length}, '${how.layout}')`, embed.data.map((x, i) => x - scaled[i]!)));
  return [...found, embed];
}

function attention(at: Place): Strip[] {
  const { run, path, part, head, query, key } = at, keys = `${path}.${part === "cross" ? "k_pre" : "k"}`;
  const group = Math.floor(head / (run.trace.get(`${path}.q`).shape[1]! / run.trace.get(keys).shape[1]!)), scale = `t.attentions["${path}"].scale`;
  const q = take(at, "q", `${path}.q`, 0, head, query), all = take(at, "keys", keys, 0, group, ":"), k = take(at, "k", keys, 0, group, key);
  const v = take(at, "v", `${path}.v`, 0, group, key), z = take(at, "z", `${path}.z`, 0, head, query), row = take(at, "pattern", `${path}.pattern`, 0, head, query);
  const before = part === "cross" ? [] : [take(at, "q before", `${path}.q_pre`, 0, head, query)], size = q.data.length, by = size ** -0.5;
  const product = made("product", `${q.line} * ${k.line}`, q.data.map((x, i) => x * k.data[i]!));
  let sum = 0;
  const running = product.data.map((x) => (sum += x)), weight = row.data[key]!;
  const score = Array.from(row.data, (_, s) => q.data.reduce((total, x, i) => total + x * all.data[s * size + i]!, 0) * by);
  const bias = score.map((_, s) => (hides(at, s) ? LOWEST : 0));
  return [
    ...before, q, k, product, made("running", `(${product.line}).cumsum(0)`, running), scalar("sum", `(${product.line}).sum()`, sum),
    scalar("scale", `torch.tensor(${scale})`, by), scalar("scaled sum", `(${product.line}).sum() * ${scale}`, sum * by),
    made("score", `(${all.line} @ ${q.line}) * ${scale}`, score), made("mask", `t.bias("${path}")[0, 0, ${query}]`, bias), row,
    scalar("weight", `${row.line}[${key}]`, weight), v, made("given", `${row.line}[${key}] * ${v.line}`, v.data.map((x) => x * weight)), z,
  ];
}

/** Whether a key is hidden from the query. */
const hides = ({ run, part, query }: Place, s: number): boolean => part === "decoder" && s > query && !(run.model.said.kind === "prefix" && s < run.ids.length);

function heads(at: Place): Strip[] {
  const { path, query, key } = at, z = take(at, "all heads", `${path}.z`, 0, ":", query), weights = take(at, "head weights", `${path}.pattern`, 0, ":", query, key);
  return [z, weights, made("joined", `${z.line}.flatten()`, z.data, { letters: "B T HK" }), take(at, "out", `${path}.out`)];
}

function norms(at: Place): Strip[] {
  const sub = at.path.split(".").at(-1)!, [before, after] = sub === "cross" ? ["resid_mid", "resid_cross"] : ["resid_in", "resid_mid"];
  return [["before", before!], ["read", `${sub}.norm`], ["said", `${sub}.out`], ["after", after!]].flatMap(([label, name]) => {
    const x = take(at, label!, `${at.layer}.${name}`), mean = x.data.reduce((a, b) => a + b, 0) / x.data.length;
    const spread = Math.sqrt(x.data.reduce((sum, v) => sum + (v - mean) ** 2, 0) / x.data.length);
    return [x, scalar(`${label} mean`, `${x.line}.mean()`, mean), scalar(`${label} spread`, `${x.line}.std(correction=0)`, spread)];
  });
}

const ffn = (at: Place): Strip[] => ["ffn.norm", "ffn.up", "ffn.gate", "ffn.act", "ffn.out", "moe.norm", "moe.logits", "moe.index", "moe.weight", "moe.shared", "moe.out", "resid_out"]
  .filter((n) => at.run.trace.has(`${at.layer}.${n}`)).map((n) => take(at, n, `${at.layer}.${n}`));

function next_word(at: Place): Strip[] {
  const { core, tokenizer } = at.run.model, state = take(at, "final_norm", `${at.dot}final_norm`);
  if (!core.head || (at.part === "encoder" && core.decoder)) return [state];
  const logits = core.head.forward(new Tensor(Float32Array.from(state.data), [1, state.data.length])).index(0).numbers() as Float32Array, best = best_of(logits, 10);
  const chances = Float64Array.from(logits), line = `t.core.head(${state.line})`, ids = `[${best.join(", ")}]`;
  softmax_row(chances);
  const words = tokenizer.pieces(best).map((t) => (t.bytes ? `${t.text} ${t.bytes}` : t.text)), more = { letters: "V", whole: [logits.length], words };
  return [state, made("logits", `${line}[${ids}]`, best.map((i) => logits[i]!), more), made("chances", `${line}.softmax(-1)[${ids}]`, best.map((i) => chances[i]!), more),
    made("next ids", `${line}.topk(${best.length}).indices`, tensor(best).tolist(), { words })];
}

/** The answer to "walk": each strip cut to 64 numbers round the one in focus. */
export function walk(place: Place): Answer {
  const focus: Record<string, number> = { pattern: place.key, score: place.key, mask: place.key, ids: place.query, "head weights": place.head };
  const makers = { pieces, embedding, attention, heads, "add & norm": norms, ffn, "next word": next_word };
  const steps = Object.entries(makers).map(([step, make]) => ({ step, strips: make(place).map((s) => shown(s, focus[s.name])) }));
  const line = `t["${place.path}.pattern"][0, ${place.head}, ${place.query}][${place.key}]`;
  const weight = place.run.trace.get(`${place.path}.pattern`).index(0, place.head, place.query, place.key).numbers()[0];
  return { path: place.path, head: place.head, query: place.query, key: place.key, steps, reason: place.reason, weight, line };
}

function shown(s: Strip, at?: number): Record<string, unknown> {
  const from = at === undefined ? 0 : Math.max(0, Math.min(at - MOST / 2, s.data.length - MOST)), part = s.data.slice(from, from + MOST);
  return {
    name: s.name, line: s.dims > 1 ? `torch.as_tensor(${s.line}).flatten()` : s.line, letters: s.letters, shape: s.whole, scalar: s.dims === 0,
    values: part.map((x) => (x <= LOWEST / 2 ? null : x)), whole: s.data.length, from,
    ...(s.words ? { words: s.words.slice(from, from + MOST) } : {}), ...(at === undefined ? {} : { at: at - from }),
  };
}
