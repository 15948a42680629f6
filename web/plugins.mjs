// esbuild plugins of the page that computes: a .wat file as the bytes of its module, and all styles as one text.
import { build } from "esbuild";
import { readFile } from "node:fs/promises";
import wabt from "wabt";

export const wat = {
  name: "wat",
  setup({ onLoad }) {
    onLoad({ filter: /\.wat$/ }, async ({ path }) => {
      const parsed = (await wabt()).parseWat(path, await readFile(path, "utf8"), { simd: true });
      const { buffer } = parsed.toBinary({});
      parsed.destroy();
      return { contents: buffer, loader: "binary" };
    });
  },
};

/** `import text from "inline:css"`: the page's styles for a shadow root, where :root, html and body are the host. */
export const inline_css = {
  name: "inline-css",
  setup({ onResolve, onLoad, initialOptions: { absWorkingDir } }) {
    onResolve({ filter: /^inline:css$/ }, ({ path }) => ({ path, namespace: "inline" }));
    onLoad({ filter: /./, namespace: "inline" }, async () => {
      const made = await build({
        absWorkingDir, bundle: true, minify: true, write: false, outdir: "out", charset: "utf8",
        stdin: { contents: `import "./src/look.css"; import "./src/panels/all"; import "./src/live/live.css";`, resolveDir: absWorkingDir },
      });
      const css = made.outputFiles.find((f) => f.path.endsWith(".css")).text;
      return { contents: css.replace(/:root|(?<=[{}])(?:html|body)(?=\{)/g, ":host"), loader: "text" };
    });
  },
};
