"""Rows that follow a rule, in one command: `qkv train FILE` with its defaults, on files that are made here.

Pairs: a sum and its result, a string backwards, a noun and its plural, a word and its sounds, a Chinese numeral and its
digits, a date and how ISO 8601 writes it; judged by the share of new rows that come out exactly.
Labels: the language of a word of Multi30k (words of one language alone; QKV_DATA), which animal does something to the
other (active and passive, English and Chinese), the last of two verdicts, some of them negated, whether a second text
follows from a first (English and Chinese), whether a string is a palindrome, and, without a rule, whether two sentences
of Tatoeba mean the same; judged by accuracy beside TF-IDF with logistic regression over words (one and two) and over
letters (up to four together, within words).
    python bench/own_words.py --seconds 60 --peers ENV/bin/python
"""

import argparse
import datetime
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import harness

DIGITS, UNITS = "零一二三四五六七八九", ((1000, "千"), (100, "百"), (10, "十"), (1, ""))
TEST = 300  # rows
PEER = """
import sys
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
texts = [open(path, encoding="utf-8").read().splitlines() for path in sys.argv[1:3]]
(x, y), (a, b) = [zip(*(line.rsplit("\\t", 1) for line in lines)) for lines in texts]
for unit, most in (("word", 2), ("char_wb", 4)):
    counts = TfidfVectorizer(ngram_range=(1, most), sublinear_tf=True, analyzer=unit)
    print(make_pipeline(counts, LogisticRegression(C=10, max_iter=1000)).fit(x, y).score(a, b))
"""
Rows = list[tuple[str, str]]


def make_sums(lot: random.Random) -> Rows:
    """Two numbers below a thousand, and their sum."""
    return [(f"{a}+{b}", str(a + b)) for a, b in ((lot.randrange(1000), lot.randrange(1000)) for _ in range(5000))]


def make_backwards(lot: random.Random) -> Rows:
    """Three to ten letters, and the same from the end."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ("".join(lot.choice(letters) for _ in range(lot.randint(3, 10))) for _ in range(4000))
    return [(word, word[::-1]) for word in words]


def draw_words(lot: random.Random, count: int) -> list[str]:
    """Different words of tiny shakespeare."""
    text = Path(os.environ["QKV_DATA"], "lm", "tinyshakespeare", "input.txt").read_text(encoding="utf-8")
    return lot.sample(sorted(set(re.findall(r"[a-z]{4,10}", text))), count)


def make_sounds(lot: random.Random) -> Rows:
    """English words, and the sounds of their letters with a space between."""
    def sound(word: str) -> str:
        parts = re.split("(sh|ch|th|ee|oo|ai|ck)", word)
        return " ".join(part.upper() if n % 2 else " ".join(part.upper()) for n, part in enumerate(parts) if part)
    return [(word, sound(word)) for word in draw_words(lot, 4000)]


def make_plurals(lot: random.Random) -> Rows:
    """English words and what a rule makes of them."""
    return [(word, re.sub("([^aeiou])y$", r"\1ie", word) + ("e" if re.search("(s|x|ch|sh)$", word) else "") + "s")
            for word in draw_words(lot, 3000)]


def spell_number(number: int) -> str:
    """A number below ten thousand in Chinese."""
    said = "".join(DIGITS[digit] + unit if digit else DIGITS[0]
                   for size, unit in UNITS for digit in [number // size % 10])
    return re.sub(f"{DIGITS[0]}+", DIGITS[0], said).strip(DIGITS[0]) or DIGITS[0]


def make_numerals(lot: random.Random) -> Rows:
    """Chinese numerals and their digits."""
    return [(spell_number(number), str(number)) for number in lot.sample(range(10_000), 3000)]


def make_dates(lot: random.Random) -> Rows:
    """Dates as people write them, and in ISO 8601."""
    ways = ("{0.day} {0:%B} {0.year}", "{0:%B} {0.day}, {0.year}", "{0:%d/%m/%Y}", "{0.day}. {0:%B} {0.year}")
    days = (datetime.date(1900, 1, 1) + datetime.timedelta(lot.randrange(60_000)) for _ in range(4000))
    return [(lot.choice(ways).format(day), day.isoformat()) for day in days]


def make_languages(lot: random.Random) -> Rows:
    """Words of four languages with the language of each."""
    folder, words = Path(os.environ["QKV_DATA"], "mt", "multi30k"), dict[str, set[str]]()
    for name in ("en", "de", "fr", "cs"):
        text = (folder / f"train.{name}").read_text(encoding="utf-8").lower()
        words[name] = set(re.findall(r"[^\W\d_]{4,}", text))
    own = {name: some.difference(*(more for n, more in words.items() if n != name)) for name, some in words.items()}
    return [(word, name) for name, some in own.items() for word in lot.sample(sorted(some), 1200)]


def make_agents(lot: random.Random) -> Rows:
    """Who does something to another: about 1,100 sentences to learn from."""
    animals = [
        "dog", "cat", "horse", "cow", "fox", "wolf", "bear", "lion", "tiger", "mouse", "rabbit", "deer", "goat",
        "sheep", "duck", "goose", "monkey", "frog"]
    ways = ("{a} {verb} {b}{where}", "{b} was {verb} by {a}{where}")

    def sentence() -> tuple[str, str]:
        pair = lot.sample(animals, 2)
        a, b = (lot.choice(("the ", "the old ", "the grey ", "the hungry ", "the clever ")) + name for name in pair)
        verb, where = lot.choice(["chased", "bit", "followed", "pushed", "found", "scared"]), lot.choice(
            ("", " in the garden", " near the river", " at night", " after the rain"))
        return lot.choice(ways).format(a=a, b=b, verb=verb, where=where), pair[0]

    return [sentence() for _ in range(1400)]


def make_chinese_agents(lot: random.Random) -> Rows:
    """The same in Chinese: about 750 sentences, some with 被 or 把."""
    animals = [
        "狗", "猫", "马", "牛", "狐狸", "狼", "熊", "狮子", "老虎", "老鼠", "兔子", "鹿", "山羊", "绵羊", "鸭子", "鹅",
        "猴子", "大象", "蛇", "青蛙"]
    ways = ("{when}{a}{verb}了{b}", "{when}{b}被{a}{verb}了", "{when}{a}把{b}{verb}了", "{b}{when}被{a}{verb}了")

    def sentence() -> tuple[str, str]:
        pair = lot.sample(animals, 2)
        a, b = (lot.choice(("", "老", "小", "大", "黑", "白")) + name for name in pair)
        when = lot.choice(("昨天", "早上", "在花园里", "", "在河边", "晚上"))
        return lot.choice(ways).format(a=a, b=b, verb=lot.choice("咬追踢吓推救"), when=when), pair[0]

    return [sentence() for _ in range(1050)]


def make_verdicts(lot: random.Random) -> Rows:
    """Two verdicts, some negated, with what the last one says: about 700 sentences."""
    words = {True: ["good", "great", "lovely", "excellent", "wonderful", "superb", "tasty", "friendly"],
             False: ["bad", "awful", "terrible", "poor", "dreadful", "slow", "rude", "horrible"]}
    ways = ("the {} was {} but the {} was {}", "we found the {} {} , and the {} was {}", "{} : {} . {} : {}")
    things = ["food", "service", "room", "staff", "view", "music", "wine", "bed", "pool", "price"]

    def sentence() -> tuple[str, str]:
        said = list[str]()
        good = True
        for thing in lot.sample(things, 2):
            good, negated = lot.random() < 0.5, lot.random() < 0.4
            said += [thing, "not " * negated + lot.choice(words[good != negated])]
        return lot.choice(ways).format(*said), "positive" if good else "negative"

    return [sentence() for _ in range(1000)]


def make_inferences(lot: random.Random) -> Rows:
    """Two texts, and whether the second follows from the first: about 1,200 pairs to learn from."""
    animals = ["dog", "cat", "horse", "cow", "fox", "wolf", "bear", "lion", "mouse", "deer", "goat", "frog"]
    places = ["garden", "house", "river", "barn", "field", "wood"]

    def pair() -> tuple[str, str]:
        a, b = lot.sample(animals, 2)
        place, elsewhere = lot.sample(places, 2)
        verb, label = lot.choice(["chased", "followed", "found", "scared"]), lot.choice(("yes", "no", "unclear"))
        second = {"yes": f"the {b} was {verb} by the {a}", "no": f"the {a} was {verb} by the {b}",
                  "unclear": f"the {a} was near the {elsewhere}"}[label]
        return f"the {a} {verb} the {b} near the {place}\t{second}", label

    return [pair() for _ in range(1600)]


def make_chinese_inferences(lot: random.Random) -> Rows:
    """The same in Chinese, of who has a thing now: about 1,200 pairs."""
    people = ["小明", "小红", "小刚", "小丽", "小华", "小强", "老王", "老李", "老张", "小芳"]
    things = ["书", "笔", "苹果", "球", "花", "帽子", "钥匙", "雨伞"]
    ways = ("{a}把{t}给了{b}", "{a}送给{b}一个{t}", "{b}从{a}那里拿走了{t}", "{t}被{a}交给了{b}")
    said = {"是": ("{t}在{b}手里", "{b}有{t}"), "否": ("{t}还在{a}手里", "{b}没有{t}"),
            "不知道": ("{u}在{b}手里", "{a}有{u}")}

    def pair() -> tuple[str, str]:
        (a, b), (t, u), label = lot.sample(people, 2), lot.sample(things, 2), lot.choice([*said])
        return "\t".join(lot.choice(way).format(a=a, b=b, t=t, u=u) for way in (ways, said[label])), label

    return [pair() for _ in range(1600)]


def make_paraphrases(lot: random.Random, side: int = 0) -> Rows:
    """Two sentences of Tatoeba: whether they have a translation in common; a sentence is in one row alone.

    The second sentence of those that have none is among the likest to the first, by the words that both have.
    """
    of, alike, found = dict[str, set[str]](), dict[str, list[str]](), list[tuple[str, str]]()
    path = Path(os.environ["QKV_DATA"], "mt", "tatoeba_cmn_eng", "cmn.txt")
    for line in path.read_text(encoding="utf-8-sig").splitlines():
        if len(cells := line.split("\t")) > 1:
            of.setdefault(cells[1 - side], set()).add(cells[side])
    unit = re.compile(r"\w" if side else r"\w+")
    words = {text: sorted({*unit.findall(text.lower())}) for text in sorted({t for some in of.values() for t in some})}
    for text, some in words.items():
        for word in some:
            alike.setdefault(word, []).append(text)
    same = {text: set[str]() for text in words}
    for some in of.values():
        for text in some:
            same[text] |= some
    free, first = set(words), [text for text in words if len(same[text]) > 1]
    lot.shuffle(first)
    for n, one in enumerate(first):
        scores = Counter[str]()
        for word in words[one] if n % 2 and one in free else ():
            for text in alike[word] if len(alike[word]) < 2000 else ():
                scores[text] += len(alike[word]) ** -0.5  # type: ignore[assignment]
        others = [text for text, _ in scores.most_common(20)] if n % 2 else sorted(same[one])
        others = [text for text in others if text in free and text != one and (text in same[one]) != bool(n % 2)][:5]
        if one in free and others:
            free -= {one, other := lot.choice(others)}
            found.append((f"{one}\t{other}", "different" if n % 2 else "same"))
    return found


def make_palindromes(lot: random.Random) -> Rows:
    """Strings of 8 to 11 letters: half of them are the same from the end, the others but for one letter."""
    def string() -> tuple[str, str]:
        half, middle = lot.choices("abcdefgh", k=lot.randint(4, 5)), lot.choices("abcdefgh", k=lot.randint(0, 1))
        other, label = half[::-1], lot.choice(("yes", "no"))
        if label == "no":
            place = lot.randrange(len(other))
            other[place] = lot.choice([letter for letter in "abcdefgh" if letter != other[place]])
        return "".join(half + middle + other), label

    return [string() for _ in range(3000)]


LABELS: dict[str, Callable[[random.Random], Rows]] = {
    "languages": make_languages, "agents": make_agents, "agents in Chinese": make_chinese_agents,
    "verdicts": make_verdicts, "inferences": make_inferences,
    "inferences in Chinese": make_chinese_inferences, "palindromes": make_palindromes,
    "paraphrases": make_paraphrases, "paraphrases in Chinese": partial(make_paraphrases, side=1)}
PAIRS: dict[str, Callable[[random.Random], Rows]] = {
    "sums": make_sums, "backwards": make_backwards, "plurals": make_plurals, "sounds": make_sounds,
    "numerals": make_numerals, "dates": make_dates}


def measure(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """What the defaults come to on one file."""
    lot = random.Random(given.seed)
    rows = list(dict.fromkeys((PAIRS | LABELS)[name](lot)))
    lot.shuffle(rows)
    with tempfile.TemporaryDirectory() if not given.keep else nullcontext(given.keep / name) as temporary:
        Path(temporary).mkdir(parents=True, exist_ok=True)
        train, test = (Path(temporary, part) for part in ("train.tsv", "test.tsv"))
        for file, some in ((train, rows[TEST:]), (test, rows[:TEST])):
            file.write_text("".join(f"{a}\t{b}\n" for a, b in some), encoding="utf-8")
        out, qkv, start = f"{temporary}/run", [sys.executable, "-m", "qkv.cli"], time.perf_counter()
        words = [f"--out={out}", "-q", f"training.seconds={given.seconds:g}", *given.words]
        subprocess.run([*qkv, "train", str(train), *words], check=True, capture_output=True)
        found: dict[str, Any] = {"rows": len(rows) - TEST, "seconds": round(time.perf_counter() - start)}
        if name not in PAIRS:
            evaluate = [*qkv, "eval", out, "--accuracy", str(test), "--json"]
            judge = subprocess.run(evaluate, check=True, capture_output=True)
            ran = subprocess.run([given.peers, "-c", PEER, train, test], capture_output=True, text=True, check=False)
            peers = dict(zip(("tf-idf of words", "tf-idf of letters"), map(float, ran.stdout.split()), strict=False))
            return found | {"accuracy": json.loads(judge.stdout)["accuracy"]} | peers
        sources = "".join(f"{source}\n" for source, _ in rows[:TEST]).encode()
        said = subprocess.run([*qkv, "translate", out, "-q"], input=sources, check=True, capture_output=True)
        lines = said.stdout.decode("utf-8").splitlines()
        right = sum(line == target for line, (_, target) in zip(lines, rows[:TEST], strict=True))
        return found | {"exact": round(right / TEST, 4)}


def main() -> None:
    """Print a line for each file, and write all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=[*PAIRS, *LABELS], default=[*PAIRS, *LABELS])
    parser.add_argument("--seconds", type=float, default=60.0, help="training.seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peers", default=sys.executable, help="the python that has scikit-learn")
    parser.add_argument("--out", type=Path, default=harness.RESULTS / "own_words.json")
    parser.add_argument("--keep", type=Path, help="a new folder for the files and the models")
    parser.add_argument("words", nargs="*", help="settings, such as tokenizer.kind=bpe")
    given = parser.parse_args()
    results: dict[str, Any] = {"machine": harness.machine(), "seconds": given.seconds, "settings": given.words,
                               "sets": {}}
    for name in given.sets:
        results["sets"][name] = measure(name, given)
        print(name, json.dumps(results["sets"][name]), flush=True)
        given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
