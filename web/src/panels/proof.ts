/** Proof: every edge of a word cut in turn, every head silenced, and what becomes of a written word's chance. */
import { html, type TemplateResult } from "lit";
import { state } from "lit/decorators.js";
import type { Answer } from "../client";
import { bars } from "../draw/bars";
import { choice } from "../draw/choose";
import { cell } from "../draw/colour";
import { arcs, bridge } from "../draw/links";
import "../draw/matrix";
import type { Spot } from "../draw/matrix";
import { num, percent, tell } from "../draw/number";
import { strip, word } from "../draw/strip";
import { Panel, panel, type Token } from "../panel";
import { clamp, shown } from "../select";
import type { Key } from "../words";
import "./more.css";

const MOST = 32; // tokens of the longest text whose every edge is cut
const MANY = 8; // layers or heads from which on they are drawn instead of listed
const LISTED = 8;
const SIDES = ["encoder", "cross", "decoder"] as const;
type Side = (typeof SIDES)[number];

class ProofPanel extends Panel {
  @state() private side: Side | "" = ""; // "": the one where a cut does most
  @state() private asking = -1;
  @state() private goal = -1;
  private of = "";

  protected asks(): Record<string, string | undefined> {
    const { meta, state } = this.page;
    if (this.of !== state.run) [this.of, this.side, this.asking, this.goal] = [state.run, "", -1, -1];
    const longest = Math.max(meta.encoder?.tokens.length ?? 0, meta.decoder?.tokens.length ?? 0);
    if (!meta.panels.includes("proof") || longest >= MOST) return {};
    const path = (side?: Side): string => this.run("proof", { side });
    if (!meta.encoder) return { proof: path() };
    return { proof: path(this.side || "encoder"), across: this.side ? undefined : path("cross") };
  }

  protected view(answers: Record<string, Answer>): TemplateResult {
    const proof = !answers.across || best(answers.proof!).drop > 0.1 * best(answers.across).drop ? answers.proof : answers.across;
    if (!proof) return html`<p class="empty">${this.t(this.page.meta.panels.includes("proof") ? "proof.long" : "proof.none", MOST)}</p>`;
    const target = proof.target as Token[];
    const asking = proof.asking as Token[];
    const cross = proof.side === "cross";
    const first = best(proof);
    const goal = clamp(this.goal < 0 ? first.goal : this.goal, target.length);
    const query = cross ? goal - 1 : clamp(this.asking < 0 ? first.query : this.asking, asking.length);
    const asked = proof.side === "encoder" ? asking : cross ? this.page.meta.encoder!.tokens : asking;
    const reach = asked.map((_, j) => j).filter((j) => proof.side !== "decoder" || (j <= query && query < goal));
    const was = proof.before[goal] as number;
    const now = (j: number): number => (reach.includes(j) ? proof.after[query][j][goal] : was);
    const say = word(target[goal]?.text ?? "");
    const from = cross ? say : word(asking[query]?.text ?? "");
    const order = [...reach].sort((a, b) => now(a) - now(b));
    const label = this.t("proof.arcs", from, say);
    const drop = (j: number): number => Math.max(0, was - now(j));
    return html`${this.choose(proof, goal, query)}
      ${cross ? bridge(asked.map((x) => x.text), [target[goal]?.text ?? ""], { label, weight: (_, j) => drop(j), hot: 0, least: 0.01 })
        : arcs(asked.map((x) => x.text), { label, at: query, weight: drop, shows: (v) => `−${percent(v)}`, pick: (j) => (this.asking = j) })}
      ${drop(order[0] ?? 0) < 0.001 ? html`<p class="note">${this.t("proof.nothing")}</p>` : ""}
      <div class="columns"><section><h3>${this.t("proof.bars", say)}</h3><p class="legend"><span class="key-cell was"></span>${this.t("proof.before")} <span class="key-cell now"></span>${this.t("proof.after")}</p>
        <table class="bars pairs" aria-label=${this.t("proof.bars", say)}><tbody>${order.slice(0, 8).map((j) => this.pair(proof, { query, key: j, goal }, `${from} → ${word(asked[j]?.text ?? "")}`, target))}</tbody></table></section>
      <section><h3>${this.t("proof.heads")}</h3><p class="note">${this.t("proof.heads.about", say)} ${num(was, `P(${say})`, `${proof.lines.before}[${goal}]`, percent(was))}</p>${this.heads(proof, goal, was, say)}</section></div>`;
  }

  private choose(proof: Answer, goal: number, query: number): TemplateResult {
    const { meta } = this.page;
    const target = proof.target as Token[];
    const sides = SIDES.filter((s) => meta.encoder || s === "decoder");
    return html`${sides.length > 1 ? html`<div class="controls">${choice(this.t("proof.side"), sides.map((s) => [s, this.t(`proof.${s}` as Key)]), proof.side as Side, (s) => ([this.side, this.asking, this.goal] = [s, -1, -1]))}</div>` : ""}
      ${proof.side === "cross" ? "" : html`<p class="strip-name">${this.t("proof.asking")}</p>${strip(proof.asking, { label: this.t("proof.asking"), at: query, pick: (i) => (this.asking = i) })}`}
      <p class="strip-name">${this.t("proof.goal")}</p>${strip(target, { label: this.t("proof.goal"), at: goal, pick: (i) => (this.goal = Math.max(1, i)), mood: (i) => (i < proof.given ? "prefill" : "decode") })}`;
  }

  private pair(proof: Answer, at: { query: number; key: number; goal: number }, name: string, target: Token[]): TemplateResult {
    const [was, now] = [proof.before[at.goal] as number, proof.after[at.query][at.key][at.goal] as number];
    const other = proof.instead[at.query][at.key][at.goal] as string;
    const changed = other !== target[at.goal]?.text;
    return html`<tr><th scope="row">${name}</th><td class="track" aria-hidden="true"><i class="was" style="width:${100 * was}%"></i><i class="now" style="width:${100 * now}%"></i></td>
      <td class="end">${num(now, `P · ${name}`, `${proof.lines.after}[${at.query}, ${at.key}, ${at.goal}]`, percent(now))}${changed ? html` <small>${this.t("proof.instead")} <b>${word(other)}</b></small>` : ""}</td></tr>`;
  }

  private heads(proof: Answer, goal: number, was: number, say: string): TemplateResult {
    const rows = proof.heads as number[][][];
    if (rows.length > MANY || rows[0]!.length > MANY) return this.grid(proof, goal, was, say);
    return html`<div class="scroll" tabindex="0" role="region" aria-label=${this.t("proof.heads")}><table class="numbers" aria-label=${this.t("proof.heads")}>
      <thead><tr><td></td>${rows[0]!.map((_, h) => html`<th scope="col">${this.t("head")} ${shown(h)}</th>`)}</tr></thead>
      <tbody>${rows.map((row, l) => html`<tr><th scope="row">${this.t("layer")} ${shown(l)}</th>${row.map((c, h) => html`<td style=${cell(-Math.max(0, was - c[goal]!) / Math.max(was, 0.01))}>
        ${num(c[goal]!, this.t("proof.head", l + 1, h + 1, say), this.headLine(proof, l, h, goal), percent(c[goal]!))}
        ${this.page.client.recorded ? "" : html`<button type="button" class="quiet small" aria-label=${this.t("proof.cut", l + 1, h + 1)} title=${this.t("proof.cut", l + 1, h + 1)} @click=${() => this.cut(proof.side, l, h)}>✂</button>`}</td>`)}</tr>`)}</tbody></table></div>`;
  }

  /** Many heads: what each of them takes in one picture, and those that matter most in numbers. */
  private grid(proof: Answer, goal: number, was: number, say: string): TemplateResult {
    const rows = proof.heads as number[][][];
    const [layers, heads] = [rows.length, rows[0]!.length];
    const now = (l: number, h: number): number => rows[l]![h]![goal]!;
    const named = (l: number, h: number): string => this.t("proof.head", l + 1, h + 1, say);
    const at: [number, number] = [clamp(this.page.state.layer, layers), clamp(this.page.state.head, heads)];
    const choose = (l: number, h: number): void => {
      this.page.set({ layer: l, head: h });
      tell(this, { value: now(l, h), name: named(l, h), line: this.headLine(proof, l, h, goal) });
    };
    const worst = rows.flatMap((row, l) => row.map((_, h) => [l, h] as const)).sort((a, b) => now(...a) - now(...b)).slice(0, LISTED);
    return html`<q-matrix tone="signed" .data=${rows.flatMap((row) => row.map((c) => c[goal]! - was))} .rows=${layers} .cols=${heads} .most=${Math.max(was, 0.01)} .at=${at} .largest=${22}
        .rowNames=${rows.map((_, l) => `${this.t("layer")} ${shown(l)}`)} .colNames=${rows[0]!.map((_, h) => shown(h))} .colTitle=${this.t("head")} label=${this.t("proof.heads")}
        .describe=${(l: number, h: number) => `${named(l, h)}: ${percent(now(l, h))}`} @q-cell=${(e: CustomEvent<Spot>) => choose(e.detail.row, e.detail.col)}></q-matrix>
      ${this.page.client.recorded ? "" : html`<button type="button" @click=${() => this.cut(proof.side, ...at)}>${this.t("proof.cut", at[0] + 1, at[1] + 1)}</button>`}
      <h3>${this.t("proof.worst", LISTED)}</h3>${bars(worst.map(([l, h]) => ({
        name: this.t("heads.one", l + 1, h + 1), value: now(l, h), full: named(l, h), line: this.headLine(proof, l, h, goal), current: l === at[0] && h === at[1], click: () => choose(l, h),
      })), { label: this.t("proof.worst", LISTED), as: "percent", most: 1 })}`;
  }

  private headLine(proof: Answer, layer: number, head: number, goal: number): string {
    return `${proof.lines.heads}[${layer}][${head}][${goal}]`;
  }

  /** Asks the same question again with a head silenced. */
  private cut(part: string, layer: number, head: number): void {
    const { ask } = this.page.state;
    if (ask) this.page.ask({ ...ask, cut: { part, layer, head } });
  }
}

/** The word with which to begin, and how much of its chance a cut takes. */
function best(proof: Answer): { query: number; goal: number; drop: number } {
  const { query, at: goal } = proof as unknown as { query: number; at: number };
  const lost = (proof.after[query] as number[][]).map((row, k) => (proof.side !== "cross" && k === query ? 0 : proof.before[goal] - row[goal]!));
  return { query, goal, drop: Math.max(0, ...lost) };
}

panel({ name: "proof", element: "q-proof", order: 20, fits: () => true }, ProofPanel);
