/** <q-player>: a slider over steps with a play button; where motion is unwelcome, play goes one step at a time.
 *
 * .from .to .now .label .shows .play (words of the button); it fires q-step with the step as detail. */
import { LitElement, html } from "lit";
import { property, state } from "lit/decorators.js";
import { slider } from "./choose";

export class QPlayer extends LitElement {
  @property({ attribute: false }) from = 0;
  @property({ attribute: false }) to = 1;
  @property({ attribute: false }) now = 0;
  @property({ attribute: false }) label = "";
  @property({ attribute: false }) shows = "";
  /** What the button is called: [play, stop, one step on]. */
  @property({ attribute: false }) says: [string, string, string] = ["▶", "■", "→"];
  @property({ attribute: false }) pause = 650;
  @state() private timer = 0;
  private still = matchMedia("(prefers-reduced-motion: reduce)");

  protected override createRenderRoot(): HTMLElement {
    return this;
  }

  override disconnectedCallback(): void {
    super.disconnectedCallback();
    this.stop();
  }

  private stop(): void {
    clearInterval(this.timer);
    this.timer = 0;
  }

  private go(step: number): void {
    this.dispatchEvent(new CustomEvent<number>("q-step", { detail: step, bubbles: true }));
  }

  private next(): void {
    if (this.now >= this.to) return this.stop();
    this.go(this.now + 1);
  }

  private pressed(): void {
    if (this.timer) return this.stop();
    const start = this.now >= this.to;
    if (this.still.matches) return this.go(start ? this.from : this.now + 1);
    if (start) this.go(this.from);
    this.timer = window.setInterval(() => this.next(), this.pause);
  }

  protected override render(): unknown {
    const [play, stop, on] = this.says;
    const name = this.timer ? stop : this.still.matches ? on : play;
    return html`<div class="player"><button type="button" class="play" aria-label=${name} title=${name} ?disabled=${this.to <= this.from}
      @click=${this.pressed}><span aria-hidden="true">${this.timer ? "■" : this.still.matches ? "→" : "▶"}</span></button>
      ${slider(this.label, { from: this.from, to: this.to, by: 1, now: this.now, shows: this.shows || undefined, set: (n) => this.go(n) })}</div>`;
  }
}
customElements.define("q-player", QPlayer);
