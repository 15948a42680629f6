// Keeps the site for reading without a network. tools/website/offline.py puts BUILD before it: a hash over every file.
// files.json says the hash of each: what came incomplete is not kept, and what a new build did not change is kept on.
// Weights are not its business: the page that computes keeps them itself, by their own hash (web/src/live/engine.ts).
const NAME = "qkv-site-";
const STORE = NAME + BUILD;
const LIST = "files.json";
const at = (path) => new URL(path, registration.scope).href;
const path_of = (url) => decodeURI(new URL(url).pathname.slice(new URL(registration.scope).pathname.length)).replace(/(^|\/)$/, "$1index.html");

let known;
/** Of each file, by its path: its hash, and the language that keeps it unasked. */
const listed = () => (known ??= caches.open(STORE).then((s) => s.match(at(LIST))).then((r) => r?.json() ?? {}).catch(() => ({})));

async function digest(body) {
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", body));
  return Array.from(hash, (b) => b.toString(16).padStart(2, "0")).join("").slice(0, 16);
}

/** A file from the network, kept where it is whole; fetched past the browser's cache where that had another. */
async function fetched(path, request) {
  const wanted = (await listed())[path]?.hash;
  let reply = await fetch(request ?? at(path));
  for (const again of [true, false]) {
    if (!reply.ok || !wanted) return reply;
    if ((await digest(await reply.clone().arrayBuffer())) === wanted) {
      const { headers } = reply, body = await reply.clone().blob();
      await caches.open(STORE).then((s) => s.put(at(path), new Response(body, { headers }))).catch(() => undefined); // no room: it is read as it came
      return reply;
    }
    if (again) reply = await fetch(at(path), { cache: "reload" }).catch(() => reply);
  }
  return reply;
}

async function answer(request) {
  const path = path_of(request.url), page = request.mode === "navigate";
  const kept = await caches.open(STORE).then((s) => s.match(at(path))).catch(() => undefined);
  if (kept) return kept;
  try {
    const reply = await fetched(path, request);
    if (!page || reply.status !== 404) return reply;
    const gone = await caches.match(at("404.html")) ?? await fetch(at("404.html")); // a host may have a page of its own
    return gone.ok ? new Response(gone.body, { status: 404, headers: { "content-type": "text/html; charset=utf-8" } }) : reply;
  } catch {
    if (!page) return Response.error();
    return new Response(without_network(path), { status: 503, headers: { "content-type": "text/html; charset=utf-8" } });
  }
}

function without_network(path) {
  const home = at(path.startsWith("en/") ? "en/index.html" : "index.html");
  return `<!doctype html><html lang="zh"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>qkv</title><body style="font:1rem/1.7 system-ui,sans-serif;max-width:40rem;margin:2rem auto;padding:0 1rem">
<h1>没有网络</h1><p>这一页还没有存下来，现在又连不上网。读过的页面都在：<a href="${home}">回首页</a>。</p>
<h1 lang="en">No network</h1><p lang="en">This page was not kept, and there is no network. The pages that you have read are there: <a href="${home}">home</a>.</p>`;
}

addEventListener("install", (event) => {
  event.waitUntil((async () => {
    const store = await caches.open(STORE), reply = await fetch(at(LIST), { cache: "no-cache" });
    const now = await reply.clone().json();
    await store.put(at(LIST), reply);
    for (const name of await caches.keys()) {
      if (!name.startsWith(NAME) || name === STORE) continue;
      const old = await caches.open(name), before = await old.match(at(LIST)).then((r) => r?.json() ?? {});
      for (const { url } of await old.keys()) {
        const path = path_of(url);
        if (now[path] && now[path].hash === before[path]?.hash) await store.put(url, await old.match(url));
      }
    }
    await skipWaiting();
  })());
});

addEventListener("activate", (event) => {
  event.waitUntil((async () => {
    for (const name of await caches.keys()) if (name.startsWith(NAME) && name !== STORE) await caches.delete(name);
    await clients.claim();
  })());
});

addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method === "GET" && request.url.startsWith(registration.scope) && !request.url.endsWith(".safetensors")) event.respondWith(answer(request));
});

/** A page asks for what its language needs to be read and searched; one file after another, then it is told. */
addEventListener("message", (event) => {
  event.waitUntil((async () => {
    const store = await caches.open(STORE), files = Object.entries(await listed());
    let missing = 0;
    for (const [path, { lang }] of files) {
      if (registration.installing || registration.waiting) return; // a newer build will be asked, once it has taken over
      if (lang !== event.data.lang || (await store.match(at(path)))) continue;
      await fetched(path).catch(() => undefined);
      missing += (await store.match(at(path))) ? 0 : 1; // no network, no room, or it came incomplete
    }
    event.source?.postMessage({ kept: files.length > 0 && missing === 0 });
  })());
});
