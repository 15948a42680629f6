"""New vocabularies: exact round trips, whole English words, fewest Chinese words; transformers agrees."""

import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import QkvError
from qkv.tokenizers import vocabulary
from qkv.tokenizers.tokenizer import Tokenizer, load
from qkv.tokenizers.vocabulary import train_vocabulary

TEXTS = ["I love studying.", "我爱学习。\n我 也爱你。", "  two  spaces\tand a tab\r\n", "naïve café 🦀🦀 한국어"]
ENGLISH = ["I", "love", "studying", "What", "'s", "this", ".", "?", ",", "a", "Apple", "New York", "o'clock"]
WORDS = ["我", "爱", "学习", "学", "习惯", "苹果", "。", "？", "……", *ENGLISH]


def lexicon(**more: str) -> Tokenizer:
    return train_vocabulary((), kind="lexicon", words=WORDS, **more)  # type: ignore[arg-type]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
@settings(max_examples=60, deadline=None)
def test_byte_level_bpe_spells_any_text(text: str) -> None:
    assert BPE.decode(BPE.encode(text)) == text
    stream = BPE.stream()
    assert "".join([*map(stream.push, BPE.encode(text)), stream.end()]) == text


BPE = train_vocabulary(TEXTS, kind="bpe", size=300)


def test_characters_make_a_round_trip() -> None:
    t = train_vocabulary(TEXTS, kind="char")
    for text in TEXTS:
        ids = t.encode(text)
        assert len(ids) == len(text)
        assert t.decode(ids) == text
    assert t.encode("Z") == [t.unk_id]


def test_words_are_cut_at_punctuation_and_joined_again() -> None:
    t = train_vocabulary(["I love it, (you) know. What's this?"], kind="word", template="eos")
    ids = t.encode("I love it, (you) know. What's this?")
    assert ids[-1] == t.eos_id
    assert t.decode(ids) == "I love it, (you) know. What's this?"
    assert t.find_unknown("I hate it") == ["hate"]


def test_the_most_frequent_words_stay() -> None:
    t = train_vocabulary(["b b b a a c"], kind="word", size=5)
    assert [t.token(i) for i in range(len(t))] == ["<pad>", "</s>", "<unk>", "b", "a"]


def test_joints_of_split_text_are_mended() -> None:
    t = train_vocabulary(["zwei männer nahe viel@@ er bü@@ sche ."], kind="split", template="eos")
    ids = t.encode("viel@@ er bü@@ sche .")
    assert len(ids) == 6
    assert t.decode(ids) == "vieler büsche ."
    stream = t.stream()
    assert "".join([*map(stream.push, ids), stream.end()]) == "vieler büsche ."


def test_a_lexicon_cuts_chinese_into_fewest_words_and_keeps_english_whole() -> None:
    t = lexicon()
    assert t.pieces(t.encode("我爱学习。")) == ["我", "爱", "学习", "。"]
    assert t.pieces(t.encode("学习惯……")) == ["学", "习惯", "……"]  # longest match first would fail here
    assert t.pieces(t.encode("I love studying.")) == ["I", "love", "studying", "."]
    assert t.pieces(t.encode("我爱Apple。")) == ["我", "爱", "Apple", "。"]


@pytest.mark.parametrize(
    "text", ["I love studying.", "What's this?", "我爱学习。", "New York, I love a Apple.", "我爱Apple。"]
)
def test_a_lexicon_restores_spaces(text: str) -> None:
    t = lexicon(template="eos")
    ids = t.encode(text)
    assert t.decode(ids) == text
    stream = t.stream()
    assert "".join([*map(stream.push, ids), stream.end()]) == text


def test_a_lexicon_names_what_it_lacks_and_cuts_no_unknown_english_word() -> None:
    t = lexicon()
    assert t.find_unknown("I love away the aa.") == ["away", "the", "aa"]
    assert t.encode("away") == [t.unk_id]
    assert t.find_unknown("我恨学习") == ["恨"]
    assert t.find_unknown("我爱学习。") == []


def test_templates() -> None:
    special = ("<pad>", "<s>", "</s>", "<unk>")
    made = {k: train_vocabulary(["a"], kind="char", specials=special, template=k) for k in ("none", "eos", "bos")}  # type: ignore[arg-type]
    ids = {k: tokenizer.encode("a") for k, tokenizer in made.items()}
    assert ids == {"none": [4], "eos": [4, 2], "bos": [1, 4]}
    assert train_vocabulary(["a"], kind="char", template="eos").encode("") == [1]


@pytest.mark.parametrize("kind", ["char", "word", "bpe", "lexicon", "split"])
def test_transformers_gives_the_same_ids(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    t = train_vocabulary(TEXTS, kind=kind, words=WORDS, size=400, template="eos")  # type: ignore[arg-type]
    t.save(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ours = load(tmp_path)
    assert ours is not None
    assert (ours.eos_id, ours.pad_id, ours.unk_id) == (1, 0, 2) == (t.eos_id, t.pad_id, t.unk_id)
    assert (theirs.eos_token_id, theirs.pad_token_id) == (1, 0)
    for text in [*TEXTS, "What's this?", "我爱Apple。", ""]:
        ids = t.encode(text)
        assert theirs(text).input_ids == ids == ours.encode(text)
        assert theirs.decode(ids, skip_special_tokens=True) == t.decode(ids) == ours.decode(ids)


def test_what_cannot_be_trained_says_why() -> None:
    with pytest.raises(QkvError, match="<unk>"):
        train_vocabulary(["a"], kind="char", specials=("<pad>",))
    with pytest.raises(QkvError, match="template 'bos'"):
        train_vocabulary(["a"], kind="char", template="bos")
    with pytest.raises(QkvError, match="at least 260"):
        train_vocabulary(["a"], kind="bpe", size=100)
    for kind in ("char", "word", "split", "lexicon"):
        with pytest.raises(QkvError, match="no text"):
            train_vocabulary([], kind=kind)  # type: ignore[arg-type]


def test_long_words_are_cut_to_train_a_vocabulary_and_said_once() -> None:
    told: list[str] = []
    text = "one " + "a" * 600 + " two " + "!" * 300 + "\n" + "b" * 255
    pieces = list(vocabulary.cut_long_words([text, "c" * 256], told.append))
    assert "".join(pieces) == text + "c" * 256
    assert {len(word) for piece in pieces for word in piece.split()} <= {3, 44, 88, 255, 256}
    assert len(told) == 1
    assert list(vocabulary.cut_long_words(["short words " * 100], told.append)) == ["short words " * 100]
    start = time.process_time()
    train_vocabulary(["".join(chr(97 + (i * i) % 26) for i in range(200_000))], kind="bpe", size=400)
    assert time.process_time() - start < 60  # it took the square of the length: minutes


def test_ctrl_c_need_not_wait_for_a_vocabulary() -> None:
    release = threading.Event()

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    def wait_and_fail() -> None:
        raise ValueError(str(release.wait(10)))

    with pytest.raises(KeyboardInterrupt):
        vocabulary.wait_for(lambda: release.wait(30), interrupt, patience=0.01)
    release.set()
    with pytest.raises(ValueError, match="True"):
        vocabulary.wait_for(wait_and_fail, interrupt)


def test_a_size_at_which_the_library_would_end_the_process_is_refused() -> None:
    with pytest.raises(QkvError, match="too large, expected at most 10,000,000"):
        train_vocabulary(["a b"], kind="bpe-byte", size=10**9)
