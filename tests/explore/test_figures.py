"""The five figures of a chapter: five files from live tensors, the same ones from the same seed."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.cli import main
from qkv.errors import QkvError
from qkv.explore import figures
from qkv.explore.tables import traced
from qkv.tasks.types import SpecialTokens

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
import zoo

pytest.importorskip("matplotlib")
NAMES = [f"ch12-{n}.png" for n in ("attention-shape", "attention-matrix", "concatenate", "transformer-block",
                                   "training-update")]  # fmt: skip
TEXT = "One, two, buckle"


def zoo_model(name: str, **block: Any) -> qkv.Model:
    """A model of the zoo that reads Chinese characters."""
    spec = zoo.ALL[name]()
    blocks = tuple(replace(b, **block) for b in spec.stack.blocks)
    part = "decoder" if spec.decoder else "encoder"
    core = zoo.made(replace(spec, **{part: replace(spec.stack, blocks=blocks)}))
    return qkv.Model(core.eval(), Letters(), SpecialTokens(start=None))  # type: ignore[arg-type]


class Letters:
    """A tokenizer of single characters."""

    mask_id, stream = None, None

    def encode(self, text: str, *, special: bool = True, side: str = "source") -> list[int]:
        return [ord(c) % 90 for c in text]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [chr(0x4E00 + i) for i in ids]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return "".join(self.pieces(ids))


def words(fig: Any) -> str:
    """All the texts of a figure."""
    return "\n".join(t.get_text() for t in fig.findobj(lambda x: hasattr(x, "get_text")))


def test_one_command_writes_five_files_again_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "DPI", 30)
    every: list[dict[str, bytes]] = []
    for folder, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        assert main(["look", "demo-lm", TEXT, "--figures", str(tmp_path / folder), "--seed", seed, "--json"]) == 0
        paths = [Path(p) for p in json.loads(capsys.readouterr().out)["figures"]]
        assert [p.name for p in paths] == NAMES
        every.append({p.name: p.read_bytes() for p in paths})
    assert all(x.startswith(b"\x89PNG") for x in every[0].values())
    assert every[0] == every[1]
    assert [n for n in NAMES if every[0][n] != every[2][n]] == NAMES[-1:], "the seed is that of the fresh weights"


@pytest.mark.parametrize("name", ["demo-lm", "demo", "demo-moe", "demo-bert"])
def test_numbers_in_them_are_the_models(name: str) -> None:
    model, text = qkv.load(name), TEXT if name == "demo-lm" else "我看完了那本书。"
    made = figures.figures(model, [text], layer=0, head=1)
    t = traced(model, text, ["walk"], {})
    path = f"{'encoder.' if model.encoder_decoder else ''}layers.0"
    weight, z, out = (t[f"{path}.attn.{n}"][0] for n in ("pattern", "z", "out"))
    image = made[NAMES[1]].axes[0].images[0].get_array()
    assert abs(float(image[-1, 0]) - float(weight[1, -1, 0])) < 1e-6
    assert f"{100 * float(weight[1].max()):.0f}" in words(made[NAMES[1]]).split("\n")
    assert [list(ax.images[0].get_array().shape) for ax in made[NAMES[0]].axes] == [[z.shape[1], z.shape[2]]] * len(z)
    joined = made[NAMES[2]].axes[len(z)].images[0].get_array()
    assert abs(float(joined[2, z.shape[2] + 3]) - float(z[1, 2, 3] / z.abs().max())) < 1e-6
    assert list(made[NAMES[2]].axes[-1].images[0].get_array().shape) == list(out.shape)
    told = words(made[NAMES[3]])
    block = (model.core.encoder if model.spec.encoder else model.core.decoder).layers[0]
    assert f"{sum(p.numel() for p in block.parameters()):,}" in told  # type: ignore[union-attr]
    for tap in ("resid_in", "resid_mid", "resid_out"):
        assert f"{float(t[f'{path}.{tap}'][0].square().mean().sqrt()):.3f}" in told
    assert f"attn.q\n{[*block.attn.q.weight.shape]}" in told  # type: ignore[union-attr]


def test_every_weight_of_a_block_has_its_box() -> None:
    for name in ("demo-lm", "demo", "demo-moe"):
        model = qkv.load(name)
        t = traced(model, "我看完了那本书。" if name != "demo-lm" else TEXT, ["walk"], {})
        told = words(figures.block(figures.Scene(model, t, 0, 0, lambda zh, en: en)))
        stack = model.core.encoder if model.encoder_decoder else model.core.decoder
        for weight in dict(stack.layers[0].named_parameters()):  # type: ignore[union-attr]
            assert weight.endswith("bias") or f"{weight.removesuffix('.weight')}\n" in told


def drawn(model: qkv.Model) -> Any:
    """The first layer of a model that read three tokens."""
    with model.trace(save=["walk"]) as t, torch.no_grad():
        model(torch.tensor([[3, 4, 5]]))
    return figures.block(figures.Scene(model, t, 0, 0, lambda zh, en: en))


def sides(fig: Any) -> list[tuple[float, float]]:
    """From which row to which the lines at the left side go round the parts: the residual connections."""
    return [(line.get_ydata()[0], line.get_ydata()[-1]) for line in fig.axes[0].lines if min(line.get_xdata()) < 1]


@pytest.mark.parametrize(("name", "kind"), [("learned", "serial"), ("parallel", "parallel"), ("carried", "normed")])
def test_the_lines_of_a_block_are_those_of_its_residual(name: str, kind: str) -> None:
    model = zoo_model(name)
    assert model.spec.stack.blocks[0].residual == kind
    fig = drawn(model)
    boxes = [t for t in fig.axes[0].texts if t.get_text()]
    row = {t.get_text().split("\n")[0].split("  ")[0].split(" [")[0]: t.get_position()[1] for t in boxes}
    sums = sorted(t.get_position()[1] for t in boxes if t.get_text().startswith("⊕"))
    into_ffn = row["ffn_in"]
    if kind == "serial":
        assert sides(fig) == [(row["resid_in"], sums[0]), (row["resid_mid"], sums[1])]
    elif kind == "normed":
        assert sides(fig) == [(row["attn_in"], sums[0]), (row["ffn_in"], sums[1])]
        assert "⊕ residual × 2" in words(fig)
    else:
        assert sides(fig) == [(row["resid_in"], sums[0]), (sums[0], sums[1])]
        assert "resid_mid" not in row
    ends = [a.xyann[1] for a in fig.axes[0].texts if hasattr(a, "xyann") and abs(a.xy[1] - into_ffn) < 0.5]
    right = [tuple(line.get_ydata()[[0, -1]]) for line in fig.axes[0].lines if max(line.get_xdata()) > 9]
    assert right == ([(0, into_ffn)] if kind == "parallel" else [])
    assert len(ends) == 1
    assert (ends[0] == into_ffn) == (kind == "parallel"), "only a serial layer's ffn reads the row below it"


def test_a_layer_without_a_residual_has_no_line() -> None:
    model = zoo_model("learned", residual="none")
    fig = drawn(model)
    assert sides(fig) == []
    assert "⊕" not in words(fig)


def test_the_vector_moves_as_the_fresh_model_learns() -> None:
    model = qkv.load("demo-lm")
    ids = model.ids(TEXT)
    rows, losses = figures.learnt(model, ids, ids[0], 0)
    assert len(rows) == len(losses) == figures.UPDATES + 1
    assert losses[-1] < losses[0] / 2
    assert all(bool((a != b).any()) for a, b in pairwise(rows))
    other, _ = figures.learnt(model, ids, ids[0], 1)
    assert bool((other[0] != rows[0]).any())


def test_each_text_is_a_row_and_wrong_input_is_named() -> None:
    lm = qkv.load("demo-lm")
    made = figures.figures(lm, [TEXT, "Twinkle"], say=lambda zh, en: en)
    assert len(made[NAMES[0]].axes) == 8
    assert "text 2 head 4" in words(made[NAMES[0]])
    mute = zoo_model("cloze")
    with pytest.raises(QkvError, match="names no words"):
        figures.figures(mute, ["abc"])
    with pytest.raises(QkvError, match="one token"):
        figures.figures(lm, ["One"])
    with pytest.raises(QkvError, match="layers 1 to 4 and heads 1 to 4"):
        figures.figures(lm, [TEXT], head=9)


def test_a_drawing_that_invents_numbers_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = figures.Scene.__call__
    monkeypatch.setattr(figures.Scene, "__call__", lambda s, name: plain(s, name).flip(-1))
    with pytest.raises(AssertionError):
        test_numbers_in_them_are_the_models("demo-lm")
