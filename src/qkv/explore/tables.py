"""Each readout of lens/ as tables of words and numbers, for a terminal and for JSON. The command is `qkv look --show`.

A cell is a text and a weight that colours it. Letters: T positions, S keys, L layers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qkv.data.sources import read_lines
from qkv.errors import QkvError
from qkv.explore.guesses import mark_usable
from qkv.explore.question import mark_texts, read_once
from qkv.lens import embeddings, resolve, routing
from qkv.lens.edge_ablation import Case
from qkv.lens.mask_reasons import SIGNS
from qkv.lens.trace import Trace
from qkv.messages import Message
from qkv.plots.forms import Bars, Cell, Form, Grid, Table
from qkv.plots.text import bar, clean, format_signed, make_cell, percent
from qkv.sampling import Sampling
from qkv.tasks.types import start_ids

format_cosine = "{:.3f}".format


@dataclass(frozen=True)
class Ask:
    """What is asked of a trace: positions as numbers or words, layer and head from 0, and the language."""

    say: Callable[..., str]
    pos: int | str = -1
    key: int | str | None = None
    layer: int = 0
    head: int = 0
    token: str | None = None
    vs: str | None = None
    anchors: tuple[str, ...] = ()
    sampling: Sampling | None = None
    part: str | None = None
    mean: bool = False
    labels: tuple[str, ...] = ()
    typed: bool = False  # whether somebody chose `pos`

    def path(self, t: Trace) -> str:
        """The attention asked about: of the stack that writes, or of the `part` encoder, decoder or cross."""
        dot = "encoder." if self.part == "encoder" and t.core.spec.decoder else resolve.prefix_of(t)
        return f"{dot}layers.{self.layer}.{'cross' if self.part == 'cross' else 'attn'}"


def tokens_of(t: Trace, path: str = "") -> list[str]:
    """The tokens of the stack that a path belongs to, or of the one that speaks."""
    return resolve.show_tokens(t, resolve.find_run(t, path).ids[0].tolist())


def make_table(title: str, rows: Iterable[Iterable[str | Cell]], note: str = "") -> Table:
    """A table whose texts stand in cells: no spaces around them, control characters as their escapes."""
    return Table(title, [[make_cell(c) if isinstance(c, str) else c for c in row] for row in rows], note)


def tabulate(
    forms: Iterable[Form], say: Callable[..., str], show: Callable[[float], str] = format_signed,
    most: float | None = None,
) -> list[Table]:
    """Pictures of a readout as tables: `show` writes their numbers, and a bar of `most` (or the largest) is full."""
    return [make_table(say(form.title), [[say(cell) if isinstance(cell, Message) else cell for cell in row]
                                         for row in tabulate_form(form, show, most)], say(form.note)) for form in forms]


def tabulate_form(form: Form, show: Callable[[float], str], most: float | None) -> list[Sequence[str | Cell]]:
    """The rows of a picture: bars beside their numbers, cells coloured by their shades, lines from the top down."""
    if isinstance(form, Table):
        return list(form.rows)
    if isinstance(form, Bars):
        (values,) = form.series.values()
        largest, size = (most, 30) if most else (max(map(abs, values)), 20)
        return [(name, show(x), bar(x, largest, size)) for name, x in zip(form.names, values, strict=True)]
    if isinstance(form, Grid):
        head, rows = form.columns, zip(form.rows, form.cells, form.shades, strict=True)
    else:
        head, numbers = list(form.series), list(zip(*form.series.values(), strict=True))
        rows = zip(form.places, ([show(x) for x in row] for row in numbers), numbers, strict=True)
    return [*[["", *head]] * bool(head), *([name, *map(make_cell, cells, shades)] for name, cells, shades in rows)]


def weight_table(title: str, rows: Sequence[str], columns: Sequence[str], weights: list[list[float]]) -> Table:
    """Where each row looked: a shade with its percentage for each column."""
    return make_table(title, [["", *columns], *([row, *map(percent, w)] for row, w in zip(rows, weights, strict=True))])


def parts(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """Who pushed the logit."""
    found = t.parts(ask.pos, ask.token, vs=ask.vs)
    forms = [*found.forms()]
    if t.core.spec.stack.blocks[ask.layer].ffn:  # experts have no neurons of their own
        neurons = t.neurons(ask.layer, ask.pos, ask.token, vs=ask.vs, top=5)
        title = Message("the strongest neurons of layer {layer}", layer=ask.layer + 1)
        forms.append(Bars(title, [p.name for p in neurons], [p.push for p in neurons]))
    return tabulate(forms, ask.say), {**vars(found), "sublayers": found.sublayers}


def walk(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """The seven steps of one position."""
    path, query = ask.path(t), ask.pos
    rows = t[f"{path}.pattern"][0, ask.head]
    if query == 0 and not ask.typed and ask.part != "cross":  # it sees itself alone: this head's strongest look back
        query = int(rows.tril(-1).amax(-1).argmax())
    key = ask.key  # or the one at which this head looks most
    key = int(rows[resolve.find_position(t, query, path=path)].argmax()) if key is None else key
    found = t.walk(path, head=ask.head, query=query, key=key)
    pieces = tokens_of(t, "encoder." if ask.part == "cross" else found.path)
    q, k = found["ids"].words[found.query].strip(), pieces[found.key].strip()
    head = f"{found.path} {ask.say('head')} {found.head + 1}: {q} → {k}"
    why = ask.say(SIGNS[found.reason][1])
    sheets = [Table(f"{head} ({why}) {100 * float(found['weight'].values):.1f}%", [])]
    sheets += tabulate([Table(form.title, form.rows[1:]) for form in found.forms()], ask.say)
    data = {step: [{"name": s.name, "line": s.line, "shape": s.whole, "letters": s.letters, "words": s.words,
                    "values": s.values} for s in strips] for step, strips in found.steps.items()}
    return sheets, {**{k: getattr(found, k) for k in ("path", "head", "query", "key", "reason")}, "steps": data}


def neighbours(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """The tokens nearest to each word asked about."""
    found = {w: embeddings.find_neighbours(t, w, side="source") for w in ask.anchors}
    forms = [form for near in found.values() for form in near.forms()]
    return tabulate(forms, ask.say, format_cosine, 1.0), found


def analogy(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """a is to b as c is to…"""
    if len(ask.anchors) != 3:
        raise QkvError("analogy: give three words, such as 中国 北京 日本")
    a, b, c = ask.anchors
    found = embeddings.solve_analogy(t, a, b, c, side="source")
    return tabulate(found.forms(), ask.say, format_cosine, 1.0), found


def shift(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """How a word moves towards its anchors."""
    side = "encoder." if t.core.spec.encoder and t.core.spec.decoder else ""
    found = t.shift(ask.pos, list(ask.anchors), side=side)
    return tabulate(found.forms(), ask.say, "{:+.3f}".format), found


def choices(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """The next word, filter by filter."""
    found = t.choices(ask.pos, sampling=ask.sampling)
    data = [{"name": s.name, "kept": s.kept, "entropy": s.entropy, "gone": s.gone,
             "top": list(zip(resolve.show_tokens(t, ids), chances, strict=True))}
            for s in found for ids, chances in [s.top_tokens()]]
    return tabulate(found.forms(), ask.say, "{:.2%}".format, 1.0), data


def mask(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """Who may look at whom, and why not."""
    found = t.mask(ask.path(t))
    tokens = tokens_of(t, found.path)
    cells = [found.row_reasons(i) for i in range(len(tokens))]
    sheets = tabulate([replace(form, columns=()) for form in found.forms()], ask.say)
    return sheets, {"path": found.path, "kind": found.kind, "tokens": tokens, "cells": cells}


def attention(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """Where each word looked, by one head of a layer or the mean of all."""
    path = ask.path(t)
    queries, keys = tokens_of(t, path), tokens_of(t, "encoder." if ask.part == "cross" else path)
    heads = t[f"{path}.pattern"][0]  # H T S
    weight = heads.mean(0) if ask.mean else heads[ask.head]
    which = ask.say("mean of the heads") if ask.mean else f"{ask.say('head')} {ask.head + 1}"
    title = ask.say("{path}, {which}: where each word looked (%)", path=path, which=which)
    data = {"path": path, "queries": queries, "keys": keys, "weight": weight}
    return [weight_table(title, queries, keys, weight.tolist())], data


def labels(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """The probability of each label."""
    found = sorted(zip(ask.labels, t["labels.out"][0].float().softmax(-1).tolist(), strict=True), key=lambda x: -x[1])
    bars = Bars(Message("labels"), [name for name, _ in found], [p for _, p in found])
    return tabulate([bars], ask.say, "{:.1%}".format, 1.0), dict(found)


def routes(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """Which experts read which token."""
    found, tokens = t.routes(), tokens_of(t)
    rows = [["", *tokens, ask.say("load")]]
    for r in found:
        picks = (" ".join(f"{e}:{w:.2f}" for e, w in zip(i, x, strict=True))
                 for i, x in zip(r.index.tolist(), r.weight.tolist(), strict=True))
        rows.append([r.path, *picks, " ".join(map(str, r.load.tolist()))])
    title = ask.say("which experts read each token (expert:weight)")
    return [make_table(title, rows)], {"tokens": tokens, "layers": found}


def experts(model: Any, texts: Sequence[str], say: Callable[..., str]) -> tuple[list[Table], Any]:
    """What each expert is good at: the tokens that it reads more than its share, over texts or the lines of files.

    Of a pair (TAB between) the second half is read as what is written for the first.
    """
    lines = [line for text in texts for line in (read_lines(Path(text)) if is_file(text) else [text]) if line.strip()]
    cases = [make_case(model, line) for line in lines[:MOST_LINES]]
    found, pieces = routing.count_expert_tokens(model.core, cases), model.tokenizer.pieces
    note = say("{texts} texts, {tokens} tokens read", texts=len(cases), tokens=sum(len(c.target) for c in cases))
    sheets = [Table(note, [])]
    heads = (Message("expert"), Message("share (%)"), Message("tokens that it reads more than its share (how often of "
                                                              "how many)"))
    for one in found:
        rows: list[list[str | Cell]] = [[*map(say, heads)]]
        for e, (share, best) in enumerate(zip(one.share, one.tokens, strict=True)):
            words = zip(pieces([token for token, _, _ in best]), best, strict=True)
            rows.append([str(e), percent(share), "  ".join(f"{clean(w)} {n}/{of}" for w, (_, n, of) in words)])
        sheets.append(make_table(one.path, rows))
    return sheets, {"texts": len(cases), "layers": found}


def make_case(model: Any, line: str) -> Case:
    """A line as the model reads it: a text, or a source and, after a tab, what is written for it."""
    source, _, target = line.partition("\t")
    ids = tuple(model.ids(source))
    said = tuple(model.tokenizer.encode(target, special=False, side="target")) if target else ()
    both, free = model.encoder_decoder, model.spec.architecture == "prefix decoder"
    begun = (*(() if both else ids), *start_ids(model))
    whole = (*begun, *said, *model.special.eos[:1])
    if len(whole) < 2:
        raise QkvError("experts: {line!r} has one token, expected two or more", line=line)
    return Case(ids if both else (), whole, max(1, len(begun) - 1), len(ids) * free)


def is_file(text: str) -> bool:
    """Whether a text names a file; one that no path can be (too long, a zero byte) does not."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def wavefront(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """When each state could be and was computed."""
    found = t.wavefront()
    data = {"tokens": found.read, "triangle": found.triangle, "earliest": found.earliest, "ran": found.ran,
            "sees": found.sees}
    if found.encoder is not None:
        data |= {"source": found.source, "encoder": found.encoder}
    return tabulate(found.forms(), ask.say), data


def cache(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """Bytes of every step."""
    found = t.cache()
    rows = [(ask.say("step"), ask.say("positions"), ask.say("bytes kept"), ask.say("computed"),
             ask.say("without a cache"))]
    rows += [(str(i), str(s.length), f"{s.bytes:,}", str(s.fresh), str(s.again)) for i, s in enumerate(found.steps)]
    real = "" if found.real is None else ask.say("allocated: {held} bytes; ", held=f"{found.real:,}")
    note = real + ask.say("{times} times the work without it", times=f"{found.saved:.1f}")
    _, kinds = found.forms()
    return [make_table(ask.say("the KV cache"), rows, note), *tabulate([kinds], ask.say, "{:,}".format)], vars(found)


def gradient(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """How each input token influences the next word."""
    found = t.gradient(ask.pos, ask.token)
    tokens = tokens_of(t, "encoder." if t.core.spec.encoder else "")
    return tabulate(found.forms(), ask.say), {"tokens": tokens, **vars(found)}


def lens(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """Each layer's likeliest next tokens at one position."""
    found = t.lens(ask.pos, top=5)
    rows: list[list[str | Cell]] = []
    for name, ids, chances in zip(found.names, found.ids[:, 0].tolist(), found.chances[:, 0].tolist(), strict=True):
        best = zip(resolve.show_tokens(t, ids), chances, strict=True)
        rows.append([name.removesuffix(".resid_out"), *(make_cell(f"{clean(w)} {100 * p:.0f}%", p) for w, p in best)])
    return [make_table(ask.say("guesses after each layer"), rows)], found


def list_guesses(cells: Any, used: Sequence[bool], tokens: Sequence[str], say: Callable[..., str]) -> list[list[Cell]]:
    """The likeliest token after each layer at each position, the last layer first; discarded ones in brackets.

    `cells` lists by layer and position the likeliest (token, chance); the row below is what was read.
    """
    rows: list[list[Cell]] = []
    for layer in reversed(range(len(cells))):
        best = (cell[0] for cell in cells[layer])
        shown = [(f"{clean(w)} {100 * p:.0f}%", p) if kept else (f"({clean(w)})", -1.0)
                 for (w, p), kept in zip(best, used, strict=True)]
        rows.append([make_cell(say("layer {layer}", layer=layer) if layer else say("embedding")), *shown])
    return [*rows, [make_cell(say("read")), *map(make_cell, tokens)]]


def diff(t: Trace, other: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """Where two texts part ways."""
    found = t.diff(other)
    return tabulate(found.forms(), ask.say, "{:.2f}".format), found


def trace_text(model: Any, line: str, shows: Sequence[str], how: Mapping[str, Any]) -> Trace:
    """A text read by a model with the taps that some readouts need: translated greedily, continued, or only read.

    A decoder writes one token, which reads the prompt once; eight where the cache and the order of work are shown.
    """
    long = 8 if {"cache", "wavefront"} & set(shows) else 1
    taps = {"attention": "patterns", "labels": "labels.out"}
    with model.trace(save=[taps.get(show, show) for show in shows]) as t:
        if model.spec.decoder is None or model.spec.head is None:
            with torch.no_grad():
                read_once(model, model.ids(mark_texts(model, line)))
        elif model.encoder_decoder:
            model.translate(line, beam=1, max_new_tokens=how.get("max_new_tokens"))
        else:
            model.generate(line, max_new_tokens=how.get("max_new_tokens") or long)
    return t


def parse_ask(
    say: Callable[..., str], model: Any, texts: Sequence[str], how: Mapping[str, Any], traces: Sequence[Trace]
) -> Ask:
    """The question that options make; without --word the word after the prompt, the first one written, or the mask."""
    heat = how.get("temperature")
    sampling = Sampling(1.0 if heat is None else heat, how.get("top_k"), how.get("top_p"), how.get("min_p"))
    part, spec = how.get("part"), model.spec
    stack = spec.encoder if part == "encoder" else spec.stack
    if stack is None or (part == "cross" and not stack.blocks[0].cross) or (part == "decoder" and not spec.decoder):
        raise QkvError("--part {part}: this model has none", part=part)
    layers = len(stack.blocks)
    layer, head = (how.get("layer") or layers) - 1, (how.get("head") or 1) - 1
    if layer >= layers:
        raise QkvError("--layer {layer}: this model has layers 1 to {layers}", layer=layer + 1, layers=layers)
    heads = stack.blocks[layer].attn.heads
    if head >= heads:
        raise QkvError("--head {head}: layer {layer} has heads 1 to {heads}", head=head + 1, layer=layer + 1,
                       heads=heads)
    pos, key = parse_place(how.get("word")), parse_place(how.get("key"))
    if pos is None:  # after which the first word is written: the last one that was given, or the mask
        pos = mark_usable(model, traces[0]).index(True) if traces else 0
    return Ask(say, pos, key, layer, head, how.get("token"), how.get("vs"),
               tuple(how.get("anchor") or texts), sampling, part=part,
               mean=how.get("head") is None, labels=model.labels, typed=how.get("word") is not None)


def parse_place(typed: str | None) -> int | str | None:
    """A position that was typed: a number, or a word."""
    return int(typed) if typed and typed.lstrip("-").isdigit() else typed


SHOWS: dict[str, Callable[[Trace, Ask], tuple[list[Table], Any]]] = {
    "lens": lens, "parts": parts, "walk": walk, "choices": choices, "mask": mask, "routes": routes,
    "wavefront": wavefront, "cache": cache, "gradient": gradient, "shift": shift, "neighbours": neighbours,
    "analogy": analogy, "attention": attention, "labels": labels,
}
TABLES = ("neighbours", "analogy")  # words alone, no text is read
MOST_LINES = 1000  # of a file, which experts read
