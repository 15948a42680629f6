"""A watched run as tables: one recorded step, and what moved between two. The command is `qkv look RUN --step N`.

The records are read by training/probes/records.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from qkv.core.model import Transformer
from qkv.explore.tables import list_guesses
from qkv.messages import Message
from qkv.plots.forms import Cell, Table
from qkv.plots.text import bar, make_cell, percent
from qkv.training.probes.records import ProbeLog, Record, count_forward_changes, rank_word_changes

Say = Callable[..., str]
PARTS = (
    "embedding",
    "position",
    "W_Q",
    "W_K",
    "W_V",
    "W_O",
    "FFN",
    "router",
    "experts",
    "norm",
    "bias",
    "head",
    "other",
)


def step_tables(w: ProbeLog, number: int, say: Say, *, every: bool = False) -> tuple[list[Table], dict[str, Any]]:
    """What was recorded at a step; `every` shows each matrix and not their kinds alone."""
    r = w.read(number)
    data = {**r.json, "arrays": {name: list(r[name].shape) for name in r.names}}
    sheets = [output_table(r, say)]
    for i, row in enumerate(r.json.get("texts", ())[:1]):
        sheets += [alignment_table(r, i, say)] if f"texts.{i}.alignment" in r.names else []
        sheets += [guess_table(row, say)] if "cells" in row else []
    sheets += [neighbour_table(row, say) for row in r.json.get("words", ())]
    sheets += [norm_table(w, r, say, every=every), teacher_table(r, say)]
    return sheets, data


def output_table(r: Record, say: Say) -> Table:
    """What the model wrote for each text then."""
    j = r.json
    loss = "–" if j["loss"] is None else f"{j['loss']:.3f}"
    gradient = "" if j["gradient"] is None else say(", gradient norm ") + f"{j['gradient']:.3g}"
    title = say("step {step}: loss {loss}", step=r.step, loss=loss) + gradient
    rows = [[make_cell(row["text"]), make_cell("→"), make_cell(row["output"] or "·", 0.5)]
            for row in j.get("texts", ())]
    return Table(title, rows)


def alignment_table(r: Record, i: int, say: Say) -> Table:
    """Where each written word looked."""
    row = r.json["texts"][i]
    end = f" ({say('end')})"
    names = [*row["target"][1:], end]
    head = [make_cell(""), *(make_cell(piece) for piece in row["source"])]
    cells = r[f"texts.{i}.alignment"].tolist()
    rows = [[make_cell(name), *map(percent, row)] for name, row in zip(names, cells, strict=True)]
    layer = row["layer"] + 1
    return Table(say("alignment (layer {layer}, %)", layer=layer), [head, *rows])


def guess_table(row: dict[str, Any], say: Say) -> Table:
    """The likeliest next token after each layer at each position."""
    rows = list_guesses(row["cells"], row["used"], row["target"], say)
    return Table(say("guesses after each layer"), rows)


def neighbour_table(row: dict[str, Any], say: Say) -> Table:
    """The nearest tokens of a word."""
    rows = [[make_cell(n["text"]), make_cell(f"{n['cosine']:.3f}"), bar(n["cosine"], 1.0)] for n in row["near"]]
    return Table(f"{row['word']}: " + say("nearest then"), rows)


def norm_table(w: ProbeLog, r: Record, say: Say, *, every: bool) -> Table:
    """The norms of the matrices, their gradients and this step's updates, joined by kind (root of summed squares)."""
    named = w.index["matrices"]
    values = torch.stack([r[f"matrices.{key}"].double() for key in ("weight", "gradient", "update")])  # 3 N
    moved = r["matrices.moved"].tolist()
    stepped = r.json["gradient"] is not None  # no step is in the first record, nor in one that was made at the end
    groups = [(m["name"], [i]) for i, m in enumerate(named)] if every else group_by_part([m["part"] for m in named])
    words = (Message("matrices"), Message("|weight|"), Message("|gradient|"), Message("|update|"),
             Message("update/weight"), Message("rows moved"))
    rows = [[make_cell(""), *(make_cell(say(word)) for word in words)]]
    for name, of in groups:
        weight, gradient, update = values[:, of].norm(dim=1).tolist()
        share = update / weight if weight else 0.0
        total = sum(named[i]["rows"] for i in of)
        counts = f"{sum(moved[i] for i in of)}/{total}"
        numbers = (f"{gradient:.2e}", f"{update:.2e}", f"{share:.2e}", counts) if stepped else ("–",) * 4
        cells = (str(len(of)), f"{weight:.3f}", *numbers)
        rows.append([make_cell(name), *(make_cell(cell) for cell in cells)])
    return Table(say("the matrices in this step"), rows)


def group_by_part(parts: Sequence[str]) -> list[tuple[str, list[int]]]:
    """The places of each kind, in a fixed order."""
    found = [(part, [i for i, p in enumerate(parts) if p == part]) for part in PARTS]
    return [(part, of) for part, of in found if of]


def teacher_table(r: Record, say: Say) -> Table:
    """The example of teacher forcing, position by position."""
    found = r.json["teacher"]
    mask = r["teacher.mask"].tolist() if "teacher.mask" in r.names else [[]] * len(found["rows"])
    words = (Message("input"), Message("may see"), Message("label"), Message("P(label)"), Message("loss"),
             Message("would say"))
    rows: list[list[Cell]] = [[make_cell(say(word)) for word in words]]
    for row, seen in zip(found["rows"], mask, strict=True):
        sight = "".join("■" if cell else "·" for cell in seen)
        numbers = (f"{row['p']:.4f}", f"{row['loss']:.3f}") if row["counted"] else ("–", "–")
        rows.append([make_cell(row["input"]), make_cell(sight), make_cell(row["label"]),
                     make_cell(numbers[0], row["p"] or 0.0), make_cell(numbers[1]),
                     make_cell(f"{row['guess'].strip()} {100 * row['chance']:.0f}%")])
    source = " ".join(piece.strip() for piece in found["source"] or ())
    title = say("teacher forcing: the input is the label shifted by one")
    mean = "" if found["loss"] is None else say("mean loss ") + f"{found['loss']:.4f}"
    return Table(f"{title}{': ' if source else ''}{source}", rows, mean)


def compare_steps(
    w: ProbeLog, first: int, last: int, say: Say, core: Transformer, tokenizer: Any, *, every: bool = False
) -> tuple[list[Table], dict[str, Any]]:
    """What moved between two steps and what did not: a forward pass moves nothing, measured on `core`, the first's."""
    found = w.compare_weights(first, last)
    forward, count = count_forward_changes(core)
    groups = [(m.name, [i]) for i, m in enumerate(found)] if every else group_by_part([m.part for m in found])
    words = (Message("matrices"), Message("rows moved"), Message("distance"), Message("of its norm"))
    rows = [[make_cell(""), *(make_cell(say(word)) for word in words), make_cell("")]]
    for name, of in groups:
        some = [found[i] for i in of]
        distance, norm = (sum(getattr(m, key) ** 2 for m in some) ** 0.5 for key in ("distance", "norm"))
        share = distance / max(norm, 1e-12)
        counts = f"{sum(m.moved for m in some)}/{sum(m.rows for m in some)}"
        cells = (str(len(some)), counts, f"{distance:.3f}", f"{100 * share:.1f}%" if norm else "–")
        rows.append([make_cell(name), *map(make_cell, cells), bar(min(1.0, share) if norm else 0.0, 1.0, 10)])
    title = say("from step {first} to step {last}", first=first, last=last)
    fixed = say("What does not move: the count and the shapes of the {found} matrices, the vocabulary, heads and "
                "layers.", found=len(found))
    sheets = [forward_table(forward, count, first, say), Table(title, rows, fixed)]
    names = rank_word_changes(w, first, last, tokenizer, found)
    if names:
        title = say("the words that went farthest and least")
        cells = [[make_cell(word), make_cell(f"{far:.3f}"), bar(far, names[0][1])] for word, far in names]
        sheets.append(Table(title, cells))
    return sheets, {"forward": forward, "moved": found, "words": names}


def forward_table(forward: int, count: int, first: int, say: Say) -> Table:
    """What a forward pass changed."""
    return Table(say("a forward pass at step {first}: {forward} of {count} tensors changed", first=first,
                     forward=forward, count=count), [])
