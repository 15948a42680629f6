// Somebody who watches a run learn: node tests/live.mjs ADDRESS. Says "ready" once the panel stands; then for every line
// that it is given, the step of the newest record, what it has got and shows once it shows that step (or after 20 s).
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const [address] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
});
const page = await (await browser.newContext({ viewport: { width: 1400, height: 900 } })).newPage();
let answers = 0, asked = 0, sent = 0;
const faults = [];
const counts = (r) => r.url().includes("/api/") && !r.url().endsWith("/events");
page.on("pageerror", (e) => faults.push(e.message));
page.on("request", (r) => counts(r) && (asked += 1));
for (const name of ["requestfinished", "requestfailed"]) page.on(name, (r) => counts(r) && (asked -= 1, answers += 1));
page.on("response", async (r) => { if (counts(r)) sent += Number((await r.allHeaders())["content-length"] ?? 0); });
await page.goto(`${address}#panel=training`);
await page.waitForSelector(".tabs [data-panel=training][aria-current]");
console.log("ready");
const shown = () => page.evaluate(() => Number(document.querySelector("q-training .facts q-num")?.getAttribute("value") ?? -1));
for await (const wanted of createInterface({ input: process.stdin })) {
  const until = performance.now() + 20_000;
  while ((asked || (await shown()) < Number(wanted)) && performance.now() < until) await page.waitForTimeout(50);
  console.log(JSON.stringify({ answers, sent, step: await shown(), faults }));
}
await browser.close();
