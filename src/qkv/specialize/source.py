"""What is read of the core: its files as syntax trees with their comments, and the one definition of a name."""

import ast
import inspect
import io
import sys
import tokenize
from functools import cache
from types import FunctionType
from typing import Any

Rewrites = tuple[tuple[str, str], ...]  # pieces of the core's text, and what stands for them


class Source:
    """One file of the core: its tree, whose statements carry their comments, and what its names stand for."""

    def __init__(self, module: str, rewrites: Rewrites) -> None:
        text = inspect.getsource(sys.modules[module])
        for old, new in rewrites:
            text = text.replace(old, new)
        self.tree, rows, self.names = ast.parse(text), text.splitlines(), vars(sys.modules[module])
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        trailing = {t.start[0]: t.string for t in tokens if t.type == tokenize.COMMENT}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.stmt):
                first = node.lineno
                while first > 1 and rows[first - 2].lstrip().startswith("#"):
                    first -= 1
                beside = trailing.get(node.end_lineno or 0, "") if not hasattr(node, "body") else ""
                above = [row.strip() for row in rows[first - 1 : node.lineno - 1]]
                annotate(node, beside if "fmt:" not in beside and "noqa" not in beside else "", above)

    def find(self, thing: type | FunctionType) -> Any:
        """The definition of a class, by its name, or of a function, a method or a lambda, by its first line."""
        if isinstance(thing, type):
            return next(n for n in self.tree.body if isinstance(n, ast.ClassDef) and n.name == thing.__name__)
        line, kinds = thing.__code__.co_firstlineno, (ast.FunctionDef, ast.Lambda)
        found = (n for n in ast.walk(self.tree) if isinstance(n, kinds))
        return next(n for n in found if line in (n.lineno, *(d.lineno for d in getattr(n, "decorator_list", ()))))


def annotate(node: Any, beside: str = "", above: list[str] | None = None) -> Any:
    """The node with the comment beside it and those above it."""
    node.beside, node.above, node.fresh = beside, above or [], False
    return node


read_source = cache(Source)


def belongs_to_core(thing: Any) -> bool:
    """Whether a class or a function is the core's own."""
    return (getattr(thing, "__module__", None) or "").startswith("qkv.core.")
