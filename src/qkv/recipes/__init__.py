"""Recipes: each file here has `run() -> Run`. `train` makes a model of one, or of your own data (own.py)."""

import ast
import dataclasses
import json
import pkgutil
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import QkvError, nearest

if TYPE_CHECKING:
    from qkv.model import Model
    from qkv.recipes.assemble import Assembly
    from qkv.recipes.run import Run
    from qkv.recipes.splits import Splits
    from qkv.training.estimate import Estimate
    from qkv.training.log import Report
    from qkv.training.loop import Outcome
    from qkv.training.parallel import Ranks
    from qkv.training.watch import Watching

# files here that are no recipes
OTHERS = ("shape", "splits", "files", "run", "own", "assemble", "objectives", "holes", "tuning", "watching")


@dataclass(frozen=True)
class Trained:
    """What training gives: the model with its chosen weights, how the run ended, and its numbers on the test split."""

    model: "Model"
    outcome: "Outcome"
    test: dict[str, Any]
    directory: Path | None
    rank: int = 0  # of this process among those that train together; only the first has metrics and a test


def names() -> list[str]:
    """The recipes, from the files of this folder."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in OTHERS)


def about() -> dict[str, str]:
    """What each recipe says of itself in its first line, by name; read, not run."""
    texts = {name: (Path(__path__[0]) / f"{name}.py").read_text(encoding="utf-8") for name in names()}
    return {name: (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0] for name, text in texts.items()}


def find(name: "str | Path | Run", words: Iterable[str] = ()) -> "Run":
    """The run of a recipe's name, of a TOML file or of data alone, with `words` such as training.lr=0.002 put in.

    A Run is itself. Of two parallel files the second is a word without `=`.

    Raises:
        QkvError: no such recipe or file; the nearest name is told. What files.py and run.py say of both.
    """
    from qkv.recipes import own
    from qkv.recipes.run import Run, configured

    words = list(words)
    if isinstance(name, Run) or str(name) in names():
        run = name if isinstance(name, Run) else import_module(f"qkv.recipes.{name}").run()
        return configured(run, words)
    path, more = Path(name), [word for word in words if "=" not in word]
    if more or path.suffix.lower() in own.SUFFIXES or (path / "index.json").is_file():
        return own.from_files([path, *map(Path, more)], [word for word in words if "=" in word])
    if path.suffix == ".toml" or path.is_file():
        return own.from_toml(path, words)
    raise QkvError(f"{name}: no such recipe{nearest(str(name), names())} (known: {', '.join(names())}; or a TOML file, "
                   "or your data: *.txt, *.tsv, *.jsonl, or two parallel files)")  # fmt: skip


def configure(recipe: "str | Path | Run", overrides: Iterable[str] = (), *, smoke: bool = False) -> "Run":
    """The run that will run: the recipe, what was changed with `a.b=c`, cut down to seconds for `smoke`."""
    run = find(recipe, overrides)
    return shortened(run) if smoke else run


def shortened(run: "Run") -> "Run":
    """The same run in seconds: a narrow model, a little of the data, a few steps; every part of it still works."""
    from qkv.data.shards import Mixture

    def few() -> "Splits":
        whole = run.splits()
        if isinstance(whole.train, Mixture):
            return dataclasses.replace(whole, train=whole.train.first(20_000), valid=whole.valid.first(2_000))  # type: ignore[union-attr]
        size = 20_000 if isinstance(whole.train, str) else 200
        cut = {"train": whole.train[:size], "valid": whole.valid[: size // 10], "test": whole.test[:8]}  # type: ignore[index]
        return dataclasses.replace(whole, **cut)  # type: ignore[arg-type]

    ffn = 128 if run.model.family in ("openai_gpt", "glm_blank") else 64  # these know no other than 4 · width
    narrow = {"width": 32, "layers": 2, "heads": 2, "groups": 0, "ffn": ffn, "context": min(run.model.context, 64)}
    model = dataclasses.replace(run.model, **narrow)
    every = {"evaluate_every": 3, "save_every": 0, "log_every": 1, "patience": 0}
    training = dataclasses.replace(run.training, steps=6, epochs=0, tokens=512, warmup=2, precision="fp32", **every)
    return dataclasses.replace(
        run, splits=few, model=model, training=training, check=dataclasses.replace(run.check, sentences=4, longest=8),
        watch=dataclasses.replace(run.watch, times=min(run.watch.times, 3), longest=8),
    )  # fmt: skip


def train(
    recipe: "str | Path | Run", *, overrides: Iterable[str] = (), out: "str | Path | None" = None,
    device: str = "auto", report: "Report | None" = None, resume: bool = False, watch: "Watching | int | None" = None,
) -> Trained:  # fmt: skip
    """Train a recipe, a TOML file or a Run; with `out`, a model directory that also keeps the run in `out`/train.

    `watch` says what the run records of itself while it learns, or how often; read it with training.watch.Watched.

    Where torchrun started several processes, all train; the first one alone writes, and knows metrics and test.

    Raises:
        QkvError: bad data or settings, or a directory with another run; NonFinite (code 3) for a loss that is none.
        Interrupted: SIGINT or SIGTERM; what was learnt is saved, and `resume` goes on.
    """
    from qkv.training import parallel

    run = configure(recipe, overrides)
    if watch is not None:
        watch = dataclasses.replace(run.watch, times=watch) if isinstance(watch, int) else watch
        run = dataclasses.replace(run, watch=watch)
    with parallel.joined(device) as ranks:
        return trained(run, Path(out) if out else None, device, report, resume, ranks)


def trained(
    run: "Run", directory: Path | None, device: str, report: "Report | None", resume: bool, ranks: "Ranks"
) -> Trained:
    """Train in this process, which is one of `ranks`."""
    from qkv.recipes import assemble as parts
    from qkv.training import checkpoint, lock

    start = time.process_time()
    going_on = bool(resume and directory and checkpoint.Store(directory / "train", {}).last)
    a = parts.assemble(run, directory=directory if going_on else None, device=device)
    with lock.held(directory / "train") if directory and ranks.first else nullcontext():
        if directory is not None and not going_on:
            begin(a, directory, first=ranks.first)
        return learnt(a, directory, report, resume, ranks, start)


def learnt(
    a: "Assembly", directory: Path | None, report: "Report | None", resume: bool, ranks: "Ranks", start: float
) -> Trained:
    """Train what was assembled, test it and keep what came of it; `start` is the processor time that it began at."""
    from qkv.recipes import assemble as parts
    from qkv.recipes import watching
    from qkv.training import loop

    if report and ranks.first:
        for text in (*a.splits.notes, *a.plan.notes):
            report({"kind": "note", "step": 0, "text": text})
    beside = parts.beside(a) if ranks.first else {}
    if report and beside:
        report({"kind": "note", "step": 0, "text": parts.counted(beside)})
    evaluate = parts.judge(a, directory) if ranks.first else None
    outcome = loop.train(a.model.core, a.plan, a.run.training, directory=directory, evaluate=evaluate, report=report,
                         resume=resume, watch=watching.recorder(a) if directory and ranks.first else None)  # fmt: skip
    if not ranks.first:
        return Trained(a.model, outcome, {}, directory, ranks.rank)
    numbers, said = parts.test(a)
    if directory is not None:
        a.model.save(directory)
        spent = round(time.process_time() - start, 1)  # of all threads of this process; a resumed run's from there on
        done = {"outcome": dataclasses.asdict(outcome), "test": numbers, "cpu_seconds": spent}
        done |= {"ngrams": beside} if beside else {}
        record(directory / "train" / "result.json", done)
        if said:
            (directory / "train" / "test.hyp").write_text("\n".join(said) + "\n", encoding="utf-8")
    return Trained(a.model, outcome, numbers, directory)


def estimate(recipe: "str | Path | Run", *, overrides: Iterable[str] = (), device: str = "auto") -> "Estimate":
    """What a run will take (parameters, bytes, seconds), measured on a few steps and answers; nothing is written.

    Memory is that of this process, so ask in a fresh one.
    """
    from qkv.recipes import assemble as parts
    from qkv.training import estimate as estimates

    a = parts.assemble(configure(recipe, overrides), device=device)
    return estimates.estimate(a.model.core, a.plan, a.run.training, rehearse=parts.rehearsal(a))


def begin(a: Any, directory: Path, *, first: bool = True) -> None:
    """Write the model with its first weights and the run's settings, so that a resumed run finds its vocabulary."""
    from qkv.recipes.run import PARTS
    from qkv.training import checkpoint

    if checkpoint.Store(directory / "train", {}).last:
        raise QkvError(f"{directory}: holds a run already; go on with --resume auto or give another --out")

    if not first:
        return
    a.model.save(directory)
    parts = {part: dataclasses.asdict(getattr(a.run, part)) for part in PARTS}
    parts |= {"objective": a.run.objective, "base": a.run.base}
    parts |= {"data": dataclasses.asdict(a.run.data)} if a.run.data else {}
    record(directory / "train" / "run.json", {"name": a.run.name, "notes": [*a.splits.notes, *a.plan.notes], **parts})


def record(path: Path, value: dict[str, Any]) -> None:
    """A JSON object into a file, whole or not at all; a number that is none becomes null."""
    from qkv.training import log

    try:
        log.put(path, json.dumps(log.finite(value), indent=2, ensure_ascii=False, default=str) + "\n")
    except OSError as e:
        raise log.unwritten(path, e) from e
