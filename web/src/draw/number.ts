/** A number that can be asked where it comes from: clicked, the bottom bar shows its name, full value and Python line. */
import { html, type TemplateResult } from "lit";

export interface Chip { value: number | string; name: string; line?: string }

/** A number in few characters: three digits, a true minus sign. */
export function short(value: number | string | null | undefined, digits = 3): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  if (Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value).replace("-", "−");
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(1) : value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : digits);
  return text.replaceAll("-", "−");
}

/** A chance in percent, with as many digits as say something. */
export function percent(p: number): string {
  if (p >= 0.9995 || p === 0) return p ? "100%" : "0%";
  if (p >= 0.1) return `${(p * 100).toFixed(1)}%`;
  return p < 1e-6 ? "<0.0001%" : `${(p * 100).toPrecision(p >= 1e-3 ? 2 : 1)}%`;
}

/** A number for a narrow cell: two digits that say something. */
export function tight(value: number | null): string {
  if (value === null) return "−∞";
  const size = Math.abs(value);
  if (Number.isInteger(value) || size >= 100) return short(Math.round(value));
  const text = size >= 10 ? value.toFixed(1) : size >= 0.1 ? value.toFixed(2) : size >= 0.001 ? String(Number(value.toPrecision(1))) : value.toExponential(0);
  return text.replaceAll("-", "−");
}

/** Tells the bottom bar about a number. */
export function tell(from: EventTarget, chip: Chip): void {
  from.dispatchEvent(new CustomEvent<Chip>("q-number", { detail: chip, bubbles: true, composed: true }));
}

/** The element. `shows` overrides how it is written. */
export class QNum extends HTMLElement {
  static observedAttributes = ["value", "shows"];
  private button = document.createElement("button");

  connectedCallback(): void {
    if (!this.button.isConnected) {
      this.button.type = "button";
      this.button.className = "num";
      this.button.addEventListener("click", (event) => {
        event.stopPropagation();
        const said = this.getAttribute("value") ?? "";
        const value = said !== "" && Number.isFinite(Number(said)) ? Number(said) : said;
        tell(this, { value, name: this.getAttribute("name") ?? "", line: this.getAttribute("line") ?? undefined });
      });
      this.append(this.button);
    }
    this.draw();
  }

  attributeChangedCallback(): void {
    this.draw();
  }

  private draw(): void {
    const said = this.getAttribute("value") ?? "";
    this.button.textContent = this.getAttribute("shows") || short(said === "" || Number.isNaN(Number(said)) ? said : Number(said));
  }
}
customElements.define("q-num", QNum);

/** A number chip in a template. */
export const num = (value: number | string, name: string, line?: string, shows?: string): TemplateResult =>
  html`<q-num value=${String(value)} name=${name} line=${line ?? ""} shows=${shows ?? ""}></q-num>`;
