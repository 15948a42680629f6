"""GGUF files as models: the metadata as the config that a family reads, and what GGUF calls its tensors."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError, nearest
from qkv.families import example_config, modules
from qkv.gguf_file import GgufFile, open_gguf

IGNORE = ["rope_freqs.weight", r"blk\.\d+\.attn_rot_embd", r"blk\.\d+\.attn\.rotary.*"]  # read as scaling, or computed
ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>")  # of a turn, where no key names one
ROPE = {"rope.scaling.factor": "factor", "rope.scaling.original_context_length": "original_max_position_embeddings"}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


KEYS = {  # GGUF's, behind the architecture's name, and what configs call them
    "context_length": ("max_position_embeddings", "n_positions"), "embedding_length": ("hidden_size", "n_embd"),
    "block_count": ("num_hidden_layers", "n_layer"), "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"), "attention.head_count_kv": ("num_key_value_heads",),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon"), "attention.key_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
}
NAMES = """
{embed,positions,segments}          {token_embd,position_embd,token_types}
{embed_norm,final_norm,head}        {token_embd_norm,output_norm,output}
layers.*.{attn_in,attn_sum}         blk.*.{attn_norm,attn_output_norm}
layers.*.{ffn_in,ffn_sum}           blk.*.{ffn_norm,layer_output_norm}
layers.*.attn.{out,q_norm,k_norm}   blk.*.{attn_output,attn_q_norm,attn_k_norm}
layers.*.ffn.{gate,up,down}         blk.*.{ffn_gate,ffn_up,ffn_down}
"""
APART = "layers.*.attn.{q,k,v}  blk.*.{attn_q,attn_k,attn_v}"


def architectures() -> dict[str, ModuleType]:
    """The families that GGUF knows, by its name and theirs: those with the name of a model under GGUF."""
    return {name: module for name, module in modules().items() if hasattr(module, "GGUF")}


def list_names(family: ModuleType) -> str:
    """The table of names for a family's GGUF files."""
    return NAMES + getattr(family, "GGUF_NAMES", APART)


def list_keys(name: str) -> dict[str, str]:
    """GGUF's keys of an architecture, with those of its config."""
    known = example_config(name)
    return {ours: key for ours, theirs in KEYS.items() for key in theirs if key in known}


def find_architecture(file: GgufFile) -> tuple[str, ModuleType]:
    """The name and the family of what a file says to be.

    Raises:
        QkvError: it is no model (an adapter, a projector), a part of one, or of an architecture that is not known.
    """
    kind, parts = file.metadata.get("general.type", "model"), file.metadata.get("split.count", 1)
    if kind != "model" or parts > 1:
        raise QkvError("{path}: holds {kind!r} in {parts} parts, expected a whole model in one file (llama-gguf-split "
                       "--merge joins parts)", path=file.path, kind=kind, parts=parts)
    name, known = str(file.metadata.get("general.architecture")), architectures()
    if name not in known:
        raise QkvError("{path}: its architecture is {name!r}{hint} (known: {known})", path=file.path, name=name,
                       hint=nearest(name, known), known=", ".join(known))
    return name, known[name]


def read_names(path: Path) -> tuple[str, list[str]]:
    """The table of names for a GGUF file, and what of its tensors is ignored."""
    return list_names(find_architecture(open_gguf(path))[1]), IGNORE


def read_config(path: Path) -> dict[str, Any]:
    """The config of a GGUF file, as the family's own directories have it; keys that nobody reads stay in it.

    Raises:
        QkvError: as `open_gguf` and `find_architecture`; or the file lacks its embedding, or counts too many layers.
    """
    file = open_gguf(path)
    name, _ = find_architecture(file)
    shapes = {n: t.shape for n, t in file.tensors.items()}
    try:
        config = translate_metadata(file.metadata, shapes, name, path)
        special = read_special_ids(file.metadata)
    except (TypeError, AttributeError) as e:
        raise QkvError("{where}: a value has the wrong type ({e})", where=path, e=e) from None
    factors = file.tensors.get("rope_freqs.weight")
    if factors is not None:
        config["rope_parameters"] |= read_factors(factors.unpack(), config["rope_parameters"]["rope_theta"], path)
    return config | special


def translate_metadata(
    metadata: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], name: str, path: Path
) -> dict[str, Any]:
    """The config that metadata and shapes of tensors mean; a key of zero says nothing."""
    own = {k.removeprefix(f"{name}."): v for k, v in metadata.items() if k.startswith(f"{name}.") and v}
    if "token_embd.weight" not in shapes or not 0 < own.get("block_count", 0) <= len(shapes):
        raise QkvError("{path}: found {count} tensors and {name}.block_count {layers}, expected token_embd.weight and "
                       "tensors for each layer", path=path, count=len(shapes), name=name,
                       layers=own.get("block_count", 0))
    config: dict[str, Any] = {"architectures": [modules()[name].GGUF], "model_type": name}
    config |= {theirs: own.pop(ours) for ours, theirs in list_keys(name).items() if ours in own}
    config["vocab_size"] = shapes["token_embd.weight"][0]
    if "token_types.weight" in shapes:
        config["type_vocab_size"] = shapes["token_types.weight"][0]
    if "output_norm.weight" in shapes:
        config["tie_word_embeddings"] = "output.weight" not in shapes
    if "rope_parameters" in example_config(name):
        width, heads = config.get("hidden_size", 0), config.get("num_attention_heads") or 1
        dim = config.setdefault("head_dim", width // heads if isinstance(heads, int) else 0)
        same = ("attention.value_length", "rope.dimension_count")
        own = {k: v for k, v in own.items() if k not in same or v != dim}
        kind, base = own.pop("rope.scaling.type", "none"), own.pop("rope.freq_base", 10_000.0)
        config["rope_parameters"] = {"rope_type": "default" if kind == "none" else kind, "rope_theta": base}
        config["rope_parameters"] |= {theirs: own.pop(ours) for ours, theirs in ROPE.items() if ours in own}
    known = ("vocab_size", "pooling_type", "attention.causal", "tensor_data_layout", "rope.scaling.finetuned")
    return config | {f"{name}.{key}": value for key, value in own.items() if key not in known}


def llama3_factors(count: int, base: float, factor: float) -> Tensor:
    """By how much LLaMA 3.1 divides each frequency [count], in its usual numbers."""
    low, high, trained = LLAMA3.values()
    turns = trained / (2 * math.pi * base ** (torch.arange(count, dtype=torch.float64) / count))
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return 1 / ((1 - smooth) / factor + smooth)


def read_factors(found: Tensor, base: float, path: Path) -> dict[str, Any]:
    """The scaling behind a file's `rope_freqs`, which are LLaMA 3.1's in its usual numbers, or an error."""
    factor = round(float(found.max()), 4)
    if not torch.allclose(found.double(), llama3_factors(len(found), base, factor), rtol=1e-4):
        raise QkvError("{path}: rope_freqs are not those of LLaMA 3.1 with the factor {factor}; other frequencies are "
                       "not supported", path=path, factor=factor)
    return {"rope_type": "llama3", "factor": factor, **LLAMA3}


def read_special_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The special ids as a config has them; all that end a turn are ends."""
    ids = {key: metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos", "eot", "eom", "padding")}
    ends = [ids[key] for key in ("eos", "eot", "eom") if ids[key] is not None]
    if metadata.get("tokenizer.chat_template"):
        tokens = metadata.get("tokenizer.ggml.tokens") or []
        ends += [tokens.index(token) for token in ENDS if token in tokens]
    ends = list(dict.fromkeys(ends))
    found = {"bos_token_id": ids["bos"], "pad_token_id": ids["padding"],
             "eos_token_id": ends if len(ends) > 1 else next(iter(ends), None)}
    return {key: value for key, value in found.items() if value is not None}
