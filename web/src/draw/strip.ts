/** A strip of tokens to choose one from: arrow keys move, byte pieces wear a badge, phases are told apart. */
import { html, nothing, type TemplateResult } from "lit";
import type { Token } from "../panel";

export interface StripHow {
  label: string; at: number; pick(index: number): void;
  /** A class per token, such as "decode" or "out". */
  mood?: (index: number) => string;
  /** What a badge such as 1/3 says. */
  piece?: (badge: string) => string;
  lang?: string;
}

/** A token as it is shown: spaces and line ends get a sign. */
export const word = (text: string): string => text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^[ ▁Ġ]+|[ ▁]+$/g, (s) => (s === text ? "␣" : "")) || "␣";

export function strip(tokens: Token[], how: StripHow): TemplateResult {
  const keyed = (event: KeyboardEvent): void => {
    const move = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -tokens.length, End: tokens.length }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(tokens.length - 1, how.at + move));
    how.pick(next);
    const list = event.currentTarget as HTMLElement;
    (list.querySelectorAll("button")[next] as HTMLElement | undefined)?.focus();
  };
  return html`<div class="strip" role="group" aria-label=${how.label} @keydown=${keyed}>${tokens.map((token, i) => html`<button
    type="button" class=${`token ${how.mood?.(i) ?? ""}`} aria-pressed=${String(i === how.at)} tabindex=${i === how.at ? 0 : -1}
    title=${`${i} · id ${token.id}`} @click=${() => how.pick(i)}><span>${word(token.text)}</span>${token.bytes ? html`<sup title=${how.piece?.(token.bytes) ?? token.bytes}>${token.bytes}</sup>` : nothing}</button>`)}</div>`;
}
