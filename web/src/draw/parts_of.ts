/** What the parts of a model are called: layers.3.attn.head.2 -> layer 4 · attention · head 3. */
import type { Page } from "../panel";
import type { Key } from "../words";

const SUBS: Record<string, Key> = { attn: "sub.attn", cross: "sub.cross", ffn: "sub.ffn", moe: "sub.moe" };
const REST: [RegExp, Key][] = [
  [/^head\.(\d+)$/, "sub.head"], [/^neuron\.(\d+)$/, "sub.neuron"], [/^expert\.(\d+)$/, "sub.expert"],
  [/^shared$/, "sub.shared"], [/bias$/, "sub.bias"],
];
const WHOLE: Record<string, Key> = {
  "embed.token": "sub.token", "embed.position": "sub.position", "embed.segment": "sub.segment", "head.bias": "sub.headbias",
};

export function partName(page: Page, name: string): string {
  const bare = name.replace(/^(encoder|decoder)\./, "");
  if (WHOLE[bare]) return page.t(WHOLE[bare]);
  const [, layer, sub = "", rest = ""] = /^layers\.(\d+)\.([a-z]+)(?:_[a-z]+)?\.?(.*)$/.exec(bare) ?? [];
  if (layer === undefined) return bare;
  const said = [page.t("sub.layer", Number(layer) + 1), SUBS[sub] ? page.t(SUBS[sub]) : sub];
  if (/\.[a-z]+_[a-z]+/.test(bare)) said.push(page.t("sub.norm"));
  const inner = REST.find(([form]) => form.test(rest));
  if (inner) said.push(page.t(inner[1], Number(inner[0].exec(rest)?.[1] ?? 0) + 1));
  return said.join(" · ");
}
