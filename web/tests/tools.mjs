// What a reader does with a panel, in a real browser: node tests/tools.mjs ADDRESS FOLDER. The server has demo and
// demo-bert, opens with the pair of 看完 and 喝完's first text, and has a watched run that trains. FOLDER gets the pictures.
// The last line is JSON with the numbers that were shown: Python evaluates their lines. Exit 1 at the first fault.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { numbers, opened, reported, rest, settled as still, state } from "./browser.mjs";

const [folder] = rest;
const page = await opened({ locale: "en-US", acceptDownloads: true });
const settled = () => still(page, 60);
const open = async (panel) => {
  await page.locator(`.tabs [data-panel=${panel}]`).click();
  await settled();
};
const keep = async (where) => {
  const { run } = await state(page);
  const all = await page.locator(`${where} q-num`).evaluateAll((found) => found.map((e) => ["value", "name", "line"].map((k) => e.getAttribute(k))));
  for (const [value, name, line] of all) if (line) numbers.push({ run, value, name, line });
};

/** The page comes with what it opens with: nothing is asked before the first panel stands. */
async function opening() {
  await settled();
  const asked = await page.evaluate(() => performance.getEntriesByType("resource").map((r) => new URL(r.name).pathname));
  assert.deepEqual(asked.filter((p) => p.startsWith("/api/")), [], "answers that came with the page are not asked for");
  assert.ok((await page.locator("q-heads .bars tr").count()) > 5);
}

/** A panel as a file, by its button and by its key: words, numbers and pictures of it, under the sentence and the model. */
async function pictures() {
  for (const panel of ["guess-map", "heads", "walk", "mask"]) {
    await open(panel);
    const [svg] = await Promise.all([page.waitForEvent("download"), page.locator(".pictures button").nth(1).click()]);
    assert.equal(svg.suggestedFilename(), `qkv-${panel}.svg`);
    await svg.saveAs(`${folder}/${panel}.svg`);
    const text = await readFile(`${folder}/${panel}.svg`, "utf8");
    for (const wanted of ["看完", "The book", "demo", "<text"]) assert.ok(text.includes(wanted), `${panel}: no ${wanted} in the picture`);
    assert.ok(!/foreignObject|class=|url\((?!(?:&quot;|")?#)/.test(text), `${panel}: a picture that needs the page`);
    const [png] = await Promise.all([page.waitForEvent("download"), page.keyboard.press("Alt+p")]);
    await png.saveAs(`${folder}/${panel}.png`);
    const bytes = await readFile(`${folder}/${panel}.png`);
    assert.equal(bytes.subarray(1, 4).toString(), "PNG");
    assert.equal(bytes.readUInt32BE(16), 2 * Number(/width="(\d+)"/.exec(text)[1]), "two dots to a pixel");
  }
  await page.locator("body").press("Alt+s");
}

/** The tree holds the sentence that was written; a cell says whose beginning it is. */
async function beams() {
  await open("next-word");
  await page.locator(".beams-show").click();
  await page.waitForSelector("svg.tree");
  await settled();
  assert.equal(await page.locator("svg.tree g.best").last().textContent().then((t) => t.includes("The book and the tea")), true);
  assert.equal(await page.locator("svg.tree g.ended").count(), 4);
  await page.locator("svg.tree g.ended").nth(1).focus();
  await page.keyboard.press("Enter");
  assert.match(await page.locator(".foot").innerText(), /log P of[\s\S]*nodes\[\d+\]\.sum/);
  assert.ok((await page.locator("svg.tree g.chosen").count()) > 10);
  await keep("q-next-word .numbers");
}

/** With the verb's state of the first text the second says what the first said. */
async function copied() {
  await open("compare");
  await page.locator("q-compare form input").fill("书和茶都在桌上，我喝完了它。");
  await page.locator("q-compare form input").press("Enter");
  await page.waitForSelector("q-compare .patch");
  await settled();
  assert.match(await page.locator(".patch select").nth(1).evaluate((e) => e.selectedOptions[0].text), /看完/, "the first word that differs is offered");
  await page.locator(".patch > button").click();
  await page.waitForSelector(".patch-output");
  await settled();
  assert.match(await page.locator(".patch-output").innerText(), /reading/);
  await page.locator(".patch select").nth(1).selectOption({ index: 0 });
  await page.locator(".patch select").nth(2).selectOption({ index: 0 });
  await page.waitForFunction(() => /drinking/.test(document.querySelector(".patch-output")?.innerText ?? ""));
  await settled();
  await keep("q-compare [role=status]");
}

/** A sentence of one's own is asked for while a run trains; one that is too long cannot be typed. */
async function wished() {
  await open("training");
  await page.waitForSelector(".wish input");
  await page.locator(".wish input").fill("我爱 茶。");
  await page.locator(".wish button").click();
  await page.waitForFunction(() => /我爱 茶。/.test(document.querySelector("q-training .note[role=status]")?.textContent ?? ""));
}

await reported(async () => {
  for (const part of [opening, pictures, beams, copied, wished]) {
    await part();
    console.log(part.name);
  }
});
