"""One file for each family: what its Hugging Face config means as a Spec, and what its tensors are called.

A file holds `spec(config)`, `config(spec)`, TYPES, SIZES, NAMES, IGNORE; TOKENS where old directories name no tokenizer
class. It imports nothing of the core; nothing registers it: the folder is scanned. For GGUF files it may hold

    GGUF                            the class of its models by GGUF's name of each of its TYPES, in their order
                                    (`a+key`: of files of name a those that have that key)
    GGUF_NAMES                      what tensors are called there otherwise than usual
    GGUF_ALWAYS                     keys of its config of which llama.cpp knows one value only
    GGUF_ROPE                       kinds of rope_type that llama.cpp computes as its model does, if not all
    complete_gguf(config, tensors)  adds what else such files leave unsaid
"""

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

from qkv.families._config import Config
from qkv.messages import Message
from qkv.spec import Spec

WINDOWED = {"full_attention": False, "sliding_attention": True}  # kinds of layers: whether they have a window


@cache
def modules() -> dict[str, ModuleType]:
    """Every family by the name of its file; files whose name begins with _ are shared helpers."""
    names = [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]
    return {name: importlib.import_module(f"qkv.families.{name}") for name in names}


@cache
def example_config(name: str, size: str = "") -> dict[str, Any]:
    """The config of a size of a family (its first, if none is named) as the family writes it."""
    module = modules()[name]
    values = module.SIZES[size] if size else next(iter(module.SIZES.values()))
    return module.config(module.spec(Config(values, size))) if hasattr(module, "config") else values


def read_architecture(c: Config, known: Mapping[str, str]) -> str:
    """The entry of `known` for a config's first architecture, or the first entry where the config names none."""
    stated = (c.texts("architectures", None) or list(known))[0]
    if stated not in known:
        raise c.error("architectures", [stated], Message("one of {known}", known=", ".join(known)))
    return known[stated]


def count_labels(c: Config, default: int = 2) -> int:
    """How many labels a config declares."""
    return len(c.part("id2label").values) or c.size("num_labels", default)


def name_labels(count: int) -> dict[str, str]:
    """Default names for `count` labels, as `id2label` of a config."""
    return {str(i): f"LABEL_{i}" for i in range(count)}


def read_windows(c: Config, usual: Sequence[bool], *, allowed: bool = True) -> Sequence[bool]:
    """Which layers see a window: as `layer_types` says, else as is `usual`; none may unless `allowed`."""
    kinds, known = c.texts("layer_types", None, length=len(usual)), Message("full_attention or sliding_attention")
    if not allowed:
        known = Message("full_attention, or sliding_attention with use_sliding_window")
    for kind in kinds or ():
        if kind not in WINDOWED or WINDOWED[kind] > allowed:
            raise c.error("layer_types", kind, known)
    return [WINDOWED[kind] for kind in kinds] if kinds else usual


def name_windows(s: Spec) -> list[str]:
    """The `layer_types` of a spec."""
    return ["sliding_attention" if b.attn.mask.window else "full_attention" for b in s.stack.blocks]


def name_heads(s: Spec, name: str) -> dict[str, Any]:
    """The architecture of a decoder with a head, with labels or with neither, and the names of its labels."""
    ending = "ForCausalLM" if s.head else "ForSequenceClassification" if s.labels else "Model"
    return {"architectures": [name + ending], **({"id2label": name_labels(s.labels.count)} if s.labels else {})}
