"""Trained on true words, used on its own: how much is lost, does it pile up, and does scheduled sampling help?"""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

from collections.abc import Sequence

import torch
from torch import Tensor

import qkv
from qkv.labs.arms import FIRST, Ids, arm, batch, dictionary, learn, pairs, true_guesses
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet

CLAUSES, ROWS, TEST, WRONG = (3,), 32, 100, 4  # each target has about 24 words; word WRONG is made wrong on purpose
PARTS = ((0, 6), (6, 12), (12, 18), (18, 24))  # of the sentence, to see whether mistakes pile up
ARMS = {"plain": 0.0, "sampled": 0.5}  # the share of inputs that are the model's own at last
STAGES = {"half": 0.45, "whole": 1.0}  # of the steps, each a run of its own with its own schedule


@torch.no_grad()
def alone(model: qkv.Model, rows: Sequence[tuple[Ids, Ids]], wrong: int = -1) -> Tensor:
    """What a model writes behind its own words [B, T]; at place `wrong` another word than the right one is put in."""
    made = batch("transformer", rows)
    ids, words = made.target[:, :1], model.spec.vocabulary
    for place in range(made.target.shape[1]):
        logits = model(source=made.source, target=ids, padding=made.source_real).logits
        assert logits is not None
        said = logits[:, -1].argmax(-1)
        if place == wrong:
            said = (made.labels[:, place] - FIRST + 17) % (words - FIRST) + FIRST
        ids = torch.cat((ids, said[:, None]), 1)
    return ids[:, 1:]


def right(guesses: Tensor, labels: Tensor, ends: tuple[int, int] = (0, 999)) -> float:
    """The share of labels that were met, between two places."""
    there = labels != -100
    there[:, : ends[0]] = False
    there[:, ends[1] :] = False
    return float((guesses == labels)[there].double().mean())


def run(seed: int, *, steps: int = 200, tell: Tell = quiet) -> Numbers:
    data, test, words = pairs(seed, 8000, CLAUSES), pairs(-1 - seed, TEST, CLAUSES), len(dictionary())
    found: dict[str, float | list[float]] = {}
    for stage, share in STAGES.items():
        for name, most in ARMS.items():
            model, key = arm("transformer", vocabulary=words, seed=seed), f"{name}_{stage}"
            make = lambda step: batch("transformer", [data[(step * ROWS + i) % len(data)] for i in range(ROWS)])  # noqa: E731
            learn(model, make, steps=max(1, round(share * steps)), sampled=most, tell=lambda said, key=key: tell(f"{key}: {said}"))
            with torch.no_grad():
                true, labels = true_guesses(model, test)
            own, hurt = alone(model, test), alone(model, test, WRONG)
            after = (WRONG + 1, 999)
            found |= {f"{key}_true": right(true, labels), f"{key}_own": right(own, labels)}
            found[f"{key}_harm"] = right(own, labels, after) - right(hurt, labels, after)
            found[f"{key}_gaps"] = [right(true, labels, part) - right(own, labels, part) for part in PARTS]
    return found


def lost(runs: Runs, key: str) -> float:
    """What a model loses on its own, mean over the seeds."""
    return runs.mean(f"{key}_true") - runs.mean(f"{key}_own")


def judge(runs: Runs) -> Verdict:
    half, whole = lost(runs, "plain_half"), lost(runs, "plain_whole")
    gaps, better = runs.curve("plain_half_gaps"), runs.mean("sampled_half_own") - runs.mean("plain_half_own")
    spread = runs.high("plain_half_own") - runs.low("plain_half_own")
    says = (f"训练到一半：给真前文 {runs.mean('plain_half_true'):.2f}，读自己写的 {runs.mean('plain_half_own'):.2f}，差距从句首 {gaps[0]:.2f} 涨到句尾 {gaps[-1]:.2f}；"
            f"训练完：差 {whole:.2f}，但故意写错一个词，后面的词就掉 {runs.mean('plain_whole_harm'):.2f}。加上计划采样：一半时 {runs.mean('sampled_half_own'):.2f}（{better:+.2f}，种子间相差 {spread:.2f}），训练完写错一词掉 {runs.mean('sampled_whole_harm'):.2f}",
            f"half trained: {runs.mean('plain_half_true'):.2f} behind true words, {runs.mean('plain_half_own'):.2f} behind its own, the gap growing from {gaps[0]:.2f} at the "
            f"start to {gaps[-1]:.2f} at the end; trained: a gap of {whole:.2f}, but a word made wrong costs {runs.mean('plain_whole_harm'):.2f} of those after it. "
            f"Scheduled sampling, half trained: {runs.mean('sampled_half_own'):.2f} ({better:+.2f}; seeds differ by {spread:.2f}); trained, a wrong word then costs {runs.mean('sampled_whole_harm'):.2f}")  # fmt: skip
    if half < 0.05:
        return runs.verdict("not shown", "plain_half_own", says)
    return runs.verdict("true only when" if whole < half / 3 else "shown", "plain_half_own", says)


def plot(runs: Runs) -> Plot:
    x = [f"{a + 1}-{b}" for a, b in PARTS]
    rows = {f"{name}_{stage}": runs.curve(f"{name}_{stage}_gaps") for stage in STAGES for name in ARMS}
    return Plot("lines", ("差距：给真前文对多少，减去读自己写的对多少", "gap: right behind true words, less right behind its own"), x, rows,
                ("句中第几个词", "words of the sentence"), ("差距", "gap"), names=NAMES)  # fmt: skip


NAMES = {"plain_half": ("训练一半", "half trained"), "sampled_half": ("训练一半，计划采样", "half trained, sampled"),
         "plain_whole": ("训练完", "trained"), "sampled_whole": ("训练完，计划采样", "trained, sampled")}  # fmt: skip
SAID = {"true": ("给真前文", "behind true words"), "own": ("读自己写的", "behind its own"), "harm": ("错一词后多错", "lost after one wrong word")}
LAB = Lab(
    "trained",
    ("训练时总看标准答案，使用时只能看自己写的：一步错、步步错，误差累积（曝光偏差）；计划采样能治。",
     "Training always shows the right words, use only its own: one mistake leads to the next and they pile up (exposure bias); scheduled sampling cures it."),
    ("讲 teacher forcing 的文章；Bengio 等 2015；Ranzato 等 2016。", "Texts on teacher forcing; Bengio et al. 2015; Ranzato et al. 2016."),
    ("小型中译英（3 个分句），编码器-解码器，训练到一半与训练完；有无计划采样（两遍法，Mihaylova 和 Martins 2019）；在同样位置比较：给真前文、读自己写的、故意写错第 5 个词之后。",
     "A small Chinese-English task (3 clauses), encoder-decoder, half trained and trained, with and without scheduled sampling (in two passes, Mihaylova and "
     "Martins 2019); at the same places: behind true words, behind its own, and after the fifth word was made wrong."),
    ("91 个词，随机约 0.01；基线是给真前文的正确率。", "91 words, so chance is about 0.01; the baseline is what is right behind true words."),
    ("一半时差距大于 0.1 且向句尾增大；训练完几乎消失；计划采样缩小差距，是否更好事先不定。", "Half trained the gap is above 0.1 and grows along the sentence; trained it almost vanishes; sampling narrows it, whether that is better is open."),
    {**{f"{arm_}_{what}": (f"{zh}：{SAID[what]}", f"{en}: {SAID[what]}") for arm_, (zh, en) in NAMES.items() for what in SAID}},
    run, judge, plot, steps=200, enough=100, seeds=3,
)  # fmt: skip
