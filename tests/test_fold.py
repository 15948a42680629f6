"""The folded text is the core: bit for bit, for every kind of model and every mode; and it reads as typed by hand."""

import ast
import linecache
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from qkv import fold
from qkv.core.cache import Static
from qkv.core.dropout import dropper
from qkv.core.step import listener
from qkv.fold import show

sys.path.insert(0, str(Path(__file__).parent / "core"))
import zoo

MODES = (None, "train", "prefill", "decode")


def build(text: str) -> Any:
    module = ModuleType("folded")
    linecache.cache["folded.py"] = (len(text), None, text.splitlines(True), "folded.py")
    exec(compile(text, "folded.py", "exec"), vars(module))
    return module.Model()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", zoo.ALL)
def test_folded_equals_core_bit_for_bit(name: str, mode: Any) -> None:
    core = zoo.made(zoo.ALL[name]())
    model = build(show(zoo.ALL[name](), mode=mode))
    model.load_state_dict(core.state_dict(), strict=True)
    ids, run = zoo.words(3, 9), {"mode": mode or "train"}
    with torch.set_grad_enabled(mode in (None, "train")):
        assert torch.equal(zoo.run(model, ids, **run), zoo.run(core, ids, **run))
    if mode != "train" and hasattr(core, "decoder"):
        caches = [Static(3), Static(3)]
        for part in (ids[:, :5], ids[:, 5:6], ids[:, 6:]):
            with torch.set_grad_enabled(mode is None):
                both = [zoo.run(m, part, cache=c, mode="decode") for m, c in zip((model, core), caches, strict=True)]
            assert torch.equal(*both)


@pytest.mark.parametrize("mode", [None, "train"])
def test_folded_dropout_falls_as_the_core_s(mode: Any) -> None:
    spec = zoo.seq2seq(dropout=0.25)
    core, model = zoo.made(spec), build(show(spec, mode=mode))
    model.load_state_dict(core.state_dict())
    ids = zoo.words(3, 9)
    both = [zoo.run(m, ids, drop=dropper(1, 2, 3)) for m in (model, core)]
    assert torch.equal(*both)
    assert not torch.equal(both[0], zoo.run(core, ids))


@pytest.mark.parametrize("name", ["seq2seq", "gqa", "parallel"])
def test_with_taps_the_folded_model_is_heard_as_the_core_is(name: str) -> None:
    spec = zoo.ALL[name]()
    core, model = zoo.made(spec), build(show(spec, taps=True))
    model.load_state_dict(core.state_dict())
    heard: list[dict[str, torch.Tensor]] = []

    class Ear:
        opens = False

        def tap(self, module: Any, tap: str, x: torch.Tensor) -> torch.Tensor:
            heard[-1][f"{module.path}.{tap}"] = x
            return x

    token = listener.set(Ear())
    for m in (core, model):
        heard.append({})
        zoo.run(m, zoo.words(3, 9))
    listener.reset(token)
    assert heard[0].keys() == heard[1].keys()
    assert all(torch.equal(heard[0][k], heard[1][k]) for k in heard[0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", zoo.ALL)
def test_folded_text_reads_as_typed(name: str, mode: Any) -> None:
    text = show(zoo.ALL[name](), mode=mode)
    assert [line for line in text.splitlines() if len(line) > 120 and '"""' not in line] == []
    body = text.split('"""', 2)[2]
    for leftover in (
        r"\bs\.",
        r"\bspec\.[a-z]",
        "self.spec",
        r"\.tap\(",
        "Identity",
        r"if (True|False)",
        r"\bwidth\b",
        r"\w = None$",
    ):
        assert not re.search(leftover, re.sub(r'"""[^"]*"""', "", body)), leftover
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign):
            assert ast.unparse(node.targets[0]) != ast.unparse(node.value)
    tree = ast.parse(text)
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    assert {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names} <= used
    bodies = [ast.unparse(n).partition(":")[2] for n in tree.body if isinstance(n, ast.ClassDef)]
    assert len(bodies) == len(set(bodies)), "two classes are the same"
    defined = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    assert defined - used <= {"Model"}


def test_shape_comments_are_kept_and_numbers_typed() -> None:
    text = show(zoo.gqa())
    assert "self.k = nn.Linear(48, 64, bias=False)" in text
    assert "# B G S K" in text
    assert 'step.mask[Mask("causal")]' in text
    assert "class RMSNorm(nn.Module)" in text
    assert "bias" not in show(zoo.gqa()).partition("class RMSNorm")[2].partition("class ")[0]


def test_one_class_per_distinct_block() -> None:
    names = lambda text: re.findall(r"^class (\w+)\(", text, re.MULTILINE)  # noqa: E731
    assert {"EncoderBlock", "DecoderBlock", "CrossAttention", "LayerNorm", "Ffn"} <= set(names(show(zoo.seq2seq())))
    assert sum("Block" in n for n in names(show(zoo.gqa(window=3)))) == 2
    assert sum("Block" in n for n in names(show(zoo.gqa()))) == 1


def test_training_has_no_cache_and_decoding_no_dropout() -> None:
    assert "cache" not in show(zoo.seq2seq(dropout=0.1), mode="train")
    assert "step.drop" in show(zoo.seq2seq(dropout=0.1), mode="train")
    assert "drop" not in show(zoo.seq2seq(dropout=0.1), mode="decode").split('"""', 2)[2]


def test_a_fork_folded_the_wrong_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fold.Folder.fork

    def wrong(self: Any, node: ast.If, scope: Any, indent: int) -> list[str]:
        if "layout" in ast.unparse(node.test):
            return []  # takes the other layout of the sinusoids
        return right(self, node, scope, indent)

    monkeypatch.setattr(fold.Folder, "fork", wrong)
    spec = zoo.two_words()
    core, model = zoo.made(spec), build(show(spec))
    model.load_state_dict(core.state_dict())
    assert not torch.equal(zoo.run(model, zoo.words(3, 9)), zoo.run(core, zoo.words(3, 9)))
