/** Beams as a tree: a column per step, the likeliest candidate on top; what was read on, what ended, what was let go. */
import { html, svg, type TemplateResult } from "lit";
import { word } from "./strip";

export interface Leaf { step: number; parent: number; text: string; sum: number; fate: "kept" | "ended" | "pruned" }
export interface TreeHow { label: string; best: number[]; at: number; say(index: number): string; pick(index: number): void }

const [WIDE, HIGH, TOP] = [104, 25, 14];

/** A leaf and those that it grew from, the leaf last. */
export function line(leaves: Leaf[], index: number): number[] {
  const found: number[] = [];
  for (let i = index; i >= 0; i = leaves[i]!.parent) found.unshift(i);
  return found;
}

export function tree(leaves: Leaf[], how: TreeHow): TemplateResult {
  const rows: number[] = [];
  const spots = leaves.map((leaf) => {
    const row = (rows[leaf.step] = (rows[leaf.step] ?? -1) + 1);
    return { x: leaf.step * WIDE + 4, y: TOP + row * HIGH };
  });
  const [best, chosen] = [new Set(how.best), new Set(how.at < 0 ? [] : line(leaves, how.at))];
  const [wide, high] = [rows.length * WIDE, TOP + (Math.max(...rows) + 1) * HIGH];
  const mood = (i: number): string => `${leaves[i]!.fate} ${best.has(i) ? "best" : ""} ${chosen.has(i) ? "chosen" : ""}`;
  const order = [...leaves.keys()].sort((a, b) => Number(best.has(a)) + 2 * Number(chosen.has(a)) - Number(best.has(b)) - 2 * Number(chosen.has(b)));
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${how.label}><svg class="tree" width=${wide} height=${high} viewBox="0 0 ${wide} ${high}" role="group" aria-label=${how.label}>
    ${order.map((i) => {
      const parent = spots[leaves[i]!.parent];
      const { x, y } = spots[i]!;
      return parent ? svg`<path class=${mood(i)} d="M${parent.x + 72},${parent.y} C${parent.x + 90},${parent.y} ${x - 18},${y} ${x},${y}" />` : "";
    })}
    ${leaves.map((leaf, i) => svg`<g class=${mood(i)} role="button" aria-label=${how.say(i)} tabindex=${leaf.fate === "pruned" ? -1 : 0} @click=${() => how.pick(i)}
      @keydown=${(e: KeyboardEvent) => (e.key === "Enter" || e.key === " ") && (e.preventDefault(), how.pick(i))}><title>${how.say(i)}</title>
      <rect x=${spots[i]!.x} y=${spots[i]!.y - 10} width="72" height="20" rx="6" /><text x=${spots[i]!.x + 36} y=${spots[i]!.y} dy="0.35em">${word(leaf.text).slice(0, 9)}</text></g>`)}
  </svg></div>`;
}
