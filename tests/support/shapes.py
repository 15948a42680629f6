"""Checks the core's shape comments while it runs: `with checked(attention, model): core(ids, step)`.

A trailing comment such as `# B H T K` (several shapes: commas between them, in the order of the values) on an
assignment or a return is a claim. Letters are bound anew in every call of a function and keep their value within it; a
size of 1 fits any letter (it broadcasts). A lie raises with file:line, what the comment says, and what was found.
"""

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

from torch import Tensor

CLAIM = re.compile(r"#((?: [A-Z]+)+(?:,(?: [A-Z]+)+)*)$")


class FalseComment(AssertionError):
    """A shape comment that the run contradicts."""


def claims(text: str) -> dict[int, tuple[str | None, list[str]]]:
    """Last line of each statement with a claim -> (the names assigned, None for a return; its shapes)."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    said = {t.start[0]: m[1].split(",") for t in tokens if t.type == tokenize.COMMENT and (m := CLAIM.match(t.string))}
    found: dict[int, tuple[str | None, list[str]]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.Return) and node.end_lineno in said and node.value:
            if isinstance(node, ast.Return):
                names = None
            else:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                names = ast.unparse(target)
            for line in range(node.lineno, node.end_lineno + 1):
                found[line] = (names, said[node.end_lineno])
    return found


class Checker:
    """Follows the frames of some files; each statement is held to its claim when the next line or the return comes."""

    def __init__(self, files: dict[str, str]) -> None:
        self.claims = {name: claims(text) for name, text in files.items()}
        self.checked: set[tuple[str, int]] = set()

    def enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        return Call(self, frame).line if frame.f_code.co_filename in self.claims else None


class Call:
    """One call of a function: its letters, and the statement that has not been held to its claim yet."""

    def __init__(self, checker: Checker, frame: FrameType) -> None:
        self.checker, self.file, self.letters = checker, frame.f_code.co_filename, dict[str, int]()
        self.waiting: int | None = None

    def line(self, frame: FrameType, event: str, arg: Any) -> Any:
        claim = self.checker.claims[self.file].get(self.waiting or 0)
        if event in ("line", "return") and claim and claim[0] is not None and self.left(frame, event):
            names = claim[0].strip("()").split(", ")
            self.hold(self.waiting, [value(frame, name) for name in names], claim[1])
        here = self.checker.claims[self.file].get(frame.f_lineno)
        if event == "return" and here and here[0] is None and arg is not None:
            self.hold(frame.f_lineno, list(arg) if isinstance(arg, tuple) else [arg], here[1])
        self.waiting = frame.f_lineno
        return self.line

    def left(self, frame: FrameType, event: str) -> bool:
        """Is the waiting statement over? Its own further lines do not count."""
        mine = self.checker.claims[self.file]
        return event == "return" or mine.get(frame.f_lineno) is not mine.get(self.waiting or 0)

    def hold(self, line: int | None, values: list[Any], shapes: list[str]) -> None:
        if len(shapes) == 1:
            shapes = shapes * len(values)
        for found, shape in zip(values, shapes, strict=True):
            if not isinstance(found, Tensor):
                continue
            said, sizes = shape.split(), list(found.shape)
            self.checker.checked.add((self.file, line or 0))
            new = dict(self.letters)
            fits = (n == 1 or new.setdefault(c, n) == n for c, n in zip(said, sizes, strict=False))
            if len(said) != len(sizes) or not all(fits):
                bound = ", ".join(f"{c} = {n}" for c, n in self.letters.items()) or "nothing is bound"
                says = f"{self.file}:{line}: the comment says {' '.join(said)}"
                raise FalseComment(f"{says}, found {sizes} where {bound}")
            self.letters = new


def value(frame: FrameType, name: str) -> Any:
    """The local of a name, an attribute through self, None for anything more complicated."""
    head, *rest = name.split(".")
    found = frame.f_locals.get(head)
    for part in rest:
        found = getattr(found, part, None)
    return found


@contextmanager
def checked(*modules: ModuleType) -> Iterator[Checker]:
    """Holds the comments of these modules' source to what runs inside the block."""
    checker = Checker({inspect.getsourcefile(m) or "": inspect.getsource(m) for m in modules})
    before = sys.gettrace()
    sys.settrace(checker.enter)
    try:
        yield checker
    finally:
        sys.settrace(before)
