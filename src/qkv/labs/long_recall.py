"""Does an RNN forget where a Transformer does not? All of a segment said again, and one symbol kept over a long gap."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

from collections.abc import Callable

import torch
from torch import Tensor

import qkv
from qkv.baselines.lstm import lstm_spec
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, draw, fit, guesses

SYMBOLS, LENGTHS, GAP, ROWS, TEST = 16, (5, 10, 20), 20, 32, 200
LONGER = 4  # times the steps for the LSTM, to see whether it only learns more slowly
Draw = Callable[[int, int], tuple[Tensor, Tensor]]


def again(length: int) -> Draw:
    """A segment, a mark, the segment again: asked for all of it."""

    def made(seed: int, rows: int) -> tuple[Tensor, Tensor]:
        ids, mark = draw(seed, rows, length, below=SYMBOLS), torch.full((rows, 1), SYMBOLS)
        return torch.cat((ids, mark, ids[:, :-1]), 1), torch.cat((torch.full_like(ids, -100), ids), 1)

    return made


def first(seed: int, rows: int) -> tuple[Tensor, Tensor]:
    """A symbol, many others, a mark: asked for the first alone."""
    ids, mark = draw(seed, rows, GAP + 1, below=SYMBOLS), torch.full((rows, 1), SYMBOLS)
    silent = torch.full((rows, GAP + 1), -100)
    return torch.cat((ids, mark), 1), torch.cat((silent, ids[:, :1]), 1)


def model(kind: str, context: int, seed: int) -> qkv.Model:
    """About 105,000 parameters: one LSTM layer, or two layers of a Transformer."""
    if kind == "lstm":
        return qkv.build(lstm_spec(SYMBOLS + 1, width=112, source=False, tied=False), seed=seed)
    return Tiny(layers=2, width=64, vocabulary=SYMBOLS + 1, context=context).model(seed, torch.float32)


@torch.no_grad()
def right(trained: qkv.Model, task: Draw, seed: int) -> float:
    ids, labels = task(seed, TEST)
    asked = labels != -100
    return float((guesses(trained, ids).argmax(-1) == labels)[asked].double().mean())


def run(seed: int, *, steps: int = 250, tell: Tell = quiet) -> Numbers:
    tasks: dict[str, tuple[Draw, int]] = {**{str(n): (again(n), 2 * n) for n in LENGTHS}, "gap": (first, GAP + 2)}
    found: dict[str, float] = {}

    def race(kind: str, name: str, count: int) -> float:
        task, context = tasks[name]
        one = model(kind, context, seed)
        fit(one, lambda step: task(seed * 10**6 + step, ROWS), steps=count, lr=3e-3, tell=lambda said: tell(f"{kind} {name}: {said}"))
        return right(one, task, -1 - seed)

    for name in tasks:
        found |= {f"{kind}_{name}": race(kind, name, steps) for kind in ("lstm", "transformer")}
    found["lstm_longer"] = race("lstm", str(LENGTHS[-1]), LONGER * steps)
    found["lstm_gap_longer"] = race("lstm", "gap", LONGER * steps)
    return found


def judge(runs: Runs) -> Verdict:
    long, (rnn, net) = LENGTHS[-1], (", ".join(f"{runs.mean(f'{kind}_{n}'):.2f}" for n in LENGTHS) for kind in NAMES)
    says = (f"复述 {LENGTHS[0]}、{LENGTHS[1]}、{long} 个符号：LSTM {rnn}，Transformer {net}；LSTM 训练 {LONGER} 倍步数：{runs.mean('lstm_longer'):.2f}。"
            f"隔 {GAP} 个词只记一个：LSTM {runs.mean('lstm_gap'):.2f}（{LONGER} 倍步数 {runs.mean('lstm_gap_longer'):.2f}），Transformer {runs.mean('transformer_gap'):.2f}",
            f"{LENGTHS[0]}, {LENGTHS[1]} and {long} symbols said again: LSTM {rnn}, Transformer {net}; the LSTM with {LONGER} times the steps "
            f"{runs.mean('lstm_longer'):.2f}. One symbol kept over {GAP}: LSTM {runs.mean('lstm_gap'):.2f} ({LONGER} times the steps: {runs.mean('lstm_gap_longer'):.2f}), Transformer {runs.mean('transformer_gap'):.2f}")  # fmt: skip
    gap = runs.low(f"transformer_{long}") - runs.high(f"lstm_{long}")
    if gap <= 0.1:
        return runs.verdict("not shown", f"lstm_{long}", says)
    slow = min(runs.mean("lstm_longer") - runs.mean(f"lstm_{long}"), runs.mean("lstm_gap_longer") - runs.mean("lstm_gap")) > 0.25
    return runs.verdict("true only when" if slow else "shown", f"lstm_{long}", says)  # what more steps mend was not forgotten


def plot(runs: Runs) -> Plot:
    rows = {kind: [runs.mean(f"{kind}_{n}") for n in LENGTHS] for kind in NAMES}
    return Plot("lines", ("把一段符号再说一遍：说对的份额", "a segment said again: symbols right"), [float(n) for n in LENGTHS], rows,
                ("段长", "symbols of the segment"), ("正确率", "accuracy"), names=NAMES)  # fmt: skip


NAMES = {"lstm": Message("LSTM"), "transformer": Message("Transformer")}
LAB = Lab(
    "trained",
    ("RNN 会忘，Transformer 不会：句子一长，前面的就丢了。", "An RNN forgets and a Transformer does not: in a long text what came first is lost."),
    ("用“传话游戏”介绍 RNN 的文章。", "Texts that introduce RNNs by a game of whispers."),
    ("两件事分开测：把 5、10、20 个随机符号原样再说一遍（要记住很多）；隔 20 个无关符号说出第一个（要记得久）。参数相同（约 10.5 万），步数相同，最长的段和记一个时另给 LSTM 四倍步数。",
     "Two things apart: 5, 10 and 20 random symbols said again (much to keep), and the first symbol told after 20 others (long to keep). Equal parameters "
     "(about 105,000), equal steps; for the longest segment and the single symbol the LSTM also gets four times the steps."),
    ("16 个符号，随机 0.06；基线是彼此。段长固定，所以 Transformer 只需看固定的距离，这对它有利。",
     "16 symbols, chance 0.06; each is the other's baseline. Lengths are fixed, so the Transformer need only look a fixed distance back, which favours it."),
    ("Transformer 都接近 1；LSTM 在 5 个时接近 1，20 个时低于 0.5；只记一个时两者都接近 1：缺的是容量，不是时间。",
     "The Transformer near 1 throughout; the LSTM near 1 at 5 symbols and below 0.5 at 20; both near 1 with one symbol over the gap: room is short, not time."),
    {**{f"{kind}_{n}": (f"{zh}，{n} 个符号", f"{en}, {n} symbols") for kind, (zh, en) in NAMES.items() for n in LENGTHS},
     "lstm_longer": (f"LSTM，{LENGTHS[-1]} 个，{LONGER} 倍步数", f"LSTM, {LENGTHS[-1]} symbols, {LONGER} times the steps"),
     "lstm_gap_longer": (f"LSTM，隔 {GAP} 个记一个，{LONGER} 倍步数", f"LSTM, one symbol over {GAP}, {LONGER} times the steps"),
     **{f"{kind}_gap": (f"{zh}，隔 {GAP} 个记一个", f"{en}, one symbol over {GAP}") for kind, (zh, en) in NAMES.items()}},
    run, judge, plot, steps=250, enough=150, seeds=3,
)  # fmt: skip
