/** The question: a sentence of your own, in any script, an example, how many tokens and beams; safe while an IME composes. */
import { LitElement, html, nothing } from "lit";
import { property, state } from "lit/decorators.js";
import { pick, slider } from "./draw/choose";
import type { About } from "./panel";
import type { Lang, Question } from "./select";
import { say, type Key } from "./words";

export class QAsk extends LitElement {
  @property({ attribute: false }) about!: About;
  @property({ attribute: false }) language: Lang = "en";
  @property({ attribute: false }) asked: Question | null = null;
  @property({ attribute: false }) kind = "";
  @property({ attribute: false }) busy = false;
  @property({ attribute: false }) recorded = false;
  @state() private question: Question = { text: "" };
  private composing = false;
  private edited = false; // typed in since it was sent: an answer that comes now is to an older sentence

  protected override createRenderRoot(): HTMLElement {
    return this;
  }

  protected override willUpdate(changed: Map<string, unknown>): void {
    if (changed.has("asked") && this.asked && !this.edited) {
      const { force: _, cut: __, ...kept } = this.asked; // the next sentence is a new question
      this.question = kept;
    }
  }

  private t(key: Key, ...fill: (string | number)[]): string {
    return say(this.language, key, ...fill);
  }

  private send(text = this.question.text): void {
    const question = { ...this.question, text: text.trim() };
    if (!question.second?.trim()) delete question.second;
    if (!question.text || this.busy) return;
    this.edited = false;
    this.querySelector("details")?.removeAttribute("open");
    this.dispatchEvent(new CustomEvent("q-ask", { detail: question }));
  }

  private typed(change: Partial<Question>): void {
    this.edited = true;
    this.question = { ...this.question, ...change };
  }

  private keyed(event: KeyboardEvent): void {
    // 229: Safari ends composing before it tells of the key that ended it
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || this.composing || event.keyCode === 229) return;
    event.preventDefault();
    this.send();
  }

  protected override render(): unknown {
    if (this.recorded) return this.replay();
    return html`<form class="ask" @submit=${(e: Event) => (e.preventDefault(), this.send())}>
      <label class="ask-text"><span class="hidden">${this.t("prompt")}</span><textarea rows="1" name="text" autocomplete="off" spellcheck="false"
        placeholder=${this.t("prompt.hint")} .value=${this.question.text}
        @input=${(e: Event) => this.typed({ text: (e.target as HTMLTextAreaElement).value })}
        @compositionstart=${() => (this.composing = true)} @compositionend=${() => (this.composing = false)} @keydown=${this.keyed}></textarea></label>
      <button type="submit" class="go" ?disabled=${this.busy}>${this.t(this.busy ? "running" : "run")}</button>
      <div class="ask-more">${this.examples()}${this.models()}${this.options()}</div>
    </form>`;
  }

  private examples(): unknown {
    const texts = this.about.examples;
    if (!texts.length) return nothing;
    return html`<div class="examples" role="group" aria-label=${this.t("examples")}>${texts.slice(0, 4).map((text) => html`<button type="button" class="quiet"
      aria-pressed=${String(text === this.asked?.text)} @click=${() => this.send(text)}>${text}</button>`)}</div>`;
  }

  private models(): unknown {
    const { models, model } = this.about;
    if (models.length < 2) return nothing;
    return pick(this.t("model"), models.map((m) => [m, m] as [string, string]), model, (m) => {
      const { home } = this.about;
      this.edited = false;
      this.dispatchEvent(new CustomEvent<Question>("q-ask", { detail: { text: "", ...(m === home ? {} : { model: m }) } }));
    });
  }

  private options(): unknown {
    const q = this.question;
    const writes = this.kind !== "encoder";
    return html`<details class="options" @keydown=${this.shut}><summary>${this.t("options")}</summary><div class="options-box">
      ${writes ? this.count("max", "max_new_tokens", 64) : nothing}${writes ? this.count("beam", "beam", 8) : nothing}
      <label class="second"><span>${this.t("second")}</span><input name="second" autocomplete="off" .value=${q.second ?? ""}
        @input=${(e: Event) => this.typed({ second: (e.target as HTMLInputElement).value })} @keydown=${this.keyed}></label>
    </div></details>`;
  }

  private shut(event: KeyboardEvent): void {
    if (event.key !== "Escape") return;
    const box = this.querySelector("details")!;
    box.open = false;
    box.querySelector("summary")!.focus();
  }

  /** A number that the model chooses for itself at 0. */
  private count(label: Key, key: "max_new_tokens" | "beam", most: number): unknown {
    const now = this.question[key] ?? 0;
    return slider(this.t(label), { from: 0, to: most, by: 1, now, shows: now ? String(now) : this.t("auto"), set: (n) => {
      const { [key]: _, ...rest } = this.question;
      this.question = n ? { ...rest, [key]: n } : rest;
    } });
  }

  private replay(): unknown {
    const questions: Question[] = this.about.recorded ?? this.about.examples.map((text) => ({ text }));
    return html`<div class="ask"><p class="said">${this.t("recorded")}</p><div class="examples" role="group" aria-label=${this.t("examples")}>${questions.map((q) => html`<button
      type="button" class="quiet" aria-pressed=${String(q.text === this.asked?.text && q.model === this.asked?.model)}
      @click=${() => this.dispatchEvent(new CustomEvent("q-ask", { detail: q }))}>${q.text}${this.about.models.length > 1 ? html` <small>${q.model ?? this.about.home}</small>` : nothing}</button>`)}</div></div>`;
  }
}
customElements.define("q-ask", QAsk);
