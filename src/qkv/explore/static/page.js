"use strict";
// The page of one run: every number drawn here stands in #data, measured when the file was written.
const D = JSON.parse(document.getElementById("data").textContent);
const WORDS = {
  lang: ["English", "中文"], theme: ["深色 / 浅色", "Dark / light"],
  attention: ["注意力", "Attention"], alignment: ["对齐", "Alignment"], guesses: ["逐层猜测", "Guesses by layer"],
  proof: ["证明", "Proof"], training: ["看它学习", "Watch it learn"], cache: ["KV 缓存", "KV cache"],
  source: ["原文", "source"], target: ["译文", "translation"], text: ["提示 → 续写", "prompt → said"],
  encoder: ["编码器", "Encoder"], decoder: ["解码器", "Decoder"], cross: ["译文看原文", "Cross"],
  layer: ["层", "layer"], head: ["头", "head"], parameters: ["参数", "parameters"], layers: ["层", "layers"], heads: ["头", "heads"],
  noteAttention: ["每一行是一个词在提问（橙色），颜色越深，它从那个词取来的信息越多；每行之和为 1。点一个小图换头，点或悬停一个词看它的一行。",
    "Each row is one word asking (orange); the darker a cell, the more it takes from that word; a row sums to 1. Pick a head on the left; hover or click a word to see its row."],
  noteAlignment: ["写下每个译文词时，解码器看了哪些原文词：第 {0} 层各头的平均。", "Where the decoder looked while writing each word: mean over the heads of layer {0}."],
  noteGuesses: ["每一层之后就让模型说出下一个词。最上面一行是模型真正说的；灰色虚线的猜测被丢掉了，因为下一个词已经给定。早期层的猜测只是图像，不是信念。",
    "After each layer the model is made to say the next word. The top row is what it really says; grey dashed guesses are thrown away, because the next word was given. Early rows are a picture, not a belief."],
  noteProof: ["注意力强不等于有用。这里逐条剪断从橙色词出发的边（所有层、所有头），再跑一遍：蓝色是原来说出目标词的概率，橙色是剪断之后。点词换提问的词；点译文换目标词。",
    "A strong edge need not matter. Here each edge from the orange word is cut (in all layers and heads) and the model runs again: blue is the chance of the target word before, orange after. Click a word to ask from it, a written word to aim at it."],
  noteCross: ["写蓝色的词时，逐条剪断它看向原文的边（所有层、所有头），再跑一遍：蓝色是原来说出它的概率，橙色是剪断之后。点译文换目标词，点原文换成从原文出发。",
    "While the blue word is written, each of its edges into the source is cut (in all layers and heads) and the model runs again: blue is its chance before, orange after. Click a written word to aim at it, a source word to ask from it."],
  fromRead: ["原文里谁看谁", "inside the source"], fromWritten: ["写这个词时看原文", "from the written word"],
  headsProof: ["关掉一个头以后，目标词的概率", "Chance of the target word with one head silenced"],
  becomes: ["变成", "becomes"], before: ["剪断前", "before"], after: ["剪断后", "after"], cut: ["剪断", "cut"], says: ["改说", "says instead"],
  nothing: ["没有剪断哪条边能改变什么；换一个词试试。", "No single cut changes this word; try another."],
  loss: ["损失", "loss"], step: ["步", "step"], noteTraining: ["从随机权重开始：同样几句话，在训练的不同时刻。", "From random weights: the same sentences, as training goes on."],
  noteCache: ["写完这么多词元要多少毫秒：有缓存，每步只算新词；没有缓存，每步从头重算。", "Milliseconds to write so many tokens: with the cache each step computes the new token only, without it everything again."],
  withCache: ["有缓存", "with cache"], withoutCache: ["无缓存", "without cache"],
  foot: ["离线单文件，无任何外部请求。每个数字都来自这次运行：注意力由记录下来的 q、k 以 fp32 重建，|注意力·v − z| 的最大误差 {0}。",
    "One offline file, no request leaves it. Every number comes from this run: attention is rebuilt in fp32 from the recorded q and k; largest |pattern · v − z| is {0}."],
  thrown: ["（被丢掉）", " (thrown away)"], looks: ["看", "looks at"], saysNext: ["之后猜", "guesses next"], embed: ["词向量", "embedding"],
};
const S = { zh: !(D.lang ? D.lang === "en" : !/^zh/i.test(navigator.language)), scene: 0, tab: null, part: null, layer: 0, head: 0, query: 0, key: 0, at: 1, cell: null };
const $ = (id) => document.getElementById(id);
const w = (k, ...a) => WORDS[k][S.zh ? 0 : 1].replace(/\{(\d)\}/g, (_, i) => a[i]);
const scene = () => D.scenes[S.scene];
const pct = (p) => (p > 0 && p < 0.001 ? "<0.1%" : (100 * p).toFixed(p < 0.0995 ? 1 : 0) + "%");
const show = (s) => (s.trim() === "" ? "␣" : s.trim());
const NS = "http://www.w3.org/2000/svg";

function el(tag, attrs = {}, ...kids) {
  const svg = ["svg", "g", "rect", "path", "text", "line", "circle", "title"].includes(tag);
  const e = svg ? document.createElementNS(NS, tag) : document.createElement(tag);
  for (const [k, v] of Object.entries(attrs)) {
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (k === "style") e.style.cssText = v;
    else if (v !== null && v !== undefined) e.setAttribute(k, v);
  }
  e.append(...kids.filter((k) => k !== null));
  return e;
}
const ink = (v) => `rgba(var(--blue-rgb),${Math.min(1, 0.04 + 0.96 * v)})`;
const toned = (v) => `background:${ink(v)};color:${v > 0.55 ? "var(--card)" : "var(--ink)"}`;
const say = (...parts) => { $("say").replaceChildren(...parts); $("say").hidden = parts.every((p) => p === ""); };
const strong = (t) => el("b", {}, t);

function queries() { return scene().kind === "translation" ? (S.part === "encoder" ? scene().source : shown()) : scene().target.slice(0, -1); }
function keys() { return scene().kind === "translation" && S.part !== "decoder" ? scene().source : scene().target.slice(0, -1); }
function shown() { const t = scene().target; return S.part === "cross" ? t.slice(1) : t.slice(0, -1); } // a cross row is named by the word it writes

// ---- drawing ----
function matrix(rows, cols, value, { selected = null, pick = null, text = false } = {}) {
  const left = 22 + 15 * Math.max(...rows.map((r) => [...show(r)].reduce((n, c) => n + (c > "⺀" ? 1 : 0.62), 0)));
  const size = Math.max(18, Math.min(text ? 40 : 29, Math.floor(740 / cols.length)));
  const top = 26 + 11 * Math.max(...cols.map((c) => [...show(c)].reduce((n, x) => n + (x > "⺀" ? 1 : 0.6), 0)));
  const g = el("svg", { width: left + size * cols.length + 40, height: top + size * rows.length + 8, role: "img", tabindex: 0 });
  cols.forEach((c, j) => g.append(el("text", { x: 0, y: 0, transform: `translate(${left + size * (j + 0.5) + 4},${top - 8}) rotate(-48)` }, show(c))));
  rows.forEach((r, i) => {
    const on = selected && selected[0] === i;
    const label = el("text", { x: left - 9, y: top + size * (i + 0.5) + 5, "text-anchor": "end", style: on ? "fill:var(--orange);font-weight:700" : "" }, show(r));
    g.append(label);
    cols.forEach((c, j) => {
      const v = value(i, j);
      const cell = el("rect", { x: left + size * j + 1, y: top + size * i + 1, width: size - 2, height: size - 2, rx: 3, "data-cell": `${i},${j}`,
        style: `fill:${ink(v)};stroke:${selected && selected[0] === i && selected[1] === j ? "var(--orange)" : "none"};stroke-width:2.5` }, el("title", {}, `${show(r)} → ${show(c)}: ${v.toFixed(4)}`));
      if (pick) { cell.addEventListener("click", () => pick(i, j)); cell.addEventListener("mouseenter", () => pick(i, j, true)); }
      g.append(cell);
      if (text && v >= 0.05) g.append(el("text", { x: left + size * (j + 0.5), y: top + size * (i + 0.5) + 4, "text-anchor": "middle", class: "small", style: `pointer-events:none;fill:${v > 0.5 ? "var(--card)" : "var(--ink)"}` }, Math.round(v * 100)));
    });
    if (on) g.append(el("rect", { x: left - 1, y: top + size * i - 1, width: size * cols.length + 2, height: size + 2, rx: 5, style: "fill:none;stroke:var(--orange);stroke-width:1.5;pointer-events:none" }));
  });
  if (pick) g.addEventListener("keydown", (e) => {
    const d = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[e.key];
    if (!d || !selected) return;
    e.preventDefault();
    pick(Math.max(0, Math.min(rows.length - 1, selected[0] + d[0])), Math.max(0, Math.min(cols.length - 1, selected[1] + d[1])));
    $("panel").querySelector("svg[tabindex]").focus();
  });
  return g;
}

function arcs(tokens, query, weight, { colour = "var(--blue)", label = pct, pick = null } = {}) {
  const wide = tokens.map((t) => 20 + 16 * [...show(t)].reduce((n, c) => n + (c > "⺀" ? 1 : 0.56), 0));
  const at = [], height = Math.min(150, 46 + 9 * tokens.length);
  let x = 8;
  wide.forEach((n) => { at.push(x + n / 2); x += n + 6; });
  const g = el("svg", { width: Math.max(x + 8, 200), height: height + 54, role: "img" });
  const best = Math.max(...tokens.map((_, j) => (j === query ? 0 : weight(j))));
  tokens.forEach((t, j) => {
    const v = weight(j), far = Math.abs(at[j] - at[query]);
    if (v >= 0.02 && j !== query) g.append(el("path", { d: `M${at[query]},${height} C${at[query]},${height - 24 - far * 0.42} ${at[j]},${height - 24 - far * 0.42} ${at[j]},${height}`,
      fill: "none", "stroke-linecap": "round", style: `stroke:${v === best ? "var(--orange)" : colour};stroke-width:${1.2 + 8 * Math.min(1, v)};opacity:${0.25 + 0.75 * Math.min(1, v)}` }, el("title", {}, `${v.toFixed(4)}`)));
  });
  tokens.forEach((t, j) => {
    const on = j === query, v = weight(j);
    const node = el("g", { style: pick ? "cursor:pointer" : "" },
      el("rect", { x: at[j] - wide[j] / 2, y: height + 2, width: wide[j], height: 29, rx: 7, style: on ? "fill:var(--orange)" : `fill:${ink(Math.max(0, v) * 0.5)}` }),
      el("text", { x: at[j], y: height + 22, "text-anchor": "middle", style: on ? "fill:var(--on);font-weight:700;font-size:16px" : "font-size:16px" }, show(t)),
      el("text", { x: at[j], y: height + 48, "text-anchor": "middle", class: "small", style: v === best ? "fill:var(--orange);font-weight:700" : "" }, v >= 0.005 ? label(v) : ""));
    if (pick) node.addEventListener("click", () => pick(j));
    g.append(node);
  });
  const h = Math.max(...tokens.map((_, j) => (weight(j) >= 0.02 && j !== query ? 24 + Math.abs(at[j] - at[query]) * 0.42 : 0))) * 0.75 + 12;
  const topY = height - h;
  g.setAttribute("viewBox", `0 ${topY} ${g.getAttribute("width")} ${height + 54 - topY}`);
  g.setAttribute("height", height + 54 - topY);
  return g;
}

function bridge(src, tgt, weight, hot = S.query) {
  const place = (list) => { let x = 10; return list.map((t) => { const n = 20 + 17 * [...show(t)].reduce((m, c) => m + (c > "⺀" ? 1 : 0.56), 0); const c = [x + n / 2, n]; x += n + 9; return c; }); };
  const a = place(src), b = place(tgt), end = (l) => l[l.length - 1][0] + l[l.length - 1][1] / 2;
  const width = Math.max(end(a), end(b)) + 12, shiftA = (width - end(a) - 10) / 2, shiftB = (width - end(b) - 10) / 2;
  const g = el("svg", { viewBox: `0 0 ${width} 208`, style: `width:100%;max-width:${width}px;margin:0 auto`, role: "img" });
  tgt.forEach((t, i) => src.forEach((s, j) => {
    const v = weight(i, j), x = a[j][0] + shiftA, y = b[i][0] + shiftB, dim = hot !== null && hot !== i;
    if (v > 0.06) g.append(el("path", { d: `M${x},44 C${x},104 ${y},104 ${y},164`, fill: "none", style: `stroke:${hot === i ? "var(--orange)" : "var(--blue)"};stroke-width:${1 + 8 * v};opacity:${dim ? 0.1 : 0.3 + 0.65 * v}` }, el("title", {}, `${show(t)} ← ${show(s)}: ${v.toFixed(4)}`)));
  }));
  src.forEach((s, j) => g.append(el("text", { x: a[j][0] + shiftA, y: 34, "text-anchor": "middle", style: "font-size:18px" }, show(s))));
  tgt.forEach((t, i) => g.append(el("text", { x: b[i][0] + shiftB, y: 186, "text-anchor": "middle", "data-cell": i, style: `font-size:18px;${hot === i ? "fill:var(--orange);font-weight:700" : ""}`,
    onmouseenter: () => { if (S.tab === "alignment" && S.query !== i) { S.query = i; panel(); } }, onclick: () => { S.query = i; panel(); } }, show(t))));
  return g;
}

function thumb(rows) {
  const c = el("canvas", { width: rows[0].length, height: rows.length }), x = c.getContext("2d");
  const rgb = getComputedStyle(document.documentElement).getPropertyValue("--blue-rgb");
  rows.forEach((r, i) => r.forEach((v, j) => { x.fillStyle = `rgba(${rgb},${0.03 + 0.97 * v})`; x.fillRect(j, i, 1, 1); }));
  return c;
}

function lines(series, unit) {
  const W = 520, H = 210, L = 52, B = 30, R = series.some((s) => s.name) ? 138 : 62, all = series.flatMap((s) => s.points);
  const xs = all.map((p) => p[0]), ys = all.map((p) => p[1]), x1 = Math.max(...xs, 1), x0 = Math.min(...xs, 0), y1 = Math.max(...ys) * 1.06 || 1;
  const X = (v) => L + ((W - L - R) * (v - x0)) / (x1 - x0 || 1), Y = (v) => H - B - ((H - B - 12) * v) / y1;
  const g = el("svg", { viewBox: `0 0 ${W} ${H}`, width: "100%", role: "img" });
  [0, 0.5, 1].forEach((f) => g.append(el("line", { x1: L, x2: W - R, y1: Y(f * y1 / 1.06), y2: Y(f * y1 / 1.06), style: "stroke:var(--line)" }),
    el("text", { x: L - 8, y: Y(f * y1 / 1.06) + 4, "text-anchor": "end", class: "small" }, (f * y1 / 1.06).toPrecision(2))));
  g.append(el("text", { x: W - R, y: H - 8, "text-anchor": "end", class: "small" }, `${x1} ${unit}`), el("text", { x: L, y: H - 8, class: "small" }, `${x0}`));
  series.forEach((s) => {
    g.append(el("path", { d: s.points.map((p, i) => `${i ? "L" : "M"}${X(p[0]).toFixed(1)},${Y(p[1]).toFixed(1)}`).join(""), fill: "none", "stroke-linejoin": "round", style: `stroke:${s.colour};stroke-width:2.5`, "stroke-dasharray": s.dash || null }));
    const last = s.points[s.points.length - 1];
    g.append(el("circle", { cx: X(last[0]), cy: Y(last[1]), r: 4, style: `fill:${s.colour}` }), el("text", { x: X(last[0]) + 8, y: Y(last[1]) + 4, class: "small", style: `fill:${s.colour}` }, `${s.name} ${+last[1].toPrecision(3)}`));
  });
  return g;
}

// ---- panels ----
const PANELS = {
  attention() {
    const heads = scene().attention[S.part], q = queries(), k = keys(), rows = heads[S.layer][S.head];
    S.query = Math.min(S.query ?? 0, q.length - 1); S.key = Math.min(S.key, k.length - 1);
    const best = (r) => r.indexOf(Math.max(...r));
    const tell = (i, j) => say(strong(show(q[i])), ` ${w("looks")} `, strong(show(k[j])), ` ${rows[i][j].toFixed(4)} · ${w("layer")} ${S.layer + 1} ${w("head")} ${S.head + 1}`);
    const pick = (i, j, hover) => { if (hover && i === S.query) { tell(i, j); return; } S.query = i; S.key = j; panel(); };
    const grid = el("div", { class: "thumbs", style: `grid-template-columns:auto repeat(${heads[0].length},auto)` }, el("small"), ...heads[0].map((_, h) => el("small", {}, `${w("head")} ${h + 1}`)));
    heads.forEach((row, l) => { grid.append(el("small", {}, `${w("layer")} ${l + 1}`)); row.forEach((m, h) => grid.append(el("button", { type: "button", "aria-pressed": l === S.layer && h === S.head, "aria-label": `${w("layer")} ${l + 1} ${w("head")} ${h + 1}`, onclick: () => { S.layer = l; S.head = h; S.key = best(m[S.query] || m[0]); panel(); } }, thumb(m)))); });
    const parts = Object.keys(scene().attention);
    const seg = parts.length > 1 ? el("div", { class: "seg" }, ...parts.map((p) => el("button", { type: "button", "aria-pressed": p === S.part, onclick: () => { choosePart(p); panel(); } }, w(p)))) : null;
    const arcRow = S.part !== "cross" ? arcs(k, S.query, (j) => rows[S.query][j], { pick: (j) => { S.query = j; S.key = best(rows[j]); panel(); } }) : null;
    tell(S.query, S.key);
    return [el("p", { class: "note" }, w("noteAttention")), el("div", { class: "split" }, el("div", { class: "box" }, ...[seg].filter(Boolean), grid),
      el("div", { class: "box" }, ...[arcRow].filter(Boolean), matrix(q, k, (i, j) => rows[i][j], { selected: [S.query, S.key], pick })))];
  },
  alignment() {
    const a = scene().alignment, rows = scene().target.slice(1), cols = scene().source;
    if (S.query !== null && S.query >= rows.length) S.query = null;
    const m = matrix(rows, cols, (i, j) => a.weight[i][j], { selected: S.query === null ? null : [S.query, -1], text: true, pick: (i) => { if (S.query !== i) { S.query = i; panel(); } } });
    if (S.query !== null) { const r = a.weight[S.query], top = r.map((v, j) => [v, j]).sort((x, y) => y[0] - x[0]).slice(0, 3); say(strong(show(rows[S.query])), " ← ", top.map(([v, j]) => `${show(cols[j])} ${v.toFixed(4)}`).join(" · ")); } else say("");
    return [el("p", { class: "note" }, w("noteAlignment", a.layer + 1)), el("div", { class: "grow" }, el("div", { class: "box" }, bridge(cols, rows, (i, j) => a.weight[i][j])), el("div", { class: "box" }, m))];
  },
  guesses() {
    const g = scene().guesses, L = g.cells.length, read = scene().target.slice(0, g.used.length), next = scene().target.slice(1);
    S.cell = S.cell && S.cell[0] < L && S.cell[1] < read.length ? S.cell : [L - 1, scene().kind === "translation" && scene().proof ? scene().proof.at - 1 : Math.max(0, g.used.indexOf(true))];
    const table = el("table", { class: "lens" });
    for (let l = L - 1; l >= 0; l--) table.append(el("tr", l === L - 1 ? { class: "out" } : {}, el("th", { scope: "row" }, l ? `${w("layer")} ${l}` : w("embed")), ...g.cells[l].map((c, t) => el("td", {}, el("button", {
      type: "button", class: g.used[t] ? "" : "lost", style: toned(c[0][1]), "aria-pressed": S.cell[0] === l && S.cell[1] === t, onclick: () => { S.cell = [l, t]; panel(); }, onmouseenter: () => { if (S.cell[0] !== l || S.cell[1] !== t) { S.cell = [l, t]; panel(); } },
    }, show(c[0][0]), el("small", {}, pct(c[0][1])))))));
    table.append(el("tr", {}, el("th"), ...read.map((t, i) => el("th", { style: `font-size:16px;color:${i === S.cell[1] ? "var(--orange)" : "var(--ink)"}` }, show(t)))));
    const [l, t] = S.cell, best = g.cells[l][t];
    const bars = el("div", { class: "bars one" });
    best.forEach(([tok, p]) => bars.append(el("div", { class: "name" }, show(tok)), el("div", { class: "track one" }, el("div", { class: "was", style: `width:${100 * p}%;height:22px` })), el("div", { class: "num" }, p.toFixed(4))));
    say(`${l ? w("layer") + " " + l : w("embed")} · `, strong(show(read[t])), ` ${w("saysNext")} `, strong(show(best[0][0])), ` ${best[0][1].toFixed(4)}${g.used[t] ? "" : w("thrown")} · → ${show(next[t] ?? "")}`);
    return [el("p", { class: "note" }, w("noteGuesses")), el("div", { class: "grow" }, el("div", { class: "box" }, table), el("div", { class: "box", style: "max-width:620px" }, bars))];
  },
  proof() {
    const [p, q, t] = proofAt(), cross = p.side === "cross", asking = p.side === "encoder" ? scene().source : scene().target;
    const side = p.side === "decoder" ? scene().target : scene().source, was = p.before[t], goal = show(scene().target[t]);
    const from = cross ? goal : show(asking[q]), reach = side.map((_, j) => j).filter((j) => p.side !== "decoder" || (j <= q && q < t));
    const drop = (j) => (reach.includes(j) ? Math.max(0, was - p.after[q][j][t]) : 0);
    const order = [...reach].sort((a, b) => p.after[q][a][t] - p.after[q][b][t]);
    const bars = el("div", { class: "bars" });
    order.slice(0, 7).forEach((j, n) => { const now = p.after[q][j][t], other = p.instead[q][j][t], changed = other !== scene().target[t];
      bars.append(el("div", { class: "name" + (n ? "" : " top"), style: n ? "" : "font-weight:700" }, `${from} → ${show(side[j])}`), el("div", { class: "track" }, el("div", { class: "was", style: `width:${100 * was}%` }), el("div", { class: "now", style: `width:${100 * now}%` })),
        el("div", { class: "num" }, `${fine(was)} → ${fine(now)}`, ...(changed ? [` · ${w("says")} `, strong(show(other))] : []))); });
    const heads = el("table", { class: "lens" }, el("tr", {}, el("th"), ...p.heads[0].map((_, h) => el("th", {}, `${w("head")} ${h + 1}`))));
    p.heads.forEach((row, l) => heads.append(el("tr", {}, el("th", { scope: "row" }, `${w("layer")} ${l + 1}`), ...row.map((c) => { const lost = Math.max(0, was - c[t]); return el("td", {}, el("div", { style: `padding:7px 12px;border-radius:7px;background:rgba(var(--orange-rgb),${(0.04 + 0.9 * lost / Math.max(was, 0.01)).toFixed(3)})`, title: c[t].toFixed(4) }, pct(c[t]))); }))));
    if (order.length && drop(order[0]) > 0.001) say(`${w("cut")} `, strong(`${from} → ${show(side[order[0]])}`), `: P(${goal}) ${was.toFixed(4)} → ${p.after[q][order[0]][t].toFixed(4)}`);
    else say(w("nothing"));
    const seg = scene().across ? el("div", { class: "seg" }, ...["encoder", "cross"].map((k) => el("button", { type: "button", "aria-pressed": (k === "cross") === cross, onclick: () => { S.cross = k === "cross"; draw(); } }, w(k === "cross" ? "fromWritten" : "fromRead")))) : null;
    return [el("p", { class: "note" }, w(cross ? "noteCross" : "noteProof")), ...[seg].filter(Boolean), el("div", { class: "grow" },
      el("div", { class: "box" }, cross ? bridge(side, [scene().target[t]], (_, j) => drop(j), 0) : arcs(side, q, (j) => drop(j), { label: (v) => "−" + pct(v), pick: (j) => { S.ask = j; draw(); } })),
      el("div", { class: "split", style: "grid-template-columns:1.5fr 1fr" }, el("div", { class: "box" }, el("h2", {}, `P(${goal})`), el("p", { class: "note" }, el("span", { class: "key" }), w("before"), el("span", { class: "key o" }), w("after")), bars),
        el("div", { class: "box" }, el("h2", {}, w("headsProof")), el("p", { class: "note" }, `P(${goal}) = ${was.toFixed(4)} ${w("becomes")}…`), heads)))];
  },
  training() {
    const t = D.training, charts = el("div", { class: "split", style: "grid-template-columns:1fr 1fr" });
    if (t.loss && t.loss.length) charts.append(el("div", { class: "box" }, el("h2", {}, w("loss")), lines([{ name: "", points: t.loss, colour: "var(--blue)" }], w("step"))));
    if (t.bleu && t.bleu.length) charts.append(el("div", { class: "box" }, el("h2", {}, "BLEU"), lines([{ name: "", points: t.bleu, colour: "var(--orange)" }], w("step"))));
    const rows = (t.samples || []).map(([step, said]) => el("tr", {}, el("th", {}, `${step}`), ...said.map((x) => el("td", {}, x))));
    say("");
    return [el("p", { class: "note" }, w("noteTraining")), el("div", { class: "grow" }, charts, rows.length ? el("div", { class: "box" }, el("table", { class: "learn" }, el("tr", {}, el("th", {}, w("step")), ...(t.texts || []).map((x) => el("th", {}, x))), ...rows)) : null)];
  },
  cache() {
    const c = D.cache; say("");
    return [el("p", { class: "note" }, w("noteCache")), el("div", { class: "box", style: "max-width:760px" }, lines([{ name: w("withoutCache"), points: c.map((r) => [r[0], r[2]]), colour: "var(--orange)", dash: "7 4" }, { name: w("withCache"), points: c.map((r) => [r[0], r[1]]), colour: "var(--blue)" }], "tokens"))];
  },
};

// ---- page ----
function tabs() {
  const s = scene(), all = ["attention"];
  if (s.alignment) all.push("alignment");
  all.push("guesses");
  if (s.proof) all.push("proof");
  if (D.training) all.push("training");
  if (D.cache && D.cache.length) all.push("cache");
  return all;
}
function choosePart(p) {
  S.part = p; const heads = scene().attention[p]; S.layer = Math.min(S.layer, heads.length - 1); S.head = Math.min(S.head, heads[0].length - 1);
  const pr = scene().proof;
  S.query = pr && ((p === "encoder" && pr.side === "encoder") || s0(p)) ? Math.min(pr.query, queries().length - 1) : queries().length - 1;
  let best = -1;
  if (pr && pr.asked && p === "encoder") heads.forEach((row, l) => row.forEach((m, h) => { const v = Math.max(...m[S.query].filter((_, j) => j !== S.query)); if (v > best) { best = v; S.layer = l; S.head = h; } }));
  const r = heads[S.layer][S.head][S.query]; S.key = r.indexOf(Math.max(...r));
}
const s0 = (p) => p === "decoder" && scene().kind === "continuation";
function better(s) { // whether the written word's own strongest edge matters more than the asking word's
  if (!s.across) return false;
  const t = s.proof.at, low = (p, q) => Math.min(...p.after[q].map((row, k) => (p.side === "encoder" && k === q ? 1 : row[t])));
  return low(s.across, t - 1) < low(s.proof, s.proof.query) - 0.05;
}
function chooseScene(i) { S.scene = i; S.cell = null; S.ask = S.goal = undefined; S.cross = better(scene()); choosePart(Object.keys(scene().attention)[0]); }
const fine = (p) => (100 * p).toFixed(1) + "%";
function proofAt() { // the proof shown, the asking position and the target word: a written word asks from the position before it
  const s = scene(), cross = S.cross && s.across, p = cross ? s.across : s.proof, t = S.goal ?? s.proof.at;
  return [p, cross ? t - 1 : Math.min(S.ask ?? p.query, (p.side === "encoder" ? s.source : s.target).length - 1), t];
}
function sentence() {
  const s = scene(), pr = s.proof, inProof = S.tab === "proof" && pr, [, asked, t] = pr ? proofAt() : [null, -1, -1], q = inProof && S.cross && s.across ? -1 : asked;
  const tok = (x, i, side) => {
    const ask = pr && (pr.side === "encoder") === (side === "source"), goal = inProof && side === "target" && i === t;
    const on = inProof ? ask && i === q : false;
    return el("button", { type: "button", lang: /[⺀-鿿]/.test(x) ? "zh" : "en", class: "tok" + (/^[<\[].*[>\]]$/.test(x) ? " sub" : "") + (goal ? " goal" : "") + (side === "target" && s.kind === "continuation" && i >= s.prompt ? " new" : ""), "aria-pressed": on,
      onclick: () => { if (inProof) { if (side === "source") { S.ask = i; S.cross = false; } else if (ask && i < t && i !== q && !(i >= s.prompt)) S.ask = i; else if (i > 0) S.goal = i; } else if (S.tab === "attention") { const own = side === "source" ? "encoder" : "decoder"; if (S.part !== own && s.attention[own]) choosePart(own); S.query = Math.min(i, queries().length - 1); const r = s.attention[S.part][S.layer][S.head][S.query]; S.key = r.indexOf(Math.max(...r)); } draw(); } }, show(x));
  };
  const strip = (name, list, side) => el("div", { class: "strip" }, el("span", { class: "who" }, w(name)), el("div", { class: "toks" }, ...list.map((x, i) => (s.kind === "translation" && side === "target" && i === 0 ? null : tok(x, i, side))).filter(Boolean)));
  $("sentence").replaceChildren(...(s.kind === "translation" ? [strip("source", s.source, "source"), strip("target", s.target, "target")] : [strip("text", s.target, "target")]));
}
function panel() { $("panel").replaceChildren(...PANELS[S.tab]()); }
function draw() {
  document.documentElement.lang = S.zh ? "zh" : "en";
  const m = scene().model;
  $("title").textContent = D.title;
  $("card").replaceChildren(strong(m.layers.join(" + ")), ` ${w("layers")} · `, strong(m.heads), ` ${w("heads")} · `, strong(m.parameters.toLocaleString("en")), ` ${w("parameters")} · ${m.dtype}`, ...(D.facts || []).flatMap((f) => [" · ", `${f[S.zh ? 0 : 1]} `, strong(f[2])]));
  $("lang").textContent = w("lang"); $("theme").textContent = w("theme");
  $("scenes").replaceChildren(...(D.scenes.length > 1 ? D.scenes.map((s, i) => el("button", { type: "button", "aria-pressed": i === S.scene, onclick: () => { chooseScene(i); draw(); } }, s.text)) : []));
  const all = tabs();
  if (!all.includes(S.tab)) S.tab = all[0];
  $("tabs").replaceChildren(...all.map((t) => el("button", { type: "button", role: "tab", id: "tab-" + t, "aria-selected": t === S.tab, tabindex: t === S.tab ? 0 : -1, onclick: () => go(t), onkeydown: (e) => { const d = { ArrowRight: 1, ArrowLeft: -1 }[e.key]; if (d) { go(all[(all.indexOf(t) + d + all.length) % all.length]); $("tab-" + S.tab).focus(); } } }, w(t))));
  $("foot").textContent = w("foot", Math.max(...D.scenes.map((s) => s.check)).toExponential(1));
  sentence(); panel();
}
function go(t) { S.tab = t; if (t === "alignment") S.query = null; if (t === "attention") choosePart(S.part); history.replaceState(null, "", "#" + t); draw(); }
$("lang").onclick = () => { S.zh = !S.zh; draw(); };
$("theme").onclick = () => { const r = document.documentElement; r.dataset.theme = r.dataset.theme === "dark" ? "light" : "dark"; draw(); };
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
const hash = location.hash.slice(1).split("/");
D.scenes.forEach((s) => { if (s.kind === "translation") s.target[0] = "▷"; });
chooseScene(Math.min(+hash[1] || 0, D.scenes.length - 1));
if (hash[2]) document.documentElement.dataset.theme = hash[2];
S.tab = tabs().includes(hash[0]) ? hash[0] : tabs()[0];
if (S.tab === "alignment") S.query = null;
draw();
