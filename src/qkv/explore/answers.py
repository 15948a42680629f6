"""The answers to the page's questions about a run: JSON, or arrays, with the Python line that gives the numbers.

`answer(run, "row", query)` is all that server.py and record.py call. Lines evaluate with `run.scope`: `t` (the trace),
`t2` (the second text's), `model`, `torch` and `qkv`. Read question.py first, then the panels' own files: heads.py,
guesses.py, embeddings.py, routing.py, beam_tree.py, activation_patching.py. Letters: L layers.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch

from qkv import cost as counts
from qkv import hub
from qkv.adapt import quantise
from qkv.errors import nearest
from qkv.explore import activation_patching, beam_tree, embeddings, guesses, heads, routing, scenes
from qkv.explore.body import Answer, Query, list_tokens, read_ids, translate_both
from qkv.explore.guesses import can_repeat
from qkv.explore.heads import list_parts
from qkv.explore.question import Refused, Run, choose_search, kind, max_text_tokens, question_as_json
from qkv.lens import resolve
from qkv.lens.routing import expert_modules
from qkv.model import Model
from qkv.spec import Latent

LOADS = ("cache", "memory", "activations")  # that grow with the batch
CHECKED = 5_000_000  # weights that are rebuilt before the page opens


def answer(run: Run, what: str, values: Mapping[str, str]) -> Answer:
    """The answer to `what`, one of ANSWERS, about a run."""
    if what not in ANSWERS:
        there = ", ".join(ANSWERS)
        raise Refused("there is no {what}{hint}; there are {there}", status=404, what=what, hint=nearest(what, ANSWERS),
                      there=there)
    function, keys = ANSWERS[what]
    query = Query(values)
    query.allow_only(*keys)
    with torch.inference_mode():
        return function(run, query)


# What the model is


def describe_model(model: Model, name: str, names: list[str], lang: str, examples: list[str]) -> Answer:
    """What the page shows at first."""
    spec = model.spec
    at = spec.stack.blocks[0].attn
    moe = next((b.moe for b in spec.stack.blocks if b.moe), None)
    card = {
        **scenes.model_card(model.core), "layers": [len(s.blocks) if s else 0 for s in (spec.encoder, spec.decoder)],
        "groups": getattr(at, "groups", at.heads),
        "experts": moe and {"count": moe.num_experts, "chosen": moe.top_k, "shared": moe.shared is not None},
        "latent": {"rank": at.kv_rank, "rotary": at.rotary.dim} if isinstance(at, Latent) else None,
        "context": spec.context or spec.stack.longest,
    }
    return Answer({"models": names, "model": name, "kind": kind(model), "lang": lang, "examples": examples,
                   "card": card, "longest": max_text_tokens(model), "labels": list(model.labels), "line": "model"})


def meta(run: Run, query: Query) -> Answer:
    """What was read and written, which attentions there are, and how far rebuilt numbers are from those that ran."""
    t, model, first, q, spec = run.t, run.model, run.first, run.question, run.model.spec
    encoder = decoder = labels = None
    if spec.decoder:
        passed = resolve.find_run(t)
        decoder = {"tokens": list_tokens(t, read_ids(t)), "prompt": passed.calls[0].ids.shape[1],
                   "phases": passed.phases}
    if spec.encoder:
        encoder = {"tokens": list_tokens(t, read_ids(t, "encoder."))}
    if spec.labels and not (spec.decoder and spec.head):
        labels = [*zip(model.labels, t["labels.out"][0].float().softmax(-1).tolist(), strict=True)]
    written = [{**w, "p": math.exp(p), "forced": i < len(q.force)}
               for i, (w, p) in enumerate(zip(list_tokens(t, first.written), first.logprobs, strict=True))]
    parts = list_parts(run)
    rebuilt = sum(p["layers"] * p["heads"] * p["queries"] * p["keys"] for p in parts)
    gaps = t.check() if first.full and rebuilt <= CHECKED else {}
    notes = [*first.notes, *(run.second.notes if run.second else [])]
    return Answer({
        "question": question_as_json(q), "text": first.text, "output": first.output, "kind": kind(model),
        "model": run.name, "encoder": encoder, "decoder": decoder, "written": written, "labels": labels,
        "second": run.second and {"text": run.second.text, "output": run.second.output},
        "parts": parts, "panels": list_panels(run), "check": max(gaps.values()) if gaps else None,
        "checks": gaps, "said": [translate_both(message) for message in notes],
        "cut": question_as_json(q).get("cut"), "full": first.full,
        "source": len(first.ids) if model.encoder_decoder else None, "line": "max(t.check().values())",
        "how": python_of(run),
    })


def check(run: Run, query: Query) -> Answer:
    """How far what is rebuilt is from what ran, attention by attention; `meta` includes it where that is quick."""
    gaps = run.t.check()
    return Answer({"check": max(gaps.values()), "checks": gaps, "line": "max(t.check().values())"})


def python_of(run: Run) -> str:
    """The Python that makes the trace `t` of a run."""
    q = run.question
    given = {f.name: getattr(q, f.name) for f in fields(q) if f.name != "text" and getattr(q, f.name) != f.default}
    asked = "".join(f", {name}={value!r}" for name, value in given.items())
    return (f"import qkv\nfrom qkv.explore.question import ask, Cut, Question\nmodel = qkv.load({run.name!r})\n"
            f"t = ask(model, Question({q.text!r}{asked})).t")


def list_panels(run: Run) -> list[str]:
    """The answers that make sense for a run."""
    spec, full = run.model.spec, run.first.full
    there = {
        "lens": spec.head is not None, "attn": True, "walk": full, "choices": spec.head is not None,
        "parts": full and spec.head is not None, "mask": True, "wavefront": True, "cache": spec.decoder is not None,
        "alignment": run.model.encoder_decoder, "routes": bool(expert_modules(run.t)), "shift": full,
        "gradient": can_repeat(run),
        "neighbours": True, "analogy": True, "cost": True, "diff": run.second is not None,
        "beams": spec.decoder is not None and choose_search(run.model, run.question) is not None,
        "proof": spec.decoder is not None and spec.head is not None,
    }
    return [name for name, fits in there.items() if fits]


# The order of the work, and what it costs


def wavefront(run: Run, query: Query) -> Answer:
    """The grid of layers and tokens: what could be computed when, what the machine ran, and what each state reads."""
    found = run.t.wavefront()
    there = ("triangle", "earliest", "ran", *["encoder"] * (found.encoder is not None))
    grids = {n: getattr(found, n).to(torch.int32) for n in there}
    same = bool((found.sees == found.sees[:1]).all())
    return Answer({"layers": len(found.ran), "same": same, "tokens": list_tokens(run.t, read_ids(run.t)),
                   "source": list_tokens(run.t, read_ids(run.t, "encoder.")) if found.encoder is not None else None,
                   "line": "t.wavefront().ran", "lines": {n: f"t.wavefront().{n}" for n in (*grids, "sees")}},
                  {**grids, "sees": found.sees[: 1 if same else None].to(torch.uint8)})


def cache(run: Run, query: Query) -> Answer:
    """Bytes and work of every step, with the cache and without; and bytes per token of other kinds of attention."""
    if run.model.spec.decoder is None:
        raise Refused("an encoder alone reads its text once and keeps nothing")
    found = run.t.cache()
    steps = [{"tokens": s.length, "bytes": s.bytes, "bytes_without": 0, "work": s.fresh, "work_without": s.again,
              "phase": c.mode, "line": f"t.cache().steps[{n}]"}
             for n, (s, c) in enumerate(zip(found.steps, resolve.find_run(run.t).calls, strict=True))]
    return Answer({"steps": steps, "kinds": found.kinds, "memory": found.memory, "real": found.real,
                   "saved": found.saved, "line": "t.cache()"})


def cost(model: Model, query: Query) -> Answer:
    """Parameters, operations and bytes of a model at a context, for a batch, in a number format."""
    query.allow_only("context", "batch", "dtype", "model")
    own = str(model.core.embed.weight.dtype).removeprefix("torch.")
    dtype, batch = query.get_text("dtype", own), query.get_integer("batch", 1, low=1, high=1 << 20)
    context = query.get_integer("context", model.spec.context or model.spec.stack.longest or 1024, low=1, high=1 << 24)
    found = hub.report(model, dtype=dtype, context=context)
    numbers = {  # what is shown: the key of the report, and how often it counts
        "total": ("parameters", 1), "active": ("active_parameters", 1), "prefill": ("flops_per_token_prefill", 1),
        "decode": ("flops_per_token", 1), "weights": ("weight_bytes", 1), "cache": ("kv_bytes", batch),
        "memory": ("memory_bytes_per_token", context * batch),
        "activations": ("activation_bytes_per_token", context * batch),
    }
    shown = {name: found[key] * times for name, (key, times) in numbers.items()}
    line = f"qkv.hub.report(model, dtype={dtype!r}, context={context})"
    lines = {name: f'{line}["{key}"]' + f" * {times}" * (name in LOADS) for name, (key, times) in numbers.items()}
    return Answer({
        "context": context, "batch": batch, "dtype": dtype, "parameters": found["by_part"],
        "shapes": group_shapes(model), "total": shown["total"], "active": shown["active"],
        "flops": {name: shown[name] for name in ("prefill", "decode")},
        "bytes": {name: shown[name] for name in ("weights", *LOADS)},
        "per_token": {"cache": found["kv_bytes_per_token"], "activations": found["activation_bytes_per_token"]},
        "line": line, "lines": {"parameters": f'{line}["by_part"]', **lines},
    })


def group_shapes(model: Model) -> list[dict[str, Any]]:
    """The matrices and vectors of each part that have one shape: what they are called, how many, numbers in all."""
    found: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, shape in quantise.find_shapes(model.core).items():
        owner = name.rpartition(".")[0]
        found.setdefault((counts.name_part(name, model.core.get_submodule(owner)), tuple(shape)), []).append(name)
    order = list(dict.fromkeys(part for part, _ in found))
    line = ("sum(s.numel() for n, s in qkv.adapt.quantise.find_shapes(model.core).items() if tuple(s) == {!r} and "
            'qkv.cost.name_part(n, model.core.get_submodule(n.rpartition(".")[0])) == {!r})')
    return [
        {"part": part, "names": list(dict.fromkeys(short_name(n) for n in names)), "shape": shape, "count": len(names),
         "numbers": len(names) * math.prod(shape), "line": line.format(shape, part)}
        for (part, shape), names in sorted(found.items(), key=lambda one: order.index(one[0][0]))
    ]


def short_name(name: str) -> str:
    """A parameter's own name and its owner's, without the way there: `q`, or `q.bias`."""
    return ".".join(name.split(".")[-2:]).removesuffix(".weight")


HEAD = ("part", "layer", "head")
FILTERS = ("pos", "top", "temperature", "top_k", "top_p", "min_p")
ANSWERS: dict[str, tuple[Callable[[Run, Query], Answer], tuple[str, ...]]] = {
    "meta": (meta, ()), "check": (check, ()), "wavefront": (wavefront, ()), "cache": (cache, ()),
    "routes": (routing.routes, ("layer",)),
    "thumbs": (heads.thumbs, ("part", "sink")), "attn": (heads.attn, (*HEAD, "pool")),
    "row": (heads.row, (*HEAD, "query")), "walk": (heads.walk, (*HEAD, "query", "key")),
    "mask": (heads.mask, ("part", "layer")), "alignment": (heads.alignment, ("layer",)),
    "lens": (guesses.lens, ("pos", "top", "part", "own")), "choices": (guesses.choices, FILTERS),
    "parts": (guesses.parts, ("pos", "token", "vs", "by", "layer")), "gradient": (guesses.gradient, ("pos", "token")),
    "diff": (guesses.diff, ()), "proof": (guesses.proof, ("side", "ask")),
    "shift": (embeddings.shift, ("pos", "anchors", "part")),
    "beams": (beam_tree.beams, ()), "patch": (activation_patching.patch, ("part", "layer", "source", "pos")),
}
TABLES: dict[str, Callable[[Model, Query], Answer]] = {
    "neighbours": embeddings.neighbours, "analogy": embeddings.analogy, "cost": cost,
}
