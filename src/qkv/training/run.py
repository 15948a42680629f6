"""What a run is, as frozen data: model, vocabulary, training, how it is judged, and a function that reads its data.

own_data.py makes one of a recipe's TOML file, of yours, or of your data alone. Next: assemble.py.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qkv.data.bad_rows import dry_run
from qkv.data.shards import Mixture
from qkv.errors import QkvError, meant, nearest
from qkv.messages import Message
from qkv.options import AT_LEAST_ONE, NOT_NEGATIVE, SHARE, parse_assignments, replace_from_dict
from qkv.tokenizers.bpe_dropout import Ranks, read_merges
from qkv.tokenizers.vocabulary import Kind
from qkv.training.data_files import Data
from qkv.training.large_text import LargeText
from qkv.training.planner import Choice
from qkv.training.settings import REMOVED, RENAMED, Part, Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits, find_data_file

LARGEST = 1_000_000  # tokens of a vocabulary; the trainer reserves memory for all of them at once
LONGEST_GRAM = 32  # of an n-gram model: each order is a table of its own


@dataclass(frozen=True)
class Vocabulary(Part):
    """How text is cut: the kind of vocabulary and its largest size, or as another model cuts it.

    In training each merge is skipped with probability `bpe_dropout`, drawn again in each epoch (bpe_dropout.py).
    """

    kind: Kind = "bpe"
    size: int = 8000
    bpe_dropout: float = 0.0  # the paper's: 0.1, for Chinese and Japanese 0.6
    of: str = ""  # the MODEL whose vocabulary this run has, such as another run's directory
    merges: str = ""  # of kind split: the file whose merges cut the text, here or under QKV_DATA
    bigrams: bool = False  # of kind char or word, for labels: those that come twice are tokens too (bigrams.py)

    where = "tokenizer"
    ranges = (
        (SHARE, lambda n: 0 <= n <= 1, ("bpe_dropout",)),
        (Message("1 to {largest:,}", largest=LARGEST), lambda n: 1 <= n <= LARGEST, ("size",)),
    )

    def ranks(self) -> Ranks | None:
        """The merges of the file; None where none is named, as a vocabulary of kind bpe has its own."""
        path = Path(self.merges)
        return read_merges(path if path.is_file() else find_data_file(*path.parts)) if self.merges else None


@dataclass(frozen=True)
class Check(Part):
    """How a run is judged: sentences translated at each evaluation (greedily), and the beam of the test at the end."""

    sentences: int = 200
    beam: int = 4
    length_penalty: float = 0.6
    tokenize: Literal["auto", "13a", "none", "zh", "char", "intl"] = "auto"  # sacrebleu's; auto: by the references
    lowercase: bool = False
    joint: str = ""  # what joins the parts of a word in the references, such as "@@ "
    samples: int = 3  # sentences shown at each evaluation
    prompts: tuple[str, ...] = ()  # texts that a language model continues
    longest: int = 60  # tokens of such a continuation
    ngrams: int = 0  # an n-gram model of this order is counted and judged beside the run, to say what attention adds

    where = "check"
    ranges = (
        (AT_LEAST_ONE, lambda n: n >= 1, ("beam", "longest")),
        (NOT_NEGATIVE, lambda n: n >= 0, ("sentences", "samples")),
        (Message("a number"), math.isfinite, ("length_penalty",)),
        (Message("an order such as 3, at most {most}, or 0 for none", most=LONGEST_GRAM),
         lambda n: 0 <= n <= LONGEST_GRAM, ("ngrams",)),
    )


@dataclass(frozen=True)
class ProbeSettings(Part):
    """What a run records of itself: how often (0: never), over which texts and words, and what that may cost.

    Without texts the first ones of validation are taken. The first weights and the last step are always recorded; what
    lies between keeps within `share` of the training time that the run is expected to take.
    """

    times: int = 0
    steps: tuple[int, ...] = ()  # recorded whatever they take
    texts: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    share: float = 0.08
    megabytes: int = 256  # of weights kept on disk, at steps spread evenly by ratio; 0: none
    longest: int = 32  # tokens of a translation or sample

    where = "watch"
    ranges = (
        (NOT_NEGATIVE, lambda n: n >= 0, ("times", "megabytes")),
        (AT_LEAST_ONE, lambda n: n >= 1, ("longest",)),
        (Message("steps from 1 on"), lambda n: n >= 1, ("steps",)),
        (Message("a share of the training time from 0 to 1"), lambda n: 0 < n <= 1, ("share",)),
    )


@dataclass(frozen=True)
class Run:
    """A whole training run: what `qkv.train` takes.

    `objective` is a name of compatibility.py's OBJECTIVES (empty: the family's usual one); with `base`, a directory
    or any other MODEL, its weights and vocabulary are where the run begins, and `model` is not asked.
    """

    name: str
    splits: Callable[[], Splits]
    model: Shape = field(default_factory=Shape)
    tokenizer: Vocabulary = field(default_factory=Vocabulary)
    training: Settings = field(default_factory=Settings)
    check: Check = field(default_factory=Check)
    watch: ProbeSettings = field(default_factory=ProbeSettings)
    objective: str = ""
    base: str = ""
    data: Data | None = None  # of a run that own_data.py made: what `splits` reads
    choices: tuple[Choice, ...] = ()  # what the planner chose of all this, as nobody said it
    about: tuple[Message, ...] = ()  # what files without a TOML file were found to hold, and notes on it


PLAIN = ("objective", "base")
PARTS: dict[str, type[Any]] = {
    "model": Shape, "tokenizer": Vocabulary, "training": Settings, "check": Check, "watch": ProbeSettings,
}
OWN_PARTS: dict[str, type[Any]] = {"data": Data, **PARTS}  # of a run over your own files


def parse_overrides(words: Iterable[str], parts: Mapping[str, Any] = PARTS) -> dict[str, Any]:
    """`a.b=c` words as a nested mapping; for an unknown key the error names the nearest one of any part.

    `lora.rank=8` is short for `training.lora.rank=8`.
    """
    values = parse_assignments([f"training.{word}" if word.startswith("lora.") else word for word in words])
    for key, value in values.items():
        if key in parts and not isinstance(value, dict):
            raise QkvError("{key}={value}: names a part, expected a key in it such as {key}.…=…", key=key, value=value)
        if key not in parts and key not in PLAIN:
            own = Message("; a recipe reads its own data, a TOML file names yours")
            raise QkvError("{key}: unknown key{hint} (parts: {parts})", key=key, parts=", ".join(parts),
                           hint=own if key == "data" else suggest_key(key, parts))
    return values


def suggest_key(key: str, parts: Mapping[str, Any] = OWN_PARTS) -> Message:
    """A hint of where a key belongs: its own place if any part has it, else the nearest name."""
    known = [*PLAIN, *(f"{part}.{f.name}" for part in parts for f in dataclasses.fields(parts[part]))]
    exact = [name for name in known if name.rpartition(".")[2] == key]
    exact += [new for old, new in RENAMED.items() if old.rpartition(".")[2] == key]
    return meant(exact[0]) if exact else nearest(key, [*known, *parts])


def refuse_key(name: str) -> None:
    """QkvError for a key that was renamed or removed, or that another part has."""
    part, _, key = name.rpartition(".")
    if new := RENAMED.get(name):
        raise QkvError("{name}: this key is called {new} now", name=name, new=new)
    if instead := REMOVED.get(name):
        raise QkvError("{name}: this key was removed: {instead}", name=name, instead=instead)
    others = {*PLAIN, *(f.name for kind in OWN_PARTS.values() for f in dataclasses.fields(kind))}
    if part in OWN_PARTS and key in others:
        known = ", ".join(f.name for f in dataclasses.fields(OWN_PARTS[part]))
        raise QkvError("{name}: unknown key{hint} (known: {known})", name=name, hint=suggest_key(key), known=known)


def override_run(run: Run, words: Iterable[str]) -> Run:
    """The run with `a.b=c` put in; QkvError for a key that there is not."""
    return replace_from_dict(run, parse_overrides(words), on_unknown=refuse_key)


def shrink_run(run: Run) -> Run:
    """The same run in seconds: a narrow model, a little of the data, a few steps; every part of it still works."""

    def read_few() -> Splits:
        with dry_run():
            whole = run.splits()
        if isinstance(whole.train, Mixture):
            return dataclasses.replace(whole, train=whole.train.take_first(20_000), valid=whole.valid.take_first(2_000))  # type: ignore[union-attr]
        size = 20_000 if isinstance(whole.train, str | LargeText) else 200
        cut = {"train": whole.train[:size], "valid": whole.valid[: size // 10], "test": whole.test[:8]}  # type: ignore[index]
        often = None if whole.often is None else np.ones(len(cut["train"]))
        return dataclasses.replace(whole, often=often, **cut)  # type: ignore[arg-type]

    narrow = {"width": 32, "layers": 2, "heads": 2, "groups": 0, "ffn": 0, "context": min(run.model.context, 64)}
    model = dataclasses.replace(run.model, **narrow)
    every = {"evaluate_every": 3, "save_every": 0, "log_every": 1, "patience": 0}
    training = dataclasses.replace(run.training, steps=6, epochs=0, tokens=512, warmup=2, precision="fp32", **every)
    prompts = tuple(prompt.strip()[:20] for prompt in run.check.prompts)  # what fits into so short a context
    return dataclasses.replace(
        run, splits=read_few, model=model, training=training,
        check=dataclasses.replace(run.check, sentences=4, longest=8, prompts=prompts),
        # so few rows need not contain the words to watch
        watch=dataclasses.replace(run.watch, times=min(run.watch.times, 3), longest=8, texts=(), words=()),
    )
