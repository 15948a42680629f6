/** Training: a slider over the recorded steps of a run, and the same page live while a run goes on.
 *
 * At each step: its translations and alignment, the neighbours of watched words, what moved, the teacher-forcing table. */
import { html, svg, type TemplateResult } from "lit";
import { state } from "lit/decorators.js";
import { extent } from "d3-array";
import { scaleLinear } from "d3-scale";
import { line } from "d3-shape";
import { Trouble, type Answer, type Numbers } from "../client";
import { bars } from "../draw/bars";
import { choice, pick, toggle } from "../draw/choose";
import { bridge } from "../draw/links";
import { lines } from "../draw/lines";
import "../draw/matrix";
import { num, percent, short } from "../draw/number";
import "../draw/player";
import { word } from "../draw/strip";
import { Panel, panel } from "../panel";
import type { Key } from "../words";
import { more } from "./words_more";
import "./more.css";

interface Run { run: string; name: string }
interface Recorded { step: number; loss: number | null }
interface Text { text: string; output: string; unknown?: string[]; source: string[] | null; target: string[]; prompt: number; chances: number[]; layer: number | null }
interface Row { position: number; input: string; label: string; counted: boolean; p: number | null; loss: number | null; guess: string; chance: number }
interface Matrix { name: string; part: string }

const NORMS = ["update", "gradient", "weight"] as const;
type Norm = (typeof NORMS)[number];

const few = (pieces: string[]): string => pieces.map(word).join(" ");

class TrainingPanel extends Panel {
  @state() private name = "";
  @state() private steps: Recorded[] = [];
  @state() private norm: Norm = "update";
  @state() private text = -1; // -1: the longest
  @state() private word = 0;
  @state() private follow = true;
  @state() private live = false;
  @state() private chosen = false;
  @state() private wished = ""; // a sentence asked for, until a record has it
  @state() private refused: { zh: string; en: string } | null = null;
  @state() private heardOf = 0; // records that came while we watched: a new number asks anew
  private soon = 0;
  private events: EventSource | null = null;
  private curve: [number, number][] = [];

  override connectedCallback(): void {
    super.connectedCallback();
    queueMicrotask(() => this.listen());
  }

  override disconnectedCallback(): void {
    super.disconnectedCallback();
    this.events?.close();
    this.events = null;
  }

  /** The events of a run that trains in this server's process; silence where none does. */
  private listen(): void {
    if (!this.isConnected || !this.page || this.events) return;
    this.events = this.page.client.events();
    if (this.events) this.events.onmessage = (message: MessageEvent<string>) => this.heard(JSON.parse(message.data));
  }

  private heard(event: Record<string, any>): void {
    if (event.kind === "step" && typeof event.loss === "number") {
      if (event.step > (this.curve.at(-1)?.[0] ?? -1)) this.curve.push([event.step, event.loss]);
      this.live = true;
    } else if (event.kind === "watch") {
      this.live = true;
      this.soon ||= window.setTimeout(() => { // those of the past come all at once; a fast run's never pause
        this.soon = 0;
        this.heardOf += 1;
        if (this.follow) this.chosen = false;
      }, 300);
    } else if (event.kind === "end") this.live = false;
  }

  /** Where the slider stands, as a place in the list of recorded steps. */
  private get at(): number {
    const last = this.steps.length - 1;
    if (!this.chosen && (this.live || !this.page.state.step)) return last;
    const wanted = this.page.state.step;
    return this.steps.reduce((best, s, i) => (Math.abs(s.step - wanted) < Math.abs(this.steps[best]!.step - wanted) ? i : best), 0);
  }

  protected asks(): Record<string, string | undefined> {
    const run = this.name && `watch/${encodeURIComponent(this.name)}`;
    const step = this.steps[this.at]?.step;
    const seen = { seen: this.heardOf || undefined };
    return {
      watch: this.api("watch", seen),
      run: run ? this.api(`${run}/steps`, seen) : undefined,
      record: run && step !== undefined ? this.api(`${run}/step/${step}`) : undefined,
    };
  }

  protected view({ watch, run, record }: Record<string, Answer>): TemplateResult {
    const runs = (watch!.runs ?? []) as Run[];
    if (!runs.length) return html`<p class="empty">${this.t("training.none")}</p>`;
    const newest = runs.at(-1)!.run;
    if (!this.name || (this.live && this.follow && this.name !== newest)) queueMicrotask(() => this.choose(newest));
    const known = (run?.steps ?? []) as Recorded[];
    if (known.length !== this.steps.length) queueMicrotask(() => (this.steps = known));
    if (!run || !record) return html`<p class="waiting" role="status">${this.t("waiting")}</p>`;
    return html`${this.controls(runs)}${this.facts(record)}
      <div class="columns"><section><h3>${this.t("training.loss")}</h3>${this.loss(run, record)}${this.scores(run, record)}</section>
        <section><h3>${this.t("training.moved")}</h3>${this.moved(run, record)}</section></div>
      ${this.texts(record)}
      <div class="columns">${this.words(run, record)}</div>
      ${record.teacher ? this.teacher(record) : ""}`;
  }

  private choose(run: string): void {
    [this.name, this.steps, this.chosen, this.text, this.word] = [run, [], false, -1, 0];
  }

  private controls(runs: Run[]): TemplateResult {
    const says: [string, string, string] = [this.t("play"), this.t("stop"), this.t("step.on")];
    return html`<div class="controls">${runs.length > 1 ? pick(this.t("training.run"), runs.map((r) => [r.run, r.name]), this.name, (name) => this.choose(name)) : ""}
      <q-player .from=${0} .to=${this.steps.length - 1} .now=${this.at} .label=${this.t("training.step")} .shows=${String(this.steps[this.at]?.step ?? "")} .says=${says}
        @q-step=${(e: CustomEvent<number>) => {
          this.chosen = true;
          this.follow = false;
          this.page.set({ step: this.steps[e.detail]?.step ?? 0 });
        }}></q-player>
      ${this.live ? html`<span class="live" role="status">● ${this.t("training.live")}</span>${toggle(this.t("training.follow"), this.follow, (on) => ([this.follow, this.chosen] = [on, !on]))}` : ""}</div>`;
  }

  private facts(r: Answer): TemplateResult {
    const fact = (key: Key, value: number | null, line: string): TemplateResult | string => (value === null || value === undefined ? "" : html`<div><dt>${this.t(key)}</dt><dd>${num(value, this.t(key), line)}</dd></div>`);
    const at = r.line!;
    return html`<dl class="facts">${fact("training.step", r.step, `${at}["step"]`)}${fact("training.loss", r.loss, `${at}["loss"]`)}
      ${fact("training.rate", r.lr, `${at}["lr"]`)}${fact("training.gradient", r.gradient, `${at}["gradient"]`)}${fact("training.tokens", r.tokens, `${at}["tokens"]`)}${fact("training.seconds", r.seconds, `${at}["seconds"]`)}</dl>`;
  }

  private loss(run: Answer, record: Answer): TemplateResult {
    const recorded = this.steps.filter((s) => s.loss !== null).map((s): [number, number] => [s.step, s.loss!]);
    const logged = (run.loss ?? []) as [number, number][];
    const known = logged.length ? logged : recorded;
    const points = [...known, ...this.curve.filter(([step]) => step > (known.at(-1)?.[0] ?? -1))];
    return lines([{ name: this.t("training.loss"), points }], { label: this.t("training.loss"), x: this.t("training.step"), y: "", mark: record.step, zero: true, wide: 480 });
  }

  /** BLEU and exact match of the evaluations, where the run had any. */
  private scores(run: Answer, record: Answer): TemplateResult {
    const told = (run.evaluations ?? []) as Record<string, number>[];
    const of = (key: string, times: number): [number, number][] => told.filter((e) => e[key] !== undefined).map((e) => [e.step!, e[key]! * times]);
    const series = [{ name: "BLEU", points: of("bleu", 1) }, { name: this.t("training.exact"), points: of("exact_match", 100), dash: true }].filter((s) => s.points.length > 1);
    if (!series.length) return html``;
    const label = this.t("training.scores");
    return html`<h3>${label}</h3>${lines(series, { label, x: this.t("training.step"), y: "", mark: record.step, zero: true, wide: 480 })}`;
  }

  /** Per kind of matrix: how far it moved in this step as a share of its size, the size of its gradient, or of itself. */
  private moved(run: Answer, record: Answer): TemplateResult {
    const matrices = run.matrices as Matrix[];
    const what = this.norm;
    const found = ["weight", what].map((n) => record.arrays?.[`matrices.${n}`]?.data);
    if (!matrices || !found[0] || !found[1]) return html``;
    const kinds = [...new Set(matrices.map((m) => m.part))];
    const size = (data: ArrayLike<number>, kind: string): number => Math.hypot(...matrices.map((m, i) => (m.part === kind ? data[i]! : 0)));
    const rows = kinds.map((kind) => {
      const chosen = JSON.stringify(matrices.flatMap((m, i) => (m.part === kind ? [i] : [])));
      const line = (name: string): string => `${whole(record)}["matrices.${name}"][${chosen}].norm()`;
      const share = what === "update";
      const value = size(found[1]!, kind) / (share ? size(found[0]!, kind) || 1 : 1);
      return { name: this.kindName(kind), full: `${this.t(`training.${what}` as Key)}: ${kind}`, value, line: line(what) + (share ? ` / ${line("weight")}` : "") };
    });
    const names: [Norm, string][] = NORMS.map((n) => [n, this.t(`training.${n}` as Key)]);
    return html`<div class="controls">${choice(this.t("training.moved"), names, what, (n) => (this.norm = n))}</div>
      ${bars(rows.sort((a, b) => b.value - a.value).slice(0, 9), { label: this.t(`training.${what}` as Key) })}`;
  }

  private kindName(kind: string): string {
    const key = `matrix.${kind}`;
    return key in more ? this.t(key as Key) : kind; // W_Q and its like have no other name
  }

  private texts(record: Answer): TemplateResult {
    const texts = record.texts as Text[];
    const longest = texts.reduce((best, x, i) => (x.text.length > texts[best]!.text.length ? i : best), 0);
    const there = texts.findIndex((x) => x.text === this.wished); // perhaps only once the run is over
    if (there >= 0) queueMicrotask(() => ([this.wished, this.text] = ["", there]));
    const at = this.text < 0 ? longest : Math.min(this.text, texts.length - 1);
    const one = texts[at];
    const map = record.arrays?.[`texts.${at}.alignment`];
    return html`<h3>${this.t("training.texts")}</h3>${this.live ? this.wish(texts) : ""}<table class="numbers said-then" aria-label=${this.t("training.texts")}>
      <tbody>${texts.map((x, i) => html`<tr class=${i === at ? "current" : ""}><th scope="row"><button type="button" class="word" aria-pressed=${String(i === at)} @click=${() => (this.text = i)}>${x.text}</button></th><td>${x.output || "—"}${x.unknown?.length ? html` <small>${this.t("training.unknown", x.unknown.join(" "))}</small>` : ""}</td></tr>`)}</tbody></table>
      ${one && map && one.source ? this.aligned(one, map, `${whole(record)}["texts.${at}.alignment"]`) : ""}`;
  }

  /** A sentence of the reader's own, said anew at every record from now on. */
  private wish(texts: Text[]): TemplateResult {
    const send = async (event: SubmitEvent): Promise<void> => {
      event.preventDefault();
      const box = (event.target as HTMLFormElement).querySelector("input")!;
      const text = box.value.trim().replace(/\s+/g, " ");
      if (!text) return;
      try {
        await this.page.client.wish(this.name, text);
        [this.wished, this.refused, box.value] = [text, null, ""];
      } catch (error) {
        this.refused = error instanceof Trouble ? error.said : { zh: String(error), en: String(error) };
      }
    };
    return html`<form class="controls wish" @submit=${send}><label class="field wide"><span>${this.t("training.wish")}</span><input type="text" name="wish" autocomplete="off" maxlength="120"></label>
      <button type="submit">${this.t("training.wish.go")}</button></form>
      ${this.wished ? html`<p class="note" role="status">${this.t("training.wished", this.wished)}</p>` : ""}${this.refused ? html`<p class="trouble" role="alert">${this.refused[this.page.state.lang]}</p>` : ""}`;
  }

  private aligned(one: Text, map: Numbers, line: string): TemplateResult {
    const [rows, cols] = map.shape as [number, number];
    const written = one.target.slice(1, rows + 1).map(word);
    while (written.length < rows) written.push("</s>");
    const source = one.source!.map(word);
    const label = this.t("training.aligned", (one.layer ?? 0) + 1);
    const weight = (i: number, j: number): number => map.data[i * cols + j] ?? 0;
    return html`<p class="note">${label}</p>${bridge(source, written, { label, weight, hot: null })}
      <q-matrix .data=${map.data} .rows=${rows} .cols=${cols} .rowNames=${written} .colNames=${source} .largest=${22} label=${label}
        .describe=${(r: number, c: number) => `${written[r]} ← ${source[c]}: ${weight(r, c).toFixed(3)}`}
        @q-cell=${(e: CustomEvent<{ row: number; col: number }>) => {
          const { row, col } = e.detail;
          (e.currentTarget as unknown as { at: [number, number] }).at = [row, col];
          this.tell(weight(row, col), `${written[row]} ← ${source[col]}`, `${line}[${row}, ${col}]`);
        }}></q-matrix>`;
  }

  private tell(value: number, name: string, line: string): void {
    this.dispatchEvent(new CustomEvent("q-number", { detail: { value, name, line }, bubbles: true }));
  }

  private words(run: Answer, record: Answer): TemplateResult {
    const words = (record.words ?? []) as { word: string; near: { text: string; cosine: number }[] }[];
    if (!words.length) return html``;
    const at = Math.min(this.word, words.length - 1);
    return html`<section><h3>${this.t("training.words")}</h3><div class="controls">${choice(this.t("training.words"), words.map((w, i) => [i, w.word]), at, (i) => (this.word = i))}</div>
      ${bars(words[at]!.near.map((n, i) => ({ name: word(n.text), value: n.cosine, line: `${record.line}["words"][${at}]["near"][${i}]["cosine"]` })), { label: this.t("training.words"), most: 1 })}</section>
      ${run.arrays?.paths ? html`<section><h3>${this.t("training.paths")}</h3><p class="note">${this.t("training.paths.about")}</p>${this.paths(run.arrays.paths, words.map((w) => w.word), at)}</section>` : ""}`;
  }

  /** The way of every watched word over the steps, in one plane; the ring is where it stands now. */
  private paths(ways: Numbers, names: string[], at: number): TemplateResult {
    const [steps, count] = ways.shape as [number, number];
    const point = (s: number, w: number): [number, number] => [ways.data[(s * count + w) * 2]!, ways.data[(s * count + w) * 2 + 1]!];
    const every = Array.from({ length: steps }, (_, s) => Array.from({ length: count }, (_, w) => point(s, w))).flat();
    const [wide, high, edge] = [420, 280, 30];
    const x = scaleLinear(extent(every, (p) => p[0]) as [number, number], [edge, wide - edge]);
    const y = scaleLinear(extent(every, (p) => p[1]) as [number, number], [high - edge, edge]);
    const draw = line<[number, number]>((p) => x(p[0]), (p) => y(p[1]));
    const now = Math.min(this.at, steps - 1);
    return html`<figure class="plane"><svg viewBox="0 0 ${wide} ${high}" role="img" aria-label=${this.t("training.paths")}>
      ${names.slice(0, count).map((name, w) => {
        const [cx, cy] = point(now, w);
        return svg`<g class=${w === at ? "on" : ""}><path d=${draw(Array.from({ length: now + 1 }, (_, s) => point(s, w))) ?? ""} />
          <circle class="last" cx=${x(cx)} cy=${y(cy)} r="5" /><text x=${x(cx) + (x(cx) > wide / 2 ? -9 : 9)} y=${y(cy) + 4} text-anchor=${x(cx) > wide / 2 ? "end" : "start"}>${name}</text></g>`;
      })}</svg></figure>`;
  }

  private teacher(record: Answer): TemplateResult {
    const { rows, source, loss } = record.teacher as { rows: Row[]; source: string[] | null; loss: number };
    const at = `${record.line}["teacher"]`;
    return html`<h3>${this.t("teacher.title")}</h3><p class="note">${this.t("teacher.about")} ${source ? few(source) : ""}</p>
      <div class="scroll" tabindex="0" role="region" aria-label=${this.t("teacher.title")}><table class="numbers teacher" aria-label=${this.t("teacher.title")}>
        <thead><tr>${(["position", "teacher.input", "teacher.label", "teacher.p", "teacher.loss", "teacher.guess", "teacher.chance"] as Key[]).map((k) => html`<th scope="col">${this.t(k)}</th>`)}</tr></thead>
        <tbody>${rows.map((r, i) => html`<tr class=${r.counted ? "" : "out"}><th scope="row">${r.position + 1}</th><td>${word(r.input)}</td><td><b>${r.label ? word(r.label) : "–"}</b></td>
          <td>${r.p === null ? "–" : num(r.p, `P(${word(r.label)})`, `${at}["rows"][${i}]["p"]`, percent(r.p))}</td><td>${r.loss === null ? "–" : num(r.loss, `−log P(${word(r.label)})`, `${at}["rows"][${i}]["loss"]`)}</td>
          <td class=${r.counted && r.guess === r.label ? "right" : r.counted ? "wrong" : ""}>${word(r.guess)}</td><td>${num(r.chance, `P(${word(r.guess)})`, `${at}["rows"][${i}]["chance"]`, percent(r.chance))}</td></tr>`)}</tbody></table></div>
      <p class="note">${this.t("teacher.mean")} ${num(loss, this.t("teacher.mean"), `${at}["loss"]`, short(loss))}</p>`;
  }
}

/** The Python that opens a record. */
const whole = (record: Answer): string => record.line!.replace(/\.json$/, "");

panel({ name: "training", element: "q-training", order: 140, fits: () => true }, TrainingPanel);
