"""What a run is where you did not say it: sizes, rates and length from what the data are. Next: own_data.py.

Each choice has a reason; the rules come from experiments (docs/LOG.md). What a person sets is taken, the rest fits it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from qkv.messages import Message
from qkv.training.facts import RECURRING, Facts
from qkv.training.machine import time_training_step
from qkv.training.shape import Shape

LONGEST = 1200.0  # seconds of training where none are given
SURE = 3e9  # floating-point operations a second that any machine does: shorter runs are not timed
USUAL: dict[str, dict[str, Any]] = {
    "pairs": {"optimizer": "muon", "lr": 0.005, "betas": (0.9, 0.98), "eps": 1e-8, "label_smoothing": 0.1,
              "metric": "bleu", "average": 3},
    "labels": {"optimizer": "adamw", "eps": 1e-8, "weight_decay": 0.05, "metric": "label_accuracy"},  # lr by the width
    "ordered": {"optimizer": "muon", "lr": 0.005, "eps": 1e-8, "weight_decay": 0.05, "metric": "label_accuracy"},
    "plain text": {"optimizer": "muon", "lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1},
    "conversations": {"optimizer": "adamw", "lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8},
    "hidden": {"optimizer": "adamw", "lr": 0.002, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.01},
}
SIZES = {  # from so many characters on, width and layers; the first are for short runs
    "labels": ((0, 64, 1), (5e6, 128, 2)), "ordered": ((0, 128, 2),),
    "pairs": ((0, 64, 2), (0, 96, 2), (0, 128, 2), (3e5, 192, 3), (2e7, 256, 4)),
}
WIDE = (0, 256, 1)  # for labels, from a thousand texts of more than a few words on
LARGER = ((0, 64, 3), (0, 96, 3), (0, 128, 4), (3e6, 192, 5), (3e7, 256, 6))  # of other data
TAUGHT = 2.5  # tokens, of sources too, that a larger model reads for each of its weights to be worth its time
DROPOUT = ((7.0, 0.0), (30.0, 0.1), (math.inf, 0.2))  # of up to so many times through the data
BIGRAMS = 8e4  # characters of Chinese text with labels, from which on bigrams come often enough
HIDDEN = ("masked", "prefixes", "spans", "denoise", "blanks")  # objectives that put back what a text lacks


@dataclass(frozen=True)
class Choice:
    """A setting that nobody gave, and why it is as it is."""

    key: str
    value: Any
    why: Message


@dataclass(frozen=True)
class Planner:
    """Chooses settings one by one; `given` are those that a person set, by key such as "model.width"."""

    facts: Facts
    given: Mapping[str, Any]
    choices: list[Choice] = field(default_factory=list)

    def choose(self, key: str, value: Any, why: Message) -> Any:
        """The given value of a setting, or this one, with its reason."""
        if key not in self.given:
            self.choices.append(Choice(key, value, why))
        return self.given.get(key, value)

    def choose_vocabulary(self) -> tuple[int, float]:
        """How text is cut: about how many tokens there are, and how many characters each has."""
        f, crowded = self.facts, self.facts.unspaced > 0.2
        size = round(280 + 0.6 * f.characters**0.6)
        kind, why = "bpe", Message("pieces that {characters:,} characters show often enough", characters=f.characters)
        if f.kind in ("labels", "pairs") and f.recurring < RECURRING:
            kind, size = "char", f.alphabet + 100
            why = Message("most words occur only once, so characters are learnt instead")
        elif f.kind == "labels" and not crowded:
            kind, size, why = "word", 20_000, Message("whole words tell labels apart better than pieces do")
        elif f.kind in ("labels", "plain text") and f.characters < 3e6:
            kind, size = "char", f.alphabet + 100
            why = Message("{characters:,} characters are too few to learn words from", characters=f.characters)
        elif f.kind == "pairs" and f.unspaced > 0.05 and f.characters < 1e6:
            kind = "bpe-cjk"
            why = Message("each Chinese character stands for itself: the text is too short to join them")
        if self.given.get("tokenizer.of"):  # its vocabulary is known when it is loaded
            return min(16_000, size), 1.3 if crowded else 4.0
        kind, bigrams = self.choose("tokenizer.kind", kind, why), self.given.get("tokenizer.bigrams", False)
        if f.objective == "labels" and self.given["model.family"] == "bert" and kind in ("word", "char"):
            self.choose("training.rare_words", 1.0, Message("words unseen in training are read as rare words"))
            if kind == "char" and (f.characters >= BIGRAMS or not crowded):
                bigrams = self.choose("tokenizer.bigrams", True, Message("bigrams say more than characters alone"))
        size += 40_000 if bigrams else 0
        bounded = min(16_000, max(300, size)) if kind.startswith("bpe") else size
        size = self.choose("tokenizer.size", bounded, why)
        if kind in ("char", "lexicon"):
            return size, 0.65 if bigrams else 1.0
        if crowded or not kind.startswith("bpe"):
            return size, 1.3 if crowded else 5.0
        return size, 1.6 + 0.5 * math.log2(max(1, size / 300))

    def choose_model(self, size: int, each: float, time_step: Callable[[Shape, float], float]) -> Shape:
        """The size of a new model of `size` tokens of `each` so many characters: what these fill, if there is time."""
        f, given = self.facts, self.given
        learnt = "text" if f.objective == "text" else "ordered" if f.ordered else f.kind
        sizes = [one for one in SIZES.get(learnt, LARGER) if one[0] <= f.characters]
        wide = f.rows >= 1000 and f.unspaced < 0.2 and 40 * f.rows < f.characters < 5e6 and not f.ordered
        sizes += [WIDE] if wide and f.objective == "labels" and given["model.family"] == "bert" else []
        why = Message("words or letters recur in many texts, so their order counts") if f.ordered else Message(
            "the size that {characters:,} characters fill", characters=f.characters)
        shape = self.fit(sizes[-1])
        while len(sizes) > 1 and not given.keys() & {"model.width", "model.layers"}:
            steps = TAUGHT * count_weights(shape, size, f) / (self.tokens * (2 if f.kind == "pairs" else 1))
            steps = max(self.least, 10 * f.characters / each / self.tokens) if f.kind == "labels" else steps
            if steps * time_step(shape, steps / self.seconds) <= self.seconds:
                break
            sizes.pop()
            shape = self.fit(sizes[-1])
            why = Message("a larger model would learn too little in {seconds:.0f} s", seconds=self.seconds)
        self.choose("model.width", shape.width, why)
        self.choose("model.layers", shape.layers, why)
        self.choose("model.heads", shape.heads, Message("a divisor of the width"))
        if learnt == "text" and each == 1.0:
            self.choose("model.context", 128, Message("many short windows in a step teach more than a few long ones"))
        if f.rates == "labels":
            self.choose("training.lr", 0.002 if shape.width < WIDE[1] else 0.0007, Message("usual for this width"))
        if f.kind == "labels" and shape.family == "bert":
            shape = replace(shape, ffn=self.choose("model.ffn", min(256, 2 * shape.width), why))
            self.choose("model.pooling", "mean", Message("every word of a short text counts"))
            if f.two_texts:
                self.choose("model.segments", 4, Message("words that both texts have are marked"))
        if (f.kind, shape.family) in (("labels", "bert"), ("pairs", "marian")) and f.longest / each > 250:
            most = 512 if f.kind == "labels" else self.tokens  # a step holds no longer pair
            self.choose("model.context", min(most, 8 * math.ceil(f.longest / each / 8) + 8),
                        Message("the longest texts have {longest} characters", longest=f.longest))
        return shape

    def fit(self, size: tuple[float, int, int]) -> Shape:
        """The shape of a size, with what a person set of it."""
        given, heads = self.given, self.given.get("model.heads", 1)
        width = given.get("model.width", size[1] + -size[1] % (2 * heads))
        heads = given.get("model.heads", next(n for n in (4, 2, 1) if width % n == 0))
        return Shape(family=given["model.family"], width=width, layers=given.get("model.layers", size[2]), heads=heads,
                     ffn=given.get("model.ffn", 0))

    def choose_rate(self, width: int, *, new: bool) -> str:
        """Optimiser (given back) and rate: of a new model, or gentler of one that was trained before."""
        f, why = self.facts, Message("usual for a new model")
        usual = USUAL.get("hidden" if f.objective in HIDDEN else f.rates, USUAL["plain text"])
        if not new:
            adapters = bool(self.given.get("training.lora.rank"))
            why = Message("usual for adapters") if adapters else Message("gentle, as the model was trained before")
            low, high = (2e-4, 1e-3) if f.kind == "labels" else (1e-4, 3e-4)  # a new output learns beside the rest
            lr = high if width <= 256 else low
            usual = {**USUAL["conversations"], "lr": (2e-3 if width <= 768 else 1e-3) if adapters else lr,
                     **{key: value for key, value in usual.items() if key in ("metric", "label_smoothing")}}
        usual = {**usual, "metric": f.metric} if usual.get("metric") == "bleu" else usual
        for key, value in {**usual, "clip": 1.0}.items():
            self.choose(f"training.{key}", value, why if value != "exact_match" else Message(
                "BLEU sees neither texts of fewer than four words nor spaces between Chinese characters"))
        return self.given.get("training.optimizer", usual["optimizer"])

    @property
    def seconds(self) -> float:
        """How long the training may last: as long as it takes where steps or epochs end it."""
        ends = self.given.get("training.steps", 0) or self.given.get("training.epochs", 0)
        return self.given.get("training.seconds", 0) or (math.inf if ends else LONGEST)

    @property
    def tokens(self) -> int:
        """The tokens of a step."""
        usual = 1024 if self.facts.rows < 1e5 or self.facts.kind != "pairs" else 2048
        return self.given.get("training.tokens", usual)

    @property
    def least(self) -> int:
        """The fewest steps that teach a new model."""
        f = self.facts
        labels = 1500 if f.ordered or f.unspaced > 0.2 or f.recurring < RECURRING else 600  # one token says little
        return {"pairs": 200, "labels": labels}.get(f.kind, 300)

    def choose_length(self, each: float, pace: Callable[[float], float] | None, width: int = 0) -> None:
        """Batch and steps: as often through the data as helps, within the time there is."""
        f, given, new, rows = self.facts, self.given, pace is not None, max(1, self.facts.rows)
        least = self.least if new else 120 if f.kind == "labels" else 60
        passes = {"pairs": 80 * (rows / 200) ** -0.2, "labels": 10.0}.get(
            f.kind, 20 * (max(1, f.characters) / 1e5) ** -0.5)
        passes = min(100.0, max(0.3, passes)) if new else 5.0
        by_heart = not new and f.kind == "conversations" and given.get("training.lora.rank", 0) > 0 and rows < 2000
        if by_heart:  # what few of them tell cannot be worked out from the others
            passes = 24 * (rows / 250) ** -0.7
            self.choose("training.keep", "last", Message("so few conversations are learnt by heart"))
        tokens = self.choose("training.tokens", self.tokens, Message("small steps learn more in the same time"))
        epoch = max(1.0, f.characters / each / 0.9)  # a tenth is padding
        if f.kind == "pairs":  # the longer side of each with its end, rounded up to fours
            epoch = max(f.letters, f.characters - f.letters) / each + 2.5 * rows
        steps, seconds = max(least, math.ceil(passes * epoch / tokens)), self.seconds
        why = Message("{passes:.3g} times through the data", passes=steps * tokens / epoch)
        refit = given.get("training.refit", 0.0)
        if ((new and f.kind == "labels") or by_heart) and f.share >= 0.05:  # fewer are not missed
            refit = self.choose("training.refit", 0.4 if by_heart else 0.3,
                                Message("the held-out rows are learnt too, in the end"))
        step = pace(steps / seconds) if pace else 0.0
        if (1 + refit) * steps * step > seconds:
            steps = max(1, int(0.9 * seconds / step / (1 + refit)))  # a tenth of the time is for judging
            why = Message("as many as {seconds:.0f} s have room for, at {each:.3f} s each", seconds=seconds, each=step)
        ends = (given.get("training.steps", 0), math.ceil(given.get("training.epochs", 0) * epoch / tokens))
        steps = min((n for n in ends if n), default=0) or self.choose("training.steps", steps, why)
        self.choose("training.warmup", max(1, min(1000, round(0.06 * steps))), Message("6 % of the steps"))
        self.choose("training.schedule", "linear", Message("the rate is down when the steps end"))
        self.choose("training.evaluate_every", max(1, min(2000, steps // 10)), Message("ten times in the run"))
        # gentle runs are short, and their last steps, at a low rate, are the best
        self.choose("training.patience", 4 if new else 10, Message("evaluations without a better one"))
        if new and given["model.family"] not in ("llama", "prefix"):  # which have none
            self.choose_dropout(steps * tokens / epoch, width)

    def choose_dropout(self, passes: float, width: int) -> None:
        """The dropout of a new model of a width that reads its data so many times."""
        f, why = self.facts, Message("against learning {rows:,} rows by heart", rows=self.facts.rows)
        if f.kind == "labels":
            dropout = 0.3 if f.ordered or f.characters >= 5e6 else 0.7 if width >= WIDE[1] else 0.5
            dropout = 0.1 if f.rates == "ordered" else dropout  # more delays what follows rules
            if f.objective == "labels" and self.given["model.family"] == "bert" and not f.ordered:
                self.choose("training.word_dropout", 0.2, why)  # order is lost with a word
        else:
            dropout = next(rate for most, rate in DROPOUT if passes < most)
            dropout = min(0.1, dropout) if f.recurring < RECURRING else dropout
        self.choose("model.dropout", dropout, why if dropout else Message(
            "so much text is read too few times to be learnt by heart"))


def count_weights(shape: Shape, size: int, facts: Facts) -> int:
    """About how many weights work on each token of a model of such a shape over so many tokens."""
    blocks, table = 28 if facts.kind == "pairs" else 12, 0 if facts.kind == "labels" else size
    return blocks * shape.layers * shape.width**2 + table * shape.width


def plan(facts: Facts, given: Mapping[str, Any]) -> tuple[Choice, ...]:
    """Every setting that `given` lacks; it has the model's family, and the `base` of a trained one with its width."""
    planner = Planner(facts, given)
    if given.get("base"):
        planner.choose_rate(given.get("model.width", 256), new=False)
        planner.choose_length(3.0 - 1.5 * facts.unspaced, None)
        return tuple(planner.choices)
    size, each = (1000, 4.0) if facts.kind == "token shards" else planner.choose_vocabulary()
    optimizer = planner.choose_rate(0, new=True)

    def time_step(shape: Shape, rate: float, least: float = 0.0) -> float:
        if 6 * count_weights(shape, size, facts) * planner.tokens * rate < SURE:
            return 0.0  # any machine makes so many steps a second
        spec = replace(shape.spec(size), head=None) if facts.kind == "labels" else shape.spec(size)
        lengths = facts.measure_row(each, min(spec.context or planner.tokens, planner.tokens))
        return time_training_step(spec, optimizer, planner.tokens // max(1, *lengths), lengths, least)

    shape = planner.choose_model(size, each, time_step)
    planner.choose_length(each, partial(time_step, shape, least=min(3.0, planner.seconds / 100)), shape.width)
    return tuple(planner.choices)
