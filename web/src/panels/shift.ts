/** Word shift: how a word's state moves through the layers towards words of your own; neighbours and analogies beside it. */
import { html, svg, type TemplateResult } from "lit";
import { state } from "lit/decorators.js";
import { extent } from "d3-array";
import { scaleLinear } from "d3-scale";
import { line } from "d3-shape";
import type { Answer } from "../client";
import { bars } from "../draw/bars";
import { field } from "../draw/field";
import { lines } from "../draw/lines";
import { num, short } from "../draw/number";
import { modelAsked, reading, type Stand } from "../draw/stand";
import { strip, word } from "../draw/strip";
import { Panel, panel } from "../panel";
import type { Key } from "../words";
import "./more.css";

interface Column { name: string; full: string; values: number[]; line: string }
const FAR = 0.1; // a cosine at which two directions of hundreds of dimensions have nothing to do with each other
const ANALOGIES = ["like.one", "like.two"] as const; // record.py records them, too

class ShiftPanel extends Panel {
  @state() private anchors = "";
  @state() private word = "";
  @state() private three = ["", "", ""];

  protected asks(): Record<string, string | undefined> {
    const { meta } = this.page;
    const model = modelAsked(this.page);
    const { at } = reading(this.page);
    const [a, b, c] = this.three.map((x) => x.trim());
    const near = this.near(reading(this.page));
    const anchors = this.typed().join(","); // none: the server takes two other words of the text
    return {
      shift: meta.panels.includes("shift") ? this.run("shift", { pos: at, anchors }) : undefined,
      near: near ? this.api("neighbours", { word: near, n: 10, model }) : undefined,
      like: a && b && c ? this.api("analogy", { a, b, c, model }) : undefined,
    };
  }

  /** The word whose neighbours are shown: the one that was typed, the one chosen, or the first of the text. */
  private near({ tokens, at }: Stand): string {
    return this.word || plainWord(tokens[at]?.text ?? "") || tokens.map((x) => plainWord(x.text)).find(Boolean) || "";
  }

  /** The anchors that were typed. */
  private typed(): string[] {
    return this.anchors.split(/[,，、]/).map((x) => x.trim()).filter(Boolean);
  }

  protected view({ shift, near, like }: Record<string, Answer>): TemplateResult {
    const stand = reading(this.page);
    const anchors: string[] = shift?.anchors ?? this.typed();
    return html`<div class="controls">${field(this.t("shift.anchors"), anchors.join(", "), (x) => (this.anchors = x), 24)}</div>
      ${strip(stand.tokens, { label: this.t("tokens"), at: stand.at, pick: stand.go })}
      ${shift && anchors.length ? this.way(shift) : html`<p class="empty">${this.t(this.page.meta.panels.includes("shift") ? "shift.name" : "shift.none")}</p>`}
      <div class="columns"><section><h3>${this.t("near.title")}</h3>
        <div class="controls">${field(this.t("near.word"), this.near(stand), (x) => (this.word = x.trim()), 10)}</div>
        ${near ? this.close(near, "near.title") : ""}</section>
      <section><h3>${this.t("like.title")}</h3><div class="controls">${this.three.map((x, i) => html`${field(["a", "b", "c"][i]!, x, (now) => (this.three = this.three.map((old, j) => (i === j ? now : old))), 6)}${[" : ", " = ", " : ?"][i]}`)}</div>
        ${like ? this.close(like, "like.title") : html`<p class="note">${this.t("like.hint")}</p><div class="examples">${ANALOGIES.map((key) => html`<button type="button" @click=${() => (this.three = this.t(key).split(/[:=?\s]+/).slice(0, 3))}>${this.t(key)}</button>`)}</div>`}</section></div>`;
  }

  private way(shift: Answer): TemplateResult {
    const columns = this.columns(shift);
    const layers = (shift.layers as string[]).map((n) => (n === "embed" ? this.t("embed") : this.t("guess-map.layer", n)));
    const series = columns.map((c, i) => ({ name: c.name, points: c.values.map((y, l): [number, number] => [l, y]), dash: i % 2 === 1 }));
    return html`<h3>${this.t("shift.word", word(shift.word))}</h3><p>${this.verdict(shift, layers.at(-1)!)}</p>
      <div class="columns"><section><p class="note">${this.t("shift.cosine")}</p>
        ${lines(series, { label: this.t("shift.cosine"), x: this.t("layer"), y: "", wide: 480, from: (x) => (x ? (Number.isInteger(x) ? short(x) : "") : this.t("embed")) })}</section>
      <section>${shift.between ? html`<p class="note">${this.t("shift.track")}</p>${this.track(shift, layers)}` : html`<p class="note">${this.t("shift.plane")}</p>${plane(shift.path as [number, number][], layers, this.t("shift.plane"))}`}</section></div>
      <div class="scroll" tabindex="0" role="region" aria-label=${this.t("shift.cosine")}><table class="numbers"><thead><tr><th scope="col">${this.t("layer")}</th>${columns.map((c) => html`<th scope="col">${c.name}</th>`)}
        ${shift.between ? html`<th scope="col">${this.between(shift)}</th>` : ""}</tr></thead>
      <tbody>${layers.map((name, l) => html`<tr><th scope="row">${name}</th>${columns.map((c) => html`<td>${num(c.values[l]!, `cos ${c.full} · ${name}`, `${c.line}[${l}]`)}</td>`)}
        ${shift.between ? html`<td>${num(shift.between[l], `${name}: ${this.between(shift)}`, `${shift.lines.between}[${l}]`)}</td>` : ""}</tr>`)}</tbody></table></div>
      <p class="note">${this.t("shift.measures")}</p>`;
  }

  /** What is drawn and listed: the cosine to each anchor, to the word read alone, and that of the anchors themselves. */
  private columns(shift: Answer): Column[] {
    const { lines: at, anchors } = shift as unknown as { lines: Record<string, string>; anchors: string[] };
    const own = word(shift.word);
    const found = Object.entries(shift.cosines as Record<string, number[]>).map(([name, values], i): Column => ({ name: word(name), full: `${own} · ${word(name)}`, values, line: `${at.cosines}[${i}]` }));
    if (shift.itself) found.push({ name: this.t("shift.itself", own), full: this.t("shift.itself", own), values: shift.itself, line: at.itself! });
    if (shift.apart) found.push({ name: `${anchors[0]} – ${anchors[1]}`, full: `${anchors[0]} · ${anchors[1]}`, values: shift.apart, line: at.apart! });
    return found;
  }

  /** The last layer in words: which anchor is nearest, and whether that is near at all. */
  private verdict(shift: Answer, last: string): string {
    const anchors = Object.entries(shift.cosines as Record<string, number[]>).map(([name, ys]): [string, number] => [name, ys.at(-1)!]).sort((a, b) => b[1] - a[1]);
    const [[best, cos], other] = [anchors[0]!, anchors[1]];
    const bar = (shift.apart as number[] | undefined)?.at(-1);
    const said = [other ? this.t("shift.nearest", last, word(shift.word), best, short(cos), other[0], short(other[1])) : this.t("shift.only", last, word(shift.word), best, short(cos))];
    if (bar !== undefined && cos <= Math.max(bar, FAR)) said.push(this.t("shift.far"));
    return said.join(" ");
  }

  private between(shift: Answer): string {
    return this.t("shift.between", ...(shift.anchors as string[]).slice(0, 2));
  }

  /** Where the word stands on the way from one anchor to the other, a row a layer. */
  private track(shift: Answer, layers: string[]): TemplateResult {
    const spots = shift.between as number[];
    const [from, to] = [Math.min(-0.1, ...spots), Math.max(1.1, ...spots)];
    const at = (x: number): string => `left:${((100 * (x - from)) / (to - from)).toFixed(2)}%`;
    return html`<table class="way" aria-label=${this.t("shift.track")}><thead><tr><th scope="col">${this.t("layer")}</th><td><span style=${at(0)}>${shift.anchors[0]}</span><span style=${at(1)}>${shift.anchors[1]}</span></td></tr></thead>
      <tbody>${layers.map((name, l) => html`<tr><th scope="row">${name}</th><td><b style=${at(0)}></b><b style=${at(1)}></b><i class=${l === layers.length - 1 ? "last" : ""} style=${at(spots[l]!)}></i><span class="hidden">${short(spots[l])}</span></td></tr>`)}</tbody></table>`;
  }

  private close(answer: Answer, label: Key): TemplateResult {
    const rows = answer.near as { text: string; cosine: number; line: string }[];
    return bars(rows.map((r) => ({ name: word(r.text), value: r.cosine, line: r.line, full: `cos ${word(r.text)}` })), { label: this.t(label), heads: [this.t("near.token"), "cos"], most: 1 });
  }
}

/** The word of a token: without the sign of a space, and nothing where it is a special token or a sign. */
function plainWord(text: string): string {
  const bare = text.replace(/^[ ▁Ġ#]+/, "").trim();
  return /^[\p{L}\p{N}]+$/u.test(bare) ? bare : "";
}

/** A way in a plane: one dot a layer, the last one full. */
function plane(path: [number, number][], names: string[], label: string): TemplateResult {
  const [wide, high, edge] = [360, 260, 34];
  const [x0 = 0, x1 = 1] = extent(path, (p) => p[0]);
  const [y0 = 0, y1 = 1] = extent(path, (p) => p[1]);
  const size = Math.max(x1 - x0, (y1 - y0) * (wide / high)) / 2 || 1; // one scale for both axes: lengths can be compared
  const [mx, my] = [(x0 + x1) / 2, (y0 + y1) / 2];
  const x = scaleLinear([mx - size, mx + size], [edge, wide - edge]);
  const y = scaleLinear([my - (size * high) / wide, my + (size * high) / wide], [high - edge, edge]);
  const draw = line<[number, number]>((p) => x(p[0]), (p) => y(p[1]));
  return html`<figure class="plane"><svg viewBox="0 0 ${wide} ${high}" role="img" aria-label=${label}>
    <path d=${draw(path) ?? ""} />
    ${path.map((p, i) => svg`<circle class=${i === path.length - 1 ? "last" : ""} cx=${x(p[0])} cy=${y(p[1])} r="5" />`)}
    ${path.map((p, i) => i < path.length - 1 && Math.hypot(x(p[0]) - x(path[i + 1]![0]), y(p[1]) - y(path[i + 1]![1])) < 26 ? "" : svg`<text x=${x(p[0])} y=${y(p[1]) - 9} text-anchor=${x(p[0]) > wide / 2 ? "end" : "start"}>${names[i]}</text>`)}</svg></figure>`;
}

panel({ name: "shift", element: "q-shift", order: 100, fits: () => true }, ShiftPanel);
