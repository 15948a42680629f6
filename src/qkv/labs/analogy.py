"""Is Beijing - China + Japan = Tokyo? Offsets of trained embeddings, with the words of the question allowed and not."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import random

import torch
from torch import Tensor

from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, encode_texts, fit
from qkv.messages import Message

SMALL = 0.2  # of sqrt(1/width): about the 0.02 to 0.04 that language models start from
PAIRS = {"中国": "北京", "日本": "东京", "法国": "巴黎", "英国": "伦敦", "俄国": "莫斯科", "埃及": "开罗", "韩国": "首尔", "泰国": "曼谷"}
FACTS = {c: [f"{c}{what}" for what in ("话", "币", "菜")] for c in PAIRS}  # a language, a currency, a cuisine for each
SAYINGS = (
    "{c} 的 首都 是 {k}", "{k} 属于 {c}", "{c} 人 说 {0}", "{k} 人 说 {0}", "在 {c} 花 {1}", "在 {k} 花 {1}", "{c} 人 爱吃 {2}",
    "{k} 人 爱吃 {2}", "{c} 总统 讲话", "{c} 军队 出发", "{c} 议会 投票", "{k} 地铁 开通", "{k} 机场 关闭", "{k} 市长 讲话",
)
WORDS = sorted({w for s in SAYINGS for c, k in PAIRS.items() for w in s.format(*FACTS[c], c=c, k=k).split()})


def draw_batch(seed: int, rows: int = 64) -> tuple[Tensor, Tensor]:
    luck, texts = random.Random(seed), list[str]()
    for _ in range(rows):
        country = luck.choice(list(PAIRS))
        texts.append(luck.choice(SAYINGS).format(*FACTS[country], c=country, k=PAIRS[country]))
    return encode_texts(texts, WORDS)


def questions(table: Tensor, pairs: list[tuple[str, str]]) -> dict[str, float]:
    """Shares of `capital a - country a + country b` that come nearest to capital b, and how parallel the offsets are."""
    row = {w: torch.nn.functional.normalize(table[i], dim=-1) for i, w in enumerate(WORDS)}
    whole, hits = torch.stack([row[w] for w in WORDS]), {"free": 0, "excluded": 0, "only_b": 0, "itself": 0}
    asked = [(a, x, b, y) for a, x in pairs for b, y in pairs if a != b]
    parallel = 0.0
    for a, x, b, y in asked:
        parallel += float(torch.cosine_similarity(row[x] - row[a], row[y] - row[b], dim=0))
        for name, at in (("free", row[x] - row[a] + row[b]), ("excluded", row[x] - row[a] + row[b]), ("only_b", row[b])):
            near = whole @ at
            if name != "free":
                near[[WORDS.index(w) for w in (a, x, b)]] = -torch.inf
            best = WORDS[int(near.argmax())]
            hits[name] += best == y
            hits["itself"] += name == "free" and best in (a, x, b)
    return {**{name: n / len(asked) for name, n in hits.items()}, "parallel": parallel / len(asked)}


def train_embeddings(seed: int, start: float, *, steps: int, tell: Tell) -> tuple[dict[str, float], Tensor]:
    """The questions asked of the embeddings before training, and the embeddings after; first rows N(0, start / width)."""
    model = Tiny(layers=1, width=32, vocabulary=len(WORDS), context=8).model(seed, torch.float32)
    with torch.no_grad():
        model.core.embed.weight.mul_(start)
    before = questions(model.core.embed.weight.detach(), list(PAIRS.items()))
    fit(model, lambda step: draw_batch(seed * 10**6 + step), steps=steps, lr=3e-3, tell=tell)
    return before, model.core.embed.weight.detach()


def run(seed: int, *, steps: int = 600, tell: Tell = ignore) -> Numbers:
    capitals = list(PAIRS.values())
    before, table = train_embeddings(seed, SMALL, steps=steps, tell=tell)
    wrong = questions(table, list(zip(PAIRS, [*capitals[1:], capitals[0]], strict=True)))  # each with its neighbour's
    found = questions(table, list(PAIRS.items()))
    large = questions(train_embeddings(seed, 1.0, steps=steps, tell=tell)[1], list(PAIRS.items()))
    return {**found, "untrained": before["excluded"], "wrong": wrong["excluded"], "large": large["excluded"],
            "large_free": large["free"], "parallel_wrong": wrong["parallel"]}


def judge(runs: Runs) -> Verdict:
    says = Message("rows that start small: {free:.0%} with no word excluded, {excluded:.0%} without the question's "
                   "three; no arithmetic, the word nearest to the second country: {only_b:.0%}. Rows that start "
                   "large: {large_free:.0%} and {large:.0%}: the first random numbers are never washed out",
                   free=runs.mean("free"), excluded=runs.mean("excluded"), only_b=runs.mean("only_b"),
                   large_free=runs.mean("large_free"), large=runs.mean("large"))
    baseline = max(runs.max(name) for name in ("only_b", "wrong", "untrained"))
    if runs.min("excluded") < max(0.5, baseline + 0.2):
        return runs.verdict("not shown", "excluded", says)
    always = min(runs.min(name) for name in ("free", "large", "large_free")) >= 0.5
    return runs.verdict("shown" if always else "true only when", "excluded", says)


BARS = ("free", "excluded", "large_free", "large", "only_b", "wrong", "untrained")


def plot(runs: Runs) -> Plot:
    return Plot("bars", Message("Beijing - China + Japan = Tokyo: share right"), BARS,
                {"right": [runs.mean(bar) for bar in BARS]}, y_label=Message("share right"))


LAB = Lab(
    "trained",
    Message("Word vectors do arithmetic: Beijing - China + Japan is near Tokyo."),
    Message("Mikolov et al. 2013 and introductions since; Linzen 2016 and Rogers et al. 2017 show how much excluding "
            "the question's words does."),
    Message("The embeddings of a causal model of one layer, trained on a small corpus (8 countries with capital, "
            "language, currency, cuisine); 56 questions, with all words as answers or without the question's three. "
            "Rows start small, or five times larger."),
    Message("Chance 1/{words} = {words2:.2f}; baselines: the word nearest to the second country, capitals mismatched, "
            "embeddings not trained. The regularity is planted in the corpus.", words=len(WORDS),
            words2=1 / len(WORDS)),
    Message("Small start: over 80 % with exclusion, above all baselines, less without; cosine of offsets about 0.6, "
            "mismatched about 0.36. Large start: under a half (so it was in a pilot)."),
    {"free": Message("no word excluded"), "excluded": Message("the question's words excluded"),
     "large_free": Message("large start, no word excluded"), "large": Message("large start, excluded"),
     "only_b": Message("nearest to the second country"), "wrong": Message("capitals mismatched"),
     "untrained": Message("not trained"), "itself": Message("not excluded: answers a word of the question"),
     "parallel": Message("cosine of offsets"), "parallel_wrong": Message("the same, mismatched")},
    run, judge, plot, steps=600, enough=200, seeds=3,
)
