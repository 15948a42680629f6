// What the panels on sums, masks, the cache, experts, words, cuts and training do when they are used, in a real browser:
// node tests/panels.mjs ADDRESS — of a server with demo, demo-moe and demo-bert and a folder with one watched run of
// steps 0 and 4, which trains on and has told of step 6. As page.mjs, it writes the numbers that it clicked as JSON on the last line. Exit 1 at the first fault.
import assert from "node:assert/strict";
import { change, choose, faults, numbers, opened, reported, settled, state } from "./browser.mjs";

const ask = async (page, model, text) => {
  await choose(page, model);
  if (text) {
    await page.locator(".ask textarea").fill(text);
    await page.locator(".go").click();
  }
  await settled(page);
};
const values = (page, where) => page.locator(`${where} q-num`).evaluateAll((all) => all.map((e) => Number(e.getAttribute("value"))));
const keep = async (page, panel) => {
  const { run } = await state(page);
  const all = await page.locator(".panel q-num").evaluateAll((found) => found.map((e) => ["value", "name", "line"].map((k) => e.getAttribute(k))));
  const step = Math.max(1, Math.ceil(all.length / 12));
  for (const [value, name, line] of all.filter((_, i) => i % step === 0)) if (line) numbers.push({ model: "", panel, run, value, name, line });
};
const near = (a, b, what, within = 1e-4) => assert.ok(Math.abs(a - b) <= within * Math.max(1, Math.abs(b)), `${what}: ${a}, expected ${b}`);
const sum = (all) => all.reduce((a, b) => a + b, 0);

/** The rows sum to the logit; the heads of a row sum to the row; X minus Y is the difference of two. */
async function pushed(page) {
  await ask(page, "demo", "我爱学习。");
  await change(page, { panel: "parts", part: "cross", query: 1 });
  const rows = await values(page, ".fall tbody");
  const [logit] = await values(page, ".fall tfoot");
  near(sum(rows), logit, "the sum of all parts is the logit");
  const row = page.locator(".fall tbody tr", { hasText: "layer 3 · attention" }).first();
  const [mine] = await row.locator("q-num").evaluateAll((all) => all.map((e) => Number(e.getAttribute("value"))));
  await row.locator("button").first().focus();
  await page.keyboard.press("Enter");
  await settled(page);
  const inside = await values(page, ".fall tr.inner");
  assert.ok(inside.length >= 4, "a row unfolds into its heads");
  near(sum(inside), mine, "heads and bias sum to the row");
  await keep(page, "parts");
  const word = async (nth, text) => {
    await page.locator(".panel .field input").nth(nth).fill(text);
    await page.locator(".panel .field input").nth(nth).press("Enter");
    await settled(page);
    return (await values(page, ".fall tfoot"))[0];
  };
  const [one, other] = [await word(0, "love"), await word(0, "book")];
  await word(0, "love");
  near(await word(1, "book"), one - other, "love minus book");
  await page.getByRole("button", { name: "by size" }).click();
  const sizes = (await values(page, ".fall tbody tr:not(.inner)")).map(Math.abs).slice(0, 5);
  assert.deepEqual(sizes, [...sizes].sort((a, b) => b - a), "by size: the largest first");
}

/** The square fills: the prompt at once, then row by row; the machine's rows end after the triangle's. */
async function masked(page) {
  await ask(page, "demo-moe");
  await change(page, { panel: "mask", part: "decoder", layer: 0 });
  const rows = () => page.locator("q-mask q-matrix").evaluate((m) => m.rows);
  const all = await rows();
  const slide = page.locator("q-mask q-player input").first();
  await slide.fill("1");
  const prompt = await rows();
  assert.ok(prompt > 1 && prompt < all, `the first pass shows ${prompt} of ${all} rows`);
  await slide.fill("2");
  assert.equal(await rows(), prompt + 1, "a decode step adds one row");
  await page.locator("q-mask .play").first().click();
  await page.waitForFunction((n) => document.querySelector("q-mask q-matrix").rows > n, prompt + 1);
  await page.locator("q-mask .play").first().click();
  assert.equal(await page.locator(".four figure").count(), 4);
  assert.equal(await page.locator(".four .mine").count(), 1, "one of the four is this model's");
  const [seen] = await values(page, "q-mask .legend");
  const seen0 = await page.locator("q-mask q-matrix").evaluate((m) => [...m.data].slice(3 * m.cols, 4 * m.cols).filter((x) => x === 0).length);
  const [lost, ...row] = await values(page, ":is(q-mask .pairs, q-mask h3 + .note)");
  const hidden = await page.locator("q-mask .pairs tbody tr").evaluateAll((all) => all.map((r) => Boolean(r.querySelector("small"))));
  near(sum(row.filter((_, i) => i % 2 === 0 && hidden[i / 2])), lost, "what the hidden words would have got", 1e-3);
  near(sum(row.filter((_, i) => i % 2 === 0)), 1, "without the mask the shares sum to one", 1e-3);
  near(sum(row.filter((_, i) => i % 2)), 1, "with it they do", 1e-3);
  assert.ok(lost > 0 && hidden.includes(true));
  const [, , own] = await values(page, ".four");
  assert.equal(own, seen, "the drawn prefix mask has as many open cells as the model's own");
  await page.locator("q-mask .cells").focus();
  await page.keyboard.press("End");
  assert.match(await page.locator(".foot").innerText(), /reason\(/, "a cell says its reason and its line");
  await page.locator(".wave tbody tr").last().locator("td").nth(3).click();
  assert.equal(await page.locator(".wave .needs").count(), 0, "the first layer rests on embeddings alone");
  await page.locator(".wave .scroll").first().focus();
  await page.keyboard.press("ArrowUp");
  await settled(page);
  assert.equal(await page.locator(".wave .needs").count(), 2 * seen0, "a cell of the second layer rests on all that its word sees");
  await keep(page, "mask");
}

async function cached(page) {
  await change(page, { panel: "cache" });
  const slide = page.locator("q-cache input[type=range]");
  await slide.fill("1");
  assert.match(await page.locator("q-cache output").innerText(), /^1 · prompt/);
  const first = await values(page, "q-cache .facts");
  await slide.fill("4");
  const later = await values(page, "q-cache .facts");
  near(later[0] / later[1], first[0] / first[1], "bytes grow with positions");
  assert.equal(await page.locator(".shelf .new").count(), 1, "a decode step puts one position on the shelf");
  await keep(page, "cache");
}

async function routed(page) {
  await change(page, { panel: "experts", layer: 0 });
  near(sum(await values(page, "q-experts .bars")), 1, "the shares sum to one");
  assert.equal(await page.locator(".lanes tbody td q-num").count(), (await page.locator(".lanes tbody tr").count()) * 2, "two experts a token");
  const row = await values(page, "q-experts .chosen tbody tr");
  assert.equal(row.length, 8 * 2 + 2, "a logit and a score of all eight experts, and two weights");
  const [first, second] = [row.slice(0, 3), row.slice(3, 6)];
  near(first[1] / second[1], first[2] / second[2], "the weights are as the scores of the two that were chosen");
  assert.equal(await page.locator(".chosen .current").count(), 2, "those chosen are marked, and stand first");
  await page.getByRole("button", { name: "by number" }).click();
  assert.match(await page.locator(".chosen tbody th").first().innerText(), /^1\b/);
  await page.locator(".lanes tbody .word").nth(2).click();
  await settled(page);
  assert.notDeepEqual(await values(page, "q-experts .chosen tbody tr"), row, "another word, other scores");
  await keep(page, "experts");
  const before = await page.locator(".lanes tbody").innerText();
  await change(page, { layer: 2 });
  assert.notEqual(await page.locator(".lanes tbody").innerText(), before, "another layer chooses otherwise");
}

async function aligned(page) {
  await ask(page, "demo", "我爱学习。");
  await change(page, { panel: "alignment", part: "cross", query: 1 });
  const row = await values(page, "q-alignment .bars");
  near(sum(row), 1, "a row of the alignment sums to one", 0.02);
  await page.locator("q-alignment .links g").nth(2).click();
  assert.match(page.url(), /query=2/, "a click on a word selects it");
  await keep(page, "alignment");
}

async function shifted(page) {
  await change(page, { panel: "shift", part: "encoder", query: 0 });
  const box = page.locator("q-shift .field input").first();
  await box.fill("书，茶");
  await box.press("Enter");
  await settled(page);
  assert.equal(await page.locator("q-shift .numbers thead th").count(), 6, "two anchors, the word alone, the anchors' own, and where between them");
  assert.equal(await page.locator("q-shift .way tbody i").count(), 4, "a spot on the way for each layer and the table");
  for (const [i, text] of ["中国", "北京", "日本"].entries()) {
    await page.locator("q-shift .field input").nth(2 + i).fill(text);
    await page.locator("q-shift .field input").nth(2 + i).press("Enter");
  }
  await settled(page);
  assert.equal(await page.locator("q-shift .bars").count(), 2, "neighbours and an analogy");
  await keep(page, "shift");
  await box.fill("qqqqq zzz");
  await box.press("Enter");
  await page.waitForSelector("q-shift .trouble");
  assert.match(await page.locator("q-shift .trouble").innerText(), /not in this model's vocabulary/);
  assert.equal(await page.locator("q-shift .trouble + button").count(), 0, "there is no other place to go back to");
  await box.fill("书，我");
  await box.press("Enter");
  await page.waitForFunction(() => !document.querySelector("q-shift .trouble"));
  await settled(page);
  assert.equal(await page.locator("q-shift .numbers thead th").nth(2).innerText(), "我", "what was typed wrong can be typed again");
  faults.splice(0, faults.length, ...faults.filter((f) => !/4\d\d/.test(f))); // the browser tells of the answer itself
}

/** A guess besides the word just read, and the rank of the answer, which is the first where its word stands. */
async function guessed(page) {
  await ask(page, "demo", "我爱学习。");
  await change(page, { panel: "guess-map", part: "cross", query: 1, layer: 0 });
  assert.match(await page.locator("q-guess-map .said").innerText(), /the guess is the word just read/);
  const column = () => page.locator(".guess-grid tbody tr").evaluateAll((rows) => rows.map((r) => r.children[2].querySelector("span").textContent));
  const read = await page.locator(".guess-grid thead th").nth(1).innerText();
  const plain = await column();
  assert.equal(plain.at(-1), read, "the embedding says the word that it is");
  await page.getByRole("button", { name: "Besides the word just read" }).click();
  await settled(page);
  assert.ok(!(await column()).includes(read));
  await keep(page, "guess-map");
  await page.getByRole("button", { name: "Rank of the answer" }).click();
  await settled(page);
  const ranks = await column();
  assert.equal(ranks[0], plain[0], "the answer stands in words");
  for (const [i, rank] of ranks.slice(1).entries()) assert.equal(rank === "1", plain[i + 1] === plain[0], "rank 1 where the layer already says it");
  await keep(page, "guess-map");
}

async function costs(page) {
  await change(page, { panel: "cost" });
  const bytes = async () => (await values(page, "q-cost .bars"))[1];
  const before = await bytes();
  await page.locator("q-cost input[type=range]").first().fill("12");
  await settled(page);
  near(await bytes(), (before * 4096) / 128, "the cache grows with the context");
  const counted = await values(page, "q-cost .shapes");
  near(sum(counted.slice(0, -1)), counted.at(-1), "the shapes sum to all parameters", 1e-12);
  await keep(page, "cost");
}

async function compared(page) {
  await change(page, { panel: "compare" });
  assert.match(await page.locator("q-compare .empty").innerText(), /second text/);
  await page.locator("q-compare form input").fill("我爱音乐。");
  await page.locator("q-compare form input").press("Enter");
  await page.waitForSelector("q-compare .compare-text");
  await settled(page);
  assert.equal(await page.locator(".compare-text").count(), 2);
  await page.locator("q-compare .cells").focus();
  await page.keyboard.press("ArrowDown");
  assert.match(await page.locator(".foot").innerText(), /t\.diff\(t2\)/);
  await keep(page, "compare");
}

async function proved(page) {
  await ask(page, "demo", "我爱学习。");
  await change(page, { panel: "proof" });
  await page.waitForSelector("q-proof .pairs");
  await keep(page, "proof");
  for (const name of ["within the source", "within what is written", "target to source"]) {
    await page.getByRole("button", { name, exact: true }).click();
    await settled(page);
    assert.equal(await page.locator("q-proof .trouble").count(), 0, name);
  }
  await page.locator("q-proof .strip").last().locator("button").nth(2).click();
  const chosen = await page.locator("q-proof .strip").last().locator("[aria-pressed=true]").innerText();
  assert.equal((await page.locator("q-proof .links .hot").textContent()).trim(), chosen, "the target chosen is the one drawn");
  await page.locator("q-proof .numbers .small").first().click();
  await page.waitForSelector(".tokens .said");
  await settled(page);
}

/** The slider moves through the recorded steps; what a run tells while it trains comes without a reload. */
async function learnt(page) {
  await change(page, { panel: "training" });
  await page.waitForSelector("q-training .facts");
  const step = async () => (await values(page, "q-training .facts"))[0];
  assert.equal(await step(), 4, "it opens at the last step");
  await page.locator("q-training input[type=range]").fill("0");
  await settled(page);
  assert.equal(await step(), 0);
  assert.match(page.url(), /step=0/);
  await page.waitForSelector("q-training .live");
  await page.locator("q-training .toggle input").check();
  await settled(page);
  assert.equal(await step(), 4, "following leads back to the newest step");
  const drawn = await page.locator("q-training .lines tbody th").allTextContents();
  assert.equal(drawn.at(-1), "6", "the loss of a step that was told live is drawn");
  await keep(page, "training");
}

/** The steps and the sections of a walk by keyboard; what was folded stays folded on the next word. */
async function walked(page) {
  await ask(page, "demo", "我爱学习。");
  await change(page, { panel: "walk", part: "cross", query: 1, key: 0, layer: 1, head: 0 });
  await page.locator(".walk-steps [aria-current]").focus();
  await page.keyboard.press("Home");
  assert.match(await page.locator(".walk-steps [aria-current]").innerText(), /^1/);
  for (const _ of [1, 2]) await page.keyboard.press("ArrowRight");
  const active = () => page.evaluate(() => document.activeElement.closest("details")?.dataset.name ?? document.activeElement.textContent);
  assert.match(await active(), /^3/, "arrows move along the steps, and the focus with them");
  const names = await page.locator(".walk-step details").evaluateAll((all) => all.map((d) => d.dataset.name));
  assert.deepEqual(names.slice(0, 3), ["sides", "formula", "row"]);
  await page.locator(".walk-step summary").first().focus();
  await page.keyboard.press("ArrowDown");
  assert.equal(await active(), "formula", "arrows move along the sections");
  await page.keyboard.press("Enter");
  await page.keyboard.press("End");
  assert.equal(await active(), names.at(-1));
  assert.equal(await page.locator(".walk-formula").isVisible(), false, "Enter folds a section");
  await change(page, { query: 2 });
  assert.equal(await page.locator(".walk-formula").isVisible(), false, "it stays folded");
  const every = page.locator(".walk-head button");
  assert.equal(await every.innerText(), "Unfold all");
  await every.click();
  assert.equal(await page.locator(".walk-step details:not([open])").count(), 0);
  await every.click();
  assert.equal(await page.locator(".walk-step details[open]").count(), 0);
  await every.click();
  await keep(page, "walk");
}

/** Where motion is unwelcome, play goes one step at a time. */
async function still() {
  const page = await opened({ reducedMotion: "reduce" });
  await ask(page, "demo");
  await change(page, { panel: "cache", lang: "zh" });
  await page.locator("q-cache input[type=range]").fill("1");
  await page.locator("q-cache .play").click();
  await page.waitForTimeout(1500);
  assert.equal(await page.locator("q-cache input[type=range]").inputValue(), "2");
  await page.close();
}

/** Panels that a model has no use for say why. */
async function empty(page) {
  await ask(page, "demo-bert");
  for (const panel of ["cache", "alignment", "experts", "proof"]) {
    await change(page, { panel });
    assert.ok((await page.locator(".panel .empty").innerText()).length > 30, `${panel} says why it is empty`);
  }
}

await reported(async () => {
  const page = await opened();
  await change(page, { lang: "en" });
  for (const part of [guessed, walked, pushed, masked, cached, routed, aligned, shifted, costs, compared, proved, learnt, empty]) {
    await part(page);
    console.log(part.name);
  }
  await still();
});
