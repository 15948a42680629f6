"""The numbers of a spec by the names that they have in a program."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from qkv import spec as parts

COUNTED = {  # the numbers that get a name, and what it is where the field alone does not say
    "vocabulary": "VOCABULARY", "sources": "SOURCES", "heads": "HEADS", "groups": "KV_HEADS", "head_dim": "HEAD_DIM",
    "q_rank": "Q_RANK", "kv_rank": "KV_RANK", "nope_head_dim": "NOPE_DIM", "value_dim": "VALUE_DIM",
    "size": "POSITIONS", "buckets": "BUCKETS", "distance": "DISTANCE", "window": "WINDOW", "eps": "EPS",
    "num_experts": "EXPERTS", "top_k": "TOP_K", "topk_groups": "TOPK_GROUPS", "base": "ROPE_BASE",
    "segments": "SEGMENTS",
}
OF: dict[type, dict[str, str]] = {
    parts.Labels: {"count": "LABELS"},
    parts.Relative: {"heads": "HEADS"},
    parts.Experts: {"groups": "EXPERT_GROUPS"},
}


def name_constants(s: parts.Spec) -> tuple[dict[tuple[Any, str], str], dict[str, Any]]:
    """Each number's name by its part and field, and the names' values; a name of several values is none."""
    found = list(walk(s, "", ""))
    for both in (False, True):
        found = [(o, f, f"{side}_{n}".strip("_") if both and len(values(found, n)) > 1 else n, v, side)
                 for o, f, n, v, side in found]
    turned = values(found, "ROTARY_DIM")
    if turned == values(found, "HEAD_DIM"):
        found = [(o, f, "HEAD_DIM" if n == "ROTARY_DIM" else n, v, side) for o, f, n, v, side in found]
    single = {n: v for _, _, n, v, _ in found if len(values(found, n)) == 1}
    return {(o, f): n for o, f, n, _, _ in reversed(found) if n in single}, single


def values(found: list[Any], name: str) -> set[Any]:
    """The different values of a name."""
    return {v for _, _, n, v, _ in found if n == name}


def walk(part: Any, role: str, side: str) -> Iterator[tuple[Any, str, str, Any, str]]:
    """Part, field, name, value and side of every number that may get a name."""
    if isinstance(part, parts.Stack):
        yield part, "blocks", "LAYERS", len(part.blocks), side
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if dataclasses.is_dataclass(value):
            if isinstance(part, parts.Spec) and isinstance(value, parts.Stack) and s_has_both(part):
                yield from walk(value, "", field.name.upper())
            else:
                yield from walk(value, field.name.upper(), side)
        elif isinstance(value, tuple):
            for one in dict.fromkeys(value):
                yield from walk(one, "", side)
        elif value is not None and not isinstance(value, bool):
            name = OF.get(type(part), {}).get(field.name) or COUNTED.get(field.name)
            if field.name == "width":
                name = "WIDTH" if isinstance(part, parts.Stack) else f"{role}_WIDTH"
            if isinstance(part, parts.Rotary) and field.name == "dim":
                name = "ROTARY_DIM"
            if field.name == "groups" and isinstance(part, parts.Attention) and value == part.heads:
                name = "HEADS"
            if name and value != 1:
                yield part, field.name, name, value, side


def s_has_both(s: parts.Spec) -> bool:
    """Whether a spec has an encoder and a decoder."""
    return bool(s.encoder and s.decoder)
