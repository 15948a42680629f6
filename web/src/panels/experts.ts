/** Experts: which of them read which token, with how much weight, and how the work was shared out. */
import { html, nothing, type TemplateResult } from "lit";
import { state } from "lit/decorators.js";
import type { Answer } from "../client";
import { bars } from "../draw/bars";
import { pick } from "../draw/choose";
import { num } from "../draw/number";
import { speaking } from "../draw/stand";
import { word } from "../draw/strip";
import { Panel, panel } from "../panel";
import { shown } from "../select";
import "./more.css";

const ROWS = 64; // tokens drawn at once
const CELLS = 4096; // of the board, so that many experts leave fewer rows

class ExpertsPanel extends Panel {
  @state() private layers: number[] = []; // those that have experts

  protected asks(): Record<string, string | undefined> {
    const { state, meta } = this.page;
    const layer = this.layers.includes(state.layer) ? state.layer : undefined;
    return meta.panels.includes("routes") ? { routes: this.run("routes", { layer }) } : {};
  }

  protected view({ routes }: Record<string, Answer>): TemplateResult {
    if (!routes) return html`<p class="empty">${this.t("experts.none")}</p>`;
    const { tokens, at, go } = speaking(this.page);
    const [index, weight] = [routes.index as number[][], routes.weight as number[][]];
    const most = Math.max(8, Math.min(ROWS, Math.floor(CELLS / routes.experts)));
    const from = Math.max(0, Math.min(at - most / 2, index.length - most));
    const rows = Array.from({ length: Math.min(most, index.length) }, (_, i) => from + i);
    if (String(routes.layers) !== String(this.layers)) queueMicrotask(() => (this.layers = routes.layers));
    const load = routes.load as number[];
    return html`<div class="controls">${pick(this.t("layer"), (routes.layers as number[]).map((i) => [i, shown(i)]), routes.layer as number, (layer) => this.page.set({ layer }))}</div>
      <div class="columns"><div class="scroll" tabindex="0" role="region" aria-label=${this.t("experts.lanes")}><table class="lanes" aria-label=${this.t("experts.lanes")}>
        <thead><tr><th scope="col">${this.t("tokens")}</th>${Array.from({ length: routes.experts }, (_, e) => html`<th scope="col">${e + 1}</th>`)}
          ${routes.shared ? html`<th scope="col" class="shared">${this.t("experts.shared")}</th>` : nothing}</tr></thead>
        <tbody>${rows.map((t) => html`<tr class=${t === at ? "current" : ""}><th scope="row"><button type="button" class="word" aria-pressed=${String(t === at)} @click=${() => go(t)}>${word(tokens[t]?.text ?? "")}</button></th>
          ${Array.from({ length: routes.experts }, (_, e) => {
            const j = index[t]!.indexOf(e);
            return j < 0 ? html`<td></td>` : this.dot(weight[t]![j]!, `${word(tokens[t]?.text ?? "")} → ${this.t("experts.one", e + 1)}`, `${routes.lines.weight}[${t}, ${j}]`);
          })}
          ${routes.shared ? html`<td class="shared"><i style="--size:1" title=${this.t("experts.always")}></i></td>` : nothing}</tr>`)}</tbody></table></div>
      <section><h3>${this.t("experts.load")}</h3>
        ${bars(load.map((value, e) => ({ name: this.t("experts.one", e + 1), value, line: `${routes.lines.load}[${e}]` })), { label: this.t("experts.load") })}
        <p class="note">${this.t("experts.even", (load.reduce((a, b) => a + b, 0) / load.length).toFixed(1))}</p></section></div>
      ${rows.length < index.length ? html`<p class="note">${this.t("experts.some", rows[0]! + 1, rows.at(-1)! + 1, index.length)}</p>` : nothing}
      <p class="note">${this.t("experts.chosen", routes.chosen, routes.experts)}</p>`;
  }

  private dot(weight: number, name: string, line: string): TemplateResult {
    return html`<td><i style=${`--size:${Math.sqrt(weight).toFixed(3)}`} aria-hidden="true"></i>${num(weight, name, line, weight.toFixed(2))}</td>`;
  }
}

panel({ name: "experts", element: "q-experts", order: 90, fits: () => true }, ExpertsPanel);
