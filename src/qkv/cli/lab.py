"""`qkv lab`: every claim with its verdict; `qkv lab NAME` settles one by running it."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from qkv.cli.common import Common, option, verb
from qkv.errors import QkvError

COLOURS = {"shown": "green", "refuted": "red", "true only when": "yellow", "not shown": "magenta"}
ORDER = ("shown", "true only when", "not shown", "refuted", "inconclusive", "not run yet")
ZH = {"not run yet": "尚未运行"}


@verb(
    "这个领域的说法，做成可以自己跑的实验。不带名字：列出全部和已有的结论；misconceptions：常见误解。",
    "The claims of the field as experiments that you can run. Without a name: all of them with their verdicts; "
    "misconceptions: what is commonly got wrong.",
    examples=("qkv lab", "qkv lab order-blind --html order.html", "qkv lab misconceptions"),
)
@click.argument("name", required=False)
@option("--seeds", type=click.IntRange(1), default=3, zh="随机种子个数", en="how many seeds")
@option("--steps", type=click.IntRange(1), zh="步数（太少则无法判断）", en="steps (too few are inconclusive)")
@option("--saved", is_flag=True, zh="不运行，看已有的结果", en="do not run: show the saved result")
@option("--html", type=click.Path(path_type=Path, dir_okay=False),
        zh="写成可离线打开的网页", en="a page that opens offline")  # fmt: skip
@option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/labs"),
        zh="结果与图片的目录", en="the directory of results and pictures")  # fmt: skip
def command(
    common: Common, name: str | None, seeds: int, steps: int | None, saved: bool, html: Path | None, out: Path
) -> int:
    if name is None:
        return listing(common)
    if name == "misconceptions":
        return misconceptions(common)
    if html is not None and not html.parent.is_dir():
        raise QkvError(f"--html {html}: the directory {html.parent} does not exist")
    return settle(common, name, (seeds, steps or 0, saved), html, out)


def listing(common: Common) -> int:
    """All labs in both languages, those with the clearest verdict first."""
    from qkv import labs
    from qkv.labs.lab import IN_ZH, KINDS

    rows = sorted(labs.listed(), key=lambda r: (ORDER.index(r["verdict"]), r["name"]))
    if common.json:
        common.emit(rows)
        return 0
    words = {**IN_ZH, **ZH}
    counts = Counter(r["verdict"] for r in rows)
    parts = [f"{words[v]} {v} {counts[v]}" for v in ORDER if counts[v]]
    click.echo(f"{len(rows)} 个实验 labs: " + " · ".join(parts))
    for row in rows:
        word = row["verdict"]
        mark = click.style(f"{words[word]} · {word}", fg=COLOURS.get(word), bold=True)
        click.echo(f"\n{click.style(row['name'], bold=True)}  [{' '.join(KINDS[row['kind']])}]  {mark}")
        for claim, says in zip(row["claim"], row["says"], strict=True):
            click.echo(f"  {claim}")
            if says and not common.quiet:
                click.echo(click.style(f"    → {says}", dim=True))
    common.note("\n运行一个：qkv lab 名字", "\nrun one: qkv lab NAME")
    return 0


def misconceptions(common: Common) -> int:
    """What circulates and is wrong, with what shows it."""
    from qkv import labs

    entries = labs.misconceptions()
    if common.json:
        common.emit(entries)
        return 0
    lang = common.talk.lang
    for n, entry in enumerate(entries, 1):
        click.echo(f"\n{n:2}. {click.style('✗ ' + entry[f'idea_{lang}'], fg='red')}")
        click.echo(f"    ✓ {entry[f'right_{lang}']}")
        click.echo(click.style(f"    {entry['source']} · {entry['show']}", dim=True))
    return 0


def settle(common: Common, name: str, how: tuple[int, int, bool], html: Path | None, out: Path) -> int:
    """Say what is expected, run it, and tell what came out; Ctrl-C keeps the seeds that are done."""
    from qkv import labs
    from qkv.labs import draw
    from qkv.labs.lab import as_json, from_json, perform

    (seeds, steps, saved), lang, lab = how, common.talk.lang, labs.find(name)
    loud = not (common.json or common.quiet)
    if loud:
        click.echo(click.style(name, bold=True))
        for head, text in draw.parts(lab, lang):
            click.echo(f"  {head}{common.say('：', ': ')}{text}")
    if saved:
        found = labs.saved(name, out) or labs.saved(name)
        if found is None:
            raise QkvError(f"{name}: no saved result; run it without --saved")
        result = from_json(found, f"the saved result of {name}")
    else:
        result = perform(name, lab, seeds=range(seeds), steps=steps, tell=progress(common))
        keep(lab, result, out, lang)
    if common.json:
        common.emit(as_json(lab, result))
    else:
        tell(lab, result, lang, loud)
    if html is not None:
        html.write_text(draw.page(lab, result, lang), encoding="utf-8")
        common.note(f"网页：{html}", f"page: {html}")
    return 130 if result.stopped else 0


def progress(common: Common) -> Any:
    """A line that is written over on a terminal; nothing for pipes."""
    live = sys.stderr.isatty() and not (common.json or common.quiet)

    def tell(said: str) -> None:
        if live:
            click.echo(f"\r\033[K  {said}", err=True, nl=said.endswith("done"))

    return tell


def keep(lab: Any, result: Any, out: Path, lang: str) -> None:
    """Save numbers and picture, so that a page opens at once."""
    from qkv.labs import draw
    from qkv.labs.lab import Runs, as_json

    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(as_json(lab, result), ensure_ascii=False, indent=1)
    (out / f"{result.name}.json").write_text(text + "\n", encoding="utf-8")
    draw.save(lab, Runs(result.numbers), out / f"{result.name}.png", lang)


def tell(lab: Any, result: Any, lang: str, loud: bool) -> None:
    """The table, the picture in characters, the verdict."""
    from qkv.labs import draw
    from qkv.labs.lab import Runs

    runs = Runs(result.numbers)
    if loud:
        rows = draw.table(lab, runs, lang)
        sizes = [max(draw.wide(row[i]) for row in rows) for i in range(2)]
        click.echo()
        for label, mean, spread in rows:
            range_ = f"  {click.style(spread, dim=True)}" if spread else ""
            click.echo(f"  {draw.padded(label, sizes[0])}  {mean:>{sizes[1]}}{range_}")
        click.echo()
        for line in draw.terminal(draw.plotted(lab, runs, lang), lang):
            click.echo(f"  {line}")
        click.echo()
    click.echo(click.style(draw.verdict(result, lang), fg=COLOURS.get(result.verdict.word), bold=True))
