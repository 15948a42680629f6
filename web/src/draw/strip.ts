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

const MOST = 400; // tokens that are drawn: of a longer text those round the one that is chosen

export function strip(tokens: Token[], how: StripHow): TemplateResult {
  const from = Math.max(0, Math.min(how.at - MOST / 2, tokens.length - MOST));
  const rest = tokens.length - from - MOST;
  const more = (count: number): TemplateResult | typeof nothing => (count > 0 ? html`<span class="more">… ${count}</span>` : nothing);
  const keyed = (event: KeyboardEvent): void => {
    const move = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -tokens.length, End: tokens.length }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(tokens.length - 1, how.at + move));
    how.pick(next);
    const list = event.currentTarget as HTMLElement;
    list.querySelectorAll("button")[next - from]?.focus();
  };
  return html`<div class="strip" role="group" aria-label=${how.label} @keydown=${keyed}>${more(from)}${tokens.slice(from, from + MOST).map((token, n) => [token, n + from] as const).map(([token, i]) => html`<button
    type="button" class=${`token ${how.mood?.(i) ?? ""}`} aria-pressed=${String(i === how.at)} tabindex=${i === how.at ? 0 : -1}
    title=${`${i} · id ${token.id}`} @click=${() => how.pick(i)}><span>${word(token.text)}</span>${token.bytes ? html`<sup title=${how.piece?.(token.bytes) ?? token.bytes}>${token.bytes}</sup>` : nothing}</button>`)}${more(rest)}</div>`;
}
