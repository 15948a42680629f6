"""What a piece of the core's text is worth while it is specialised: decided, half decided, or open until it runs."""

import ast
import copy
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from qkv import spec as parts
from qkv.specialize.source import Source, belongs_to_core, name_function, parse_expression


@dataclass(eq=False)
class Known:
    """Decided: the value itself, of which parts may be values in turn, and the constant by which the text calls it."""

    value: Any
    node: ast.expr | None = None


@dataclass(eq=False)
class Code:
    """Open: the expression that computes it."""

    node: ast.expr


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
    def module(self) -> Any:
        """The first of them."""
        return self.modules[0]


@dataclass(eq=False)
class Function:
    """A function of the core, bound to `owner` where it is a method."""

    definition: Any  # ast.FunctionDef | ast.Lambda
    source: Source
    names: dict[str, Any] = field(default_factory=dict)
    owner: Any = None
    defaults: dict[str, Any] = field(default_factory=dict)
    node: None = None


Value = Known | Code | Record | Part | Function


@dataclass
class Frame:
    """Where statements are read: what names are worth, what was written so far, which names the text has taken."""

    source: Source
    names: dict[str, Any]
    taken: set[str]
    body: list[ast.stmt] = field(default_factory=list)
    inner: bool = False  # put in place of a call
    branch: bool = False  # within a fork or a loop that stays
    beside: str = ""  # of the last statement, if it returns
    yields: list[Any] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)  # names that the text has taken already
    target: Any = None  # what is assigned to: a module that is made knows from it which one it is

    def aim(self, target: ast.expr) -> "Frame":
        """The frame while something is assigned to `target`."""
        self.target = target
        return self


def load(name: str) -> ast.Name:
    """A name that is read."""
    return ast.Name(name, ast.Load())


def lift(value: Any, node: ast.expr | None = None) -> Any:
    """A Python object as a value; `node` says how the text calls it."""
    if isinstance(value, Value):
        return value
    if node is None and callable(value) and not belongs_to_core(value):
        node = name_function(value)
    return Known(value, None if is_plain(value) else node)


def unwrap(value: Value) -> Any:
    """A value as a part of another one."""
    return value.value if isinstance(value, Known) and value.node is None else value


def spell(value: Any) -> str:
    """A decided value as one would type it: 64**-0.5 and not 0.125, Mask("causal") with its defaults left out."""
    if dataclasses.is_dataclass(value):
        every = [(i, f, getattr(value, f.name)) for i, f in enumerate(dataclasses.fields(value))]
        given = [(i, f.name, spell(v)) for i, f, v in every if v != f.default]
        words = [word if i == n else f"{name}={word}" for n, (i, name, word) in enumerate(given)]
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


def find_parts(value: Any) -> dict[Any, Any]:
    """The values within a value, by field, key or place."""
    if isinstance(value, Record):
        return {} if value.node else value.fields
    held = value.value if isinstance(value, Known) else None
    found = dict(enumerate(held)) if isinstance(held, tuple | list) else held if isinstance(held, dict) else {}
    return found if any(isinstance(v, Value) for v in found.values()) else {}


def is_decided(value: Any) -> bool:
    """Whether nothing of a value is left to be written."""
    held = getattr(value, "value", None)
    every_open = isinstance(held, tuple | list) and bool(held) and all(isinstance(v, Code) for v in held)
    return not isinstance(value, Code) and not every_open


def residual(value: Value) -> Any:
    """The expression that stands for a value in the text."""
    if value.node is not None:
        return copy.deepcopy(value.node)
    if isinstance(value, Record):
        return ast.Call(load(value.kind.__name__), [residual(v) for v in value.fields.values()], [])
    held: Any = value.value  # type: ignore[union-attr]
    if isinstance(held, list) or find_parts(value):
        return (ast.List if isinstance(held, list) else ast.Tuple)([residual(lift(v)) for v in held], ast.Load())
    return parse_expression(spell(held))


def map_leaves(value: Any, change: Callable[[str, Any], Value], name: str = "") -> Any:
    """The value with each open leaf of its records and tuples changed; `name` says in which field it lies."""
    record = isinstance(value, Record)
    if isinstance(value, Code) or (record and value.node):
        return change(name, value)
    new = {k: map_leaves(lift(v), change, k if record else name) for k, v in find_parts(value).items()}
    if not new:
        return value
    if record:
        return Record(value.kind, new)
    return Known(new if isinstance(value.value, dict) else type(value.value)(new.values()))


def describe(value: Any) -> Any:
    """What two values have in common when the text that they lead to is the same."""
    within = value.fields if isinstance(value, Record) else find_parts(value)
    if isinstance(value, Known) and not within:
        return value.value if is_plain(value.value) else id(value.value)
    return getattr(value, "kind", type(value)), *((k, describe(lift(v))) for k, v in within.items())


def load_names(tree: ast.AST | list[ast.stmt]) -> Iterator[str]:
    """Every name that is read."""
    for one in tree if isinstance(tree, list) else [tree]:
        yield from (n.id for n in ast.walk(one) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
