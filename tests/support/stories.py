"""stories260K, a real LLaMA checkpoint in llama2.c's format, as a Hugging Face directory; and its published text.

The file is a header of seven int32, then fp32 matrices in a fixed order (llama2.c, export.py, version 0). It turns
neighbours (0,1),(2,3)… of each head; a Hugging Face checkpoint turns the two halves. So the rows of q and k are put
into the order of the halves, which changes no score.
"""

import json
import struct
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from qkv.paths import data_dir
from qkv.tokenizers import backends, sentencepiece
from qkv.tokenizers.tokenizer import Tokenizer

HEADER = ("dim", "hidden", "layers", "heads", "groups", "vocabulary", "context")


def source() -> Path:
    """Where the real files lie."""
    return data_dir() / "weights" / "stories260K"


def published() -> str:
    """The greedy text that its author printed, without the line's end."""
    text = (source() / "stories260K.md").read_text(encoding="utf-8")
    return text.split("-t 0.0\n")[1].split("\n```")[0]


def read_pieces(path: Path) -> sentencepiece.Pieces:
    """A BPE model from a `tokenizer.bin`: the longest piece's length, then score, length and bytes of each.

    It falls back to bytes; ids 0, 1, 2 are unknown, begin and end.
    """
    data, at, names, scores = path.read_bytes(), 4, list[str](), list[float]()
    while at < len(data):
        score, size = struct.unpack_from("<fi", data, at)
        names.append(data[at + 8 : at + 8 + size].decode().replace(" ", "▁"))
        scores.append(score)
        at += 8 + size
    names[:3] = "<unk>", "<s>", "</s>"
    kinds = [sentencepiece.BYTE if len(p) == 6 and p.startswith("<0x") else sentencepiece.NORMAL for p in names]
    kinds[:3] = sentencepiece.UNKNOWN, sentencepiece.CONTROL, sentencepiece.CONTROL
    return sentencepiece.Pieces(tuple(names), tuple(scores), tuple(kinds))


def halves(weight: Tensor, heads: int) -> Tensor:
    """The rows of each head, neighbours 2i and 2i+1 put to i and K/2+i: [HK, D]."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def read(path: Path) -> tuple[dict[str, int], dict[str, Tensor]]:
    """The header's sizes, and the weights under Hugging Face's names."""
    data = path.read_bytes()
    size = dict(zip(HEADER, np.frombuffer(data, "<i4", 7).tolist(), strict=True))
    numbers = torch.from_numpy(np.frombuffer(data, "<f4", offset=28).copy())
    d, f, n = size["dim"], size["hidden"], size["layers"]
    kv = d // size["heads"] * size["groups"]
    at = 0

    def take(*shape: int) -> Tensor:
        nonlocal at
        at += int(np.prod(shape))
        return numbers[at - int(np.prod(shape)) : at].view(shape)

    named = {"model.embed_tokens": take(size["vocabulary"], d)}
    rows = (("input_layernorm", (d,)), ("self_attn.q_proj", (d, d)), ("self_attn.k_proj", (kv, d)),
            ("self_attn.v_proj", (kv, d)), ("self_attn.o_proj", (d, d)), ("post_attention_layernorm", (d,)),
            ("mlp.gate_proj", (f, d)), ("mlp.down_proj", (d, f)), ("mlp.up_proj", (f, d)))  # fmt: skip
    for name, shape in rows:
        for i, weight in enumerate(take(n, *shape)):
            heads = {"self_attn.q_proj": size["heads"], "self_attn.k_proj": size["groups"]}.get(name)
            named[f"model.layers.{i}.{name}"] = halves(weight, heads) if heads else weight
    named["model.norm"] = take(d)
    take(2, size["context"], d // size["heads"] // 2)  # cosines and sines, which everybody computes
    assert at == len(numbers), f"{path}: {len(numbers)} numbers, the header asks for {at}"
    return size, {f"{name}.weight": t.contiguous() for name, t in named.items()}


def convert(directory: Path) -> Path:
    """The model and its tokenizer as a Hugging Face directory."""
    size, weights = read(source() / "stories260K.bin")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": size["vocabulary"],
        "hidden_size": size["dim"], "intermediate_size": size["hidden"], "num_hidden_layers": size["layers"],
        "num_attention_heads": size["heads"], "num_key_value_heads": size["groups"], "hidden_act": "silu",
        "max_position_embeddings": size["context"], "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    backend = sentencepiece.build_tokenizer(read_pieces(source() / "tok512.bin"))
    backend.post_processor = backends.template(("<s>", 1), None)
    Tokenizer(backend, bos="<s>", eos="</s>", unk="<unk>").save(directory)
    return directory
