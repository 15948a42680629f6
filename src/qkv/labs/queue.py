"""Must an RNN queue where a Transformer need not? A training step at equal width, by the length of the text."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import torch

from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, clock, draw, guesses

LENGTHS, WIDTH, ROWS, VOCABULARY = (16, 64, 256), 128, 4, 64


def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
    small = Tiny(layers=1, width=WIDTH, vocabulary=VOCABULARY, context=LENGTHS[-1])
    model = small.model(seed, torch.float32)
    torch.manual_seed(seed)
    embed, rnn, head = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.LSTM(WIDTH, WIDTH, batch_first=True), torch.nn.Linear(WIDTH, VOCABULARY)
    took: dict[str, list[float]] = {"lstm": [], "transformer": []}
    for length in LENGTHS:
        ids = draw(seed, ROWS, length, below=VOCABULARY)
        ways = {"lstm": lambda ids=ids: head(rnn(embed(ids))[0]), "transformer": lambda ids=ids: guesses(model, ids)}
        for name, logits in ways.items():
            def step(logits=logits, ids=ids) -> None:
                torch.nn.functional.cross_entropy(logits().flatten(0, 1), ids.flatten()).backward()

            took[name].append(clock(step, 5))
        tell(f"{length} tokens")
    factors = [a / b for a, b in zip(took["lstm"], took["transformer"], strict=True)]
    return {"short": factors[0], "long": factors[-1], "best": max(factors), "waits_rnn": float(LENGTHS[-1]), "waits": 1.0, **took}


def judge(runs: Runs) -> Verdict:
    says = (f"{LENGTHS[-1]} 个词：LSTM 排队 {runs.mean('waits_rnn'):.0f} 步，Transformer 1 步；在一个核上 LSTM 用时是 Transformer 的 {runs.mean('long'):.2f} 倍（{LENGTHS[0]} 词时 {runs.mean('short'):.2f}），不是成千上万倍",
            f"at {LENGTHS[-1]} tokens an LSTM waits {runs.mean('waits_rnn'):.0f} times in a row, the Transformer once; here it takes {runs.mean('long'):.2f} "
            f"of the Transformer's time ({runs.mean('short'):.2f} at {LENGTHS[0]}), not thousands of times")  # fmt: skip
    return runs.verdict("refuted" if runs.high("best") < 100 else "shown", "long", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", ("一个训练步的毫秒数", "milliseconds of a training step"), [float(n) for n in LENGTHS],
                {"LSTM": runs.curve("lstm"), "Transformer": runs.curve("transformer")}, ("词数", "tokens"), ("毫秒", "ms"), "log")  # fmt: skip


LAB = Lab(
    "speed",
    ("RNN 必须逐词排队，Transformer 并行，训练快成千上万倍。", "An RNN must queue word by word; the Transformer is parallel and trains thousands of times faster."),
    ("用“排队”解释并行的文章。", "Texts that explain parallelism by a queue."),
    ("同宽一层 LSTM（PyTorch 的融合实现）与一层 Transformer，一个训练步（前向加反向），长度 16 到 256。",
     "One layer of an LSTM (PyTorch's fused one) and one of a Transformer of the same width: a training step, forward and backward, at 16 to 256 tokens."),
    ("一样快为 1 倍。小处理器上没有多少并行可用，GPU 上差距更大，但论文报的也不是上千倍。",
     "As fast is 1. A small processor has little parallelism to give; on a GPU the gap is wider, but the paper reports no thousands either."),
    ("排队的步数 256 对 1 是真的；实测只差个位数倍。", "256 waits against 1 is real; measured it is a single digit."),
    {"short": (f"{LENGTHS[0]} 词：LSTM/Transformer", f"{LENGTHS[0]} tokens: LSTM over Transformer"),
     "long": (f"{LENGTHS[-1]} 词：LSTM/Transformer", f"{LENGTHS[-1]} tokens: LSTM over Transformer"),
     "waits_rnn": ("LSTM 依次等待的次数", "waits in a row, LSTM"), "waits": Message("Transformer")},
    run, judge, plot,
)  # fmt: skip
