/** The one selection that every panel reads and may change; it lives in the URL's hash, so that a moment can be shared.
 *
 * Layer and head count from 0 here and from 1 on the page. Read next: panel.ts. */

export type Lang = "zh" | "en";

/** What a run is asked: the body of POST /api/run. */
export interface Question {
  text: string;
  second?: string;
  model?: string;
  max_new_tokens?: number;
  beam?: number;
  sampling?: { temperature?: number; top_k?: number; top_p?: number; min_p?: number; seed?: number };
  force?: number[];
  cut?: { part: string; layer: number; head: number; query?: number; key?: number };
}

export interface Selection {
  run: string;
  panel: string;
  part: string;
  layer: number;
  head: number;
  query: number;
  key: number;
  step: number;
  lang: Lang;
  ask?: Question;
}

const NUMBERS = ["layer", "head", "query", "key", "step"] as const;
const TEXTS = ["run", "panel", "part", "lang"] as const;
const KNOWN = { run: /^r[0-9a-f]{12}$/, panel: /^[a-z-]+$/, part: /^[a-z]+$/, lang: /^(zh|en)$/ };

/** The selection that a hash says, over what holds without one; what cannot be read is left out. */
export function read(hash: string, fallback: Selection): Selection {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  const found: Selection = { ...fallback };
  for (const key of TEXTS) {
    const value = said.get(key);
    if (value && KNOWN[key].test(value)) found[key] = value as never;
  }
  for (const key of NUMBERS) {
    const value = said.get(key) ?? "";
    if (/^\d{1,9}$/.test(value)) found[key] = Number(value);
  }
  try {
    const ask = JSON.parse(said.get("ask") ?? "null") as Question | null;
    if (ask && typeof ask.text === "string") found.ask = ask;
  } catch {
    // a mangled link: the page opens without its question
  }
  return found;
}

/** The hash that says a selection. */
export function written(selection: Selection): string {
  const said = new URLSearchParams();
  for (const key of [...TEXTS, ...NUMBERS]) said.set(key, String(selection[key]));
  if (selection.ask) said.set("ask", JSON.stringify(selection.ask));
  return `#${said}`;
}

/** Counts as the page shows them: from 1. */
export const shown = (index: number): string => String(index + 1);

export const clamp = (value: number, size: number): number => Math.max(0, Math.min(value, size - 1));
