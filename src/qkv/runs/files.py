"""Your own files, as a TOML file's [data] names them, read and split. Next: own.py, which makes a run of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from qkv.data import shards, sources, tables
from qkv.data.check import leaked
from qkv.data.shards import Mixture
from qkv.errors import QkvError, nearest
from qkv.runs.splits import Splits, Talk, held_out, text_splits
from qkv.text.chat import checked


@dataclass(frozen=True)
class Data:
    """Your own files, as a TOML file names them: two parallel ones, one of pairs (tsv, jsonl), plain text,
    conversations (JSON lines with `messages`, a list of {"role": …, "content": …}), folders of token shards, or a data
    set that the `datasets` library opens: pairs by two keys, texts by one.
    """

    source: str = ""
    target: str = ""
    tsv: str = ""
    jsonl: str = ""
    text: str = ""
    messages: str = ""
    shards: tuple[str, ...] = ()  # folders that `qkv data pack` wrote
    weights: tuple[float, ...] = ()  # how likely a window comes from each; without them by their size
    dataset: str = ""  # NAME or NAME:CONFIG of the hub, a folder that save_to_disk wrote, or files of rows
    columns: tuple[int, int] = (0, 1)
    keys: tuple[str, ...] = ("source", "target")
    valid_source: str = ""
    valid_target: str = ""
    test_source: str = ""
    test_target: str = ""
    valid_file: str = ""  # of the same form as tsv, jsonl, text or messages
    test_file: str = ""
    valid: int = 500  # pairs held out where no file is named; of a text it is always the last tenth
    test: int = 0
    apart: Literal["source", "target"] = "source"  # no held-out text of this side occurs in training
    on_bad_row: Literal["error", "skip", "quarantine"] = "error"  # quarantine: put aside, into the file named next
    quarantine: str = "quarantine.jsonl"
    overlap: Literal["error", "drop", "keep"] = "error"  # held-out pairs in the training files; drop: not trained on

    def splits(self, folder: Path) -> Splits:
        """The files' content, split.

        Raises:
            QkvError: none or more than one kind of data is named, or a file is broken (with its line).
        """
        kinds = ("source", "tsv", "jsonl", "text", "messages", "shards", "dataset")
        named = [k for k in kinds if getattr(self, k)]
        if len(named) != 1 or bool(self.source) != bool(self.target):
            found = ", ".join(named) or "none"
            raise QkvError(f"data: found {found}, expected one of: source and target, {', '.join(kinds[1:])}")
        if len(self.keys) != 2 and not (self.dataset and len(self.keys) == 1):
            raise QkvError(f"data.keys: found {len(self.keys)} keys, expected two; one for the texts of a dataset")
        if self.shards:
            return self.mixed(folder)
        with sources.Sieve(self.on_bad_row, folder / self.quarantine) as sieve:
            if self.dataset:
                return self.tabled(folder, sieve)
            if self.text:
                whole = plain_text(folder / self.text, sieve)
                valid = plain_text(folder / self.valid_file, sieve) if self.valid_file else ""
                both = Splits(whole, valid) if valid else text_splits(whole, share=0.1)
                said = leaked(folder / self.text, folder / self.valid_file) if valid else ()
                return replace(both, notes=(*sieve.notes, *said))
            if self.messages:
                return self.talks(folder, sieve)
            pairs = [pair for _, pair in self.rows(folder, sieve)]
            test, valid = self.named(folder, "test", sieve), self.named(folder, "valid", sieve)
        pairs, said = self.unseen(folder, pairs, [*(test or ()), *(valid or ())])
        notes = (*sieve.notes, *said)
        if test is None:
            pairs, test = held_out(pairs, self.test, self.apart)
        if valid is None:
            pairs, valid = held_out(pairs, self.valid, self.apart)
        return Splits(pairs, valid, test, notes)

    @property
    def textual(self) -> bool:
        """Whether a language model learns these data, and not pairs."""
        return bool(self.text or self.shards or (self.dataset and len(self.keys) == 1))

    def mixed(self, folder: Path) -> Splits:
        """The shards; without `valid_file`, another folder, the end of each is held out: a tenth, or 200,000 tokens."""
        whole = Mixture(tuple(map(shards.read, (folder / name for name in self.shards))), self.weights)
        if self.valid_file:
            return Splits(whole, Mixture((shards.read(folder / self.valid_file),)))
        return Splits(*whole.split(share=0.1, most=200_000))

    def tabled(self, folder: Path, sieve: sources.Sieve) -> Splits:
        """The splits of a dataset: train, and validation and test where it has them."""
        local = folder / self.dataset
        found = tables.opened(str(local) if local.exists() else self.dataset)
        if "train" not in found:
            raise QkvError(f"data.dataset {self.dataset!r}: no split 'train' (found: {', '.join(found)})")
        rows = {name: list(tables.texts(found[name], self.keys, name=f"{self.dataset}/{name}", sieve=sieve))
                for name in ("train", "validation", "test") if name in found}  # fmt: skip
        notes = tuple(sieve.notes)
        if self.textual:
            whole, valid = ("\n\n".join(t for (t,) in rows.get(name, [])) for name in ("train", "validation"))
            return replace(Splits(whole, valid) if valid else text_splits(whole, share=0.1), notes=notes)
        pairs: list[Any] = rows["train"]
        test: Any = rows.get("test", ())
        if valid := rows.get("validation"):
            return Splits(pairs, valid, test, notes)
        return Splits(*held_out(pairs, self.valid, self.apart), test, notes)

    def talks(self, folder: Path, sieve: sources.Sieve) -> Splits:
        """The conversations, split: some are held out by their hash where no file is named, with all their copies."""
        rows: list[Any] = [talk for _, talk in self.rows(folder, sieve)]
        test, valid = (self.named(folder, which, sieve) for which in ("test", "valid"))
        rows, said = self.unseen(folder, rows, [*(test or ()), *(valid or ())])
        if valid is None:
            whole: Any = [(repr(talk), talk) for talk in rows]
            rows, valid = ([talk for _, talk in part] for part in held_out(whole, self.valid, "source"))
        return Splits(rows, valid, test or (), (*sieve.notes, *said))

    def rows(self, folder: Path, sieve: sources.Sieve) -> Iterator[tuple[int, Any]]:
        """The pairs or conversations to train on, each with its line."""
        if self.messages:
            return talk_rows(folder / self.messages, sieve=sieve)
        if self.source:
            return sources.pair_rows(folder / self.source, folder / self.target, sieve=sieve)
        if self.tsv:
            return sources.tsv_rows(folder / self.tsv, self.columns, sieve=sieve)
        return sources.jsonl_rows(folder / self.jsonl, (self.keys[0], self.keys[1]), sieve=sieve)

    def unseen(self, folder: Path, rows: list[Any], held: Sequence[Any]) -> tuple[list[Any], tuple[str, ...]]:
        """The training rows that are not held out too, or all of them where `overlap` says so; and what is said."""
        known = {repr(row) for row in held}
        count = sum(repr(row) in known for row in rows) if known else 0
        if not count:
            return rows, ()
        said = self.seen_twice(folder, known, count)
        return rows if self.overlap == "keep" else [row for row in rows if repr(row) not in known], (said,)

    def seen_twice(self, folder: Path, known: set[str], count: int) -> str:
        """What is said about held-out rows in training: a note, or an error with both lines."""
        name, sieve = self.source or self.tsv or self.jsonl or self.messages, sources.Sieve("skip")
        line, row = next((n, row) for n, row in self.rows(folder, sieve) if repr(row) in known)
        held = next(
            f"{folder / (apart.source or apart.tsv or apart.jsonl or apart.messages)}:{n}"
            for which in ("valid", "test")
            if (apart := self.apart_from(which))
            for n, other in apart.rows(folder, sieve)
            if other == row
        )
        what = "conversation" if self.messages else "pair"
        said = f"{folder / name}:{line}: this {what} is held out too ({held}); {count} training rows are"
        if self.overlap == "error":
            raise QkvError(f"{said}: the evaluation would flatter the model. overlap = \"drop\" leaves them out of "
                           "training, overlap = \"keep\" trains on them all the same")  # fmt: skip
        return f"{said}; {'left out of training' if self.overlap == 'drop' else 'trained on all the same'}"

    def named(self, folder: Path, which: str, sieve: sources.Sieve) -> list[Any] | None:
        """The rows of a split that has files of its own."""
        apart = self.apart_from(which)
        return [row for _, row in apart.rows(folder, sieve)] if apart else None

    def apart_from(self, which: str) -> "Data | None":
        """The same kind of data in the files of a split of its own; None where no file is named."""
        one, two, file = (getattr(self, f"{which}_{part}") for part in ("source", "target", "file"))
        if file and self.source:
            raise QkvError(f"data: {which}_file goes with tsv or jsonl; name {which}_source and {which}_target")
        if bool(one) != bool(two):
            raise QkvError(f"data: {which}_source and {which}_target belong together; found only one of them")
        if file:
            kind = "messages" if self.messages else "tsv" if self.tsv else "jsonl"
            return replace(self, **{kind: file})  # type: ignore[arg-type]
        return replace(self, source=one, target=two, tsv="", jsonl="") if one else None


def plain_text(path: Path, sieve: sources.Sieve) -> str:
    """The text of a file; of JSON lines the `text` of each, with a blank line between, which parts documents."""
    if path.suffix.lower() not in sources.JSON:
        return sources.document(path, sieve=sieve)
    return "\n\n".join(text for _, text in sources.text_rows(path, sieve=sieve))


def talk_rows(path: Path, *, sieve: sources.Sieve | None = None) -> Iterator[tuple[int, Talk]]:
    """The conversation of each line, a JSON object with `messages`, and the line.

    Raises:
        QkvError: a line that is none, a message without role or text, or no answer of an assistant; with its line.
    """

    def parse(text: str, place: str) -> Talk:
        item = sources.json_object(text, place)
        if "messages" not in item:
            found = ", ".join(item) or "none"
            raise QkvError(f"{place}: no key 'messages'{nearest('messages', item)} (found: {found})")
        try:
            talk = tuple(checked(item["messages"]))  # type: ignore[arg-type]
        except QkvError as e:
            raise QkvError(f"{place}: {e}") from None
        for n, m in enumerate(talk, 1):
            if not str(m.get("content") or "").strip() and not m.get("tool_calls"):
                raise QkvError(f"{place}: message {n} of {len(talk)}, of {m['role']!r}, is empty; mend the row, or "
                               "leave such rows out: on_bad_row")  # fmt: skip
        if not any(m["role"] == "assistant" for m in talk):
            raise QkvError(f"{place}: no message has the role 'assistant', so there is no answer to learn from")
        return talk

    return sources.rows(path, parse, sieve=sieve)
