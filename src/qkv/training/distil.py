"""Pairs that a translator makes of pairs: what it writes for their sources, or sources it writes for their targets.

A model that learns them too meets each sentence in more than one wording: sequence-level distillation (Kim & Rush
2016), back-translation (Sennrich et al. 2016), both together (Nguyen et al. 2020). Files in, files of that form out.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from qkv.data.bad_rows import BadRowPolicy
from qkv.errors import QkvError
from qkv.files import write_text_file
from qkv.model import Model
from qkv.tasks.types import Result
from qkv.training.data_files import Data
from qkv.training.splits import Pair

BROKEN = "\ufffd"  # what decoding writes for bytes that are not a character
FEW = 200  # pairs that show whether a model is of this direction
BATCH = 2000  # pairs at a time: enough to sort by length, few enough to show progress


@dataclass(frozen=True)
class Teacher:
    """A translator, the side of a pair that it `writes` from the other, and its `nbest` translations of beam search;
    the models of `ensemble` search with it."""

    model: Model
    writes: Literal["target", "source"] = "target"
    beam: int = 5
    nbest: int = 1
    length_penalty: float = 1.0
    ensemble: Sequence[Model] = ()

    def pairs(self, given: Sequence[Pair]) -> list[list[Pair]]:
        """Of each pair those with the side that was written: `nbest` or fewer, none where nothing could be.

        Raises:
            QkvError: the model does not translate, or nbest is more than beam.
        """
        read = [pair[self.writes == "source"] for pair in given]
        how = {"beam": self.beam, "nbest": self.nbest, "length_penalty": self.length_penalty}
        said = self.model.translate(read, **how, **({"ensemble": self.ensemble} if self.ensemble else {}))
        found = [[] if r.unknown else self.texts(r) for r in said]
        if self.writes == "source":
            return [[(text, kept) for text in texts] for (_, kept), texts in zip(given, found, strict=True)]
        return [[(kept, text) for text in texts] for (kept, _), texts in zip(given, found, strict=True)]

    def texts(self, result: Result) -> list[str]:
        """The translations that end, the best first, each on one line and once; none with half of a character in it."""
        lines = (" ".join(self.format_text(r).split()) for r in (result, *result.others) if r.finish_reason == "stop")
        return list(dict.fromkeys(line for line in lines if line and BROKEN not in line))

    def format_text(self, result: Result) -> str:
        """A translation as a text that is read as the tokens that were written, cut as the model's own texts are."""
        tokenizer = self.model.tokenizer
        assert tokenizer is not None  # it translated text
        written = [i for i in result.tokens if i not in self.model.special.eos]
        cut = " ".join(map(tokenizer.token, written))
        read, again = tokenizer.encode_batch([result.text, cut], special=False, side="target")
        return cut if read != written == again else result.text


@dataclass(frozen=True)
class Made:
    """A file, or two parallel ones, that were written: pairs read, pairs written, pairs for which nothing was."""

    files: tuple[Path, ...]
    read: int
    written: int
    without: int


def write_pairs(
    teacher: Teacher, data: Data, out: Path, tell: Callable[[int, int], None] | None = None,
    doubt: Callable[[str, float, float], None] | None = None,
) -> list[Made]:
    """For each file of pairs one of the same name in `out`; each is whole or not there.

    `tell` gets (read, all). `doubt` gets (file, chrF with the pairs' own side, chrF with what was read) as soon as
    what is written is more like what was read, as that of a model of the other direction is.

    Raises:
        QkvError: data of another kind, a bad row (with its line), a file that would be written over, or a teacher
            that writes nothing.
    """
    sets = split_sets(data, out)
    with BadRowPolicy(data.on_bad_row, out / data.quarantine) as policy:
        whole = [[row for _, row in one.read_rows(Path(), policy)] for one in sets]
    done, made = 0, list[Made]()
    for one, rows in zip(sets, whole, strict=True):
        pairs, without, left = list[Pair](), 0, iter(rows)
        while some := list(islice(left, BATCH)):
            found = teacher.pairs(some)
            own, read = compare_pairs(some, found, teacher.writes) if doubt and not pairs else (0.0, 0.0)
            if doubt and read > own:
                doubt(one.name, own, read)
            pairs += [pair for many in found for pair in many]
            without += sum(not many for many in found)
            done += len(some)
            if tell is not None:
                tell(done, sum(map(len, whole)))
        if not pairs:
            raise QkvError("{name}: the model finished no translation of {rows:,} texts; is it trained well enough, "
                           "and for this direction?", name=one.name, rows=len(rows))
        write_rows(one, pairs, out)
        made.append(Made(name_outputs(one, out), len(rows), len(pairs), without))
    return made


def split_sets(data: Data, out: Path) -> list[Data]:
    """Each file of pairs by itself, where all of them may be written.

    Raises:
        QkvError: data of another kind, or a file that would be written over.
    """
    if data.is_text or data.messages or data.dataset:
        raise QkvError("expected pairs: TSV, JSON lines with two texts, or two parallel files")
    sets = list(data.split_files())
    goal = [place for one in sets for place in name_outputs(one, out)]
    for place in goal:
        if goal.count(place) > 1:
            raise QkvError("{place}: two of the files would be written there; give them different names", place=place)
        if place.exists():
            raise QkvError("{place}: exists already; remove it or give another --out", place=place)
    return sets


def compare_pairs(given: Sequence[Pair], found: Sequence[Sequence[Pair]], side: str) -> tuple[float, float]:
    """chrF (Popović 2015) of the best text of each pair: with the pair's own, with what was read."""
    from sacrebleu.metrics.chrf import CHRF

    w = int(side == "target")
    rows = [(pair, many[0][w]) for pair, many in zip(given, found, strict=True) if many][:FEW]
    texts = [text for _, text in rows]
    own, read = (CHRF().corpus_score(texts, [[p[i] for p, _ in rows]]).score if rows else 0.0 for i in (w, 1 - w))
    return own, read


def name_outputs(one: Data, out: Path) -> tuple[Path, ...]:
    """Where the pairs of one file, or of two parallel ones, go."""
    return tuple(out / Path(name).name for name in ((one.name, one.target[0]) if one.source else (one.name,)))


def write_rows(one: Data, pairs: Sequence[Pair], out: Path) -> None:
    """Pairs in the form of the file that they were made of: its columns or its keys, and nothing else."""
    if one.source:
        for side, place in enumerate(name_outputs(one, out)):
            write_text_file(place, "".join(f"{pair[side]}\n" for pair in pairs))
        return
    (place,) = name_outputs(one, out)
    if one.tsv:
        a, b = one.columns
        rows = ("\t".join({a: x, b: y}.get(n, "") for n in range(max(a, b) + 1)) for x, y in pairs)
    else:
        rows = (json.dumps(dict(zip(one.keys, pair, strict=True)), ensure_ascii=False) for pair in pairs)
    write_text_file(place, "".join(f"{row}\n" for row in rows))
