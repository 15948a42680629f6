/** A text as the model sees it: pieces with their numbers; what the vocabulary lacks is one mark. */
import { html, nothing, type TemplateResult } from "lit";
import type { Answer } from "../../client";
import { word } from "../../draw/strip";
import { Panel, panel, type Token } from "../../panel";

class TokensPanel extends Panel {
  protected asks(): Record<string, string | undefined> {
    return { words: this.run("words") };
  }

  protected view({ words }: Record<string, Answer>): TemplateResult {
    const tokens = words!.tokens as Token[], { meta } = this.page;
    return html`<div class="scroll" tabindex="0" role="region" aria-label=${this.t("tokens.title")}><table class="numbers pieces"><tbody>
      <tr><th scope="row">${this.t("tokens.piece")}</th>${tokens.map((t) => html`<td class=${t.id === words!.unknown ? "out" : ""}>${word(t.text)}${t.bytes ? html`<sup>${t.bytes}</sup>` : nothing}</td>`)}</tr>
      <tr><th scope="row">${this.t("tokens.number")}</th>${tokens.map((t) => html`<td>${t.id}</td>`)}</tr></tbody></table></div>
      <p class="note">${this.t("tokens.count", [...meta.text].length, tokens.length)}</p>`;
  }
}
panel({ name: "tokens", element: "q-tokens", order: 2, fits: (meta) => meta.panels.includes("words") }, TokensPanel);
