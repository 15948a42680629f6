"""From rows of the lexicon to phrases: numbers, articles, agreement. Read `grammar.py` next.

A phrase is (Chinese words, English); a `Clause` is a phrase with its final mark.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

from . import lexicon as lx

T = TypeVar("T")
Phrase = tuple[list[str], str]


@dataclass(frozen=True)
class Clause:
    """Chinese words and uncapitalised English without their final mark, and that mark."""

    zh: list[str]
    en: str
    mark: str = "."


@dataclass
class Draw:
    """One seeded source of choices; `combos` collects the pairs of words that a held-out split may reserve."""

    rng: random.Random
    combos: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def pick(self, rows: Sequence[T]) -> T:
        """One row, uniformly."""
        return rows[int(self.rng.random() * len(rows))]

    def chance(self, p: float) -> bool:
        """True with probability p."""
        return self.rng.random() < p

    def pair(self, a: str, b: str) -> None:
        """Note that this sentence combines words a and b (verb and object, adjective and noun)."""
        self.combos.append((a, b))


@cache
def nouns(objects: tuple[str, ...]) -> tuple[lx.Noun, ...]:
    """The nouns of the given kinds, or named by their Chinese word."""
    return tuple(n for n in lx.NOUNS if n.kind in objects or n.zh in objects)


@cache
def adjectives(noun: lx.Noun) -> tuple[lx.Adjective, ...]:
    """The adjectives that fit a noun."""
    return tuple(a for a in lx.ADJECTIVES if noun.kind in a.fits or noun.zh in a.fits)


@cache
def places(group: str) -> tuple[lx.Place, ...]:
    """The places of one group."""
    return tuple(p for p in lx.PLACES if group in p.groups)


def article(en: str) -> str:
    """The words with the indefinite article that their sound asks for."""
    return ("an " if en[0] in "aeiouAEIO" else "a ") + en


def container(measure: str) -> tuple[str, str]:
    """Singular and plural container of a mass noun's measure word."""
    return next((one, many) for zh, one, many in lx.CONTAINERS if zh == measure)


def count(noun: lx.Noun, number: int, en_number: str, adjective: str = "") -> str:
    """A counted noun in English: an old book, two cups of hot tea."""
    lead = f"{adjective} " if adjective else ""
    if not noun.plural:
        one, many = container(noun.measure)
        words = f"{one if number == 1 else many} {lead}{noun.en}"
    else:
        words = lead + (noun.en if number == 1 else noun.plural)
    return article(words) if number == 1 else f"{en_number} {words}"


# Done to one thing at a time.
SINGLE = ("wear", "drive", "ride", "play", "open", "use", "write", "listen to", "watch", "look for")


def things(d: Draw, verb: lx.Verb, noun: lx.Noun, *, most: int = 8, adjective: float = 0.2) -> Phrase:
    """What a verb is done to: one thing where more would be odd, else a number of them."""
    return some(d, noun, most=1 if verb.base in SINGLE else most, adjective=adjective)


def some(d: Draw, noun: lx.Noun, *, most: int = 8, adjective: float = 0.2) -> Phrase:
    """A number of things, at times with an adjective: 两本有趣的书 / two interesting books."""
    zh_n, en_n, n = lx.NUMBERS[0] if most == 1 or d.chance(0.6) else d.pick(lx.NUMBERS[1:most])
    fitting = adjectives(noun)
    if not fitting or not d.chance(adjective):
        return [zh_n, noun.measure, noun.zh], count(noun, n, en_n)
    adj = d.pick(fitting)
    d.pair(adj.zh, noun.zh)
    de = [adj.de] if adj.de else []
    return [zh_n, noun.measure, adj.zh, *de, noun.zh], count(noun, n, en_n, adj.en)


def bare(noun: lx.Noun) -> str:
    """A noun in general: books, tea."""
    return noun.plural or noun.en


def general(verb: lx.Verb, noun: lx.Noun, lead: str = "") -> str:
    """An object in general: read books, drink tea, not any books; an instrument is played with its article."""
    return f"the {noun.en}" if verb.zh == "弹" else lead + bare(noun)


def pointed(d: Draw, noun: lx.Noun) -> Phrase:
    """One definite thing: 这本书, 那杯茶, 我的书."""
    roll = d.rng.random()
    if roll < 0.6:
        zh, en = ("这", "this") if roll < 0.3 else ("那", "that")
        return [
            zh,
            noun.measure,
            noun.zh,
        ], f"{en} {noun.en if noun.plural else f'{container(noun.measure)[0]} {noun.en}'}"
    owner = person(d)
    return [*owner.zh.split(), "的", noun.zh], f"{owner.poss} {noun.en}"


def person(d: Draw) -> lx.Who:
    """Someone who does something: a pronoun, a name, the teacher, my friend."""
    roll = d.rng.random()
    if roll < 0.5:
        return d.pick(lx.PRONOUNS)
    if roll < 0.75:
        return d.pick(lx.NAMES)
    return d.pick(lx.ROLES) if roll < 0.88 else kin(d)


def asked(d: Draw) -> lx.Who:
    """Someone whom a question is about: seldom the speaker."""
    who = person(d)
    return lx.PRONOUNS[1] if who.en in ("I", "we") and d.chance(0.85) else who


def speaker(d: Draw, zh: Sequence[str]) -> lx.Who:
    """Someone for the next clause; a name that the words before hold is not repeated, a pronoun may be."""
    while True:
        who = person(d)
        if who in lx.PRONOUNS or not set(who.zh.split()) <= set(zh):
            return who


def kin(d: Draw) -> lx.Who:
    """My friend, his sister."""
    owner, (zh, en) = d.pick(lx.PRONOUNS), d.pick(lx.KIN)
    name = f"{owner.poss} {en}"
    return lx.Who(f"{owner.zh} 的 {zh}", name, name, f"{name}'s", "3")


def other(d: Draw, than: lx.Who) -> lx.Who:
    """Someone else, nobody of whom `than` is a part."""
    while True:
        found = person(d)
        overlap = {found.en, than.en} in ({"I", "we"}, {"he", "they"}, {"she", "they"})
        if not overlap and not set(found.zh.split()) & set(than.zh.split()):
            return found


def do(who: lx.Who) -> str:
    return "does" if who.person == "3" else "do"


def be(who: lx.Who) -> str:
    return {"1": "am", "3": "is"}.get(who.person, "are")


def was(who: lx.Who) -> str:
    return "was" if who.person in "13" else "were"


def has(who: lx.Who) -> str:
    return "has" if who.person == "3" else "have"


def now(who: lx.Who, verb: lx.Verb) -> str:
    """The present form that agrees with the subject."""
    return verb.s if who.person == "3" else verb.base


def join(*parts: str) -> str:
    """English parts in a row, empty ones left out."""
    return " ".join(p for p in parts if p)


def timed(d: Draw, who: lx.Who, time: str, rest: Sequence[str]) -> list[str]:
    """Subject and time word in either order, then the rest: Chinese allows both, English puts the time last."""
    subject, when = who.zh.split(), time.split()
    return [*when, *subject, *rest] if d.chance(0.3) else [*subject, *when, *rest]


def somewhere(d: Draw, group: str, p: float = 0.35) -> Phrase:
    """At times a place for what is done: 在学校 / at school."""
    if not group or not d.chance(p):
        return [], ""
    place = d.pick(places(group))
    return ["在", *place.zh.split()], place.at


def what(d: Draw, verbs: Sequence[lx.Verb]) -> tuple[lx.Verb, lx.Noun]:
    """A verb with an object that suits it."""
    verb = d.pick(verbs)
    noun = d.pick(nouns(verb.objects))
    d.pair(verb.zh, noun.zh)
    return verb, noun
