// The pictures of the READMEs and of docs/: node tests/pictures.mjs ADDRESS PANEL FILE.png [zh|en] [WIDTHxHEIGHT] [KEY=VALUE …]
// ADDRESS is what `qkv look demo --serve --no-browser` prints (with --watched FOLDER for the panel training), or the file:// address of
// the page that `qkv demo` writes; KEY=VALUE are parts of the selection, as they stand in the page's own address.
import { browser, change, faults, opened, rest, settled } from "./browser.mjs";

const [panel, file, lang = "en", size = "1400x900", ...more] = rest;
const [width, height] = size.split("x").map(Number);
const page = await opened({ locale: lang === "zh" ? "zh-CN" : "en-US", viewport: { width, height } });
await settled(page);
await change(page, { panel, lang, ...Object.fromEntries(more.map((x) => x.split("="))) });
await settled(page, 400);
await page.screenshot({ path: file });
await browser.close();
if (faults.length) throw new Error(faults.join("\n"));
