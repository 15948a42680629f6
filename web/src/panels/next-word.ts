/** The whole vocabulary's chances after one word, what each filter leaves of them, and the branch behind another word. */
import { html, nothing, type TemplateResult } from "lit";
import { state } from "lit/decorators.js";
import type { Answer } from "../client";
import { slider } from "../draw/choose";
import { num, percent, short, tell } from "../draw/number";
import { strip, word } from "../draw/strip";
import { line, tree, type Leaf } from "../draw/tree";
import { Panel, panel } from "../panel";
import type { Question } from "../select";
import { words, type Key } from "../words";
import "./next-word.css";

interface Choice { id: number; text: string; p: number }
interface Stage { name: string; kept: number; entropy: number; gone?: number; top: Choice[]; line?: string }
interface Filters { temperature: number; top_k: number; top_p: number; min_p: number }
interface Branch { question: Question; run: string; output: string }
interface Sentence { text: string; score: number; sum: number; length: number; ended: boolean }

const OFF: Filters = { temperature: 1, top_k: 0, top_p: 1, min_p: 0 };
const SHOWN = 20;

class NextWord extends Panel {
  @state() private filters: Filters = OFF;
  @state() private sent: Filters = OFF;
  @state() private stage = -1;
  @state() private searched = false; // whether the beams are on show: to find them the search runs again
  @state() private leaf = -1;
  private branches: Branch[] = [];
  private later = 0;

  /** The position asked about; one of the decoder where there is one. */
  private get pos(): number {
    const { state: at, meta } = this.page;
    return at.part === "encoder" && meta.decoder ? meta.decoder.prompt - 1 : at.query;
  }

  private get beamed(): boolean {
    return this.page.meta.panels.includes("beams");
  }

  protected asks(): Record<string, string | undefined> {
    return {
      choices: this.run("choices", { pos: this.pos, ...this.sent, top: SHOWN }),
      beams: this.searched && this.beamed ? this.run("beams") : undefined,
    };
  }

  /** Sliders act at once; the server is asked when they rest. */
  private turn(change: Partial<Filters>): void {
    this.filters = { ...this.filters, ...change };
    clearTimeout(this.later);
    this.later = window.setTimeout(() => (this.sent = this.filters), 120);
  }

  protected override willUpdate(): void {
    super.willUpdate();
    if (!this.page) return;
    const { state: at, meta } = this.page;
    if (!this.branches.some((b) => b.run === at.run)) this.leaf = -1;
    const question = at.ask ?? { text: meta.text };
    if (this.branches[0]?.question.text !== question.text) this.branches = [];
    if (!this.branches.some((b) => b.run === at.run)) this.branches.push({ question, run: at.run, output: meta.output });
  }

  protected view({ choices, beams }: Record<string, Answer>): TemplateResult {
    const { meta } = this.page;
    const stages: Stage[] = choices!.stages;
    const tokens = (meta.decoder ?? meta.encoder)!.tokens;
    const shown = this.stage < 0 || this.stage >= stages.length ? stages.length - 1 : this.stage;
    return html`
      <h3>${this.t("next-word.after")}</h3>${strip(tokens, {
        label: this.t("next-word.after"), at: this.pos, pick: (query) => this.page.set({ query, ...(meta.decoder && this.page.state.part === "encoder" ? { part: "decoder" } : {}) }),
        mood: (i) => (meta.decoder && i >= meta.decoder.prompt ? "decode" : ""),
      })}
      <div class="next"><section>${this.sliders()}
        <h3>${this.t("next-word.stages")}</h3><ol class="next-stages">${stages.map((s, i) => html`<li><button type="button" aria-pressed=${String(i === shown)} @click=${() => (this.stage = i)}>
          <b>${this.named(s.name)}</b></button><span>${this.t("next-word.kept", s.kept.toLocaleString(this.page.state.lang))}</span><span>${num(s.entropy, `${this.t("next-word.entropy.name")} · ${this.named(s.name)}`, s.line ? `${s.line}.entropy` : undefined, this.t("next-word.entropy", short(s.entropy, 2)))}</span></li>`)}</ol></section>
      <section><h3>${this.t("next-word.bars")}</h3>${this.bars(stages, shown, choices!)}</section></div>
      ${this.branched()}${this.beamed ? this.beams(beams) : nothing}`;
  }

  /** "top_k 40" -> the filter's word and its number. */
  private named(stage: string): string {
    const [name = "", value = ""] = stage.split(" ");
    return `${`stage.${name}` in words ? this.t(`stage.${name}` as Key) : name} ${value}`.trim();
  }

  private sliders(): TemplateResult {
    const f = this.filters;
    const off = Object.entries(OFF).every(([k, v]) => f[k as keyof Filters] === v);
    return html`<div class="next-sliders">
      ${slider(this.t("next-word.temperature"), { from: 0, to: 2, by: 0.05, now: f.temperature, shows: f.temperature.toFixed(2), about: this.t("next-word.temperature.about"), set: (temperature) => this.turn({ temperature }) })}
      ${slider(this.t("next-word.top-k"), { from: 0, to: 100, by: 1, now: f.top_k, shows: f.top_k ? String(f.top_k) : this.t("next-word.all"), set: (top_k) => this.turn({ top_k }) })}
      ${slider(this.t("next-word.top-p"), { from: 0.05, to: 1, by: 0.01, now: f.top_p, shows: f.top_p === 1 ? this.t("next-word.all") : f.top_p.toFixed(2), set: (top_p) => this.turn({ top_p }) })}
      ${slider(this.t("next-word.min-p"), { from: 0, to: 0.9, by: 0.01, now: f.min_p, shows: f.min_p ? `${Math.round(f.min_p * 100)}%` : this.t("next-word.all"), set: (min_p) => this.turn({ min_p }) })}
      <button type="button" ?disabled=${off} @click=${() => this.turn(OFF)}>${this.t("next-word.reset")}</button>
      ${this.page.meta.decoder && !this.page.client.recorded ? html`<button type="button" @click=${() => this.draw()}>${this.t("next-word.draw")}</button>` : nothing}</div>`;
  }

  private bars(stages: Stage[], at: number, choices: Answer): TemplateResult {
    const [all, now] = [stages[0]!, stages[at]!];
    const left = new Map(now.top.map((c, i) => [c.id, { p: c.p, i }]));
    const most = Math.max(all.top[0]?.p ?? 0, now.top[0]?.p ?? 0, 1e-9);
    const forces = this.page.meta.decoder && !this.page.client.recorded;
    return html`<table class="bars next-bars" aria-label=${this.t("next-word.bars")}><thead><tr><th scope="col">${this.t("next-word.word")}</th><td></td><th scope="col">${this.t("next-word.chance")}</th></tr></thead>
      <tbody>${all.top.map((c) => {
        const kept = left.get(c.id);
        const name = word(c.text);
        const p = kept?.p ?? 0;
        return html`<tr class=${`${kept ? "" : "out"} ${c.id === choices.next ? "current" : ""}`}><th scope="row">${forces ? html`<button type="button" class="word" title=${this.t("next-word.force", name)} aria-label=${this.t("next-word.force", name)} @click=${() => this.force(c.id)}>${name}</button>` : name}
          ${c.id === choices.next ? html`<small>${this.t("next-word.written")}</small>` : nothing}${kept ? nothing : html`<small>${this.t("next-word.out")}</small>`}</th>
          <td class="track" aria-hidden="true"><i class="ghost" style=${`left:0;width:${(100 * c.p) / most}%`}></i><i class="plus" style=${`left:0;width:${(100 * p) / most}%`}></i></td>
          <td class="end">${num(p, this.t("next-word.name", name, this.named(now.name)), now.line ? `${now.line}.chances[${c.id}]` : choices.line, percent(p))}</td></tr>`;
      })}</tbody></table>`;
  }

  /** What was written up to here; null where the position lies inside the text. */
  private get upTo(): number[] | null {
    const { meta, state: at } = this.page;
    const { tokens, prompt } = meta.decoder!;
    const forced = at.ask?.force ?? []; // what an earlier branch forced is read at once with the prompt, but it was written
    const count = this.pos + 1 - (prompt - forced.length);
    return count < 0 ? null : [...forced, ...tokens.slice(prompt).map((k) => k.id)].slice(0, count);
  }

  /** Writes another word here, and lets the model go on. */
  private force(id: number): void {
    if (this.upTo) this.page.ask({ ...(this.page.state.ask ?? { text: this.page.meta.text }), force: [...this.upTo, id] });
  }

  /** Goes on from here by chance, under the filters; each click draws anew. */
  private draw(): void {
    const { temperature, top_k, top_p, min_p } = this.filters;
    const sampling = { temperature, ...(top_k ? { top_k } : {}), ...(top_p < 1 ? { top_p } : {}), ...(min_p ? { min_p } : {}), seed: this.branches.length };
    if (this.upTo) this.page.ask({ ...(this.page.state.ask ?? { text: this.page.meta.text }), force: this.upTo, sampling });
  }

  /** The search that found the text: every candidate, and the sentences that it ended with. */
  private beams(found?: Answer): TemplateResult {
    const title = html`<h3>${this.t("beams.title")}</h3><p class="note">${this.t("beams.about")}</p>`;
    if (!found) return html`<section>${title}<p><button type="button" class="beams-show" @click=${() => (this.searched = true)}>${this.t("beams.show")}</button></p></section>`;
    const leaves = found.nodes as Leaf[];
    const text = (i: number): string => line(leaves, i).map((n) => word(leaves[n]!.text)).join(" ");
    const say = (i: number): string => `${text(i)} · log P ${short(leaves[i]!.sum)} · ${this.t(`beams.${leaves[i]!.fate}`)}`;
    const pick = (i: number): void => {
      this.leaf = i;
      tell(this, { value: leaves[i]!.sum, name: this.t("beams.sum", text(i)), line: `${found.line}.nodes[${i}].sum` });
    };
    const rows = (found.found as Sentence[]).map((s, i) => html`<tr class=${i ? "" : "current"}><th scope="row">${s.text || "—"}</th>
      <td>${num(s.sum, this.t("beams.sum", s.text), `sum(${found.line}.found[${i}].logprobs)`)}</td><td>${s.length}</td>
      <td>${num(s.score, this.t("beams.score"), `${found.line}.found[${i}].score`)}</td></tr>`);
    return html`<section>${title}<p class="legend tree-legend">${(["kept", "ended", "pruned"] as const).map((fate) => html`<span class=${fate}>${this.t(`beams.${fate}`)}</span>`)}</p>
      ${tree(leaves, { label: this.t("beams.title"), best: found.best, at: this.leaf, say, pick })}
      <div class="scroll" tabindex="0" role="region" aria-label=${this.t("beams.found")}><table class="numbers" aria-label=${this.t("beams.found")}><thead><tr>${(["beams.found", "beams.logp", "beams.length", "beams.score"] as const).map((k) => html`<th scope="col">${this.t(k)}</th>`)}</tr></thead>
        <tbody>${rows}</tbody></table></div></section>`;
  }

  private branched(): TemplateResult | typeof nothing {
    if (this.branches.length < 2) return nothing;
    return html`<section><h3>${this.t("next-word.branches")}</h3><ol class="next-branches">${this.branches.map((b) => html`<li><button type="button" class="quiet"
      aria-pressed=${String(b.run === this.page.state.run)} @click=${() => this.page.ask(b.question)}>${b.output || "…"}</button></li>`)}</ol></section>`;
  }
}
panel({ name: "next-word", element: "q-next-word", order: 40, fits: (meta) => meta.panels.includes("choices") }, NextWord);
