"""Is training's one parallel pass the same as writing word by word? Both, number by number; and without the mask."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import torch

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, draw, influence, load_fp64
from qkv.messages import Message

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


def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    ids, demo = draw(seed, 1, TOKENS), load_fp64("demo")
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
    }


def judge(runs: Runs) -> Verdict:
    gap = max(runs.max("causal"), runs.max("demo"))
    says = Message("one pass against {tokens}: {gap:.1g} apart; without the mask {unmasked:.2g}, and each guess sees "
                   "its own answer", tokens=TOKENS, gap=gap, unmasked=runs.min("unmasked"))
    word = "refuted" if gap > 1e-9 or runs.max("hidden") > 0 else "shown" if runs.min("unmasked") > 1e-4 else "inconclusive"
    return runs.verdict(word, "causal", says)


NAMES = ("causal", "demo", "unmasked")


def plot(runs: Runs) -> Plot:
    return Plot("bars", Message("one parallel pass against word by word"), NAMES,
                {"|Δ logit|": [runs.mean(n) for n in NAMES]}, y_label=Message("difference"))


LAB = Lab(
    "exact",
    Message("Training predicts all positions in one parallel pass; that computes the same numbers as writing word by "
            "word."),
    Message("Texts on how training and use differ."),
    Message("The same given text: one masked pass against n growing ones; a random causal model, and demo "
            "(encoder-decoder)."),
    Message("The same is about 1e-15 (fp64, no dropout); control: unmasked must differ."),
    Message("The same; unmasked not, and the guess at t depends on word t + 1, the answer. What differs in use is "
            "only that the words read are its own."),
    {"causal": Message("causal, random"), "demo": Message("demo, encoder-decoder"),
     "unmasked": Message("control: unmasked"), "sees_answer": Message("unmasked: dependence on the answer"),
     "hidden": Message("masked: dependence on the answer"), "passes": Message("passes, word by word")},
    run, judge, plot,
)
