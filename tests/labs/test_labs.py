"""Every exact lab is run here: its verdict is what we know from elsewhere, and a wrong model makes it another one."""

import ast
import dataclasses
import math
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest
import torch

from qkv import labs
from qkv import sampling as sample
from qkv.core import attention, kernels
from qkv.core.attention import Attention
from qkv.core.cache import Static
from qkv.core.masks import AttentionBias
from qkv.core.model import Block, Stack, Transformer
from qkv.errors import QkvError
from qkv.labs import lab, page, tiny
from qkv.labs.lab import Runs
from qkv.messages import Message
from qkv.plots import html, terminal

FOLDER = Path(labs.__file__).parent
LABS = {name: labs.find_lab(name) for name in labs.list_names()}
EXACT = [name for name, found in LABS.items() if found.kind == "exact"]
# What is known without running a lab: from the papers, from algebra, from the calculators of the texts.
KNOWN = {
    "mask-zero": ("shown", {"leak": 0, "weight": 0}),
    "no-down": ("shown", {"down": 0}),
    "wavefront": ("refuted", {"triangle_steps": 27, "row_steps": 12, "neighbour": 0}),
    "kv-frozen": ("true only when", {}),
    "cache-exact": ("shown", {"same": 1}),
    "order-blind": ("true only when", {}),
    "head-shapes": ("true only when", {"swapped": 64, "plain": 0}),
    "wo-sum": ("shown", {}),
    "scale": ("true only when", {}),
    "what-moves": ("refuted", {"forward": 0, "backward": 0, "grown": 0, "rows_tied": 32, "rows_decay": 32}),
    "revision-ledger": ("true only when", {}),
    "parallel-equals-serial": ("shown", {"hidden": 0}),
    "temperature-and-top-p": ("refuted", {"rises": 1, "best_stays": 1}),
    "param-count": ("true only when", {"attention": 12_582_912, "with_biases": 12_607_488, "heads_spread": 0}),
    "kv-memory": ("shown", {"gpt3_mha": 4608, "gpt3_mqa": 48, "llama_7b": 512, "qwen_gqa": 320, "qwen_mha": 2560}),
    "stated-numbers": ("refuted", {"loss": 2.30259, "match_scaled": 0.990520, "temperature": 4.99983}),
}
exact = pytest.mark.parametrize("name", EXACT)


def blind(q, k, v, seen, at, step):
    """A decoder that sees the future."""
    return attention.attend(q, k, v, AttentionBias(None, causal=False), at, step)


def twice(self, x, step, whole=Stack.forward):
    """What the top found comes down again."""
    return whole(self, x + whole(self, x, step), step) if step.mode == "train" else whole(self, x, step)


def recurrent(self, x, step, whole=Block.forward):
    """A layer that waits for its left neighbour."""
    out = whole(self, x, step)
    return out + 0.1 * out.cumsum(1)


def counting(self, x, step, whole=Stack.forward):
    """Positions nobody asked for."""
    ramp = torch.arange(x.shape[1] * x.shape[2]).view(1, *x.shape[1:])  # a constant would be normed away
    return whole(self, x + torch.sin(ramp.to(x.dtype)), step)


def louder(self, layer, k, v, whole=Static.append):
    """A cache that changes what it keeps."""
    keys, values = whole(self, layer, k, v)
    return (keys, values * 1.01) if k.shape[2] == 1 else (keys, values)


def fat(self, layer, k, v, whole=Static.append):
    """A cache that takes twice the room."""
    keys, values = whole(self, layer, torch.cat((k, k), -1), torch.cat((v, v), -1))
    return keys[..., : k.shape[-1]], values[..., : k.shape[-1]]


def tangled(self, x, step):
    """Heads merged by a plain reshape."""
    x = step.tap(self, "norm", x)
    q = step.tap(self, "q", step.tap(self, "q_pre", self.q(x).unflatten(-1, (self.spec.heads, -1)).transpose(1, 2)))
    k, v = self.project_kv(x, step)
    k = step.tap(self, "k", k)
    z = step.tap(self, "z", step.attend(q, k, v, step.mask[self.spec.mask], self, step))
    return step.tap(self, "out", self.out(z.reshape(*x.shape[:2], -1)))


def unscaled(self, *given, whole=Attention.__init__):
    whole(self, *given)
    self.scale = 1.0


def heavier(self, s, width, *given, whole=Attention.__init__):
    whole(self, s, width, *given)
    self.extra = torch.nn.Linear(width, width, bias=False)


def learning(self, *args, whole=Transformer.run_stack, **options):
    """Reading that writes into the embedding."""
    with torch.no_grad():
        self.embed.weight.add_(1e-3)
    return whole(self, *args, **options)


def by_shares(logits, sampling):
    """Scores divided by their sum, as one text has it."""
    return logits / logits.sum()


FAULTS = {
    "mask-zero": (kernels, "attend", blind),
    "no-down": (Stack, "forward", twice),
    "wavefront": (Block, "forward", recurrent),
    "kv-frozen": (kernels, "attend", blind),
    "cache-exact": (Static, "append", louder),
    "order-blind": (Stack, "forward", counting),
    "head-shapes": (Attention, "forward", tangled),
    "wo-sum": (Attention, "forward", tangled),
    "scale": (Attention, "__init__", unscaled),
    "what-moves": (Transformer, "run_stack", learning),
    "revision-ledger": (Block, "add_update", lambda self, x, h, update, step: x + 0.9 * update),
    "parallel-equals-serial": (kernels, "attend", blind),
    "temperature-and-top-p": (sample, "nucleus", lambda probs, mass: probs + 0.1),
    "param-count": (Attention, "__init__", heavier),
    "kv-memory": (Static, "append", fat),
    "stated-numbers": ("stated_numbers", "distribution", by_shares),
}


@pytest.fixture(scope="module", params=EXACT)
def ran(request):
    return request.param, lab.perform(request.param, LABS[request.param], seeds=(0, 1))


def test_the_verdict_is_what_is_known(ran):
    name, result = ran
    word, numbers = KNOWN[name]
    assert result.verdict.word == word
    for key, value in numbers.items():
        assert Runs(result.numbers).values(key) == pytest.approx([value] * 2, rel=1e-4)


def test_the_committed_result_says_the_same(ran):
    name, result = ran
    kept = labs.load_result(name)
    assert kept is not None, f"no committed result of {name}"
    assert kept["verdict"] == result.verdict.word
    assert kept["numbers"][0].keys() == result.numbers[0].keys()


def test_pictures_and_pages_are_drawn_in_both_languages(ran, tmp_path):
    name, result = ran
    found, runs = LABS[name], Runs(result.numbers)
    for lang in ("zh", "en"):
        drawn = page.make_forms(found, runs, lang)
        lines = [click.unstyle(line) for line in terminal.render(drawn[0])]
        assert len(lines) > 2
        assert found.plot(runs).title.to(lang) == lines[0]
        written = page.write_page(found, result, lang)
        assert all(html.render(form) in written for form in drawn)
        assert page.write_verdict(result, lang).split("[")[0].strip()[:12] in written
        assert "http" not in written


@exact
def test_a_wrong_model_flips_the_verdict(name, monkeypatch):
    where, attribute, fault = FAULTS[name]
    where = import_module(f"qkv.labs.{where}") if isinstance(where, str) else where
    monkeypatch.setattr(where, attribute, fault)
    assert lab.perform(name, LABS[name], seeds=(0,)).verdict.word != KNOWN[name][0]


def test_the_same_seed_gives_the_same_numbers():
    for name in ("order-blind", "scale", "what-moves"):
        assert lab.perform(name, LABS[name], seeds=(1,)).numbers == lab.perform(name, LABS[name], seeds=(1,)).numbers


@pytest.mark.parametrize("name", LABS)
def test_a_lab_is_short_and_uses_public_api_alone(name):
    source = (FOLDER / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 150
    assert private(source) == []


def private(source: str) -> list[str]:
    """What a lab imports that is not public."""
    wrong: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            wrong += [a.name for a in node.names if a.name.startswith("qkv") and a.name not in labs.PUBLIC]
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("qkv"):
            for alias in node.names:
                inside = f"{node.module}.{alias.name}" in labs.PUBLIC
                allowed = labs.PUBLIC.get(node.module or "")
                if not inside and (allowed is None or (allowed and alias.name not in allowed)):
                    wrong.append(f"{node.module}.{alias.name}")
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            wrong.append(node.attr)
    return wrong


def test_a_private_import_is_caught():
    assert private("from qkv.core.model import Block") != []
    assert private("from qkv.core.step import Step") != []
    assert private("import qkv.generation.engine") != []
    assert private("from qkv.core.step import Inputs\nfrom qkv import spec\nimport qkv") == []


@pytest.mark.parametrize("name", LABS)
def test_a_lab_says_everything_in_two_languages(name):
    found = LABS[name]
    for words in (found.claim, found.who, found.measured, found.chance, found.expected, *found.rows.values()):
        zh, en = words.to("zh"), words
        assert sum("一" <= c <= "鿿" for c in en) < 0.2 * len(en)  # 它 may be quoted in English
        assert zh
        assert en
    kept = labs.load_result(name)
    assert kept is None or kept["claim"] == [found.claim.to("zh"), found.claim]


def test_an_unknown_lab_names_the_nearest():
    with pytest.raises(QkvError, match="order-blind"):
        labs.find_lab("order-blnd")


def test_too_few_steps_or_seeds_are_inconclusive():
    strict = dataclasses.replace(LABS["order-blind"], steps=10, enough=5, seeds=2)
    assert lab.perform("x", strict, seeds=(0, 1)).verdict.word == "true only when"
    assert lab.perform("x", strict, seeds=(0, 1), steps=4).verdict.word == "inconclusive"
    assert lab.perform("x", strict, seeds=(0,)).verdict.word == "inconclusive"


def test_ctrl_c_keeps_the_seeds_that_are_done_and_marks_them():
    whole = LABS["order-blind"]

    def run(seed, **how):
        if seed == 1:
            raise KeyboardInterrupt
        return whole.run(seed, **how)

    result = lab.perform("x", dataclasses.replace(whole, run=run, seeds=2))
    assert result.stopped
    assert result.seeds == (0,)
    assert result.verdict.word == "inconclusive"
    assert "partial" in page.write_verdict(result, "en")
    again = lab.from_json(lab.as_json(whole, result), "here")
    assert again == result
    with pytest.raises(KeyboardInterrupt):
        lab.perform("x", dataclasses.replace(whole, run=run), seeds=(1,))
    with pytest.raises(QkvError, match="run the lab again"):
        lab.from_json({"name": "x"}, "here")


def test_influence_is_the_jacobian():
    model, ids = tiny.Tiny(layers=1, width=8, heads=2).model(0), tiny.draw(0, 1, 3)
    reach = tiny.influence(model, ids)
    assert reach.shape == (2, 3, 2, 3)
    assert reach[1, 0, 0].tolist()[1:] == [0.0, 0.0]
    way = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def top(x):
        from qkv.core.model import build_step

        stack = model.core.decoder
        return stack.layers[0](x, build_step(stack, ids))[0, 2] @ way

    with model.trace(save=["embed"]) as t:
        model(ids)
    slope = torch.autograd.functional.jacobian(top, t["embed"])[0].norm(dim=-1)
    assert reach[1, 2, 0].tolist() == pytest.approx(slope.tolist(), rel=1e-9)


def test_a_page_needs_no_matplotlib_but_a_png_does(monkeypatch, tmp_path):
    found = LABS["stated-numbers"]
    result = lab.perform("stated-numbers", found, seeds=(0,))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not page.save_page(found, Runs(result.numbers), tmp_path / "x.png", "en")
    assert "<svg" in page.write_page(found, result, "zh")


def test_numbers_that_are_not_finite_are_still_drawn():
    plot = lab.Plot("bars", Message("t"), ["a", "b"], {"s": [math.nan, 1.0]})
    assert "nan" in "\n".join(terminal.render(page.make_form(plot, {}, "en")))
