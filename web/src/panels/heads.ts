/** Every head at a glance, and one head whole: its matrix or its lines, and the exact row of the word that asks. */
import { LitElement, html, nothing, svg, type TemplateResult } from "lit";
import { property, state } from "lit/decorators.js";
import type { Answer } from "../client";
import { rgb, shade } from "../draw/colour";
import { choice, toggle } from "../draw/choose";
import { num, percent, short } from "../draw/number";
import { strip, word } from "../draw/strip";
import { sharp, type Spot } from "../draw/matrix";
import { reveal } from "../draw/reveal";
import { Panel, panel, type Token } from "../panel";
import { clamp, shown } from "../select";
import { reason, type Key } from "../words";
import "./heads.css";

const LISTED = 24;
const LINES = 64;
const WHOLE = 512; // tokens a side from which on the server pools a head
const HIGHEST = 480; // of the grid of all heads: what is below it stays in sight
const MANY = 8; // layers or heads from which on one head stands beside the grid of all and stays in sight
const LEAST = 22; // pixels of a picture with room round it; more heads than fit so stand closer, in a box that scrolls

class Heads extends Panel {
  @state() private how: "matrix" | "lines" = "matrix";
  @state() private sinkless = false;
  @state() private log = false;

  protected asks(): Record<string, string | undefined> {
    const { part, layer, head, query } = this.page.state;
    return {
      thumbs: this.run("thumbs", { part, sink: this.sinkless ? 0 : undefined }), attn: this.run("attn", { part, layer, head }),
      row: this.run("row", { part, layer, head, query }), mask: this.longest <= WHOLE ? this.run("mask", { part, layer }) : undefined,
    };
  }

  private get longest(): number {
    return Math.max(this.page.tokens("queries").length, this.page.tokens("keys").length);
  }

  protected view({ thumbs, attn, row, mask }: Record<string, Answer>): TemplateResult {
    const { page } = this;
    const { part, layer, head } = page.state;
    const { heads, layers } = page.part;
    const small = this.longest <= LINES;
    const how = small ? this.how : "matrix";
    return html`<div class="controls">
        ${page.meta.parts.length > 1 ? choice(this.t("part"), page.meta.parts.map((p) => [p.part, this.t(`part.${p.part}` as Key)]), part, (p) => page.set({ part: p })) : nothing}
        ${toggle(this.t("heads.hide-sink"), this.sinkless, (on) => (this.sinkless = on))}
        ${toggle(this.t("heads.log"), this.log, (on) => (this.log = on))}</div>
      <div class="heads-one ${layers > MANY || heads > MANY ? "many" : heads <= 6 ? "few" : ""}" style=${`--heads:${heads}`}>
      <section class="heads-all"><q-thumbs .answer=${thumbs} .layer=${layer} .head=${head} .groups=${page.part.groups} .log=${this.log}
        .label=${this.t("heads.grid", page.part.layers, page.part.heads)} .spoken=${(l: number, h: number) => this.named(thumbs!, l, h)}
        @q-head=${(e: CustomEvent<{ layer: number; head: number }>) => page.set(e.detail)}></q-thumbs></section>
      <section class="heads-picture">
        <div class="controls"><h3>${this.t("heads.one", shown(layer), shown(head))}</h3>
          ${small ? choice(this.t("picture"), [["matrix", this.t("heads.matrix")], ["lines", this.t("heads.lines")]], how, (h) => (this.how = h)) : nothing}</div>
        ${how === "matrix" ? this.matrix(attn!, mask) : this.lines(attn!)}
        ${this.sinkless ? html`<p class="note">${this.t("heads.hidden", percent(row!.arrays!.weight!.data[0] ?? 0), percent(this.mean(thumbs!)))}</p>` : nothing}
        ${attn!.pool > 1 ? html`<p class="note">${this.t("heads.pooled", attn!.pool)}</p>` : nothing}
        <div class="controls">${this.cuts()}</div>
      </section><section class="heads-row">${this.row(row!)}</section></div>`;
  }

  private mean(thumbs: Answer): number {
    const { layer, head } = this.page.state;
    const sink = thumbs.arrays!.sink!;
    return sink.data[layer * sink.shape[1]! + head] ?? 0;
  }

  private named(thumbs: Answer, layer: number, head: number): string {
    const sink = thumbs.arrays!.sink!;
    const { heads, groups } = this.page.part;
    const shared = groups < heads ? ` · ${this.t("heads.group", shown(Math.floor(head / (heads / groups))))}` : "";
    return `${this.t("heads.one", shown(layer), shown(head))} · ${this.t("heads.sink", percent(sink.data[layer * sink.shape[1]! + head] ?? 0))}${shared}`;
  }

  private matrix(attn: Answer, mask?: Answer): TemplateResult {
    const { page } = this;
    const [asking, asked] = [page.tokens("queries"), page.tokens("keys")];
    const weight = attn.arrays!.weight!;
    const by: number = attn.pool;
    const [rows, cols] = weight.shape as [number, number];
    const code = by > 1 ? undefined : mask?.arrays!.code;
    const hidden = (r: number, c: number): number => code?.data[r * code.shape[1]! + c] ?? 0;
    const most = this.sinkless ? 0 : 255;
    const data = this.sinkless ? weight.data.map((v, i) => (i % cols === 0 ? 0 : v)) : weight.data;
    return html`<q-matrix .data=${data} .rows=${rows} .cols=${cols} .most=${most} .log=${this.log} .without=${this.sinkless && by === 1 ? 0 : -1}
      .rowNames=${by > 1 ? [] : asking.map((k) => word(k.text))} .colNames=${by > 1 ? [] : asked.map((k) => word(k.text))}
      .rowTitle=${this.t("query")} .colTitle=${`${this.t("query")} ↓  ${this.t("key")}`} .label=${this.t("heads.one", shown(page.state.layer), shown(page.state.head))}
      .at=${[Math.floor(page.state.query / by), Math.floor(page.state.key / by)]} .hatch=${(r: number, c: number) => hidden(r, c) > 0}
      .describe=${(r: number, c: number) => {
        const out = hidden(r, c);
        const names = [shown(r * by), word(asking[r * by]?.text ?? ""), shown(c * by), word(asked[c * by]?.text ?? "")] as const;
        return out ? this.t("heads.cell.out", ...names, this.reason(mask!.reasons[out])) : this.t("heads.cell", ...names, percent((weight.data[r * cols + c] ?? 0) / 255));
      }}
      @q-cell=${(e: CustomEvent<Spot>) => page.set({ query: e.detail.row * by, key: e.detail.col * by })}></q-matrix>`;
  }

  private reason(code: string): string {
    return this.t(reason(code));
  }

  private lines(attn: Answer): TemplateResult {
    const { page } = this;
    const [asking, asked] = [page.tokens("queries"), page.tokens("keys")];
    const weight = attn.arrays!.weight!;
    const cols = weight.shape[1]!;
    const [gap, wide] = [24, 360];
    const high = Math.max(asking.length, asked.length) * gap + 24;
    const y = (i: number): number => 30 + i * gap;
    const edges = Array.from(weight.data, (w, i) => ({ q: Math.floor(i / cols), k: i % cols, w: w / 255 })).filter((e) => e.w > 0.04 && !(this.sinkless && e.k === 0));
    const { query, key } = page.state;
    return html`<div class="scroll"><svg class="heads-lines" viewBox="0 0 ${wide} ${high}" style=${`max-width:${wide * 1.15}px`} role="img" aria-label=${this.t("heads.lines")}>
      <text class="head" x="110" y="10" text-anchor="end">${this.t("query")}</text><text class="head" x="250" y="10">${this.t("key")}</text>
      ${edges.filter((e) => e.q !== query).map((e) => svg`<path d="M116 ${y(e.q)} C180 ${y(e.q)} 180 ${y(e.k)} 244 ${y(e.k)}" style=${`stroke-width:${2.5 * e.w};opacity:${0.08 + 0.25 * e.w}`} />`)}
      ${edges.filter((e) => e.q === query).map((e) => svg`<path class="on" d="M116 ${y(e.q)} C180 ${y(e.q)} 180 ${y(e.k)} 244 ${y(e.k)}" style=${`stroke-width:${0.8 + 5 * e.w};opacity:${0.35 + 0.65 * e.w}`} />`)}
      ${asking.map((k, i) => svg`<text class=${i === query ? "on" : ""} x="110" y=${y(i)} dy="0.35em" text-anchor="end" @click=${() => page.set({ query: i })}>${word(k.text)}</text>`)}
      ${asked.map((k, i) => svg`<text class=${i === key ? "on" : ""} x="250" y=${y(i)} dy="0.35em" @click=${() => page.set({ key: i })}>${word(k.text)}</text>`)}
    </svg></div>${strip(asking, { label: this.t("query"), at: query, pick: (i) => page.set({ query: i }), mood: () => "asks" })}`;
  }

  private cuts(): TemplateResult {
    const { page } = this;
    const { part, layer, head, query, key, ask } = page.state;
    if (page.client.recorded) return html``;
    const again = { ...ask, text: ask?.text ?? page.meta.text };
    return html`<button type="button" @click=${() => page.set({ panel: "walk" })}>${this.t("heads.walk")}</button>
      <button type="button" @click=${() => page.ask({ ...again, cut: { part, layer, head } })}>${this.t("heads.cut")}</button>
      <button type="button" @click=${() => page.ask({ ...again, cut: { part, layer, head, query, key } })}>${this.t("heads.edge")}</button>
      ${page.meta.cut ? html`<button type="button" @click=${() => page.ask({ ...again, cut: undefined })}>${this.t("heads.uncut")}</button>` : nothing}`;
  }

  private row(answer: Answer): TemplateResult {
    const { page } = this;
    const asked: Token[] = page.tokens("keys");
    const who = word(page.tokens("queries")[page.state.query]?.text ?? "");
    const weight = answer.arrays!.weight!.data;
    const score = answer.arrays!.score!.data;
    const where = this.t("heads.one", shown(page.state.layer), shown(page.state.head));
    const some = [...weight.keys()].filter((i) => !(this.sinkless && i === 0));
    const order = some.length > LISTED ? some.sort((a, b) => weight[b]! - weight[a]!).slice(0, LISTED) : some;
    return html`<h3>${this.t("heads.row", who)}</h3>
      ${some.length > LISTED ? html`<p class="note">${this.t("heads.row.more", LISTED, weight.length)}</p>` : nothing}
      <table class="bars" aria-label=${this.t("heads.row", who)}><thead><tr><th scope="col">${this.t("key")}</th><td></td><th scope="col">${this.t("heads.weight")}</th><th scope="col">${this.t("heads.score")}</th></tr></thead>
      <tbody>${order.map((i) => {
        const name = word(asked[i]?.text ?? "");
        const out: string = answer.reasons[i];
        return html`<tr class=${`${out ? "out" : ""} ${i === page.state.key ? "current" : ""}`}><th scope="row"><button type="button" class="word" @click=${() => page.set({ key: i })}>${name}</button>${out ? html`<small>${this.reason(out)}</small>` : nothing}</th>
          <td class="track" aria-hidden="true"><i class="plus" style=${`left:0;width:${100 * shade(weight[i]!, this.log)}%`}></i></td>
          <td class="end">${num(weight[i]!, this.t("heads.weight.name", where, who, name), `${answer.line}[${i}]`, percent(weight[i]!))}</td>
          <td class="end">${num(score[i]!, this.t("heads.score.name", where, who, name), `(${answer.lines?.score ?? answer.line})[${i}]`, short(score[i]!, 2))}</td></tr>`;
      })}</tbody></table>`;
  }
}

/** The grid of all heads on one canvas, with a cursor that keys move. */
class QThumbs extends LitElement {
  @property({ attribute: false }) answer!: Answer;
  @property({ attribute: false }) layer = 0;
  @property({ attribute: false }) head = 0;
  @property({ attribute: false }) groups = 0;
  @property({ attribute: false }) log = false;
  @property({ attribute: false }) label = "";
  @property({ attribute: false }) spoken: (layer: number, head: number) => string = () => "";
  @state() private room = 600;
  @state() private hover: [number, number] | null = null;
  private watcher = new ResizeObserver(() => {
    if (this.clientWidth && Math.abs(this.clientWidth - this.room) > 2) this.room = this.clientWidth;
  });

  protected override createRenderRoot(): HTMLElement {
    return this;
  }

  override connectedCallback(): void {
    super.connectedCallback();
    this.watcher.observe(this);
  }

  override disconnectedCallback(): void {
    super.disconnectedCallback();
    this.watcher.disconnect();
  }

  private get shape(): [number, number, number, number] {
    return this.answer.arrays!.thumbs!.shape as [number, number, number, number];
  }

  /** Pixels of one picture across and down, and those between two. */
  private get side(): [number, number, number] {
    const [layers, heads, m, n] = this.shape;
    const fit = (high: number, gap: number): number => Math.min(76, Math.floor((this.room - 28) / heads) - gap, Math.floor(high / layers) - gap);
    const gap = fit(HIGHEST, 6) >= LEAST ? 6 : 2;
    const room = gap === 6 ? fit(HIGHEST, 6) : Math.max(8, Math.min(LEAST, fit(Math.max(320, 0.6 * innerHeight), 2)));
    return n >= m ? [room, Math.max((room * m) / n, room / 3), gap] : [Math.max((room * n) / m, room / 3), room, gap];
  }

  protected override render(): unknown {
    const [layers, heads] = this.shape;
    const [across, down, gap] = this.side;
    const [wide, high] = [across + gap, down + gap];
    const at = this.hover ?? [this.layer, this.head];
    const lead = heads / Math.max(1, this.groups);
    return html`<div class="thumbs"><div class="scroll">
      <div class="thumbs-heads" aria-hidden="true">${Array.from({ length: heads }, (_, h) => html`<span style=${`width:${wide}px`} class=${`${h === at[1] ? "on" : ""} ${lead > 1 && wide >= 16 && h % lead === 0 ? "lead" : ""}`}>${numbered(h, at[1], wide, 20)}</span>`)}</div>
      <div class="thumbs-body"><div class="thumbs-layers" aria-hidden="true">${Array.from({ length: layers }, (_, i) => layers - 1 - i).map((l) => html`<span style=${`height:${high}px`} class=${l === at[0] ? "on" : ""}>${numbered(l, at[0], high, 14)}</span>`)}</div>
        <div class="thumbs-cells" tabindex="0" role="application" aria-label=${`${this.label}. ${this.spoken(this.layer, this.head)}`} @keydown=${this.keyed}
          @click=${(e: MouseEvent) => this.tell(...this.under(e))} @pointermove=${(e: PointerEvent) => (this.hover = this.under(e))} @pointerleave=${() => (this.hover = null)}>
          <canvas width=${heads * wide * sharp()} height=${layers * high * sharp()} style=${`width:${heads * wide}px;height:${layers * high}px`}></canvas>
          <i class="cursor" style=${`left:${this.head * wide}px;top:${(layers - 1 - this.layer) * high}px;width:${wide}px;height:${high}px`}></i></div></div></div>
      <p class="spoken"><span class="hidden" aria-live="polite">${this.spoken(this.layer, this.head)}</span><span aria-hidden="true">${this.spoken(at[0], at[1])}</span></p></div>`;
  }

  protected override updated(): void {
    if (!this.hover) reveal(this.querySelector(".scroll"), this.querySelector(".cursor"), { left: 28, top: 20 });
    const canvas = this.querySelector("canvas")!;
    const pen = canvas.getContext("2d")!;
    const [layers, heads, m, n] = this.shape;
    const { data } = this.answer.arrays!.thumbs!;
    const [wide, high, gap] = this.side;
    const corner = (l: number, h: number): [number, number] => [h * (wide + gap) + gap / 2, (layers - 1 - l) * (high + gap) + gap / 2];
    pen.setTransform(sharp(), 0, 0, sharp(), 0, 0);
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.imageSmoothingEnabled = wide * sharp() < n; // where a picture has fewer dots than cells none is lost
    const small = document.createElement("canvas");
    [small.width, small.height] = [n, m];
    const ink = small.getContext("2d")!;
    const table = Array.from({ length: 256 }, (_, v) => rgb(shade(v / 255, this.log)));
    for (let l = 0; l < layers; l++) {
      for (let h = 0; h < heads; h++) {
        const picture = ink.createImageData(n, m);
        for (let i = 0; i < m * n; i++) {
          const paint = table[data[(l * heads + h) * m * n + i]!]!;
          picture.data.set([paint[0], paint[1], paint[2], 255], i * 4);
        }
        ink.putImageData(picture, 0, 0);
        pen.drawImage(small, ...corner(l, h), wide, high);
      }
    }
    pen.strokeStyle = getComputedStyle(this).getPropertyValue("--line");
    for (let l = 0; l < layers; l++) for (let h = 0; h < heads; h++) pen.strokeRect(...corner(l, h), wide, high);
  }

  private under(event: MouseEvent): [number, number] {
    const [layers, heads] = this.shape;
    const box = this.querySelector("canvas")!.getBoundingClientRect();
    const [wide, high, gap] = this.side;
    return [clamp(layers - 1 - Math.floor((event.clientY - box.top) / (high + gap)), layers), clamp(Math.floor((event.clientX - box.left) / (wide + gap)), heads)];
  }

  private tell(layer: number, head: number): void {
    [this.layer, this.head] = [layer, head]; // at once: keys may come faster than answers
    this.dispatchEvent(new CustomEvent("q-head", { detail: { layer, head } }));
  }

  private keyed(event: KeyboardEvent): void {
    const move = ({ ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] } as Record<string, number[]>)[event.key];
    if (!move) return;
    event.preventDefault();
    const [layers, heads] = this.shape;
    this.tell(clamp(this.layer + move[0]!, layers), clamp(this.head + move[1]!, heads));
  }
}

/** The number of a layer or head; where there is no room for each, that of every fourth and of the one at the cursor. */
const numbered = (i: number, at: number, room: number, least: number): string => (room >= least || i === at || ((i + 1) % 4 === 0 && Math.abs(i - at) > 1) ? shown(i) : "");
customElements.define("q-thumbs", QThumbs);
panel({ name: "heads", element: "q-heads", order: 10, fits: (meta) => meta.panels.includes("attn") && meta.parts.length > 0 }, Heads);
