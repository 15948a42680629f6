"""What every verb shares: its options, its language, its JSON. A verb is written with `verb`, `option` and `Common`.

@verb("what it does", examples=(...))      # options --json --device … come with it
@click.argument("model")
@option("--beam", type=int, default=4, help="beam width")
def command(common: Common, model: str, beam: int) -> None: ...
"""

import gc
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import click

from qkv.cli.usage import translate_frame
from qkv.errors import QkvError
from qkv.files import to_json
from qkv.messages import Message

PIECE = 1 << 20  # bytes of standard input at a time
BATCH = 32  # lines of standard input that are worked on together
MODELS = ("model", "name", "source")  # the arguments that name a model
EVERY = 10.0  # seconds between two plain lines of progress


@dataclass(frozen=True)
class Common:
    """How a command line is answered: the options that every verb has, the language, and what is printed by them."""

    json: bool = False
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    quiet: bool = False
    verbose: bool = False
    revision: str | None = None
    lang: str = "en"
    debug: bool = False
    receive: Callable[[Any], None] | None = None  # takes what answers lines, where workers.py answers parts of a file

    def say(self, template: str, /, **fields: Any) -> str:
        """A message in the reader's language."""
        return Message(template, **fields).to(self.lang)

    def note(self, template: str, /, **fields: Any) -> None:
        """Tell people something beside the result: on stderr, not with --json or --quiet."""
        if not (self.json or self.quiet):
            click.echo(self.say(template, **fields), err=True)

    def emit(self, result: object) -> None:
        """Print one JSON object on one line; what JSON cannot hold becomes text, a non-finite number becomes null."""
        click.echo(to_json(result), nl=False)

    def print_result(self, result: object, lines: Iterable[str] | None) -> None:
        """Print what a verb found: with --json, or without `lines`, as one object, else as lines for people."""
        if self.json or lines is None:
            return self.emit(result)
        for line in lines:
            click.echo(line)
        return None

    def answer(self, lines: Iterator[str], make_rows: Callable[[Iterator[str]], Iterable[tuple[Any, Any]]]) -> None:
        """Print what `make_rows` makes of each line: a JSON object, and the lines that people read."""
        if self.receive:
            return self.receive(make_rows)
        for row, shown in make_rows(lines):
            self.print_result(row, shown)
        return None

    def is_interactive(self) -> bool:
        """Whether somebody sits at the keys of a real terminal and wants more than the result."""
        plain = self.json or self.quiet or os.environ.get("CI")
        return not plain and sys.stdin.isatty() and sys.stdout.isatty()

    def load_model(self, name: str, step: int | None = None) -> Any:
        """The model of a verb: qkv.load as this command line says, or as its run had it after so many steps."""
        import qkv
        from qkv.checkpoints.locate import locate

        with pause_gc():
            if step is not None:
                from qkv import hub

                return hub.load_step(name, step, device=self.device, dtype=self.dtype)
            place = name if "torch" in sys.modules else locate(name, self.revision)  # refuses before it is imported
            found = qkv.load(place, device=self.device, dtype=self.dtype, revision=self.revision)
        self.note_unfinished(name)
        return found

    def note_unfinished(self, name: str) -> None:
        """Say of a model whose run was cut off, or still goes on, how much it has learnt."""
        from qkv.training import run_dir

        if not run_dir.is_run(Path(name)) or Path(name, run_dir.RESULT).exists():
            return
        events = [e for e in run_dir.read_events(Path(name, run_dir.LOG)) if isinstance(e, dict)]
        judged = [e.get("step", 0) for e in events if e.get("kind") == "evaluation"]
        said = (Message("{name}: its run has not ended; these are its weights of step {judged}", name=name,
                        judged=judged[-1]) if judged else
                Message("{name}: its run has not come to an evaluation; these are the weights that it began with",
                        name=name))
        self.note(said)

    def load_models(self, names: Sequence[str]) -> dict[str, Any]:
        """What --ensemble names, as an option of translate, classify and eval; nothing where it names none."""
        return {"ensemble": [self.load_model(name) for name in names]} if names else {}


@contextmanager
def pause_gc() -> Iterator[None]:
    """Look for no garbage within: importing torch and loading weights make a million objects, none of them garbage."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def choose_language(args: Sequence[str], environ: Mapping[str, str]) -> str:
    """The language: --lang anywhere before a bare --, else the locale (LC_ALL, then LC_MESSAGES, then LANG)."""
    before = list(args[: args.index("--")] if "--" in args else args)
    for i, arg in enumerate(before):
        value = arg.removeprefix("--lang=") if arg.startswith("--lang=") else "".join(before[i + 1 : i + 2])
        if arg.startswith("--lang") and value in ("zh", "en"):
            return value
    locale = next((environ[key] for key in ("LC_ALL", "LC_MESSAGES", "LANG") if environ.get(key)), "")
    return "zh" if locale.lower().startswith("zh") else "en"


def count_cores() -> int:
    """The CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class FiniteRange(click.FloatRange):
    """A number in a range; nan, which no range excludes, and infinity are in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{found} is not in the range {self._describe_range()}.", param, ctx)
        return found


class Option(click.Option):
    """An option whose help is a message; those of a group stand together, below its name."""

    def __init__(self, *args: Any, group: str = "Options", **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.group = group

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record, said = super().get_help_record(ctx), self.help or ""
        return record and (record[0], record[1].replace(said, ctx.ensure_object(Common).say(said), 1))


class Verb(click.Command):
    """A command whose help begins with three examples, and says what it does in the reader's language."""

    def __init__(self, *args: Any, examples: Sequence[str], **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.examples = examples

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for example in self.examples:
            formatter.write(f"  {example}\n")
        formatter.write_paragraph()
        common = ctx.ensure_object(Common)
        usage = " ".join(self.collect_usage_pieces(ctx))
        formatter.write_usage(ctx.command_path, translate_frame(usage, common.lang), prefix=common.say("Usage: "))
        formatter.write_paragraph()
        formatter.write_text(common.say(self.help or ""))
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        for group in dict.fromkeys(getattr(param, "group", "Options") for param in options):
            records = [record for param in options if getattr(param, "group", "Options") == group
                       and (record := param.get_help_record(ctx))]
            with formatter.section(common.say(group)):
                formatter.write_dl([(translate_frame(left, common.lang), translate_frame(right, common.lang))
                                    for left, right in records])


def option(*names: str, help: str, **rest: Any) -> Callable[[Any], Any]:  # noqa: A002
    """A click option whose help is a message; a default is shown."""
    return click.option(*names, cls=Option, help=help, show_default=rest.get("default") is not None, **rest)


ensemble = option("--ensemble", multiple=True, metavar="MODEL", help="another model to average the probabilities with "
                  "(may be repeated)")


def make_shared_options() -> list[click.Parameter]:
    """The options of every verb, in the order of the help."""
    return [
        Option(["--json"], is_flag=True, help="print only JSON on stdout"),
        Option(["--device"], default="auto", metavar="auto|cpu|cuda|mps", help="device to run on"),
        Option(["--dtype"], default="auto", metavar="auto|fp32|bf16|fp16|int8|int4",
               help="floating-point format, or bits of the weights"),
        Option(["--threads"], type=click.IntRange(1, 1024), help="number of CPU threads"),
        Option(["--revision"], help="branch, tag or commit on the Hugging Face Hub"),
        Option(["-q", "--quiet"], is_flag=True, help="print only the result"),
        Option(["-v", "--verbose"], is_flag=True, help="print more details"),
        Option(["--lang"], type=click.Choice(["zh", "en"]), expose_value=False, help="language of messages"),
        Option(["--debug"], is_flag=True, expose_value=False, help="show the traceback of an error"),
    ]


def verb(about: str, *, examples: Sequence[str]) -> Callable[[Callable[..., int | None]], Verb]:
    """Make a function `f(common, …)` a verb with the shared options; what it returns is the exit code."""
    shared = make_shared_options()
    keys = [str(one.name) for one in shared if one.expose_value]

    def decorate(function: Callable[..., int | None]) -> Verb:
        @click.pass_context
        def run(ctx: click.Context, /, **given: Any) -> None:
            common = replace(ctx.ensure_object(Common), **{key: given.pop(key) for key in keys})
            for name in (*map(given.get, MODELS), *given.get("ensemble", ())):
                refuse_missing_path(name)
            if common.threads:
                import torch

                torch.set_num_threads(common.threads)
            ctx.exit(function(common, **given) or 0)

        own = reversed(getattr(function, "__click_params__", []))  # click collects them from the innermost outwards
        name = function.__module__.rpartition(".")[2]
        return Verb(name, params=[*own, *shared], callback=run, help=about, examples=examples)

    return decorate


def refuse_missing_path(name: object) -> None:
    """A QkvError for a MODEL that can only be a path and does not exist, before anything heavy is imported."""
    from qkv.checkpoints.locate import find_local

    if isinstance(name, str) and name.startswith((".", "/", "~")) and not Path(name).exists():
        find_local(name)


class InputFile(click.Path):
    """A file that is read, refused before anything heavy is imported if it does not exist."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path of the file."""
        from qkv.data.text_files import explain_missing

        try:
            Path(value).stat()
        except OSError as error:
            raise explain_missing(Path(value), error) from None
        return Path(value)


def drop_unset(**values: Any) -> dict[str, Any]:
    """Only the options that were typed: the library's defaults stay the library's."""
    return {key: value for key, value in values.items() if value is not None and value != ()}


def is_single(text: str | None) -> bool:
    """Whether TEXT itself is answered, not the lines of standard input."""
    return text not in (None, "-")


def read_lines(text: str | None, to: str = "") -> Iterator[str]:
    """The lines of standard input for `-` or no TEXT on a pipe, otherwise TEXT; `to` is the verb that needs words."""
    if text is not None and text != "-":
        if to and not text.strip():
            raise QkvError("TEXT is empty: there is nothing to {to}", to=to)
        return iter([text])
    if text is None and sys.stdin.isatty():
        raise click.UsageError(Message("TEXT is missing; give it in quotes, or - to read lines from standard input"))
    return Arriving(sys.stdin.buffer)


class Arriving:
    """The lines of standard input as they come, without the mark that Windows puts before a file.

    `more` is False where the next one has not come yet: their writer may be waiting for an answer.
    """

    def __init__(self, source: Any) -> None:
        self.source, self.here, self.number = source, deque[bytes](), 0
        self.begun: list[bytes] = []  # pieces of a line whose end has not come

    @property
    def more(self) -> bool:
        return bool(self.here) or any(self.begun)

    def __iter__(self) -> "Arriving":
        return self

    def __next__(self) -> str:
        while not self.here:
            found = self.source.read1(PIECE)
            if not (found or any(self.begun)):
                raise StopIteration
            self.begun.append(found or b"\n")  # which the last line lacks
            if b"\n" in self.begun[-1]:
                *whole, rest = b"".join(self.begun).split(b"\n")
                self.here, self.begun = deque(whole), [rest]
        line, self.number = self.here.popleft(), self.number + 1
        try:
            return line.decode("utf-8-sig" if self.number == 1 else "utf-8").rstrip("\r")
        except UnicodeDecodeError as error:
            found = line[error.start : error.start + 1].hex()
            where = Message("standard input, line {number}", number=self.number)
            raise QkvError("{where}: byte 0x{found} is not UTF-8; convert the text with iconv", where=where,
                           found=found) from None


class Held(Arriving):
    """Texts that are all here."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = deque(texts)

    @property
    def more(self) -> bool:
        return bool(self.texts)

    def __next__(self) -> str:
        if not self.texts:
            raise StopIteration
        return self.texts.popleft()


@contextmanager
def show_progress(common: Common) -> Iterator[Callable[[int, int], None] | None]:
    """A function of (done, all) that shows progress on stderr: a bar on a terminal, else a line in some seconds."""
    if common.json or common.quiet:
        yield None
        return
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=None)
            yield lambda done, of: bar.update(task, completed=done, total=of or None)
        return
    last = time.monotonic()

    def print_line(done: int, of: int) -> None:
        nonlocal last
        if time.monotonic() - last > EVERY:
            last = time.monotonic()
            click.echo(f"{done:,}/{of:,}" if of else f"{done:,}", err=True)

    yield print_line


def answer_lines(
    lines: Iterator[str], answer: Callable[[list[str]], Sequence[Any]], *, most: int = BATCH
) -> Iterator[tuple[str, Any]]:
    """Each line with its answer, None for a blank one. Lines are answered together; a TEXT that was typed is not blank.

    Where some of them cannot be, those before the first such one are, and the error names its line.
    """
    before, single = 0, not isinstance(lines, Arriving)
    for batch in group_lines(lines, most):
        real = [line for line in batch if single or line.strip()]
        try:
            found = iter(answer(real) if real else [])
        except QkvError:
            if single or isinstance(lines, Held):
                raise
            found = answer_one_by_one(batch, answer, before)
        for line in batch:
            yield line, next(found) if single or line.strip() else None
        before += len(batch)


def answer_one_by_one(batch: list[str], answer: Callable[[list[str]], Sequence[Any]], before: int) -> Iterator[Any]:
    """The answers to lines that are not blank, each by itself, up to the one that has none."""
    for number, line in enumerate(batch, start=before + 1):
        if line.strip():
            try:
                yield answer([line])[0]
            except QkvError as e:
                raise QkvError("standard input, line {number}: {e}", number=number, e=e) from None


def group_lines(lines: Iterator[str], most: int = BATCH) -> Iterator[list[str]]:
    """Lines in groups, no more than have come, one by one where somebody types them; they grow from BATCH to `most`.

    So the first answers come soon, and later lines are worked on beside others of like length.
    """
    held = isinstance(lines, Held)
    typed = not held and (sys.stdin is None or sys.stdin.isatty())
    size, most = (1, 1) if typed else (most if held else BATCH, most)
    while batch := list(islice(lines, 1)):
        wrong = None
        try:
            while len(batch) < size and getattr(lines, "more", True) and (following := list(islice(lines, 1))):
                batch += following
        except QkvError as error:  # a line that is no text; those before it are answered
            wrong = error
        yield batch
        if wrong:
            raise wrong
        size = min(2 * size, most)
