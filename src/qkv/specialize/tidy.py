"""A program as one would type it: parts that share a line, constants in a row, no argument that is a default."""

import ast
from typing import Any

from qkv.specialize import layout
from qkv.specialize.source import annotate


def join_assignments(body: list[ast.stmt], width: int = 112) -> list[ast.stmt]:
    """Parts that are made without arguments share a line, and so do equal norms."""
    joined: list[Any] = []
    for node in body:
        kind = kind_of(node)
        last: Any = joined[-1] if joined else None
        if kind and last is not None and kind_of(last) == kind:
            both = [part for one in (last, node) for part in pairs_of(one)]
            new = ast.Assign(
                [ast.Tuple([t for t, _ in both], ast.Store())], ast.Tuple([v for _, v in both], ast.Load())
            )
            if len(layout.tidy(ast.unparse(ast.fix_missing_locations(new)))) - 2 <= width:
                joined[-1] = annotate(new)
                continue
        joined.append(node)
    return joined


def pairs_of(node: Any) -> list[tuple[ast.expr, ast.expr]]:
    """What an assignment assigns, one by one."""
    if isinstance(node.targets[0], ast.Tuple):
        return list(zip(node.targets[0].elts, node.value.elts, strict=True))
    return [(node.targets[0], node.value)]


def kind_of(node: ast.stmt) -> str:
    """What kind of part a statement makes, empty where it makes none that may share its line."""
    if not isinstance(node, ast.Assign) or not isinstance(value := pairs_of(node)[0][1], ast.Call):
        return ""
    name = ast.unparse(value.func)
    return ast.unparse(value) if name.endswith("Norm") else "own" if "." not in name and not value.args else ""


def print_numbers(numbers: dict[str, Any]) -> str:
    """The constants, several on a line."""
    rows = layout.fill_rows(numbers.items(), lambda row: len(print_row(row)) <= layout.WIDE)
    return "\n".join(map(print_row, rows))


def print_row(row: list[tuple[str, Any]]) -> str:
    """One line of constants."""
    return f"{', '.join(name for name, _ in row)} = {', '.join(layout.tidy(repr(value)) for _, value in row)}"


def drop_defaults(tree: ast.AST) -> None:
    """Calls without the arguments that are their defaults."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("scaled_dot_product_attention"):
            node.keywords = [k for k in node.keywords if ast.unparse(k.value) not in ("False", "None")]
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "nn.Linear":
            node.keywords = [k for k in node.keywords if ast.unparse(k.value) != "True"]
