"""What a recorded run reads of its model at a step: its texts from the inside, its words, and one example as a table.

recorder.py decides when, and writes; the readouts are those of lens/. Letters: L layers, H heads, T positions,
S source or key positions, W words, D width.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.collate import IGNORED, Batch
from qkv.data.shards import Mixture
from qkv.errors import QkvError
from qkv.lens import attention_maps, embeddings, logit_lens
from qkv.lens.mask_reasons import explain_mask
from qkv.lens.trace import Trace
from qkv.model import Model
from qkv.tasks.fill import fill_ids
from qkv.tasks.types import start_ids
from qkv.training import losses
from qkv.training.assemble import Assembly
from qkv.training.large_text import LargeText
from qkv.training.objectives.base import tokenizer_for
from qkv.training.probes.recorder import Reading, Recorder
from qkv.training.probes.records import read_requests

TEXTS, EXAMPLE = 4, 32  # texts taken where none are named; positions of the example at most
KINDS = {  # of a model by its architecture, and what it says of a text
    "encoder-decoder": ("encoder-decoder", "translation"), "encoder": ("encoder", "filling"),
    "prefix decoder": ("prefix", "continuation"), "causal decoder": ("decoder", "continuation"),
}


def make_recorder(a: Assembly) -> Recorder:
    """What records a run as its settings say.

    Raises:
        QkvError: a word that the vocabulary lacks.
    """
    w, model = a.run.watch, a.model
    made = tokenizer_for(model)
    for word in w.words:
        if not word.strip():
            raise QkvError("watch.words: found an empty word, expected one of the vocabulary")
        if made.find_unknown(word):
            raise QkvError("watch.words: {word!r} is not in this run's vocabulary, so it has no vector to watch",
                           word=word)
    valid = a.splits.valid
    textual = isinstance(valid, str | LargeText | Mixture)
    texts = w.texts or (a.run.check.prompts if textual else tuple(s for s, _ in valid[:40]))
    for text in w.texts:
        if not readable_texts(model, [text], ()):
            size = len(model.ids(text))
            raise QkvError("watch.texts: {text!r} has {size} tokens, expected 1 to {text_limit}: the output needs "
                           "room too", text=text[:40], size=size, text_limit=text_limit(model))
    texts = w.texts or readable_texts(model, texts, ())[:TEXTS]
    about = {"kind": KINDS[model.spec.architecture][0], "texts": list(texts), "words": list(w.words)}
    batch = choose_example(a, texts)
    readings: dict[str, Callable[[], Reading]] = {
        "words": partial(read_words, model, w.words),
        "teacher": partial(read_teacher, model, batch),
    }
    found = Recorder(readings, w, about)

    def read_watched() -> Reading:
        asked = readable_texts(model, read_requests(found.folder), texts)  # while the run was watched
        return read_answers(model, [*texts, *asked], w.longest)

    readings["texts"] = read_watched
    return found


def choose_example(a: Assembly, texts: Sequence[str]) -> Batch:
    """One example to learn from, always the same: that of the first text where validation has it, else its first."""
    valid = a.splits.valid
    if isinstance(valid, str | LargeText | Mixture):
        return first_row(a.valid[0], EXAMPLE)
    chosen = next((pair for pair in valid if texts and pair[0] == texts[0]), valid[0])
    return first_row(a.hold_out([chosen])[0].to(a.model.device))


def first_row(batch: Batch, most: int = 10**6) -> Batch:
    """The first row of a batch without its padding, its first `most` positions."""
    sizes = {"target": batch.target_real, "source": batch.source_real}
    ends = {side: None if real is None else int(real[0].sum()) for side, real in sizes.items()}
    found: dict[str, Any] = {}
    for name, value in batch.rows.items():
        side = "source" if name.startswith("source") else "target"
        found[name] = value[:1] if value.ndim == 1 else value[:1, : min(most, ends[side] or most)]
    return replace(batch, **found, tokens=int((found["labels"] != IGNORED).sum()))


def readable_texts(model: Model, requests: Sequence[str], texts: Sequence[str]) -> list[str]:
    """The texts asked for that are not watched anyway, and that the model can read."""
    return [
        text for text in requests if text not in texts and text.strip() and len(model.ids(text)) <= text_limit(model)
    ]


def text_limit(model: Model) -> int:
    """The longest text that a record may begin with, in tokens: what is written needs room."""
    reads = (model.spec.encoder or model.spec.stack).longest
    return min(n for n in (model.spec.context, reads, 256) if n) - 2


def read_answers(model: Model, texts: Sequence[str], longest: int) -> Reading:
    """What the model says of each text, with its attention, alignment and guesses by layer."""
    rows, arrays = list[dict[str, Any]](), dict[str, Tensor]()
    for i, (text, said) in enumerate(zip(texts, answer_texts(model, texts, longest), strict=True)):
        row, found = read_inside(model, text, said)
        rows.append(row)
        arrays |= {f"{i}.{name}": t for name, t in found.items()}
    return rows, arrays


def answer_texts(model: Model, texts: Sequence[str], longest: int) -> list[Any]:
    """The greedy answers of a model to texts; an encoder says nothing."""
    if model.spec.architecture == "encoder":
        return [None] * len(texts)
    if model.encoder_decoder:
        return model.translate(list(texts), beam=1, max_new_tokens=longest)
    return model.generate(list(texts), max_new_tokens=longest)


@torch.inference_mode()
def read_inside(model: Model, text: str, said: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One text with what was written after it, read once more in one pass that is listened to."""
    made, special, (kind, says) = tokenizer_for(model), model.special, KINDS[model.spec.architecture]
    ids, both = model.ids(text), model.encoder_decoder
    given = [*start_ids(model)] if both else [*ids, *(start_ids(model) if kind == "prefix" else ())]
    read = [*given, *said.tokens[:-1]] if said else ids
    rows = torch.tensor([read], device=model.device)
    output = said.text if said else fill_or_label(model, ids)
    row = {"text": text, "output": output, "kind": says,
           "source": made.pieces(ids, side="source") if both else None, "target": made.pieces(read),
           "prompt": len(given), "unknown": list(made.find_unknown(text)), "layer": None,
           "chances": [math.exp(p) for p in said.logprobs] if said else []}
    if not model.spec.has_blocks:  # a baseline without layers of attention
        return row, {}
    with Trace(model.core, save=["patterns", *["lens"] * bool(model.spec.head)], tokenizer=made) as t:
        if both:
            model(source=torch.tensor([ids], device=model.device), target=rows)
        else:
            model(rows, prefix=torch.tensor([len(ids)], device=model.device) if kind == "prefix" else None)
    alone: attention_maps.AttentionPart = "encoder" if kind == "encoder" else "decoder"
    parts: list[attention_maps.AttentionPart] = ["encoder", "decoder", "cross"] if both else [alone]
    arrays = {f"attention.{p}": attention_bytes(t, p) for p in parts}
    if model.spec.head:
        masks = [token == made.mask_id for token in read] if kind == "encoder" else None
        row |= read_guesses(t, made, len(given), masks)
    if both:
        found = attention_maps.align_words(t, source=len(ids) - (ids[-1] in special.eos))
        row["layer"], arrays["alignment"] = found.layer, found.weight.float()
    return row, arrays


def attention_bytes(t: Trace, part: attention_maps.AttentionPart) -> Tensor:
    """The attention of a part as bytes [L, H, T, S]: 255 is all of it."""
    found = torch.stack([t[f"{path}.pattern"][0] for path in attention_maps.attention_paths(t.core.spec, part)])
    return (found.float() * 255).round().to(torch.uint8)


def read_guesses(t: Trace, tokenizer: Any, prompt: int, masks: list[bool] | None) -> dict[str, Any]:
    """The three likeliest next tokens after each layer at each position; an encoder's count where a word is hidden."""
    found = logit_lens.guess_by_layer(t, top=3, prompt=prompt)
    layers = ["embed", *(str(i + 1) for i in range(len(found.names) - 1))]
    return {"layers": layers, "used": masks or list(found.used), "cells": found.list_cells(tokenizer)}


def fill_or_label(model: Model, ids: list[int]) -> str:
    """What an encoder makes of a text: the likeliest words for its masks, or its label, or nothing."""
    made = tokenizer_for(model)
    if made.mask_id is not None and made.mask_id in ids and model.spec.head:
        return " ".join(made.decode([i]) for i in fill_ids(model.core, ids, made.mask_id).argmax(-1).tolist())
    return model.classify(ids).label if model.labels else ""


def read_words(model: Model, wanted: Sequence[str]) -> Reading:
    """The vectors of words [W, D], their cosines [W, W], and the nearest tokens of each."""
    if not wanted:
        return [], {}
    found = torch.stack([embeddings.word_vector(model, word, "source")[0] for word in wanted]).cpu()
    near = [embeddings.find_neighbours(model, word, 8, side="source") for word in wanted]
    rows = [{"word": word, "near": [{"text": n.piece, "cosine": round(n.cosine, 4)} for n in some]}
            for word, some in zip(wanted, near, strict=True)]
    unit = F.normalize(found, dim=-1)
    return rows, {"vectors": found, "cosines": unit @ unit.mT}


@torch.inference_mode()
def read_teacher(model: Model, batch: Batch) -> Reading:
    """Teacher forcing as a table: at each position the input, the label, P(label), the loss, and what it would say.

    `mask` [T, T] is 1 where a position may look.
    """
    core, made = model.core, tokenizer_for(model)
    with Trace(core, tokenizer=made) as t:
        logprobs = core.head(losses.states(core, batch))[0].float().log_softmax(-1).cpu()  # T V
    best = logprobs.max(-1)
    rows: list[dict[str, Any]] = []
    for i, (token, label) in enumerate(zip(batch.target[0].tolist(), batch.labels[0].tolist(), strict=True)):
        counted = label != IGNORED
        said = float(logprobs[i, label]) if counted else None
        rows.append({
            "position": i, "input": show_token(made, token), "label": show_token(made, label) if counted else "",
            "counted": counted, "p": None if said is None else round(math.exp(said), 6),
            "loss": None if said is None else round(-said, 6), "guess": show_token(made, int(best.indices[i])),
            "chance": round(float(best.values[i].exp()), 6),
        })
    lost = [row["loss"] for row in rows if row["counted"]]
    source = None if batch.source is None else made.pieces(batch.source[0].tolist(), side="source")
    mean = sum(lost) / len(lost) if lost else None
    found = {"source": source, "rows": rows, "loss": mean}
    return found, {} if not model.spec.has_blocks else {"mask": (explain_mask(t).cells == 0).to(torch.uint8)}


def show_token(tokenizer: Any, token: int) -> str:
    """A token as people read it."""
    return tokenizer.pieces([token])[0]
