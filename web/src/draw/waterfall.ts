/** A running sum, one bar a row: each bar starts where the one before it ended. A real table. */
import { html, nothing, type TemplateResult } from "lit";
import { short } from "./number";

export interface Drop {
  name: string; value: number; line?: string; full?: string;
  /** Set: the row can be unfolded; the value says whether it is. */
  open?: boolean;
  click?: () => void;
  /** A row inside the one above: it is drawn, but the sum goes on without it. */
  inner?: boolean;
}
export interface FallHow { label: string; heads: [string, string]; sum: Drop; running: boolean }

export function waterfall(rows: Drop[], how: FallHow): TemplateResult {
  const spans = placed(rows, how.running);
  const ends = [0, how.sum.value, ...spans.flat()];
  const [low, top] = [Math.min(...ends), Math.max(...ends)];
  const at = (x: number): number => ((x - low) / (top - low || 1)) * 100;
  const bar = (from: number, to: number, kind: string): TemplateResult => html`<td class="track" aria-hidden="true">
    <b class="zero" style="left:${at(0)}%"></b><i class=${kind} style="left:${at(Math.min(from, to))}%;width:${Math.max(0.25, Math.abs(at(to) - at(from)))}%"></i></td>`;
  return html`<table class="bars fall" aria-label=${how.label}>
    <thead><tr><th scope="col">${how.heads[0]}</th><td></td><th scope="col">${how.heads[1]}</th></tr></thead>
    <tbody>${rows.map((r, i) => html`<tr class=${r.inner ? "inner" : ""}>
      <th scope="row">${r.click ? html`<button type="button" class="word" aria-expanded=${String(Boolean(r.open))} @click=${r.click}>${r.open ? "▾" : "▸"} ${r.name}</button>` : r.name}</th>
      ${bar(spans[i]![0], spans[i]![1], r.value < 0 ? "minus" : "plus")}
      <td class="end">${number(r)}</td></tr>`)}</tbody>
    <tfoot><tr><th scope="row">${how.sum.name}</th>${bar(0, how.sum.value, "total")}<td class="end">${how.sum.value === undefined ? nothing : number(how.sum)}</td></tr></tfoot>
  </table>`;
}

function number(r: Drop): TemplateResult {
  const shows = (r.value > 0 ? "+" : "") + short(r.value);
  return html`<q-num value=${String(r.value)} name=${r.full ?? r.name} line=${r.line ?? ""} shows=${shows}></q-num>`;
}

/** Where each bar begins and ends; rows inside another one fill its place. */
function placed(rows: Drop[], running: boolean): [number, number][] {
  let [sum, inside] = [0, 0];
  return rows.map((r) => {
    if (!running) return [0, r.value];
    if (r.inner) return [inside, (inside += r.value)];
    inside = sum;
    return [sum, (sum += r.value)];
  });
}
