"""Texts looked into as plain data: what `qkv look` prints and gives as JSON, and the proof that the page asks for.

Letters: L layers, H heads, T positions, S source or key positions, Q queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.generation.beam import Search, beam
from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions
from qkv.lens import attention_maps, edge_ablation, logit_lens
from qkv.lens.edge_ablation import Case
from qkv.lens.trace import Trace


@dataclass(frozen=True)
class SceneOptions:
    """How texts are written and what is measured: special ids, beams, and the word whose edges the proof starts with.

    `proof` is the longest text whose every edge is cut; 0 leaves the proof out.
    """

    start: tuple[int, ...] = ()
    eos: tuple[int, ...] = ()
    forbid: tuple[int, ...] = ()
    beams: int = 4
    max_new_tokens: int | None = None
    ask: str = "它"
    proof: int = 32


def describe_texts(core: Transformer, tokenizer: Any, texts: Sequence[str], how: SceneOptions) -> list[dict[str, Any]]:
    """Each text translated or continued, with its attention, its guesses by layer and the proof."""
    look = trace_translation if core.spec.encoder and core.spec.decoder else trace_continuation
    return [{"model": model_card(core), **look(core, tokenizer, text, how)} for text in texts]


def model_card(core: Transformer) -> dict[str, Any]:
    """What the model is, in numbers."""
    stacks = [s for s in (core.spec.encoder, core.spec.decoder) if s]
    return {
        "parameters": sum(p.numel() for p in core.parameters()),
        "layers": [len(s.blocks) for s in stacks],
        "heads": stacks[0].blocks[0].attn.heads,
        "width": stacks[0].width,
        "vocabulary": core.spec.vocabulary,
        "dtype": str(core.embed.weight.dtype).removeprefix("torch."),
    }


@torch.inference_mode()
def trace_translation(core: Transformer, tokenizer: Any, text: str, how: SceneOptions) -> dict[str, Any]:
    """One sentence through an encoder-decoder: translated by beam search, then traced in one pass over the result."""
    source = tokenizer.encode(text, side="source")
    options = DecodeOptions(how.max_new_tokens, how.eos, how.start, forbid=how.forbid)
    best = beam(core, [source], search=Search(beams=how.beams), options=options)[0][0]
    target = [*how.start, *best.tokens]
    ids, read = torch.tensor([source], device=core.embed.weight.device), target[:-1]
    written = torch.tensor([read], device=ids.device)
    with Trace(core, save=["check", "lens"], tokenizer=tokenizer) as t:
        core(written, Inputs(source=ids), mode="prefill")
    case = Case(tuple(source), tuple(target), 1)
    aligned = attention_maps.align_words(t, source=len(source) - (source[-1] in how.eos))
    return {
        "kind": "translation", "text": text, "output": tokenizer.decode(best.tokens),
        "source": tokenizer.pieces(source), "target": tokenizer.pieces(target),
        "attention": {p: read_maps(t, p) for p in ("encoder", "decoder", "cross")},
        "alignment": {"layer": aligned.layer, "weight": round_list(aligned.weight)},
        "guesses": layer_guesses(t, tokenizer, prompt=len(how.start)),
        "proof": prove_edges(core, tokenizer, case, how, "encoder"),
        "across": prove_edges(core, tokenizer, case, how, "cross"),
        "check": max(t.check().values()),
    }


@torch.inference_mode()
def trace_continuation(core: Transformer, tokenizer: Any, text: str, how: SceneOptions) -> dict[str, Any]:
    """One prompt through a decoder: written greedily with the cache, traced while it is written."""
    if core.spec.decoder is None:
        raise QkvError("an encoder alone writes nothing: a scene is a translation or a continuation")
    prompt = tokenizer.encode(text)
    options = DecodeOptions(how.max_new_tokens or 12, how.eos, how.start, forbid=how.forbid)
    with Trace(core, save=["check", "lens"], tokenizer=tokenizer) as t:
        tokens = list(generate(core, [prompt], options=options)[0].tokens)
    free = len(prompt) if core.spec.architecture == "prefix decoder" else 0
    given = [*prompt, *how.start]  # a prefix decoder's text ends with what begins the answer
    case = Case((), (*given, *tokens), len(given), free) if tokens else None
    target = [*given, *tokens]
    return {
        "kind": "continuation", "text": text, "output": tokenizer.decode(tokens), "prompt": len(given),
        "target": tokenizer.pieces(target), "attention": {"decoder": read_maps(t, "decoder")},
        "guesses": layer_guesses(t, tokenizer),
        "proof": prove_edges(core, tokenizer, case, how, "decoder") if case else None,
        "check": max(t.check().values()),
    }


def read_maps(t: Trace, part: attention_maps.AttentionPart) -> list[Any]:
    """The attention weights of a part: [L][H][T][S]."""
    return [round_list(t[f"{path}.pattern"][0]) for path in attention_maps.attention_paths(t.core.spec, part)]


def layer_guesses(t: Trace, tokenizer: Any, *, prompt: int | None = None) -> dict[str, Any]:
    """Each layer's five likeliest next tokens: cells [L+1][T][5] of [piece, chance]."""
    found = logit_lens.guess_by_layer(t, prompt=prompt)
    cells = [
        [[[piece, round(p, 4)] for piece, p in zip(tokenizer.pieces(ids), chances, strict=True)]
         for ids, chances in zip(*row, strict=True)]
        for row in zip(found.ids.tolist(), found.chances.tolist(), strict=True)
    ]
    return {"cells": cells, "used": list(found.used)}


def prove_edges(
    core: Transformer, tokenizer: Any, case: Case, how: SceneOptions, side: edge_ablation.Side
) -> dict[str, Any] | None:
    """Every edge of a side cut and every head silenced in turn: the chance of each target token before and after.

    `query` and `at` are where to start: the word asked about, and which token from `case.at` on needs it most.
    """
    asking = case.source if side == "encoder" else case.target
    if max(len(case.source), len(case.target)) > how.proof:
        return None
    before, after, instead = edge_ablation.cut_every_edge(core, case, side=side)
    silenced = [
        [edge_ablation.cut_heads(core, [(i, h)], side=side) for h in range(at.heads)]
        for i, (_, at) in enumerate(edge_ablation.attentions_of(core, side))
    ]
    heads = [[edge_ablation.score_targets(core, [case], e).logprobs[0].exp() for e in layer] for layer in silenced]
    pieces = tokenizer.pieces(asking)
    drop = (before - after).clone()
    if side != "cross":
        drop.diagonal(dim1=0, dim2=1).fill_(-1.0)  # cutting a word from itself is not interesting
    drop[:, :, [i for i, token in enumerate(case.target) if token in how.eos or i < case.at]] = -1.0
    last = 0 if side == "cross" else len(pieces) - (side == "decoder")  # nothing is written after a text's last token
    asked = [i for i, piece in enumerate(pieces[:last]) if how.ask and how.ask in piece]
    query = asked[0] if asked else int(drop.amax((1, 2)).argmax())
    return {
        "side": side, "query": query, "at": int(drop[query].amax(0).argmax()), "asked": bool(asked),
        "before": round_list(before.exp()), "after": round_list(after.exp()),
        "instead": [[tokenizer.pieces(row) for row in rows] for rows in instead.tolist()],
        "heads": [[round_list(head) for head in row] for row in heads],
    }


def round_list(x: Tensor) -> Any:
    """Numbers with four digits, as lists."""
    return torch.round(x.double().cpu(), decimals=4).tolist()
