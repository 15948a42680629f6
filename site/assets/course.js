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

  const begin = () => {
    document.querySelector(".md-search")?.setAttribute("aria-label", say("搜索", "Search"));
    document.querySelectorAll(".slide").forEach(slide);
    document.querySelectorAll(".predict").forEach(predict);
    document.querySelectorAll(".check").forEach(check);
    document.querySelectorAll(".softmax").forEach(softmax);
    const there = document.querySelector("meta[name=qkv-live]") && location.protocol !== "file:";
    if (there) document.querySelectorAll(".qkv-live").forEach(live);
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
