// The built site without a network, without storage, from a folder, and by old links: node tests/offline.mjs FOLDER
// The last line is JSON. Exit 1 at the first fault.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";
import { serve } from "./served.mjs";

const folder = resolve(process.argv[2]);
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking"] });
const TRANSLATED = /finished reading the book/;
const found = {};

async function opened(context, address, faults = []) {
  const page = await context.newPage();
  page.setDefaultTimeout(120000);
  page.on("pageerror", (e) => faults.push(e.message));
  await page.goto(address);
  return page;
}
const kept = (page) => page.waitForFunction(() => document.documentElement.dataset.kept, null, { polling: 200 }).then((h) => h.jsonValue());
const text = (page) => page.locator("body").innerText();
async function translated(page) {
  await page.locator(".qkv-live button").first().click();
  await page.waitForFunction((said) => new RegExp(said).test(document.querySelector(".qkv-live > div")?.shadowRoot?.textContent ?? ""), TRANSLATED.source);
  return page.evaluate(() => document.querySelector(".qkv-live > div").shadowRoot.textContent);
}

try {
  let site = await serve(folder);
  const { port } = site;

  // a first visit keeps this language's pages; without a network they are there, and the model that was opened
  const context = await browser.newContext(), faults = [];
  let page = await opened(context, site.address, faults);
  assert.equal(await kept(page), "yes");
  found.asked = site.asked.length;
  await page.reload();
  await translated(page);
  await site.close();
  for (const path of ["course/05_attention.html", "questions.html", "labs/wo-sum.html", "index.html?from=x.html"]) {
    await page.goto(site.address + path);
    assert.ok((await text(page)).length > 500, path);
  }
  await translated(page);
  await page.locator("input[name=query]").click();
  await page.keyboard.type("注意力");
  await page.keyboard.press("End");
  await page.waitForSelector(".md-search-result__item a");
  await page.goto(`${site.address}assets/inside/demo-1.html`);
  assert.match(await text(page), /没有网络/, "what was not kept says so");
  assert.deepEqual(faults, []);

  // a new build: what changed is fetched, the rest is kept on
  site = await serve(folder, port);
  const worker = readFileSync(join(folder, "sw.js"), "utf8").replace(/BUILD = "\w+"/, 'BUILD = "another"');
  const files = JSON.parse(readFileSync(join(folder, "files.json"), "utf8"));
  files["questions.html"].hash = "0";
  site.spoil = (path) => (path === "/sw.js" ? worker : path === "/files.json" ? JSON.stringify(files) : null);
  page = await opened(context, site.address);
  await page.evaluate(() => navigator.serviceWorker.getRegistration().then((r) => r.update()));
  const taken = () => page.evaluate(async () => (await (await caches.open("qkv-site-another")).keys()).map((r) => new URL(r.url).pathname));
  let known = [];
  for (let i = 0; i < 300 && !known.includes("/teachers.html"); i++) {
    await page.waitForTimeout(100);
    known = await taken();
  }
  assert.ok(known.includes("/index.html") && known.includes("/teachers.html") && !known.includes("/questions.html"), "kept on but for what changed");
  await context.close();

  // a file that comes incomplete is not kept; weights too are fetched again, and the page says so
  site.spoil = () => null;
  const second = await browser.newContext();
  let halves = 0;
  const weights = readFileSync(join(folder, "assets/models/demo/model.safetensors"));
  const broken = "/en/course/06_heads.html";
  site.spoil = (path) => (path === broken ? "<p>half" : path.endsWith("demo/model.safetensors") && !halves++ ? weights.subarray(0, 99999) : null);
  page = await opened(second, `${site.address}en/index.html`);
  assert.equal(await kept(page), "not all");
  const whole = await page.evaluate(async (path) => !(await caches.match(new URL(path, location.href).href)), broken);
  assert.ok(whole, "half a page is not kept");
  assert.match(await translated(page), /fetched again/);
  assert.equal(halves, 2);
  await second.close();

  // no service worker and no storage: everything from the network, the lab too
  site.spoil = () => null;
  const bare = await browser.newContext({ serviceWorkers: "block" });
  await bare.addInitScript(() => { delete window.caches; });
  page = await opened(bare, `${site.address}en/labs/wo-sum.html`, faults);
  await page.locator(".qkv-lab button").click();
  await page.waitForFunction(() => /Computed/.test(document.querySelector(".qkv-lab [role=status]").textContent));
  found.lab = await page.locator(".qkv-lab [data-number]").allTextContents();
  assert.ok(Number(found.lab[0]) < 1e-4 && Number(found.lab[1]) > 0.5, `${found.lab}`);

  // old links: a page that is gone, an anchor that is gone
  for (const [lang, said] of [["", /旧版/], ["en/", /older version/]]) {
    await page.goto(`${site.address}${lang}questions.html#q-999`);
    await page.waitForSelector(".old-link");
    assert.match(await page.locator(".old-link").innerText(), said);
    await page.goto(`${site.address}${lang}questions.html#q-7`);
    assert.equal(await page.locator(".old-link").count(), 0);
  }
  site.spoil = (path) => (path.endsWith("labs/wo-sums.html") ? readFileSync(join(folder, "404.html")) : null); // as a host answers
  for (const lang of ["", "en/"]) {
    await page.goto(`${site.address}${lang}labs/wo-sums.html`);
    await page.waitForURL(/labs\/wo-sum\.html\?from=/);
    assert.match(await page.locator(".old-link").innerText(), /wo-sums\.html/);
  }
  await bare.close();

  // from a folder
  const local = await browser.newContext();
  page = await opened(local, pathToFileURL(join(folder, "course/05_attention.html")).href, faults);
  assert.ok((await text(page)).length > 500);
  assert.equal(await page.locator(".qkv-live button:visible, .qkv-lab button:visible").count(), 0);
  assert.deepEqual(faults, []);
  await site.close();
  console.log(JSON.stringify(found));
} catch (error) {
  console.error(error.stack ?? String(error));
  process.exitCode = 1;
} finally {
  await browser.close();
  process.exit(); // a server may still listen
}
