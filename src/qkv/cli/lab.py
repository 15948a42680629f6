"""`qkv lab`: every claim with its verdict; `qkv lab NAME` settles one by running it."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qkv.cli.common import Common, count_cores, option, verb
from qkv.errors import QkvError
from qkv.files import write_text_file
from qkv.messages import Message
from qkv.plots import terminal
from qkv.plots.forms import Table
from qkv.plots.text import find_widest, pad

if TYPE_CHECKING:
    from qkv.labs.lab import Lab, Result

COLOURS = {"shown": "green", "refuted": "red", "true only when": "yellow", "not shown": "magenta"}
ORDER = ("shown", "true only when", "not shown", "refuted", "inconclusive", "not run yet")
TOPICS = {
    Message("Attention"): ("scale", "order-blind", "mask-zero", "head-shapes", "wo-sum", "head-roles", "susan",
                           "two-it", "apple", "one-character", "what-moves"),
    Message("Layers and training"): ("revision-ledger", "residual-depth", "norm-ablation", "warm-up", "buckle",
                                     "no-down", "induction-heads", "exposure-bias", "analogy", "moe-capacity",
                                     "param-count", "six-layers"),
    Message("Cache and speed"): ("cache-exact", "cache-speed", "kv-frozen", "kv-memory", "kv-heads-speed",
                                 "kv-heads-quality", "read-vs-write", "roofline", "wavefront",
                                 "parallel-equals-serial", "queue"),
    Message("Architectures and thinking"): ("bahdanau", "long-recall", "three-shapes", "question-order", "cot-depth",
                                            "cot-serial"),
    Message("From numbers to words"): ("stated-numbers", "temperature-and-top-p"),
}
NOT_RUN = {"not run yet": Message("not run yet")}


@verb("Claims of the field as experiments that you can run. Without a name, list them all with their verdicts; a "
      "word lists those that have it; misconceptions: what is commonly misunderstood.",
      examples=("qkv lab layers", "qkv lab order-blind --html order.html", "qkv lab --exact --compare"))
@click.argument("names", nargs=-1, metavar="[NAME]...")
@option("--exact", is_flag=True, help="run all exact labs")
@option("--seeds", type=click.IntRange(1), default=3, help="number of seeds")
@option("--steps", type=click.IntRange(1), help="number of steps (too few are inconclusive)")
@option("--jobs", type=click.IntRange(1), help="number of seeds to run at once (default: one per core if the lab "
        "trains, otherwise one)")
@option("--saved", is_flag=True, help="show the saved result instead of running")
@option("--compare", is_flag=True, help="compare with the result in the package; the exit code is 1 if they differ")
@option("--html", type=click.Path(path_type=Path, dir_okay=False), help="write a page that opens offline (without a "
        "name: of all labs)")
@option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/labs"), help="directory for "
        "results and figures")
def command(
    common: Common, names: tuple[str, ...], exact: bool, html: Path | None, compare: bool, **how: Any
) -> int | None:
    from qkv import labs

    if names == ("misconceptions",):
        entries = labs.misconceptions()
        return common.print_result(entries, list_misconceptions(entries, common.lang))
    if html is not None and not html.parent.is_dir():
        raise QkvError("--html {html}: the directory {parent} does not exist", html=html, parent=html.parent)
    # before torch is imported: some builds let go of the processors that `taskset` gave
    how["cores"] = count_cores()
    if len(names) == 1 and names[0] not in labs.list_names() and search_labs(names[0]):
        return print_list(common, html, names[0])
    chosen = [*names, *(n for n in labs.list_names() if exact and labs.find_lab(n).kind == "exact" and n not in names)]
    if not chosen:
        return print_list(common, html)
    found = {name: labs.find_lab(name) for name in chosen}  # an unknown name is told before anything runs
    return run_labs(common, found, html, compare, how)


def search_labs(word: str) -> list[dict[str, Any]]:
    """The labs whose name, claim or result has a word, in either language."""
    from qkv import labs

    return [r for r in labs.list_labs() if word.lower() in "\n".join([r["name"], *r["claim"], *r["says"]]).lower()]


def print_list(common: Common, html: Path | None, word: str = "") -> None:
    """All labs by topic, or those that a word finds: name, verdict, seconds and claim, a line each."""
    from qkv import labs

    rows = search_labs(word)
    if html is not None:
        names = [row["name"] for row in rows if labs.load_result(row["name"])]
        save_pages(common, html, [(labs.find_lab(name), load_saved(name)) for name in names])
    common.print_result(rows, list_labs(common, rows))
    common.note("\nrun one: qkv lab NAME; find some: qkv lab WORD; a saved result: qkv lab NAME --saved")


def list_labs(common: Common, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The list as people read it, in their language."""
    from qkv.labs.lab import VERDICTS

    words = {key: common.say(word) for key, word in {**VERDICTS, **NOT_RUN}.items()}
    counts = Counter(row["verdict"] for row in rows)
    said = ", ".join(f"{words[v]} {counts[v]}" for v in ORDER if counts[v] or v in COLOURS)
    yield common.say("{rows} labs: {said}", rows=len(rows), said=said)
    wide = {"name": find_widest(row["name"] for row in rows), "verdict": find_widest(words.values())}
    others = {row["name"] for row in rows}.difference(*TOPICS.values())
    for topic, names in {**TOPICS, Message("More"): sorted(others)}.items():
        found = [row for name in names for row in rows if row["name"] == name]
        if found:
            yield f"\n{click.style(common.say(topic), bold=True)}"
        for row in found:
            mark = click.style(pad(words[row["verdict"]], wide["verdict"]), fg=COLOURS.get(row["verdict"]))
            seconds = "–" if row["seconds"] is None else f"{row['seconds']:.0f} s"
            yield f"  {row['name']:<{wide['name']}}  {mark}  {seconds:>5}  {row['claim'][common.lang != 'zh']}"


def list_misconceptions(entries: Sequence[Mapping[str, str]], lang: str) -> Iterator[str]:
    """What circulates and is wrong, with what shows it."""
    for n, entry in enumerate(entries, 1):
        yield f"\n{n:2}. {click.style('✗ ' + entry[f'idea_{lang}'], fg='red')}\n    ✓ {entry[f'right_{lang}']}"
        yield click.style(f"    {entry['source']} · {entry['show']}", dim=True)


def save_pages(common: Common, html: Path, done: "Sequence[tuple[Lab, Result]]") -> None:
    """The page of some labs with their results."""
    from qkv.labs import page

    write_text_file(html, page.write_pages(done, common.lang))
    common.note("page: {html}", html=html)


def run_labs(common: Common, found: "dict[str, Lab]", html: Path | None, compare: bool, how: Mapping[str, Any]) -> int:
    """Run labs one after another and tell what came out; Ctrl-C keeps what is done and stops."""
    from qkv.labs.lab import as_json

    done: list[tuple[Lab, Result]] = []
    agreed, brief = True, len(found) > 1  # of several labs the verdict alone is told
    for name, lab in found.items():
        result = load_or_run(common, name, lab, how, brief=brief)
        done.append((lab, result))
        if not common.json:
            print_result(lab, result, common, brief=brief)
        if compare:
            agreed &= compare_to_saved(common, lab, result)
        if result.stopped:
            break
    if common.json:
        told = [as_json(lab, result) for lab, result in done]
        common.emit(told if brief else told[0])
    elif brief:
        seconds = sum(result.seconds for _, result in done)
        click.echo(common.say("{done} labs, {seconds:.1f} s together", done=len(done), seconds=seconds))
    if html is not None:
        save_pages(common, html, done)
    return 130 if done[-1][1].stopped else 0 if agreed else 1


def load_saved(name: str, folder: Path | None = None) -> "Result":
    """The saved result of a lab, of the folder or else the package's own."""
    from qkv import labs
    from qkv.labs.lab import from_json

    kept = (folder and labs.load_result(name, folder)) or labs.load_result(name)
    if kept is None:
        raise QkvError("{name}: no saved result; run it without --saved", name=name, code="lab-not-saved")
    return from_json(kept, Message("the saved result of {name}", name=name))


def load_or_run(common: Common, name: str, lab: "Lab", how: Mapping[str, Any], *, brief: bool) -> "Result":
    """The saved result of a lab, or the one of running it now: first what is expected, then the run."""
    from qkv.labs import page
    from qkv.labs.lab import perform

    if not (common.json or common.quiet):
        click.echo(click.style(name, bold=True))
        for head, text in () if brief else page.describe(lab, common.lang):
            click.echo(f"  {head}{common.say(': ')}{text}")
    if how["saved"]:
        return load_saved(name, how["out"])
    seeds, jobs = how["seeds"], how["jobs"] or (min(how["seeds"], how["cores"]) if lab.kind == "trained" else 1)
    if jobs > 1:
        common.note("{jobs} seeds at a time", jobs=jobs)
    result = perform(name, lab, seeds=range(seeds), steps=how["steps"] or 0, jobs=jobs, tell=show_line(common))
    save_result(common, lab, result, how["out"])
    return result


def compare_to_saved(common: Common, lab: "Lab", result: "Result") -> bool:
    """Say where a result and the package's own disagree."""
    from qkv import labs
    from qkv.labs.lab import differences, from_json

    kept = labs.load_result(result.name)
    if kept is None:
        common.note("{name}: no result came with the package", name=result.name)
        return False
    found = differences(lab, from_json(kept, Message("the package's result of {name}", name=result.name)), result)
    for said in found:
        common.note("  disagrees: {said}", said=said)
    if not found:
        common.note("  agrees with the result that came with the package")
    return not found


def show_line(common: Common) -> Callable[[str], None]:
    """A line that is written over on a terminal; nothing for pipes."""
    live = sys.stderr.isatty() and not (common.json or common.quiet)

    def print_line(said: str) -> None:
        if live:
            click.echo(f"\r\033[K  {said}", err=True, nl=said.endswith("done"))

    return print_line


def save_result(common: Common, lab: "Lab", result: "Result", out: Path) -> None:
    """Save numbers and picture, so that a page opens at once; the package's own folder holds numbers alone."""
    from qkv import labs
    from qkv.labs import page
    from qkv.labs.lab import Runs, write_result

    file = write_result(lab, result, out)
    if out.resolve() == labs.find_results().resolve():
        return
    if not page.save_page(lab, Runs(result.numbers), file.with_suffix(".png"), common.lang):
        common.note("no PNG without matplotlib: pip install 'qkv[plot]'")


def print_result(lab: "Lab", result: "Result", common: Common, *, brief: bool) -> None:
    """The table and the picture in characters, unless brief; the verdict."""
    from qkv.labs import page
    from qkv.labs.lab import Runs

    runs, lang = Runs(result.numbers), common.lang
    if not (common.quiet or brief):
        rows = page.list_rows(lab, runs, lang)
        wide = find_widest(mean for _, mean, _ in rows)
        cells = [[label, f"{mean:>{wide}}", (spread, -1.0)] for label, mean, spread in rows]
        click.echo("\n" + "\n".join(line.rstrip() for line in terminal.render(Table("", cells))) + "\n")
        for form in page.make_forms(lab, runs, lang):
            click.echo("\n".join(f"  {line}".rstrip() for line in (*terminal.render(form, lang), "")))
    click.echo(click.style(page.write_verdict(result, lang), fg=COLOURS.get(result.verdict.word), bold=True))
    if not common.quiet:
        click.echo(common.say("  {seconds:.1f} s ({cpu:.1f} s of processor)", seconds=result.seconds, cpu=result.cpu))
