"""The everyday constructions of the bundled corpus: one small function each, Chinese words beside English.

Each function draws one sentence as a `Clause`. English is a function of the Chinese words alone,
so that a translation is
right or wrong and never a matter of taste. `antecedent.py` holds the sentences with 它; `__init__.py` splits it all.
"""

from collections.abc import Callable, Sequence

from . import lexicon as lx
from .phrase import (
    Clause,
    Draw,
    Phrase,
    adjectives,
    article,
    asked,
    bare,
    be,
    container,
    count,
    do,
    general,
    has,
    join,
    kin,
    nouns,
    now,
    other,
    person,
    places,
    pointed,
    some,
    somewhere,
    speaker,
    things,
    timed,
    was,
    what,
)  # fmt: skip

DESCRIBED = tuple(n for n in lx.NOUNS if adjectives(n))
CHILDREN = tuple(w for w in lx.NAMES if not w.en.endswith(("Mom", "Dad", "ma", "pa")))
PLURAL = tuple(w for w in lx.PRONOUNS if w.person == "p")
DESTINATIONS = tuple(p for p in lx.PLACES if p.zh != "家")  # 去家 is no Chinese
APPLE = next(n for n in lx.NOUNS if n.en == "apple")
# 贵 but not 便宜 says nothing.
RELATED: tuple[set[str], ...] = ({"贵", "便宜"}, {"新", "旧"}, {"大", "小"}, {"红", "白", "黑"})
WORK = next(v for v in lx.DOINGS if v.base == "work")
EAT = next(v for v in lx.VERBS if v.base == "eat")
DRINK = next(v for v in lx.VERBS if v.base == "drink")


def past(d: Draw) -> Clause:
    """我昨天在学校看了一本书。"""
    who, (verb, noun) = person(d), what(d, lx.VERBS + lx.EVENTS)
    when_zh, when_en = d.pick(lx.PAST) if d.chance(0.7) else ("", "")
    (at_zh, at_en), (zh, en) = somewhere(d, verb.where), things(d, verb, noun)
    return Clause(timed(d, who, when_zh, [*at_zh, verb.zh, "了", *zh]), join(who.en, verb.past, en, at_en, when_en))


def future(d: Draw) -> Clause:
    """他明天会在商店买三件毛衣。"""
    who, (verb, noun) = person(d), what(d, lx.VERBS)
    when_zh, when_en = d.pick(lx.FUTURE)
    (at_zh, at_en), (zh, en) = somewhere(d, verb.where), things(d, verb, noun)
    rest = ["会", *at_zh, verb.zh, *zh]
    return Clause(timed(d, who, when_zh, rest), join(who.en, "will", verb.base, en, at_en, when_en))


def progressive(d: Draw) -> Clause:
    """她正在厨房里喝茶。"""
    who, (verb, noun) = person(d), what(d, lx.VERBS)
    at_zh, at_en = somewhere(d, verb.where)
    if d.chance(0.5):
        zh, en = some(d, noun, most=1)
    else:
        one = article(noun.en) if noun.plural else noun.en
        zh, en = [noun.zh], f"the {noun.en}" if noun.kind == "play" else one
    return Clause([*who.zh.split(), "正在", *at_zh[1:], verb.zh, *zh], join(who.en, be(who), verb.ing, en, at_en))


def habit(d: Draw) -> Clause:
    """小明每天在图书馆看书。"""
    who, (verb, noun) = person(d), what(d, lx.VERBS)
    when_zh, when_en = d.pick(lx.HABIT)
    at_zh, at_en = somewhere(d, verb.where)
    rest = [*at_zh, verb.zh, noun.zh]
    return Clause(timed(d, who, when_zh, rest), join(who.en, now(who, verb), general(verb, noun), at_en, when_en))


def often(d: Draw) -> Clause:
    """老师常常喝茶。"""
    who, (verb, noun), (zh, en) = person(d), what(d, lx.VERBS), d.pick(lx.OFTEN)
    at_zh, at_en = somewhere(d, verb.where)
    return Clause(
        [*who.zh.split(), zh, *at_zh, verb.zh, noun.zh], join(who.en, en, now(who, verb), general(verb, noun), at_en)
    )


def state(d: Draw) -> Clause:
    """我喜欢书。 / 她需要一把雨伞。"""
    who, verb = person(d), d.pick(lx.STATES)
    noun = d.pick(nouns(verb.objects))
    d.pair(verb.zh, noun.zh)
    if verb.base in ("like", "love"):
        return Clause([*who.zh.split(), verb.zh, noun.zh], join(who.en, now(who, verb), bare(noun)))
    zh, en = some(d, noun)
    return Clause([*who.zh.split(), verb.zh, *zh], join(who.en, now(who, verb), en))


def never(d: Draw) -> Clause:
    """他不喝咖啡。 / 我不喜欢猫。"""
    who, (verb, noun) = person(d), what(d, lx.VERBS[2:] + lx.STATES[:2])
    at_zh, at_en = somewhere(d, verb.where, 0.2)
    return Clause(
        [*who.zh.split(), "不", *at_zh, verb.zh, noun.zh],
        join(who.en, do(who), "not", verb.base, general(verb, noun), at_en),
    )


def not_done(d: Draw) -> Clause:
    """她昨天没买书。"""
    who, (verb, noun) = person(d), what(d, lx.VERBS + lx.EVENTS)
    when_zh, when_en = d.pick(lx.PAST) if d.chance(0.7) else ("", "")
    at_zh, at_en = somewhere(d, verb.where, 0.2)
    rest = ["没", *at_zh, verb.zh, noun.zh]
    return Clause(
        timed(d, who, when_zh, rest), join(who.en, "did not", verb.base, general(verb, noun, "any "), at_en, when_en)
    )


def lacking(d: Draw) -> Clause:
    """我没有钥匙。"""
    who, noun = person(d), d.pick(nouns(lx.STATES[3].objects))
    return Clause([*who.zh.split(), "没有", noun.zh], join(who.en, do(who), "not have any", bare(noun)))


def modal(d: Draw) -> Clause:
    """你可以喝一杯咖啡。 / 我想买一本书。"""
    who, (verb, noun) = person(d), what(d, lx.VERBS)
    (at_zh, at_en), (zh, en) = somewhere(d, verb.where, 0.25), things(d, verb, noun, most=3)
    if d.chance(0.4):
        may_zh, may_en = "想", "wants to" if who.person == "3" else "want to"
    else:
        may_zh, may_en = d.pick(lx.MODALS)
    no = d.chance(0.15) and may_zh != "必须"
    if no:
        zh, en = [noun.zh], general(verb, noun)
        may_en = f"{do(who)} not want to" if may_zh == "想" else "cannot" if may_en == "can" else f"{may_en} not"
    words = [*who.zh.split(), *(["不"] if no else []), may_zh, *at_zh, verb.zh, *zh]
    return Clause(words, join(who.en, may_en, verb.base, en, at_en))


def have_coffee(d: Draw) -> Clause:
    """我可以拥有一杯咖啡吗？"""
    who, noun = person(d), d.pick(nouns(lx.STATES[3].objects))
    zh, en = some(d, noun, most=3)
    return Clause([*who.zh.split(), "可以", "拥有", *zh, "吗"], join("can", who.en, "have", en), "?")


def whether(d: Draw) -> Clause:
    """你喜欢茶吗？ / 他昨天买书了吗？ / 我们应该买一台电脑吗？"""
    who, roll = asked(d), d.rng.random()
    if roll < 0.4:
        verb, noun = what(d, lx.VERBS[2:] + lx.STATES[:2])
        at_zh, at_en = somewhere(d, verb.where, 0.2)
        en = join(do(who), who.en, verb.base, general(verb, noun), at_en)
        return Clause([*who.zh.split(), *at_zh, verb.zh, noun.zh, "吗"], en, "?")
    verb, noun = what(d, lx.VERBS)
    zh, en = things(d, verb, noun, most=3)
    if roll < 0.7:
        when_zh, when_en = d.pick(lx.PAST)
        words = timed(d, who, when_zh, [verb.zh, "了", *zh, "吗"])
        return Clause(words, join("did", who.en, verb.base, en, when_en), "?")
    may_zh, may_en = d.pick((("想", ""), ("能", "can"), ("可以", "can"), ("应该", "should")))
    lead = join(may_en, who.en) if may_en else f"{do(who)} {who.en} want to"
    return Clause([*who.zh.split(), may_zh, verb.zh, *zh, "吗"], join(lead, verb.base, en), "?")


def ask_what(d: Draw) -> Clause:
    """你昨天在商店买了什么？"""
    who, verb = asked(d), d.pick([v for v in lx.VERBS if v.base not in ("watch", "listen to", "take")])
    at_zh, at_en = somewhere(d, verb.where)
    roll = d.rng.random()
    if roll < 0.5:
        when_zh, when_en = d.pick(lx.PAST)
        words = timed(d, who, when_zh, [*at_zh, verb.zh, "了", "什么"])
        return Clause(words, join("what did", who.en, verb.base, at_en, when_en), "?")
    if roll < 0.75:
        words = [*who.zh.split(), "想", *at_zh, verb.zh, "什么"]
        return Clause(words, join("what", do(who), who.en, "want to", verb.base, at_en), "?")
    words = [*who.zh.split(), "正在", *at_zh[1:], verb.zh, "什么"]
    return Clause(words, join("what", be(who), who.en, verb.ing, at_en), "?")


def ask_who(d: Draw) -> Clause:
    """谁昨天买了一本书？ / 你昨天看见了谁？"""
    when_zh, when_en = d.pick(lx.PAST) if d.chance(0.6) else ("", "")
    if d.chance(0.3):
        who, verb = asked(d), d.pick([lx.EVENTS[0], lx.SOCIAL[4], lx.SOCIAL[5]])
        return Clause(timed(d, who, when_zh, [verb.zh, "了", "谁"]), join("who did", who.en, verb.base, when_en), "?")
    verb, noun = what(d, lx.VERBS + lx.EVENTS)
    zh, en = things(d, verb, noun, most=3)
    return Clause(["谁", *when_zh.split(), verb.zh, "了", *zh], join("who", verb.past, en, when_en), "?")


def ask_where(d: Draw) -> Clause:
    """我的书在哪里？ / 你在哪里买了这本书？"""
    if d.chance(0.5):
        if d.chance(0.3):
            who = asked(d)
            return Clause([*who.zh.split(), "在", "哪里"], join("where", be(who), who.en), "?")
        zh, en = pointed(d, d.pick(lx.NOUNS))
        return Clause([*zh, "在", "哪里"], f"where is {en}", "?")
    who, (verb, noun) = asked(d), what(d, lx.VERBS + lx.EVENTS)
    zh, en = pointed(d, noun) if d.chance(0.5) else things(d, verb, noun, most=3)
    return Clause([*who.zh.split(), "在", "哪里", verb.zh, "了", *zh], join("where did", who.en, verb.base, en), "?")


def ask_why(d: Draw) -> Clause:
    """你为什么买了两本书？ / 他为什么不喝茶？"""
    who, (verb, noun) = asked(d), what(d, lx.VERBS[2:] + lx.STATES[:2])
    if d.chance(0.5) or verb in lx.STATES:
        no_zh, no_en = (["不"], "not") if d.chance(0.6) else ([], "")
        words = [*who.zh.split(), "为什么", *no_zh, verb.zh, noun.zh]
        return Clause(words, join("why", do(who), who.en, no_en, verb.base, general(verb, noun)), "?")
    zh, en = things(d, verb, noun, most=3)
    return Clause([*who.zh.split(), "为什么", verb.zh, "了", *zh], join("why did", who.en, verb.base, en), "?")


def ask_how_many(d: Draw) -> Clause:
    """你有几本书？ / 他昨天喝了几杯茶？"""
    who = asked(d)
    if d.chance(0.4):
        noun = d.pick(nouns(lx.STATES[3].objects))
        words = [*who.zh.split(), "有", "几", noun.measure, noun.zh]
        return Clause(words, join("how many", counted(noun), do(who), who.en, "have"), "?")
    verb, noun = what(d, lx.VERBS)
    when_zh, when_en = d.pick(lx.PAST) if d.chance(0.6) else ("", "")
    words = timed(d, who, when_zh, [verb.zh, "了", "几", noun.measure, noun.zh])
    return Clause(words, join("how many", counted(noun), "did", who.en, verb.base, when_en), "?")


def counted(noun: lx.Noun) -> str:
    """The plural after a number: books, cups of tea."""
    return noun.plural or f"{container(noun.measure)[1]} {noun.en}"


def spot(d: Draw, noun: lx.Noun) -> Phrase:
    """A place where the noun may lie."""
    zh, en, _ = d.pick([s for s in lx.SPOTS if noun.spot in s[2] and noun.zh not in s[0].split()])
    return zh.split(), en


def exist(d: Draw) -> Clause:
    """桌上有三本书。"""
    noun = d.pick([n for n in lx.NOUNS if n.spot != "none"])
    (at_zh, at_en), (zh, en) = spot(d, noun), some(d, noun)
    verb = "is" if en.startswith(("a ", "an ")) else "are"
    if d.chance(0.15):
        return Clause([*at_zh, "没有", noun.zh], join("there", "are" if noun.plural else "is", "no", bare(noun), at_en))
    return Clause([*at_zh, "有", *zh], join("there", verb, en, at_en))


def locate(d: Draw) -> Clause:
    """我的书在桌上。 / 那只猫在沙发上睡觉。"""
    noun = d.pick([n for n in lx.NOUNS if n.spot != "none"])
    (at_zh, at_en), (zh, en) = spot(d, noun), pointed(d, noun)
    if noun.spot == "pet" and d.chance(0.6):
        doing_zh, doing_en = d.pick((("睡", "sleeping"), ("坐", "sitting")))
        return Clause([*zh, doing_zh, "在", *at_zh], join(en, "is", doing_en, at_en))
    no_zh, no_en = (["不"], "not") if d.chance(0.15) else ([], "")
    if d.chance(0.15):
        return Clause([*zh, "在", *at_zh, "吗"], join("is", en, at_en), "?")
    return Clause([*zh, *no_zh, "在", *at_zh], join(en, "is", no_en, at_en))


def describe(d: Draw) -> Clause:
    """这本书很旧。 / 我的茶太热了。"""
    noun = d.pick(DESCRIBED)
    adj = d.pick(adjectives(noun))
    d.pair(adj.zh, noun.zh)
    zh, en = pointed(d, noun)
    if not adj.more:
        return Clause([*zh, "很", adj.zh], f"{en} is {adj.en}")
    tail, words, mark = d.pick((
        (["很", adj.zh], f"is {adj.en}", "."), (["很", adj.zh], f"is {adj.en}", "."),
        (["非常", adj.zh], f"is very {adj.en}", "."), (["太", adj.zh, "了"], f"is too {adj.en}", "."),
        (["不", adj.zh], f"is not {adj.en}", "."), (["很", adj.zh, "吗"], adj.en, "?"),
    ))  # fmt: skip
    return Clause([*zh, *tail], join("is", en, words) if mark == "?" else f"{en} {words}", mark)


def compare(d: Draw) -> Clause:
    """这本书比那本书贵。 / 我比他高。"""
    if d.chance(0.4):
        a = person(d)
        b, (zh, en, more) = other(d, a), d.pick(lx.FEELINGS)
        if d.chance(0.3):
            return Clause([*a.zh.split(), "和", *b.zh.split(), "一样", zh], f"{a.en} and {b.en} are equally {en}")
        return Clause([*a.zh.split(), "比", *b.zh.split(), zh], f"{a.en} {be(a)} {more} than {b.obj}")
    adj = d.pick([a for a in lx.ADJECTIVES if a.more])
    one = d.pick(nouns(adj.fits))
    two = d.pick([n for n in nouns(adj.fits) if n.kind == one.kind])
    (a_zh, a_en), (b_zh, b_en) = pointed(d, one), pointed(d, two)
    while a_zh == b_zh:
        b_zh, b_en = pointed(d, two)
    d.pair(adj.zh, one.zh)
    d.pair(adj.zh, two.zh)
    return Clause([*a_zh, "比", *b_zh, adj.zh], f"{a_en} is {adj.more} than {b_en}")


def ba(d: Draw) -> Clause:
    """我把书放在了桌上。 / 他把茶喝完了。"""
    who, roll = person(d), d.rng.random()
    when_zh, when_en = d.pick(lx.PAST) if d.chance(0.3) else ("", "")
    if roll < 0.45:
        noun = d.pick([n for n in lx.NOUNS if n.spot == "top"])
        at_zh, at_en = spot(d, noun)
        words = timed(d, who, when_zh, ["把", noun.zh, "放在", "了", *at_zh])
        return Clause(words, join(who.en, f"put the {noun.en}", at_en, when_en))
    if roll < 0.8:
        done = d.pick([a for a in lx.ACTS if len(a.zh) > 1])
        noun = d.pick(nouns((done.kind,)))
        d.pair(done.zh, noun.zh)
        words = timed(d, who, when_zh, ["把", noun.zh, done.zh, "了"])
        return Clause(words, join(who.en, done.past, f"the {noun.en}", when_en))
    noun, to = d.pick([n for n in lx.NOUNS if n.spot == "top"]), other(d, who)
    words = timed(d, who, when_zh, ["把", noun.zh, "给", "了", *to.zh.split()])
    return Clause(words, join(who.en, f"gave the {noun.en} to", to.obj, when_en))


def bei(d: Draw) -> Clause:
    """蛋糕被小明吃了。"""
    who, when = person(d), d.pick(lx.PAST) if d.chance(0.3) else ("", "")
    verb, noun = what(
        d, [v for v in lx.VERBS if v.base in ("buy", "sell", "eat", "drink", "fix", "borrow", "open", "wash")]
    )
    zh, en = ([noun.zh], f"the {noun.en}") if d.chance(0.5) else pointed(d, noun)
    words = [*when[0].split(), *zh, "被", *who.zh.split(), verb.zh, "了"]
    return Clause(words, join(en, "was", verb.pp, "by", who.obj, when[1]))


def relative(d: Draw) -> Clause:
    """我买的书很贵。 / 她喜欢你画的猫。"""
    who = person(d)
    verb, noun = what(d, [v for v in lx.VERBS + lx.EVENTS if v.base not in ("take", "sing")])
    when_zh, when_en = d.pick(lx.PAST) if d.chance(0.3) else ("", "")
    zh = [*who.zh.split(), *when_zh.split(), verb.zh, "的", noun.zh]
    en = join(f"the {noun.en} that", who.en, verb.past, when_en)
    fitting = adjectives(noun)
    if fitting and d.chance(0.6):
        adj = d.pick(fitting)
        d.pair(adj.zh, noun.zh)
        degree_zh, degree_en = d.pick((("很", ""), ("非常", "very"), ("不", "not"))) if adj.more else ("很", "")
        return Clause([*zh, degree_zh, adj.zh], join(en, "is", degree_en, adj.en))
    if d.chance(0.4) and noun.spot != "none":
        at_zh, at_en = spot(d, noun)
        return Clause([*zh, "在", *at_zh], f"{en} is {at_en}")
    fan = other(d, who)
    return Clause([*fan.zh.split(), "喜欢", *zh], join(fan.en, now(fan, lx.STATES[0]), en))


def belong(d: Draw) -> Clause:
    """这是汤姆的书。 / 那不是我的猫。 / 这是谁的茶？"""
    noun, (zh, en) = d.pick(lx.NOUNS), d.pick((("这", "this"), ("那", "that")))
    roll = d.rng.random()
    if roll < 0.1:
        return Clause([zh, "是", "谁", "的", noun.zh], f"whose {noun.en} is {en}", "?")
    owner = person(d)
    tail = [*owner.zh.split(), "的", noun.zh]
    if roll < 0.3:
        return Clause([zh, "是", *tail, "吗"], f"is {en} {owner.poss} {noun.en}", "?")
    if roll < 0.5:
        return Clause([zh, "不", "是", *tail], f"{en} is not {owner.poss} {noun.en}")
    return Clause([zh, "是", *tail], f"{en} is {owner.poss} {noun.en}")


def both(d: Draw) -> Clause:
    """我买了一本书和两支钢笔。"""
    who, (verb, one) = person(d), what(d, lx.VERBS + lx.EVENTS)
    two = d.pick([n for n in nouns(verb.objects) if n != one] or [one])
    d.pair(verb.zh, two.zh)
    when_zh, when_en = d.pick(lx.PAST) if d.chance(0.4) else ("", "")
    (a_zh, a_en), (b_zh, b_en) = things(d, verb, one, adjective=0.1), things(d, verb, two, adjective=0.1)
    words = timed(d, who, when_zh, [verb.zh, "了", *a_zh, "和", *b_zh])
    return Clause(words, join(who.en, verb.past, a_en, "and", b_en, when_en))


PASSING = tuple(f for f in lx.FEELINGS if f[0] not in ("高", "聪明", "勇敢", "年轻"))


def state_then(d: Draw) -> Phrase:
    """It rained, or someone was tired."""
    if d.chance(0.35):
        zh, _, en, _ = d.pick(lx.WEATHER)
        return [zh, "了"], f"it {en}"
    who, (zh, en, _) = person(d), d.pick(PASSING)
    return [*who.zh.split(), "很", zh], join(who.en, was(who), en)


def event_then(d: Draw) -> Phrase:
    """Someone did something."""
    who, (verb, noun) = person(d), what(d, lx.VERBS + lx.EVENTS)
    zh, en = things(d, verb, noun, adjective=0)
    return [*who.zh.split(), verb.zh, "了", *zh], join(who.en, verb.past, en)


def because(d: Draw) -> Clause:
    """因为下雨了，所以我没去公园。 / 她很高兴，因为小红买了一匹马。"""
    if d.chance(0.4):
        why_zh, why_en = event_then(d)
        who, (feel_zh, feel_en, _) = speaker(d, why_zh), d.pick(PASSING)
        zh, en = ["很", feel_zh], f"{was(who)} {feel_en}"
    else:
        why_zh, why_en = state_then(d)
        who = speaker(d, why_zh)
        if d.chance(0.6):
            place = d.pick(DESTINATIONS)
            zh, en = ["没", "去", *place.zh.split()[:1]], f"did not go {place.to}"
        else:
            verb, noun = what(d, lx.VERBS)
            zh, en = ["没", verb.zh, noun.zh], f"did not {verb.base} {general(verb, noun, 'any ')}"
    if d.chance(0.3):
        return Clause([*who.zh.split(), *zh, "，", "因为", *why_zh], f"{join(who.en, en)} because {why_en}")
    return Clause(["因为", *why_zh, "，", "所以", *who.zh.split(), *zh], join(f"because {why_en},", who.en, en))


def but(d: Draw) -> Clause:
    """我喜欢茶，但是他喜欢咖啡。 / 这本书很贵，但是很有趣。"""
    roll = d.rng.random()
    if roll < 0.35:
        noun = d.pick([n for n in DESCRIBED if len(adjectives(n)) > 2])
        zh, en = pointed(d, noun)
        a, b = d.rng.sample(adjectives(noun), 2)
        while any({a.zh, b.zh} <= group for group in RELATED):
            a, b = d.rng.sample(adjectives(noun), 2)
        d.pair(a.zh, noun.zh)
        d.pair(b.zh, noun.zh)
        return Clause([*zh, "很", a.zh, "，", "但是", "不", b.zh], f"{en} is {a.en} but not {b.en}")
    one = person(d)
    two, (verb, a) = other(d, one), what(d, (*lx.VERBS[2:8], *lx.STATES[:2]))
    if roll < 0.7:
        b = d.pick(
            [n for n in nouns(verb.objects) if n != a and n.kind == a.kind]
            or [n for n in nouns(verb.objects) if n != a]
        )
        d.pair(verb.zh, b.zh)
        zh = [*one.zh.split(), verb.zh, a.zh, "，", "但是", *two.zh.split(), verb.zh, b.zh]
        return Clause(
            zh, join(one.en, now(one, verb), f"{general(verb, a)}, but", two.en, now(two, verb), general(verb, b))
        )
    zh = [*one.zh.split(), verb.zh, a.zh, "，", "但是", *two.zh.split(), "不", verb.zh, a.zh]
    return Clause(
        zh,
        join(one.en, now(one, verb), f"{general(verb, a)}, but", two.en, do(two), "not", verb.base, general(verb, a)),
    )


def chained(d: Draw) -> Clause:
    """我昨天看了一本书，然后喝了一杯茶。"""
    who, (v1, n1), (v2, n2) = person(d), what(d, lx.VERBS), what(d, lx.VERBS)
    when_zh, when_en = d.pick(lx.PAST) if d.chance(0.4) else ("", "")
    (a_zh, a_en), (b_zh, b_en) = things(d, v1, n1, most=3, adjective=0), things(d, v2, n2, most=3, adjective=0)
    words = timed(d, who, when_zh, [v1.zh, "了", *a_zh, "，", "然后", v2.zh, "了", *b_zh])
    return Clause(words, f"{join(who.en, v1.past, a_en, when_en)}, and then {v2.past} {b_en}")


def went(d: Draw) -> Clause:
    """今早我去买了一本书。 / 他昨天去超市买了两杯奶茶。"""
    who, (verb, noun) = (
        person(d),
        what(
            d,
            [
                v
                for v in lx.VERBS
                if v.where in ("shop", "food", "out", "calm") and v.base not in ("wear", "bring", "use")
            ],
        ),
    )
    when_zh, when_en = d.pick(lx.PAST) if d.chance(0.7) else ("", "")
    place = d.pick([p for p in places(verb.where) if p in DESTINATIONS])
    to_zh, to_en = (place.zh.split()[:1], place.to) if d.chance(0.6) else ([], "")
    zh, en = things(d, verb, noun, adjective=0.1)
    words = timed(d, who, when_zh, ["去", *to_zh, verb.zh, "了", *zh])
    return Clause(words, join(who.en, "went", to_en, "and", verb.past, en, when_en))


def activity(d: Draw) -> Clause:
    """我爱学习。 / 她喜欢喝咖啡。 / 我们不喜欢踢足球。"""
    who, verb = person(d), d.pick(lx.STATES[:2])
    roll = d.rng.random()
    if roll < 0.3:
        doing = d.pick(lx.DOINGS)
        zh, en = [doing.zh], doing.ing
        d.pair(verb.zh, doing.zh)
    elif roll < 0.45:
        do_zh, game_zh, game_en = d.pick(lx.GAMES)
        zh, en = [do_zh, game_zh], f"playing {game_en}"
    elif roll < 0.6:
        sub_zh, sub_en = d.pick(lx.SUBJECTS)
        zh, en = ["学", sub_zh], f"learning {sub_en}"
    else:
        doing, noun = what(d, [v for v in lx.VERBS[2:] if v.base not in ("bring", "borrow", "look for", "use", "open")])
        zh, en = [doing.zh, noun.zh], f"{doing.ing} {general(doing, noun)}"
    no = d.chance(0.2)
    like = f"{do(who)} not {verb.base}" if no else now(who, verb)
    return Clause([*who.zh.split(), *(["不"] if no else []), verb.zh, *zh], join(who.en, like, en))


def give(d: Draw) -> Clause:
    """妈妈送给我一本书。 / 老师昨天教了我们数学。"""
    who = person(d)
    to = other(d, who)
    when_zh, when_en = d.pick(lx.PAST) if d.chance(0.4) else ("", "")
    if d.chance(0.2):
        zh, en = d.pick(lx.SUBJECTS)
        return Clause([*who.zh.split(), "教", *to.zh.split(), zh], join(who.en, now(who, lx.SOCIAL[6]), to.obj, en))
    noun = d.pick(
        [n for n in lx.NOUNS if n.kind in ("read", "wear", "write", "carry", "fix", "plant", "drink", "eat", "feed")]
    )
    zh, en = some(d, noun)
    return Clause(timed(d, who, when_zh, ["送给", *to.zh.split(), *zh]), join(who.en, "gave", to.obj, en, when_en))


def product(d: Draw) -> Phrase:
    """What a company brings out: 新手机 / a new phone, 三部手机 / three phones."""
    zh, en, plural, measure = d.pick(lx.PRODUCTS)
    if d.chance(0.5):
        return ["新", zh], f"a new {en}"
    noun = lx.Noun(zh, en, plural, measure, "fix", "top")
    n_zh, n_en, n = d.pick(lx.NUMBERS[:5])
    return [n_zh, measure, "新", zh], count(noun, n, n_en, "new")


def company(d: Draw) -> Clause:
    """苹果发布了新手机。 / 科技巨头苹果明年会推出一部新手机。 / 小明在苹果工作。"""
    (zh, en), roll = d.pick(lx.COMPANIES) if d.chance(0.5) else lx.COMPANIES[0], d.rng.random()
    if roll < 0.2:
        who = person(d)
        return Clause([*who.zh.split(), "在", zh, "工作"], join(who.en, now(who, WORK), "at", en))
    giant = d.chance(0.25)
    head, name = (["科技", "巨头", zh], f"the tech giant {en}") if giant else ([zh], en)
    verb_zh, base, s, did = d.pick(lx.LAUNCHES)
    if d.chance(0.15):
        thing_zh, _, many, _ = d.pick(lx.PRODUCTS)
        return Clause([*head, "每年", verb_zh, "新", thing_zh], join(name, s, "new", many, "every year"))
    thing_zh, thing_en = product(d)
    if roll < 0.45:
        when_zh, when_en = d.pick(lx.FUTURE)
        return Clause([*head, *when_zh.split(), "会", verb_zh, *thing_zh], join(name, "will", base, thing_en, when_en))
    when_zh, when_en = d.pick(lx.PAST) if d.chance(0.5) else ("", "")
    return Clause([*head, *when_zh.split(), verb_zh, "了", *thing_zh], join(name, did, thing_en, when_en))


def apple(d: Draw) -> Clause:
    """苹果的老板吃了一个苹果。 / 我在苹果喝了一杯茶。: fruit and company side by side."""
    zh, en = d.pick(lx.COMPANIES) if d.chance(0.3) else lx.COMPANIES[0]
    roll = d.rng.random()
    fruit = APPLE if d.chance(0.5) else d.pick([n for n in lx.NOUNS if n.kind in ("eat", "drink")])
    verb = EAT if fruit.kind == "eat" else DRINK
    d.pair(verb.zh, fruit.zh)
    when_zh, when_en = d.pick(lx.PAST) if d.chance(0.5) else ("", "")
    some_zh, some_en = some(d, fruit, adjective=0.1)
    if roll < 0.4:
        role_zh, role_en = d.pick(lx.STAFF)
        words = [zh, "的", role_zh, *when_zh.split(), verb.zh, "了", *some_zh]
        return Clause(words, join(f"the {role_en} {en}", verb.past, some_en, when_en))
    who = person(d)
    if roll < 0.7:
        words = timed(d, who, when_zh, ["在", zh, verb.zh, "了", *some_zh])
        return Clause(words, join(who.en, verb.past, some_en, "at", en, when_en))
    thing_zh, thing_en, _, measure = d.pick(lx.PRODUCTS[:4])
    words = timed(d, who, when_zh, ["买", "了", "一", measure, zh, "的", thing_zh, "和", *some_zh])
    return Clause(words, join(who.en, "bought", article(thing_en), "from", en, "and", some_en, when_en))


def tasty(d: Draw) -> Clause:
    """我吃了一个美味的苹果。"""
    who, noun = person(d), d.pick([n for n in lx.NOUNS if n.kind == "eat"])
    n_zh, n_en, n = d.pick(lx.NUMBERS[:4])
    verb = d.pick((lx.VERBS[0], EAT))
    d.pair(verb.zh, noun.zh)
    words = [*who.zh.split(), verb.zh, "了", n_zh, noun.measure, "美味", "的", noun.zh]
    return Clause(words, join(who.en, verb.past, count(noun, n, n_en, "tasty")))


def weather(d: Draw) -> Clause:
    """今天天气很好。 / 昨天下雨了。 / 明天会下雪吗？ / 今天天气如何？"""
    roll = d.rng.random()
    city = d.pick(places("world")) if d.chance(0.6) else None
    at_zh, at_en = ([city.zh], city.at) if city else ([], "")
    if roll < 0.1:
        return Clause(["今天", *at_zh, "天气", "如何"], join("how is the weather", at_en, "today"), "?")
    if roll < 0.4:
        zh, en = d.pick(lx.SKY)
        degree_zh, degree_en = d.pick((("很", ""), ("非常", "very"), ("不", "not")))
        return Clause(["今天", *at_zh, "天气", degree_zh, zh], join("the weather", at_en, "is", degree_en, en, "today"))
    zh, ing, did, base = d.pick(lx.WEATHER)
    if roll < 0.55:
        when_zh, when_en = d.pick(lx.PAST)
        return Clause([*when_zh.split(), *at_zh, zh, "了"], join("it", did, at_en, when_en))
    if roll < 0.65:
        return Clause(["现在", *at_zh, "正在", zh], join("it is", ing, at_en, "now"))
    when_zh, when_en = d.pick(lx.FUTURE)
    if roll < 0.8:
        return Clause([*when_zh.split(), *at_zh, "会", zh, "吗"], join("will it", base, at_en, when_en), "?")
    return Clause([*when_zh.split(), *at_zh, "会", zh], join("it will", base, at_en, when_en))


def job(d: Draw) -> Clause:
    """我是学生。 / 他的妹妹不是医生。 / 她想当老师。"""
    who = d.pick((d.pick(lx.PRONOUNS), d.pick(PLURAL), d.pick(PLURAL), d.pick(lx.NAMES), kin(d)))
    zh, one, many = d.pick(lx.JOBS)
    en = many if who.person == "p" else article(one)
    roll = d.rng.random()
    if roll < 0.4:
        return Clause([*who.zh.split(), "是", zh], join(who.en, be(who), en))
    if roll < 0.55:
        return Clause([*who.zh.split(), "不", "是", zh], join(who.en, be(who), "not", en))
    if roll < 0.75:
        return Clause([*who.zh.split(), "是", zh, "吗"], join(be(who), who.en, en), "?")
    return Clause(
        [*who.zh.split(), "想", "当", zh], join(who.en, "wants to" if who.person == "3" else "want to", "be", en)
    )


def doing(d: Draw) -> Clause:
    """我每天在家学习。 / 他昨天工作了八个小时。 / 孩子正在公园跑步。"""
    who, verb = person(d), d.pick(lx.DOINGS)
    roll = d.rng.random()
    at_zh, at_en = somewhere(d, verb.where, 0.6)
    me = who.zh.split()
    if roll < 0.2:
        when_zh, when_en = d.pick(lx.HABIT)
        return Clause(timed(d, who, when_zh, [*at_zh, verb.zh]), join(who.en, now(who, verb), at_en, when_en))
    if roll < 0.36:
        return Clause([*me, "正在", *at_zh[1:], verb.zh], join(who.en, be(who), verb.ing, at_en))
    if roll < 0.5:
        when_zh, when_en = d.pick(lx.FUTURE)
        return Clause(timed(d, who, when_zh, ["会", *at_zh, verb.zh]), join(who.en, "will", verb.base, at_en, when_en))
    if roll < 0.57:
        n_zh, n_en, _ = d.pick(lx.NUMBERS)
        when_zh, when_en = d.pick(lx.HABIT[:3])
        return Clause(timed(d, who, when_zh, [n_zh, "点", verb.zh]), join(who.en, now(who, verb), "at", n_en, when_en))
    when_zh, when_en = d.pick(lx.PAST)
    if roll < 0.73:
        rest = [*at_zh, verb.zh, "了"]
        return Clause(timed(d, who, when_zh, rest), join(who.en, verb.past, at_en, when_en))
    if roll < 0.8:
        rest = ["没", *at_zh, verb.zh]
        return Clause(timed(d, who, when_zh, rest), join(who.en, "did not", verb.base, at_en, when_en))
    long = verb.zh in ("学习", "工作", "休息")
    if not long or roll < 0.87:
        may_zh, may_en = d.pick((*lx.MODALS, ("想", "")))
        may_en = may_en or ("wants to" if who.person == "3" else "want to")
        return Clause([*me, may_zh, *at_zh, verb.zh], join(who.en, may_en, verb.base, at_en))
    n_zh, n_en, n = d.pick(lx.NUMBERS)
    hours = "hour" if n == 1 else "hours"
    rest = [*at_zh, verb.zh, "了", n_zh, "个", "小时"]
    return Clause(timed(d, who, when_zh, rest), join(who.en, verb.past, at_en, f"for {n_en} {hours}", when_en))


def travel(d: Draw) -> Clause:
    """他明天会坐火车去上海。 / 我昨天去了图书馆。 / 你去过中国吗？"""
    who, roll = asked(d), d.rng.random()
    city = d.pick(places("world"))
    ride_zh, ride_en = d.pick(lx.RIDES) if d.chance(0.5) else ("", "")
    by = ["坐", ride_zh] if ride_zh else []
    if roll < 0.25:
        when_zh, when_en = d.pick(lx.FUTURE)
        return Clause(
            timed(d, who, when_zh, ["会", *by, "去", city.zh]), join(who.en, "will go", city.to, ride_en, when_en)
        )
    if roll < 0.4:
        return Clause([*who.zh.split(), "去", "过", city.zh], join(who.en, has(who), "been", city.to))
    if roll < 0.5:
        return Clause([*who.zh.split(), "没", "去", "过", city.zh], join(who.en, has(who), "not been", city.to))
    if roll < 0.6:
        return Clause([*who.zh.split(), "去", "过", city.zh, "吗"], join(has(who), who.en, "been", city.to), "?")
    place = d.pick(DESTINATIONS)
    to_zh = place.zh.split()[:1]
    if roll < 0.8:
        when_zh, when_en = d.pick(lx.PAST)
        return Clause(
            timed(d, who, when_zh, [*by, "去", "了", *to_zh]), join(who.en, "went", place.to, ride_en, when_en)
        )
    when_zh, when_en = d.pick(lx.HABIT)
    go = "goes" if who.person == "3" else "go"
    return Clause(timed(d, who, when_zh, [*by, "去", *to_zh]), join(who.en, go, place.to, ride_en, when_en))


def command(d: Draw) -> Clause:
    """请打开窗户。 / 请不要在教室里吃苹果。"""
    verb, noun = what(d, [v for v in lx.VERBS[2:] if v.base not in ("take", "wear")])
    at_zh, at_en = somewhere(d, verb.where, 0.4)
    if d.chance(0.5):
        return Clause(
            ["请", "不要", *at_zh, verb.zh, noun.zh], join("please do not", verb.base, general(verb, noun), at_en)
        )
    zh, en = pointed(d, noun) if d.chance(0.5) else things(d, verb, noun, most=3)
    return Clause(["请", *at_zh, verb.zh, *zh], join("please", verb.base, en, at_en))


def capital(d: Draw) -> Clause:
    """中国的首都是北京。 / 我知道法国的首都是巴黎。"""
    land_zh, land_en, zh, en = d.pick(lx.CAPITALS)
    fact, said = [land_zh, "的", "首都", "是", zh], f"the capital of {land_en} is {en}"
    roll = d.rng.random()
    if roll < 0.2:
        return Clause(fact, said)
    if roll < 0.3:
        return Clause([*fact, "吗"], f"is {en} the capital of {land_en}", "?")
    who = person(d)
    if roll < 0.7:
        return Clause(
            [*who.zh.split(), "知道", *fact], join(who.en, "knows" if who.person == "3" else "know", "that", said)
        )
    return Clause(
        [*who.zh.split(), "来自", land_zh], join(who.en, "comes from" if who.person == "3" else "come from", land_en)
    )


def age(d: Draw) -> Clause:
    """小明今年十岁。"""
    who = d.pick((*lx.PRONOUNS, *CHILDREN))
    n_zh, n_en, n = d.pick(lx.NUMBERS)
    if d.chance(0.15):
        return Clause([*who.zh.split(), "今年", "几", "岁"], join("how old", be(who), who.en, "this year"), "?")
    return Clause(
        [*who.zh.split(), "今年", n_zh, "岁"],
        join(who.en, be(who), n_en, "year" if n == 1 else "years", "old this year"),
    )


def clock(d: Draw) -> Clause:
    """现在三点。 / 现在几点？"""
    n_zh, n_en, _ = d.pick(lx.NUMBERS)
    return Clause(["现在", n_zh, "点"], f"it is {n_en} o'clock now")


def left(d: Draw) -> Clause:
    """我有五个苹果，吃了两个，又买了四个。"""
    who, noun = person(d), d.pick([n for n in lx.NOUNS if n.kind == "eat" and n.plural])
    (a_zh, a_en, a), (b_zh, b_en, b) = d.pick(lx.NUMBERS[1:10]), d.pick(lx.NUMBERS[:5])
    if b >= a:
        (a_zh, a_en, a), (b_zh, b_en, b) = lx.NUMBERS[9], lx.NUMBERS[1]
    zh = [*who.zh.split(), "有", a_zh, noun.measure, noun.zh, "，", "吃", "了", b_zh, noun.measure]
    en = join(who.en, "had", a_en, f"{noun.plural} and ate", b_en)
    if d.chance(0.5):
        c_zh, c_en, _ = d.pick(lx.NUMBERS[:5])
        return Clause([*zh, "，", "又", "买", "了", c_zh, noun.measure], f"{en}, and then bought {c_en} more")
    return Clause(zh, en)


def manner(d: Draw) -> Clause:
    """他跑得很快。 / 我走得比她慢。"""
    who, (zh, base, s), (adv_zh, adv_en) = person(d), d.pick(lx.MANNERS), d.pick(lx.ADVERBS)
    verb = s if who.person == "3" else base
    degree_zh, degree_en = d.pick((("很", ""), ("非常", "very"), ("太", "too")))
    tail = ["了"] if degree_zh == "太" else []
    if d.chance(0.2):
        return Clause([*who.zh.split(), zh, "得", "不", adv_zh], join(who.en, do(who), "not", base, adv_en))
    return Clause([*who.zh.split(), zh, "得", degree_zh, adv_zh, *tail], join(who.en, verb, degree_en, adv_en))


def skill(d: Draw) -> Clause:
    """她会弹钢琴。 / 你会说中文吗？ / 我不会游泳。"""
    who, roll = person(d), d.rng.random()
    if roll < 0.3:
        zh, en = d.pick(lx.LANGUAGES)
        words, said = ["说", zh], f"speak {en}"
    elif roll < 0.5:
        noun = d.pick(nouns(("play",)))
        words, said = ["弹", noun.zh], f"play the {noun.en}"
    elif roll < 0.7:
        do_zh, zh, en = d.pick(lx.GAMES)
        words, said = [do_zh, zh], f"play {en}"
    elif roll < 0.85:
        verb = d.pick([v for v in lx.DOINGS if v.base in ("swim", "dance", "sing", "cook")])
        words, said = [verb.zh], verb.base
    else:
        noun = d.pick(nouns(lx.VERBS[6].objects))
        words, said = ["做", noun.zh], f"make {bare(noun)}"
    form = d.rng.random()
    if form < 0.5:
        return Clause([*who.zh.split(), "会", *words], join(who.en, "can", said))
    if form < 0.75:
        return Clause([*who.zh.split(), "不", "会", *words], join(who.en, "cannot", said))
    return Clause([*who.zh.split(), "会", *words, "吗"], join("can", who.en, said), "?")


def already(d: Draw) -> Clause:
    """我已经看过这部电影。 / 他没吃过香蕉。"""
    who, (verb, noun) = person(d), what(d, lx.VERBS[2:])
    if d.chance(0.6):
        zh, en = pointed(d, noun)
        return Clause([*who.zh.split(), "已经", verb.zh, "过", *zh], join(who.en, has(who), "already", verb.pp, en))
    return Clause(
        [*who.zh.split(), "没", verb.zh, "过", noun.zh], join(who.en, has(who), "never", verb.pp, general(verb, noun))
    )


def also(d: Draw) -> Clause:
    """我也喜欢茶。 / 我们都喝咖啡。 / 大家都爱猫。"""
    verb, noun = what(d, lx.VERBS[2:] + lx.STATES[:2])
    if d.chance(0.5):
        who = person(d)
        return Clause(
            [*who.zh.split(), "也", verb.zh, noun.zh], join(who.en, "also", now(who, verb), general(verb, noun))
        )
    zh, en, third = d.pick((("我们", "we all", False), ("他们", "they all", False), ("大家", "everyone", True)))
    return Clause([zh, "都", verb.zh, noun.zh], join(en, verb.s if third else verb.base, general(verb, noun)))


def social(d: Draw) -> Clause:
    """我爱你。 / 你爱我。 / 她昨天帮助了他。"""
    who, verb = person(d), d.pick(lx.SOCIAL)
    to = other(d, who)
    if verb.ing and d.chance(0.25):
        return Clause([*who.zh.split(), "正在", verb.zh, *to.zh.split()], join(who.en, be(who), verb.ing, to.obj))
    if verb.past and d.chance(0.6):
        when_zh, when_en = d.pick(lx.PAST)
        words = timed(d, who, when_zh, [verb.zh, "了", *to.zh.split()])
        return Clause(words, join(who.en, verb.past, to.obj, when_en))
    if d.chance(0.25):
        return Clause([*who.zh.split(), "不", verb.zh, *to.zh.split()], join(who.en, do(who), "not", verb.base, to.obj))
    if d.chance(0.15):
        return Clause([*who.zh.split(), verb.zh, *to.zh.split(), "吗"], join(do(who), who.en, verb.base, to.obj), "?")
    return Clause([*who.zh.split(), verb.zh, *to.zh.split()], join(who.en, now(who, verb), to.obj))


def story(d: Draw) -> Clause:
    """有一天，一位勇敢的探险家发现了一张旧地图。"""
    zh, en, _ = d.pick(lx.JOBS)
    adj_zh, adj_en, _ = d.pick([f for f in lx.FEELINGS if f[0] not in ("累", "饿", "忙", "高")])
    noun = d.pick(
        [n for n in lx.NOUNS if n.spot != "none" and n.kind in ("read", "carry", "mail", "feed", "open", "write")]
    )
    thing_zh, thing_en = some(d, noun, most=3, adjective=0.5)
    words = ["有一天", "，", "一", "位", adj_zh, "的", zh, "发现", "了", *thing_zh]
    return Clause(words, f"one day, {article(f'{adj_en} {en}')} discovered {thing_en}")


def together(d: Draw) -> Clause:
    """大家共同努力。 / 我们每天在学校一起学习。"""
    zh, en, third = d.pick((("大家", "everyone", True), ("我们", "we", False), ("他们", "they", False)))
    when_zh, when_en = d.pick(lx.HABIT) if d.chance(0.5) else ("", "")
    if d.chance(0.3):
        words = [zh, *when_zh.split(), "共同", "努力"]
        return Clause(words, join(en, "works" if third else "work", "hard together", when_en))
    verb = d.pick(lx.DOINGS)
    at_zh, at_en = somewhere(d, verb.where, 0.6)
    words = [zh, *when_zh.split(), *at_zh, "一起", verb.zh]
    return Clause(words, join(en, verb.s if third else verb.base, "together", at_en, when_en))


def feel(d: Draw) -> Clause:
    """我很高兴。 / 你累吗？ / 他昨天非常忙。"""
    who, (zh, en, _) = person(d), d.pick(lx.FEELINGS)
    roll = d.rng.random()
    if roll < 0.2:
        return Clause([*who.zh.split(), zh, "吗"], join(be(who), who.en, en), "?")
    if roll < 0.35:
        return Clause([*who.zh.split(), "不", zh], join(who.en, be(who), "not", en))
    degree_zh, degree_en = d.pick((("很", ""), ("非常", "very")))
    return Clause([*who.zh.split(), degree_zh, zh], join(who.en, be(who), degree_en, en))


def money(d: Draw) -> Clause:
    """他昨天把钱存在了银行。 / 她在河岸上看见了一只鸟。"""
    who = person(d)
    when_zh, when_en = d.pick(lx.PAST) if d.chance(0.7) else ("", "")
    if d.chance(0.4):
        words = timed(d, who, when_zh, ["把", "钱", "存在", "了", "银行"])
        return Clause(words, join(who.en, "put the money in the bank", when_en))
    noun = d.pick(nouns(lx.EVENTS[0].objects))
    zh, en = some(d, noun)
    words = timed(d, who, when_zh, ["在", "河岸", "上", "看见", "了", *zh])
    return Clause(words, join(who.en, "saw", en, "on the river bank", when_en))


def longer(d: Draw, how: str) -> Clause:
    """Two or three statements in one: 但是, 因为 … 所以 or 然后 between whole clauses; training has the short ones."""
    if how == "然后":
        one, (verb, noun) = chained(d), what(d, lx.VERBS)
        zh, en = things(d, verb, noun)
        return Clause([*one.zh, "，", "然后", verb.zh, "了", *zh], f"{one.en}, and then {verb.past} {en}")
    one, two = d.pick((past, went, gone))(d), d.pick((not_done, past, went))(d)
    if how == "但是":
        return Clause([*one.zh, "，", "但是", *two.zh], f"{one.en}, but {two.en}")
    return Clause(["因为", *one.zh, "，", "所以", *two.zh], f"because {one.en}, {two.en}")


def gone(d: Draw) -> Clause:
    """他上周去了学校。"""
    who, place = person(d), d.pick(DESTINATIONS)
    when_zh, when_en = d.pick(lx.PAST)
    return Clause(timed(d, who, when_zh, ["去", "了", *place.zh.split()[:1]]), join(who.en, "went", place.to, when_en))


def joined(d: Draw) -> Clause:
    """小红昨天看了一本书，但是我没去学校。: two whole statements, short enough for training."""
    return longer(d, d.pick(("但是", "因为", "然后")))


KINDS: Sequence[tuple[str, float, Callable[[Draw], Clause]]] = (
    ("past", 7, past), ("future", 4, future), ("progressive", 4, progressive), ("habit", 4, habit),
    ("often", 2.5, often),
    ("state", 2.5, state), ("never", 2, never), ("not_done", 3, not_done), ("lacking", 0.7, lacking),
    ("modal", 4.5, modal),
    ("have_coffee", 1, have_coffee), ("whether", 4, whether), ("ask_what", 1.5, ask_what), ("ask_who", 2, ask_who),
    ("ask_where", 2, ask_where), ("ask_why", 2, ask_why), ("ask_how_many", 1.8, ask_how_many), ("exist", 3, exist),
    ("locate", 2.5, locate), ("describe", 3, describe), ("compare", 2.5, compare), ("ba", 3, ba), ("bei", 2.5, bei),
    ("relative", 3.5, relative), ("belong", 1.5, belong), ("both", 2.5, both), ("because", 3, because),
    ("but", 2.5, but),
    ("chained", 3, chained), ("went", 2.5, went), ("activity", 3, activity), ("give", 2, give), ("company", 2, company),
    ("apple", 2.5, apple), ("tasty", 0.5, tasty), ("weather", 2, weather), ("job", 2.5, job), ("doing", 7, doing),
    ("travel", 3.5, travel), ("command", 1.5, command), ("capital", 1, capital), ("age", 1.5, age),
    ("clock", 0.1, clock), ("left", 0.8, left),
    ("manner", 1.5, manner), ("skill", 2, skill), ("already", 2, already), ("also", 1.5, also), ("social", 3, social),
    ("story", 1, story), ("together", 1.5, together), ("feel", 0.6, feel), ("money", 0.8, money), ("joined", 3, joined),
)  # fmt: skip
