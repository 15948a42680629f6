"""Recipes: each is a TOML file of this folder. `train` makes a model of one, or of your own data (own_data.py)."""

import dataclasses
import sys
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.arguments import check_arguments, is_path
from qkv.data.bad_rows import dry_run
from qkv.data.text_files import explain_missing
from qkv.errors import QkvError, nearest, show_value
from qkv.messages import Message
from qkv.training.run_dir import SETTINGS, Event, Report, is_run, read_object

if TYPE_CHECKING:
    from qkv.training.estimate import Estimate
    from qkv.training.run import ProbeSettings, Run
    from qkv.training.session import Trained

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The recipes, from the files of this folder."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def describe_recipes() -> dict[str, Message]:
    """What each recipe says of itself, by name."""
    found = {name: tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8")) for name in names()}
    return {name: Message(said["about"]) for name, said in found.items()}


@check_arguments
def configure(recipe: "str | Path | Run", overrides: Iterable[str] = (), *, smoke: bool = False) -> "Run":
    """The run that will run: of a recipe's name, of a TOML file or of data alone, with `overrides` such as
    training.lr=0.002 put in; cut down to seconds for `smoke`.

    A Run is itself. Of two parallel files the second is a word without `=`.

    Raises:
        QkvError: no such recipe or file, with the nearest name; and the errors of data_files.py and run.py.
    """
    words, known, typed = list(overrides), names(), recipe if isinstance(recipe, str | Path) else None
    for word in words:
        if not is_path(word):
            raise QkvError("overrides: found {word}, expected a text such as training.lr=0.002", word=show_value(word))
    if typed is not None and str(typed) not in known and not (Path(typed).exists() or {*"*?["} & {*str(typed)}):
        if Path(typed).suffix:  # before torch is imported
            raise explain_missing(Path(typed), FileNotFoundError())
        raise QkvError("{name}: no such recipe{hint} (known: {names}; or a TOML file, or your data: *.txt, *.tsv, "
                       "*.jsonl, or two parallel files)", name=typed, hint=nearest(str(typed), known),
                       names=", ".join(known))
    from qkv.training import own_data
    from qkv.training.run import Run, override_run, shrink_run

    if isinstance(recipe, Run):
        run = override_run(recipe, words) if words else recipe
        return shrink_run(run) if smoke else run
    path, more = Path(recipe), [word for word in words if "=" not in word]
    if str(recipe) in known:
        run = own_data.from_toml(FOLDER / f"{recipe}.toml", words, recipe=True)
    elif is_run(path):
        run = own_data.from_run(path, words, recipe=is_of_recipe(path))
    elif path.suffix == ".toml":
        run = own_data.from_toml(path, words)
    else:
        run = own_data.from_files([path, *map(Path, more)], [word for word in words if "=" in word])
    return shrink_run(run) if smoke else run


def is_of_recipe(directory: Path) -> bool:
    """Whether the run of a directory is one of a recipe, whose data lie with the package or in QKV_DATA."""
    kept = read_object(directory / SETTINGS)
    file = FOLDER / f"{kept.get('name')}.toml"
    told = tomllib.loads(file.read_text(encoding="utf-8")).get("data", {}) if file.is_file() else {}
    data = kept.get("data")
    return bool(told) and isinstance(data, dict) and all(data.get(key) == value for key, value in told.items())


@check_arguments
def train(
    recipe: "str | Path | Run", *, overrides: Iterable[str] = (), out: "str | Path | None" = None,
    device: str = "auto", report: Report | None = None, resume: bool = False,
    watch: "ProbeSettings | int | None" = None, quiet: bool = False,
) -> "Trained":
    """Train a recipe, a TOML file or a Run; with `out`, a model directory that also keeps the run in `out`/train.

    Its events go to `report`; without one what was found in the data, the events and the comparison with trivial
    answers go as lines to stderr, and nowhere with `quiet`.
    `watch` says what the run records of itself while it learns, or how often; probes.records.ProbeLog reads it.

    Where torchrun started several processes, all train; the first one alone writes, and knows metrics and test.

    Raises:
        QkvError: bad data or settings, or a directory with another run; NonFinite (code 3) for a loss that is none.
        Interrupted: SIGINT or SIGTERM; the state is saved, and `resume` continues.
    """
    from qkv.training import distributed, session

    run = configure(recipe, overrides)
    silent = quiet or report is not None
    report = report or (None if quiet else make_progress())
    if not silent:
        print_lines(run.about)
    if watch is not None:
        watch = dataclasses.replace(run.watch, times=watch) if isinstance(watch, int) else watch
        run = dataclasses.replace(run, watch=watch)
    with distributed.join_ranks(device) as ranks:
        done = session.train(run, Path(out) if out else None, device, report, resume, ranks)
    if done.verdict and not silent:
        print_lines((done.verdict.comparison, *done.verdict.faults))
    return done


@check_arguments
def estimate(recipe: "str | Path | Run", *, overrides: Iterable[str] = (), device: str = "auto") -> "Estimate":
    """What a run will take (parameters, bytes, seconds), measured on a few steps and answers; nothing is written.

    Memory is that of this process, so ask in a fresh one.
    """
    from qkv.training import assemble, evaluation
    from qkv.training import estimate as estimates

    with dry_run():
        a = assemble.assemble(configure(recipe, overrides), device=device)
    return estimates.estimate(a.model.core, a.plan, a.run.training, rehearse=evaluation.make_rehearsal(a))


def make_progress(every: float = 5.0) -> Report:
    """A report for Python: notes, evaluations and, `every` so many seconds, the loss of a step, as lines on stderr."""
    last = time.monotonic()

    def tell(event: Event) -> None:
        nonlocal last
        if event["kind"] == "step" and (event["step"] == 1 or time.monotonic() - last >= every):
            last = time.monotonic()
            of = f"/{event['of']}" if event["of"] else ""
            print(f"step {event['step']}{of}  loss {event['loss']:.3f}  lr {event['lr']:.2e}", file=sys.stderr)
        elif event["kind"] == "evaluation":
            numbers = "  ".join(f"{key} {value:.4g}" for key, value in event.items() if isinstance(value, float))
            print(f"step {event['step']}  {numbers}{'  *' if event.get('best') else ''}", file=sys.stderr)
        elif event["kind"] == "note":
            print(event["text"], file=sys.stderr)

    return tell


def print_lines(lines: Iterable[object]) -> None:
    """Lines on stderr, without the empty ones."""
    for line in filter(None, lines):
        print(line, file=sys.stderr)
