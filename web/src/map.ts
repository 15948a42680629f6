/** The residual river: layers above positions, encoder below decoder, with the selected head's real weights as arcs. */
import { html, svg, nothing, type TemplateResult } from "lit";
import { Panel, type Token } from "./panel";
import type { Answer } from "./client";
import { reveal } from "./draw/reveal";
import { word } from "./draw/strip";
import { clamp, shown } from "./select";

/** The positions of one side on show: all of them, or those round the selected one where there are too many. */
interface River { side: "encoder" | "decoder"; tokens: Token[]; from: number; all: number; layers: number; foot: number }

const HIGH = 500; // of all layers; fewer than 19 of them stand as far apart as they may
const NAMES = 46;
const LEFT = 26;
const WIDE = 64;

export class QMap extends Panel {
  protected asks(): Record<string, string | undefined> {
    const { part, layer, head, query } = this.page.state;
    return { row: this.page.part ? this.run("row", { part, layer, head, query }) : undefined };
  }

  /** Pixels from one layer to the next. */
  private get row(): number {
    const layers = this.page.meta.parts.filter((p) => p.part !== "cross").reduce((all, p) => all + p.layers, 0);
    return Math.max(9, Math.min(26, Math.floor(HIGH / Math.max(1, layers))));
  }

  /** The rivers from the top of the picture down; `foot` is the height of their lowest row. */
  private rivers(): River[] {
    const { meta, state } = this.page;
    const found: River[] = [];
    let top = 14;
    for (const side of ["decoder", "encoder"] as const) {
      const tokens = meta[side]?.tokens;
      if (!tokens) continue;
      const layers = meta.parts.find((p) => p.part === side || (side === "decoder" && p.part === "cross"))?.layers ?? 0;
      const centre = side === this.asking() ? state.query : state.part === "cross" ? state.key : 0;
      const from = Math.max(0, Math.min(centre - WIDE / 2, tokens.length - WIDE));
      found.push({ side, tokens: tokens.slice(from, from + WIDE), from, all: tokens.length, layers, foot: top + layers * this.row });
      top += layers * this.row + NAMES + 20;
    }
    return found;
  }

  private step(rivers: River[]): number {
    const most = Math.max(...rivers.map((r) => r.tokens.length));
    return Math.max(11, Math.min(30, Math.floor(270 / most)));
  }

  protected view({ row }: Record<string, Answer>): TemplateResult {
    const rivers = this.rivers();
    const step = this.step(rivers);
    const wide = LEFT + Math.max(...rivers.map((r) => r.tokens.length)) * step + 8;
    const high = rivers.at(-1)!.foot + NAMES;
    const { state } = this.page;
    const label = rivers.map((r) => this.t("map.label", r.layers, r.all)).join("; ");
    return html`<div class="scroll map-scroll"><svg class="map" width=${wide} height=${high} viewBox="0 0 ${wide} ${high}" tabindex="0" role="application"
      aria-label=${`${label}. ${this.spoken(rivers, state.layer, state.query)}`}
      @keydown=${(e: KeyboardEvent) => this.keyed(e, rivers)} @click=${(e: MouseEvent) => this.clicked(e, rivers, step)}>
      ${rivers.map((r) => this.river(r, step))}${row ? this.arcs(row, rivers, step) : nothing}</svg></div>`;
  }

  protected override updated(): void {
    reveal(this.querySelector(".scroll"), this.querySelector("circle.on"), { left: LEFT });
  }

  private river(r: River, step: number): TemplateResult {
    const { state } = this.page;
    const mine = this.asking() === r.side;
    const row = this.row;
    const every = row >= 13 ? 1 : 4; // layers that are numbered
    const asked = state.part === "cross" ? r.side === "encoder" : mine;
    const x = (i: number): number => LEFT + i * step + step / 2;
    return svg`<g>
      ${Array.from({ length: r.layers + 1 }, (_, l) => l % every && l !== state.layer + 1 ? nothing : svg`<text class="map-layer ${mine && l === state.layer + 1 ? "on" : ""}" x="14" y=${r.foot - l * row} dy="0.35em" text-anchor="middle">${l || "E"}</text>`)}
      ${r.tokens.map((token, at) => [token, at + r.from, at] as const).map(([token, i, at]) => svg`
        <line class="map-river ${mine && i === state.query ? "asks" : asked && i === state.key ? "asked" : ""}" x1=${x(at)} x2=${x(at)} y1=${r.foot} y2=${r.foot - r.layers * row} />
        <line class="map-states" stroke-dasharray="0 ${row}" x1=${x(at)} x2=${x(at)} y1=${r.foot} y2=${r.foot - r.layers * row - 0.1} />
        ${mine && i === state.query ? svg`<circle class="on" cx=${x(at)} cy=${r.foot - (state.layer + 1) * row} r="5" />` : nothing}
        <text class="map-word" x=${x(at)} y=${r.foot + 10}>${word(token.text).slice(0, 6)}</text>`)}
    </g>`;
  }

  private arcs(row: Answer, rivers: River[], step: number): TemplateResult {
    const { state } = this.page;
    const asks = rivers.find((r) => r.side === this.asking());
    const asked = state.part === "cross" ? rivers.find((r) => r.side === "encoder") : asks;
    if (!asks || !asked) return svg``;
    const from = state.part === "cross" ? asked.foot - asked.layers * this.row : asked.foot - state.layer * this.row;
    const to = asks.foot - (state.layer + 1) * this.row;
    const x = (i: number): number => LEFT + i * step + step / 2;
    const weights = Array.from(row.arrays!.weight!.data);
    const seen = (i: number): boolean => i >= asked.from && i < asked.from + asked.tokens.length;
    const end = x(state.query - asks.from);
    return svg`<g class="map-arcs">${weights.map((w, i) => w < 0.01 || !seen(i) ? nothing : svg`<path style=${`stroke-width:${0.6 + 5 * w};opacity:${0.25 + 0.75 * w}`}
      d="M${x(i - asked.from)} ${from} C${x(i - asked.from)} ${from - (from - to) * 0.6} ${end} ${to + (from - to) * 0.6} ${end} ${to}" />`)}</g>`;
  }

  private asking(): "encoder" | "decoder" {
    return this.page.state.part === "encoder" ? "encoder" : "decoder";
  }

  private spoken(rivers: River[], layer: number, query: number): string {
    const river = rivers.find((r) => r.side === this.asking());
    return this.t("map.cell", shown(layer), shown(query), river?.tokens[query - river.from]?.text ?? "");
  }

  private keyed(event: KeyboardEvent, rivers: River[]): void {
    const move = ({ ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] } as Record<string, number[]>)[event.key];
    if (!move) return;
    event.preventDefault();
    const river = rivers.find((r) => r.side === this.asking())!;
    const { layer, query } = this.page.state;
    this.page.set({ layer: clamp(layer + move[0]!, river.layers), query: clamp(query + move[1]!, river.all) });
  }

  private clicked(event: MouseEvent, rivers: River[], step: number): void {
    const box = (event.currentTarget as Element).getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const river = rivers.find((r) => y <= r.foot + NAMES) ?? rivers.at(-1)!;
    const query = clamp(river.from + Math.floor((x - LEFT) / step), river.all);
    const layer = clamp(Math.round((river.foot - y) / this.row) - 1, river.layers);
    const part = river.side === this.asking() ? this.page.state.part : river.side;
    this.page.set({ part, layer, query });
  }
}
customElements.define("q-map", QMap);
