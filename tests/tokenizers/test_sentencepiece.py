"""Sentencepiece models against the sentencepiece package and transformers, and published ids."""

import io
import json
import warnings
from pathlib import Path

import pytest
from support import stories

from qkv.errors import QkvError
from qkv.paths import data_dir
from qkv.tokenizers import sentencepiece
from qkv.tokenizers.tokenizer import Tokenizer, load

spm = pytest.importorskip("sentencepiece")
GERMAN = [
    "zwei junge männer sind im freien",
    "ein mädchen klettert in ein haus",
    "ein mann mit hut",
    "der hund rennt schnell",
] * 5
ENGLISH = ["two young men are outside", "a girl climbs into a house", "a man with a hat", "the dog is running fast"] * 5
HARD = ["", " ", "  two   spaces ", "ein  ＭＡＮＮ ﬁne", "日本 hut", "hut\nmann", "x²y ½", "hut" * 30, "</s> hut <unk>"]


def trained(texts: list[str], **more: object) -> bytes:
    model = io.BytesIO()
    limits = {"vocab_size": 60, "hard_vocab_limit": more.get("model_type") == "bpe", "minloglevel": 2}
    spm.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=model, **{**limits, **more})
    return model.getvalue()


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"byte_fallback": True, "vocab_size": 330},
        {"remove_extra_whitespaces": False, "normalization_rule_name": "identity"},
        {"add_dummy_prefix": False},
    ],
    ids=["plain", "bytes", "identity", "bare"],
)
def test_ids_are_those_of_sentencepiece(kind: str, more: dict[str, object], tmp_path: Path) -> None:
    model = tmp_path / "tokenizer.model"
    model.write_bytes(trained(GERMAN, model_type=kind, **more))
    oracle = spm.SentencePieceProcessor(model_file=str(model))
    ours = load(tmp_path)
    assert ours is not None
    assert len(ours) == oracle.get_piece_size()
    for text in [*GERMAN[:4], *ENGLISH[:4], *HARD[:-1]]:
        ids = oracle.encode(text)
        assert ours.encode(text, special=False) == ids, text
        if oracle.unk_id() not in ids:
            assert ours.decode(ids) == oracle.decode(ids)


def test_a_wrong_order_of_merges_would_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.model").write_bytes(trained(GERMAN, model_type="bpe", vocab_size=100))
    right = load(tmp_path)
    read = sentencepiece.read_model
    model = read(tmp_path / "tokenizer.model")
    turned = sentencepiece.Pieces(model.pieces, tuple(-s for s in model.scores), model.types, model.kind)
    monkeypatch.setattr(sentencepiece, "read_model", lambda path: turned)
    wrong = load(tmp_path)
    assert right is not None
    assert wrong is not None
    assert any(right.encode(t) != wrong.encode(t) for t in GERMAN)


def test_templates_follow_the_kind_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(trained(GERMAN, model_type="bpe"))
    t = load(tmp_path)
    assert t is not None
    assert (t.encode("hut")[0], t.encode("hut")[-1] == 2) == (1, False)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False, "add_eos_token": True}))
    t = load(tmp_path)
    assert t is not None
    assert (t.encode("hut")[0] == 1, t.encode("hut")[-1]) == (False, 2)


@pytest.mark.parametrize("cut", [1, 7, 100, -1])
def test_a_cut_file_is_named(tmp_path: Path, cut: int) -> None:
    (tmp_path / "spiece.model").write_bytes(trained(GERMAN)[:cut])
    with pytest.raises(QkvError, match=r"spiece\.model"):
        load(tmp_path)


def marian(directory: Path) -> list[str]:
    """A directory as Marian's are: two models, one numbering with the end first and the padding last."""
    kinds = {"source.spm": GERMAN, "target.spm": ENGLISH}
    pieces: dict[str, None] = {}
    for name, texts in kinds.items():
        (directory / name).write_bytes(trained(texts))
        model = sentencepiece.read_model(directory / name)
        pieces |= dict.fromkeys(p for p in model.pieces if p not in ("<unk>", "<s>", "</s>", "▁hut"))  # one is left out
    names = ["</s>", "<unk>", *pieces, ">>fra<<", "<pad>"]
    (directory / "vocab.json").write_text(
        json.dumps({t: i for i, t in enumerate(names)}, ensure_ascii=False), encoding="utf-8"
    )
    return names


def test_a_pair_of_models_gives_marians_ids(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    names = marian(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends a package
        theirs = transformers.MarianTokenizer.from_pretrained(tmp_path)
    ours = load(tmp_path)
    assert ours is not None
    assert (len(ours), ours.eos_id, ours.unk_id, ours.pad_id) == (len(names), 0, 1, len(names) - 1)
    ours.fits(len(names))
    for text in [*GERMAN[:4], *ENGLISH[:4], *HARD[:-1], ">>fra<< ein mann"]:
        ids = theirs(text).input_ids
        assert ours.encode(text) == ids, text
        assert ours.encode(text, side="target") == theirs(text_target=text).input_ids, text
    target = theirs(text_target=ENGLISH[1]).input_ids
    assert ours.decode(target) == theirs.decode(target, skip_special_tokens=True) == ENGLISH[1]
    assert ours.find_unknown("ein 日本 mann") == ["日本"]
    assert ours.pieces(ours.encode("ein mann")) == [p.removeprefix("▁") or "␣" for p in theirs.tokenize("ein mann")] + [
        "</s>"
    ]


def test_a_pair_of_models_may_have_two_numberings(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    names = marian(tmp_path)
    apart = [*names[:2], *reversed(names[2:-1]), names[-1]]  # transformers takes special tokens to have one id
    (tmp_path / "target_vocab.json").write_text(json.dumps({t: i for i, t in enumerate(apart)}))
    stated = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = transformers.MarianTokenizer.from_pretrained(tmp_path)
    first = load(tmp_path)
    assert first is not None
    first.save(tmp_path / "copy")
    for ours in (first, load(tmp_path / "copy")):
        assert ours is not None
        source, target = ours.encode(GERMAN[0]), ours.encode(ENGLISH[0], side="target")
        assert source == theirs(GERMAN[0]).input_ids
        assert target == theirs(text_target=ENGLISH[0]).input_ids
        assert ours.decode(target) == ENGLISH[0]
        assert ours.find_unknown("ein 日本 mann") == ["日本"]
        assert ours.pieces(source, side="source")[-1] == ours.pieces(target)[-1] == "</s>"


def test_a_pair_of_models_is_saved_as_it_came(tmp_path: Path) -> None:
    marian(tmp_path)
    ours = load(tmp_path)
    assert ours is not None
    ours.save(tmp_path / "copy")
    for name in ("source.spm", "target.spm", "vocab.json"):
        assert (tmp_path / "copy" / name).read_bytes() == (tmp_path / name).read_bytes()
    again = load(tmp_path / "copy")
    assert again is not None
    assert again.encode("ein mann") == ours.encode("ein mann")


def test_a_numbering_with_holes_or_without_specials_is_named(tmp_path: Path) -> None:
    names = marian(tmp_path)
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps({t: 2 * i for i, t in enumerate(names)}), encoding="utf-8")
    with pytest.raises(QkvError, match=r"vocab\.json.*do not run from 0"):
        load(tmp_path)
    path.write_text(json.dumps({t: i for i, t in enumerate(names[1:])}), encoding="utf-8")
    with pytest.raises(QkvError, match=r"vocab\.json: no token </s>"):
        load(tmp_path)


def published(name: str) -> list[tuple[str, list[int]]]:
    folder = data_dir() / "tokenizers" / "llama_cpp_vocab"
    texts = (folder / f"ggml-vocab-{name}.gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    ids = (folder / f"ggml-vocab-{name}.gguf.out").read_text(encoding="utf-8").split("\n")
    return [(text, [int(i) for i in line.split()]) for text, line in zip(texts, ids, strict=True)]


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("name", "folder"), [("gpt-2", "gpt2"), ("llama-spm", "llama2"), ("bert-bge", "bert-base-uncased")]
)
def test_published_ids(name: str, folder: str) -> None:
    t = load(data_dir() / "tokenizers" / folder)
    assert t is not None
    for text, ids in published(name):
        assert t.encode(text, special=False) == ids, text
        if name != "bert-bge":  # its normaliser loses case and spaces
            stream = t.stream()
            assert t.decode(ids) == "".join([*map(stream.push, ids), stream.end()]) == text
            assert t.backend.decode(ids) == text


@pytest.mark.needs_data
def test_the_t5_vocabulary_cuts_as_sentencepiece_does() -> None:
    folder = data_dir() / "tokenizers" / "t5"
    t, oracle = load(folder), spm.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    assert t is not None
    assert (len(t), t.id("<extra_id_0>"), t.encode("Hello")[-1]) == (32100, 32099, 1)
    real = (data_dir() / "mt" / "multi30k" / "val.de").read_text(encoding="utf-8").split("\n")
    for text in [*real[:300], *(text for text, _ in published("gpt-2"))]:
        assert t.encode(text, special=False) == oracle.encode(text), text


@pytest.mark.needs_data
def test_transformers_reads_a_sentencepiece_model_that_we_saved(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    t = load(data_dir() / "tokenizers" / "llama2")
    assert t is not None
    t.save(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text, ids in published("llama-spm"):
        assert theirs(text).input_ids == [1, *ids] == t.encode(text)


@pytest.mark.needs_data
def test_plain_pieces_and_scores_make_a_tokenizer() -> None:
    path = data_dir() / "weights" / "stories260K" / "tok512.bin"
    t = Tokenizer(sentencepiece.build_tokenizer(stories.read_pieces(path)), bos="<s>", eos="</s>", unk="<unk>")
    assert len(t) == 512
    text = "Once upon a time, there was a little girl named Lily. 你"
    assert t.decode(t.encode(text)) == text
    assert t.encode("Once upon a time")[:4] == [403, 407, 261, 378]


@pytest.mark.parametrize("stated", ["class", "model type"])
def test_m2m_100_numbers_pieces_by_a_file_and_languages_behind_it(stated: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    (tmp_path / "sentencepiece.bpe.model").write_bytes(trained(GERMAN, model_type="bpe", vocab_size=90))
    pieces = spm.SentencePieceProcessor(model_file=str(tmp_path / "sentencepiece.bpe.model"))
    named = [pieces.id_to_piece(i) for i in range(3, pieces.get_piece_size())]
    ids = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *reversed(named)])}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    oracle = transformers.M2M100Tokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "sentencepiece.bpe.model"))
    languages = list(oracle.lang_token_to_id)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": languages}))
    name, said = ("tokenizer_config", {"tokenizer_class": "M2M100Tokenizer"}) if stated == "class" else (
        "config", {"model_type": "m2m_100", "vocab_size": len(ids) + 108})
    (tmp_path / f"{name}.json").write_text(json.dumps(said))
    ours = load(tmp_path)
    assert ours is not None
    assert {t: ours.id(t) for t in languages} == oracle.lang_token_to_id
    for text in [*GERMAN[:4], *ENGLISH[:4], *(t for t in HARD if "unk" not in t)]:
        assert ours.encode(text) == oracle(text).input_ids, text  # __en__ before it, </s> behind
    assert ours.decode(ours.encode(GERMAN[0])) == GERMAN[0]
    del ids["</s>"]
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    with pytest.raises(QkvError, match="no token </s>"):
        load(tmp_path)
