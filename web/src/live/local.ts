/** A client that computes: the model runs in this page and answers what the server answers (src/qkv/explore/answers.py).
 *
 * What needs Python (training, gradients, big models) says so and names the command. */
import { Tensor, best_of, distribution, log_softmax, softmax_row, type Choice } from "../../../src/qkv/specialize/runtime";
import { Trouble, canonical, type Answer, type Client, type Numbers, type Watch } from "../client";
import type { Question } from "../select";
import { diff, patch } from "./compare";
import { cache, cost } from "./counted";
import { analogy, neighbours, shift } from "./embeddings";
import { ask, open_model, output_of, type Model, type Run } from "./engine";
import { parts } from "./parts";
import { proof } from "./proof";
import { walk } from "./walk";

type Query = Record<string, string>;
type Maker = (run: Run, query: Query, watch?: Watch) => Answer | Promise<Answer>;
/** Long work, and who waits for it. */
interface Work { answer: Promise<Answer>; watches: Watch[] }
const KEPT = 8;
const THUMB = 24;
const LONG = ["proof"]; // begun once, and kept as long as its run
const TABLES: Record<string, (model: Model, query: Query) => Answer> = { neighbours, analogy, cost }; // of a model, whatever the text
const HIDDEN = ["", "future", "padding", "window", "other document"];

export class LocalClient implements Client {
  readonly recorded = false;
  private readonly models = new Map<string, Promise<Model>>();
  private readonly runs = new Map<string, Run>();
  private readonly works = new Map<string, Work>();

  /** `base` holds a folder for each of the models; the first is the one that the page opens with. */
  constructor(private readonly base: string, private readonly names: string[]) {}

  model(name = this.names[0]!): Promise<Model> {
    if (!this.names.includes(name)) return Promise.reject(new Trouble({ zh: `没有模型 ${name}；有 ${this.names.join("、")}`, en: `there is no model ${name}; there are ${this.names.join(", ")}` }));
    const known = this.models.get(name) ?? open_model(`${this.base}/${name}`);
    this.models.set(name, known);
    known.catch(() => this.models.delete(name)); // asked again next time
    return known;
  }

  async get(path: string, watch?: Watch): Promise<Answer> {
    const { pathname, searchParams } = new URL(path, "page://here");
    const query = Object.fromEntries(searchParams), [, , first, id, what] = pathname.split("/");
    if (first === "about") return this.about(query.model);
    const table = TABLES[first!];
    if (table) return table(await this.model(query.model), query);
    if (first !== "r") throw needs_python(first!, this.names[0]!);
    const run = this.runs.get(id!);
    if (!run) throw new Trouble({ zh: "这一次运行已经不在了", en: "this run is gone" }, 404);
    const made = ANSWERS[what!];
    if (!made) throw needs_python(what!, run.model.said.name);
    return LONG.includes(what!) ? this.begin(path, watch, (all) => made(run, query, all)) : made(run, query);
  }

  /** Long work is begun once for all who wait for it; it goes on as long as one of them does. */
  private begin(path: string, watch: Watch | undefined, make: (all: Watch) => Answer | Promise<Answer>): Promise<Answer> {
    const known = this.works.get(path);
    if (known) {
      if (watch) known.watches.push(watch);
      return known.answer;
    }
    const watches = watch ? [watch] : [], wanted = (): boolean => !watch || watches.some((w) => w.wanted());
    const answer = Promise.resolve(make({ wanted, share: (done) => watches.forEach((w) => w.share(done)) }));
    this.works.set(path, { answer, watches });
    answer.catch(() => this.works.delete(path)); // begun anew next time
    return answer;
  }

  async run(question: Question): Promise<string> {
    const model = await this.model(question.model);
    const id = `r${hash(JSON.stringify([model.said.name, canonical("", flat(question))]))}`;
    if (!this.runs.has(id)) {
      await new Promise((go) => setTimeout(go)); // the page shows that it works before it does
      this.runs.set(id, ask(model, question, id));
      for (const old of this.runs.keys()) if (this.runs.size > KEPT) this.forget(old);
    }
    return id;
  }

  wish(): Promise<void> {
    return Promise.reject(needs_python("training", this.names[0]!));
  }

  events(): null {
    return null; // nothing learns here
  }

  forget(run: string): void {
    this.runs.delete(run);
    for (const path of [...this.works.keys()]) if (path.startsWith(`/api/r/${run}/`)) this.works.delete(path);
  }

  private async about(name?: string): Promise<Answer> {
    const { said } = await this.model(name);
    return { ...said.about, models: this.names, model: said.name, line: "model" };
  }
}

function needs_python(what: string, name: string): Trouble {
  return new Trouble({ zh: `这一项（${what}）要用 Python 算：装好 qkv 后运行 qkv look ${name} --serve`, en: `this one (${what}) needs Python: with qkv installed, run qkv look ${name} --serve` }, 501);
}

/** Twelve hexadecimal digits of a text (FNV-1a, twice): the name of a run, no secret. */
function hash(text: string): string {
  return [0x811c9dc5, 0x1234567].map((seed) => [...text].reduce((h, c) => Math.imul(h ^ c.codePointAt(0)!, 0x01000193) >>> 0, seed).toString(16).padStart(8, "0").slice(0, 6)).join("");
}

const flat = (question: Question): Record<string, string> => Object.fromEntries(Object.entries(question).map(([k, v]) => [k, JSON.stringify(v)]));
const numbers = (data: Numbers["data"], shape: number[]): Numbers => ({ data, shape });
const bytes = (x: ArrayLike<number>): Uint8Array => Uint8Array.from(x, (v) => Math.round(Math.min(1, Math.max(0, v)) * 255));
const whole = (query: Query, key: string, most: number, usual = 0): number => {
  const found = Number(query[key] ?? usual);
  if (Number.isInteger(found) && found >= 0 && found < most) return found;
  throw new Trouble({ zh: `${key}=${query[key]}：应是 0 到 ${most - 1} 的整数`, en: `${key}=${query[key]}: expected a whole number, 0 to ${most - 1}` });
};

/** What a query means by part, layer and head. */
function place(run: Run, query: Query): { part: string; paths: string[]; path: string; layer: number; head: number } {
  const { parts } = run.model, part = query.part ?? (run.model.core.decoder ? "decoder" : "encoder"), found = parts.find((p) => p.part === part);
  if (!found) throw new Trouble({ zh: `part=${part}：这个模型有 ${parts.map((p) => p.part).join("、")}`, en: `part=${part}: this model has ${parts.map((p) => p.part).join(", ")}` });
  const layer = whole(query, "layer", found.paths.length), path = found.paths[layer]!;
  return { ...found, path, layer, head: whole(query, "head", run.trace.get(`${path}.pattern`).shape[1]!) };
}

/** One head's weights [Q, S], a row for each query. */
const head_of = (run: Run, path: string, head: number): Tensor => run.trace.get(`${path}.pattern`).index(0, head);
const tokens_of = (run: Run, ids: number[]): Answer[] => run.model.tokenizer.pieces(ids) as unknown as Answer[];
const source_ids = (run: Run): number[] => run.ids;

function meta(run: Run): Answer {
  const { model, question, trace } = run, { said, core } = model, both = said.kind === "encoder-decoder";
  const written = tokens_of(run, run.written.map((w) => w.id)).map((t, i) => ({ ...t, p: run.written[i]!.p, forced: run.written[i]!.forced }));
  const parts = model.parts.map(({ part, paths }) => {
    const [, heads, queries, keys] = trace.get(`${paths[0]}.pattern`).shape, groups = trace.get(`${paths[0]}.k_pre`).shape[1];
    return { part, path_of_layer: paths, layers: paths.length, heads, groups, queries, keys };
  });
  const labels = trace.has("labels.out") ? softmax(trace.get("labels.out").numbers()).map((p, i) => [said.about.labels[i], p]) : null;
  const missing = [run, run.second].some((one) => one?.ids.includes(said.unknown ?? -1));
  return {
    question, text: run.text, output: output_of(run),
    kind: said.kind, model: said.name, encoder: core.encoder ? { tokens: tokens_of(run, run.ids) } : null,
    decoder: core.decoder ? { tokens: tokens_of(run, run.read), prompt: run.given, phases: run.read.map((_, i) => (i < run.given ? "prefill" : "decode")) } : null,
    written, labels, second: run.second && { text: run.second.text, output: output_of(run.second) }, parts, cut: question.cut ?? null, full: true, check: null, checks: {},
    panels: ["translate", "words", "attn", "walk", "mask", "wavefront", ...(core.head ? ["lens", "choices", "parts"] : []), ...(both ? ["alignment"] : []), ...(routers(run).length ? ["routes"] : []), "shift", ...Object.keys(TABLES), ...(core.decoder ? ["cache", "proof"] : []), ...(run.second ? ["diff"] : [])],
    said: [
      ...(missing ? [{ zh: "有的词不在词表里，模型只看到一个“未知”记号", en: "some words are not in the vocabulary: the model sees a mark for the unknown" }] : []),
      ...(model.again ? [{ zh: "模型的权重上一次没有传完整（校验和不符），已经重新取过", en: "the weights had come incomplete (their hash differed) and were fetched again" }] : []),
    ],
    source: both ? run.ids.length : null, ms: run.ms, how: `import qkv\nmodel = qkv.load(${JSON.stringify(said.name)})`,
  };
}

function softmax(x: ArrayLike<number>): number[] {
  const row = Float64Array.from(x);
  softmax_row(row);
  return Array.from(row);
}

/** The largest number of each tile of [Q, S]. */
function pool(x: Tensor, down: number, across: number): { data: number[]; shape: number[] } {
  const [rows, cols] = x.shape as [number, number], own = x.numbers(), m = Math.ceil(rows / down), n = Math.ceil(cols / across), data = new Array<number>(m * n).fill(0);
  own.forEach((v: number, i: number) => { const to = Math.floor(Math.floor(i / cols) / down) * n + Math.floor((i % cols) / across); data[to] = Math.max(data[to]!, v); });
  return { data, shape: [m, n] };
}

function thumbs(run: Run, query: Query): Answer {
  const { part, paths } = place(run, query), first = run.trace.get(`${paths[0]}.pattern`), [, heads, queries, keys] = first.shape as [number, number, number, number];
  const by = [Math.ceil(queries / THUMB), Math.ceil(keys / THUMB)] as [number, number], sinks: number[] = [], all: number[] = [];
  let shape: number[] = [];
  for (const path of paths) {
    for (let h = 0; h < heads; h++) {
      const own = head_of(run, path, h), copy = new Tensor(own.numbers().slice(), own.shape);
      sinks.push(Array.from({ length: queries }, (_, q) => copy.data[q * keys]!).reduce((a, b) => a + b, 0) / queries);
      if (query.sink === "0") for (let q = 0; q < queries; q++) copy.data[q * keys] = 0;
      const small = pool(copy, ...by);
      ({ shape } = small);
      all.push(...small.data);
    }
  }
  return {
    part, pool: by, line: `torch.stack([t[f"${paths[0]!.replace(/layers\.\d+/, "layers.{i}")}.pattern"][0, :, :, 0].mean(-1) for i in range(${paths.length})])`,
    arrays: { thumbs: numbers(bytes(all), [paths.length, heads, ...shape]), sink: numbers(Float32Array.from(sinks), [paths.length, heads]) },
  };
}

function attn(run: Run, query: Query): Answer {
  const { path, head } = place(run, query), weight = head_of(run, path, head), by = Math.max(1, Number(query.pool ?? 1)), small = pool(weight, by, by);
  return { path, head, pool: by, line: `t["${path}.pattern"][0, ${head}]`, arrays: { weight: numbers(bytes(small.data), small.shape) } };
}

/** Why a key is hidden from a query: an index into HIDDEN. */
function reason(run: Run, part: string, q: number, k: number): number {
  const { kind } = run.model.said;
  return part === "decoder" && k > q && !(kind === "prefix" && k < run.ids.length) ? 1 : 0;
}

function row(run: Run, query: Query): Answer {
  const { part, path, layer, head } = place(run, query), pattern = head_of(run, path, head), [queries, keys] = pattern.shape as [number, number];
  const i = whole(query, "query", queries), { cut } = run.question;
  const q = run.trace.get(`${path}.q`).index(0, head, i).numbers(), own = part === "cross" ? "k_pre" : "k", k = run.trace.get(`${path}.${own}`);
  const heads = run.trace.get(`${path}.q`).shape[1]!, group = Math.floor(head / (heads / k.shape[1]!)), scale = q.length ** -0.5;
  const score = Array.from({ length: keys }, (_, s) => (k.index(0, group, s).numbers() as Float32Array).reduce((sum: number, x: number, d: number) => sum + x * q[d]!, 0) * scale);
  const reasons = score.map((_, s) => (cut?.part === part && cut.layer === layer && cut.head === head && cut.query === i && cut.key === s ? "cut" : HIDDEN[reason(run, part, i, s)]!));
  const line = `t["${path}.pattern"][0, ${head}][${i}]`;
  const lines = { weight: line, score: `((t["${path}.${own}"][0, ${group}].float() @ t["${path}.q"][0, ${head}, ${i}].float()) * t.attentions["${path}"].scale)`, bias: `t.bias("${path}")[0, 0, ${i}]` };
  return { path, query: i, reasons, line, lines, arrays: {
    weight: numbers(Float32Array.from(pattern.index(i).numbers()), [keys]), score: numbers(Float32Array.from(score), [keys]), bias: numbers(new Float32Array(keys), [keys]),
  } };
}

function mask(run: Run, query: Query): Answer {
  const { part, path } = place(run, query), [queries, keys] = head_of(run, path, 0).shape as [number, number];
  const code = Uint8Array.from({ length: queries * keys }, (_, i) => reason(run, part, Math.floor(i / keys), i % keys));
  return { path, kind: part === "decoder" ? (run.model.said.kind === "prefix" ? "prefix" : "causal") : part === "cross" ? "memory" : "full", reasons: HIDDEN, line: `t.mask("${path}").cells`, arrays: { code: numbers(code, [queries, keys]) } };
}

/** Each layer's states through the final norm and the head (nostalgebraist 2020): logits [L+1, T, V] by layer. */
function layer_logits(run: Run): Tensor[] {
  const { core } = run.model, stack = core.decoder ?? core.encoder, dot = stack.path ? `${stack.path}.` : "";
  const states = [`${dot}embed`, ...stack.layers.map((_: unknown, i: number) => `${dot}layers.${i}.resid_out`)].map((name) => run.trace.get(name));
  return states.map((x) => core.head.forward(stack.final_norm ? stack.final_norm.forward(x) : x).index(0));
}

function lens(run: Run, query: Query): Answer {
  const top = whole(query, "top", 51, 5), own = query.own !== "0", logits = layer_logits(run), { tokenizer, said, core } = run.model;
  const pos = query.pos === undefined ? null : whole(query, "pos", run.read.length), places = pos === null ? run.read.map((_, i) => i) : [pos];
  const ids: number[][][] = [], cells: unknown[][][] = [], ranks: number[][] = [];
  const answers = places.map((p) => best_of(logits.at(-1)!.index(p).numbers(), 1)[0]!);
  for (const layer of logits) {
    const rows = places.map((p) => Float64Array.from(layer.index(p).numbers()));
    ranks.push(rows.map((r, i) => r.reduce((n, x) => n + +(x > r[answers[i]!]!), 1)));
    if (!own) rows.forEach((r, i) => (r[run.read[places[i]!]!] = -Infinity));
    const best = rows.map((r) => (softmax_row(r), best_of(r, top)));
    ids.push(best);
    cells.push(best.map((b, i) => b.map((id) => [tokenizer.pieces([id])[0]!.text, rows[i]![id]])));
  }
  const used = core.decoder ? run.read.map((_, i) => i >= run.given - 1) : run.ids.map((id) => id === said.mask || !run.ids.includes(said.mask ?? -1));
  const layers = ["embed", ...logits.slice(1).map((_, i) => String(i + 1))];
  const these = `qkv.lens.logit_lens.layer_logits(t, places=slice(${places[0]}, ${places.at(-1)! + 1}))[1]`;
  const plain = pos === null ? `t.lens(top=${top}).chances` : `t.lens(${pos}, top=${top}).chances`;
  const rest = `(lambda x, read: x.scatter(-1, read.expand(len(x), -1, 1), -torch.inf).softmax(-1).topk(${top}).values)(${these}, qkv.lens.resolve.find_run(t).ids[:1, ${places[0]}:${places.at(-1)! + 1}, None])`;
  const rank = `(lambda x: (x > x.gather(-1, x[-1:].argmax(-1, keepdim=True).expand(len(x), -1, 1))).sum(-1) + 1)(${these})`;
  return { layers, first: places[0], used: places.map((p) => used[p]), cells, ids, ranks, line: own ? plain : rest, lines: { ranks: rank } };
}

/** The position that a query means: by default the one after which the first word is written, or an encoder's first mask. */
function position(run: Run, query: Query): number {
  const { said, core } = run.model, usual = core.decoder ? run.given - 1 : Math.max(0, run.ids.indexOf(said.mask ?? -1));
  return whole(query, "pos", run.read.length, usual);
}

function choices(run: Run, query: Query): Answer {
  const { core, tokenizer } = run.model, pos = position(run, query), logprobs = log_softmax(run.trace.get("logits").index(0, pos).numbers());
  const [temperature, top_k, top_p, min_p] = ["temperature", "top_k", "top_p", "min_p"].map((k) => (query[k] === undefined ? undefined : Number(query[k])));
  const steps: [string, Choice][] = [["model", {}]];
  let now: Choice = { temperature: temperature ?? 1 };
  if (temperature !== undefined && temperature !== 1) steps.push([`temperature ${temperature}`, now]);
  for (const [name, value] of [["top_k", top_k], ["top_p", top_p], ["min_p", min_p]] as const) if (value) steps.push([`${name} ${value}`, (now = { ...now, [name]: value })]);
  const top = whole(query, "top", 201, 20), at = (x: number | undefined, off: string) => (x ? String(x) : off), heat = now.temperature!;
  const line = `t.choices(${pos}, sampling=qkv.sampling.Sampling(${Number.isInteger(heat) ? heat.toFixed(1) : heat}, ${at(top_k, "None")}, ${at(top_p, "None")}, ${at(min_p, "None")}))`;
  let before: Float64Array | null = null;
  const stages = steps.map(([name, c], n) => {
    const p = c.temperature === 0 ? Float64Array.from(logprobs, (x) => +(x === Math.max(...logprobs))) : distribution(logprobs, c);
    const gone = (before ?? p).reduce((sum, x, i) => sum + (p[i] === 0 ? x : 0), 0), kept = p.reduce((k, x) => k + +(x > 0), 0);
    before = p;
    return { name, kept, gone, entropy: Math.abs(p.reduce((sum, x) => sum + (x > 0 ? x * Math.log(x) : 0), 0)), line: `${line}[${n}]`,
      top: best_of(p, Math.min(top, kept)).map((id) => ({ id, text: tokenizer.pieces([id])[0]!.text, p: p[id] })) };
  });
  return { pos, next: core.decoder ? (run.read[pos + 1] ?? run.written.at(-1)?.id ?? null) : null, stages, line };
}

function alignment(run: Run, query: Query): Answer {
  const paths = run.model.parts.find((p) => p.part === "cross")?.paths;
  if (!paths) throw new Trouble({ zh: "只有编码器—解码器才对齐词", en: "only an encoder-decoder aligns words" });
  const real = run.ids.length - +run.model.said.eos.includes(run.ids.at(-1)!);
  const maps = paths.map((path) => {
    const x = run.trace.get(`${path}.pattern`), [, heads, rows, cols] = x.shape as [number, number, number, number], mean = new Float32Array(rows * cols);
    x.numbers().forEach((v: number, i: number) => (mean[i % (rows * cols)]! += v / heads));
    return { mean, rows, cols };
  });
  const covers = maps.map(({ mean, rows, cols }) => { // how well each source word is covered by its largest share
    let sum = 0;
    for (let s = 0; s < real; s++) sum += Math.max(...Array.from({ length: rows }, (_, q) => mean[q * cols + s]!));
    return sum / real;
  });
  const layer = query.layer === undefined ? covers.indexOf(Math.max(...covers)) : whole(query, "layer", paths.length), { mean, rows, cols } = maps[layer]!;
  return { layer, chosen: query.layer === undefined, line: `t.alignment(layer=${layer}).weight`, arrays: { weight: numbers(mean, [rows, cols]) } };
}

const routers = (run: Run): string[] => {
  const { core } = run.model, stack = core.decoder ?? core.encoder, dot = stack.path ? `${stack.path}.` : "";
  return stack.layers.map((_: unknown, i: number) => `${dot}layers.${i}.moe`).filter((path: string) => run.trace.has(`${path}.index`));
};

function routes(run: Run, query: Query): Answer {
  const paths = routers(run), layers = paths.map((p) => Number(/layers\.(\d+)/.exec(p)![1])), layer = query.layer === undefined ? layers[0]! : Number(query.layer);
  const path = paths[layers.indexOf(layer)];
  if (!path) throw new Trouble({ zh: "这个模型没有专家；每个词元走同一条路", en: "this model has no experts; every token passes the same networks" });
  const [logits, index, weight] = ["logits", "index", "weight"].map((n) => run.trace.get(`${path}.${n}`).index(0)) as [Tensor, Tensor, Tensor];
  const experts = logits.shape[1]!, chosen = index.shape[1]!, load = new Array<number>(experts).fill(0);
  index.tolist().forEach((e) => (load[e]! += 1));
  const rows = (x: Tensor): number[][] => Array.from({ length: x.shape[0]! }, (_, i) => x.index(i).tolist());
  const at = `t.routes()[${layers.indexOf(layer)}]`, score = logits.softmax(-1);
  const lines = { index: `${at}.index`, weight: `${at}.weight`, load: `${at}.load`, share: `(${at}.load / ${at}.load.sum())`, logits: `t["${path}.logits"][0]`, score: `${at}.score` };
  return { layer, layers, path, tokens: tokens_of(run, run.read), experts, chosen, shared: run.trace.has(`${path}.shared`), scored: "softmax", weights: "sum to one", scale: 1, groups: 1, open_groups: 1, group_score: "best",
    index: rows(index), weight: rows(weight), load, share: load.map((n) => n / load.reduce((a, b) => a + b, 0)), line: lines.weight, lines,
    arrays: { logits: numbers(Float32Array.from(logits.numbers()), logits.shape), score: numbers(Float32Array.from(score.numbers()), score.shape) } };
}

/** The tokens of the text, and which of them the vocabulary lacks. */
const words = (run: Run): Answer => ({ tokens: tokens_of(run, source_ids(run)), unknown: run.model.said.unknown, line: "model.tokenizer.pieces(model.ids(text))" });

/** When each state could be and was computed, in ticks [L, T], and which states of the layer below it reads. */
function wavefront(run: Run): Answer {
  const { core } = run.model, layers: number = (core.decoder ?? core.encoder).layers.length, both = core.encoder && core.decoder, size = run.read.length;
  const sees = (q: number, k: number): boolean => q === k || !reason(run, core.decoder ? "decoder" : "encoder", q, k);
  const given = core.decoder ? run.given : size, grid = (f: (layer: number, token: number) => number): number[][] => Array.from({ length: layers }, (_, l) => Array.from({ length: size }, (_, t) => f(l, t)));
  const earliest = grid(() => 0);
  for (const columns of [Array.from({ length: given }, (_, t) => t), ...Array.from({ length: size - given }, (_, i) => [given + i])]) {
    for (const t of columns) earliest[0]![t] = columns[0] === 0 ? 0 : earliest[layers - 1]![columns[0]! - 1]! + 1;
    for (let l = 1; l < layers; l++) for (const t of columns) earliest[l]![t] = 1 + Math.max(...earliest[l - 1]!.filter((_, s) => sees(t, s)));
  }
  const sent = (rows: number[][]): Numbers => numbers(Int32Array.from(rows.flat()), [rows.length, rows[0]!.length]);
  const found = { triangle: grid((l, t) => l + t), earliest, ran: grid((l, t) => l + layers * Math.max(0, t - given + 1)), ...(both ? { encoder: core.encoder.layers.map((_: unknown, l: number) => run.ids.map(() => l)) as number[][] } : {}) };
  return { layers, same: true, tokens: tokens_of(run, run.read), source: both ? tokens_of(run, run.ids) : null, line: "t.wavefront().ran",
    lines: Object.fromEntries([...Object.keys(found), "sees"].map((n) => [n, `t.wavefront().${n}`])),
    arrays: { ...Object.fromEntries(Object.entries(found).map(([n, rows]) => [n, sent(rows)])), sees: numbers(Uint8Array.from({ length: size * size }, (_, i) => +sees(Math.floor(i / size), i % size)), [1, size, size]) } };
}

function steps(run: Run, query: Query): Answer {
  const { part, path, layer: number, head } = place(run, query), [, , queries, keys] = run.trace.get(`${path}.pattern`).shape as [number, number, number, number];
  const q = whole(query, "query", queries), k = whole(query, "key", keys), { core } = run.model, { cut } = run.question;
  const dot = path.slice(0, path.indexOf("layers.")), layer = path.slice(0, path.lastIndexOf("."));
  const severed = cut?.part === part && cut.layer === number && cut.head === head && cut.query === q && cut.key === k;
  return walk({ run, path, layer, dot, stack: part === "encoder" ? core.encoder : core.decoder, part, head, query: q, key: k, reason: severed ? "cut" : HIDDEN[reason(run, part, q, k)]! });
}

export const ANSWERS: Record<string, Maker> = { meta, thumbs, attn, row, walk: steps, mask, wavefront, lens, choices, parts: (run, query) => parts(run, position(run, query), query), alignment, routes, words, cache, diff, patch, proof, shift };
