"""Arguments of public functions, checked by their annotations: a mistake is a QkvError and not one of torch's insides.

The annotations of a function are read once, at its first call; a class that is imported for types alone counts by name.
"""

import builtins
import functools
import inspect
import os
import sys
import types
import typing
from collections import abc
from collections.abc import Callable
from dataclasses import fields
from functools import cache, wraps
from math import inf
from numbers import Integral, Rational, Real
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeVar

from qkv.errors import QkvError, nearest, show_value
from qkv.messages import Message, join
from qkv.options import as_plain

Function = TypeVar("Function", bound=Callable[..., Any])
MOST = 3.4e38  # of fp32
FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)


class Kind(NamedTuple):
    """What an argument may be: how to tell, and in words."""

    fits: Callable[[Any], bool]
    words: Message


class Range(NamedTuple):
    """The numbers that an annotation such as Annotated[int, Range(1)] takes."""

    least: float = -inf
    most: float = inf


Count = Annotated[int, Range(1)]


class Signature(NamedTuple):
    """The arguments of a function: names in order, kinds by name (None: anything), those without default, open ends."""

    names: tuple[str, ...]
    kinds: dict[str, Kind | None]
    needed: frozenset[str]
    more: bool  # takes any number in order
    others: bool  # takes any name


def check_arguments(function: Function) -> Function:
    """The same function, which refuses what does not fit its annotations; numbers of numpy become Python's.

    Raises:
        QkvError: code "argument": one of another type, an unknown one (the nearest is named), one missing or twice.
    """

    @wraps(function)
    def check_call(*given: Any, **named: Any) -> Any:
        names, kinds, needed, more, others = read_signature(function)
        given, named = tuple(map(as_plain, given)), {name: as_plain(value) for name, value in named.items()}
        ordered = names[: len(given)]
        if (len(given) > len(names) and not more) or not needed <= {*ordered, *named} or (
            named and not (named.keys().isdisjoint(ordered) and (others or named.keys() <= kinds.keys()))
        ):
            refuse_names(function, len(given), named)
        for name, value in (*zip(names, given, strict=False), *named.items()):
            kind = kinds.get(name)
            if kind and not kind.fits(value):
                refuse_value(display_name(function), name, value, kind)
        return function(*given, **named)

    return typing.cast("Function", check_call)


def check_fields(value: Any, where: str) -> None:
    """QkvError for the first field of a dataclass of another type; numbers of numpy become Python's."""
    for name, kind in read_field_kinds(type(value)):
        given = getattr(value, name)
        if (plain := as_plain(given)) is not given:
            object.__setattr__(value, name, plain)
        if kind and not kind.fits(plain):
            refuse_value(where, name, plain, kind)


def refuse_value(where: str, name: str, value: Any, kind: Kind) -> NoReturn:
    """The error for an argument of another type."""
    raise QkvError("{where}: {name}: found {value} of type {kind}, expected {wanted}", code="argument", where=where,
                   name=name, value=show_value(value), kind=type(value).__name__, wanted=kind.words)


def refuse_names(function: Callable[..., Any], given: int, named: dict[str, Any]) -> NoReturn:
    """The error for arguments that are too many, unknown, missing or given twice."""
    where, (names, kinds, needed, _, others) = display_name(function), read_signature(function)
    known = ", ".join(kinds)
    for name in named if not others else ():
        if name not in kinds:
            raise QkvError("{where}: unknown argument {name!r}{hint} (known: {known})", code="argument", where=where,
                           name=name, hint=nearest(name, kinds), known=known)
    if given > len(names):
        raise QkvError("{where}: found {given} arguments in order, expected at most {most}; give the others by name "
                       "(known: {known})", code="argument", where=where, given=given, most=len(names), known=known)
    for name in names[:given]:
        if name in named:
            raise QkvError("{where}: {name} is given twice", code="argument", where=where, name=name)
    name = next(name for name in kinds if name in needed and name not in {*names[:given], *named})
    raise QkvError("{where}: {name} is missing (known: {known})", code="argument", where=where, name=name, known=known)


def display_name(function: Callable[..., Any]) -> str:
    """What people call a function: the class where it is called or made."""
    return function.__qualname__.removesuffix(".__call__").removesuffix(".__init__").rpartition(".")[2]


@cache
def read_signature(function: Callable[..., Any]) -> Signature:
    """What a function takes, without itself."""
    found = inspect.signature(function).parameters.values()
    ordered = [p for p in found if p.kind is p.POSITIONAL_OR_KEYWORD]
    named = [*ordered, *(p for p in found if p.kind is p.KEYWORD_ONLY)]
    hints = read_hints(function)
    kinds = {p.name: read_kind(hints.get(p.name, object)) for p in named}
    return Signature(tuple(p.name for p in ordered), kinds, frozenset(p.name for p in named if p.default is p.empty),
                     any(p.kind is p.VAR_POSITIONAL for p in found), any(p.kind is p.VAR_KEYWORD for p in found))


@cache
def read_hints(owner: Any) -> dict[str, Any]:
    """The annotations of a function or of a dataclass's fields; what is imported for types alone is a ByName."""
    names = Names(vars(builtins) | vars(sys.modules[owner.__module__]))
    hints = typing.get_type_hints(owner, localns=names, include_extras=True)
    return {f.name: hints[f.name] for f in fields(owner)} if isinstance(owner, type) else hints


@cache
def read_field_kinds(owner: type) -> tuple[tuple[str, Kind | None], ...]:
    """What the annotation of each field of a dataclass means."""
    return tuple((name, read_kind(hint)) for name, hint in read_hints(owner).items())


@cache
def read_kind(kind: Any) -> Kind | None:
    """What an annotation means; None where anything fits."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return Kind(lambda v: type(v) in map(type, args) and v in args, join(" or ", map(repr, args)))
    if origin in (typing.Union, types.UnionType):
        parts = [read_kind(a) for a in args if not (a is str and Path in args)]  # a text may be a path
        if None in parts:
            return None
        fits = [part.fits for part in parts if part]
        return Kind(lambda v: any(fit(v) for fit in fits), join(" or ", [part.words for part in parts if part]))
    if isinstance(origin, type) and issubclass(origin, abc.Iterable) and not issubclass(origin, abc.Mapping):
        return read_list(origin, [read_kind(a) for a in args if a is not ...], fixed=... not in args)
    if origin is Annotated and (base := read_kind(args[0])):
        least, most = args[1]
        words = Message("{words} from {least} to {most}", words=base.words, least=least, most=most)
        if most == inf:
            words = Message("{words}, {least} or more", words=base.words, least=least)
        return Kind(lambda v: base.fits(v) and least <= v <= most, words)
    plain = origin or kind
    if plain in PLAIN:
        return PLAIN[plain]
    if not isinstance(plain, type) or plain in (object, Any):
        return None
    if getattr(plain, "_is_protocol", False):
        return Kind(lambda v: all(hasattr(v, name) for name in plain.__annotations__), Message(plain.__name__))
    if issubclass(plain, ByName):
        return Kind(lambda v: isinstance(v, FUNCTIONS) or any(c.__name__ == plain.__name__ for c in type(v).__mro__),
                    Message(plain.__name__))
    return Kind(lambda v: isinstance(v, plain), Message(plain.__name__))


def read_list(origin: type, parts: list[Kind | None], *, fixed: bool) -> Kind:
    """Several in an order, each of a kind; a tuple of `fixed` length has a kind for each. A text is no list."""
    pair, kind = origin is tuple and fixed, parts[0] if parts else None
    inside = join(", ", [part.words if part else Message("anything") for part in parts])

    def has_parts(value: Any) -> bool:
        if not isinstance(value, origin) or isinstance(value, str | bytes | bytearray | abc.Mapping):
            return False
        if pair:
            return len(value) == len(parts) and all(k is None or k.fits(v) for k, v in zip(parts, value, strict=True))
        return kind is None or not isinstance(value, abc.Collection) or all(map(kind.fits, value))

    words = Message("({inside})", inside=inside) if pair else Message("a list, each {inside}", inside=inside)
    return Kind(has_parts, words)


class ByName:
    """What a type is that is imported for types alone: its name; a function fits, as it may be of a Callable's."""


class Names(dict[str, Any]):
    """The names of a module; one that it imports for types alone is a class of that name."""

    def __missing__(self, name: str) -> type:
        return type(name, (ByName,), {})


def is_whole(value: Any) -> bool:
    """Whether it is a whole number of at most 63 bits."""
    whole = type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))
    return whole and -(1 << 63) <= int(value) < 1 << 63


def is_number(value: Any) -> bool:
    """Whether it is a number that fp32 has; a fraction is none, as torch knows no fractions."""
    if type(value) is float:  # asking for Real takes ten times as long
        return abs(value) < MOST
    return is_whole(value) or (isinstance(value, Real) and not isinstance(value, Rational) and abs(float(value)) < MOST)


def is_path(value: Any) -> bool:
    """Whether it can name a file: a text or path, which no NUL and no half of a surrogate pair spoils."""
    try:
        return isinstance(value, str | os.PathLike) and b"\0" not in os.fsencode(value)
    except (UnicodeEncodeError, TypeError):
        return False


PLAIN: dict[Any, Kind] = {
    int: Kind(is_whole, Message("a whole number")),
    float: Kind(is_number, Message("a number")),
    bool: Kind(lambda v: v is True or v is False, Message("True or False")),
    str: Kind(lambda v: isinstance(v, str), Message("a text")),
    Path: Kind(is_path, Message("a path")),
    Callable: Kind(callable, Message("a function")),
    types.NoneType: Kind(lambda v: v is None, Message("None")),
}
