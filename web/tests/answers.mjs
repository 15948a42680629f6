// What the client that computes answers: node tests/answers.mjs CASES.json ANSWERS.json; the pytest that calls it compares.
import { readFileSync, writeFileSync } from "node:fs";
import { load } from "./bundle.mjs";

globalThis.location = new URL("http://page/");
globalThis.fetch = async (url) => new Response(readFileSync(new URL(url).pathname));
const { LocalClient } = await load(`export { LocalClient } from "./src/live/local";`);
const { base, models, questions } = JSON.parse(readFileSync(process.argv[2]));
const client = new LocalClient(base, models);
const plain = (answer) => ({ ...answer, arrays: Object.fromEntries(Object.entries(answer.arrays ?? {}).map(([n, { shape, data }]) => [n, { shape, data: Array.from(data) }])) });
const answers = [];
for (const { question, paths } of questions) {
  const run = await client.run(question);
  const said = [];
  for (const path of paths) said.push(await client.get(path.startsWith("/") ? path : `/api/r/${run}/${path}`).then(plain, (trouble) => ({ trouble: trouble.said })));
  answers.push(said);
}
writeFileSync(process.argv[3], JSON.stringify(answers));
