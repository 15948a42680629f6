/** Compare: two texts in one model, where they part ways, and what each would say next. */
import { html, type TemplateResult } from "lit";
import { state } from "lit/decorators.js";
import type { Answer } from "../client";
import { bars } from "../draw/bars";
import "../draw/matrix";
import { num, tell } from "../draw/number";
import { word } from "../draw/strip";
import { Panel, panel, type Token } from "../panel";
import { clamp } from "../select";
import "./more.css";

interface Side { text: string; output: string; tokens: Token[]; next: { pos: number; line: string; top: { id: number; text: string; p: number }[] } | null }

class ComparePanel extends Panel {
  @state() private at: [number, number] = [0, 0];
  @state() private second = "";

  protected asks(): Record<string, string | undefined> {
    return this.page.meta.panels.includes("diff") ? { diff: this.run("diff") } : {};
  }

  protected view({ diff }: Record<string, Answer>): TemplateResult {
    if (!diff) return html`${this.form()}<p class="empty">${this.t("compare.none")}</p>`;
    const { data, shape } = diff.arrays!.changed!;
    const [rows, cols] = shape as [number, number];
    const names = (diff.layers as string[]).map((n) => (n === "embed" ? this.t("embed") : `${this.t("layer")} ${n}`));
    const tokens = (diff.tokens as Token[]).map((x) => word(x.text));
    const at: [number, number] = [clamp(this.at[0] || rows - 1, rows), clamp(this.at[1], cols)];
    const far = (r: number, c: number): number => data[r * cols + c] ?? 0;
    const upward = new Float32Array(data.length); // the first layer is drawn at the foot
    for (let r = 0; r < rows; r++) upward.set(data.slice(r * cols, (r + 1) * cols), (rows - 1 - r) * cols);
    return html`${this.form()}
      <div class="columns">${(diff.sides as Side[]).map((s, i) => this.side(s, i, diff))}</div>
      <h3>${this.t("compare.map")}</h3><p class="note">${this.t("compare.map.about")}</p>
      <q-matrix .data=${upward} .rows=${rows} .cols=${cols} .most=${0} .at=${[rows - 1 - at[0], at[1]]} .rowNames=${[...names].reverse()} .colNames=${tokens} label=${this.t("compare.map")}
        .describe=${(r: number, c: number) => `${names[rows - 1 - r]} · ${tokens[c]}: ${far(rows - 1 - r, c).toFixed(3)}`}
        @q-cell=${(e: CustomEvent<{ row: number; col: number }>) => {
          const [r, c] = [rows - 1 - e.detail.row, e.detail.col];
          this.at = [r, c];
          tell(this, { value: far(r, c), name: `|a − b| / |b| · ${names[r]} · ${tokens[c]}`, line: `${diff.lines.distance}[${r}, ${c}]` });
        }}></q-matrix>
      ${diff.divergence ? this.parted(diff, tokens) : ""}`;
  }

  private form(): TemplateResult {
    const { ask } = this.page.state;
    const now = ask?.second ?? "";
    const send = (e: Event): void => {
      e.preventDefault();
      const second = (this.second || now).trim();
      if (second && ask) this.page.ask({ ...ask, second });
    };
    return html`<form class="controls" @submit=${send}><label class="field wide"><span>${this.t("compare.second")}</span><input type="text" .value=${now} placeholder=${this.page.meta.text} autocomplete="off"
      @input=${(e: Event) => (this.second = (e.target as HTMLInputElement).value)}></label><button type="submit" ?disabled=${this.page.client.recorded}>${this.t("compare.go")}</button></form>`;
  }

  private side(s: Side, i: number, diff: Answer): TemplateResult {
    const shared = new Set((diff.pairs as [number, number][]).map((p) => p[i]));
    return html`<section><h3>${i ? "B" : "A"} · ${s.text}</h3><p class="compare-text">${s.tokens.map((x, n) => html`<span class=${shared.has(n) ? "" : "apart"}>${word(x.text)}</span>`)}</p>
      ${s.output ? html`<p class="note">${this.t("output")} <b>${s.output}</b></p>` : ""}
      ${s.next ? html`<p class="note">${this.t("compare.next")}</p>${bars(s.next.top.slice(0, 6).map((x) => ({
        name: word(x.text), value: x.p, full: `${i ? "B" : "A"}: P(${word(x.text)})`, line: `${s.next!.line}.chances[${x.id}]`,
      })), { label: this.t("compare.next"), as: "percent", most: 1 })}` : ""}</section>`;
  }

  private parted(diff: Answer, tokens: string[]): TemplateResult {
    const rows = (diff.divergence as (number | null)[]).map((kl, i) => [kl, i] as const).filter(([kl]) => kl !== null);
    const best = [...rows].sort((a, b) => b[0]! - a[0]!).slice(0, 6);
    if (!best.length) return html``;
    return html`<h3>${this.t("compare.kl")}</h3><p>${best.map(([kl, i]) => html`<span class="chip">${tokens[i]} ${num(kl!, `KL · ${tokens[i]}`, `${diff.lines.divergence}[${i}]`)}</span> `)}</p>`;
  }
}

panel({ name: "compare", element: "q-compare", order: 120, fits: () => true }, ComparePanel);
