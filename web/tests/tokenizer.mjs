// Texts to ids and back: node tests/tokenizer.mjs CASES.json ANSWERS.json; the pytest that calls it compares.
import { readFileSync, writeFileSync } from "node:fs";
import { load } from "./bundle.mjs";

const { Tokenizer } = await load(`export { Tokenizer } from "./src/live/tokenizer";`);
const { texts, files } = JSON.parse(readFileSync(process.argv[2]));
writeFileSync(process.argv[3], JSON.stringify(Object.fromEntries(Object.entries(files).map(([name, file]) => {
  const tokenizer = new Tokenizer(JSON.parse(readFileSync(file)));
  const ids = texts.map((text) => tokenizer.encode(text));
  return [name, { ids, texts: ids.map((i) => tokenizer.decode(i)), pieces: ids.map((i) => tokenizer.pieces(i)) }];
}))));
