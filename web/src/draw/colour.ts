/** Colours of numbers: blue for weights and positive pushes, orange for negative ones; safe for colour-blind readers. */
import { html, type TemplateResult } from "lit";

type Rgb = readonly [number, number, number];
const LIGHT = { paper: [255, 255, 255] as Rgb, blue: [[222, 235, 247], [107, 174, 214], [8, 81, 156], [8, 40, 100]] as Rgb[], orange: [[253, 224, 197], [241, 145, 60], [166, 70, 3], [110, 40, 0]] as Rgb[] };
const DARK = { paper: [22, 25, 30] as Rgb, blue: [[28, 48, 74], [36, 98, 160], [88, 166, 232], [206, 232, 255]] as Rgb[], orange: [[66, 44, 24], [150, 84, 20], [240, 150, 60], [255, 224, 190]] as Rgb[] };

export const dark = (): boolean => matchMedia("(prefers-color-scheme: dark)").matches;

function along(stops: readonly Rgb[], at: number): Rgb {
  const spot = Math.max(0, Math.min(1, at)) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(spot));
  const mix = spot - low;
  const [a, b] = [stops[low]!, stops[low + 1]!];
  return [0, 1, 2].map((i) => Math.round(a[i]! + (b[i]! - a[i]!) * mix)) as unknown as Rgb;
}

/** The colour of x in [-1, 1]: 0 is the paper, 1 the deepest blue, -1 the deepest orange. */
export function rgb(x: number, night = dark()): Rgb {
  const tone = night ? DARK : LIGHT;
  return along([tone.paper, ...(x < 0 ? tone.orange : tone.blue)], Math.abs(x));
}

export const css = (x: number, night = dark()): string => `rgb(${rgb(x, night).join(" ")})`;

/** Black or white, whichever reads better on the colour of x: never below 4.5 to 1. */
export function ink(x: number, night = dark()): "#000" | "#fff" {
  const [r, g, b] = rgb(x, night).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r! + 0.7152 * g! + 0.0722 * b! > 0.179 ? "#000" : "#fff";
}

/** The background and ink of a cell of value x, for style=. */
export const cell = (x: number): string => `background:${css(x)};color:${ink(x)}`;

/** How a weight in [0, 1] is coloured: as it is, or by its order of magnitude over four decades. */
export const shade = (weight: number, log: boolean): number => (log ? (weight <= 0 ? 0 : Math.max(0, 1 + Math.log10(weight) / 4)) : weight);

/** What the colours mean: from `low` to `high`. */
export const scale = (low: string, high: string): TemplateResult =>
  html`<span class="scale">${low}<i style=${`background:linear-gradient(90deg,${[0, 0.25, 0.5, 0.75, 1].map((x) => css(x)).join(",")})`}></i>${high}</span>`;
