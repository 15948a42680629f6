// Somebody who watches a run learn: node tests/live.mjs ADDRESS. Says "ready" once the panel stands; then for every line
// that it is given, the step of the newest record, what it has got and shows once it shows that step (or after 20 s).
import { createInterface } from "node:readline";
import { browser, faults, opened } from "./browser.mjs";

let answers = 0, asked = 0, sent = 0;
const counts = (r) => r.url().includes("/api/") && !r.url().endsWith("/events");
const page = await opened({ viewport: { width: 1400, height: 900 } }, (made) => {
  made.on("request", (r) => counts(r) && (asked += 1));
  for (const name of ["requestfinished", "requestfailed"]) made.on(name, (r) => counts(r) && (asked -= 1, answers += 1));
  made.on("response", async (r) => { if (counts(r)) sent += Number((await r.allHeaders())["content-length"] ?? 0); });
});
await page.locator(".tabs [data-panel=training]").click();
await page.waitForSelector(".tabs [data-panel=training][aria-current]");
console.log("ready");
const shown = () => page.evaluate(() => Number(document.querySelector("q-training .facts q-num")?.getAttribute("value") ?? -1));
for await (const wanted of createInterface({ input: process.stdin })) {
  const until = performance.now() + 20_000;
  while ((asked || (await shown()) < Number(wanted)) && performance.now() < until) await page.waitForTimeout(50);
  console.log(JSON.stringify({ answers, sent, step: await shown(), faults }));
}
await browser.close();
