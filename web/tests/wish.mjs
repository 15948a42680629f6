// Somebody asks a run that learns for a sentence of his own: node tests/wish.mjs ADDRESS SENTENCE. The last line is JSON:
// the step of the first record that has it, what the run says of it there, and what it shows of its alignment.
import assert from "node:assert/strict";
import { opened, reported, rest, settled } from "./browser.mjs";

const [sentence] = rest;
await reported(async () => {
  const page = await opened({ locale: "en-US" });
  await page.locator(".tabs [data-panel=training]").click();
  await page.waitForSelector(".live");
  await page.waitForSelector("q-training .said-then tbody tr");
  assert.ok(!(await page.locator("q-training .said-then").innerText()).includes(sentence), "nobody asked yet");
  await page.locator(".wish input").fill(sentence);
  await page.locator(".wish button").click();
  await page.waitForFunction((s) => document.querySelector("q-training .said-then tr.current")?.innerText.includes(s), sentence);
  await settled(page, 600);
  const row = page.locator("q-training .said-then tr.current");
  return {
    step: Number(await page.locator("q-training .facts q-num").first().getAttribute("value")),
    text: (await row.locator("th").innerText()).trim(),
    output: (await row.locator("td").innerText()).trim(),
    shape: await page.locator("q-training q-matrix").evaluate((e) => [e.rows, e.cols]),
  };
});
