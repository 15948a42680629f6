"""What a piece of the core's text is worth while it is specialised: decided, half decided, or open until it runs."""

import ast
import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from qkv import spec as parts
from qkv.specialize.source import Source, parse_expression, read_source


@dataclass(eq=False)
class Known:
    """Decided: the value itself, and the constant by which the text calls it."""

    value: Any
    node: ast.expr | None = None


@dataclass(eq=False)
class Code:
    """Open: the expression that computes it."""

    node: ast.expr


@dataclass(eq=False)
class Items:
    """A tuple, a list or a dict of which the length is decided."""

    values: Any  # list[Value] | dict[Any, Value]
    kind: type = tuple


@dataclass(eq=False)
class Record:
    """An object of the core with its decided fields; what else it has is read from `node`."""

    kind: type
    fields: dict[str, Any]
    node: ast.expr | None = None


@dataclass(eq=False)
class Part:
    """Modules of the core that stand at one place of the text (several: the layers of a loop)."""

    modules: list[nn.Module]
    node: ast.expr
    prefix: str = ""

    @property
    def module(self) -> nn.Module:
        """The first of them."""
        return self.modules[0]


@dataclass(eq=False)
class Function:
    """A function of the core, bound to `owner` where it is a method."""

    definition: ast.FunctionDef | ast.Lambda
    source: Source
    names: dict[str, Any] = field(default_factory=dict)
    owner: Any = None
    defaults: dict[str, Any] = field(default_factory=dict)


def read_function(function: Any, owner: Any = None) -> Function:
    """A function or a method of the core as it stands in its file."""
    source, parameters = read_source(function.__module__), inspect.signature(function).parameters
    defaults = {k: Known(p.default) for k, p in parameters.items() if p.default is not inspect.Parameter.empty}
    return Function(source.find_function(function), source, owner=owner, defaults=defaults)


Value = Known | Code | Items | Record | Part | Function


@dataclass
class Frame:
    """Where statements are read: what names are worth, what was written so far, which names the text has taken."""

    source: Source
    names: dict[str, Any]
    taken: set[str]
    body: list[ast.stmt] = field(default_factory=list)
    inner: bool = False  # put in place of a call
    branch: bool = False  # within a fork or a loop that stays
    returns: list[Any] = field(default_factory=list)  # the last statement, if it returns
    yields: list[Any] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)  # names that the text has taken already


def spell(value: Any) -> str:
    """A decided value as one would type it: 64**-0.5 and not 0.125, Mask("causal") with its defaults left out."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        every = [(i, f.name, getattr(value, f.name)) for i, f in enumerate(fields)]
        given = [(i, name, v) for i, name, v in every if v != fields[i].default]
        words = [spell(v) if i == n else f"{name}={spell(v)}" for n, (i, name, v) in enumerate(given)]
        return f"{type(value).__name__}({', '.join(words)})"
    if isinstance(value, range):
        return f"range({value.stop})"
    if isinstance(value, tuple):
        return f"({', '.join(map(spell, value))}{',' * (len(value) == 1)})"
    if isinstance(value, float) and 0 < value < 1e6 and not value.is_integer() and len(repr(value)) > 5:
        for power in (-0.5, 0.5):
            root = round(value ** (1 / power))
            if root and root**power == value:
                return f"{root}**{power}"
    return "..." if value is ... else repr(value).replace("e-0", "e-")


def is_plain(value: Any) -> bool:
    """Whether a value can be typed into the text."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    own = dataclasses.is_dataclass(value) and type(value).__module__ == parts.__name__
    return value is None or value is ... or isinstance(value, int | float | str | range) or own


def is_atomic(node: ast.expr) -> bool:
    """Whether an expression costs nothing, so that it may stand in several places."""
    if isinstance(node, ast.Attribute):
        return is_atomic(node.value)
    return isinstance(node, ast.Name | ast.Constant)


def residual(value: Value) -> ast.expr:
    """The expression that stands for a value in the text."""
    if isinstance(value, Known):
        if value.node is not None:
            return copy.deepcopy(value.node)
        if not is_plain(value.value):
            raise TypeError(f"{value.value!r} cannot be typed")
        return parse_expression(spell(value.value))
    if isinstance(value, Items):
        nodes = [residual(v) for v in value.values]
        return ast.List(nodes, ast.Load()) if value.kind is list else ast.Tuple(nodes, ast.Load())
    if isinstance(value, Record) and value.node is None:
        return ast.Call(ast.Name(value.kind.__name__, ast.Load()), [residual(v) for v in value.fields.values()], [])
    return copy.deepcopy(value.node)  # type: ignore[return-value]


def map_leaves(value: Value, change: Callable[[str, Code], Value], name: str = "") -> Value:
    """The value with each open leaf of its records and tuples changed; `name` says in which field it lies."""
    if isinstance(value, Code):
        return change(name, value)
    if isinstance(value, Record) and value.node is None:
        return Record(value.kind, {k: map_leaves(v, change, k) for k, v in value.fields.items()})
    if isinstance(value, Items):
        if value.kind is dict:
            return Items({k: map_leaves(v, change, name) for k, v in value.values.items()}, dict)
        return Items([map_leaves(v, change, name) for v in value.values], value.kind)
    return value


def describe(value: Value) -> Any:
    """What two values have in common when the text that they lead to is the same."""
    if isinstance(value, Known):
        return value.value if is_plain(value.value) else id(value.value)
    if isinstance(value, Record):
        return value.kind, tuple((k, describe(v)) for k, v in value.fields.items()), value.node and ""
    if isinstance(value, Items):
        found = value.values.items() if value.kind is dict else enumerate(value.values)
        return tuple((k, describe(v)) for k, v in found)
    return type(value).__name__


def load_names(tree: ast.AST | list[ast.stmt]) -> Iterator[str]:
    """Every name that is read."""
    trees = tree if isinstance(tree, list) else [tree]
    for one in trees:
        yield from (n.id for n in ast.walk(one) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
