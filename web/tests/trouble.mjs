// What goes wrong in a real browser: node tests/trouble.mjs ADDRESS — of a server with demo and demo-lm. A text that is far too
// long, two tabs, no token, a foreign Host, a browser that closes in mid-run, 200 % zoom and a keyboard alone. Exit 1 at the first fault.
import assert from "node:assert/strict";
import { address, browser, choose, faults, opened, origin, reported, settled, state } from "./browser.mjs";

const output = (page) => page.locator(".output").innerText();
const ask = async (page, text) => {
  await page.locator(".ask textarea").fill(text);
  await page.locator(".ask textarea").press("Enter");
  await page.waitForFunction((wanted) => JSON.parse(new URLSearchParams(location.hash.slice(1)).get("ask") ?? "{}").text === wanted, text, { timeout: 120000 });
  await settled(page, 100);
};
const forgiven = (what) => faults.splice(0, faults.length, ...faults.filter((f) => !what.test(f))); // the browser tells of it itself

/** Ten thousand words are cut, and the page says how many it reads; what it shows works. */
async function long(page) {
  await choose(page, "demo-lm");
  await ask(page, Array.from({ length: 10_000 }, (_, i) => ["one", "two", "three"][i % 3]).join(" "));
  assert.match(await page.locator("p.said[role=status]").innerText(), /the page reads the first \d+, the rest is neither read nor shown/);
  for (const panel of ["heads", "guess-map", "next-word"]) {
    await page.locator(`.tabs [data-panel=${panel}]`).click();
    await settled(page, 100);
    assert.equal(await page.locator(".panel .trouble").count(), 0, panel);
  }
}

/** Two tabs of one browser, each with its own sentence; one that closes while its answer is made harms nobody. */
async function tabs(page) {
  await choose(page, "demo");
  await ask(page, "我爱喝茶。");
  const mine = await output(page);
  const other = await page.context().newPage();
  await other.goto(origin);
  await other.waitForSelector(".tabs button");
  await settled(other);
  await ask(other, "我看完了那本书。");
  assert.notEqual(await output(other), mine);
  await other.locator(".ask textarea").fill("书和茶都在桌上，我喝完了它。");
  await other.locator(".go").click();
  await other.close();
  await page.locator(".tabs [data-panel=heads]").click();
  await settled(page, 100);
  assert.equal(await output(page), mine);
  assert.match((await state(page)).ask, /我爱喝茶/);
}

/** Who comes without the token, or under another name, is told why, in both languages. */
async function strangers() {
  for (const [where, zh, en] of [[origin, /缺少口令/, /open the whole address/], [address.replace("127.0.0.1", "qkv.example"), /Host 是/, /Host is/]]) {
    const context = await browser.newContext();
    const page = await context.newPage();
    const reply = await page.goto(where);
    assert.equal(reply.status(), 403, where);
    const text = await page.locator("body").innerText();
    assert.match(text, zh);
    assert.match(text, en);
    await context.close();
  }
}

/** At 200 % (half the pixels, each twice as large) and with no mouse: a sentence, a panel, a head. */
async function keys() {
  const page = await opened({ locale: "en-US", viewport: { width: 640, height: 450 }, deviceScaleFactor: 2 });
  await settled(page);
  const press = async (until, most = 60) => {
    for (let i = 0; i < most; i++) {
      if (await page.evaluate((s) => document.activeElement?.matches(s), until)) return;
      await page.keyboard.press("Tab");
    }
    assert.fail(`Tab does not lead to ${until}`);
  };
  await press(".ask textarea");
  await page.keyboard.press("Control+A");
  await page.keyboard.type("我爱音乐。");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => location.hash.includes(encodeURIComponent("我爱音乐。")));
  await settled(page, 100);
  assert.match(await output(page), /music/i);
  await press(".tabs [aria-current]");
  await page.keyboard.press("ArrowRight");
  await settled(page, 100);
  assert.equal((await state(page)).panel, "heads");
  await press(".thumbs-cells");
  const before = (await state(page)).head;
  await page.keyboard.press("ArrowRight");
  await settled(page, 100);
  assert.notEqual((await state(page)).head, before);
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(over <= 0, `${over} px too wide at 200 %`);
  const ring = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.notEqual(ring, "none", "what has the focus is seen");
}

await reported(async () => {
  const page = await opened({ locale: "en-US" });
  await settled(page);
  for (const part of [long, tabs, strangers, keys]) {
    await part(page);
    console.log(part.name);
  }
  forgiven(/403|ERR_ABORTED/);
});
