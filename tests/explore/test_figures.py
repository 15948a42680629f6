"""The five figures of a chapter: five files from the tensors of one run, the same ones each time."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import zoo

import qkv
from qkv.cli import main
from qkv.errors import QkvError
from qkv.explore import figures
from qkv.explore.tables import trace_text
from qkv.messages import Message
from qkv.plots import figure
from qkv.tasks.types import SpecialTokens

pytest.importorskip("matplotlib")
NAMES = [f"ch12-{n}.png" for n in ("attention-shape", "attention-matrix", "concatenate", "transformer-block",
                                   "vector-by-layer")]
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

    mask_id, cls_id, sep_id, stream = None, None, None, None

    def encode(self, text: str, *, special: bool = True, side: str = "source") -> list[int]:
        return [ord(c) % 90 for c in text]

    def pieces(self, ids: Sequence[int], *, side: str = "target") -> list[str]:
        return [chr(0x4E00 + i) for i in ids]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return "".join(self.pieces(ids))


def words(fig: Any) -> str:
    """All the texts of a figure."""
    return "\n".join(t.get_text() for t in fig.findobj(lambda x: hasattr(x, "get_text")))


def test_one_command_writes_five_files_again_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure, "DPI", 30)
    every: list[dict[str, bytes]] = []
    for folder, word in (("a", "wo"), ("b", "wo"), ("c", "1")):
        assert main(["look", "demo-lm", TEXT, "--figures", str(tmp_path / folder), "--word", word, "--json"]) == 0
        paths = [Path(p) for p in json.loads(capsys.readouterr().out)["figures"]]
        assert [p.name for p in paths] == NAMES
        every.append({p.name: p.read_bytes() for p in paths})
    assert all(x.startswith(b"\x89PNG") for x in every[0].values())
    assert every[0] == every[1]
    assert [n for n in NAMES if every[0][n] != every[2][n]] == NAMES[-1:], "the word is that of the last figure"


@pytest.mark.parametrize("name", ["demo-lm", "demo", "demo-moe", "demo-bert"])
def test_numbers_in_them_are_the_models(name: str) -> None:
    model, text = qkv.load(name), TEXT if name == "demo-lm" else "我看完了那本书。"
    made = figures.make_figures(model, [text], layer=0, head=1)
    t = trace_text(model, text, ["walk"], {})
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
        t = trace_text(model, "我看完了那本书。" if name != "demo-lm" else TEXT, ["walk"], {})
        told = words(figures.draw_block(figures.Scene(model, t, 0, 0, Message)))
        stack = model.core.encoder if model.encoder_decoder else model.core.decoder
        for weight in dict(stack.layers[0].named_parameters()):  # type: ignore[union-attr]
            assert weight.endswith("bias") or f"{weight.removesuffix('.weight')}\n" in told


def drawn(model: qkv.Model) -> Any:
    """The first layer of a model that read three tokens."""
    with model.trace(save=["walk"]) as t, torch.no_grad():
        model(torch.tensor([[3, 4, 5]]))
    return figures.draw_block(figures.Scene(model, t, 0, 0, Message))


def sides(fig: Any) -> list[tuple[float, float]]:
    """From which row to which the lines at the left side go round the parts: the residual connections."""
    return [(line.get_ydata()[0], line.get_ydata()[-1]) for line in fig.axes[0].lines if min(line.get_xdata()) < 1]


@pytest.mark.parametrize(("name", "kind"), [("learned", "serial"), ("parallel", "parallel"), ("carried", "deepnorm")])
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
    elif kind == "deepnorm":
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


@pytest.mark.parametrize("name", ["demo-lm", "demo", "demo-bert"])
def test_a_vector_is_followed_from_layer_to_layer(name: str) -> None:
    model, text = qkv.load(name), TEXT if name == "demo-lm" else "我看完了那本书。"
    fig = figures.make_figures(model, [text], word=1, say=Message)[NAMES[4]]
    t = trace_text(model, text, ["walk"], {})
    side = "encoder." if model.encoder_decoder else ""
    layers = len((model.spec.encoder or model.spec.stack).blocks)
    states = torch.stack([t[f"{side}layers.0.resid_in"][0, 1], *(t[f"{side}layers.{i}.resid_out"][0, 1]
                                                                  for i in range(layers))])
    image = torch.tensor(fig.axes[0].images[0].get_array().tolist())
    kept = states[:, : figures.NUMBERS]
    assert (image - kept / kept.abs().amax(1, keepdim=True)).abs().max() < 1e-6
    first, last = (line.get_ydata() for line in fig.axes[1].lines)
    assert (first[0], last[-1]) == (pytest.approx(1.0), pytest.approx(1.0))
    assert first[-1] == pytest.approx(float(torch.cosine_similarity(states[0], states[-1], dim=0)), abs=1e-5)
    assert first[-1] == pytest.approx(last[0])
    assert min(first) < 0.9, "it does turn"


def test_each_text_is_a_row_and_wrong_input_is_named() -> None:
    lm = qkv.load("demo-lm")
    made = figures.make_figures(lm, [TEXT, "Twinkle"], say=Message)
    assert len(made[NAMES[0]].axes) == 8
    assert "text 2 head 4" in words(made[NAMES[0]])
    assert len(figures.make_figures(zoo_model("cloze"), ["abc"])) == len(figures.make_figures(lm, ["One"])) == 5
    with pytest.raises(QkvError, match="book"):
        figures.make_figures(lm, [TEXT], word="book")
    with pytest.raises(QkvError, match="layers 1 to 4 and heads 1 to 4"):
        figures.make_figures(lm, [TEXT], head=9)


def test_a_drawing_that_invents_numbers_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = figures.Scene.__call__
    monkeypatch.setattr(figures.Scene, "__call__", lambda s, name: plain(s, name).flip(-1))
    with pytest.raises(AssertionError):
        test_numbers_in_them_are_the_models("demo-lm")
