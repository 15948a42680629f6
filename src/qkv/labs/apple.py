"""Does 苹果 (apple) move to the companies or to the fruits? Its state by layer, after a hint, after none, before one."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import random

import torch
from torch import Tensor

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, encode_texts, fit, guesses
from qkv.lens.edit import Edit, cut
from qkv.messages import Message

NAMES = (("华为", "小米", "三星", "索尼"), ("香蕉", "梨", "桃", "葡萄"))
HINTS = (("手机", "电脑", "芯片", "耳机"), ("果汁", "甜点", "沙拉", "果酱"))
NEXT = (("推出", "发布", "研发", "开源"), ("很甜", "好吃", "熟了", "多汁"))
CARRIERS = (("说到", "，"), ("谈起", "时"), ("关于", "的"), ("除了", "呢"))  # 苹果 never meets the last one in training
PLAIN, AT, LAYERS, CUTS = "今天 大家 看", 3, 2, {"hint": (1, 2), "control": (0,)}
WORDS = sorted({w for group in (*NAMES, *HINTS, *NEXT, *CARRIERS) for w in group} | {"苹果", *PLAIN.split()})


def sentence(kind: int, name: str, carrier: tuple[str, str] | None, luck: random.Random) -> str:
    """“说到 手机 ， 苹果 发布”, or without a hint “今天 大家 看 苹果 发布”."""
    before = f"{carrier[0]} {luck.choice(HINTS[kind])} {carrier[1]}" if carrier else PLAIN
    return f"{before} {name} {luck.choice(NEXT[kind])}"


def draw_batch(seed: int, rows: int = 48) -> tuple[Tensor, Tensor]:
    luck, texts = random.Random(seed), list[str]()
    for _ in range(rows):
        kind, apple = luck.randrange(2), luck.random() < 0.3
        known = CARRIERS[:-1] if apple else CARRIERS
        carrier = None if luck.random() < 0.25 else luck.choice(known)
        texts.append(sentence(kind, "苹果" if apple else luck.choice(NAMES[kind]), carrier, luck))
    return encode_texts(texts, WORDS)


def list_prompts(kind: int) -> list[str]:
    """苹果 after each hint of a kind, in the carrier that it never met."""
    return [f"{CARRIERS[-1][0]} {hint} {CARRIERS[-1][1]} 苹果" for hint in HINTS[kind]]


@torch.no_grad()
def states(model: qkv.Model, texts: list[str], at: int = AT) -> Tensor:
    """The mean state of the word at `at` over some texts, by layer [L+1, D]."""
    with model.trace(save=["shift"]) as t:
        model(encode_texts(texts, WORDS)[0])
    return torch.stack([t[n][:, at].mean(0) for n in ("embed", *(f"layers.{i}.resid_out" for i in range(LAYERS)))])


@torch.no_grad()
def measure_choice(model: qkv.Model, edits: list[Edit]) -> float:
    """How much of the next word's probability is of the hint's kind, of what is of either kind; the mean of both."""
    found: list[float] = []
    for kind in (0, 1):
        with model.trace(edit=edits):
            chance = guesses(model, encode_texts(list_prompts(kind), WORDS)[0])[:, -1].softmax(-1)  # B V
        mass = [chance[:, [WORDS.index(w) for w in group]].sum(-1) for group in NEXT]
        found.append(float((mass[kind] / (mass[0] + mass[1])).mean()))
    return sum(found) / 2


def run(seed: int, *, steps: int = 300, tell: Tell = ignore) -> Numbers:
    model = Tiny(layers=LAYERS, width=32, vocabulary=len(WORDS), context=8).model(seed, torch.float32)
    fit(model, lambda step: draw_batch(seed * 10**6 + step), steps=steps, lr=3e-3, tell=tell)
    kinds = [torch.stack([states(model, [f"{PLAIN} {n}"]) for n in group]).mean(0) for group in NAMES]  # each L+1 D
    middle, way = (kinds[0] + kinds[1]) / 2, kinds[0] - kinds[1]

    def lean(texts: list[str]) -> list[float]:
        return torch.cosine_similarity(states(model, texts) - middle, way, dim=-1).tolist()

    after, later = {k: states(model, list_prompts(k)) for k in (0, 1)}, [states(model, [f"{PLAIN} 苹果 {h}"]) for h, _ in zip(*HINTS, strict=True)]
    found = {"tech": lean(list_prompts(0)), "food": lean(list_prompts(1)), "plain": lean([f"{PLAIN} 苹果"])}
    alike = torch.cosine_similarity(after[0] - middle, after[1] - middle, dim=-1).tolist()
    cuts = {f"cut_{way}": measure_choice(model, [cut("layers.*.attn", query=AT, key=keys)]) for way, keys in CUTS.items()}
    moved = max(float((a - later[0]).abs().max()) for a in later)
    return {
        "alike_first": alike[0], "alike_last": alike[-1], "lean_tech": found["tech"][-1], "lean_food": found["food"][-1], "lean_plain": found["plain"][-1],
        "right": measure_choice(model, []), **cuts, "later": moved, **found,
    }


def judge(runs: Runs) -> Verdict:
    says = Message("hint before: the last layer leans to companies {lean_tech:.2f} or fruits {lean_food:.2f}, the "
                   "next word is of its kind in {right:.0%}, {cut_hint:.0%} with the edge to the hint cut; hint "
                   "after: the state moves by {later:.0f}", lean_tech=runs.mean("lean_tech"),
                   lean_food=runs.mean("lean_food"), right=runs.mean("right"), cut_hint=runs.mean("cut_hint"),
                   later=runs.mean("later"))
    moves = runs.min("lean_tech") > 0.3 and runs.max("lean_food") < -0.3 and runs.min("alike_first") > 0.999
    caused = runs.min("right") > 0.9 and runs.max("cut_hint") < 0.7 and runs.min("cut_control") > 0.9
    if not (moves and caused):
        return runs.verdict("not shown", "lean_tech", says)
    return runs.verdict("true only when" if runs.max("later") == 0 else "shown", "lean_tech", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", Message("the state of 苹果 leans to companies (+1) or fruits (-1)"),
                [float(i) for i in range(LAYERS + 1)], {f"lean_{way}": runs.curve(way) for way in ("tech", "plain", "food")},
                Message("layer"), Message("cosine"))


LAB = Lab(
    "trained",
    Message("“苹果” (apple) has one row in the table, and attention moves it towards companies or fruits by its "
            "context."),
    Message("Nearly every text on contextual embeddings; the example is mostly “Apple released a phone”, the hint "
            "behind."),
    Message("A causal model of two layers on a small corpus; “苹果” in a carrier that it never met. Where its state "
            "lies between companies and fruits (of sentences without a hint), by layer; the edges to the hint "
            "cut."),
    Message("Without a hint the lean is about 0 and the next word right in 50 %; control: the edge to the first word "
            "cut. The corpus is made for it."),
    Message("Alike at the embedding, the last layer leans > 0.3 and < -0.3; cut, the next word is near 50 %. With the "
            "hint behind, nothing moves in a causal model."),
    {"alike_first": Message("cosine of both “苹果”: embedding"), "alike_last": Message(
        "the same, last layer"),
     "lean_tech": Message("lean after a tech hint"), "lean_food": Message("lean after a food hint"),
     "lean_plain": Message("lean without a hint"),
     "right": Message("next word of the hint's kind"), "cut_hint": Message(
         "the same, edges to the hint cut"),
     "cut_control": Message("the same, edge to the first word cut"), "later": Message(
         "hint behind: the state moves by")},
    run, judge, plot, steps=300, enough=100, seeds=3,
)
