"""Statements of the text made shorter: without names that nobody reads, or that are read once."""

import ast
import copy
from typing import Any

from qkv.specialize.trees import load_names

SHORT = 94  # columns of a statement up to which names that are read once are put in their place


def clean(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements without names that nobody reads, and with those read once in their place where they were made."""
    while True in [simplify(node, block, body) for block in blocks(body) for node in list(block)]:
        pass
    return body


def simplify(node: Any, block: list[ast.stmt], body: list[ast.stmt]) -> bool:
    """Whether one statement could be dropped, written shorter or moved."""
    names = find_targets(node)
    if names and not any(count_reads(node, n, block, body) for n in names):
        block.remove(node)
        return True
    if len(names) > 1:
        return shorten(node, names, body)
    return bool(names) and (take_over(node, names[0], block, body) or move(node, names[0], block, body))


def blocks(body: list[ast.stmt]) -> list[list[ast.stmt]]:
    """The lists of statements within statements, the inner ones first."""
    return [*(b for node in body for name in ("body", "orelse") for b in blocks(getattr(node, name, []))), body]


def find_targets(node: Any) -> list[str]:
    """The names that a statement assigns, none where it assigns to anything else."""
    to = node.targets[0] if isinstance(node, ast.Assign) else None
    every = to.elts if isinstance(to, ast.Tuple) else [to]
    return [str(getattr(n, "id", "")) for n in every] if all(isinstance(n, ast.Name) for n in every) else []


def take_over(node: Any, name: str, block: list[ast.stmt], body: list[ast.stmt]) -> bool:
    """`bias2 = bias + …` is `bias = bias + …` where the first is not read again."""
    first = name.rstrip("0123456789")
    if first == name or block is not body or first not in load_names(node.value):
        return False
    at = body.index(node)
    free = first not in load_names(body[at + 1 :])
    for one in (n for s in body[at:] for n in ast.walk(s) if free and isinstance(n, ast.Name)):
        one.id = first if one.id == name else one.id
    return free


def shorten(node: Any, names: list[str], body: list[ast.stmt]) -> bool:
    """`rows, tokens = ids.shape` of which one is read: `tokens = ids.shape[1]`."""
    left = [i for i, n in enumerate(names) if n in load_names(body)]
    if len(left) > 1 or isinstance(node.value, ast.Call | ast.Tuple):
        return False
    node.targets = [ast.Name(names[left[0]], ast.Store())]
    node.value = ast.Subscript(node.value, ast.Constant(left[0]), ast.Load())
    return True


class Substitute(ast.NodeTransformer):
    """Puts an expression in place of a name."""

    def __init__(self, names: dict[str, ast.expr]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copy.deepcopy(self.names.get(node.id, node)) if isinstance(node.ctx, ast.Load) else node

    def visit_UnaryOp(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        minus = isinstance(node.op, ast.USub) and isinstance(node.operand, ast.UnaryOp)
        return node.operand.operand if minus else node


def move(node: Any, name: str, block: list[ast.stmt], body: list[ast.stmt]) -> bool:
    """Put what a name stands for into its one place, if nothing that it reads changes on the way."""
    if count_reads(node, name, block, body) != 1:
        return False
    inputs, put = set(load_names(node.value)), Substitute({name: node.value})
    for later in block[block.index(node) + 1 :]:
        draws = "step" in inputs and "step" in load_names(later)  # dropout draws in the order of the text
        if name not in load_names(later):
            if inputs & set(find_targets(later)) or hasattr(later, "body") or draws:
                return False
            continue
        if (isinstance(later, ast.For) and name not in load_names(later.iter)) or (draws and name[0] != "_"):
            return False
        new = ast.fix_missing_locations(put.visit(copy.deepcopy(later)))
        if not node.fresh and (hasattr(new, "body") or len(ast.unparse(new)) > SHORT or node.above):
            return False
        put.visit(later)
        block.remove(node)
        later.above = [*node.above, *later.above]  # type: ignore[attr-defined]
        return True
    return False


def count_reads(node: Any, name: str, block: list[ast.stmt], body: list[ast.stmt]) -> int:
    """How often a name is read before it is assigned again."""
    found = list[str]()
    for later in block[block.index(node) + 1 :]:
        found += load_names(later)
        if name in find_targets(later):
            return found.count(name)
    return (found if block is body else list(load_names(body))).count(name)
