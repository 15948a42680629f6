"""GGUF files as models: the metadata as the config that a family reads, and what GGUF calls its tensors."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError, nearest
from qkv.gguf_file import GgufFile, open_gguf

IGNORE = ["rope_freqs.weight", r"blk\.\d+\.attn_rot_embd", r"blk\.\d+\.attn\.rotary.*"]  # read as scaling, or computed
ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>")  # of a turn, where no key names one
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True)
class Architecture:
    """One of GGUF's: rows of its keys (behind its name) and the config's, rows of names, what the config says besides."""

    family: str
    keys: str
    names: str
    said: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def rows(self) -> Iterator[tuple[str, str]]:
        """(GGUF's key, the config's) for each row."""
        return ((ours, theirs) for ours, theirs in map(str.split, filter(None, self.keys.splitlines())))

    @property
    def rotary(self) -> bool:
        """Whether positions are turned, not looked up."""
        return "position_embd" not in self.names


KEYS = """
context_length                      max_position_embeddings
embedding_length                    hidden_size
block_count                         num_hidden_layers
feed_forward_length                 intermediate_size
attention.head_count                num_attention_heads
"""
LLAMA_KEYS = KEYS + """
attention.head_count_kv             num_key_value_heads
attention.layer_norm_rms_epsilon    rms_norm_eps
attention.key_length                head_dim
"""
NAMES = """
embed                               token_embd
layers.*.attn_in                    blk.*.attn_norm
layers.*.attn.{v,out}               blk.*.{attn_v,attn_output}
layers.*.ffn_in                     blk.*.ffn_norm
layers.*.ffn.{gate,up,down}         blk.*.{ffn_gate,ffn_up,ffn_down}
final_norm                          output_norm
head                                output
"""
TURNED = NAMES + "layers.*.attn.{q,k}  blk.*.{attn_q,attn_k}\n"
ARCHITECTURES = {
    "llama": Architecture("llama", LLAMA_KEYS, NAMES + "layers.*.attn.{q,k}  blk.*.{attn_q,attn_k}  pairs\n",
                          {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}),
    "qwen2": Architecture("qwen2", LLAMA_KEYS, TURNED,
                          {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}),
    "qwen3": Architecture("qwen3", LLAMA_KEYS,
                          TURNED + "layers.*.attn.{q_norm,k_norm}  blk.*.{attn_q_norm,attn_k_norm}\n",
                          {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}),
    "gpt2": Architecture("gpt2", """
context_length                      n_positions
embedding_length                    n_embd
block_count                         n_layer
feed_forward_length                 n_inner
attention.head_count                n_head
attention.layer_norm_epsilon        layer_norm_epsilon
""", """
embed                               token_embd
positions                           position_embd
layers.*.attn_in                    blk.*.attn_norm
layers.*.attn.{q,k,v}               blk.*.attn_qkv      split
layers.*.attn.out                   blk.*.attn_output
layers.*.ffn_in                     blk.*.ffn_norm
layers.*.ffn.{up,down}              blk.*.{ffn_up,ffn_down}
final_norm                          output_norm
head                                output
""", {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}),
    "bert": Architecture("bert", KEYS + "attention.layer_norm_epsilon  layer_norm_eps\n", """
embed                               token_embd
positions                           position_embd
segments                            token_types
embed_norm                          token_embd_norm
layers.*.attn.{q,k,v,out}           blk.*.{attn_q,attn_k,attn_v,attn_output}
layers.*.attn_sum                   blk.*.attn_output_norm
layers.*.ffn.{up,down}              blk.*.{ffn_up,ffn_down}
layers.*.ffn_sum                    blk.*.layer_output_norm
""", {"architectures": ["BertModel"], "model_type": "bert"}),
}


def find_architecture(file: GgufFile) -> tuple[str, Architecture]:
    """The name and the entry of what a file says to be.

    Raises:
        QkvError: it is no model (an adapter, a projector), a part of one, or of an architecture that is not known.
    """
    kind, parts = file.metadata.get("general.type", "model"), file.metadata.get("split.count", 1)
    if kind != "model" or parts > 1:
        raise QkvError("{path}: holds {kind!r} in {parts} parts, expected a whole model in one file (llama-gguf-split "
                       "--merge joins parts)", path=file.path, kind=kind, parts=parts)
    name = str(file.metadata.get("general.architecture"))
    if name not in ARCHITECTURES:
        raise QkvError("{path}: its architecture is {name!r}{hint} (known: {known})", path=file.path, name=name,
                       hint=nearest(name, ARCHITECTURES), known=", ".join(ARCHITECTURES))
    return name, ARCHITECTURES[name]


def read_names(path: Path) -> tuple[str, list[str]]:
    """The table of names for a GGUF file, and what of its tensors is ignored."""
    return find_architecture(open_gguf(path))[1].names, IGNORE


def read_config(path: Path) -> dict[str, Any]:
    """The config of a GGUF file, as the family's own directories have it; keys that nobody reads stay in it.

    Raises:
        QkvError: as `open_gguf` and `find_architecture`; or the file lacks its embedding, or counts too many layers.
    """
    file = open_gguf(path)
    name, architecture = find_architecture(file)
    shapes = {n: t.shape for n, t in file.tensors.items()}
    try:
        config = translate_metadata(file.metadata, shapes, name, architecture, path)
        special = read_special_ids(file.metadata)
    except (TypeError, AttributeError) as e:
        raise QkvError("{where}: a value has the wrong type ({e})", where=path, e=e) from None
    factors = file.tensors.get("rope_freqs.weight")
    if factors is not None:
        config["rope_parameters"] |= read_factors(factors.unpack(), config["rope_parameters"]["rope_theta"], path)
    return config | special


def translate_metadata(
    metadata: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], name: str, architecture: Architecture, path: Path
) -> dict[str, Any]:
    """The config that metadata and shapes of tensors mean; a key of zero says nothing."""
    own = {k.removeprefix(f"{name}."): v for k, v in metadata.items() if k.startswith(f"{name}.") and v}
    if "token_embd.weight" not in shapes or not 0 < own.get("block_count", 0) <= len(shapes):
        raise QkvError("{path}: found {count} tensors and {name}.block_count {layers}, expected token_embd.weight and "
                       "tensors for each layer", path=path, count=len(shapes), name=name,
                       layers=own.get("block_count", 0))
    config = dict(architecture.said)
    config |= {theirs: own.pop(ours) for ours, theirs in architecture.rows() if ours in own}
    config["vocab_size"] = shapes["token_embd.weight"][0]
    if architecture.family == "bert":
        config["type_vocab_size"] = shapes.get("token_types.weight", [0])[0]
    else:
        config["tie_word_embeddings"] = "output.weight" not in shapes
    if architecture.rotary:
        width, heads = config.get("hidden_size", 0), config.get("num_attention_heads") or 1
        dim = config.setdefault("head_dim", width // heads if isinstance(heads, int) else 0)
        same = ("attention.value_length", "rope.dimension_count")
        own = {k: v for k, v in own.items() if k not in same or v != dim}
        rope = {"rope_type": own.pop("rope.scaling.type", "none"), "rope_theta": own.pop("rope.freq_base", 10_000.0)}
        keys = {"rope.scaling.factor": "factor",
                "rope.scaling.original_context_length": "original_max_position_embeddings"}
        config["rope_parameters"] = rope | {"rope_type": rope["rope_type"].replace("none", "default")} | {
            theirs: own.pop(ours) for ours, theirs in keys.items() if ours in own}
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
    ids = {role: metadata.get(f"tokenizer.ggml.{key}_token_id") for role, key in
           (("bos", "bos"), ("eos", "eos"), ("eot", "eot"), ("eom", "eom"), ("pad", "padding"))}
    ends = [ids[role] for role in ("eos", "eot", "eom") if ids[role] is not None]
    if metadata.get("tokenizer.chat_template"):
        tokens = metadata.get("tokenizer.ggml.tokens") or []
        ends += [tokens.index(token) for token in ENDS if token in tokens]
    ends = list(dict.fromkeys(ends))
    found = {"bos_token_id": ids["bos"], "pad_token_id": ids["pad"],
             "eos_token_id": ends if len(ends) > 1 else next(iter(ends), None)}
    return {key: value for key, value in found.items() if value is not None}
