/** A word or a number to type: it holds when Enter is pressed or the box is left, so an IME may compose in peace. */
import { html, type TemplateResult } from "lit";

export function field(label: string, now: string, set: (text: string) => void, size = 10, hint = ""): TemplateResult {
  return html`<label class="field"><span>${label}</span><input type="text" size=${size} .value=${now} placeholder=${hint}
    autocomplete="off" spellcheck="false" @change=${(e: Event) => set((e.target as HTMLInputElement).value)}></label>`;
}
