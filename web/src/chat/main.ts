/** The chat page: one list of turns above, one box below; a model that translates shows lines beside lines.
 *
 * Every word of an answer is a link to the inside of that answer. Read next: client.ts. */
import { LitElement, html, nothing, type TemplateResult } from "lit";
import { state } from "lit/decorators.js";
import type { Lang } from "../select";
import "../look.css";
import "./chat.css";
import { Refusal, kindOf, login, models, translate, write, type Kind, type Made, type Model, type Turn } from "./client";
import { say, type Word } from "./words";

interface Exchange { asked: string; answers: Made[]; trouble: string }

export class QChat extends LitElement {
  @state() private language: Lang = recall("lang") === "en" || recall("lang") === "zh" ? (recall("lang") as Lang) : navigator.language.startsWith("zh") ? "zh" : "en";
  @state() private models: Model[] = [];
  @state() private model = "";
  @state() private turns: Exchange[] = [];
  @state() private draft = "";
  @state() private trouble = "";
  @state() private busy: AbortController | null = null;
  @state() private locked = false;
  @state() private copied: Made | null = null;
  private temperature = 0.7;
  private length = 512;
  private system = "";

  protected override createRenderRoot(): HTMLElement {
    return this;
  }

  override connectedCallback(): void {
    super.connectedCallback();
    this.locked = this.hasAttribute("locked");
    if (!this.locked) void this.begin();
  }

  private async begin(): Promise<void> {
    await this.guard(async () => {
      const found = (await models(this.language)).filter((one) => kindOf(one) !== "none");
      this.models = found;
      this.model = found.some((one) => one.id === this.model) ? this.model : (found[0]?.id ?? "");
      if (!found.length) this.trouble = this.t("none");
    });
  }

  private t = (word: Word, fill = ""): string => say(this.language, word, fill);

  private get kind(): Kind {
    const found = this.models.find((one) => one.id === this.model);
    return found ? kindOf(found) : "chat";
  }

  /** Does something, and says what went wrong. */
  private async guard(action: () => Promise<void>): Promise<void> {
    this.trouble = "";
    try {
      await action();
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") return;
      this.trouble = error instanceof Refusal ? error.message : this.t("lost");
    }
  }

  private async send(): Promise<void> {
    const asked = this.draft;
    if (!asked.trim() || this.busy) return;
    this.draft = "";
    await this.answer({ asked, answers: [], trouble: "" });
  }

  /** Has an exchange answered, as the last one. */
  private async answer(exchange: Exchange): Promise<void> {
    const kind = this.kind;
    const before = this.turns.filter((one) => one !== exchange);
    this.turns = [...before, exchange];
    this.busy = new AbortController();
    this.follow();
    await this.guard(async () => {
      const { signal } = this.busy!;
      if (kind === "translate") exchange.answers = await translate(this.model, exchange.asked.split("\n"), this.language, signal);
      else await write(this.model, this.conversation(before, exchange.asked), kind, { temperature: this.temperature, max_tokens: this.length }, this.language, signal, (made) => {
        exchange.answers = [made];
        this.turns = [...this.turns];
        this.follow();
      });
    });
    exchange.trouble = this.trouble;
    this.trouble = "";
    this.busy = null;
    this.turns = [...this.turns];
    if (!this.models.find((one) => one.id === this.model)?.loaded) void this.begin(); // it is now, and says more of itself
    this.follow();
    await this.updateComplete;
    this.querySelector("textarea")?.focus();
  }

  /** Has the last exchange answered anew. */
  private repeat(exchange: Exchange): void {
    this.turns = this.turns.filter((one) => one !== exchange);
    void this.answer({ asked: exchange.asked, answers: [], trouble: "" });
  }

  private conversation(before: Exchange[], asked: string): Turn[] {
    const said = before.filter((one) => !one.trouble).flatMap((one): Turn[] => [
      { role: "user", content: one.asked }, { role: "assistant", content: one.answers.map(textOf).join("\n") }]);
    return [...(this.system ? [{ role: "system", content: this.system } as Turn] : []), ...said, { role: "user", content: asked }];
  }

  /** Follows the answer while it is written, unless the reader looks at something above. */
  private follow(): void {
    const page = document.scrollingElement!;
    if (page.scrollHeight - page.scrollTop - page.clientHeight > 160 && this.busy && this.turns.at(-1)?.answers.length) return;
    void this.updateComplete.then(() => page.scrollTo({ top: page.scrollHeight }));
  }

  /** Takes a question back into the box, with all that followed it gone. */
  private edit(exchange: Exchange): void {
    this.busy?.abort();
    this.turns = this.turns.slice(0, this.turns.indexOf(exchange));
    this.draft = exchange.asked;
    void this.updateComplete.then(() => this.querySelector("textarea")?.focus());
  }

  private async copy(made: Made[]): Promise<void> {
    await navigator.clipboard.writeText(made.map(textOf).join("\n"));
    this.copied = made[0] ?? null;
    setTimeout(() => (this.copied = null), 1500);
  }

  private async enter(event: Event): Promise<void> {
    event.preventDefault();
    const field = this.querySelector<HTMLInputElement>("input[name=key]")!;
    await this.guard(async () => {
      await login(field.value, this.language);
      this.locked = false;
      await this.begin();
    });
  }

  private typed(event: KeyboardEvent): void {
    const enough = event.key === "Enter" && !event.isComposing && (this.kind === "translate" ? event.ctrlKey || event.metaKey : !event.shiftKey);
    if (!enough) return;
    event.preventDefault();
    void this.send();
  }

  protected override willUpdate(): void {
    document.documentElement.lang = this.language === "zh" ? "zh-CN" : "en";
  }

  protected override render(): TemplateResult {
    return html`<header class="top chat-top"><div class="brand"><h1>qkv</h1>
        ${this.models.length ? html`<label class="pick"><span class="hidden">${this.t("model")}</span><select .value=${this.model} ?disabled=${this.busy !== null} @change=${(e: Event) => this.choose((e.target as HTMLSelectElement).value)}>
          ${this.models.map((one) => html`<option value=${one.id} ?selected=${one.id === this.model}>${one.id}</option>`)}</select></label>` : nothing}
        ${this.turns.length ? html`<button type="button" class="quiet" ?disabled=${this.busy !== null} @click=${() => (this.turns = [])}>${this.t("new")}</button>` : nothing}
        <button type="button" class="quiet language" lang=${this.language === "zh" ? "en" : "zh"} aria-label=${this.t("language.about")} @click=${this.turn}>${this.t("language")}</button></div></header>
      ${this.locked ? this.door() : html`<main class="talk" aria-live="polite">${this.turns.length ? this.turns.map((one, n) => this.exchange(one, n === this.turns.length - 1)) : html`<p class="about">${this.t(`begin.${this.kind === "none" ? "chat" : this.kind}` as Word)}</p>`}
        ${this.trouble ? html`<p class="trouble" role="alert">${this.trouble}</p>` : nothing}</main>
      ${this.models.length ? this.box() : nothing}`}`;
  }

  private turn = (): void => {
    this.language = this.language === "zh" ? "en" : "zh";
    sessionStorage.setItem("lang", this.language);
  };

  private choose(model: string): void {
    const before = this.kind;
    this.model = model;
    if (this.kind !== before) this.turns = [];
  }

  private door(): TemplateResult {
    return html`<main class="talk"><form class="door" @submit=${(e: Event) => this.enter(e)}><p>${this.t("key.about")}</p>
      <label>${this.t("key")} <input name="key" type="password" autocomplete="current-password" required></label>
      <button class="go">${this.t("enter")}</button>${this.trouble ? html`<p class="trouble" role="alert">${this.trouble}</p>` : nothing}</form></main>`;
  }

  private exchange(one: Exchange, last: boolean): TemplateResult {
    const waits = last && this.busy && !one.answers.length;
    return html`<section class="exchange">
      <div class="asked"><h2 class="hidden">${this.t("you")}</h2><p>${one.asked}</p>
        <button type="button" class="quiet" @click=${() => this.edit(one)}>${this.t("edit")}</button></div>
      <div class="answered" ?busy=${waits}><h2 class="hidden">${this.model}</h2>${waits ? html`<p class="about">${this.t("waiting")}</p>` : nothing}
        ${one.answers.map((made) => html`<p class="answer">${this.kind === "text" ? html`<span class="given">${one.asked}</span>` : nothing}${made.pieces.map((piece) => this.piece(made, piece))}</p>`)}
        ${one.answers.some((made) => made.finish === "length") ? html`<p class="note">${this.t("length.end")}</p>` : nothing}
        ${one.trouble ? html`<p class="trouble" role="alert">${one.trouble}</p>` : nothing}
        ${last && this.busy ? nothing : html`<div class="acts">
          ${one.answers.length ? html`<button type="button" class="quiet" @click=${() => this.copy(one.answers)}>${this.t(this.copied && this.copied === one.answers[0] ? "copied" : "copy")}</button>` : nothing}
          ${last ? html`<button type="button" class="quiet" @click=${() => this.repeat(one)}>${this.t("again")}</button>` : nothing}</div>`}
      </div></section>`;
  }

  /** A piece of an answer: white space as it is, a word as the way to its inside. */
  private piece(made: Made, piece: { text: string; token: number }): TemplateResult {
    const text = piece.text;
    const core = text.trim();
    if (!core || !made.id) return html`${text}`;
    const [head, tail] = [text.slice(0, text.indexOf(core)), text.slice(text.indexOf(core) + core.length)];
    return html`${head}<a class="piece" target="_blank" rel="noopener" title=${this.t("inside")} href=${`/inside?answer=${made.id}&token=${piece.token}&lang=${this.language}`}>${core}</a>${tail}`;
  }

  private box(): TemplateResult {
    const { kind } = this;
    const act: Word = kind === "translate" ? "translate" : kind === "text" ? "write" : "send";
    return html`<form class="box" aria-label=${this.t(act)} @submit=${(e: Event) => { e.preventDefault(); void this.send(); }}>
      <textarea rows="1" aria-label=${this.t(`hint.${kind === "none" ? "chat" : kind}` as Word)} placeholder=${this.t(`hint.${kind === "none" ? "chat" : kind}` as Word)} .value=${this.draft}
        @input=${(e: Event) => (this.draft = (e.target as HTMLTextAreaElement).value)} @keydown=${(e: KeyboardEvent) => this.typed(e)}></textarea>
      ${this.busy ? html`<button type="button" class="go stop" @click=${() => this.busy?.abort()}>${this.t("stop")}</button>` : html`<button class="go" ?disabled=${!this.draft.trim()}>${this.t(act)}</button>`}
      ${kind === "translate" ? nothing : html`<details class="more"><summary>${this.t("options")}</summary><div>
        <label>${this.t("temperature")} <input type="number" min="0" max="2" step="0.1" .value=${String(this.temperature)} @change=${(e: Event) => (this.temperature = Number((e.target as HTMLInputElement).value))}></label>
        <label>${this.t("length")} <input type="number" min="1" max="4096" .value=${String(this.length)} @change=${(e: Event) => (this.length = Number((e.target as HTMLInputElement).value))}></label>
        ${kind === "chat" ? html`<label class="wide">${this.t("system")} <input .value=${this.system} @change=${(e: Event) => (this.system = (e.target as HTMLInputElement).value)}></label>` : nothing}
      </div></details>`}</form>`;
  }
}

const textOf = (made: Made): string => made.pieces.map((piece) => piece.text).join("");

function recall(key: string): string {
  return sessionStorage.getItem(key) ?? "";
}

customElements.define("q-chat", QChat);
