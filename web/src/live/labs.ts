/** Labs that need no training, computed by the page's models in fp32: what src/qkv/labs/NAME.py measures on a bundled model.
 *
 * What a lab reads (ids, seeds) is given by the site, which takes it from the lab (tools/website/rerun.py). */
import { Kept, Reader, Tensor, distribution, log_softmax, tensor, write, type Special } from "../../../src/qkv/specialize/runtime";
import { Trouble } from "../client";
import { Trace, open_model, type Model } from "./engine";

export type Found = Record<string, number>;
interface Given { ids: number[][]; target?: number[]; seed: number; stated?: { logits: number[]; shares: number[]; match: number[]; table: number[][] } }
type Open = (name: string) => Promise<Model>;

const greatest = (xs: Iterable<number>): number => [...xs].reduce((a, b) => Math.max(a, b), -Infinity);
const sum = (xs: ArrayLike<number>): number => Array.from(xs).reduce((a, b) => a + b, 0);
const norm = (xs: ArrayLike<number>): number => Math.sqrt(sum(Array.from(xs, (x) => x * x)));
const apart = (a: ArrayLike<number>, b: ArrayLike<number>): number => greatest(Array.from(a, (x, i) => Math.abs(x - b[i]!)));
const row = (x: Tensor, ...at: number[]): Float32Array => x.index(0, ...at).numbers() as Float32Array;

/** One pass over whole texts, with everything that it computed; `prefix` tokens of a prefix decoder see one another. */
function read({ said, core }: Model, ids: number[], { target = ids, prefix = ids.length }: { target?: number[]; prefix?: number } = {}): { logits: Tensor; trace: Trace } {
  const trace = new Trace(), tap = trace.tap(), one = (x: number[]) => tensor(x, [1, x.length]);
  const given = said.kind === "encoder-decoder" ? [core.encode(one(ids), tap)] : said.kind === "prefix" ? [tensor([prefix])] : [];
  return { logits: core.forward(one(target), ...given, tap, new Kept()), trace };
}

/** Reads everything anew for each token. */
class Forgetful extends Reader {
  private text: number[] = [];
  override begin(ids: number[]): Float32Array[] { this.text = [...ids]; return super.begin(ids); }
  override step(tokens: number[]): Float32Array[] { this.cache = new Kept(); return this.begin([...this.text, ...tokens]); }
}

async function cache_exact(open: Open, { ids: [ids], seed }: Given): Promise<Found> {
  const { said, core } = await open("demo-lm"), special: Special = { ...said, forbid: said.eos }, count = 100;
  const [kept, anew] = [Reader, Forgetful].map((R) => write(new R(core, special), ids!, { temperature: 1, seed, max_new_tokens: count }));
  const same = kept!.tokens.filter((token, i) => token === anew!.tokens[i]).length / count, start = ids!.length;
  return { same, gap: apart(kept!.logprobs, anew!.logprobs), read_without: count * start + (count * (count - 1)) / 2, read_with: start + count - 1 };
}

async function kv_frozen(open: Open, { ids: [ids] }: Given): Promise<Found> {
  const found: Found = {}, said = (trace: Trace, layers: number, names: string[]) => Array.from({ length: layers }, (_, i) => names.map((n) => trace.get(`layers.${i}.attn.${n}`).index(0))).flat();
  /** By how much what was said of the first tokens differs once there are more. */
  const moved = (before: Tensor[], now: Tensor[]) => greatest(before.map((x, i) => apart(x.numbers(), now[i]!.index({ from: null, to: null, by: 1 }, { from: null, to: x.shape[1]!, by: 1 }).numbers())));
  for (const [kind, name] of [["causal", "demo-lm"], ["full", "demo-bert"], ["prefix", "demo-moe"]] as const) {
    const model = await open(name), layers = (model.core.decoder ?? model.core.encoder).layers.length;
    const passes = Array.from({ length: ids!.length - 1 }, (_, i) => said(read(model, ids!.slice(0, i + 2)).trace, layers, ["k", "v"]));
    found[kind] = greatest(passes.slice(1).map((now, i) => moved(passes[i]!, now)));
    if (kind !== "prefix") continue;
    const [before, now] = [ids!.slice(0, -1), ids!].map((part) => said(read(model, part, { prefix: ids!.length / 2 }).trace, layers, ["v"]));
    found.written = moved(before!, now!);
  }
  return found;
}

async function mask_zero(open: Open, { ids: [ids] }: Given): Promise<Found> {
  const model = await open("demo-lm"), { logits, trace } = read(model, ids!), at = ids!.length >> 1;
  const other = read(model, ids!.map((id, i) => (i === at ? id + 1 : id))).logits, gaps = ids!.map((_, i) => apart(row(logits, i), row(other, i)));
  const hidden = model.parts[0]!.paths.flatMap((path) => trace.get(`${path}.pattern`).index(0).unbind().flatMap((head) => head.unbind().flatMap((r, q) => r.tolist().slice(q + 1))));
  return { weight: greatest(hidden), change: greatest(gaps.slice(0, at)), change_right: Math.min(...gaps.slice(at)) };
}

async function parallel_equals_serial(open: Open, { ids: [ids], target }: Given): Promise<Found> {
  const model = await open("demo"), whole = read(model, ids!, { target }).logits;
  return { demo: greatest(target!.map((_, i) => apart(row(read(model, ids!, { target: target!.slice(0, i + 1) }).logits, i), row(whole, i)))) };
}

async function revision_ledger(open: Open, { ids }: Given): Promise<Found> {
  const ledger = async (name: string): Promise<number> => {
    const model = await open(name), layers = (model.core.decoder ?? model.core.encoder).layers.length, gaps: number[] = [], states: number[] = [];
    for (const one of ids) {
      const { trace } = read(model, one), names = ["embed", ...Array.from({ length: layers }, (_, i) => ["attn", "ffn"].map((part) => `layers.${i}.${part}.out`)).flat()];
      const last = trace.get(`layers.${layers - 1}.resid_out`).tolist(), parts = names.map((n) => trace.get(n).numbers());
      states.push(...last);
      gaps.push(...last.map((x, i) => x - parts.reduce((total, p) => Math.fround(total + p[i]!), 0)));
    }
    return norm(gaps) / norm(states);
  };
  return { trained_pre: await ledger("demo-lm"), trained_post: await ledger("demo-bert") };
}

async function temperature_and_top_p(open: Open, { ids: [ids] }: Given): Promise<Found> {
  const { logits } = read(await open("demo-lm"), ids!), last = Float64Array.from(row(logits, -1)), whole = distribution(last, {});
  const entropy = (p: Float64Array) => -sum(p.map((x) => x * Math.log(Math.max(x, 1e-30)))), best = (p: Float64Array) => p.indexOf(greatest(p));
  const odds = (p: Float64Array) => { const [a, b] = [...p].sort((x, y) => y - x); return Math.log(a! / b!); };
  const warm = [0.3, 0.5, 0.7, 1, 1.5, 2].map((temperature) => distribution(last, { temperature })), cut = [0.1, 0.3, 0.5, 0.7, 0.9, 1].map((top_p) => distribution(last, { top_p }));
  const ratios = cut.map((c) => { const kept = [...c].map((x, i) => x / whole[i]!).filter((x) => x > 0), top = greatest(kept); return greatest(kept.map((x) => Math.abs(Math.log(x / top)))); });
  return {
    rises: Number(warm.every((p, i) => !i || entropy(warm[i - 1]!) < entropy(p))), best_stays: Number(new Set(warm.map(best)).size === 1),
    ratio_temperature: Math.abs(odds(warm.at(-1)!) - odds(warm[0]!)), ratio_top_p: greatest(ratios), kept_top_p: cut[4]!.filter((x) => x > 0).length,
    kept_temperature: warm.at(-1)!.filter((x) => x > 0).length, sharpens: Number(cut.every((c) => entropy(c) <= entropy(whole) + 1e-6)),
    shift: apart(distribution(last.map((x) => x + 5), {}), whole),
  };
}

async function wo_sum(open: Open, { ids: [ids] }: Given): Promise<Found> {
  const { core } = await open("demo"), { trace } = read({ said: { kind: "encoder-decoder" }, core } as Model, ids!, { target: ids!.slice(0, 1) });
  const gaps: number[] = [], averages: number[] = [], lengths: number[] = [];
  (core.encoder.layers as any[]).forEach(({ attn: { out } }, i) => {
    const name = `encoder.layers.${i}.attn`, z = trace.get(`${name}.z`).index(0), [heads, count, size] = z.shape as [number, number, number];
    const weight = (out.weight as Tensor).unbind().map((r) => r.tolist()), bias: number[] = out.bias?.tolist() ?? weight.map(() => 0);
    const norms = new Array<number>(heads).fill(0), wrong: number[] = [], all: number[] = [];
    for (let t = 0; t < count; t++) {
      const said = trace.get(`${name}.out`).index(0, t).tolist().map((x, d) => x - bias[d]!), z_of = Array.from({ length: heads }, (_, h) => z.index(h, t).tolist());
      const reports = z_of.map((own, h) => weight.map((w) => sum(own.map((x, k) => x * w[h * size + k]!)))); // each head's own columns
      reports.forEach((r, h) => (norms[h]! += norm(r) / count));
      const mean = weight.map((w) => sum(z_of.map((own) => sum(own.map((x, k) => (x * sum(z_of.map((_, h) => w[h * size + k]!))) / heads)))));
      gaps.push(apart(said, said.map((_, d) => sum(reports.map((r) => r[d]!)))));
      wrong.push(...mean.map((x, d) => x - said[d]!));
      all.push(...said);
    }
    averages.push(norm(wrong) / norm(all));
    lengths.push(...norms);
  });
  return { gap: greatest(gaps), average: Math.min(...averages), loudest: greatest(lengths) / Math.min(...lengths) };
}

async function stated_numbers(_: Open, { stated }: Given): Promise<Found> {
  const { logits, shares: printed, match, table } = stated!, shares = (x: number[], temperature = 1) => distribution(log_softmax(x), { temperature });
  const said = shares(logits), temperature = (logits[0]! - logits[1]!) / Math.log(printed[0]! / printed[1]!), warm = shares(logits, temperature);
  return {
    study: said[0]!, apple: said[1]!, third: said[2]!, temperature, third_then: ((warm[2]! / warm[0]!) * printed[0]!) / printed[2]!,
    match: shares(match)[0]!, match_scaled: shares(match, 2)[0]!, match_dim: ((match[0]! - match[1]!) / Math.log(98)) ** 2,
    table: greatest(table.map((r) => Math.abs(sum(r) - 1))), loss: -Math.log(0.1),
  };
}

const LABS: Record<string, (open: Open, given: Given) => Promise<Found>> = {
  "cache-exact": cache_exact, "kv-frozen": kv_frozen, "mask-zero": mask_zero, "parallel-equals-serial": parallel_equals_serial,
  "revision-ledger": revision_ledger, "temperature-and-top-p": temperature_and_top_p, "wo-sum": wo_sum, "stated-numbers": stated_numbers,
};

/** The numbers of a lab by name, each the mean over what is given (one of each seed); models lie in the folder `base`. */
export async function run_lab(name: string, given: Given[], base = new URL("models", import.meta.url).href): Promise<Found> {
  const lab = LABS[name], models = new Map<string, Promise<Model>>(), runs: Found[] = [];
  if (!lab) throw new Trouble({ zh: `浏览器里没有实验 ${name}`, en: `the page has no lab ${name}` });
  const open: Open = (model) => models.get(model) ?? models.set(model, open_model(`${base}/${model}`)).get(model)!;
  for (const one of given) {
    runs.push(await lab(open, one));
    await new Promise((go) => setTimeout(go)); // the page stays alive
  }
  return Object.fromEntries(Object.keys(runs[0]!).map((key) => [key, sum(runs.map((r) => r[key]!)) / runs.length]));
}
