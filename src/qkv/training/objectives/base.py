"""What an `Objective` is: data to batches, a metric, and the answers by which a model is judged. One file each beside.

What several of them need is here; corruption.py hides words of long texts, augment.py has BPE-dropout and word dropout.
"""

import dataclasses
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from qkv.core.model import Transformer
from qkv.data import bucket, collate
from qkv.data.mapped_rows import MappedRows, encode_rows
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.model import Model
from qkv.tasks.classify import find_separator
from qkv.tasks.task_format import mark_pair
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.vocabulary import Template
from qkv.training.large_text import identify_tokenizer
from qkv.training.losses import mean_loss, measure
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.splits import Pair, Splits

Batches = tuple[collate.Batch, ...]
Ids = tuple[list[int], list[int]]  # a pair's
Rows = tuple[list[int], ...]  # the ids of the texts that belong together
HoldOut = Callable[[Any], Batches]  # from held-out data to their batches, the same at every call
HELD_OUT = -1  # the epoch of validation's and the test's own draws: no epoch of training has this number
BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
END_TOKENS = ("<pad>", "</s>", "<unk>")
TEXTS: Literal["plain text or token shards"] = "plain text or token shards"
BOTH: Literal["pairs or plain text or token shards"] = "pairs or plain text or token shards"


@dataclass(frozen=True)
class Decoding:
    """How answers are sought: beams, their length penalty, and how long an answer may become (None: the usual)."""

    beam: int = 1
    length_penalty: float = 0.6
    longest: int | None = None


@dataclass(frozen=True)
class Objective:
    """One way to learn: the data that it takes, the tokens that it needs, its batches, and how it is judged.

    `measure` judges batches; `answer` gives the answers of a model to sources, which are `answers` of some kind;
    `models` are the architectures that can learn it, as `Spec.architecture` calls them.
    """

    name: str
    data: Literal["pairs", "plain text or token shards", "pairs or plain text or token shards",
                  "conversations or pairs"]
    special_tokens: tuple[str, ...]
    template: Template
    plan: Callable[[Run, Splits, Model], tuple[Plan, HoldOut]]
    answer: Callable[[Model, Sequence[Any], Decoding], list[str]]
    models: tuple[str, ...] = ("encoder-decoder",)
    answers: Literal["texts", "labels"] = "texts"
    measure: Callable[[Transformer, Sequence[collate.Batch]], dict[str, Any]] = measure
    bpe_dropout: bool = False  # whether tokenizer.bpe_dropout can split its texts again in each epoch
    labels_texts: bool = False  # whether it learns the labels of texts, and words beside them at most


def measure_perplexity(core: Transformer, batches: Sequence[collate.Batch]) -> dict[str, Any]:
    """Loss per token in nats, and its perplexity."""
    loss = mean_loss(core, list(batches))
    return {"loss": loss, "perplexity": math.exp(min(loss, 50.0))}


def translate_sources(model: Model, sources: Sequence[str], how: Decoding) -> list[str]:
    """Translations by beam search; a beam of one is greedy."""
    found = model.translate(list(sources), beam=how.beam, length_penalty=how.length_penalty, max_new_tokens=how.longest)
    return [r.text for r in found]


def continue_sources(model: Model, sources: Sequence[str], how: Decoding) -> list[str]:
    """What a decoder writes after each source."""
    return [r.text for r in model.generate(list(sources), beam=how.beam, max_new_tokens=how.longest)]


def classify_sources(model: Model, sources: Sequence[str], how: Decoding) -> list[str]:
    """The likeliest label of each source, of which a long one is cut as in training."""
    separator = find_separator(model)
    marked = [mark_pair(source, separator) for source in sources]
    ids = truncate_rows(tokenizer_for(model).encode_batch(marked), model.spec.context)
    return [verdict.label for verdict in model.classify(ids)]


def tokenizer_for(model: Model) -> Tokenizer:
    assert model.tokenizer is not None  # assemble() gave it one
    return model.tokenizer


def special_ids(tokenizer: Tokenizer) -> set[int]:
    """The ids of the special tokens."""
    return {i for token in tokenizer.roles.values() if (i := tokenizer.id(token)) is not None}


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> Sequence[Ids]:
    """Both sides of pairs as ids."""
    target = partial(tokenizer.encode_batch, side="target")
    return encode_sides(tokenizer, pairs, lambda some: list(zip(
        tokenizer.encode_batch([a for a, _ in some]), target([b for _, b in some]), strict=True)), sides=2)


def encode_sources(tokenizer: Tokenizer, pairs: Sequence[Pair], separator: str) -> Sequence[Rows]:
    """The first sides of pairs as ids; `separator` stands for the tab between two texts."""
    def encode_marked(some: Sequence[Pair]) -> list[Rows]:
        return [(row,) for row in tokenizer.encode_batch([mark_pair(text, separator) for text, _ in some])]

    return encode_sides(tokenizer, pairs, encode_marked, how=separator)


def encode_sides(
    tokenizer: Tokenizer, rows: Any, encode: Callable[[list[Any]], Any], *, sides: int = 1, how: str = ""
) -> Any:
    """What `encode` makes of rows: so many lists of ids of each, of rows on disk on disk too.

    `how` tells ways to encode the same rows apart.
    """
    if not isinstance(rows, MappedRows):
        return encode(rows)
    maker = identify_tokenizer(tokenizer) + how
    return encode_rows(rows, encode, sides=sides, vocabulary=len(tokenizer) + 1, maker=maker)


def measure_sides(rows: Any) -> np.ndarray:
    """How many ids each side of each row has: N sides."""
    if isinstance(rows, MappedRows):
        return rows.lengths
    found = [len(side) for row in rows for side in row]
    return np.array(found, dtype=np.int64).reshape(len(rows), len(rows[0]) if rows else 1)


def take_rows(rows: Any, key: Sequence[int]) -> list[Any]:
    """Some rows, of a list or on disk."""
    return rows.take(key) if isinstance(rows, MappedRows) else [rows[i] for i in key]


def identify_rows(run: Run, rows: Any, classes: Sequence[int] = ()) -> dict[str, Any]:
    """What identifies this run's data, of which `rows` are the ids."""
    if isinstance(rows, MappedRows):
        return identify(run, classes=classes) | {"ids": int(rows.ends[-1]), "sha256": rows.sha256}
    return identify(run, flatten_ids(side for row in rows for side in row), classes)


def truncate_rows(rows: list[list[int]], longest: int | None) -> list[list[int]]:
    """Rows of at most `longest` ids; a row that is cut keeps its last one, which ends it."""
    return rows if longest is None else [r if len(r) <= longest else [*r[: longest - 1], r[-1]] for r in rows]


def bucket_rows(lengths: np.ndarray, run: Run, often: np.ndarray | None = None) -> bucket.Buckets:
    """Batches of single rows of such `lengths` [N], those of like length together."""
    s, both = run.training, np.stack([lengths, lengths], 1)
    return bucket.Buckets(both, tokens=s.tokens, longest=row_limit(run), seed=s.seed, often=often)


def row_limit(run: Run) -> int:
    """The tokens of the longest single row that is learnt."""
    return min(run.model.context, run.training.tokens) // 4 * 4


def mask_id(run: Run, tokenizer: Tokenizer) -> int:
    """The id of the mask token; QkvError if there is none."""
    if tokenizer.mask_id is None:
        raise QkvError("{name}: the vocabulary has no mask token to hide words with; add [MASK] to it", name=run.name)
    return tokenizer.mask_id


def note_long_rows(lengths: Sequence[int] | np.ndarray, longest: int, *, ends: bool = False) -> tuple[str, ...]:
    """The note on texts that are longer than training reads: they are skipped, or only their `ends` are."""
    over, of = int((np.asarray(lengths) > longest).sum()), len(lengths)
    what = Message("their ends are left out") if ends else Message("they are left out")
    told = Message("{over:,} of {of:,} texts or pairs are longer than {longest} tokens: {what}; raise model.context "
                   "or training.tokens to learn from them", over=over, of=of, longest=longest, what=what)
    return (told,) if over else ()


def flatten_ids(rows: Any) -> np.ndarray:
    """The ids of many rows in one line."""
    return np.fromiter((i for row in rows for i in row), dtype=np.int64)


def identify(run: Run, ids: np.ndarray | None = None, classes: Sequence[int] = ()) -> dict[str, Any]:
    """What identifies this run's data, vocabulary and order; `classes` are the labels of its texts."""
    ids = np.zeros(0, dtype=np.int64) if ids is None else ids
    order: dict[str, Any] = {"seed": run.training.seed, "batch": run.training.tokens}
    order |= {key: value for key in ("objective", "base") if (value := getattr(run, key))}
    order |= {"labels": zlib.crc32(np.array(classes).tobytes())} if len(classes) else {}
    order |= {key: value for key in ("word_dropout", "rare_words") if (value := getattr(run.training, key))}
    apart = ("merges", "of", "kind", "size") if run.tokenizer.of else ("merges",)  # its path is not its identity
    cut = {key: value for key, value in dataclasses.asdict(run.tokenizer).items() if value and key not in apart}
    return {"ids": len(ids), "crc": zlib.crc32(ids.tobytes()), "tokenizer": cut, **order}
