"""Why six layers? Translators of 1, 2, 4 and 6 layers learn the bundled corpus for as many steps, read out by layer."""

from itertools import pairwise

import torch

import qkv
from qkv.data.corpus import load_corpus
from qkv.labs.arms import END, FIRST, Ids, arm, learn, make_batch
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.lens.logit_lens import layer_logits
from qkv.messages import Message

DEPTHS, ROWS, TEST = (1, 2, 4, 6), 32, 400
MOST = DEPTHS[-1]
Rows = list[tuple[Ids, Ids]]


def read_pairs() -> tuple[Rows, Rows, int]:
    """The ids of training and held-out pairs, in the bundled translator's tokens, and how many tokens there are."""
    tokenizer, corpus = qkv.load("demo").tokenizer, load_corpus()
    assert tokenizer is not None

    def encode_text(text: str) -> Ids:
        return [*(FIRST + i for i in tokenizer.encode(text, special=False)), END]

    parts = corpus.train[:8000], corpus.valid[:TEST]
    found = [[(encode_text(p.zh), encode_text(p.en)) for p in rows] for rows in parts]
    return found[0], found[1], FIRST + len(tokenizer)


@torch.no_grad()
def read_layers(model: qkv.Model, rows: Rows) -> tuple[list[float], float]:
    """The share of the next words that each layer of the decoder has right, and the loss of the last (nats a token)."""
    right, loss, count = torch.zeros(len(model.core.decoder.layers) + 1), 0.0, 0
    for pair in rows:
        made = make_batch("transformer", [pair])
        with model.trace(save=["lens"]) as t:
            model(source=made.source, target=made.target, padding=made.source_real)
        x, labels = layer_logits(t)[1].float(), made.labels[0]
        right += (x.argmax(-1) == labels).sum(-1)
        loss += float(torch.nn.functional.cross_entropy(x[-1], labels, reduction="sum"))
        count += len(labels)
    return (right / count).tolist(), loss / count


def run(seed: int, *, steps: int = 300, tell: Tell = ignore) -> Numbers:
    data, test, vocabulary = read_pairs()
    found: dict[str, float | list[float]] = {}
    for layers in DEPTHS:
        model = arm("transformer", vocabulary=vocabulary, layers=layers, seed=seed)
        learn(model, lambda step: make_batch("transformer", [data[(step * ROWS + i) % len(data)] for i in range(ROWS)]),
              steps=steps, tell=lambda said, layers=layers: tell(f"{layers}: {said}"))
        right, found[f"loss_{layers}"] = read_layers(model, test)
        found[f"right_{layers}"], found[f"by_layer_{layers}"] = right[-1], right
    return found


def judge(runs: Runs) -> Verdict:
    losses = [runs.mean(f"loss_{n}") for n in DEPTHS]
    inside = ", ".join(f"{share:.2f}" for share in runs.curve(f"by_layer_{MOST}")[1:])
    says = Message("loss with {depths} layers: {losses} nats a token; next words right: {right}. Inside the deepest, "
                   "right after each layer: {inside}", depths=", ".join(map(str, DEPTHS)),
                   losses=", ".join(f"{x:.2f}" for x in losses),
                   right=", ".join(f"{runs.mean(f'right_{n}'):.2f}" for n in DEPTHS), inside=inside)
    rows = list(zip(*(runs.values(f"loss_{n}") for n in DEPTHS), strict=True))
    deeper = all(a > b for row in rows for a, b in pairwise(row))
    word = "shown" if deeper else "true only when" if all(min(row[1:]) < row[0] for row in rows) else "not shown"
    return runs.verdict(word, f"loss_{MOST}", says)


def plot(runs: Runs) -> Plot:
    shares = {f"by_layer_{n}": runs.curve(f"by_layer_{n}") for n in DEPTHS}
    padded = {name: [*row, *[float("nan")] * (MOST + 1 - len(row))] for name, row in shares.items()}
    names = {f"by_layer_{n}": Message("layers: {n}", n=n) for n in DEPTHS}
    return Plot("lines", Message("next words right, read out after each layer"), list(range(MOST + 1)), padded,
                x_label=Message("layer"), y_label=Message("share"), names=names)


LAB = Lab(
    "trained",
    Message("A Transformer has six layers because each layer more makes it better."),
    Message("Introductions draw six without a reason. Vaswani et al. 2017 tried 2, 4, 6 and 8 (table 3: BLEU 23.7, "
            "25.3, 25.8, 25.5)."),
    Message("Translators of width 64 with 1, 2, 4 and 6 layers a side learn 8,000 pairs of the bundled corpus for as "
            "many steps each; the loss on 400 others, and how many next words each layer of the decoder has right."),
    Message("One layer is the baseline; a model that has learnt nothing has a loss of 7.1 nats (1,213 tokens)."),
    Message("Two and four layers beat one; six gain little or nothing in so few steps on so simple a text. Inside six, "
            "every layer has more right than the one before it (after a first look at one seed)."),
    {f"{what}_{n}": Message("{what}, layers: {n}", what=text, n=n)
     for what, text in (("loss", Message("loss")), ("right", Message("next words right"))) for n in DEPTHS},
    run, judge, plot, steps=300, enough=200, seeds=3,
)
