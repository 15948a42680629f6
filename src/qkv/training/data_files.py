"""Your own files, as a TOML file's [data] names them, read and split. Next: own_data.py, which makes a run of them."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from qkv.chat.template import check_messages
from qkv.data import hf_datasets, shards, sources
from qkv.data.bad_rows import BadRowPolicy
from qkv.data.cache import tell_progress
from qkv.data.check import NAMED, find_leaks
from qkv.data.conversations import list_messages
from qkv.data.mapped_rows import CHUNK, MappedRows, collect_rows, select_rows, spool_rows
from qkv.data.overlap import LEAK, RUN, count_familiar
from qkv.data.shards import Mixture
from qkv.data.text_files import explain_missing, find_suffix, measure_text
from qkv.errors import QkvError, nearest
from qkv.messages import Message, join
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.training import large_text
from qkv.training.large_text import LargeText
from qkv.training.settings import Part
from qkv.training.splits import (
    READERS,
    Splits,
    Talk,
    choose_held_out,
    find_data_file,
    shuffle_sorted,
    text_splits,
    usual_share,
)

Placed = Iterator[tuple[str, Any]]  # rows, each behind where it stands
KINDS = ("source", "tsv", "jsonl", "folders", "text", "messages", "shards", "dataset", "corpus")
PARTS = ("train", "validation", "test")  # of a dataset
SIDES = ("valid_source", "valid_target", "test_source", "test_target")
FILES = ("source", "target", "tsv", "jsonl", "folders", "text", "messages")  # one name is a list of one


@dataclass(frozen=True)
class Data(Part):
    """Your own files, as a TOML file names them: two parallel ones, one of pairs (tsv, jsonl), plain text,
    conversations (JSON lines with `messages`, a list of {"role": …, "content": …}), folders of token shards, or a data
    set that the `datasets` library opens: pairs by two keys, texts by one. Several files of a kind are a list.
    """

    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    tsv: tuple[str, ...] = ()  # tabs between columns; or CSV, *.csv
    jsonl: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # each with a folder for each label, whose files are the texts
    text: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()  # folders that `qkv data pack` wrote
    weights: tuple[float, ...] = ()  # how likely a row or window comes from each of them; without by their size
    dataset: str = ""  # NAME or NAME:CONFIG of the hub, a folder that save_to_disk wrote, or files of rows
    corpus: Literal["", "demo", "demo_text", "demo_labels", "sst2"] = ""  # a built-in data set
    columns: tuple[int, ...] = (0, 1)  # of a text and its label, or of two texts and the label of both
    header: bool = False  # the first row of each tsv file names the columns
    keys: tuple[str, ...] = ("source", "target")
    valid_source: str = ""
    valid_target: str = ""
    test_source: str = ""
    test_target: str = ""
    valid_file: str = ""  # of the same form as tsv, jsonl, text or messages
    test_file: str = ""
    valid: float | None = None  # rows held out where no file is named: how many, or below 1 which share (usual_share)
    test: float = 0
    apart: Literal["source", "target"] = "source"  # no held-out text of this side occurs in training
    on_bad_row: Literal["error", "skip", "quarantine"] = "error"  # quarantine: written to the file named next
    quarantine: str = "quarantine.jsonl"
    overlap: Literal["error", "drop", "keep"] = "error"  # held-out pairs in the training files; drop: not trained on

    where = "data"
    ranges = ((Message("a whole number, or a share below 1"), lambda n: 0 <= n < 1 or n == int(n) > 0,
               ("valid", "test")),)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({*self.columns}) < len(self.columns) or len(self.columns) not in (2, 3) or min(self.columns) < 0:
            raise QkvError("data.columns: found {columns}, expected a list such as [0, 1] of different columns, "
                           "counted from 0; or of three: two texts and their label", columns=list(self.columns))

    @property
    def is_text(self) -> bool:
        """Whether a language model learns these data, and not pairs."""
        return bool(self.text or self.shards or self.corpus == "demo_text" or (self.dataset and len(self.keys) == 1))

    @property
    def two_texts(self) -> bool:
        """Whether rows hold two texts that are judged together."""
        return len(self.columns if self.tsv else self.keys if self.jsonl or self.dataset else ()) > 2

    @property
    def name(self) -> str:
        """The first file of rows."""
        return next(iter((*self.source, *self.tsv, *self.jsonl, *self.folders, *self.messages)))

    def splits(self, folder: Path) -> Splits:
        """The files' content, split.

        Raises:
            QkvError: none or more than one kind of data is named, or a file is broken (with its line).
        """
        kind = self.find_kind()
        if kind == "corpus":
            return READERS[self.corpus]()
        if kind == "shards":
            return self.read_shards(folder)
        self.refuse_missing(folder)
        with BadRowPolicy(self.on_bad_row, folder / self.quarantine) as policy:
            read = {"dataset": self.read_dataset, "text": self.read_texts}.get(kind, self.read_row_files)
            return read(folder, policy)

    def refuse_missing(self, folder: Path) -> None:
        """QkvError for the first file that is not there, with its key."""
        for key in (*FILES, *SIDES, "valid_file", "test_file"):
            named = getattr(self, key)
            for name in (named,) if isinstance(named, str) else named:
                if name and not os.path.exists(folder / name):  # noqa: PTH110  false for a name that is too long
                    raise QkvError("data.{key}: {e}", key=key, e=explain_missing(folder / name, FileNotFoundError()))

    def find_kind(self) -> str:
        """The kind of data that is named; QkvError for none or several, and for what does not go with it."""
        named = [kind for kind in KINDS if getattr(self, kind)]
        if len(named) != 1 or bool(self.source) != bool(self.target):
            raise QkvError("data: found {found}, expected one of: source and target, {kinds}",
                           found=", ".join(named) or Message("none"), kinds=", ".join(KINDS[1:]))
        (kind,), whole = named, named[0] in ("dataset", "corpus")
        if len(self.keys) not in (2, 3) and not ((self.dataset or self.text) and len(self.keys) == 1):
            raise QkvError("data.keys: found {keys} keys, expected two; one for texts, three for two texts and their "
                           "label", keys=len(self.keys))
        unread = SIDES if whole or kind in ("text", "messages", "shards") else ()
        unread += ("valid_file", "test_file") if whole else ()
        if key := next((key for key in unread if getattr(self, key)), ""):
            instead = Message("remove it, or name {file}", file=f"{key.partition('_')[0]}_file")
            if whole:
                instead = Message("remove it: a data set has splits of its own, validation and test")
            raise QkvError("data.{key}: found {value!r}, which is not used with {kind}; {instead}", key=key,
                           value=getattr(self, key), kind=kind, instead=instead)
        if len(self.source) != len(self.target):
            raise QkvError("data: found {source} source and {target} target files, expected as many; file n of one "
                           "belongs to file n of the other", source=len(self.source), target=len(self.target))
        if self.weights and kind in ("text", "dataset"):
            raise QkvError("data.weights: for shards, pairs and conversations; `qkv data pack` makes shards of texts")
        count = len(getattr(self, kind))
        fine = len(self.weights) == count and all(math.isfinite(w) and w > 0 for w in self.weights)
        if self.weights and not fine and kind not in ("shards", "corpus"):
            raise QkvError("data.weights: found {weights} for {count} sets of rows, expected as many numbers above 0",
                           weights=list(self.weights), count=count)
        return kind

    def read_texts(self, folder: Path, policy: BadRowPolicy) -> Splits:
        """Plain texts with a blank line between; without `valid_file` the last tenth of each is held out.

        Large ones are only scanned; assemble.py encodes them when there is a vocabulary.
        """
        key = self.keys[0] if len(self.keys) == 1 else ""
        apart = (self.valid_file, self.test_file)
        files = [folder / name for name in self.text]
        if sum(measure_text(file, most=large_text.LARGE) for file in files if file.is_file()) >= large_text.LARGE:
            named = (self.text, *((one,) if one else () for one in apart))
            train, valid, test = (read_large(folder, names, policy, key) if names else "" for names in named)
            return Splits(train, valid or train, test)
        texts = [plain_text(file, policy, key) for file in files]
        valid, test = (plain_text(folder / one, policy, key) if one else "" for one in apart)
        leaks = [find_leaks(file, folder / one) for one in apart if one for file in files]
        notes = (*policy.notes, *chain.from_iterable(leaks))
        if valid:
            return Splits("\n\n".join(texts), valid, test, notes)
        shuffled = [shuffle_sorted(text) for text in texts]
        notes = (*notes, *(Message("{name}: its lines are sorted, so they are shuffled before the last tenth is held "
                                   "out", name=file.name)
                           for file, text, other in zip(files, texts, shuffled, strict=True) if text != other))
        both = [text_splits(text, share=0.1) for text in shuffled]
        train, held = ("\n\n".join(map(str, part)) for part in zip(*((s.train, s.valid) for s in both), strict=True))
        return Splits(train, held, test, notes)

    def read_row_files(self, folder: Path, policy: BadRowPolicy) -> Splits:
        """Pairs or conversations; some are held out by their hash where no file is named, with all their copies."""
        files = list(self.split_files())
        sets: list[Any] = [collect_rows(row for _, row in one.read_rows(folder, policy)) for one in files]
        apart = [self.files_of_split(which) for which in ("test", "valid")]
        test, valid = ([row for _, row in one.read_rows(folder, policy)] if one else None for one in apart)
        held = [*(test or ()), *(valid or ())]

        def locate_rows(parts: "Iterable[Data | None]") -> Placed:  # they are read again, and so not kept
            return ((f"{folder / one.name}:{n}", row) for one in parts if one
                    for n, row in one.read_rows(folder, BadRowPolicy("skip")))

        sets, said = self.remove_held_out(sets, held, locate_rows(files), locate_rows(reversed(apart)))
        said = (*self.note_headers(folder, [*files, *reversed(apart)]), *said)
        if test is None:
            sets, test = self.hold_out_rows(sets, self.test, top=True)
        share = usual_share(sum(map(len, sets))) if valid is None and self.valid is None else 0.0
        if valid is None:
            sets, valid = self.hold_out_rows(sets, share or self.valid or 0)
        rows, notes = sets[0] if len(sets) == 1 else collect_rows(chain.from_iterable(sets)), (*policy.notes, *said)
        if not self.weights:
            return Splits(rows, valid, test, notes, share=share)
        sizes = [len(some) for some in sets]
        if 0 in sizes:
            raise QkvError("{name}: no row is left to train on", name=files[sizes.index(0)].name)
        # how often a row of each set comes in an epoch, which has as many rows as all sets together
        each = [len(rows) * weight / sum(self.weights) / n for weight, n in zip(self.weights, sizes, strict=True)]
        told = [Message("{name}: {size:,} rows, each {n:.3g} times", name=one.name, size=size, n=n)
                for one, size, n in zip(files, sizes, each, strict=True)]
        mixed = Message("in an epoch {told}", told=join("; ", told))
        return Splits(rows, valid, test, (*notes, mixed), np.repeat(each, sizes), share)

    def split_files(self) -> "Iterator[Data]":
        """The same data with one file of rows each."""
        if self.source:
            return (replace(self, source=a, target=b) for a, b in zip(self.source, self.target, strict=True))
        kind = next(k for k in ("tsv", "jsonl", "folders", "messages") if getattr(self, k))
        return (replace(self, **{kind: name}) for name in getattr(self, kind))

    def hold_out_rows(self, sets: list[Any], amount: float, *, top: bool = False) -> tuple[list[Any], list[Any]]:
        """(what stays of each set, held out): chosen by the hash of one side of a pair, or of a whole conversation."""
        if not amount:
            return sets, []
        side = 1 if self.apart == "target" else 0

        total = sum(map(len, sets))

        def read_keys() -> Iterator[str]:
            for n, row in enumerate(chain.from_iterable(sets)):
                if n and n % (16 * CHUNK) == 0:  # about a second
                    tell_progress(Message("choosing the rows that are held out"), n, total)
                yield repr(row) if self.messages else row[side]

        chosen = choose_held_out(read_keys, amount, top=top)
        cuts = np.cumsum([0, *map(len, sets)])
        parts = [np.flatnonzero(chosen[a:b] == out) for out in (False, True) for a, b in pairwise(cuts)]
        both = [select_rows(rows, part) for rows, part in zip(sets * 2, parts, strict=True)]
        return both[: len(sets)], [row for rows in both[len(sets) :] for row in rows]

    def read_shards(self, folder: Path) -> Splits:
        """The shards; without `valid_file`, another folder, the end of each is held out: a tenth, or 200,000 tokens."""
        whole = Mixture(tuple(shards.read_pack(folder / name) for name in self.shards), self.weights)
        named = [name for name in (self.valid_file, self.test_file) if name]
        found = {name: Mixture((shards.read_pack(folder / name),)) for name in named}
        notes = [note for name, held in found.items() for note in note_familiar(name, whole, held)]
        test = found.get(self.test_file, ())
        if self.valid_file:
            return Splits(whole, found[self.valid_file], test, tuple(notes))
        return Splits(*whole.split(share=0.1, most=200_000), test, tuple(notes))

    def read_dataset(self, folder: Path, policy: BadRowPolicy) -> Splits:
        """The splits of a dataset: train, and validation and test where it has them."""
        local = folder / self.dataset
        found = hf_datasets.open_dataset(str(local) if local.exists() else self.dataset)
        if "train" not in found:
            raise QkvError("data.dataset {dataset!r}: no split 'train' (found: {found})", dataset=self.dataset,
                           found=", ".join(found))

        def read_part(part: str, policy: BadRowPolicy) -> Iterator[tuple[int, Any]]:
            rows = hf_datasets.read_rows(found.get(part, ()), self.keys, name=f"{self.dataset}/{part}", policy=policy)
            return ((number, sources.join_texts(row)) for number, row in rows) if self.two_texts else rows

        behind = "\n\n" if self.is_text else ""
        each = ((row for _, row in read_part(part, policy)) for part in PARTS)
        train, valid, test = (collect_rows(rows, behind=behind) for rows in each)
        if isinstance(train, MappedRows) and self.is_text:
            parts = [spool_text(part) if part else "" for part in (train, valid, test)]
            return Splits(parts[0], parts[1] or parts[0], parts[2], tuple(policy.notes))
        if self.is_text:
            whole, some, last = (behind.join(t for (t,) in part) for part in (train, valid, test))
            split = Splits(whole, some) if some else text_splits(whole, share=0.1)
            return replace(split, test=last, notes=tuple(policy.notes))

        def locate_rows(*parts: str) -> Placed:
            return ((f"{self.dataset}/{part}, row {n}", row) for part in parts
                    for n, row in read_part(part, BadRowPolicy("skip")))

        held = [*test, *valid]
        sets, said = self.remove_held_out([train], held, locate_rows("train"), locate_rows("validation", "test"))
        share = 0.0 if valid or self.valid is not None else usual_share(len(sets[0]))
        if not valid:
            sets, valid = self.hold_out_rows(sets, share or self.valid or 0)
        return Splits(sets[0], valid, test, (*policy.notes, *said), share=share)

    def read_rows(self, folder: Path, policy: BadRowPolicy) -> Iterator[tuple[int, Any]]:
        """The pairs or conversations of the first file, each with its line."""
        place = folder / self.name
        if self.messages:
            return talk_rows(place, policy=policy)
        if self.source:
            return sources.read_pair_rows(place, folder / self.target[0], policy=policy)
        if self.folders:
            return sources.read_folder_rows(place, policy=policy)
        if self.tsv:
            return sources.read_tsv_rows(place, self.columns, header=self.header, policy=policy)
        return sources.read_jsonl_rows(place, self.keys, policy=policy)

    def remove_held_out(
        self, sets: list[Any], held: Sequence[Any], train: Placed, apart: Placed
    ) -> tuple[list[Any], tuple[Message, ...]]:
        """The training rows that are not held out too, or all of them if `overlap` says so; and the notes.

        `train` and `apart` are the rows of both with their places; they are read only if there is something to report.
        """
        known, said = {repr(row) for row in held}, tuple[Message, ...]()
        count = sum(repr(row) in known for rows in sets for row in rows) if known else 0
        if count:
            place, row = next((place, row) for place, row in train if repr(row) in known)
            what = Message("conversation") if self.messages else Message("pair")
            found = Message("{place}: this {what} is held out too ({held}); {count} training rows are", place=place,
                            what=what, held=next(place for place, other in apart if other == row), count=count)
            if self.overlap == "error":
                raise QkvError('{said}: the evaluation would look too good. overlap = "drop" removes them from '
                               'training, overlap = "keep" trains on them anyway', said=found)
            drop = self.overlap == "drop"
            end = Message("left out of training") if drop else Message("trained on anyway")
            said = (Message("{said}; {what}", said=found, what=end),)
            if drop:
                sets = [select_rows(rows, find_fresh(rows, known)) for rows in sets]
        return sets, (*said, *self.note_shared_sides(sets, held))

    def note_headers(self, folder: Path, files: "Iterable[Data | None]") -> Iterator[Message]:
        """A note of each TSV file whose first row seems to name its columns."""
        for one in files if self.tsv and not self.header else ():
            line, row = next(one.read_rows(folder, BadRowPolicy("skip")), (0, ("",))) if one else (0, ("",))
            if one and sources.is_header(row):
                yield Message("{folder}:{line}: {row}: {named}", folder=folder / one.name, line=line,
                              row=" | ".join(row), named=NAMED)

    def note_shared_sides(self, sets: list[list[Any]], held: Sequence[Any]) -> tuple[Message, ...]:
        """A note of held-out pairs of which training has one side, with something else beside it."""
        if self.messages or not held:
            return ()
        side = 1 if self.apart == "target" else 0
        asked = {row[side] for row in held}
        other = {row[side]: row for rows in sets for row in rows if row[side] in asked}
        found = [row for row in held if row[side] in other and repr(other[row[side]]) != repr(row)]
        if not found:
            return ()
        what = Message("target") if side else Message("source")
        texts = (found[0][side], found[0][1 - side], other[found[0][side]][1 - side])
        both, one, two = (repr(text if len(text) <= 40 else f"{text[:39]}…") for text in texts)
        some = f"{both}: held out {one}, trained on {two}"
        return (Message("{found:,} of {held:,} held-out pairs have a {what} that also occurs in training, with a "
                        "different partner ({some})", found=len(found), held=len(held), what=what, some=some),)

    def files_of_split(self, which: str) -> "Data | None":
        """The same kind of data in the files of a split of its own; None where no file is named."""
        one, two, file = (getattr(self, f"{which}_{part}") for part in ("source", "target", "file"))
        if file and self.source:
            raise QkvError("data: {which}_file goes with tsv or jsonl; name {which}_source and {which}_target",
                           which=which)
        if bool(one) != bool(two):
            raise QkvError("data: {which}_source and {which}_target belong together; found only one of them",
                           which=which)
        if file:
            kind = next(k for k in ("messages", "folders", "tsv", "jsonl") if getattr(self, k))
            return replace(self, **{kind: file})
        return replace(self, source=one, target=two, tsv=(), jsonl=()) if one else None


def read_shared(data: Data) -> Splits:
    """The splits of a recipe's data: each file is here, or under QKV_DATA, or where `qkv data get` put it."""

    def find(name: str) -> str:
        return name if not name or Path(name).is_file() else str(find_data_file(*Path(name).parts))

    held = [f"{which}_{part}" for which in ("valid", "test") for part in ("source", "target", "file")]
    files: dict[str, Any] = {key: tuple(map(find, getattr(data, key))) for key in FILES}
    return replace(data, **files, **{key: find(getattr(data, key)) for key in held}).splits(Path())


def find_fresh(rows: Iterable[Any], known: set[str]) -> NDArray[np.int64]:
    """The numbers of the rows that are not known."""
    return np.array([n for n, row in enumerate(rows) if repr(row) not in known], dtype=np.int64)


def note_familiar(name: str, whole: Mixture, held: Mixture) -> Iterator[Message]:
    """The note on held-out tokens of which too many occur in training."""
    count, of, place = count_familiar(whole, held)
    if count > LEAK * of:
        yield Message("{name}: {count:,} of {of:,} held-out runs of {run} tokens also occur in training, the first at "
                      "{place}: the evaluation looks too good", name=name, count=count, of=of, run=RUN, place=place)


def read_large(folder: Path, names: Iterable[str], policy: BadRowPolicy, key: str) -> LargeText:
    """The text of files, which are scanned and not held."""
    return LargeText(tuple(large_text.scan_text(folder / name, key) for name in names), policy)


def spool_text(rows: Any) -> LargeText:
    """The texts of rows as one, on disk."""
    rows = rows if isinstance(rows, MappedRows) else spool_rows(rows, behind="\n\n")
    return LargeText((large_text.scan_text(rows.file),), BadRowPolicy(), rows)


def note_sample(splits: Splits) -> Iterator[Message]:
    """The note on the part of large data that a vocabulary is made from."""
    rows = splits.train
    if isinstance(rows, LargeText):
        yield rows.describe_sample()
    if isinstance(rows, MappedRows) and (few := len(rows.sample(large_text.SAMPLE))) < len(rows):
        yield Message("vocabulary from {few:,} of {all:,} rows, drawn evenly", few=few, all=len(rows))


def encode_large(splits: Splits, tokenizer: Tokenizer, *, documents: bool) -> Splits:
    """The same data with token shards in the place of text that is too large to be held in memory."""
    if not isinstance(splits.train, LargeText):
        return splits

    def encode_part(text: Any) -> Mixture | None:
        return Mixture(text.encode_files(tokenizer, documents=documents)) if text else None

    whole, test = encode_part(splits.train), encode_part(splits.test)
    valid = None if splits.valid is splits.train else encode_part(splits.valid)
    assert whole is not None
    apart = [part for part in (valid, test) if part]
    notes = [Message("{path}: {n} bad row(s) left out", path=shard.index["source"], n=shard.index["bad_rows"])
             for part in (whole, *apart) for shard in part.shards if shard.index["bad_rows"]]
    notes += [note for part in apart for note in note_familiar(part.shards[0].index["source"], whole, part)]
    train, held = (whole, valid) if valid else whole.split(share=0.1, most=200_000)
    return replace(splits, train=train, valid=held, test=test or (), notes=(*splits.notes, *notes))


def plain_text(path: Path, policy: BadRowPolicy, key: str = "") -> str:
    """The text of a file; of JSON lines the `text` of each, with a blank line between, which parts documents.

    A `key` says that the file is JSON lines, whatever its name, and where in them the text is.
    """
    if not key and find_suffix(path) not in sources.JSON:
        return sources.read_document(path, policy=policy)
    return "\n\n".join(text for _, text in sources.read_texts(path, key or "text", policy=policy))


def talk_rows(path: Path, *, policy: BadRowPolicy | None = None) -> Iterator[tuple[int, Talk]]:
    """The conversation of each line, a JSON object in one of the forms that `list_messages` reads, or of each row of
    Parquet; and its number. The text of a message may come in parts; they are joined.

    Raises:
        QkvError: a line that is not one, a message without role or text, a part that is not text, or no answer of an
            assistant; with its line.
    """
    if find_suffix(path) == ".parquet":
        table = hf_datasets.open_dataset(str(path))["train"]
        return hf_datasets.parse_rows(table, talk_of, name=str(path), policy=policy)
    return sources.read_rows(path, lambda text, place: talk_of(sources.parse_object(text, place), place), policy=policy)


def talk_of(item: Mapping[str, Any], place: str) -> Talk:
    """The conversation that a row holds; QkvError as `talk_rows` says."""
    said = list_messages(item)
    if said is None:
        found = ", ".join(item) or Message("none")
        hint = nearest("messages", item)
        raise QkvError("{place}: no key 'messages'{hint} (found: {found})", place=place, hint=hint, found=found)
    try:
        talk = tuple(check_messages(said))
    except QkvError as e:
        raise QkvError("{place}: {e}", place=place, e=e) from None
    talk = tuple(
        {**m, "content": message_text(m, f"{place}: message {n} of {len(talk)}")} for n, m in enumerate(talk, 1)
    )
    if not any(m["role"] == "assistant" for m in talk):
        found = ", ".join(dict.fromkeys(repr(m["role"]) for m in talk))
        raise QkvError("{place}: no message has the role 'assistant', so there is no answer to learn from (found: "
                       "{found})", place=place, found=found)
    return talk


def message_text(message: Mapping[str, Any], where: str) -> str:
    """The text of a message: its content, or the text of its parts joined; QkvError if it is neither."""
    content, parts = message.get("content"), list[str]()
    for part in content if isinstance(content, list) else [{"type": "text", "text": content or ""}]:
        kind, text = (part.get("type"), part.get("text")) if isinstance(part, Mapping) else (type(part).__name__, None)
        if kind != "text" or not isinstance(text, str):
            raise QkvError('{where}: found a part of type {kind!r}, expected {{"type": "text", "text": …}}; fix the '
                           "row, or skip such rows with on_bad_row", where=where, kind=kind)
        parts.append(text)
    if not (text := "".join(parts)).strip():
        calls = Message("; its tool calls (tool_calls) are not trained on") if message.get("tool_calls") else ""
        raise QkvError("{where}, of {role!r}, is empty{calls}; fix the row, or skip such rows with on_bad_row",
                       where=where, role=message["role"], calls=calls)
    return text
