"""One file for each family: what its Hugging Face config means as a Spec, and what its tensors are called.

A file holds `spec(config)`, `config(spec)`, TYPES, SIZES, NAMES, IGNORE, and TOKENS where old directories name no
tokenizer class. It is data and imports nothing of the core; nothing registers it: the folder is scanned.
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
    """Every family by the name of its file; files whose name begins with _ are shared helpers."""
    names = [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]
    return {name: importlib.import_module(f"qkv.families.{name}") for name in names}


class Config(Protocol):
    """A config that remembers which of its keys were read (checkpoints/config.py)."""

    def __getitem__(self, key: str) -> Any:
        """The value of a required key."""
        ...

    def get(self, key: str, default: Any) -> Any:
        """The value of a key, or the default that the format defines."""
        ...

    def choice(self, key: str, known: Mapping[str, Any], default: str | None = None) -> Any:
        """The entry of `known` for the word under `key`; an unknown word is an error that lists the known ones."""
        ...

    def part(self, key: str) -> "Config":
        """A nested config; empty, and false, where it is absent."""
        ...

    def finish(self, ignore: Iterable[str]) -> object:
        """Raise for keys that are set but were never read, unless a regular expression of `ignore` matches them."""
        ...

    def error(self, key: str, found: object, expected: str) -> Exception:
        """The exception for a value that is not allowed."""
        ...


class ConfigDefaults:
    """A config passed on to a parent family: absent keys take the defaults of the derived format."""

    def __init__(self, c: Config, **defaults: Any) -> None:
        self.c, self.defaults = c, defaults

    def __getitem__(self, key: str) -> Any:
        return self.c.get(key, self.defaults[key]) if key in self.defaults else self.c[key]

    def get(self, key: str, default: Any) -> Any:
        """The value of a key, or the derived format's default, or the parent's."""
        return self.c.get(key, self.defaults.get(key, default))

    def choice(self, key: str, known: Mapping[str, Any], default: str | None = None) -> Any:
        """The entry of `known` for the word under `key`; an unknown word is an error that lists the known ones."""
        return self.c.choice(key, known, self.defaults.get(key, default))

    def part(self, key: str) -> Config:
        """A nested config; empty, and false, where it is absent."""
        return self.c.part(key)

    def finish(self, ignore: Iterable[str]) -> object:
        """Raise for keys that are set but were never read, unless a regular expression of `ignore` matches them."""
        return self.c.finish(ignore)

    def error(self, key: str, found: object, expected: str) -> Exception:
        """The exception for a value that is not allowed."""
        return self.c.error(key, found, expected)


def read_architecture(c: Config, known: Mapping[str, str]) -> str:
    """The entry of `known` for a config's first architecture, or the first entry where the config names none."""
    stated = (c.get("architectures", None) or list(known))[0]
    if stated not in known:
        raise c.error("architectures", [stated], Message("one of {known}", known=", ".join(known)))
    return known[stated]


def count_labels(c: Config, default: int = 2) -> int:
    """How many labels a config declares."""
    return len(c.get("id2label", None) or ()) or c.get("num_labels", default)


def name_labels(count: int) -> dict[str, str]:
    """Default names for `count` labels, as `id2label` of a config."""
    return {str(i): f"LABEL_{i}" for i in range(count)}
