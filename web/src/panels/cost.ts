/** Cost: parameters, operations and bytes, against a context and a batch of your choice. */
import { html, type TemplateResult } from "lit";
import { state } from "lit/decorators.js";
import type { Answer } from "../client";
import { amounts, bytes, many } from "../draw/bytes";
import { choice, slider } from "../draw/choose";
import { num } from "../draw/number";
import { modelAsked } from "../draw/stand";
import { Panel, panel } from "../panel";
import type { Key } from "../words";
import "./more.css";

interface Shape { part: string; names: string[]; shape: number[]; count: number; numbers: number; line: string }

class CostPanel extends Panel {
  @state() private context = 0; // 0: the model's own
  @state() private batch = 1;
  @state() private dtype = "";

  protected asks(): Record<string, string | undefined> {
    const { context, batch, dtype } = this;
    return { cost: this.api("cost", { context: context || undefined, batch: batch === 1 ? undefined : batch, dtype, model: modelAsked(this.page) }) };
  }

  protected view({ cost }: Record<string, Answer>): TemplateResult {
    const c = cost!;
    const lines = c.lines as Record<string, string>;
    const parameters = Object.entries(c.parameters as Record<string, number>).filter(([, n]) => n);
    const held = (["weights", "cache", "memory", "activations"] as const).filter((name) => c.bytes[name]);
    const kinds = ["float32", "bfloat16", "int8"];
    if (!kinds.includes(c.dtype)) kinds.unshift(c.dtype);
    return html`<div class="controls">
        ${slider(this.t("cost.context"), { from: 4, to: 17, by: 1, now: Math.log2(c.context), shows: this.t("cost.tokens", c.context), set: (n) => (this.context = 2 ** n) })}
        ${slider(this.t("cost.batch"), { from: 0, to: 8, by: 1, now: Math.log2(this.batch), shows: String(this.batch), set: (n) => (this.batch = 2 ** n) })}
        ${choice(this.t("cost.dtype"), kinds.map((k) => [k, k]), c.dtype, (k) => (this.dtype = k))}</div>
      <dl class="facts">
        <div><dt>${this.t("cost.parameters")}</dt><dd>${num(c.total, this.t("cost.parameters"), lines.total, many(c.total))}</dd></div>
        ${c.active === c.total ? "" : html`<div><dt>${this.t("cost.active")}</dt><dd>${num(c.active, this.t("cost.active"), lines.active, many(c.active))}</dd></div>`}
        <div><dt>${this.t("cost.prefill")}</dt><dd>${num(c.flops.prefill, this.t("cost.prefill"), lines.prefill, many(c.flops.prefill))}</dd></div>
        <div><dt>${this.t("cost.decode")}</dt><dd>${num(c.flops.decode, this.t("cost.decode"), lines.decode, many(c.flops.decode))}</dd></div>
        <div><dt>${this.t("cost.busy.prefill")}</dt><dd>${num((c.flops.prefill * c.context * c.batch) / c.bytes.weights, this.t("cost.busy.prefill"), `${lines.prefill} * ${c.context * c.batch} / ${lines.weights}`)}</dd></div>
        <div><dt>${this.t("cost.busy.decode")}</dt><dd>${num((c.flops.decode * c.batch) / (c.bytes.weights + c.bytes.cache), this.t("cost.busy.decode"), `${lines.decode} * ${c.batch} / (${lines.weights} + ${lines.cache})`)}</dd></div>
      </dl>
      <p class="note">${this.t("cost.busy.about")}</p>
      <div class="columns"><section><h3>${this.t("cost.bytes")}</h3>
        ${amounts(held.map((name) => ({ name: this.t(`cost.${name}` as Key), value: c.bytes[name], line: lines[name]! })), this.t("cost.bytes"), bytes)}
        <p class="note">${this.t("cost.bytes.about")}</p></section>
      <section><h3>${this.t("cost.by.part")}</h3>
        ${amounts(parameters.map(([name, value]) => ({ name: this.t(`cost.part.${name}` as Key), value, line: `${lines.parameters}[${JSON.stringify(name)}]` })), this.t("cost.by.part"), many)}</section></div>
      ${this.shapes(c.shapes as Shape[], c.total, lines.total!)}`;
  }

  /** Every table of numbers that the model has, those of one shape together: the sum is the model. */
  private shapes(rows: Shape[], total: number, line: string): TemplateResult {
    const heads = (["part", "names", "shape", "count", "numbers"] as const).map((k) => html`<th scope="col">${this.t(`cost.shapes.${k}`)}</th>`);
    const whole = (n: number): string => n.toLocaleString("en-US");
    return html`<h3>${this.t("cost.shapes")}</h3><p class="note">${this.t("cost.shapes.about")}</p>
      <div class="scroll" tabindex="0" role="region" aria-label=${this.t("cost.shapes")}><table class="numbers shapes" aria-label=${this.t("cost.shapes")}><thead><tr>${heads}</tr></thead>
      <tbody>${rows.map((r, i) => html`<tr><th scope="row">${rows[i - 1]?.part === r.part ? "" : this.t(`cost.part.${r.part}` as Key)}</th><td><code>${r.names.join(" · ")}</code></td>
        <td>${r.shape.join(" × ")}</td><td>× ${r.count}</td><td>${num(r.numbers, `${this.t(`cost.part.${r.part}` as Key)}: ${r.shape.join(" × ")} × ${r.count}`, r.line, whole(r.numbers))}</td></tr>`)}</tbody>
      <tfoot><tr><th scope="row" colspan="4">${this.t("cost.parameters")}</th><td>${num(total, this.t("cost.parameters"), line, whole(total))}</td></tr></tfoot></table></div>`;
  }
}

panel({ name: "cost", element: "q-cost", order: 110, fits: () => true }, CostPanel);
