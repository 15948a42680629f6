/** A small line chart with d3's scales: one line per series, named at its end; a table stands behind it. */
import { html, svg, type TemplateResult } from "lit";
import { extent } from "d3-array";
import { scaleLinear, scaleLog } from "d3-scale";
import { line } from "d3-shape";
import { short } from "./number";

export interface Series { name: string; points: [number, number][]; dash?: boolean }
export interface LinesHow { label: string; x: string; y: string; log?: boolean; mark?: number; height?: number; zero?: boolean; wide?: number; from?: (x: number) => string }

export function lines(series: Series[], how: LinesHow): TemplateResult {
  const [wide, high, left, right, top, foot] = [how.wide ?? 720, how.height ?? 240, 52, 110, 12, 34];
  const all = series.flatMap((s) => s.points);
  const [x0 = 0, x1 = 1] = extent(all, (p) => p[0]);
  const [y0 = 0, y1 = 1] = extent(all, (p) => p[1]);
  const x = scaleLinear([x0, x1 === x0 ? x0 + 1 : x1], [left, wide - right]);
  const y = how.log
    ? scaleLog([Math.max(y0, 1e-9), Math.max(y1, 1e-8)], [high - foot, top])
    : scaleLinear([how.zero ? Math.min(0, y0) : y0, y1 === y0 ? y0 + 1 : y1], [high - foot, top]).nice(5);
  const path = line<[number, number]>((p) => x(p[0]), (p) => y(p[1]));
  const write = how.from ?? ((v: number) => short(v));
  return html`<figure class="lines"><svg viewBox="0 0 ${wide} ${high}" role="img" aria-label=${how.label}>
    ${y.ticks(4).map((v) => svg`<g class="tick"><line x1=${left} x2=${wide - right} y1=${y(v)} y2=${y(v)} /><text x=${left - 8} y=${y(v)} dy="0.35em" text-anchor="end">${short(v)}</text></g>`)}
    ${x.ticks(6).map((v) => svg`<text class="tick" x=${x(v)} y=${high - foot + 18} text-anchor="middle">${write(v)}</text>`)}
    <text class="axis" x=${(left + wide - right) / 2} y=${high - 2} text-anchor="middle">${how.x}</text>
    <text class="axis" x="4" y=${top} dy="0.3em">${how.y}</text>
    ${how.mark === undefined ? "" : svg`<line class="mark" x1=${x(how.mark)} x2=${x(how.mark)} y1=${top} y2=${high - foot} />`}
    ${series.map((s, i) => svg`<path class="series s${i % 6}" stroke-dasharray=${s.dash ? "5 4" : "none"} d=${path(s.points) ?? ""} />
      ${s.points.length ? svg`<text class="name s${i % 6}" x=${x(s.points.at(-1)![0]) + 6} y=${y(s.points.at(-1)![1])} dy="0.35em">${s.name}</text>` : ""}`)}
  </svg>
  <div class="hidden"><table aria-label=${how.label}><thead><tr><th>${how.x}</th>${series.map((s) => html`<th>${s.name}</th>`)}</tr></thead>
    <tbody>${(series[0]?.points ?? []).map((p, i) => html`<tr><th>${write(p[0])}</th>${series.map((s) => html`<td>${short(s.points[i]?.[1])}</td>`)}</tr>`)}</tbody></table></div>
  </figure>`;
}
