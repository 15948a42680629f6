"""Each readout of lens/ as tables of words and numbers, for a terminal and for JSON. The command is `qkv look --show`.

A cell is a text and a weight that colours it. Letters: T positions, S keys, L layers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.lens import embeddings, resolve
from qkv.lens.step_by_step import Strip
from qkv.lens.trace import Trace
from qkv.messages import Message
from qkv.plots.forms import Cell, Table
from qkv.plots.text import bar, format_signed, make_cell
from qkv.sampling import Sampling


@dataclass(frozen=True)
class Ask:
    """What is asked of a trace: positions as numbers or words, layer and head from 0, and the language."""

    say: Callable[..., str]
    pos: int | str = -1
    key: int | str = 0
    layer: int = 0
    head: int = 0
    token: str | None = None
    vs: str | None = None
    anchors: tuple[str, ...] = ()
    sampling: Sampling | None = None
    top: int = 10
    part: str | None = None

    def path(self, t: Trace) -> str:
        """The attention asked about: of the stack that writes, or of the `part` encoder, decoder or cross."""
        dot = "encoder." if self.part == "encoder" and t.core.spec.decoder else resolve.prefix_of(t)
        return f"{dot}layers.{self.layer}.{'cross' if self.part == 'cross' else 'attn'}"


def tokens_of(t: Trace, path: str = "") -> list[str]:
    """The tokens of the stack that a path belongs to, or of the one that speaks."""
    return resolve.show_tokens(t, resolve.find_run(t, path).ids[0].tolist())


def parts(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """Who pushed the logit."""
    found = t.parts(ask.pos, ask.token, vs=ask.vs)
    goal = resolve.show_tokens(t, [found.token])[0].strip()
    goal += f" − {resolve.show_tokens(t, [found.vs])[0].strip()}" if found.vs is not None else ""
    after = "".join(tokens_of(t)[found.pos : found.pos + 1]).strip()
    sheets: list[Table] = []
    best = found.best[: ask.top]
    for title, rows in (
        (ask.say("who pushed {goal} (after {after})", goal=goal, after=after), found.sublayers),
        (ask.say("the strongest parts"), best),
    ):
        largest = max(abs(p.push) for p in rows)
        cells = [[make_cell(p.name), make_cell(format_signed(p.push)), bar(p.push, largest)] for p in rows]
        sheets.append(Table(title, cells))
    total = ask.say("sum")
    post = any(n.endswith("_sum") for n in found.frozen)
    scale = ask.say("later norms act with the scale they had; ") if post else ""
    note = f"{scale}{total} {format_signed(found.logit)} = logit (±{found.gap:.0e})"
    neurons = neuron_table(t, ask)
    sheets[-1] = Table(sheets[-1].title, sheets[-1].rows, note)
    return [*sheets, *([neurons] if neurons else [])], {**vars(found), "sublayers": found.sublayers}


def neuron_table(t: Trace, ask: Ask) -> Table | None:
    """The neurons of the layer asked about; nothing where experts stand in their place."""
    if t.core.spec.stack.blocks[ask.layer].ffn is None:
        return None
    found = t.neurons(ask.layer, ask.pos, ask.token, vs=ask.vs, top=5)
    cells = [[make_cell(p.name), make_cell(format_signed(p.push)), bar(p.push, abs(found[0].push))] for p in found]
    layer = ask.layer + 1
    return Table(ask.say("the strongest neurons of layer {layer}", layer=layer), cells)


STEPS = {
    "pieces": Message("pieces"), "embedding": Message("embedding"),
    "attention": Message("attention"), "heads": Message("heads"),
    "add & norm": Message("add & norm"), "ffn": Message("ffn"), "next word": Message("next word"),
}


LABELS = {"given": Message("value given")} | {label: label for label in (
    Message("row"), Message("scaled"), Message("position"), Message("q before"), Message("product"), Message("running"),
    Message("sum"), Message("scale"), Message("scaled sum"), Message("score"), Message("mask"), Message("pattern"),
    Message("weight"), Message("all heads"), Message("head weights"), Message("joined"), Message("out"),
    Message("before"), Message("read"), Message("said"), Message("after"), Message("mean"), Message("spread"),
    Message("chances"), Message("next ids"))}


def translate_label(name: str, say: Callable[..., str]) -> str:
    """The name of a strip in the reader's language; names of taps and letters stay."""
    stem, _, moment = name.rpartition(" ")
    if stem and moment in ("mean", "spread"):
        return f"{say(LABELS[stem])} {say(LABELS[moment])}"
    return say(LABELS.get(name, name))


def walk(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """The seven steps of one position."""
    found = t.walk(ask.path(t), head=ask.head, query=ask.pos, key=ask.key)
    pieces = tokens_of(t, "encoder." if ask.part == "cross" else found.path)
    sheets: list[Table] = []
    for n, (step, strips) in enumerate(found.steps.items(), start=1):
        rows = [[make_cell(translate_label(s.name, ask.say)), make_cell(show_shape(s)), make_cell(show_strip(s)),
                 make_cell(s.line)] for s in strips]
        sheets.append(Table(f"{n} {ask.say(STEPS[step])}", rows))
    q, k = found["ids"].words[found.query].strip(), pieces[found.key].strip()
    head = f"{found.path} {ask.say('head')} {found.head + 1}: {q} → {k}"
    title = f"{head} ({ask.say(WHY[found.reason])}) {100 * float(found['weight'].values):.1f}%"
    data = {step: [{"name": s.name, "line": s.line, "shape": s.whole, "letters": s.letters, "words": s.words,
                    "values": s.values} for s in strips] for step, strips in found.steps.items()}
    place = {"path": found.path, "head": found.head, "query": found.query, "key": found.key, "reason": found.reason}
    return [Table(title, []), *sheets], {**place, "steps": data}


def show_shape(s: Strip) -> str:
    """Where a strip comes from: the letters and the sizes of the whole."""
    return f"{s.letters} {list(s.whole)}" if s.whole else ""


def show_strip(s: Strip) -> str:
    """The first numbers of a strip, or its words beside them."""
    flat = s.values.flatten()[:4].tolist()
    names = [make_cell(w)[0] for w in s.words]
    if names and not s.values.is_floating_point():
        return " ".join(f"{w}={int(x)}" for w, x in zip(names, s.values.flatten().tolist(), strict=True))
    if names:
        return " ".join(f"{w} {x:.3f}" for w, x in zip(names, flat, strict=False))
    if not s.values.is_floating_point():
        return " ".join(str(int(x)) for x in flat)
    return " ".join(map(format_signed, flat)) + (" …" if s.values.numel() > 4 else "")


def neighbour_rows(found: list[embeddings.Neighbour]) -> list[list[Cell]]:
    """Tokens with their cosines."""
    return [[make_cell(n.piece), make_cell(f"{n.cosine:.3f}"), bar(n.cosine, 1.0)] for n in found]


def neighbours(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """The tokens nearest to each word asked about."""
    found = {w: embeddings.find_neighbours(t.core, t.tokenizer, w, ask.top, side="source") for w in ask.anchors}
    title = ask.say("nearest in the embedding table")
    return [Table(f"{w}: {title}", neighbour_rows(rows)) for w, rows in found.items()], found


def analogy(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """a is to b as c is to…"""
    if len(ask.anchors) != 3:
        raise QkvError("analogy: give three words, such as 中国 北京 日本")
    a, b, c = ask.anchors
    found = embeddings.solve_analogy(t.core, t.tokenizer, a, b, c, side="source")
    return [Table(f"{a} : {b} = {c} : ?", neighbour_rows(found))], found


def shift(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """How a word moves towards its anchors."""
    side = "encoder." if t.core.spec.encoder and t.core.spec.decoder else ""
    found = t.shift(ask.pos, list(ask.anchors), side=side)
    way = [] if found.between is None else [make_cell(f"{found.anchors[0]} 0 … 1 {found.anchors[1]}")]
    rows = [[make_cell(""), *(make_cell(f"cos {a}") for a in found.anchors), *way]]
    for i, name in enumerate(found.names):
        cells = [make_cell(f"{x:+.3f}", max(0.0, x)) for x in found.cosine[i].tolist()]
        at = [] if found.between is None else [make_cell(f"{float(found.between[i]):+.3f}")]
        rows.append([make_cell(name.removesuffix(".resid_out")), *cells, *at])
    return [Table(ask.say("where {word} moves, layer by layer", word=found.word), rows)], found


def choices(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """The next word, filter by filter."""
    found = t.choices(ask.pos, sampling=ask.sampling)
    sheets: list[Table] = []
    data: list[dict[str, Any]] = []
    for s in found:
        ids, chances = s.top_tokens(ask.top)
        pieces = resolve.show_tokens(t, ids)
        left = ask.say("{kept} tokens left, entropy {entropy:.2f} nats", kept=s.kept, entropy=s.entropy)
        gone = ask.say(", {gone:.1f}% cut", gone=100 * s.gone) if s.gone else ""
        rows = [[make_cell(w), make_cell(f"{100 * p:.2f}%"), bar(p, 1.0, 30)]
                for w, p in zip(pieces, chances, strict=True)]
        sheets.append(Table(f"{s.name} ({left}{gone})", rows))
        top = [list(pair) for pair in zip(pieces, chances, strict=True)]
        data.append({"name": s.name, "kept": s.kept, "entropy": s.entropy, "gone": s.gone, "top": top})
    return sheets, data


SIGNS = {"seen": "■", "future": "·", "padding": "p", "window": "w", "other document": "d"}
WHY = {"seen": Message("seen"), "future": Message("future"), "padding": Message("padding"),
       "window": Message("window"), "other document": Message("other document")}


def mask(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """Who may look at whom, and why not."""
    found = t.mask(ask.path(t))
    tokens = tokens_of(t, found.path)
    rows = [[make_cell(w), *((SIGNS[r], float(r == "seen")) for r in found.row_reasons(i))]
            for i, w in enumerate(tokens)]
    there = {r for i in range(len(tokens)) for r in found.row_reasons(i)}
    note = "  ".join(f"{sign} {ask.say(WHY[r])}" for r, sign in SIGNS.items() if r in there)
    title = ask.say("{path} ({kind}): rows look at columns", path=found.path, kind=found.kind)
    return [Table(title, rows, note)], {"path": found.path, "kind": found.kind, "tokens": tokens,
                                        "cells": [found.row_reasons(i) for i in range(len(tokens))]}


def routes(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """Which experts read which token."""
    found, tokens = t.routes(), tokens_of(t)
    rows = [[make_cell(""), *(make_cell(w) for w in tokens), make_cell(ask.say("load"))]]
    for r in found:
        picks = [" ".join(f"{e}:{w:.2f}" for e, w in zip(i, x, strict=True))
                 for i, x in zip(r.index.tolist(), r.weight.tolist(), strict=True)]
        rows.append([make_cell(r.path), *(make_cell(p) for p in picks), make_cell(" ".join(map(str, r.load.tolist())))])
    title = ask.say("which experts read each token (expert:weight)")
    return [Table(title, rows)], {"tokens": tokens, "layers": found}


def wavefront(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """When each state could be and was computed."""
    found, tokens = t.wavefront(), tokens_of(t)
    titles = {
        "triangle": ask.say("one token, one layer at a time: the triangle"),
        "earliest": ask.say("as early as what it needs is there"),
        "ran": ask.say("what the machine ran: row by row"),
    }
    sheets = [
        Table(title, [[make_cell(""), *(make_cell(w) for w in tokens)],
                      *([make_cell(f"layer {i + 1}"), *(make_cell(str(x)) for x in getattr(found, name)[i].tolist())]
                        for i in reversed(range(len(found.ran))))])
        for name, title in titles.items()
    ]
    return sheets, {"tokens": tokens, **{name: getattr(found, name) for name in titles}, "sees": found.sees}


def cache(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """Bytes of every step."""
    found = t.cache()
    heads = (ask.say("step"), ask.say("positions"), ask.say("bytes kept"),
             ask.say("computed"), ask.say("without a cache"))
    rows = [[make_cell(h) for h in heads]]
    steps = [(i, s.length, f"{s.bytes:,}", s.fresh, s.again) for i, s in enumerate(found.steps)]
    rows += [[make_cell(str(x)) for x in step] for step in steps]
    held = "" if found.real is None else f"{found.real:,}"
    real = ask.say("allocated: {held} bytes; ", held=held) if held else ""
    times = f"{found.saved:.1f}"
    note = real + ask.say("{times} times the work without it", times=times)
    kinds = [[make_cell(k), make_cell(f"{b:,}"), bar(b, max(found.kinds.values()))] for k, b in found.kinds.items()]
    title = ask.say("bytes per position of this model with other attentions")
    return [Table(ask.say("the KV cache"), rows, note), Table(title, kinds)], {**vars(found)}


def gradient(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """How each input token influences the next word."""
    found = t.gradient(ask.pos, ask.token)
    both = t.core.spec.encoder and t.core.spec.decoder
    tokens = resolve.show_tokens(t, resolve.find_run(t, "encoder." if both else "").ids[0].tolist())
    largest = float(found.times.abs().max())
    rows = [[make_cell(w), make_cell(format_signed(x)), bar(x, largest)]
            for w, x in zip(tokens, found.times.tolist(), strict=True)]
    goal = resolve.show_tokens(t, [found.token])[0].strip()
    title = ask.say("gradient × input: what influences {goal}", goal=goal)
    return [Table(title, rows)], {"tokens": tokens, **vars(found)}


def lens(t: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """Each layer's likeliest next tokens at one position."""
    found = t.lens(ask.pos, top=5)
    rows: list[list[Cell]] = []
    guesses = zip(found.names, found.ids[:, 0].tolist(), found.chances[:, 0].tolist(), strict=True)
    for name, ids, chances in guesses:
        best = zip(resolve.show_tokens(t, ids), chances, strict=True)
        cells = [make_cell(f"{make_cell(w)[0]} {100 * p:.0f}%", p) for w, p in best]
        rows.append([make_cell(name.removesuffix(".resid_out")), *cells])
    return [Table(ask.say("guesses after each layer"), rows)], found


def list_guesses(
    cells: Any, used: Sequence[bool], tokens: Sequence[str], say: Callable[..., str]
) -> list[list[Cell]]:
    """The likeliest token after each layer at each position, the last layer first; discarded ones in brackets.

    `cells` lists by layer and position the likeliest (token, chance); the row below is what was read.
    """
    rows: list[list[Cell]] = []
    for layer in reversed(range(len(cells))):
        best = (cell[0] for cell in cells[layer])
        shown = [(f"{make_cell(w)[0]} {100 * p:.0f}%", p) if kept else (f"({make_cell(w)[0]})", -1.0)
                 for (w, p), kept in zip(best, used, strict=True)]
        rows.append([make_cell(say("layer {layer}", layer=layer) if layer else say("embedding")), *shown])
    return [*rows, [make_cell(say("read")), *map(make_cell, tokens)]]


def diff(t: Trace, other: Trace, ask: Ask) -> tuple[list[Table], Any]:
    """Where two texts part ways."""
    found, tokens = t.diff(other), tokens_of(t)
    rows = [[make_cell(""), *(make_cell(tokens[i]) for i, _ in found.pairs)]]
    for n, name in enumerate(found.names):
        far: Tensor = found.distance[n]
        rows.append([make_cell(name.removesuffix(".resid_out")), *(make_cell(f"{x:.2f}", x) for x in far.tolist())])
    if found.divergence is not None:
        parted = torch.clamp(found.divergence, 0).tolist()
        rows.append([make_cell("KL"), *(make_cell("" if math.isnan(x) else f"{x:.2f}", x) for x in parted)])
    title = ask.say("how far apart the tokens are that both texts have")
    return [Table(title, rows)], found


def trace_text(model: Any, line: str, shows: Sequence[str], how: Mapping[str, Any]) -> Trace:
    """A text read by a model with the taps that some readouts need: translated greedily, continued, or only read.

    A decoder writes one token, which reads the prompt once; eight where the cache and the order of work are shown.
    """
    long = 8 if {"cache", "wavefront"} & set(shows) else 1
    with model.trace(save=list(shows)) as t:
        if model.encoder_decoder:
            model.translate(line, beam=1, max_new_tokens=how.get("max_new_tokens"))
        elif model.spec.decoder:
            model.generate(line, max_new_tokens=how.get("max_new_tokens") or long)
        else:
            with torch.no_grad():
                model(torch.tensor([model.ids(line)], device=model.device))
    return t


def parse_ask(
    say: Callable[..., str], model: Any, texts: Sequence[str], how: Mapping[str, Any], traces: Sequence[Trace]
) -> Ask:
    """The question that options make; without --word the word after the prompt, the first one written, or the mask."""
    heat = how.get("temperature")
    sampling = Sampling(1.0 if heat is None else heat, how.get("top_k"), how.get("top_p"), how.get("min_p"))
    words_of = tuple(how.get("anchor") or ()) or tuple(texts)
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
    pos = parse_place(how.get("word"))
    if pos is None:
        pos = first_answer(model, texts[0], traces[0]) if traces else 0
    key = parse_place(how.get("key"))
    return Ask(say, pos, 0 if key is None else key, layer, head, how.get("token"), how.get("vs"), words_of, sampling,
               part=part)


def parse_place(typed: str | None) -> int | str | None:
    """A position that was typed: a number, or a word."""
    return int(typed) if typed and typed.lstrip("-").isdigit() else typed


def first_answer(model: Any, line: str, t: Trace) -> int:
    """The position after which the first word is written: the last one that was given, or the mask."""
    if model.spec.decoder:
        return resolve.find_run(t).calls[0].ids.shape[1] - 1
    ids, mask_id = model.ids(line), model.tokenizer.mask_id if model.tokenizer else None
    return ids.index(mask_id) if mask_id in ids else 0


SHOWS: dict[str, Callable[[Trace, Ask], tuple[list[Table], Any]]] = {
    "lens": lens, "parts": parts, "walk": walk, "choices": choices, "mask": mask, "routes": routes,
    "wavefront": wavefront, "cache": cache, "gradient": gradient, "shift": shift, "neighbours": neighbours,
    "analogy": analogy,
}
TABLES = ("neighbours", "analogy")  # words alone, no text is read
