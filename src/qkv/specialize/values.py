"""What a piece of the core's text is worth while it is specialised: decided, half decided, or open until it runs."""

import ast
import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from qkv.specialize.source import Source, belongs_to_core
from qkv.specialize.trees import is_plain, make_name, name_function, parse_expression, spell


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
        return ast.Call(make_name(value.kind.__name__), [residual(v) for v in value.fields.values()], [])
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
