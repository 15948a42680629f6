"""What a run reads: data for training, validation and test, and how some are held out. Next: files.py."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.data import download
from qkv.data.shards import Mixture
from qkv.errors import QkvError
from qkv.paths import cache_dir, data_dir

Pair = tuple[str, str]
Talk = tuple[dict[str, Any], ...]  # messages, each {"role": …, "content": …}


@dataclass(frozen=True)
class Splits:
    """The data of a run: pairs of (source, target), the text of a language model, or conversations."""

    train: Sequence[Any] | str | Mixture  # pairs, or conversations: a Talk each
    valid: Sequence[Any] | str | Mixture
    test: Sequence[Any] | str | Mixture = ()
    notes: tuple[str, ...] = ()  # what was skipped, to be reported before the run
    often: NDArray[np.float64] | None = None  # how many times each row of train comes in an epoch; without it once

    @property
    def kind(self) -> str:
        """What these data are: plain text, conversations, or pairs."""
        if isinstance(self.train, str):
            return "plain text"
        if isinstance(self.train, Mixture):
            return "token shards"
        return "conversations" if self.train and isinstance(self.train[0][0], dict) else "pairs"


def held_out(pairs: Sequence[Pair], count: int, apart: str) -> tuple[list[Pair], list[Pair]]:
    """(rest, held out): about `count` pairs chosen by the hash of their `apart` side, with all that share its text."""
    side = 1 if apart == "target" else 0
    texts = sorted({p[side] for p in pairs}, key=lambda t: (zlib.crc32(t.encode("utf-8")), t))
    copies: dict[str, int] = {}
    for pair in pairs:
        copies[pair[side]] = copies.get(pair[side], 0) + 1
    chosen, taken = set[str](), 0
    for text in texts:
        if taken >= min(count, len(pairs) // 5):  # small data keep four fifths for training
            break
        chosen.add(text)
        taken += copies[text]
    return [p for p in pairs if p[side] not in chosen], [p for p in pairs if p[side] in chosen]


def text_splits(text: str, *, share: float) -> Splits:
    """The last `share` of a text is for validation."""
    cut = int(len(text) * (1 - share))
    return Splits(text[:cut], text[cut:])


def find_data_file(*parts: str) -> Path:
    """A file of the folder of real data, or of what `qkv data get` fetched; QkvError says where it should lie."""
    path, fetched = data_dir().joinpath(*parts), (cache_dir() / "data").joinpath(*parts)
    if not path.is_file() and not fetched.is_file():
        sets = [
            name for name, known in download.list_sets().items() if any(f.path == "/".join(parts) for f in known.files)
        ]
        get = f"qkv data get {sets[0]}" if sets else ""
        if sets:
            raise QkvError("{path}: no such file. {get} fetches it; or set QKV_DATA to the folder that holds {parts}/",
                           path=path, get=get, parts=parts[0])
        raise QkvError("{path}: no such file. Set QKV_DATA to the folder that holds {parts}/", path=path,
                       parts=parts[0])
    return path if path.is_file() else fetched
