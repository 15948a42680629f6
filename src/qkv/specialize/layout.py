"""Statements as lines of text: comments where they belong, 120 columns, quotes and brackets as a formatter has them."""

import ast
import io
import re
import tokenize
from typing import Any

WIDE = 120


def print_statement(node: Any, indent: int = 0) -> list[str]:
    """The lines of a statement with its comments."""
    space = " " * indent
    lines = [space + c for c in getattr(node, "above", [])]
    if isinstance(node, ast.FunctionDef):
        return [*lines, *print_function(node, indent)]
    if isinstance(node, ast.ClassDef):
        lines.append(f"{space}class {node.name}({print_expression(node.bases[0])}):")
        lines += docstring(node, indent + 4)
        for i, one in enumerate(node.body):
            lines += [""] * bool(i or getattr(node, "doc", None)) + print_statement(one, indent + 4)
        return lines
    if isinstance(node, ast.If):
        lines += wrap(f"if {print_expression(node.test)}:", indent) + print_body(node.body, indent + 4)
        return lines + ([f"{space}else:", *print_body(node.orelse, indent + 4)] if node.orelse else [])
    if isinstance(node, ast.For):
        head = f"for {print_expression(node.target)} in {print_expression(node.iter)}:"
        return [*lines, *wrap(head, indent), *print_body(node.body, indent + 4)]
    if isinstance(node, ast.With):
        head = ", ".join(print_expression(i.context_expr) for i in node.items)
        return [*lines, *wrap(f"with {head}:", indent), *print_body(node.body, indent + 4)]
    text, beside = print_simple(node), getattr(node, "beside", "")
    left, right = (
        getattr(part, "elts", None) for part in (getattr(node, "targets", [None])[0], getattr(node, "value", None))
    )
    if len(text) + indent > WIDE and left and right:  # each name has its own line
        shapes = beside.removeprefix("# ").split(", ")
        for i, (to, value) in enumerate(zip(left, right, strict=True)):
            shape = f"# {shapes[i] if len(shapes) > 1 else shapes[0]}" if beside else ""
            lines += wrap(f"{print_expression(to)} = {print_expression(value)}", indent, shape)
        return lines
    return lines + wrap(text, indent, beside)


def print_body(body: list[ast.stmt], indent: int) -> list[str]:
    """The lines of several statements."""
    return [line for one in body for line in print_statement(one, indent)]


def print_function(node: Any, indent: int) -> list[str]:
    """The lines of a definition."""
    back = f" -> {print_expression(node.returns)}" if node.returns else ""
    head = wrap(f"def {node.name}({print_expression(node.args)}){back}:", indent)
    return [*head, *docstring(node, indent + 4), *print_body(node.body, indent + 4)]


def docstring(node: Any, indent: int) -> list[str]:
    """The lines of a definition's docstring."""
    doc = getattr(node, "doc", None)
    if not doc:
        return []
    rows = doc.split("\n")
    lines = [f'"""{rows[0]}', *rows[1:]]
    lines = [*lines, '"""'] if len(lines) > 1 else [lines[0] + '"""']
    return [(" " * indent + line).rstrip() for line in lines]


def print_simple(node: ast.stmt) -> str:
    """A statement without a body on one line."""
    if isinstance(node, ast.Assign):
        return f"{print_several(node.targets[0])} = {print_several(node.value)}"
    if isinstance(node, ast.Return) and node.value is not None:
        return f"return {print_several(node.value)}"
    return tidy(ast.unparse(ast.fix_missing_locations(node)))


def print_several(node: ast.expr) -> str:
    """An expression; a tuple without its brackets."""
    if isinstance(node, ast.Tuple) and len(node.elts) > 1:
        return ", ".join(print_expression(e) for e in node.elts)
    return print_expression(node)


def print_expression(node: ast.AST) -> str:
    """An expression on one line."""
    return tidy(ast.unparse(node))


def tidy(text: str) -> str:
    """Text of ast.unparse as the formatter would have it."""
    text = re.sub(r"([\w.]+) \*\* (?:\((-?[\w.]+)\)|(-?[\w.]+)(?![\w.(\[]))", r"\1**\2\3", text)
    text = re.sub(r"(?<![\w.])(\d{5,}(?:\.0)?)(?![\w.])", lambda m: number(m[1]), text)
    if "nn.ModuleList((" in text and text.endswith("))"):  # a comprehension needs one pair of brackets
        text = text.replace("nn.ModuleList((", "nn.ModuleList(")[:-1]
    text = re.sub(r"([\[,]) ?:(\w+ //)", lambda m: f"{m[1]}{' ' * (m[1] == ',')}: {m[2]}", text)
    text = re.sub(r"(// \w+):\]", r"\1 :]", text)
    text = re.sub(r"(\w: [\w.| \[\],]+)=(?!=)", r"\1 = ", text)  # a default beside an annotation
    text = re.sub(r"1e-0(\d)", r"1e-\1", text)
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for t in reversed(tokens):
        if t.type == tokenize.STRING and t.string[0] == "'" and '"' not in t.string:
            text = text[: t.start[1]] + f'"{t.string[1:-1]}"' + text[t.end[1] :]
    return text


def number(digits: str) -> str:
    """A long number in groups of three."""
    whole, dot, rest = digits.partition(".")
    return f"{int(whole):_}{dot}{rest}" if len(whole) > 4 else digits


def wrap(text: str, indent: int, beside: str = "") -> list[str]:
    """A line with its comment, broken within its outermost brackets where it is too long."""
    space, comment = " " * indent, f"  {beside}" if beside else ""
    if len(space + text + comment) <= WIDE:
        return [space + text + comment]
    if comment and len(space + text) <= WIDE:
        return [space + text] if not re.fullmatch(r"#[A-Z, ]+", beside) else [space + beside, space + text]
    start, end = outer_brackets(text)
    if start < 0:
        return [space + text + comment]
    inside = text[start + 1 : end]
    parts = split_commas(inside)
    rows = [inside]
    if indent + 4 + len(inside) > WIDE and len(parts) > 1:
        rows = [f"{part}," for part in parts]
    lines = [line for row in rows for line in wrap(row, indent + 4)]
    return [space + text[: start + 1], *lines, space + text[end:] + comment]


def outer_brackets(text: str) -> tuple[int, int]:
    """Where the longest outermost pair of brackets opens and closes, -1 where there is none."""
    depth, start, found = 0, -1, (-1, -1)
    for at, char in enumerate(text):
        if char in "([{":
            start = at if depth == 0 else start
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0 and at - start >= found[1] - found[0]:
                found = (start, at)
    return found


def split_commas(text: str) -> list[str]:
    """The parts of a list of arguments."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [p.strip() for p in parts if p.strip()]
