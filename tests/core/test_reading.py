"""The core is short to read: ids to logits in eight definitions; forks ask the spec and nothing else."""

import ast
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from support import zoo

from qkv.core import attention, ffn, kernels, model, norm
from qkv.core.step import active_tracer

CORE = Path(str(model.__file__)).parent
# one-line helpers and what stands behind an interface; the contract does not count them
UNCOUNTED = {"tap", "pass_through", "append", "get_or_compute", "rotate", "no_dropout", "sinusoid", "project_kv",
             "add_update", "<lambda>"}


class Opens:
    needs_eager_attention = True

    def tap(self, module: torch.nn.Module, name: str, x: torch.Tensor) -> torch.Tensor:
        return x


def entered(name: str) -> set[tuple[str, str]]:
    """(file, qualified name) of every definition of the core that a forward pass enters, with the maths in the open."""
    core, ids = zoo.made(zoo.ALL[name]()), zoo.words(2, 5)
    found: set[tuple[str, str]] = set()

    preparing = [False]  # the step is built once, beside the path of the ids

    def hear(frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if code.co_qualname == "build_step" and event in ("call", "return"):
            preparing[0] = event == "call"
        here = Path(code.co_filename).parent == CORE and not preparing[0]
        if event == "call" and here and code.co_name not in UNCOUNTED | {"build_step"}:
            found.add((Path(code.co_filename).name, code.co_qualname))

    token = active_tracer.set(Opens())
    sys.setprofile(hear)
    try:
        core(ids)
    finally:
        sys.setprofile(None)
        active_tracer.reset(token)
    return found


@pytest.mark.parametrize("name", ["gqa", "learned", "parallel", "bare", "encoder"])
def test_ids_to_logits_in_eight_definitions(name: str) -> None:
    found = entered(name)
    assert len(found) <= 8, sorted(found)
    assert {file for file, _ in found} == {"model.py", "attention.py", "ffn.py", "norm.py"}


def forks(source: str) -> list[str]:
    """What the forks of all forward passes ask: each `if` and conditional expression of a method."""
    tree = ast.parse(source)
    asked: list[str] = []
    for kind in (n for n in tree.body if isinstance(n, ast.ClassDef)):
        for method in (n for n in kind.body if isinstance(n, ast.FunctionDef) and n.name != "__init__"):
            asked += [ast.unparse(n.test) for n in ast.walk(method) if isinstance(n, ast.If | ast.IfExp)]
    return asked


def strangers(tests: list[str]) -> list[str]:
    """Forks that ask anything but the local frozen spec `s` or `step.mode`."""
    wrong: list[str] = []
    for test in tests:
        names = {n.id for n in ast.walk(ast.parse(test)) if isinstance(n, ast.Name)}
        asks = {ast.unparse(n) for n in ast.walk(ast.parse(test)) if isinstance(n, ast.Attribute)}
        if names - {"s", "step"} or any(a.startswith("step.") and a != "step.mode" for a in asks) or " is " in test:
            wrong.append(test)
    return wrong


@pytest.mark.parametrize("module", [model, attention, ffn, norm], ids=["model", "attention", "ffn", "norm"])
def test_a_fork_in_forward_asks_the_spec_only(module: Any) -> None:
    source = Path(module.__file__).read_text(encoding="utf-8")
    assert strangers(forks(source)) == []
    assert "self.training" not in source
    assert "hasattr" not in source


@pytest.mark.parametrize("test", ["self.training", "hasattr(self, 'x')", "s.x is None", "step.cache.length", "a == 1"])
def test_another_fork_is_found(test: str) -> None:
    source = f"class A:\n    def forward(self, x, step):\n        if {test}:\n            return x"
    assert strangers(forks(source)) == [test]


def test_the_kernels_are_not_on_the_reading_path() -> None:
    assert str(kernels.__file__).endswith("kernels.py")
    assert not any(file == "kernels.py" for file, _ in entered("gqa"))
