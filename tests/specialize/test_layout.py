"""Definitions as text: quotes, numbers, comments and what does not fit on a line."""

import ast

from qkv.specialize import layout
from qkv.specialize.source import annotate


def test_quotes_are_double_but_for_f_strings_that_hold_some() -> None:
    assert layout.tidy("x = f'{a}.' if a else ''") == "x = f'{a}.' if a else \"\""
    assert layout.tidy("x = {'b': 10000.0 ** 2}") == 'x = {"b": 10_000.0**2}'


def test_comments_and_docstrings_stand_where_they_belong() -> None:
    node = ast.parse("def f(x):\n    if x:\n        a, b = (x, 2)\n    return (a, b)").body[0]
    annotate(node.body[0].body[0], "# B T, B", ["# why"])  # type: ignore[attr-defined]
    node.doc = "What f gives.\nMore."  # type: ignore[attr-defined]
    assert layout.print_definition(node).splitlines() == [
        "def f(x):", '    """What f gives.', "    More.", '    """', "    if x:", "        # why",
        "        a, b = x, 2  # B T, B", "    return a, b",
    ]  # fmt: skip


def test_a_wide_assignment_of_several_values_has_a_line_for_each() -> None:
    text = f"first, second = (call({'x' * 60}), call({'y' * 60}))"
    lines = layout.print_line(text, 4, "# B T, B")
    assert [line.partition("  #")[2] for line in lines] == [" B T", " B"]
