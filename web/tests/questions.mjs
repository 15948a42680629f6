// The questions of docs/questions.md, each answered by clicking: node tests/questions.mjs ADDRESS QUESTIONS.md [FOLDER]
// The server has the bundled models and a watched run. Every question that names a panel has its clicks here; the last
// line is JSON: what each answer showed, and the seconds that it took. Exit 1 at the first that is not found.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { choose, numbers as found, opened, reported, rest, settled as still } from "./browser.mjs";

const [questions, pictures] = rest;
const page = await opened({ locale: "en-US" });
const settled = () => still(page, 60);
/** Opens a panel by the name on its tab. */
const open = async (name) => {
  await page.locator(".tabs").getByRole("button", { name, exact: true }).click();
  await settled();
};
const click = async (where) => {
  await (typeof where === "string" ? page.locator(where).first() : where).click();
  await settled();
};
const button = (name) => page.locator(".panel").getByRole("button", { name });
const text = (where = ".panel") => page.locator(where).first().innerText();
const count = (where) => page.locator(where).count();
const says = async (wanted, where = ".panel") => assert.match(await text(where), wanted);
const numbers = (where) => page.locator(`${where} q-num`).evaluateAll((all) => all.map((e) => Number(e.getAttribute("value"))));
const ask = async (model, said) => {
  await choose(page, model);
  if (said) {
    await page.locator(".ask textarea").fill(said);
    await page.locator(".go").click();
    await page.waitForFunction((wanted) => JSON.parse(new URLSearchParams(location.hash.slice(1)).get("ask") ?? "{}").text === wanted, said);
  }
  await settled();
};
const forced = async () => {
  await click(".next-bars tbody tr:not(.current) .word");
  await page.waitForFunction(() => document.querySelectorAll(".next-branches li").length > 1);
  return (await page.locator(".next-branches").innerText()).split("\n");
};
const trained = async () => {
  await open("Training");
  await page.waitForSelector("q-training .facts");
};

/** Chinese beginning of a question -> the clicks that answer it, given the panels that the document names. */
const CLICKS = {
  "能不能很好地解释 QKV": async () => {
    await says(/Query[\s\S]*Key[\s\S]*product[\s\S]*running sum/, ".walk-product");
    return `${await count(".walk-product td")} numbers`;
  },
  "Q×K 在干什么": async () => {
    await click(".matrix .cells");
    await click(button(/How this number comes about/));
    return text(".walk-formula");
  },
  "V 是什么": async () => {
    await says(/weight × value/);
    return text(".walk-numbers");
  },
  "小脑的问题": async () => {
    await click(page.locator(".walk-product tr").first().locator("button").first());
    await says(/\.q"\]/, ".foot");
    return text(".foot code");
  },
  "什么是注意力": async () => {
    const weights = (await numbers("q-heads .bars")).filter((_, i) => i % 2 === 0);
    assert.ok(Math.abs(weights.reduce((a, b) => a + b, 0) - 1) < 1e-4, "the weights of a row sum to 1");
    return `${weights.length} weights that sum to 1`;
  },
  "为何点积": async () => {
    const [sum, scale, scaled] = await numbers(".walk-formula");
    assert.ok(Math.abs(sum * scale - scaled) < 1e-3 * Math.abs(scaled));
    return text(".walk-formula");
  },
  "masked self-attention": async () => {
    const [seen, future] = await numbers("q-mask .legend");
    assert.ok(future > 0 && seen > 0);
    return text("q-mask .legend");
  },
  "公式里的 T": async () => {
    await page.locator(".next-sliders input").first().fill("0.7");
    await page.waitForFunction(() => document.querySelectorAll(".next-stages li").length === 2);
    await settled();
    return text(".next-stages");
  },
  "两个“它”": async () => {
    await click(button("within the source"));
    return text("q-proof .pairs");
  },
  "“谁在说话？”": async () => {
    const heads = await text("q-heads .bars");
    await open("Proof");
    await page.waitForSelector("q-proof .pairs");
    return `${heads.split("\n").length} rows; ${(await text("q-proof .pairs")).split("\n")[0]}`;
  },
  "什么是多头": async () => {
    await page.locator(".thumbs-cells").focus();
    await page.keyboard.press("ArrowRight");
    await settled();
    await says(/Layer \d+, head \d+/, ".thumbs");
    return text(".thumbs .spoken");
  },
  "A 是什么形状": async () => {
    await says(/shape B × H × T × S = 1 × \d+ × \d+ × \d+/i);
    return (await text()).match(/shape B × H × T × S[^\n]*/i)[0];
  },
  "为什么先切开再合并": async () => {
    await click(page.locator(".walk-steps button").nth(3));
    await says(/4\. Heads side by side/);
    return text(".walk-step .about");
  },
  "W 每次": async () => {
    await trained();
    await says(/W_Q/, "q-training .bars");
    return text("q-training .bars");
  },
  "多层如何连接": async () => {
    assert.ok((await count("svg.map circle")) > 10);
    return `${await count(".guess-grid tbody tr")} rows`;
  },
  "每层加输入": async () => {
    await says(/sum = logit/i);
    return (await text()).match(/sum = logit[^\n]*(\n[^\n]*)?/i)[0];
  },
  "为何要 encoder 和 decoder": async () => {
    assert.equal(await count(".four figure"), 4);
    await says(/← this model/, ".four");
    return text(".four figure.mine figcaption");
  },
  "计算顺序": async () => {
    await click(page.locator(".wave tbody tr").first().locator("td").last());
    await says(/It rests on \d+ cells below/);
    return (await text()).match(/It rests on \d+ cells below/)[0];
  },
  "专家是怎么选的": async () => {
    await says(/Expert 1/i);
    return (await text("q-experts")).split("\n").at(-1);
  },
  "训练模型具体是在训练什么": async () => {
    await trained();
    return text("q-training .bars");
  },
  "小脑怎么形成": async () => {
    await trained();
    await page.locator("q-training input[type=range]").first().fill("0");
    await settled();
    return text("q-training .said-then");
  },
  "训练数据什么样": async () => {
    await trained();
    await says(/Label/i, ".teacher");
    return text(".teacher tbody tr");
  },
  "为何训练并行": async () => {
    await page.locator("q-mask input[type=range]").first().fill("1");
    await settled();
    await says(/prefill/);
    return (await text()).match(/[^\n]*prefill[^\n]*/)[0];
  },
  "预训练有什么影响": async () => {
    await trained();
    return text("q-training .lines");
  },
  "为什么叫嵌入": async () => {
    assert.ok((await numbers("q-shift .bars")).length >= 5);
    return text("q-shift .bars");
  },
  "如何预测下一个词": async () => {
    const last = await text(".guess-grid tbody tr");
    await open("Next word");
    return `${last.split("\n").length} cells; ${await text(".next-bars tbody tr")}`;
  },
  "为什么不按提示词": async () => (await forced()).join(" | "),
  "Bank 是银行": async () => {
    assert.ok((await count("q-shift .lines .series")) >= 2, "two anchors");
    return text("q-shift .numbers thead");
  },
  "苹果是水果": async () => {
    const box = page.locator("q-shift .controls input").first();
    await box.fill("手机, 茶");
    await box.press("Enter");
    await settled();
    await click(page.locator("q-shift .strip button").first());
    await says(/手机[\s\S]*茶/, "q-shift .numbers thead");
    return text("q-shift .numbers tbody tr:last-child");
  },
  "写错一个词": async () => (await forced()).join(" | "),
  "如何算参数量": async () => {
    const [total, ...rest] = await numbers("q-cost");
    assert.ok(total > 1e5 && rest.length > 5);
    return text("q-cost .facts");
  },
  "如何减少 KV": async () => text("q-cache .bars"),
  "为何提出 MQA": async () => {
    const names = await text("q-cache .bars");
    for (const name of ["MHA", "GQA", "MQA", "MLA"]) assert.ok(names.includes(name), `no ${name} in ${names}`);
    return names;
  },
  "新词要重算": async () => {
    const facts = await numbers("q-cache .facts");
    assert.ok(facts.at(-1) > 1, "without the cache it is more work");
    return text("q-cache .facts");
  },
  "为什么读得快": async () => {
    await says(/Operations per byte read/);
    return text("q-cost .facts");
  },
};
/** The English names of the tabs that a cell of the document tells of, in its order. */
const TABS = ["Heads", "Proof", "Guess map", "Walk", "Next word", "Who pushed", "Mask & phase", "KV cache", "Alignment", "Experts", "Word shift", "Cost", "Compare", "Training"];
const named = (cell) => TABS.map((tab) => [cell.search(new RegExp(`\\b${tab}\\b`)), tab]).filter(([at]) => at >= 0).sort((a, b) => a[0] - b[0]).map(([, tab]) => tab);
/** The model and the text of a row's command, where it looks into one. */
const looked = (cell) => /qkv look (\S+) ('[^']+'|\S+)/.exec(cell)?.slice(1).map((x) => x.replaceAll("'", "")) ?? ["demo", "书和茶都在桌上，我看完了它。"];

/** Puts a row's question, and says what answered it and how long that took. */
async function tried([, question, panel, command]) {
  const key = Object.keys(CLICKS).find((k) => question.startsWith(k));
  assert.ok(key, `no clicks for: ${question}`);
  const began = performance.now();
  try {
    const [model, said] = looked(command);
    await ask(model, said === "--serve" ? undefined : said);
    await open(named(panel)[0]);
    const shows = await CLICKS[key]();
    assert.ok(shows?.trim(), "nothing to see");
    found.push({ question, seconds: Math.round((performance.now() - began) / 100) / 10, shows: shows.replace(/\s+/g, " ").slice(0, 160) });
  } catch (error) {
    error.message = `${question} (${panel}): ${error.message}`;
    throw error;
  }
  if (pictures) await page.screenshot({ path: `${pictures}/${key.replace(/[^\p{L}\p{N}]/gu, "")}.png` });
}

await reported(async () => {
  await settled();
  const rows = (await readFile(questions, "utf8")).split("\n").filter((l) => l.startsWith("| ") && !l.startsWith("| question")).map((l) => l.split("|").map((c) => c.trim()));
  const asked = rows.filter(([, , panel]) => named(panel).length);
  assert.ok(asked.length >= 30, `only ${asked.length} rows name a panel`);
  for (const row of asked) await tried(row);
});
