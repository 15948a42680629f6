"""The notebooks run from the first cell to the last, and are committed without their outputs."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
NAMES = ("first_steps", "train_your_own", "open_a_model")


def load_cells(name: str) -> list[dict[str, Any]]:
    found = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    return found["cells"]


def run_cells(name: str) -> tuple[dict[str, Any], list[Any]]:
    """The variables that the cells leave, and what a notebook shows of each: the value of its last expression."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    shown: list[Any] = []
    for number, cell in enumerate(load_cells(name)):
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, f"{name}, cell {number}", "exec"), scope)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), f"{name}, cell {number}", "eval"), scope)  # noqa: S307
                shown += [] if value is None else [value]
    return scope, shown


def draw(value: Any) -> str:
    return value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_all_notebooks_are_known() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stripped_and_speaks_both_languages(name: str) -> None:
    cells = load_cells(name)
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in code] == [([], None)] * len(code)
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            assert any("a" <= sign <= "z" for sign in text)
            assert any("一" <= sign <= "鿿" for sign in text), text


def test_first_steps() -> None:
    scope, shown = run_cells("first_steps")
    assert shown[0] == "I love studying."
    assert "桌上" in draw(shown[1])
    assert "reading the tea" in scope["without_book"]


def test_train_your_own(capfd: pytest.CaptureFixture[str]) -> None:
    _, shown = run_cells("train_your_own")
    assert [label for label, _ in shown[-1]] == ["差评", "好评"]
    assert "classifier of 2 labels" in capfd.readouterr().err


def test_open_a_model() -> None:
    scope, shown = run_cells("open_a_model")
    assert abs(scope["found"].gap) < 1e-4
    assert [bool(re.search("<(svg|table)", draw(value))) for value in shown] == [False, True, True]
