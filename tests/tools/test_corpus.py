"""The bundled corpus: splits are honest, English is a function of the Chinese, 它 has one meaning."""

import hashlib
import random
import re
from collections import Counter

import corpus as made  # tools/corpus
import pack_corpus
import pytest
from corpus import Corpus, Pair, antecedent, corpus, grammar, lexicon, lm_text, phrase, words_en, words_zh
from corpus.lm import rhymes

from qkv.data.corpus import PAIRS, TEXT, load_corpus, load_text, read_packed


@pytest.fixture(scope="module")
def whole() -> Corpus:
    return corpus()


@pytest.fixture(scope="module")
def draws() -> list[tuple[Pair, list[str]]]:
    return [(pair, zh) for pair, zh, _ in made._Source(7).batch(12_000)]


def everything(c: Corpus) -> list[Pair]:
    swaps = [Pair(z, e, "it", "it") for s in c.swaps for z, e in ((s.zh_a, s.en_a), (s.zh_b, s.en_b))]
    return [*c.train, *c.valid, *c.test, *c.longer, *swaps, *c.showcase]


def test_what_the_package_ships_is_what_the_generator_makes() -> None:
    made_anew = made.generate()
    assert made_anew == load_corpus()
    assert len(made_anew.small) == 2000
    assert sha(pack_corpus.pack(made_anew)) == sha(read_packed(PAIRS))
    assert sha(lm_text()) == sha(read_packed(TEXT)) == sha(load_text())


def sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def test_every_label_is_a_function_of_the_sentence(whole: Corpus) -> None:
    assert len({p.label for p in whole.train}) == 10
    assert all((p.label == "question") == p.zh.endswith("？") for p in everything(whole))


def test_sizes_and_lengths(whole: Corpus) -> None:
    assert len(whole.train) == 40_000 == len({p.zh for p in whole.train})
    assert (len(whole.valid), len(whole.test), len(whole.longer)) == (500, 1000, 300)
    assert len(whole.swaps) >= 300
    assert len(whole.showcase) >= 14
    lengths = [len(made.words(p.zh)) for p in (*whole.train, *whole.valid, *whole.test)]
    assert min(lengths) >= 3
    assert max(lengths) <= made.LONGEST
    assert 8 <= sum(lengths) / len(lengths) <= 10
    assert min(len(made.words(p.zh)) for p in whole.longer) > max(lengths)
    assert 450 <= len(words_zh()) <= 700
    assert 600 <= len(words_en()) <= 900
    share = sum(p.kind.startswith("it") for p in whole.train) / len(whole.train)
    assert 0.2 <= share <= 0.25


def test_same_seed_same_corpus_other_seed_another() -> None:
    assert corpus.__wrapped__(3, 1500) == corpus(3, 1500), "made anew, and as it was kept"
    assert corpus(3, 1500).train != corpus(4, 1500).train
    with pytest.raises(ValueError, match="size is 5"):
        corpus(0, 5)


def test_splits_share_no_sentence(whole: Corpus) -> None:
    seen: set[str] = set()
    for split in (whole.train, whole.valid, whole.test, whole.longer):
        zh = {p.zh for p in split}
        assert len(zh) == len(split)
        assert not zh & seen
        seen |= zh
    swaps = {z for s in whole.swaps for z in (s.zh_a, s.zh_b)}
    assert len(swaps) == 2 * len(whole.swaps)
    assert not swaps & seen
    held = {zh for zh, _, _, out in made.SHOWCASE if out}
    assert not held & seen
    assert {p.zh for p in whole.showcase} - held <= {p.zh for p in whole.train}


def test_one_chinese_sentence_has_one_english(whole: Corpus, draws: list[tuple[Pair, list[str]]]) -> None:
    meaning: dict[str, str] = {}
    for pair in (*everything(whole), *(p for p, _ in draws)):
        assert meaning.setdefault(pair.zh, pair.en) == pair.en, pair


def test_showcase_is_in_the_language_of_the_grammar(whole: Corpus) -> None:
    known = {p.kind for p in whole.train}
    zh, en = set(words_zh()), set(words_en())
    for pair in whole.showcase:
        assert pair.kind in known, pair
        assert set(made.words(pair.zh)) <= zh, pair
        assert set(made.pieces(pair.en)) <= en, pair


def test_every_word_is_listed_and_trained(whole: Corpus) -> None:
    zh = Counter(w for p in whole.train for w in made.words(p.zh))
    en = Counter(w for p in whole.train for w in made.pieces(p.en))
    assert set(zh) == set(words_zh())
    assert set(en) == set(words_en())
    assert len(words_zh()) == len(set(words_zh()))
    for pair in everything(whole):
        assert zh.keys() >= set(made.words(pair.zh)), pair
        assert en.keys() >= set(made.pieces(pair.en)), pair
    for word in ("不", "苹果", "它", "。"):
        assert zh[word] > 100


def fewest(zh: str, known: set[str]) -> tuple[int, int]:
    """Words in the shortest segmentation, and how many segmentations are that short."""
    best = [(0, 1)]
    for end in range(1, len(zh) + 1):
        options = [best[s] for s in range(max(0, end - 5), end) if zh[s:end] in known and best[s][1]]
        least = min((n for n, _ in options), default=99)
        best.append((least + 1, sum(ways for n, ways in options if n == least)))
    return best[-1]


def test_fewest_words_segment_as_composed(draws: list[tuple[Pair, list[str]]]) -> None:
    known = set(words_zh())
    same = sum(made.words(p.zh) == [*zh, p.zh[-1]] for p, zh in draws)
    sole = sum(fewest(p.zh, known) == (len(zh) + 1, 1) for p, zh in draws)
    assert same / len(draws) >= 0.98
    assert sole / len(draws) >= 0.98


def things_before_it(pair: Pair) -> set[str]:
    """The nouns of the first clause, without bowls that measure and chairs that are a place."""
    nouns = {n.zh for n in lexicon.NOUNS}
    words = made.words(pair.zh[: pair.zh.index("，")])
    after = [*words[1:], ""]
    return {w for w, n in zip(words, after, strict=True) if w in nouns and n not in {"上", "里", *nouns}}


def test_swaps_differ_in_one_verb_and_its_noun(whole: Corpus) -> None:
    beside, alone = set[frozenset[str]](), set[str]()
    for pair in whole.train + whole.valid:
        if pair.kind.startswith("it"):
            things = things_before_it(pair)
            alone |= things
            beside |= {frozenset((a, b)) for a in things for b in things}
    for s in whole.swaps:
        a, b = made.words(s.zh_a), made.words(s.zh_b)
        differing = [(x, y) for x, y in zip(a, b, strict=True) if x != y]
        assert len(differing) == 1
        acts = {(act.zh, act.kind) for act in lexicon.ACTS}
        kind = {n.zh: n.kind for n in lexicon.NOUNS}
        assert (differing[0][0], kind[s.noun_a[0]]) in acts
        assert (differing[0][1], kind[s.noun_b[0]]) in acts
        assert s.en_a.endswith(f"the {s.noun_a[1]}.")
        assert s.en_b.endswith(f"the {s.noun_b[1]}.")
        assert frozenset((s.noun_a[0], s.noun_b[0])) not in beside
        assert {s.noun_a[0], s.noun_b[0]} <= alone


def test_it_is_never_open() -> None:
    for a in antecedent.subjects():
        for b in antecedent.partners(a):
            assert b.kind not in lexicon.SUITS[a.kind]
            assert a.kind not in lexicon.SUITS[b.kind]
    assert len({act.kind for act in lexicon.ACTS}) >= 12
    assert len(antecedent.subjects()) >= 60


def test_both_orders_of_antecedents(whole: Corpus) -> None:
    first = 0
    rows = [p for p in whole.train if p.kind == "it" and p.en.startswith("The ") and " are both " in p.en]
    for p in rows:
        noun = re.findall(
            r"and .*\bthe ([a-zA-Z ]+?)(?: yesterday.*| last night| this morning| last week| just now| tomorrow.*"
            r"| the day after tomorrow| next week| tonight| this weekend)?\.$",
            p.en,
        )
        first += bool(noun) and p.en.startswith(f"The {noun[0]} ")
    assert 0.4 < first / len(rows) < 0.6


def test_measure_words_agree_with_the_lexicon(whole: Corpus) -> None:
    measures = {n.zh: n.measure for n in lexicon.NOUNS} | {zh: m for zh, _, _, m in lexicon.PRODUCTS}
    numbers = {zh for zh, _, _ in lexicon.NUMBERS} | {"几", "这", "那"}
    units = set(measures.values())
    found = 0
    for pair in whole.train:
        words = made.words(pair.zh)
        for i, (number, unit, noun) in enumerate(zip(words, words[1:], words[2:], strict=False)):
            if number in numbers and unit in units and noun in measures and words[i + 3 : i + 4] != ["的"]:
                assert measures[noun] == unit, pair
                found += 1
    assert found > 10_000


def test_articles_and_marks(whole: Corpus) -> None:
    for pair in everything(whole):
        assert not re.search(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiouAEIO]|  | ,|\bany (a|an|the)\b", pair.en), pair
        assert pair.en[0].isupper(), pair
        assert pair.en[-1] == {"。": ".", "？": "?"}[pair.zh[-1]], pair
        assert not re.search(r"[ .,?A-Za-z]", pair.zh), pair


@pytest.mark.parametrize(
    ("subject", "wrong"), [("he", "love|go|do|have|are"), ("they", "loves|goes|does|has|is"), ("I", "loves|is|has|are")]
)
def test_verbs_agree(whole: Corpus, subject: str, wrong: str) -> None:
    for pair in whole.train:
        assert not re.match(rf"{subject} ({wrong})\b", pair.en, re.IGNORECASE), pair


def test_a_broken_article_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phrase, "article", lambda en: f"a {en}")
    d = phrase.Draw(random.Random(0))
    said = " ".join(grammar.past(d).en for _ in range(400))
    assert re.search(r"\ba [aeiou]", said)


def test_held_out_half_combines_words_anew(whole: Corpus) -> None:
    assert 0.02 < sum(made.reserved(0, a.zh, n.zh) for a in lexicon.ADJECTIVES for n in lexicon.NOUNS) / 2000 < 0.06
    verbs = {v.zh: v for v in lexicon.VERBS}
    for p in whole.train:
        if p.kind == "habit":
            words = made.words(p.zh)
            verb, noun = words[-3], words[-2]
            assert verb in verbs, p
            assert not made.reserved(0, verb, noun), p


def test_the_language_models_text() -> None:
    text = lm_text(0, 60_000)
    assert text == lm_text(0, 60_000) != lm_text(1, 60_000)
    assert 60_000 <= len(text) < 61_000
    assert "One, Two, Buckle my shoe;\nThree, Four, Knock at the door;\n" in text
    assert 40 <= len(rhymes()) <= 70
    assert len(set(rhymes())) == len(rhymes())
    assert set(re.findall(r"One, Two, (\w+)", text)) == {"Buckle"}
    assert re.search(r"茶放在\w+，它很烫。", text)
    assert not re.search(r"\b茶放在\w+，它很旧", text)
    assert "The capital of China is Beijing." in text
    assert "\n\n\n" not in text
    for a, b, total in re.findall(r"(\d+) \+ (\d+) = (\d+)", text):
        assert int(a) + int(b) == int(total)
