// TypeScript of this folder as a module that Node runs.
import { build } from "esbuild";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { inline_css, wat } from "../plugins.mjs";

const here = join(dirname(fileURLToPath(import.meta.url)), "..");

/** What some lines of TypeScript export; paths in them begin in web/. */
export async function load(contents) {
  const folder = mkdtempSync(join(tmpdir(), "qkv-web-"));
  const out = join(folder, "made.mjs");
  await build({
    absWorkingDir: here, bundle: true, format: "esm", outfile: out, target: "es2022", logLevel: "warning", platform: "neutral",
    plugins: [wat, inline_css], stdin: { contents, resolveDir: here, loader: "ts" },
  });
  const made = await import(pathToFileURL(out));
  rmSync(folder, { recursive: true });
  return made;
}
