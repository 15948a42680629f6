"""Classes of a program that differ in little become one: what differs is an argument with the usual case as default."""

import ast
import re
from typing import Any

LEAF = re.compile(r"Name\(id='\w+', ctx=Load\(\)\)|Constant\(value=[^()]*\)")


class Leaves(ast.NodeTransformer):
    """The names and constants that a tree reads, in order; `fill` says by number what to put in their place."""

    def __init__(self, tree: ast.AST, fill: dict[int, Any] | None = None) -> None:
        self.found, self.fill = list[Any](), fill or {}
        self.visit(tree)

    def visit_Name(self, node: Any) -> ast.AST:
        if isinstance(getattr(node, "ctx", None), ast.Store):
            return node
        self.found.append(node)
        return self.fill.get(len(self.found) - 1, node)

    visit_Constant = visit_Name  # type: ignore[assignment]  # noqa: N815


def merge_classes(definitions: list[Any]) -> list[Any]:
    """The definitions with each class that fits an earlier one of its kind merged into that."""
    kept: list[Any] = []
    for node in definitions:
        alike = [d for d in kept if isinstance(node, ast.ClassDef) and getattr(d, "kind", "") == node.kind]  # type: ignore[attr-defined]
        first = next((d for d in alike if merge(d, node, definitions)), None)
        kept += [] if first else [node]
        if first:
            old = first.name, node.name
            first.name = first.name if any(d.name == first.kind for d in definitions) else first.kind
            for one in (n for d in definitions for n in ast.walk(d) if isinstance(n, ast.Name) and n.id in old):
                one.id = first.name
    return kept


def merge(a: Any, b: Any, definitions: list[Any]) -> bool:
    """Make `a` and the calls of both serve for `b` too, if the two differ in nothing but what a call could say."""
    if [m.name for m in a.body] != [m.name for m in b.body]:
        return False
    pairs = [(one, other, find_holes(one, other)) for one, other in zip(a.body, b.body, strict=True)]
    calls, others = ([c for d in definitions for c in find_calls(d, made.name)] for made in (a, b))
    passes_name = all(len(c.args) == 1 and isinstance(c.args[0], ast.Name) for c in calls)
    for one, _, holes in pairs:
        named = holes and any(isinstance(x, ast.Name) for _, x, _ in holes.values())
        if holes is None or (holes and one.name == "__init__") or (named and not passes_name):
            return False
    for one, other, holes in pairs:
        Leaves(ast.Module(one.body, []), {i: ast.Name(name, ast.Load()) for i, (name, *_) in (holes or {}).items()})
        for name, (x, y) in {name: both for name, *both in (holes or {}).values()}.items():
            if isinstance(x, ast.Name):  # calls of the first pass what they pass already
                one.args.args.insert([p.arg for p in other.args.args].index(name), ast.arg(name, ast.Name("Tensor")))
                for call in calls:
                    call.args.append(call.args[0])
                continue
            one.args.args.append(ast.arg(name, ast.Name(type(x.value).__name__)))
            one.args.defaults.append(y if x.value is True else x)
            for call in calls if x.value is True else others:
                call.keywords.append(ast.keyword(name, x if x.value is True else y))
    return True


def find_holes(one: Any, other: Any) -> dict[int, tuple[str, Any, Any]] | None:
    """The leaves in which two methods differ: by number the argument that could hold them; None: more differs."""
    bodies = [ast.Module(m.body, []) for m in (one, other)]
    shapes = [LEAF.split(ast.dump(body)) for body in bodies]
    names, others = ([a.arg for a in m.args.args] for m in (one, other))
    usual = dict(zip(names[::-1], one.args.defaults[::-1], strict=False))
    holes: dict[int, tuple[str, Any, Any]] = {}
    if shapes[0] != shapes[1]:
        return None
    for i, (x, y) in enumerate(zip(*(Leaves(body).found for body in bodies), strict=True)):
        keyword = re.search(r"keyword\(arg='(\w+)', value=$", shapes[0][i])
        if ast.dump(usual.get(getattr(x, "id", ""), x)) == ast.dump(y):
            continue
        if isinstance(x, ast.Name) and isinstance(y, ast.Name) and x.id in names and y.id in {*others} - {*names}:
            holes[i] = y.id, x, y
        elif isinstance(x, ast.Constant) and isinstance(y, ast.Constant) and keyword:
            holes[i] = keyword[1], x, y
        else:
            return None
    return holes if {*others} <= {*names, *(name for name, *_ in holes.values())} else None


def find_calls(node: Any, name: str) -> list[ast.Call]:
    """The calls within a class of its modules that are made as `name()`."""
    made = {
        one.targets[0].attr for one in ast.walk(node)
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Attribute)
        and isinstance(one.value, ast.Call) and ast.unparse(one.value.func) == name
    }
    return [c for c in ast.walk(node) if getattr(getattr(c, "func", None), "attr", "") in made]  # type: ignore[misc]
