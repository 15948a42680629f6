// A built site on a port of its own, which can be closed: a reader without a network. `spoil` may answer in its place.
import { createReadStream, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";

const KINDS = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".json": "application/json", ".svg": "image/svg+xml", ".png": "image/png" };

/** The address, what was asked so far, and `close`, after which nothing answers. */
export async function serve(folder, port = 0) {
  const site = { asked: [], spoil: () => null };
  const server = createServer((request, reply) => {
    const path = decodeURIComponent(new URL(request.url, "http://site").pathname).replace(/\/$/, "/index.html");
    site.asked.push(path);
    const file = join(folder, normalize(path)), there = (() => { try { return statSync(file); } catch { return null; } })();
    const spoilt = site.spoil(path);
    const kind = { "content-type": KINDS[extname(file)] ?? "application/octet-stream" };
    if (spoilt !== null) return reply.writeHead(200, kind).end(spoilt);
    if (!there?.isFile()) return reply.writeHead(404, { "content-type": "text/plain" }).end("not found");
    reply.writeHead(200, { ...kind, "content-length": there.size });
    createReadStream(file).pipe(reply);
  });
  await new Promise((go) => server.listen(port, "127.0.0.1", go));
  site.port = server.address().port;
  site.address = `http://127.0.0.1:${site.port}/`;
  site.close = () => new Promise((go) => { server.close(go); server.closeAllConnections(); });
  return site;
}
