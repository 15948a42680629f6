"""A model's folder for a page that runs it in the browser: its weights by the core's names, tokenizer.json, spec.json.

The program that reads it is what `qkv show MODEL --language typescript` prints; web/src/live/ has the page.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save
from torch import Tensor

from qkv import cost as counts
from qkv.errors import QkvError
from qkv.explore.answers import LOADS, cost, describe_model
from qkv.explore.body import Query
from qkv.explore.embeddings import PLAIN
from qkv.explore.question import kind, max_text_tokens
from qkv.files import replace_dir, write_text_file
from qkv.lens.cache_report import attention_variants
from qkv.model import Model
from qkv.spec import Stack
from qkv.specialize.traced import TracedProgram
from qkv.specialize.typescript import print_typescript, spec_hash
from qkv.tasks.types import start_ids

FORMAT = 2
CONTEXTS = [2**n for n in range(4, 18)]  # those of the panel Cost, besides the model's own
DTYPES = ("float32", "bfloat16", "int8")
KEPT = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WebDtype = Literal["fp32", "bf16", "fp16", "int8"]


def write_web_model(
    model: Model, directory: Path, *, name: str, dtype: WebDtype = "int8", examples: Sequence[str] = ()
) -> dict[str, Any]:
    """Write the folder; returns what spec.json says. Vectors stay in fp32, int8 matrices have one scale a row.

    `examples` are the sentences that the page offers. int8 halves what a visitor fetches; bf16 keeps the numbers of a
    model that is stored so, to the last digit that the page shows.

    Raises:
        QkvError: the model has no tokenizer.json, or the TypeScript printer does not know a part of it.
    """
    if model.tokenizer is None:
        raise QkvError("{name} has no tokenizer, so a text cannot become tokens; save one beside it", name=name)
    words = model.tokenizer.to_json()
    print_typescript(model.spec, runtime="")  # what cannot be printed cannot run
    spec, tied = model.spec, model.spec.head is not None and model.spec.head.kind == "tied"
    spell = TracedProgram(spec).spell_parameter
    stored = {spell(n): x for n, x in model.core.state_dict().items() if not (tied and n == "head.weight")}
    tensors = {n: t for name_, x in stored.items() for n, t in pack_tensor(name_, x.detach().float(), dtype).items()}
    sides = (("encoder", spec.encoder), ("decoder", spec.decoder))
    about = describe_model(model, name, [name], "", list(examples)).keys
    with replace_dir(directory) as aside:
        body = save(tensors, metadata={"format": "qkv-web"})
        (aside / "model.safetensors").write_bytes(body)
        write_text_file(aside / "tokenizer.json", words)
        said = {
            "format": FORMAT, "name": name, "kind": kind(model), "program": spec_hash(spec), "dtype": dtype,
            "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest(), "start": list(start_ids(model)),
            "eos": list(model.special.eos), "forbid": list(model.special.forbid), "context": spec.context,
            "longest": max_text_tokens(model), "mask": model.tokenizer.mask_id, "unknown": model.tokenizer.unk_id,
            "stacks": {side: describe_embedding(s) for side, s in sides if s},
            "counts": count_costs(model), "plain": sorted(PLAIN),
            "about": {**about, "card": {**about["card"], "dtype": dtype}},
        }
        write_text_file(aside / "spec.json", json.dumps(said, ensure_ascii=False, indent=1) + "\n")
    return said


def describe_embedding(s: Stack) -> dict[str, Any]:
    """How ids become the states that enter a stack."""
    at = s.positions
    return {"scale": s.embed_scale, "positions": at and at.kind, "offset": at.offset if at else 0,
            "layout": at.layout if at else ""}


def count_costs(model: Model) -> dict[str, Any]:
    """What the panels Cost and KV cache say of the model whatever the text, counted from its spec.

    `reports` has by context: operations of prefill and decode, then how many numbers cache, memory and activations
    hold for one text. A number takes `widths` bytes; `weights` are in bytes, `kinds` and `memory` in bytes of fp32.
    """
    whole = cost(model, Query({"dtype": "int8"})).keys  # a number is a byte
    counted = {n: cost(model, Query({"dtype": "int8", "context": str(n)})).keys for n in {*CONTEXTS, whole["context"]}}
    reports = {n: [*found["flops"].values(), *(found["bytes"][name] for name in LOADS)] for n, found in counted.items()}
    kinds = {} if model.spec.decoder is None else attention_variants(model.spec)
    size = torch.float32.itemsize
    return {
        **{key: whole[key] for key in ("context", "total", "active", "parameters", "shapes")}, "reports": reports,
        "widths": {dtype: counts.width(dtype) for dtype in DTYPES},
        "weights": {dtype: counts.count(model.spec).weight_bytes(dtype) for dtype in DTYPES},
        "kinds": {name: counts.count(spec).kv_per_token * size for name, spec in kinds.items()},
        "memory": counts.count(model.spec).memory_per_token * size if model.encoder_decoder else 0,
    }


def pack_tensor(name: str, x: Tensor, dtype: WebDtype) -> dict[str, Tensor]:
    """A tensor as it is stored: a vector as it is, a matrix in fewer bits."""
    if x.ndim < 2:
        return {name: x.contiguous()}
    if dtype != "int8":
        return {name: x.to(KEPT[dtype]).contiguous()}
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp_min(1e-12)
    return {name: (x / scale).round().to(torch.int8), f"{name}_scale": scale}


def unpack_tensors(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """The numbers that the browser reads from a folder's weights, in fp32."""
    return {n: x.float() * stored.get(f"{n}_scale", 1.0) for n, x in stored.items() if not n.endswith("_scale")}
