"""One, Two, … Buckle: does the guess deepen layer by layer, and is it more than memory? A rhyme, and the same words shuffled."""
# ruff: noqa: E501  the two languages stand side by side, and Chinese characters count twice

import random
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

import qkv
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, encode_texts, fit, guesses
from qkv.lens.edit import cut
from qkv.lens.logit_lens import layer_logits
from qkv.messages import Message

TEXT = (
    "One , Two , Buck le my shoe ; Three , Four , knock at the door ; Five , Six , pick up sticks ; "
    "Seven , Eight , lay them straight ; Nine , Ten , a big fat hen ;"
)
RHYME = TEXT.split()  # Buck and le apart, as the book has them
WORDS, WINDOW, LAYERS, COMMA, ONE, TWO = sorted(set(RHYME)), 16, 4, 3, 0, 2


def join_lines(said: Sequence[str], start: int, size: int) -> str:
    """A window of the words, going round."""
    return " ".join(said[(start + i) % len(said)] for i in range(size))


def draw_batch(said: Sequence[str], seed: int, rows: int = 32) -> tuple[Tensor, Tensor]:
    luck = random.Random(seed)
    ids, after = encode_texts([join_lines(said, luck.randrange(len(said)), WINDOW + 1) for _ in range(rows)], WORDS)
    return ids[:, :-1], after[:, :-1]


@torch.no_grad()
def by_layer(model: qkv.Model, said: Sequence[str]) -> Tensor:
    """Each layer's chance for the word that does come next, over the first words of a text: [L+1, T]."""
    ids, after = encode_texts([join_lines(said, 0, WINDOW + 1)], WORDS)
    with model.trace(save=["lens"]) as t:
        model(ids[:, :-1])
    return layer_logits(t)[1].softmax(-1)[:, torch.arange(WINDOW), after[0, :-1]]


@torch.no_grad()
def buck(model: qkv.Model, key: int | None = None, prompt: str = "One , Two ,") -> float:
    """The chance of `Buck` after a prompt, with the last comma's edge to `key` cut."""
    with model.trace(edit=[] if key is None else [cut("layers.*.attn", query=COMMA, key=key)]):
        said = guesses(model, encode_texts([prompt], WORDS)[0])[0, -1].softmax(-1)
    return float(said[WORDS.index("Buck")])


def run(seed: int, *, steps: int = 250, tell: Tell = ignore) -> Numbers:
    found: dict[str, float | list[float]] = {}
    nonsense = random.Random(seed).sample(RHYME, len(RHYME))
    for arm, said in (("rhyme", RHYME), ("shuffled", nonsense)):
        model = Tiny(layers=LAYERS, width=32, vocabulary=len(WORDS), context=WINDOW).model(seed, torch.float32)
        fit(model, lambda step, said=said: draw_batch(said, seed * 10**6 + step), steps=steps, lr=3e-3, tell=tell)
        chances = by_layer(model, said)
        found[arm], found[f"by_layer_{arm}"] = float(chances[-1].mean()), chances.mean(1).tolist()
        if arm == "rhyme":
            found |= {f"layer_{i}": x for i, x in enumerate(chances[:, COMMA].tolist())}
            found |= {"no_one": buck(model, ONE), "no_two": buck(model, TWO), "unheard": buck(model, prompt="Nine , Two ,")}
            found["first"] = float((chances[:, COMMA] > 0.5).int().argmax())
    return found


def judge(runs: Runs) -> Verdict:
    layers = [runs.mean(f"layer_{i}") for i in range(LAYERS + 1)]
    path = " → ".join(f"{x:.2f}" for x in layers)
    says = Message("chance of Buck by layer: {path}; after “Nine, Two,”, which it never heard, {unheard:.2f}, with "
                   "One cut {no_one:.2f}, with Two cut {no_two:.2f}. Shuffled words are learnt as well: "
                   "{shuffled:.2f} against {rhyme:.2f}", path=path, unheard=runs.mean("unheard"),
                   no_one=runs.mean("no_one"), no_two=runs.mean("no_two"), shuffled=runs.mean("shuffled"),
                   rhyme=runs.mean("rhyme"))
    if runs.min(f"layer_{LAYERS}") < 0.8 or runs.max("layer_0") > 0.5:
        return runs.verdict("not shown", "rhyme", says)
    every = all(a < b for a, b in pairwise(layers)) and runs.min("first") >= LAYERS - 1
    memory = runs.min("shuffled") > runs.mean("rhyme") - 0.1
    return runs.verdict("shown" if every and not memory else "true only when", "rhyme", says)


def plot(runs: Runs) -> Plot:
    return Plot("lines", Message("chance of the next word, read off after each layer"), [float(i) for i in range(LAYERS + 1)],
                {"rhyme": runs.curve("by_layer_rhyme"), "shuffled": runs.curve("by_layer_shuffled")}, Message(
                    "layer"), Message(
                    "chance"))


LAB = Lab(
    "trained",
    Message("After “One, Two,” every layer deepens the guess a little, and four of them arrive at Buck, le."),
    Message("A book on prompts, with a picture of four layers."),
    Message("A model of four layers learns a rhyme; each layer's states are read off through the final norm and the "
            "head (logit lens): the chance of the word that does come next. Another model learns the same words, "
            "shuffled."),
    Message("Chance 1/{words} = {words2:.2f}; baseline: shuffled words, where nothing can be understood. Early layers "
            "are not trained for the head, so readings are rough.", words=len(WORDS), words2=1 / len(WORDS)),
    Message("Near 1 at the top and near chance at the embedding; decided about layer 2, not evenly; shuffled words "
            "are learnt as well, so it is memory."),
    {**{f"layer_{i}": Message("chance of Buck: layer {i}", i=i) for i in range(LAYERS + 1)},
     "rhyme": Message("rhyme: chance of the next word"), "shuffled": Message(
         "shuffled words: the same"),
     "unheard": Message("Buck after “Nine, Two,”"), "no_one": Message("edge to One cut"),
     "no_two": Message("edge to Two cut"), "first": Message("first layer above a half")},
    run, judge, plot, steps=250, enough=100, seeds=3,
)
