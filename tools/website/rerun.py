"""The labs that the page computes itself: what each reads, and its table of two runs. web/src/live/labs.ts measures."""

import json
from functools import cache
from html import escape
from typing import Any

import qkv
from qkv.labs import cache_exact, parallel_equals_serial, stated_numbers, temperature_and_top_p, tiny, wo_sum
from qkv.labs.lab import Lab, Result, Runs

from .pages import Site

NUMBERS = {  # of each lab, what the page measures on a bundled model; models that a lab draws itself stay with PyTorch
    "cache-exact": ("same", "gap", "read_without", "read_with"),
    "kv-frozen": ("causal", "full", "prefix", "written"),
    "mask-zero": ("weight", "change", "change_right"),
    "parallel-equals-serial": ("demo",),
    "revision-ledger": ("trained_pre", "trained_post"),
    "temperature-and-top-p": ("rises", "best_stays", "ratio_temperature", "ratio_top_p", "kept_top_p",
                              "kept_temperature", "sharpens", "shift"),
    "wo-sum": ("gap", "average", "loudest"),
    "stated-numbers": ("study", "apple", "third", "temperature", "third_then", "match", "match_scaled", "match_dim",
                       "table", "loss"),
}  # fmt: skip
PROMPT = "One, Two,"
load = cache(qkv.load)


def show(x: float) -> str:
    """A number as site/assets/course.js writes the page's own."""
    return f"{x:.0f}" if float(x).is_integer() else f"{x:.3g}"


def give(name: str, seed: int) -> dict[str, Any]:
    """What a lab reads with a seed, as the page takes it: ids, and what else it compares."""
    low = 900  # ids that every bundled model has, after 100 that are marks
    given: dict[str, Any] = {"seed": seed, "ids": []}
    if name == "cache-exact":
        given["ids"] = [load("demo-lm").ids(cache_exact.PROMPTS[seed])]
    elif name == "mask-zero":
        given["ids"] = [load("demo-lm").ids(PROMPT)]
    elif name == "temperature-and-top-p":
        given["ids"] = [load("demo-lm").ids(temperature_and_top_p.PROMPTS[seed])]
    elif name == "wo-sum":
        given["ids"] = [load("demo").ids(wo_sum.TEXTS[seed])]
    elif name == "kv-frozen":
        given["ids"] = (tiny.draw(seed, 1, 12, below=low) + 100).tolist()
    elif name == "revision-ledger":
        given["ids"] = (tiny.draw(seed, 2, 12, below=low) + 100).tolist()
    elif name == "parallel-equals-serial":
        demo, (read, said) = load("demo"), parallel_equals_serial.TEXTS[seed]
        assert demo.tokenizer
        given |= {"ids": [demo.ids(read)], "target": [demo.special.start, *demo.tokenizer.encode(said, side="target")]}
    else:
        given["stated"] = {"logits": stated_numbers.LOGITS, "shares": stated_numbers.STATED,
                           "match": stated_numbers.MATCH, "table": stated_numbers.TABLE}
    return given


def write_rerun(site: Site, place: str, lab: Lab, result: Result) -> list[str]:
    """A table with a place for the page's own numbers; or why there is none."""
    if result.name not in NUMBERS:
        if result.steps:
            why = site.say("它要训练", "it trains")
        elif lab.kind == "speed":
            why = site.say("它给 PyTorch 计时", "it times PyTorch")
        else:
            why = site.say("它的模型由 PyTorch 以 64 位现场生成", "PyTorch draws its models, in 64 bits")
        return ["", site.say(f"浏览器里不重跑这个实验：{why}。", f"This lab does not run in the browser: {why}."), ""]
    runs, names = Runs(result.numbers), NUMBERS[result.name]
    rows = "".join(
        f'<tr><th scope="row">{escape(lab.rows[key].to(site.lang))}</th><td>{show(runs.mean(key))}</td>'
        f'<td data-number="{key}">–</td></tr>' for key in names
    )
    given = json.dumps([give(result.name, seed) for seed in result.seeds], ensure_ascii=False)
    heads = (site.say("测量", "measured"), site.say("提交的结果", "committed"), site.say("这里算的", "here"))
    button = site.say("在浏览器里重跑", "Run it here")
    about = site.say(
        "同样的测量，用自带模型在这台设备上算：权重 8 位、运算 32 位，所以“相等”约为 1e-6，而不是 1e-15。",
        "The same measures by the bundled models on this device: weights in 8 bits and 32-bit arithmetic, so equal "
        "means about 1e-6, not 1e-15.",
    ) + site.say("实验自己生成的模型不在此列。", " Models that the lab draws itself are left out.")
    return ["", (
        f'<div class="qkv-lab" data-lab="{result.name}" data-module="{site.asset(place, "qkv-live.js")}" '
        f'data-inputs="{escape(given, quote=True)}"><p>{about}</p><table class="plot"><thead><tr>'
        + "".join(f'<th scope="col">{head}</th>' for head in heads)
        + f'</tr></thead><tbody>{rows}</tbody></table><p><button type="button" hidden>{button}</button> '
        f'<span role="status"></span></p></div>'
    ), ""]
