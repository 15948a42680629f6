/** Where the selection stands in the stack that speaks, or in the one that reads. */
import type { Meta, Page, Token } from "../panel";
import { more } from "../panels/words_more";
import { clamp } from "../select";

export interface Stand { tokens: Token[]; at: number; go(index: number): void }

/** The stack whose states become words; without a choice in it, the position that says the first word. */
export function speaking(page: Page): Stand {
  const { decoder, encoder } = page.meta;
  if (!decoder) return standing(page, "encoder", encoder?.tokens ?? [], masked(encoder?.tokens ?? []));
  return standing(page, "decoder", decoder.tokens, Math.max(0, decoder.prompt - 1));
}

/** The stack that reads the text; without a choice in it, the pronoun that the texts ask about. */
export function reading(page: Page): Stand {
  const { encoder, decoder } = page.meta;
  const tokens = encoder?.tokens ?? decoder?.tokens ?? [];
  const asked = tokens.findIndex((x) => (more["shift.pronoun"] as readonly string[]).includes(x.text.trim().toLowerCase()));
  return standing(page, encoder ? "encoder" : "decoder", tokens, Math.max(0, asked));
}

/** The words that a model wrote, the last one too, which it did not read again. */
export function written(meta: Meta): Token[] {
  return (meta as Meta & { written?: Token[] }).written ?? meta.decoder?.tokens.slice(meta.decoder.prompt) ?? [];
}

function masked(tokens: Token[]): number {
  return Math.max(0, tokens.findIndex((x) => /^[<[]\|?mask/i.test(x.text)));
}

function standing(page: Page, side: "encoder" | "decoder", tokens: Token[], otherwise: number): Stand {
  const { part, query } = page.state;
  const mine = part === side || (side === "decoder" && part === "cross");
  return {
    tokens,
    at: clamp(mine ? query : otherwise, tokens.length),
    go: (index) => page.set({ part: mine ? part : side, query: index }),
  };
}

/** The model of the run on show, where it is not the one that the page opened with: what questions about a model carry. */
export function modelAsked(page: Page): string | undefined {
  const model = (page.meta as Meta & { model?: string }).model;
  return model === page.about.model ? undefined : model;
}
