"""Adapters as PEFT stores them: adapter_config.json and adapter_model.safetensors, with Hugging Face's module names.

Where theirs is one fused layer and ours are several (GPT-2's c_attn), our adapters stand in one of theirs, block by
block on a diagonal: the same sum. What they mean: adapt/lora.py.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.checkpoints import name_table, storage
from qkv.checkpoints.locate import ADAPTER
from qkv.checkpoints.model_dir import read_names
from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.families import Config
from qkv.json_files import read_json
from qkv.messages import Message

CONFIG, WEIGHTS = ADAPTER, "adapter_model.safetensors"
BEFORE = "base_model.model."  # PEFT's own wrappers, in the name of every tensor
REPEATS, NESTED = re.compile(r"[*+{]"), re.compile(r"\)[*+{]")
Part = tuple[Tensor, Tensor, float]  # A [rank, in], B [out, rank], and what their product counts
REFUSED = {
    "use_dora": "DoRA", "lora_bias": "biases of adapters", "layer_replication": "repeated layers",
    "trainable_token_indices": "single token embeddings", "target_parameters": "adapters of experts' banks",
}


def stored_layers(core: Transformer, config: Mapping[str, Any]) -> Iterator[tuple[name_table.Slot, list[str]]]:
    """Each stored matrix with its row of the family's table, and the paths of our modules that it fills."""
    paths = {id(p): name.rpartition(".")[0] for name, p in core.named_parameters()}
    for slot in name_table.expand_rows(read_names(core, config)[0], core):
        if next(iter(slot.ours)).endswith(".weight") and "stack" not in slot.ops:
            yield slot, [paths[id(own)] for own in slot.ours.values()]


def without_flip(slot: name_table.Slot) -> name_table.Slot:
    """The row for B [out, rank], which is never stored the other way round."""
    return slot._replace(ops=tuple(op for op in slot.ops if op != "flip"))


def write_adapters(
    directory: Path, core: Transformer, config: Mapping[str, Any], parts: Mapping[str, Part], *, base: str,
    also: Sequence[str] = (),
) -> None:
    """Adapters by our paths, and the weights `also` in full, into a directory that PEFT reads."""
    tensors: dict[str, Tensor] = {}
    ranks, alphas, flips = dict[str, int](), dict[str, float](), list[bool]()
    known: list[str] = []
    for slot, paths in stored_layers(core, config):
        module = slot.theirs[0].removesuffix(".weight")
        known.append(module)
        if not any(path in parts for path in paths):
            continue
        a, b, scale = join_adapters(slot, paths, parts)
        tensors |= {f"{BEFORE}{module}.lora_A.weight": a, f"{BEFORE}{module}.lora_B.weight": b}
        ranks[module], alphas[module] = len(a), scale * len(a)
        flips.append("flip" in slot.ops)
    whole = dict(full_weights(core, config, also))
    rank, alpha = (Counter(of.values()).most_common(1)[0][0] for of in (ranks, alphas))
    storage.write_safetensors({n: t.detach().contiguous() for n, t in (tensors | whole).items()}, directory / WEIGHTS)
    storage.write_json(directory / CONFIG, {
        "peft_type": "LORA", "task_type": task_type(core), "base_model_name_or_path": base, "inference_mode": True,
        "r": rank, "lora_alpha": int(alpha) if alpha == int(alpha) else alpha, "lora_dropout": 0.0, "bias": "none",
        "target_modules": shorten_names(list(ranks), known), "fan_in_fan_out": any(flips), "use_rslora": False,
        "modules_to_save": sorted({n.removeprefix(BEFORE).rpartition(".")[0] for n in whole}) or None,
        "rank_pattern": {m: r for m, r in ranks.items() if r != rank},
        "alpha_pattern": {m: v for m, v in alphas.items() if v != alpha},
        "use_dora": False, "init_lora_weights": True, "layers_to_transform": None, "layers_pattern": None,
    })


def join_adapters(slot: name_table.Slot, paths: list[str], parts: Mapping[str, Part]) -> Part:
    """Our adapters of a row as one of theirs."""
    if len(paths) == 1:
        return parts[paths[0]]
    own = [parts.get(path) for path in paths]
    first = next(part for part in own if part)
    rank, at = sum(len(part[0]) for part in own if part), 0
    blocks: list[Tensor] = []
    for part, weight in zip(own, slot.ours.values(), strict=True):
        block = first[1].new_zeros(weight.shape[0], rank)  # out rank
        if part:
            block[:, at : at + len(part[0])] = part[1].detach() * (part[2] / first[2])
            at += len(part[0])
        blocks.append(block)
    a = torch.cat([part[0] for part in own if part])
    return a, name_table.convert_out(blocks, without_flip(slot)), first[2]


def full_weights(core: Transformer, config: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """The named weights of ours as they are stored in full beside adapters."""
    wanted = {id(p) for n, p in core.named_parameters() if n in names}
    for slot in name_table.expand_rows(read_names(core, config)[0], core):
        if any(id(own) in wanted for own in slot.ours.values()):
            yield BEFORE + slot.theirs[0], name_table.convert_out([w.detach() for w in slot.ours.values()], slot)


def task_type(core: Transformer) -> str | None:
    """What PEFT calls the kind of a model."""
    s = core.spec
    if s.labels:
        return "SEQ_CLS"
    return "SEQ_2_SEQ_LM" if s.encoder and s.decoder else "CAUSAL_LM" if s.decoder else None


def shorten_names(modules: Sequence[str], known: Sequence[str]) -> list[str]:
    """Last names where these mean the same modules among all known ones, else whole names."""
    ends = {m.rpartition(".")[2] for m in modules}
    meant = [m for m in known if m.rpartition(".")[2] in ends]
    return sorted(ends) if sorted(meant) == sorted(modules) else sorted(modules)


def read_stated(path: Path) -> dict[str, Any]:
    """An adapter_config.json, of which every key that is read here holds what it should.

    Raises:
        QkvError: one does not; or a pattern of alpha_pattern is none, or could take for ever to be compared.
    """
    said = Config(read_json(path), str(path))
    said.number("lora_alpha", 8)
    said.size("r", 8)
    said.flag("use_rslora", None)
    patterns = said.part("alpha_pattern")
    for key in patterns.values:
        patterns.number(key)
        try:
            re.compile(key)
        except re.error as e:
            raise patterns.error(key, key, Message("a regular expression ({e})", e=e)) from None
        if len(REPEATS.findall(key)) > 3 or NESTED.search(key):
            raise patterns.error(key, key, Message("no repeated group and at most three repetitions"))
    return dict(said.values)


def base_of_adapter(directory: Path, above: tuple[Path, ...] = ()) -> str:
    """The model that the adapters in a directory were made for: a path, also beside the directory, or a name.

    Raises:
        QkvError: it is not named, or it is one `above`: adapters whose bases are adapters lead back to themselves.
    """
    base = read_json(directory / CONFIG).get("base_model_name_or_path")
    above = (*above, directory.resolve())
    if not isinstance(base, str) or not base or "\0" in base:
        raise QkvError("{directory}: names no base_model_name_or_path, the model that the adapter is for",
                       directory=directory / CONFIG)
    beside = directory / base
    found = str(beside) if not Path(base).exists() and beside.exists() else base
    if Path(found).resolve() in above:
        raise QkvError("{directory}: its base is {base!r}, which is itself an adapter of this one",
                       directory=directory / CONFIG, base=base)
    if (Path(found) / CONFIG).is_file():
        base_of_adapter(Path(found), above)
    return found


def read_adapters(
    directory: Path, core: Transformer, config: Mapping[str, Any]
) -> tuple[dict[str, Part], dict[str, Tensor]]:
    """The adapters of a directory by our paths, and the weights stored in full by our names.

    Raises:
        QkvError: another kind of adapter, or tensors that no module of the model takes.
    """
    stated, where = read_stated(directory / CONFIG), directory / CONFIG
    if stated.get("peft_type") != "LORA":
        raise QkvError("{where}: peft_type is {peft_type!r}, expected 'LORA'", where=where,
                       peft_type=stated.get("peft_type"))
    refused = [f"{key} ({what})" for key, what in REFUSED.items() if stated.get(key)]
    if refused or stated.get("bias", "none") != "none":
        raise QkvError("{where}: has settings that are not supported: {refused}; merge the adapter with PEFT first",
                       where=where, refused=", ".join(refused) or "bias")
    if not (directory / WEIGHTS).is_file():
        raise QkvError("{directory}: no {weights}; adapters are read only from safetensors", directory=directory,
                       weights=WEIGHTS)
    tensors, parts, whole = storage.open_safetensors(directory / WEIGHTS), dict[str, Part](), dict[str, Tensor]()
    left = set(tensors)
    for slot, paths in stored_layers(core, config):
        for module in (t.removesuffix(".weight") for t in slot.theirs):
            keys = [f"{BEFORE}{module}.lora_{side}.weight" for side in "AB"]
            if keys[0] in tensors and keys[1] in tensors:
                left -= set(keys)
                a, b = (tensors[key]() for key in keys)
                if not (a.ndim == b.ndim == 2 and len(a) == b.shape[1] > 0 and a.dtype.is_floating_point
                        and b.dtype.is_floating_point):
                    raise QkvError("{path}: {key} is {a} of {kind} and lora_B {b}, expected floating-point numbers of "
                                   "[rank, in] and [out, rank]", path=directory / WEIGHTS, key=keys[0],
                                   a=list(a.shape), kind=str(a.dtype).removeprefix("torch."), b=list(b.shape))
                for key, one in zip(keys, (a, b), strict=True):
                    refuse_not_finite(directory / WEIGHTS, key, one)
                for path, one in zip(paths, name_table.convert_in(b, without_flip(slot)), strict=True):
                    if len(paths) == 1 or bool(one.any()):
                        parts[path] = a, one, scale_of_module(stated, module, len(a))
    names = {id(p): n for n, p in core.named_parameters()}
    for slot in name_table.expand_rows(read_names(core, config)[0], core):
        for key in left & {BEFORE + t for t in slot.theirs}:
            left.discard(key)
            refuse_not_finite(directory / WEIGHTS, key, stored := tensors[key]())
            found = name_table.convert_in(stored, slot)
            whole |= {names[id(own)]: t for own, t in zip(slot.ours.values(), found, strict=True)}
    if left or not any(".lora_A." in key for key in tensors):
        whose = ", ".join(sorted(left)[:5]) or Message("any of it")
        raise QkvError("{directory}: no module of this model matches {whose}; is {base_model_name_or_path!r} the "
                       "model that it was made for?", directory=directory / WEIGHTS, whose=whose,
                       base_model_name_or_path=stated.get("base_model_name_or_path"))
    return parts, whole


def refuse_not_finite(path: Path, key: str, weights: Tensor) -> None:
    """QkvError for a weight that is NaN or far too large: merged, it would spoil its whole module."""
    if not bool((weights.float().abs() < name_table.HUGE).all()):
        raise QkvError("{path}: {key} holds NaN, infinite numbers or some beyond {most:.0e}", path=path, key=key,
                       most=name_table.HUGE)


def adapter_scale(directory: Path) -> float:
    """What all adapters of a run of ours count, as its directory says."""
    stated = read_stated(directory / CONFIG)
    return float(stated["lora_alpha"]) / int(stated["r"])


def scale_of_module(stated: Mapping[str, Any], module: str, rank: int) -> float:
    """What a module's adapter counts: alpha / rank, or alpha / sqrt(rank) where it is rank-stabilised."""
    patterns: Mapping[str, float] = stated.get("alpha_pattern") or {}
    fit = (value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module))
    alpha = float(next(fit, stated.get("lora_alpha", 8)))
    return alpha / (math.sqrt(rank) if stated.get("use_rslora") else rank)
