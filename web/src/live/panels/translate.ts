/** What the model writes, word by word with its chance, beside what it read; and how long it took on this machine. */
import { html, nothing, type TemplateResult } from "lit";
import { bars } from "../../draw/bars";
import { strip, word } from "../../draw/strip";
import { Panel, panel } from "../../panel";

class TranslatePanel extends Panel {
  protected asks(): Record<string, string | undefined> {
    return {};
  }

  protected view(): TemplateResult {
    const { meta } = this.page, source = meta.encoder?.tokens ?? meta.decoder?.tokens.slice(0, meta.decoder.prompt) ?? [];
    const written = meta.written ?? [];
    const ms = Math.round(meta.ms);
    return html`${meta.output ? html`<p class="written" role="status">${meta.output}</p>` : nothing}
      ${meta.labels ? html`<h3>${this.t("labels")}</h3>${bars([...meta.labels].sort((a, b) => b[1] - a[1]).slice(0, 3).map(([name, value]) => ({ name, value })), { label: this.t("labels"), as: "percent", most: 1 })}` : nothing}
      <h3>${this.t("translate.read", source.length)}</h3>${strip(source, { label: this.t("source"), at: -1, pick: () => {} })}
      ${written.length ? html`<h3>${this.t("translate.wrote", written.length)}</h3>${bars(written.map((w) => ({ name: word(w.text), value: w.p })), { label: this.t("translate.wrote", written.length), as: "percent", most: 1 })}` : nothing}
      <p class="note">${this.t("translate.took", ms)}</p>`;
  }
}
panel({ name: "translate", element: "q-translate", order: 1, fits: (meta) => meta.panels.includes("translate") }, TranslatePanel);
