"""The wrapper: panics, streams, pieces, sizes, files that are broken or lack their partner."""

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from qkv.errors import QkvError
from qkv.messages import Message
from qkv.tokenizers import backends
from qkv.tokenizers.tokenizer import Spelling, Tokenizer, load
from qkv.tokenizers.vocabulary import train_vocabulary

BYTES = [f"<0x{b:02X}>" for b in range(256)]


def fallback(*, lead: bool = True) -> Tokenizer:
    """A sentencepiece-like vocabulary: three specials, 256 bytes, then a few words."""
    names = ["<unk>", "<s>", "</s>", *BYTES, "▁the", "▁", "cat", "\n"]
    backend = tokenizers.Tokenizer(
        models.BPE({t: i for i, t in enumerate(names)}, [], unk_token="<unk>", byte_fallback=True)
    )
    strip = [decoders.Strip(" ", 1, 0)] if lead else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(backend, bos="<s>", eos="</s>", unk="<unk>")


def ids_of(text: bytes) -> list[int]:
    return [3 + b for b in text]


def test_pieces_are_readable() -> None:
    t = fallback()
    ids = [1, 259, 260, 261, 262, *ids_of("你".encode()), 2, 9999]
    assert t.pieces(ids) == ["<s>", "the", "␣", "cat", "⏎", "⟨e4⟩", "⟨bd⟩", "⟨a0⟩", "</s>", "⟨9999⟩"]
    level = train_vocabulary(["the cat the cat 你"], kind="bpe", size=270)
    assert level.pieces(level.encode("the cat")) == ["the", "cat"]


@pytest.mark.parametrize("lead", [True, False])
def test_a_stream_never_gives_half_a_character(lead: bool) -> None:
    t = fallback(lead=lead)
    ids = [1, 259, 261, *ids_of("你🦀".encode()), 2]
    stream = t.stream()
    said = [stream.push(i) for i in ids]
    assert said == ["", "the" if lead else " the", "cat", "", "", "你", "", "", "", "🦀", ""]
    assert stream.end() == ""
    assert "".join(said) == t.decode(ids) == t.backend.decode(ids)


LEVEL = train_vocabulary(["the cat the cat 你"], kind="bpe", size=270)
WORDS = Tokenizer(tokenizers.Tokenizer(models.WordPiece({w: i for i, w in enumerate(
    ["[UNK]", "the", "cat", "##s", ".", ",", "你", "##好", " "])}, unk_token="[UNK]")), unk="[UNK]")  # fmt: skip
WORDS.backend.decoder = decoders.WordPiece()


CHUNKS = {  # ids of words and of characters of several bytes, which a cut may split
    "sentencepiece": (fallback(), [[1], [259], [260], [261], ids_of("你".encode()), ids_of("🦀".encode()), [3 + 0xF0]]),
    "no lead": (fallback(lead=False), [[1], [259], [261], ids_of("你".encode()), ids_of("🦀".encode())]),
    "bytes": (LEVEL, [LEVEL.encode(text, special=False) for text in ("the", " cat", "好", "🦀")]),
    "asked": (WORDS, [[n] for n in range(10)]),
}


@settings(max_examples=200, deadline=None)
@given(st.data())
@pytest.mark.parametrize("kind", CHUNKS)
def test_a_stream_goes_on_after_ids_as_if_it_had_said_them(kind: str, data: st.DataObject) -> None:
    t, chunks = CHUNKS[kind]
    ids = [i for chunk in data.draw(st.lists(st.sampled_from(chunks), max_size=6)) for i in chunk]
    cut = data.draw(st.integers(0, len(ids)))
    slow, stream = t.stream(), t.stream(after=ids[:cut])
    for i in ids[:cut]:
        slow.push(i)
    assert [*map(stream.push, ids[cut:]), stream.end()] == [*map(slow.push, ids[cut:]), slow.end()]


def test_a_stream_gives_at_the_end_what_stays_half() -> None:
    t = fallback()
    ids = [259, *ids_of("你".encode()[:2])]
    stream = t.stream()
    assert "".join(map(stream.push, ids)) == "the"
    assert stream.end() == "\ufffd"
    assert t.decode(ids) == "the\ufffd"


def test_a_decoder_that_is_not_understood_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Spelling.from_decoder(decoders.WordPiece()) is None
    assert Spelling.from_decoder(decoders.Sequence([decoders.Replace("x", "y"), decoders.Fuse()])) is None
    assert Spelling.from_decoder(decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 2, 0)])) is None
    assert Spelling.from_decoder(decoders.Metaspace()) == Spelling(space=True, lead=True)
    assert Spelling.from_decoder(decoders.ByteLevel()) == Spelling(level=True)


def test_a_panic_of_the_backend_is_an_error_for_people() -> None:
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(QkvError, match=r"cannot read.*boom"), backends.guard_panics(Message("cannot read")):
        raise panic("boom")
    with pytest.raises(KeyboardInterrupt), backends.guard_panics(Message("cannot read")):
        raise KeyboardInterrupt
    for encode in (fallback().encode, lambda text: fallback().encode_parts([(text, False)])):
        with pytest.raises(QkvError, match="half of a character"):
            encode("\ud800")


def test_ids_without_a_token() -> None:
    t = fallback()
    assert t.decode([259, 10**6, -1]) == "the"
    with pytest.raises(QkvError, match="no token has the id 263; this tokenizer has 263"):
        t.token(263)
    assert t.id("nothing") is None
    assert t.mask_id is None


def test_a_tokenizer_that_does_not_fit_names_both_sizes() -> None:
    fallback().fits(263)
    with pytest.raises(QkvError, match=r"has 263 tokens.*id 262.*262 rows"):
        fallback().fits(262)


def test_offsets_point_into_the_text() -> None:
    t = train_vocabulary(["I love studying"], kind="word", template="eos")
    assert t.offsets("I love") == [(0, 1), (2, 6), (0, 0)]


def test_no_tokenizer_is_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert load(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", '{"model": 3}'),
        ("tokenizer.json", ""),
        ("vocab.txt", "a\nb\n"),
        ("tokenizer.model", "\x0a\x7f"),
        ("spiece.model", ""),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(QkvError, match=name):
        load(tmp_path)


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        ("vocab.json", "merges.txt"),
        ("merges.txt", "vocab.json"),
        ("source.spm", "target.spm and vocab.json"),
        ("vocab.bpe", "encoder.json"),
    ],
)
def test_a_missing_partner_is_named(tmp_path: Path, there: str, missing: str) -> None:
    (tmp_path / there).write_text("{}", encoding="utf-8")
    with pytest.raises(QkvError, match=f"found {there}, expected {missing}"):
        load(tmp_path)


def test_broken_pairs_of_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": "x"}', encoding="utf-8")
    (tmp_path / "merges.txt").write_text("", encoding="utf-8")
    with pytest.raises(QkvError, match="token 'a' has 'x'"):
        load(tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": 0}', encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n", encoding="utf-8")
    with pytest.raises(QkvError, match=r"vocab\.json"):
        load(tmp_path)


def test_special_tokens_by_name_and_by_id(tmp_path: Path) -> None:
    fallback().save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert (load(tmp_path) or fallback()).eos_id is None
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [2, 5], "bos_token_id": 1}), encoding="utf-8")
    by_id = load(tmp_path)
    assert by_id is not None
    assert (by_id.bos_id, by_id.eos_id, by_id.unk_id) == (1, 2, 0)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<s>"}}), encoding="utf-8")
    by_name = load(tmp_path)
    assert by_name is not None
    assert by_name.eos_id == 1


def test_the_chat_template_outlives_saving(tmp_path: Path) -> None:
    fallback().save(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"chat_template": "{{ x }}", "eos_token": "</s>"}), encoding="utf-8")
    again = load(tmp_path)
    assert again is not None
    again.save(tmp_path / "b")
    saved = json.loads((tmp_path / "b" / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert (saved["chat_template"], saved["eos_token"]) == ("{{ x }}", "</s>")
