// An esbuild plugin: a .wat file becomes the bytes of its module.
import { readFile } from "node:fs/promises";
import wabt from "wabt";

export const wat = {
  name: "wat",
  setup(build) {
    build.onLoad({ filter: /\.wat$/ }, async ({ path }) => {
      const parsed = (await wabt()).parseWat(path, await readFile(path, "utf8"), { simd: true });
      const { buffer } = parsed.toBinary({});
      parsed.destroy();
      return { contents: buffer, loader: "binary" };
    });
  },
};
