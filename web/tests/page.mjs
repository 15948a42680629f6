// Every panel in a real browser: node tests/page.mjs ADDRESS [MODEL,MODEL,…] [FOLDER FOR PICTURES]
// Writes, as JSON on the last line, the numbers that it clicked: Python evaluates their lines. Exit 1 at the first fault.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { change, choose, faults, numbers, opened, reported, rest, settled, state } from "./browser.mjs";

const [named = "demo,demo-lm,demo-bert,demo-moe", pictures] = rest;
const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const CLICKED = 40; // numbers of a panel that are clicked, evenly over the panel

/** Clicks numbers of the panel on show; each must say its name and, if it has one, its line. */
async function click(page, model, panel) {
  const found = await page.evaluate((most) => {
    const all = [...document.querySelectorAll(".panel q-num")].filter((e) => e.getClientRects().length);
    const step = Math.max(1, Math.ceil(all.length / most));
    return all.filter((_, i) => i % step === 0).map((e) => {
      e.querySelector("button").click();
      return { value: e.getAttribute("value"), name: e.getAttribute("name"), line: e.getAttribute("line") };
    });
  }, CLICKED);
  const strips = await page.evaluate(() => [...document.querySelectorAll(".walk-numbers, .walk-product tr")].flatMap((row) => {
    const got = [];
    const heard = (e) => got.push(e.detail);
    document.addEventListener("q-number", heard);
    [...row.querySelectorAll("button")].slice(0, 3).forEach((b) => b.click());
    document.removeEventListener("q-number", heard);
    return got.map((d) => ({ value: String(d.value), name: d.name, line: d.line ?? "" }));
  }));
  const { run } = await state(page);
  for (const one of [...found, ...strips]) {
    assert.ok(one.name, `${model} ${panel}: a number without a name`);
    if (one.line) numbers.push({ model, panel, run, ...one });
  }
}

/** Every panel of a model, in both languages: whole, without words that are missing, nothing to scroll sideways. */
async function everyPanel(page, model) {
  await choose(page, model);
  const names = await page.locator(".tabs button").evaluateAll((all) => all.map((b) => b.dataset.panel));
  assert.ok(names.length >= 4, `${model}: only ${names}`);
  for (const panel of names) {
    for (const lang of ["en", "zh"]) {
      await change(page, { panel, lang });
      const where = `${model} ${panel} ${lang}`;
      assert.equal((await state(page)).panel, panel, where);
      const trouble = page.locator(".trouble");
      assert.equal(await trouble.count(), 0, `${where}: ${(await trouble.allTextContents()).join(" ")}`);
      const text = await page.locator(".panel").innerText();
      const keys = text.match(/⟦.*?⟧/g); // what words.ts gives for a key that it lacks
      assert.equal(keys, null, `${where}: words that are missing: ${keys}`);
      assert.ok(text.length > 40, `${where}: nothing to see`);
      if (lang === "en") await click(page, model, panel);
      if (pictures) await page.screenshot({ path: `${pictures}/${model}-${panel}-${lang}.png` });
    }
  }
  return names;
}

async function sideways(page, names, model) {
  for (const width of [390, 640]) {
    await page.setViewportSize({ width, height: 844 });
    for (const panel of names) {
      await change(page, { panel });
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(over <= 0, `${model} ${panel} at ${width} px: ${over} px too wide`);
      if (pictures && width === 390) await page.screenshot({ path: `${pictures}/${model}-${panel}-narrow.png`, fullPage: true });
    }
  }
  await page.setViewportSize({ width: 1280, height: 900 });
}

async function accessible(page, names, model) {
  await page.evaluate(axe);
  for (const panel of names) {
    await change(page, { panel });
    const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
    const grave = found.violations.filter((v) => ["serious", "critical"].includes(v.impact));
    const said = grave.map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => n.target.join(" ")).join(" | ")}`);
    if (said.length) faults.push(`${model} ${panel}: axe finds ${said.join("; ")}`);
  }
}

async function keyboard(page) {
  await choose(page, "demo");
  await change(page, { panel: "heads", part: "cross", query: 2, key: 2, layer: 1, head: 0 });
  await page.locator(".matrix .cells").focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowDown");
  await settled(page);
  let now = await state(page);
  assert.deepEqual([now.query, now.key], ["3", "3"], "arrows move the cell cursor");
  assert.match(await page.locator(".matrix .cells").getAttribute("aria-label"), /4\D.*4\D/s, "the cursor is spoken");
  await page.keyboard.press("Tab");
  assert.ok(!(await page.evaluate(() => document.activeElement.classList.contains("cells"))), "Tab leaves the matrix");
  await page.locator(".thumbs-cells").focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowUp");
  await settled(page);
  now = await state(page);
  assert.deepEqual([now.layer, now.head], ["2", "1"], "arrows choose a head");
  await page.locator(".tabs [aria-current]").focus();
  await page.keyboard.press("ArrowRight");
  await settled(page);
  assert.equal((await state(page)).panel, "proof", "arrows move along the tabs");
  await change(page, { panel: "guess-map", query: 2, layer: 0 });
  await page.locator("td.chosen").focus();
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("ArrowRight");
  await settled(page);
  now = await state(page);
  assert.deepEqual([now.query, now.layer], ["3", "1"], "arrows move in the guess map");
  await page.locator("svg.map").focus();
  await page.keyboard.press("ArrowLeft");
  await settled(page);
  assert.equal((await state(page)).query, "2", "arrows move on the map");
}

/** Enter that ends a composition sends nothing; Enter after it does. */
async function composing(page) {
  await choose(page, "demo");
  const box = page.locator(".ask textarea");
  const before = (await state(page)).run;
  await box.fill("我看完了那本书。");
  await box.dispatchEvent("compositionstart");
  await box.press("Enter");
  await page.waitForTimeout(200);
  assert.equal((await state(page)).run, before, "Enter while an IME composes must not send");
  await box.dispatchEvent("compositionend");
  await box.press("Enter");
  await page.waitForFunction((r) => !location.hash.includes(r), before);
  await settled(page);
}

/** Another word is forced, a head is silenced, and the way back leads back. */
async function branches(page) {
  await choose(page, "demo");
  await change(page, { panel: "next-word", part: "cross", query: 1 });
  const written = await page.locator(".output").innerText();
  await page.locator(".next-bars tbody tr:not(.current) .word").first().click();
  await page.waitForFunction((w) => document.querySelector(".output")?.innerText !== w, written);
  await settled(page);
  assert.equal(await page.locator(".next-branches li").count(), 2, "both branches are listed");
  await page.goBack();
  await page.waitForFunction((w) => document.querySelector(".output")?.innerText === w, written);
  await page.locator(".next-sliders input").nth(1).fill("5");
  await page.waitForFunction(() => document.querySelectorAll(".next-stages li").length === 2);
  await settled(page);
  assert.equal(await page.locator(".next-bars tbody tr:not(.out)").count(), 5, "top-k 5 leaves five words");
  await change(page, { panel: "heads" });
  await page.getByRole("button", { name: /Silence this head|让这个头沉默/ }).click();
  await page.waitForSelector(".tokens .said");
  await settled(page);
}

/** A link to a run that the server does not keep asks its question again. */
async function gone(page) {
  await change(page, { panel: "heads" });
  const link = (await page.evaluate(() => location.href)).replace(/run=r\w+/, "run=r000000000000");
  await page.goto("about:blank");
  await page.goto(link);
  await page.waitForSelector(".matrix canvas");
  await settled(page);
  assert.notEqual((await state(page)).run, "r000000000000");
  faults.splice(0, faults.length, ...faults.filter((f) => !/404/.test(f))); // the browser tells of the 404 itself
}

/** Without the server every panel says so, and goes on once it is back. */
async function lost(page) {
  await page.route("**/api/**", (route) => route.abort());
  await change(page, { panel: "heads", layer: 0, head: 3 });
  assert.match(await page.locator(".panel .trouble").innerText(), /qkv look/);
  await page.unroute("**/api/**");
  await page.locator(".panel .trouble + button").click();
  await page.waitForSelector(".matrix canvas");
  faults.splice(0, faults.length, ...faults.filter((f) => !/ERR_FAILED/.test(f))); // the browser tells of it itself
}

await reported(async () => {
  const began = Date.now();
  const page = await opened();
  await settled(page);
  console.log(`first view: ${Date.now() - began} ms`);
  const models = named.split(",");
  const panels = {};
  for (const model of models) {
    panels[model] = await everyPanel(page, model);
    console.log(`${model}: ${panels[model].join(" ")}`);
    await sideways(page, panels[model], model);
    await accessible(page, panels[model], model);
  }
  const dark = await opened({ colorScheme: "dark", reducedMotion: "reduce" });
  await choose(dark, models[0]);
  await settled(dark);
  await accessible(dark, panels[models[0]], `${models[0]} in the dark`);
  await dark.close();
  if (models.includes("demo")) {
    await keyboard(page);
    await composing(page);
    await branches(page);
    await gone(page);
    await lost(page);
  }
});
