/** Bytes and other large counts as people say them, alone or as bars. */
import { html, type TemplateResult } from "lit";
import { num } from "./number";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(n: number): string {
  const power = Math.min(UNITS.length - 1, Math.floor(Math.log2(Math.max(1, n)) / 10));
  return `${power ? few(n / 1024 ** power) : n} ${UNITS[power]}`;
}

/** A count with k, M, G or T. */
export function many(n: number): string {
  const power = Math.min(4, Math.floor(Math.log10(Math.max(1, n)) / 3));
  return power ? `${few(n / 1000 ** power)} ${["", "k", "M", "G", "T"][power]}` : String(Math.round(n));
}

const few = (x: number): string => x.toFixed(x >= 100 ? 0 : x >= 10 ? 1 : 2);

export interface Amount { name: string; value: number; line: string; current?: boolean }

/** Bars of counts, each written by `shows`. */
export function amounts(rows: Amount[], label: string, shows: (n: number) => string): TemplateResult {
  const most = Math.max(1, ...rows.map((r) => r.value));
  return html`<table class="bars" aria-label=${label}><tbody>${rows.map((r) => html`<tr class=${r.current ? "current" : ""}><th scope="row">${r.name}</th>
    <td class="track" aria-hidden="true"><i class="plus" style="left:0;width:${(100 * r.value) / most}%"></i></td>
    <td class="end">${num(r.value, `${label}: ${r.name}`, r.line, shows(r.value))}</td></tr>`)}</tbody></table>`;
}
