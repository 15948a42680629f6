/** The seven steps of one word, from text to next word, with the numbers of this run; each says its Python line. */
import { html, nothing, type TemplateResult } from "lit";
import { state } from "lit/decorators.js";
import type { Answer } from "../client";
import { bars } from "../draw/bars";
import { cell as tinted } from "../draw/colour";
import { choice, pick } from "../draw/choose";
import { num, percent, short, tell, tight } from "../draw/number";
import { strip as tokenStrip, word } from "../draw/strip";
import { Panel, panel } from "../panel";
import { shown } from "../select";
import { reason, words, type Key } from "../words";
import "./walk.css";

interface Strip { name: string; line: string; letters: string; shape: number[]; scalar?: boolean; values: (number | null)[]; whole: number; from?: number; words?: string[]; at?: number }
interface Step { step: string; strips: Strip[] }

const ROLES: Record<string, string> = { q: "query", "q before": "query", k: "key", v: "value", given: "value" };

/** On a narrow screen only the first numbers of a step stand open, so that a step is a list of what there is. */
const narrow = (): boolean => matchMedia("(max-width: 40rem)").matches;

class Walk extends Panel {
  @state() private step = 2;
  @state() private folds: ReadonlyMap<string, boolean> = new Map(); // sections that were opened or folded by hand, by step and name

  @state() private some = false; // whether a section of the step is folded
  private now = ""; // the step on show

  protected asks(): Record<string, string> {
    const { part, layer, head, query, key } = this.page.state;
    return { walk: this.run("walk", { part, layer, head, query, key }) };
  }

  protected view({ walk }: Record<string, Answer>): TemplateResult {
    const { page } = this;
    const steps: Step[] = walk!.steps;
    const at = Math.min(this.step, steps.length - 1);
    const now = steps[at]!;
    this.now = now.step;
    return html`<div class="controls">
        ${page.meta.parts.length > 1 ? choice(this.t("part"), page.meta.parts.map((p) => [p.part, this.t(`part.${p.part}` as Key)]), page.state.part, (part) => page.set({ part })) : nothing}
        ${pick(this.t("layer"), counted(page.part.layers), page.state.layer, (layer) => page.set({ layer }))}
        ${pick(this.t("head"), counted(page.part.heads), page.state.head, (head) => page.set({ head }))}</div>
      <details class="fold" .open=${this.open("who", !narrow())} @toggle=${(e: Event) => this.folded("who", !narrow(), e)}><summary><b><span class="role query">${word(page.tokens("queries")[page.state.query]?.text ?? "")}</span> → <span class="role key">${word(page.tokens("keys")[page.state.key]?.text ?? "")}</span></b> <span>${this.t("walk.who")}</span></summary><div class="walk-who"><div><h3 class="role query">${this.t("walk.asks")}</h3>${tokenStrip(page.tokens("queries"), { label: this.t("walk.asks"), at: page.state.query, mood: () => "asks", pick: (query) => page.set({ query }) })}</div>
        <div><h3 class="role key">${this.t("walk.asked")}</h3>${tokenStrip(page.tokens("keys"), { label: this.t("walk.asked"), at: page.state.key, mood: () => "asked", pick: (key) => page.set({ key }) })}</div></div></details>
      <ol class="walk-steps" aria-label=${this.t("walk.steps")} @keydown=${(e: KeyboardEvent) => this.stepped(e, at, steps.length)}>${steps.map((s, i) => html`<li><button type="button" tabindex=${i === at ? 0 : -1} aria-current=${i === at ? "step" : nothing} @click=${() => (this.step = i)}><b>${i + 1}</b> ${this.stepWord(s.step)}</button></li>`)}</ol>
      <section class="walk-step" aria-live="polite" @keydown=${(e: KeyboardEvent) => this.listed(e)}><div class="walk-head"><h3>${at + 1}. ${this.stepWord(now.step)}</h3>
        <button type="button" class="quiet" @click=${() => this.foldAll(now.step)}>${this.t(this.some ? "walk.unfold" : "walk.fold")}</button></div><p class="about">${this.t(`walk.about.${now.step}` as Key)}</p>
        ${now.step === "attention" ? this.attention(now.strips, walk!) : now.strips.map((s, i) => this.strip(s, now.strips[i - 1], i === 0))}</section>
      <div class="controls"><button type="button" ?disabled=${at === 0} @click=${() => (this.step = at - 1)}>← ${this.t("walk.previous")}</button>
        <button type="button" ?disabled=${at === steps.length - 1} @click=${() => (this.step = at + 1)}>${this.t("walk.next")} →</button></div>`;
  }

  /** Whether a section stands open: as it was left by hand, else as it is at first. */
  private open(key: string, first: boolean): boolean {
    return this.folds.get(key) ?? first;
  }

  private folded(key: string, first: boolean, event: Event): void {
    const { open } = event.target as HTMLDetailsElement;
    if (open !== this.open(key, first)) this.folds = new Map(this.folds).set(key, open);
  }

  private foldAll(step: string): void {
    const all = [...this.querySelectorAll<HTMLDetailsElement>(".walk-step details")];
    const open = all.some((one) => !one.open);
    this.folds = new Map([...this.folds, ...all.map((one): [string, boolean] => [`${step} ${one.dataset.name}`, open])]);
  }

  /** One section: its name, which folds it, and what it holds. */
  private fold(name: string, head: unknown, body: unknown, first = true): TemplateResult {
    const key = `${this.now} ${name}`;
    return html`<details class="fold" data-name=${name} .open=${this.open(key, first)} @toggle=${(e: Event) => this.folded(key, first, e)}><summary class="walk-name">${head}</summary>${body}</details>`;
  }

  /** Arrows along the steps. */
  private stepped(event: KeyboardEvent, at: number, count: number): void {
    const to = ({ ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0, End: count - 1 } as Record<string, number>)[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.step = Math.max(0, Math.min(to, count - 1));
    void this.updateComplete.then(() => this.querySelector<HTMLElement>(".walk-steps [aria-current]")?.focus());
  }

  /** Arrows along the names of a step's sections. */
  private listed(event: KeyboardEvent): void {
    const names = [...this.querySelectorAll<HTMLElement>(".walk-step summary")];
    const at = names.indexOf(event.target as HTMLElement);
    const to = ({ ArrowUp: at - 1, ArrowDown: at + 1, Home: 0, End: names.length - 1 } as Record<string, number>)[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    names[Math.max(0, Math.min(to, names.length - 1))]!.focus();
  }

  protected override updated(): void {
    this.some = this.querySelector(".walk-step details:not([open])") !== null;
  }

  private stepWord(step: string): string {
    return this.t(`walk.step.${step}` as Key);
  }

  private named(name: string): string {
    const moment = /^(.*) (mean|spread)$/.exec(name);
    if (moment) return `${this.named(moment[1]!)} · ${this.t(`strip.${moment[2]}` as Key)}`;
    return `strip.${name}` in words ? this.t(`strip.${name}` as Key) : name;
  }

  /** The Python line of one number of a strip. */
  private line(s: Strip, i: number): string {
    return s.scalar ? s.line : `(${s.line})[${(s.from ?? 0) + i}]`;
  }

  private strip(s: Strip, before: Strip | undefined, leads: boolean): TemplateResult {
    if (s.scalar) {
      return html`<p class="walk-scalar"><span>${this.named(s.name)}</span> ${num(s.values[0] ?? NaN, this.named(s.name), this.line(s, 0))}</p>`;
    }
    if (s.words && before?.words && s.name === "chances") return this.fold(s.name, this.heading(s), this.chances(s));
    return this.fold(s.name, this.heading(s), this.numbers(s), leads || !narrow());
  }

  private heading(s: Strip): TemplateResult {
    return html`<b class=${`role ${ROLES[s.name] ?? ""}`}>${this.named(s.name)}</b> ${this.shaped(s)}
      ${s.whole > s.values.length ? html`<span>${s.from ? `${s.from + 1}–${s.from + s.values.length} / ${s.whole}` : this.t("walk.more", s.values.length, s.whole)}</span>` : nothing}`;
  }

  private shaped(s?: Strip): TemplateResult | typeof nothing {
    if (!s?.shape.length) return nothing;
    const shape = `${s.letters ? `${s.letters.split(" ").join(" × ")} = ` : ""}${s.shape.join(" × ")}`;
    return html`<span>${this.t("walk.shape", shape)}</span>`;
  }

  private most(s: Strip): number {
    return Math.max(1e-9, ...s.values.map((v) => Math.abs(v ?? 0)));
  }

  private numbers(s: Strip): TemplateResult {
    const most = this.most(s);
    const ids = s.name.endsWith("ids") || s.name.endsWith("index");
    return html`<div class="walk-numbers">${s.values.map((v, i) => html`<button type="button" class=${i === s.at ? "at" : ""} style=${ids ? "" : tinted((v ?? 0) / most)}
      @click=${(e: Event) => this.tell(e, s, i)}>${s.words ? html`<small>${word(s.words[i] ?? "")}</small>` : nothing}${tight(v)}</button>`)}</div>`;
  }

  private tell(event: Event, s: Strip, i: number): void {
    tell(event.currentTarget!, { value: s.values[i] ?? "-inf", name: `${this.named(s.name)} · ${s.words?.[i] ? word(s.words[i]!) : this.t("walk.element", (s.from ?? 0) + i + 1)}`, line: this.line(s, i) });
  }

  private chances(s: Strip): TemplateResult {
    return bars(s.values.map((v, i) => ({ name: word(s.words?.[i] ?? ""), value: v ?? 0, line: this.line(s, i), full: `${this.named(s.name)} · ${word(s.words?.[i] ?? "")}` })), { label: this.named(s.name), as: "percent", most: 1 });
  }

  private attention(strips: Strip[], walk: Answer): TemplateResult {
    const of = (name: string): Strip | undefined => strips.find((s) => s.name === name);
    const element = ["q", "k", "product", "running"].map(of).filter((s): s is Strip => !!s);
    const turned = of("q before");
    return html`${this.fold("sides", html`<b>${this.t("walk.sides")}</b> ${this.shaped(of("q"))}`, html`<div class="scroll" tabindex="0" role="region" aria-label=${this.t("walk.sides")}><table class="walk-product"><tbody>${element.map((s) => this.aligned(s))}</tbody></table></div>`)}
      ${this.fold("formula", html`<b>${this.t("walk.formula")}</b>`, this.formula(of, walk))}
      ${this.fold("row", html`<b>${this.t("walk.row")}</b> ${this.shaped(of("pattern"))}`, this.everyone(of))}
      <p class="about">${this.t("walk.given")}</p>
      ${["v", "given", "z"].map(of).map((s) => (s ? this.fold(s.name, this.heading(s), this.numbers(s), !narrow()) : nothing))}
      ${turned ? this.fold(turned.name, this.heading(turned), this.numbers(turned), false) : nothing}`;
  }

  private aligned(s: Strip): TemplateResult {
    const most = this.most(s);
    return html`<tr><th scope="row" class=${`role ${ROLES[s.name] ?? ""}`}>${this.named(s.name)}</th>${s.values.map((v, i) => html`<td><button type="button" style=${tinted((v ?? 0) / most)}
      @click=${(e: Event) => this.tell(e, s, i)}>${tight(v)}</button></td>`)}</tr>`;
  }

  private formula(of: (name: string) => Strip | undefined, walk: Answer): TemplateResult {
    const one = (name: string): TemplateResult => {
      const s = of(name);
      return s ? html`<span class="walk-term">${num(s.values[0] ?? NaN, this.named(name), this.line(s, 0))}<small>${this.named(name)}</small></span>` : html``;
    };
    const mask = of("mask");
    const added = mask?.values[mask.at ?? 0];
    const hidden: string = walk.reason;
    return html`<p class="walk-formula">${one("sum")}<span>×</span>${one("scale")}<span>=</span>${one("scaled sum")}
      ${mask ? html`<span>+</span><span class="walk-term">${num(added ?? "−∞", this.named("mask"), this.line(mask, mask.at ?? 0))}<small>${hidden ? this.t("walk.masked", this.t(reason(hidden))) : this.t("walk.open")}</small></span>` : nothing}
      <span>→ softmax →</span><span class="walk-term result">${num(walk.weight, this.named("weight"), walk.line, percent(walk.weight))}<small>${this.named("weight")}</small></span></p>`;
  }

  /** All keys: score and weight side by side, windowed round the key on show. */
  private everyone(of: (name: string) => Strip | undefined): TemplateResult {
    const [score, pattern] = [of("score"), of("pattern")];
    if (!pattern) return html``;
    const tokens = this.page.tokens("keys");
    const from = pattern.from ?? 0;
    const mask = of("mask");
    return html`<div class="walk-row"><table class="bars" aria-label=${this.t("walk.row")}><thead><tr><th scope="col">${this.t("key")}</th><td></td><th scope="col">${this.named("weight")}</th><th scope="col">${this.named("score")}</th></tr></thead>
      <tbody>${pattern.values.map((v, i) => {
        const name = word(tokens[from + i]?.text ?? "");
        const raw = score?.values[i - (score.from ?? 0) + from];
        const hidden = mask?.values[i] === null;
        return html`<tr class=${`${i === pattern.at ? "current" : ""} ${hidden ? "out" : ""}`}><th scope="row"><button type="button" class="word" @click=${() => this.page.set({ key: from + i })}>${name}</button></th>
          <td class="track" aria-hidden="true"><i class="plus" style=${`left:0;width:${100 * (v ?? 0)}%`}></i></td>
          <td class="end">${num(v ?? 0, `${this.named("weight")} · ${name}`, this.line(pattern, i), percent(v ?? 0))}</td>
          <td class="end">${score ? num(raw ?? NaN, `${this.named("score")} · ${name}`, `(${score.line})[${from + i}]`, short(raw, 2)) : nothing}</td></tr>`;
      })}</tbody></table></div>`;
  }
}

const counted = (n: number): [number, string][] => Array.from({ length: n }, (_, i) => [i, shown(i)]);

panel({ name: "walk", element: "q-walk", order: 30, fits: (meta) => meta.panels.includes("walk") }, Walk);
