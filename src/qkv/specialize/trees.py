"""Small trees: how a decided value is typed, what an expression costs, which names are read."""

import ast
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from qkv import spec as parts


def parse_expression(text: str) -> ast.expr:
    """An expression from its text."""
    return ast.parse(text, mode="eval").body


def make_name(name: str) -> ast.Name:
    """A name that is read."""
    return ast.Name(name, ast.Load())


def name_function(function: Any) -> ast.expr | None:
    """How a function of PyTorch is called in the text."""
    for name, module in (("F", F), ("torch", torch)):
        if getattr(module, getattr(function, "__name__", ""), None) is function:
            return parse_expression(f"{name}.{function.__name__}")
    return None


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


def load_names(tree: ast.AST | list[ast.stmt]) -> Iterator[str]:
    """Every name that is read."""
    for one in tree if isinstance(tree, list) else [tree]:
        yield from (n.id for n in ast.walk(one) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
