"""A test's name is one sentence that fits on a line."""

import ast
from pathlib import Path

LIMIT = 70


def test_no_name_of_a_test_is_longer_than_the_limit() -> None:
    found = {
        f"{path.name}: {node.name}": len(node.name)
        for path in Path(__file__).parent.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    assert len(found) > 1000
    assert not {name for name, length in found.items() if length > LIMIT}
