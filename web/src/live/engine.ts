/** A model in the browser: fetched once, checked and kept; a question to it becomes a run with everything it computed.
 *
 * Words are written first, then read once more with the cache, token by token, while taps record, as the server does. */
import { Cache, Reader, Tensor, beam, best_of, cat, load_weights, read_safetensors, tensor, write, zeros, LOWEST, type Module, type Special, type Tap } from "../../../src/qkv/specialize/runtime";
import { Trouble } from "../client";
import type { Question } from "../select";
import { PROGRAMS } from "./programs";
import { use_simd } from "./simd";
import { Tokenizer } from "./tokenizer";

/** What spec.json says (src/qkv/explore/web_model.py writes it); `plain` are words too plain to be anchors. */
export interface Said extends Special { format: number; name: string; program: string; bytes: number; sha256: string; mask: number | null; unknown: number | null; about: Record<string, any>; stacks: Record<string, { scale: number; positions: string | null; offset: number; layout: string }>; counts: Counts; plain: string[] }
/** What does not depend on the text (count_costs). */
export interface Counts { context: number; total: number; active: number; parameters: Record<string, number>; shapes: unknown[]; reports: Record<string, number[]>; widths: Record<string, number>; weights: Record<string, number>; kinds: Record<string, number>; memory: number }

const FORMAT = 2;
const STORE = "qkv-live";
let simd: Promise<boolean> | null = null;

export class Model {
  /** `again`: its weights came broken at first, and were fetched once more. */
  constructor(readonly said: Said, readonly core: any, readonly tokenizer: Tokenizer, readonly again = false) {}

  /** The parts that have attention, with their modules' paths. */
  get parts(): { part: string; paths: string[] }[] {
    const { encoder, decoder } = this.core;
    const paths = (stack: any, dot: string, name: string) => stack.layers.map((_: unknown, i: number) => `${dot}layers.${i}.${name}`);
    const [first, second] = encoder && decoder ? ["encoder.", "decoder."] : ["", ""];
    return [
      ...(encoder ? [{ part: "encoder", paths: paths(encoder, first, "attn") }] : []),
      ...(decoder ? [{ part: "decoder", paths: paths(decoder, second, "attn") }] : []),
      ...(encoder && decoder ? [{ part: "cross", paths: paths(decoder, second, "cross") }] : []),
    ];
  }
}

/** The model of a folder: spec.json, tokenizer.json and model.safetensors, which is kept in the browser. */
export async function open_model(folder: string): Promise<Model> {
  const said = (await fetched(`${folder}/spec.json`).then((r) => r.json())) as Said;
  const Program = PROGRAMS[said.program];
  if (said.format !== FORMAT || !Program) throw new Trouble({ zh: `${folder} 里的模型和这一页不是同一个版本：请重新加载，或用同一版 qkv 重新生成`, en: `the model in ${folder} is of another version than this page: reload it, or build both with one version of qkv` });
  simd ??= use_simd();
  const [words, weights] = await Promise.all([fetched(`${folder}/tokenizer.json`).then((r) => r.json()), read_weights(`${folder}/model.safetensors`, said), simd]);
  const core = new Program();
  load_weights(core as Module, read_safetensors(weights.body));
  return new Model(said, core, new Tokenizer(words), weights.again);
}

async function fetched(url: string, how: RequestInit = {}): Promise<Response> {
  try {
    const reply = await fetch(url, how);
    if (reply.ok) return reply;
    throw new Error(String(reply.status));
  } catch (error) {
    const { message } = error as Error;
    throw new Trouble({ zh: `读不到 ${url}（${message}）：网络断了，还是网站没有这个文件？`, en: `${url} cannot be read (${message}): no network, or is the file missing on the site?` });
  }
}

/** The weights, from what was kept where it is whole; a file that is not what spec.json says is fetched once more. */
async function read_weights(url: string, said: Said): Promise<{ body: ArrayBuffer; again: boolean }> {
  const key = `${url}?sha256=${said.sha256}`;
  const store = await open_store();
  const old = await store?.match(key).then((r) => r?.arrayBuffer()).catch(() => undefined);
  if (old && (await is_whole(old, said))) return { body: old, again: false };
  for (const cache of ["default", "reload"] as const) {
    const body = await fetched(url, { cache }).then((r) => r.arrayBuffer());
    if (!(await is_whole(body, said))) continue;
    for (const known of (await store?.keys()) ?? []) if (known.url.split("?")[0] === new URL(url, location.href).href) await store!.delete(known);
    await store?.put(key, new Response(body.slice(0))).catch(() => undefined); // no room: it is fetched again next time
    return { body, again: cache === "reload" || old !== undefined };
  }
  throw new Trouble({ zh: `${url} 没有传完整，或不是这个模型的权重（校验和不符）：请再加载一次`, en: `${url} came incomplete, or is not this model's (its hash differs): load the page again` });
}

async function open_store(): Promise<Cache_ | undefined> {
  return globalThis.caches?.open(STORE).catch(() => undefined); // private windows and file:// have none
}
type Cache_ = Awaited<ReturnType<CacheStorage["open"]>>;

/** Whether a file is the one that spec.json means; without crypto (a page that is not secure) by its length alone. */
async function is_whole(body: ArrayBuffer, { bytes, sha256 }: Said): Promise<boolean> {
  if (body.byteLength !== bytes) return false;
  if (!globalThis.crypto?.subtle) return true;
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", body));
  return Array.from(hash, (b) => b.toString(16).padStart(2, "0")).join("") === sha256;
}

/** Changes what a tap carries; `begin` is the position of its first row. */
export type Change = (key: string, x: Tensor, begin: number) => Tensor;

/** What a question cuts: one head silenced, or one edge of it, whose score falls to the lowest number. */
function cuts_of(model: Model, cut: Question["cut"]): Change[] {
  if (!cut) return [];
  const { head, query, key: seen } = cut, path = model.parts.find((p) => p.part === cut.part)?.paths[cut.layer];
  return [(key, x, begin) => {
    if (key !== `${path}.${query === undefined ? "z" : "score"}`) return x;
    const copy = new Tensor(x.numbers().slice(), x.shape), [rows, heads, count, wide] = x.shape as [number, number, number, number];
    for (let b = 0; b < rows; b++) {
      const at = (b * heads + head) * count * wide;
      if (query === undefined) copy.data.fill(0, at, at + count * wide);
      else if (query >= begin && query < begin + count && seen! < wide) copy.data[at + (query - begin) * wide + seen!] = LOWEST;
    }
    return copy;
  }];
}

/** Everything that a pass computed, by name: pieces of a cached pass are put together where they are read. */
export class Trace {
  private readonly pieces = new Map<string, Tensor[]>();
  private readonly whole = new Map<string, Tensor>();

  /** A tap that records; `changes` come first, and what they give goes on. */
  tap(changes: Change[] = []): Tap {
    const seen = new Map<string, number>();
    return (module, name, x) => {
      const key = `${module.path ? `${module.path}.` : ""}${name}`, begin = seen.get(key) ?? 0;
      if (changes.length) seen.set(key, begin + x.shape.at(-2)!);
      for (const change of changes) x = change(key, x, begin);
      this.pieces.set(key, [...(this.pieces.get(key) ?? []), x]);
      return x;
    };
  }

  keep(name: string, x: Tensor): void {
    this.whole.set(name, x);
  }

  has(name: string): boolean {
    return this.pieces.has(name) || this.whole.has(name);
  }

  /** A value of the whole text [1, …]; rows of a pattern that came early are as long as the last one. */
  get(name: string): Tensor {
    const known = this.whole.get(name);
    if (known) return known;
    const pieces = this.pieces.get(name);
    if (!pieces) throw new Error(`trace: there is no ${name}`);
    const wide = pieces.at(-1)!.shape.at(-1)!;
    const grown = pieces.map((p) => (p.shape.at(-1) === wide ? p : cat([p, zeros([...p.shape.slice(0, -1), wide - p.shape.at(-1)!])], -1)));
    const found = pieces.length > 1 ? cat(grown, pieces[0]!.shape.length - 2) : pieces[0]!;
    this.whole.set(name, found);
    return found;
  }
}

/** One text in one model: what was read and written, and what the pass over both computed. */
export interface Pass { model: Model; question: Question; text: string; ids: number[]; read: number[]; given: number; written: { id: number; p: number; forced: boolean }[]; trace: Trace }
/** A question with its answer: the pass over the text, and over the second text where one was given. */
export interface Run extends Pass { id: string; second: Pass | null; ms: number }

/** Puts a question to a model. */
export function ask(model: Model, question: Question, id: string): Run {
  const began = performance.now(), first = read_text(model, question.text, question), second = question.second ? read_text(model, question.second, question) : null;
  return { ...first, id, second, ms: performance.now() - began };
}

/** One text, continued or translated, and traced; `more` is changed beside what the question cuts. */
export function read_text(model: Model, given: string, question: Question, more: Change[] = []): Pass {
  const { said, core, tokenizer } = model, text = given.trim(), ids = tokenizer.encode(text);
  if (!text || !ids.length) throw new Trouble({ zh: "没有文字：写一句话", en: "there is no text: write a sentence" });
  if (said.longest !== null && ids.length > said.longest) throw new Trouble({ zh: `这段文字有 ${ids.length} 个词元，这个模型最多读 ${said.longest} 个：请写短一些`, en: `this text has ${ids.length} tokens, and this model reads at most ${said.longest}: write less` });
  const changes = [...cuts_of(model, question.cut), ...more], trace = new Trace(), common = { model, question, text, ids, trace };
  if (said.kind === "encoder") {
    const one = tensor(ids, [1, ids.length]);
    core.forward(one, trace.tap(changes), new Cache());
    if (core.labels) trace.keep("labels.out", core.classify(one, new Trace().tap(changes)));
    return { ...common, read: ids, given: ids.length, written: [] };
  }
  const both = said.kind === "encoder-decoder", force = question.force ?? [];
  const most = question.max_new_tokens ?? (both ? undefined : 12);
  const edge = question.cut?.query !== undefined && question.cut.part !== "encoder";
  const width = question.sampling || edge ? 1 : (question.beam ?? (both ? 4 : 1));
  const reader = new Reader(core, said, new Trace().tap(changes));
  const choice = { ...question.sampling, force, max_new_tokens: most, beam: width, length_penalty: both ? 0.6 : 0 };
  const ended = force.length > 0 && said.eos.includes(force.at(-1)!);
  const best = ended ? { tokens: [], logprobs: [] } : width > 1 ? beam(reader, ids, choice)[0]! : write(reader, ids, choice);
  const tokens = [...force, ...best.tokens], again = new Reader(core, said, trace.tap(changes));
  const forced = force.length < tokens.length ? force : force.slice(0, -1);
  again.begin(ids, tokens.slice(0, -1)); // the last token is not read: nothing was said after it
  const start = both ? said.start : [...ids, ...(said.kind === "prefix" ? said.start : [])];
  return {
    ...common, read: [...start, ...tokens.slice(0, -1)], given: start.length + forced.length,
    written: tokens.map((token, i) => ({ id: token, p: i < force.length ? 1 : Math.exp(best.logprobs[i - force.length]!), forced: i < force.length })),
  };
}

/** What was written, or the text with its blanks filled in. */
export function output_of({ model, ids, written, trace }: Pass): string {
  const { said, core, tokenizer } = model;
  if (core.decoder) return tokenizer.decode(written.map((w) => w.id).filter((id) => !said.eos.includes(id)));
  if (!core.head || !ids.includes(said.mask ?? -1)) return "";
  const logits = trace.get("logits").index(0);
  return tokenizer.decode(ids.map((id, i) => (id === said.mask ? best_of(logits.index(i).numbers(), 1)[0]! : id)));
}
