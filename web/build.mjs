// Builds the page's bundle: node build.mjs [folder]; the folder is src/qkv/explore/static unless named.
// node build.mjs live folder: qkv-live.js instead, an ES module whose models run in the browser (src/live/mount.ts).
import { build } from "esbuild";
import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { inline_css, wat } from "./plugins.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const live = process.argv[2] === "live";
const to = process.argv[live ? 3 : 2] ?? join(here, live ? "live" : "../src/qkv/explore/static");
const entry = live ? { "qkv-live": "src/live/mount.ts" } : { app: "src/main.ts", chat: "src/chat/main.ts" };

const built = await build({
  absWorkingDir: here,
  entryPoints: entry,
  outdir: to,
  bundle: true,
  minify: true,
  format: live ? "esm" : "iife",
  plugins: live ? [wat, inline_css] : [],
  target: ["es2022", "safari15"],
  charset: "utf8",
  legalComments: "none", // the whole licences stand at the top instead
  logLevel: "warning",
  metafile: true,
  write: false,
});

/** The licences of the packages that went into the bundle. */
async function licences() {
  const packages = new Set(Object.keys(built.metafile.inputs).map((path) => /^node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1]));
  packages.delete(undefined);
  const texts = await Promise.all([...packages].sort().map(async (name) => `${name}\n\n${await readFile(join(here, "node_modules", name, "LICENSE"), "utf8")}`));
  return `/*! The page of qkv. With it come:\n\n${texts.join("\n").replaceAll("*/", "* /")}*/\n`;
}

await mkdir(to, { recursive: true });
for (const file of built.outputFiles) {
  if (live && file.path.endsWith(".css")) continue; // it is in the module
  await writeFile(file.path, file.path.endsWith(".js") ? (await licences()) + file.text : file.text);
}
await copyFile(join(here, live ? "src/live/index.html" : "src/index.html"), join(to, "index.html"));
if (!live) await copyFile(join(here, "src/chat/chat.html"), join(to, "chat.html"));
