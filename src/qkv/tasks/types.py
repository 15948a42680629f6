"""What the tasks share: prompts, results, special tokens, and what they need of a model."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from qkv.arguments import check_fields
from qkv.checkpoints.sentence_transformers import Pooling
from qkv.core.model import Transformer
from qkv.errors import QkvError, show_value
from qkv.spec import Spec
from qkv.tokenizers.tokenizer import Tokenizer

Prompt = str | Sequence[int]
RENORMALIZE = "renormalize_logits"  # of a generation_config.json: forbidden tokens leave before the softmax
Tell = Callable[[int, int], None]  # how much is done, of how much


@dataclass(frozen=True)
class SpecialTokens:
    """The special ids of a model: where a text begins and ends, what pads it, what is never written.

    `start` begins the target of an encoder-decoder, `forced` follows it (the language of a translation, say).
    """

    bos: int | None = None
    eos: tuple[int, ...] = ()
    pad: int | None = None
    start: int | None = None
    forbid: tuple[int, ...] = ()
    forced: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, "special")

    @property
    def keys(self) -> dict[str, Any]:
        """The same as a Hugging Face config writes it."""
        found = {"bos_token_id": self.bos, "pad_token_id": self.pad, "decoder_start_token_id": self.start,
                 "forced_bos_token_id": self.forced}
        found["eos_token_id"] = self.eos[0] if len(self.eos) == 1 else list(self.eos) or None  # type: ignore[assignment]
        return {k: v for k, v in found.items() if v is not None}


@dataclass(frozen=True)
class Result:
    """What generation gives: text, token ids, their log-probabilities, why it ended, how long it took.

    `score` ranks beams; `others` are the next best; `alignment` [T, S] says which source token each token looked at;
    `unknown` names the words of the source that the vocabulary lacks. `top_logprobs` lists for each token the likeliest
    ids with their log-probabilities, best first, where they were asked for. Of several prompts one that the model could
    not continue has the finish reason "error", and `error` says why.
    """

    text: str
    tokens: list[int]
    logprobs: list[float]
    finish_reason: str
    timing: dict[str, float]
    score: float | None = None
    others: tuple["Result", ...] = ()
    alignment: Tensor | None = None
    unknown: tuple[str, ...] = ()
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    error: QkvError | None = None


class Model(Protocol):
    """What a task needs of a model: `qkv.model.Model` has all of it."""

    core: Transformer
    spec: Spec
    encoder_decoder: bool
    tokenizer: Tokenizer | None
    special: SpecialTokens
    config: dict[str, Any] | None
    place: str
    generation_config: dict[str, Any]
    pooling: Pooling | None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, in the order of its logits."""
        ...

    def ids(self, text: Prompt) -> list[int]:
        """Text as token ids; ids stay as they are."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """Token ids as text."""
        ...


def start_ids(model: Model, special: SpecialTokens | None = None) -> tuple[int, ...]:
    """What the target of an encoder-decoder begins with, or what a prefix decoder writes after its prefix.

    `special` stands for the model's own special tokens.

    Raises:
        QkvError: an encoder-decoder without a start token.
    """
    special = special or model.special
    if not model.encoder_decoder:
        return () if special.start is None or model.spec.architecture != "prefix decoder" else (special.start,)
    if special.start is None:
        raise QkvError("{where}: this encoder-decoder has no decoder_start_token_id; add it", where=model.place)
    return (special.start,) if special.forced is None else (special.start, special.forced)


def as_list(given: Any) -> tuple[bool, list[Any]]:
    """Whether several prompts were given, and the prompts: a str or a list of ints is one.

    Raises:
        QkvError: something that is neither a text nor ids.
    """
    given = given.tolist() if hasattr(given, "tolist") else given  # a tensor or an array of ids
    if isinstance(given, bytes | bytearray | Mapping | Set):
        refuse_prompt(given)
    rows = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if isinstance(given, str) or (rows and all(isinstance(i, int) for i in rows) and isinstance(given, Iterable)):
        return False, [given if isinstance(given, str) else rows]
    if wrong := [row for row in rows if not isinstance(row, Iterable)]:
        refuse_prompt(wrong[0])
    return True, rows


def as_ids(given: Any, vocabulary: int) -> list[int]:
    """The ids of a prompt as a list; QkvError where one is no whole number (true is none) below `vocabulary`."""
    ids = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(ids, bytes | bytearray | Mapping | Set) or not isinstance(ids, Iterable):
        refuse_prompt(given)
    ids = list(ids)
    for one in ids:
        if isinstance(one, bool) or not isinstance(one, Integral):
            refuse_prompt(one)
        if not 0 <= int(one) < vocabulary:
            raise QkvError("token id {bad} has no embedding, ids go from 0 to {last}; is this the model's own "
                           "tokenizer?", code="token-id", bad=one, last=vocabulary - 1)
    return ids


def refuse_prompt(wrong: Any) -> NoReturn:
    """The error for what is neither a text nor ids."""
    raise QkvError("found {wrong} of type {kind}, expected a text, the ids of one, or a list of them", code="prompt",
                   wrong=show_value(wrong), kind=type(wrong).__name__)


def is_text_tuple(given: Any) -> bool:
    """Whether texts that belong together were given, (first, second, ...), and not a list of texts or of ids."""
    return isinstance(given, tuple) and len(given) > 1 and not any(isinstance(part, int) for part in given)


def check_not_empty(texts: Sequence[Any]) -> None:
    """QkvError for the first text, or part of a tuple of texts, that is empty."""
    for n, line in enumerate(texts):
        for part in line if is_text_tuple(line) else (line,):
            if len(part) == 0 or (isinstance(part, str) and not part.strip()):
                raise QkvError("text {text} of {texts} is empty: there is nothing to read", text=n + 1,
                               texts=len(texts))


def be_silent(done: int, of: int) -> None:
    """Nobody is told how much is done."""


@contextmanager
def name_row(path: Path, number: int) -> Iterator[None]:
    """A QkvError within names the file and the line that was read."""
    try:
        yield
    except QkvError as e:
        raise QkvError("{path}:{number}: {e}", path=path, number=number, e=e) from e
