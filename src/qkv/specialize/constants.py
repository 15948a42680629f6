"""The numbers of a spec by the names that they have in a program."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from qkv import spec as parts

NAMES = {  # the numbers that get a name, by their field or, where that alone does not say it, by part and field
    "vocabulary": "VOCABULARY", "sources": "SOURCES", "heads": "HEADS", "groups": "KV_HEADS", "head_dim": "HEAD_DIM",
    "q_rank": "Q_RANK", "kv_rank": "KV_RANK", "nope_head_dim": "NOPE_DIM", "value_dim": "VALUE_DIM",
    "size": "POSITIONS", "buckets": "BUCKETS", "distance": "DISTANCE", "window": "WINDOW", "eps": "EPS",
    "num_experts": "EXPERTS", "top_k": "TOP_K", "topk_groups": "TOPK_GROUPS", "base": "ROPE_BASE",
    "segments": "SEGMENTS", "Labels.count": "LABELS", "Experts.groups": "EXPERT_GROUPS", "Stack.width": "WIDTH",
    "Rotary.dim": "ROTARY_DIM",
}


def name_constants(s: parts.Spec) -> tuple[dict[tuple[Any, str], str], dict[str, Any]]:
    """Each number's name by its part and field, and the names' values; a name of several values is none."""
    found = list(walk(s, "", ""))

    def values(name: str) -> set[Any]:
        return {v for _, _, n, v, _ in found if n == name}

    found = [(p, f, f"{side}_{n}".strip("_") if len(values(n)) > 1 else n, v, side) for p, f, n, v, side in found]
    if values("ROTARY_DIM") == values("HEAD_DIM"):
        found = [(p, f, n.replace("ROTARY_DIM", "HEAD_DIM"), v, side) for p, f, n, v, side in found]
    single = {n: v for _, _, n, v, _ in found if len(values(n)) == 1}
    return {(p, f): n for p, f, n, _, _ in reversed(found) if n in single}, single


def walk(part: Any, role: str, side: str) -> Iterator[tuple[Any, str, str, Any, str]]:
    """Part, field, name, value and side of every number that may get a name."""
    if isinstance(part, parts.Stack):
        yield part, "blocks", "LAYERS", len(part.blocks), side
    both = isinstance(part, parts.Spec) and part.encoder and part.decoder
    for field in (f.name for f in dataclasses.fields(part)):
        value = getattr(part, field)
        for one in dict.fromkeys(value) if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(one):
                yield from walk(one, field.upper(), field.upper() if both and isinstance(one, parts.Stack) else side)
        name = NAMES.get(f"{type(part).__name__}.{field}") or NAMES.get(field)
        if field == "width":
            name = name or f"{role}_WIDTH"
        if field == "groups" and isinstance(part, parts.Attention) and value == part.heads:
            name = "HEADS"
        if name and isinstance(value, int | float) and not isinstance(value, bool) and value != 1:
            yield part, field, name, value, side
