"""Should the question stand before the text or after it? Counting one letter, in both orders."""


import torch
from torch import Tensor

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, draw, fit, guesses
from qkv.messages import Message

LETTERS, LENGTH, ROWS, TEST = 6, 16, 64, 500
ASK, MOST = 2 * LETTERS, 8  # after the letters come the questions, the mark that asks, and the answers 0 to 8
WORDS = ASK + 2 + MOST
ORDERS = ("first", "last")


def draw_batch(order: str, seed: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """A text of letters and a question before or after it, then the mark; asked how often the letter occurs."""
    both = draw(seed, rows, LENGTH + 1, below=LETTERS)
    text, letter = both[:, :-1], both[:, -1:]
    count = (text == letter).sum(1, keepdim=True).clamp_max(MOST)
    question, mark = letter + LETTERS, torch.full_like(letter, ASK)
    ids = torch.cat((question, text, mark) if order == "first" else (text, question, mark), 1)
    return ids, torch.cat((torch.full_like(ids[:, 1:], -100), ASK + 1 + count), 1)


@torch.no_grad()
def measure_accuracy(trained: qkv.Model, order: str, seed: int) -> float:
    ids, labels = draw_batch(order, seed, TEST)
    return float((guesses(trained, ids)[:, -1].argmax(-1) == labels[:, -1]).double().mean())


@torch.no_grad()
def measure_shift(trained: qkv.Model, order: str, seed: int) -> float:
    """How far the states of the text move when only the question changes, as a share of their size."""
    ids, _ = draw_batch(order, seed, 50)
    other, at = ids.clone(), 0 if order == "first" else LENGTH
    other[:, at] = LETTERS + (ids[:, at] - LETTERS + 1) % LETTERS
    text = slice(1, LENGTH + 1) if order == "first" else slice(0, LENGTH)
    before, after = (trained(x).hidden[:, text] for x in (ids, other))
    return float((before - after).norm() / before.norm())


def run(seed: int, *, steps: int = 1100, tell: Tell = ignore) -> Numbers:
    found: dict[str, float] = {}
    for order in ORDERS:
        model = Tiny(layers=2, width=48, vocabulary=WORDS, context=LENGTH + 2).model(seed, torch.float32)
        fit(model, lambda step, order=order: draw_batch(order, seed * 10**6 + step), steps=steps, lr=3e-3,
            tell=lambda said, order=order: tell(f"{order}: {said}"))
        found |= {order: measure_accuracy(model, order, -1 - seed),
                  f"{order}_moved": measure_shift(model, order, -1 - seed)}
    return found


def judge(runs: Runs) -> Verdict:
    gains = [a - b for a, b in zip(runs.values("first"), runs.values("last"), strict=True)]
    says = Message("counted right with the question first {first:.2f} ({first2:.2f} to {first3:.2f}), last {last:.2f} "
                   "({last2:.2f} to {last3:.2f}). With another question the text's states move by {last_moved:.2g} "
                   "where it stands last, by {first_moved:.2f} where it stands first", first=runs.mean("first"),
                   first2=runs.min("first"), first3=runs.max("first"), last=runs.mean("last"), last2=runs.min("last"),
                   last3=runs.max("last"), last_moved=runs.max("last_moved"),
                   first_moved=runs.mean("first_moved"))
    learnt = min(runs.min("first"), runs.min("last")) > 0.85
    word = "shown" if min(gains) > 0.05 else "refuted" if learnt and max(gains) < 0.05 else "not shown"
    return runs.verdict(word, "first", says)


def plot(runs: Runs) -> Plot:
    seeds = [f"{n + 1}" for n in range(len(runs.rows))]
    return Plot("bars", Message("counted right, seed by seed"), seeds, {order: runs.values(order) for order in ORDERS},
                Message("seed"), Message("accuracy"))


LAB = Lab(
    "trained",
    Message("With the question before the text the model reads knowing what to look for, and does better."),
    Message("A book on prompts: in a causal model a later question cannot reach the text before it."),
    Message("How often a letter occurs among {length}; a Transformer of two layers trained with the question first, "
            "and one with it last; and how far the text's states move when only the question changes.",
            length=LENGTH),
    Message("Always the commonest count gives about 0.26; each order is the other's baseline. A small model from "
            "scratch is no language model that has read much: the book's effect may come from such data."),
    Message("The half about states is exact: 0 with the question last. Accuracy: both orders are learnt, and differ "
            "less than seeds do, since the last word looks back at everything."),
    {"first": Message("question first"), "last": Message("question last"),
     "first_moved": Message("text's states move with the question: first"), "last_moved": Message(
         "the same, last")},
    run, judge, plot, steps=1100, enough=500, seeds=3,
)
