// The page that computes, in a browser: node tests/computing.mjs http://127.0.0.1:PORT/; gives times in milliseconds.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { address, browser, faults, opened, origin, reported } from "./browser.mjs";

const VIEWS = ["translate", "tokens", "attention", "next-token", "lens"];
const PYTHON = ["training"]; // the panel that needs it
const MODELS = ["demo", "demo-lm", "demo-bert", "demo-moe"];
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const TWENTY = "我昨天在图书馆看完了那本书，今天又想再看。";

/** A page at an address of the site; `first` sees it before it goes there. */
async function at(query, how = {}, first = () => {}) {
  const page = await (await browser.newContext({ viewport: { width: 390, height: 800 }, ...how })).newPage();
  page.setDefaultTimeout(60000);
  page.on("pageerror", (e) => faults.push(`page error: ${e.message} ${query}`));
  page.on("request", (r) => r.url().startsWith(origin) || r.url().startsWith("data:") || faults.push(`request outside: ${r.url()}`));
  await first(page);
  await page.goto(`${address}?${query}`);
  return page;
}

const shown = (page) => page.waitForFunction(() => {
  const root = document.querySelector("#live")?.shadowRoot;
  return root && (root.querySelector(".panel, .trouble")) && !root.querySelector(".panel [busy], .waiting, .go:disabled");
});

/** Every tab of the whole page. */
async function tabs(page, model) {
  const mute = [];
  for (const name of await page.locator(".tabs button").evaluateAll((all) => all.map((b) => b.dataset.panel))) {
    await page.locator(`.tabs [data-panel="${name}"]`).click();
    await shown(page);
    for (const said of await page.locator(".panel .trouble").allTextContents()) {
      assert.match(said, new RegExp(`qkv look ${model} --serve`), name);
      mute.push(name);
    }
  }
  assert.deepEqual(mute.filter((name) => !PYTHON.includes(name)), [], `${model}: computed in the page`);
}

/** Proof says how far it is, stops when it is left, and is not done twice; two texts are compared, and a state is moved. */
async function long(page, found) {
  await page.locator('.tabs [data-panel="heads"]').click();
  await page.locator("textarea[name=text]").fill("书和茶都在桌上，我喝完了它，我看完了它。");
  await page.locator(".go").click();
  await page.waitForFunction(() => !document.querySelector("#live").shadowRoot.querySelector(".go:disabled"));
  const tab = (name) => page.locator(`.tabs [data-panel="${name}"]`).click();
  await tab("proof");
  await page.locator("progress").waitFor();
  const share = (least) => page.waitForFunction((least) => { const p = document.querySelector("#live").shadowRoot.querySelector("progress"); return p?.value > least && p.value; }, least).then((p) => p.jsonValue());
  const far = await share(0.4); // it moves
  await tab("heads");
  await shown(page);
  await page.waitForTimeout(100);
  await tab("proof");
  assert.ok((await share(0)) < far - 0.1, "what nobody waited for was stopped, and begins anew");
  const began = Date.now();
  await shown(page);
  found.proof = Date.now() - began;
  assert.ok((await page.locator("q-proof .pairs tr").count()) > 3);
  await tab("heads");
  await tab("proof");
  assert.equal(await page.locator("progress").count(), 0, "it is kept");
  await page.locator("q-proof .pairs tr").first().waitFor();
  await tab("compare");
  await page.locator("q-compare input[type=text]").fill("书和茶都在桌上，我看完了它，我喝完了它。");
  await page.locator("q-compare form button").click();
  await page.locator("q-compare .compare-text").first().waitFor();
  await page.locator("q-compare .patch > button").click();
  await page.locator(".patch-output").waitFor();
  assert.equal(await page.locator("q-compare .trouble").count(), 0);
}

await reported(async () => {
  const found = { load: {}, again: {} };
  for (const model of MODELS) {
    for (const view of VIEWS) {
      for (const lang of view === "translate" ? ["zh", "en"] : ["zh"]) {
        const page = await at(`model=${model}&view=${view}&lang=${lang}`);
        await shown(page);
        assert.equal(await page.locator(".trouble").count(), 0, `${model} ${view} ${await page.locator(".trouble").allTextContents()}`);
        await page.evaluate(AXE);
        const { violations } = await page.evaluate(() => window.axe.run("#live"));
        const serious = violations.filter((v) => ["serious", "critical"].includes(v.impact));
        assert.deepEqual(serious.map((v) => `${v.id} ${v.nodes[0].html.slice(0, 120)}`), [], `${model} ${view}`);
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${model} ${view} is wider than 390 px`);
        await page.context().close();
      }
    }
  }
  // the whole page: each tab draws, but for what needs Python, which says by which command
  for (const model of MODELS.slice(1)) {
    const one = await at(`model=${model}&view=page`, { viewport: { width: 1280, height: 900 } });
    await one.locator(".tabs button").first().waitFor();
    await tabs(one, model);
    await one.context().close();
  }
  const page = await opened();
  await tabs(page, "demo");
  await long(page, found);
  await page.locator("textarea[name=text]").fill(TWENTY);
  for (const key of ["first", "second", "third", "fourth"]) {
    await page.locator("textarea[name=text]").fill(`${TWENTY}${"。".repeat(Object.keys(found.again).length)}`);
    const began = Date.now();
    await page.locator(".go").click();
    await page.waitForFunction(() => !document.querySelector("#live").shadowRoot.querySelector(".go:disabled"));
    found.again[key] = Date.now() - began;
  }
  await page.context().close();

  // weights are kept: a second visit fetches none
  const context = await browser.newContext();
  for (const visit of ["first", "second"]) {
    const asked = [];
    const one = await context.newPage();
    one.on("request", (r) => asked.push(r.url()));
    const began = Date.now();
    await one.goto(`${address}?view=translate`);
    await shown(one);
    found.load[visit] = Date.now() - began;
    assert.equal(asked.some((url) => url.endsWith(".safetensors")), visit === "first", visit);
    await one.close();
  }
  await context.close();

  // bad input
  const trouble = async (query, pattern, first) => {
    const bad = await at(`lang=en&${query}`, {}, first);
    await shown(bad);
    assert.match((await bad.locator(".trouble, .said").allTextContents()).join(" "), pattern, query);
    await bad.context().close();
  };
  const half = (p) => p.route("**/model.safetensors", async (route) => route.fulfill({ body: (await (await route.fetch()).body()).subarray(0, 99999) }));
  const changed = (p) => p.route("**/model.safetensors", async (route) => {
    const body = Buffer.from(await (await route.fetch()).body());
    body[body.length - 5] ^= 1;
    await route.fulfill({ body });
  });
  await trouble("view=translate", /incomplete/, half);
  await trouble("view=translate", /hash differs/, changed);
  await trouble("view=translate&model=nosuch", /nosuch/);
  await trouble("view=translate&model=demo-bert", /spec\.json/, (p) => p.route("**/spec.json", (route) => route.abort()));
  await trouble("view=translate", /another version/, (p) => p.route("**/spec.json", async (route) => route.fulfill({ json: { ...(await (await route.fetch()).json()), program: "0" } })));
  await trouble(`view=translate&sentence=${encodeURIComponent("我看见一只哺乳动物🙂。")}`, /not in the vocabulary/);
  await trouble(`view=translate&sentence=${"书".repeat(400)}`, /at most/);
  const bare = await at("view=translate", {}, (p) => p.addInitScript(() => { delete window.caches; delete window.WebAssembly; }));
  await shown(bare); // no storage, no WebAssembly: slower, and there
  assert.equal(await bare.locator(".trouble").count(), 0);
  return found;
});
