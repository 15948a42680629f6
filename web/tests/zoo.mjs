// Printed models of any kind in Node: node tests/zoo.mjs CASES.json ANSWERS.json; the pytest that calls it compares.
import { readFileSync, writeFileSync } from "node:fs";
import { load } from "./bundle.mjs";

const asked = JSON.parse(readFileSync(process.argv[2]));
const runtime = JSON.stringify(asked.runtime);
const models = asked.cases.map(({ file }, i) => `export { Transformer as T${i} } from ${JSON.stringify(file)};`).join("\n");
const core = await load(`export * from ${runtime};\n${models}`);
const answers = asked.cases.map(({ weights, ids, source, prefix }, i) => {
  const model = new core[`T${i}`](), bytes = readFileSync(weights);
  core.load_weights(model, core.read_safetensors(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length)));
  const rows = (list) => core.tensor(list.flat(), [list.length, list[0].length]), tap = core.pass_through;
  const given = source ? [model.encode(rows(source), tap)] : prefix ? [core.tensor(prefix)] : [];
  const read = (parts) => {
    const cache = new core.Kept();
    return parts.map((part) => model.forward(rows(part), ...given, tap, cache)).map((x) => ({ shape: x.shape, data: Array.from(x.numbers()) }));
  };
  const cut = (from, to) => ids.map((row) => row.slice(from, to));
  return { whole: read([ids]), parts: model.decoder && !prefix ? read([cut(0, 4), cut(4, 5), cut(5)]) : [] };
});
writeFileSync(process.argv[3], JSON.stringify(answers));
