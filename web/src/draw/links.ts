/** Lines between words, as wide as their weight: arcs over one text, or a bridge between two. */
import { html, svg, type TemplateResult } from "lit";
import { word } from "./strip";

interface Place { x: number; wide: number }

function places(words: string[], gap: number, least = 0): Place[] {
  let x = 10;
  return words.map((text) => {
    const wide = Math.max(least, 18 + 16 * [...text].reduce((n, c) => n + (c > "\u2e80" ? 1 : 0.56), 0));
    x += wide + gap;
    return { x: x - gap - wide / 2, wide };
  });
}

const end = (list: Place[]): number => (list.length ? list.at(-1)!.x + list.at(-1)!.wide / 2 + 10 : 20);

export interface ArcsHow {
  label: string; at: number; weight(index: number): number; shows(weight: number): string;
  pick?(index: number): void;
}

/** Arcs from one word of a text to the others; the strongest is orange. */
export function arcs(tokens: string[], how: ArcsHow): TemplateResult {
  const names = tokens.map(word);
  const spots = places(names, 6, 40);
  const others = names.map((_, j) => (j === how.at ? 0 : how.weight(j)));
  const best = Math.max(...others, 0.02);
  const rise = (j: number): number => 24 + Math.abs(spots[j]!.x - spots[how.at]!.x) * 0.42;
  const floor = 12 + 0.75 * Math.max(0, ...others.map((v, j) => (v >= 0.02 ? rise(j) : 0)));
  const [wide, high] = [end(spots), floor + 54];
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${how.label}><svg class="links" role="img" aria-label=${how.label}
    style="max-width:${wide}px;min-width:min(${wide}px,34rem)" viewBox="0 0 ${wide} ${high}">
    ${others.map((v, j) => (v < 0.02 ? "" : svg`<path class=${v === best ? "best" : ""} stroke-width=${1.2 + 8 * Math.min(1, v)} opacity=${0.3 + 0.7 * Math.min(1, v)}
      d="M${spots[how.at]!.x},${floor} C${spots[how.at]!.x},${floor - rise(j)} ${spots[j]!.x},${floor - rise(j)} ${spots[j]!.x},${floor}" />`))}
    ${names.map((name, j) => svg`<g class=${`${j === how.at ? "at" : ""} ${how.pick ? "open" : ""}`} @click=${() => how.pick?.(j)}>
      <rect x=${spots[j]!.x - spots[j]!.wide / 2} y=${floor + 2} width=${spots[j]!.wide} height="29" rx="7" />
      <text x=${spots[j]!.x} y=${floor + 22}>${name}</text>
      <text class=${`small ${others[j] === best ? "best" : ""}`} x=${spots[j]!.x} y=${floor + 48}>${others[j]! >= 0.005 ? how.shows(others[j]!) : ""}</text></g>`)}
  </svg></div>`;
}

export interface BridgeHow {
  label: string; weight(to: number, from: number): number;
  /** The row below whose lines stand out; null: all of them. */
  hot: number | null; least?: number; pick?(to: number): void;
}

/** Two texts one above the other; a line's width is how much the lower word looked at the upper one. */
export function bridge(from: string[], to: string[], how: BridgeHow): TemplateResult {
  const [up, low] = [from.map(word), to.map(word)];
  const [a, b] = [places(up, 9), places(low, 9)];
  const wide = Math.max(end(a), end(b));
  const [left, right] = [(wide - end(a)) / 2, (wide - end(b)) / 2];
  const lines = low.flatMap((_, i) => up.map((_, j) => ({ i, j, v: how.weight(i, j) }))).filter((l) => l.v > (how.least ?? 0.1));
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${how.label}><svg class="links" role="img" aria-label=${how.label}
    style="max-width:${wide}px;min-width:min(${wide}px,34rem)" viewBox="0 0 ${wide} 200">
    ${lines.map(({ i, j, v }) => svg`<path class=${how.hot === i ? "best" : ""} stroke-width=${1 + 8 * v} opacity=${how.hot !== null && how.hot !== i ? 0.08 : 0.3 + 0.65 * v}
      d="M${a[j]!.x + left},42 C${a[j]!.x + left},100 ${b[i]!.x + right},100 ${b[i]!.x + right},160" />`)}
    ${up.map((name, j) => svg`<text x=${a[j]!.x + left} y="32">${name}</text>`)}
    ${low.map((name, i) => svg`<g class=${`${how.hot === i ? "hot" : ""} ${how.pick ? "open" : ""}`} @click=${() => how.pick?.(i)}>
      <rect class="bare" x=${b[i]!.x + right - b[i]!.wide / 2} y="162" width=${b[i]!.wide} height="30" rx="7" /><text x=${b[i]!.x + right} y="183">${name}</text></g>`)}
  </svg></div>`;
}
