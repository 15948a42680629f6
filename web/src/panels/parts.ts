/** Who pushed: what every sub-layer, head and neuron added to the logit of a word, or of a word minus another. */
import { html, type TemplateResult } from "lit";
import { state } from "lit/decorators.js";
import type { Answer } from "../client";
import { choice } from "../draw/choose";
import { num, short } from "../draw/number";
import { partName } from "../draw/parts_of";
import { speaking } from "../draw/stand";
import { strip, word } from "../draw/strip";
import { waterfall, type Drop } from "../draw/waterfall";
import { Panel, panel } from "../panel";
import "./more.css";

interface Push { name: string; push: number; line?: string }

class WhoPushed extends Panel {
  @state() private running = true;
  @state() private token = "";
  @state() private vs = "";
  @state() private open = "";

  protected asks(): Record<string, string | undefined> {
    if (!this.page.meta.panels.includes("parts")) return {};
    const asked = { pos: speaking(this.page).at, token: this.token || undefined, vs: this.vs || undefined };
    const layer = Number(/layers\.(\d+)/.exec(this.open)?.[1] ?? -1);
    const by = this.open.endsWith(".ffn") ? "neuron" : "head";
    return {
      parts: this.run("parts", asked),
      inside: this.open && this.open !== "norms" ? this.run("parts", { ...asked, by, layer }) : undefined,
    };
  }

  protected view({ parts, inside }: Record<string, Answer>): TemplateResult {
    if (!parts) return html`<p class="empty">${this.t("parts.none")}</p>`;
    const { tokens, at, go } = speaking(this.page);
    const goal = word(parts.text) + (parts.vs_text ? ` − ${word(parts.vs_text)}` : "");
    const whole = parts.line!.replace(/\.logit$/, "");
    const rows = this.rows(parts.parts as Push[], (inside?.parts ?? []) as Push[], parts);
    return html`${this.controls()}
      ${strip(tokens, { label: this.t("tokens"), at, pick: go })}
      <h3>${this.t("parts.after", goal, word(tokens[at]?.text ?? ""))}</h3>
      ${waterfall(rows, {
        label: this.t("parts.after", goal, word(tokens[at]?.text ?? "")), running: this.running,
        heads: [this.t("parts.part"), this.t("parts.push")],
        sum: { name: this.t("parts.sum"), value: parts.logit, full: `logit ${goal}`, line: parts.line },
      })}
      <p class="note">${this.t("parts.gap")} ${num(parts.gap, this.t("parts.gap"), `${whole}.gap`, `±${short(parts.gap)}`)}.
        ${parts.note?.[this.page.state.lang] ?? ""}</p>`;
  }

  private controls(): TemplateResult {
    const box = (key: "parts.token" | "parts.vs", now: string, set: (text: string) => void): TemplateResult =>
      html`<label class="field"><span>${this.t(key)}</span><input type="text" size="8" .value=${now} placeholder=${this.t(key === "parts.vs" ? "parts.nobody" : "parts.best")}
        @change=${(e: Event) => set((e.target as HTMLInputElement).value.trim())}></label>`;
    return html`<div class="controls">${box("parts.token", this.token, (x) => (this.token = x))} ${box("parts.vs", this.vs, (x) => (this.vs = x))}
      ${choice(this.t("parts.order"), [["run", this.t("parts.running")], ["best", this.t("parts.strength")]], this.running ? "run" : "best", (v) => (this.running = v === "run"))}</div>`;
  }

  private rows(parts: Push[], inside: Push[], answer: Answer): Drop[] {
    const norms = parts.filter(isNorm);
    const plain = parts.filter((p) => !isNorm(p));
    return [...this.listed(plain, inside, answer), ...(norms.length ? this.norms(norms, answer) : [])];
  }

  /** The biases of the norms, many and small, as one row that unfolds. */
  private norms(norms: Push[], answer: Answer): Drop[] {
    const whole = answer.line!.replace(/\.logit$/, "");
    const open = this.open === "norms";
    const all: Drop = {
      name: this.t("parts.norms", norms.length), value: norms.reduce((sum, p) => sum + p.push, 0), open, click: () => (this.open = open ? "" : "norms"),
      line: `sum(p.push for p in ${whole}.sublayers if p.name in ${JSON.stringify(norms.map((p) => p.name))})`,
    };
    return [all, ...(open ? norms.map((p) => ({ ...this.row(p, answer), inner: true })) : [])];
  }

  private listed(parts: Push[], inside: Push[], answer: Answer): Drop[] {
    const listed = this.running ? parts : [...parts].sort((a, b) => Math.abs(b.push) - Math.abs(a.push));
    return listed.flatMap((p) => {
      const row = this.row(p, answer);
      if (!/layers\.\d+\.(attn|cross|ffn|moe)$/.test(p.name)) return [row];
      const open = p.name === this.open;
      const mine = open ? inside.filter((x) => x.name.startsWith(`${p.name}.`)) : [];
      const order = this.running ? mine : mine.sort((a, b) => Math.abs(b.push) - Math.abs(a.push));
      return [{ ...row, open, click: () => (this.open = open ? "" : p.name) }, ...order.map((x) => ({ ...this.row(x, answer), inner: true }))];
    });
  }

  private row(p: Push, answer: Answer): Drop {
    return { name: partName(this.page, p.name), value: p.push, full: p.name, line: p.line ?? answer.line };
  }
}

const isNorm = (p: Push): boolean => /_(sum|in|out)(\.bias)?$|norm(\.bias)?$/.test(p.name);

panel({ name: "parts", element: "q-parts", order: 50, fits: () => true }, WhoPushed);
