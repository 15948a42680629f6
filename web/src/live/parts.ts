/** Who pushed a logit (src/qkv/lens/attribution.py): norms keep the statistics that they had, so the pushes sum to it. */
import { Tensor, best_of, gelu, silu, type Module } from "../../../src/qkv/specialize/runtime";
import { Trouble, type Answer } from "../client";
import type { Run } from "./engine";

type Vector = Float64Array;
interface Leaf { name: string; rows: Vector[]; many: boolean }
/** One thing that was added, or a linear map whose transpose carries the pull further back. */
type Move = { leaf: Leaf } | { back: (pull: Vector) => Vector };

const vector = (x: Tensor): Vector => Float64Array.from(x.numbers());
const dot = (a: Vector, b: Vector): number => a.reduce((sum, x, i) => sum + x * b[i], 0);
const rows_of = (w: Tensor): Vector[] => Array.from({ length: w.shape[0] }, (_, i) => vector(w.index(i)));
const times = (w: Vector[], x: Vector): Vector => Float64Array.from(w, (row) => dot(row, x));
const back_through = (w: Vector[]) => (pull: Vector): Vector => w[0].map((_, i) => w.reduce((sum, row, j) => sum + row[i] * pull[j], 0));

/** What was written to the stream, in the order of the forward pass, and what it came to. */
class Ledger {
  readonly moves: Move[] = [];
  readonly frozen: string[] = [];
  x: Vector = new Float64Array(0);

  add(name: string, rows: Vector[], many = rows.length > 1): void {
    if (!this.x.length) this.x = new Float64Array(rows[0].length);
    this.x = this.x.map((x, i) => rows.reduce((sum, row) => sum + row[i], x));
    this.moves.push({ leaf: { name, rows, many } });
  }

  apply(forward: Vector, back: (pull: Vector) => Vector): void {
    this.x = forward;
    this.moves.push({ back });
  }

  norm(at: (Module & { weight: Tensor; bias?: Tensor | null; eps: number }) | undefined): void {
    if (!at) return;
    this.frozen.push(at.path);
    const centred = "bias" in at, mean = centred ? this.x.reduce((a, b) => a + b, 0) / this.x.length : 0, y = this.x.map((x) => x - mean);
    const weight = vector(at.weight), by = 1 / Math.sqrt(y.reduce((sum, v) => sum + v * v, 0) / y.length + at.eps);
    this.apply(y.map((v, i) => v * by * weight[i]), (pull) => {
      const p = pull.map((v, i) => v * by * weight[i]), middle = centred ? p.reduce((a, b) => a + b, 0) / p.length : 0;
      return p.map((v) => v - middle);
    });
    if (centred) this.add(`${at.path}.bias`, [vector(at.bias!)]);
  }
}

function add_heads(book: Ledger, at: any, z: Tensor): void {
  const wide = z.shape[1], weight: Tensor = at.out.weight, own = rows_of(z);
  book.add(`${at.path}.head`, own.map((zh, h) => Float64Array.from({ length: weight.shape[0] }, (_, d) => dot(vector(weight.index(d)).slice(h * wide, (h + 1) * wide), zh))), true);
  if (at.out.bias) book.add(`${at.path}.out.bias`, [vector(at.out.bias)]);
}

function add_ffn(book: Ledger, block: any, tap: (name: string) => Tensor): void {
  if (block.ffn) {
    const { path, down } = block.ffn, out = vector(tap(`${path}.out`));
    book.add(path, [down.bias ? out.map((v, i) => v - down.bias.numbers()[i]) : out]);
    if (down.bias) book.add(`${path}.down.bias`, [vector(down.bias)]);
    return;
  }
  const { moe } = block, { path } = moe, x = vector(tap(`${path}.norm`)), weight = tap(`${path}.weight`).tolist();
  tap(`${path}.index`).tolist().forEach((e, j) => {
    const up = times(rows_of(moe.up.index(e)), x), gate = times(rows_of(moe.gate.index(e)), x), act = vector(silu(new Tensor(gate, [gate.length])));
    book.add(`${path}.expert.${e}`, [times(rows_of(moe.down.index(e)), act.map((a, i) => a * up[i])).map((v) => v * weight[j])]);
  });
  book.add(`${path}.shared`, [vector(tap(`${path}.shared`))]);
}

/** The ledger of a position, and what pulls at its end. */
function write_ledger(run: Run, pos: number, first: number, second: number | null): { book: Ledger; pull: Vector } {
  const { core, said } = run.model, stack = core.decoder ?? core.encoder, prefix = stack.path ? `${stack.path}.` : "", book = new Ledger();
  const tap = (name: string): Tensor => { const x = run.trace.get(name); return x.shape.length === 4 ? x.index(0, { from: null, to: null, by: 1 }, pos) : x.index(0, pos); };
  const how = said.stacks[core.decoder ? "decoder" : "encoder"], token = vector(core.embed.weight.index(run.read[pos])).map((v) => v * how.scale);
  book.add(`${prefix}embed.token`, [token]);
  if (how.positions) book.add(`${prefix}embed.position`, [how.positions === "learned" ? vector(stack.positions.weight.index(pos + how.offset)) : vector(run.trace.get(`${prefix}embed`).index(0, pos)).map((v, i) => v - token[i])]);
  if (stack.segments) book.add(`${prefix}embed.segment`, [vector(stack.segments.weight.index(0))]);
  book.norm(stack.embed_norm);
  for (const block of stack.layers) {
    for (const part of block.cross ? ["attn", "cross", "ffn"] : ["attn", "ffn"]) {
      if (part === "ffn") add_ffn(book, block, tap);
      else add_heads(book, block[part], tap(`${block[part].path}.z`));
      book.norm(block[`${part}_sum`]);
    }
  }
  book.norm(stack.final_norm);
  const { dense } = core.head;
  if (dense) { // a dense layer's activation is frozen as the factor f(u) / u
    const w = rows_of(dense.linear.weight);
    book.apply(times(w, book.x), back_through(w));
    book.add("head.dense.linear.bias", [vector(dense.linear.bias)]);
    const was = book.x, factor = vector(gelu(new Tensor(was, [was.length]))).map((f, i) => (was[i] === 0 ? 0 : f / was[i]));
    book.apply(was.map((v, i) => v * factor[i]), (pull) => pull.map((v, i) => v * factor[i]));
    book.norm(dense.norm);
  }
  const row = (i: number | null): Vector => (i === null ? new Float64Array(book.x.length) : vector(core.head.weight.index(i)));
  const pull = row(first).map((v, i) => v - row(second)[i]);
  return { book, pull };
}

/** Every part with its push, and the pull at each. */
function measure(book: Ledger, pull: Vector): { name: string; push: number; pull: Vector }[] {
  const found: { name: string; push: number; pull: Vector }[] = [];
  for (const move of [...book.moves].reverse()) {
    if ("back" in move) { pull = move.back(pull); continue; }
    const { name, rows, many } = move.leaf, now = pull;
    found.unshift(...rows.map((r, i) => ({ name: many ? `${name}.${i}` : name, push: dot(r, now), pull: now })));
  }
  return found;
}

/** `layers.3.attn`, `layers.3.ffn`, `embed`, `head` …: the sub-layer to which a part belongs. */
const sublayer_of = (name: string): string => /^(.*layers\.\d+\.[^.]+)/.exec(name)?.[1] ?? name;

/** The token that a text or a number means. */
function find_token(run: Run, said: string | undefined): number | null {
  if (!said) return null;
  const { tokenizer, core, said: special } = run.model, ids = /^\d+$/.test(said) ? [Number(said)] : tokenizer.encode(said, false);
  if (ids.length === 1 && ids[0] < core.head.weight.shape[0] && ids[0] !== special.unknown) return ids[0];
  throw new Trouble({ zh: `“${said}”不是这个词表里的一个词元：它是 ${ids.length} 个，或不在其中`, en: `"${said}" is not one token of this vocabulary: it is ${ids.length}, or unknown` });
}

/** What is said of the norms. */
const LATER = { zh: "；各层之后的归一化按当时的尺度折算", en: "; later norms scale what came before" };
const note = (post: boolean): { zh: string; en: string } => ({ zh: `归一化的均值与尺度按这一次的值固定${post ? LATER.zh : ""}`, en: `norms act with the mean and scale that they had${post ? LATER.en : ""}` });

/** The answer to "parts". */
export function parts(run: Run, pos: number, query: Record<string, string>): Answer {
  const { core, tokenizer } = run.model, logits = run.trace.get("logits").index(0, pos).numbers() as Float32Array;
  const token = find_token(run, query.token) ?? best_of(logits, 1)[0], vs = find_token(run, query.vs), by = query.by ?? "sublayer";
  const { book, pull } = write_ledger(run, pos, token, vs), found = measure(book, pull), line = `t.parts(${pos}, ${token}, vs=${vs ?? "None"})`;
  if (core.head.bias) found.push({ name: "head.bias", push: core.head.bias.numbers()[token] - (vs === null ? 0 : core.head.bias.numbers()[vs]), pull });
  const logit = logits[token] - (vs === null ? 0 : logits[vs]), gap = Math.abs(found.reduce((sum, p) => sum + p.push, 0) - logit);
  let rows = found.map(({ name, push }) => ({ name, push, line: `${line}["${name}"]` }));
  if (by === "sublayer") {
    const sums = new Map<string, number>();
    for (const { name, push } of found) sums.set(sublayer_of(name), (sums.get(sublayer_of(name)) ?? 0) + push);
    rows = [...sums].map(([name, push]) => ({ name, push, line: `${line}["${name}"]` }));
  }
  if (by === "neuron") rows = neurons(run, pos, Number(query.layer ?? 0), found, `${pos}, ${token}, vs=${vs ?? "None"}`);
  const post = book.frozen.some((name) => name.endsWith("_sum"));
  const text = (id: number | null): string | null => (id === null ? null : tokenizer.pieces([id])[0].text);
  return { token, vs, text: text(token), vs_text: text(vs), pos, logit, gap, frozen: book.frozen, parts: rows, line: `${line}.logit`, note: note(post) };
}

function neurons(run: Run, pos: number, layer: number, found: { name: string; pull: Vector }[], given: string): { name: string; push: number; line: string }[] {
  const stack = run.model.core.decoder ?? run.model.core.encoder, ffn = stack.layers[layer]?.ffn;
  if (!ffn) throw new Trouble({ zh: "这一层没有前馈网络：每个专家自成一部分", en: "this layer has no feed-forward network: experts are parts of their own" });
  const { pull } = found.find((p) => p.name === ffn.path)!, act = vector(run.trace.get(`${ffn.path}.act`).index(0, pos)), carried = back_through(rows_of(ffn.down.weight))(pull);
  const push = act.map((a, i) => a * carried[i]), order = best_of(push.map(Math.abs), 50);
  return order.map((i, n) => ({ name: `${ffn.path}.neuron.${i}`, push: push[i], line: `t.neurons(${layer}, ${given}, top=50)[${n}].push` }));
}
