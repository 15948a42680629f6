"""GGUF both ways: numbers and ids are those of the `gguf` package and of transformers; a broken file is one error."""

import json
import random
import re
import struct
from dataclasses import replace

import gguf
import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from tokenizers import normalizers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

import qkv
from qkv import gguf_file, hub
from qkv.checkpoints import model_dir
from qkv.checkpoints.gguf_out import round_numbers
from qkv.checkpoints.sentence_transformers import Pooling
from qkv.cli import main
from qkv.errors import QkvError
from qkv.families import llama
from qkv.gguf_file import KINDS, PackedTensor, open_gguf, pack, write_gguf
from qkv.tokenizers import gguf as texts
from qkv.tokenizers import tokenizer as load_tokenizer
from qkv.tokenizers.vocabulary import train_vocabulary

PACKED = [name for name, kind in KINDS.items() if kind.size > 1]
LINES = ["The cat sat on the mat.", "今天天气很好，我们去公园吧。", "def f(x):\n    return x[0] != 1e-5",
         "🙂👩‍👩‍👧 café 12345", "  two  spaces\tand\ttabs ", "I'll DON'T we've"]


def draw_lines(count, seed=0):
    """Lines of English, Chinese, code and emoji, mixed at random."""
    drawn = random.Random(seed)
    pools = ["abcdefghij ETAOIN", "的一是不了人我在有他", "(){}[]=+-_\"';:#\t\\", "0123456789.,", "🙂🚀👩‍💻é ü ﬁ½한日"]
    words = ["the", "return", "import", "transformer", "世界", "模型", "print(", "\n", "  ", "I'm", "20", "<|im_end|>"]
    return ["".join(drawn.choice(words if drawn.random() < 0.4 else drawn.choice(pools)) + drawn.choice(["", "", " "])
                    for _ in range(drawn.randint(1, 24))) for _ in range(count)]


@pytest.mark.parametrize("name", PACKED)
def test_unpacked_numbers_are_those_of_the_gguf_package(name):
    kind = KINDS[name]
    raw = np.random.default_rng(0).integers(0, 256, (gguf_file.CHUNK + 70, kind.bytes), np.uint8)
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
        got = PackedTensor(name, raw.reshape(-1), (len(raw), kind.size)).unpack().numpy()
    assert np.array_equal(got.reshape(-1), want.reshape(-1), equal_nan=True)
    assert (kind.size, kind.bytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_packed_numbers_are_those_of_the_gguf_package(name):
    numbers = torch.randn(300, 64, generator=torch.Generator().manual_seed(0))
    numbers[5], numbers[6, :32] = 0, 0.5
    got = pack(name, numbers)
    assert np.array_equal(got.raw, gguf.quants.quantize(numbers.numpy(), gguf.GGMLQuantizationType[name])
                          .view(np.uint8).reshape(-1))
    assert got.unpack().shape == (300, 64)


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    """demo-lm, and its GGUF file in fp32."""
    model, path = qkv.load("demo-lm", device="cpu"), tmp_path_factory.mktemp("gguf") / "lm.gguf"
    model.tokenizer.config["chat_template"] = "{{ messages[0].content }}"
    model.save(path, dtype=torch.float32)
    return model, path


def test_a_model_comes_back_from_one_file_bit_for_bit(lm):
    model, path = lm
    again = qkv.load(path, device="cpu")
    assert again.spec == replace(model.spec, init=again.spec.init)
    ours, theirs = (dict(m.core.named_parameters()) for m in (model, again))
    assert all(torch.equal(ours[n], theirs[n]) for n in ours)
    assert again.special.eos == model.special.eos
    assert again.tokenizer.encode_batch(LINES) == model.tokenizer.encode_batch(LINES)
    assert again.tokenizer.decode(again.tokenizer.encode(LINES[1])) == LINES[1]
    assert again.tokenizer.config["chat_template"] == "{{ messages[0].content }}"
    assert again.generate("The cat", max_new_tokens=8).text == model.generate("The cat", max_new_tokens=8).text


def test_the_gguf_package_reads_what_we_write(lm):
    model, path = lm
    read = gguf.GGUFReader(path)
    assert read.fields["general.architecture"].contents() == "llama"
    assert read.fields["tokenizer.ggml.tokens"].contents()[2] == model.tokenizer.token(2)
    ours = open_gguf(path).tensors
    assert {t.name: t.data.shape for t in read.tensors} == {n: t.unpack().shape for n, t in ours.items()}
    assert all(np.array_equal(t.data, ours[t.name].unpack()) for t in read.tensors)


TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 64}
LONG = {"rope_type": "longrope", "original_max_position_embeddings": 16, "rope_theta": 1e4,
        "short_factor": [1 + i / 7 for i in range(8)], "long_factor": [1 + i / 3 for i in range(8)]}
CONFIGS = {
    "llama": {"model_type": "llama", **TINY, "rope_parameters": llama.LONG},
    "wide llama": {"model_type": "llama", **TINY, "head_dim": 32, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", **TINY, "rope_theta": 1e6},
    "phi3": {"model_type": "phi3", **TINY, "rope_parameters": LONG},
    "qwen3": {"model_type": "qwen3", **TINY, "head_dim": 32, "rms_norm_eps": 1e-5},
    "gpt2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 128},
}


def build(config):
    model = hub.build(model_dir.spec_from_config(config, "here"), seed=1)
    with torch.no_grad():
        for p in model.core.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.2)
    model.core.eval()
    return model


def load_theirs(path, **config):
    """transformers' own model of a GGUF file, without accelerate, which its from_pretrained asks for."""
    said = load_gguf_checkpoint(str(path))["config"] | config  # it takes a few sizes from the tokenizer, or nowhere
    oracle = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**said), dtype=torch.float32).eval()
    read = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=oracle)["tensors"]
    with torch.no_grad():
        missing, unread = oracle.load_state_dict({k: torch.as_tensor(v) for k, v in read.items()}, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unread
    oracle.tie_weights()
    return oracle


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_computes_the_same_from_our_file(name, tmp_path):
    model, ids = build(CONFIGS[name]), torch.arange(1, 25)[None]
    model.save(tmp_path / "m.gguf")
    again = qkv.load(tmp_path / "m.gguf", device="cpu")
    assert round_numbers(again.spec) == round_numbers(model.spec)
    more = {"head_dim": 32} if name == "qwen3" else {}
    oracle = load_theirs(tmp_path / "m.gguf", vocab_size=128, n_positions=64, **more)
    with torch.no_grad():
        ours, back, theirs = model(ids).logits, again(ids).logits, oracle(ids).logits
    assert torch.equal(ours, back) or name == "phi3"  # whose factors a file holds in fp32
    assert (ours - back).abs().max() <= 1e-5 * ours.std()
    if name not in ("llama", "phi3"):  # transformers does not read the factors, by which these turn more slowly
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.std()


def test_an_encoder_comes_back_with_its_word_pieces_and_pooling(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "天", "气", "!", "naive", "##a", "a"]
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "vocab.txt").write_text("\n".join(words))
    tokenizer = load_tokenizer.load(tmp_path / "t")
    shape = {k: v for k, v in TINY.items() if k != "num_key_value_heads"}
    spec = model_dir.spec_from_config(
        {"model_type": "bert", "architectures": ["BertModel"], **shape, "vocab_size": 14}, "here")
    model = hub.build(spec, seed=1, tokenizer=tokenizer)
    model.core.eval()
    model.pooling = Pooling("first")
    model.save(tmp_path / "m.gguf")
    again = qkv.load(tmp_path / "m.gguf", device="cpu")
    assert again.tokenizer.vocabulary == tokenizer.vocabulary
    for text in ["The cats", "naïve 天气!", "Dog a"]:
        assert again.tokenizer.encode(text) == tokenizer.encode(text)
    assert again.pooling == model.pooling
    assert torch.equal(again.embed("the cats"), model.embed("the cats"))
    again.save(tmp_path / "d")
    assert qkv.load(tmp_path / "d").pooling == model.pooling


@pytest.mark.parametrize(("kind", "more"), [
    ("bpe", {"byte_fallback": True, "vocab_size": 400}),
    ("bpe", {"add_dummy_prefix": False, "user_defined_symbols": ["<a>"]}),
    ("unigram", {"byte_fallback": True, "vocab_size": 400}), ("unigram", {"normalization_rule_name": "identity"}),
])
def test_sentencepieces_cut_alike_from_metadata(kind, more, tmp_path):
    plain = {"remove_extra_whitespaces": False, "normalization_rule_name": "identity"} if kind == "bpe" else {}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(draw_lines(400)), model_prefix=str(tmp_path / "tokenizer"), model_type=kind,
        minloglevel=2, **{"vocab_size": 200, "hard_vocab_limit": False, **plain, **more})
    ours = load_tokenizer.load(tmp_path)
    said = texts.describe_tokenizer(ours, len(ours), tmp_path)
    found, config = texts.read_tokenizer(said, tmp_path)
    again = load_tokenizer.Tokenizer(found.backend, **found.roles)
    lines = draw_lines(300, seed=2) + LINES
    assert said["tokenizer.ggml.model"] == {"bpe": "llama", "unigram": "t5"}[kind]
    assert again.encode_batch(lines) == ours.encode_batch(lines)
    assert all(again.decode(ids) == ours.decode(ids) for ids in ours.encode_batch(lines))
    assert config == {}


def test_what_llama_cpp_would_cut_otherwise_is_refused(tmp_path):
    with pytest.raises(QkvError, match=r"llama\.cpp would cut"):
        texts.describe_tokenizer(qkv.load("demo").tokenizer, 1210, tmp_path)
    cjk = train_vocabulary(LINES * 3, kind="bpe-cjk", size=300)
    with pytest.raises(QkvError, match=r"llama\.cpp would cut"):
        texts.describe_tokenizer(cjk, len(cjk), tmp_path)


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2", "llama-bpe", "tekken", "gpt-4o", "falcon"])
def test_how_texts_are_cut_first_has_its_name(pre, tmp_path):
    backend = train_vocabulary(draw_lines(50), kind="bpe", size=300, specials=["</s>"]).backend
    backend.pre_tokenizer, backend.model.ignore_merges = texts.cut_at(texts.NAMED[pre]), pre in texts.WHOLE
    if pre in texts.COMPOSED:
        backend.normalizer = normalizers.NFC()
    assert texts.find_pre(backend, whole=pre in texts.WHOLE) == pre
    said = texts.describe_tokenizer(load_tokenizer.Tokenizer(backend, eos="</s>"), 310, tmp_path)
    assert said["tokenizer.ggml.eos_token_id"] == 0
    assert said["tokenizer.ggml.tokens"][-1] == "[PAD309]"  # llama.cpp wants a token for every row of the embedding


@pytest.mark.parametrize("key", ["unknown", "eos", "seperator"])
def test_a_special_id_that_is_no_tokens_is_refused_by_key(key, lm, tmp_path):
    said, name = dict(open_gguf(lm[1]).metadata), f"tokenizer.ggml.{key}_token_id"
    for wrong in (len(said["tokenizer.ggml.tokens"]), 10**6, -1):
        with pytest.raises(QkvError, match=re.escape(f"{name} is {wrong}, expected 0")):
            texts.read_tokenizer(said | {name: wrong}, tmp_path)
    found, _ = texts.read_tokenizer(said | {name: 2**32 - 1}, tmp_path)  # llama.cpp's way to say: none
    assert {"unknown": "unk", "eos": "eos", "seperator": "sep"}[key] not in found.roles


def test_several_chat_templates_and_ends_of_turns_come_along(lm, tmp_path):
    said = dict(open_gguf(lm[1]).metadata)
    tokens = [*said["tokenizer.ggml.tokens"][:-1], "<|im_end|>"]
    said |= {"tokenizer.ggml.tokens": tokens, "tokenizer.chat_template.tool_use": "{{ tools }}",
             "tokenizer.chat_templates": ["tool_use"], "tokenizer.ggml.merges": said["tokenizer.ggml.merges"][:200]}
    write_gguf(tmp_path / "m.gguf", said, [(n, t.kind, t.unpack()) for n, t in open_gguf(lm[1]).tensors.items()])
    model = qkv.load(tmp_path / "m.gguf", device="cpu")
    assert {row["name"] for row in model.tokenizer.config["chat_template"]} == {"default", "tool_use"}
    assert model.special.eos == (0, 999)
    said = texts.describe_tokenizer(model.tokenizer, 1000, tmp_path)
    assert said["tokenizer.chat_templates"] == ["tool_use"]


def test_a_damaged_file_is_one_error_wherever_it_is_cut(lm, tmp_path):
    whole, path = lm[1].read_bytes(), tmp_path / "cut.gguf"
    for size in [0, 3, 4, 10, 23, 24, 40, 200, 1000, 20_000, 40_000, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(QkvError, match=r"cut\.gguf"):
            qkv.load(path, device="cpu")


def test_flipped_bytes_never_end_in_anything_but_an_error(lm, tmp_path):
    whole, path, drawn = lm[1].read_bytes(), tmp_path / "flip.gguf", random.Random(0)
    found, ends = set(), [*range(4, 24), *(drawn.randrange(24, 1500) for _ in range(60))]
    for at in ends:
        data = bytearray(whole)
        data[at] ^= 1 << drawn.randrange(8)
        path.write_bytes(data)
        try:
            hub.spec_of(path)
            load_tokenizer.load(path)
        except QkvError as e:
            found.add(type(e))
    assert found == {QkvError}


def edit(path, out, **changes):
    """A copy of a GGUF file with other metadata; ... removes a key."""
    said = {k.replace("__", "."): v for k, v in changes.items()}
    file = open_gguf(path)
    metadata = {k: v for k, v in {**file.metadata, **said}.items() if v is not ...}
    write_gguf(out, metadata, [(n, t.kind, t.unpack()) for n, t in file.tensors.items()])
    return out


@pytest.mark.parametrize(("change", "found"), [
    ({"general__architecture": "llamo"}, "llamo"), ({"general__architecture": "rwkv6"}, "rwkv6"),
    ({"general__type": "adapter"}, "adapter"), ({"split__count": 3}, "3 parts"),
    ({"llama__block_count": 3}, "blk.3"), ({"llama__block_count": 2**31}, "block_count"),
    ({"llama__logit_scale": 0.5}, "llama.logit_scale"), ({"llama__rope__dimension_count": 16}, "dimension_count"),
    ({"llama__attention__head_count": "four"}, "num_attention_heads"),
    ({"tokenizer__ggml__pre": ...}, "tokenizer.ggml.pre"), ({"tokenizer__ggml__pre": "smolm"}, "did you mean 'smollm'"),
    ({"tokenizer__ggml__model": "rwkv"}, "rwkv"), ({"tokenizer__ggml__merges": ...}, "merges"),
    ({"tokenizer__ggml__tokens": ["a", "a"]}, "tokens"), ({"tokenizer__ggml__token_type": [1]}, "tokens"),
    ({"llama__rope__scaling__type": "longrope"}, "longrope"), ({"llama__rope__freq_base": 0.0}, "llama.rope.freq_base"),
    ({"llama__attention__layer_norm_rms_epsilon": 0.0}, "llama.attention.layer_norm_rms_epsilon"),
])
def test_what_a_file_does_not_fully_say_is_named(change, found, lm, tmp_path):
    path = edit(lm[1], tmp_path / "odd.gguf", **change)
    with pytest.raises(QkvError) as error:
        qkv.load(path, device="cpu")
    assert found in str(error.value)
    assert "odd.gguf" in str(error.value)


def test_counts_beyond_the_file_take_no_memory(tmp_path):
    path = tmp_path / "many.gguf"
    text = struct.pack("<Q", 1) + b"k"
    for head in (struct.pack("<IQQ", 3, 2**60, 0), struct.pack("<IQQ", 3, 0, 2**60), struct.pack("<IQQ", 1, 0, 0),
                 struct.pack("<IQQ", 3, 0, 1) + text + struct.pack("<IIQ", 9, 4, 2**60) + bytes(64),
                 struct.pack("<IQQ", 3, 0, 1) + text + struct.pack("<IIQ", 9, 8, 2**60) + bytes(64),
                 struct.pack("<IQQ", 3, 1, 0) + text + struct.pack("<IQQIQ", 2, 2**40, 2**40, 0, 0) + bytes(64),
                 struct.pack("<IQQ", 3, 1, 0) + text + struct.pack("<IQIQ", 1, 32, 99, 0) + bytes(64),
                 struct.pack("<IQQ", 3, 1, 0) + text + struct.pack("<IQIQ", 1, 33, 2, 0) + bytes(64)):
        path.write_bytes(b"GGUF" + head)
        with pytest.raises(QkvError, match="many"):
            open_gguf(path)


def test_a_missing_file_is_named_with_the_nearest(lm):
    with pytest.raises(QkvError, match=r"did you mean 'lm\.gguf'"):
        qkv.load(lm[1].with_name("ln.gguf"))


@pytest.mark.parametrize(("dtype", "share"), [("bf16", 0.55), ("q8_0", 0.35), ("q4_0", 0.25)])
def test_convert_writes_each_kind(dtype, share, lm, tmp_path, capsys):
    path, ids = tmp_path / "out.gguf", torch.arange(2, 60)[None]
    assert main(["convert", "demo-lm", str(path), "--to-dtype", dtype, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model_type"] == "llama"
    assert path.stat().st_size < share * lm[1].stat().st_size
    kinds = {"bf16": ["BF16"], "q8_0": ["Q8_0"], "q4_0": ["Q4_0", "Q8_0"]}[dtype]
    assert {t.kind for t in open_gguf(path).tensors.values()} == {"F32", *kinds}
    with torch.no_grad():
        ours, theirs = (torch.log_softmax(qkv.load(p, device="cpu")(ids).logits, -1) for p in (lm[1], path))
        assert (ours.exp() * (ours - theirs)).sum(-1).mean() < 0.1
        assert main(["convert", str(path), str(tmp_path / "dir"), "--json"]) == 0
        as_dir, as_file = (qkv.load(p, device="cpu")(ids).logits for p in (tmp_path / "dir", path))
        assert torch.equal(as_dir, as_file)


def test_packed_kinds_are_for_gguf_alone(tmp_path):
    assert main(["convert", "demo-lm", str(tmp_path / "dir"), "--to-dtype", "q8_0"]) == 2
    assert not (tmp_path / "dir").exists()


@pytest.mark.parametrize("args", [["generate", "M", "The cat", "--max-new-tokens", "4"], ["info", "M"], ["check", "M"],
                                  ["show", "M"], ["score", "M", "The cat"], ["look", "M", "The cat"]])
def test_every_verb_takes_the_file(args, lm):
    assert main([str(lm[1]) if a == "M" else a for a in args]) == 0


def test_nothing_is_left_behind_when_a_model_cannot_be_said(tmp_path):
    with pytest.raises(QkvError, match="GGUF"):
        qkv.load("demo-moe").save(tmp_path / "m.gguf")
    model = build({**CONFIGS["llama"], "hidden_act": "relu"})
    with pytest.raises(QkvError, match="activation"):
        model.save(tmp_path / "m.gguf")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("key", "value"), [
    ("general.alignment", 3), ("general.alignment", 0), ("general.alignment", "x"), ("split.count", [1]),
    ("general.architecture", [1]), ("tokenizer.ggml.tokens", 3), ("tokenizer.ggml.tokens", [1]),
    ("tokenizer.ggml.add_eos_token", 1), ("tokenizer.ggml.scores", "x"), ("llama.block_count", "x"),
    ("llama.rope.freq_base", 10_000), ("tokenizer.ggml.eos_token_id", 2.5), ("tokenizer.chat_template", [1]),
])
def test_metadata_of_another_kind_are_refused_by_key(key, value, tmp_path):
    write_gguf(tmp_path / "m.gguf", {key: value}, [("a", "F32", torch.ones(4))])
    with pytest.raises(QkvError, match=re.escape(f"{key} is ")):
        open_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize("align", [1, 8, 64])
def test_another_alignment_than_the_writers_is_seen(align, tmp_path):
    path = tmp_path / "m.gguf"
    write_gguf(path, {"general.alignment": 32}, [("a", "F32", torch.ones(4)), ("b", "F32", torch.ones(8))])
    whole = path.read_bytes()
    assert open_gguf(path).tensors["b"]().tolist() == [1.0] * 8
    said = b"alignment" + struct.pack("<I", 4)
    path.write_bytes(whole.replace(said + struct.pack("<I", 32), said + struct.pack("<I", align)))
    with pytest.raises(QkvError, match="not a complete GGUF file"):
        open_gguf(path)
