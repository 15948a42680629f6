"""A model as a GGUF file: the way in (gguf.py) reversed, and read back before anything is written."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.checkpoints import gguf, model_dir, name_table
from qkv.checkpoints.sentence_transformers import GGUF_MODES, MODES, Pooling
from qkv.core.model import Transformer
from qkv.errors import QkvError, nearest
from qkv.gguf_file import KINDS, write_gguf
from qkv.messages import Message
from qkv.spec import Spec, as_json

DTYPES: dict[Any, str] = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "BF16": 32}
TRAINING = re.compile(r".*dropout.*|.*_pdrop|initializer_range")  # what GGUF does not say, and running does not need
WHOLE = ("position_embd.weight", "token_types.weight", "rope_freqs.weight", *gguf.FACTORS)  # fp32, as norms and biases
ENDS = ("token_embd.weight", "output.weight")  # Q4_0 costs most here


def write_model(
    path: Path, core: Transformer, config: Mapping[str, Any], metadata: Mapping[str, Any], kind: str | torch.dtype, *,
    pooling: Pooling | None = None,
) -> None:
    """A core with the metadata of its tokenizer as a GGUF file, its matrices in one kind (F32 … Q4_0).

    Raises:
        QkvError: no architecture of GGUF can say the model; the first field that does not fit is named.
    """
    kind = DTYPES.get(kind, str(kind).upper().removeprefix("TORCH."))
    if kind not in FILE_TYPES:
        raise QkvError("cannot write tensors of kind {kind}{hint} (known: {known})", kind=kind,
                       hint=nearest(kind, FILE_TYPES), known=", ".join(FILE_TYPES))
    name, own, tensors = describe_core(core, config, path)
    if core.spec.decoder is None:
        own |= {f"{name}.attention.causal": False, "tokenizer.ggml.token_type_count": core.spec.stack.segments}
    if pooling:
        states = {MODES[mode]: number for number, mode in GGUF_MODES.items()}
        if pooling.states not in states or pooling.prompt or pooling.dense:
            raise QkvError("GGUF cannot say this pooling: found {states} with the prompt {prompt!r} and {dense} dense "
                           "layers, expected one of {known} without either", states=pooling.states,
                           prompt=pooling.prompt, dense=len(pooling.dense), known=", ".join(states))
        own[f"{name}.pooling_type"] = states[pooling.states]
    general = {"general.architecture": name, "general.type": "model", "general.name": path.stem,
               "general.file_type": FILE_TYPES[kind], "general.quantization_version": 2}
    rows = [(n, choose_kind(n, t, kind), t) for n, t in tensors.items()]
    write_gguf(path, {**general, **own, **metadata}, rows)


def choose_kind(name: str, tensor: Tensor, kind: str) -> str:
    """The kind in which one tensor is written, where matrices are of `kind`."""
    if tensor.ndim < 2 or name in WHOLE:
        return "F32"
    if kind == "Q4_0" and name in ENDS:
        kind = "Q8_0"
    return kind if tensor.shape[-1] % KINDS[kind].size == 0 else "F16"


def describe_core(
    core: Transformer, loaded: Mapping[str, Any], path: Path
) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """An architecture that can say the spec, the loaded config's first; its metadata and tensors by GGUF's names."""
    known, found = gguf.architectures().values(), ("", Message())
    for one in sorted(known, key=lambda a: a.begin["model_type"] != loaded.get("model_type")):
        config = model_dir.family_config(one.family, core.spec)
        if isinstance(config, str):
            found = found if found[0] else (one.name, Message(config))
            continue
        if config["model_type"] != one.begin["model_type"]:
            continue
        rope, factors, turns = gguf.whole_rope(config), dict[str, Any](), getattr(one.family, "GGUF_ROPE", ())
        if turns and rope["rope_type"] not in turns:
            found = one.name, Message("llama.cpp computes the rope_type {found} otherwise (it knows {known})",
                                      found=rope["rope_type"], known=", ".join(turns))
            continue
        metadata, tensors = describe_config(config, one), name_table.export_tensors(core, one.names)
        if rope.get("rope_type") == "llama3":
            half = read_head_dim(config) // 2
            tensors["rope_freqs.weight"] = gguf.llama3_factors(half, rope["rope_theta"], rope["factor"]).float()
            factors = gguf.read_factors(tensors["rope_freqs.weight"], rope["rope_theta"], path)
        if rope.get("rope_type") == "longrope":
            factors = {key: rope[key] for key in gguf.FACTORS.values()}
            tensors |= {name: torch.tensor(factors[key]) for name, key in gguf.FACTORS.items()}
        back = gguf.translate_metadata(metadata, {n: t.shape for n, t in tensors.items()}, one, path)
        gguf.whole_rope(back).update(factors)
        try:
            spec = model_dir.spec_from_config(back | {k: v for k, v in config.items() if TRAINING.fullmatch(k)}, path)
        except QkvError as e:
            found = one.name, e.message
            continue
        if round_numbers(spec) == round_numbers(core.spec):
            return one.name, metadata, tensors
        found = one.name, model_dir.first_difference(core.spec, spec)
    name, why = found
    listed = sorted({architecture.name for architecture in known})
    raise QkvError("no architecture of GGUF known here ({known}) can say this model; {name}: {why}",
                   known=", ".join(listed), name=name, why=why)


def round_numbers(spec: Spec) -> Any:
    """A spec as JSON, its numbers as exact as metadata hold them."""
    return json.loads(json.dumps(as_json(spec)), parse_float=np.float32)


def read_head_dim(config: Mapping[str, Any]) -> int:
    """The width of a head that turns."""
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def describe_config(config: Mapping[str, Any], architecture: gguf.Architecture) -> dict[str, Any]:
    """A config as metadata."""
    said = {ours: config[key] for ours, key in architecture.keys.items() if config.get(key) is not None}
    said["vocab_size"], rope = config["vocab_size"], gguf.whole_rope(config)
    if "attention.sliding_window" in said and "layer_types" in config:
        said[gguf.PATTERN] = [int(kind == "sliding_attention") for kind in config["layer_types"]]
    if rope:
        dim = read_head_dim(config)
        said |= {"rope.freq_base": rope["rope_theta"], "attention.value_length": dim,
                 "rope.dimension_count": round(dim * rope.get("partial_rotary_factor", 1))}
        if "sliding_attention" in config["rope_parameters"]:
            said["rope.freq_base_swa"] = config["rope_parameters"]["sliding_attention"]["rope_theta"]
        if rope["rope_type"] not in ("default", "llama3"):
            said |= {"rope.scaling.type": rope["rope_type"]}
            said |= {ours: rope[theirs] for ours, theirs in gguf.ROPE.items() if theirs in rope}
    return {f"{architecture.name}.{key}": value for key, value in said.items()}
