"""Is training's one parallel pass the same as writing word by word? Both, number by number; and without the mask."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import torch

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, draw, exact, influence

TOKENS = 12
TEXTS = (("我爱学习。", "I love studying."), ("我爱你。", "I love you."), ("我吃了一个苹果。", "I ate an apple."))


@torch.no_grad()
def serial_gap(model: qkv.Model, ids: torch.Tensor, source: torch.Tensor | None = None) -> float:
    """The largest difference between one pass over all tokens and a pass for each beginning of them."""

    def logits(part: torch.Tensor) -> torch.Tensor:
        found = (model(part) if source is None else model(source=source, target=part)).logits
        assert found is not None
        return found[0]

    whole = logits(ids)
    return max(float((logits(ids[:, :n])[-1] - whole[n - 1]).abs().max()) for n in range(1, ids.shape[1] + 1))


def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
    ids, demo = draw(seed, 1, TOKENS), exact("demo")
    assert demo.tokenizer
    read, said = TEXTS[seed % len(TEXTS)]
    source, answer = torch.tensor([demo.ids(read)]), demo.tokenizer.encode(said, side="target")
    target = torch.tensor([[demo.special.start, *answer]])
    unmasked = Tiny(mask="full").model(seed)
    ahead = influence(unmasked, ids, seed)[-1, :, 0].diagonal(1)  # the guess at t depends on word t + 1, its answer
    hidden = influence(Tiny().model(seed), ids, seed)[-1, :, 0].diagonal(1)
    return {
        "causal": serial_gap(Tiny().model(seed), ids), "demo": serial_gap(demo, target, source),
        "unmasked": serial_gap(unmasked, ids), "sees_answer": float(ahead.min()), "hidden": float(hidden.max()),
        "passes": float(TOKENS),
    }  # fmt: skip


def judge(runs: Runs) -> Verdict:
    gap = max(runs.high("causal"), runs.high("demo"))
    says = (f"一次并行与 {TOKENS} 次逐词：差 {gap:.1g}；去掉掩码：差 {runs.low('unmasked'):.2g}，而且每个猜测都看得到答案",
            f"one pass against {TOKENS}: {gap:.1g} apart; without the mask {runs.low('unmasked'):.2g}, and each guess sees "
            "its own answer")  # fmt: skip
    word = "refuted" if gap > 1e-9 or runs.high("hidden") > 0 else "shown" if runs.low("unmasked") > 1e-4 else "inconclusive"
    return runs.verdict(word, "causal", says)


NAMES = ("causal", "demo", "unmasked")


def plot(runs: Runs) -> Plot:
    return Plot("bars", ("一次并行与逐词之差", "one parallel pass against word by word"), NAMES,
                {"|Δ logit|": [runs.mean(n) for n in NAMES]}, y_label=("差", "difference"))  # fmt: skip


LAB = Lab(
    "exact",
    ("训练时一次并行预测所有位置，与使用时逐词写出，算的是同样的数。",
     "Training predicts all positions in one parallel pass; that computes the same numbers as writing word by word."),
    ("讲训练与推理之不同的文章。", "Texts on how training and use differ."),
    ("同一段给定的文本：一次带掩码的前向，对逐渐变长的 n 次前向；随机的因果模型与 demo（编码器-解码器）。",
     "The same given text: one masked pass against n growing ones; a random causal model, and demo (encoder-decoder)."),
    ("相同约 1e-15（fp64，无 dropout）；对照：没有掩码就不同。", "The same is about 1e-15 (fp64, no dropout); control: unmasked must differ."),
    ("相同；没有掩码则不同，且位置 t 的猜测依赖第 t+1 个词，也就是答案。不同的只是：使用时读的是自己写的词。",
     "The same; unmasked not, and the guess at t depends on word t + 1, the answer. What differs in use is only that the "
     "words read are its own."),
    {"causal": ("因果，随机", "causal, random"), "demo": ("demo，编码器-解码器", "demo, encoder-decoder"),
     "unmasked": ("对照：无掩码", "control: unmasked"), "sees_answer": ("无掩码：对答案的依赖", "unmasked: dependence on the answer"),
     "hidden": ("有掩码：对答案的依赖", "masked: dependence on the answer"), "passes": ("逐词的前向次数", "passes, word by word")},
    run, judge, plot,
)  # fmt: skip
