"""What a model guesses and why, as the page shows it: layer by layer, word by word, with another text, with a cut.

The panels are Guess map, Next word, Who pushed, Compare and Proof. Read answers.py first.
Letters: T positions, S keys, L layers, H heads, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from qkv.explore import activation_patching, scenes
from qkv.explore.body import Answer, Query, list_tokens, read_ids, translate_both
from qkv.explore.question import Pass, Refused, Run, kind, make_case, mask_token
from qkv.lens import logit_lens, resolve
from qkv.lens.edge_ablation import Case
from qkv.lens.sampling_filters import Stage
from qkv.lens.trace import Trace
from qkv.messages import Message
from qkv.model import Model
from qkv.sampling import Sampling

WORK = 5e10  # multiply-adds of the head that one lens may take: more, and only the last positions are shown


def lens(run: Run, query: Query) -> Answer:
    """Each layer's likeliest next tokens at every position, or at one, and which place the last layer's best one has.

    With `own=0` the token that was read there is left out: with tied embeddings, states still predict it.
    """
    t, spec, top = run.t, run.model.spec, query.get_integer("top", 5, low=1, high=50)
    if query.get_choice("part", "decoder", "encoder") == "encoder" and spec.decoder:
        raise Refused("the encoder writes no words: its states do not go through the head")
    if spec.head is None:
        raise Refused("this model has no head, so its layers guess no words")
    own, read = query.get_choice("own", "1", "0") == "1", resolve.find_run(t).ids[0]
    layers = ["embed", *(str(i + 1) for i in range(len(spec.stack.blocks)))]
    if pos := "pos" in query.values:
        first = query.get_integer("pos", high=len(read) - 1)
        places = [slice(first, first + 1)]
    else:
        each = len(layers) * spec.vocabulary  # logits of a position
        first = max(0, len(read) - max(1, int(WORK // (each * spec.stack.width))))
        tile = max(1, (32 << 20) // each)
        places = [slice(i, min(i + tile, len(read))) for i in range(first, len(read), tile)]
    count = min(top, spec.vocabulary)
    found = [rank_guesses(logit_lens.layer_logits(t, places=p)[1], read[p], count, own) for p in places]
    ids, chances, ranks = (torch.cat(rows, 1).tolist() for rows in zip(*found, strict=True))
    cells = [[[*zip(t.tokenizer.pieces(i), ps, strict=True)] for i, ps in zip(*rows, strict=True)]
             for rows in zip(ids, chances, strict=True)]
    line, rank = guess_lines(slice(first, places[-1].stop), pos, top, own)
    used = mark_usable(run.model, t)[first : places[-1].stop]
    return Answer({"layers": layers, "first": first, "used": used, "cells": cells, "ids": ids, "ranks": ranks,
                   "line": line, "lines": {"ranks": rank}})


def rank_guesses(x: Tensor, read: Tensor, top: int, own: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Of logits [L, T, V]: the best ids and their chances [L, T, top], and the rank of the last layer's best [L, T]."""
    answer = x[-1:].argmax(-1, keepdim=True).expand(len(x), -1, 1)
    ranks = (x > x.gather(-1, answer)).sum(-1) + 1
    if not own:
        x = x.scatter(-1, read[None, :, None].expand(len(x), -1, 1), -torch.inf)
    best = x.softmax(-1).topk(top, -1)
    return best.indices, best.values, ranks


def guess_lines(at: slice, one: bool, top: int, own: bool) -> tuple[str, str]:
    """The lines of a lens: its chances, and the ranks of the last layer's guess."""
    these = f"qkv.lens.logit_lens.layer_logits(t, places=slice({at.start}, {at.stop}))[1]"
    best = "x.gather(-1, x[-1:].argmax(-1, keepdim=True).expand(len(x), -1, 1))"
    ranks = f"(lambda x: (x > {best}).sum(-1) + 1)({these})"
    if own:
        plain = f"t.lens({at.start}, top={top}).chances" if one else f"t.lens(top={top}).chances"
        return plain + f"[:, {at.start}:]" * bool(at.start and not one), ranks
    rest = f"x.scatter(-1, read.expand(len(x), -1, 1), -torch.inf).softmax(-1).topk({top}).values"
    return f"(lambda x, read: {rest})({these}, qkv.lens.resolve.find_run(t).ids[:1, {at.start}:{at.stop}, None])", ranks


def mark_usable(model: Model, t: Trace) -> list[bool]:
    """Whether the guess at each position counts: an encoder's at its masks (everywhere without one), else as it ran."""
    if model.spec.decoder:
        return resolve.find_run(t).used
    mask_id, ids = mask_token(model), read_ids(t)
    return [i == mask_id or mask_id not in ids for i in ids]


def parse_position(run: Run, query: Query) -> int:
    """The position of a query: by default the one after which the first word is written, or an encoder's first mask."""
    if "pos" in query.values:
        return query.get_integer("pos", high=len(read_ids(run.t)) - 1)
    return mark_usable(run.model, run.t).index(True)


def sampling_of(query: Query) -> Sampling:
    """The filters that a query sets; those at their defaults are off."""
    heat, top_k = query.get_number("temperature", 1.0), query.get_integer("top_k", 0)
    top_p, min_p = query.get_number("top_p", 1.0), query.get_number("min_p", 0.0)
    return Sampling(heat, top_k or None, top_p if top_p != 1.0 else None, min_p or None)


def choices(run: Run, query: Query) -> Answer:
    """The whole vocabulary's distribution after a position, and what each filter leaves, in the order they act."""
    pos, s = parse_position(run, query), sampling_of(query)
    found = run.t.choices(pos, sampling=s)
    line = f"t.choices({pos}, sampling=qkv.sampling.Sampling({s.temperature!r}, {s.top_k!r}, {s.top_p!r}, {s.min_p!r}))"
    top = query.get_integer("top", 20, low=1, high=200)
    stages = [{"name": stage.name, "kept": stage.kept, "entropy": stage.entropy, "gone": stage.gone,
               "top": list_top_words(run.t, stage, top), "line": f"{line}[{n}]"} for n, stage in enumerate(found)]
    written = read_ids(run.t)[pos + 1 : pos + 2] or run.first.written[-1:]
    chosen = written[0] if written and run.model.spec.decoder else None
    return Answer({"pos": pos, "next": chosen, "stages": stages, "line": line})


def list_top_words(t: Any, stage: Stage, top: int) -> list[dict[str, Any]]:
    """The likeliest words of a distribution."""
    ids, chances = stage.top_tokens(top)
    return [{"id": i, "text": w, "p": p} for i, w, p in zip(ids, t.tokenizer.pieces(ids), chances, strict=True)]


def parse_goal(run: Run, query: Query, key: str) -> int | None:
    """A token asked for by its id or its text."""
    value = query.get_text(key)
    return None if not value else resolve.find_token(run.t, int(value) if value.isdigit() else value)


def parts(run: Run, query: Query) -> Answer:
    """Who pushed the logit of a token after a position: sub-layers, heads, or the neurons of one layer."""
    pos, by = parse_position(run, query), query.get_choice("by", "sublayer", "head", "neuron")
    token, vs = parse_goal(run, query, "token"), parse_goal(run, query, "vs")
    found = run.t.parts(pos, token, vs=vs)
    line = f"t.parts({pos}, {found.token}, vs={vs})"
    if by == "neuron":
        layer = query.get_integer("layer", 0, high=len(run.model.spec.stack.blocks) - 1)
        call = f"t.neurons({layer}, {pos}, {found.token}, vs={vs}, top=50)"
        neurons = run.t.neurons(layer, pos, found.token, vs=vs, top=50)
        rows = [{"name": p.name, "push": p.push, "line": f"{call}[{i}].push"} for i, p in enumerate(neurons)]
    else:
        rows = [{"name": p.name, "push": p.push, "line": f'{line}["{p.name}"]'}
                for p in (found.sublayers if by == "sublayer" else found.parts)]
    post = any(n.endswith("_sum") for n in found.frozen)
    after_each = Message("; later norms scale what came before") if post else ""
    note = Message("norms act with the mean and scale that they had{after_each}", after_each=after_each)
    text, vs_text = (None if i is None else run.t.tokenizer.pieces([i])[0] for i in (found.token, found.vs))
    return Answer({
        "token": found.token, "vs": found.vs, "text": text, "vs_text": vs_text, "pos": found.pos, "logit": found.logit,
        "gap": found.gap, "frozen": found.frozen, "note": translate_both(note), "parts": rows, "line": f"{line}.logit",
    })


def can_repeat(run: Run) -> bool:
    """Whether another pass, as the gradient makes one, repeats the run: no free prefix, nothing cut."""
    return run.model.spec.head is not None and kind(run.model) != "prefix" and run.question.cut is None


def gradient(run: Run, query: Query) -> Answer:
    """How each input token influences the next word, by one more pass and its gradient."""
    if not can_repeat(run):
        raise Refused("the gradient runs once more, without the free prefix or the cut")
    pos, token = parse_position(run, query), parse_goal(run, query, "token")
    with torch.inference_mode(False):
        found = run.t.gradient(pos, token)
    return Answer({"pos": pos, "token": found.token, "text": run.t.tokenizer.pieces([found.token])[0],
                   "tokens": list_tokens(run.t, read_ids(run.t, "encoder.")), "push": found.times,
                   "logit": found.logit, "line": f"t.gradient({pos}, {found.token}).times"})


def diff(run: Run, query: Query) -> Answer:
    """Where two texts part ways: the distance of their states at the tokens that both have, and their next words."""
    if run.second is None:
        raise Refused("two texts are compared: ask with `second`")
    found = run.t.diff(run.second.t)
    sides = [{"text": one.text, "output": one.output, "tokens": list_tokens(one.t, read_ids(one.t)),
              "next": next_words_after(one, name)} for name, one in (("t", run.first), ("t2", run.second))]
    movable = {side: {"depth": depth, "texts": [list_tokens(run.t, row) for row in ids]}
               for side, (depth, ids) in activation_patching.list_movable(run).items()}
    tokens: Any = sides[0]["tokens"]
    return Answer(
        {"tokens": [tokens[i] for i, _ in found.pairs], "pairs": found.pairs,
         "layers": ["embed", *(str(i + 1) for i in range(len(found.names) - 1))], "sides": sides,
         "divergence": found.divergence, "grafts": movable, "line": "t.diff(t2).distance",
         "lines": {"distance": "t.diff(t2).distance", "divergence": "t.diff(t2).divergence"}},
        {"changed": found.distance.float()},
    )


def next_words_after(one: Pass, name: str) -> dict[str, Any] | None:
    """The likeliest words after a given text."""
    if one.t.core.spec.decoder is None or one.t.core.spec.head is None:
        return None
    pos = resolve.find_run(one.t).calls[0].ids.shape[1] - 1
    return {"pos": pos, "top": list_top_words(one.t, one.t.choices(pos)[0], 10), "line": f"{name}.choices({pos})[0]"}


def proof(run: Run, query: Query) -> Answer:
    """Every edge of a side cut in turn and every head silenced: what becomes of each written word."""
    model, first = run.model, run.first
    if model.spec.decoder is None or model.spec.head is None:
        raise Refused("this model writes no words: there is nothing to prove")
    both = model.encoder_decoder
    side = query.get_choice("side", *(("encoder", "cross", "decoder") if both else ("decoder",)))
    if not first.written or not (model.encoder_decoder or first.ids):
        raise Refused("nothing was written")
    case = make_case(model, first, first.written)
    with torch.inference_mode(False), torch.no_grad():
        found = scenes.prove_edges(model, case, query.get_text("ask", "它"), side)  # pyright: ignore[reportArgumentType]
    if found is None:
        raise Refused("every edge is cut for texts of up to {proof} tokens", proof=scenes.PROOF)
    lines, target = proof_lines(case, side), list(case.target)
    return Answer({**found, "asking": list_tokens(run.t, list(case.source if side == "encoder" else case.target)),
                   "target": list_tokens(run.t, target), "given": case.at, "line": lines["after"], "lines": lines})


def proof_lines(case: Case, side: str) -> dict[str, str]:
    """The lines that cut every edge and silence every head, with the four digits that are sent."""
    at = "qkv.lens.edge_ablation"
    made = f"{at}.Case({case.source!r}, {case.target!r}, {case.at}, {case.free})"
    edges = f"{at}.cut_every_edge(t.core, {made}, side={side!r})"
    silent = f"{at}.cut_every_head(t.core, {made}, side={side!r})"
    four = "torch.round({}.exp().double(), decimals=4)".format
    return {"before": four(f"{edges}[0]"), "after": four(f"{edges}[1]"), "heads": f"[{four('h')} for h in {silent}]"}
