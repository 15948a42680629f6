/** What each layer would say at each position: a grid of words, coloured by their chance; the last row is the answer. */
import { html, nothing, type TemplateResult } from "lit";
import { state } from "lit/decorators.js";
import type { Answer } from "../client";
import { bars } from "../draw/bars";
import { choice } from "../draw/choose";
import { cell as tinted, scale, shade } from "../draw/colour";
import { num, percent } from "../draw/number";
import { reveal } from "../draw/reveal";
import { word } from "../draw/strip";
import { Panel, panel, type Token } from "../panel";
import { clamp } from "../select";
import "./guess-map.css";

type Guess = [piece: string, chance: number];
interface Spot { row: number; pos: number }

const WIDE = 32;
const FEW = 12; // layers that are all in sight; of more, the grid scrolls under its words
const READINGS = ["best", "besides", "rank"] as const; // what a cell says: its guess, its guess besides the word just read, the answer's rank
const COPIES = 0.2; // of the cells below the last layer that repeat the word just read, from which on the page speaks of it

class GuessMap extends Panel {
  @state() private hover: Spot | null = null;
  @state() private from = -1;
  @state() private reading: (typeof READINGS)[number] = "best";

  protected asks(): Record<string, string> {
    return { lens: this.run("lens", { top: 5, own: this.reading === "besides" ? 0 : undefined }) };
  }

  private get tokens(): Token[] {
    const { meta } = this.page;
    return (meta.decoder ?? meta.encoder)!.tokens;
  }

  /** The id that really follows a position; an encoder fills in the position itself. */
  private follows(pos: number): number | undefined {
    const { decoder, written } = this.page.meta;
    if (!decoder) return undefined;
    return this.tokens[pos + 1]?.id ?? written?.at(-1)?.id;
  }

  protected view(answers: Record<string, Answer>): TemplateResult {
    const lens = answers.lens!;
    const { layers, cells, first } = lens as unknown as { layers: string[]; cells: Guess[][][]; first: number };
    const count = cells[0]!.length;
    const spot = this.spot(layers.length, first, count);
    const from = Math.max(0, Math.min(this.from >= 0 ? this.from : spot.pos - first - WIDE / 4, count - WIDE));
    const writes = this.page.meta.decoder ? this.page.meta.decoder.prompt - 1 : -1; // where the first word is written
    const seen = Array.from({ length: Math.min(WIDE, count) }, (_, i) => from + i);
    const at = this.hover ?? spot;
    return html`
      <div class="controls">${choice(this.t("guess-map.reading"), READINGS.map((r) => [r, this.t(`guess-map.${r}`)]), this.reading, (r) => (this.reading = r))}</div>
      ${this.copies(lens)}
      ${count > WIDE || layers.length > FEW ? html`<div class="controls"><button type="button" ?disabled=${from === 0} @click=${() => (this.from = Math.max(0, from - WIDE / 2))}>${this.t("guess-map.earlier")}</button>
        <button type="button" ?disabled=${from + WIDE >= count} @click=${() => (this.from = from + WIDE / 2)}>${this.t("guess-map.later")}</button>
        ${writes < first ? nothing : html`<button type="button" ?disabled=${spot.pos === writes && this.from < 0} @click=${() => this.choose(Math.max(1, spot.row), writes)}>${this.t("guess-map.first")}</button>`}</div>` : nothing}
      <div class="guess ${layers.length > FEW ? "many" : ""}"><div class="scroll" tabindex="-1">
        <table class="guess-grid" role="grid" aria-label=${this.t("guess-map.grid")} @keydown=${(e: KeyboardEvent) => this.keyed(e, layers.length, first, count)} @pointerleave=${() => (this.hover = null)}>
          <thead><tr><td></td>${seen.map((i) => html`<th scope="col" class=${i + first === at.pos ? "on" : ""}>${word(this.tokens[i + first]?.text ?? "")}</th>`)}</tr></thead>
          <tbody>${[...layers.keys()].reverse().map((row) => html`<tr><th scope="row">${this.layer(layers[row]!)}</th>${seen.map((i) => this.cell(lens, row, i, spot))}</tr>`)}</tbody>
          ${this.page.meta.decoder ? html`<tfoot><tr><th scope="row">${this.t("guess-map.really")}</th>${seen.map((i) => html`<td class=${lens.used[i] ? "" : "given"}>${this.following(i + first)}</td>`)}</tr></tfoot>` : nothing}
        </table></div>
        ${this.detail(lens, at)}</div>
      <p class="note">${this.reading === "rank" ? html`${scale(this.t("guess-map.rank.low"), this.t("guess-map.rank.high"))} ${this.t("guess-map.rank.about")}` : scale(this.t("guess-map.scale"), "100%")}</p>
      <p class="note">${this.page.meta.decoder ? html`${this.t("guess-map.thrown")} ${this.t("guess-map.hit")}` : this.t("guess-map.thrown.encoder")}</p>
      <p class="note">${this.t("guess-map.caution")}</p>`;
  }

  /** Where one table reads and writes, a state that has not moved yet says the word that was just read: said where it is so. */
  private copies(lens: Answer): TemplateResult | typeof nothing {
    if (this.reading !== "best" || !this.page.meta.decoder) return nothing;
    const below = (lens.ids as number[][][]).slice(0, -1).flatMap((row) => row.map((best, i) => best[0] === this.tokens[i + lens.first]?.id));
    const same = below.filter(Boolean).length;
    return same < COPIES * below.length ? nothing : html`<p class="said">${this.t("guess-map.copies", same, below.length)}</p>`;
  }

  /** The cell of the selection; the row above the last layer's is not there, the row below the first is the embedding. */
  private spot(rows: number, first: number, count: number): Spot {
    const { part, layer, query } = this.page.state;
    const other = part === "encoder" && this.page.meta.decoder; // the words are the decoder's
    return { row: clamp(layer + 1, rows), pos: first + clamp((other ? this.page.meta.decoder!.prompt - 1 : query) - first, count) };
  }

  private layer(name: string): string {
    return name === "embed" ? this.t("guess-map.embed") : this.t("guess-map.layer", name);
  }

  private following(pos: number): string {
    const text = this.tokens[pos + 1]?.text ?? this.page.meta.written?.at(-1)?.text;
    return text === undefined ? "" : word(text);
  }

  private cell(lens: Answer, row: number, i: number, spot: Spot): TemplateResult {
    const pos = i + lens.first;
    const [piece, chance] = lens.cells[row][i][0] as Guess;
    const chosen = spot.row === row && spot.pos === pos;
    const last = lens.cells.length - 1;
    const rank: number = lens.ranks[row][i];
    const ranked = this.reading === "rank" && row < last; // the last layer is the answer itself: it stands there in words
    const says = ranked ? String(rank) : word(piece);
    const hit = !ranked && lens.ids?.[row]?.[i]?.[0] !== undefined && lens.ids[row][i][0] === this.follows(pos);
    return html`<td role="gridcell" tabindex=${chosen ? 0 : -1} aria-selected=${String(chosen)} class=${`${lens.used[i] ? "" : "thrown"} ${chosen ? "chosen" : ""}`}
      style=${tinted(this.reading === "rank" ? shade(1 / rank, true) : chance)} data-row=${row} data-pos=${pos} @click=${() => this.choose(row, pos)} @pointerenter=${() => (this.hover = { row, pos })}
      aria-label=${ranked ? this.t("guess-map.ranked", rank, word(lens.cells[last][i][0][0])) : `${word(piece)} ${percent(chance)}`}><span>${says}</span>${hit ? html`<i aria-hidden="true">●</i>` : nothing}</td>`;
  }

  private choose(row: number, pos: number): void {
    const part = this.page.state.part === "encoder" && this.page.meta.decoder ? "decoder" : this.page.state.part;
    this.page.set({ part, layer: Math.max(0, row - 1), query: pos });
    this.hover = row === 0 ? { row, pos } : null; // the embedding is below the first layer: it is shown, not selected
  }

  private keyed(event: KeyboardEvent, rows: number, first: number, count: number): void {
    const move = ({ ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] } as Record<string, [number, number]>)[event.key];
    if (!move) return;
    event.preventDefault();
    const now = this.spot(rows, first, count);
    this.from = -1;
    this.choose(Math.max(1, clamp(now.row + move[0], rows)), first + clamp(now.pos - first + move[1], count));
    void this.updateComplete.then(() => this.querySelector<HTMLElement>("td.chosen")?.focus());
  }

  private detail(lens: Answer, at: Spot): TemplateResult {
    const i = at.pos - lens.first;
    const guesses = (lens.cells[at.row]?.[i] ?? []) as Guess[];
    const title = this.t("guess-map.about.cell", this.layer(lens.layers[at.row]), at.pos + 1, word(this.tokens[at.pos]?.text ?? ""));
    return html`<div class="guess-detail"><h3>${title}</h3>${bars(guesses.map(([piece, chance], n) => ({
      name: word(piece), value: chance, full: `${this.t("guess-map.chance", word(piece))} · ${title}`, line: `(${lens.line})[${at.row}, ${i}, ${n}]`,
    })), { label: this.t("guess-map.top"), as: "percent", most: 1 })}
      <p class="note">${this.t("guess-map.rank.of", word(lens.cells.at(-1)[i][0][0]))} ${num(lens.ranks[at.row][i], `${this.t("guess-map.rank.of", word(lens.cells.at(-1)[i][0][0]))} · ${title}`, `(${lens.lines.ranks})[${at.row}, ${i}]`)}</p>
      ${lens.used[i] ? nothing : html`<p class="note">${this.t("guess-map.is-thrown")}</p>`}</div>`;
  }

  protected override updated(): void {
    const box = this.querySelector<HTMLElement>(".guess .scroll");
    if (box && !this.hover) reveal(box, this.querySelector("td.chosen"), { left: 96, top: 32, ahead: box.clientWidth / 2 });
  }
}
panel({ name: "guess-map", element: "q-guess-map", order: 25, fits: (meta) => meta.panels.includes("lens") }, GuessMap);
