"""The bundled Chinese-English corpus: everyday sentences from our own grammar and lexicon, split for honest tests.

`lexicon.py` holds the words, `phrase.py` agreement, `grammar.py` the constructions, `antecedent.py` those with 它,
`label.py` what a sentence says, `lm.py` the text of the bundled language model. All of it is a function of the seed;
tools/pack_corpus.py writes what the package ships (src/qkv/data/corpus).
"""

import random
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache, lru_cache, partial
from itertools import accumulate
from typing import cast

from qkv.data.corpus import Corpus, Pair, Swap

from . import lexicon as lx
from .antecedent import KINDS as IT_KINDS
from .antecedent import swap
from .grammar import KINDS, longer
from .label import label_of
from .lm import lm_text
from .phrase import Clause, Draw

__all__ = ["Corpus", "Pair", "Swap", "corpus", "generate", "lm_text", "words_en", "words_zh"]

SEED, SMALL = 0, 2000  # of what the package ships
LONGEST = 18  # words and marks of a Chinese sentence in train, valid and test
MARKS = {".": "。", "?": "？"}
VALID, TEST, LONGER, SWAPS = 500, 1000, 300, 400
IT_SHARE = 0.23
TABLES = (
    "NOUNS", "CONTAINERS", "NUMBERS", "PRONOUNS", "NAMES", "ROLES", "JOBS", "KIN", "VERBS", "EVENTS", "STATES",
    "SOCIAL",
    "DOINGS", "ADJECTIVES", "FEELINGS", "PLACES", "CAPITALS", "SPOTS", "PAST", "FUTURE", "HABIT", "OFTEN", "MODALS",
    "SUBJECTS", "GAMES", "RIDES", "COMPANIES", "STAFF", "LAUNCHES", "PRODUCTS", "WEATHER", "SKY", "MANNERS",
    "ADVERBS", "ACTS",
    "TRAITS",
)  # fmt: skip
EN_COLUMNS = ("", "en", "plural", "obj", "poss", "base", "s", "past", "ing", "pp", "more", "at", "to")


# The sentences that readers know from texts about Transformers; (zh, en, kind, held out from training).
SHOWCASE: tuple[tuple[str, str, str, bool], ...] = (
    ("我爱学习。", "I love studying.", "activity", False),
    ("我爱你。", "I love you.", "social", False),
    ("你爱我。", "You love me.", "social", False),
    ("我爱喝咖啡。", "I love drinking coffee.", "activity", True),
    ("今早我去买了一本书。", "I went and bought a book this morning.", "went", True),
    ("我可以拥有一杯咖啡吗？", "Can I have a cup of coffee?", "have_coffee", True),
    ("大家共同努力。", "Everyone works hard together.", "together", False),
    ("我吃了一个苹果。", "I ate an apple.", "past", True),
    ("苹果发布了新手机。", "Apple released a new phone.", "company", False),
    ("科技巨头苹果发布了一部新手机。", "The tech giant Apple released a new phone.", "company", True),
    ("我吃了一个美味的苹果。", "I ate a tasty apple.", "tasty", False),
    ("苹果的老板吃了一个苹果。", "The boss of Apple ate an apple.", "apple", True),
    (
        "书和茶都在桌上，我看完了它。",
        "The book and the tea are both on the table, and I finished reading the book.",
        "it",
        True,
    ),
    (
        "书和茶都在桌上，我喝完了它。",
        "The book and the tea are both on the table, and I finished drinking the tea.",
        "it",
        True,
    ),
    ("书和茶都在桌上，它很烫。", "The book and the tea are both on the table, and the tea is hot.", "it_adj", True),
    (
        "我有五个苹果，吃了两个，又买了四个。",
        "I had five apples and ate two, and then bought four more.",
        "left",
        True,
    ),
    ("有一天，一位勇敢的探险家发现了一张旧地图。", "One day, a brave explorer discovered an old map.", "story", True),
    ("那只猫坐在沙发上。", "That cat is sitting on the sofa.", "locate", False),
    ("今天天气如何？", "How is the weather today?", "weather", False),
    ("中国的首都是北京。", "The capital of China is Beijing.", "capital", False),
)


def finish(clause: Clause, kind: str) -> Pair:
    """A clause as a written sentence: full-width marks in Chinese, a capital and a mark in English."""
    return labelled("".join(clause.zh) + MARKS[clause.mark], clause.en[0].upper() + clause.en[1:] + clause.mark, kind)


def labelled(zh: str, en: str, kind: str) -> Pair:
    """A pair with the label of what it says."""
    return Pair(zh, en, kind, label_of(zh, en, kind))


def generate() -> Corpus:
    """The corpus that the package ships."""
    small = corpus(SEED, SMALL).train
    return replace(corpus(SEED), small=small, words_zh=tuple(words_zh()), words_en=tuple(words_en()))


@cache
def percent(*parts: object) -> int:
    """A number below 100 that is a function of the parts alone."""
    return zlib.crc32("|".join(map(str, parts)).encode()) % 100


def reserved(seed: int, a: str, b: str) -> bool:
    """Whether training never combines these two words (verb and object, adjective and noun)."""
    return percent(seed, a, b) < 3


def apart(seed: int, a: lx.Noun, b: lx.Noun) -> bool:
    """Whether two things stand side by side before 它 in `swaps` alone; 书 and 茶 are everybody's first example."""
    one, two = sorted((a.zh, b.zh))
    return {one, two} == {"书", "茶"} or percent(seed, "它", one, two) < 12


def words(zh: str) -> list[str]:
    """The fewest words of the lexicon that spell a Chinese sentence, a character of none standing alone."""
    known = _known()
    best: list[tuple[int, int]] = [(0, 0)]
    for end in range(1, len(zh) + 1):
        starts = [s for s in range(max(0, end - 4), end) if s == end - 1 or zh[s:end] in known]
        best.append(min((best[s][0] + 1, s) for s in starts))
    out, end = list[str](), len(zh)
    while end:
        out.append(zh[best[end][1] : end])
        end = best[end][1]
    return out[::-1]


class _Source:
    """Draws sentences kind by kind and tells which of them hold a reserved combination."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draw = Draw(random.Random(f"corpus {seed}"))
        its = [(name, weight, partial(make, ready=self.open)) for name, weight, make in IT_KINDS]
        self.rows: list[tuple[str, Callable[[Draw], Clause]]] = [(n, m) for n, _, m in (*KINDS, *its)]
        plain, it = sum(w for _, w, _ in KINDS), sum(w for _, w, _ in its)
        shares = [w / plain * (1 - IT_SHARE) for _, w, _ in KINDS] + [w / it * IT_SHARE for _, w, _ in its]
        self.upto = list(accumulate(shares))

    def open(self, a: lx.Noun, b: lx.Noun) -> bool:
        """Whether 它 may be asked of this pair of things in train, valid and test."""
        return not apart(self.seed, a, b)

    def batch(self, count: int) -> Iterator[tuple[Pair, list[str], bool]]:
        """So many sentences,
        each with its words and whether it holds a reserved combination; overlong ones left out."""
        for name, make in self.draw.rng.choices(self.rows, cum_weights=self.upto, k=count):
            self.draw.combos.clear()
            clause = make(self.draw)
            if len(clause.zh) < LONGEST:
                held = any(reserved(self.seed, a, b) for a, b in self.draw.combos)
                yield finish(clause, name), clause.zh, held


@lru_cache(maxsize=2)
def corpus(seed: int = 0, size: int = 40_000) -> Corpus:
    """`size` distinct training pairs and the held-out splits, a function of (seed, size) alone.

    Half of valid and test hold a combination of words that training never sees, half are fresh sentences of seen ones.
    Raises ValueError where the grammar cannot yield `size` distinct sentences.
    """
    if not 1000 <= size <= 400_000:
        raise ValueError(f"corpus: size is {size}, expected 1,000 to 400,000 sentences")
    source = _Source(seed)
    showcase = tuple(labelled(zh, en, kind) for zh, en, kind, _ in SHOWCASE)
    banned = {zh for zh, _, _, held in SHOWCASE if held}
    train = {p.zh: p for p in showcase if p.zh not in banned}
    known = {w for zh in train for w in words(zh)}
    rare, fresh = dict[str, Pair](), dict[str, Pair]()
    while len(train) < size or min(len(rare), len(fresh)) < 2 * (VALID + TEST) // 3:
        for pair, zh, held in source.batch(1000):
            if pair.zh in banned or any(pair.zh in split for split in (train, rare, fresh)):
                continue
            if held:
                rare[pair.zh] = pair
            elif len(train) < size:
                train[pair.zh] = pair
                known.update(zh)
            else:
                fresh[pair.zh] = pair
    known_en = {w for p in train.values() for w in pieces(p.en)}

    def readable(p: Pair) -> bool:
        return known.issuperset(words(p.zh)[:-1]) and known_en.issuperset(pieces(p.en))

    half = (VALID + TEST) // 2
    held_out = [*[p for p in rare.values() if readable(p)][:half], *[p for p in fresh.values() if readable(p)][:half]]
    source.draw.rng.shuffle(held_out)
    every = list(train.values())
    source.draw.rng.shuffle(every)
    swaps = _swaps(seed, readable, banned)
    return Corpus(
        tuple(every), tuple(held_out[:VALID]), tuple(held_out[VALID:]), _longer(seed, readable), swaps, showcase
    )


def _longer(seed: int, readable: Callable[[Pair], bool]) -> tuple[Pair, ...]:
    """Distinct sentences of two clauses, longer than any in training, made of its words."""
    d, found = Draw(random.Random(f"longer {seed}")), dict[str, Pair]()
    while len(found) < LONGER:
        clause = longer(d, ("但是", "因为", "然后")[len(found) % 3])
        pair = finish(clause, "longer")
        if LONGEST + 2 <= len(clause.zh) <= 28 and readable(pair):
            found[pair.zh] = pair
    return tuple(found.values())


def _swaps(seed: int, readable: Callable[[Pair], bool], banned: set[str]) -> tuple[Swap, ...]:
    """Minimal pairs over pairs of things that training never sets side by side before 它."""
    d, found, seen = Draw(random.Random(f"swaps {seed}")), dict[str, Swap](), set[str]()
    while len(found) < SWAPS:
        one, two, a, b = swap(d, lambda a, b: apart(seed, a, b))
        pa, pb = finish(one, "it"), finish(two, "it")
        if (
            max(len(one.zh), len(two.zh)) < LONGEST
            and readable(pa)
            and readable(pb)
            and not {pa.zh, pb.zh} & (banned | seen)
        ):
            seen.update((pa.zh, pb.zh))
            found[pa.zh] = Swap(pa.zh, pa.en, pb.zh, pb.en, (a.zh, a.en), (b.zh, b.en))
    return tuple(found.values())


def pieces(en: str) -> list[str]:
    """English as words and marks: Tom's is Tom, ', s."""
    return re.findall(r"[A-Za-z]+|[^A-Za-z ]", en)


@cache
def _cells() -> tuple[tuple[str, str], ...]:
    """Every text cell of the lexicon with the name of its column."""
    rows = (row for name in TABLES for row in cast("tuple[object, ...]", getattr(lx, name)))
    return tuple((c, v) for row in rows for c, v in _columns(row) if isinstance(v, str))


def _columns(row: object) -> list[tuple[str, object]]:
    if is_dataclass(row):
        return [(f.name, getattr(row, f.name)) for f in fields(row)]
    return [("", cell) for cell in cast("tuple[object, ...]", row)]


def _chinese(text: str) -> bool:
    return bool(text) and "\u4e00" <= text[0] <= "\u9fff"


@cache
def _known() -> frozenset[str]:
    return frozenset(words_zh())


def words_zh() -> list[str]:
    """Every Chinese word of the lexicon, function words and marks included, each once, sorted."""
    cells = (w for c, v in _cells() if c not in ("objects", "fits") and _chinese(v) for w in v.split())
    return sorted({*cells, *lx.FUNCTION_ZH.split()})


def words_en() -> list[str]:
    """Every English word form as it occurs, sentence openings with their capital, and the marks, each once, sorted."""
    cells = {w for c, v in _cells() if c in EN_COLUMNS and not _chinese(v) for w in pieces(v)}
    return sorted({*cells, *lx.FUNCTION_EN.split(), *lx.OPENERS_EN.split(), *lx.MARKS_EN.split()})
