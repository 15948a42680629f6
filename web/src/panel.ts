/** What a panel is: it names the answers it needs for the selection, and draws them when all are there.
 *
 * Panels live in panels/, one file each, and register themselves; panels/all.ts lists the files. They draw into the
 * light DOM, so look.css holds for them; a panel may import its own .css. Words come from words.ts only. */
import { LitElement, html, nothing, noChange, type TemplateResult } from "lit";
import { property, state } from "lit/decorators.js";
import { canonical, Trouble, type Answer, type Client, type Value, type Watch } from "./client";
import { written, type Question, type Selection } from "./select";
import type { Key } from "./words";

export interface Token { text: string; id: number; bytes?: string }
export interface Part { part: string; path_of_layer: string[]; layers: number; heads: number; groups: number; queries: number; keys: number }
export interface Meta {
  text: string; output: string; kind: string;
  encoder: { tokens: Token[] } | null;
  decoder: { tokens: Token[]; prompt: number; phases: string[] } | null;
  parts: Part[]; panels: string[]; check: number | null; said: { zh: string; en: string }[];
  cut: Question["cut"] | null; line?: string;
  /** What was asked, as it is put. */
  question?: Question;
  /** Every token that was written: the last of them is not read again, so the decoder's tokens end before it. */
  written?: (Token & { p: number; forced: boolean })[];
  labels?: [string, number][] | null;
  [key: string]: any;
}
export interface About {
  models: string[]; model: string; kind: string; lang: string; examples: string[]; longest: number;
  card: Record<string, any>;
  /** The model that the server was started with. */
  home: string; [key: string]: any;
}

/** What a panel is given. A new object whenever any of it changes. */
export interface Page {
  client: Client;
  about: About;
  meta: Meta;
  state: Selection;
  /** The words of a key in the page's language; {0}, {1} … are filled in. */
  t(key: Key, ...fill: (string | number)[]): string;
  /** Changes the selection, and with it the URL and every panel. */
  set(change: Partial<Selection>): void;
  /** Asks a new question of the model; the page shows its run when it is there. */
  ask(question: Question): void;
  /** The attention that the selection means. */
  part: Part;
  /** The tokens that ask and the tokens that are asked in an attention. */
  tokens(side: "queries" | "keys", part?: Part): Token[];
}

/** `begins`: the part that it shows first where the page stands at the attention across. */
export interface PanelEntry { name: string; element: string; order: number; fits(meta: Meta): boolean; begins?: string }
export const panels: PanelEntry[] = [];

/** Registers a panel and its element. The words `NAME.title` and `NAME.about` are its heading and first sentence. */
export function panel(entry: PanelEntry, element: CustomElementConstructor): void {
  customElements.define(entry.element, element);
  panels.push(entry);
  panels.sort((a, b) => a.order - b.order);
}

type Asked = Record<string, string | undefined>;

/** The base of every panel. */
export abstract class Panel extends LitElement {
  @property({ attribute: false }) page!: Page;
  @state() private answers: Record<string, Answer> = {};
  @state() private troubles: Record<string, Trouble> = {};
  @state() private underway: Record<string, number> = {}; // of work that tells how far it is
  private asked: Asked = {};
  private drawn = false;
  private whole: Selection | null = null;

  protected override createRenderRoot(): HTMLElement {
    return this;
  }

  /** The answers needed now: a name of your own -> a path by `this.run(...)` or `this.api(...)`; undefined: not needed. */
  protected abstract asks(): Asked;

  /** The picture, once every answer is there. */
  protected abstract view(answers: Record<string, Answer>): TemplateResult;

  /** A path about the run on show: `this.run("attn", {part, layer, head})`. */
  protected run(path: string, query: Record<string, Value> = {}): string {
    return canonical(`r/${this.page.state.run}/${path}`, query);
  }

  /** A path about the model. */
  protected api(path: string, query: Record<string, Value> = {}): string {
    const { model, home } = this.page.about;
    return canonical(path, { ...query, model: model === home ? undefined : model });
  }

  /** Words of the page's language. */
  protected t(key: Key, ...fill: (string | number)[]): string {
    return this.page.t(key, ...fill);
  }

  protected override willUpdate(): void {
    if (!this.page) return;
    const wanted = this.asks();
    for (const [name, path] of Object.entries(wanted)) {
      if (path === this.asked[name]) continue;
      delete this.answers[name];
      delete this.troubles[name];
      delete this.underway[name];
      if (path) this.fetch(name, path);
    }
    this.asked = wanted;
  }

  private fetch(name: string, path: string): void {
    const watch: Watch = { share: (done) => (this.underway = { ...this.underway, [name]: done }), wanted: () => this.isConnected && this.asked[name] === path };
    this.page.client.get(path, watch).then(
      (answer) => {
        if (this.asked[name] === path) this.answers = { ...this.answers, [name]: answer };
      },
      (error: unknown) => {
        if (this.asked[name] !== path) return;
        const said = error instanceof Trouble ? error : new Trouble({ zh: String(error), en: String(error) });
        this.troubles = { ...this.troubles, [name]: said };
        this.dispatchEvent(new CustomEvent("q-trouble", { detail: said, bubbles: true }));
      },
    );
  }

  protected override render(): unknown {
    if (!this.page) return nothing;
    const wanted = Object.entries(this.asked).filter(([, path]) => path);
    const ready = wanted.every(([name]) => this.answers[name]);
    const trouble = wanted.map(([name]) => this.troubles[name]).find(Boolean);
    this.toggleAttribute("busy", !ready && !trouble);
    this.toggleAttribute("stale", trouble !== undefined);
    if (ready) [this.drawn, this.whole] = [true, this.page.state];
    // the picture before stays until the new one is whole: nothing jumps, and what was typed wrong can be typed again
    const body = ready ? this.view(this.answers) : this.drawn ? noChange : trouble ? nothing : html`<p class="waiting" role="status">${this.t("waiting")}</p>`;
    return html`${trouble ? this.failed(trouble) : nothing}${ready || trouble ? nothing : this.bar()}${body}`;
  }

  /** How far long work is, where some is under way. */
  private bar(): unknown {
    const shares = Object.keys(this.asked).filter((name) => name in this.underway).map((name) => this.underway[name]!);
    const done = shares.reduce((sum, x) => sum + x, 0) / shares.length;
    return shares.length ? html`<p class="note"><progress max="1" .value=${done} aria-label=${this.t("waiting")}></progress> ${Math.round(100 * done)} %</p>` : nothing;
  }

  /** What went wrong, and where the selection is another one than that of the last whole picture, the way back. */
  private failed(trouble: Trouble): TemplateResult {
    const { whole } = this;
    const { state } = this.page;
    const back = whole && whole.run === state.run && whole.panel === state.panel && written(whole) !== written({ ...state, lang: whole.lang });
    return html`<p class="trouble" role="alert">${trouble.said[state.lang]}</p>
      ${back ? html`<button type="button" @click=${() => this.page.set({ ...whole, lang: state.lang })}>${this.t("back")}</button>` : nothing}`;
  }
}
