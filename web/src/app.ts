/** The shell: the question above, tokens and map on the left, one panel on the stage, the number bar below.
 *
 * It owns the selection and hands every panel one Page. Read next: panel.ts. */
import { LitElement, html, nothing, type TemplateResult } from "lit";
import { property, state } from "lit/decorators.js";
import { html as made, unsafeStatic } from "lit/static-html.js";
import { ServerClient, Trouble, canonical, type Client } from "./client";
import type { Chip } from "./draw/number";
import { bars } from "./draw/bars";
import { choice } from "./draw/choose";
import { picture, save } from "./draw/picture";
import { reveal } from "./draw/reveal";
import { strip, word } from "./draw/strip";
import { panels, type About, type Meta, type Page, type PanelEntry, type Part, type Token } from "./panel";
import { clamp, read, shown, written, type Lang, type Question, type Selection } from "./select";
import { say, type Key } from "./words";
import "./ask";
import "./foot";
import "./map";

const START: Selection = { run: "", panel: "", part: "", layer: 0, head: 0, query: 0, key: 0, step: 0, lang: navigator.language.startsWith("zh") ? "zh" : "en" };

export class QApp extends LitElement {
  @property({ attribute: false }) client: Client = new ServerClient();
  /** The panel that a page of its own frame shows alone, without touching the address; empty: the whole page. */
  @property({ attribute: false }) only = "";
  /** What a frame opens with. */
  @property({ attribute: false }) begins: Partial<Selection> = {};
  @state() private about: About | null = null;
  @state() private meta: Meta | null = null;
  @state() private selection: Selection = read(location.hash, START);
  @state() private chip: Chip | null = null;
  @state() private trouble: Trouble | null = null;
  @state() private busy = false;
  private again = false;
  private turn = 0; // what was asked or opened last: what comes later from before changes nothing

  protected override createRenderRoot(): HTMLElement {
    return this;
  }

  override connectedCallback(): void {
    super.connectedCallback();
    addEventListener("hashchange", this.moved);
    addEventListener("keydown", this.pressed);
    this.addEventListener("q-number", (e) => (this.chip = (e as CustomEvent<Chip>).detail));
    this.addEventListener("q-trouble", (e) => this.lost((e as CustomEvent<Trouble>).detail));
    void this.begin();
  }

  override disconnectedCallback(): void {
    super.disconnectedCallback();
    removeEventListener("hashchange", this.moved);
    removeEventListener("keydown", this.pressed);
  }

  private async begin(): Promise<void> {
    const named = !this.only && location.hash.includes("panel=");
    try {
      this.selection = this.only ? { ...START, panel: this.only, ...this.begins } : { ...this.selection, ...(location.hash ? {} : this.begins) };
      this.about = await this.known();
      if (this.only) return await this.ask(this.selection.ask ?? { text: this.about.examples[0] ?? "" }, true);
      if (!location.hash.includes("lang=") && !this.begins.lang && (this.about.lang === "zh" || this.about.lang === "en")) {
        this.selection = { ...this.selection, lang: this.about.lang };
      }
      if (this.selection.run) await this.open(this.selection, true);
      else await this.ask(this.selection.ask ?? this.about.recorded?.[0] ?? this.about.first ?? { text: this.about.examples[0] ?? "" }, true);
      await this.updateComplete;
      const tabs = named ? this.querySelector(".tabs") : null; // a link to a panel shows it, below the text on a phone too
      if (tabs && tabs.getBoundingClientRect().top > innerHeight / 2) tabs.scrollIntoView();
    } catch (error) {
      this.failed(error);
    }
  }

  /** What a model is; without a name, the one that the server was started with. */
  private async known(model?: string): Promise<About> {
    const found = (await this.client.get(canonical("about", { model }))) as unknown as About;
    return { ...found, home: this.about?.home ?? found.model };
  }

  /** Back, forward, or a link typed over: the selection follows the URL. */
  private moved = (): void => {
    const next = read(location.hash, this.selection);
    if (this.only) return;
    if (next.run !== this.selection.run) void this.open(next, true);
    else this.selection = this.fitting(next, this.meta);
  };

  private readonly ask = async (question: Question, replace = false): Promise<void> => {
    const turn = ++this.turn;
    this.busy = true;
    this.trouble = null;
    try {
      const model = question.model ?? this.about!.home;
      const about = model === this.about!.model ? this.about! : await this.known(model === this.about!.home ? undefined : model);
      if (turn !== this.turn) return;
      this.about = about;
      if (!question.text) question = { ...question, text: about.examples[0] ?? this.meta?.text ?? "" };
      if (!question.text) return; // a model without examples: the page waits for a sentence
      const run = await this.client.run(question);
      if (turn !== this.turn) return;
      const fresh = this.selection.run === "" || this.meta === null;
      const { ask } = this.selection;
      const other = !fresh && (question.text !== ask?.text || question.model !== ask?.model);
      await this.open({ ...this.selection, run, ask: question }, replace || fresh, other || (fresh && (this.only !== "" || !location.hash.includes("query="))), true, turn);
    } catch (error) {
      if (turn === this.turn) this.failed(error);
    } finally {
      if (turn === this.turn) this.busy = false;
    }
  };

  /** Shows a run; a run that the server let go is asked again. */
  private async open(next: Selection, replace: boolean, fresh = false, asked = fresh, turn = ++this.turn): Promise<void> {
    try {
      const meta = (await this.client.get(canonical(`r/${next.run}/meta`))) as unknown as Meta;
      const about = meta.model && this.about && meta.model !== this.about.model ? await this.known(meta.model) : this.about;
      // the run knows what it was asked, whatever a link says
      const question = { ...(meta.question ?? next.ask ?? { text: meta.text }), model: meta.model === about?.home ? undefined : meta.model };
      const chosen = { ...next, ask: question, ...(fresh ? await this.first(meta, next) : {}) };
      if (turn !== this.turn) return;
      if (next.run !== this.selection.run) this.chip = null;
      this.about = about;
      this.meta = meta;
      this.trouble = null;
      this.again = false;
      this.go(this.fitting(chosen, meta), replace);
    } catch (error) {
      if (turn !== this.turn) return;
      if (error instanceof Trouble && error.status === 404 && next.ask && !asked) {
        this.selection = next;
        await this.ask(next.ask, true);
      } else this.failed(error);
    } finally {
      if (turn === this.turn) this.busy = false;
    }
  }

  /** Where a new run begins: the last layer, a position (the mask, the one that writes the first word, or in the middle of a translation), and the key it looks at most. */
  private async first(meta: Meta, next: Selection): Promise<Partial<Selection>> {
    const part = meta.parts.find((p) => p.part === next.part) ?? usual(meta, next.panel);
    if (!part) return {};
    const asking = tokens(meta, part, "queries");
    const blank = asking.findIndex((token) => /^[[<]mask[\]>]$/i.test(token.text));
    const from = part.part === "encoder" ? 0 : meta.decoder!.prompt - 1;
    const query = blank >= 0 ? blank : meta.encoder ? Math.floor((from + asking.length - 1) / 2) : from;
    const chosen = { part: part.part, layer: part.layers - 1, head: clamp(next.head, part.heads), query };
    const row = await this.client.get(canonical(`r/${next.run}/row`, chosen));
    const weight = row.arrays!.weight!.data;
    return { ...chosen, key: weight.indexOf(Math.max(...weight)) };
  }

  /** A panel found that its run is gone: asked again, once. */
  private lost(trouble: Trouble): void {
    if (trouble.status !== 404 || this.again || !this.selection.ask) return;
    this.again = true;
    this.client.forget(this.selection.run);
    void this.client.get(canonical(`r/${this.selection.run}/meta`)).catch((error: unknown) => {
      if (error instanceof Trouble && error.status === 404) void this.ask(this.selection.ask!, true);
    });
  }

  private failed(error: unknown): void {
    this.trouble = error instanceof Trouble ? error : new Trouble({ zh: String(error), en: String(error) });
  }

  private fitting(wanted: Selection, meta: Meta | null): Selection {
    if (!meta) return wanted;
    const fits = panels.filter((p) => p.fits(meta));
    const part = meta.parts.find((p) => p.part === wanted.part) ?? usual(meta, wanted.panel);
    const panel = fits.some((p) => p.name === wanted.panel) ? wanted.panel : (fits[0]?.name ?? "");
    if (!part) return { ...wanted, panel };
    return {
      ...wanted, panel, part: part.part, layer: clamp(wanted.layer, part.layers), head: clamp(wanted.head, part.heads),
      query: clamp(wanted.query, sized(meta, part, "queries")), key: clamp(wanted.key, sized(meta, part, "keys")),
    };
  }

  private readonly set = (change: Partial<Selection>): void => {
    const next = this.fitting({ ...this.selection, ...change }, this.meta);
    this.go(next, next.panel === this.selection.panel);
  };

  private go(next: Selection, replace: boolean): void {
    this.selection = next;
    const hash = written(next);
    if (this.only || hash === location.hash) return;
    history[replace ? "replaceState" : "pushState"](null, "", hash);
  }

  private t = (key: Key, ...fill: (string | number)[]): string => say(this.selection.lang, key, ...fill);

  private page(about: About, meta: Meta): Page {
    const part = meta.parts.find((p) => p.part === this.selection.part)!;
    return {
      client: this.client, about, meta, state: this.selection, t: this.t, set: this.set, part,
      ask: (question) => void this.ask(question),
      tokens: (side, of = part) => tokens(meta, of, side),
    };
  }

  protected override willUpdate(): void {
    if (this.only) return;
    document.documentElement.lang = this.selection.lang === "zh" ? "zh-CN" : "en";
    document.title = this.meta ? `${this.meta.text.slice(0, 24)} · qkv` : "qkv";
  }

  protected override updated(): void {
    // on a narrow screen the row of tabs scrolls, and the strips of a long text do
    for (const [box, thing] of [[".tabs", "[aria-current]"], [".tokens .strip", "[aria-pressed=true]"], [".tokens .strip ~ .strip", "[aria-pressed=true]"]] as const) {
      const found = this.querySelector<HTMLElement>(box);
      reveal(found, found?.querySelector<HTMLElement>(thing) ?? null);
    }
  }

  protected override render(): unknown {
    const { about, meta } = this;
    const lang = this.selection.lang;
    if (this.only) return this.frame();
    return html`<a class="skip" href="#stage" @click=${(e: Event) => this.skip(e)}>${this.t("skip")}</a>
      <header class="top">
        <div class="brand"><h1>qkv</h1>${about ? this.card(about, meta) : nothing}
          <button type="button" class="quiet language" lang=${lang === "zh" ? "en" : "zh"} aria-label=${this.t("language.about")}
            @click=${() => this.set({ lang: (lang === "zh" ? "en" : "zh") as Lang })}>${this.t("language")}</button></div>
        ${about ? html`<q-ask .about=${about} .language=${lang} .asked=${this.selection.ask ?? null} .kind=${meta?.kind ?? about.kind} .busy=${this.busy}
          .recorded=${this.client.recorded} @q-ask=${(e: CustomEvent<Question>) => this.ask(e.detail)}></q-ask>` : nothing}
        ${this.trouble ? html`<p class="trouble" role="alert">${this.trouble.said[lang]}</p>` : nothing}
        ${meta?.said.map((s) => html`<p class="said" role="status">${s[lang]}</p>`) ?? nothing}
      </header>
      ${about && meta ? this.body(this.page(about, meta)) : html`<main class="empty"><p role="status">${this.trouble ? "" : this.t(about && !this.busy ? "nothing" : "waiting")}</p></main>`}
      <q-foot .language=${lang} .chip=${this.chip}></q-foot>`;
  }

  /** One panel with its question: what a frame in another page shows. */
  private frame(): TemplateResult {
    const { about, meta } = this;
    const { lang } = this.selection;
    const page = about && meta ? this.page(about, meta) : null;
    const now = page ? panels.find((p) => p.name === page.state.panel && p.fits(page.meta)) : undefined;
    return html`<div class="frame" lang=${lang === "zh" ? "zh-CN" : "en"}>
      ${about ? html`<q-ask .about=${about} .language=${lang} .asked=${this.selection.ask ?? null} .kind=${meta?.kind ?? about.kind} .busy=${this.busy}
        .recorded=${this.client.recorded} @q-ask=${(e: CustomEvent<Question>) => this.ask(e.detail)}></q-ask>` : nothing}
      ${this.trouble ? html`<p class="trouble" role="alert">${this.trouble.said[lang]}</p>` : nothing}
      ${meta?.said.map((s) => html`<p class="said" role="status">${s[lang]}</p>`) ?? nothing}
      ${page && now ? html`<p class="about">${this.t(`${now.name}.about` as Key)}</p><section class="panel">${element(now, page)}</section>` : this.trouble ? nothing : html`<p class="waiting" role="status">${this.t("waiting")}</p>`}
      ${this.chip ? html`<q-foot .language=${lang} .chip=${this.chip}></q-foot>` : nothing}</div>`;
  }

  private card(about: About, meta: Meta | null): TemplateResult {
    const { card } = about;
    const count = new Intl.NumberFormat(this.selection.lang, { notation: "compact", maximumFractionDigits: 1 });
    const facts = [
      this.t(`kind.${meta?.kind ?? about.kind}` as Key), this.t("parameters", count.format(card.parameters)),
      this.t("layers", [card.layers].flat().filter(Boolean).join(" + ")), this.t("heads", card.heads), this.t("width", card.width),
    ];
    return html`<p class="card"><b title=${about.model}>${about.model.split(/[\\/]/).at(-1)}</b>${facts.map((fact) => html`<span>${fact}</span>`)}${card.dtype ? html`<span>${card.dtype}</span>` : nothing}${this.measured(about)}</p>`;
  }

  /** What a recorded page was told was measured: [Chinese, English, value]. */
  private measured(about: About): TemplateResult[] {
    const at = this.selection.lang === "zh" ? 0 : 1;
    return ((about.facts ?? []) as [string, string, string][]).map((fact) => html`<span>${fact[at]} ${fact[2]}</span>`);
  }

  private body(page: Page): TemplateResult {
    const fits = panels.filter((p) => p.fits(page.meta));
    const now = fits.find((p) => p.name === page.state.panel) ?? fits[0];
    return html`<div class="house">
      ${this.strips(page)}
      <main class="stage" id="stage" tabindex="-1">
        <nav class="tabs" aria-label=${this.t("panels")} @keydown=${(e: KeyboardEvent) => this.tabbed(e, fits)}>${fits.map((p) => html`<button type="button"
          aria-current=${p === now ? "page" : nothing} tabindex=${p === now ? 0 : -1} data-panel=${p.name} @click=${() => this.enter(p)}>${this.t(`${p.name}.title` as Key)}</button>`)}</nav>
        ${now ? html`<section class="panel" aria-labelledby="panel-title"><div class="panel-head"><h2 id="panel-title">${this.t(`${now.name}.title` as Key)}</h2>${this.pictures()}</div>
          <p class="about">${this.t(`${now.name}.about` as Key)}</p>${element(now, page)}</section>` : html`<p>${this.t("none")}</p>`}
      </main>${page.part ? this.map(page) : nothing}</div>`;
  }

  private map(page: Page): TemplateResult {
    const { parts } = page.meta;
    return html`<section class="map-box"><h2>${this.t("map")}</h2>
      ${parts.length > 1 ? choice(this.t("part"), parts.map((p) => [p.part, this.t(`part.${p.part}.short` as Key)]), page.state.part, (part) => this.set({ part })) : nothing}
      <q-map .page=${page}></q-map><p class="note">${this.t("map.about")}</p></section>`;
  }

  private strips(page: Page): TemplateResult {
    const { meta, state } = page;
    const piece = (badge: string): string => this.t("piece.part", ...badge.split("/"));
    const source = meta.encoder?.tokens;
    const target = meta.decoder;
    return html`<section class="tokens">
      ${source ? html`<h2>${this.t(target ? "source" : "text")}</h2>${strip(source, {
        label: this.t(target ? "source" : "text"), at: state.part === "cross" ? state.key : state.part === "encoder" ? state.query : -1, piece,
        mood: () => (state.part === "cross" ? "asked" : ""),
        pick: (i) => this.set(state.part === "cross" ? { key: i } : { part: "encoder", query: i }),
      })}` : nothing}
      ${target ? html`<h2>${this.t(source ? "target" : "text")}</h2>${strip(target.tokens, {
        label: this.t(source ? "target" : "text"), at: state.part === "encoder" ? -1 : state.query, piece,
        mood: (i) => (i < target.prompt ? "prefill" : "decode"),
        pick: (i) => this.set({ query: i, ...(state.part === "encoder" ? { part: source ? "cross" : "decoder" } : {}) }),
      })}${source ? html`<p class="note">${this.t("start.token", word(target.tokens[0]?.text ?? ""))}</p>` : nothing}
      <p class="legend"><span class="token prefill">&nbsp;</span>${this.t("prefill")} <span class="token decode">&nbsp;</span>${this.t("decode")}</p>` : nothing}
      ${meta.output ? html`<p class="output"><span>${this.t(target ? "output" : "filled")}</span> ${meta.output}</p>` : nothing}
      ${meta.labels ? html`<h2>${this.t("labels")}</h2>${bars([...meta.labels].sort((a, b) => b[1] - a[1]).slice(0, 3).map(([name, value]) => ({ name, value })), { label: this.t("labels"), as: "percent", most: 1 })}` : nothing}
      ${meta.cut ? this.cut(page, meta.cut) : nothing}
      ${typeof meta.check === "number" && !meta.cut ? html`<p class="checked"><q-num value=${meta.check} name=${this.t("checked.about")} line="max(t.check().values())" shows=${this.t(meta.check < 1e-3 ? "checked" : "checked.not", meta.check.toExponential(0))}></q-num></p>` : nothing}
    </section>`;
  }

  /** What was cut, in words, and the way back. */
  private cut(page: Page, cut: NonNullable<Meta["cut"]>): TemplateResult {
    const part = page.meta.parts.find((p) => p.part === cut.part);
    const named = (side: "queries" | "keys", at?: number): string => (at === undefined ? "" : word(tokens(page.meta, part, side)[at]?.text ?? ""));
    const edge = cut.query === undefined ? "" : ` · ${named("queries", cut.query)} → ${named("keys", cut.key)}`;
    const head = `${this.t(`part.${cut.part}.short` as Key)} · ${this.t("heads.one", shown(cut.layer), shown(cut.head))}${edge}`;
    const { cut: _, ...whole } = page.state.ask ?? { text: page.meta.text };
    return html`<p class="said">${this.t("cut", head)} ${page.client.recorded ? nothing : html`<button type="button" @click=${() => page.ask(whole)}>${this.t("heads.uncut")}</button>`}</p>`;
  }

  private pictures(): TemplateResult {
    return html`<span class="pictures" role="group" aria-label=${this.t("save")}>${(["PNG", "SVG"] as const).map((kind) => html`<button type="button" class="quiet"
      title=${this.t("save.about", kind, kind[0]!)} aria-keyshortcuts=${`Alt+${kind[0]}`} @click=${() => this.pictured(kind)}>${kind}</button>`)}</span>`;
  }

  /** The panel on show as a file, with what it shows of what under it. */
  private async pictured(kind: "PNG" | "SVG"): Promise<void> {
    const panel = this.querySelector(".panel > :last-child");
    const { meta, about, selection: now } = this;
    if (!panel || !meta || !about) return;
    const part = meta.parts.length ? ` · ${this.t(`part.${now.part}` as Key)} · ${this.t("heads.one", shown(now.layer), shown(now.head))}` : "";
    const title = this.querySelector("#panel-title")!.textContent!;
    const made = picture(panel, [`${meta.text}${meta.output ? ` → ${meta.output}` : ""}`, `${title} · ${about.model.split(/[\\/]/).at(-1)}${part} · qkv`]);
    await save(made, `qkv-${now.panel}`, kind.toLowerCase() as "png" | "svg");
  }

  private pressed = (event: KeyboardEvent): void => {
    const kind = ({ KeyP: "PNG", KeyS: "SVG" } as const)[event.code];
    if (!kind || !event.altKey || event.ctrlKey || event.metaKey || event.isComposing) return;
    event.preventDefault();
    void this.pictured(kind);
  };

  /** Opens a panel, at the part with which it begins where the page stands at the attention across. */
  private enter(entry: PanelEntry): void {
    const begins = this.selection.part === "cross" && entry.begins ? { part: entry.begins } : {};
    this.set({ panel: entry.name, ...begins });
  }

  private tabbed(event: KeyboardEvent, fits: PanelEntry[]): void {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const at = fits.findIndex((p) => p.name === this.selection.panel);
    const next = fits[(at + move + fits.length) % fits.length]!;
    this.enter(next);
    void this.updateComplete.then(() => this.querySelector<HTMLElement>(`.tabs [data-panel="${next.name}"]`)?.focus());
  }

  private skip(event: Event): void {
    event.preventDefault();
    this.querySelector<HTMLElement>("#stage")?.focus();
  }
}
if (!customElements.get("q-app")) customElements.define("q-app", QApp);

/** The attention to begin with: the panel's own, across where there is one, else of the stack that speaks. */
function usual(meta: Meta, panel: string): Part | undefined {
  return [panels.find((p) => p.name === panel)?.begins, "cross", "decoder", "encoder"].map((name) => meta.parts.find((p) => p.part === name)).find(Boolean);
}

function tokens(meta: Meta, part: Part | undefined, side: "queries" | "keys"): Token[] {
  const encoder = part?.part === "encoder" || (part?.part === "cross" && side === "keys");
  return (encoder ? meta.encoder?.tokens : meta.decoder?.tokens) ?? [];
}

const sized = (meta: Meta, part: Part, side: "queries" | "keys"): number => tokens(meta, part, side).length;

const element = (entry: PanelEntry, page: Page): TemplateResult => {
  const tag = unsafeStatic(entry.element);
  return made`<${tag} .page=${page}></${tag}>`;
};
