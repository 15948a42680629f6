"""What a lab shows: its picture as forms of plots/, its table, its verdict, and the page that holds it all."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path

from qkv.labs.lab import KINDS, VERDICTS, Lab, Plot, Result, Runs, as_json
from qkv.messages import Message
from qkv.plots import figure, html
from qkv.plots.forms import Bars, Form, Grid, Lines, Table, scale
from qkv.plots.text import format_number


def format_short(x: float) -> str:
    """A number with four digits."""
    return format_number(x, 4)


def make_forms(lab: Lab, runs: Runs, lang: str) -> list[Form]:
    """The lab's picture, with the names of its table where bars or series have them; then the published one, if any."""
    ours = lab.plot(runs)
    plots = [ours, ours.beside] if ours.beside else [ours]
    return [make_form(plot, {**plot.names, **lab.rows}, lang) for plot in plots]


def make_form(plot: Plot, names: Mapping[str, Message], lang: str) -> Form:
    """One picture of a lab in one language."""
    called = {name: words.to(lang) for name, words in names.items()}
    places = [called.get(x, x) if isinstance(x, str) else format_short(x) for x in plot.x]
    series = {called.get(name, name): list(row) for name, row in plot.series.items()}
    title, note, x, y = (words.to(lang) for words in (plot.title, plot.source, plot.x_label, plot.y_label))
    log, published = plot.scale == "log", bool(note)
    if plot.kind == "grid":
        shade = scale(series.values(), log=log)
        cells = [[format_number(v, 2) if part >= 0.005 else "" for v, part in zip(*rows, strict=True)]
                 for rows in zip(series.values(), shade, strict=True)]
        return Grid(title, list(series), places, shade, cells, note, x_label=x, y_label=y, published=published)
    if plot.kind == "lines":
        return Lines(title, places, series, note, x_label=x, y_label=y, log=log, published=published)
    return Bars(title, places, series, note, x_label=y, y_label=x, log=log, published=published)


def save_page(lab: Lab, runs: Runs, path: Path, lang: str) -> bool:
    """Write the picture as PNG, in English where no Chinese font is installed; False where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        return False
    figure.save_figure(figure.draw(make_forms(lab, runs, lang if figure.find_chinese() else "en")), path)
    return True


def list_rows(lab: Lab, runs: Runs, lang: str) -> list[tuple[str, str, str]]:
    """What was measured: name, mean, and least to greatest over the seeds."""
    rows: list[tuple[str, str, str]] = []
    for name, words in lab.rows.items():
        spread = f"{format_short(runs.min(name))} … {format_short(runs.max(name))}" if len(runs.rows) > 1 else ""
        rows.append((words.to(lang), format_short(runs.mean(name)), spread))
    return rows


def describe(lab: Lab, lang: str) -> list[tuple[str, str]]:
    """What a lab says before it runs: heading and text."""
    heads = (Message("Claim"), Message("Who says it"), Message("Measured"),
             Message("Chance and baseline"), Message("Expected, before running"))
    texts = (lab.claim, lab.who, lab.measured, lab.chance, lab.expected)
    return [(h.to(lang), t.to(lang)) for h, t in zip(heads, texts, strict=True)]


def write_verdict(result: Result, lang: str) -> str:
    """The verdict in one line, with the effect and its spread."""
    v = result.verdict
    word = name_verdict(result, lang)
    marked = (Message(" (stopped early: partial)").to(lang)) if result.stopped else ""
    colon = Message(": ").to(lang)
    effect, low, high = map(format_short, (v.effect, *v.spread))
    return f"{word}{marked}{colon}{v.says.to(lang)} [{effect}; {low} … {high}]"


def write_page(lab: Lab, result: Result, lang: str) -> str:
    """One lab as one file with everything in it, to be opened offline."""
    return html.page(f"qkv lab {result.name}", f"<h1>{result.name}</h1>{write_section(lab, result, lang)}", lang)


def write_pages(done: Sequence[tuple[Lab, Result]], lang: str) -> str:
    """One lab as `write_page` has it; several below one another, with a list of all verdicts first."""
    if len(done) == 1:
        return write_page(*done[0], lang)
    count = Message("{done} labs", done=len(done)).to(lang)
    rows = "".join(
        f'<tr><td><a href="#{result.name}">{result.name}</a></td><td>{escape(KINDS[lab.kind].to(lang))}</td>'
        f"<td>{escape(name_verdict(result, lang))}</td></tr>"
        for lab, result in done
    )
    parts = "".join(f'<h2 id="{r.name}">{r.name}</h2>{write_section(lab, r, lang)}' for lab, r in done)
    return html.page("qkv lab", f"<h1>{count}</h1><table>{rows}</table>{parts}", lang)


def name_verdict(result: Result, lang: str) -> str:
    """The word of a verdict."""
    return VERDICTS[result.verdict.word].to(lang)


def write_section(lab: Lab, result: Result, lang: str) -> str:
    """What a page says of one lab: verdict, what was said before running, picture, table, the raw numbers."""
    runs = Runs(result.numbers)
    pictures = "".join(map(html.render, make_forms(lab, runs, lang)))
    texts = "".join(f"<dt>{escape(h)}</dt><dd>{escape(t)}</dd>" for h, t in describe(lab, lang))
    heads = (Message("measured").to(lang), Message("mean").to(lang), Message("least … greatest").to(lang))
    measured = html.render(Table("", [heads, *list_rows(lab, runs, lang)]))
    kind = KINDS[lab.kind].to(lang)
    numbers = json.dumps(as_json(lab, result), ensure_ascii=False, indent=1)
    count = len(result.seeds)
    took, cpu = result.seconds, result.cpu or "?"
    facts = (Message("{kind} · {count} seeds · {steps} steps · {took} s ({cpu} s of processor)", kind=kind, count=count,
                     steps=result.steps, took=took, cpu=cpu).to(lang))
    return (
        f'<p class="verdict">{escape(write_verdict(result, lang))}</p><dl>{texts}</dl>{pictures}'
        f"{measured}<p>{facts}</p>"
        f"<p><code>qkv lab {result.name} --seeds {count}</code></p>"
        f"<details><summary>JSON</summary><pre>{escape(numbers)}</pre></details>"
    )
