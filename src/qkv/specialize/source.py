"""What is read of the core: its files as syntax trees with their comments, and the one definition of a name."""

import ast
import inspect
import io
import sys
import tokenize
from functools import cache
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F

CORE = "qkv.core."


class Source:
    """One file of the core: its tree, whose statements carry their comments, and what its names stand for."""

    def __init__(self, module: str) -> None:
        text = inspect.getsource(sys.modules[module])
        self.tree, rows = ast.parse(text), text.splitlines()
        self.names = dict(vars(sys.modules[module]))
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        trailing = {t.start[0]: t.string for t in tokens if t.type == tokenize.COMMENT}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.stmt):
                first = node.lineno
                while first > 1 and rows[first - 2].lstrip().startswith("#"):
                    first -= 1
                above = [row.strip() for row in rows[first - 1 : node.lineno - 1]]
                beside = trailing.get(node.end_lineno or 0, "") if not hasattr(node, "body") else ""
                annotate(node, beside if "fmt:" not in beside and "noqa" not in beside else "", above)

    def find_class(self, name: str) -> ast.ClassDef:
        """The definition of a class."""
        return next(n for n in self.tree.body if isinstance(n, ast.ClassDef) and n.name == name)

    def find_function(self, function: FunctionType) -> ast.FunctionDef | ast.Lambda:
        """The definition of a function, a method or a lambda, by the line on which it begins."""
        line = function.__code__.co_firstlineno
        kinds = ast.Lambda if function.__name__ == "<lambda>" else ast.FunctionDef
        found = (n for n in ast.walk(self.tree) if isinstance(n, kinds))
        return next(n for n in found if line in (n.lineno, *(d.lineno for d in getattr(n, "decorator_list", ()))))


def annotate(node: Any, beside: str = "", above: list[str] | None = None) -> Any:
    """The node with the comment beside it and those above it."""
    node.beside, node.above = beside, above or []
    return node


@cache
def read_source(module: str) -> Source:
    """The file of a module."""
    return Source(module)


def belongs_to_core(thing: Any) -> bool:
    """Whether a class or a function is the core's own."""
    return getattr(thing, "__module__", None) is not None and thing.__module__.startswith(CORE)


def name_function(function: Any) -> ast.expr | None:
    """How a function of PyTorch is called in the text."""
    for name, module in (("F", F), ("torch", torch)):
        if getattr(module, getattr(function, "__name__", ""), None) is function:
            return parse_expression(f"{name}.{function.__name__}")
    return None


def parse_expression(text: str) -> ast.expr:
    """An expression from its text."""
    return ast.parse(text, mode="eval").body
