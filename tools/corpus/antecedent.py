"""Sentences whose 它 must be understood: English names the thing again, and only the verb or adjective tells which.

Two things stand in the first clause; the second says something that suits one of them. Pairs of things for which both
would do are never built (`lexicon.SUITS`, `Trait.fits`). Read `__init__.py` next for how pairs are held out.
"""

from collections.abc import Callable, Sequence
from functools import cache

from . import lexicon as lx
from .phrase import Clause, Draw, Phrase, count, join, other, person, speaker, timed

Ready = Callable[[lx.Noun, lx.Noun], bool]


def fits(act_kind: str, noun: lx.Noun) -> bool:
    """Whether the act could be done to this noun as well."""
    return noun.kind in lx.SUITS[act_kind]


@cache
def clear(a: lx.Noun, b: lx.Noun) -> bool:
    """Whether an act on a's kind rules out b, and the other way round."""
    return a.kind != b.kind and not fits(a.kind, b) and not fits(b.kind, a)


@cache
def acts(kind: str) -> tuple[lx.Act, ...]:
    """What is done to things of one kind."""
    return tuple(a for a in lx.ACTS if a.kind == kind)


@cache
def thinkable(a: lx.Noun, b: lx.Noun) -> bool:
    """Whether two things can be named together: recordings only beside their like, doors and windows never."""
    return (a.spot == "file") == (b.spot == "file") and "none" not in (a.spot, b.spot)


@cache
def shared(a: lx.Noun, b: lx.Noun) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """The spots where both things may lie; furniture does not lie on itself."""
    return tuple(s for s in lx.SPOTS if a.spot in s[2] and b.spot in s[2] and not {a.zh, b.zh} & set(s[0].split()))


@cache
def partners(a: lx.Noun) -> tuple[lx.Noun, ...]:
    """The things that can stand beside a so that 它 stays clear, if something is done to a."""
    return tuple(b for b in lx.NOUNS if thinkable(a, b) and clear(a, b))


@cache
def subjects() -> tuple[lx.Noun, ...]:
    """The things that something can be done to."""
    return tuple(n for n in lx.NOUNS if acts(n.kind) and partners(n))


def stage(d: Draw, a: lx.Noun, b: lx.Noun, ready: Ready) -> Phrase:
    """The first clause: both things come in, in the given order."""
    spots = shared(a, b)
    if spots and (a.spot == "file" or d.chance(0.6)):
        spot_zh, spot_en, _ = d.pick(spots)
        return placed(d, a, b, (spot_zh.split(), spot_en), ready)
    both = ["一", a.measure, a.zh, "和", "一", b.measure, b.zh]
    en = f"{count(a, 1, 'one')} and {count(b, 1, 'one')}"
    return owned(d, both, en)


def placed(d: Draw, a: lx.Noun, b: lx.Noun, spot: Phrase, ready: Ready) -> Phrase:
    """Both things lie somewhere, at times with a third one that stays out of it."""
    spot_zh, spot_en = spot
    roll = d.rng.random()
    if roll < 0.5:
        return [a.zh, "和", b.zh, "都", "在", *spot_zh], f"the {a.en} and the {b.en} are both {spot_en}"
    if roll < 0.65:
        who = d.pick(lx.PRONOUNS)
        return [
            who.zh,
            "的",
            a.zh,
            "和",
            b.zh,
            "都",
            "在",
            *spot_zh,
        ], f"{who.poss} {a.en} and {b.en} are both {spot_en}"
    if roll < 0.85:
        en = f"there is {count(a, 1, 'one')} and {count(b, 1, 'one')} {spot_en}"
        return [*spot_zh, "有", "一", a.measure, a.zh, "和", "一", b.measure, b.zh], en
    third = [n for n in lx.NOUNS if n.spot == "top" and clear(a, n) and clear(b, n) and ready(a, n) and ready(b, n)]
    if not third or "top" not in (a.spot, b.spot):
        return [a.zh, "和", b.zh, "都", "在", *spot_zh], f"the {a.en} and the {b.en} are both {spot_en}"
    c = d.pick(third)
    en = f"the {a.en}, the {b.en} and the {c.en} are all {spot_en}"
    return [a.zh, "、", b.zh, "和", c.zh, "都", "在", *spot_zh], en


def owned(d: Draw, both: list[str], en: str) -> Phrase:
    """Someone has, bought, saw or gave both things."""
    who, roll = person(d), d.rng.random()
    if roll < 0.35:
        return [*who.zh.split(), "有", *both], join(who.en, "has" if who.person == "3" else "have", en)
    when_zh, when_en = d.pick(lx.PAST) if d.chance(0.4) else ("", "")
    if roll < 0.85:
        verb_zh, verb_en = d.pick((("买", "bought"), ("看见", "saw"), ("找到", "found")))
        return timed(d, who, when_zh, [verb_zh, "了", *both]), join(who.en, verb_en, en, when_en)
    to = other(d, who)
    return [*who.zh.split(), "送给", *to.zh.split(), *both], join(who.en, "gave", to.obj, en)


def form(d: Draw, *done: lx.Act, plain: bool = False) -> str:
    """How the second clause is put; 把 needs a verb that tells its result; `plain` keeps to what swaps use."""
    roll = d.rng.random()
    if roll < 0.15 and all(len(one.zh) > 1 for one in done):
        return "ba"
    if plain or roll < 0.55:
        return "le"
    return "then" if roll < 0.7 else "want" if roll < 0.8 else "will" if roll < 0.9 else "not"


def act(d: Draw, who: lx.Who, done: lx.Act, noun: lx.Noun, how: str) -> Phrase:
    """The second clause: something is done to 它, that is, to the noun."""
    me, thing = who.zh.split(), f"the {noun.en}"
    if how == "le":
        return [*me, done.zh, "了", "它"], join(who.en, done.past, thing)
    if how == "ba":
        return [*me, "把", "它", done.zh, "了"], join(who.en, done.past, thing)
    if how == "then":
        when_zh, when_en = d.pick(lx.PAST[:5])
        return [*me, *when_zh.split(), done.zh, "了", "它"], join(who.en, done.past, thing, when_en)
    if how == "want":
        return [*me, "想", done.zh, "它"], join(
            who.en, "wants to" if who.person == "3" else "want to", done.base, thing
        )
    if how == "will":
        when_zh, when_en = d.pick(lx.FUTURE)
        return [*me, *when_zh.split(), "会", done.zh, "它"], join(who.en, "will", done.base, thing, when_en)
    return [*me, "没", done.zh, "它"], join(who.en, "did not", done.base, thing)


def it(d: Draw, ready: Ready) -> Clause:
    """书和茶都在桌上，我看完了它。 / … and I finished reading the book."""
    a, b = pair(d, ready)
    zh, en = stage(d, *((a, b) if d.chance(0.5) else (b, a)), ready)
    done = d.pick(acts(a.kind))
    zh_two, en_two = act(d, speaker(d, zh), done, a, form(d, done))
    return Clause([*zh, "，", *zh_two], f"{en}, and {en_two}")


def pair(d: Draw, ready: Ready) -> tuple[lx.Noun, lx.Noun]:
    """Two things, the first the antecedent, that the split allows."""
    while True:
        a = d.pick(subjects())
        b = d.pick(partners(a))
        if ready(a, b):
            return a, b


def it_write(d: Draw, ready: Ready) -> Clause:
    """钢笔和盘子都在桌上，我用它写了一封信。"""
    while True:
        a = d.pick([n for n in lx.NOUNS if n.kind == "write"])
        b = d.pick(partners(a))
        if ready(a, b):
            break
    zh, en = stage(d, *((a, b) if d.chance(0.5) else (b, a)), ready)
    who = speaker(d, zh)
    zh_two = [*who.zh.split(), "用", "它", "写", "了", "一", "封", "信"]
    return Clause([*zh, "，", *zh_two], f"{en}, and {who.en} wrote a letter with the {a.en}")


def it_adj(d: Draw, ready: Ready) -> Clause:
    """书和茶都在桌上，它很烫。 / … and the tea is hot."""
    while True:
        trait = d.pick(lx.TRAITS)
        a = d.pick([n for n in lx.NOUNS if n.kind in lx.TRAIT_OWNERS[trait.zh]])
        b = d.pick(lx.NOUNS)
        if b.kind not in trait.fits and a.kind != b.kind and thinkable(a, b) and ready(a, b):
            break
    zh, en = stage(d, *((a, b) if d.chance(0.5) else (b, a)), ready)
    degree_zh, degree_en = d.pick((("很", ""), ("很", ""), ("非常", "very")))
    return Clause([*zh, "，", "它", degree_zh, trait.zh], f"{en}, and the {a.en} is {join(degree_en, trait.en)}")


def it_two(d: Draw, ready: Ready) -> Clause:
    """书和茶都在桌上，我看完了它，也喝完了它。"""
    while True:
        a, b = pair(d, ready)
        if acts(b.kind):
            break
    zh, en = stage(d, *((a, b) if d.chance(0.5) else (b, a)), ready)
    who, one, two = speaker(d, zh), d.pick(acts(a.kind)), d.pick(acts(b.kind))
    zh_two = [*who.zh.split(), one.zh, "了", "它", "，", "也", two.zh, "了", "它"]
    return Clause([*zh, "，", *zh_two], f"{en}, and {who.en} {one.past} the {a.en} and also {two.past} the {b.en}")


def it_one(d: Draw, ready: Ready) -> Clause:
    """书在桌上，我看完了它。: one thing alone."""
    a = d.pick([n for n in subjects() if shared(n, n) and ready(n, n)])
    spot_zh, spot_en, _ = d.pick(shared(a, a))
    done = d.pick(acts(a.kind))
    zh_two, en_two = act(d, person(d), done, a, form(d, done))
    return Clause([a.zh, "在", *spot_zh.split(), "，", *zh_two], f"the {a.en} is {spot_en}, and {en_two}")


def swap(d: Draw, ready: Ready) -> tuple[Clause, Clause, lx.Noun, lx.Noun]:
    """Two sentences that differ in one Chinese word, the verb, and in the thing that 它 means."""
    while True:
        a, b = pair(d, ready)
        if acts(b.kind) and " " not in a.en + b.en:
            break
    zh, en = stage(d, *((a, b) if d.chance(0.5) else (b, a)), lambda *_: True)
    who, one, two = speaker(d, zh), d.pick(acts(a.kind)), d.pick(acts(b.kind))
    how = form(d, one, two, plain=True)
    zh_a, en_a = act(d, who, one, a, how)
    zh_b, en_b = act(d, who, two, b, how)
    first = Clause([*zh, "，", *zh_a], f"{en}, and {en_a}")
    return first, Clause([*zh, "，", *zh_b], f"{en}, and {en_b}"), a, b


KINDS: Sequence[tuple[str, float, Callable[..., Clause]]] = (
    ("it", 18.0, it), ("it_adj", 5.0, it_adj), ("it_two", 2.5, it_two), ("it_write", 0.7, it_write),
    ("it_one", 0.7, it_one),
)  # fmt: skip
