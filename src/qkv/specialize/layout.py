"""Definitions as text: comments where they belong, 120 columns, quotes and brackets as a formatter has them."""

import ast
import re
from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from typing import Any

WIDE = 120
BESIDE = "#<"  # begins a comment that goes to the end of the line above


def print_definition(node: Any) -> str:
    """The text of a class or a function with its comments."""
    add_comments(node, 4)
    lines, quoted = list[str](), False
    for line in re.sub(rf"\n *{BESIDE}", BESIDE, ast.unparse(ast.fix_missing_locations(node))).split("\n"):
        text, _, beside = line.lstrip().partition(BESIDE)
        raw = quoted or text.startswith(('"""', "#"))
        quoted ^= line.count('"""') == 1
        lines += [line] if raw else print_line(text, len(line) - len(line.lstrip()), beside)
    return "\n".join(lines)


def add_comments(node: Any, indent: int) -> None:
    """Comments and docstrings as names among the statements, which ast.unparse writes as they are."""
    for field in ("body", "orelse") if hasattr(node, "body") else ():
        body = list[ast.stmt]()
        for one in getattr(node, field, []):
            add_comments(one, indent + 4)
            beside = [BESIDE + one.beside] if getattr(one, "beside", "") else []
            body += [*map(write_raw, getattr(one, "above", [])), one, *map(write_raw, beside)]
        setattr(node, field, body)
    doc = getattr(node, "doc", "")
    if doc:
        rows = doc.split("\n")
        node.body.insert(0, write_raw(f"\n{' ' * indent}".join(
            [f'"""{rows[0]}', *rows[1:], '"""'] if len(rows) > 1 else [f'"""{doc}"""'])))


def write_raw(text: str) -> ast.stmt:
    """A statement that is written as it is."""
    return ast.Expr(ast.Name(text, ast.Load()))


def print_line(text: str, indent: int, beside: str) -> list[str]:
    """The lines of a statement; where it assigns several values and is too wide, each has its own."""
    text = tidy(text)
    head = re.match(r"return |[\w., ]+ = |", text)[0]  # type: ignore[index]
    values = split_commas(text[len(head) + 1 : -1])
    if head and text[len(head)] == "(" and len(values) > 1 and outer_brackets(text) == (len(head), len(text) - 1):
        text = head + ", ".join(values)
        targets, shapes = split_commas(head.removesuffix(" = ")), beside.removeprefix("# ").split(", ")
        if len(text) + indent > WIDE and len(targets) == len(values):
            shapes = [f"# {s}" if s else "" for s in (shapes if len(shapes) > 1 else shapes * len(values))]
            rows = zip(targets, values, shapes, strict=True)
            return [line for to, value, shape in rows for line in wrap(f"{to} = {value}", indent, shape)]
    return wrap(text, indent, beside)


def tidy(text: str) -> str:
    """Text of ast.unparse as the formatter would have it."""
    text = re.sub(r"([\w.]+) \*\* (?:\((-?[\w.]+)\)|(-?[\w.]+)(?![\w.(\[]))", r"\1**\2\3", text)
    text = re.sub(r"(?<![\w.])(\d{5,}(?:\.0)?)(?![\w.])", lambda m: f"{ast.literal_eval(m[1]):_}", text)
    if "nn.ModuleList((" in text and text.endswith("))"):  # a comprehension needs one pair of brackets
        text = text.replace("nn.ModuleList((", "nn.ModuleList(")[:-1]
    text = re.sub(r"([\[,]) ?:(\w+ //)", lambda m: f"{m[1]}{' ' * (m[1] == ',')}: {m[2]}", text)
    text = re.sub(r"(// \w+):\]", r"\1 :]", text)
    text = re.sub(r"(\w: [\w.| \[\],]+)=(?!=)", r"\1 = ", text)  # a default beside an annotation
    text = re.sub(r"1e-0(\d)", r"1e-\1", text)
    strings = r"(f'[^']*'|\"[^\"]*\")|'([^'\"]*)'"
    return re.sub(strings, lambda m: m[1] or f'"{m[2]}"', text)


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


def fill_rows(entries: Iterable[Any], fits: Callable[[list[Any]], bool]) -> list[list[Any]]:
    """As many entries in each row as fit."""
    rows: list[list[Any]] = [[]]
    for one in entries:
        if rows[-1] and not fits([*rows[-1], one]):
            rows.append([])
        rows[-1].append(one)
    return rows


def find_depths(text: str) -> list[int]:
    """How many brackets are open after each character."""
    return list(accumulate((char in "([{") - (char in ")]}") for char in text))


def outer_brackets(text: str) -> tuple[int, int]:
    """Where the longest outermost pair of brackets opens and closes, -1 where there is none."""
    turns = list(enumerate(pairwise([0, *find_depths(text)])))
    starts, ends = ([i for i, turn in turns if turn == way] for way in ((0, 1), (1, 0)))
    return max(zip(starts, ends, strict=False), key=lambda pair: (pair[1] - pair[0], pair), default=(-1, -1))


def split_commas(text: str) -> list[str]:
    """The parts of a list of arguments."""
    commas = [i for i, depth in enumerate(find_depths(text)) if text[i] == "," and depth == 0]
    parts = (text[start + 1 : end].strip() for start, end in pairwise([-1, *commas, len(text)]))
    return [part for part in parts if part]
