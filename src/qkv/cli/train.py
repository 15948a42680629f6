"""`qkv train RECIPE|FILE.toml [a.b=c ...]`: train, with a live line on a terminal and plain lines in a pipe."""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from qkv.cli.common import Common, count_cores, option, verb
from qkv.messages import Message

EVERY = 10.0  # seconds between two plain lines
Say = Callable[..., str]  # of a template and its fields the text to be shown


@verb("Train with a recipe (such as multi30k; without one, list them), with a TOML file that describes your own data, "
      "or directly on data: files (text, TSV, CSV, JSON lines, Parquet; .gz, .bz2, .zst), folders, quoted globs, or "
      "two parallel files. The first line says what they were found to hold; objective=labels, pairs or text says it "
      "otherwise. a.b=c changes any setting. Ctrl-C saves before it stops.", examples=(
        "qkv train demo --out runs/demo",
        "qkv train multi30k training.seconds=600 model.width=192 --dry-run",
        "qkv train runs/mine --resume",
    ))
@click.argument("recipe", required=False, metavar="[RECIPE|FILE]")
@click.argument("overrides", nargs=-1, metavar="[a.b=c ...]")
@option("--out", type=click.Path(path_type=Path), help="output directory (default: under runs/, named after the run)")
@option("--dry-run", is_flag=True, help="only estimate parameters, memory and time")
@option("--resume", is_flag=False, flag_value="auto", default="never", metavar="[auto|never]", help="resume from the "
        "last checkpoint; `qkv train DIR --resume` needs no other setting")
@option("--smoke", is_flag=True, help="run every stage in seconds, to check that it works")
@option("--seed", type=int, help="random seed of weights, data order and dropout")
@option("--processes", type=click.IntRange(1), default=1, help="number of processes that train together: one per GPU, "
        "or one per core for small models on a CPU; each adds its own training.accumulate micro-batches to a step")
@option("--settings", is_flag=False, flag_value="", metavar="[PART|WORD]", help="list the settings (a.b) with default "
        "and meaning, those of a part or with a word in their name, such as training or warmup; and stop")
@option("--track", multiple=True, metavar="NAME", help="also log to tensorboard, wandb or trackio")
def command(
    common: Common, recipe: str | None, overrides: tuple[str, ...], out: Path | None, dry_run: bool, resume: str,
    smoke: bool, seed: int | None, processes: int, settings: str | None, track: tuple[str, ...],
) -> int:
    from qkv.data.cache import hear_progress
    from qkv.training import recipes, run_dir

    if settings is not None:
        return list_settings(common, settings)
    if resume not in ("auto", "never"):  # what follows --resume is the run, as nobody says `auto` then
        overrides, recipe, resume = (*([recipe] if recipe else []), *overrides), resume, "auto"
    given = [*([recipe] if recipe else []), *overrides]
    recipe = next((word for word in given if "=" not in word or Path(word).exists()), recipe)  # settings may come first
    if out is not None and resume == "auto" and recipe in (None, *(word for word in given if "=" in word)):
        recipe = str(out)
    if recipe is None:
        return list_recipes(common)
    if recipe in given:
        given.remove(recipe)
    words = [*given, *([] if seed is None else [f"training.seed={seed}"])]
    words += [] if common.dtype == "auto" else [f"training.precision={common.dtype}"]
    with show_events(common) as live, hear_progress(live):
        run = recipes.configure(recipe, words, smoke=smoke)
    for line in run.about:
        common.note(line)
    if dry_run and processes > 1:
        raise click.UsageError(Message("--dry-run measures one process; leave --processes away"))
    if dry_run:
        return print_plan(common, run)
    if out is None and run_dir.is_run(Path(recipe)):
        out = Path(recipe)
    with tempfile.TemporaryDirectory() as folder:
        kept = not smoke or out is not None
        out = out or (Path("runs") if kept else Path(folder)) / run.name
        if processes == 1:
            return learn(common, run, out, resume, kept=kept, track=track)
        same = [recipe, *words, f"--out={out}", f"--resume={resume}", *(["--smoke"] if smoke else [])]
        with launch_processes(common, processes, same):
            return learn(common, run, out, resume, kept=kept, track=track)


def list_recipes(common: Common) -> int:
    """The recipes, and what else there is to train on."""
    from qkv.training import recipes

    known = recipes.describe_recipes()
    common.print_result(known, [*(f"{name:<20} {common.say(said)}" for name, said in known.items()), common.say(
        "or your own: mine.toml, book.txt, pairs.tsv, train.zh train.en (docs/training.md)")])
    return 0


def list_settings(common: Common, word: str) -> int:
    """The settings whose names hold a word, with their defaults and meanings."""
    from qkv.plots.text import find_widest, pad
    from qkv.training.own_data import describe_settings, format_value

    found = describe_settings(word)
    rows = {f"{name} = {format_value(value)}": about for name, (value, about) in found.items()}
    size = min(40, find_widest(rows))
    common.print_result({name: {"default": value, "about": about} for name, (value, about) in found.items()},
                        (f"{pad(row, size)}  {common.say(about)}" for row, about in rows.items()))
    common.note("on your own data, a setting that you leave out is chosen by what they are: --dry-run shows it")
    return 0


@contextmanager
def launch_processes(common: Common, processes: int, words: list[str]) -> Iterator[None]:
    """This process as the first of several that share the cores; the others are this verb with the same `words`."""
    import torch

    from qkv.training import distributed

    threads = common.threads or max(1, count_cores() // processes)
    torch.set_num_threads(threads)
    own = ["train", "--quiet", f"--device={common.device}", f"--threads={threads}", *words]
    with distributed.start_ranks(processes, [sys.executable, "-m", "qkv.cli", *own], device=common.device):
        yield


def learn(common: Common, run: Any, out: Path, resume: str, *, kept: bool = True, track: tuple[str, ...] = ()) -> int:
    """Train, and tell how it went."""
    from qkv.training import recipes, trackers
    from qkv.training.control import Interrupted

    first = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun started
    reports = [trackers.open_tracker(name, out) for name in track] if first else []
    try:
        with show_events(common) as live:
            report = trackers.join_reports([live, *reports]) if reports else live
            done = recipes.train(run, out=out, device=common.device, report=report, resume=resume == "auto", quiet=True)
    except Interrupted as stopped:
        common.note("saved; go on with: qkv train {out} --resume", out=out)
        return stopped.code
    if done.rank:
        return 0
    result = {**asdict(done.outcome), "test": done.test, "refit": done.refit,
              "directory": str(out) if kept else None}
    if done.verdict:
        result |= {"trivial": done.verdict.trivial, "faults": list(done.verdict.faults)}
    if done.labels:
        result["labels"] = done.labels.record
    if common.json:
        common.emit(name_data(run) | result)
    else:
        print_end(common, result, done)
    return 0


def name_data(run: Any) -> dict[str, str]:
    """What the data of a run were found to be, for --json."""
    return {"about": run.about[0]} if run.about else {}


def print_plan(common: Common, run: Any) -> int:
    """What the run would take."""
    from qkv.devices import read_free_memory
    from qkv.plots.text import pad
    from qkv.training import own_data, recipes

    free = read_free_memory(common.device)
    found = recipes.estimate(run, device=common.device)
    if common.json:
        chosen = {choice.key: choice.value for choice in run.choices}
        common.emit({"run": run.name, **name_data(run), **asdict(found), "free_bytes": free, "chosen": chosen})
        return 0
    beside = "" if free is None else common.say(", of {free:.2f} GB free", free=free / 1e9)
    some, evaluations = found.parameters != found.trained_parameters, max(1, found.evaluations)
    learning = (
        common.say(", {trained_parameters:,} learn", trained_parameters=found.trained_parameters) if some else ""
    )
    speed = f"{found.tokens_per_second:,.0f}"
    rows = (
        (Message("parameters"), f"{found.parameters:,}" + learning),
        (Message("steps"), f"{found.steps:,} ({found.steps_per_epoch:,} / " + common.say("epoch") + ")"),
        (Message("peak memory, about"), f"{found.peak_bytes / 1e9:.2f} GB{beside}"),
        (Message("speed"), common.say("{seconds_per_step:.3f} s/step, {speed} tokens/s ({precision})",
                       seconds_per_step=found.seconds_per_step, speed=speed, precision=found.precision)),
        (Message("training time, about"), clock(found.seconds)),
        (Message("evaluations besides"), f"{found.evaluations} × {clock(found.evaluation_seconds / evaluations)}"),
    )
    mark = "# " if run.choices else ""  # what is printed is a TOML file then
    for (text, value) in rows:
        click.echo(mark + pad(common.say(text), 23) + value)
    if free is not None and found.peak_bytes > free:
        click.echo(mark + common.say("this will not fit: halve training.tokens and double training.accumulate, or "
                              "training.recompute=blocks"))
    if run.choices:
        click.echo(own_data.write_toml(run, common.say))
    return 0


def print_end(common: Common, result: dict[str, Any], done: Any) -> None:
    """The last lines of a run: its numbers, beside trivial ones, and what to do where it has learnt nothing."""
    from qkv.plots.terminal import draw_table
    from qkv.tasks.label_scores import draw_confusion

    if result["why"] == "patience":
        again = f"qkv train {result['directory'] or 'RUN'} training.patience=0 --resume"
        click.echo(common.say("ended early, as evaluations got no better (training.patience); to go on: {again}",
                              again=again))
    click.echo(common.say("trained for") + f" {clock(result['seconds'])}, {result['steps']} "
               + common.say("steps, weights") + f" {result['weights']}: {format_numbers(result['metrics'])}")
    if done.refit:
        click.echo(common.say(done.refit))
    if result["test"]:
        click.echo(common.say("test") + f": {format_numbers(result['test'])}")
    if labels := done.labels:
        for text in draw_table(draw_confusion(labels, corner=common.say("true ↓ said →"))):
            click.echo(text)
    if result["directory"]:
        click.echo(common.say("the model lies in") + f" {result['directory']}")
    if done.verdict and result["directory"]:  # a smoke test has learnt nothing
        if done.verdict.comparison:
            click.echo(common.say(done.verdict.comparison))
        for fault in done.verdict.faults:
            click.echo(common.say(fault), err=True)


def show_events(common: Common) -> Any:
    """A context that gives the function which shows events: nothing, a live line, or plain lines."""
    if common.json or common.quiet:
        return nullcontext(None)
    return Live(common.say) if sys.stderr.isatty() else Plain(common.say)


class Plain:
    """Events as lines, not more than one in some seconds for the steps."""

    def __init__(self, say: Say = Message) -> None:
        self.say, self.last, self.reading = say, 0.0, True

    def __enter__(self) -> "Plain":
        return self

    def __exit__(self, *error: object) -> None: ...

    def __call__(self, event: dict[str, Any]) -> None:
        try:
            if self.reading:
                self.show(event)
        except OSError:  # nobody reads any more, as after `| head`: the run is worth more, and its log has all of it
            self.reading = False

    def show(self, event: dict[str, Any]) -> None:
        """An event, as lines on stderr."""
        if event["kind"] in ("step", "reading"):
            if time.monotonic() - self.last < EVERY:
                return
            self.last = time.monotonic()
        for text in describe_event(event, self.say):
            click.echo(text, err=True)


class Live(Plain):
    """A line that moves, and above it what is worth keeping: notes, evaluations, sample translations."""

    @cached_property
    def progress(self) -> Any:
        """The line, which is there from the first event on."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[said]}"))
        made = Progress(*columns, console=Console(stderr=True), transient=True)
        self.task = made.add_task("train", total=None, said="")
        made.start()
        return made

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):
            if "progress" in vars(self):
                self.progress.stop()

    def show(self, event: dict[str, Any]) -> None:
        """An event, in the line that moves or above it."""
        if event["kind"] == "step":
            said = describe_event(event, self.say)[0].partition("  ")[2]
            self.progress.update(
                self.task, description=f"{event['step']}", completed=event["step"], total=event["of"], said=said
            )
            return
        if event["kind"] == "reading":
            (said,) = describe_event(event, self.say)
            of = event["of"] or None
            self.progress.update(self.task, description="", completed=event["done"], total=of, said=said)
            return
        for text in describe_event(event, self.say):
            self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


def describe_event(event: dict[str, Any], say: Say = Message) -> list[str]:
    """An event as people read it."""
    kind = event["kind"]
    if kind == "step":
        number = f"{event['step']}/{event['of']}" if event["of"] else f"{event['step']}"
        loss, lr = f"{event['loss']:.3f}", f"{event['lr']:.2e}"
        speed, peak = f"{event['tokens_per_second']:,.0f}", f"{event['of_peak']:.0%}"
        parts = [say("step {number}", number=number), say("loss {loss}", loss=loss), say("lr {lr}", lr=lr)]
        if "busiest" in event:
            more = f"{event['busiest']:.2f}"
            parts += [say("busiest expert {more} × its share", more=more)]
        texts = event.get("counted") == "texts"
        parts += [say("{speed} texts/s, {peak} of peak" if texts else "{speed} tokens/s, {peak} of peak", speed=speed,
                      peak=peak)]
        if event["eta"] is not None:
            parts += [say("ETA {clock}", clock=clock(event["eta"]))]
        return ["  ".join(parts)]
    if kind == "evaluation":
        best = "  *" if event.get("best") else ""
        samples = [f"    {' → '.join(part.strip()[:120] for part in sample)}" for sample in event.get("samples", ())]
        at, weights = say("step {step}", step=event["step"]), event.get("weights")
        if weights:  # the mean of weights that were judged before: their answers are much like those
            at, samples = f"{at} ({weights})", []
        return [f"{at}  {format_numbers(event)}{best}", *samples]
    if kind == "reading":
        share = f"{event['done'] / event['of']:.0%}" if event["of"] else f"{event['done']} s"
        return [f"{say(event['text'])}  {share}"]
    if kind != "note":
        return []
    return [say(event["text"])]


def format_numbers(found: Mapping[str, Any]) -> str:
    """The numbers among what was measured; an accuracy that has two names once."""
    twice = ("exact_match",) if "label_accuracy" in found else ()
    return "  ".join(f"{key} {value:.4g}" for key, value in found.items()
                     if isinstance(value, float) and key not in (*twice, "majority"))


def clock(seconds: float) -> str:
    """Seconds as people read them."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
