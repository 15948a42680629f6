/** Mask & phase: why each cell is dark, how the square fills, four architectures, and which cell could come when. */
import { html, nothing, svg, type TemplateResult } from "lit";
import { state } from "lit/decorators.js";
import type { Answer, Numbers } from "../client";
import { choice, pick } from "../draw/choose";
import { num, percent, tell } from "../draw/number";
import "../draw/matrix";
import "../draw/player";
import { word } from "../draw/strip";
import { Panel, panel, type Part, type Token } from "../panel";
import { clamp, shown } from "../select";
import type { Key } from "../words";
import "./more.css";

const FINEST = 96; // cells to a side of a small picture
const MOST = 16; // keys of a row
const WIDEST = 48; // tokens of the grid of layers and tokens
const WHY: Record<string, Key> = {
  "": "mask.seen", seen: "mask.seen", future: "mask.future", padding: "mask.padding", window: "mask.window",
  "other document": "mask.document",
};
/** Which cells an architecture opens, for a text whose first `given` words are given. */
type Rule = (query: number, key: number, given: number) => boolean;
const RULES: Record<string, Rule> = {
  encoder: () => true,
  decoder: (q, k) => k <= q,
  prefix: (q, k, given) => k <= q || k < given,
  "encoder-decoder": (q, k, given) => (q < given ? k < given : k < given || k <= q),
};

class MaskPanel extends Panel {
  @state() private done = -1; // calls shown; -1: all of them
  @state() private tick = -1;
  @state() private told: [number, number] | null = null; // the cell of the grid that was asked about

  protected asks(): Record<string, string | undefined> {
    const { part, layer, head, query } = this.page.state;
    return {
      mask: this.run("mask", { part, layer }), row: this.run("row", { part, layer, head, query }),
      wave: this.run("wavefront"),
    };
  }

  protected view({ mask, row, wave }: Record<string, Answer>): TemplateResult {
    return html`${this.square(mask!)}${this.row(row!)}${this.four(mask!)}${this.wave(wave!)}`;
  }

  /** One row of one head, with what its softmax would be if no score were hidden. */
  private row(row: Answer): TemplateResult {
    const { layer, head, query } = this.page.state;
    const [weight, score, bias] = ["weight", "score", "bias"].map((n) => Array.from(row.arrays![n]!.data)) as [number[], number[], number[]];
    const shut = (row.reasons as string[]).flatMap((r, k) => (r ? [k] : []));
    const title = this.t("mask.row", shown(layer), shown(head), word(this.page.tokens("queries")[query]?.text ?? ""));
    if (!shut.length) return html`<h3>${title}</h3><p class="note">${this.t("mask.row.none")}</p>`;
    const open = softmax(score.map((s, k) => s + bias[k]!));
    const line = `((${row.lines.score}) + (${row.lines.bias}).masked_fill((${row.lines.bias}) < -1e30, 0)).softmax(0)`;
    const lost = shut.reduce((sum, k) => sum + open[k]!, 0);
    const kept = open.map((_, k) => k).sort((a, b) => Math.max(open[b]!, weight[b]!) - Math.max(open[a]!, weight[a]!)).slice(0, MOST).sort((a, b) => a - b);
    return html`<h3>${title}</h3><p class="note">${this.t("mask.row.about")} ${num(lost, this.t("mask.without"), `${line}[${JSON.stringify(shut)}].sum()`, percent(lost))}</p>
      <p class="legend"><span class="key-cell was"></span>${this.t("mask.without")} <span class="key-cell now"></span>${this.t("mask.with")}</p>
      <table class="bars pairs" aria-label=${title}><tbody>${kept.map((k) => {
        const name = word(this.page.tokens("keys")[k]?.text ?? "");
        return html`<tr class=${k === this.page.state.key ? "current" : ""}><th scope="row">${name}${row.reasons[k] ? html`<small>${row.reasons[k] === "cut" ? "✂" : this.t(WHY[row.reasons[k]] ?? "mask.document")}</small>` : ""}</th>
          <td class="track" aria-hidden="true"><i class="was" style="width:${100 * open[k]!}%"></i><i class="now" style="width:${100 * weight[k]!}%"></i></td>
          <td class="end">${num(open[k]!, `${this.t("mask.without")}: ${name}`, `${line}[${k}]`, percent(open[k]!))} → ${num(weight[k]!, `${this.t("mask.with")}: ${name}`, `${row.line}[${k}]`, percent(weight[k]!))}</td></tr>`;
      })}</tbody></table>`;
  }

  /** The calls of the part that asks: how many rows each of them adds. */
  private calls(part: Part): number[] {
    const phases = part.part === "encoder" ? [] : (this.page.meta.decoder?.phases ?? []);
    const prompt = phases.slice(0, part.queries).filter((p) => p === "prefill").length || part.queries;
    return [prompt, ...Array.from({ length: part.queries - prompt }, () => 1)];
  }

  private square(mask: Answer): TemplateResult {
    const { part, state, meta } = this.page;
    const code = mask.arrays!.code!;
    const [rows, cols] = code.shape as [number, number];
    const calls = this.calls(part);
    const step = this.done < 0 ? calls.length : Math.min(this.done, calls.length);
    const height = Math.min(rows, calls.slice(0, step).reduce((a, b) => a + b, 0));
    const queries = this.page.tokens("queries").map((x) => word(x.text));
    const keys = this.page.tokens("keys").map((x) => word(x.text));
    const reasons = (mask.reasons as string[]).map((r) => this.t(WHY[r] ?? "mask.document"));
    const describe = (r: number, c: number): string => `${queries[r]} → ${keys[c]}: ${reasons[code.data[r * cols + c]!]}`;
    const at: [number, number] = [Math.min(state.query, height - 1), Math.min(state.key, cols - 1)];
    const counts = reasons.map(() => 0);
    for (const x of code.data) counts[x]!++;
    return html`<div class="controls">
        ${choice(this.t("part"), meta.parts.map((p) => [p.part, this.t(`part.${p.part}` as Key)]), part.part, (p) => this.page.set({ part: p, query: 0, key: 0 }))}
        ${pick(this.t("layer"), Array.from({ length: part.layers }, (_, i) => [i, shown(i)]), state.layer, (layer) => this.page.set({ layer }))}
        <q-player .from=${1} .to=${calls.length} .now=${step} .label=${this.t("mask.call")} .says=${this.says()}
          .shows=${this.t(step === 1 ? "mask.prefill" : "mask.decode", step, calls[step - 1] ?? 0)} @q-step=${(e: CustomEvent<number>) => (this.done = e.detail)}></q-player>
      </div>
      <p class="note">${this.t(`mask.${mask.kind}` as Key)}</p>
      <p class="legend">${reasons.map((r, i) => counts[i]! || i < 2 ? html`<span class=${`key-cell code${i}`}></span>${r} ${num(counts[i]!, r, `(${mask.line} == ${i}).sum()`)} ` : "")}</p>
      <q-matrix tone="code" .data=${code.data.slice(0, height * cols)} .rows=${height} .cols=${cols} .at=${at} .rowNames=${queries.slice(0, height)} .colNames=${keys}
        .describe=${describe} label=${this.t("mask.title")} .rowTitle=${this.t("query")} .colTitle=${this.t("key")}
        @q-cell=${(e: CustomEvent<{ row: number; col: number }>) => {
          this.page.set({ query: e.detail.row, key: e.detail.col });
          tell(this, { value: mask.reasons[code.data[e.detail.row * cols + e.detail.col]!] || "seen", name: describe(e.detail.row, e.detail.col), line: mask.line!.replace("cells", `reason(${e.detail.row}, ${e.detail.col})`) });
        }}></q-matrix>`;
  }

  private says(): [string, string, string] {
    return [this.t("play"), this.t("stop"), this.t("step.on")];
  }

  private four(mask: Answer): TemplateResult {
    const { meta } = this.page;
    const alone = !meta.decoder; // an encoder writes nothing: its text is taken as half given, half written
    const both = Boolean(meta.encoder && meta.decoder);
    const tokens = [...(meta.encoder?.tokens ?? []), ...(meta.decoder?.tokens ?? [])];
    const given = alone ? Math.ceil(tokens.length / 2) : both ? meta.encoder!.tokens.length : meta.kind === "prefix" ? opened(mask) : meta.decoder!.prompt;
    const words = tokens.map((x) => word(x.text));
    return html`<h3>${this.t("four.title")}</h3><p class="note">${this.t("four.about", given, words.length - given)} ${alone ? this.t("four.half") : ""}</p>
      <div class="four">${["encoder", "decoder", "prefix", "encoder-decoder"].map((kind) => this.one(kind, given, words))}</div>`;
  }

  private one(kind: string, all: number, words: string[]): TemplateResult {
    const size = Math.min(words.length, FINEST); // a long text is drawn coarser; what is counted is the whole
    const given = Math.round((all * size) / words.length);
    const rule = RULES[kind]!;
    const step = size / 32; // between two strokes of the hatch
    const runs: TemplateResult[] = [];
    for (let q = 0; q < size; q++) {
      for (let k = 0, start = 0; k < size; k++) {
        if (k + 1 < size && tone(q, k + 1) === tone(q, start)) continue;
        runs.push(svg`<rect class=${tone(q, start)} x=${start} y=${q} width=${k + 1 - start} height="1" />`);
        start = k + 1;
      }
    }
    function tone(q: number, k: number): string {
      if (!rule(q, k, given)) return kind === "encoder-decoder" && q < given ? "apart" : "shut";
      return kind === "encoder-decoder" && q >= given && k < given ? "across" : "seen";
    }
    const mine = this.page.meta.kind === kind;
    const title = `${this.t(`kind.${kind}` as Key)}: ${this.t(`four.${kind}` as Key)}`;
    return html`<figure class=${mine ? "mine" : ""}><figcaption><b>${this.t(`kind.${kind}` as Key)}</b>${mine ? html` <small>${this.t("four.mine")}</small>` : ""}<br>${this.t(`four.${kind}` as Key)}</figcaption>
      <svg viewBox="0 0 ${size} ${size}" role="img" aria-label=${title}>
        <defs><pattern id="shut-${kind}" width=${step} height=${step} patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="ground" width=${step} height=${step} /><rect class="stroke" width=${step / 4} height=${step} /></pattern></defs>
        <g style=${`--shut:url(#shut-${kind})`}>${runs}</g>
        ${kind === "encoder-decoder" || kind === "prefix" ? svg`<path class="edge" d="M0,${given} H${size} M${given},0 V${size}" />` : ""}
      </svg>
      <p>${num(open(kind, all, words.length), title, lines(kind, all, words.length))} / ${words.length ** 2} ${this.t("four.open")}</p></figure>`;
  }

  private wave(wave: Answer): TemplateResult {
    const [triangle, ran] = [wave.arrays!.triangle!, wave.arrays!.ran!];
    const last = Math.max(...triangle.data, ...ran.data);
    const now = this.tick < 0 ? last : this.tick;
    const words = (wave.tokens as Token[]).map((x) => word(x.text));
    const [layer, token] = this.told ?? [triangle.shape[0]! - 1, triangle.shape[1]! - 1];
    const rests = !this.told || words.length > 512 ? new Set<number>() : resting(wave.arrays!.sees!, layer, token);
    return html`<h3>${this.t("wave.title")}</h3><p class="note">${this.t("wave.about")}</p>
      <div class="controls"><q-player .from=${0} .to=${last} .now=${now} .label=${this.t("wave.tick")} .says=${this.says()} @q-step=${(e: CustomEvent<number>) => (this.tick = e.detail)}></q-player></div>
      <div class=${words.length > 20 ? "" : "columns"}>${this.grid("wave.triangle", triangle, { now, words, line: wave.lines.triangle, rests, at: [layer, token] })}${this.grid("wave.ran", ran, { now, words, line: wave.lines.ran, rests, at: [layer, token] })}</div>
      ${wave.source ? html`<p class="note">${this.t("wave.encoder.about")}</p>${this.grid("wave.encoder", wave.arrays!.encoder!, { now, words: (wave.source as Token[]).map((x) => word(x.text)), line: wave.lines.encoder, rests: new Set(), at: [-1, -1] })}` : nothing}
      <p class="note" aria-live="polite">${this.t("wave.cell", layer + 1, words[token] ?? "", triangle.data[layer * triangle.shape[1]! + token]!, ran.data[layer * ran.shape[1]! + token]!)} ${this.told ? this.t("wave.rests", rests.size) : this.t("wave.ask")}</p>`;
  }

  /** Layers from the bottom up, tokens from left to right; a cell says at which tick it was made. */
  private grid(title: Key, ticks: Numbers, how: GridHow): TemplateResult {
    const [layers, size] = ticks.shape as [number, number];
    const most = Math.max(1, ...ticks.data);
    const { now, words, line, rests, at } = how;
    const from = Math.max(0, Math.min(at[1] - WIDEST / 2, size - WIDEST));
    const shownTokens = Array.from({ length: Math.min(WIDEST, size) }, (_, i) => from + i);
    const keyed = (e: KeyboardEvent): void => {
      const move = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[e.key];
      if (!move || at[0] < 0) return; // the encoder's cells rest on all below them
      e.preventDefault();
      this.told = [clamp(at[0] + move[0]!, layers), clamp(at[1] + move[1]!, size)];
    };
    return html`<figure class="wave" style=${`--count:${shownTokens.length}`}><figcaption>${this.t(title)}</figcaption><div class="scroll" tabindex="0" role="region" aria-label=${this.t(title)} @keydown=${keyed}><table aria-label=${this.t(title)}>
      <tbody>${Array.from({ length: layers }, (_, i) => layers - 1 - i).map((l) => html`<tr><th scope="row">${this.t("layer")} ${shown(l)}</th>
        ${shownTokens.map((t) => {
          const w = words[t]!;
          const tick = ticks.data[l * size + t]!;
          const mood = `${tick > now ? "later" : tick === now ? "now" : ""} ${l === at[0] && t === at[1] ? "at" : rests.has(l * size + t) ? "needs" : ""}`;
          return html`<td class=${mood} style=${`--share:${Math.round(10 + (28 * tick) / most)}%`} @click=${() => {
            if (at[0] >= 0) this.told = [l, t];
            tell(this, { value: tick, name: `${this.t(title)} · ${this.t("layer")} ${shown(l)} · ${w}`, line: `${line}[${l}, ${t}]` });
          }}>${tick > now ? "" : tick}</td>`;
        })}</tr>`)}</tbody>
      <tfoot><tr><td></td>${shownTokens.map((t) => html`<th scope="col">${words[t]}</th>`)}</tr></tfoot></table></div></figure>`;
  }
}

/** Scores as shares of one. */
function softmax(scores: number[]): number[] {
  const top = Math.max(...scores);
  const parts = scores.map((s) => Math.exp(s - top));
  const all = parts.reduce((a, b) => a + b, 0);
  return parts.map((p) => p / all);
}

interface GridHow { now: number; words: string[]; line: string; rests: Set<number>; at: [number, number] }

/** The cells below on which a cell rests, directly or not, as layer * tokens + token. */
function resting(sees: Numbers, layer: number, token: number): Set<number> {
  const [layers, size] = sees.shape as [number, number];
  const rests = new Set<number>();
  let front = [token];
  for (let l = layer; l > 0; l--) {
    const row = Math.min(l, layers - 1) * size; // one grid stands for all layers where they see alike
    front = Array.from({ length: size }, (_, s) => s).filter((s) => front.some((t) => sees.data[(row + t) * size + s]));
    for (const s of front) rests.add((l - 1) * size + s);
  }
  return rests;
}

/** How many keys the first query sees: the freely seen prefix, after which the start of the answer stands. */
function opened(mask: Answer): number {
  const { data, shape } = mask.arrays!.code!;
  return data.slice(0, shape[1]).filter((x) => x === 0).length;
}

/** How many cells an architecture opens. */
function open(kind: string, given: number, size: number): number {
  const triangle = (n: number): number => (n * (n + 1)) / 2;
  if (kind === "encoder") return size ** 2;
  return kind === "decoder" ? triangle(size) : given * size + triangle(size - given);
}

/** The Python that counts an architecture's open cells. */
function lines(kind: string, given: number, size: number): string {
  const triangle = (n: number): string => `torch.ones(${n}, ${n}).tril().sum()`;
  const written = size - given;
  if (kind === "encoder") return `torch.ones(${size}, ${size}).sum()`;
  if (kind === "decoder") return triangle(size);
  const open = `torch.ones(${given}, ${given}).sum() + torch.ones(${written}, ${given}).sum()`;
  return `${open} + ${triangle(written)}`;
}

panel({ name: "mask", element: "q-mask", order: 60, fits: () => true, begins: "decoder" }, MaskPanel);
