"""The folded text is the core: bit for bit, for every kind of model and every mode; and it reads as typed by hand."""

import ast
import linecache
import re
from types import ModuleType
from typing import Any

import pytest
import torch
from support import zoo

from qkv.core.cache import Static
from qkv.core.dropout import make_dropout
from qkv.core.step import active_tracer
from qkv.spec import Attention, Block, Ffn, Mask, Norm, Rotary, Spec, Stack
from qkv.specialize import core_text
from qkv.specialize.core_text import print_core

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
    model = build(print_core(zoo.ALL[name](), mode=mode))
    model.load_state_dict(core.state_dict(), strict=True)
    ids, run = zoo.words(3, 9), {"mode": mode or "train"}
    with torch.set_grad_enabled(mode in (None, "train")):
        assert torch.equal(zoo.run(model, ids, **run), zoo.run(core, ids, **run))
    if mode != "train" and hasattr(core, "decoder"):
        caches, run = [Static(6), Static(6)], {"mode": "prefill" if mode == "prefill" else "decode"}
        for part in (ids[:, :5], ids[:, 5:6], ids[:, 6:]):
            with torch.set_grad_enabled(mode is None):
                both = [zoo.run(m, part, cache=c, **run) for m, c in zip((model, core), caches, strict=True)]
            assert torch.equal(*both)


@pytest.mark.parametrize("name", ["cloze", "blanks"])
def test_folded_labels_are_the_core_s(name: str) -> None:
    core, model, ids = zoo.made(zoo.ALL[name]()), build(print_core(zoo.ALL[name]())), zoo.words(3, 9)
    model.load_state_dict(core.state_dict(), strict=True)
    both = [m.classify(ids) for m in (model, core)]
    assert torch.equal(*both)
    assert both[0].shape == (3, core.spec.labels.count)


def test_two_axes_of_positions_fold_into_one_rotation_that_is_used_twice() -> None:
    attn = Attention(4, 2, 32, Mask("prefix"), rotary=Rotary(16, axes=2))
    spec = Spec(97, Stack(48, (Block(attn, Ffn(80, "gelu"), norm_in=Norm()),) * 2, context=64))
    core, text, ids = zoo.made(spec), print_core(spec), zoo.words(3, 9)
    model = build(text)
    model.load_state_dict(core.state_dict(), strict=True)
    assert torch.equal(zoo.run(model, ids), zoo.run(core, ids))
    assert "replace(" not in text.replace("._replace(", "")  # of tuples, which the kernels use


@pytest.mark.parametrize("mode", [None, "train"])
def test_folded_dropout_falls_as_the_core_s(mode: Any) -> None:
    spec = zoo.seq2seq(dropout=0.25)
    core, model = zoo.made(spec), build(print_core(spec, mode=mode))
    model.load_state_dict(core.state_dict())
    ids = zoo.words(3, 9)
    both = [zoo.run(m, ids, drop=make_dropout(1, 2, 3)) for m in (model, core)]
    assert torch.equal(*both)
    assert not torch.equal(both[0], zoo.run(core, ids))


@pytest.mark.parametrize("name", ["seq2seq", "gqa", "parallel", "relative", "stretched", "cloze", "mixed", "experts"])
def test_with_taps_the_folded_model_is_heard_as_the_core_is(name: str) -> None:
    spec = zoo.ALL[name]()
    core, model = zoo.made(spec), build(print_core(spec, taps=True))
    model.load_state_dict(core.state_dict())
    heard: list[dict[str, torch.Tensor]] = []

    class Ear:
        needs_eager_attention = False

        def tap(self, module: Any, tap: str, x: torch.Tensor) -> torch.Tensor:
            heard[-1][f"{module.path}.{tap}"] = x
            return x

    token = active_tracer.set(Ear())
    for m in (core, model):
        heard.append({})
        zoo.run(m, zoo.words(3, 9))
    active_tracer.reset(token)
    assert heard[0].keys() == heard[1].keys()
    assert all(torch.equal(heard[0][k], heard[1][k]) for k in heard[0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", zoo.ALL)
def test_folded_text_reads_as_typed(name: str, mode: Any) -> None:
    text = print_core(zoo.ALL[name](), mode=mode)
    assert [line for line in text.splitlines() if len(line) > 120 and '"""' not in line] == []
    body = text.split('"""', 2)[2]
    for leftover in (
        r"\bs\.",
        r"\bspec\.[a-z]",
        "self.spec",
        r"\.tap\(",
        "Identity",
        r"\b(if|and|or) (True|False)",
        r" [+] 0\b",
        r"[ (]\(\w+\)(?! ->)",
        "isinstance",
        *([r"k\.shape\[1\] < q\.shape\[1\]"] * bool(mode or name not in ("latent", "mixed"))),
        r"\w = None$",
    ):
        assert not re.search(leftover, re.sub(r'"""[^"]*"""', "", body)), leftover
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign):
            assert ast.unparse(node.targets[0]) != ast.unparse(node.value)
    tree = ast.parse(text)
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    assert {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names} <= used
    for one in re.split(r"\nclass ", re.sub(r'"""[^"]*"""', "", body)):  # a width is typed, or open for several
        assert bool(re.search(r"\bwidth\b", one)) == ("width: int" in one)
    bodies = [ast.unparse(n).partition(":")[2] for n in tree.body if isinstance(n, ast.ClassDef)]
    assert len(bodies) == len(set(bodies)), "two classes are the same"
    defined = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    assert defined - used <= {"Model"}


def test_shape_comments_are_kept_and_numbers_typed() -> None:
    text = print_core(zoo.gqa())
    assert "self.k = nn.Linear(48, 64, bias=False)" in text
    assert "self.k(x).unflatten(-1, (2, -1)).transpose(1, 2)" in text
    assert "  # B H T K" in text
    assert 'step.mask[Mask("causal")]' in text
    assert "class RMSNorm(nn.Module)" in text
    assert "bias" not in print_core(zoo.gqa()).partition("class RMSNorm")[2].partition("\n\n\n")[0]


def test_long_rotaries_have_a_name() -> None:
    text = print_core(zoo.stretched())
    assert 'ROTARY3 = Rotary(32, scaling=Scaling("wavelength", 8.0, 8, fast=4.0))\n' in text
    assert "step.angles[ROTARY3])" in text
    assert text.count('Scaling("wavelength"') == 1
    assert text.count("def rotate") == 2  # the layers turn by different angles, and the last turns a part of each head


def test_one_class_per_distinct_block() -> None:
    names = lambda text: re.findall(r"^class (\w+)\(", text, re.MULTILINE)  # noqa: E731
    assert {"EncoderBlock", "DecoderBlock", "CrossAttention", "LayerNorm", "Ffn"} <= set(
        names(print_core(zoo.seq2seq()))
    )
    assert sum("Block" in n for n in names(print_core(zoo.gqa(window=3)))) == 2
    assert sum("Block" in n for n in names(print_core(zoo.gqa()))) == 1


def test_training_has_no_cache_and_decoding_no_dropout() -> None:
    assert "step.cache" not in print_core(zoo.seq2seq(dropout=0.1), mode="train")
    assert "step.drop" in print_core(zoo.seq2seq(dropout=0.1), mode="train")
    assert "step.drop" not in print_core(zoo.seq2seq(dropout=0.1), mode="decode")


def test_latents_are_absorbed_in_decoding_and_experts_say_what_they_do() -> None:
    assert "def attend_absorbed" not in print_core(zoo.mixed(), mode="train")
    assert "def expand" not in print_core(zoo.mixed(), mode="decode")
    assert "step.mode" in print_core(zoo.mixed())
    assert "def mask_closed_groups" in print_core(zoo.mixed())
    assert "def mask_closed_groups" not in print_core(zoo.experts())
    assert "sigmoid" not in print_core(zoo.experts()).partition("def route")[2].partition("\nclass ")[0]
    assert 'approximate="tanh")' in print_core(zoo.mixed())


def test_a_fork_folded_the_wrong_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = core_text.CoreText.run_if

    def wrong(self: Any, node: ast.If, frame: Any) -> Any:
        if "layout" in ast.unparse(node.test):
            return None  # takes the other layout of the sinusoids
        return right(self, node, frame)

    monkeypatch.setattr(core_text.CoreText, "run_if", wrong)
    spec = zoo.two_words()
    core, model = zoo.made(spec), build(print_core(spec))
    model.load_state_dict(core.state_dict())
    assert not torch.equal(zoo.run(model, zoo.words(3, 9)), zoo.run(core, zoo.words(3, 9)))
