"""The bodies of answers and the queries of questions: JSON, arrays as raw little-endian numbers, keys that are checked.

Used by answers.py, the files of its panels, and replay.py.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from qkv.errors import nearest
from qkv.explore.question import Refused
from qkv.lens import resolve
from qkv.messages import Message

JSON, ARRAYS = "application/json", "application/x-qkv"
DTYPES = {torch.uint8: "u8", torch.int32: "i32", torch.float32: "f32"}


def translate_both(message: Message) -> dict[str, str]:
    """A message as the page takes it, which changes its language without asking again."""
    return {"zh": message.to("zh"), "en": str(message)}


@dataclass(frozen=True)
class Answer:
    """The keys of an answer, and its arrays by name (u8, i32 or f32), if any."""

    keys: dict[str, Any]
    arrays: dict[str, Tensor] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """The media type of the body."""
        return ARRAYS if self.arrays else JSON

    def body(self) -> bytes:
        """JSON; or a u32 length, a JSON header padded to end on 8 bytes, and the arrays, each padded."""
        if not self.arrays:
            return dump_json(self.keys)
        listed: dict[str, Any] = {}
        data = b""
        for name, x in self.arrays.items():
            raw = x.detach().cpu().contiguous().numpy().astype(x.numpy(force=True).dtype.newbyteorder("<")).tobytes()
            listed[name] = {"dtype": DTYPES[x.dtype], "shape": list(x.shape), "offset": len(data)}
            data += raw + b"\0" * (-len(raw) % 8)
        head = dump_json({**self.keys, "arrays": listed})
        head += b" " * (-(4 + len(head)) % 8)
        return struct.pack("<I", len(head)) + head + data


def dump_json(value: object) -> bytes:
    """JSON in UTF-8; what is not finite is null."""
    return json.dumps(to_json_value(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def to_json_value(value: Any) -> Any:
    """Tensors as lists, NaN and infinity as null."""
    if isinstance(value, Mapping):
        return {str(k): to_json_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(v) for v in value]
    if isinstance(value, Tensor):
        return to_json_value(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None  # nine digits are a float32, whole
    return value


class Query:
    """The query of a path: each key is read by its type; a wrong value is a Refused with what was expected."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values

    def allow_only(self, *known: str) -> None:
        """No key but these."""
        for key in self.values:
            if key not in known:
                there = ", ".join(known) or Message("none")
                hint = nearest(key, known)
                raise Refused("{key!r} is unknown{hint}; known: {there}", key=key, hint=hint, there=there)

    def get_text(self, key: str, default: str = "") -> str:
        """A text."""
        return self.values.get(key, default)

    def get_integer(self, key: str, default: int | None = None, *, low: int = 0, high: int | None = None) -> int:
        """A whole number from `low` to `high`; without a default it must be there."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        try:
            found = int(value or "")
        except ValueError:
            found = low - 1
        if found < low or (high is not None and found > high):
            bounds = Message("at least {low}", low=low)
            if high is not None:
                bounds = Message("{low} to {high}", low=low, high=high)
            raise Refused("{key}={said}: expected a whole number, {bounds}", key=key, said=value, bounds=bounds)
        return found

    def get_number(self, key: str, default: float) -> float:
        """A finite number."""
        try:
            found = float(self.values.get(key, default))
        except ValueError:
            found = math.nan
        if not math.isfinite(found):
            raise Refused("{key}={said}: expected a number", key=key, said=self.values[key])
        return found

    def get_choice(self, key: str, *known: str) -> str:
        """One of some words, the first where none was given."""
        found = self.values.get(key) or known[0]
        if found not in known:
            there = ", ".join(known)
            raise Refused("{key}={found}: expected {there}", key=key, found=found, there=there)
        return found


def list_tokens(t: Any, ids: list[int]) -> list[dict[str, Any]]:
    """Tokens as text; a character that is cut into several carries the share that each is."""
    found: list[dict[str, Any]] = []
    for token, shown, piece in zip(ids, resolve.show_tokens(t, ids), t.tokenizer.pieces(ids), strict=True):
        text, _, share = shown.rpartition(" ") if shown != piece else (shown, "", "")
        found.append({"text": text, "id": token, **({"bytes": share} if share else {})})
    return found


def read_ids(t: Any, path: str = "") -> list[int]:
    """The ids that the stack of a path read, without one the stack that writes."""
    return resolve.find_run(t, path).ids[0].tolist()
