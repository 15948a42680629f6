"""What kinds of data become batches, and how a model that learnt them is judged: one `Objective` a kind of model.

`of_*` turn splits into a plan and the batches of validation. More of them: holes.py, tuning.py; fit.py picks one.
"""

import dataclasses
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
import torch

from qkv.core.model import Transformer
from qkv.data import bucket, collate, corrupt, packing, shards
from qkv.data.order import make_generator
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.model import Model
from qkv.tasks.special_tokens import start_ids
from qkv.tokenizers.bpe_dropout import BpeDropout, Trials
from qkv.tokenizers.tokenizer import Tokenizer, load
from qkv.tokenizers.vocabulary import Template
from qkv.training.losses import mean_loss
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.settings import Settings
from qkv.training.splits import Pair, Splits

Batches = tuple[collate.Batch, ...]
Ids = tuple[list[int], list[int]]  # a pair's
Rows = tuple[list[int], ...]  # the ids of the texts that belong together
Held = Callable[[Any], Batches]  # from held-out data to their batches, the same at every call
ANEW = 0x6375_7473  # draws of cuts are another stream than those of order: seed ^ ANEW
THIN = 0x7468_696E  # and so are those of words left out: seed ^ THIN
HELD = -1  # the epoch of validation's and the test's own draws: no epoch of training has this number


@dataclass(frozen=True)
class Objective:
    """One way to learn: the data that it takes, the tokens that it needs, its batches, and how it is judged.

    `measure` judges batches; `reply` gives the answers of a model to sources, which are `answers` of some kind;
    `models` are the architectures that can learn it, as `spec.architecture` calls them.
    """

    data: Literal["pairs", "plain text or token shards", "pairs or plain text or token shards", "conversations"]
    specials: tuple[str, ...]
    template: Template
    batches: Callable[[Run, Splits, Model], tuple[Plan, Held]]
    measure: Callable[[Transformer, Sequence[collate.Batch]], dict[str, Any]]
    reply: "Callable[[Model, Sequence[Any], How], list[str]]"
    answers: Literal["texts", "labels"] = "texts"
    models: tuple[str, ...] = ("encoder-decoder",)
    recuts: bool = False  # whether tokenizer.dropout can cut its texts anew in each epoch


@dataclass(frozen=True)
class How:
    """How answers are sought: beams, their length penalty, and how long an answer may become (None: the usual)."""

    beam: int = 1
    length_penalty: float = 0.6
    longest: int | None = None


def of_pairs(run: Run, splits: Splits, model: Model) -> tuple[Plan, Held]:
    """Batches of pairs of like length, for teacher forcing; with dropout of merges each epoch has cuts of its own."""
    tokenizer, s, context = tokenizer_for(model), run.training, run.model.context
    pad, longest = tokenizer.pad_id or 0, min(context, s.tokens // 8 * 8)

    def boxed(both: list[Ids], often: np.ndarray | None = None) -> bucket.Buckets:
        sides = [(len(a), len(b)) for a, b in both]
        return bucket.Buckets(sides, tokens=s.tokens, longest=longest, seed=s.seed, often=often)

    def maker(both: list[Ids], boxes: bucket.Buckets) -> Callable[[Any], collate.Batch]:
        # a box may be a little wider than the table of positions is long
        def box(key: tuple[int, ...]) -> tuple[int, int]:
            _, wide, long = boxes.shape(key)
            return min(wide, context), min(long, context)

        return lambda key: collate.collate_pairs([both[i] for i in key], pad=pad, start=pad, shape=box(key))

    def held(pairs: Sequence[Pair]) -> Batches:
        both = encoded(tokenizer, pairs)
        boxes = boxed(both)
        return tuple(map(maker(both, boxes), boxes.batches(0)))

    ids = encoded(tokenizer, splits.train)  # type: ignore[arg-type]
    who = identity(run, flat(side for pair in ids for side in pair))
    notes = left_out([max(map(len, pair)) for pair in ids], longest)
    if run.tokenizer.dropout:
        cuts = recutting(run, tokenizer, splits.train, ids, longest)  # type: ignore[arg-type]
        plan = anew(cuts, partial(boxed, often=splits.often), maker, who)
        return blurred(dataclasses.replace(plan, notes=notes), s, tokenizer), held
    boxes = boxed(ids, splits.often)
    return blurred(Plan(boxes.batches, maker(ids, boxes), who, notes), s, tokenizer), held


def blurred(plan: Plan, s: Settings, tokenizer: Tokenizer) -> Plan:
    """The plan with some of the words that are read made unknown: batch k of epoch e by a draw of (seed, e, k)."""
    if not s.word_dropout:
        return plan
    kept = {i for token in tokenizer.roles.values() if (i := tokenizer.id(token)) is not None}
    unknown = tokenizer.unk_id
    if unknown is None:
        raise QkvError("training.word_dropout={word_dropout}: the vocabulary has no token for the unknown to put in a "
                       "word's place; take it away", word_dropout=s.word_dropout)

    def order(epoch: int) -> Sequence[tuple[int, int, Any]]:
        return [(epoch, number, key) for number, key in enumerate(plan.order(epoch))]

    def make(place: tuple[int, int, Any]) -> collate.Batch:
        epoch, number, key = place
        draws = make_generator(seed=s.seed ^ THIN, epoch=epoch, index=number)
        return collate.apply_word_dropout(
            plan.make(key), share=s.word_dropout, unknown=unknown, kept=sorted(kept), draws=draws
        )

    return dataclasses.replace(plan, order=order, make=make)


def left_out(lengths: Sequence[int], longest: int, *, ends: bool = False) -> tuple[str, ...]:
    """What is said about texts that are longer than training reads: they are left out, or their `ends` alone are."""
    over, of = sum(n > longest for n in lengths), len(lengths)
    what = Message("their ends are left out") if ends else Message("they are left out")
    told = Message("{over:,} of {of:,} texts or pairs are longer than {longest} tokens: {what}; raise model.context "
                   "or training.tokens to learn from them", over=over, of=of, longest=longest, what=what)
    return (told,) if over else ()


def anew(
    cuts: Callable[[int], Any], boxed: Callable[[Any], bucket.Buckets],
    maker: Callable[[Any, bucket.Buckets], Callable[[Any], collate.Batch]], who: dict[str, Any],
) -> Plan:  # fmt: skip
    """A plan whose rows, and so their buckets, are others in each epoch; two epochs are kept at a time."""

    @lru_cache(maxsize=2)
    def cut(epoch: int) -> tuple[Any, bucket.Buckets]:
        rows = cuts(epoch)
        return rows, boxed(rows)

    def order(epoch: int) -> Sequence[tuple[int, tuple[int, ...]]]:
        return [(epoch, key) for key in cut(epoch)[1].batches(epoch)]

    return Plan(order, lambda key: maker(*cut(key[0]))(key[1]), who)


def recutting(
    run: Run, tokenizer: Tokenizer, items: Sequence[Sequence[str]], usual: Sequence[Rows], longest: int
) -> Callable[[int], list[Rows]]:
    """The texts of each item as an epoch cuts them: item i of epoch e is a function of (seed, e, i) and of no more.

    An item with a text whose new cut is longer than `longest` keeps its `usual` cuts.
    """
    recut, share, seed = BpeDropout(tokenizer, run.tokenizer.ranks()), run.tokenizer.dropout, run.training.seed ^ ANEW
    parts = iter(recut.read([text for item in items for text in item]))
    read = [[next(parts) for _ in item] for item in items]

    def cuts(epoch: int) -> list[Rows]:
        found: list[Rows] = []
        for i, item in enumerate(read):
            trials = Trials(make_generator(seed=seed, epoch=epoch, index=i), share)
            new = tuple(recut.ids_of(text, trials) for text in item)
            found.append(new if max(map(len, new)) <= longest else usual[i])
        return found

    return cuts


def of_text(run: Run, splits: Splits, model: Model) -> tuple[Plan, Held]:
    """Windows of one long text, drawn anew for each step; an epoch is as many as cover the text once.

    With dropout of merges each epoch has a text with cuts of its own, of which it draws as many windows.
    """
    if isinstance(splits.train, shards.Mixture):
        return of_shards(run, splits, model)
    tokenizer, s, length = tokenizer_for(model), run.training, run.model.context
    ids, last = (np.array(tokenizer.encode(t, special=False), dtype=np.int32) for t in (splits.train, splits.valid))  # type: ignore[arg-type]
    length = min(length, len(ids) - 1, len(last) - 1)
    if length < 1:
        raise QkvError("{name}: the text has {ids} tokens to train on and {last} to validate; give more", name=run.name,
                       ids=len(ids), last=len(last))
    rows = max(1, s.tokens // length)
    each = max(1, len(ids) // (rows * length))

    def order(epoch: int) -> Sequence[int]:
        return range(epoch * each, (epoch + 1) * each)

    cuts = recut_text(run, tokenizer, str(splits.train)) if run.tokenizer.dropout else lambda epoch: ids

    def make(key: int) -> collate.Batch:
        return collate.collate_windows(
            packing.draw_windows(cuts(key // each), length=length, rows=rows, seed=s.seed, step=key)
        )

    def held(text: str) -> Batches:
        found = np.array(tokenizer.encode(text, special=False), dtype=np.int64)
        if len(found) <= length:  # a test shorter than a window is one
            return (collate.collate_windows(torch.from_numpy(found)[None]),) if len(found) > 1 else ()
        count = min(len(found) // (length + 1), 64 * rows)
        fixed = torch.from_numpy(found[: count * (length + 1)]).view(count, length + 1)
        return tuple(map(collate.collate_windows, fixed.split(rows)))

    return Plan(order, make, identity(run, ids)), held


def recut_text(run: Run, tokenizer: Tokenizer, text: str) -> Callable[[int], np.ndarray]:
    """The ids of a text as an epoch cuts it, a function of (seed, epoch); dropout makes it longer, never shorter."""
    recut = BpeDropout(tokenizer, run.tokenizer.ranks())
    (read,) = recut.read([text])

    @lru_cache(maxsize=2)
    def cuts(epoch: int) -> np.ndarray:
        draws = make_generator(seed=run.training.seed ^ ANEW, epoch=epoch, index=0)
        return np.array(recut.ids_of(read, Trials(draws, run.tokenizer.dropout)), dtype=np.int32)

    return cuts


def of_shards(
    run: Run, splits: Splits, model: Model, lay: Callable[[torch.Tensor], collate.Batch] = collate.collate_windows
) -> tuple[Plan, Held]:
    """Windows of token shards, as of one long text; an epoch is as many as cover all shards once."""
    data, s = mixture(run, splits, model), run.training
    length = min(run.model.context, shortest(splits) - 1)
    if length < 1:
        raise QkvError("{name}: the shards leave {length} tokens to a window, expected two or more", name=run.name,
                       length=length + 1)
    rows = max(1, s.tokens // length)
    each = max(1, len(data) // (rows * length))

    def make(key: int) -> collate.Batch:
        return lay(data.windows(length=length, rows=rows, seed=s.seed, step=key))

    def held(part: shards.Mixture) -> Batches:
        return tuple(map(lay, part.held_windows(length=length, most=64 * rows).split(rows)))

    return Plan(lambda epoch: range(epoch * each, (epoch + 1) * each), make, identity(run) | data.identity), held


def mixture(run: Run, splits: Splits, model: Model) -> shards.Mixture:
    """The shards that are trained on; QkvError where their ids are not the model's."""
    assert isinstance(splits.train, shards.Mixture)
    known, first = tokenizer_for(model), splits.train.shards[0]
    own, size = load(first.folder), first.index["vocabulary"]
    alike = size == len(known) if own is None else own.vocabulary.items() <= known.vocabulary.items()
    if not alike:
        raise QkvError("{folder}: these ids are of another vocabulary ({size:,} tokens) than the model's ({known:,}); "
                       "pack the text with --model {base}", folder=first.folder, size=size, known=len(known),
                       base=run.base)
    return splits.train


def shortest(splits: Splits) -> int:
    """The most tokens that each window of shards may have: all of training give such ones, one of validation does."""
    assert isinstance(splits.train, shards.Mixture)
    assert isinstance(splits.valid, shards.Mixture)
    return min(splits.train.shortest, max(map(len, splits.valid.shards)))


def of_labelled(run: Run, splits: Splits, model: Model) -> tuple[Plan, Held]:
    """Texts with words hidden anew in each epoch, and the label of each text."""
    s = run.training
    read = masker(run, model)
    rows, classes = read.texts(splits.train)  # type: ignore[arg-type]
    boxes = boxed(rows, run, splits.often)

    def order(epoch: int) -> Sequence[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        seen = Counter[int]()  # a text that comes twice has other words hidden the second time

        def number(item: int) -> int:
            seen[item] += 1
            return item + len(rows) * (seen[item] - 1)

        return [(epoch, items, tuple(map(number, items))) for items in boxes.batches(epoch)]

    def make(key: tuple[int, tuple[int, ...], tuple[int, ...]]) -> collate.Batch:
        epoch, items, numbers = key
        draws = map(corrupt.Draw(s.seed, epoch, 0).at_index, numbers)
        return read.batch(rows, classes, items, draws, boxes.shape(items)[2])

    notes = left_out(list(map(len, rows)), room(run))
    return Plan(order, make, identity(run, flat(rows), classes), notes), read.held


@dataclass(frozen=True)
class Masker:
    """Texts and labels on their way into masked batches."""

    run: Run
    tokenizer: Tokenizer
    marks: corrupt.TokenIds
    labels: tuple[str, ...]

    def texts(self, pairs: Sequence[Pair]) -> tuple[list[list[int]], list[int]]:
        """Ids and label numbers of (text, label) pairs; a label that training lacks counts as none."""
        known = {name: i for i, name in enumerate(self.labels)}
        ids = self.tokenizer.encode_batch([text for text, _ in pairs])
        return ids, [known.get(name, collate.IGNORED) for _, name in pairs]

    def batch(
        self, rows: list[list[int]], classes: list[int], items: Sequence[int], draws: Iterable[corrupt.Draw], width: int
    ) -> collate.Batch:  # fmt: skip
        """The texts `items`, each with words hidden as a draw of its own says."""
        hidden = [corrupt.mask_words(rows[i], self.marks, draw) for i, draw in zip(items, draws, strict=True)]
        pad = self.tokenizer.pad_id or 0
        width = min(width, self.run.model.context)  # a box may be a little wider than the table of positions is long
        batch = collate.collate_masked(hidden, pad=pad, width=width, separator=self.tokenizer.sep_id)
        return collate.add_labels(batch, [classes[i] for i in items])

    def held(self, pairs: Sequence[Pair]) -> Batches:
        """The batches of held-out texts, always with the same words hidden."""
        rows, classes = self.texts(pairs)
        boxes, draw = boxed(rows, self.run), corrupt.Draw(0, HELD, 0)
        return tuple(
            self.batch(rows, classes, key, map(draw.at_index, key), boxes.shape(key)[2]) for key in boxes.batches(0)
        )


def masker(run: Run, model: Model) -> Masker:
    """What masks texts for a model: special tokens are never hidden nor put in a hidden word's place."""
    tokenizer = tokenizer_for(model)
    mask = masking(run, tokenizer)
    special = frozenset(i for token in tokenizer.roles.values() if (i := tokenizer.id(token)) is not None)
    return Masker(run, tokenizer, corrupt.TokenIds(mask, special, len(tokenizer)), model.labels)


def masking(run: Run, tokenizer: Tokenizer) -> int:
    """The id that hides words; QkvError where there is none."""
    if tokenizer.mask_id is None:
        raise QkvError("{name}: the vocabulary has no mask token to hide words with; add [MASK] to it",
                       name=run.name)
    return tokenizer.mask_id


def of_prefixes(run: Run, splits: Splits, model: Model) -> tuple[Plan, Held]:
    """Pairs in one row: the source is a prefix, seen freely, and the target is learnt (Raffel et al. 2020, 3.2.1)."""
    tokenizer = tokenizer_for(model)
    pad, start = tokenizer.pad_id or 0, start_ids(model)

    def rows(pairs: Sequence[Pair]) -> list[tuple[list[int], list[int]]]:
        eos = tokenizer.eos_id
        return [(a, b if eos is None else [*b, eos]) for a, b in encoded(tokenizer, pairs)]

    def maker(both: list[tuple[list[int], list[int]]], boxes: bucket.Buckets) -> Callable[[Any], collate.Batch]:
        return lambda key: collate.collate_prefixes(
            [both[i] for i in key], pad=pad, start=start, width=boxes.shape(key)[2]
        )

    def joint(both: list[tuple[list[int], list[int]]]) -> list[list[int]]:
        return [[*a, *start, *b[:-1]] for a, b in both]

    def held(pairs: Sequence[Pair]) -> Batches:
        both = rows(pairs)
        boxes = boxed(joint(both), run)
        return tuple(map(maker(both, boxes), boxes.batches(0)))

    ids = rows(splits.train)  # type: ignore[arg-type]
    boxes = boxed(joint(ids), run, splits.often)
    notes = left_out(list(map(len, joint(ids))), room(run))
    return Plan(boxes.batches, maker(ids, boxes), identity(run, flat(joint(ids))), notes), held


def boxed(rows: Sequence[Sequence[int]], run: Run, often: np.ndarray | None = None) -> bucket.Buckets:
    """Batches of single rows of like length."""
    s = run.training
    lengths = [(len(row), len(row)) for row in rows]
    return bucket.Buckets(lengths, tokens=s.tokens, longest=room(run), seed=s.seed, often=often)


def room(run: Run) -> int:
    """The tokens of the longest single row that is learnt."""
    return min(run.model.context, run.training.tokens) // 4 * 4


def encoded(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> list[Ids]:
    """Both sides of pairs as ids."""
    left = tokenizer.encode_batch([a for a, _ in pairs])
    return list(zip(left, tokenizer.encode_batch([b for _, b in pairs], side="target"), strict=True))


def tokenizer_for(model: Model) -> Tokenizer:
    assert model.tokenizer is not None  # assemble() gave it one
    return model.tokenizer


def flat(rows: Any) -> np.ndarray:
    """The ids of many rows in one line."""
    return np.fromiter((i for row in rows for i in row), dtype=np.int64)


def identity(run: Run, ids: np.ndarray | None = None, classes: Sequence[int] = ()) -> dict[str, Any]:
    """What tells this run's data, vocabulary and order from another's; `classes` are the labels of its texts."""
    ids = np.zeros(0, dtype=np.int64) if ids is None else ids
    order: dict[str, Any] = {"seed": run.training.seed, "batch": run.training.tokens}
    order |= {key: value for key in ("objective", "base") if (value := getattr(run, key))}
    order |= {"labels": zlib.crc32(np.array(classes).tobytes())} if len(classes) else {}
    order |= {"word_dropout": run.training.word_dropout} if run.training.word_dropout else {}
    apart = ("merges", "of", "kind", "size") if run.tokenizer.of else ("merges",)  # where it lies is not what it is
    cut = {key: value for key, value in dataclasses.asdict(run.tokenizer).items() if value and key not in apart}
    return {"ids": len(ids), "crc": zlib.crc32(ids.tobytes()), "tokenizer": cut, **order}


def spoken(core: Transformer, batches: Sequence[collate.Batch]) -> dict[str, Any]:
    """Loss per token in nats, and its perplexity."""
    loss = mean_loss(core, list(batches))
    return {"loss": loss, "perplexity": math.exp(min(loss, 50.0))}


def translated(model: Model, sources: Sequence[str], how: How) -> list[str]:
    """Translations by beam search; a beam of one is greedy."""
    found = model.translate(list(sources), beam=how.beam, length_penalty=how.length_penalty, max_new_tokens=how.longest)
    return [r.text for r in found]


def continued(model: Model, sources: Sequence[str], how: How) -> list[str]:
    """What a decoder writes after each source."""
    return [r.text for r in model.generate(list(sources), beam=how.beam, max_new_tokens=how.longest)]


def named(model: Model, sources: Sequence[str], how: How) -> list[str]:
    """The likeliest label of each source, of which a long one is cut as in training."""
    ids = shortened(tokenizer_for(model).encode_batch(list(sources)), model.spec.context)
    return [verdict.label for verdict in model.classify(ids)]


def shortened(rows: list[list[int]], longest: int | None) -> list[list[int]]:
    """Rows of at most `longest` ids; a row that is cut keeps its last one, which ends it."""
    return rows if longest is None else [r if len(r) <= longest else [*r[: longest - 1], r[-1]] for r in rows]


BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ENDED = ("<pad>", "</s>", "<unk>")
SPEAKS = ("causal decoder",)
TEXTS: Literal["plain text or token shards"] = "plain text or token shards"
BOTH: Literal["pairs or plain text or token shards"] = "pairs or plain text or token shards"
PAIRS = Objective("pairs", ENDED, "eos", of_pairs, spoken, translated, recuts=True)
TEXT = Objective(TEXTS, ("</s>", "<unk>"), "none", of_text, spoken, continued, models=SPEAKS,
                 recuts=True)  # fmt: skip
