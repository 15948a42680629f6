"""The text of the bundled language model: nursery rhymes in the public domain, stories, facts and sums of our own.

Everything is short and says itself again in other words, so that a small causal model has something to find: a rhyme to
know by heart, a noun that decides the adjective of the pronoun after it, a name that comes back.
"""

import random
from collections.abc import Callable, Sequence
from importlib.resources import files

from . import lexicon as lx
from .phrase import article

Kind = tuple[float, Callable[[random.Random], str]]

#   kind of thing -> the one adjective that its pronoun takes: zh, en
SAYS: dict[str, tuple[str, str]] = {
    "read": ("旧", "old"), "drink": ("烫", "hot"), "eat": ("好吃", "delicious"), "wear": ("暖和", "warm"),
    "drive": ("快", "fast"), "ride": ("快", "fast"), "feed": ("可爱", "cute"), "fix": ("贵", "expensive"),
    "wash": ("干净", "clean"), "plant": ("香", "fragrant"), "mail": ("重", "heavy"), "carry": ("小", "small"),
}  # fmt: skip
#   kind of thing -> what one does with it: zh, en past
USES: dict[str, tuple[str, str]] = {
    "read": ("看完", "read"), "drink": ("喝完", "drank"), "eat": ("吃完", "ate"), "wear": ("穿上", "put on"),
    "drive": ("停好", "parked"), "ride": ("骑上", "rode"), "feed": ("喂饱", "fed"), "fix": ("修好", "fixed"),
    "wash": ("洗好", "washed"), "plant": ("浇好", "watered"), "mail": ("寄出", "mailed"), "carry": ("拿走", "took"),
}  # fmt: skip
PEOPLE: tuple[tuple[str, str, str, str, str], ...] = (
    ("苏珊", "Susan", "她", "she", "her"), ("玛丽", "Mary", "她", "she", "her"), ("小红", "Lily", "她", "she", "her"),
    ("安娜", "Anna", "她", "she", "her"), ("汤姆", "Tom", "他", "he", "his"), ("约翰", "John", "他", "he", "his"),
    ("小明", "Ming", "他", "he", "his"), ("彼得", "Peter", "他", "he", "his"),
)  # fmt: skip
FACTS: tuple[tuple[str, str, str, str], ...] = (
    *lx.CAPITALS, ("德国", "Germany", "柏林", "Berlin"), ("意大利", "Italy", "罗马", "Rome"),
    ("俄罗斯", "Russia", "莫斯科", "Moscow"), ("埃及", "Egypt", "开罗", "Cairo"),
    ("泰国", "Thailand", "曼谷", "Bangkok"),
)  # fmt: skip
DIGITS_ZH = "零一二三四五六七八九十"
DIGITS_EN = ("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
THINGS = tuple(n for n in lx.NOUNS if n.kind in SAYS and n.spot != "file")


def rhymes() -> list[str]:
    """The traditional rhymes, one text each."""
    text = (files(__name__.rpartition(".")[0]) / "rhymes.txt").read_text(encoding="utf-8")
    return text.strip().replace("\r\n", "\n").split("\n\n")


def place(rng: random.Random, noun: lx.Noun) -> tuple[str, str]:
    """A spot where the thing may lie."""
    zh, en, _ = rng.choice([s for s in lx.SPOTS if noun.spot in s[2]])
    return zh.replace(" ", ""), en


def story_zh(rng: random.Random) -> str:
    """书放在桌上，它很旧。苏珊看完了它。"""
    noun, (name, _, he, _, _) = rng.choice(THINGS), rng.choice(PEOPLE)
    spot, _ = place(rng, noun)
    first = rng.choice((f"{noun.zh}放在{spot}，它很", f"{name}的{noun.zh}放在{spot}，它很"))
    if noun.kind == "feed":
        first = first.replace("放在", "坐在")
    says, use = SAYS[noun.kind][0], USES[noun.kind][0]
    tails = (
        "",
        f"{name}{use}了它。",
        f"{name}很喜欢它，{he}{use}了它。",
        f"{name}把它{use}了。",
        f"今天{name}{use}了{noun.zh}。",
    )
    return f"{first}{says}。{rng.choice(tails)}"


def story_en(rng: random.Random) -> str:
    """The book is on the table. It is old. Susan read it."""
    noun, (_, name, _, he, his) = rng.choice(THINGS), rng.choice(PEOPLE)
    _, spot = place(rng, noun)
    says, use = SAYS[noun.kind][1], USES[noun.kind][1]
    owner = rng.choice((f"The {noun.en}", f"{name}'s {noun.en}"))
    tails = ("", f" {name} {use} it.", f" {name} likes it, so {he} {use} it.", f" {name} {use} {his} {noun.en}.")
    return f"{owner} is {spot}. It is {says}.{rng.choice(tails)}"


def two_zh(rng: random.Random) -> str:
    """Two things, and what is said in turn belongs to each: 书放在桌上，茶放在地上。书很旧，茶很烫。"""
    a, b = rng.sample([n for n in THINGS if n.kind not in ("feed", "drive", "ride")], 2)
    (x, _), (y, _) = place(rng, a), place(rng, b)
    says = f"{a.zh}很{SAYS[a.kind][0]}，{b.zh}很{SAYS[b.kind][0]}。"
    return f"{a.zh}放在{x}，{b.zh}放在{y}。{says}{a.zh}在{x}，{b.zh}在{y}。"


def two_en(rng: random.Random) -> str:
    """The same in English."""
    a, b = rng.sample(THINGS, 2)
    (_, x), (_, y) = place(rng, a), place(rng, b)
    first = f"The {a.en} is {x}. The {b.en} is {y}."
    return f"{first} The {a.en} is {SAYS[a.kind][1]}. The {b.en} is {SAYS[b.kind][1]}. Where is the {a.en}? It is {x}."


def hello(rng: random.Random) -> str:
    """Hello, I am Susan. … My name is Susan."""
    _, name, _, he, _ = rng.choice(PEOPLE)
    role, noun = rng.choice(lx.JOBS)[1], rng.choice([n for n in THINGS if n.plural])
    middle = rng.choice((f"I am {article(role)}.", f"I like {noun.plural}.", f"I have {article(noun.en)}."))
    return f"Hello, I am {name}. {middle} My name is {name}. Everyone knows {name}, and {he} is happy."


def hello_zh(rng: random.Random) -> str:
    """你好，我是苏珊。……我的名字是苏珊。"""
    name, _, he, _, _ = rng.choice(PEOPLE)
    middle = rng.choice(
        (f"我是{rng.choice(lx.JOBS)[0]}。", f"我喜欢{rng.choice(THINGS).zh}。", "我爱学习。", "大家共同努力。")
    )
    return f"你好，我是{name}。{middle}我的名字是{name}。大家都认识{name}，{he}很高兴。"


def friends(rng: random.Random) -> str:
    """Names that come back in their order."""
    names = [p[1] for p in rng.sample(PEOPLE, 3)]
    row = f"{names[0]}, {names[1]} and {names[2]}"
    return f"{row} are friends. {row} went to the park. {names[0]} met {names[1]}, and {names[1]} met {names[2]}."


def fact(rng: random.Random) -> str:
    """中国的首都是北京。 / The capital of China is Beijing."""
    rows = rng.sample(FACTS, 3)
    if rng.random() < 0.5:
        return "".join(f"{land}的首都是{city}。" for land, _, city, _ in rows)
    return " ".join(f"The capital of {land} is {city}." for _, land, _, city in rows)


def numbers(rng: random.Random) -> str:
    """Counting up, in either language."""
    start = rng.randint(1, 5)
    count = range(start, min(start + rng.randint(4, 8), 11))
    if rng.random() < 0.5:
        return "，".join(DIGITS_ZH[i] for i in count) + "。"
    return ", ".join(DIGITS_EN[i].lower() if i > start else DIGITS_EN[i] for i in count) + "."


def total(rng: random.Random) -> str:
    """Sums below twenty."""
    return "\n".join(f"{a} + {b} = {a + b}" for a, b in ((rng.randint(0, 9), rng.randint(0, 9)) for _ in range(4)))


def apples(rng: random.Random) -> str:
    """我有五个苹果，吃了两个，还有三个。"""
    a = rng.randint(3, 10)
    b = rng.randint(1, a - 1)
    many = [("两" if i == 2 else DIGITS_ZH[i]) for i in range(11)]
    if rng.random() < 0.5:
        return f"我有{many[a]}个苹果，吃了{many[b]}个，还有{many[a - b]}个。"
    return f"I had {a} apples and ate {b}. Now I have {a - b}."


def about_apple(rng: random.Random) -> str:
    """苹果 as a firm and as a fruit: what came before decides what follows."""
    return rng.choice((
        "科技巨头苹果发布了新手机。", "科技巨头苹果推出了新电脑。", "美味的苹果很甜。", "美味的苹果很好吃。",
        "我吃了一个苹果，它很甜。", "苹果发布了新手机，它很贵。", "我爱喝咖啡。", "我可以拥有一杯咖啡吗？",
        "今早我去买了一本书，它很旧。", "有一天，一位勇敢的探险家发现了一张旧地图。",
    ))  # fmt: skip


KINDS: Sequence[Kind] = (
    (0.2, story_zh), (0.2, story_en), (0.08, two_zh), (0.08, two_en), (0.08, hello), (0.06, hello_zh), (0.05, friends),
    (0.07, fact), (0.04, numbers), (0.06, total), (0.05, apples), (0.03, about_apple),
)  # fmt: skip


def lm_text(seed: int = 0, size: int = 1_500_000) -> str:
    """`size` characters (to the end of the last document) for the causal model, documents parted by an empty line.

    A third of it is rhymes in shuffled rounds; the rest is drawn document by document. A function of (seed, size).
    """
    rng = random.Random(f"lm {seed}")
    weights, makers = [w for w, _ in KINDS], [make for _, make in KINDS]
    documents: list[str] = []
    queue: list[str] = []
    length = rhymed = 0
    while length < size:
        if rhymed * 3 <= length:
            if not queue:
                queue = rhymes()
                rng.shuffle(queue)
            documents.append(queue.pop())
            rhymed += len(documents[-1]) + 2
        else:
            documents.append(rng.choices(makers, weights)[0](rng))
        length += len(documents[-1]) + 2
    return "\n\n".join(documents) + "\n"
