"""Names: a test's is one sentence that fits on a line; a function's is a verb, and means one thing in the house."""

import ast
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).parents[1] / "tools"
LIMIT = 70
CROWDED = 2  # names in more than three modules that are no protocol: this number may only shrink


def test_no_name_of_a_test_is_longer_than_the_limit() -> None:
    found = {
        f"{path.name}: {node.name}": len(node.name)
        for path in Path(__file__).parent.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    assert len(found) > 1000
    assert not {name for name, length in found.items() if length > LIMIT}


def test_functions_are_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    names = import_names(monkeypatch)
    bare = names.bare_names(names.sources([names.PACKAGE]))
    assert len(bare) <= names.BARE_BUDGET, bare


def test_a_name_in_many_modules_is_a_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    names = import_names(monkeypatch)
    crowded = names.crowded_names(names.sources([names.PACKAGE]))
    assert len(crowded) <= CROWDED, crowded


def test_a_bare_participle_and_a_crowded_name_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = import_names(monkeypatch)
    for name in "abcd":
        (tmp_path / f"{name}.py").write_text("def told(): ...\ndef run(): ...\ndef make_row(): ...\n")
    paths = names.sources([tmp_path])
    assert [found.split()[-1] for found in names.bare_names(paths)] == ["told"] * 4
    assert set(names.crowded_names(paths)) == {"told", "make_row"}


def import_names(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """tools/names.py, which is no part of the package."""
    monkeypatch.syspath_prepend(str(TOOLS))
    import names

    return names
