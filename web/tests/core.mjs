// Runs the printed models in Node: node tests/core.mjs CASES.json ANSWERS.json; the pytest that calls it compares.
import { build } from "esbuild";
import { readFileSync, writeFileSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const here = join(dirname(fileURLToPath(import.meta.url)), "..");
const folder = mkdtempSync(join(tmpdir(), "qkv-core-"));
const out = join(folder, "core.mjs");
await build({
  absWorkingDir: here, bundle: true, format: "esm", outfile: out, target: "es2022", logLevel: "warning",
  stdin: { contents: `export * from "../src/qkv/specialize/runtime"; export { PROGRAMS } from "./src/live/programs";`, resolveDir: here, loader: "ts" },
});
const core = await import(pathToFileURL(out));
rmSync(folder, { recursive: true });

const asked = JSON.parse(readFileSync(process.argv[2]));
const answers = {};
for (const { name, directory, texts, greedy } of asked) {
  const special = JSON.parse(readFileSync(join(directory, "spec.json")));
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
