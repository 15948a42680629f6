"""Is an encoder-decoder best for translation, and an encoder for filling gaps? Each shape on the same two tasks."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import random

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import qkv
from qkv.labs.arms import START, Shape, arm, batch, dictionary, learn, pairs, whole_right, words_right, written
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, fit, guesses

SHAPES: dict[Shape, int] = {"transformer": 2, "causal": 4, "prefix": 4}  # layers (a side) of about as many parameters
GAPS, ROWS, TEST, HIDDEN = ("encoder", "left", "shown"), 32, 200, 3
MASK = len(dictionary())


def gapped(way: str, seed: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
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
        }[way]  # fmt: skip
        ids.append(torch.tensor(row))
        labels.append(torch.tensor(label + [-100] * (len(row) - len(label))))
    return pad_sequence(ids, batch_first=True), pad_sequence(labels, batch_first=True, padding_value=-100)


@torch.no_grad()
def filled(model: qkv.Model, way: str, seed: int) -> float:
    """The share of gaps that a model fills right; what is shown first is asked behind true answers."""
    ids, labels = gapped(way, seed, TEST)
    return float((guesses(model, ids).argmax(-1) == labels)[labels != -100].double().mean())


def run(seed: int, *, steps: int = 120, tell: Tell = quiet) -> Numbers:
    data, test, found = pairs(seed, 8000, (1, 2)), pairs(-1 - seed, TEST, (2,)), dict[str, float]()
    for shape, layers in SHAPES.items():
        for stage, count in (("half", steps // 2), ("whole", steps)):
            model = arm(shape, vocabulary=MASK, layers=layers, seed=seed)
            learn(model, lambda step, shape=shape: batch(shape, [data[(step * ROWS + i) % len(data)] for i in range(ROWS)]),
                  steps=count, tell=lambda said, shape=shape: tell(f"{shape}: {said}"))  # fmt: skip
            said = written(model, shape, test)
            found[f"{shape}_{stage}"] = words_right(said, test)
        found[f"{shape}_sentences"] = whole_right(said, test)
    for way in GAPS:
        small = Tiny("full" if way == "encoder" else "causal", layers=2, width=64, vocabulary=MASK + 1, context=32)
        model = small.model(seed, torch.float32)
        fit(model, lambda step, way=way: gapped(way, seed * 10**6 + step), steps=2 * steps, lr=3e-3,
            tell=lambda said, way=way: tell(f"{way}: {said}"))  # fmt: skip
        found[way] = filled(model, way, -1 - seed)
    return found


def judge(runs: Runs) -> Verdict:
    half, whole, full = ([runs.mean(f"{shape}_{stage}") for shape in SHAPES] for stage in ("half", "whole", "sentences"))
    says = (f"译对的词，编码器-解码器、因果、前缀：练到一半 {half[0]:.2f}、{half[1]:.2f}、{half[2]:.2f}；练完 {whole[0]:.2f}、{whole[1]:.2f}、{whole[2]:.2f}（整句全对 {full[0]:.2f}、{full[1]:.2f}、{full[2]:.2f}）。"
            f"填空：编码器 {runs.mean('encoder'):.2f}；因果模型只看左边 {runs.mean('left'):.2f}，先看全句再答 {runs.mean('shown'):.2f}",
            f"words right of encoder-decoder, causal, prefix: half trained {half[0]:.2f}, {half[1]:.2f}, {half[2]:.2f}; trained {whole[0]:.2f}, {whole[1]:.2f}, "
            f"{whole[2]:.2f} (whole sentences {full[0]:.2f}, {full[1]:.2f}, {full[2]:.2f}). Gaps filled: encoder {runs.mean('encoder'):.2f}; a causal model by the left alone {runs.mean('left'):.2f}, shown the whole first {runs.mean('shown'):.2f}")  # fmt: skip
    others = [max(runs.each(f"{shape}_whole")[i] for shape in ("causal", "prefix")) for i in range(len(runs.rows))]
    lead = min(a - b for a, b in zip(runs.each("transformer_whole"), others, strict=True))
    best = runs.low("encoder") - runs.high("shown") > 0.05
    word = "shown" if lead > 0.05 and best else "true only when" if lead > 0.05 or best else "not shown"
    return runs.verdict(word, "transformer_whole", says)


def plot(runs: Runs) -> Plot:
    bars = [f"{shape}_{stage}" for shape in SHAPES for stage in ("half", "whole")] + list(GAPS)
    return Plot("bars", ("翻译：译对的词；填空：填对的份额", "translation: words right; gaps: filled right"), bars,
                {"share": [runs.mean(bar) for bar in bars]}, y_label=("份额", "share"))  # fmt: skip


NAMES = {"transformer": ("编码器-解码器", "encoder-decoder"), "causal": ("因果", "causal"), "prefix": ("前缀", "prefix")}
LAB = Lab(
    "trained",
    ("编码器-解码器最适合翻译，仅解码器适合续写，编码器最懂文意（填空）。", "An encoder-decoder is best for translation, a decoder for continuation, and an encoder understands best (gaps)."),
    ("对比 BERT、GPT、T5 的表格与文章；T5 论文也做过这样的比较。", "Tables that compare BERT, GPT and T5; the T5 paper compared them too."),
    ("同一个小型中译英，约 22 万参数，同样的步数与数据：编码器-解码器、因果、前缀；英文挖掉三个词（中文在后）：编码器、只看左边的因果模型、先看全句再答的因果模型。",
     "One small Chinese-English task, about 220,000 parameters, the same steps and data: encoder-decoder, causal, prefix. English with three words hidden, "
     "Chinese after it: an encoder, a causal model that sees the left, and one that is shown all first and then answers."),
    ("91 个词，随机约 0.01；每种形状都是另外几种的基线。小任务练满后都会接近 1，所以也看练到一半。",
     "91 words, so chance is about 0.01; each shape is the others' baseline. Trained, all may come near 1, so half the steps are told too."),
    ("翻译：练完相差不到 0.05，一半时有先有后；填空：只看左边的远远落后，先看全句的因果模型追上编码器大半。",
     "Translation: trained, less than 0.05 apart, half trained some lead. Gaps: the left alone is far behind; shown all first, the causal model makes up most of it."),
    {**{f"{shape}_{stage}": (f"{zh}，{'练到一半' if stage == 'half' else '练完'}", f"{en}, {'half trained' if stage == 'half' else 'trained'}")
        for shape, (zh, en) in NAMES.items() for stage in ("half", "whole")},
     **{f"{shape}_sentences": (f"{zh}，整句全对", f"{en}, whole sentences") for shape, (zh, en) in NAMES.items()},
     "encoder": ("填空：编码器", "gaps: encoder"), "left": ("填空：因果，只看左边", "gaps: causal, the left alone"), "shown": ("填空：因果，先看全句", "gaps: causal, shown all first")},
    run, judge, plot, steps=120, enough=60, seeds=3,
)  # fmt: skip
