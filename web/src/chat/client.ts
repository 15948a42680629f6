/** Asks `qkv serve`: its models, an answer in pieces, a translation. Errors are in the reader's language. */
import type { Lang } from "../select";

export type Kind = "chat" | "text" | "translate" | "none";
export interface Model { id: string; loaded: boolean; kind?: string; chat?: boolean; writes?: boolean; max_model_len?: number }
export interface Turn { role: "system" | "user" | "assistant"; content: string }
/** What came of an answer: text, and the number of the token with which it begins. */
export interface Piece { text: string; token: number }
export interface Made { id: string; pieces: Piece[]; finish: string | null }
export interface Options { temperature: number; max_tokens: number }

export class Refusal extends Error {}

async function asked(path: string, lang: Lang, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const headers = { "content-type": "application/json", "accept-language": lang };
  const reply = await fetch(path, body === undefined ? { headers, signal } : { method: "POST", headers, body: JSON.stringify(body), signal });
  if (reply.ok) return reply;
  const said = await reply.json().catch(() => null);
  throw new Refusal(said?.error?.message ?? `HTTP ${reply.status}`);
}

/** The models that are served. */
export async function models(lang: Lang): Promise<Model[]> {
  return (await (await asked("/v1/models", lang)).json()).data as Model[];
}

/** Shows a key, for which the browser gets a cookie. */
export async function login(key: string, lang: Lang): Promise<void> {
  await asked("/login", lang, { key });
}

/** What a model is used for on this page. */
export function kindOf(model: Model): Kind {
  if (model.kind === "encoder-decoder") return "translate";
  if (model.loaded && !model.writes) return "none";
  return model.loaded && !model.chat ? "text" : "chat";
}

/** An answer, told piece by piece as it is written. */
export async function write(model: string, turns: Turn[], kind: Kind, options: Options, lang: Lang, signal: AbortSignal, tell: (made: Made) => void): Promise<void> {
  const chat = kind === "chat";
  const body = { model, stream: true, keep: true, ...options, ...(chat ? { messages: turns, logprobs: true } : { prompt: turns.at(-1)!.content, logprobs: 0 }) };
  const reply = await asked(chat ? "/v1/chat/completions" : "/v1/completions", lang, body, signal);
  const made: Made = { id: `${reply.headers.get("x-request-id")}-0`, pieces: [], finish: null };
  let token = 0;
  let begun = 0; // the first token whose text has not come: half a character says nothing
  for await (const event of events(reply)) {
    if (event.error) throw new Refusal(event.error.message);
    const choice = event.choices[0];
    if (!choice) continue;
    const text = (chat ? choice.delta.content : choice.text) ?? "";
    const count: number = (chat ? choice.logprobs?.content?.length : choice.logprobs?.tokens?.length) ?? 0;
    if (text) made.pieces.push({ text, token: begun });
    token += count;
    if (text) begun = token;
    made.finish = choice.finish_reason ?? made.finish;
    tell(made);
  }
}

/** The translation of lines: each with its pieces, and what each looked at. */
export async function translate(model: string, lines: string[], lang: Lang, signal: AbortSignal): Promise<Made[]> {
  const full = lines.filter((line) => line.trim());
  const reply = await asked("/v1/translate", lang, { model, text: full, keep: true }, signal);
  const found = await reply.json();
  let n = -1;
  return lines.map((line) => {
    if (!line.trim()) return { id: "", pieces: [{ text: line, token: 0 }], finish: "stop" };
    const one = found.translations[++n];
    const pieces = (one.pieces as string[]).map((text, token) => ({ text, token })).filter((piece) => piece.text);
    const whole = pieces.map((piece) => piece.text).join("") === one.text;
    return { id: `${found.id}-${n}`, pieces: whole ? pieces : [{ text: one.text, token: 0 }], finish: one.finish_reason };
  });
}

/** The events of a stream, each as its JSON. */
async function* events(reply: Response): AsyncGenerator<any> {
  const reader = reply.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop()!;
    for (const part of parts) {
      if (part === "data: [DONE]") return;
      if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
    }
  }
}
