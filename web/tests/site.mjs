// The built site (`make site`): node tests/site.mjs ADDRESS [FOLDER FOR PICTURES]
// Every kind of page in both languages, at 1280 and 390 px, one of them dark: no fault, nothing from elsewhere, no sideways
// scroll, axe without a serious finding; the course by keyboard alone. The last line is JSON. Exit 1 at the first fault.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { address, browser, faults, origin, reported, rest } from "./browser.mjs";

const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const [pictures] = rest;
const KINDS = [ // a page of every kind, and the chapters whose widgets differ
  "index", "course/index", "course/01_token", "course/06_heads", "course/10_words", "course/11_training", "questions", "labs/index", "labs/wo-sum", "misconceptions", "docs/usage", "benchmarks/index", "teachers",
];
const SCREEN = 900; // px of height; a chapter is to take two at most
const serious = (found) => found.violations.filter((v) => ["serious", "critical"].includes(v.impact));
const findings = [];
const heights = {};

/** A page of the site, which takes note of every fault. */
async function visited(path, how) {
  const page = await (await browser.newContext(how)).newPage();
  page.on("console", (m) => ["error", "warning"].includes(m.type()) && faults.push(`${path}: ${m.text()} ${m.location().url}`));
  page.on("pageerror", (e) => faults.push(`${path}: ${e.message}`));
  page.on("request", (r) => r.url().startsWith(origin) || r.url().startsWith("data:") || faults.push(`${path}: request outside: ${r.url()}`));
  page.on("response", (r) => r.status() < 400 || faults.push(`${path}: ${r.status()} ${r.url()}`));
  await page.goto(new URL(path, address).href);
  return page;
}

async function looked(path, width, dark) {
  const page = await visited(path, { viewport: { width, height: SCREEN }, colorScheme: dark ? "dark" : "light", reducedMotion: "reduce" });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  if (wide > 0) findings.push(`${path} at ${width} px: ${wide} px too wide`);
  await page.evaluate(axe);
  for (const v of serious(await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] })))) {
    findings.push(`${path} at ${width} px, ${dark ? "dark" : "light"}: ${v.id}: ${v.nodes.length} × ${v.nodes[0].html.slice(0, 160)} ${JSON.stringify(v.nodes[0].any[0]?.message ?? "").slice(0, 200)}`);
  }
  if (pictures) await page.screenshot({ path: `${pictures}/${path.replace(/\W+/g, "-")}-${width}${dark ? "-dark" : ""}.png`, fullPage: true });
  await page.context().close();
}

/** How tall each chapter is, with everything folded in. */
async function measured(lang) {
  const page = await visited(`${lang}course/index.html`, { viewport: { width: 1280, height: SCREEN } });
  const ways = await page.locator("article li a").evaluateAll((all) => all.map((a) => a.href));
  assert.equal(ways.length, 12);
  for (const way of ways) {
    await page.goto(way);
    heights[way.slice(address.length)] = await page.evaluate(() => Math.round(document.querySelector("article").getBoundingClientRect().height));
  }
  await page.context().close();
}

/** What a first visit fetches, in bytes as they are sent without compression. */
async function weighed(path) {
  const sent = [];
  const page = await (await browser.newContext()).newPage();
  page.on("response", (r) => sent.push(r.body().then((body) => body.length)));
  await page.goto(new URL(path, address).href, { waitUntil: "networkidle" });
  const painted = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
  const bytes = (await Promise.all(sent)).reduce((a, b) => a + b, 0);
  await page.context().close();
  return { bytes, painted: Math.round(painted) };
}

/** A chapter with the keyboard alone: the slider, the prediction, the check, the fold. */
async function typed(path) {
  const page = await visited(path, { viewport: { width: 1280, height: SCREEN } });
  const slider = page.locator(".slide input").first();
  await slider.focus();
  await page.keyboard.press("Home");
  const first = await page.locator(".slide output").first().textContent();
  await page.keyboard.press("ArrowRight");
  assert.notEqual(await page.locator(".slide output").first().textContent(), first, "the slider moves");
  assert.equal(await page.locator(".slide").first().locator(".frame:visible").count(), 1, "one frame is shown");
  await page.locator(".predict input").first().focus();
  await page.keyboard.press("Space");
  assert.ok(await page.locator(".predict details").first().evaluate((d) => d.open), "the answer opens");
  assert.ok(await page.locator(".predict label[data-said]").count(), "and says whether it was right");
  const value = await page.locator(".check").first().getAttribute("data-value");
  await page.locator(".check input").first().focus();
  await page.keyboard.type(value);
  await page.keyboard.press("Enter");
  assert.match(await page.locator(".check output").first().textContent(), /^(Right\.|对。)$/);
  await page.locator(".check input").first().fill("-5");
  await page.keyboard.press("Enter");
  assert.match(await page.locator(".check output").first().textContent(), /^(Too small\.|小了。)$/);
  await page.context().close();
}

/** Everything that Tab stops at, until it comes round: in view, and seen to have the focus. */
async function tabbed(path) {
  const page = await visited(path, { viewport: { width: 1280, height: SCREEN } });
  const at = () => page.evaluate(() => {
    const e = document.activeElement, box = e.getBoundingClientRect(), { outlineStyle } = getComputedStyle(e);
    if (e === document.body || e.passed || !e.closest("article")) return e === document.body || e.passed ? "round" : "";
    e.passed = true;
    return outlineStyle === "none" || box.bottom < 0 || box.top > innerHeight ? e.outerHTML.slice(0, 120) : "seen";
  });
  for (let stops = 0; ;) {
    await page.keyboard.press("Tab");
    const found = await at();
    if (found === "round" && stops) break;
    assert.ok(["seen", "", "round"].includes(found), `${path}: Tab stops where nobody sees it: ${found}`);
    stops += found === "seen";
  }
  await page.context().close();
}

/** From the page of questions to each answer: what stands there, or one click to a panel that opens where it should. */
async function asked(path) {
  const page = await visited(path, { viewport: { width: 1280, height: SCREEN } });
  const computes = await page.locator("meta[name=qkv-live]").count() > 0;
  const links = await page.locator("article a[href*='inside/'], article a[data-live]").evaluateAll((all) => all.map((a) => [a.href, a.dataset.live ?? ""]));
  const answers = await page.locator("article h3").evaluateAll((all) => all.map((h) => {
    for (let next = h.nextElementSibling; next && !/^H[123]$/.test(next.tagName); next = next.nextElementSibling) {
      if (next.matches(".lab, .said") || next.querySelector("img")) return next.textContent.length + 1;
    }
    return 0;
  }));
  assert.ok(answers.length >= 45 && answers.every((n) => n > 0), `each question has its answer: ${answers}`);
  assert.ok(links.every(([to, live]) => !live || /\/look\.html\?/.test(to) === computes), "where the models are, a panel computes");
  const source = await (await page.request.get(page.url())).text(); // before the script took the other address
  const recorded = [...source.matchAll(/href="([^"]*inside\/[^"]*)"/g)].map(([, to]) => new URL(to.replaceAll("&amp;", "&"), page.url()).href);
  const panels = [...new Set([...links.map(([to]) => to), ...recorded])];
  for (const to of panels) {
    await page.goto(to);
    await page.waitForSelector(".panel > *");
    await page.waitForFunction(() => {
      const root = document.querySelector("#live")?.shadowRoot ?? document;
      return root.querySelector(".panel > *") && !root.querySelector(".panel [busy], .panel .waiting, .go:disabled");
    });
    const wanted = Object.fromEntries(new URLSearchParams(new URL(to).hash.slice(1)));
    const found = await page.evaluate(() => Object.fromEntries(new URLSearchParams(location.hash.slice(1))));
    for (const key of ["panel", "part", "layer", "head", "query", "key"]) if (wanted[key]) assert.equal(found[key], wanted[key], `${to}: ${key}`);
    assert.deepEqual(await page.locator(".trouble").allTextContents(), [], to);
    assert.ok((await page.locator(".panel").innerText()).trim().length > 40, `${to} shows something`);
    await page.goto("about:blank");
  }
  await page.setViewportSize({ width: 390, height: SCREEN });
  await page.goto(panels[0]);
  await page.waitForSelector(".panel > *");
  await page.waitForFunction(() => (document.querySelector("#live")?.shadowRoot ?? document).querySelector(".tabs").getBoundingClientRect().top < innerHeight / 2, null, { timeout: 5000 }); // seen without scrolling
  await page.context().close();
  return { answers: answers.length, panels: panels.length, computing: links.filter(([to]) => to.includes("look.html")).length };
}

/** The search finds a word, in the page's own language. */
async function searched(path, word) {
  const page = await visited(path, { viewport: { width: 1280, height: SCREEN } });
  await page.locator("input[name=query]").click();
  await page.keyboard.type(word);
  await page.keyboard.press("End"); // the search listens to keys, and Chinese is typed without any
  await page.waitForSelector(".md-search-result__item a");
  const found = await page.locator(".md-search-result__item").count();
  await page.context().close();
  return found;
}

/** The model in the page, where the site was built with it: the milliseconds until its translation stands there. */
async function lived(path) {
  const page = await visited(path, { viewport: { width: 390, height: SCREEN } });
  const there = await page.locator("meta[name=qkv-live]").count();
  assert.equal(await page.locator(".qkv-live button").isVisible(), there > 0);
  const began = performance.now();
  if (there) {
    await page.locator(".qkv-live button").click();
    await page.waitForFunction(() => /finished reading the book/.test(document.querySelector(".qkv-live > div")?.shadowRoot?.textContent ?? ""));
    assert.ok((await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)) <= 0, "it is not too wide");
  }
  await page.context().close();
  return there ? Math.round(performance.now() - began) : null;
}

await reported(async () => {
  const languages = ["", "en/"];
  for (const lang of languages) {
    for (const kind of KINDS) for (const [width, dark] of [[1280, !lang], [390, !!lang]]) await looked(`${lang}${kind}.html`, width, dark);
    await measured(lang);
    for (const chapter of ["01_token", "10_words", "12_cache"]) await tabbed(`${lang}course/${chapter}.html`);
    for (const chapter of ["01_token", "05_attention"]) await typed(`${lang}course/${chapter}.html`);
  }
  assert.deepEqual(findings, [], findings.join("\n"));
  const found = { first: await weighed("index.html"), heights, questions: [], search: [], live: [] };
  for (const lang of languages) found.questions.push(await asked(`${lang}questions.html`));
  for (const lang of languages) found.live.push(await lived(`${lang}index.html`));
  found.search.push(await searched("index.html", "注意力"), await searched("en/index.html", "attention"));
  return found;
});
