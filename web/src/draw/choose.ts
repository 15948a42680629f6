/** Small controls that panels share: a row of choices, a slider, a stepper, a switch. */
import { html, type TemplateResult } from "lit";

/** One of few, side by side. */
export function choice<T extends string | number>(label: string, options: [T, string][], now: T, pick: (value: T) => void): TemplateResult {
  return html`<div class="choice" role="group" aria-label=${label}>${options.map(([value, text]) => html`<button
    type="button" aria-pressed=${String(value === now)} @click=${() => pick(value)}>${text}</button>`)}</div>`;
}

/** One of many: a drop-down. */
export function pick<T extends string | number>(label: string, options: [T, string][], now: T, set: (value: T) => void): TemplateResult {
  return html`<label class="pick"><span>${label}</span><select @change=${(e: Event) => set(options[(e.target as HTMLSelectElement).selectedIndex]![0])}>
    ${options.map(([value, text]) => html`<option ?selected=${value === now} .selected=${value === now}>${text}</option>`)}</select></label>`;
}

export interface Slide { from: number; to: number; by: number; now: number; shows?: string; about?: string; set(value: number): void }

export function slider(label: string, how: Slide): TemplateResult {
  return html`<label class="slider"><span>${label}<output>${how.shows ?? how.now}</output></span><input type="range"
    min=${how.from} max=${how.to} step=${how.by} .value=${String(how.now)} aria-valuetext=${how.shows ?? String(how.now)}
    @input=${(e: Event) => how.set(Number((e.target as HTMLInputElement).value))}>${how.about ? html`<small>${how.about}</small>` : ""}</label>`;
}

/** On or off. */
export function toggle(label: string, now: boolean, set: (on: boolean) => void): TemplateResult {
  return html`<label class="toggle"><input type="checkbox" .checked=${now} @change=${(e: Event) => set((e.target as HTMLInputElement).checked)}><span>${label}</span></label>`;
}
