"""Do fewer key/value heads cost quality? MHA, GQA and MQA learn to repeat, with the same parameters, beside the seeds' own spread."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import torch

import qkv
from qkv.cost import count
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, fit, guesses, repeated

HEADS, WIDTH, LAYERS = 4, 32, 2
ARMS = {"mha": 4, "gqa": 2, "mqa": 1}


def small(groups: int) -> Tiny:
    """The model of so many key/value heads; its feed-forward part is wider by what they save, as in Shazeer 2019."""
    saved = 2 * WIDTH * (HEADS - groups) * (WIDTH // HEADS)
    return Tiny(layers=LAYERS, width=WIDTH, heads=HEADS, groups=groups, ffn=4 * WIDTH + saved // (2 * WIDTH), vocabulary=16)


@torch.no_grad()
def measured(model: qkv.Model, seed: int) -> tuple[float, float]:
    """The share of asked symbols that are right, and the loss, on texts that were not trained on."""
    ids, asked = repeated(seed, 400)
    logits, ask = guesses(model, ids), asked >= 0
    loss = torch.nn.functional.cross_entropy(logits[ask], asked[ask])
    return float((logits.argmax(-1) == asked)[ask].double().mean()), float(loss)


def run(seed: int, *, steps: int = 1000, tell: Tell = quiet) -> Numbers:
    found: dict[str, float] = {}
    for arm, groups in ARMS.items():
        model = small(groups).model(seed, torch.float32)
        fit(model, lambda step: repeated(seed * 10**6 + step), steps=steps, lr=4e-3,
            tell=lambda said, arm=arm: tell(f"{arm}: {said}"))  # fmt: skip
        found[arm], found[f"loss_{arm}"] = measured(model, -1 - seed)
        found[f"parameters_{arm}"] = float(count(small(groups).spec).parameters)
    found["gap"] = found["mha"] - found["mqa"]
    return found


def judge(runs: Runs) -> Verdict:
    spread = max(runs.high(arm) - runs.low(arm) for arm in ARMS)
    said = ", ".join(f"{arm.upper()} {runs.mean(arm):.2f} ({runs.low(arm):.2f} … {runs.high(arm):.2f})" for arm in ARMS)
    says = (f"{said}；MHA 比 MQA 高 {runs.mean('gap'):+.2f}，同一种头换种子就差 {spread:.2f}",
            f"{said}; MHA over MQA {runs.mean('gap'):+.2f}, while seeds of one kind differ by {spread:.2f}")  # fmt: skip
    if runs.low("mha") > runs.high("mqa") and runs.mean("gap") > spread:
        between = runs.mean("mqa") <= runs.mean("gqa") <= runs.mean("mha")
        return runs.verdict("shown" if between else "true only when", "gap", says)
    backwards = runs.low("mqa") > runs.high("mha") and -runs.mean("gap") > spread
    return runs.verdict("refuted" if backwards else "not shown", "gap", says)


def plot(runs: Runs) -> Plot:
    series = {f"seed {n}": [each[n] for each in map(runs.each, ARMS)] for n in range(len(runs.rows))}
    names = {seed: (f"种子 {n}", f"seed {n}") for n, seed in enumerate(series)}
    return Plot("bars", ("重复一段的正确率，各种子", "a segment repeated: accuracy by seed"), tuple(ARMS), series,
                y_label=("正确率", "accuracy"), names=names)  # fmt: skip


LAB = Lab(
    "trained",
    ("KV 头越少，质量越差一点：MQA 略差，GQA 居中。", "Fewer key/value heads cost a little quality: MQA some, GQA between."),
    ("Shazeer 2019、Ainslie 2023，及所有转述。", "Shazeer 2019, Ainslie et al. 2023, and all who retell them."),
    ("两层四头的模型学着重复随机的一段；KV 头 4、2、1 个，省下的参数加宽前馈部分，参数一样多。",
     "Models of two layers and four heads learn to repeat a random segment, with 4, 2 or 1 key/value heads; the parameters saved widen the "
     "feed-forward part, so all have as many."),
    ("随机 1/16 = 0.06；基线：同一种头换种子的差距。每个头只有 8 维，比大模型的 64 到 128 紧得多。", "Chance 1/16 = 0.06; baseline: how much seeds of the same kind differ. A head has 8 dimensions, far tighter than the 64 to 128 of large models."),
    ("这么小的模型上看不出次序：种子之间的差距比头之间的大。", "No order at this size: seeds differ more than kinds of heads do."),
    {"mha": ("MHA（4 个 KV 头）", "MHA (4 key/value heads)"), "gqa": ("GQA（2 个）", "GQA (2)"), "mqa": ("MQA（1 个）", "MQA (1)"),
     "loss_mha": ("损失：MHA", "loss: MHA"), "loss_gqa": ("损失：GQA", "loss: GQA"), "loss_mqa": ("损失：MQA", "loss: MQA"),
     "gap": ("MHA 减 MQA", "MHA minus MQA"), "parameters_mha": ("参数：MHA", "parameters: MHA"), "parameters_mqa": ("参数：MQA", "parameters: MQA")},
    run, judge, plot, steps=1000, enough=500, seeds=3,
)  # fmt: skip
