"""A watched run as tables: one recorded step, and what moved between two. The command is `qkv look RUN --step N`.

The records are read by training/probes/records.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from qkv.core.model import Transformer
from qkv.explore.tables import format_cosine, list_guesses, make_table, tabulate, weight_table
from qkv.messages import Message
from qkv.plots.forms import Bars, Cell, Table
from qkv.plots.text import bar, make_cell
from qkv.training.probes.records import ProbeLog, Record, count_forward_changes, rank_word_changes

Say = Callable[..., str]
PARTS = ("embedding", "position", "W_Q", "W_K", "W_V", "W_O", "FFN", "router", "experts", "norm", "bias", "head",
         "other")


def step_tables(w: ProbeLog, number: int, say: Say, *, every: bool = False) -> tuple[list[Table], dict[str, Any]]:
    """What was recorded at a step; `every` shows each matrix and not their kinds alone."""
    r = w.read(number)
    data = {**r.json, "arrays": {name: list(r[name].shape) for name in r.names}}
    sheets = [output_table(r, say)]
    for i, row in enumerate(r.json.get("texts", ())[:1]):
        sheets += [alignment_table(r, i, say)] if f"texts.{i}.alignment" in r.names else []
        if "cells" in row:
            guesses = list_guesses(row["cells"], row["used"], row["target"], say)
            sheets.append(Table(say("guesses after each layer"), guesses))
    near = [Bars(f"{row['word']}: {say('nearest then')}", [n["text"] for n in row["near"]],
                 [n["cosine"] for n in row["near"]]) for row in r.json.get("words", ())]
    sheets += tabulate(near, say, format_cosine, 1.0)
    sheets += [norm_table(w, r, say, every=every), teacher_table(r, say)]
    return sheets, data


def output_table(r: Record, say: Say) -> Table:
    """What the model wrote for each text then."""
    j = r.json
    loss = "–" if j["loss"] is None else f"{j['loss']:.3f}"
    gradient = "" if j["gradient"] is None else say(", gradient norm ") + f"{j['gradient']:.3g}"
    rows = [(row["text"], "→", make_cell(row["output"] or "·", 0.5)) for row in j.get("texts", ())]
    return make_table(say("step {step}: loss {loss}", step=r.step, loss=loss) + gradient, rows)


def alignment_table(r: Record, i: int, say: Say) -> Table:
    """Where each written word looked."""
    text = r.json["texts"][i]
    names, weights = [*text["target"][1:], f" ({say('end')})"], r[f"texts.{i}.alignment"].tolist()
    title = say("alignment (layer {layer}, %)", layer=text["layer"] + 1)
    return weight_table(title, names, text["source"], weights)


def norm_table(w: ProbeLog, r: Record, say: Say, *, every: bool) -> Table:
    """The norms of the matrices, their gradients and this step's updates, joined by kind (root of summed squares)."""
    named = w.index["matrices"]
    values = torch.stack([r[f"matrices.{key}"].double() for key in ("weight", "gradient", "update")])  # 3 N
    moved = r["matrices.moved"].tolist()
    stepped = r.json["gradient"] is not None  # no step is in the first record, nor in one that was made at the end
    words = (Message("matrices"), Message("|weight|"), Message("|gradient|"), Message("|update|"),
             Message("update/weight"), Message("rows moved"))
    rows = [["", *map(say, words)]]
    for name, of in group_matrices([(m["name"], m["part"]) for m in named], every=every):
        weight, gradient, update = values[:, of].norm(dim=1).tolist()
        share = update / weight if weight else 0.0
        counts = f"{sum(moved[i] for i in of)}/{sum(named[i]['rows'] for i in of)}"
        numbers = (f"{gradient:.2e}", f"{update:.2e}", f"{share:.2e}", counts) if stepped else ("–",) * 4
        rows.append([name, str(len(of)), f"{weight:.3f}", *numbers])
    return make_table(say("the matrices in this step"), rows)


def group_matrices(named: Sequence[tuple[str, str]], *, every: bool) -> list[tuple[str, list[int]]]:
    """The places of each kind of (name, kind), in a fixed order; of `every` matrix its own."""
    if every:
        return [(name, [i]) for i, (name, _) in enumerate(named)]
    found = [(part, [i for i, (_, kind) in enumerate(named) if kind == part]) for part in PARTS]
    return [(part, of) for part, of in found if of]


def teacher_table(r: Record, say: Say) -> Table:
    """The example of teacher forcing, position by position."""
    found = r.json["teacher"]
    mask = r["teacher.mask"].tolist() if "teacher.mask" in r.names else [[]] * len(found["rows"])
    words = (Message("input"), Message("may see"), Message("label"), Message("P(label)"), Message("loss"),
             Message("would say"))
    rows: list[list[str | Cell]] = [[*map(say, words)]]
    for row, seen in zip(found["rows"], mask, strict=True):
        chance, loss = (f"{row['p']:.4f}", f"{row['loss']:.3f}") if row["counted"] else ("–", "–")
        rows.append([row["input"], "".join("■" if cell else "·" for cell in seen), row["label"],
                     make_cell(chance, row["p"] or 0.0), loss, f"{row['guess'].strip()} {100 * row['chance']:.0f}%"])
    source = " ".join(piece.strip() for piece in found["source"] or ())
    title = say("teacher forcing: the input is the label shifted by one")
    mean = "" if found["loss"] is None else say("mean loss ") + f"{found['loss']:.4f}"
    return make_table(f"{title}{': ' if source else ''}{source}", rows, mean)


def compare_steps(
    w: ProbeLog, first: int, last: int, say: Say, core: Transformer, tokenizer: Any, *, every: bool = False
) -> tuple[list[Table], dict[str, Any]]:
    """What moved between two steps and what did not: a forward pass moves nothing, measured on `core`, the first's."""
    found = w.compare_weights(first, last)
    forward, count = count_forward_changes(core)
    words = (Message("matrices"), Message("rows moved"), Message("distance"), Message("of its norm"))
    rows: list[list[str | Cell]] = [["", *map(say, words), ""]]
    for name, of in group_matrices([(m.name, m.part) for m in found], every=every):
        some = [found[i] for i in of]
        distance, norm = (sum(getattr(m, key) ** 2 for m in some) ** 0.5 for key in ("distance", "norm"))
        share = distance / max(norm, 1e-12)
        rows.append([name, str(len(some)), f"{sum(m.moved for m in some)}/{sum(m.rows for m in some)}",
                     f"{distance:.3f}", f"{100 * share:.1f}%" if norm else "–",
                     bar(min(1.0, share) if norm else 0.0, 1.0, 10)])
    fixed = say("What does not move: the count and the shapes of the {found} matrices, the vocabulary, heads and "
                "layers.", found=len(found))
    sheets = [Table(say("a forward pass at step {first}: {forward} of {count} tensors changed", first=first,
                        forward=forward, count=count), []),
              make_table(say("from step {first} to step {last}", first=first, last=last), rows, fixed)]
    names = rank_word_changes(w, first, last, tokenizer, found)
    if names:
        cells = [(word, f"{far:.3f}", bar(far, names[0][1])) for word, far in names]
        sheets.append(make_table(say("the words that went farthest and least"), cells))
    return sheets, {"forward": forward, "moved": found, "words": names}
