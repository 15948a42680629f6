/** The part of PyTorch that a printed model uses, on typed arrays; then its weights, its cache, and how it writes.
 *
 * A Tensor is a view of numbers: transposing and slicing copy nothing. Read Tensor, then products, then Kept, then beam.
 * Letters: B rows, T queries, S keys, H heads, K head dim, N and M rows of two matrices, V vocabulary. */

export type Data = Float32Array<any> | Float64Array<any> | Int32Array<any> | Uint8Array<any>;
export type At = number | null | string | Tensor | { from: number | null; to: number | null; by: number };
export type Options = { dtype?: string; keepdim?: boolean; bias?: boolean; eps?: number; approximate?: string; dim?: number };
export type Tap = (module: Module, name: string, x: Tensor) => Tensor;

const KINDS: Record<string, any> = { float32: Float32Array, float64: Float64Array, int64: Int32Array, bool: Uint8Array };
export const LOWEST = -3.4028234663852886e38; // the lowest finite fp32
const count = (shape: number[]): number => shape.reduce((a, b) => a * b, 1);
const strides_of = (shape: number[]): number[] => shape.map((_, i) => count(shape.slice(i + 1)));
export const range = (n: number): number[] => Array.from({ length: n }, (_, i) => i);
export const slice = (from: number | null = null, to: number | null = null, by = 1): At => ({ from, to, by });

export class Tensor {
  data: Data; shape: number[]; strides: number[]; offset: number;

  constructor(data: Data, shape: number[], strides = strides_of(shape), offset = 0) { this.data = data; this.shape = shape; this.strides = strides; this.offset = offset; }

  get size(): number { return count(this.shape); }
  get dtype(): string { return Object.keys(KINDS).find((k) => this.data instanceof KINDS[k])!; }
  get mT(): Tensor { return this.transpose(-2, -1); }

  /** The numbers in reading order, without a copy where they lie so. */
  numbers(): Data {
    const whole = strides_of(this.shape);
    if (this.shape.every((n, i) => n === 1 || this.strides[i] === whole[i])) return this.data.subarray(this.offset, this.offset + this.size);
    const out = new (this.data.constructor as any)(this.size);
    let at = 0;
    each_row([this], this.shape, (n, starts, steps) => { for (let i = 0, j = starts[0]; i < n; i++, j += steps[0]) out[at++] = this.data[j]; });
    return out;
  }

  reshape(shape: number[]): Tensor { return new Tensor(this.numbers(), shape); }
  view_as(x: Tensor): Tensor { return this.reshape(x.shape); }
  tolist(): number[] { return Array.from(this.numbers()); }
  unbind(): Tensor[] { return range(this.shape[0]).map((i) => this.index(i)); }

  transpose(a: number, b: number): Tensor {
    const order = range(this.shape.length), [i, j] = [a, b].map((d) => (d + order.length) % order.length);
    [order[i], order[j]] = [j, i];
    return new Tensor(this.data, order.map((d) => this.shape[d]), order.map((d) => this.strides[d]), this.offset);
  }

  unflatten(dim: number, sizes: number[]): Tensor {
    dim = (dim + this.shape.length) % this.shape.length;
    const known = sizes.filter((n) => n >= 0), own = sizes.map((n) => (n < 0 ? this.shape[dim] / count(known) : n));
    const put = (list: number[], inner: number[]) => [...list.slice(0, dim), ...inner, ...list.slice(dim + 1)];
    return new Tensor(this.data, put(this.shape, own), put(this.strides, strides_of(own).map((n) => n * this.strides[dim])), this.offset);
  }

  flatten(from: number, to = this.shape.length - 1): Tensor {
    return this.reshape([...this.shape.slice(0, from), count(this.shape.slice(from, to + 1)), ...this.shape.slice(to + 1)]);
  }

  /** As x[…]: whole numbers, slices, null, "..." and, before all others, tensors of places. */
  index(...at: At[]): Tensor {
    const picks = at.filter((a) => a instanceof Tensor) as Tensor[];
    if (picks.length) return this.pick(picks).index(slice(), ...at.slice(picks.length));
    const taken = at.filter((a) => a !== null && a !== "...").length, gap = at.indexOf("...");
    const every = gap < 0 ? at : [...at.slice(0, gap), ...range(this.shape.length - taken).map(() => slice()), ...at.slice(gap + 1)];
    const shape: number[] = [], strides: number[] = [];
    let { offset } = this, dim = 0;
    for (const a of every as any[]) {
      if (a === null) { shape.push(1); strides.push(0); continue; }
      const size = this.shape[dim], step = this.strides[dim++], clip = (n: number) => Math.max(0, Math.min(n < 0 ? n + size : n, size));
      if (typeof a === "number") { offset += (a < 0 ? a + size : a) * step; continue; }
      const from = clip(a.from ?? 0);
      shape.push(Math.max(0, Math.ceil((clip(a.to ?? size) - from) / a.by))); strides.push(step * a.by); offset += from * step;
    }
    return new Tensor(this.data, [...shape, ...this.shape.slice(dim)], [...strides, ...this.strides.slice(dim)], offset);
  }

  /** The rows at these places of the first dimensions. */
  pick(places: Tensor[]): Tensor {
    const rest = this.shape.slice(places.length), size = count(rest), own = this.numbers(), whole = strides_of(this.shape);
    const lists = places.map((p) => p.numbers()), out = new (own.constructor as any)(lists[0].length * size);
    for (let i = 0; i < lists[0].length; i++) {
      const start = lists.reduce((sum, list, d) => sum + list[i] * whole[d], 0); out.set(own.subarray(start, start + size), i * size);
    }
    return new Tensor(out, [...places[0].shape, ...rest]);
  }

  map(f: (x: number) => number, dtype = this.dtype): Tensor {
    const x = this.numbers(), out = new KINDS[dtype](x.length);
    for (let i = 0; i < x.length; i++) out[i] = f(x[i]);
    return new Tensor(out, this.shape);
  }

  /** f of this and of y, which may be a number; sizes of 1 are repeated. */
  with(y: Tensor | number, f: (a: number, b: number) => number, dtype?: string): Tensor {
    const b = y instanceof Tensor ? y : scalar(y), wide = Math.max(this.shape.length, b.shape.length);
    const shape = range(wide).map((i) => Math.max(this.shape.at(i - wide) ?? 1, b.shape.at(i - wide) ?? 1));
    const real = [this, b].find((t) => t.dtype === "float64" && t.shape.length) ?? [this, b].find((t) => t.dtype === "float32") ?? this;
    const out = new KINDS[dtype ?? real.dtype](count(shape));
    let at = 0, one = this.data, two = b.data;
    each_row([this, b], shape, (n, [i, j], [step, other]) => { for (const end = at + n; at < end; i += step, j += other) out[at++] = f(one[i], two[j]); });
    return new Tensor(out, shape);
  }

  add(y: Tensor | number): Tensor { return this.with(y, (a, b) => a + b); }
  sub(y: Tensor | number): Tensor { return this.with(y, (a, b) => a - b); }
  mul(y: Tensor | number): Tensor { return this.with(y, (a, b) => a * b); }
  div(y: Tensor | number): Tensor { return this.with(y, (a, b) => a / b, this.dtype === "float64" ? "float64" : "float32"); }
  pow(y: Tensor | number): Tensor { return this.with(y, (a, b) => a ** b); }
  gt(y: Tensor | number): Tensor { return this.with(y, (a, b) => +(a > b), "bool"); }
  ge(y: Tensor | number): Tensor { return this.with(y, (a, b) => +(a >= b), "bool"); }
  eq(y: Tensor | number): Tensor { return this.with(y, (a, b) => +(a === b), "bool"); }
  and(y: Tensor): Tensor { return this.with(y, (a, b) => a & b, "bool"); }
  masked_fill(mask: Tensor, value: number): Tensor { return this.with(mask, (a, hide) => (hide ? value : a), this.dtype); }
  float(): Tensor { return this.map((x) => x, "float32"); }
  double(): Tensor { return this.map((x) => x, "float64"); }
  cos(): Tensor { return this.map(Math.cos); }
  sin(): Tensor { return this.map(Math.sin); }
  softmax(_dim: -1): Tensor { return this.rows(softmax_row); }

  /** f of each row of the last dimension, in place of a copy. */
  rows(f: (row: any) => void): Tensor {
    const out = this.numbers().slice(), wide = this.shape.at(-1)!;
    for (let i = 0; i < out.length; i += wide) f(out.subarray(i, i + wide));
    return new Tensor(out, this.shape);
  }

  sum(_dim: -1, options: Options = {}): Tensor {
    const x = this.numbers(), wide = this.shape.at(-1)!, out = new Float32Array(x.length / wide);
    for (let i = 0; i < x.length; i++) out[(i / wide) | 0] += x[i];
    return new Tensor(out, [...this.shape.slice(0, -1), ...(options.keepdim ? [1] : [])]);
  }

  topk(k: number, _dim: -1): { values: Tensor; indices: Tensor } {
    const x = this.numbers(), wide = this.shape.at(-1)!, shape = [...this.shape.slice(0, -1), k];
    const found = range(x.length / wide).flatMap((r) => best_of(x.subarray(r * wide, (r + 1) * wide), k));
    const indices = new Tensor(Int32Array.from(found), shape);
    return { values: this.gather(-1, indices), indices };
  }

  gather(_dim: -1, index: Tensor): Tensor {
    const x = this.numbers(), wide = this.shape.at(-1)!, each = index.shape.at(-1)!;
    return new Tensor(Float32Array.from(index.numbers() as any, (j: number, i) => x[((i / each) | 0) * wide + j]), index.shape);
  }

  unique(): Tensor { return tensor([...new Set(this.tolist())].sort((a, b) => a - b)); }

  /** The places of what is not 0, a tensor for each dimension. */
  nonzero(): Tensor[] {
    const places = this.tolist().flatMap((x, i) => (x ? [i] : [])), whole = strides_of(this.shape);
    return this.shape.map((n, d) => tensor(places.map((i) => Math.floor(i / whole[d]) % n)));
  }

  index_add_(_dim: 0, index: Tensor, x: Tensor): void {
    const from = x.numbers(), size = count(this.shape.slice(1));
    index.tolist().forEach((row, i) => { for (let j = 0; j < size; j++) this.data[this.offset + row * size + j] += from[i * size + j]; });
  }

  repeat_interleave(times: number, dim: number): Tensor {
    const many = this.index(...range(dim + 1).map(() => slice()), null), shape = many.shape.map((n, i) => (i === dim + 1 ? times : n));
    return new Tensor(many.data, shape, many.strides, many.offset).flatten(dim, dim + 1);
  }

  /** A product of matrices; what stands before them is repeated where it is 1. */
  matmul(y: Tensor): Tensor {
    const [n, k] = this.shape.slice(-2), m = y.shape.at(-1)!, batch = this.shape.slice(0, -2).map((size, i) => Math.max(size, y.shape[i]));
    const left = this.numbers(), right = y.mT.numbers(), out = new Float32Array(count(batch) * n * m), spots = strides_of(batch);
    const [l, r] = [this, y].map((t) => strides_of(t.shape.slice(0, -2)).map((step, d) => (t.shape[d] > 1 ? step : 0)));
    for (let b = 0; b < count(batch); b++) {
      let i = 0, j = 0;
      for (let d = 0; d < spots.length; d++) { const at = Math.floor(b / spots[d]) % batch[d]; i += at * l[d]; j += at * r[d]; }
      kernel.products(left.subarray(i * n * k, (i + 1) * n * k), right.subarray(j * k * m, (j + 1) * k * m), out.subarray(b * n * m, (b + 1) * n * m), n, k, m);
    }
    return new Tensor(out, [...batch, n, m]);
  }
}

/** Calls `visit` for each row of a shape, with where it starts in every tensor and how far its numbers lie apart. */
function each_row(tensors: Tensor[], shape: number[], visit: (n: number, starts: number[], steps: number[]) => void): void {
  const wide = Math.max(shape.length, 1), outer = shape.slice(0, -1), starts = tensors.map((t) => t.offset), place = outer.map(() => 0);
  const steps = tensors.map((t) => range(wide).map((i) => ((t.shape.at(i - wide) ?? 1) > 1 && i - wide >= -t.shape.length ? t.strides.at(i - wide)! : 0))), last = steps.map((s) => s.at(-1)!);
  for (let dim = count(shape) ? 0 : -1; dim >= 0; ) {
    visit(shape.at(-1) ?? 1, starts, last);
    for (dim = outer.length - 1; dim >= 0; dim--) {
      const back = ++place[dim] < outer[dim] ? 0 : outer[dim];
      for (let j = 0; j < starts.length; j++) starts[j] += steps[j][dim] * (1 - back);
      if (back) place[dim] = 0; else break;
    }
  }
}

/** a [N, K] times the rows of b [M, K], into out [N, M]: four rows of b at a time, summed in 64 bits. */
function products(a: Data, b: Data, out: Data, n: number, k: number, m: number): void {
  for (let j = 0; j < m; j += 4) {
    const b0 = j * k, b1 = Math.min(j + 1, m - 1) * k, b2 = Math.min(j + 2, m - 1) * k, b3 = Math.min(j + 3, m - 1) * k;
    for (let i = 0; i < n; i++) {
      let s0 = 0, s1 = 0, s2 = 0, s3 = 0;
      for (let p = 0, q = i * k; p < k; p++, q++) {
        const x = a[q]; s0 += x * b[b0 + p]; s1 += x * b[b1 + p]; s2 += x * b[b2 + p]; s3 += x * b[b3 + p];
      }
      const to = i * m + j, last = i * m + m - 1; // beyond the last row of b it is written again
      out[to] = s0; out[Math.min(to + 1, last)] = s1; out[Math.min(to + 2, last)] = s2; out[Math.min(to + 3, last)] = s3;
    }
  }
}
/** What multiplies matrices, and where weights lie for it: a page may put WebAssembly here. */
export const kernel = { products, allocate: (n: number): Float32Array<any> => new Float32Array(n) };

export function softmax_row(row: any): void {
  let top = -Infinity, sum = 0; for (let i = 0; i < row.length; i++) if (row[i] > top) top = row[i];
  for (let i = 0; i < row.length; i++) sum += row[i] = Math.exp(row[i] - top);
  for (let i = 0; i < row.length; i++) row[i] /= sum;
}

/** The places of the k largest, largest first; of equals the first. */
export function best_of(row: ArrayLike<number>, k: number): number[] {
  const best: number[] = [];
  for (let i = 0; i < row.length; i++) {
    if (best.length === k && row[i] <= row[best[k - 1]]) continue;
    let at = best.length; while (at > 0 && row[i] > row[best[at - 1]]) at--;
    best.splice(at, 0, i); if (best.length > k) best.pop();
  }
  return best;
}

export const tensor = (list: number[], shape = [list.length]): Tensor => new Tensor(Int32Array.from(list), shape);
export const scalar = (x: number): Tensor => new Tensor(Float64Array.of(x), []);
export const empty = (...shape: number[]): Tensor => new Tensor(new Float32Array(0), shape); // filled by load_weights
export const zeros = (shape: number[], o: Options = {}): Tensor => new Tensor(new KINDS[o.dtype ?? "float32"](count(shape)), shape);
export const zeros_like = (x: Tensor, o: Options = {}): Tensor => zeros(x.shape, { dtype: o.dtype ?? x.dtype });
export const sin = (x: Tensor): Tensor => x.sin();
export const cos = (x: Tensor): Tensor => x.cos();
export const tanh = (x: Tensor): Tensor => x.map(Math.tanh);
export const relu = (x: Tensor): Tensor => x.map((v) => (v > 0 ? v : 0));
export const silu = (x: Tensor): Tensor => x.map((v) => v / (1 + Math.exp(-v)));
export const gelu = (x: Tensor, o: Options = {}): Tensor =>
  x.map(o.approximate ? (v) => 0.5 * v * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (v + 0.044715 * v ** 3))) : (v) => 0.5 * v * (1 + erf(v / Math.SQRT2)));

/** The error function by its series of positive terms (Abramowitz and Stegun 7.1.6). */
function erf(x: number): number {
  if (Math.abs(x) > 6) return Math.sign(x);
  let sum = x;
  for (let n = 1, term = x; Math.abs(term) > 1e-17 * Math.abs(sum); n++) sum += term *= (2 * x * x) / (2 * n + 1);
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

export function arange(...given: (number | Options)[]): Tensor {
  const ends = given.filter((g) => typeof g === "number") as number[], o = (given.find((g) => typeof g === "object") ?? {}) as Options;
  const [from, to, by] = ends.length > 1 ? [ends[0], ends[1], ends[2] ?? 1] : [0, ends[0], 1];
  const all = new KINDS[o.dtype ?? "int64"](Math.max(0, Math.ceil((to - from) / by)));
  return new Tensor(all.map((_: number, i: number) => from + i * by), [all.length]);
}

export function cat(parts: Tensor[], dim = 0): Tensor {
  const at = (dim + parts[0].shape.length) % parts[0].shape.length, lists = parts.map((p) => p.numbers());
  const before = count(parts[0].shape.slice(0, at)), shape = parts[0].shape.map((n, d) => (d === at ? parts.reduce((s, p) => s + p.shape[at], 0) : n));
  const out = new (lists[0].constructor as any)(count(shape));
  for (let i = 0, to = 0; i < before; i++) for (const list of lists) { const size = list.length / before; out.set(list.subarray(i * size, (i + 1) * size), to); to += size; }
  return new Tensor(out, shape);
}

export function linear(x: Tensor, weight: Tensor, bias: Tensor | null = null): Tensor {
  const [m, k] = weight.shape, n = x.size / k, out = new Float32Array(n * m), add = bias?.numbers();
  kernel.products(x.numbers(), weight.numbers(), out, n, k, m);
  if (add) for (let i = 0; i < out.length; i += m) for (let j = 0; j < m; j++) out[i + j] += add[j];
  return new Tensor(out, [...x.shape.slice(0, -1), m]);
}

// Modules ---------------------------------------------------------------------------------------------------------

export class Module { path = ""; }

export class Linear extends Module {
  weight: Tensor; bias: Tensor | null;
  constructor(width: number, out: number, o: Options = {}) { super(); this.weight = empty(out, width); this.bias = o.bias === false ? null : empty(out); }
  forward(x: Tensor): Tensor { return linear(x, this.weight, this.bias); }
}

export class Embedding extends Module {
  weight: Tensor;
  constructor(size: number, width: number) { super(); this.weight = empty(size, width); }
  forward(ids: Tensor): Tensor { return this.weight.pick([ids]); }
}

export class LayerNorm extends Module {
  weight: Tensor; bias: Tensor | null; eps: number;
  constructor(width: number, o: Options = {}) { super(); this.weight = empty(width); this.bias = o.bias === false ? null : empty(width); this.eps = o.eps ?? 1e-5; }
  forward(x: Tensor): Tensor {
    const weight = this.weight.numbers(), bias = this.bias?.numbers();
    return x.rows((row) => {
      let mean = 0, square = 0; for (let i = 0; i < row.length; i++) mean += row[i] / row.length;
      for (let i = 0; i < row.length; i++) square += (row[i] - mean) ** 2 / row.length;
      for (let i = 0, root = Math.sqrt(square + this.eps); i < row.length; i++) row[i] = ((row[i] - mean) / root) * weight[i] + (bias ? bias[i] : 0);
    });
  }
}

export class RMSNorm extends Module {
  weight: Tensor; eps: number;
  constructor(width: number, o: Options = {}) { super(); this.weight = empty(width); this.eps = o.eps ?? 1e-6; }
  forward(x: Tensor): Tensor {
    const weight = this.weight.numbers();
    return x.rows((row) => {
      let square = 0; for (let i = 0; i < row.length; i++) square += row[i] ** 2 / row.length;
      for (let i = 0, root = Math.sqrt(square + this.eps); i < row.length; i++) row[i] *= weight[i] / root;
    });
  }
}

/** Every parameter with its name; gives each module its path, which begins with its stack's where there are two. */
export function* parameters(module: any, name = "", both = Boolean(module.encoder && module.decoder)): Generator<[string, Tensor]> {
  module.path = both ? name : name.replace(/^(encoder|decoder)\.?/, "");
  const inside = Object.entries<any>(module).flatMap(([key, held]) => (Array.isArray(held) ? held.map((one, i) => [`${key}.${i}`, one]) : [[key, held]]));
  for (const [key, held] of inside) {
    const full = name ? `${name}.${key}` : key;
    if (held instanceof Tensor) yield [full, held];
    if (held instanceof Module) yield* parameters(held, full, both);
  }
}

/** Fills a model with weights; every one of them is used, and none is missing. */
export function load_weights(model: Module, stored: Map<string, Tensor>): void {
  const filled = new Set<Tensor>(), used = new Set<string>();
  for (const [name, parameter] of parameters(model)) {
    const found = stored.get(name);
    if (!found && filled.has(parameter)) continue; // tied
    if (!found || found.shape.join() !== parameter.shape.join()) throw new Error(`weights: ${name} is ${found ? `[${found.shape}]` : "missing"}, expected [${parameter.shape}]`);
    filled.add(parameter); used.add(name);
    parameter.data = kernel.allocate(found.size); parameter.data.set(found.data);
  }
  for (const name of stored.keys()) if (!used.has(name)) throw new Error(`weights: the model has no ${name}`);
}

/** The tensors of a safetensors file in fp32: F32, F16, BF16, and I8 with one scale for each row in NAME_scale. */
export function read_safetensors(file: ArrayBuffer): Map<string, Tensor> {
  const view = new DataView(file), size = file.byteLength < 8 ? Infinity : Number(view.getBigUint64(0, true));
  if (size + 8 > file.byteLength) throw new Error("weights: the file is cut short");
  const found = new Map<string, Tensor>();
  for (const [name, at] of Object.entries<any>(JSON.parse(new TextDecoder().decode(new Uint8Array(file, 8, size))))) {
    if (name === "__metadata__") continue;
    const [from, to] = at.data_offsets, n = count(at.shape), wide = { F32: 4, F16: 2, BF16: 2, I8: 1 }[at.dtype as string];
    if (!wide || to - from !== n * wide || 8 + size + to > file.byteLength) throw new Error(`weights: ${name} is cut short, or its type ${at.dtype} is unknown`);
    const bytes = file.slice(8 + size + from, 8 + size + to), out = at.dtype === "F32" ? new Float32Array(bytes) : new Float32Array(n);
    if (at.dtype === "I8") out.set(new Int8Array(bytes));
    if (at.dtype === "F16") new Uint16Array(bytes).forEach((h, i) => { out[i] = read_half(h); });
    if (at.dtype === "BF16") { const bits = new Uint32Array(out.buffer); new Uint16Array(bytes).forEach((h, i) => { bits[i] = h << 16; }); }
    found.set(name, new Tensor(out, at.shape));
  }
  for (const [name, scale] of [...found].filter(([name]) => name.endsWith("_scale"))) {
    const { data, shape } = found.get(name.slice(0, -6))!, wide = shape.at(-1)!;
    for (let i = 0; i < data.length; i += wide) for (let j = 0, by = scale.data[i / wide]; j < wide; j++) data[i + j] *= by;
    found.delete(name);
  }
  return found;
}

function read_half(h: number): number {
  const sign = h >> 15 ? -1 : 1, power = (h >> 10) & 31, rest = h & 1023; // weights are finite: 31 does not occur
  return sign * (power ? 2 ** (power - 15) * (1 + rest / 1024) : 2 ** -14 * (rest / 1024));
}

// Writing ---------------------------------------------------------------------------------------------------------

/** Keeps nothing: keys and values go straight to attention. */
export class Cache {
  length = 0;
  append(_layer: number, k: Tensor, v: Tensor): [Tensor, Tensor] { return [k, v]; }
  get_or_compute(_layer: number, make: () => Tensor[]): Tensor[] { return make(); }
}

/** Keeps the keys and values of every layer, and those of the memory. */
export class Kept extends Cache {
  own: [Tensor, Tensor][] = []; memory: Tensor[][] = [];
  override append(layer: number, k: Tensor, v: Tensor): [Tensor, Tensor] {
    const past = this.own[layer]; if (layer === 0) this.length += k.shape[2];
    return (this.own[layer] = past ? [cat([past[0], k], 2), cat([past[1], v], 2)] : [k, v]);
  }

  override get_or_compute(layer: number, make: () => Tensor[]): Tensor[] { return (this.memory[layer] ??= make()); }

  /** Row i continues row rows[i]. */
  select(rows: number[]): void {
    if (rows.some((row, i) => row !== i) || rows.length !== this.own[0][0].shape[0]) this.own = this.own.map(([k, v]) => [k.pick([tensor(rows)]), v.pick([tensor(rows)])]);
  }
}

export const pass_through: Tap = (_module, _name, x) => x;
/** What a model is and how it ends a text: spec.json. */
export interface Special { kind: string; start: number[]; eos: number[]; forbid: number[]; context: number | null; longest: number | null }
export interface Written { tokens: number[]; logprobs: number[]; score: number }
export interface Choice { temperature?: number; top_k?: number; top_p?: number; min_p?: number; seed?: number; beam?: number; length_penalty?: number; max_new_tokens?: number; force?: number[] }

/** A text in a model that writes: `begin` reads it, `step` reads one more token of each row; both give logits by row. */
export class Reader {
  model: any; special: Special; tap: Tap; cache = new Kept(); given: Tensor[] = [];
  constructor(model: any, special: Special, tap: Tap = pass_through) { this.model = model; this.special = special; this.tap = tap; }

  begin(ids: number[], forced: number[] = []): Float32Array[] {
    const { kind, start } = this.special, both = kind === "encoder-decoder";
    this.given = both ? [this.model.encode(tensor(ids, [1, ids.length]), this.tap)] : kind === "prefix" ? [tensor([ids.length])] : [];
    return this.read([[...(both ? [] : ids), ...start, ...forced]]);
  }

  step(tokens: number[]): Float32Array[] { return this.read(tokens.map((t) => [t])); }

  read(rows: number[][]): Float32Array[] {
    const logits: Tensor = this.model.forward(tensor(rows.flat(), [rows.length, rows[0].length]), ...this.given, this.tap, this.cache);
    return rows.map((_, r) => logits.index(r, -1).numbers() as Float32Array);
  }

  /** How many tokens may follow. */
  room(ids: number[], asked?: number): number {
    const { kind, context, start } = this.special, both = kind === "encoder-decoder";
    return Math.min(asked ?? (both ? 2 * ids.length + 50 : Infinity), (context ?? Infinity) - start.length - (both ? 0 : ids.length));
  }
}

export function log_softmax(logits: ArrayLike<number>): Float64Array {
  const out = Float64Array.from(logits), top = out[best_of(out, 1)[0]];
  const whole = top + Math.log(out.reduce((sum, x) => sum + Math.exp(x - top), 0));
  return out.map((x) => x - whole);
}

/** The probabilities from which a word is drawn: temperature, then top-k, then top-p, then min-p, then their sum is 1. */
export function distribution(logprobs: Float64Array, c: Choice): Float64Array {
  const order = best_of(logprobs, logprobs.length), p = new Float64Array(logprobs.length), kept = order.slice(0, c.top_k || order.length);
  for (const i of kept) p[i] = Math.exp((logprobs[i] - logprobs[order[0]]) / (c.temperature ?? 1));
  const total = kept.reduce((sum, i) => sum + p[i], 0);
  let before = 0;
  for (const i of kept) {
    const drop = before >= (c.top_p && c.top_p < 1 ? c.top_p : Infinity) || p[i] < (c.min_p ?? 0); // the likeliest has p = 1 as yet
    before += p[i] / total;
    if (drop) p[i] = 0;
  }
  const sum = p.reduce((a, b) => a + b, 0);
  return p.map((x) => x / sum);
}

/** A number from whole numbers, well stirred (SplitMix64's finaliser, Steele et al. 2014). */
export function mix(...parts: number[] | bigint[]): bigint {
  const word = (x: bigint) => BigInt.asUintN(64, x);
  let state = 0n;
  for (const part of parts) {
    state = word(state + BigInt(part) + 0x9e3779b97f4a7c15n);
    state = word((state ^ (state >> 30n)) * 0xbf58476d1ce4e5b9n); state = word((state ^ (state >> 27n)) * 0x94d049bb133111ebn);
    state ^= state >> 31n;
  }
  return state;
}

/** Words one by one: the likeliest, or drawn by a temperature. */
export function write(reader: Reader, ids: number[], c: Choice = {}): Written {
  const { eos, forbid } = reader.special, most = reader.room(ids, c.max_new_tokens), found: Written = { tokens: [], logprobs: [], score: 0 };
  let [logits] = reader.begin(ids, c.force);
  const seed = mix(...([c.seed ?? 0, 0, ...ids] as number[]));
  while (found.tokens.length < most) {
    const logprobs = log_softmax(logits), allowed = logprobs.slice();
    for (const id of forbid) allowed[id] = -Infinity;
    let token = best_of(allowed, 1)[0];
    if (c.temperature) {
      const p = distribution(allowed, c);
      let left = (Number(mix(...([seed, BigInt(found.tokens.length)] as bigint[])) >> 12n) * 2 ** -52) * p.reduce((a, b) => a + b, 0);
      token = p.findIndex((x) => (left -= x) < 0);
    }
    found.tokens.push(token); found.logprobs.push(logprobs[token]); found.score += logprobs[token];
    if (eos.includes(token)) break;
    if (found.tokens.length < most) [logits] = reader.step([token]);
  }
  return found;
}

/** The best whole texts by beam search, best first; a score is the sum of log probabilities over a length penalty (Wu et al. 2016). */
export function beam(reader: Reader, ids: number[], c: Choice = {}): Written[] {
  const { eos, forbid } = reader.special, width = c.beam ?? 4, penalty = c.length_penalty ?? 0.6, most = reader.room(ids, c.max_new_tokens);
  const end = (w: Written): Written => ({ ...w, score: w.score / ((5 + w.tokens.length) / 6) ** penalty });
  let live: Written[] = [{ tokens: [], logprobs: [], score: 0 }], done: Written[] = [], logits = reader.begin(ids, c.force);
  for (;;) {
    const followers = live.flatMap((w, row) => {
      const logprobs = log_softmax(logits[row]), allowed = logprobs.slice();
      for (const id of forbid) allowed[id] = -Infinity;
      return best_of(allowed, width * (1 + Math.max(1, eos.length))).map((t) => ({ row, tokens: [...w.tokens, t], logprobs: [...w.logprobs, logprobs[t]], score: w.score + allowed[t] }));
    });
    const best = best_of(followers.map((f) => f.score), width * (1 + Math.max(1, eos.length))).map((i) => followers[i]), ends = (w: Written) => eos.includes(w.tokens.at(-1)!);
    done = [...done, ...best.slice(0, width).filter((w) => ends(w) && w.score > -Infinity).map(end)].sort((a, b) => b.score - a.score).slice(0, width);
    const next = best.filter((w) => !ends(w) && w.score > -Infinity).slice(0, width);
    if (done.length >= width || !next.length || next[0].tokens.length >= most) return done.length ? done : next.map(end);
    reader.cache.select(next.map((w) => w.row));
    live = next.map(({ tokens, logprobs, score }) => ({ tokens, logprobs, score }));
    logits = reader.step(live.map((w) => w.tokens.at(-1)!));
  }
}
