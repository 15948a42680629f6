"""Statements of the text made shorter: without names that nobody reads, or that are read once."""

import ast
import copy
from typing import Any

from qkv.specialize.values import load_names

SHORT = 94  # columns of a statement up to which names that are read once are put in their place


def clean(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements without names that nobody reads, and with those read once in their place where they were made."""
    changed = True
    while changed:
        changed = False
        for block in blocks(body):
            for node in list(block):
                if not isinstance(node, ast.Assign):
                    continue
                if targets(node) and all(count_reads(node, n, block, body) == 0 for n in targets(node)):
                    block.remove(node)
                    changed = True
                elif take_over(node, block, body) or shorten(node, body) or move(node, block, body):
                    changed = True
    return body


def blocks(body: list[ast.stmt]) -> list[list[ast.stmt]]:
    """The lists of statements within statements, the inner ones first."""
    found = []
    for node in body:
        for name in ("body", "orelse"):
            found += blocks(getattr(node, name, []))
    return [*found, body]


def targets(node: ast.Assign) -> list[str]:
    """The names that a statement assigns, none where it assigns to anything else."""
    parts = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
    return [p.id for p in parts if isinstance(p, ast.Name)] if all(isinstance(p, ast.Name) for p in parts) else []


def take_over(node: ast.Assign, block: list[ast.stmt], body: list[ast.stmt]) -> bool:
    """`bias2 = bias + …` is `bias = bias + …` where the first is not read again."""
    names = targets(node)
    first = names[0].rstrip("0123456789") if names else ""
    if len(names) != 1 or first == names[0] or block is not body or first not in load_names(node.value):
        return False
    if first in load_names(body[body.index(node) + 1 :]):
        return False
    for one in body[body.index(node) :]:
        for name in ast.walk(one):
            if isinstance(name, ast.Name) and name.id == names[0]:
                name.id = first
    return True


def shorten(node: ast.Assign, body: list[ast.stmt]) -> bool:
    """`rows, tokens = ids.shape` of which one is read: `tokens = ids.shape[1]`."""
    names, read = targets(node), list(load_names(body))
    left = [i for i, n in enumerate(names) if n in read]
    if len(names) < 2 or len(left) > 1 or isinstance(node.value, ast.Call | ast.Tuple):
        return False
    node.targets = [ast.Name(names[left[0]], ast.Store())]
    node.value = ast.Subscript(node.value, ast.Constant(left[0]), ast.Load())
    return True


class Substitute(ast.NodeTransformer):
    """Puts an expression in place of a name."""

    def __init__(self, names: dict[str, ast.expr]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        new = self.names.get(node.id)
        return copy.deepcopy(new) if new is not None and isinstance(node.ctx, ast.Load) else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        twice = isinstance(node.op, ast.USub) and isinstance(node.operand, ast.UnaryOp)
        return node.operand.operand if twice else node  # type: ignore[attr-defined]


def move(node: Any, block: list[ast.stmt], body: list[ast.stmt]) -> bool:
    """Put what a name stands for into its one place, if nothing that it reads changes on the way."""
    names = targets(node)
    if len(names) != 1 or count_reads(node, names[0], block, body) != 1:
        return False
    at, inputs = block.index(node), set(load_names(node.value))
    for later in block[at + 1 :]:
        if names[0] in load_names(later):
            if isinstance(later, ast.For | ast.While) and names[0] not in load_names(later.iter):  # type: ignore[union-attr]
                return False
            if names[0][0] != "_" and "step" in inputs and "step" in load_names(later):
                return False  # dropout draws in the order of the text; an argument is computed first
            put = Substitute({names[0]: node.value})
            new = ast.fix_missing_locations(put.visit(copy.deepcopy(later)))
            if not node.fresh and (hasattr(new, "body") or len(ast.unparse(new)) > SHORT or node.above):
                return False
            put.visit(later)
            block.remove(node)
            later.above = [*node.above, *later.above]  # type: ignore[attr-defined]
            return True
        changes = isinstance(later, ast.Assign) and inputs & set(targets(later))
        if changes or hasattr(later, "body") or ("step" in inputs and "step" in load_names(later)):
            return False
    return False


def count_reads(node: ast.Assign, name: str, block: list[ast.stmt], body: list[ast.stmt]) -> int:
    """How often a name is read before it is assigned again."""
    found = list[str]()
    for later in block[block.index(node) + 1 :]:
        found += load_names(later)
        if isinstance(later, ast.Assign) and name in targets(later):
            return found.count(name)
    return (found if block is body else list(load_names(body))).count(name)
