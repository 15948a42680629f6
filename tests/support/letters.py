"""A tokenizer with one token per character, and the cosine of two vectors by hand."""

import math
from collections.abc import Sequence

WORDS = [*"abcdefghijklmnopqrstuvwxyz", *"中国北京日本东京苹果华为香蕉它书茶", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ"]


class Letters:
    """One token per character."""

    def __len__(self) -> int:
        return len(WORDS)

    def encode(self, text: str, *, special: bool = True, side: str = "source") -> list[int]:
        return [*(WORDS.index(c) for c in text), *([3] if special else [])]

    def pieces(self, ids: Sequence[int], *, side: str = "target") -> list[str]:
        return [WORDS[i] for i in ids]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return "".join(WORDS[i] for i in ids)


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
