"""“Hello, I'm Susan … my name is”: who looks at Susan, and whose look does the answer need? Edges cut, one kind at a time."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import random
from itertools import permutations

import torch
from torch import Tensor

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, fit, guesses, read
from qkv.lens.edit import Edit, cut

NAMES = ("Susan", "Mary", "Tom", "John", "Alice", "Peter", "Laura", "Bob")
FILLERS = ("it", "rains", "today", "nice", "city", "here")
SELF, OTHER, MY, IS = 3, 6, 10, 12  # slots of “hello , I'm Susan . he's Tom . it rains my name is”
CUTS = {"my": [cut("layers.*.attn", query=MY, key=SELF)], "is": [cut("layers.*.attn", query=IS, key=SELF)],
        "both": [cut("layers.*.attn", query=(MY, MY + 1, IS), key=SELF)], "control": [cut("layers.*.attn", query=IS, key=OTHER)]}  # fmt: skip
WORDS = sorted({*NAMES, *FILLERS, *["hello", ",", "I'm", ".", "he's", "my", "his", "name", "is"]})


def text(me: str, him: str, between: tuple[str, str], first: str, swap: bool) -> str:
    """Two people are introduced, in either order, and both are asked for, `my` or `his` first."""
    intro = [f"I'm {me} .", f"he's {him} ."]
    asked = [f"my name is {me} .", f"his name is {him}"]
    if first == "his":
        asked = [f"his name is {him} .", f"my name is {me}"]
    return " ".join(["hello ,", *(intro[::-1] if swap else intro), *between, *asked])


def batch(seed: int, rows: int = 48) -> tuple[Tensor, Tensor]:
    """Texts, asked for the names after `is` alone."""
    luck, texts = random.Random(seed), list[str]()
    for _ in range(rows):
        me, him = luck.sample(NAMES, 2)
        texts.append(text(me, him, (luck.choice(FILLERS), luck.choice(FILLERS)), luck.choice(("my", "his")), luck.random() < 0.5))
    ids, after = read(texts, WORDS)
    return ids, after.where(ids == WORDS.index("is"), -100)


def questions() -> tuple[Tensor, Tensor, Tensor]:
    """Every pair of people in the layout of the slots, up to `is` [N, 13], and the two names [N] each."""
    pairs = list(permutations(NAMES, 2))
    ids = read([text(me, him, ("it", "rains"), "my", False) for me, him in pairs], WORDS)[0][:, : IS + 1]
    return ids, ids[:, SELF], ids[:, OTHER]


@torch.no_grad()
def answers(model: qkv.Model, edits: list[Edit]) -> tuple[float, float]:
    """The shares of answers that are the speaker's name, and the other's."""
    ids, me, him = questions()
    with model.trace(edit=edits):
        best = guesses(model, ids)[:, -1].argmax(-1)
    return float((best == me).double().mean()), float((best == him).double().mean())


def run(seed: int, *, steps: int = 600, tell: Tell = quiet) -> Numbers:
    model = Tiny(layers=2, width=48, vocabulary=len(WORDS), context=24).model(seed, torch.float32)
    fit(model, lambda step: batch(seed * 10**6 + step), steps=steps, lr=3e-3, tell=tell)
    found: dict[str, float] = {"right": answers(model, [])[0]}
    for way, edits in CUTS.items():
        found[f"cut_{way}"], found[f"other_{way}"] = answers(model, edits)
    with torch.no_grad(), model.trace(save=["patterns"]) as t:
        model(questions()[0])
    weights = torch.stack([t[f"layers.{i}.attn.pattern"].mean(0) for i in range(2)])  # L H T S
    found["look_my"], found["look_is"] = (float(weights[:, :, q, SELF].max()) for q in (MY, IS))
    return found


def judge(runs: Runs) -> Verdict:
    says = (f"名字答对 {runs.mean('right'):.0%}。看向自己名字的最大权重：my {runs.mean('look_my'):.2f}，is {runs.mean('look_is'):.2f}；"
            f"剪断 my 的 {runs.mean('cut_my'):.0%}，剪断 is 的 {runs.mean('cut_is'):.0%}，三个词的都剪断 {runs.mean('cut_both'):.0%}（名字也会经别的词传来），剪断 is 看别人名字的 {runs.mean('cut_control'):.0%}；各种子走的路不同",
            f"the name is right in {runs.mean('right'):.0%}. Most weight on the speaker's name: my {runs.mean('look_my'):.2f}, is "
            f"{runs.mean('look_is'):.2f}; right with the edge from my cut {runs.mean('cut_my'):.0%}, from is {runs.mean('cut_is'):.0%}, from all three words "
            f"{runs.mean('cut_both'):.0%} (the name also comes by way of others), from is to the other name {runs.mean('cut_control'):.0%}; seeds take different ways")  # fmt: skip
    works = runs.low("right") > 0.9 and runs.high("cut_both") < 0.6 and runs.low("cut_control") > 0.8
    if not works:
        return runs.verdict("not shown", "cut_my", says)
    return runs.verdict("shown" if runs.high("cut_my") < 0.6 else "refuted" if runs.low("cut_my") > 0.9 else "true only when", "cut_my", says)


BARS = ("right", "cut_my", "cut_is", "cut_both", "cut_control")


def plot(runs: Runs) -> Plot:
    return Plot("bars", ("“my name is”之后答对名字", "the right name after “my name is”"), BARS,
                {"right": [runs.mean(bar) for bar in BARS]}, y_label=("答对的份额", "share right"))  # fmt: skip


LAB = Lab(
    "trained",
    ("读到 my，它就问“谁在说话”，注意力从 Susan 取来答案：“Hello, I'm Susan … my name is” 因此续得对。",
     "At `my` the model asks who speaks, and attention fetches Susan; that is how “Hello, I'm Susan … my name is” goes on rightly."),
    ("讲提示词的书，及它的转述。", "A book on prompts, and who retells it."),
    ("两层因果模型，两个人自我介绍（次序随机），再问 my 或 his。剪断 my 到自己名字的连线、is 的、两者（连同 name）；对照：is 到别人名字的。",
     "A causal model of two layers; two people are introduced in either order, then asked for by my or his. Cut: the edge from my to the speaker's name, "
     "from is, from both (and name); control: from is to the other name."),
    (f"随机 1/{len(NAMES)} = 0.13，只在两个名字里猜 0.50；基线：不剪。", f"Chance 1/{len(NAMES)} = 0.13, a guess between the two names 0.50; baseline: nothing cut."),
    ("答对 ≥ 95%。需要的是 is 的连线，不是 my 的：is 也看得见 my，又是写答案的位置。", "Right in 95 % or more. What is needed is the edge from is, not from my: is sees my as well, and writes the answer."),
    {"right": ("什么都不剪", "nothing cut"), "cut_my": ("剪断 my → Susan", "my to Susan cut"), "cut_is": ("剪断 is → Susan", "is to Susan cut"),
     "cut_both": ("剪断 my、name、is → Susan", "my, name, is to Susan cut"), "cut_control": ("剪断 is → 别人", "is to the other name cut"),
     "other_is": ("剪断 is 后，答成别人", "is cut: says the other name"), "look_my": ("my 看 Susan 的最大权重", "most weight from my on Susan"),
     "look_is": ("is 看 Susan 的最大权重", "most weight from is on Susan")},
    run, judge, plot, steps=600, enough=400, seeds=3,
)  # fmt: skip
