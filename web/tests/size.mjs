// The page at real size: node tests/size.mjs ADDRESS — of a server whose first question has 2,000 tokens, of a decoder with
// 30 layers of 32 heads, and whose only example is short. Exit 1 at the first fault.
import assert from "node:assert/strict";
import { change, faults, opened, reported, settled } from "./browser.mjs";

const NODES = 5000; // of a panel, however long the text is

/** How much of a thing is seen in the window, and in the boxes that scroll it. */
const seen = (page, what) => page.evaluate((what) => {
  const thing = document.querySelector(what);
  const box = thing.getBoundingClientRect();
  let [left, top, right, foot] = [0, 0, innerWidth, document.querySelector(".foot").getBoundingClientRect().top];
  for (let up = thing.parentElement; up; up = up.parentElement) {
    if (getComputedStyle(up).overflowX === "visible") continue;
    const b = up.getBoundingClientRect();
    [left, top, right, foot] = [Math.max(left, b.left), Math.max(top, b.top), Math.min(right, b.right), Math.min(foot, b.bottom)];
  }
  const across = Math.min(right, box.right) - Math.max(left, box.left);
  const down = Math.min(foot, box.bottom) - Math.max(top, box.top);
  return (Math.max(0, across) * Math.max(0, down)) / (box.width * box.height);
}, what);

const scrolled = (page, what, block) => page.evaluate(([what, block]) => document.querySelector(what).scrollIntoView({ block }), [what, block]);

/** Wherever the grid of all heads is looked at, the head that is chosen stands beside it. */
async function heads(page, many) {
  for (const [layer, block] of [[29, "start"], [0, "end"]]) {
    await change(page, { panel: "heads", layer, head: layer ? 31 : 0 });
    await scrolled(page, ".thumbs", block);
    assert.ok((await seen(page, ".thumbs .cursor")) > 0.9, `${many}: the cursor of layer ${layer + 1} is in sight`);
    assert.ok((await seen(page, ".heads-picture canvas")) > 0.6, `${many}: the picture of layer ${layer + 1} is beside it`);
  }
}

/** It opens where the first word is written, with words after it; what is read stays above, what follows below. */
async function guesses(page) {
  await change(page, { panel: "guess-map" });
  await scrolled(page, ".guess", "start");
  const chosen = await page.locator("td.chosen").getAttribute("data-pos");
  const after = (n, row) => `.guess-grid tbody tr:nth-child(${row}) td[data-pos="${Number(chosen) + n}"]`;
  assert.equal(await page.locator(".guess-grid tfoot td.given").evaluateAll((all) => all.length ? all.at(-1).cellIndex + 1 : 0),
    await page.locator("td.chosen").evaluate((td) => td.cellIndex), "the first position after which a word is written");
  for (const n of [0, 1, 2]) assert.ok((await seen(page, after(n, 1))) > 0.9, `position ${n} after the prompt is in sight`);
  await page.locator("td.chosen").focus();
  for (let i = 0; i < 29; i++) await page.keyboard.press("ArrowDown");
  await settled(page);
  await scrolled(page, ".guess", "start");
  for (const what of ["td.chosen", ".guess-grid thead th.on", ".guess-grid tfoot th"]) assert.ok((await seen(page, what)) > 0.9, `${what} at the lowest layer`);
  await change(page, { query: 0 });
  await page.getByRole("button", { name: "first written word" }).click();
  await settled(page);
  assert.equal(await page.locator("td.chosen").getAttribute("data-pos"), chosen, "back where the first word is written");
}

async function bounded(page) {
  for (const panel of ["heads", "guess-map", "mask", "cache", "next-word"]) {
    await change(page, { panel });
    const nodes = await page.locator(".panel *").count();
    assert.ok(nodes < NODES, `${panel}: ${nodes} nodes for 2,000 tokens`);
    assert.ok((await seen(page, ".tokens .strip [aria-pressed=true]")) > 0.9, `${panel}: the token that is chosen is in sight`);
  }
  assert.ok((await page.locator(".tokens *").count()) < 2000, "of a long text a part is drawn");
}

await reported(async () => {
  const page = await opened({}, (p) => p.setDefaultTimeout(300000));
  await settled(page);
  await heads(page, "2,000 tokens");
  await page.evaluate(() => scrollTo(0, 0));
  await bounded(page);
  await page.locator(".examples button").first().click();
  await settled(page, 300);
  await heads(page, "20 tokens");
  await page.evaluate(() => scrollTo(0, 0));
  await guesses(page);
  for (const width of [390, 640, 1024]) {
    await page.setViewportSize({ width, height: 844 });
    for (const panel of ["heads", "guess-map", "proof"]) {
      await change(page, { panel });
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(over <= 0, `${panel} at ${width} px: ${over} px too wide`);
    }
  }
  return [];
});
