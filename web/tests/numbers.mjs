// Numbers of the page that computes: node tests/numbers.mjs ADDRESS MODEL,MODEL,…
// Every panel of each model; up to 90 numbers of each are clicked, and given as JSON on the last line: Python evaluates
// the line of each on the same weights.
import assert from "node:assert/strict";
import { address, browser, faults, numbers, reported, rest } from "./browser.mjs";

const CLICKED = 90;

/** Clicks numbers of the panel on show, evenly over it; each says its name and, if it has one, its line. */
const click = (page) => page.evaluate((most) => {
  const root = document.querySelector("#live").shadowRoot, got = [];
  const heard = (e) => got.push({ value: String(e.detail.value), name: e.detail.name, line: e.detail.line ?? "" });
  root.addEventListener("q-number", heard);
  const all = [...root.querySelectorAll(".panel q-num button, .walk-numbers button, .walk-product button")].filter((e) => e.getClientRects().length);
  const step = Math.max(1, Math.ceil(all.length / most));
  all.filter((_, i) => i % step === 0).forEach((button) => button.click());
  root.removeEventListener("q-number", heard);
  return got;
}, CLICKED);

await reported(async () => {
  for (const model of rest[0].split(",")) {
    const page = await (await browser.newContext({ viewport: { width: 1280, height: 900 } })).newPage();
    page.setDefaultTimeout(60000);
    page.on("pageerror", (e) => faults.push(`${model}: ${e.message}`));
    const shown = () => page.waitForFunction(() => {
      const root = document.querySelector("#live")?.shadowRoot;
      return root?.querySelector(".panel, .trouble") && !root.querySelector(".panel [busy], .waiting, .go:disabled");
    });
    await page.goto(`${address}?model=${model}&view=page&lang=en`);
    await page.locator(".tabs button").first().waitFor();
    await shown();
    for (const panel of await page.locator(".tabs button").evaluateAll((all) => all.map((b) => b.dataset.panel))) {
      await page.locator(`.tabs [data-panel="${panel}"]`).click();
      await page.waitForTimeout(50);
      await shown();
      for (const one of await click(page)) {
        assert.ok(one.name, `${model} ${panel}: a number without a name`);
        if (one.line) numbers.push({ model, panel, run: model, ...one });
      }
    }
    await page.context().close();
  }
});
