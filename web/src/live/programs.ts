/** The printed models by the hash of their spec: python tools/live_models.py prints them anew, nobody edits them. */
import * as bert from "./models/demo-bert";
import * as lm from "./models/demo-lm";
import * as moe from "./models/demo-moe";
import * as translator from "./models/demo";

export const PROGRAMS: Record<string, new () => any> = Object.fromEntries(
  [translator, lm, bert, moe].map(({ SPEC, Transformer }) => [SPEC, Transformer]),
);
