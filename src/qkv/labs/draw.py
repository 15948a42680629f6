"""A lab's picture: in the terminal always, as PNG or SVG where matplotlib is there, and the page that holds it all."""

import io
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from qkv.labs.lab import KINDS, VERDICTS, Lab, Plot, Result, Runs, as_json

SHADES, HEIGHTS, COLUMNS = " ░▒▓█", "▁▂▃▄▅▆▇█", 40
CJK = ("Noto Sans CJK SC", "Source Han Sans SC", "WenQuanYi Micro Hei", "PingFang SC", "Microsoft YaHei", "SimHei")


def short(x: float) -> str:
    """A number as a person writes it: whole ones with commas, others with four digits."""
    return f"{x:,.0f}" if float(x).is_integer() and abs(x) < 1e15 else f"{x:.4g}"


def wide(text: str) -> int:
    """Columns that a text takes in a terminal, where a Chinese character takes two."""
    return sum(2 if ord(c) > 0x2E7F else 1 for c in text)


def padded(text: str, size: int) -> str:
    """A text filled up to so many columns."""
    return text + " " * max(0, size - wide(text))


def plotted(lab: Lab, runs: Runs, lang: str) -> Plot:
    """The lab's picture with the names of its table, where bars or series have them."""

    def renamed(made: Plot) -> Plot:
        called = {name: words.to(lang) for name, words in {**made.names, **lab.rows}.items()}
        bars = [called.get(x, x) if isinstance(x, str) else x for x in made.x]
        series = {called.get(name, name): row for name, row in made.series.items()}
        return replace(made, x=bars, series=series, beside=renamed(made.beside) if made.beside else None)

    return renamed(lab.plot(runs))


def heights(plot: Plot) -> list[list[float]]:
    """The values as shares of the greatest, on the plot's scale; on a log scale the least positive stays visible."""
    rows = [[abs(float(v)) if math.isfinite(v) else 0.0 for v in values] for values in plot.series.values()]
    if plot.scale == "log":
        there = [v for row in rows for v in row if v > 0]
        least = math.log10(min(there, default=1.0)) - 0.5
        rows = [[max(0.0, math.log10(v) - least) if v > 0 else 0.0 for v in row] for row in rows]
    top = max((v for row in rows for v in row), default=0.0) or 1.0
    return [[v / top for v in row] for row in rows]


def terminal(plot: Plot, lang: str) -> list[str]:
    """The picture in characters, and below it the published one."""
    lines = [plot.title.to(lang), *characters(plot, lang)]
    if any(plot.source):
        lines.append(f"({plot.source.to(lang)})")
    return [*lines, "", *terminal(plot.beside, lang)] if plot.beside else lines


def characters(plot: Plot, lang: str) -> list[str]:
    """The marks of a picture, without its title."""
    lines, shares = list[str](), heights(plot)
    names = list(plot.series)
    if plot.kind == "grid":
        size = max(map(wide, [*names, ""]))
        for name, row in zip(names, shares, strict=True):
            cells = "".join(SHADES[min(4, math.ceil(v * 4))] * 2 for v in row)
            lines.append(f"{padded(name, size)} │{cells}│")
        return lines
    if plot.kind == "lines":
        size = max(map(wide, names))
        for name, row in zip(names, shares, strict=True):
            bars = zip(row, plot.series[name], strict=True)
            drawn = "".join((HEIGHTS[min(7, int(share * 8))] if math.isfinite(v) else " ") * 2 for share, v in bars)
            values = [v for v in plot.series[name] if math.isfinite(v)] or [math.nan]
            lines.append(f"{padded(name, size)} {drawn}  {short(values[0])} → {short(values[-1])}")
        ends = " … ".join(x if isinstance(x, str) else short(x) for x in (plot.x[0], plot.x[-1]))
        lines.append(" " * (size + 1) + f"{plot.x_label.to(lang)} {ends}".strip())
        return lines
    size = max(wide(str(x)) for x in plot.x)
    for name, row in zip(names, shares, strict=True):
        if len(names) > 1:
            lines.append(f"{name}:")
        for x, share, value in zip(plot.x, row, plot.series[name], strict=True):
            lines.append(f"{padded(str(x), size)} {'█' * round(share * COLUMNS):<{COLUMNS}} {short(value)}")
    return lines


def figure(plot: Plot, lang: str, *, stacked: bool = False) -> Any:
    """The picture as a matplotlib Figure, made without a display; the published one at its right, or below it."""
    from matplotlib.figure import Figure

    plots = [plot, plot.beside] if plot.beside else [plot]
    more = len(plots) - 1
    made = Figure(figsize=(6.4, 4.0 + 3.6 * more) if stacked else (6.4 + 4.8 * more, 4.0), layout="constrained")
    places = made.subplots(*((len(plots), 1) if stacked else (1, len(plots))), squeeze=False).flat
    for one, axes in zip(plots, places, strict=True):
        drawn(one, axes, lang)
        axes.set_title(one.title.to(lang), fontsize=10)
        x, y = (one.y_label, one.x_label) if one.kind == "bars" else (one.x_label, one.y_label)
        axes.set_xlabel(x.to(lang))
        axes.set_ylabel(y.to(lang))
    if plot.beside:
        places[1].set_facecolor("#f3f3f3")
        made.supxlabel(plot.beside.source.to(lang), fontsize=7, x=0.99, ha="right")
    return made


def drawn(plot: Plot, axes: Any, lang: str) -> None:
    """The marks of one picture on its axes."""
    names = list(plot.series)
    if plot.kind == "grid":
        image = axes.imshow([list(plot.series[n]) for n in names], cmap="Blues", aspect="auto",
                            norm="log" if plot.scale == "log" else None)  # fmt: skip
        axes.figure.colorbar(image, ax=axes)
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.set_xticks(range(len(plot.x)), [str(x) for x in plot.x], fontsize=7)
    elif plot.kind == "lines":
        for name in names:
            ends = [x if isinstance(x, str) else short(x) for x in plot.x]
            axes.plot(ends, list(plot.series[name]), marker="o", markersize=4, label=name)
        least = min(v for row in plot.series.values() for v in row)
        axes.set_yscale("symlog" if plot.scale == "log" and least <= 0 else plot.scale)
        axes.legend(fontsize=8)
    else:
        share = 0.8 / len(names)
        for i, name in enumerate(names):
            bars = axes.barh([y + i * share for y in range(len(plot.x))], list(plot.series[name]), share, label=name)
            axes.bar_label(bars, [short(v) for v in plot.series[name]], fontsize=7, padding=2)
        axes.set_yticks([y + 0.4 - share / 2 for y in range(len(plot.x))], [str(x) for x in plot.x], fontsize=8)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        if plot.scale == "log":
            axes.set_xscale("symlog", linthresh=min((v for s in plot.series.values() for v in s if v > 0), default=1.0))
        if len(names) > 1:
            axes.legend(fontsize=8)


def save(lab: Lab, runs: Runs, path: Path | io.StringIO, lang: str) -> bool:
    """Write the picture (PNG by default; SVG into a stream, its words as text); False where matplotlib is missing."""
    try:
        import matplotlib
        from matplotlib import font_manager
    except ImportError:
        return False
    stream = isinstance(path, io.StringIO)
    known = {f.name for f in font_manager.fontManager.ttflist}
    fonts = [name for name in CJK if name in known]
    style: Any = {"svg.fonttype": "none", "font.family": ["DejaVu Sans", *fonts]}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a browser has the glyphs that a PNG's fonts may lack
        lang = lang if fonts or stream else "en"
        made = figure(plotted(lab, runs, lang), lang, stacked=stream)
        made.savefig(path, format="svg" if stream else None, dpi=150)
    return True


def table(lab: Lab, runs: Runs, lang: str) -> list[tuple[str, str, str]]:
    """What was measured: name, mean, and least to greatest over the seeds."""
    rows: list[tuple[str, str, str]] = []
    for name, words in lab.rows.items():
        spread = f"{short(runs.low(name))} … {short(runs.high(name))}" if len(runs.rows) > 1 else ""
        rows.append((words.to(lang), short(runs.mean(name)), spread))
    return rows


def parts(lab: Lab, lang: str) -> list[tuple[str, str]]:
    """What a lab says before it runs: heading and text."""
    heads = (("论断", "Claim"), ("谁说的", "Who says it"), ("测什么", "Measured"),
             ("随机水平与基线", "Chance and baseline"), ("运行前的预期", "Expected, before running"))  # fmt: skip
    texts = (lab.claim, lab.who, lab.measured, lab.chance, lab.expected)
    return [(h.to(lang), t.to(lang)) for h, t in zip(heads, texts, strict=True)]


def verdict(result: Result, lang: str) -> str:
    """The verdict in one line, with the effect and its spread."""
    v = result.verdict
    word = said(result, lang)
    marked = ("（提前停止，结果不完整）" if lang == "zh" else " (stopped early: partial)") if result.stopped else ""
    colon = "：" if lang == "zh" else ": "
    return f"{word}{marked}{colon}{v.says.to(lang)} [{short(v.effect)}; {short(v.spread[0])} … {short(v.spread[1])}]"


STYLE = """body{font:16px/1.6 system-ui,sans-serif;max-width:46em;margin:2em auto;padding:0 1em;color:#1b1f24;
background:#fff}dt{font-weight:600;margin-top:.6em}dd{margin:0}table{border-collapse:collapse;margin:1em 0}td,th{
border:1px solid #ccc;padding:.25em .6em;text-align:left}td+td{text-align:right}
.verdict{border-left:4px solid #2563eb;padding:.4em 1em;background:#eef4ff}
figure{margin:1em 0}svg{max-width:100%;height:auto}pre{overflow:auto}"""


def page(lab: Lab, result: Result, lang: str) -> str:
    """One lab as one file with everything in it, to be opened offline."""
    return whole(f"qkv lab {result.name}", f"<h1>{result.name}</h1>{section(lab, result, lang)}", lang)


def pages(done: Sequence[tuple[Lab, Result]], lang: str) -> str:
    """One lab as `page` has it; several below one another, with a list of all verdicts first."""
    if len(done) == 1:
        return page(*done[0], lang)
    count = f"{len(done)} 个实验" if lang == "zh" else f"{len(done)} labs"
    rows = "".join(
        f'<tr><td><a href="#{result.name}">{result.name}</a></td><td>{escape(KINDS[lab.kind].to(lang))}</td>'
        f"<td>{escape(said(result, lang))}</td></tr>"
        for lab, result in done
    )
    parts = "".join(f'<h2 id="{r.name}">{r.name}</h2>{section(lab, r, lang)}' for lab, r in done)
    return whole("qkv lab", f"<h1>{count}</h1><table>{rows}</table>{parts}", lang)


def said(result: Result, lang: str) -> str:
    """The word of a verdict."""
    return VERDICTS[result.verdict.word].to(lang)


def whole(title: str, body: str, lang: str) -> str:
    """A page from its title and its body."""
    return (
        f'<!doctype html><html lang="{lang}"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style>{body}</html>\n"
    )


def section(lab: Lab, result: Result, lang: str) -> str:
    """What a page says of one lab: verdict, what was said before running, picture, table, the raw numbers."""
    runs, svg = Runs(result.numbers), io.StringIO()
    plot = plotted(lab, runs, lang)
    picture = svg.getvalue() if save(lab, runs, svg, lang) else ""
    picture = picture[picture.find("<svg") :] or f"<pre>{escape(chr(10).join(terminal(plot, lang)))}</pre>"
    texts = "".join(f"<dt>{escape(h)}</dt><dd>{escape(t)}</dd>" for h, t in parts(lab, lang))
    cells = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in table(lab, runs, lang))
    heads = ("测量", "平均", "最小 … 最大") if lang == "zh" else ("measured", "mean", "least … greatest")
    kind = KINDS[lab.kind].to(lang)
    numbers = json.dumps(as_json(lab, result), ensure_ascii=False, indent=1)
    count = len(result.seeds)
    took, cpu = result.seconds, result.cpu or "?"
    facts = (f"{kind} · {count} 个种子 · {result.steps} 步 · {took} 秒（处理器 {cpu} 秒）" if lang == "zh"
             else f"{kind} · {count} seeds · {result.steps} steps · {took} s ({cpu} s of processor)")  # fmt: skip
    return (
        f'<p class="verdict">{escape(verdict(result, lang))}</p><dl>{texts}</dl><figure>{picture}</figure>'
        f"<table><tr>{''.join(f'<th>{h}</th>' for h in heads)}</tr>{cells}</table><p>{facts}</p>"
        f"<p><code>qkv lab {result.name} --seeds {count}</code></p>"
        f"<details><summary>JSON</summary><pre>{escape(numbers)}</pre></details>"
    )
