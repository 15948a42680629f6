"""Trained on true words, used on its own: how much is lost, does it pile up, and does scheduled sampling help?"""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

from collections.abc import Sequence

import torch
from torch import Tensor

import qkv
from qkv.labs.arms import FIRST, Ids, arm, dictionary, learn, make_batch, pairs, true_guesses
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.messages import Message

CLAUSES, ROWS, TEST, WRONG = (3,), 32, 100, 4  # each target has about 24 words; word WRONG is made wrong on purpose
PARTS = ((0, 6), (6, 12), (12, 18), (18, 24))  # of the sentence, to see whether mistakes pile up
ARMS = {"plain": 0.0, "sampled": 0.5}  # the share of inputs that are the model's own at last
STAGES = {"half": 0.45, "whole": 1.0}  # of the steps, each a run of its own with its own schedule


@torch.no_grad()
def generate_freely(model: qkv.Model, rows: Sequence[tuple[Ids, Ids]], wrong: int = -1) -> Tensor:
    """What a model writes behind its own words [B, T]; at place `wrong` another word than the right one is put in."""
    made = make_batch("transformer", rows)
    ids, words = made.target[:, :1], model.spec.vocabulary
    for place in range(made.target.shape[1]):
        logits = model(source=made.source, target=ids, padding=made.source_real).logits
        assert logits is not None
        said = logits[:, -1].argmax(-1)
        if place == wrong:
            said = (made.labels[:, place] - FIRST + 17) % (words - FIRST) + FIRST
        ids = torch.cat((ids, said[:, None]), 1)
    return ids[:, 1:]


def measure_accuracy(guesses: Tensor, labels: Tensor, ends: tuple[int, int] = (0, 999)) -> float:
    """The share of labels that were met, between two places."""
    there = labels != -100
    there[:, : ends[0]] = False
    there[:, ends[1] :] = False
    return float((guesses == labels)[there].double().mean())


def run(seed: int, *, steps: int = 200, tell: Tell = ignore) -> Numbers:
    data, test, words = pairs(seed, 8000, CLAUSES), pairs(-1 - seed, TEST, CLAUSES), len(dictionary())
    found: dict[str, float | list[float]] = {}
    for stage, share in STAGES.items():
        for name, most in ARMS.items():
            model, key = arm("transformer", vocabulary=words, seed=seed), f"{name}_{stage}"
            make = lambda step: make_batch("transformer", [data[(step * ROWS + i) % len(data)] for i in range(ROWS)])  # noqa: E731
            learn(model, make, steps=max(1, round(share * steps)), sampled=most, tell=lambda said, key=key: tell(f"{key}: {said}"))
            with torch.no_grad():
                true, labels = true_guesses(model, test)
            own, hurt = generate_freely(model, test), generate_freely(model, test, WRONG)
            after = (WRONG + 1, 999)
            found |= {f"{key}_true": measure_accuracy(true, labels), f"{key}_own": measure_accuracy(own, labels)}
            found[f"{key}_harm"] = measure_accuracy(own, labels, after) - measure_accuracy(hurt, labels, after)
            found[f"{key}_gaps"] = [measure_accuracy(true, labels, part) - measure_accuracy(own, labels, part) for part in PARTS]
    return found


def compute_gap(runs: Runs, key: str) -> float:
    """What a model loses on its own, mean over the seeds."""
    return runs.mean(f"{key}_true") - runs.mean(f"{key}_own")


def judge(runs: Runs) -> Verdict:
    half, whole = compute_gap(runs, "plain_half"), compute_gap(runs, "plain_whole")
    gaps, better = runs.curve("plain_half_gaps"), runs.mean("sampled_half_own") - runs.mean("plain_half_own")
    spread = runs.max("plain_half_own") - runs.min("plain_half_own")
    says = Message("half trained: {plain_half_true:.2f} behind true words, {plain_half_own:.2f} behind its own, the "
                   "gap growing from {gaps:.2f} at the start to {gaps2:.2f} at the end; trained: a gap of "
                   "{whole:.2f}, but a word made wrong costs {plain_whole_harm:.2f} of those after it. Scheduled "
                   "sampling, half trained: {sampled_half_own:.2f} ({better:+.2f}; seeds differ by {spread:.2f}); "
                   "trained, a wrong word then costs {sampled_whole_harm:.2f}",
                   plain_half_true=runs.mean("plain_half_true"), plain_half_own=runs.mean("plain_half_own"),
                   gaps=gaps[0], gaps2=gaps[-1], whole=whole, plain_whole_harm=runs.mean("plain_whole_harm"),
                   sampled_half_own=runs.mean("sampled_half_own"), better=better, spread=spread,
                   sampled_whole_harm=runs.mean("sampled_whole_harm"))
    if half < 0.05:
        return runs.verdict("not shown", "plain_half_own", says)
    return runs.verdict("true only when" if whole < half / 3 else "shown", "plain_half_own", says)


def plot(runs: Runs) -> Plot:
    x = [f"{a + 1}-{b}" for a, b in PARTS]
    rows = {f"{name}_{stage}": runs.curve(f"{name}_{stage}_gaps") for stage in STAGES for name in ARMS}
    return Plot("lines", Message("gap: right behind true words, less right behind its own"), x, rows,
                Message("words of the sentence"), Message("gap"), names=NAMES)


NAMES = {"plain_half": Message("half trained"), "sampled_half": Message("half trained, sampled"),
         "plain_whole": Message("fully trained"), "sampled_whole": Message("trained, sampled")}
SAID = {"true": Message("behind true words"), "own": Message("behind its own"), "harm": Message(
    "lost after one wrong word")}
LAB = Lab(
    "trained",
    Message("Training always shows the right words, use only its own: one mistake leads to the next and they pile up "
            "(exposure bias); scheduled sampling cures it."),
    Message("Texts on teacher forcing; Bengio et al. 2015; Ranzato et al. 2016."),
    Message("A small Chinese-English task (3 clauses), encoder-decoder, half trained and trained, with and without "
            "scheduled sampling (in two passes, Mihaylova and Martins 2019); at the same places: behind true words, "
            "behind its own, and after the fifth word was made wrong."),
    Message("91 words, so chance is about 0.01; the baseline is what is right behind true words."),
    Message("Half trained the gap is above 0.1 and grows along the sentence; trained it almost vanishes; sampling "
            "narrows it, whether that is better is open."),
    {**{f"{arm_}_{what}": Message("{text}: {said}", text=text, said=SAID[what]) for arm_, text in NAMES.items() for what in SAID}},
    run, judge, plot, steps=200, enough=100, seeds=3,
)
