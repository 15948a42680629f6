"""`qkv runs [DIR]`: the runs in a folder side by side, as a table and a plot."""

import shutil
from pathlib import Path
from typing import Any

import click

from qkv.cli.common import Common, option, verb


@verb(
    "比较一个文件夹里的各次训练：表格和终端里的曲线；要网页或图片，用 --html 或 --png。",
    "The runs in a folder side by side: a table, and a plot in the terminal; --html or --png write it to a file.",
    examples=(
        "qkv runs",
        "qkv runs runs/multi30k_en_de --metric bleu --x seconds",
        "qkv runs runs --html runs.html --png runs.png",
    ),
)
@click.argument("folder", required=False, default="runs", type=click.Path(path_type=Path), metavar="[DIR]")
@option("--metric", zh="画哪个指标（loss、bleu、train_loss…）", en="what to draw: loss, bleu, train_loss, …")
@option("--x", type=click.Choice(["steps", "seconds"]), default="steps", zh="横轴", en="the horizontal axis")
@option(
    "--html", "page", type=click.Path(path_type=Path), zh="写成一个离线网页", en="write a page that needs no network"
)
@option(
    "--png", type=click.Path(path_type=Path), zh="写成图片（要 matplotlib）", en="write a picture (needs matplotlib)"
)
def command(common: Common, folder: Path, metric: str | None, x: str, page: Path | None, png: Path | None) -> int:
    from qkv.training import compare as found
    from qkv.training import curves as plots

    runs = found.summaries(folder)
    drawn = found.shared_metric(runs, metric or "")
    curves = {run.name: points for run in runs if (points := run.curve(drawn, x))}
    if png is not None:
        plots.png(curves, png, x=common.say(AXES[x]), y=drawn)
    if page is not None:
        page.parent.mkdir(parents=True, exist_ok=True)
        title = common.say(f"{folder} 里的训练", f"Runs in {folder}")
        text = plots.page(curves, table(common, runs, drawn), x=common.say(AXES[x]), y=drawn, title=title,
                          lang=common.talk.lang)  # fmt: skip
        page.write_text(text, encoding="utf-8")
    if common.json:
        told = [
            {k: v for k, v in vars(run).items() if k != "events"} | {"curve": curves.get(run.name, []), "differs": own}
            for run, own in zip(runs, found.differing(runs), strict=True)
        ]
        common.emit({"folder": folder, "metric": drawn, "x": x, "runs": told, "html": page, "png": png})
        return 0
    show(common, runs, drawn)
    if curves and not common.quiet:
        plot(common, curves, drawn, x)
    for path in (page, png):
        if path is not None:
            common.note(f"已写入 {path}", f"written: {path}")
    return 0


SHOWN = 4  # settings of a run at most, beside how many more there are
AXES = {"steps": ("步", "steps"), "seconds": ("秒", "seconds")}


def table(common: Common, runs: Any, drawn: str) -> list[list[str]]:
    """The runs as rows of words; the first row is the head. The best has the metric that is drawn beside its own."""
    from qkv.training.compare import differing

    head = common.say("名称,步,词元,秒,词元/秒,最佳,测试,训练损失,结束,不同的设置",
                      "name,steps,tokens,seconds,tok/s,best,test,loss,ended,other settings")  # fmt: skip
    rows = [head.split(",")]
    for run, own in zip(runs, differing(runs), strict=True):
        best, test = ("–" if x is None else f"{run.metric} {x:.4g}" for x in (run.best, run.test))
        best += f", {drawn} {run.kept[drawn]:.4g}" if drawn != run.metric and drawn in run.kept else ""
        loss = "–" if run.loss is None else f"{run.loss:.4f}"
        words = [f"{key}={value}" for key, value in own.items()]
        more = [common.say(f"另有 {len(words) - SHOWN} 个", f"{len(words) - SHOWN} more")] * (len(words) > SHOWN)
        rows.append([run.name, f"{run.steps:,}", whole(run.tokens), f"{run.seconds:,.0f}", whole(run.speed), best,
                     test, loss, run.ended or "–", " ".join([*words[:SHOWN], *more]) or "–"])  # fmt: skip
    return rows


def whole(number: float | None) -> str:
    """A count as people read it."""
    return "–" if number is None else f"{number:,.0f}"


def show(common: Common, runs: Any, drawn: str) -> None:
    """The table: columns under each other on a terminal, tabs in a pipe."""
    import sys

    rows = table(common, runs, drawn)
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, header_style="bold")
    for i, cell in enumerate(rows[0]):
        grid.add_column(cell, justify="left" if i in (0, len(rows[0]) - 1) else "right", overflow="fold")
    for row in rows[1:]:
        grid.add_row(*row)
    Console().print(grid)


def plot(common: Common, curves: Any, metric: str, x: str) -> None:
    """The curves in letters, with numbers at the edges and the names below."""
    from qkv.training import curves as plots

    left, right, low, high = plots.bounds(curves)
    width = max(20, min(100, shutil.get_terminal_size((80, 24)).columns - 12))
    rows = plots.drawn(curves, width=width)

    def colour(letter: str, who: int) -> str:
        return click.style(letter, fg=plots.TERMINAL[who % len(plots.TERMINAL)]) if who >= 0 else letter

    click.echo(f"\n{'':>10} {metric}")
    for i, row in enumerate(rows):
        edge = f"{high:.4g}" if i == 0 else f"{low:.4g}" if i == len(rows) - 1 else ""
        click.echo(f"{edge:>9} │{''.join(colour(*cell) for cell in row)}".rstrip())
    click.echo(f"{'':>9} └{'─' * width}")
    least, most = f"{left:.4g}", f"{right:.4g} {common.say(AXES[x])}"
    click.echo(f"{'':>11}{least}{most:>{width - len(least)}}")
    for who, name in enumerate(curves):
        click.echo(f"{'':>11}{colour('━━', who)} {name}")
