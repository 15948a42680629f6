"""What the page asks of a run, and each answer: JSON, or arrays, with the Python line that gives the numbers.

`answer(run, "row", query)` is all that server.py and record.py call. Lines evaluate with `run.scope`: `t` (the trace),
`t2` (the second text's), `model`, `torch` and `qkv`. Read run.py before.
Letters: T positions, Q queries, S keys, L layers, H heads, V vocabulary.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv import hub
from qkv.core.masks import REASONS
from qkv.errors import nearest
from qkv.explore import scenes
from qkv.explore.body import Answer, Query
from qkv.explore.run import Pass, Refused, Run, attentions, kind, longest, place
from qkv.hub import Model, start_of
from qkv.lens import readout, where, words
from qkv.lens.mask import LOW
from qkv.lens.mask import reasons as why
from qkv.lens.patch import Case
from qkv.lens.routes import modules
from qkv.lens.walk import Strip, shared
from qkv.sample import Sampling

CHECKED = 5_000_000  # weights that are rebuilt before the page opens
THUMB, WHOLE = 24, 512  # cells of a thumbnail's side, and of the largest map that is sent unpooled
WORK = 5e10  # multiply-adds of the head that one lens may take: more, and only the last positions are shown


def answer(run: Run, what: str, said: Mapping[str, str]) -> Answer:
    """The answer to `what`, one of ANSWERS, about a run."""
    if what not in ANSWERS:
        there = ", ".join(ANSWERS)
        raise Refused(
            f"没有 {what}；有：{there}", f"there is no {what}{nearest(what, ANSWERS)}; there are {there}", 404
        )
    function, keys = ANSWERS[what]
    query = Query(said)
    query.only(*keys)
    with torch.inference_mode():
        return function(run, query)


# What the model is


def about(model: Model, name: str, names: list[str], lang: str, examples: list[str]) -> Answer:
    """What the page shows before anything was asked."""
    spec = model.spec
    at = spec.stack.blocks[0].attn
    latent = {"rank": at.kv_rank, "rotary": at.rotary.dim} if not hasattr(at, "groups") else None  # pyright: ignore
    moe = next((b.moe for b in spec.stack.blocks if b.moe), None)
    experts = {"count": moe.count, "chosen": moe.chosen, "shared": moe.shared is not None} if moe else None
    stacks = [len(s.blocks) if s else 0 for s in (spec.encoder, spec.decoder)]
    card = {**scenes.card(model.core), "layers": stacks, "groups": getattr(at, "groups", at.heads), "experts": experts,
            "latent": latent, "context": spec.context or spec.stack.longest}  # fmt: skip
    return Answer({"models": names, "model": name, "kind": kind(model), "lang": lang, "examples": examples,
                   "card": card, "longest": longest(model), "labels": list(model.labels), "line": "model"})  # fmt: skip


def tokens(t: Any, ids: list[int]) -> list[dict[str, Any]]:
    """Tokens as people read them; a character that is cut into several carries the share that each is."""
    made = t.tokenizer.pieces(ids)
    found: list[dict[str, Any]] = []
    for i, (shown, piece) in enumerate(zip(where.shown(t, ids), made, strict=True)):
        text, _, share = shown.rpartition(" ") if shown != piece else (shown, "", "")
        found.append({"text": text, "id": ids[i], **({"bytes": share} if share else {})})
    return found


def meta(run: Run, query: Query) -> Answer:
    """What was read and written, which attentions there are, and how far rebuilt numbers are from those that ran."""
    t, model, first, q = run.t, run.model, run.first, run.question
    both, spec = model.encoder_decoder, model.spec
    decoder = None
    if spec.decoder:
        heard = where.passed(t)
        decoder = {"tokens": tokens(t, heard.ids[0].tolist()), "prompt": heard.calls[0].ids.shape[1],
                   "phases": heard.phases}  # fmt: skip
    encoder = {"tokens": tokens(t, where.passed(t, "encoder.").ids[0].tolist())} if spec.encoder else None
    chances = [math.exp(p) for p in first.logprobs]
    spoken = [{**w, "p": p, "forced": i < len(q.force)}
              for i, (w, p) in enumerate(zip(tokens(t, first.written), chances, strict=True))]  # fmt: skip
    gaps = t.check() if first.full and checks(run) <= CHECKED else {}
    labels = None
    if spec.labels and not (spec.decoder and spec.head):
        chances_of = t["labels.out"][0].float().softmax(-1).tolist()
        labels = [[n, p] for n, p in zip(model.labels, chances_of, strict=True)]
    second = run.second and {"text": run.second.text, "output": run.second.output}
    said = [*first.said, *(run.second.said if run.second else [])]
    return Answer({
        "text": first.text, "output": first.output, "kind": kind(model), "model": run.name, "encoder": encoder,
        "decoder": decoder, "written": spoken, "labels": labels, "second": second, "parts": listed(run),
        "panels": panels(run), "check": max(gaps.values()) if gaps else None,
        "checks": gaps, "said": [{"zh": zh, "en": en} for zh, en in said], "cut": cutting(run), "full": first.full,
        "source": len(first.ids) if both else None, "line": "max(t.check().values())", "how": how(run),
    })  # fmt: skip


def check(run: Run, query: Query) -> Answer:
    """How far what is rebuilt is from what ran, attention by attention; `meta` says it at once where that is quick."""
    gaps = run.t.check()
    return Answer({"check": max(gaps.values()), "checks": gaps, "line": "max(t.check().values())"})


def checks(run: Run) -> int:
    """How many weights a check rebuilds."""
    return sum(p["layers"] * p["heads"] * p["queries"] * p["keys"] for p in listed(run))


def how(run: Run) -> str:
    """The Python that makes the trace `t` of a run."""
    q, made = run.question, []
    for name in ("second", "max_new_tokens", "beam", "sampling", "force", "cut"):
        value = getattr(q, name)
        if value not in (None, ()):
            made.append(f", {name}={value!r}")
    lines = (
        "import qkv", "from qkv.explore.run import ask, Cut, Question", f"model = qkv.load({run.name!r})",
        f"t = ask(model, Question({q.text!r}{''.join(made)})).t",
    )  # fmt: skip
    return "\n".join(lines)


def cutting(run: Run) -> dict[str, Any] | None:
    """The cut of a run as it was asked."""
    cut = run.question.cut
    return {k: v for k, v in vars(cut).items() if v is not None} if cut else None


def listed(run: Run) -> list[dict[str, Any]]:
    """The attentions of a run, part by part."""
    found: list[dict[str, Any]] = []
    for part, paths in attentions(run.model).items():
        at = run.t.attentions[paths[0]].spec
        found.append({
            "part": part, "path_of_layer": paths, "layers": len(paths), "heads": at.heads,
            "groups": getattr(at, "groups", at.heads), "queries": asking(run.first, part),
            "keys": asked(run.first, part),
        })  # fmt: skip
    return found


def asking(first: Pass, part: str) -> int:
    """How many positions ask in a part."""
    return where.passed(first.t, "encoder." if part == "encoder" else "").ids.shape[1]


def asked(first: Pass, part: str) -> int:
    """How many positions are asked in a part."""
    return where.passed(first.t, "encoder." if part in ("encoder", "cross") else "").ids.shape[1]


def panels(run: Run) -> list[str]:
    """The answers that make sense for a run."""
    spec, full = run.model.spec, run.first.full
    there = {
        "lens": spec.head is not None, "attn": True, "walk": full, "choices": spec.head is not None,
        "parts": full and spec.head is not None, "mask": True, "wavefront": True, "cache": spec.decoder is not None,
        "alignment": run.model.encoder_decoder, "routes": bool(modules(run.t)), "shift": full,
        "gradient": faithful(run),
        "neighbours": True, "analogy": True, "cost": True, "diff": run.second is not None,
        "proof": spec.decoder is not None and spec.head is not None,
    }  # fmt: skip
    return [name for name, fits in there.items() if fits]


def faithful(run: Run) -> bool:
    """Whether a pass of its own, as the gradient makes one, says what the run said: no free prefix, nothing cut."""
    return run.model.spec.head is not None and kind(run.model) != "prefix" and run.question.cut is None


# Attention: rebuilt head by head from q and k, never sent whole


@dataclass(frozen=True)
class Head:
    """One head of one attention of a run, with what is added to the scores of all of them, [H or 1, Q, S]."""

    t: Any
    path: str
    head: int
    bias: Tensor

    @property
    def group(self) -> int:
        """The key/value group that it reads."""
        return shared(self.t.attentions[self.path], self.head)

    @property
    def key(self) -> str:
        """The tap of the keys that it meets."""
        at = self.t.attentions[self.path]
        return f"{self.path}.{'k_pre' if at.spec.mask.kind == 'memory' else 'k'}"

    def scores(self, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """q·k times the scale, and what was added to it, each [Q, S] in fp32, for some queries."""
        q, k = self.t[f"{self.path}.q"][0, self.head, rows].float(), self.t[self.key][0, self.group].float()
        return q @ k.T * self.t.attentions[self.path].scale, self.bias[self.head if len(self.bias) > 1 else 0, rows]

    def weights(self, rows: slice = slice(None)) -> Tensor:
        """The pattern [Q, S] of some queries; what really acted where an edge was cut."""
        if self.t.opens:
            return self.t[f"{self.path}.pattern"][0, self.head, rows].float()
        score, bias = self.scores(rows)
        return (score + bias).softmax(-1)

    @property
    def line(self) -> str:
        """The pattern of the whole head in Python."""
        return f't["{self.path}.pattern"][0, {self.head}]'


def heads_of(run: Run, path: str) -> list[Head]:
    """The heads of an attention."""
    bias = run.t.bias(path)[0]
    return [Head(run.t, path, h, bias) for h in range(run.t.attentions[path].spec.heads)]


def head_of(run: Run, query: Query) -> Head:
    """The head that a query means."""
    path = place(run.model, part_of(run, query), query.whole("layer", 0), query.whole("head", 0))
    return heads_of(run, path)[query.whole("head", 0)]


def part_of(run: Run, query: Query) -> str:
    """The part that a query means; without one that of the stack that speaks."""
    return query.choice("part", *sorted(attentions(run.model), key=("decoder", "encoder", "cross").index))


def pooled(x: Tensor, by: tuple[int, int]) -> Tensor:
    """The largest number of each tile of [..., Q, S]; the last tiles may be smaller."""
    return F.max_pool2d(x.flatten(0, -3)[:, None] if x.dim() > 3 else x[None], by, by, ceil_mode=True)


def bytes_of(x: Tensor) -> Tensor:
    """Weights as u8, 255 = 1."""
    return (x * 255).round().clamp(0, 255).to(torch.uint8)


def thumbs(run: Run, query: Query) -> Answer:
    """Every head of a part, pooled to at most 24 x 24 cells; with sink=0 the first key is left out of the picture."""
    part = part_of(run, query)
    paths, sink = attentions(run.model)[part], query.choice("sink", "1", "0")
    by = tuple(-(-n // THUMB) for n in (asking(run.first, part), asked(run.first, part)))
    maps: list[Tensor] = []
    sinks: list[Tensor] = []
    for path in paths:
        found = [head.weights() for head in heads_of(run, path)]
        sinks.append(torch.stack([w[:, 0].mean() for w in found]))
        if sink == "0":
            for w in found:
                w[:, 0] = 0
        maps.append(torch.stack([pooled(w[None], (by[0], by[1]))[0, 0] for w in found]))
    heads = max(map(len, maps))
    one = f'torch.stack([t[f"{stem(paths[0])}.pattern"][0, :, :, 0].mean(-1) for i in range({len(paths)})])'
    return Answer(
        {"part": part, "pool": list(by), "line": one},
        {"thumbs": bytes_of(torch.stack([F.pad(m, (0, 0, 0, 0, 0, heads - len(m))) for m in maps])),
         "sink": torch.stack([F.pad(s, (0, heads - len(s))) for s in sinks])},
    )  # fmt: skip


def stem(path: str) -> str:
    """A path with its layer as the variable i of an f-string."""
    return re.sub(r"layers\.\d+", "layers.{i}", path)


def attn(run: Run, query: Query) -> Answer:
    """One head, pooled where it is larger than 512 a side or where `pool` asks for it."""
    at = head_of(run, query)
    weight = at.weights()
    auto = -(-max(weight.shape) // WHOLE)
    by = max(auto, query.whole("pool", 1, low=1, high=1 << 12))
    return Answer({"path": at.path, "head": at.head, "pool": by, "line": at.line},
                  {"weight": bytes_of(pooled(weight[None], (by, by))[0, 0])})  # fmt: skip


def row(run: Run, query: Query) -> Answer:
    """One query of one head, exact: weights, scores before the softmax, what distance adds, and why keys are hidden."""
    at = head_of(run, query)
    i = query.whole("query", high=asking(run.first, part_of(run, query)) - 1)
    score, bias = at.scores(slice(i, i + 1))
    weight = at.weights(slice(i, i + 1))[0]
    cells = at.bias[0] <= LOW / 2
    rule = run.t.attentions[at.path].spec.mask
    reasons = [REASONS[n] for n in why(cells, rule.kind, rule.window)[i].tolist()]
    if (key := cut_key(run, at, i)) is not None:
        reasons[key] = "cut"
    q, k = f't["{at.path}.q"][0, {at.head}, {i}].float()', f't["{at.key}"][0, {at.group}].float()'
    spot = at.head if len(at.bias) > 1 else 0
    lines = {
        "weight": f"{at.line}[{i}]", "score": f'(({k} @ {q}) * t.attentions["{at.path}"].scale)',
        "bias": f't.bias("{at.path}")[0, {spot}, {i}]',
    }  # fmt: skip
    return Answer(
        {"path": at.path, "query": i, "reasons": ["" if r == "seen" else r for r in reasons],
         "line": lines["weight"], "lines": lines},
        {"weight": weight, "score": score[0], "bias": bias[0].masked_fill(cells[i], 0.0)},
    )  # fmt: skip


def cut_key(run: Run, at: Head, query: int) -> int | None:
    """The key that was cut from a query of a head."""
    cut = run.question.cut
    if cut is None or cut.query != query or (place(run.model, cut.part, cut.layer), cut.head) != (at.path, at.head):
        return None
    return cut.key


def mask(run: Run, query: Query) -> Answer:
    """Who may look at whom in an attention, and why not."""
    path = place(run.model, part_of(run, query), query.whole("layer", 0))
    found = run.t.mask(path)
    return Answer(
        {"path": path, "kind": found.kind, "reasons": ["", *REASONS[1:]], "line": f't.mask("{path}").cells'},
        {"code": found.cells.to(torch.uint8)},
    )  # fmt: skip


def walk(run: Run, query: Query) -> Answer:
    """The seven steps of one position, each strip with its line; long strips are cut to 64 numbers."""
    at = head_of(run, query)
    part = part_of(run, query)
    spots = {"query": query.whole("query", high=asking(run.first, part) - 1),
             "key": query.whole("key", 0, high=asked(run.first, part) - 1)}  # fmt: skip
    found = run.t.walk(at.path, head=at.head, **spots)
    focus = {"pattern": spots["key"], "score": spots["key"], "mask": spots["key"], "ids": spots["query"],
             "head weights": at.head}  # fmt: skip
    steps = [
        {"step": name, "strips": [strip(s, focus.get(s.name)) for s in strips]} for name, strips in found.steps.items()
    ]
    gone = cut_key(run, at, spots["query"]) == spots["key"]
    said = "cut" if gone else "" if found.reason == "seen" else found.reason
    weight = found["weight"]
    return Answer({"path": at.path, "head": at.head, **spots, "steps": steps, "reason": said,
                   "weight": float(weight.values), "line": scoped(weight.line)})  # fmt: skip


def scoped(line: str) -> str:
    """A line of a walk that needs no names but `t`, `torch` and `qkv`."""
    return re.sub(r"(?<![\w.])core\.", "t.core.", line).replace("sinusoid(", "qkv.core.positions.sinusoid(")


def strip(s: Strip, at: int | None) -> dict[str, Any]:
    """One strip: up to 64 numbers round the one in focus, whose place in the whole is `from`."""
    flat, line = s.values.flatten(), scoped(s.line)
    begin = 0 if at is None else max(0, min(at - 32, len(flat) - 64))
    rows = f"torch.as_tensor({line}).flatten()" if s.values.dim() > 1 else line
    some = flat[begin : begin + 64].tolist()
    low = LOW / 2
    return {
        "name": s.name, "line": rows, "letters": s.letters, "shape": list(s.whole), "scalar": s.values.dim() == 0,
        "values": [None if isinstance(v, float) and v <= low else v for v in some], "whole": len(flat), "from": begin,
        **({"words": list(s.words[begin : begin + 64])} if s.words else {}),
        **({"at": at - begin} if at is not None else {}),
    }  # fmt: skip


# Guesses


def lens(run: Run, query: Query) -> Answer:
    """Each layer's likeliest next tokens at every position, or at one."""
    t, spec, top = run.t, run.model.spec, query.whole("top", 5, low=1, high=50)
    if query.choice("part", "decoder", "encoder") == "encoder" and spec.decoder:
        raise Refused(
            "编码器不说词：它的状态不经过输出层", "the encoder says no words: its states do not meet the head"
        )
    if spec.head is None:
        raise Refused("这个模型没有输出层，每层不猜词", "this model has no head, so its layers guess no words")
    heard = where.passed(t)
    size, names = heard.ids.shape[1], readout.layers(t, "decoder" if spec.decoder else "encoder")
    layers = ["embed", *(str(i + 1) for i in range(len(names)))]
    if "pos" in query.said:
        first = query.whole("pos", high=size - 1)
        places, line = [slice(first, first + 1)], f"t.lens({first}, top={top}).chances"
    else:
        each = len(layers) * spec.stack.width * spec.vocabulary
        first = max(0, size - max(1, int(WORK // each)))
        tile = max(1, (32 << 20) // (len(layers) * spec.vocabulary))
        places = [slice(i, min(i + tile, size)) for i in range(first, size, tile)]
        line = f"t.lens(top={top}).chances" + (f"[:, {first}:]" if first else "")
    best = [readout.logits(t, places=p)[1].softmax(-1).topk(min(top, spec.vocabulary), -1) for p in places]
    ids, chances = (torch.cat([getattr(b, n) for b in best], 1).tolist() for n in ("indices", "values"))
    cells = [[[[w, p] for w, p in zip(t.tokenizer.pieces(i), ps, strict=True)] for i, ps in zip(*rows, strict=True)]
             for rows in zip(ids, chances, strict=True)]  # fmt: skip
    used = believed(run, heard)[first : first + len(cells[0])]
    return Answer({"layers": layers, "first": first, "used": used, "cells": cells, "ids": ids, "line": line})


def believed(run: Run, heard: Any) -> list[bool]:
    """Whether the guess at each position counts: an encoder's at its masks (everywhere without one), else as it ran."""
    if run.model.spec.decoder:
        return heard.used
    mask_id = run.model.tokenizer.mask_id if run.model.tokenizer else None
    ids = heard.ids[0].tolist()
    return [i == mask_id for i in ids] if mask_id in ids else [True] * len(ids)


def position(run: Run, query: Query) -> int:
    """The position asked about: by default the one after which the first word is said, or an encoder's first mask."""
    size = where.passed(run.t).ids.shape[1]
    if "pos" in query.said:
        return query.whole("pos", high=size - 1)
    return believed(run, where.passed(run.t)).index(True)


def sampling_of(query: Query) -> Sampling:
    """The filters that a query sets; those at their defaults are off."""
    heat, top_k = query.number("temperature", 1.0), query.whole("top_k", 0)
    top_p, min_p = query.number("top_p", 1.0), query.number("min_p", 0.0)
    return Sampling(heat, top_k or None, top_p if top_p != 1.0 else None, min_p or None)


def choices(run: Run, query: Query) -> Answer:
    """The whole vocabulary's distribution after a position, and what each filter leaves, in the order they act."""
    pos, s = position(run, query), sampling_of(query)
    found = run.t.choices(pos, sampling=s)
    line = f"t.choices({pos}, sampling=qkv.sample.Sampling({s.temperature!r}, {s.top_k!r}, {s.top_p!r}, {s.min_p!r}))"
    stages: list[dict[str, Any]] = []
    for n, stage in enumerate(found):
        ids, chances = stage.top(query.whole("top", 20, low=1, high=200))
        best = [{"id": i, "text": w, "p": p} for i, w, p in zip(ids, run.t.tokenizer.pieces(ids), chances, strict=True)]
        stages.append({"name": stage.name, "kept": stage.kept, "entropy": stage.entropy, "gone": stage.gone,
                       "top": best, "line": f"{line}[{n}]"})  # fmt: skip
    said = where.passed(run.t).ids[0].tolist()[pos + 1 : pos + 2] or run.first.written[-1:]
    return Answer(
        {"pos": pos, "next": said[0] if said and run.model.spec.decoder else None, "stages": stages, "line": line}
    )


def goal(run: Run, query: Query, key: str) -> int | None:
    """A token asked for by its id or its text."""
    said = query.text(key)
    return None if not said else where.token(run.t, int(said) if said.isdigit() else said)


def parts(run: Run, query: Query) -> Answer:
    """Who pushed the logit of a token after a position: sub-layers, heads, or the neurons of one layer."""
    pos, by = position(run, query), query.choice("by", "sublayer", "head", "neuron")
    token, vs = goal(run, query, "token"), goal(run, query, "vs")
    found = run.t.parts(pos, token, vs=vs)
    line = f"t.parts({pos}, {found.token}, vs={vs})"
    rows = [(p.name, p.push, f'{line}["{p.name}"]') for p in (found.sublayers if by == "sublayer" else found.parts)]
    if by == "neuron":
        layer = query.whole("layer", 0, high=len(run.model.spec.stack.blocks) - 1)
        call = f"t.neurons({layer}, {pos}, {found.token}, vs={vs}, top=50)"
        rows = [
            (p.name, p.push, f"{call}[{i}].push")
            for i, p in enumerate(run.t.neurons(layer, pos, found.token, vs=vs, top=50))
        ]
    post = any(n.endswith("_sum") for n in found.frozen)
    after_each = ("；各层之后的归一化按当时的尺度折算", "; later norms scale what came before") if post else ("", "")
    note = {"zh": f"归一化的均值与尺度按这一次的值固定{after_each[0]}",
            "en": f"norms act with the mean and scale that they had{after_each[1]}"}  # fmt: skip
    shown = run.t.tokenizer.pieces([found.token, *([] if found.vs is None else [found.vs])])
    return Answer({
        "token": found.token, "vs": found.vs, "text": shown[0], "vs_text": shown[1] if len(shown) > 1 else None,
        "pos": found.pos, "logit": found.logit, "gap": found.gap, "frozen": list(found.frozen), "note": note,
        "parts": [{"name": n, "push": p, "line": at} for n, p, at in rows], "line": f"{line}.logit",
    })  # fmt: skip


def gradient(run: Run, query: Query) -> Answer:
    """How each token read bears on the next word, by one more pass with a way back."""
    if not faithful(run):
        raise Refused(
            "梯度要再跑一遍，不知道自由前缀，也不带剪断",
            "the gradient runs once more, without the free prefix or the cut",
        )
    pos, token = position(run, query), goal(run, query, "token")
    with torch.inference_mode(False):
        found = run.t.gradient(pos, token)
    read = where.passed(run.t, "encoder." if run.model.encoder_decoder else "").ids[0].tolist()
    return Answer({"pos": pos, "token": found.token, "text": run.t.tokenizer.pieces([found.token])[0],
                   "tokens": tokens(run.t, read), "push": found.times, "logit": found.logit,
                   "line": f"t.gradient({pos}, {found.token}).times"})  # fmt: skip


# The order of the work, and what it costs


def wavefront(run: Run, query: Query) -> Answer:
    """The grid of layers and tokens: what could be computed when, what the machine ran, and what each state reads."""
    found = run.t.wavefront()
    grids = {n: getattr(found, n).to(torch.int32) for n in ("triangle", "earliest", "ran")}
    same = bool((found.sees == found.sees[:1]).all())
    return Answer(
        {"layers": len(found.ran), "same": same,
         "tokens": tokens(run.t, where.passed(run.t).ids[0].tolist()),
         "line": "t.wavefront().ran", "lines": {n: f"t.wavefront().{n}" for n in (*grids, "sees")}},
        {**grids, "sees": found.sees[: 1 if same else None].to(torch.uint8)},
    )  # fmt: skip


def cache(run: Run, query: Query) -> Answer:
    """Bytes and work of every step, with the cache and without; and bytes per token of other kinds of attention."""
    if run.model.spec.decoder is None:
        raise Refused("编码器一次读完，不留缓存", "an encoder alone reads its text once and keeps nothing")
    found = run.t.cache()
    calls = where.passed(run.t).calls
    steps = [
        {"tokens": s.length, "bytes": s.bytes, "bytes_without": 0, "work": s.fresh, "work_without": s.again,
         "phase": c.mode, "line": f"t.cache().steps[{n}]"}
        for n, (s, c) in enumerate(zip(found.steps, calls, strict=True))
    ]  # fmt: skip
    return Answer({"steps": steps, "kinds": found.kinds, "memory": found.memory, "real": found.real,
                   "saved": found.saved, "line": "t.cache()"})  # fmt: skip


def cost(model: Model, query: Query) -> Answer:
    """Parameters, operations and bytes of a model at a context, for a batch, in a number format."""
    query.only("context", "batch", "dtype", "model")
    own = str(model.core.embed.weight.dtype).removeprefix("torch.")
    dtype, batch = query.text("dtype", own), query.whole("batch", 1, low=1, high=1 << 20)
    context = query.whole("context", model.spec.context or model.spec.stack.longest or 1024, low=1, high=1 << 24)
    found = hub.report(model, dtype=dtype, context=context)
    line = f"qkv.hub.report(model, dtype={dtype!r}, context={context})"
    return Answer({
        "context": context, "batch": batch, "dtype": dtype, "parameters": found["by_part"],
        "total": found["parameters"], "active": found["active_parameters"],
        "flops": {"prefill": found["flops_per_token_prefill"], "decode": found["flops_per_token"]},
        "bytes": {"weights": found["weight_bytes"], "cache": (found["kv_bytes"]) * batch,
                  "memory": found["memory_bytes_per_token"] * context * batch,
                  "activations": found["activation_bytes_per_token"] * context * batch},
        "per_token": {"cache": found["kv_bytes_per_token"], "activations": found["activation_bytes_per_token"]},
        "line": line,
        "lines": {"parameters": f'{line}["by_part"]', "total": f'{line}["parameters"]',
                  "active": f'{line}["active_parameters"]', "prefill": f'{line}["flops_per_token_prefill"]',
                  "decode": f'{line}["flops_per_token"]', "weights": f'{line}["weight_bytes"]',
                  "cache": f'{line}["kv_bytes"] * {batch}',
                  "memory": f'{line}["memory_bytes_per_token"] * {context * batch}',
                  "activations": f'{line}["activation_bytes_per_token"] * {context * batch}'},
    })  # fmt: skip


# Words and experts


def alignment(run: Run, query: Query) -> Answer:
    """Where each written word looked in the source: the mean over one layer's heads."""
    if not run.model.encoder_decoder:
        raise Refused("只有编码器-解码器模型才有对齐", "only an encoder-decoder aligns words")
    ids = run.first.ids
    real = len(ids) - (ids[-1] in run.model.special.eos)
    paths = attentions(run.model)["cross"]
    layer = query.whole("layer", -1, high=len(paths) - 1) if "layer" in query.said else None
    found = run.t.alignment(layer=layer, source=real)
    return Answer({"layer": found.layer, "chosen": layer is None, "line": f"t.alignment(layer={found.layer}).weight"},
                  {"weight": found.weight.float()})  # fmt: skip


def routes(run: Run, query: Query) -> Answer:
    """Which experts read which token in one layer."""
    found = run.t.routes() if modules(run.t) else ()
    if not found:
        raise Refused("这个模型没有专家", "this model has no experts; every token passes the same networks")
    layers = [int(r.path.split("layers.")[1].split(".")[0]) for r in found]
    layer = query.whole("layer", layers[0])
    if layer not in layers:
        there = ", ".join(map(str, layers))
        raise Refused(f"layer={layer}：有专家的层是 {there}", f"layer={layer}: the layers with experts are {there}")
    n = layers.index(layer)
    one, moe = found[n], modules(run.t)[found[n].path].spec
    read = where.passed(run.t).ids[0].tolist()
    return Answer({
        "layer": layer, "layers": layers, "path": one.path, "tokens": tokens(run.t, read), "experts": moe.count,
        "chosen": moe.chosen, "shared": moe.shared is not None, "index": one.index, "weight": one.weight,
        "load": one.load,
        "score": one.score, "line": f"t.routes()[{n}].weight",
        "lines": {name: f"t.routes()[{n}].{name}" for name in ("index", "weight", "load", "score")},
    })  # fmt: skip


def shift(run: Run, query: Query) -> Answer:
    """How a word moves through the layers: its cosine to each anchor, and its way in its own two principal axes."""
    if not run.first.full:
        raise Refused(
            "文本太长，没有记下各层的状态", "this text is too long: the states after each layer were not kept"
        )
    both = run.model.encoder_decoder
    side = "encoder." if both and query.choice("part", "encoder", "decoder") == "encoder" else ""
    if both and not side:
        raise Refused("读原文的解码器说不出单独一个词的状态；请看 part=encoder",
                      "a decoder that reads a source says nothing of a word alone; look at part=encoder")  # fmt: skip
    read = where.passed(run.t, side).ids[0].tolist()
    pos = query.whole("pos", high=len(read) - 1) if "pos" in query.said else 0
    anchors = [w.strip() for w in query.text("anchors").replace("，", ",").split(",") if w.strip()]
    if not query.text("anchors"):
        anchors = near_words(tokens(run.t, read), pos)
    if not anchors or len(anchors) > 8:
        raise Refused("anchors：写 1 到 8 个词，用逗号隔开", "anchors: give 1 to 8 words with commas between them")
    with torch.inference_mode(False), torch.no_grad():
        found = run.t.shift(pos, anchors, side=side)
    call = f"t.shift({pos}, {anchors!r}, side={side!r})"
    states = f"torch.stack([t[n][0, {pos}].float() for n in {call}.names])"
    line = f"(lambda x: (x - x.mean(0)) @ torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh[:2].T)({states})"
    x = torch.stack([run.t[n][0, pos].float() for n in found.names])
    x = x - x.mean(0)
    way = x @ torch.linalg.svd(x, full_matrices=False).Vh[:2].T  # L 2
    return Answer({
        "word": found.word, "pos": pos, "anchors": anchors,
        "layers": ["embed", *(str(i + 1) for i in range(len(found.names) - 1))],
        "cosines": dict(zip(anchors, found.cosine.T.tolist(), strict=True)), "between": found.between, "path": way,
        "line": f"{call}.cosine",
        "lines": {"cosines": f"{call}.cosine.T", "between": f"{call}.between", "path": line},
    })  # fmt: skip


PLAIN = frozenset(re.findall(r"[^\W_]+", """
    和 都 在 我 你 他 她 了 的 是 不 很 那 这 the a an and are is was of to in on both i it you he she that this
"""))  # fmt: skip


def whole_words(read: list[dict[str, Any]]) -> list[str]:
    """The tokens that are words or parts of words, "" for the others."""
    bare = [piece["text"].lstrip(" ▁Ġ#").strip() for piece in read]
    return [word if re.fullmatch(r"[^\W_]+", word) else "" for word in bare]


def near_words(read: list[dict[str, Any]], at: int) -> list[str]:
    """The first two words of a text that the one at `at` may move towards: none too plain, no lone letter."""
    fits = [w for i, w in enumerate(whole_words(read)) if i != at and (len(w) > 1 or w > "\u2e80")]
    return list(dict.fromkeys(w for w in fits if w.lower() not in PLAIN))[:2]


def neighbours(model: Model, query: Query) -> Answer:
    """The tokens nearest to a word in the embedding table."""
    query.only("word", "n", "model")
    word, n = query.text("word").strip(), query.whole("n", 10, low=1, high=100)
    if not word:
        raise Refused("word：写一个词", "word: give a word")
    found = words.neighbours(model.core, model.tokenizer, word, n)
    return near(found, f"model.trace().neighbours({word!r}, {n})")


def analogy(model: Model, query: Query) -> Answer:
    """a is to b as c is to…"""
    query.only("a", "b", "c", "n", "model")
    a, b, c = (query.text(key).strip() for key in "abc")
    if not (a and b and c):
        raise Refused("a、b、c 都要写", "analogy: give a, b and c")
    n = query.whole("n", 5, low=1, high=100)
    return near(words.analogy(model.core, model.tokenizer, a, b, c, n=n),
                f"model.trace().analogy({a!r}, {b!r}, {c!r}, n={n})")  # fmt: skip


def near(found: list[words.Near], line: str) -> Answer:
    """Tokens with their cosines."""
    rows = [
        {"id": w.id, "text": w.piece, "cosine": w.cosine, "line": f"{line}[{i}].cosine"} for i, w in enumerate(found)
    ]
    return Answer({"near": rows, "line": line})


# Two texts, and what is cut


def diff(run: Run, query: Query) -> Answer:
    """Where two texts part ways: the distance of their states at the tokens that both have, and their next words."""
    if run.second is None:
        raise Refused("要比较两句话：提问时写 second", "two texts are compared: ask with `second`")
    found = run.t.diff(run.second.t)
    sides: list[dict[str, Any]] = []
    for name, one in (("t", run.first), ("t2", run.second)):
        ids = where.passed(one.t).ids[0].tolist()
        sides.append({"text": one.text, "output": one.output, "tokens": tokens(one.t, ids), "next": after(one, name)})
    gone = found.divergence
    return Answer(
        {"tokens": [sides[0]["tokens"][i] for i, _ in found.pairs], "pairs": [list(p) for p in found.pairs],
         "layers": ["embed", *(str(i + 1) for i in range(len(found.names) - 1))], "sides": sides,
         "divergence": gone, "line": "t.diff(t2).distance",
         "lines": {"distance": "t.diff(t2).distance", "divergence": "t.diff(t2).divergence"}},
        {"changed": found.distance.float()},
    )  # fmt: skip


def after(one: Pass, name: str) -> dict[str, Any] | None:
    """The likeliest words after what a text gave."""
    if one.t.core.spec.decoder is None or one.t.core.spec.head is None:
        return None
    pos = where.passed(one.t).calls[0].ids.shape[1] - 1
    stage = one.t.choices(pos)[0]
    ids, chances = stage.top(10)
    top = [{"id": i, "text": w, "p": p} for i, w, p in zip(ids, one.t.tokenizer.pieces(ids), chances, strict=True)]
    return {"pos": pos, "top": top, "line": f"{name}.choices({pos})[0]"}


def proof(run: Run, query: Query) -> Answer:
    """Every edge of a side cut in turn and every head silenced: what becomes of each written word."""
    model, first = run.model, run.first
    if model.spec.decoder is None or model.spec.head is None:
        raise Refused("这个模型不写词，没有可证明的", "this model writes no words: there is nothing to prove")
    both = model.encoder_decoder
    side = query.choice("side", *(("encoder", "cross", "decoder") if both else ("decoder",)))
    given = [*(() if both else first.ids), *start_of(model)]
    target, free = [*given, *first.written], len(first.ids) if kind(model) == "prefix" else 0
    if len(target) <= len(given) or not given:
        raise Refused("没有写出词", "nothing was written")
    case = Case(tuple(first.ids) if both else (), tuple(target), len(given), free)
    how_long = scenes.How(start_of(model), model.special.eos, ask=query.text("ask", "它"))
    with torch.inference_mode(False), torch.no_grad():
        found = scenes.proof(model.core, model.tokenizer, case, how_long, side)  # pyright: ignore[reportArgumentType]
    if found is None:
        raise Refused(
            f"逐边剪断只做到 {how_long.proof} 个词元", f"every edge is cut for texts of up to {how_long.proof} tokens"
        )
    lines = proof_lines(case, side)
    return Answer({**found, "asking": tokens(run.t, list(case.source if side == "encoder" else case.target)),
                   "target": tokens(run.t, target), "given": len(given), "line": lines["after"],
                   "lines": lines})  # fmt: skip


def proof_lines(case: Case, side: str) -> dict[str, str]:
    """The lines that cut every edge and silence every head, with the four digits that are sent."""
    at = "qkv.lens.patch"
    made = f"{at}.Case({case.source!r}, {case.target!r}, {case.at}, {case.free})"
    edges = f"{at}.every_edge(t.core, {made}, side={side!r})"
    silent = f"{at}.said(t.core, [{made}], {at}.cut_heads(t.core, [(i, h)], side={side!r})).logprobs[0]"
    over = f"for h in range(a.heads)] for i, (_, a) in enumerate({at}.attentions(t.core, {side!r}))"
    four = "torch.round({}.exp().double(), decimals=4)".format
    return {"before": four(f"{edges}[0]"), "after": four(f"{edges}[1]"), "heads": f"[[{four(silent)} {over}]"}


HEAD = ("part", "layer", "head")
FILTERS = ("pos", "top", "temperature", "top_k", "top_p", "min_p")
ANSWERS: dict[str, tuple[Callable[[Run, Query], Answer], tuple[str, ...]]] = {
    "meta": (meta, ()), "check": (check, ()), "thumbs": (thumbs, ("part", "sink")), "attn": (attn, (*HEAD, "pool")),
    "row": (row, (*HEAD, "query")), "walk": (walk, (*HEAD, "query", "key")), "lens": (lens, ("pos", "top", "part")),
    "parts": (parts, ("pos", "token", "vs", "by", "layer")), "choices": (choices, FILTERS),
    "mask": (mask, ("part", "layer")), "wavefront": (wavefront, ()), "cache": (cache, ()),
    "alignment": (alignment, ("layer",)), "routes": (routes, ("layer",)), "shift": (shift, ("pos", "anchors", "part")),
    "gradient": (gradient, ("pos", "token")), "diff": (diff, ()), "proof": (proof, ("side", "ask")),
}  # fmt: skip
TABLES: dict[str, Callable[[Model, Query], Answer]] = {"neighbours": neighbours, "analogy": analogy, "cost": cost}
