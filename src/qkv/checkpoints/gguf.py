"""GGUF files as models: the metadata as the config that a family reads, and what GGUF calls its tensors."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.checkpoints.name_table import expand_pattern
from qkv.errors import QkvError, nearest
from qkv.families import example_config, modules
from qkv.gguf_file import GgufFile, open_gguf

IGNORE = ["rope_freqs.weight", r"rope_factors_(short|long).weight", r"blk\.\d+\.attn_rot_embd",
          r"blk\.\d+\.attn\.rotary.*"]  # read as scaling, or computed
ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>")  # of a turn, where no key names one
ROPE = {"rope.scaling.factor": "factor", "rope.scaling.original_context_length": "original_max_position_embeddings",
        "rope.scaling.attn_factor": "attention_factor"}
FACTORS = {"rope_factors_short.weight": "short_factor", "rope_factors_long.weight": "long_factor"}  # of longrope
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


KEYS = {  # GGUF's, behind the architecture's name, and what configs call them
    "context_length": ("max_position_embeddings", "n_positions", "seq_length"),
    "embedding_length": ("hidden_size", "n_embd"), "block_count": ("num_hidden_layers", "n_layer"),
    "feed_forward_length": ("intermediate_size", "n_inner", "ffn_hidden_size"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads", "num_kv_heads"), "attention.key_length": ("head_dim",),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",), "attention.sliding_window": ("sliding_window",),
    "attention.scale": ("attention_multiplier",), "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",), "logit_scale": ("logits_scaling", "logit_scale"),
    "attn_logit_softcapping": ("attn_logit_softcapping",), "final_logit_softcapping": ("final_logit_softcapping",),
    "use_parallel_residual": ("use_parallel_residual",),
}
BIASES = {  # flags of configs, and the tensors of a first layer of which one shows them set
    "attention_bias": ("attn_q", "attn_qkv"), "use_qkv_bias": ("attn_q", "attn_qkv"), "mlp_bias": ("ffn_up",),
}
PATTERN = "attention.sliding_window_pattern"  # which layers have a window: a list, or all but every so manieth
NAMES = """
{embed,positions,segments}          {token_embd,position_embd,token_types}
{embed_norm,final_norm,head}        {token_embd_norm,output_norm,output}
layers.*.{attn_in,attn_sum}         blk.*.{attn_norm,attn_output_norm}
layers.*.{ffn_in,ffn_sum}           blk.*.{ffn_norm,layer_output_norm}
layers.*.{attn_out,ffn_out}         blk.*.{post_attention_norm,post_ffw_norm}
layers.*.attn.{q,k,v,out}           blk.*.{attn_q,attn_k,attn_v,attn_output}
layers.*.attn.{q_norm,k_norm}       blk.*.{attn_q_norm,attn_k_norm}
layers.*.ffn.{gate,up,down}         blk.*.{ffn_gate,ffn_up,ffn_down}
"""


class Architecture(NamedTuple):
    """A model that GGUF has a name for: its family, and what its config begins with."""

    name: str
    family: ModuleType
    begin: Mapping[str, Any]

    @property
    def known(self) -> dict[str, Any]:
        """The keys that configs of the family have, with examples."""
        file = self.family.__name__.rpartition(".")[2]
        return {key: value for size in self.family.SIZES for key, value in example_config(file, size).items()}

    @property
    def keys(self) -> dict[str, str]:
        """GGUF's keys, with those of the config."""
        return {ours: key for ours, theirs in KEYS.items() for key in theirs if key in self.known}

    @property
    def names(self) -> str:
        """The table of names: the usual ones but for what the family names otherwise."""
        own: str = getattr(self.family, "GGUF_NAMES", "")
        taken = {name for row in filter(None, own.splitlines()) for name, *_ in expand_pattern(row.split()[0])}
        rows = (row.split() for row in NAMES.split("\n") if row)
        usual = (pair for ours, theirs in rows for pair in zip(*map(expand_pattern, (ours, theirs)), strict=True))
        return own + "\n".join(f"{ours}  {theirs}" for (ours,), (theirs,) in usual if ours not in taken)


@cache
def architectures() -> dict[str, Architecture]:
    """What GGUF knows of our families, by its name (`a+key`: those of name a that have that key)."""
    found = ((name, module, {"architectures": [kind], "model_type": type_}) for module in modules().values()
             for type_, (name, kind) in zip(module.TYPES, getattr(module, "GGUF", {}).items(), strict=False))
    return {name: Architecture(name.partition("+")[0], module, begin) for name, module, begin in found}


def find_architecture(file: GgufFile) -> Architecture:
    """What a file says to be.

    Raises:
        QkvError: it is no model (an adapter, a projector), a part of one, or of an architecture that is not known.
    """
    kind, parts = file.metadata.get("general.type", "model"), file.metadata.get("split.count", 1)
    if kind != "model" or parts > 1:
        raise QkvError("{path}: holds {kind!r} in {parts} parts, expected a whole model in one file (llama-gguf-split "
                       "--merge joins parts)", path=file.path, kind=kind, parts=parts)
    name, known = str(file.metadata.get("general.architecture")), architectures()
    with_key = (a for a in known if "+" in a and a.partition("+")[0] == name and
                file.metadata.get(f"{name}.{a.partition('+')[2]}"))
    chosen = next(with_key, name)
    if chosen not in known or "+" in name:
        listed = sorted({architecture.name for architecture in known.values()})
        raise QkvError("{path}: its architecture is {name!r}{hint} (known: {known})", path=file.path, name=name,
                       hint=nearest(name, listed), known=", ".join(listed))
    return known[chosen]


def read_names(path: Path) -> tuple[str, list[str]]:
    """The table of names for a GGUF file, and what of its tensors is ignored."""
    return find_architecture(open_gguf(path)).names, IGNORE


def read_config(path: Path) -> dict[str, Any]:
    """The config of a GGUF file, as the family's own directories have it; keys that nobody reads stay in it.

    Raises:
        QkvError: as `open_gguf` and `find_architecture`; or the file lacks its embedding, or counts too many layers.
    """
    file = open_gguf(path)
    architecture = find_architecture(file)
    shapes = {n: t.shape for n, t in file.tensors.items()}
    try:
        config = translate_metadata(file.metadata, shapes, architecture, path)
        special = read_special_ids(file.metadata)
    except KeyError as e:
        raise QkvError("{where}: the key {key!r} is missing{hint}", where=path, key=e.args[0], hint="") from None
    except (TypeError, AttributeError, ArithmeticError) as e:
        raise QkvError("{where}: a value has the wrong type ({e})", where=path, e=e) from None
    factors = file.tensors.get("rope_freqs.weight")
    if factors is not None:
        rope = whole_rope(config)
        rope |= read_factors(factors.unpack(), rope.get("rope_theta", 10_000.0), path)
    rope, lacking = whole_rope(config), [name for name in FACTORS if name not in file.tensors]
    if lacking and (rope.get("rope_type") == "longrope" or len(lacking) < len(FACTORS)):
        raise QkvError("{path}: no tensor {lacking}, which longrope needs", path=path, lacking=", ".join(lacking))
    if not lacking:
        rope |= {"rope_type": "longrope"} | {key: file.tensors[name].unpack().tolist() for name, key in FACTORS.items()}
    return config | special


def translate_metadata(
    metadata: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], architecture: Architecture, path: Path
) -> dict[str, Any]:
    """The config that metadata and shapes of tensors mean; a key of zero says nothing."""
    name, known = architecture.name, architecture.known
    if zero := next((k for k, v in metadata.items() if k.endswith(("_epsilon", ".freq_base")) and not v), ""):
        raise QkvError("{path}: {key} is {value}, expected a number above 0", path=path, key=zero, value=metadata[zero])
    own = {k.removeprefix(f"{name}."): v for k, v in metadata.items() if k.startswith(f"{name}.") and (v or v is False)}
    if "token_embd.weight" not in shapes or not 0 < own.get("block_count", 0) <= len(shapes):
        raise QkvError("{path}: found {count} tensors and {name}.block_count {layers}, expected token_embd.weight and "
                       "tensors for each layer", path=path, count=len(shapes), name=name,
                       layers=own.get("block_count", 0))
    layers, config = own["block_count"], dict(architecture.begin)
    config |= {theirs: own.pop(ours) for ours, theirs in architecture.keys.items() if ours in own}
    config["vocab_size"] = shapes["token_embd.weight"][0]
    if "token_types.weight" in shapes:
        config["type_vocab_size"] = shapes["token_types.weight"][0]
    if "output_norm.weight" in shapes:
        config["tie_word_embeddings"] = "output.weight" not in shapes
    config |= {key: any(f"blk.0.{at}.bias" in shapes for at in where) for key, where in BIASES.items() if key in known}
    if "layer_types" in known and PATTERN in own:
        nth = own.pop(PATTERN)
        windowed = nth if isinstance(nth, list) else [(i + 1) % nth for i in range(layers)]
        config["layer_types"] = ["sliding_attention" if w else "full_attention" for w in windowed]
    if "rope_parameters" in known:
        config["rope_parameters"] = translate_rope(own, config, known["rope_parameters"])
    config |= getattr(architecture.family, "GGUF_ALWAYS", {})
    if hasattr(architecture.family, "complete_gguf"):
        config = architecture.family.complete_gguf(config, shapes)
    unsaid = ("vocab_size", "pooling_type", "attention.causal", "tensor_data_layout", "rope.scaling.finetuned")
    return config | {f"{name}.{key}": value for key, value in own.items() if key not in unsaid}


def translate_rope(own: dict[str, Any], config: dict[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The `rope_parameters` of metadata, like the `known` ones of the family; what is understood leaves `own`."""
    width, heads = config.get("hidden_size", 0), config.get("num_attention_heads") or 1
    dim = config.setdefault("head_dim", width // heads if isinstance(heads, int) else 0)
    if own.get("attention.value_length") == dim:
        del own["attention.value_length"]
    kind, base = own.pop("rope.scaling.type", "none"), own.pop("rope.freq_base", 10_000.0)
    rope = {"rope_type": "default" if kind == "none" else kind, "rope_theta": base}
    rope |= {theirs: own.pop(ours) for ours, theirs in ROPE.items() if ours in own}
    if "partial_rotary_factor" in known:
        rope["partial_rotary_factor"] = own.pop("rope.dimension_count", dim) / max(dim, 1)
    elif own.get("rope.dimension_count") == dim:
        del own["rope.dimension_count"]
    if "sliding_attention" not in known:
        return rope
    near = {"rope_type": "default", "rope_theta": own.pop("rope.freq_base_swa", 10_000.0)}
    return {"full_attention": rope, "sliding_attention": near}


def whole_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """The `rope_parameters` of a config, of its layers without a window where they differ."""
    rope = config.get("rope_parameters", {})
    return rope.get("full_attention", rope)


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
