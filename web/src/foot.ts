/** The bar at the foot: the number that was clicked last, its name, full value and the Python line that gives it. */
import { LitElement, html } from "lit";
import { property, state } from "lit/decorators.js";
import { type Chip } from "./draw/number";
import { say } from "./words";
import type { Lang } from "./select";

export class QFoot extends LitElement {
  @property() language: Lang = "en";
  @property({ attribute: false }) chip: Chip | null = null;
  @state() private copied = false;

  protected override createRenderRoot(): HTMLElement {
    return this;
  }

  protected override willUpdate(changed: Map<string, unknown>): void {
    if (changed.has("chip")) this.copied = false;
  }

  protected override render(): unknown {
    const chip = this.chip;
    if (!chip) return html`<footer class="foot"><p>${say(this.language, "number.hint")}</p></footer>`;
    return html`<footer class="foot" aria-label=${say(this.language, "number")}>
      <p class="foot-number" role="status"><span class="foot-name">${chip.name}</span> <output>${String(chip.value)}</output></p>
      ${chip.line ? html`<code tabindex="0">${chip.line}</code>
      <button type="button" @click=${() => this.copy(chip.line!)}>${say(this.language, this.copied ? "copied" : "copy")}</button>` : ""}
    </footer>`;
  }

  private async copy(line: string): Promise<void> {
    try {
      await navigator.clipboard.writeText(line);
    } catch {
      // no clipboard from file:// in some browsers: mark the line, so that one key copies it
      getSelection()?.selectAllChildren(this.querySelector("code")!);
    }
    this.copied = true;
  }
}
customElements.define("q-foot", QFoot);
