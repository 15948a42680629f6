"""What labs let race: a Transformer of each shape and an LSTM, with and without attention, on one small translation.

All arms train in the same loop on the same pairs. Letters: B pairs, S source, T target, V vocabulary.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

import qkv
from qkv import spec as parts
from qkv.baselines.lstm import lstm_spec
from qkv.data.collate import Batch, collate_pairs, collate_prefixes
from qkv.labs.lab import Tell, ignore
from qkv.tasks.types import SpecialTokens
from qkv.training.loop import train
from qkv.training.plan import Plan
from qkv.training.settings import Settings

PAD, START, END, FIRST = 0, 1, 2, 3
Ids = list[int]
Shape = Literal["lstm", "attention", "transformer", "causal", "prefix"]
TIMES = {"昨天": "yesterday", "今天": "today", "明天": "tomorrow"}
PEOPLE = {"我": "I", "你": "you", "她": "she", "他们": "they", "老师": "the teacher", "学生": "the student",
          "医生": "the doctor", "孩子": "the child"}
VERBS = {"买": ("buy", "bought"), "看": ("see", "saw"), "要": ("want", "wanted"), "找": ("find", "found"),
         "卖": ("sell", "sold"), "画": ("draw", "drew"), "拿": ("take", "took"), "送": ("send", "sent")}
KINDS = {"红": "red", "新": "new", "旧": "old", "大": "big", "小": "small", "好": "good"}
THINGS = {"苹果": "apples", "书": "books", "车": "cars", "花": "flowers", "信": "letters", "票": "tickets",
          "桌子": "tables", "帽子": "hats", "鱼": "fish", "茶": "tea", "门": "doors", "灯": "lamps"}


def dictionary() -> list[str]:
    """Every word of the small language, by its id."""
    said = [w for v in VERBS.values() for w in v] + [w for p in PEOPLE.values() for w in p.split()]
    zh = [*TIMES, *PEOPLE, *VERBS, *KINDS, *THINGS, "了", "会", "，"]
    return ["<pad>", "<s>", "</s>", *dict.fromkeys([*zh, *said, "will", ",", *TIMES.values(), *KINDS.values(), *THINGS.values()])]  # noqa: E501


@dataclass(frozen=True)
class Sentence:
    """A sentence in two languages, and which Chinese word each English one comes from."""

    zh: list[str]
    en: list[str]
    origin: list[int]


def sentence(luck: random.Random, clauses: int) -> Sentence:
    """Clauses such as 明天老师会买红苹果: the time moves to the end, and the verb's form depends on it."""
    source, target, origin = list[str](), list[str](), list[int]()
    for n in range(clauses):
        time, who, verb, kind, thing = (luck.choice(list(t)) for t in (TIMES, PEOPLE, VERBS, KINDS, THINGS))
        later, at = time == "明天", len(source)
        act = ["会", verb] if later else [verb, "了"]
        source += [time, who, *act, kind, thing]
        subject = [(w, at + 1) for w in PEOPLE[who].split()]
        said = [("will", at + 2), (VERBS[verb][0], at + 3)] if later else [(VERBS[verb][1], at + 2)]
        whole = [*subject, *said, (KINDS[kind], at + 4), (THINGS[thing], at + 5), (TIMES[time], at)]
        if n < clauses - 1:
            whole.append((",", len(source)))
            source.append("，")
        target, origin = target + [w for w, _ in whole], origin + [o for _, o in whole]
    return Sentence(source, target, origin)


def pairs(seed: int, rows: int, clauses: Sequence[int]) -> list[tuple[Ids, Ids]]:
    """Ids of sentences of so many clauses, each side ended."""
    number = {word: i for i, word in enumerate(dictionary())}
    luck = random.Random(seed)
    drawn = [sentence(luck, luck.choice(clauses)) for _ in range(rows)]
    return [([*(number[w] for w in s.zh), END], [*(number[w] for w in s.en), END]) for s in drawn]


def arm(shape: Shape, *, vocabulary: int, width: int = 64, layers: int = 2, seed: int = 0) -> qkv.Model:
    """A model of a shape, with first weights; an LSTM has one layer, and its decoder begins from the source's ends."""
    special = SpecialTokens(eos=(END,), pad=PAD, start=START, forbid=(PAD, START))
    if shape in ("lstm", "attention"):
        kind = "additive" if shape == "attention" else "none"
        return qkv.build(lstm_spec(vocabulary, width=width, attention=kind, context=256), seed=seed, special=special)
    norm = parts.Norm()

    def make_stack(mask: Any, cross: bool, count: int) -> parts.Stack:
        heads: dict[str, Any] = {"heads": 4, "groups": 4, "head_dim": width // 4}
        across = parts.Attention(**heads, mask=parts.Mask("memory")) if cross else None
        block = parts.Block(parts.Attention(**heads, mask=parts.Mask(mask)), parts.Ffn(4 * width, "gelu"),
                            cross=across, norm_in=norm)
        return parts.Stack(width, (block,) * count, positions=parts.Table("sinusoid", 256), embed_scale=width**0.5,
                           final_norm=norm)

    mask = "prefix" if shape == "prefix" else "causal"
    sides: dict[str, Any] = {"decoder": make_stack(mask, shape == "transformer", layers)}
    if shape == "transformer":
        sides["encoder"] = make_stack("full", False, layers)
    return qkv.build(parts.Spec(vocabulary, init=parts.Init("xavier"), **sides), seed=seed, special=special)


def make_batch(shape: Shape, rows: Sequence[tuple[Ids, Ids]]) -> Batch:
    """Pairs as a shape learns them: a source beside the target, or before it in one row."""
    if shape in ("lstm", "attention", "transformer"):
        return collate_pairs(rows, pad=PAD, start=START)
    return collate_prefixes(rows, pad=PAD, start=[START])


def learn(
    model: qkv.Model, make: Callable[[int], Batch], *, steps: int, lr: float = 3e-3, sampled: float = 0.0,
    tell: Tell = ignore,
) -> float:
    """Train in the library's own loop on the batch of each step, in fp32; the seconds that its steps took."""
    plan = Plan(lambda epoch: range(epoch * steps, (epoch + 1) * steps), make)
    how = Settings(steps=steps, lr=lr, schedule="wsd", warmup=50, decay=0.6, clip=1.0, precision="fp32", log_every=50,
                   scheduled_sampling=sampled, scheduled_sampling_ramp=steps // 2)
    report = lambda e: tell(f"step {e['step']} of {steps}, loss {e['loss']:.3f}") if e["kind"] == "step" else None  # noqa: E731
    return train(model.core, plan, how, report=report).seconds


@torch.no_grad()
def generate_rows(model: qkv.Model, shape: Shape, rows: Sequence[tuple[Ids, Ids]]) -> list[Ids]:
    """What a model says to each source, word by word the likeliest, up to its end."""
    if shape in ("lstm", "attention", "transformer"):
        return [r.tokens for r in model.translate([s for s, _ in rows], beam=1, max_new_tokens=96)]
    if shape == "prefix":
        return [r.tokens for r in model.generate([s for s, _ in rows], max_new_tokens=96)]
    return [r.tokens for r in model.generate([[*s, START] for s, _ in rows], max_new_tokens=96)]


def words_right(said: Sequence[Ids], rows: Sequence[tuple[Ids, Ids]]) -> float:
    """The share of target words that stand where they should."""
    right = sum(a == b for hyp, (_, ref) in zip(said, rows, strict=True) for a, b in zip(hyp, ref, strict=False))
    return right / sum(len(ref) for _, ref in rows)


def whole_right(said: Sequence[Ids], rows: Sequence[tuple[Ids, Ids]]) -> float:
    """The share of sentences without a mistake."""
    return sum(hyp == ref for hyp, (_, ref) in zip(said, rows, strict=True)) / len(rows)


def true_guesses(model: qkv.Model, rows: Sequence[tuple[Ids, Ids]]) -> tuple[Tensor, Tensor]:
    """The likeliest next words of an encoder-decoder behind the true ones, and the labels [B, T] (-100: none)."""
    made = make_batch("transformer", rows)
    logits = model(source=made.source, target=made.target, padding=made.source_real).logits
    assert logits is not None
    return logits.argmax(-1), made.labels
