/** What is on show as a picture: an SVG that drawing programs open, or a PNG of twice its size.
 *
 * Boxes, words, canvases and inline drawings are written down where the browser laid them out; nothing is fetched. */
const INLINED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap", "opacity", "font-family", "font-size", "font-weight", "text-anchor", "dominant-baseline", "writing-mode", "vector-effect", "shape-rendering"];
const SIDES = ["top", "right", "bottom", "left"] as const;
const EDGE = 24;

type Attributes = Record<string, string | number>;
type Side = (typeof SIDES)[number];

/** The namespace, from the parser: no address stands in this page's source. */
const space = (): string => new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg")!.namespaceURI!;

class Pen {
  private readonly ink = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true })!;
  private readonly ns = space();
  private count = 0;
  private later: (() => void)[] = []; // what sticks while the rest scrolls lies above it

  constructor(private readonly left: number, private readonly top: number) {}

  make(name: string, attributes: Attributes, into?: Element): SVGElement {
    const made = document.createElementNS(this.ns, name) as SVGElement;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, typeof value === "number" ? String(Math.round(value * 100) / 100) : value);
    into?.append(made);
    return made;
  }

  /** Any colour of CSS as one that every program reads, with its opacity. */
  colour(said: string): { hex: string; alpha: number } {
    this.ink.clearRect(0, 0, 1, 1);
    this.ink.fillStyle = said;
    this.ink.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = this.ink.getImageData(0, 0, 1, 1).data;
    return { hex: `#${[r, g, b].map((x) => x!.toString(16).padStart(2, "0")).join("")}`, alpha: a! / 255 };
  }

  /** A value of CSS with its colour in plain form. */
  private plain(value: string): string {
    if (!/^(?:color|oklab|oklch|rgba)\(/.test(value)) return value;
    const { hex, alpha } = this.colour(value);
    return alpha ? hex : "none";
  }

  element(from: Element, into: Element, sticks = true): void {
    const style = getComputedStyle(from);
    if (sticks && style.position === "sticky") return void this.later.push(() => this.element(from, into, false));
    if (style.display === "none" || style.visibility === "hidden" || style.clipPath !== "none") return;
    const box = from.getBoundingClientRect();
    const [x, y, width, height] = [box.left - this.left, box.top - this.top, box.width, box.height];
    if (from.namespaceURI === this.ns) return this.copied(from, this.make("svg", { x, y, width, height }, into));
    if (from instanceof HTMLCanvasElement) return void (width && this.make("image", { x, y, width, height, href: from.toDataURL(), preserveAspectRatio: "none", style: `image-rendering:${style.imageRendering}` }, into));
    let group = into;
    if (Number(style.opacity) < 1) group = this.make("g", { opacity: style.opacity }, group);
    if (!from.matches("input[type=range]")) this.box(style, { x, y, width, height }, group);
    const above = this.later;
    const clips = style.overflowX !== "visible" && style.display !== "inline" && width;
    if (clips) {
      this.later = [];
      const id = `c${(this.count += 1)}`;
      this.make("rect", { x, y, width, height }, this.make("clipPath", { id }, group));
      group = this.make("g", { "clip-path": `url(#${id})` }, group);
    }
    if (from.matches("input, select, textarea")) return this.control(from as HTMLInputElement, style, { x, y, width, height }, group);
    for (const side of ["::before", "::after"]) this.pseudo(getComputedStyle(from, side), style, { x, y, width, height }, group);
    for (const child of from.childNodes) {
      if (child instanceof Text) this.words(child, style, group);
      else if (child instanceof Element) this.element(child, group);
    }
    if (!clips) return;
    this.later.forEach((draw) => draw());
    this.later = above;
  }

  /** Background, hatching or gradient, and edges. */
  private box(style: CSSStyleDeclaration, at: { x: number; y: number; width: number; height: number }, into: Element): void {
    const paper = this.colour(style.backgroundColor);
    const radius = Math.min(parseFloat(style.borderTopLeftRadius) || 0, at.height / 2);
    if (paper.alpha && at.width) this.make("rect", { ...at, rx: radius, fill: paper.hex, "fill-opacity": paper.alpha }, into);
    this.gradient(style.backgroundImage, at, into);
    const wide = (side: Side): number => (style.getPropertyValue(`border-${side}-style`) === "none" ? 0 : parseFloat(style.getPropertyValue(`border-${side}-width`)));
    if (!at.width || !SIDES.some((s) => wide(s))) return;
    const edge = (side: Side): Attributes => {
      const { hex, alpha } = this.colour(style.getPropertyValue(`border-${side}-color`));
      return { stroke: hex, "stroke-opacity": alpha, "stroke-width": wide(side), fill: "none" };
    };
    if (SIDES.every((s) => wide(s) === wide("top"))) {
      const half = wide("top") / 2;
      this.make("rect", { x: at.x + half, y: at.y + half, width: Math.max(0, at.width - 2 * half), height: Math.max(0, at.height - 2 * half), rx: radius, ...edge("top") }, into);
      return;
    }
    const [right, foot] = [at.x + at.width, at.y + at.height];
    const ends = { top: [at.x, at.y, right, at.y], bottom: [at.x, foot, right, foot], left: [at.x, at.y, at.x, foot], right: [right, at.y, right, foot] };
    for (const side of SIDES) {
      const [x1, y1, x2, y2] = ends[side] as [number, number, number, number];
      if (wide(side)) this.make("line", { x1, y1, x2, y2, ...edge(side) }, into);
    }
  }

  private gradient(image: string, at: { x: number; y: number; width: number; height: number }, into: Element): void {
    const colours = (image.match(/(?:rgba?|color|oklab|oklch)\([^()]*\)/g) ?? []).map((c) => this.colour(c));
    const seen = colours.filter((c) => c.alpha);
    if (!seen.length || !at.width) return;
    const id = `g${(this.count += 1)}`;
    if (image.includes("repeating")) {
      const pattern = this.make("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, into);
      const whole = seen.length === colours.length; // no gaps: one colour on another
      if (whole) this.make("rect", { width: 6, height: 6, fill: seen.at(-1)!.hex }, pattern);
      this.make("line", { x1: 0, y1: 0, x2: 0, y2: 6, stroke: seen[0]!.hex, "stroke-opacity": seen[0]!.alpha, "stroke-width": whole ? 7 : 2 }, pattern);
    } else {
      const ramp = this.make("linearGradient", { id }, into);
      colours.forEach((c, i) => this.make("stop", { offset: i / Math.max(1, colours.length - 1), "stop-color": c.hex, "stop-opacity": c.alpha }, ramp));
    }
    this.make("rect", { ...at, fill: `url(#${id})` }, into);
  }

  /** What CSS adds: a hatching over the box, or a sign before its words. */
  private pseudo(style: CSSStyleDeclaration, around: CSSStyleDeclaration, at: { x: number; y: number; width: number; height: number }, into: Element): void {
    if (style.content === "none" || style.content === "normal") return;
    this.gradient(style.backgroundImage, at, into);
    const sign = /^"(.+)"$/.exec(style.content)?.[1];
    if (sign) this.line(sign.trim(), around, { x: at.x + parseFloat(around.paddingLeft), y: at.y + parseFloat(around.paddingTop), high: at.height - 2 * parseFloat(around.paddingTop), color: style.color }, into);
  }

  private control(from: HTMLInputElement, style: CSSStyleDeclaration, at: { x: number; y: number; width: number; height: number }, into: Element): void {
    const middle = at.y + at.height / 2;
    const accent = this.colour(style.accentColor === "auto" ? style.color : style.accentColor).hex;
    if (from.type === "range") {
      const share = (Number(from.value) - Number(from.min)) / (Number(from.max) - Number(from.min) || 1);
      this.make("line", { x1: at.x, x2: at.x + at.width, y1: middle, y2: middle, stroke: accent, "stroke-opacity": 0.4, "stroke-width": 3 }, into);
      this.make("circle", { cx: at.x + 7 + share * (at.width - 14), cy: middle, r: 7, fill: accent }, into);
    } else if (from.type === "checkbox") {
      this.make("rect", { ...at, rx: 3, stroke: accent, fill: from.checked ? accent : "none" }, into);
    } else {
      const said = from instanceof HTMLSelectElement ? (from.selectedOptions[0]?.text ?? "") : from.value || from.placeholder;
      this.line(said, style, { x: at.x + parseFloat(style.paddingLeft) + 2, y: at.y, high: at.height }, into);
    }
  }

  /** One text node, line by line. */
  private words(node: Text, style: CSSStyleDeclaration, into: Element): void {
    if (!node.data.trim()) return;
    const upright = style.writingMode !== "horizontal-tb";
    const range = document.createRange();
    let line = "";
    let first: DOMRect | null = null;
    let last: DOMRect | null = null;
    const end = (): void => {
      if (first && last && line.trim()) {
        const at = { x: first.left - this.left, y: first.top - this.top, high: upright ? last.bottom - first.top : first.height, wide: upright ? first.width : last.right - first.left };
        this.line(line.trimEnd(), style, at, into);
      }
      [line, first] = ["", null];
    };
    for (let i = 0; i < node.length; ) {
      const sign = String.fromCodePoint(node.data.codePointAt(i)!);
      range.setStart(node, i);
      range.setEnd(node, (i += sign.length));
      const box = range.getClientRects()[0];
      if (!box || (!box.width && !box.height) || (!first && !sign.trim())) continue;
      if (first && (upright ? Math.abs(box.left - first.left) > 2 : Math.abs(box.top - first.top) > 2)) end();
      first ??= box;
      if (sign.trim()) last = box;
      line += sign.trim() ? sign : " ";
    }
    end();
  }

  line(said: string, style: CSSStyleDeclaration, at: { x: number; y: number; high: number; wide?: number; color?: string }, into: Element): void {
    const { hex, alpha } = this.colour(at.color ?? style.color);
    const look: Attributes = { fill: hex, "fill-opacity": alpha, "font-family": style.fontFamily, "font-size": style.fontSize, "font-weight": style.fontWeight, "xml:space": "preserve" };
    if (style.writingMode !== "horizontal-tb" && at.wide) {
      this.make("text", { ...look, x: at.x + at.wide / 2, y: at.y, style: "writing-mode:vertical-rl;dominant-baseline:central" }, into).textContent = said;
      return;
    }
    this.ink.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    const { fontBoundingBoxAscent: up, fontBoundingBoxDescent: down } = this.ink.measureText(said);
    const fit: Attributes = at.wide && said.length > 1 ? { textLength: at.wide, lengthAdjust: "spacingAndGlyphs" } : {};
    this.make("text", { ...look, ...fit, x: at.x, y: at.y + (at.high - up - down) / 2 + up }, into).textContent = said;
  }

  /** A drawing with the looks that its classes gave it. */
  private copied(from: Element, into: SVGElement): void {
    const to = from.cloneNode(true) as Element;
    const [old, made] = [[from, ...from.querySelectorAll("*")], [to, ...to.querySelectorAll("*")]];
    made.forEach((e, i) => {
      const style = getComputedStyle(old[i]!);
      const look = INLINED.map((name) => [name, style.getPropertyValue(name)] as const).filter(([, value]) => value);
      e.setAttribute("style", look.map(([name, value]) => `${name}:${this.plain(value)}`).join(";"));
      for (const name of ["class", "tabindex", "role"]) e.removeAttribute(name);
    });
    const view = from.getAttribute("viewBox");
    into.setAttribute("viewBox", view ?? `0 0 ${into.getAttribute("width")} ${into.getAttribute("height")}`);
    into.append(...to.childNodes);
  }
}

/** A picture of an element, with lines of caption under it. */
export function picture(from: Element, caption: string[]): { svg: string; width: number; height: number } {
  const box = from.getBoundingClientRect();
  const [width, height] = [Math.ceil(box.width) + 2 * EDGE, Math.ceil(box.height) + 2 * EDGE + 20 * caption.length];
  const pen = new Pen(box.left - EDGE, box.top - EDGE);
  const style = getComputedStyle(document.documentElement);
  const svg = pen.make("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  pen.make("rect", { width, height, fill: pen.colour(style.backgroundColor).hex }, svg);
  pen.element(from, svg);
  caption.forEach((said, i) => {
    const text = pen.make("text", { x: EDGE, y: height - EDGE / 2 - 20 * (caption.length - 1 - i), "font-family": style.fontFamily, "font-size": 13, fill: pen.colour(style.color).hex, "fill-opacity": 0.75 }, svg);
    text.textContent = said;
  });
  return { svg: new XMLSerializer().serializeToString(svg), width, height };
}

/** Hands a picture to the reader as a file. */
export async function save(made: ReturnType<typeof picture>, name: string, kind: "svg" | "png"): Promise<void> {
  const file = kind === "svg" ? new Blob([made.svg], { type: "image/svg+xml" }) : await drawn(made);
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(file), download: `${name}.${kind}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The picture as dots, two to a pixel each way. */
async function drawn({ svg, width, height }: ReturnType<typeof picture>): Promise<Blob> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: 2 * width, height: 2 * height });
  canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, failed) => canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("PNG"))), "image/png"));
}
