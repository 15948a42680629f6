"""The second printer: what the page has is what it prints, it stays short, and what it does not know it names.

tests/explore/test_web_core.py runs what it prints.
"""

import ast
import re
from pathlib import Path

import pytest

from qkv import hub
from qkv.errors import QkvError
from qkv.specialize import typescript

MODELS = Path(__file__).parents[2] / "web" / "src" / "live" / "models"
RUNTIME = "../../../../src/qkv/specialize/runtime"
BUNDLED = ("demo", "demo-lm", "demo-bert", "demo-moe")


def code_lines(text: str) -> int:
    """Lines that are neither blank nor comment."""
    return sum(not re.match(r"\s*(//|/\*\*|\*|$)", line) for line in text.splitlines())


@pytest.mark.parametrize("name", BUNDLED)
def test_the_page_has_what_the_printer_prints(name: str) -> None:
    text = typescript.print_typescript(hub.spec_of(name), runtime=RUNTIME)
    assert (MODELS / f"{name}.ts").read_text(encoding="utf-8") == text, (
        "run: python tools/live_models.py")
    assert len(text.splitlines()) <= 500
    assert "// B H T K" in text  # shape comments stay


def test_the_runtime_stays_short() -> None:
    assert code_lines(typescript.read_runtime()) <= 400


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "marian", "bart", "mixtral", "qwen3", "gpt_neox"])
def test_families_print(family: str) -> None:
    text = hub.show(family, language="typescript")
    assert "export class Transformer extends Module" in text
    assert "import " not in text  # it stands alone
    assert not re.search(r"\b(self|None|True|torch\.)\b", re.sub(r"/\*\*.*?\*/|//.*", "", text, flags=re.S))


@pytest.mark.parametrize(("family", "missing"), [("gemma", "ones"), ("chatglm", "chunk")])
def test_what_the_runtime_lacks_is_named(family: str, missing: str) -> None:
    with pytest.raises(QkvError) as e:
        hub.show(family, language="typescript")
    assert missing in str(e.value)


@pytest.mark.parametrize("statement", ["while x: pass", "with x: pass", "del x", "y = {1: x}", "y = x if x else {*x}"])
def test_an_unknown_construct_is_named_with_its_text(statement: str) -> None:
    node = ast.parse(f"def f(x: Tensor) -> Tensor:\n    {statement}\n    return x").body[0]
    with pytest.raises(QkvError) as e:
        typescript.Printer([node]).print_definition(node)
    assert statement.split(" ")[0] in str(e.value) or "{" in str(e.value)


def test_a_mode_is_refused() -> None:
    with pytest.raises(QkvError):
        hub.show("demo", mode="decode", language="typescript")
