/** KV cache: what is kept and computed at every step, with the cache and without, and what other attentions would keep. */
import { html, type TemplateResult } from "lit";
import { state } from "lit/decorators.js";
import type { Answer } from "../client";
import { lines } from "../draw/lines";
import { amounts, bytes } from "../draw/bytes";
import { num } from "../draw/number";
import "../draw/player";
import { reveal } from "../draw/reveal";
import { Panel, panel } from "../panel";
import "./more.css";

interface Step { tokens: number; bytes: number; bytes_without: number; work: number; work_without: number; phase: string }

class CachePanel extends Panel {
  @state() private at = -1;

  protected asks(): Record<string, string | undefined> {
    return this.page.meta.decoder ? { cache: this.run("cache") } : {};
  }

  protected view({ cache }: Record<string, Answer>): TemplateResult {
    if (!cache) return html`<p class="empty">${this.t("cache.none")}</p>`;
    const steps = cache.steps as Step[];
    const at = this.at < 0 ? steps.length : Math.min(this.at, steps.length);
    const seen = steps.slice(0, at);
    const total = (pick: (s: Step) => number): number => seen.reduce((n, s) => n + pick(s), 0);
    const [work, again] = [total((s) => s.work), total((s) => s.work_without)];
    const now = steps[at - 1]!;
    return html`<div class="controls"><q-player .from=${1} .to=${steps.length} .now=${at} .label=${this.t("cache.step")} .says=${[this.t("play"), this.t("stop"), this.t("step.on")]}
        .shows=${`${at} · ${this.t(now.phase === "prefill" ? "prefill" : "decode")}`} @q-step=${(e: CustomEvent<number>) => (this.at = e.detail)}></q-player></div>
      <dl class="facts">
        ${this.fact("cache.kept", num(now.bytes, this.t("cache.kept"), `t.cache().steps[${at - 1}].bytes`, bytes(now.bytes)))}
        ${cache.memory ? this.fact("cache.memory", num(cache.memory, this.t("cache.memory"), "t.cache().memory", bytes(cache.memory))) : ""}
        ${this.fact("cache.positions", num(now.tokens, this.t("cache.positions"), `t.cache().steps[${at - 1}].length`))}
        ${this.fact("cache.work", num(work, this.t("cache.work"), counted("fresh", at)))}
        ${this.fact("cache.again", num(again, this.t("cache.again"), counted("again", at)))}
        ${this.fact("cache.times", num(again / Math.max(1, work), this.t("cache.times"), `${counted("again", at)} / ${counted("fresh", at)}`, `${(again / Math.max(1, work)).toFixed(1)}×`))}
      </dl>
      ${this.shelf(steps, at)}
      <div class="columns"><section><h3>${this.t("cache.work.title")}</h3>
        ${lines([
          { name: this.t("cache.with"), points: sums(steps, (s) => s.work) },
          { name: this.t("cache.without"), points: sums(steps, (s) => s.work_without), dash: true },
        ], { label: this.t("cache.work.title"), x: this.t("cache.step"), y: "", mark: at, zero: true, wide: 480 })}</section>
        <section><h3>${this.t("cache.kinds")}</h3><p class="note">${this.t("cache.kinds.about")}</p>
        ${amounts(Object.entries(cache.kinds as Record<string, number>).map(([name, value]) => ({
          name: name === "own" ? this.t("cache.own") : name, value, current: name === "own", line: `t.cache().kinds[${JSON.stringify(name)}]`,
        })), this.t("cache.kinds"), bytes)}</section></div>${this.timed()}`;
  }

  /** Milliseconds that a recorded page was told: [tokens, with the cache, without it]. */
  private timed(): TemplateResult {
    const rows = this.page.about.timed as [number, number, number][] | undefined;
    if (!rows) return html``;
    return html`<div class="columns"><section><h3>${this.t("cache.timed")}</h3>${lines([
      { name: this.t("cache.with"), points: rows.map(([n, with_]) => [n, with_]) },
      { name: this.t("cache.without"), points: rows.map(([n, , without]) => [n, without]), dash: true },
    ], { label: this.t("cache.timed"), x: this.t("cache.tokens"), y: "", zero: true, wide: 480 })}</section><section></section></div>`;
  }

  private fact(key: "cache.kept" | "cache.memory" | "cache.positions" | "cache.work" | "cache.again" | "cache.times", number: TemplateResult): TemplateResult {
    return html`<div><dt>${this.t(key)}</dt><dd>${number}</dd></div>`;
  }

  protected override updated(): void {
    reveal(this.querySelector(".shelf"), this.querySelector(".shelf .new"));
  }

  /** One slot per kept position: those of the prompt came at once, each later step adds one. */
  private shelf(steps: Step[], at: number): TemplateResult {
    const tokens = this.page.meta.decoder!.tokens;
    const length = steps.at(-1)!.tokens;
    const [kept, before] = [steps[at - 1]!.tokens, at > 1 ? steps[at - 2]!.tokens : 0];
    return html`<ol class="shelf" tabindex="0" aria-label=${this.t("cache.shelf", kept)}>${Array.from({ length }, (_, i) => html`<li
      class=${i >= kept ? "later" : i >= before ? "new" : "kept"} title=${this.t(i >= kept ? "cache.later" : i >= before ? "cache.new" : "cache.old")}>${tokens[i]?.text ?? ""}</li>`)}</ol>
      <p class="legend"><span class="key-cell new"></span>${this.t("cache.new")} <span class="key-cell kept"></span>${this.t("cache.old")} <span class="key-cell later"></span>${this.t("cache.later")}</p>`;
  }
}

function sums(steps: Step[], of: (s: Step) => number): [number, number][] {
  let sum = 0;
  return steps.map((s, i) => [i + 1, (sum += of(s))]);
}

const counted = (what: string, at: number): string => `sum(s.${what} for s in t.cache().steps[:${at}])`;

panel({ name: "cache", element: "q-cache", order: 70, fits: () => true }, CachePanel);
