// How long the first view takes: node tests/first.mjs ADDRESS [TIMES]; a JSON line with milliseconds (`busy`: of the
// processor, in the page's own thread) and outside requests.
import { address, browser, origin, rest } from "./browser.mjs";

const times = Number(rest[0] ?? 5);
const shell = [], view = [], busy = [];
let outside = 0, sent = 0;
for (let i = 0; i < times; i++) {
  const context = await browser.newContext({ viewport: { width: 1400, height: 900 } });
  const page = await context.newPage();
  page.on("request", (r) => { if (!r.url().startsWith(origin) && !r.url().startsWith("data:")) outside += 1; });
  page.on("response", async (r) => { sent += Number((await r.allHeaders())["content-length"] ?? 0); });
  const tools = await context.newCDPSession(page);
  await tools.send("Performance.enable", { timeDomain: "threadTicks" });
  const began = performance.now();
  await page.goto(address);
  await page.waitForSelector(".tabs button");
  shell.push(performance.now() - began);
  await page.waitForFunction(() => document.querySelector(".panel") && !document.querySelector(".panel [busy], .panel .waiting, q-map[busy], .go:disabled"));
  view.push(performance.now() - began);
  const { metrics } = await tools.send("Performance.getMetrics");
  busy.push(1000 * metrics.find((m) => m.name === "TaskDuration").value);
  await context.close();
}
await browser.close();
console.log(JSON.stringify({ shell, view, busy, outside, sent: sent / times }));
