/** Horizontal bars as a real table: name, bar, number. Blue to the right, orange to the left of zero. */
import { html, nothing, type TemplateResult } from "lit";
import { max, min } from "d3-array";
import { percent, short } from "./number";

export interface Bar {
  name: string; value: number; line?: string;
  /** What the number bar says; the name without it. */
  full?: string;
  /** Set: the name is a button. */
  click?: () => void;
  /** Hatched, such as a masked or cut-off one. */
  out?: boolean;
  note?: string;
  current?: boolean;
}
export interface BarsHow { label: string; as?: "number" | "percent"; heads?: [string, string]; most?: number }

export function bars(rows: Bar[], how: BarsHow): TemplateResult {
  const top = how.most ?? Math.max(max(rows, (r) => r.value) ?? 0, 0);
  const low = Math.min(min(rows, (r) => r.value) ?? 0, 0);
  const span = top - low || 1;
  const zero = (-low / span) * 100;
  return html`<table class="bars" aria-label=${how.label}>
    ${how.heads ? html`<thead><tr><th scope="col">${how.heads[0]}</th><td></td><th scope="col">${how.heads[1]}</th></tr></thead>` : nothing}
    <tbody>${rows.map((r) => {
      const wide = (Math.abs(r.value) / span) * 100;
      return html`<tr class=${`${r.out ? "out" : ""} ${r.current ? "current" : ""}`}>
        <th scope="row">${r.click ? html`<button type="button" class="word" @click=${r.click}>${r.name}</button>` : r.name}
          ${r.note ? html`<small>${r.note}</small>` : nothing}</th>
        <td class="track" aria-hidden="true"><i class=${r.value < 0 ? "minus" : "plus"}
          style="left:${r.value < 0 ? zero - wide : zero}%;width:${wide}%"></i></td>
        <td class="end"><q-num value=${String(r.value)} name=${r.full ?? r.name} line=${r.line ?? ""}
          shows=${how.as === "percent" ? percent(r.value) : short(r.value)}></q-num></td>
      </tr>`;
    })}</tbody></table>`;
}
