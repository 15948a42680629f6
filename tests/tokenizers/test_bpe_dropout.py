"""BPE dropout: cuts spell their text, occur as often as the paper's algorithm says, and follow from the draws alone."""

import json
from collections import Counter
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from qkv.errors import QkvError
from qkv.paths import data_dir
from qkv.tokenizers.bpe_dropout import JOINT, BpeDropout, Trials, join_parts, list_pieces, read_merges, spell
from qkv.tokenizers.vocabulary import train_vocabulary

TEXTS = ["the lowest newest widest lower newer wider low new wide", "es est </s> naïve 我爱学习 学习 学", "banana ban"]
BPE = train_vocabulary(TEXTS * 3, kind="bpe", size=300, template="eos")
ANY = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)


def trials(share: float, seed: int = 0) -> Trials:
    return Trials(np.random.default_rng(seed), share)


def learnt() -> tokenizers.Tokenizer:
    """Merges with marked ends of words, learnt and made by `tokenizers`."""
    backend = tokenizers.Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=60, end_of_word_suffix="</w>", show_progress=False)
    backend.train_from_iterator(TEXTS * 3, trainer)
    return backend


def cut(backend: tokenizers.Tokenizer, text: str) -> str:
    """The text with @@ at the joints, as subword-nmt writes it."""
    return " ".join(spell(token) for token in backend.encode(text).tokens)


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("code") / "code"
    merges = (" ".join(pair) for pair in json.loads(learnt().to_str())["model"]["merges"])
    path.write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    return path


def jointed(code: Path) -> tuple[BpeDropout, list[str]]:
    backend, ranks = learnt(), read_merges(code)
    texts = [cut(backend, text) for text in TEXTS]
    more = " ".join(map(spell, list_pieces((word for text in texts for word in join_parts(text)), ranks)))
    return BpeDropout(train_vocabulary([*texts, more], kind="split", size=500, template="eos"), ranks), texts


@given(ANY, st.floats(0.01, 1.0), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_bytes_cut_anew_spell_the_text_and_end_as_ever(text: str, share: float, seed: int) -> None:
    recut = BpeDropout(BPE)
    ids = recut.ids_of(recut.split_texts([text])[0], trials(share, seed))
    assert BPE.decode(ids) == BPE.decode(BPE.encode(text))
    assert ids[-1] == BPE.eos_id


@given(ANY)
@settings(max_examples=60, deadline=None)
def test_without_a_hit_the_cut_is_the_vocabularys_own(text: str) -> None:
    recut, none = BpeDropout(BPE), trials(0.5)
    none.kept = 10**9
    assert recut.ids_of(recut.split_texts([text])[0], none) == BPE.encode(text)


def test_pieces_cut_anew_join_to_the_same_words(code: Path) -> None:
    recut, texts = jointed(code)
    tokenizer = recut.tokenizer
    for text, read in zip(texts, recut.split_texts(texts), strict=True):
        whole = trials(0.5)
        whole.kept = 10**9
        assert recut.ids_of(read, whole) == tokenizer.encode(text)
        cuts = {tuple(recut.ids_of(read, trials(0.3, seed))) for seed in range(20)}
        assert len(cuts) > 5
        for ids in cuts:
            said = " ".join(map(tokenizer.token, ids[:-1]))
            assert list(join_parts(said)) == list(join_parts(text))
            assert tokenizer.unk_id not in ids


def test_all_left_out_leaves_characters(code: Path) -> None:
    recut, _ = jointed(code)
    [read] = recut.split_texts(["lowest"])
    assert [recut.tokenizer.token(i) for i in recut.ids_of(read, trials(1.0))] == [
        *(c + JOINT for c in "lowes"), "t", "</s>"]  # fmt: skip


def likely(word: tuple[str, ...], ranks: dict[tuple[str, str], int], share: float) -> dict[tuple[str, ...], float]:
    """How likely each cut is by algorithm 1: of all possible merges some set is left, the best of it is made."""

    @cache
    def ends(word: tuple[str, ...]) -> dict[tuple[str, ...], float]:
        places = [i for i in range(len(word) - 1) if word[i : i + 2] in ranks]
        found = Counter[tuple[str, ...]]()
        for count in range(len(places) + 1):
            for left in combinations(places, count):
                chance = (1 - share) ** count * share ** (len(places) - count)
                if not left:
                    found[word] += chance  # type: ignore[assignment]
                    continue
                best = min(left, key=lambda i: (ranks[word[i], word[i + 1]], i))
                for end, p in ends((*word[:best], word[best] + word[best + 1], *word[best + 2 :])).items():
                    found[end] += chance * p  # type: ignore[assignment]
        return dict(found)

    return ends(word)


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_each_cut_is_as_frequent_as_the_papers_algorithm_makes_it(code: Path, share: float) -> None:
    recut, _ = jointed(code)
    word, draws, count = (*"lowes", "t</w>"), trials(share), 20_000
    seen = Counter(recut.cut_word(word, draws) for _ in range(count))
    expected = likely(word, recut.ranks, share)
    assert len(expected) > 8
    assert set(seen) <= set(expected)
    for end, p in expected.items():
        assert abs(seen[end] / count - p) < 4.5 * (p * (1 - p) / count) ** 0.5 + 1e-9, (end, p)


def test_the_rate_is_that_of_tokenizers_own_dropout(code: Path) -> None:
    recut, _ = jointed(code)
    backend = learnt()
    backend.model.dropout = 0.2
    words = " ".join(TEXTS[0].split() * 300)
    theirs = len(backend.encode(words).tokens)
    draws = trials(0.2)
    mine = sum(len(recut.cut_word((*w[:-1], w[-1] + "</w>"), draws)) for w in words.split())
    assert mine == pytest.approx(theirs, rel=0.06)  # about eight times the spread of either


def test_merges_and_vocabularies_that_do_not_fit_are_told(code: Path, tmp_path: Path) -> None:
    with pytest.raises(QkvError, match=r"WordLevel has no merges.*tokenizer\.merges=FILE"):
        BpeDropout(train_vocabulary(TEXTS, kind="split"))
    with pytest.raises(QkvError, match=r"nowhere: no merges could be read"):
        read_merges(tmp_path / "nowhere")
    old = tmp_path / "old"
    old.write_text("e s\n", encoding="utf-8")
    with pytest.raises(QkvError, match=r"old:1: found 'e s', expected '#version: 0.2'"):
        read_merges(old)
    old.write_text("#version: 0.2\ne s\ne s t\n", encoding="utf-8")
    with pytest.raises(QkvError, match=r"old:3: found 'e s t', expected two pieces"):
        read_merges(old)
    texts = ["lo@@ w@@ est ne@@ w@@ est"]
    with pytest.raises(QkvError, match=r"2 of 2 words, such as 'lowest', are split differently by these merges"):
        BpeDropout(train_vocabulary(texts, kind="split"), read_merges(code)).split_texts(texts)
    recut, texts = jointed(code)
    with pytest.raises(QkvError, match=r"the vocabulary of \d+ tokens lacks .*tokenizer\.size"):
        BpeDropout(train_vocabulary(texts, kind="split"), recut.ranks).split_texts(texts)


def test_the_merges_of_multi30k_cut_it_as_it_is_cut() -> None:
    folder = data_dir() / "mt/multi30k_bpe_en_de"
    if not folder.is_dir():
        pytest.skip(f"no {folder}; set QKV_DATA to its folder")
    ranks = read_merges(folder / "code")
    texts = [line for side in ("en", "de") for line in (folder / f"valid.{side}").read_text("utf-8").splitlines()]
    more = " ".join(map(spell, list_pieces((word for text in texts for word in join_parts(text)), ranks)))
    recut = BpeDropout(train_vocabulary([*texts, more], kind="split", size=20_000), ranks)
    read, draws = recut.split_texts(texts), trials(0.1)
    assert None not in recut.usual.values()
    usual, anew = sum(len(t.split()) for t in texts), sum(len(recut.ids_of(r, draws)) for r in read)
    assert 1.2 < anew / usual < 1.3
