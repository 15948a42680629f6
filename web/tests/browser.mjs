// What the tests in a real browser share: a browser that takes note of every fault, a page on ADDRESS, and how to move in it.
import assert from "node:assert/strict";
import { chromium } from "playwright-core";

export const [address, ...rest] = process.argv.slice(2);
export const origin = address.startsWith("file:") ? "file://" : `${new URL(address).origin}/`;
export const faults = []; // what the console said, errors, requests to other places: a test ends with none
export const numbers = []; // those that were clicked, with their lines, which Python evaluates

export const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--host-resolver-rules=MAP qkv.example 127.0.0.1"],
});

/** A page on ADDRESS that stands; `first` sees it before it goes there. */
export async function opened(how = {}, first = (page) => page) {
  const page = await (await browser.newContext({ viewport: { width: 1280, height: 900 }, ...how })).newPage();
  page.setDefaultTimeout(30000);
  page.on("console", (m) => ["error", "warning"].includes(m.type()) && faults.push(`console ${m.type()}: ${m.text()} ${m.location().url}`));
  page.on("pageerror", (e) => faults.push(`page error: ${e.message}`));
  page.on("request", (r) => r.url().startsWith(origin) || r.url().startsWith("data:") || faults.push(`request outside: ${r.url()}`));
  first(page);
  await page.goto(address);
  await page.waitForSelector(".tabs button");
  return page;
}

export async function settled(page, first = 0) {
  await page.waitForTimeout(first);
  await page.waitForFunction(() => !document.querySelector(".panel [busy], .panel .waiting, q-map[busy], .go:disabled"));
  await page.waitForTimeout(40);
}

/** What the address says: the panel, the run, the selection. */
export const state = (page) => page.evaluate(() => Object.fromEntries(new URLSearchParams(location.hash.slice(1))));

export async function change(page, over) {
  await page.evaluate((o) => {
    const said = new URLSearchParams(location.hash.slice(1));
    for (const [k, v] of Object.entries(o)) said.set(k, v);
    location.hash = said.toString();
  }, over);
  await settled(page, 60);
}

export async function choose(page, model) {
  const select = page.locator(".ask .pick select");
  if (!(await select.count()) || (await page.locator(".card b").textContent()) === model) return;
  await select.selectOption({ label: model });
  await page.waitForFunction((m) => document.querySelector(".card b")?.textContent === m && !document.querySelector(".go:disabled"), model);
  await settled(page);
}

/** Runs a test to its end: what it gives, or the numbers, as JSON on the last line; or exit 1 with every fault. */
export async function reported(test) {
  try {
    const found = await test();
    assert.deepEqual(faults, [], faults.join("\n"));
    console.log(JSON.stringify(found ?? numbers));
  } catch (error) {
    console.error([...new Set(faults)].join("\n"));
    console.error(error.stack ?? String(error));
    process.exitCode = 1;
  } finally {
    await browser.close();
  }
}
