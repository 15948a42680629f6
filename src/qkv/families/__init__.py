"""One file a family: what its Hugging Face config means as a Spec, and what its tensors are called. Data, no core.

A file holds `spec(config)`, `config(spec)`, TYPES, SIZES, NAMES, IGNORE, and TOKENS where a directory of its time names
no tokenizer class; nothing registers it: the folder is scanned.
"""

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache
from types import ModuleType
from typing import Any, Protocol

from qkv.messages import Message


@cache
def modules() -> dict[str, ModuleType]:
    """Every family by its file's name; a name that begins with _ is what several share."""
    names = [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]
    return {name: importlib.import_module(f"qkv.families.{name}") for name in names}


class Config(Protocol):
    """A config that remembers which of its keys were read (checkpoints/config.py)."""

    def __getitem__(self, key: str) -> Any:
        """The value of a key that must be there."""
        ...

    def get(self, key: str, default: Any) -> Any:
        """The value of a key, or the default that the format defines."""
        ...

    def choice(self, key: str, known: Mapping[str, Any], default: str | None = None) -> Any:
        """A word translated by a table of the known ones."""
        ...

    def part(self, key: str) -> "Config":
        """A nested config, empty and false where it is absent."""
        ...

    def finish(self, ignore: Iterable[str]) -> object:
        """Stop at keys that are set and that nobody read, unless a regular expression of `ignore` fits them."""
        ...

    def error(self, key: str, found: object, expected: str) -> Exception:
        """What to raise when a value cannot be meant."""
        ...


class Preset:
    """A config for an elder family's eyes: where a key is absent, it has the younger format's default."""

    def __init__(self, c: Config, **defaults: Any) -> None:
        self.c, self.defaults = c, defaults

    def __getitem__(self, key: str) -> Any:
        return self.c.get(key, self.defaults[key]) if key in self.defaults else self.c[key]

    def get(self, key: str, default: Any) -> Any:
        """The value of a key, or the younger format's default, or the elder's."""
        return self.c.get(key, self.defaults.get(key, default))

    def choice(self, key: str, known: Mapping[str, Any], default: str | None = None) -> Any:
        """A word translated by a table of the known ones."""
        return self.c.choice(key, known, self.defaults.get(key, default))

    def part(self, key: str) -> Config:
        """A nested config, empty and false where it is absent."""
        return self.c.part(key)

    def finish(self, ignore: Iterable[str]) -> object:
        """Stop at keys that are set and that nobody read, unless a regular expression of `ignore` fits them."""
        return self.c.finish(ignore)

    def error(self, key: str, found: object, expected: str) -> Exception:
        """What to raise when a value cannot be meant."""
        return self.c.error(key, found, expected)


def headed(c: Config, known: Mapping[str, str]) -> str:
    """What a config's first architecture stands for; where it names none, what the first known one stands for."""
    stated = (c.get("architectures", None) or list(known))[0]
    if stated not in known:
        raise c.error("architectures", [stated], Message("one of {known}", known=", ".join(known)))
    return known[stated]


def labelled(c: Config, usual: int = 2) -> int:
    """How many labels a config counts."""
    return len(c.get("id2label", None) or ()) or c.get("num_labels", usual)


def named_labels(count: int) -> dict[str, str]:
    """Names for labels that have none, as `id2label` of a config."""
    return {str(i): f"LABEL_{i}" for i in range(count)}
