"""BPE dropout: merges are left out at random, so that training sees a word cut in many ways (Provilkov et al. 2020).

A cut is a function of the word and of the numbers that are drawn for it; evaluation and use never draw any.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, count, pairwise
from pathlib import Path

import numpy as np
import tokenizers

from qkv.errors import QkvError
from qkv.messages import Message
from qkv.tokenizers.backends import guard_panics
from qkv.tokenizers.tokenizer import Tokenizer

END, JOINT = "</w>", "@@"  # of subword-nmt: behind the last character in merges, behind all but the last piece in text
MANY = 100_000  # cuts that are remembered at a time, about 100 MB
Word = tuple[str, ...]  # a word in pieces; merging begins with its characters
Ranks = dict[tuple[str, str], int]


def read_merges(path: Path) -> Ranks:
    """The merges of a file that subword-nmt wrote, the first one to be made first.

    Raises:
        QkvError: no such file, another version, or a line that is not a pair.
    """
    try:
        first, *lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except OSError as e:
        raise QkvError("{path}: no merges could be read ({strerror})", path=path, strerror=e.strerror) from None
    if first.strip() != "#version: 0.2":
        raise QkvError("{path}:1: found {first!r}, expected '#version: 0.2', as subword-nmt writes it", path=path,
                       first=first[:40])
    ranks: Ranks = {}
    for number, line in enumerate(lines, 2):
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2:
            raise QkvError("{path}:{number}: found {line!r}, expected two pieces with a space between", path=path,
                           number=number, line=line[:40])
        ranks.setdefault((pair[0], pair[1]), number)
    return ranks


def join_parts(text: str) -> Iterator[str]:
    """The words of a text whose pieces have @@ behind all but the last of a word."""
    held = ""
    for piece in text.split():
        held += piece.removesuffix(JOINT)
        if not piece.endswith(JOINT):
            yield held
            held = ""
    if held:
        yield held


def list_pieces(words: Iterable[str], ranks: Ranks) -> list[str]:
    """All that dropout can make of the words, as merges have it: characters, and what merges build of them."""
    built = {a + b for a, b in ranks}
    found = dict[str, None]()
    for word in dict.fromkeys(words):
        symbols = (*word[:-1], word[-1] + END)
        for start, symbol in enumerate(symbols):
            found[symbol] = None
            found |= dict.fromkeys(whole for whole in accumulate(symbols[start:]) if whole in built)
    return list(found)


def spell(symbol: str) -> str:
    """A piece as text has it: the joint behind it, or nothing where it ends its word."""
    return symbol.removesuffix(END) if symbol.endswith(END) else symbol + JOINT


def merge_at(word: Word, place: int) -> Word:
    """The cut with two neighbouring pieces made one."""
    return (*word[:place], word[place] + word[place + 1], *word[place + 2 :])


class Trials:
    """Chances to leave something out, each with the probability `share`; `kept` of them pass before the next hit."""

    def __init__(self, generator: np.random.Generator, share: float) -> None:
        self.gaps = (gap for _ in count() for gap in (generator.geometric(share, 32) - 1).tolist())
        self.kept = next(self.gaps)

    def keeps(self) -> bool:
        """One trial: whether the thing stays."""
        stays = self.kept > 0
        self.kept = self.kept - 1 if stays else next(self.gaps)
        return stays


class BpeDropout:
    """Splits the words of texts again: at each step the best merge that is not skipped is made.

    Nothing more is merged when all that are possible are left out (algorithm 1 of the paper). A vocabulary of kind
    `bpe` has merges of its own; for text that is cut with @@ already, `ranks` has them, see `read_merges`.

    Raises:
        QkvError: a vocabulary without merges.
    """

    def __init__(self, tokenizer: Tokenizer, ranks: Ranks | None = None) -> None:
        self.tokenizer, self.jointed = tokenizer, ranks is not None
        with guard_panics(Message("the tokenizer's merges cannot be read")):
            model = json.loads(tokenizer.backend.to_str())["model"]
        if ranks is None:
            if model["type"] != "BPE" or model.get("continuing_subword_prefix"):
                raise QkvError("a vocabulary of kind {type_} has no merges for dropout to skip: use "
                               "tokenizer.kind=bpe, or kind split with tokenizer.merges=FILE", type_=model["type"])
            pairs = (row.split(" ") if isinstance(row, str) else row for row in model["merges"])
            ranks = {(a, b): i for i, (a, b) in enumerate(pairs)}
        self.ranks, self.end = ranks, END if self.jointed else model.get("end_of_word_suffix") or ""
        self.paths: dict[Word, list[Word]] = {}
        self.usual: dict[str, Word | None] = {}  # words as characters; None: not cut by these merges, so never cut anew

    def split_texts(self, texts: Sequence[str]) -> list[list[Word | int]]:
        """Each text as words to cut, and ids that stay: the template's, special ones, and words of another cut.

        Raises:
            QkvError: most words are not cut by these merges, or the vocabulary lacks a piece that may come of them.
        """
        with guard_panics(Message("the tokenizer cannot read these texts")):
            found = self.tokenizer.backend.encode_batch(list(texts))
        read = [list(self.split_text(text, one)) for text, one in zip(texts, found, strict=True)]
        if not self.jointed:  # its merges are the vocabulary's own
            return read
        other = [word for word, known in self.usual.items() if known is None]
        if 2 * len(other) > len(self.usual):
            raise QkvError("{other} of {usual} words, such as {other2!r}, are split differently by these merges; do "
                           "they belong to this text?", other=len(other), usual=len(self.usual), other2=other[0])
        for piece in list_pieces((word for word, known in self.usual.items() if known), self.ranks):
            self.look_up(piece)
        return read

    def split_text(self, text: str, found: tokenizers.Encoding) -> Iterator[Word | int]:
        """The words of one text, and the ids between them."""
        held: list[tuple[int, str]] = []  # ids and pieces of the word in hand
        last: int | None = None
        rows = zip(found.ids, found.tokens, found.word_ids, found.offsets, strict=True)
        for number, token, place, (start, end) in rows:
            goes_on = held[-1][1].endswith(JOINT) if held and self.jointed else place == last
            if held and (place is None or not goes_on):
                yield from self.word(held)
                held = []
            if place is None:  # the template's own
                yield number
            else:
                held.append((number, text[start:end] if self.jointed else token))
            last = place
        if held:
            yield from self.word(held)

    def word(self, held: Sequence[tuple[int, str]]) -> Iterable[Word | int]:
        """A word as its characters where its pieces are what the merges make of it, else the ids of the pieces."""
        ids, given = [i for i, _ in held], tuple(piece for _, piece in held)
        text = "".join(piece.removesuffix(JOINT) if self.jointed else piece for piece in given)
        if text not in self.usual:
            bare = text.removesuffix(self.end)
            word = (*bare[:-1], bare[-1:] + self.end)
            self.usual[text] = word if tuple(map(self.spell, self.merge_fully(word)[-1])) == given else None
        word = self.usual[text]
        return ids if word is None else [word]

    def spell(self, symbol: str) -> str:
        """A piece as the vocabulary has it."""
        return spell(symbol) if self.jointed else symbol

    def cut_word(self, word: Word, trials: Trials) -> Word:
        """The pieces of a word in characters; a trial for each possible merge, the best first, may leave it out."""
        while True:
            path = self.merge_fully(word)
            if trials.kept >= len(path) - 1:
                trials.kept -= len(path) - 1
                return path[-1]
            word, trials.kept = path[trials.kept], 0
            place = next((i for i in self.places(word) if trials.keeps()), None)
            if place is None:
                return word
            word = merge_at(word, place)

    def merge_fully(self, word: Word) -> list[Word]:
        """The cuts of a word from this one on, if nothing is left out."""
        if word not in self.paths:
            if len(self.paths) >= MANY:
                self.paths.clear()
            found = [word]
            while places := self.places(found[-1]):
                found.append(merge_at(found[-1], places[0]))
            self.paths[word] = found
        return self.paths[word]

    def places(self, word: Word) -> list[int]:
        """Where two pieces of a cut can be merged, the best place first."""
        ranked = [(self.ranks[pair], i) for i, pair in enumerate(pairwise(word)) if pair in self.ranks]
        return [i for _, i in sorted(ranked)]

    def ids_of(self, read: Iterable[Word | int], trials: Trials) -> list[int]:
        """The ids of a text that was read, its words split again."""
        found: list[int] = []
        for part in read:
            found += [part] if isinstance(part, int) else map(self.look_up, self.cut_word(part, trials))
        return found

    def look_up(self, symbol: str) -> int:
        """The id of a piece.

        Raises:
            QkvError: the vocabulary lacks it.
        """
        piece = self.spell(symbol)
        found = self.tokenizer.id(piece)
        if found is None:
            raise QkvError("the vocabulary of {tokenizer} tokens lacks {piece!r}, which dropout produces; raise "
                           "tokenizer.size, or set tokenizer.bpe_dropout=0", tokenizer=len(self.tokenizer), piece=piece)
        return found
