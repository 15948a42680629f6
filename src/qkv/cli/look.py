"""`qkv look MODEL TEXT`: the inside of a model in the terminal, or as one offline page with --html.

An encoder-decoder shows its translation, the alignment and the strongest edges; a decoder the guesses of every layer.
On a real terminal the arrow keys then walk through what it could have written (explore/alternatives.py).
--show picks readouts instead, whose tables explore/tables.py makes.
"""

import math
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from qkv.cli.common import Common, FiniteRange, option, verb
from qkv.errors import QkvError
from qkv.files import write_text_file
from qkv.messages import Message
from qkv.plots import terminal
from qkv.plots.forms import Cell, Table
from qkv.plots.text import bar, clean, find_widest

Say = Callable[..., str]  # of a template and its fields the text in the reader's language
LAYERS = 12  # of which the guesses are printed: a screen holds no more
SHOWS = (  # those of explore/tables.py, which is not imported for --help
    "lens", "parts", "walk", "choices", "mask", "routes", "wavefront", "cache", "gradient", "shift", "neighbours",
    "analogy", "diff", "attention", "labels", "experts",
)


@verb("Look inside a model: a translation model shows its alignment and strongest edges, a language model the guesses "
      "of every layer. --html writes an offline page, --show prints the tables of a readout.", examples=(
        "qkv look demo --serve",
        "qkv look demo-lm 'One, two,' --show parts --show walk --layer 2 --head 3",
        "qkv look demo 书和茶都在桌上，我看完了它。 --show shift --word 它 --anchor 书 --anchor 茶",
    ))
@click.argument("model")
@click.argument("text", nargs=-1)
@option("--layer", type=click.IntRange(1), help="only this layer (starting at 1)")
@option("--head", type=click.IntRange(1), help="only this head (starting at 1)")
@option("--word", help="word (default: 它) or position to look at")
@option("--step", type=click.IntRange(0), help="use the model as it was after N steps (MODEL is a run); without TEXT, "
        "show what was recorded then")
@option("--moved", type=(click.IntRange(0), click.IntRange(0)), metavar="A B", help="show what changed between two "
        "steps of a run, and what did not")
@option("--beam", type=click.IntRange(1), default=4, help="beam width for translation")
@option("-n", "--max-new-tokens", type=click.IntRange(1), help="maximum number of new tokens")
@option("--html", type=click.Path(dir_okay=False), help="write an offline page")
@option("--figures", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="write five PNG figures: "
        "shapes, attention, joined heads, block, one vector by layer (needs matplotlib)")
@option("--serve", is_flag=True, help="open a page on this machine, for any sentence")
@option("--port", type=click.IntRange(1, 65535), help="port for --serve (default: the first free one from 8123)")
@option("--no-browser", is_flag=True, help="with --serve, print the address and do not open a browser")
@option("--show", multiple=True, type=click.Choice(SHOWS), help="readout to show (may be repeated)")
@option("--part", type=click.Choice(("encoder", "decoder", "cross")), help="walk, mask: which attention")
@option("--key", help="walk: position or word that is attended to (default: the one with the largest weight)")
@option("--token", help="parts: token to explain (default: the most likely)")
@option("--vs", help="parts: token to contrast with")
@option("--anchor", multiple=True, help="shift: word to move towards (may be repeated)")
@option("-t", "--temperature", type=FiniteRange(0), help="choices: temperature")
@option("--top-k", type=click.IntRange(1), help="choices: the k most likely tokens")
@option("--top-p", type=FiniteRange(0, 1, min_open=True), help="choices: nucleus probability")
@option("--min-p", type=FiniteRange(0, 1), help="choices: minimum probability, relative to the most likely token")
def command(
    common: Common, model: str, text: tuple[str, ...], html: str | None, step: int | None, show: tuple[str, ...],
    serve: bool, **how: Any,
) -> None:
    if how["moved"] or (step is not None and not (text or serve)):
        if show or how["word"] or html or how["figures"]:
            raise click.UsageError(Message("TEXT is missing: what was recorded is shown whole; --show, --word, --html "
                                           "and --figures look at a text"))
        return show_record(common, model, step or 0, how["moved"])
    if show == ("experts",) and not text:
        text = draw_pairs()
    if not (text or serve):
        raise click.UsageError(Message("TEXT is missing; give it in quotes, or --serve to type it on a page"))
    if empty := [t for t in text if not t.strip()]:
        raise QkvError("TEXT is empty ({empty!r}): there is nothing to look into", empty=empty[0])
    loaded = common.load_model(model, step)
    from qkv.tasks.classify import join_judged

    if loaded.tokenizer is None:
        raise QkvError("{model}: has no tokenizer, so a text cannot become tokens; save one beside its weights",
                       model=model)
    if not loaded.spec.has_blocks:
        asked = {"figures": how["figures"], "html": html, "serve": serve, "show": show}
        if other := next((name for name in asked if asked[name]), ""):
            raise QkvError("--{other}: an LSTM has no layers of attention to look into; qkv look {model} TEXT shows "
                           "where one with attention looked, qkv translate {model} TEXT what it writes", other=other,
                           model=model)
        return show_lstm(common, loaded, text, how)
    text = join_judged(loaded, text)
    if how["figures"]:
        return write_figures(common, loaded, text, how)
    if serve:
        return serve_page(common, loaded, model, text, how)
    silent = loaded.spec.decoder is None or loaded.spec.head is None  # it writes nothing
    if html and (silent or not show):
        write_page(common, loaded, model, text, html, how)
    if show or silent:
        own = {"labels": loaded.spec.labels, "attention": True, "lens": loaded.spec.head}
        return show_readouts(common, loaded, text, show or tuple(name for name in own if own[name]), how)
    from qkv.explore import alternatives, scenes

    found = [scenes.describe_text(loaded, make_question(loaded, line, how), how["word"] or "它", heads=common.json)
             for line in text]
    for note in (note for scene in found for note in scene.get("said", ())):
        common.note(note)
    if common.json:
        return common.emit({"title": Path(model).name, "scenes": found, "lang": common.lang, "html": html})
    if len(found) == 2:
        print_comparison(common, found)
    for scene in found if len(found) != 2 or common.verbose or how["layer"] or how["head"] or how["word"] else ():
        print_scene(common, scene, how)
    if len(text) == 1 and not html and common.is_interactive():
        alternatives.walk_alternatives(loaded, text[0], common.say)
    return None


def show_lstm(common: Common, loaded: Any, text: tuple[str, ...], how: dict[str, Any]) -> None:
    """What there is to see of an LSTM: its translation, and where it looked; a QkvError where it has no attention."""
    results = loaded.translate(list(text), align=True, max_new_tokens=how["max_new_tokens"])
    found: list[dict[str, Any]] = [
        {"text": line, "output": r.text, "source": loaded.tokenizer.pieces(loaded.ids(line), side="source"),
         "target": loaded.tokenizer.pieces(r.tokens), "alignment": r.alignment.tolist()}
        for line, r in zip(text, results, strict=True)
    ]
    if common.json:
        return common.emit({"kind": "lstm", "texts": found})
    for one in found:
        click.echo(f"{one['text']} → {click.style(one['output'], bold=True)}")
        print_sheets([make_alignment_table(common.say, one["target"], one["source"], one["alignment"])])
    return None


def write_page(common: Common, loaded: Any, name: str, text: tuple[str, ...], html: str, how: dict[str, Any]) -> None:
    """The live page with its answers recorded, as one file."""
    from qkv.explore import record

    asked = [(name, make_question(loaded, line, how)) for line in text]
    if len(text) == 2:  # each is compared with the other
        asked = [(name, replace(q, second=other)) for (_, q), other in zip(asked, reversed(text), strict=True)]
    made = record.record(asked, {name: loaded}, lang=common.lang)
    write_text_file(Path(html), made)
    common.note("wrote {html}, one offline file", html=html)


def write_figures(common: Common, loaded: Any, text: tuple[str, ...], how: dict[str, Any]) -> None:
    """The five figures as files."""
    from qkv.explore import figures, tables
    from qkv.plots import figure

    layer, head = (how["layer"] or 0) - 1, (how["head"] or 1) - 1
    word = tables.parse_place(how["word"])
    made = figures.make_figures(loaded, text, layer=layer, head=head, word=word, say=common.say)
    for name, fig in made.items():
        figure.save_figure(fig, how["figures"] / name)
    paths = [str(how["figures"] / name) for name in made]
    common.print_result({"figures": paths}, paths)


EXAMPLES = {
    "demo": ("书和茶都在桌上，我看完了它。", "书和茶都在桌上，我喝完了它。", "我看完了那本书。"),
    "demo-lm": ("One, two, buckle my", "Twinkle, twinkle, little"),
    "demo-bert": ("我爱[MASK]。", "I finished reading the [MASK]."),
    "demo-moe": ("我看完了那本书。", "书和茶都在桌上，我喝完了它。"),
}


def make_question(loaded: Any, line: str, how: dict[str, Any]) -> Any:
    """A text as the page asks it, with the options that were typed."""
    from qkv.explore.question import Question

    beam = how["beam"] if loaded.encoder_decoder and how["beam"] != 4 else None  # 4 is what it does anyway
    return Question(line, max_new_tokens=how["max_new_tokens"], beam=beam)


def list_examples(name: str) -> tuple[str, ...]:
    """Sentences to begin with: those of a bundled model, those with which a run was watched, or any."""
    from qkv.training.probes.records import FOLDER, ProbeLog

    known = tuple(ProbeLog(name).index["texts"]) if (Path(name) / FOLDER / "index.json").is_file() else ()
    return EXAMPLES.get(name) or known or ("The cat sat on the", "今天天气很")


def draw_pairs(count: int = 300) -> tuple[str, ...]:
    """Pairs of the bundled corpus, source and target, as a line each: what experts are judged on without a text."""
    from qkv.data.corpus import load_corpus

    return tuple(f"{pair.zh}\t{pair.en}" for pair in load_corpus().test[:count])


def serve_page(common: Common, loaded: Any, name: str, text: tuple[str, ...], how: dict[str, Any]) -> None:
    """The live page, until Ctrl-C. `QKV_TOKEN` sets the token, for programs that drive a browser."""
    from qkv import paths
    from qkv.explore import server
    from qkv.explore.question import question_as_json

    known = sorted(p.name for p in paths.bundled_dir().iterdir() if (p / "config.json").is_file())
    desk = server.Desk(
        [name, *(n for n in known if n != name)], common.load_model, common.lang,
        {**EXAMPLES, name: list(dict.fromkeys((*text, *list_examples(name))))}, models={name: loaded},
        first=question_as_json(make_question(loaded, text[0], how)) if text else {},
        watched=Path(name) if Path(name).is_dir() else Path("runs"),
    )
    page = server.Page(desk, port=how["port"], token=os.environ.get("QKV_TOKEN") or None)
    common.print_result({"url": page.url}, [page.url])
    if not (how["no_browser"] or server.open_browser(page.url)):
        common.note("no browser or no display: open the address above in one")
    common.note("Ctrl-C ends it")
    with suppress(KeyboardInterrupt):  # the way to end it
        page.run()


def show_readouts(
    common: Common, loaded: Any, texts: tuple[str, ...], show: tuple[str, ...], how: dict[str, Any]
) -> None:
    """The tables of the readouts asked for, text by text; analogy and diff take all texts together."""
    from qkv.explore import tables

    found: list[dict[str, Any]] = []
    together = [s for s in show if s in ("analogy", "diff", "experts")]
    alone = [s for s in show if s not in together]
    for names, part in [(together, texts), *((alone, (t,)) for t in texts)]:
        alone = set(names) <= {*tables.TABLES, "experts"}
        traces = [] if alone else [tables.trace_text(loaded, t, names, how) for t in part]
        for name in names:
            ask = tables.parse_ask(common.say, loaded, part, how, traces)
            if name == "experts":
                sheets, data = tables.experts(loaded, part, common.say)
            elif name == "diff":
                if len(traces) != 2:
                    raise QkvError("diff: give two texts", code="look-diff")
                sheets, data = tables.diff(traces[0], traces[1], ask)
            else:
                sheets, data = tables.SHOWS[name](traces[0] if traces else loaded.trace(), ask)
            found.append({"text": part[0] if len(part) == 1 else list(part), "show": name, "data": data})
            if not common.json:
                print_sheets(sheets)
    if common.json:
        common.emit({"readouts": found})


def show_record(common: Common, model: str, step: int, moved: tuple[int, int] | None) -> None:
    """What a run recorded of itself at a step, or what moved between two."""
    from qkv.explore import probe_tables
    from qkv.training.probes.records import ProbeLog

    run = ProbeLog(model)
    if moved:
        loaded = common.load_model(model, moved[0])
        sheets, data = probe_tables.compare_steps(run, *moved, common.say, loaded.core, loaded.tokenizer,
                                                  every=common.verbose)
    else:
        if (near := run.find_nearest(step)) != step:
            common.note("nothing was recorded at step {step}; this is step {near}, the nearest", step=step, near=near)
        sheets, data = probe_tables.step_tables(run, near, common.say, every=common.verbose)
    if common.json:
        return common.emit(data)
    return print_sheets(sheets)


def print_sheets(sheets: Iterable[Table]) -> None:
    """Tables with their titles and notes."""
    for sheet in sheets:
        click.echo("\n" + "\n".join(terminal.render(sheet)))


def print_comparison(common: Common, scenes: list[dict[str, Any]]) -> None:
    """Two texts beside each other: what was written for each, and the words in which they differ."""
    from qkv.lens.compare import find_differences

    rows: list[list[str]] = []
    for side in ("source", "target") if scenes[0]["kind"] == "translation" else ("target",):
        one, two = ([clean(token) for token in scene[side]] for scene in scenes)
        rows += [[" ".join(one[a]) or "–", "|", " ".join(two[b]) or "–"] for a, b in find_differences(one, two)]
    for scene in scenes:
        click.echo(f"{scene['text']} → {click.style(scene['output'], bold=True)}")
    cuts = [make_cut_table(common.say, scene) for scene in scenes if scene["proof"]]
    note = common.say("-v shows also the alignment and the strongest edges of each")
    print_sheets([Table(common.say("where the two differ"), rows or [[common.say("nowhere")]], note), *cuts])


def print_scene(common: Common, scene: dict[str, Any], how: dict[str, Any]) -> None:
    """One text in the terminal: what was written, and the tables below it."""
    translation = scene["kind"] == "translation"
    part, side = ("encoder", "source") if translation else ("decoder", "target")
    check_choice(scene, scene[side][: len(scene["attention"][part][0][0])], how)
    click.echo(f"{scene['text']} → {click.style(scene['output'], bold=True)}")
    sheets = [make_cut_table(common.say, scene)] if scene["proof"] else []
    if translation:
        weight = scene["alignment"]["weight"]
        if how["layer"] or how["head"]:
            weight = average_heads(scene["attention"]["cross"], how)
        sheets.append(make_alignment_table(common.say, scene["target"][1:], scene["source"], weight))
    else:
        sheets.append(make_guess_table(common.say, scene, verbose=common.verbose))
    sheets.append(make_edge_table(common.say, scene["attention"][part], scene[side], how))
    if not translation:
        sheets.append(make_next_word_table(common.say, scene))
    print_sheets(sheets)


def check_choice(scene: dict[str, Any], tokens: Sequence[str], how: dict[str, Any]) -> None:
    """A QkvError where the model has no such layer or head, or the text no such word."""
    for name in ("layer", "head"):
        for part, layers in scene["attention"].items():
            size = len(layers) if name == "layer" else len(layers[0])
            if how[name] and how[name] > size:
                raise QkvError("--{name} {number}: the {part} has {name}s 1 to {size}", name=name, number=how[name],
                               part=part, size=size)
    if how["word"] and not any(how["word"] in token for token in tokens):
        raise QkvError("--word {word}: not among the tokens {map}", word=how["word"], map=" ".join(map(clean, tokens)))


def pick_heads(layers: list[Any], how: dict[str, Any]) -> list[tuple[int, int, Any]]:
    """(layer, head, weights) of the heads that --layer and --head leave."""
    return [(i, h, weight) for i, heads in enumerate(layers) for h, weight in enumerate(heads)
            if how["layer"] in (None, i + 1) and how["head"] in (None, h + 1)]


def average_heads(layers: list[Any], how: dict[str, Any]) -> list[list[float]]:
    """The mean of the heads that --layer and --head leave."""
    kept = [weight for _, _, weight in pick_heads(layers, how)]
    return [[sum(cells) / len(kept) for cells in zip(*rows, strict=True)] for rows in zip(*kept, strict=True)]


def make_alignment_table(say: Say, rows: Sequence[str], columns: Sequence[str], weight: list[list[float]]) -> Table:
    """Where each written word looked: a shade with its percentage."""
    from qkv.explore.tables import weight_table

    return weight_table(say("alignment (where each written word looked, %)"), rows, columns, weight)


def make_guess_table(say: Say, scene: dict[str, Any], *, verbose: bool) -> Table:
    """What each layer would have said at each position; but for -v as many of both as a screen holds."""
    from qkv.explore import tables

    found, title = scene["guesses"], say("guesses after each layer (those in brackets are thrown away)")
    rows = tables.list_guesses(found["cells"], found["used"], scene["target"][: len(found["used"])], say)
    layers, positions = len(rows) - 2, len(rows[0]) - 1  # above the embedding and what was read
    if verbose:
        return Table(title, rows)
    if layers > LAYERS:  # evenly, from the last one down
        rows = [*rows[:layers:math.ceil(layers / LAYERS)], *rows[layers:]]
    columns = pick_columns(rows, found["used"].index(True) + 1 if True in found["used"] else 1)
    if len(rows) - 2 == layers and len(columns) - 1 == positions:
        return Table(title, rows)
    note = say("{layers} of {all_layers} layers and {positions} of {all_positions} positions; -v shows all",
               layers=len(rows) - 2, all_layers=layers, positions=len(columns) - 1, all_positions=positions)
    return Table(title, [[row[c] for c in columns] for row in rows], note)


def pick_columns(rows: Sequence[Sequence[str | Cell]], first: int) -> list[int]:
    """The names and as many columns as the terminal is wide: from `first` on, then those before it."""
    widths = [2 + find_widest(cell if isinstance(cell, str) else cell[0] for cell in column)
              for column in zip(*rows, strict=True)]
    kept, room = [0], shutil.get_terminal_size((80, 24)).columns - widths[0]
    for column in (*range(first, len(widths)), *reversed(range(1, first))):
        room -= widths[column]
        if room < 0 and len(kept) > 1:
            break
        kept.append(column)
    return sorted(kept)


def make_edge_table(say: Say, layers: list[Any], tokens: Sequence[str], how: dict[str, Any]) -> Table:
    """The strongest edges of the word asked about, or of all words, over the heads that are looked at."""
    word = how["word"] or "它"
    asked = [i for i, t in enumerate(tokens[: len(layers[0][0])]) if word in t]
    found = sorted(((row[q][s], i, h, q, s) for i, h, row in pick_heads(layers, how)
                    for q in (asked or range(len(row))) for s in range(len(row[q])) if s != q), reverse=True)[:6]
    title = say("strongest edges of {of}", of=clean(tokens[asked[0]])) if asked else say("strongest edges")
    return Table(title, [[f"{clean(tokens[q])} → {clean(tokens[s])}", (f"{100 * w:.0f}%", w),
                          say("layer {i} head {h}", i=i + 1, h=h + 1)] for w, i, h, q, s in found])


def make_next_word_table(say: Say, scene: dict[str, Any]) -> Table:
    """The likeliest words after the prompt, as bars."""
    best = scene["guesses"]["cells"][-1][scene["prompt"] - 1]
    rows = [[clean(w), (f"{bar(p, 1.0, 30)[0]} {100 * p:.1f}%", p)] for w, p in best]
    return Table(say("the next word after the prompt"), rows)


def make_cut_table(say: Say, scene: dict[str, Any]) -> Table:
    """The proof: the cuts that take most of the chance of the word with which the page's Proof begins, the worst first.

    The word asked about is cut from others where that matters; else the written one from the source, as on the page.
    """
    proof, across = scene["proof"], scene.get("across")
    found = find_strongest_cuts(proof)
    if across and find_strongest_cuts(across)[0][0] * 0.1 >= max((lost for lost, _ in found), default=0.0):
        proof, found = across, find_strongest_cuts(across)
    at, query, before = proof["at"], proof["query"], proof["before"][proof["at"]]
    keys, goal = scene["target" if proof["side"] == "decoder" else "source"], clean(scene["target"][at])
    asking = goal if proof["side"] == "cross" else clean(keys[query])
    rows: list[list[str | Cell]] = [
        [f"{asking} ✂ {clean(keys[s])}", (f"{100 * before:.1f}% → {100 * (before - lost):.1f}%", lost),
         say("says ") + clean(proof["instead"][query][s][at])] for lost, s in found]
    said = say("P({goal}) was {before:.2f}", goal=goal, before=before)
    return Table(say("one edge cut, run again: {said}", said=said), rows)


def find_strongest_cuts(proof: dict[str, Any]) -> list[tuple[float, int]]:
    """The three cuts that take most of the chance of the word asked about: (what is lost, the key), the most first."""
    query, at, after = proof["query"], proof["at"], proof["after"][proof["query"]]
    keys = range(query) if proof["side"] == "decoder" else range(len(after))
    own = None if proof["side"] == "cross" else query
    return sorted(((proof["before"][at] - after[s][at], s) for s in keys if s != own), reverse=True)[:3]
