"""llama.cpp loads what we write, numbers texts as we do, and computes the same; skipped where it is not installed."""

from dataclasses import replace

import pytest
import torch
from checkpoints.test_gguf import CONFIGS, LINES, build, draw_lines
from support.gguf_models import DRAWN, draw
from support.llama_cpp_runs import assert_same_text, open_theirs

import qkv
from qkv.checkpoints.sentence_transformers import Pooling
from qkv.model import Model
from qkv.tokenizers import tokenizer as load_tokenizer

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")


@pytest.mark.parametrize("name", CONFIGS)
def test_llama_cpp_computes_the_same_logits(name, tmp_path):
    of = qkv.load("demo-lm", device="cpu")
    context = "n_positions" if name == "gpt2" else "max_position_embeddings"
    core = build({**CONFIGS[name], "vocab_size": 1000, context: 160}).core
    model, ids = Model(core, of.tokenizer, of.special), list(range(3, 150))
    if name == "phi3":  # it looks for tokens of Phi-3's own
        model = Model(core)
    model.save(tmp_path / "m.gguf", dtype=torch.float32)
    theirs = open_theirs(tmp_path / "m.gguf", logits_all=True)
    theirs.eval(ids)
    with torch.no_grad():
        ours = model(torch.tensor([ids])).logits[0]
    difference = (torch.tensor(theirs.scores[: len(ids)]) - ours).abs().max()
    bound = 5e-3 if name == "gpt2" else 1e-4  # its gelu is a table in fp16
    assert difference <= bound * ours.std()


@pytest.mark.parametrize("name", DRAWN)
def test_llama_cpp_computes_every_architecture_as_we_do(name, tmp_path):
    draw(name).save_pretrained(tmp_path)
    model, ids = qkv.load(tmp_path, device="cpu", dtype="fp32"), list(range(3, 60))
    model.save(tmp_path / "m.gguf", dtype=torch.float32)
    theirs = open_theirs(tmp_path / "m.gguf", logits_all=True)
    theirs.eval(ids)
    with torch.no_grad():
        ours = model(torch.tensor([ids])).logits[0]
    difference = (torch.tensor(theirs.scores[: len(ids)]) - ours).abs().max()
    gelu = model.spec.stack.blocks[0].ffn.activation.startswith("gelu")  # a table in fp16
    assert difference <= (5e-3 if gelu else 1e-4) * ours.std()
    if name in ("llama", "qwen3", "phi3", "gemma3"):
        assert_same_text(model, theirs, ids[:8], 0.02 if gelu else 1e-3)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "q8_0", "q4_0"])
def test_llama_cpp_continues_100_tokens_as_we_do(dtype, tmp_path):
    qkv.load("demo-lm", device="cpu").save(tmp_path / "m.gguf", dtype=dtype)
    ours, theirs = qkv.load(tmp_path / "m.gguf", device="cpu"), open_theirs(tmp_path / "m.gguf")
    for line in LINES + draw_lines(200):
        assert theirs.tokenize(line.encode(), add_bos=False, special=True) == ours.tokenizer.encode(line)
    # it rounds the states to 8 bits where weights are packed: a near-tie may fall the other way
    assert_same_text(ours, theirs, ours.ids("The cat"), 0.05 if dtype.startswith("q") else 0)


def test_llama_cpp_embeds_as_we_do(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "天", "气", "!", "naive", "##a", "a"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    shape = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 14, "max_position_embeddings": 160}
    model = Model(build(shape).core, load_tokenizer.load(tmp_path))
    for states in ("mean", "first", "last"):
        model.pooling = replace(Pooling(), states=states)
        model.save(tmp_path / "m.gguf", dtype=torch.float32)
        theirs = torch.tensor(open_theirs(tmp_path / "m.gguf", embedding=True).embed("The naïve cats 天气!"))
        ours = model.embed("The naïve cats 天气!").flatten()
        assert torch.cosine_similarity(ours, theirs, dim=0) > 1 - 1e-5
