"""Must an RNN queue where a Transformer need not? A training step at equal width, by the length of the text."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import torch

from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, clock, draw, guesses
from qkv.messages import Message

LENGTHS, WIDTH, ROWS, VOCABULARY = (16, 64, 256), 128, 4, 64


def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    small = Tiny(layers=1, width=WIDTH, vocabulary=VOCABULARY, context=LENGTHS[-1])
    model = small.model(seed, torch.float32)
    torch.manual_seed(seed)
    embed, rnn, head = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.LSTM(WIDTH, WIDTH, batch_first=True), torch.nn.Linear(WIDTH, VOCABULARY)
    took: dict[str, list[float]] = {"lstm": [], "transformer": []}
    for length in LENGTHS:
        ids = draw(seed, ROWS, length, below=VOCABULARY)
        ways = {"lstm": lambda ids=ids: head(rnn(embed(ids))[0]), "transformer": lambda ids=ids: guesses(model, ids)}
        for name, logits in ways.items():
            def train_step(logits=logits, ids=ids) -> None:
                torch.nn.functional.cross_entropy(logits().flatten(0, 1), ids.flatten()).backward()

            took[name].append(clock(train_step, 5))
        tell(f"{length} tokens")
    factors = [a / b for a, b in zip(took["lstm"], took["transformer"], strict=True)]
    return {"short": factors[0], "long": factors[-1], "best": max(factors), "waits_rnn": float(LENGTHS[-1]), "waits": 1.0, **took}


def judge(runs: Runs) -> Verdict:
    says = Message("at {lengths} tokens an LSTM waits {waits_rnn:.0f} times in a row, the Transformer once; here it "
                   "takes {long:.2f} of the Transformer's time ({short:.2f} at {lengths2}), not thousands of times",
                   lengths=LENGTHS[-1], waits_rnn=runs.mean("waits_rnn"), long=runs.mean("long"),
                   short=runs.mean("short"), lengths2=LENGTHS[0])
    return runs.verdict("refuted" if runs.max("best") < 100 else "shown", "long", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", Message("milliseconds of a training step"), [float(n) for n in LENGTHS],
                {"LSTM": runs.curve("lstm"), "Transformer": runs.curve("transformer")}, Message("tokens"), Message(
                    "ms"), "log")


LAB = Lab(
    "speed",
    Message("An RNN must queue word by word; the Transformer is parallel and trains thousands of times "
            "faster."),
    Message("Texts that explain parallelism by a queue."),
    Message("One layer of an LSTM (PyTorch's fused one) and one of a Transformer of the same width: a training step, "
            "forward and backward, at 16 to 256 tokens."),
    Message("As fast is 1. A small processor has little parallelism to give; on a GPU the gap is wider, but the paper "
            "reports no thousands either."),
    Message("256 waits against 1 is real; measured it is a single digit."),
    {"short": Message("{lengths} tokens: LSTM over Transformer", lengths=LENGTHS[0]),
     "long": Message("{lengths} tokens: LSTM over Transformer", lengths=LENGTHS[-1]),
     "waits_rnn": Message("waits in a row, LSTM"), "waits": Message("Transformer")},
    run, judge, plot,
)
