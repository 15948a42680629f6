/** Compare: two texts in one model, where they part ways, and what each would say next. */
import { html, type TemplateResult } from "lit";
import { state } from "lit/decorators.js";
import type { Answer } from "../client";
import { bars } from "../draw/bars";
import { choice, pick } from "../draw/choose";
import "../draw/matrix";
import { num, percent, tell } from "../draw/number";
import { word } from "../draw/strip";
import { Panel, panel, type Token } from "../panel";
import { clamp } from "../select";
import "./more.css";

interface Graft { text: string; before: number; after: number; donor: number; line: string }
interface Copy { part: "encoder" | "decoder"; layer: number; source: number; pos: number }
interface Side { text: string; output: string; tokens: Token[]; next: { pos: number; line: string; top: { id: number; text: string; p: number }[] } | null }

class ComparePanel extends Panel {
  @state() private at: [number, number] = [0, 0];
  @state() private second = "";
  @state() private copy: Copy | null = null; // what is copied from A into B
  private of = "";

  protected override willUpdate(): void {
    if (this.page && this.of !== this.page.state.run) [this.of, this.copy] = [this.page.state.run, null];
    super.willUpdate();
  }

  protected asks(): Record<string, string | undefined> {
    if (!this.page.meta.panels.includes("diff")) return {};
    return { diff: this.run("diff"), patch: this.copy ? this.run("patch", { ...this.copy }) : undefined };
  }

  protected view({ diff, patch }: Record<string, Answer>): TemplateResult {
    if (!diff) return html`${this.form()}<p class="empty">${this.t(this.page.client.recorded ? "compare.none.recorded" : "compare.none")}</p>`;
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
      ${diff.divergence ? this.parted(diff, tokens) : ""}${this.page.client.recorded ? "" : this.patched(diff.grafts, patch)}`;
  }

  /** A's state after a layer put where B has its own, and what B writes then. */
  private patched(there: Record<string, { depth: number; texts: [Token[], Token[]] }>, patch?: Answer): TemplateResult {
    const sides = Object.keys(there) as Copy["part"][];
    if (!sides.length) return html`<h3>${this.t("patch.title")}</h3><p class="empty">${this.t("patch.none")}</p>`;
    const part = this.copy?.part ?? sides[0]!;
    const { depth, texts: [a, b] } = there[part]!;
    const other = Math.max(0, a.findIndex((x, i) => x.id !== b[i]?.id)); // where the texts begin to differ
    const now: Copy = this.copy ?? { part, layer: 1, source: other, pos: Math.min(other, b.length - 1) };
    const set = (change: Partial<Copy>): void => void (this.copy = { ...now, ...this.copy, ...change }); // drawn anew only once the last change is answered
    const names = (list: Token[]): [number, string][] => list.map((x, i) => [i, `${i + 1} ${word(x.text)}`]);
    const layers = Array.from({ length: depth + 1 }, (_, i): [number, string] => [i, i ? String(i) : this.t("embed")]);
    return html`<h3>${this.t("patch.title")}</h3><p class="note">${this.t("patch.about")}</p>
      <div class="controls patch">${sides.length > 1 ? choice(this.t("patch.side"), sides.map((s) => [s, this.t(`patch.${s}`)]), part, (side) => set({ part: side, source: 0, pos: 0, layer: 1 })) : ""}
        ${pick(this.t("patch.layer"), layers, now.layer, (layer) => set({ layer }))}${pick(this.t("patch.from"), names(a), now.source, (source) => set({ source }))}
        ${pick(this.t("patch.to"), names(b), now.pos, (pos) => set({ pos }))}<button type="button" @click=${() => set({})}>${this.t("patch.title")}</button></div>
      ${patch ? this.outcome(patch) : ""}`;
  }

  private outcome(patch: Answer): TemplateResult {
    const chance = (g: Graft, key: "before" | "after" | "donor"): TemplateResult => num(Math.exp(g[key]), `P(${word(g.text)}) · ${this.t(`patch.${key}`)}`, `__import__("math").exp(${g.line}.${key})`, percent(Math.exp(g[key])));
    return html`<div role="status"><p>${this.t("patch.now")} <b class="patch-output">${patch.output}</b></p><p class="note">${this.t("patch.was")} ${patch.before}</p>
      <table class="numbers" aria-label=${this.t("patch.title")}><thead><tr>${(["patch.word", "patch.before", "patch.after", "patch.donor"] as const).map((k) => html`<th scope="col">${this.t(k)}</th>`)}</tr></thead>
      <tbody>${(patch.words as Graft[]).map((g) => html`<tr><th scope="row">${word(g.text)}</th>${(["before", "after", "donor"] as const).map((k) => html`<td>${chance(g, k)}</td>`)}</tr>`)}</tbody></table></div>`;
  }

  private form(): TemplateResult {
    if (this.page.client.recorded) return html``; // no other text can be asked
    const { ask } = this.page.state;
    const now = ask?.second ?? "";
    const send = (e: Event): void => {
      e.preventDefault();
      const second = (this.second || now).trim();
      if (second && ask) this.page.ask({ ...ask, second });
    };
    return html`<form class="controls" @submit=${send}><label class="field wide"><span>${this.t("compare.second")}</span><input type="text" .value=${now} placeholder=${this.page.meta.text} autocomplete="off"
      @input=${(e: Event) => (this.second = (e.target as HTMLInputElement).value)}></label><button type="submit">${this.t("compare.go")}</button></form>`;
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
