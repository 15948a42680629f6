"""`qkv runs [DIR]`: the runs in a folder side by side, as a table and a plot."""

import math
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import click

from qkv.cli.common import Common, option, verb
from qkv.errors import QkvError
from qkv.files import write_text_file
from qkv.messages import Message


@verb("Compare the runs in a folder: a table, and a plot in the terminal; --html or --png writes it to a file.",
      examples=(
        "qkv runs",
        "qkv runs runs/multi30k_en_de --metric bleu --x seconds",
        "qkv runs runs --html runs.html --png runs.png",
    ))
@click.argument("folder", required=False, default="runs", type=click.Path(path_type=Path), metavar="[DIR]")
@option("--metric", help="metric to plot: loss, bleu, train_loss, …")
@option("--x", type=click.Choice(["steps", "seconds"]), default="steps", help="horizontal axis")
@option("--html", "page", type=click.Path(path_type=Path), help="write a page that opens offline")
@option("--png", type=click.Path(path_type=Path), help="write an image (needs matplotlib)")
def command(common: Common, folder: Path, metric: str | None, x: str, page: Path | None, png: Path | None) -> int:
    from qkv.training import compare as found

    runs = found.summaries(folder)

    from qkv.plots import figure, html, terminal
    from qkv.plots.forms import Lines, Table

    tasks = {task: [run for run in runs if run.task == task] for task in dict.fromkeys(run.task for run in runs)}
    metrics = {task: found.shared_metric(group, "" if metric not in known_metrics(group) else metric or "")
               for task, group in tasks.items()}
    if metric:
        found.shared_metric(runs, metric)  # says so where no run has it
    curves = {task: {run.name: points for run in group if (points := run.curve(metrics[task], x))}
              for task, group in tasks.items()}
    forms = {task: Lines(task if len(tasks) > 1 else "", (), drawn, x_label=common.say(AXES[x]), y_label=metrics[task])
             for task, drawn in curves.items()}
    if page or png:
        check_points({name: points for drawn in curves.values() for name, points in drawn.items()})
    if png is not None:
        figure.check_name(png)
        figure.save_figure(figure.draw(list(forms.values())), png)
    if page is not None:
        title = common.say("Runs in {folder}", folder=folder)
        parts = (html.render(form) + html.render(Table("", list_rows(common, tasks[task], metrics[task])))
                 for task, form in forms.items())
        text = html.page(title, f"<h1>{escape(title)}</h1>{''.join(parts)}", common.lang)
        write_text_file(page, text)
    if common.json:
        told = [
            {k: v for k, v in vars(run).items() if k != "events"} | {
                "task": run.task, "curve": curves[run.task].get(run.name, []), "differs": own}
            for run, own in zip(runs, found.differing(runs), strict=True)
        ]
        drawn = found.shared_metric(runs, metric or "")
        common.emit({"folder": folder, "metric": drawn, "x": x, "runs": told, "html": page, "png": png})
        return 0
    for task, group in tasks.items():
        if len(tasks) > 1:
            click.echo("\n" + click.style(common.say("learns: {task}", task=task or "–"), bold=True))
        print_runs(common, group, metrics[task])
        if curves[task] and not common.quiet and (len(tasks) == 1 or has_points(curves[task])):
            check_points(curves[task])
            click.echo("\n".join(["", *terminal.render(replace(forms[task], title=""))]))
    for path in (page, png):
        if path is not None:
            common.note("written: {path}", path=path)
    return 0


def known_metrics(runs: Any) -> set[str]:
    """The metrics that some run has."""
    return {name for run in runs for name in run.metrics}


SHOWN = 4  # settings of a run at most, beside how many more there are
AXES = {"steps": Message("steps"), "seconds": Message("seconds")}


def list_rows(common: Common, runs: Any, drawn: str) -> list[list[str]]:
    """The runs as rows of words; the first row is the head. The best has the metric that is drawn beside its own."""
    from qkv.training.compare import differing

    head = common.say("name,steps,tokens,seconds,tok/s,best,test,loss,ended,other settings")
    rows = [head.split(",")]
    for run, own in zip(runs, differing(runs), strict=True):
        best, test = ("–" if x is None else f"{run.metric} {x:.4g}" for x in (run.best, run.test))
        best += f", {drawn} {run.kept[drawn]:.4g}" if drawn != run.metric and drawn in run.kept else ""
        loss = "–" if run.loss is None else f"{run.loss:.4f}"
        words = [f"{key}={value}" for key, value in own.items()]
        more = [common.say("{words} more", words=len(words) - SHOWN)] * (len(words) > SHOWN)
        rows.append([run.name, f"{run.steps:,}", format_count(run.tokens), f"{run.seconds:,.0f}",
                     format_count(run.speed), best, test, loss, run.ended or "–",
                     " ".join([*words[:SHOWN], *more]) or "–"])
    return rows


def format_count(number: float | None) -> str:
    """A count as people read it."""
    return "–" if number is None else f"{number:,.0f}"


def print_runs(common: Common, runs: Any, drawn: str) -> None:
    """The table: columns under each other, in a terminal folded to its width."""
    import sys

    rows = list_rows(common, runs, drawn)
    if not sys.stdout.isatty():
        from qkv.plots.text import find_widest, pad

        wide = [find_widest(column) for column in zip(*rows, strict=True)]
        for row in rows:
            click.echo("  ".join(map(pad, row, wide)).rstrip())
        return
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, header_style="bold")
    for i, cell in enumerate(rows[0]):
        grid.add_column(cell, justify="left" if i in (0, len(rows[0]) - 1) else "right", overflow="fold")
    for row in rows[1:]:
        grid.add_row(*row)
    Console().print(grid)


def check_points(curves: Any) -> None:
    """A QkvError where no run has a finite number to draw."""
    if not has_points(curves):
        raise QkvError("nothing to draw: no run has a finite number of this metric")


def has_points(curves: Any) -> bool:
    """Whether a run has a finite number to draw."""
    return any(math.isfinite(x) and math.isfinite(y) for points in curves.values() for x, y in points)
