/** A grid of numbers on a canvas, with a cell cursor that keys move and a screen reader hears.
 *
 * <q-matrix .data .rows .cols .rowNames .colNames .at=${[row, col]} .describe .tone="weight|signed|code">; it fires
 * q-cell {row, col} when a cell is chosen, and q-hover {row, col} under the pointer. */
import { LitElement, html, nothing } from "lit";
import { property, state } from "lit/decorators.js";
import { rgb, shade } from "./colour";

const NAMED = 48; // columns that keep their names however narrow the room is
const HIGHEST = 640; // pixels of a picture without names

export interface Spot { row: number; col: number }

/** Colours of codes: 0 open (paper blue), then one tone each; all but 0 are hatched as well. */
const CODES_LIGHT = [[198, 219, 239], [214, 218, 224], [241, 226, 204], [226, 214, 236], [206, 226, 214]];
const CODES_DARK = [[36, 78, 122], [48, 54, 62], [84, 62, 34], [70, 54, 86], [44, 76, 60]];

/** Dots of the screen to one pixel of the page: canvases are drawn as fine as they are seen. */
export const sharp = (): number => Math.min(3, Math.max(1, Math.round(devicePixelRatio)));

export class QMatrix extends LitElement {
  @property({ attribute: false }) data: ArrayLike<number> = [];
  @property({ attribute: false }) rows = 0;
  @property({ attribute: false }) cols = 0;
  /** What is written beside rows and columns; left out where cells are too small to read. */
  @property({ attribute: false }) rowNames: string[] = [];
  @property({ attribute: false }) colNames: string[] = [];
  @property({ attribute: false }) at: [number, number] = [0, 0];
  /** What a cell is called, by hover and by screen readers. */
  @property({ attribute: false }) describe: (row: number, col: number) => string = (r, c) => `${r + 1}, ${c + 1}`;
  /** weight: 0 to `most`, blue; signed: -most to most, orange to blue; code: whole numbers, 0 open. */
  @property() tone: "weight" | "signed" | "code" = "weight";
  /** The value of the deepest colour; 0: the largest there is. */
  @property({ attribute: false }) most = 1;
  @property({ attribute: false }) log = false;
  /** A column that is not drawn (its values are stated elsewhere); -1: none. */
  @property({ attribute: false }) without = -1;
  @property({ attribute: false }) hatch: ((row: number, col: number) => boolean) | null = null;
  @property({ attribute: false }) largest = 30;
  @property() label = "";
  @property({ attribute: false }) rowTitle = "";
  @property({ attribute: false }) colTitle = "";
  @state() private room = 600;
  @state() private hover: Spot | null = null;
  private watcher = new ResizeObserver(() => {
    const room = this.clientWidth;
    if (room && Math.abs(room - this.room) > 2) this.room = room;
  });
  private night = matchMedia("(prefers-color-scheme: dark)");
  private redraw = (): void => this.requestUpdate();

  protected override createRenderRoot(): HTMLElement {
    return this;
  }

  override connectedCallback(): void {
    super.connectedCallback();
    this.watcher.observe(this);
    this.night.addEventListener("change", this.redraw);
  }

  override disconnectedCallback(): void {
    super.disconnectedCallback();
    this.watcher.disconnect();
    this.night.removeEventListener("change", this.redraw);
  }

  /** Pixels that a cell takes across and down: square where it can be, higher where there are few rows.
   *
   * Few columns keep their names and may scroll; many are all in sight, without names where these cannot be read. */
  private get size(): [number, number] {
    const fit = (names: number): number => (this.room - names - 4) / Math.max(1, this.cols);
    const beside = this.rowNames.length ? 84 : 0;
    const bare = Math.min(fit(this.rows > NAMED ? 0 : beside), HIGHEST / Math.max(1, this.rows));
    const wide = fit(beside) >= 10 || this.cols <= NAMED ? Math.max(10, Math.min(this.largest, Math.floor(fit(beside)))) : bare >= 2 ? Math.floor(bare) : Math.max(0.25, bare);
    return [wide, Math.max(wide, Math.min(20, Math.floor(480 / Math.max(1, this.rows))))];
  }

  protected override render(): unknown {
    const [wide, high] = this.size;
    const [row, col] = this.at;
    const spot = this.hover ?? { row, col };
    return html`<div class="matrix" style=${`--wide:${wide}px;--high:${high}px`}>
      ${this.colTitle ? html`<div class="col-title">${this.colTitle} →</div>` : nothing}
      <div class="scroll">
        ${wide >= 10 && this.colNames.length ? html`<div class="col-names ${this.rowNames.length ? "indent" : ""}" aria-hidden="true">${this.colNames.map((name, c) => html`<span class=${c === spot.col ? "on" : ""}>${name}</span>`)}</div>` : nothing}
        <div class="body">
          ${high >= 10 && this.rowNames.length ? html`<div class="row-names" aria-hidden="true">${this.rowNames.map((name, r) => html`<span class=${r === spot.row ? "on" : ""}>${name}</span>`)}</div>` : nothing}
          <div class="cells" tabindex="0" role="application" aria-roledescription="matrix"
            aria-label=${`${this.label}. ${this.describe(row, col)}`}
            @keydown=${this.keyed} @click=${(e: MouseEvent) => this.chosen(this.under(e))}
            @pointermove=${(e: PointerEvent) => this.hovered(this.under(e))} @pointerleave=${() => this.hovered(null)}>
            <canvas width=${Math.ceil(this.cols * wide * sharp())} height=${Math.ceil(this.rows * high * sharp())} style=${`width:${this.cols * wide}px;height:${this.rows * high}px`}></canvas>
            ${this.rows && this.cols ? html`<i class="cursor" style=${`left:${col * wide}px;top:${row * high}px`}></i>` : nothing}
            ${this.hover ? html`<i class="hover" style=${`left:${this.hover.col * wide}px;top:${this.hover.row * high}px`}></i>` : nothing}
          </div>
        </div>
      </div>
      <p class="spoken"><span class="hidden" aria-live="polite">${this.describe(row, col)}</span><span aria-hidden="true">${this.rows ? this.describe(spot.row, spot.col) : ""}</span></p>
    </div>`;
  }

  protected override updated(changed: Map<PropertyKey, unknown>): void {
    if (changed.size === 1 && changed.has("hover")) return; // the cells are as they were
    const canvas = this.querySelector("canvas");
    const pen = canvas?.getContext("2d");
    if (!canvas || !pen || !this.rows || !this.cols) return;
    this.paint(pen, ...this.size);
  }

  private paint(pen: CanvasRenderingContext2D, wide: number, high: number): void {
    const night = this.night.matches;
    const picture = new ImageData(this.cols, this.rows);
    const most = this.most || Array.from(this.data).reduce((top, v) => Math.max(top, Math.abs(v)), 1e-12);
    const codes = night ? CODES_DARK : CODES_LIGHT;
    const table = Array.from({ length: 511 }, (_, i) => rgb((i - 255) / 255, night));
    for (let i = 0; i < this.rows * this.cols; i++) {
      const value = this.data[i] ?? 0;
      let paint: readonly number[];
      if (this.tone === "code") paint = codes[value % codes.length]!;
      else {
        const x = i % this.cols === this.without ? 0 : Math.max(-1, Math.min(1, value / most));
        const toned = Math.sign(x) * shade(Math.abs(x), this.log);
        paint = table[255 + Math.round((this.tone === "weight" ? Math.abs(toned) : toned) * 255)]!;
      }
      picture.data.set([paint[0]!, paint[1]!, paint[2]!, 255], i * 4);
    }
    const small = document.createElement("canvas");
    [small.width, small.height] = [this.cols, this.rows];
    small.getContext("2d")!.putImageData(picture, 0, 0);
    pen.setTransform(sharp(), 0, 0, sharp(), 0, 0);
    pen.imageSmoothingEnabled = wide % 1 !== 0; // no cell is lost where there are fewer dots than cells
    pen.drawImage(small, 0, 0, this.cols * wide, this.rows * high);
    const line = getComputedStyle(this).getPropertyValue(this.tone === "code" ? "--paper" : "--line"); // codes fill their cells
    if (Math.min(wide, high) >= 6) this.hatched(pen, wide, high, getComputedStyle(this).getPropertyValue("--hatch"));
    if (wide >= 10) this.ruled(pen, wide, high, line);
  }

  private hatched(pen: CanvasRenderingContext2D, wide: number, high: number, line: string): void {
    pen.strokeStyle = line;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let r = 0; r < this.rows; r++) {
      for (let c = 0; c < this.cols; c++) {
        const out = c === this.without || (this.hatch ? this.hatch(r, c) : this.tone === "code" && this.data[r * this.cols + c]);
        if (!out) continue;
        const [x, y] = [c * wide, r * high];
        pen.moveTo(x, y + high);
        pen.lineTo(x + wide, y);
        if (wide < 16) continue;
        pen.moveTo(x, y + high / 2);
        pen.lineTo(x + wide / 2, y);
        pen.moveTo(x + wide / 2, y + high);
        pen.lineTo(x + wide, y + high / 2);
      }
    }
    pen.stroke();
  }

  private ruled(pen: CanvasRenderingContext2D, wide: number, high: number, line: string): void {
    pen.strokeStyle = line;
    pen.globalAlpha = 0.5;
    pen.beginPath();
    for (let c = 0; c <= this.cols; c++) {
      pen.moveTo(c * wide + 0.5, 0);
      pen.lineTo(c * wide + 0.5, this.rows * high);
    }
    for (let r = 0; r <= this.rows; r++) {
      pen.moveTo(0, r * high + 0.5);
      pen.lineTo(this.cols * wide, r * high + 0.5);
    }
    pen.stroke();
    pen.globalAlpha = 1;
  }

  private under(event: MouseEvent): Spot {
    const box = (event.currentTarget as HTMLElement).querySelector("canvas")!.getBoundingClientRect();
    const col = Math.floor(((event.clientX - box.left) / box.width) * this.cols);
    const row = Math.floor(((event.clientY - box.top) / box.height) * this.rows);
    return { row: Math.max(0, Math.min(row, this.rows - 1)), col: Math.max(0, Math.min(col, this.cols - 1)) };
  }

  private hovered(spot: Spot | null): void {
    if (spot?.row === this.hover?.row && spot?.col === this.hover?.col) return;
    this.hover = spot;
    this.dispatchEvent(new CustomEvent("q-hover", { detail: spot, bubbles: true }));
  }

  private chosen(spot: Spot): void {
    this.at = [spot.row, spot.col]; // at once: keys may come faster than answers
    this.dispatchEvent(new CustomEvent<Spot>("q-cell", { detail: spot, bubbles: true }));
  }

  private keyed(event: KeyboardEvent): void {
    const step: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = step[event.key];
    let [row, col] = this.at;
    if (move) [row, col] = [row + move[0], col + move[1]];
    else if (event.key === "Home") col = 0;
    else if (event.key === "End") col = this.cols - 1;
    else if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    this.chosen({ row: Math.max(0, Math.min(row, this.rows - 1)), col: Math.max(0, Math.min(col, this.cols - 1)) });
  }
}
customElements.define("q-matrix", QMatrix);
