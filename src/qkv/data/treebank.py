"""Sentences as trees in brackets, as the Penn Treebank writes them, with a label at each node: every phrase is a row.

`(3 (2 a) (4 (3 fine) (2 film)))` holds five phrases: "a fine film" has label 3, "fine film" 4 and each word its own.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from qkv.data import sources
from qkv.errors import QkvError

Phrase = tuple[str, int]  # its words with blanks between, its label
ESCAPES = {
    "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "\\/": "/", "\\*": "*"
}  # fmt: skip
ESCAPED = re.compile("|".join(map(re.escape, ESCAPES)), re.IGNORECASE)
PARTS = re.compile(r"[()]|[^\s()]+")


def unescaped(text: str) -> str:
    """A text whose brackets, slashes and stars are written as themselves; trees have -LRB- for ( and so on."""
    return ESCAPED.sub(lambda found: ESCAPES[found[0].upper()], text)


def phrases(
    path: Path, *, labels: int = 5, sieve: sources.Sieve | None = None
) -> Iterator[tuple[int, list[Phrase]]]:
    """The line of each tree and its phrases, inner ones before those that hold them: the last is the sentence.

    Raises:
        QkvError: a line that is no tree, or a label that is none of `labels` counted from 0 (with file and line).
    """
    return sources.rows(path, lambda text, place: tree(text, labels, place), sieve=sieve)


def tree(text: str, labels: int, place: str) -> list[Phrase]:
    """The phrases of one tree; QkvError says what is wrong and at which character of the line."""
    done: list[Phrase] = []
    held: list[tuple[int, list[str]]] = []  # the nodes that are open: their labels, and what they hold so far
    opened = False  # a bracket for which a label must follow
    for found in PARTS.finditer(text):
        part, where = found[0], f"{place}: character {found.start() + 1}"
        if opened:
            held.append((label(part, labels, where), []))
            opened = False
        elif done and not held:
            raise QkvError(f"{where}: found {part!r} behind the end of the tree, expected one tree a line",
                           zh=f"{where}：树结束之后还有 {part!r}，应是每行一棵树")  # fmt: skip
        elif part == "(":
            opened = True
        elif not held:
            raise QkvError(f"{where}: found {part!r}, expected a tree such as (3 (2 a) (4 film))",
                           zh=f"{where}：是 {part!r}，应是这样的树：(3 (2 a) (4 film))")  # fmt: skip
        elif part == ")":
            number, words = held.pop()
            if not words:
                raise QkvError(f"{where}: a node ends without a word", zh=f"{where}：一个节点没有词就结束了")
            done.append((" ".join(words), number))
            if held:
                held[-1][1].append(done[-1][0])
        else:
            held[-1][1].append(unescaped(part))
    if held or opened:
        raise QkvError(f"{place}: the line ends with {len(held) + opened} bracket(s) open",
                       zh=f"{place}：这一行结束时还有 {len(held) + opened} 个括号没有合上")  # fmt: skip
    return done


def label(text: str, labels: int, where: str) -> int:
    """The number behind a bracket."""
    if text.isascii() and text.isdigit() and int(text) < labels:
        return int(text)
    raise QkvError(f"{where}: found {text!r} behind a bracket, expected a label from 0 to {labels - 1}",
                   zh=f"{where}：括号后面是 {text!r}，应是 0 到 {labels - 1} 的标签")  # fmt: skip
