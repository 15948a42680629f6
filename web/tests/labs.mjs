// The labs of the page that computes, in Node: node tests/labs.mjs GIVEN.json NUMBERS.json; the pytest that calls it compares.
import { readFileSync, writeFileSync } from "node:fs";
import { load } from "./bundle.mjs";

globalThis.location = new URL("http://page/");
globalThis.fetch = async (url) => new Response(readFileSync(new URL(url).pathname));
const { run_lab } = await load(`export { run_lab } from "./src/live/labs";`);
const { base, labs } = JSON.parse(readFileSync(process.argv[2]));
const found = {};
for (const [name, given] of Object.entries(labs)) found[name] = await Promise.all(given.map((one) => run_lab(name, [one], base)));
writeFileSync(process.argv[3], JSON.stringify(found));
