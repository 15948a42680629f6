// What moves on the pages: sliders over figures, predictions, checks, a softmax, and the model itself where it is there.
// Without this script everything can be read: all figures stand below one another, answers are folded in.
(() => {
  const zh = document.documentElement.lang.startsWith("zh");
  const say = (chinese, english) => (zh ? chinese : english);
  document.documentElement.classList.add("moving");

  /** A slider shows one of its frames; the address may say which: #NAME=3. */
  function slide(box) {
    const [input, output] = [box.querySelector("input"), box.querySelector("output")];
    const frames = [...box.querySelectorAll(":scope > .frame")];
    const show = () => {
      const at = Number(input.value);
      frames.forEach((frame, i) => (frame.hidden = i !== at));
      output.textContent = frames[at].dataset.step;
      input.setAttribute("aria-valuetext", frames[at].dataset.step);
    };
    const said = new URLSearchParams(location.hash.slice(1)).get(box.id);
    if (said !== null && /^\d+$/.test(said)) input.value = said;
    input.addEventListener("input", show);
    box.addEventListener("toggle", ({ target }) => { // what is unfolded stays so at every step
      if (target.closest(".frame")) for (const fold of box.querySelectorAll(".frame details")) fold.open = target.open;
    }, true);
    show();
    if (said !== null) box.scrollIntoView();
  }

  /** A choice opens the answer, and says whether it was the right one. */
  function predict(box) {
    const details = box.querySelector("details");
    box.addEventListener("change", (event) => {
      const right = event.target.value === box.dataset.right;
      for (const label of box.querySelectorAll("label")) label.removeAttribute("data-said");
      event.target.closest("label").dataset.said = right ? say("猜对了", "right") : say("没猜对", "not so");
      details.open = true;
    });
  }

  /** A number is compared with the one that was computed. */
  function check(box) {
    const [input, button, output] = ["input", "button", "output"].map((name) => box.querySelector(name));
    const [value, within] = [Number(box.dataset.value), Number(box.dataset.within)];
    const look = () => {
      const given = Number(input.value.replace(/[,，\s]/g, "").replace("−", "-").replace("。", "."));
      if (!input.value.trim() || Number.isNaN(given)) output.textContent = say("请输入一个数。", "A number, please.");
      else if (Math.abs(given - value) <= Math.max(within * Math.abs(value), 1e-9)) output.textContent = say("对。", "Right.");
      else output.textContent = given < value ? say("小了。", "Too small.") : say("大了。", "Too large.");
    };
    button.addEventListener("click", look);
    input.addEventListener("keydown", (event) => event.key === "Enter" && look());
  }

  /** Softmax over real logits, with a temperature and a cut at a mass. */
  function softmax(box) {
    const words = box.dataset.words.split("\u0001");
    const logits = box.dataset.logits.split(",").map(Number); // greatest first
    const [heat, mass] = box.querySelectorAll("input");
    const [said, cut] = box.querySelectorAll("output");
    const draw = () => {
      const [T, p] = [Number(heat.value), Number(mass.value)];
      const powers = logits.map((x) => Math.exp((x - logits[0]) / T));
      const sum = powers.reduce((a, b) => a + b, 0);
      const chances = powers.map((x) => x / sum);
      let kept = 0;
      for (let held = 0; kept < chances.length && held < p - 1e-12; kept++) held += chances[kept];
      const whole = chances.slice(0, kept).reduce((a, b) => a + b, 0);
      const entropy = -chances.slice(0, kept).reduce((a, x) => (x > 0 ? a + (x / whole) * Math.log(x / whole) : a), 0);
      [said.textContent, cut.textContent] = [T.toFixed(1), p.toFixed(2)];
      const rows = chances.slice(0, 8).map((x, i) => {
        const share = i < kept ? x / whole : 0;
        const bar = `<svg width="160" height="12" aria-hidden="true"><rect width="${(160 * share).toFixed(1)}" height="12" fill="#0077d4"/></svg>`;
        return `<tr><th scope="row">${words[i].replace(/</g, "&lt;")}</th><td>${(100 * share).toFixed(2)}%</td><td>${bar}</td></tr>`;
      });
      const facts = say(`留下 ${kept} 个词元（共 ${logits.length} 个），熵 ${entropy.toFixed(3)} nat`,
        `${kept} of ${logits.length} tokens kept, entropy ${entropy.toFixed(3)} nats`);
      box.querySelector(".rows").innerHTML = `<table class="plot"><tbody>${rows.join("")}</tbody></table><p>${facts}</p>`;
    };
    heat.addEventListener("input", draw);
    mass.addEventListener("input", draw);
    draw();
  }

  /** The model in the browser: fetched when it is wanted, and never in the way where it is not there. */
  async function live(box) {
    const button = box.querySelector("button");
    const { view, model, sentence, lang, module } = box.dataset;
    const begin = async () => {
      button.disabled = true;
      const place = document.createElement("div");
      box.append(place);
      try {
        const { mount } = await import(new URL(module, location.href).href);
        await mount(place, { view, model, sentence, lang });
        button.remove();
        box.querySelector(".instead").remove();
      } catch (error) {
        place.textContent = say("模型没能打开：", "The model did not open: ") + error.message;
        button.disabled = false;
      }
    };
    button.hidden = false;
    button.addEventListener("click", begin);
  }

  /** A lab that the page itself computes: its own numbers beside those of the committed run. */
  function lab(box) {
    const [button, output] = [box.querySelector("button"), box.querySelector("[role=status]")];
    const { lab: name, module, inputs } = box.dataset;
    button.hidden = false;
    button.addEventListener("click", async () => {
      button.disabled = true;
      output.textContent = say("正在取模型、计算……", "fetching the model, computing …");
      try {
        const { run_lab } = await import(new URL(module, location.href).href);
        const began = performance.now(), found = await run_lab(name, JSON.parse(inputs));
        for (const row of box.querySelectorAll("[data-number]")) {
          const x = found[row.dataset.number];
          row.textContent = Number.isInteger(x) && Math.abs(x) < 1e6 ? String(x) : x.toPrecision(3).replace(/e([+-])(\d)$/, "e$10$2");
        }
        const took = ((performance.now() - began) / 1000).toFixed(1);
        output.textContent = say(`在这台设备上算了 ${took} 秒。`, `Computed on this device in ${took} s.`);
      } catch (error) {
        output.textContent = say("没能算出来：", "It could not be computed: ") + ((zh && error.said?.zh) || error.message);
      }
      button.disabled = false;
    });
  }

  /** A line at the top of the page: what became of a link. */
  function note(text) {
    const line = document.createElement("p");
    line.className = "old-link";
    line.setAttribute("role", "status");
    line.textContent = text;
    document.querySelector("article")?.prepend(line);
  }

  /** A link from an older version: says so, and opens the nearest place of this page. */
  async function find(from = null) {
    document.querySelectorAll(".old-link").forEach((line) => line.remove());
    if (from) note(say(`链接来自旧版：${from} 已经不在了，这是最接近的一页。`, `This link is from an older version: ${from} is gone, and this is the nearest page.`));
    const asked = decodeURIComponent(location.hash.slice(1)).split("=")[0];
    if (!asked || asked.startsWith("__") || document.getElementById(asked) || document.getElementsByName(asked).length) return;
    const here = location.pathname.slice(new URL(root, location.href).pathname.length).replace(/^en\//, "").replace(/(^|\/)$/, "$1index.html");
    const moved = await fetch(new URL("assets/moved.json", root)).then((r) => r.json()).catch(() => ({}));
    const to = moved[`${here}#${asked}`];
    if (to && to.split("#")[0] !== here) return location.replace(new URL((zh ? "" : "en/") + to.replace(/(?=#|$)/, `?from=${encodeURIComponent(`${here}#${asked}`)}`), root));
    const near = to ? to.split("#")[1] : nearest(asked, [...document.querySelectorAll("article [id]")].map((e) => e.id).filter((id) => !id.startsWith("__")));
    note(near ? say(`链接来自旧版：这一页没有 #${asked}，这是最接近的 #${near}。`, `This link is from an older version: #${asked} is not on this page; #${near} is the nearest.`)
      : say(`链接来自旧版：这一页没有 #${asked}。`, `This link is from an older version: #${asked} is not on this page.`));
    if (near) document.getElementById(near).scrollIntoView();
  }

  /** The name that begins most alike, where at least three letters do. */
  function nearest(asked, names) {
    const alike = (name) => { let n = 0; while (n < asked.length && name[n] === asked[n]) n++; return n; };
    return names.filter((name) => alike(name) >= 3).sort((a, b) => alike(b) - alike(a) || Math.abs(a.length - asked.length) - Math.abs(b.length - asked.length))[0];
  }

  /** Keeps this language's pages once this one stands, so that they are there without a network; never in the way. */
  async function keep() {
    if (!("serviceWorker" in navigator) || !location.protocol.startsWith("http")) return;
    const { serviceWorker: workers } = navigator;
    try {
      const ask = () => !navigator.connection?.saveData && workers.controller.postMessage({ lang: zh ? "zh" : "en" });
      workers.addEventListener("message", ({ data }) => (document.documentElement.dataset.kept = data.kept ? "yes" : "not all"));
      workers.addEventListener("controllerchange", ask); // the first one took over, or that of a newer build
      workers.startMessages();
      await workers.register(new URL("sw.js", root));
      if (workers.controller) ask();
    } catch {
      // no storage, or a private window: the site is read from the network
    }
  }

  const root = new URL(`${document.querySelector("meta[name=qkv-root]")?.content ?? "."}/`, location.href);
  const begin = () => {
    document.querySelector(".md-search")?.setAttribute("aria-label", say("搜索", "Search"));
    document.querySelectorAll(".slide").forEach(slide);
    document.querySelectorAll(".predict").forEach(predict);
    document.querySelectorAll(".check").forEach(check);
    document.querySelectorAll(".softmax").forEach(softmax);
    const there = document.querySelector("meta[name=qkv-live]") && location.protocol !== "file:";
    if (there) document.querySelectorAll(".qkv-live").forEach(live);
    if (there) document.querySelectorAll(".qkv-lab").forEach(lab);
    if (there) document.querySelectorAll("a[data-live]").forEach((link) => (link.href = link.dataset.live)); // a page that computes, not one that was recorded
    void find(new URLSearchParams(location.search).get("from"));
    addEventListener("hashchange", () => void find());
    if (document.readyState === "complete") void keep();
    else addEventListener("load", () => setTimeout(keep, 500));
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
