// The page of `qkv serve` at ADDRESS, as a reader uses it: continue, stop, edit, translate, a word's inside, both languages, a phone; a second word is the key.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { address, browser, faults, reported, rest } from "./browser.mjs";

const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

async function enter(how) {
  const page = await (await browser.newContext(how)).newPage();
  page.setDefaultTimeout(30000);
  page.on("console", (m) => ["error", "warning"].includes(m.type()) && !m.text().includes("401") && faults.push(`console: ${m.text()}`));
  page.on("pageerror", (e) => faults.push(`page error: ${e.message}`));
  page.on("request", (r) => r.url().startsWith(new URL(address).origin) || r.url().startsWith("data:") || faults.push(`request outside: ${r.url()}`));
  await page.goto(address);
  if (rest[0]) {
    await check(page, "door");
    await page.fill("input[name=key]", "wrong");
    await page.click(".door .go");
    await page.waitForSelector(".door .trouble");
    await page.fill("input[name=key]", rest[0]);
    await page.click(".door .go");
  }
  await page.waitForSelector(".chat-top select");
  return page;
}

/** No fault that axe finds, and nothing wider than the screen. */
async function check(page, where) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  for (const one of found.violations) faults.push(`${where}: axe finds ${one.id} at ${one.nodes[0].html.slice(0, 120)}`);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  if (wide > 0) faults.push(`${where}: ${wide} pixels too wide`);
}

const text = (page) => page.locator(".answer").last().innerText();

/** The page that a word of the last answer opens: the token that is marked there. */
async function look(page, n) {
  const [inside] = await Promise.all([page.context().waitForEvent("page"), page.locator(".exchange").last().locator(".piece").nth(n).click()]);
  await inside.waitForSelector(".tabs button");
  await inside.waitForSelector(".token[aria-pressed=true]");
  const found = { wrote: await inside.locator(".output").innerText(), at: await inside.locator(".tokens .token.decode[aria-pressed=true], .tokens .token.prefill[aria-pressed=true]").last().innerText() };
  await inside.close();
  return found;
}

await reported(async () => {
  const page = await enter({ viewport: { width: 1280, height: 800 }, locale: "en-US" });
  await check(page, "empty");
  await page.selectOption("select", "demo-lm");
  await page.click(".more summary");
  await page.locator(".more input").first().fill("0");
  await page.locator(".more input").nth(1).fill("30");
  await page.fill("textarea", "One, two, buckle my");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".acts");
  const first = await text(page);
  assert.match(first, /buckle my shoe/);
  await check(page, "text");
  const seen = await look(page, 0);
  assert.ok(first.replace(/\s/g, "").includes(seen.wrote.replace(/\s/g, "").slice(-12)), `${seen.wrote} is not of ${first}`);
  await page.click("text=Again");
  await page.waitForFunction(() => !document.querySelector(".stop"));
  assert.equal(await text(page), first); // temperature 0
  assert.equal(await page.locator(".exchange").count(), 1);
  await page.locator(".more input").nth(1).fill("180");
  await page.fill("textarea", "Twinkle");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".exchange:nth-of-type(2) .piece");
  await page.click(".stop");
  await page.waitForFunction(() => !document.querySelector(".stop"));
  assert.ok((await text(page)).length > 7);
  await page.locator(".asked button").first().click(); // edit takes back what followed
  assert.equal(await page.inputValue("textarea"), "One, two, buckle my");
  assert.equal(await page.locator(".exchange").count(), 0);
  await page.click(".language");
  assert.equal(await page.evaluate(() => document.documentElement.lang), "zh-CN");

  const phone = await enter({ viewport: { width: 390, height: 780 }, locale: "zh-CN", colorScheme: "dark" });
  await phone.selectOption("select", "demo");
  await phone.fill("textarea", "我爱学习。\n\n书和茶都在桌上，我看完了它。");
  await phone.click(".go");
  await phone.waitForSelector(".acts");
  assert.equal(await phone.locator(".answer").first().innerText(), "I love studying.");
  await check(phone, "phone");
  const word = await look(phone, 1); // "love" was chosen after "I"
  assert.deepEqual([word.wrote.split("\n").at(-1), word.at], ["I love studying.", "I"]);
  await phone.fill("textarea", "x".repeat(3000));
  await phone.click(".go");
  await phone.waitForSelector(".exchange .trouble, .acts");
  return { first, seen };
});
