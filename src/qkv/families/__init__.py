"""One file a family: what its Hugging Face config means as a Spec, and what its tensors are called. Data, no core.

A file holds `spec(config)`, `config(spec)`, TYPES, SIZES, NAMES, IGNORE; nothing registers it: the folder is scanned.
"""

from collections.abc import Mapping
from typing import Any, Protocol


class Config(Protocol):
    """A config that remembers which of its keys were read (convert/config.py)."""

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

    def error(self, key: str, found: object, expected: str) -> Exception:
        """What to raise when a value cannot be meant."""
        ...
