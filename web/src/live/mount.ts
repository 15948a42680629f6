/** The model in a page of its own or in a frame of another: `mount(element, {model, sentence, lang, view})`.
 *
 * The folder `models/NAME` beside this module holds each model (qkv convert NAME models/NAME --to web); `base` says
 * otherwise. Nothing else is fetched. Styles stay in a shadow root, so that two pages do not disturb each other. */
import "../draw/number";
import "../draw/matrix";
import "../app";
import type { QApp } from "../app";
import "../panels/all";
import "./panels/tokens";
import "./panels/translate";
import type { Lang, Selection } from "../select";
import { LocalClient } from "./local";
import look from "inline:css";

export { LocalClient } from "./local";
export { ask, open_model } from "./engine";
export { run_lab } from "./labs";

export interface MountOptions {
  /** The model that opens; `models` are all that can be chosen. */
  model?: string;
  models?: string[];
  sentence?: string;
  lang?: Lang;
  /** translate, tokens, attention, next-token, lens, or another panel's name; page: all of them, with a map. */
  view?: string;
  /** Which layer, head, query and key are shown first, counted from 0. */
  at?: Partial<Pick<Selection, "part" | "layer" | "head" | "query" | "key">>;
  /** The address of the folder with the models. */
  base?: string;
}

const VIEWS: Record<string, string> = { attention: "heads", "next-token": "next-word", lens: "guess-map" };

/** Shows a model in an element; returns what takes it away again. */
export function mount(element: HTMLElement, options: MountOptions = {}): () => void {
  const { model = "demo", models = [model], sentence, lang, view = "translate", at = {} } = options;
  const base = new URL(options.base ?? "models", import.meta.url).href.replace(/\/$/, "");
  const root = element.shadowRoot ?? element.attachShadow({ mode: "open" });
  const style = document.createElement("style");
  style.textContent = look;
  const app = document.createElement("q-app") as QApp;
  app.client = new LocalClient(base, [model, ...models.filter((m) => m !== model)]);
  app.only = view === "page" ? "" : (VIEWS[view] ?? view);
  const ask = sentence ? { ask: { text: sentence } } : {};
  app.begins = { ...at, ...ask, ...(lang ? { lang } : {}) };
  const box = document.createElement("div");
  element.style.setProperty("--rem", getComputedStyle(element).fontSize);
  element.toggleAttribute("data-framed", app.only !== "");
  box.className = app.only ? "framed" : "";
  box.append(app);
  root.replaceChildren(style, box);
  return () => root.replaceChildren();
}
