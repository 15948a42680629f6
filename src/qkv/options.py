"""Options from anywhere (Python, TOML, JSON, `a.b=c` on a command line) as frozen dataclasses, checked by their types.

A mistake is a QkvError that names the key, what was found, what was expected and the nearest known name.
"""

import dataclasses
import numbers
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, TypeVar

from qkv.errors import QkvError, nearest, show_value
from qkv.messages import Message

Options = TypeVar("Options")
SHORT_FLOAT = re.compile(r"[-+]?(?:\d+\.|\.\d+)(?:[eE][-+]?\d+)?")  # people write .1 and 1., TOML does not
LARGEST = 3.4e38  # that fp32 holds
AT_LEAST_ONE, NOT_NEGATIVE = Message("1 or more"), Message("0 or more")
SHARE = Message("a share from 0 to 1")
SHARE_BELOW_1 = Message("a share from 0 to below 1")


def replace_from_dict(
    options: Options, values: Mapping[str, Any], where: str = "", on_unknown: Callable[[str], None] = lambda name: None
) -> Options:
    """Copy a frozen dataclass with the values of a nested mapping; errors put `where` before their keys.

    `on_unknown` is told an unknown key first, and may raise an error that knows more of it (its new name, say).

    Raises:
        QkvError: an unknown key, with the nearest one, or a value of the wrong type.
    """
    if not isinstance(values, Mapping):
        some = f"{where}.{next(iter(vars(options)))}=…"
        raise QkvError("{where}: found {values!r}, expected keys in it such as {some}", where=where, values=values,
                       some=some)
    hints = read_types(type(options))
    new: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{where}.{key}" if where else key
        if key not in hints:
            on_unknown(name)
            hint, known = nearest(key, hints), ", ".join(hints)
            raise QkvError("{name}: unknown key{hint} (known: {known})", name=name, hint=hint, known=known)
        old = getattr(options, key)
        if dataclasses.is_dataclass(old):
            new[key] = replace_from_dict(old, value, name, on_unknown)
        else:
            new[key] = coerce(hints[key], value, name)
    return dataclasses.replace(options, **new)  # type: ignore[type-var]


@cache
def read_types(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields; nobody may change it."""
    return typing.get_type_hints(kind)


def coerce(kind: Any, value: Any, name: str) -> Any:
    """Convert `value` to `kind`, the type of a field.

    Raises:
        QkvError: the value does not fit; the message names the field and what it takes.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    words = kind is str or args == (str, ...)
    value = os.fspath(value) if words and isinstance(value, os.PathLike) else as_plain(value)
    if isinstance(value, numbers.Integral) and not -(1 << 63) <= int(value) < 1 << 63:  # neither torch nor TOML has it
        raise QkvError("{name}: found a number of {bits} bits, expected a whole number of at most 63 bits", name=name,
                       bits=int(value).bit_length())
    if origin is Literal:
        if isinstance(value, type(args[0])) and value in args:
            return value
        shown = show_value(value)
        hint = nearest(value if isinstance(value, str) else shown, map(str, args))
        some = ", ".join(map(str, args))
        raise QkvError("{name}: found {value}, expected one of {some}{hint}", name=name, value=shown, some=some,
                       hint=hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return coerce(next(a for a in args if a is not type(None)), value, name)
    if origin is tuple:
        if words and isinstance(value, str):
            return (value,) if value else ()
        if isinstance(value, list | tuple) and (args[-1] is ... or len(value) == len(args)):
            kinds = (args[0],) * len(value) if args[-1] is ... else args
            return tuple(coerce(k, v, name) for k, v in zip(kinds, value, strict=True))
        some = '["a", "b"]' if words else "[0, 1]" if args[0] is int else "[0.9, 0.98]"
        text = Message("text or ") if words else Message()
        raise QkvError("{name}: found {value}, expected {text}a list such as {some}", name=name, text=text, some=some,
                       value=show_value(list(value) if isinstance(value, tuple) else value))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        wanted = {float: Message("a number"), int: Message("a whole number"), str: Message("text"),
                  bool: Message("true or false")}.get(kind, kind.__name__)
        raise QkvError("{name}: found {shown}, expected {wanted}", name=name, shown=show_value(value), wanted=wanted)
    return value


def validate(where: str, options: Any) -> None:
    """Check each field of `options` against its type; lists become tuples and paths text, in place.

    Raises:
        QkvError: a value is not one of the field's choices or of another type; `where` stands before the key.
    """
    for key, kind in read_types(type(options)).items():
        value = getattr(options, key)
        if (found := coerce(kind, value, f"{where}.{key}")) != value:
            object.__setattr__(options, key, found)


def as_plain(value: Any) -> Any:
    """A number of numpy, or a tensor of one number without dimensions, as Python's; anything else unchanged."""
    return value.item() if hasattr(value, "item") and not getattr(value, "shape", 1) else value


def check_range(where: str, options: Any, wanted: Message, fit: Callable[[float], bool], *keys: str) -> None:
    """Check that the `keys` of `options` are numbers of fp32, or tuples of them, for which `fit` holds; None is none.

    `wanted` says so in words.
    """
    for key in keys:
        value, name = getattr(options, key), f"{where}.{key}" if where else key
        each = value if isinstance(value, tuple) else () if value is None else (value,)
        if not all(abs(n) < LARGEST and fit(n) for n in each):
            found = list(value) if isinstance(value, tuple) else value
            raise QkvError("{name}: found {value}, expected {wanted}", name=name, value=found, wanted=wanted)


def parse_assignments(words: typing.Iterable[str]) -> dict[str, Any]:
    """Parse words such as `a.b=c` into a nested mapping; a value that TOML does not know is text."""
    found: dict[str, Any] = {}
    for word in words:
        path, equals, text = word.partition("=")
        if not equals or not path.strip():
            raise QkvError("{word!r}: expected key=value, such as training.lr=0.001", word=word)
        found[path.strip()] = parse_value(text)
    return nest(found)


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by keys such as "model.width" as a nested mapping."""
    found: dict[str, Any] = {}
    for path, value in values.items():
        *parents, key = path.split(".")
        inner = found
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise QkvError("{word!r}: {parent} already has a value, so it has no keys", word=f"{path}={value}",
                               parent=parent)
        inner[key] = value
    return found


def flatten(values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """What nested values say, by keys such as "training.lora.rank"."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flatten(value, f"{where}{key}.") if isinstance(value, dict) else {where + key: value}
    return found


def parse_value(text: str) -> Any:
    """Parse a TOML value or a number such as `.1`; anything else, such as several lines of TOML, is the text itself."""
    try:
        found = tomllib.loads(f"x = {text}")
        return found["x"] if found.keys() == {"x"} else text
    except (ValueError, RecursionError):  # not TOML, or digits and brackets without end
        return float(text) if SHORT_FLOAT.fullmatch(text) else text
