"""Bigrams as tokens: those of a slow loop, kept by a file, and without a part in what is said."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import QkvError
from qkv.tokenizers import bigrams
from qkv.tokenizers.tokenizer import Tokenizer, load
from qkv.tokenizers.vocabulary import equip, train_vocabulary

TEXTS = ["not good at all", "this is not good", "is it bad ? not bad !", "bad ? good ?", "这 是 not bad"]
BERT = {"specials": ("[PAD]", "[UNK]", "[CLS]", "[SEP]"), "template": "cls", "bigrams": True}


def made(kind: str = "word", size: int = 100, texts: list[str] = TEXTS, **more: Any) -> Tokenizer:
    return train_vocabulary(texts, kind=kind, size=size, **(BERT | more))  # type: ignore[arg-type]


def test_bigrams_that_come_twice_stand_behind_their_first_part() -> None:
    tokenizer = made()
    found = tokenizer.pieces(tokenizer.encode("is not good , not bad ?"))
    assert found == ["[CLS]", "is", "not", "not good", "good", "[UNK]", "not", "not bad", "bad", "?", "[SEP]"]
    assert {t for t in tokenizer.vocabulary if " " in t} == {"not good", "not bad"}, "of words, not once"
    assert tokenizer.decode(tokenizer.encode("is not good")) == "is not good"


def test_characters_have_bigrams_too() -> None:
    tokenizer = made("char", texts=["葡萄", "吃葡萄。", "a b", "a b"])
    assert tokenizer.pieces(tokenizer.encode("葡萄a b。")) == [
        "[CLS]", "葡", "葡 萄", "萄", "a", "␣", "b", "。", "[SEP]"]
    assert tokenizer.decode(tokenizer.encode("吃葡萄")) == "吃葡萄"


@given(st.lists(st.text("abc ", min_size=1, max_size=30), min_size=2, max_size=9), st.integers(8, 20))
@settings(max_examples=60, deadline=None)
def test_they_are_the_commonest_by_a_slow_count(texts: list[str], size: int) -> None:
    texts = [*texts, "a b c"]
    tokenizer = made(size=size, texts=texts)
    words = [token for token in tokenizer.vocabulary if " " not in token and token[0] != "["]
    count = Counter((a, b) for text in texts for a, b in pairwise(text.split()) if {a, b} <= {*words})
    count = Counter({pair: n for pair, n in count.items() if n > 1})
    known = {tuple(token.split(" ")) for token in tokenizer.vocabulary if " " in token}
    room = size - len(words) - 4
    assert len(known) == min(room, len(count))
    assert sorted((count[pair] for pair in known), reverse=True) == sorted(count.values(), reverse=True)[: len(known)]
    for text in texts:
        seen, row = [w if w in words else "[UNK]" for w in text.split()], []
        for n, word in enumerate(seen):
            row += [word, *([f"{word} {seen[n + 1]}"] if tuple(seen[n : n + 2]) in known else [])]
        assert [tokenizer.token(i) for i in tokenizer.encode(text, special=False)] == row


def test_the_commonest_comes_first_where_there_is_room_for_one() -> None:
    tokenizer = made(texts=["a b", "a b", "c d", "c d", "c d"], size=9)
    assert [token for token in tokenizer.vocabulary if " " in token] == ["c d"]


def test_where_a_bigram_lies_in_the_text() -> None:
    tokenizer, text = made(), "is not good"
    spans = tokenizer.offsets(text)
    assert len(spans) == len(tokenizer.encode(text))
    assert [text[a:b] for a, b in spans[1:-1]] == ["is", "not", "not good", "good"]


def test_a_saved_one_and_one_with_more_special_tokens_keep_them(tmp_path: Path) -> None:
    tokenizer = made()
    tokenizer.save(tmp_path)
    for other in (load(tmp_path), equip(tokenizer, ("<mask>",), "cls")):
        assert other is not None
        assert other.encode("it is not good") == tokenizer.encode("it is not good")
    plain = train_vocabulary(TEXTS, kind="word", size=100)
    plain.save(tmp_path)
    again = load(tmp_path)
    assert again is not None
    assert again.bigrams is None


def test_the_rarest_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bigrams, "MOST", 5)
    tokenizer = made(texts=["a b", *(f"x{i} y{i}" for i in range(3000)), "a b", "a b"], size=7000)
    assert [t for t in tokenizer.vocabulary if " " in t] == ["a b"]


def test_other_kinds_and_other_programs_do_not_know_them() -> None:
    with pytest.raises(QkvError, match=r"kind char or word, this one is 'bpe'"):
        made("bpe", 400)
    with pytest.raises(QkvError, match=r"other programs do not know; train with tokenizer\.bigrams=false"):
        made().to_json()
    assert "not good" not in train_vocabulary(TEXTS, kind="word", size=100).to_json()
