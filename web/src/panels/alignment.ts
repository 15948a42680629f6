/** Alignment: where each written word looked in the source. */
import { html, type TemplateResult } from "lit";
import { state } from "lit/decorators.js";
import type { Answer } from "../client";
import { bars } from "../draw/bars";
import { bridge } from "../draw/links";
import { tell } from "../draw/number";
import "../draw/matrix";
import { written } from "../draw/stand";
import { word } from "../draw/strip";
import { Panel, panel } from "../panel";
import { clamp } from "../select";
import "./more.css";

const WORDS = 120; // of both texts together; more lines than that are a tangle

class AlignmentPanel extends Panel {
  @state() private all = true;

  protected asks(): Record<string, string | undefined> {
    const { encoder, decoder } = this.page.meta;
    return encoder && decoder ? { a: this.run("alignment") } : {};
  }

  protected view({ a }: Record<string, Answer>): TemplateResult {
    if (!a) return html`<p class="empty">${this.t("alignment.none")}</p>`;
    const { data, shape } = a.arrays!.weight!;
    const [rows, cols] = shape as [number, number];
    const { state, meta } = this.page;
    const source = meta.encoder!.tokens.map((x) => word(x.text));
    const target = written(meta).map((x) => word(x.text)); // row i writes word i
    const at: [number, number] = state.part === "encoder" ? [0, 0] : [clamp(state.query, rows), clamp(state.key, cols)];
    const weight = (i: number, j: number): number => data[i * cols + j] ?? 0;
    const line = (i: number, j: number): string => `t.alignment(layer=${a.layer}).weight[${i}, ${j}]`;
    const choose = (i: number, j: number): void => {
      this.all = false;
      this.page.set({ part: "cross", layer: a.layer, query: i, key: j });
      tell(this, { value: weight(i, j), name: `${target[i]} ← ${source[j]}`, line: line(i, j) });
    };
    const best = (i: number): number => source.reduce((b, _, j) => (weight(i, j) > weight(i, b) ? j : b), 0);
    const row = source.map((name, j) => ({ name, value: weight(at[0], j), line: line(at[0], j), full: `${target[at[0]]} ← ${name}`, current: j === at[1] }));
    return html`${rows + cols > WORDS ? "" : bridge(source, target, { label: this.t("alignment.title"), weight, hot: this.all ? null : at[0], pick: (i) => choose(i, best(i)) })}
      <div class="columns"><q-matrix .data=${data} .rows=${rows} .cols=${cols} .at=${at} .rowNames=${target} .colNames=${source} label=${this.t("alignment.title")}
        .rowTitle=${this.t("target")} .colTitle=${this.t("source")} .describe=${(r: number, c: number) => `${target[r]} ← ${source[c]}: ${weight(r, c).toFixed(3)}`}
        @q-cell=${(e: CustomEvent<{ row: number; col: number }>) => choose(e.detail.row, e.detail.col)}></q-matrix>
      <section><h3>${this.t("alignment.row", target[at[0]] ?? "")}</h3>
        ${bars([...row].sort((x, y) => y.value - x.value).slice(0, 8), { label: this.t("alignment.row", target[at[0]] ?? ""), as: "percent" })}</section></div>
      <p class="note">${this.t("alignment.layer", a.layer + 1)}</p>`;
  }
}

panel({ name: "alignment", element: "q-alignment", order: 80, fits: () => true }, AlignmentPanel);
