// Runs the printed models in Node: node tests/core.mjs CASES.json ANSWERS.json [simd]; the pytest that calls it compares.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { load } from "./bundle.mjs";

const core = await load(`export * from "../src/qkv/specialize/runtime"; export { PROGRAMS } from "./src/live/programs"; export { use_simd } from "./src/live/simd";`);
if (process.argv[4] === "simd" && !(await core.use_simd())) throw new Error("this Node has no WebAssembly SIMD");

const asked = JSON.parse(readFileSync(process.argv[2]));
const answers = {};
for (const { name, directory, texts, greedy, forbid } of asked) {
  const special = { ...JSON.parse(readFileSync(join(directory, "spec.json"))), forbid };
  const bytes = readFileSync(join(directory, "model.safetensors"));
  const model = new core.PROGRAMS[special.program]();
  core.load_weights(model, core.read_safetensors(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length)));
  const list = (x) => ({ shape: x.shape, data: Array.from(x.numbers(), (v) => Number(v.toPrecision(8))) });
  const began = performance.now();
  answers[name] = { texts: texts.map(({ ids, follow }) => read(core, model, special, ids, follow, list)), ms: performance.now() - began };
  answers[name].greedy = greedy.map((ids) => core.write(new core.Reader(model, special), ids, { max_new_tokens: 50 }).tokens);
  const start = performance.now();
  answers[name].beams = special.kind === "encoder-decoder" ? greedy.map((ids) => core.beam(new core.Reader(model, special), ids)[0]) : [];
  answers[name].beam_ms = performance.now() - start;
}
writeFileSync(process.argv[3], JSON.stringify(answers));

/** Logits and attention maps of one text, and of what follows it where the model writes. */
function read(core, model, special, ids, follow, list) {
  const maps = {};
  const tap = (module, name, x) => {
    if (name === "pattern") (maps[module.path] ??= []).push(list(x));
    return x;
  };
  if (special.kind === "encoder") {
    const one = core.tensor(ids, [1, ids.length]);
    return { logits: list(model.forward(one, tap, new core.Cache())), labels: list(model.classify(one, core.pass_through)), maps };
  }
  const reader = new core.Reader(model, special, tap);
  const rows = [reader.begin(ids), ...follow.map((token) => reader.step([token]))];
  return { logits: { shape: [rows.length, rows[0][0].length], data: rows.flatMap(([r]) => Array.from(r, (v) => Number(v.toPrecision(8)))) }, maps };
}
