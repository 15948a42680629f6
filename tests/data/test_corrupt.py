"""Corruptions hold what the papers say: shares, fates, spans; nothing is lost, a draw is its number."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data import corrupt
from qkv.data.collate import IGNORED
from qkv.data.corrupt import Blanks, Draw, TokenIds

MASK, CLS, SEP, PAD = 4, 2, 3, 0
MARKS = TokenIds(MASK, frozenset({PAD, CLS, SEP, MASK}), 50)
TEXTS = st.lists(st.integers(5, 49), min_size=1, max_size=60)
DRAWS = st.builds(Draw, st.integers(0, 9), st.integers(0, 3), st.integers(0, 99))
few = settings(max_examples=60, deadline=None)
SENTINELS = list(range(100, 140))


# -- masked words (Devlin et al. 2018, 3.1) ---------------------------------------------------------------------------


@few
@given(TEXTS, DRAWS)
def test_a_masked_text_keeps_its_length_its_marks_and_what_is_not_asked(words: list[int], draw: Draw) -> None:
    ids = [CLS, *words, SEP]
    hidden, labels = corrupt.mask_words(ids, MARKS, draw)
    assert len(hidden) == len(labels) == len(ids)
    asked = [i for i, label in enumerate(labels) if label != IGNORED]
    assert len(asked) == max(1, round(0.15 * len(words)))
    for i, token in enumerate(ids):
        if i in asked:
            assert labels[i] == token
            assert token not in MARKS.special
            assert hidden[i] == MASK or hidden[i] not in MARKS.special
        else:
            assert hidden[i] == token
    assert corrupt.mask_words(ids, MARKS, draw) == (hidden, labels)


def fates(mask: Callable[..., tuple[list[int], list[int]]] = corrupt.mask_words) -> Counter[str]:
    """What became of the asked words of many texts, counted the slow way."""
    found: Counter[str] = Counter()
    for n in range(2000):
        ids = [5 + (n * 7 + i * 3) % 45 for i in range(20)]
        hidden, labels = mask(ids, MARKS, Draw(1, 0, n))
        for was, now, label in zip(ids, hidden, labels, strict=True):
            if label != IGNORED:
                found["mask" if now == MASK else "same" if now == was else "other"] += 1
    return found


def check_fates(found: Counter[str]) -> None:
    share = {name: count / found.total() for name, count in found.items()}
    assert share["mask"] == pytest.approx(0.8, abs=0.02)  # 6000 words: a standard error of 0.005
    assert share["same"] == pytest.approx(0.1 + 0.1 / 46, abs=0.02)  # a random word may be the word itself
    assert share["other"] == pytest.approx(0.1 * 45 / 46, abs=0.02)


def test_of_the_asked_words_80_are_masked_10_random_and_10_stay() -> None:
    check_fates(fates())


def test_a_corruption_that_masks_every_asked_word_is_found() -> None:
    def always(ids: Sequence[int], marks: TokenIds, draw: Draw) -> tuple[list[int], list[int]]:
        _, labels = corrupt.mask_words(ids, marks, draw)
        return [MASK if label != IGNORED else token for token, label in zip(ids, labels, strict=True)], labels

    with pytest.raises((AssertionError, KeyError)):
        check_fates(fates(always))


def test_a_text_of_marks_alone_asks_nothing() -> None:
    assert corrupt.mask_words([CLS, SEP], MARKS, Draw(0, 0, 0)) == ([CLS, SEP], [IGNORED, IGNORED])


def test_another_index_or_epoch_hides_other_words() -> None:
    ids = list(range(5, 45))
    seen = {tuple(corrupt.mask_words(ids, MARKS, Draw(0, e, i))[1]) for e in range(3) for i in range(5)}
    assert len(seen) == 15


# -- spans (Raffel et al. 2020, 3.1.4) --------------------------------------------------------------------------------


def restored(source: Sequence[int], target: Sequence[int]) -> list[int]:
    """The slow way back: each sentinel of the source replaced by what follows it in the target."""
    found = list[int]()
    for token in source:
        if token < 100:
            found.append(token)
            continue
        at = list(target).index(token) + 1
        while target[at] < 100:
            found.append(target[at])
            at += 1
    return found


@few
@given(st.lists(st.integers(5, 49), min_size=2, max_size=60), DRAWS)
def test_spans_put_back_give_the_text(words: list[int], draw: Draw) -> None:
    source, target = corrupt.corrupt_spans(words, SENTINELS, draw)
    assert restored(source, target) == words
    lost = min(max(round(0.15 * len(words)), 1), len(words) - 1)
    marks = [t for t in source if t >= 100]
    assert marks == SENTINELS[: len(marks)] == [t for t in target if t >= 100][:-1]
    assert target[-1] == SENTINELS[len(marks)]
    assert sum(t < 100 for t in target) == lost
    assert source[0] < 100
    assert not any(a >= 100 and b >= 100 for a, b in itertools.pairwise(target)), "a span holds words"


def test_the_papers_example_has_about_three_words_in_a_span() -> None:
    lengths = [len(corrupt.corrupt_spans(range(5, 105 - 5), SENTINELS, Draw(3, 0, i))[1]) for i in range(50)]
    assert set(lengths) == {14 + 5 + 1}  # 95 ids: 14 lost in 5 spans, and one sentinel more


def test_every_way_to_cut_is_as_likely() -> None:
    chance = np.random.default_rng(0)
    found = Counter(tuple(corrupt.split_total(5, 3, chance)) for _ in range(6000))
    assert set(found) == {(a, b, 5 - a - b) for a in range(1, 4) for b in range(1, 5 - a)}
    assert all(abs(count - 1000) < 150 for count in found.values())  # five standard errors


def test_too_few_sentinels_and_too_short_a_text_are_told() -> None:
    with pytest.raises(corrupt.QkvError, match="5 spans need 6 sentinels, found 3"):
        corrupt.corrupt_spans(range(100), [100, 101, 102], Draw(0, 0, 0))
    for how in (
        lambda: corrupt.corrupt_spans([5], SENTINELS, Draw(0, 0, 0)),
        lambda: corrupt.split_prefix([5], Draw(0, 0, 0)),
    ):
        with pytest.raises(corrupt.QkvError, match="a text of 1 ids, expected at least 2"):
            how()


# -- infilling (Lewis et al. 2020, 2.2) -------------------------------------------------------------------------------


def runs(words: Sequence[int], holed: Sequence[int]) -> list[int]:
    """The lengths of the spans behind each mask, for a text of distinct words: found by looking, not by drawing."""
    found, at = list[int](), 0
    for i, token in enumerate(holed):
        if token != MASK:
            assert words[at] == token
            at += 1
            continue
        ahead = next((t for t in holed[i + 1 :] if t != MASK), None)
        end = len(words) if ahead is None else list(words).index(ahead)
        found.append(end - at)
        at = end
    assert at == len(words)
    return found


@few
@given(st.integers(1, 80), DRAWS)
def test_an_infilled_text_lacks_its_share_in_spans_that_do_not_touch(length: int, draw: Draw) -> None:
    words = list(range(5, 5 + length))
    holed = corrupt.infill_spans(words, MASK, draw)
    lost = sum(runs(words, holed))
    assert lost <= round(0.3 * length)
    if length > 10:
        assert lost == round(0.3 * length)
    assert not any(a == b == MASK for a, b in itertools.pairwise(holed))


def spread(least: int) -> list[int]:
    draws = (Draw(0, 0, i).make_generator() for i in range(400))
    return [n for draw in draws for n in corrupt.draw_lengths(300, 3.0, draw, least=least)[:-1]]


def test_lengths_of_spans_are_poissons() -> None:
    found = spread(0)
    assert np.mean(found) == pytest.approx(3.0, abs=0.05)
    assert np.var(found) == pytest.approx(3.0, abs=0.1)
    assert found.count(0) / len(found) == pytest.approx(np.exp(-3), abs=0.005)
    assert min(spread(1)) == 1


def test_lengths_of_another_mean_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = corrupt.draw_lengths
    monkeypatch.setattr(
        corrupt, "draw_lengths", lambda budget, mean, chance, least: right(budget, 2.5, chance, least=least)
    )
    with pytest.raises(AssertionError):
        test_lengths_of_spans_are_poissons()


@few
@given(st.lists(st.lists(st.integers(5, 49), max_size=4), max_size=6), DRAWS)
def test_permuted_sentences_stay_whole(sentences: list[list[int]], draw: Draw) -> None:
    numbered = [[(i, j) for j in range(len(s))] for i, s in enumerate(sentences)]
    coded = [[100 * i + j for i, j in s] for s in numbered]
    found = corrupt.permute_sentences(coded, draw)
    firsts = [t for t in found if t % 100 == 0]
    assert found == [t for first in firsts for t in coded[first // 100]]
    assert sorted(found) == sorted(t for s in coded for t in s)


# -- blanks (Du et al. 2022, 2.1) -------------------------------------------------------------------------------------

START, END = 90, 91


def written(b: Blanks) -> list[int]:
    """The slow way back: the words after each start put where its position says that the mask is."""
    holes = dict[int, list[int]]()
    for i in range(b.prefix, len(b.ids)):
        place, count = b.positions[:, i].tolist()
        assert b.ids[place] == MASK
        if b.ids[i] == START:
            assert count == 1
            holes[place] = []
        else:
            assert b.labels[i - 1] == b.ids[i]
            holes[place].append(b.ids[i])
            assert count == len(holes[place]) + 1
    found = list[int]()
    for i, token in enumerate(b.ids[: b.prefix]):
        found += holes.pop(i) if token == MASK else [token]
    assert not holes
    return found


@few
@given(TEXTS, DRAWS)
def test_blanks_filled_in_give_the_text(words: list[int], draw: Draw) -> None:
    b = corrupt.blank_spans(words, MASK, (START, END), draw)
    assert written(b) == words
    assert len(b.ids) == len(b.labels) == b.positions.shape[1]
    assert b.labels[: b.prefix] == [IGNORED] * b.prefix
    assert b.positions[:, : b.prefix].tolist() == [list(range(b.prefix)), [0] * b.prefix]
    count = b.ids.count(START)
    assert b.labels.count(END) == count == b.ids[: b.prefix].count(MASK)
    assert len(b.ids) - b.prefix - count == max(1, round(0.15 * len(words)))


def shuffles(blanks: Callable[..., Blanks]) -> int:
    """How many of some texts fill their blanks in another order than the text's."""
    found = [blanks(range(5, 90), MASK, (START, END), Draw(0, 0, i)) for i in range(40)]
    return sum(bool((np.diff(b.positions[0, b.prefix :]) < 0).any()) for b in found)


def test_blanks_are_filled_in_a_random_order() -> None:
    assert shuffles(corrupt.blank_spans) > 30


def test_blanks_that_are_not_shuffled_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Orderly(np.random.Generator):
        def permutation(self, x: int, axis: int = 0) -> np.ndarray:  # type: ignore[override]
            found = super().permutation(x, axis=axis)
            return np.sort(found) if x < 20 else found  # blanks are few, gaps are many

    monkeypatch.setattr(Draw, "make_generator", lambda self: Orderly(np.random.Philox(key=[self.seed, self.index])))
    assert shuffles(corrupt.blank_spans) == 0


# -- a prefix (Raffel et al. 2020, 3.2.1) -----------------------------------------------------------------------------


def test_a_text_is_divided_anywhere_but_at_its_ends() -> None:
    found = Counter(len(corrupt.split_prefix([5, 6, 7, 8], Draw(0, 0, i))[0]) for i in range(3000))
    assert set(found) == {1, 2, 3}
    assert all(abs(count - 1000) < 130 for count in found.values())
    first, rest = corrupt.split_prefix([5, 6, 7, 8], Draw(0, 0, 1))
    assert [*first, *rest] == [5, 6, 7, 8]
