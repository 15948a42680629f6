"""ONNX graphs in onnxruntime against the core: prompts, steps, chunks, rows, padding, windows, cross-attention."""

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qkv import hub
from qkv.checkpoints import onnx_out
from qkv.checkpoints.onnx_out import Graph, plan_graphs, write_onnx
from qkv.cli import main
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.spec import Attention, Block, Ffn, Head, Labels, Mask, Norm, Rotary, Spec, Stack, Table

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
VOCABULARY, WIDTH = 50, 64
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.parity]


def make_block(kind: str, *, window: int | None = None, cross: bool = False) -> Block:
    rotary = None if cross or kind == "full" else Rotary(32)
    own = Attention(2, 1, 32, Mask(kind, window), bias=True, rotary=rotary)  # type: ignore[arg-type]
    over = Attention(2, 2, 32, Mask("memory"), bias=True) if cross else None
    return Block(own, Ffn(96, "gelu", bias=True), cross=over, norm_in=Norm("layer", 1e-5))


def make_stack(kind: str, *windows: int | None, cross: bool = False) -> Stack:
    blocks = tuple(make_block(kind, window=window, cross=cross) for window in windows)
    return Stack(WIDTH, blocks, positions=Table("learned", 64), final_norm=Norm("layer", 1e-5))


SPECS = {
    "decoder": Spec(VOCABULARY, make_stack("causal", None, 6, None), head=Head("untied")),
    "encoder": Spec(VOCABULARY, encoder=make_stack("full", None, None, None), head=Head("tied")),
    "labels": Spec(VOCABULARY, encoder=make_stack("full", None, None, None), head=None, labels=Labels(3)),
    "two texts": Spec(VOCABULARY, encoder=replace(make_stack("full", None, None, None), segments=4), head=None,
                      labels=Labels(3)),
    "both": Spec(VOCABULARY, make_stack("causal", None, None, None, cross=True), make_stack("full", None, None),
                 head=Head("tied")),
}  # fmt: skip
SIZES = [(1, 1, 0), (2, 5, 0), (1, 1, 1), (3, 7, 1), (2, 1, 9), (1, 4, 30)]  # rows, new tokens, those before


def make_core(name: str) -> Transformer:
    torch.manual_seed(3)
    core = Transformer(SPECS[name]).eval()
    for parameter in core.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return core.requires_grad_(requires_grad=False)


class Run:
    """The graphs of a folder in onnxruntime."""

    def __init__(self, folder: Path) -> None:
        self.about = json.loads((folder / "graphs.json").read_text())
        self.sessions = {name: onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in self.about}

    def call(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        arrays = {key: np.asarray(value) for key, value in given.items()}
        return dict(zip(self.about[name]["outputs"], self.sessions[name].run(None, arrays), strict=True))

    def write(self, name: str, ids: torch.Tensor, cuts: list[int], given: dict[str, Any]) -> torch.Tensor:
        """The logits of ids that are read in pieces."""
        shapes = {n: s for n, s in self.about[name]["inputs"].items() if n.startswith("past")}
        sizes = {"batch": len(ids), "past": 0}
        state = {n: np.zeros([sizes.get(x, x) for x in shape], np.float32) for n, shape in shapes.items()}
        found = list[Any]()
        for start, end in pairwise([0, *cuts, ids.shape[1]]):
            out = self.call(name, {"ids": ids[:, start:end], **given, **state})
            found.append(out.pop("logits"))
            state = dict(zip(state, out.values(), strict=True))
        return torch.tensor(np.concatenate(found, 1))


@pytest.fixture(scope="module", params=SPECS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Transformer, Run]:
    core, folder = make_core(request.param), tmp_path_factory.mktemp("onnx") / request.param
    write_onnx(core, folder)
    return core, Run(folder)


def draw_ids(rows: int, tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))


@pytest.mark.timeout(300)
def test_the_graphs_give_the_numbers_of_the_core(made: tuple[Transformer, Run]) -> None:
    core, run = made
    for rows, new, past in SIZES:
        ids, source = draw_ids(rows, past + new), draw_ids(rows, 5, 1)
        mask, source_mask = torch.ones_like(ids, dtype=torch.bool), torch.ones(rows, 5, dtype=torch.bool)
        mask[-1, 1 + new :], source_mask[-1, 3:] = False, False
        if core.spec.decoder is None:
            kinds = ids % 4 if core.spec.stack.segments else None
            given = {} if kinds is None else {"segments": kinds}
            out = run.call("model", {"ids": ids, "padding_mask": mask, **given})
            inputs = Inputs(padding_mask=mask, segments=kinds)
            expected = core.classify(ids, inputs) if core.spec.labels else core(ids, inputs).logits * mask[..., None]
            got = torch.tensor(out["labels" if core.spec.labels else "logits"])
            got = got if core.spec.labels else got * mask[..., None]
        else:
            given, inputs, name = dict[str, Any](), None, "model"
            if core.spec.encoder:
                inputs, name = Inputs(source=source, source_padding_mask=source_mask), "decoder"
                given = {"source_padding_mask": source_mask,
                         **run.call("encoder", {"source": source, "source_padding_mask": source_mask})}
            expected = core(ids, inputs).logits
            cuts = sorted(random.Random(past).sample(range(1, past + new), min(2, past)))
            got = run.write(name, ids, cuts, given)
        assert got.shape == expected.shape
        assert (got - expected).abs().max() <= 1e-4 * expected.std(), (rows, new, past)


def test_examples_are_longer_than_any_window() -> None:
    core = make_core("decoder")
    graph = plan_graphs(core)[-1]
    assert graph.outputs[1:] == [name.replace("past", "present") for name in graph.inputs if name.startswith("past")]
    assert {x.shape[2] for name, x in graph.inputs.items() if name.startswith("past")} == {10}


def test_what_cannot_be_exported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fixed(self: Any, given: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.ones(int(given[0].shape[1]))]

    monkeypatch.setattr(onnx_out.Program, "forward", fixed)
    with pytest.raises(QkvError, match=r"model.onnx: a part of this model cannot be exported"):
        write_onnx(make_core("encoder"), tmp_path / "m")
    assert not (tmp_path / "m").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_fits_short_texts_only_is_refused(tmp_path: Path) -> None:
    core = make_core("decoder")
    graph = plan_graphs(core)[0]
    short = Graph(graph.name, outputs=graph.outputs)
    for name, x in graph.inputs.items():  # shorter than the window: the mask is another one beyond it
        part = x[:, :, :2] if name.startswith("past") else x
        short.add_input(name, part, **{size: at for at, size in graph.sizes[name].items()})
    with pytest.raises(QkvError, match="in another way"):
        onnx_out.export_graph(onnx_out.copy_plain(core), short)


def test_convert_writes_graphs(tmp_path: Path) -> None:
    model = hub.build(SPECS["decoder"])
    model.save(tmp_path / "m")
    assert main(["convert", str(tmp_path / "m"), str(tmp_path / "o"), "--to", "onnx"]) == 0
    assert {p.name for p in (tmp_path / "o").iterdir()} == {"model.onnx", "graphs.json"}
    assert main(["convert", str(tmp_path / "m"), str(tmp_path / "p"), "--to", "onnx", "--to-dtype", "int8"]) == 2
