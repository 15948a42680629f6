"""Write the corpus that the package ships, src/qkv/data/corpus/*.gz, as tools/corpus generates it."""

import gzip
import json
from collections.abc import Sequence
from typing import Any

import size
from corpus import generate, lm_text

from qkv.data.corpus import PAIRS, TEXT, Corpus, Pair


def columns_of(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Pairs as columns, which compress better than rows; `kind` and `label` are numbers of their names."""
    names = {key: sorted({getattr(p, key) for p in pairs}) for key in ("kind", "label")}
    numbers = {key: [known.index(getattr(p, key)) for p in pairs] for key, known in names.items()}
    return {"zh": [p.zh for p in pairs], "en": [p.en for p in pairs], **numbers,
            **{f"{key}s": known for key, known in names.items()}}  # fmt: skip


def pack(c: Corpus) -> str:
    """The corpus as JSON."""
    place = {p.zh: i for i, p in enumerate(c.train)}
    splits = {name: columns_of(getattr(c, name)) for name in ("train", "valid", "test", "longer", "showcase")}
    swaps = [list(vars(s).values()) for s in c.swaps]
    small = [place[p.zh] for p in c.small]
    found = {**splits, "swaps": swaps, "small": small, "words_zh": c.words_zh, "words_en": c.words_en}
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    folder = size.PACKAGE / "data" / "corpus"
    for name, text in ((PAIRS, pack(generate())), (TEXT, lm_text())):
        (folder / name).write_bytes(gzip.compress(text.encode("utf-8"), 9, mtime=0))
        print(f"{folder / name}: {(folder / name).stat().st_size:,} bytes")
