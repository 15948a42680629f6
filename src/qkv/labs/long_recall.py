"""Does an RNN forget where a Transformer does not? All of a segment said again, and one symbol kept over a long gap."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

from collections.abc import Callable

import torch
from torch import Tensor

import qkv
from qkv.baselines.lstm import lstm_spec
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, draw, fit, guesses
from qkv.messages import Message

SYMBOLS, LENGTHS, GAP, ROWS, TEST = 16, (5, 10, 20), 20, 32, 200
LONGER = 4  # times the steps for the LSTM, to see whether it only learns more slowly
Draw = Callable[[int, int], tuple[Tensor, Tensor]]


def draw_repeat(length: int) -> Draw:
    """A segment, a mark, the segment again: asked for all of it."""

    def draw_rows(seed: int, rows: int) -> tuple[Tensor, Tensor]:
        ids, mark = draw(seed, rows, length, below=SYMBOLS), torch.full((rows, 1), SYMBOLS)
        return torch.cat((ids, mark, ids[:, :-1]), 1), torch.cat((torch.full_like(ids, -100), ids), 1)

    return draw_rows


def draw_first(seed: int, rows: int) -> tuple[Tensor, Tensor]:
    """A symbol, many others, a mark: asked for the first alone."""
    ids, mark = draw(seed, rows, GAP + 1, below=SYMBOLS), torch.full((rows, 1), SYMBOLS)
    silent = torch.full((rows, GAP + 1), -100)
    return torch.cat((ids, mark), 1), torch.cat((silent, ids[:, :1]), 1)


def build_model(kind: str, context: int, seed: int) -> qkv.Model:
    """About 105,000 parameters: one LSTM layer, or two layers of a Transformer."""
    if kind == "lstm":
        return qkv.build(lstm_spec(SYMBOLS + 1, width=112, source=False, tied=False), seed=seed)
    return Tiny(layers=2, width=64, vocabulary=SYMBOLS + 1, context=context).model(seed, torch.float32)


@torch.no_grad()
def measure_accuracy(trained: qkv.Model, task: Draw, seed: int) -> float:
    ids, labels = task(seed, TEST)
    asked = labels != -100
    return float((guesses(trained, ids).argmax(-1) == labels)[asked].double().mean())


def run(seed: int, *, steps: int = 250, tell: Tell = ignore) -> Numbers:
    tasks: dict[str, tuple[Draw, int]] = {**{str(n): (draw_repeat(n), 2 * n) for n in LENGTHS}, "gap": (draw_first, GAP + 2)}
    found: dict[str, float] = {}

    def race(kind: str, name: str, count: int) -> float:
        task, context = tasks[name]
        one = build_model(kind, context, seed)
        fit(one, lambda step: task(seed * 10**6 + step, ROWS), steps=count, lr=3e-3, tell=lambda said: tell(f"{kind} {name}: {said}"))
        return measure_accuracy(one, task, -1 - seed)

    for name in tasks:
        found |= {f"{kind}_{name}": race(kind, name, steps) for kind in ("lstm", "transformer")}
    found["lstm_longer"] = race("lstm", str(LENGTHS[-1]), LONGER * steps)
    found["lstm_gap_longer"] = race("lstm", "gap", LONGER * steps)
    return found


def judge(runs: Runs) -> Verdict:
    long, (rnn, net) = LENGTHS[-1], (", ".join(f"{runs.mean(f'{kind}_{n}'):.2f}" for n in LENGTHS) for kind in NAMES)
    says = Message("{lengths}, {lengths2} and {long} symbols said again: LSTM {rnn}, Transformer {net}; the LSTM with "
                   "{longer} times the steps {lstm_longer:.2f}. One symbol kept over {gap}: LSTM {lstm_gap:.2f} "
                   "({longer} times the steps: {lstm_gap_longer:.2f}), Transformer {transformer_gap:.2f}",
                   lengths=LENGTHS[0], lengths2=LENGTHS[1], long=long, rnn=rnn, net=net, longer=LONGER,
                   lstm_longer=runs.mean("lstm_longer"), gap=GAP, lstm_gap=runs.mean("lstm_gap"),
                   lstm_gap_longer=runs.mean("lstm_gap_longer"), transformer_gap=runs.mean("transformer_gap"))
    gap = runs.min(f"transformer_{long}") - runs.max(f"lstm_{long}")
    if gap <= 0.1:
        return runs.verdict("not shown", f"lstm_{long}", says)
    slow = min(runs.mean("lstm_longer") - runs.mean(f"lstm_{long}"), runs.mean("lstm_gap_longer") - runs.mean("lstm_gap")) > 0.25
    return runs.verdict("true only when" if slow else "shown", f"lstm_{long}", says)  # what more steps mend was not forgotten


def plot(runs: Runs) -> Plot:
    rows = {kind: [runs.mean(f"{kind}_{n}") for n in LENGTHS] for kind in NAMES}
    return Plot("lines", Message("a segment said again: symbols right"), [float(n) for n in LENGTHS], rows,
                Message("symbols of the segment"), Message("accuracy"), names=NAMES)


NAMES = {"lstm": Message("LSTM"), "transformer": Message("Transformer")}
LAB = Lab(
    "trained",
    Message("An RNN forgets and a Transformer does not: in a long text what came first is lost."),
    Message("Texts that introduce RNNs by a game of whispers."),
    Message("Two things apart: 5, 10 and 20 random symbols said again (much to keep), and the first symbol told after "
            "20 others (long to keep). Equal parameters (about 105,000), equal steps; for the longest segment and the "
            "single symbol the LSTM also gets four times the steps."),
    Message("16 symbols, chance 0.06; each is the other's baseline. Lengths are fixed, so the Transformer need only "
            "look a fixed distance back, which favours it."),
    Message("The Transformer near 1 throughout; the LSTM near 1 at 5 symbols and below 0.5 at 20; both near 1 with "
            "one symbol over the gap: room is short, not time."),
    {**{f"{kind}_{n}": Message("{text}, {n} symbols", text=text, n=n) for kind, text in NAMES.items() for n in LENGTHS},
     "lstm_longer": Message("LSTM, {lengths} symbols, {longer} times the steps", lengths=LENGTHS[-1],
                            longer=LONGER),
     "lstm_gap_longer": Message("LSTM, one symbol over {gap}, {longer} times the steps", gap=GAP,
                                longer=LONGER),
     **{f"{kind}_gap": Message("{text}, one symbol over {gap}", text=text, gap=GAP) for kind, text in NAMES.items()}},
    run, judge, plot, steps=250, enough=150, seeds=3,
)
