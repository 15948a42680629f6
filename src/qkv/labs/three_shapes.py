"""Is an encoder-decoder best for translation, and an encoder for filling gaps? Each shape on the same two tasks."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import random

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import qkv
from qkv.labs.arms import (
    START,
    Shape,
    arm,
    dictionary,
    generate_rows,
    learn,
    make_batch,
    pairs,
    whole_right,
    words_right,
)
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, fit, guesses
from qkv.messages import Message

SHAPES: dict[Shape, int] = {"transformer": 2, "causal": 4, "prefix": 4}  # layers (a side) of about as many parameters
GAPS, ROWS, TEST, HIDDEN = ("encoder", "left", "shown"), 32, 200, 3
MASK = len(dictionary())


def draw_gaps(way: str, seed: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """English sentences with three words hidden, their Chinese after them: ids and labels for a way to fill the gaps.

    encoder: at the gaps, seeing both sides. left: the words before each gap alone. shown: all of it first, with the
    gaps, then the words in their order.
    """
    luck, ids, labels = random.Random(seed), list[Tensor](), list[Tensor]()
    for source, target in pairs(seed, rows, (1,)):
        words = target[:-1]
        gaps = sorted(luck.sample(range(len(words)), HIDDEN))
        masked, asked = [MASK if i in gaps else w for i, w in enumerate(words)], [words[i] for i in gaps]
        said = [w if i in gaps else -100 for i, w in enumerate(words)]
        row, label = {
            "encoder": ([*masked, *source], said), "left": ([START, *words, *source], said),
            "shown": ([*masked, *source, START, *asked[:-1]], [-100] * (len(words) + len(source)) + asked),
        }[way]
        ids.append(torch.tensor(row))
        labels.append(torch.tensor(label + [-100] * (len(row) - len(label))))
    return pad_sequence(ids, batch_first=True), pad_sequence(labels, batch_first=True, padding_value=-100)


@torch.no_grad()
def measure_accuracy(model: qkv.Model, way: str, seed: int) -> float:
    """The share of gaps that a model fills right; what is shown first is asked behind true answers."""
    ids, labels = draw_gaps(way, seed, TEST)
    return float((guesses(model, ids).argmax(-1) == labels)[labels != -100].double().mean())


def run(seed: int, *, steps: int = 120, tell: Tell = ignore) -> Numbers:
    data, test, found = pairs(seed, 8000, (1, 2)), pairs(-1 - seed, TEST, (2,)), dict[str, float]()
    for shape, layers in SHAPES.items():
        for stage, count in (("half", steps // 2), ("whole", steps)):
            model = arm(shape, vocabulary=MASK, layers=layers, seed=seed)
            learn(model, lambda step, shape=shape: make_batch(shape, [data[(step * ROWS + i) % len(data)] for i in range(ROWS)]),
                  steps=count, tell=lambda said, shape=shape: tell(f"{shape}: {said}"))
            said = generate_rows(model, shape, test)
            found[f"{shape}_{stage}"] = words_right(said, test)
        found[f"{shape}_sentences"] = whole_right(said, test)
    for way in GAPS:
        small = Tiny("full" if way == "encoder" else "causal", layers=2, width=64, vocabulary=MASK + 1, context=32)
        model = small.model(seed, torch.float32)
        fit(model, lambda step, way=way: draw_gaps(way, seed * 10**6 + step), steps=2 * steps, lr=3e-3,
            tell=lambda said, way=way: tell(f"{way}: {said}"))
        found[way] = measure_accuracy(model, way, -1 - seed)
    return found


def judge(runs: Runs) -> Verdict:
    half, whole, full = ([runs.mean(f"{shape}_{stage}") for shape in SHAPES] for stage in ("half", "whole", "sentences"))
    says = Message("words right of encoder-decoder, causal, prefix: half trained {half:.2f}, {half2:.2f}, "
                   "{half3:.2f}; trained {whole:.2f}, {whole2:.2f}, {whole3:.2f} (whole sentences {full:.2f}, "
                   "{full2:.2f}, {full3:.2f}). Gaps filled: encoder {encoder:.2f}; a causal model by the left alone "
                   "{left:.2f}, shown the whole first {shown:.2f}", half=half[0], half2=half[1], half3=half[2],
                   whole=whole[0], whole2=whole[1], whole3=whole[2], full=full[0], full2=full[1], full3=full[2],
                   encoder=runs.mean("encoder"), left=runs.mean("left"), shown=runs.mean("shown"))
    others = [max(runs.values(f"{shape}_whole")[i] for shape in ("causal", "prefix")) for i in range(len(runs.rows))]
    lead = min(a - b for a, b in zip(runs.values("transformer_whole"), others, strict=True))
    best = runs.min("encoder") - runs.max("shown") > 0.05
    word = "shown" if lead > 0.05 and best else "true only when" if lead > 0.05 or best else "not shown"
    return runs.verdict(word, "transformer_whole", says)


def plot(runs: Runs) -> Plot:
    bars = [f"{shape}_{stage}" for shape in SHAPES for stage in ("half", "whole")] + list(GAPS)
    return Plot("bars", Message("translation: words right; gaps: filled right"), bars,
                {"share": [runs.mean(bar) for bar in bars]}, y_label=Message("share"))


NAMES = {"transformer": Message("encoder-decoder"), "causal": Message("causal"), "prefix": Message(
    "prefix")}
LAB = Lab(
    "trained",
    Message("An encoder-decoder is best for translation, a decoder for continuation, and an encoder understands best "
            "(gaps)."),
    Message("Tables that compare BERT, GPT and T5; the T5 paper compared them too."),
    Message("One small Chinese-English task, about 220,000 parameters, the same steps and data: encoder-decoder, "
            "causal, prefix. English with three words hidden, Chinese after it: an encoder, a causal model that sees "
            "the left, and one that is shown all first and then answers."),
    Message("91 words, so chance is about 0.01; each shape is the others' baseline. Trained, all may come near 1, so "
            "half the steps are told too."),
    Message("Translation: trained, less than 0.05 apart, half trained some lead. Gaps: the left alone is far behind; "
            "shown all first, the causal model makes up most of it."),
    {**{f"{shape}_{stage}": Message("{text}, {what}", text=text,
                                    what=Message("half trained") if stage == "half" else Message("fully trained"))
        for shape, text in NAMES.items() for stage in ("half", "whole")},
     **{f"{shape}_sentences": Message("{text}, whole sentences", text=text) for shape, text in NAMES.items()},
     "encoder": Message("gaps: encoder"), "left": Message("gaps: causal, the left alone"), "shown": Message(
         "gaps: causal, shown all first")},
    run, judge, plot, steps=120, enough=60, seeds=3,
)
