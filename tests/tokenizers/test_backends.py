"""Vocabularies as their directories hold them: published ids, and references that share no code with ours."""

import base64
import io
import json
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from qkv.errors import QkvError
from qkv.paths import data_dir
from qkv.tokenizers import backends, sentencepiece
from qkv.tokenizers.tokenizer import Tokenizer, load

DATA = data_dir() / "tokenizers"
END = "<|endoftext|>"
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = ["the cat sat on the mat", "Hello, World! it's 42", "  two   spaces ", "naïve café İstanbul", "你好，世界",
         "天气\t很好\n\n", "🦀🚀 ok", "a\u200bb\u00a0c", "x" * 50, "don't HE'LL", "１２３ ﬁne"]  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=20),
    st.text(st.sampled_from(list("abT'sl123 .,!?\n\t\r你好天气é🦀👩‍🚀<|>[]▁_")), max_size=30),
    st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join),
)
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, **what: Any) -> Path:
    """A directory with these files: JSON, text or bytes; two underscores stand for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in what.items():
        path = folder / name.replace("__", ".")
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            path.write_text(text, encoding="utf-8")
    return folder


def opened(folder: Path) -> Tokenizer:
    found = load(folder)
    assert found is not None
    return found


@cache
def ranks(name: str) -> dict[bytes, int]:
    """Byte strings by rank: what both tiktoken and the pair of files are made of."""
    if name == "qwen2":
        rows = (line.split() for line in (DATA / "qwen" / "qwen.tiktoken").read_bytes().splitlines())
        return {base64.b64decode(token): int(rank) for token, rank in rows}
    names = json.loads((DATA / "gpt2" / "encoder.json").read_text(encoding="utf-8"))
    byte = {c: b for b, c in letters().items()}
    return {bytes(byte[c] for c in name): i for name, i in names.items() if name != END}


def letters() -> dict[int, str]:
    """GPT-2's character for each byte."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in own]
    return {b: chr(b) for b in own} | {b: chr(256 + i) for i, b in enumerate(rest)}


def qwen2(folder: Path) -> Path:
    """Qwen2's pair of files from its ranks: whatever joins into a token may be merged, in the order of ranks."""
    spell = str.maketrans({chr(b): c for b, c in letters().items()})
    table = {token.decode("latin-1").translate(spell): rank for token, rank in ranks("qwen2").items()}
    merges = list[str]()
    for token in table:  # in the order of ranks
        cuts = ((token[:i], token[i:]) for i in range(1, len(token)))
        pairs = sorted((table[a], table[b], a, b) for a, b in cuts if a in table and b in table)
        merges += [f"{a} {b}" for *_, a, b in pairs]
    added = {151643 + i: t for i, t in enumerate([END, "<|im_start|>", "<|im_end|>"])}
    config = {
        "tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": END, "bos_token": None,
        "added_tokens_decoder": {str(i): {"content": t, "special": True} for i, t in added.items()},
    }  # fmt: skip
    merges_text = "#version: 0.2\n" + "\n".join(merges) + "\n"
    return write(folder, vocab__json=table, merges__txt=merges_text, tokenizer_config__json=config)


def copied(folder: Path, *pairs: tuple[str, str], **more: Any) -> Path:
    """Real files under the names that Hugging Face gives them, with configs beside them."""
    write(folder, **more)
    for source, name in pairs:
        (folder / name).write_bytes((DATA / source).read_bytes())
    return folder


BERT = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
MAKE: dict[str, Callable[[Path], Path]] = {
    "gpt-2": lambda p: copied(
        p, ("gpt2/encoder.json", "vocab.json"), ("gpt2/vocab.bpe", "merges.txt"), config__json={"model_type": "gpt2"}
    ),
    "qwen2": qwen2,
    "llama-spm": lambda p: copied(
        p, ("llama2/tokenizer.model", "tokenizer.model"), tokenizer_config__json={"tokenizer_class": "LlamaTokenizer"}
    ),
    "bert-bge": lambda p: copied(p, ("bert-base-uncased/vocab.txt", "vocab.txt"), tokenizer_config__json=BERT),
    "bert-chinese": lambda p: copied(
        p, ("bert-base-chinese/vocab.txt", "vocab.txt"), tokenizer_config__json={**BERT, "do_lower_case": False}
    ),
    "t5": lambda p: copied(
        p, ("t5/spiece.model", "spiece.model"), config__json={"model_type": "t5", "vocab_size": 32128}
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("vocabularies")
    return cache(lambda name: MAKE[name](root / name))


@pytest.fixture(scope="module")
def vocabulary(directory: Callable[[str], Path]) -> Callable[[str], Tokenizer]:
    return cache(lambda name: opened(directory(name)))


@pytest.fixture(scope="module")
def reference(directory: Callable[[str], Path]) -> Callable[[str], Callable[[str], list[int]]]:
    """Ids by code that is not ours and not the library that ours stands on."""

    @cache
    def of(name: str) -> Callable[[str], list[int]]:
        if name in ("gpt-2", "qwen2"):
            tiktoken, pattern = pytest.importorskip("tiktoken"), backends.QWEN2 if name == "qwen2" else GPT2
            coder = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks(name), special_tokens={})
            form = "NFC" if name == "qwen2" else None
            return lambda text: coder.encode_ordinary(unicodedata.normalize(form, text) if form else text)
        if name.startswith("bert"):
            slow = pytest.importorskip("transformers").BertTokenizerLegacy
            bert = slow(directory(name) / "vocab.txt", do_lower_case=name == "bert-bge")
            return lambda text: bert.encode(text, add_special_tokens=False)
        path = next(p for p in directory(name).iterdir() if p.suffix == ".model")
        return pytest.importorskip("sentencepiece").SentencePieceProcessor(model_file=str(path)).encode

    return of


@cache
def published(name: str) -> list[tuple[str, list[int]]]:
    """llama.cpp's test strings, and the ids that it states for a vocabulary (none for an unknown one)."""
    folder = DATA / "llama_cpp_vocab"
    texts = (folder / "ggml-vocab-gpt-2.gguf.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    out = folder / f"ggml-vocab-{name}.gguf.out"
    lines = out.read_text(encoding="utf-8").split("\n") if out.is_file() else []
    return list(zip(texts, [[int(i) for i in line.split()] for line in lines] or [[]] * len(texts), strict=True))


@pytest.mark.needs_data
@pytest.mark.parametrize("number", range(47))
@pytest.mark.parametrize("name", MAKE)
def test_ids_of_the_47_strings(name: str, number: int, vocabulary: Any, reference: Any) -> None:
    text, ids = published(name)[number]
    if name in ("bert-chinese", "t5"):  # nobody published theirs: another program's
        ids = reference(name)(text)
    assert vocabulary(name).encode(text, special=False) == ids


@pytest.mark.needs_data
@pytest.mark.parametrize("name", MAKE)
@given(text=TEXTS)
@example(text="e\u0301 İ ﬁ ｱ")
@example(text="\u4e00\u9fff\u3400 \U00020000 ，。")
@few
def test_ids_of_drawn_strings(name: str, text: str, vocabulary: Any, reference: Any) -> None:
    if name in ("llama-spm", "t5") and ("<" in text or "\0" in text):
        return  # sentencepiece has no special tokens in text, and ends it at a null
    if name.startswith("bert") and any(unicodedata.category(c) in ("Cn", "Co", "Cf") for c in text):
        return  # the two Unicode tables are of different years
    assert vocabulary(name).encode(text, special=False) == reference(name)(text)


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("gpt-2", [], []), ("qwen2", [], []), ("llama-spm", [1], []), ("bert-bge", [101], [102]), ("t5", [], [1])],
)
def test_what_stands_around_a_text(name: str, before: list[int], after: list[int], vocabulary: Any) -> None:
    t = vocabulary(name)
    assert t.encode("Hello 你") == [*before, *t.encode("Hello 你", special=False), *after]


@pytest.mark.needs_data
def test_special_tokens_have_their_ids(vocabulary: Any) -> None:
    q, t5, bert = vocabulary("qwen2"), vocabulary("t5"), vocabulary("bert-chinese")
    assert (q.eos_id, q.pad_id, q.bos_id, q.id(END), len(q)) == (151645, 151643, None, 151643, 151646)
    assert q.encode("<|im_start|>user") == [151644, *q.encode("user")]
    assert (t5.id("<extra_id_0>"), t5.id("<extra_id_99>"), t5.eos_id, t5.pad_id, t5.unk_id) == (32099, 32000, 1, 0, 2)
    assert t5.encode("The <extra_id_0> sat")[:2] == [37, 32099]
    assert (bert.cls_id, bert.sep_id, bert.mask_id, bert.pad_id, bert.unk_id) == (101, 102, 103, 0, 100)
    assert bert.encode("今天天气很[MASK]")[-2] == 103
    assert vocabulary("gpt-2").eos_id == 50256


@pytest.mark.needs_data
@pytest.mark.parametrize("name", [n for n in MAKE if n.startswith("bert") or n == "t5"])
def test_transformers_agrees(name: str, directory: Any, vocabulary: Any) -> None:
    transformers = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = transformers.AutoTokenizer.from_pretrained(directory(name))
    for text in WORDS:
        if name == "t5" and not text.isascii():
            continue  # its version 5 forgets the model's own normaliser when it is read alone
        assert vocabulary(name).encode(text) == theirs(text).input_ids, text


@pytest.mark.needs_data
@pytest.mark.parametrize("options", [
    {"do_lower_case": False}, {"strip_accents": False}, {"do_lower_case": False, "strip_accents": True},
    {"tokenize_chinese_chars": False},
])  # fmt: skip
def test_options_of_wordpieces(options: dict[str, bool], tmp_path: Path) -> None:
    slow = pytest.importorskip("transformers").BertTokenizerLegacy
    folder = copied(tmp_path, ("bert-base-uncased/vocab.txt", "vocab.txt"), tokenizer_config__json=options)
    theirs = slow(folder / "vocab.txt", **options)
    plain = opened(copied(tmp_path / "plain", ("bert-base-uncased/vocab.txt", "vocab.txt")))
    for text in WORDS:
        assert opened(folder).encode(text) == theirs.encode(text), text
    assert any(plain.encode(text) != theirs.encode(text) for text in WORDS)


def words(folder: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A little GPT-1 vocabulary: letters, letters that end a word, and merges."""
    merges = [("t", "h"), ("th", "e</w>"), ("c", "a"), ("ca", "t</w>"), ("s", "a"), ("sa", "t</w>"), ("h", "e"),
              ("l", "l"), ("he", "ll"), ("hell", "o</w>"), ("c", "a</w>"), ("好</w>", "x")]  # fmt: skip
    base = [*"abcdefghijklmnopqrstuvwxyz0123456789.,!?'你好", "▁"]
    names = ["<unk>", *base, *(f"{c}</w>" for c in base), *dict.fromkeys(a + b for a, b in merges)]
    table = {name: i for i, name in enumerate(names)}
    text = "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges)
    write(folder, vocab__json=table, merges__txt=text, config__json={"model_type": "openai-gpt"})
    return table, merges


def merged(word: str, merges: list[tuple[str, str]]) -> Iterator[str]:
    """The pieces of a word by the paper's rule (Sennrich et al. 2016): always the pair that was learnt first."""
    parts = [*word[:-1], word[-1] + "</w>"]
    while True:
        pairs = [pair for pair in pairwise(parts) if pair in merges]
        if not pairs:
            yield from parts
            return
        first, at = min(pairs, key=merges.index), 0
        while at < len(parts) - 1:
            if (parts[at], parts[at + 1]) == first:
                parts[at : at + 2] = ["".join(first)]
            at += 1


@given(text=st.text(st.sampled_from(list("theca tsllo.,!?É你好\n0Z🦀")), max_size=20))
@few
def test_marked_ends_of_words(text: str, tmp_path: Path) -> None:
    table, merges = words(tmp_path)
    basic = pytest.importorskip("transformers.models.bert.tokenization_bert_legacy").BasicTokenizer(do_lower_case=True)
    ids = [table.get(p, 0) for word in basic.tokenize(text) for p in merged(word, merges)]
    t = opened(tmp_path)
    assert (t.unk_id, t.encode(text)) == (0, ids)
    assert t.decode(t.encode("The cat sat, hello!")) == "the cat sat , hello !"
    (tmp_path / "config.json").unlink()  # the tokens themselves tell
    assert opened(tmp_path).encode(text) == ids


def framed(folder: Path) -> Path:
    """BART's numbering over GPT-2's pieces: its symbols first, the mask last."""
    names = json.loads((DATA / "gpt2" / "encoder.json").read_text(encoding="utf-8"))
    table = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3} | {n: i + 4 for n, i in names.items() if n != END}
    copied(folder, ("gpt2/vocab.bpe", "merges.txt"), vocab__json={**table, "<mask>": len(table)})
    mask = {
        "__type": "AddedToken",
        "content": "<mask>",
        "lstrip": True,
        "rstrip": False,
        "normalized": False,
        "single_word": False,
    }
    return write(folder, config__json={"model_type": "bart"}, tokenizer_config__json={"mask_token": mask})


@pytest.mark.needs_data
def test_texts_in_a_frame(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs, t = transformers.BartTokenizer.from_pretrained(framed(tmp_path)), opened(tmp_path)
    for text in [*WORDS, "the <mask> sat", "  <mask>"]:
        assert t.encode(text) == theirs(text).input_ids, text
    assert (t.cls_id, t.pad_id, t.sep_id, t.mask_id, t.unk_id) == (0, 1, 2, 50260, 3)


def test_fairseq_numbers_pieces_its_own_way(tmp_path: Path) -> None:
    spm = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    texts = iter(["the cat sat on the mat", "你好 天气 很好"] * 20)
    spm.SentencePieceTrainer.train(
        sentence_iterator=texts, model_writer=model, vocab_size=60, hard_vocab_limit=False, minloglevel=2
    )
    write(tmp_path, sentencepiece__bpe__model=model.getvalue(), config__json={"model_type": "xlm-roberta"})
    t, oracle = opened(tmp_path), spm.SentencePieceProcessor(model_proto=model.getvalue())
    for text in ["the cat", "你好 mat", "  the  天气 ", ""]:
        ids = [i + 1 if i else 3 for i in oracle.encode(text)]
        assert t.encode(text) == [0, *ids, 2]
    assert (t.mask_id, t.pad_id) == (oracle.get_piece_size() + 1, 1)
    assert t.encode("the <mask>")[-2] == t.mask_id


def test_added_tokens_and_their_ids(tmp_path: Path) -> None:
    words(tmp_path)
    size = len(opened(tmp_path))
    write(
        tmp_path,
        added_tokens__json={"<end>": size, "<start>": size + 1},
        special_tokens_map__json={"eos_token": "<end>"},
    )
    t = opened(tmp_path)
    assert (t.eos_id, t.id("<start>"), t.encode("the<end>")[-1]) == (size, size + 1, size)
    assert t.decode([size]) == ""
    write(tmp_path, added_tokens__json={"<end>": size + 5})
    with pytest.raises(QkvError, match=rf"'<end>' is listed with the id {size + 5}.*gives it {size}"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("stated", "there", "message"),
    [
        ("BertTokenizer", "merges.txt", r"tokenizer_class is BertTokenizer, expected tokenizer\.json, or vocab\.txt"),
        ("T5TokenizerFast", "vocab.txt", r"expected tokenizer\.json, or tokenizer\.model, or spiece\.model"),
        ("PreTrainedTokenizerFast", "vocab.txt", r"PreTrainedTokenizerFast, expected tokenizer\.json, and found none"),
        ("BertTokeniser", "vocab.txt", r"'BertTokeniser' is not known; did you mean 'BertTokenizer'.*known: GPT2Tok"),
        ("Qwen2Tokenizer", "vocab.json", r"found vocab\.json, expected merges\.txt|expected tokenizer\.json, or vocab"),
    ],
)  # fmt: skip
def test_what_a_class_needs_is_named(stated: str, there: str, message: str, tmp_path: Path) -> None:
    write(tmp_path, tokenizer_config__json={"tokenizer_class": stated})
    (tmp_path / there).write_text("{}", encoding="utf-8")
    with pytest.raises(QkvError, match=message):
        load(tmp_path)


def test_a_model_type_is_only_a_hint(tmp_path: Path) -> None:
    table, _ = words(tmp_path)
    write(tmp_path, config__json={"model_type": "t5"})
    assert opened(tmp_path).encode("the") == [table["the</w>"]]
    write(tmp_path / "empty", config__json={"model_type": "t5"})
    assert load(tmp_path / "empty") is None


@pytest.mark.needs_data
def test_a_wrong_kind_would_show(directory: Any, vocabulary: Any, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    for name in ("vocab.json", "merges.txt"):
        (wrong / name).symlink_to(directory("qwen2") / name)
    t = opened(wrong)  # without the class it is taken for GPT-2's
    texts = [text for text, _ in published("qwen2")]
    assert any(t.encode(text) != vocabulary("qwen2").encode(text) for text in texts)
    model = sentencepiece.read_model(DATA / "t5" / "spiece.model")
    assert sentencepiece.build_tokenizer(model).encode("a").ids != vocabulary("t5").encode("a")


PAIR = {"vocab__json": {"a": 0, "b": 1, "ab": 2}}


@pytest.mark.parametrize(("merges", "said"), [("#version: 0.2\nab\n", "line 2: found 'ab'"), ("", "its 0 merges")])
def test_merges_that_are_no_pairs_are_refused(tmp_path: Path, merges: str, said: str) -> None:
    folder = write(tmp_path, **PAIR, merges__txt=merges, tokenizer_config__json={"tokenizer_class": "GPT2Tokenizer"})
    with pytest.raises(QkvError, match=said):
        load(folder)


def test_a_prefix_that_the_merges_lack_does_not_end_the_process(tmp_path: Path) -> None:
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]], "continuing_subword_prefix": "x"}
    with pytest.raises(QkvError, match="continuing_subword_prefix is 'x', but the merge"):
        load(write(tmp_path, tokenizer__json={"model": model}))


def test_a_broken_charsmap_does_not_end_the_process(tmp_path: Path) -> None:
    normalizer = {"type": "Precompiled", "precompiled_charsmap": "/////w" + "A" * 402}
    with pytest.raises(QkvError, match="precompiled_charsmap is cut"):
        load(write(tmp_path, tokenizer__json={"normalizer": normalizer, "model": {"type": "BPE"}}))


def test_a_normalizer_that_makes_texts_huge_is_refused(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    steps = [tokenizers.normalizers.Replace("e", "e" * 1000) for _ in range(3)]
    backend.normalizer = tokenizers.normalizers.Sequence(steps)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(QkvError, match="more than 100 times as long"):
        load(write(tmp_path, tokenizer__json=backend.to_str()))


def test_a_chat_template_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match=r"chat_template.jinja: not UTF-8 at byte 0"):
        backends.templates(write(tmp_path, chat_template__jinja=b"\xff"))


def test_a_cut_vocabulary_and_an_id_without_end_are_told(tmp_path: Path) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
    for rows, fits in ((len(tokens), True), (len(tokens) + 2, True), (2 * len(tokens), False)):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": rows}), encoding="utf-8")
        if fits:
            assert load(tmp_path) is not None
        else:
            with pytest.raises(QkvError, match=r"vocab\.txt: found 20 tokens, and config\.json says 40"):
                load(tmp_path)
    for name, text in {"vocab.json": '{"a": 1000000000}', "merges.txt": "#version: 0.2\n"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    with pytest.raises(QkvError, match=r"vocab\.json: token 'a' has 1000000000 as its id"):
        load(tmp_path)
