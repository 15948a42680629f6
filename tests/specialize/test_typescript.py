"""The second printer: what the page has is what it prints, it stays short, and what it does not know it names.

tests/explore/test_web_core.py runs what it prints.
"""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support import zoo
from support.web_models import needs_node, run_node
from torch import Tensor

from qkv import hub
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.specialize import typescript
from qkv.specialize.program import has_prefix

SOURCES = Path(typescript.__file__).parent
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


@needs_node
def test_what_prints_computes(tmp_path: Path) -> None:
    cases, wanted, names = list[dict[str, Any]](), list[Tensor](), list[str]()
    draw = torch.Generator().manual_seed(3)
    for name, make in zoo.ALL.items():
        core = zoo.made(make()).eval()
        s = core.spec
        try:
            text = typescript.print_typescript(s, runtime=str(SOURCES / typescript.RUNTIME))
        except QkvError:
            continue
        (tmp_path / f"{name}.ts").write_text(text, encoding="utf-8")
        spell = typescript.TracedProgram(s).spell_parameter
        tied = s.head is not None and s.head.kind == "tied"
        stored = {spell(n): x.clone() for n, x in core.state_dict().items() if not (tied and n == "head.weight")}
        save_file(stored, tmp_path / f"{name}.safetensors")
        ids, inputs = torch.randint(3, s.vocabulary, (2, 9), generator=draw), Inputs()
        case: dict[str, Any] = {"file": str(tmp_path / f"{name}.ts"), "weights": str(tmp_path / f"{name}.safetensors")}
        case |= {"ids": ids.tolist()}
        if s.encoder and s.decoder:
            inputs = Inputs(source=torch.randint(3, s.sources or s.vocabulary, (2, 7), generator=draw))
            case["source"] = inputs.source.tolist()  # type: ignore[union-attr]
        elif has_prefix(s):
            inputs = Inputs(prefix_len=torch.tensor([3, 5]))
            case["prefix"] = [3, 5]
        with torch.inference_mode():
            wanted.append(core(ids, inputs, mode="prefill").logits)
        names.append(name)
        cases.append(case)
    asked = {"runtime": str(SOURCES / typescript.RUNTIME), "cases": cases}
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    run_node("zoo.mjs", tmp_path / "asked.json", tmp_path / "answers.json")
    for name, want, got in zip(names, wanted, json.loads((tmp_path / "answers.json").read_text()), strict=True):
        for way in ("whole", *["parts"] * bool(got["parts"])):
            mine = torch.cat([torch.tensor(p["data"]).view(p["shape"]) for p in got[way]], 1)
            assert (mine - want).abs().max() <= 1e-5 * want.std(), (name, way)
    assert len(names) >= 4, names
