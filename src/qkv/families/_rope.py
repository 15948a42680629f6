"""Rotary positions in the configs of LLaMA and the families derived from it: base and scaling."""

import math
from typing import Any

from qkv.families import WINDOWED, Config
from qkv.messages import Message
from qkv.spec import Rotary, Scaling, Spec

SCALINGS: dict[str, tuple[Any, dict[str, str]]] = {  # by their kind: our kind, and their keys with our fields
    "default": ("", {}),
    "linear": ("linear", {"factor": "factor"}),
    "dynamic": ("dynamic", {"factor": "factor"}),
    "llama3": ("wavelength", {"factor": "factor", "low_freq_factor": "slow", "high_freq_factor": "fast"}),
    "yarn": ("yarn", {"factor": "factor", "beta_slow": "slow", "beta_fast": "fast", "attention_factor": "gain"}),
    "longrope": ("longrope", {"attention_factor": "gain"}),
    "su": ("longrope", {"attention_factor": "gain"}),  # as the first files of Phi-3 name it
}
OTHERS = "type|mscale(_all_dim)?|truncate|" + "|".join(key for _, keys in SCALINGS.values() for key in keys)


def read_rotary(c: Config, dim: int, *, partial: bool = False) -> Rotary:
    """The rotary part of a config: `rope_parameters` in new files, `rope_theta` with `rope_scaling` in old ones.

    Raises for a scaling that is not in SCALINGS, and for partly rotated heads unless `partial` allows them.
    """
    context, trained = c.size("max_position_embeddings", 2048), c.size("original_max_position_embeddings", None)
    today, before = c.part("rope_parameters"), c.part("rope_scaling")
    rope = before or today  # transformers prefers them in this order
    kind = rope.choice("rope_type" if "rope_type" in rope.values else "type", {k: k for k in SCALINGS}, "default")
    inside = rope.size("original_max_position_embeddings", None)  # new files have it in both places
    trained = trained or inside or context
    base = rope.number("rope_theta", c.number("rope_theta", 10_000.0))
    share = rope.share("partial_rotary_factor", c.share("partial_rotary_factor", 1.0))
    if share != 1 and not partial:
        raise rope.error("partial_rotary_factor", share, Message("1, as this family turns whole heads"))
    slower = None if kind == "default" else read_scaling(rope, kind, context, trained, int(dim * share))
    rope.finish((OTHERS,))
    return Rotary(int(dim * share), base=float(base), scaling=slower)


def read_rotaries(c: Config, dim: int, local: float) -> dict[bool, Rotary]:
    """The rotary parts of layers without (False) and with a window: `rope_parameters` by type of layer in new files.

    In old ones a window's has the base `local`, and no scaling.
    """
    nested = c.part("rope_parameters")
    if not nested.values.keys() & WINDOWED.keys():
        return {False: read_rotary(c, dim), True: Rotary(dim, float(local))}
    found = dict[bool, Rotary]()
    for kind, windowed in WINDOWED.items():
        one, usual = c.with_defaults(), {"rope_theta": local} if windowed else {}
        one.values = {**c.values, "rope_parameters": usual | dict(nested.part(kind).values)}
        found[windowed] = read_rotary(one, dim)
    nested.finish(())
    return found


def read_scaling(c: Config, kind: str, context: int, trained: int, dim: int) -> Scaling:
    """The rotary scaling of a config, with transformers' defaults; dynamic starts at `context`, others at `trained`.

    longrope names a factor for each of dim/2 pairs, once for short and once for long texts.
    """
    usual = dict[str, float]()
    if kind == "yarn":
        over, under = c.number("mscale", None), c.number("mscale_all_dim", None)
        factor = c.number("factor", None) or context / trained
        gain = yarn_mscale(factor, over) / yarn_mscale(factor, under) if over and under else yarn_mscale(factor, 1)
        usual = {"factor": factor, "beta_slow": 1, "beta_fast": 32, "attention_factor": gain}
    ours, keys = SCALINGS[kind]
    short, long = (), ()
    if ours == "longrope":
        factor = c.number("factor", None) or context / trained
        usual = {"attention_factor": math.sqrt(1 + math.log(max(factor, 1)) / math.log(max(trained, 2)))}
        short, long = (c.factors(f"{length}_factor", dim // 2) for length in ("short", "long"))
    said = {field: float(c.number(key, None) or usual.get(key) or c.number(key)) for key, field in keys.items()}
    at = {"linear": 0, "dynamic": context}.get(kind, trained)
    whole = "exact" if kind == "yarn" and not c.flag("truncate", True) else "rounded"
    return Scaling(ours, trained=at, **said, whole=whole, short=short, long=long)


def yarn_mscale(factor: float, weight: float) -> float:
    """The factor on cosine and sine that keeps attention as peaked in longer texts (Peng et al. 2023, 3.4)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def write_rotary(r: Rotary) -> dict[str, Any]:
    """The `rope_parameters` of a rotary part."""
    kind = next(k for k, (ours, _) in SCALINGS.items() if ours == (r.scaling.kind if r.scaling else ""))
    said: dict[str, Any] = {"rope_type": kind, "rope_theta": r.base}
    said |= {key: getattr(r.scaling, field) for key, field in SCALINGS[kind][1].items()}
    if kind in ("llama3", "yarn", "longrope"):
        said["original_max_position_embeddings"] = r.scaling.trained
    if kind == "longrope":
        said |= {"short_factor": list(r.scaling.short), "long_factor": list(r.scaling.long)}
    return said | ({"truncate": False} if r.scaling and r.scaling.whole == "exact" else {})


def write_rotaries(s: Spec) -> dict[str, Any]:
    """The `rope_parameters` by type of layer; a type that no layer has repeats the other."""
    attns: list[Any] = [b.attn for b in s.stack.blocks]
    turns = {bool(a.mask.window): write_rotary(a.rotary) for a in attns}
    return {kind: turns.get(windowed, next(iter(turns.values()))) for kind, windowed in WINDOWED.items()}
