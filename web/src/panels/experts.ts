/** Experts: how a word's router scored and chose them, who read which token, and how the work was shared out. */
import { html, nothing, type TemplateResult } from "lit";
import { state } from "lit/decorators.js";
import type { Answer } from "../client";
import { bars } from "../draw/bars";
import { choice, pick } from "../draw/choose";
import { cell as tinted } from "../draw/colour";
import { num, percent } from "../draw/number";
import { speaking, type Stand } from "../draw/stand";
import { word } from "../draw/strip";
import { Panel, panel } from "../panel";
import { shown } from "../select";
import type { Key } from "../words";
import "./more.css";

const ROWS = 64; // tokens drawn at once
const CELLS = 4096; // of the board, so that many experts leave fewer rows
const LISTED = 32; // experts of one word
const COLUMNS = ["logits", "score", "bias", "choice", "left"] as const; // what a router may say of an expert, in the order it is made

class ExpertsPanel extends Panel {
  @state() private layers: number[] = []; // those that have experts
  @state() private order: "best" | "number" = "best";

  protected asks(): Record<string, string | undefined> {
    const { state, meta } = this.page;
    const layer = this.layers.includes(state.layer) ? state.layer : undefined;
    return meta.panels.includes("routes") ? { routes: this.run("routes", { layer }) } : {};
  }

  protected view({ routes }: Record<string, Answer>): TemplateResult {
    if (!routes) return html`<p class="empty">${this.t("experts.none")}</p>`;
    const stand = speaking(this.page);
    if (String(routes.layers) !== String(this.layers)) queueMicrotask(() => (this.layers = routes.layers));
    return html`<div class="controls">${pick(this.t("layer"), (routes.layers as number[]).map((i) => [i, shown(i)]), routes.layer as number, (layer) => this.page.set({ layer }))}
        ${choice(this.t("experts.order"), (["best", "number"] as const).map((by) => [by, this.t(`experts.order.${by}`)]), this.order, (by) => (this.order = by))}</div>
      <div class=${routes.lines.bias || routes.lines.left ? "" : "columns"}>${this.chosen(routes, stand)}${this.board(routes, stand)}</div>
      ${this.shares(routes)}`;
  }

  /** The rules of this router, in words. */
  private rules(routes: Answer): string {
    return [
      this.t(routes.scored === "softmax" ? "experts.soft" : "experts.sigmoid"),
      routes.lines.bias ? this.t("experts.biased") : "",
      routes.groups > 1 ? this.t(routes.group_score === "best" ? "experts.grouped.best" : "experts.grouped.two", routes.groups, routes.open_groups) : "",
      this.t(routes.weights === "sum to one" ? "experts.sum" : "experts.as", routes.chosen),
      routes.scale === 1 ? "" : this.t("experts.scale", routes.scale),
    ].join(" ");
  }

  /** Every expert as the router saw it for one word: what it thought, what helped to choose, who was chosen. */
  private chosen(routes: Answer, { tokens, at }: Stand): TemplateResult {
    const name = word(tokens[at]?.text ?? "");
    const columns = COLUMNS.filter((c) => routes.lines[c]);
    const took = routes.index[at] as number[];
    const every = Array.from({ length: routes.experts as number }, (_, e) => e);
    const last = columns.at(-1)!;
    const place = (e: number): number => (took.includes(e) ? took.length - took.indexOf(e) : 0); // the chosen first, as the router ranked them
    const best = [...every].sort((a, b) => place(b) - place(a) || said(routes, last, at, b) - said(routes, last, at, a)).slice(0, LISTED);
    const listed = this.order === "best" ? best : best.sort((a, b) => a - b);
    const most = Math.max(...every.map((e) => said(routes, "score", at, e)));
    return html`<section><h3>${this.t("experts.word", name)}</h3><p class="note">${this.rules(routes)}</p>
      <div class="scroll" tabindex="0" role="region" aria-label=${this.t("experts.word", name)}><table class="numbers chosen"><thead><tr><th scope="col">${this.t("experts.expert")}</th>
        ${columns.map((c) => html`<th scope="col">${this.t(`experts.${c}`)}</th>`)}<th scope="col">${this.t("experts.weight")}</th></tr></thead>
      <tbody>${listed.map((e) => html`<tr class=${took.includes(e) ? "current" : ""}><th scope="row">${e + 1}${took.includes(e) ? html` <b>${this.t("experts.took", took.indexOf(e) + 1)}</b>` : nothing}</th>
        ${columns.map((c) => html`<td style=${c === "score" ? tinted((0.5 * said(routes, c, at, e)) / most) : ""}>${this.number(routes, c, at, e, name)}</td>`)}
        <td>${took.includes(e) ? num(routes.weight[at][took.indexOf(e)], `${this.t("experts.weight")} · ${name} → ${this.t("experts.one", e + 1)}`, `${routes.lines.weight}[${at}, ${took.indexOf(e)}]`) : ""}</td></tr>`)}</tbody></table></div>
      ${listed.length < every.length ? html`<p class="note">${this.t("experts.few", listed.length, every.length)}</p>` : nothing}
      ${routes.lines.judged ? this.groups(routes, at, name) : nothing}</section>`;
  }

  /** What each group was judged by, and which stayed open. */
  private groups(routes: Answer, at: number, name: string): TemplateResult {
    const size = routes.experts / routes.groups;
    return html`<p class="note">${Array.from({ length: routes.groups as number }, (_, g) => {
      const open = Number.isFinite(said(routes, "left", at, g * size));
      const title = this.t("experts.group", g + 1, g * size + 1, (g + 1) * size);
      return html`<span class="group">${title}: ${num(said(routes, "judged", at, g), `${title} · ${name}`, `${routes.lines.judged}[${at}, ${g}]`)} ${open ? "✓" : this.t("experts.closed")}</span> `;
    })}</p>`;
  }

  private number(routes: Answer, column: (typeof COLUMNS)[number], at: number, e: number, name: string): TemplateResult {
    const value = said(routes, column, at, e);
    const line = `${routes.lines[column]}[${column === "bias" ? "" : `${at}, `}${e}]`;
    return num(value, `${this.t(`experts.${column}` as Key)} · ${name} → ${this.t("experts.one", e + 1)}`, line, Number.isFinite(value) ? "" : this.t("experts.closed"));
  }

  private board(routes: Answer, { tokens, at, go }: Stand): TemplateResult {
    const [index, weight] = [routes.index as number[][], routes.weight as number[][]];
    const most = Math.max(8, Math.min(ROWS, Math.floor(CELLS / routes.experts)));
    const from = Math.max(0, Math.min(at - Math.floor(most / 2), index.length - most));
    const rows = Array.from({ length: Math.min(most, index.length) }, (_, i) => from + i);
    const top = Math.max(1, ...rows.map((t) => Math.max(...weight[t]!))); // weights that are scaled may pass 1
    const closed = (t: number, e: number): boolean => routes.arrays!.left !== undefined && !Number.isFinite(said(routes, "left", t, e));
    return html`<section><h3>${this.t("experts.lanes")}</h3><p class="note">${this.t("experts.lanes.about")} ${routes.lines.left ? this.t("experts.lanes.closed") : ""}</p>
      <div class="scroll" tabindex="0" role="region" aria-label=${this.t("experts.lanes")}><table class="lanes" aria-label=${this.t("experts.lanes")}>
        <thead><tr><th scope="col">${this.t("tokens")}</th>${Array.from({ length: routes.experts }, (_, e) => html`<th scope="col">${e + 1}</th>`)}
          ${routes.shared ? html`<th scope="col" class="shared">${this.t("experts.shared")}</th>` : nothing}</tr></thead>
        <tbody>${rows.map((t) => html`<tr class=${t === at ? "current" : ""}><th scope="row"><button type="button" class="word" aria-pressed=${String(t === at)} @click=${() => go(t)}>${word(tokens[t]?.text ?? "")}</button></th>
          ${Array.from({ length: routes.experts }, (_, e) => {
            const j = index[t]!.indexOf(e);
            if (j >= 0) return html`<td>${disc(weight[t]![j]! / top)}${num(weight[t]![j]!, `${word(tokens[t]?.text ?? "")} → ${this.t("experts.one", e + 1)}`, `${routes.lines.weight}[${t}, ${j}]`, weight[t]![j]!.toFixed(2))}</td>`;
            return closed(t, e) ? html`<td class="closed" title=${this.t("experts.closed")}></td>` : html`<td class="passed">${disc(said(routes, "score", t, e) / top)}</td>`;
          })}
          ${routes.shared ? html`<td class="shared"><i style="--size:1" title=${this.t("experts.always")}></i></td>` : nothing}</tr>`)}</tbody></table></div>
      ${rows.length < index.length ? html`<p class="note">${this.t("experts.some", rows[0]! + 1, rows.at(-1)! + 1, index.length)}</p>` : nothing}</section>`;
  }

  private shares(routes: Answer): TemplateResult {
    const [load, share] = [routes.load as number[], routes.share as number[]];
    return html`<section><h3>${this.t("experts.load")}</h3>
      ${bars(share.map((value, e) => ({ name: this.t("experts.one", e + 1), note: this.t("experts.count", load[e]!), value, line: `${routes.lines.share}[${e}]` })), { label: this.t("experts.load"), as: "percent" })}
      <p class="note">${this.t("experts.even", routes.chosen, load.reduce((a, b) => a + b, 0), percent(1 / load.length))}</p></section>`;
  }
}

/** A number of a router: one an expert, or one a token and expert; a closed group is minus infinity. */
function said(routes: Answer, column: (typeof COLUMNS)[number] | "judged", at: number, e: number): number {
  const { data, shape } = routes.arrays![column]!;
  return data[shape.length === 1 ? e : at * shape[1]! + e]!;
}

const disc = (area: number): TemplateResult => html`<i style=${`--size:${Math.sqrt(Math.max(0, area)).toFixed(3)}`} aria-hidden="true"></i>`;

panel({ name: "experts", element: "q-experts", order: 90, fits: () => true }, ExpertsPanel);
