"""Classes of a program that differ in little become one: what differs is an argument with the usual case as default."""

import ast
import copy
from typing import Any

FAILED: Any = object()


def merge_classes(definitions: list[Any]) -> list[Any]:
    """The definitions with each class that fits an earlier one of its kind merged into that."""
    kept: list[Any] = []
    for node in definitions:
        for first in kept if isinstance(node, ast.ClassDef) else []:
            if isinstance(first, ast.ClassDef) and first.kind == node.kind:  # type: ignore[attr-defined]
                said = merge(first, node)
                if said:
                    name = first.kind if not any(d.name == first.kind for d in definitions) else first.name  # type: ignore[attr-defined]
                    rename(definitions, first.name, name, said[0])
                    rename(definitions, node.name, name, said[1])
                    first.name = name
                    break
        else:
            kept.append(node)
    for node in kept:
        pass_explicitly(kept, node)
    return kept


def pass_explicitly(definitions: list[Any], node: Any) -> None:
    """Where every call could pass a name for an argument that is left out, it does, and the default is gone."""
    forward: Any = next((m for m in getattr(node, "body", []) if getattr(m, "name", "") == "forward"), None)
    if forward is None or not isinstance(node, ast.ClassDef):
        return
    first = forward.body[0]
    if not isinstance(first, ast.Assign) or not isinstance(first.value, ast.IfExp):
        return
    calls = [c for d in definitions if isinstance(d, ast.ClassDef) for c in find_calls(d, node.name)]
    short = [c for c in calls if len(c.args) == 1]
    if all(isinstance(c.args[0], ast.Name) for c in short):
        for call in short:
            call.args.append(call.args[0])
        name = ast.unparse(forward.body.pop(0).targets[0])
        parameter = next(a for a in forward.args.args if a.arg == name)
        parameter.annotation = ast.Name("Tensor", ast.Load())
        forward.args.defaults.pop(0)


def find_calls(node: ast.ClassDef, name: str) -> list[ast.Call]:
    """The calls within a class of its modules that are made as `name()`."""
    made = {
        one.targets[0].attr for one in ast.walk(node)
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Attribute)
        and isinstance(one.value, ast.Call) and ast.unparse(one.value.func) == name
    }
    return [
        c
        for c in ast.walk(node)
        if isinstance(c, ast.Call) and isinstance(c.func, ast.Attribute) and c.func.attr in made
    ]


def merge(a: Any, b: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Make `a` serve for `b` too; the keywords that calls of either need, None where the two differ in more."""
    if [m.name for m in a.body] != [m.name for m in b.body]:
        return None
    said: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    new: list[Any] = []
    for one, other in zip(a.body, b.body, strict=True):
        holes: dict[str, tuple[Any, Any]] = {}
        body = [align(x, y, holes, "", defaults(one)) for x, y in zip(one.body, other.body, strict=False)]
        if len(one.body) != len(other.body) or any(x is FAILED for x in body) or (holes and one.name == "__init__"):
            return None
        merged = copy.copy(one)
        merged.body, merged.args = body, copy.deepcopy(one.args)
        if not add_parameters(merged, other, holes, said):
            return None
        new.append(merged)
    a.body = new
    return said


def defaults(function: ast.FunctionDef) -> dict[str, Any]:
    """The parameters that have a constant default."""
    names = [a.arg for a in function.args.args][len(function.args.args) - len(function.args.defaults) :]
    return {n: getattr(d, "value", None) for n, d in zip(names, function.args.defaults, strict=True)}


def align(a: Any, b: Any, holes: dict[str, tuple[Any, Any]], keyword: str, usual: dict[str, Any]) -> Any:
    """The tree that both are, with names where they differ, FAILED where they differ in form."""
    if isinstance(a, ast.Name) and isinstance(b, ast.Constant) and a.id in usual and usual[a.id] == b.value:
        return a
    leaves = (ast.Name, ast.Constant)
    if isinstance(a, leaves) and isinstance(b, leaves):
        if ast.dump(a) == ast.dump(b):
            return a
        name = keyword if isinstance(a, ast.Constant) else b.id if isinstance(b, ast.Name) else ""
        if not name or (holes.setdefault(name, (a, b)) and ast.dump(holes[name][0]) != ast.dump(a)):
            return FAILED
        return ast.Name(name, ast.Load())
    if type(a) is not type(b):
        return FAILED
    new = copy.copy(a)
    for field, value in ast.iter_fields(a):
        other = getattr(b, field, None)
        if isinstance(value, list):
            if not isinstance(other, list) or len(value) != len(other):
                return FAILED
            found = [align(x, y, holes, getattr(x, "arg", keyword), usual) for x, y in zip(value, other, strict=True)]
            if any(x is FAILED for x in found):
                return FAILED
            setattr(new, field, found)
        elif isinstance(value, ast.AST):
            one = align(value, other, holes, keyword, usual)
            if one is FAILED:
                return FAILED
            setattr(new, field, one)
        elif value != other and field not in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
            return FAILED
    return new


def add_parameters(
    merged: Any, other: Any, holes: dict[str, tuple[Any, Any]], said: tuple[dict[str, Any], ...]
) -> bool:
    """Give the merged function a parameter for each hole; whether that can be done."""
    mine = [a.arg for a in merged.args.args]
    theirs = {a.arg: a for a in other.args.args}
    for name, (a, b) in holes.items():
        if isinstance(a, ast.Constant) and isinstance(b, ast.Constant):
            kind, usual = type(a.value).__name__, a if a.value is not True else b
            said[0 if usual is b else 1][name] = a if usual is b else b
        elif (
            isinstance(a, ast.Name) and isinstance(b, ast.Name) and a.id in mine and b.id in theirs and b.id not in mine
        ):
            kind, usual = "Tensor | None", ast.Constant(None)
            instead = ast.parse(f"{name} = {a.id} if {name} is None else {name}").body[0]
            instead.beside, instead.above, instead.fresh = "", [], False  # type: ignore[attr-defined]
            merged.body.insert(0, instead)
        else:
            return False
        parameter = ast.arg(name, ast.parse(kind, mode="eval").body)
        at = list(theirs).index(name) if name in theirs else len(merged.args.args)
        merged.args.args.insert(at, parameter)
        merged.args.defaults.insert(at - len(mine) if at >= len(mine) else 0, usual)
    left = [n for n in theirs if n not in mine and n not in holes]
    return not left


def rename(definitions: list[Any], old: str, new: str, said: dict[str, Any]) -> None:
    """Calls of a merged class by its new name, and its modules called with what it needs."""
    for node in definitions:
        if not isinstance(node, ast.ClassDef):
            continue
        for one in find_calls(node, old):
            one.keywords += [ast.keyword(k, v) for k, v in said.items()]
        for one in ast.walk(node):
            if isinstance(one, ast.Name) and one.id == old:
                one.id = new
