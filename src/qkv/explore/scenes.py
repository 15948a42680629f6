"""Texts looked into as plain data: what `qkv look` prints and gives as JSON, and the proof that the page asks for.

Letters: L layers, H heads, T positions, S source or key positions, Q queries.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qkv.adapt.quantise import count_parameters
from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.explore.embeddings import PLAIN
from qkv.explore.question import Question, Run, ask, attention_paths, make_case
from qkv.lens import attention_maps, edge_ablation, resolve
from qkv.lens.edge_ablation import Case
from qkv.model import Model

PROOF = 32  # tokens of the longest text whose every edge is cut


def describe_text(model: Model, question: Question, word: str = "它", *, heads: bool = True) -> dict[str, Any]:
    """A text translated or continued, with its attention, its guesses by layer and the proof that begins with `word`.

    Without `heads` the proof silences none: of many layers and heads that takes most of the time.

    Raises:
        QkvError: an encoder alone, which writes nothing.
    """
    if model.spec.decoder is None:
        raise QkvError("an encoder alone writes nothing: a scene is a translation or a continuation")
    run = ask(model, question)
    said = {"said": run.first.notes} if run.first.notes else {}  # what was not read, or not known
    with torch.inference_mode():
        return {"model": model_card(model.core), **describe_run(run, word, heads), **said}


def describe_run(run: Run, word: str, heads: bool) -> dict[str, Any]:
    """What a text became, in numbers."""
    model, first, t, both = run.model, run.first, run.t, run.model.encoder_decoder
    case = make_case(model, first, first.written)
    sides: tuple[edge_ablation.Side, ...] = ("encoder", "cross") if both else ("decoder",)
    proofs = [prove_edges(model, case, word, side, heads=heads) if first.written else None for side in sides]
    pieces, guesses = resolve.require_tokenizer(t).pieces, t.lens()
    found = {
        "kind": "translation" if both else "continuation", "text": first.text, "output": first.output,
        "target": pieces(list(case.target)),
        "attention": {part: [round_list(t[f"{path}.pattern"][0]) for path in paths]
                      for part, paths in attention_paths(model).items()},
        "guesses": {"cells": guesses.list_cells(t.tokenizer), "used": list(guesses.used)}, "proof": proofs[0],
        "check": max(t.check().values()) if first.full else None,
    }
    if not both:
        return {**found, "prompt": case.at}
    source = len(first.ids) - (first.ids[-1] in model.special.eos)
    aligned = attention_maps.align_words(t, source=source)
    return {**found, "source": pieces(first.ids), "across": proofs[1],
            "alignment": {"layer": aligned.layer, "weight": round_list(aligned.weight)}}


def model_card(core: Transformer) -> dict[str, Any]:
    """What the model is, in numbers."""
    stacks = [s for s in (core.spec.encoder, core.spec.decoder) if s]
    return {
        "parameters": count_parameters(core),
        "layers": [len(s.blocks) for s in stacks],
        "heads": stacks[0].blocks[0].attn.heads,
        "width": stacks[0].width,
        "vocabulary": core.spec.vocabulary,
        "dtype": str(core.embed.weight.dtype).removeprefix("torch."),
    }


def prove_edges(
    model: Model, case: Case, word: str, side: edge_ablation.Side, *, heads: bool = True
) -> dict[str, Any] | None:
    """Every edge of a side cut and every head silenced in turn: the chance of each target token before and after.

    `query` and `at` are where to start: the `word` asked about, and which token from `case.at` on needs it most;
    across, the word that a cut turns into another of the text. None where the text is too long.
    """
    core, pieces_of = model.core, model.tokenizer.pieces  # type: ignore[union-attr]
    if max(len(case.source), len(case.target)) > PROOF:
        return None
    before, after, instead = edge_ablation.cut_every_edge(core, case, side=side)
    silenced = edge_ablation.cut_every_head(core, case, side=side) if heads else []
    pieces = pieces_of(list(case.source if side == "encoder" else case.target))
    drop = (before - after).clone()
    if side != "cross":
        drop.diagonal(dim1=0, dim2=1).fill_(-1.0)  # cutting a word from itself is not interesting
    ends = [i for i, token in enumerate(case.target) if i > case.at and token in model.special.eos]
    drop[:, :, [*range(case.at), *ends]] = -1.0
    last = 0 if side == "cross" else len(pieces) - (side == "decoder")  # nothing is written after a text's last token
    asked = [i for i, piece in enumerate(pieces[:last]) if word and word in piece]
    query = asked[0] if asked else int(drop.amax((1, 2)).argmax())
    at = int(drop[query].amax(0).argmax())
    if side == "cross":
        at = choose_across((before.exp() - after.exp()).where(drop > -1.0, -1.0), instead, pieces, pieces_of)
        query = at - 1
    return {
        "side": side, "query": query, "at": at, "asked": bool(asked),
        "before": round_list(before.exp()), "after": round_list(after.exp()),
        "instead": [[pieces_of(row) for row in rows] for rows in instead.tolist()],
        "heads": [round_list(head.exp()) for head in silenced],
    }


def choose_across(lost: Tensor, instead: Tensor, pieces: list[str], pieces_of: Callable[..., list[str]]) -> int:
    """The written token with which to start across: the last that a cut turns into another word of the text (book into
    tea), else the one that rests most on one word of the source. `lost` (of its chance) and `instead` are [T, S, T].
    """
    target = [piece.strip() for piece in pieces]
    most, keys = lost[:-1, :, 1:].diagonal(0, 0, 2).max(0)  # the word before asks for each token but the first
    for goal in reversed(range(1, len(target))):
        now = pieces_of([int(instead[goal - 1, keys[goal - 1], goal])])[0].strip()
        other = now != target[goal] and now in target and now.lower() not in PLAIN
        if most[goal - 1] > 0.2 and other and re.fullmatch(r"[^\W\d_]+", now):
            return goal
    return int(most.argmax()) + 1


def round_list(x: Tensor) -> Any:
    """Numbers with four digits, as lists."""
    return torch.round(x.double().cpu(), decimals=4).tolist()
