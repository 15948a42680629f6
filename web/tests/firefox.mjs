// The built site in Firefox: node --experimental-websocket tests/firefox.mjs FOLDER (the flag is not needed from Node 22 on)
// By WebDriver BiDi, which Firefox speaks itself: every kind of page in both languages at 1280 and 390 px without an error or
// a sideways scroll; a sentence translated, a lab computed, a page read without a network. The last line is JSON.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { serve } from "./served.mjs";

const KINDS = ["index", "course/index", "course/01_token", "course/06_heads", "course/11_training", "questions", "labs/index", "labs/wo-sum", "misconceptions", "docs/usage", "benchmarks/index", "teachers"];
const profile = mkdtempSync(join(tmpdir(), "qkv-firefox-")), pause = (ms) => new Promise((done) => setTimeout(done, ms));
const firefox = spawn(process.env.FIREFOX ?? "firefox-esr", ["--headless", "--no-remote", "--remote-debugging-port=0", "--profile", profile, "about:blank"], { stdio: ["ignore", "ignore", "pipe"] });
const port = await new Promise((found, failed) => {
  firefox.on("error", failed);
  firefox.stderr.on("data", (text) => { const at = /BiDi listening on ws:\/\/127\.0\.0\.1:(\d+)/.exec(String(text)); if (at) found(at[1]); });
  setTimeout(() => failed(new Error("Firefox did not start within 60 s")), 60_000).unref();
});
const socket = new WebSocket(`ws://127.0.0.1:${port}/session`), waiting = new Map(), faults = [], found = { pages: 0 };
await new Promise((open, failed) => { socket.onopen = open; socket.onerror = failed; });
socket.onmessage = ({ data }) => {
  const said = JSON.parse(data);
  if (said.id) waiting.get(said.id)?.(said);
  else if (said.method === "log.entryAdded" && said.params.level === "error") faults.push(`${said.params.source?.context ? where : "?"}: ${said.params.text}`);
};
let last = 0, where = "";
async function ask(method, params) {
  const id = ++last, reply = await new Promise((done) => { waiting.set(id, done); socket.send(JSON.stringify({ id, method, params })); });
  assert.equal(reply.type, "success", `${method}: ${reply.message}`);
  return reply.result;
}
const site = await serve(resolve(process.argv[2]));

/** The value of an expression in the page. */
async function value(expression) {
  const { result, exceptionDetails } = await ask("script.evaluate", { expression, target: { context }, awaitPromise: true });
  assert.ok(!exceptionDetails, exceptionDetails?.text);
  return result.value;
}
async function until(expression, what) {
  for (let i = 0; i < 600; i++, await pause(100)) if (await value(expression)) return;
  assert.fail(`60 s passed without: ${what}`);
}
const visit = (path) => { where = path; return ask("browsingContext.navigate", { context, url: site.address + path, wait: "complete" }); };

let context = "";
try {
  await ask("session.new", { capabilities: {} });
  await ask("session.subscribe", { events: ["log.entryAdded"] });
  ({ context } = (await ask("browsingContext.getTree", {})).contexts[0]);
  for (const width of [1280, 390]) {
    await ask("browsingContext.setViewport", { context, viewport: { width, height: 900 } });
    for (const lang of ["", "en/"]) for (const kind of KINDS) {
      await visit(`${lang}${kind}.html`);
      const wide = await value("document.documentElement.scrollWidth - innerWidth");
      if (wide > 0) faults.push(`${lang}${kind} at ${width} px: ${wide} px too wide`);
      found.pages += 1;
    }
  }
  await visit("en/index.html");
  await value(`void document.querySelector(".qkv-live button").click()`);
  await until(`Boolean(document.querySelector(".qkv-live > div")?.shadowRoot?.querySelector(".written"))`, "a translation");
  found.translated = await value(`document.querySelector(".qkv-live > div").shadowRoot.querySelector(".written").textContent`);
  await visit("en/labs/wo-sum.html");
  await value(`void document.querySelector(".qkv-lab button").click()`);
  await until(`/Computed/.test(document.querySelector(".qkv-lab [role=status]").textContent)`, "a computed lab");
  found.lab = await value(`document.querySelector(".qkv-lab [data-number]").textContent`);
  await until("Boolean(document.documentElement.dataset.kept)", "the pages to be kept");
  await site.close();
  await visit("en/course/05_attention.html");
  assert.ok((await value("document.body.innerText.length")) > 500, "a page without a network");
  assert.match(found.translated, /\w+ \w+/);
  assert.deepEqual(faults, []);
  console.log(JSON.stringify(found));
} catch (error) {
  console.error(error.stack ?? String(error));
  process.exitCode = 1;
} finally {
  firefox.kill("SIGKILL");
  await pause(300);
  rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
  process.exit();
}
