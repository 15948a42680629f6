"""A model as ONNX graphs for onnxruntime and others: new tokens, given the keys and values of those before, to logits.

The graphs are the core's own forward pass, exported by torch.export; graphs.json names what each takes and gives.
"""

import json
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from qkv.core import attention
from qkv.core.cache import Cache, Pair
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.files import replace_dir, write_text_file
from qkv.spec import Spec

Role = Literal["model", "encoder", "decoder"]


class Past(Cache):
    """Keys and values as tensors that come in and go out; attention is the formula written out."""

    def __init__(self, own: Sequence[Pair] = (), memory: Sequence[Pair] = ()) -> None:
        self.own, self.memory = dict(enumerate(own)), dict(enumerate(memory))
        self.length = own[0][0].shape[2] if own else 0

    def append(self, layer: int, k: Tensor, v: Tensor) -> Pair:
        if layer in self.own:
            k, v = (torch.cat(both, 2) for both in zip(self.own[layer], (k, v), strict=True))
        self.own[layer] = k, v
        return k, v

    def get_or_compute(self, layer: int, make: Callable[[], Pair]) -> Pair:
        if layer not in self.memory:
            self.memory[layer] = make()
        return self.memory[layer]

    def choose_attend(self, usual: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return attention.attend


@dataclass
class Graph:
    """One graph: example inputs by name, for each the names of its free dimensions, and the names of its outputs."""

    name: Role
    inputs: dict[str, Tensor] = field(default_factory=dict)
    sizes: dict[str, dict[int, str]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def add_input(self, name: str, example: Tensor, **sizes: int) -> None:
        """Add an input; `sizes` says which dimension each name stands for."""
        self.inputs[name], self.sizes[name] = example, {at: size for size, at in sizes.items()}


class Program(nn.Module):
    """What a graph computes: a list of tensors in, a list of tensors out."""

    def __init__(self, core: Transformer, graph: Graph) -> None:
        super().__init__()
        self.core, self.graph = core, graph

    def forward(self, given: list[Tensor]) -> list[Tensor]:
        at = dict(zip(self.graph.inputs, given, strict=True))
        if self.graph.name == "encoder":
            cache = Past()
            source = Inputs(source=at["source"], source_padding_mask=at["source_padding_mask"])
            self.core(at["source"][:, :1] * 0, source, cache, mode="prefill")
            return flatten(cache.memory)
        if self.core.spec.decoder is None:
            inputs = Inputs(padding_mask=at["padding_mask"], segments=at.get("segments"))
            if self.core.spec.labels:
                return [self.core.classify(at["ids"], inputs, mode="prefill")]
            logits, hidden = self.core(at["ids"], inputs, mode="prefill")
            return [hidden] if logits is None else [logits, hidden]
        memory, inputs = list_pairs(at, "memory"), None
        if memory:  # its keys are there, so that only its length is read
            inputs = Inputs(memory=memory[0][0][:, 0], source_padding_mask=at["source_padding_mask"])
        cache = Past(list_pairs(at, "past"), memory)
        logits = self.core(at["ids"], inputs, cache, mode="decode").logits
        return [logits, *flatten(cache.own)]


def flatten(pairs: dict[int, Pair]) -> list[Tensor]:
    """The tensors of all layers, keys before values."""
    return [t for layer in sorted(pairs) for t in pairs[layer]]


def name_pairs(kind: str, layers: int) -> list[str]:
    """The names of the tensors of all layers: past.0.k, past.0.v, past.1.k …"""
    return [f"{kind}.{layer}.{part}" for layer in range(layers) for part in "kv"]


def list_pairs(at: dict[str, Tensor], kind: str) -> list[Pair]:
    """The pairs among named tensors."""
    found = [tensor for name, tensor in at.items() if name.startswith(f"{kind}.")]
    return list(zip(found[::2], found[1::2], strict=True))


def plan_graphs(core: Transformer) -> list[Graph]:
    """The graphs of a model, with small examples; those of windows are longer than the longest of them."""
    s, ids = core.spec, torch.ones(2, 3, dtype=torch.int64)
    mask = torch.ones(2, 3, dtype=torch.bool)
    if s.decoder is None:
        graph = Graph("model", outputs=["labels"] if s.labels else ["logits", "hidden"] if s.head else ["hidden"])
        graph.add_input("ids", ids, batch=0, tokens=1)
        graph.add_input("padding_mask", mask, batch=0, tokens=1)
        if s.labels and s.stack.segments > 1:  # a label may be that of two texts
            graph.add_input("segments", 0 * ids, batch=0, tokens=1)
        return [graph]
    cache, layers, graphs = Past(), len(s.decoder.blocks), list[Graph]()
    source = Inputs(source=ids, source_padding_mask=mask) if s.encoder else None
    with torch.no_grad():
        core(ids, source, cache, mode="prefill")
    graph = Graph("decoder" if s.encoder else "model", outputs=["logits", *name_pairs("present", layers)])
    graph.add_input("ids", ids, batch=0, tokens=1)
    if s.encoder:
        encoder = Graph("encoder", outputs=name_pairs("memory", layers))
        encoder.add_input("source", ids, batch=0, source=1)
        for each in (encoder, graph):
            each.add_input("source_padding_mask", mask, batch=0, source=1)
        graphs.append(encoder)
        for name, pair in zip(name_pairs("memory", layers), flatten(cache.memory), strict=True):
            graph.add_input(name, pair.clone(), batch=0, source=2)
    length = 4 + max((b.attn.mask.window or 0 for b in s.decoder.blocks), default=0)
    for name, pair in zip(name_pairs("past", layers), flatten(cache.own), strict=True):
        graph.add_input(name, pair.new_zeros(*pair.shape[:2], length, pair.shape[3]), batch=0, past=2)
    return [*graphs, graph]


def write_onnx(core: Transformer, directory: Path, *, tokenizer: str = "") -> list[Path]:
    """Write the graphs of a model in fp32, graphs.json and the text of its tokenizer.json into a new directory.

    Raises:
        QkvError: the packages for it are not installed, or a part of the model cannot be exported.
    """
    if find_spec("onnxscript") is None:
        raise QkvError("writing ONNX needs the package onnxscript: pip install \"qkv[onnx]\"")
    plain = copy_plain(core)
    graphs = plan_graphs(plain)
    with replace_dir(directory) as aside:
        for graph in graphs:
            export_graph(plain, graph).save(aside / f"{graph.name}.onnx")
        about = {g.name: {"inputs": {n: name_sizes(g, n) for n in g.inputs}, "outputs": g.outputs} for g in graphs}
        write_text_file(aside / "graphs.json", json.dumps(about, indent=1) + "\n")
        if tokenizer:
            write_text_file(aside / "tokenizer.json", tokenizer)
    return [directory / f"{graph.name}.onnx" for graph in graphs]


def name_sizes(graph: Graph, name: str) -> list[int | str]:
    """The shape of an input, with names for the sizes that may differ; `past` may be 0."""
    return [graph.sizes[name].get(at, size) for at, size in enumerate(graph.inputs[name].shape)]


def copy_plain(core: Transformer) -> Transformer:
    """The same model of plain fp32 layers, which have no kernels of ours."""
    with torch.device("meta"):
        plain = Transformer(core.spec)
    plain.load_state_dict({name: x.detach().float() if x.is_floating_point() else x.detach()
                           for name, x in core.state_dict().items()}, assign=True)
    plain.tie()
    return plain.eval().requires_grad_(requires_grad=False)


def export_graph(core: Transformer, graph: Graph) -> Any:
    """The program of a graph in ONNX, with every named size free."""
    dynamic = [dict.fromkeys(graph.sizes[name], torch.export.Dim.DYNAMIC) for name in graph.inputs]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(Program(core, graph), (list(graph.inputs.values()),),
                                          dynamic_shapes=(dynamic,), strict=False)
            check_ranges(program, core.spec)
            return torch.onnx.export(program, dynamo=True, verbose=False, input_names=list(graph.inputs),
                                     output_names=graph.outputs)
        except RuntimeError as e:
            raise QkvError("{name}.onnx: a part of this model cannot be exported: {why}", name=graph.name,
                           why=str(e).strip().partition("\n")[0][:300]) from e


def check_ranges(program: Any, spec: Spec) -> None:
    """QkvError if a size was found to be bounded below the model's context."""
    most = min((int(r.upper) for r in program.range_constraints.values() if r.upper < 1 << 40), default=None)
    if most is not None and most < (spec.context or most):
        raise QkvError("beyond {most} tokens this model computes in another way, which one graph cannot say", most=most)
