/** What is counted, not computed: the panels KV cache and Cost (src/qkv/explore/answers.py: cache, cost). */
import { Trouble, type Answer } from "../client";
import type { Model, Run } from "./engine";

/** Bytes and work of every step, with the cache and without; and bytes a position of other kinds of attention. */
export function cache(run: Run): Answer {
  const { said, core } = run.model, { kinds, memory } = said.counts;
  if (!core.decoder) throw new Trouble({ zh: "只有编码器的模型一次读完，什么都不存", en: "an encoder alone reads its text once and keeps nothing" });
  const steps = Array.from({ length: run.read.length - run.given + 1 }, (_, n) => {
    const tokens = run.given + n;
    return { tokens, bytes: tokens * kinds.own!, bytes_without: 0, work: n ? 1 : tokens, work_without: tokens, phase: n ? "decode" : "prefill", line: `t.cache().steps[${n}]` };
  });
  const total = (key: "work" | "work_without"): number => steps.reduce((sum, step) => sum + step[key], 0);
  return { steps, kinds, memory: memory * run.ids.length, saved: total("work_without") / total("work"), line: "t.cache()" };
}

const MOST = 1 << 20; // texts of a batch

/** Parameters, operations and bytes at a context, for a batch, in a number format, from what Python counted. */
export function cost({ said }: Model, query: Record<string, string>): Answer {
  const { counts } = said, dtype = query.dtype || "float32", batch = Number(query.batch ?? 1), context = Number(query.context ?? counts.context);
  const found = counts.reports[context], width = counts.widths[dtype];
  if (!found || !width || !(batch >= 1 && batch <= MOST)) throw new Trouble({ zh: `context=${context} dtype=${dtype} batch=${batch}：这一页没有这个数`, en: `context=${context} dtype=${dtype} batch=${batch}: this page has no such count` });
  const [prefill, decode, ...each] = found, names = ["cache", "memory", "activations"] as const, times = [batch, context * batch, context * batch];
  const keys = ["kv_bytes", "memory_bytes_per_token", "activation_bytes_per_token"], line = `qkv.hub.report(model, dtype='${dtype}', context=${context})`;
  const one = { parameters: "by_part", total: "parameters", active: "active_parameters", prefill: "flops_per_token_prefill", decode: "flops_per_token", weights: "weight_bytes" };
  return {
    ...counts, context, batch, dtype, flops: { prefill, decode }, bytes: { weights: counts.weights[dtype], ...Object.fromEntries(names.map((name, i) => [name, each[i]! * width * batch])) }, line,
    lines: { ...Object.fromEntries(Object.entries(one).map(([name, key]) => [name, `${line}["${key}"]`])), ...Object.fromEntries(names.map((name, i) => [name, `${line}["${keys[i]}"] * ${times[i]}`])) },
  };
}
