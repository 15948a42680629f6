"""Attention as the page shows it: rebuilt head by head from q and k, pooled, row by row, and never sent whole.

The panels are Heads, Walk, Mask & phase and Alignment. Read answers.py first.
Letters: Q queries, S keys, L layers, H heads.
"""

import re
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from qkv.core.masks import REASONS
from qkv.explore.body import Answer, Query
from qkv.explore.question import Refused, Run, attention_path, attention_paths
from qkv.lens import resolve
from qkv.lens.mask_reasons import LOW
from qkv.lens.mask_reasons import classify_hidden as why
from qkv.lens.step_by_step import Strip, group_of_head

THUMB, WHOLE = 24, 512  # cells of a thumbnail's side, and of the largest map that is sent unpooled


def list_parts(run: Run) -> list[dict[str, Any]]:
    """The attentions of a run, part by part."""
    found: list[dict[str, Any]] = []
    for part, paths in attention_paths(run.model).items():
        at = run.t.attentions[paths[0]].spec
        queries, keys = count_edges(run, part)
        found.append({"part": part, "path_of_layer": paths, "layers": len(paths), "heads": at.heads,
                      "groups": getattr(at, "groups", at.heads), "queries": queries, "keys": keys})
    return found


def count_edges(run: Run, part: str) -> tuple[int, int]:
    """How many positions ask in a part, and how many are asked."""
    sides = "encoder." * (part == "encoder"), "encoder." * (part in ("encoder", "cross"))
    queries, keys = (resolve.find_run(run.t, side).ids.shape[1] for side in sides)
    return queries, keys


@dataclass(frozen=True)
class Head:
    """One head of one attention of a run: the group and the tap of the keys that it meets.

    `bias` [Q, S] is what is added to its scores, number `row` of those of its attention.
    """

    t: Any
    path: str
    head: int
    group: int
    key: str
    row: int
    bias: Tensor

    def scores(self, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """q·k times the scale, capped or not, and what was added to it, each [Q, S] in fp32, for some queries."""
        q, k = self.t[f"{self.path}.q"][0, self.head, rows].float(), self.t[self.key][0, self.group].float()
        at = self.t.attentions[self.path]
        score = q @ k.T * at.scale
        return at.spec.cap * torch.tanh(score / at.spec.cap) if at.spec.cap else score, self.bias[rows]

    def weights(self, rows: slice = slice(None)) -> Tensor:
        """The pattern [Q, S] of some queries; what really acted where an edge was cut."""
        if self.t.needs_eager_attention:
            return self.t[f"{self.path}.pattern"][0, self.head, rows].float()
        score, bias = self.scores(rows)
        return (score + bias).softmax(-1)

    @property
    def line(self) -> str:
        """The pattern of the whole head in Python."""
        return f't["{self.path}.pattern"][0, {self.head}]'


def heads_of(run: Run, path: str) -> list[Head]:
    """The heads of an attention."""
    at, bias = run.t.attentions[path], run.t.bias(path)[0]
    key = f"{path}.{'k_pre' if at.spec.mask.kind == 'memory' else 'k'}"
    rows = [h if len(bias) > 1 else 0 for h in range(at.spec.heads)]
    return [Head(run.t, path, h, group_of_head(at, h), key, row, bias[row]) for h, row in enumerate(rows)]


def head_of(run: Run, query: Query) -> Head:
    """The head that a query means."""
    part, layer, head = part_of(run, query), query.get_integer("layer", 0), query.get_integer("head", 0)
    return heads_of(run, attention_path(run.model, part, layer, head))[head]


def part_of(run: Run, query: Query) -> str:
    """The part that a query means; without one that of the stack that writes."""
    return query.get_choice("part", *sorted(attention_paths(run.model), key=("decoder", "encoder", "cross").index))


def pool_max(x: Tensor, by: tuple[int, int]) -> Tensor:
    """The largest number of each tile of [Q, S]; the last tiles may be smaller."""
    return F.max_pool2d(x[None, None], by, by, ceil_mode=True)[0, 0]


def to_bytes(x: Tensor) -> Tensor:
    """Weights as u8, 255 = 1."""
    return (x * 255).round().clamp(0, 255).to(torch.uint8)


def thumbs(run: Run, query: Query) -> Answer:
    """Every head of a part, pooled to at most 24 x 24 cells; with sink=0 the first key is left out of the picture."""
    part = part_of(run, query)
    paths, sink = attention_paths(run.model)[part], query.get_choice("sink", "1", "0")
    queries, keys = count_edges(run, part)
    by = -(-queries // THUMB), -(-keys // THUMB)
    maps: list[Tensor] = []
    sinks: list[Tensor] = []
    for path in paths:
        found = [head.weights() for head in heads_of(run, path)]
        sinks.append(torch.stack([w[:, 0].mean() for w in found]))
        if sink == "0":
            for w in found:
                w[:, 0] = 0
        maps.append(torch.stack([pool_max(w, by) for w in found]))
    stem = re.sub(r"layers\.\d+", "layers.{i}", paths[0])  # for an f-string over the layers
    one = f'torch.stack([t[f"{stem}.pattern"][0, :, :, 0].mean(-1) for i in range({len(paths)})])'
    # layers with fewer heads are filled up with zeros
    arrays = {"thumbs": to_bytes(pad_sequence(maps, batch_first=True)), "sink": pad_sequence(sinks, batch_first=True)}
    return Answer({"part": part, "pool": by, "line": one}, arrays)


def attn(run: Run, query: Query) -> Answer:
    """One head, pooled where it is larger than 512 a side or where `pool` asks for it."""
    at = head_of(run, query)
    weight = at.weights()
    by = max(-(-max(weight.shape) // WHOLE), query.get_integer("pool", 1, low=1, high=1 << 12))
    return Answer({"path": at.path, "head": at.head, "pool": by, "line": at.line},
                  {"weight": to_bytes(pool_max(weight, (by, by)))})


def row(run: Run, query: Query) -> Answer:
    """One query of one head, exact: weights, scores before the softmax, what distance adds, and why keys are hidden."""
    at = head_of(run, query)
    i = query.get_integer("query", high=len(at.bias) - 1)
    score, bias = at.scores(slice(i, i + 1))
    cells, rule = at.bias <= LOW / 2, run.t.attentions[at.path].spec.mask
    reasons = ["" if n == 0 else REASONS[n] for n in why(cells, rule.kind, rule.window)[i].tolist()]
    if (key := cut_key(run, at, i)) is not None:
        reasons[key] = "cut"
    q, k = f't["{at.path}.q"][0, {at.head}, {i}].float()', f't["{at.key}"][0, {at.group}].float()'
    line, cap = f'(({k} @ {q}) * t.attentions["{at.path}"].scale)', run.t.attentions[at.path].spec.cap
    lines = {"weight": f"{at.line}[{i}]", "score": f"{cap} * torch.tanh({line} / {cap})" if cap else line,
             "bias": f't.bias("{at.path}")[0, {at.row}, {i}]'}
    return Answer({"path": at.path, "query": i, "reasons": reasons, "line": lines["weight"], "lines": lines},
                  {"weight": at.weights(slice(i, i + 1))[0], "score": score[0],
                   "bias": bias[0].masked_fill(cells[i], 0.0)})


def cut_key(run: Run, at: Head, query: int) -> int | None:
    """The key that was cut from a query of a head."""
    cut = run.question.cut
    if cut is None or cut.query != query:
        return None
    return cut.key if (attention_path(run.model, cut.part, cut.layer), cut.head) == (at.path, at.head) else None


def mask(run: Run, query: Query) -> Answer:
    """Who may look at whom in an attention, and why not."""
    path = attention_path(run.model, part_of(run, query), query.get_integer("layer", 0))
    found = run.t.mask(path)
    return Answer({"path": path, "kind": found.kind, "reasons": ["", *REASONS[1:]], "line": f't.mask("{path}").cells'},
                  {"code": found.cells.to(torch.uint8)})


def walk(run: Run, query: Query) -> Answer:
    """The seven steps of one position, each strip with its line; long strips are cut to 64 numbers."""
    at = head_of(run, query)
    asks, keys = at.bias.shape
    spot, key = query.get_integer("query", high=asks - 1), query.get_integer("key", 0, high=keys - 1)
    found = run.t.walk(at.path, head=at.head, query=spot, key=key)
    focus = {"pattern": key, "score": key, "mask": key, "ids": spot, "head weights": at.head}
    steps = [{"step": name, "strips": [strip_as_json(s, focus.get(s.name)) for s in strips]}
             for name, strips in found.steps.items()]
    reason = "cut" if cut_key(run, at, spot) == key else "" if found.reason == "seen" else found.reason
    weight = found["weight"]
    return Answer({"path": at.path, "head": at.head, "query": spot, "key": key, "steps": steps, "reason": reason,
                   "weight": float(weight.values), "line": qualify_line(weight.line)})


def qualify_line(line: str) -> str:
    """A line of a walk that needs no names but `t`, `torch` and `qkv`."""
    return re.sub(r"(?<![\w.])core\.", "t.core.", line).replace("sinusoid(", "qkv.core.positions.sinusoid(")


def strip_as_json(s: Strip, at: int | None) -> dict[str, Any]:
    """One strip: up to 64 numbers round the one in focus, whose place in the whole is `from`."""
    flat, line = s.values.flatten(), qualify_line(s.line)
    begin = 0 if at is None else max(0, min(at - 32, len(flat) - 64))
    rows = f"torch.as_tensor({line}).flatten()" if s.values.dim() > 1 else line
    shown = slice(begin, begin + 64)
    return {
        "name": s.name, "line": rows, "letters": s.letters, "shape": list(s.whole), "scalar": s.values.dim() == 0,
        "values": [None if isinstance(v, float) and v <= LOW / 2 else v for v in flat[shown].tolist()],
        "whole": len(flat), "from": begin, **({"words": list(s.words[shown])} if s.words else {}),
        **({"at": at - begin} if at is not None else {}),
    }


def alignment(run: Run, query: Query) -> Answer:
    """Where each written word looked in the source: the mean over one layer's heads."""
    if not run.model.encoder_decoder:
        raise Refused("only an encoder-decoder aligns words")
    ids = run.first.ids
    real = len(ids) - (ids[-1] in run.model.special.eos)
    paths = attention_paths(run.model)["cross"]
    layer = query.get_integer("layer", -1, high=len(paths) - 1) if "layer" in query.values else None
    found = run.t.alignment(layer=layer, source=real)
    return Answer({"layer": found.layer, "chosen": layer is None, "line": f"t.alignment(layer={found.layer}).weight"},
                  {"weight": found.weight.float()})
