/** Asks the server, or the answers recorded in this file, and gives JSON and arrays alike; every error has both languages.
 *
 * A live page comes with the answers with which it opens, each of which is used once.
 *
 * Read next: panel.ts, which asks for panels. */
import type { Question } from "./select";

export type Value = string | number | boolean | undefined;
export interface Numbers { shape: number[]; data: Uint8Array | Int32Array | Float32Array }
/** An answer: the keys of its JSON, its arrays by name, and the Python line that gives its numbers. */
export interface Answer { arrays?: Record<string, Numbers>; line?: string; [key: string]: any }
interface Recorded { type: string; body: string }

const BINARY = "application/x-qkv";
const KEPT = 256;
const LEFT_OUT: Record<string, Value> = { top: 5, by: "sublayer", pool: 1, temperature: 1, top_k: 0, top_p: 1, min_p: 0 };

/** What went wrong, as the reader reads it. */
export class Trouble extends Error {
  constructor(readonly said: { zh: string; en: string }, readonly status = 0) {
    super(said.en);
  }
}

/** The path as recordings know it: keys sorted, defaults and empty ones left out. */
export function canonical(path: string, query: Record<string, Value> = {}): string {
  const keys = Object.keys(query).filter((k) => query[k] !== undefined && query[k] !== "" && query[k] !== LEFT_OUT[k]);
  const said = keys.sort().map((k) => `${k}=${encodeURIComponent(String(query[k]))}`).join("&");
  return `/api/${path}${said ? `?${said}` : ""}`;
}

/** An array body: its header's keys, and its arrays as views of the bytes. */
export function decode(body: ArrayBuffer): Answer {
  const size = new DataView(body).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(body, 4, size)));
  const start = 4 + size;
  const arrays: Record<string, Numbers> = {};
  for (const [name, spec] of Object.entries<any>(header.arrays)) {
    const count = spec.shape.reduce((a: number, b: number) => a * b, 1);
    const wide = spec.dtype === "u8" ? 1 : 4;
    const bytes = body.slice(start + spec.offset, start + spec.offset + count * wide); // a copy starts on any boundary
    const kind = { u8: Uint8Array, i32: Int32Array, f32: Float32Array }[spec.dtype as "u8" | "i32" | "f32"];
    arrays[name] = { shape: spec.shape, data: new kind(bytes) };
  }
  return { ...header, arrays };
}

/** Who waits for an answer: told which share of the work is done (0 to 1); work that nobody wants any more stops. */
export interface Watch { share(done: number): void; wanted(): boolean }

/** Who answers the page: a server (below), or the model itself in the browser (live/local.ts). */
export interface Client {
  /** Whether this page is a recording, which takes no new sentence. */
  readonly recorded: boolean;
  /** The answer to a canonical path; long work tells `watch` how far it is. */
  get(path: string, watch?: Watch): Promise<Answer>;
  /** Starts a run and gives its name. */
  run(question: Question): Promise<string>;
  /** Asks that a run which learns be watched with a text too. */
  wish(run: string, text: string): Promise<void>;
  /** The events of a run that learns, where there may be one. */
  events(): EventSource | null;
  /** Forgets what was answered about a run that is gone. */
  forget(run: string): void;
}

export class ServerClient implements Client {
  private readonly kept = new Map<string, Promise<Answer>>();
  private readonly record = carried("recorded");
  private readonly ready = carried("ready") ?? {};

  /** Whether this page is a recording without a server. */
  get recorded(): boolean {
    return this.record !== null;
  }

  /** The answer to a canonical path; the same question is asked once. */
  get(path: string): Promise<Answer> {
    const known = this.kept.get(path);
    if (known) return known;
    const asked = this.fetched(path);
    this.kept.set(path, asked);
    asked.catch(() => this.kept.delete(path));
    if (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value as string);
    return asked;
  }

  /** Starts a run and gives its name. */
  async run(question: Question): Promise<string> {
    const body = JSON.stringify(question, Object.keys(flat(question)).sort());
    const path = `/api/run?${body}`;
    if (this.record || this.ready[path]) return (await this.fetched(path)).run;
    return (await this.sent("/api/run", { method: "POST", headers: { "content-type": "application/json" }, body })).run;
  }

  /** Asks that a run which learns be watched with a text too. */
  async wish(run: string, text: string): Promise<void> {
    await this.sent(`/api/watch/${encodeURIComponent(run)}/texts`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ text }) });
  }

  events(): EventSource | null {
    return this.record ? null : new EventSource("/api/events");
  }

  /** Forgets what was answered about a run that the server let go. */
  forget(run: string): void {
    for (const path of [...this.kept.keys()]) if (path.startsWith(`/api/r/${run}/`)) this.kept.delete(path);
  }

  private async fetched(path: string): Promise<Answer> {
    const found = (this.record ?? this.ready)[path];
    if (!found && !this.record) return this.sent(path);
    delete this.ready[path];
    if (!found) throw new Trouble({ zh: "这里没有录下这个回答：请运行 qkv look 模型 --serve", en: "not recorded: run qkv look MODEL --serve" });
    if (found.type !== BINARY) return JSON.parse(found.body);
    return decode(Uint8Array.from(atob(found.body), (c) => c.charCodeAt(0)).buffer);
  }

  private async sent(path: string, how?: RequestInit): Promise<Answer> {
    let reply: Response;
    try {
      reply = await fetch(path, { credentials: "same-origin", ...how });
    } catch {
      throw new Trouble({ zh: "连不上服务器：运行 qkv look 的终端还开着吗？", en: "the server does not answer: is the terminal with qkv look still open?" });
    }
    if (reply.headers.get("content-type")?.startsWith(BINARY)) return decode(await reply.arrayBuffer());
    const body = await reply.json().catch(() => null);
    if (reply.ok && body) return body;
    const said = body?.error ?? { zh: `服务器回答了 ${reply.status}`, en: `the server answered ${reply.status}` };
    throw new Trouble(said, reply.status);
  }
}

/** The answers that the document brings along under a name. */
function carried(name: string): Record<string, Recorded> | null {
  const found = document.getElementById(name);
  return found ? JSON.parse(found.textContent ?? "{}") : null;
}

function flat(value: unknown, into: Record<string, true> = {}): Record<string, true> {
  if (value && typeof value === "object" && !Array.isArray(value)) {
    for (const [key, inner] of Object.entries(value)) {
      into[key] = true;
      flat(inner, into);
    }
  }
  return into;
}
