/** Text to ids and back by a tokenizer.json, for the kinds that the bundled models have: Unigram over words with words
 * of their own, and byte-level BPE. tests/explore/test_web_tokenizer.py holds it to the `tokenizers` library. */

type Json = Record<string, any>;
interface Added { id: number; content: string; single_word: boolean; special: boolean; normalized: boolean }

const WORD = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";
const BEFORE = new RegExp(`[${WORD}]$`, "u"), AFTER = new RegExp(`^[${WORD}]`, "u");
const GPT2 = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

/** A pattern of the Rust library as JavaScript has it. */
function translate(pattern: string): RegExp {
  const own = pattern
    .replace(/\\p\{(Han|Hiragana|Katakana)\}/g, "\\p{Script=$1}")
    .replace(/\\w/g, "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}").replace(/\\s/g, "\\p{White_Space}").replace(/\\b/g, `(?![${WORD}])`);
  return new RegExp(own, "gu");
}

/** Each byte as the character that stands for it in a byte-level vocabulary (GPT-2). */
const BYTES: string[] = (() => {
  const plain = (b: number) => (b > 32 && b < 127) || (b > 160 && b !== 173);
  let next = 256;
  return Array.from({ length: 256 }, (_, b) => String.fromCharCode(plain(b) ? b : next++));
})();
const BYTE_OF = new Map(BYTES.map((c, b) => [c, b]));

export class Tokenizer {
  private readonly tokens: string[] = [];
  private readonly added: Added[];
  private readonly special: Set<number>;
  private readonly scores = new Map<string, [id: number, score: number]>();
  private readonly ids: Map<string, number>;
  private readonly ranks: Map<string, number>;
  private readonly longest: number;
  private readonly least: number;
  private readonly bytes: boolean;

  constructor(private readonly said: Json) {
    const { type, vocab, merges } = said.model;
    if (type !== "Unigram" && type !== "BPE") throw new Error(`tokenizer.json: a model of type ${type} cannot be read here`);
    this.added = said.added_tokens;
    this.special = new Set(this.added.filter((a) => a.special).map((a) => a.id));
    if (type === "Unigram") (vocab as [string, number][]).forEach(([token, score], id) => this.scores.set(token, [id, score]));
    this.ids = new Map(type === "BPE" ? Object.entries<number>(vocab) : [...this.scores].map(([token, [id]]) => [token, id]));
    for (const { content, id } of this.added) this.ids.set(content, id);
    for (const [token, id] of this.ids) this.tokens[id] = token;
    this.ranks = new Map((merges ?? []).map((m: string | string[], i: number) => [typeof m === "string" ? m : m.join(" "), i]));
    this.longest = Math.max(1, ...[...this.scores.keys()].map((t) => t.length));
    this.least = Math.min(0, ...[...this.scores.values()].map(([, score]) => score)) - 10; // of a character that is unknown
    this.bytes = said.pre_tokenizer?.type === "ByteLevel";
  }

  /** The ids of a text; `special` adds the tokens that the model's template puts around it. */
  encode(text: string, special = true): number[] {
    const ids = this.cut(text, this.added.filter((a) => !a.normalized)).flatMap((piece) => (typeof piece === "number" ? [piece] :
      this.cut(this.normalize(piece), this.added.filter((a) => a.normalized)).flatMap((p) => (typeof p === "number" ? [p] : this.words(p).flatMap((w) => this.split(w))))));
    const template: Json[] | undefined = this.said.post_processor?.single;
    return template && special ? template.flatMap((part) => (part.Sequence ? ids : this.said.post_processor.special_tokens[part.SpecialToken.id].ids)) : ids;
  }

  decode(ids: readonly number[], special = false): string {
    const kept = ids.filter((i) => this.tokens[i] !== undefined && (special || !this.special.has(i))).map((i) => this.tokens[i]!);
    if (this.bytes) return new TextDecoder("utf-8", { ignoreBOM: true }).decode(this.raw(kept.join("")));
    return this.rules().reduce((text, [pattern, content]) => text.replace(pattern, content), kept.join(" "));
  }

  /** What each id looks like on a page; of a character that is cut into several, each shows it with its share. */
  pieces(ids: readonly number[]): { text: string; id: number; bytes?: string }[] {
    const found: { text: string; id: number; bytes?: string }[] = [];
    for (let i = 0; i < ids.length; i = found.length) {
      let end = i + 1;
      while (this.bytes && end < Math.min(ids.length, i + 8) && this.decode(ids.slice(i, end), true).includes("\ufffd")) end++;
      const whole = end > i + 1 ? this.decode(ids.slice(i, end), true) : "\ufffd";
      if (whole.includes("\ufffd") || !whole.trim()) end = i + 1;
      for (let j = i; j < end; j++) found.push({ text: end > i + 1 ? whole.trim() : this.piece(ids[j]!), id: ids[j]!, ...(end > i + 1 ? { bytes: `${j - i + 1}/${end - i}` } : {}) });
    }
    return found;
  }

  /** One token: no mark for a space before it, and the bytes of a cut character as ⟨e4⟩. */
  private piece(id: number): string {
    const token = this.tokens[id];
    if (token === undefined) return `⟨${id}⟩`;
    if (this.special.has(id)) return token;
    const text = this.bytes ? this.readable(this.raw(token)) : token.replaceAll("▁", " "), shown = text.replace(/^ /, "") || "␣";
    return /[^ ]/.test(shown) ? shown.replaceAll("\n", "⏎").replaceAll("\t", "⇥") : "␣".repeat(text.length);
  }

  private readable(bytes: Uint8Array): string {
    const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }), said: string[] = [];
    for (let i = 0; i < bytes.length; ) {
      let size = 4;
      for (; size > 0; size--) {
        try { // the one whole character that begins here
          const found = i + size <= bytes.length ? strict.decode(bytes.subarray(i, i + size)) : "";
          if ([...found].length === 1) { said.push(found); break; }
        } catch { /* fewer bytes, then */ }
      }
      if (!size) said.push(`⟨${bytes[i]!.toString(16).padStart(2, "0")}⟩`);
      i += size || 1;
    }
    return said.join("");
  }

  id(token: string): number | undefined {
    return this.ids.get(token);
  }

  private raw(text: string): Uint8Array {
    const encoder = new TextEncoder();
    return Uint8Array.from([...text].flatMap((c) => (BYTE_OF.has(c) ? [BYTE_OF.get(c)!] : [...encoder.encode(c)])));
  }

  private rules(): [RegExp, string][] {
    const parts: Json[] = this.said.decoder?.decoders ?? [];
    return parts.filter((d) => d.type === "Replace").map((d) => [translate(d.pattern.Regex), d.content]);
  }

  private normalize(text: string): string {
    const n = this.said.normalizer;
    return n?.type === "Replace" ? text.replace(translate(n.pattern.Regex), n.content) : text;
  }

  /** A text cut at tokens that are found as they stand: the first and longest; some only as whole words. */
  private cut(text: string, tokens: Added[]): (string | number)[] {
    if (!tokens.length) return [text];
    const pattern = tokens.map((t) => t.content).sort((a, b) => b.length - a.length).map((t) => t.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&")).join("|");
    const single = new Map(tokens.map((t) => [t.content, t])), found: (string | number)[] = [];
    let from = 0;
    for (const match of text.matchAll(new RegExp(pattern, "gu"))) {
      const end = match.index + match[0].length, token = single.get(match[0])!;
      if (token.single_word && (BEFORE.test(text.slice(0, match.index)) || AFTER.test(text.slice(end)))) continue;
      if (match.index > from) found.push(text.slice(from, match.index));
      found.push(token.id);
      from = end;
    }
    return from < text.length ? [...found, text.slice(from)] : found;
  }

  /** The words of a text, by the rules before the model. */
  private words(text: string): string[] {
    if (this.bytes) return (text.match(GPT2) ?? []).map((w) => [...new TextEncoder().encode(w)].map((b) => BYTES[b]).join(""));
    const rules: Json[] = this.said.pre_tokenizer.pretokenizers;
    return rules.reduce((words: string[], rule) => words.flatMap((w) => {
      if (rule.type === "WhitespaceSplit") return w.split(/\p{White_Space}+/u).filter(Boolean);
      if (rule.type !== "Split" || rule.behavior !== "Isolated") throw new Error(`tokenizer.json: ${rule.type} cannot be read here`);
      const found: string[] = [];
      let from = 0;
      for (const m of w.matchAll(translate(rule.pattern.Regex))) {
        if (m.index > from) found.push(w.slice(from, m.index));
        found.push(m[0]);
        from = m.index + m[0].length;
      }
      return from < w.length ? [...found, w.slice(from)] : found;
    }), [text]);
  }

  private split(word: string): number[] {
    return this.ranks.size ? this.merge(word) : this.likeliest(word);
  }

  /** Byte-pair encoding: the pair that was learnt first is joined first (Sennrich et al. 2016). */
  private merge(word: string): number[] {
    const parts = [...word];
    for (;;) {
      let best = Infinity, at = -1;
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
        if (rank < best) [best, at] = [rank, i];
      }
      if (at < 0) return parts.map((p) => this.ids.get(p)!);
      parts.splice(at, 2, parts[at]! + parts[at + 1]!);
    }
  }

  /** The likeliest split into pieces (Kudo 2018); unknown characters side by side are one. */
  private likeliest(word: string): number[] {
    const best: ({ score: number; from: number; id: number } | undefined)[] = [{ score: 0, from: 0, id: -1 }];
    const unknown = this.said.model.unk_id;
    const reach = (to: number, score: number, from: number, id: number) => { if (!best[to] || score > best[to]!.score) best[to] = { score, from, id }; };
    for (let i = 0; i < word.length; i++) {
      const { score } = best[i] ?? {}, size = word.codePointAt(i)! > 0xffff ? 2 : 1;
      if (score === undefined) continue;
      for (let n = 1; n <= Math.min(this.longest, word.length - i); n++) {
        const found = this.scores.get(word.slice(i, i + n));
        if (found) reach(i + n, score + found[1], i, found[0]);
      }
      if (!this.scores.has(word.slice(i, i + size))) reach(i + size, score + this.least, i, unknown);
    }
    const ids: number[] = [];
    for (let at = word.length; at > 0; at = best[at]!.from) if (best[at]!.id !== unknown || ids.at(-1) !== unknown) ids.push(best[at]!.id);
    return ids.reverse();
  }
}
