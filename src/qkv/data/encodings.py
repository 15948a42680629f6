"""In which encoding a line may be that is not UTF-8, and in which scripts a text is written."""

import unicodedata
from collections import Counter

from qkv.messages import Message


def describe_encoding(raw: bytes, bad: int, wide: int) -> Message:
    """The message about `bad` lines that are not UTF-8, the first of them `raw`, beside `wide` lines beyond ASCII."""
    looks = guess_encoding(raw)
    if wide:
        return Message("mixed encodings: {wide} lines are UTF-8 beyond ASCII, and {bad} are not; the first of these "
                       "looks like {looks}", wide=wide, bad=bad, looks=looks or Message("no text"))
    if looks:
        how = f"iconv -f {looks} -t UTF-8"
        return Message("not UTF-8, looks like {looks}: {how}", looks=looks, how=how)
    return Message("neither UTF-8 nor text in another known encoding")


def guess_encoding(raw: bytes) -> str:
    """The likely encoding of a line that is not UTF-8, as iconv calls it."""
    for name in ("GB18030", "BIG5", "SHIFT_JIS"):
        try:
            text = raw.decode(name)
        except UnicodeDecodeError:
            continue
        wide = [c for c in text if not c.isascii()]
        common = sum("\u4e00" <= c <= "\u9fff" or "\u3000" <= c <= "\u30ff" or "\uff00" <= c <= "\uffef" for c in wide)
        if len(wide) > 1 and common >= 0.8 * len(wide):
            return name
    return "CP1252" if all(byte >= 32 or byte in b"\t\r\f" for byte in raw) else ""


def count_scripts(letters: Counter[str]) -> dict[str, float]:
    """The share of each script among the letters, largest first."""
    found = Counter[str]()
    for letter, count in letters.items():
        if unicodedata.category(letter).startswith("L"):
            found[unicodedata.name(letter, "unknown").split(" ")[0].split("-")[0].capitalize()] += count
    total = found.total()
    return {("Han" if name == "Cjk" else name): round(count / total, 4) for name, count in found.most_common(8)}
