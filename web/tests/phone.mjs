// The built site on a phone: node tests/phone.mjs FOLDER; processor slowed 4 times, 1.6 Mbit/s, 150 ms (fast 3G), 390 px.
// A first visit, then one from the cache with a sentence of one's own, then a sentence of 20 words. The last line is JSON:
// `ms` by the clock, `busy` of the page's own thread, which other programs do not lengthen (slowed 4 times where the clock
// is, so `work` is the same visit not slowed: four times that is what the phone has to compute).
import assert from "node:assert/strict";
import { resolve } from "node:path";
import { chromium } from "playwright-core";
import { serve } from "./served.mjs";

const OWN = "我昨天看完了那本书。";
const TWENTY = ["我昨天在图书馆看完了那本书，今天又想再看。", "小明昨天在家里喝完了那杯茶，今天又想再喝。"]; // in turn: each answer is another
const site = await serve(resolve(process.argv[2]));
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking"] });
const context = await browser.newContext({ viewport: { width: 390, height: 800 }, isMobile: true, hasTouch: true });

async function phone(rate = 4) {
  const page = await context.newPage(), cdp = await context.newCDPSession(page);
  page.setDefaultTimeout(120000);
  await cdp.send("Performance.enable", { timeDomain: "threadTicks" });
  await cdp.send("Network.enable");
  await cdp.send("Network.emulateNetworkConditions", { offline: false, latency: 150, downloadThroughput: 200_000, uploadThroughput: 94_000 });
  await cdp.send("Emulation.setCPUThrottlingRate", { rate });
  const busy = async () => 1000 * (await cdp.send("Performance.getMetrics")).metrics.find((m) => m.name === "TaskDuration").value;
  const sent = { bytes: 0 };
  cdp.on("Network.loadingFinished", ({ encodedDataLength }) => (sent.bytes += encodedDataLength));
  return { page, cdp, busy, sent };
}
const idle = (page) => page.waitForFunction(() => { const r = document.querySelector(".qkv-live > div")?.shadowRoot; return r?.querySelector(".written") && !r.querySelector(".go:disabled, [busy], .waiting"); });

/** Types a sentence and waits for its answer; milliseconds by the clock, and of the page's thread. */
async function said(page, text, busy) {
  const before = await page.evaluate(() => document.querySelector(".qkv-live > div").shadowRoot.querySelector(".written").textContent);
  const [began, worked] = [performance.now(), await busy()];
  await page.locator(".qkv-live textarea[name=text]").fill(text);
  await page.locator(".qkv-live .go").click();
  await page.waitForFunction((old) => { const r = document.querySelector(".qkv-live > div").shadowRoot; return !r.querySelector(".go:disabled") && r.querySelector(".written") && r.querySelector(".written").textContent !== old; }, before);
  const [ended, after] = [performance.now(), await busy()];
  return { ms: Math.round(ended - began), busy: Math.round(after - worked) };
}
const painted = (page) => page.evaluate(() => Math.round(performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? NaN));

/** A visit from the cache: the model opened, and a first sentence of one's own answered. */
async function came_back(rate) {
  const { page, busy, sent } = await phone(rate), began = performance.now();
  await page.goto(site.address, { waitUntil: "load" });
  const loaded = Math.round(performance.now() - began);
  await page.locator(".qkv-live button").first().click();
  await idle(page);
  const there = Math.round(performance.now() - began), worked = await busy(), own = await said(page, OWN, busy);
  const found = { painted: await painted(page), loaded, model_there: there, own_answered: there + own.ms, after_load: there + own.ms - loaded, busy: Math.round(worked) + own.busy, bytes: sent.bytes };
  await page.close();
  return found;
}

try {
  const found = {};
  let { page, busy, sent } = await phone();
  await page.goto(site.address, { waitUntil: "load" });
  found.first = { painted: await painted(page), bytes: sent.bytes };
  await page.waitForFunction(() => document.documentElement.dataset.kept, null, { polling: 500 });
  const before = sent.bytes;
  await page.locator(".qkv-live button").first().click();
  await idle(page);
  found.with_model = found.first.bytes + sent.bytes - before;
  await page.close();

  found.again = await came_back(4);
  found.work = (await came_back(1)).busy;

  ({ page, busy } = await phone(1));
  await page.goto(site.address);
  await page.locator(".qkv-live button").first().click();
  await idle(page);
  found.twenty = [];
  for (const i of [0, 1, 0, 1, 0, 1]) found.twenty.push(await said(page, TWENTY[i], busy));
  assert.ok(found.first.bytes <= 400_000 && found.with_model <= 3_000_000, JSON.stringify(found));
  console.log(JSON.stringify(found));
} catch (error) {
  console.error(error.stack ?? String(error));
  process.exitCode = 1;
} finally {
  await browser.close();
  process.exit();
}
