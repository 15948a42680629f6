"""A model as a GGUF file: the way in (gguf.py) reversed, and read back before anything is written."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.checkpoints import gguf, model_dir, name_table
from qkv.checkpoints.sentence_transformers import GGUF_MODES, MODES, Pooling
from qkv.core.model import Transformer
from qkv.errors import QkvError, nearest
from qkv.gguf_file import KINDS, write_gguf

DTYPES: dict[Any, str] = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "BF16": 32}
TRAINING = re.compile(r".*dropout.*|.*_pdrop|initializer_range")  # what GGUF does not say, and running does not need
WHOLE = ("position_embd.weight", "token_types.weight", "rope_freqs.weight")  # always fp32, as are norms and biases
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
    """The first architecture that can say the spec, its metadata and the tensors by GGUF's names."""
    found = ("", "")
    for name, family in gguf.architectures().items():
        config = model_dir.family_config(family, core.spec)
        if isinstance(config, str):
            found = (name, config) if loaded.get("model_type") == name or not found[0] else found
            continue
        said = {ours: config[theirs] for ours, theirs in gguf.list_keys(name).items() if theirs in config}
        said["vocab_size"], rope = core.spec.vocabulary, config.get("rope_parameters", {})
        tensors, factors = name_table.export_tensors(core, gguf.list_names(family)), dict[str, Any]()
        if rope:
            said |= {"rope.freq_base": rope["rope_theta"], "rope.dimension_count": config["head_dim"],
                     "attention.value_length": config["head_dim"]}
        if rope.get("rope_type") == "llama3":
            half = config["head_dim"] // 2
            tensors["rope_freqs.weight"] = gguf.llama3_factors(half, rope["rope_theta"], rope["factor"]).float()
            factors = gguf.read_factors(tensors["rope_freqs.weight"], rope["rope_theta"], path)
        elif rope.get("rope_type", "default") != "default":
            said |= {"rope.scaling.type": rope["rope_type"]}
            said |= {ours: rope[theirs] for ours, theirs in gguf.ROPE.items() if theirs in rope}
        metadata = {f"{name}.{key}": value for key, value in said.items()}
        back = gguf.translate_metadata(metadata, {n: t.shape for n, t in tensors.items()}, name, path)
        if factors:
            back["rope_parameters"] |= factors
        spec = model_dir.spec_from_config(back | {k: v for k, v in config.items() if TRAINING.fullmatch(k)}, path)
        if spec == core.spec:
            return name, metadata, tensors
        found = name, model_dir.first_difference(core.spec, spec)
    name, why = found
    raise QkvError("no architecture of GGUF known here ({known}) can say this model; {name}: {why}",
                   known=", ".join(gguf.architectures()), name=name, why=why)
