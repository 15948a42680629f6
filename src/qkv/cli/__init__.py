"""The command line: a table of verbs, each a small file that is imported when it is typed. Next: common.py.

Nothing heavy is imported here, so `qkv --help` answers at once. Errors end in one line on stderr and an exit code.
"""

import atexit
import errno
import gc
import os
import re
import sys
import time
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

import click

from qkv import __version__
from qkv.cli.common import Common, choose_language, count_cores
from qkv.cli.usage import said_by_click
from qkv.errors import QkvError
from qkv.files import FULL
from qkv.messages import Message, join

THREAD_COUNTS = re.compile(r"\s*[1-9]\d{0,4}(\s*,\s*[1-9]\d{0,4})*\s*")  # as OMP_NUM_THREADS lists them
# By group, verb: what it does. The file qkv/cli/<verb>.py holds it, as `command`.
GROUPS = {
    Message("Start"): {
        "demo": Message("train the 2017 Transformer, translate, look inside"),
        "models": Message("the models that come with the package"),
    },
    Message("Use a model"): {
        "translate": Message("translate: one line in, one line out"),
        "generate": Message("continue a text"),
        "chat": Message("converse, by the model's chat template"),
        "embed": Message("a vector for a text"),
        "classify": Message("the label of a text"),
        "fill": Message("fill in masked words"),
        "score": Message("the log-probability of a text"),
        "serve": Message("a server for OpenAI's clients, and a page"),
    },
    Message("Look inside"): {
        "look": Message("look inside a model in the terminal"),
        "show": Message("print one model as a PyTorch program that stands alone"),
        "lab": Message("claims as experiments that you can run, and their verdicts"),
    },
    Message("Train"): {
        "train": Message("train on your own files, or by a recipe"),
        "data": Message("check your data, or get a public set"),
        "runs": Message("compare runs: table and plot"),
    },
    Message("Measure"): {
        "eval": Message("BLEU, perplexity or accuracy on a file"),
        "info": Message("parameters, FLOPs and bytes"),
        "check": Message("strict load, hashes, NaN scan, parity"),
    },
    Message("More"): {
        "convert": Message("other key/value heads, dtype or family"),
        "doctor": Message("what this machine can do"),
    },
}
VERBS = {name: about for group in GROUPS.values() for name, about in group.items()}
SPINS = {"alone": "5000", "shared": "1000"}  # of a loop that looks whether the others are done: 15 microseconds, 3


class Verbs(click.Group):
    """A group that knows its verbs by name and imports one when it is typed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in VERBS:
            return import_module(f"qkv.cli.{cmd_name}").command
        if cmd_name.startswith("-"):
            return None  # click says that there is no such option
        close = get_close_matches(cmd_name, VERBS, n=3, cutoff=0.5)
        hint = (Message("did you mean {close}?", close=join(" or ", close)) if close
                else Message("the verbs are {verbs}.", verbs=", ".join(VERBS)))
        raise click.UsageError(Message("there is no verb {args!r}; {hint}", args=cmd_name, hint=hint), ctx)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        say = ctx.ensure_object(Common).say
        formatter.write_text(say("Every Transformer, from one core."))
        formatter.write_paragraph()
        formatter.write_usage("qkv", say("VERB …"), prefix=say("Usage: "))
        formatter.write_paragraph()
        formatter.write_text(say("Start with {first}, then {then}. docs/questions.md has a command for each question "
                                 "that readers ask.", first="`qkv demo --model demo`", then="`qkv look demo --serve`"))
        options = (
            ("--lang zh|en", Message("language (default: the locale's)")),
            ("--debug", Message("show the traceback of an error")),
            ("--version", Message("the version")),
            ("--help", Message("help; that of a verb has three examples")),
        )
        for title, rows in {**GROUPS, Message("Options"): dict(options)}.items():
            with formatter.section(say(title)):
                width = max(map(len, {**VERBS, **dict(options)}))
                formatter.write_dl([(f"{name:<{width}}", say(about)) for name, about in rows.items()])


verbs = Verbs("qkv", invoke_without_command=True, params=[
    click.Option(["--lang"], type=click.Choice(["zh", "en"]), expose_value=False),
    click.Option(["--debug"], is_flag=True, expose_value=False),
])
verbs = click.version_option(__version__, message="qkv %(version)s")(verbs)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0 ok, 1 failed, 2 usage, 3 not finite, 130 interrupted."""
    args = list(sys.argv[1:] if argv is None else argv)
    _prepare_process()
    common = Common(lang=choose_language(args, os.environ), debug="--debug" in args)
    try:
        require_directory()
        with verbs.make_context("qkv", args, obj=common, color=False if os.environ.get("NO_COLOR") else None) as ctx:
            verbs.invoke(ctx)  # which ends in Exit where a verb was typed
            click.echo(ctx.get_help())
        sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit is quiet too
    except (Exception, KeyboardInterrupt) as error:
        return _report_error(error, common)
    return 0


def _prepare_process() -> None:
    """Give every stream a place and UTF-8, and let threads that wait for one another leave their core soon.

    Streams that were closed from the start (`2>&-`) lead nowhere: no file of ours may take their numbers. GNU's OpenMP
    lets threads wait on their core for a millisecond and more: nothing where the cores are idle, but beside another
    program a run reads less than half of the text in the same time (bench/neighbour.py). It reads this as torch loads.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            place = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one, if nobody has it yet
            setattr(sys, name, os.fdopen(place, "r" if number == 0 else "w", encoding="utf-8", closefd=False))
        elif number and (getattr(stream, "encoding", None) or "utf-8").lower() != "utf-8":
            getattr(stream, "reconfigure", lambda **_: None)(encoding="utf-8")
    if not THREAD_COUNTS.fullmatch(os.environ.get("OMP_NUM_THREADS", "1")):
        del os.environ["OMP_NUM_THREADS"]  # GNU's OpenMP would ignore it too, but with a line of its own
    # PyTorch's bf16 products are NaN where OpenMP starts fewer threads than were asked for
    limit, count = os.environ.get("OMP_THREAD_LIMIT", ""), os.environ.get("OMP_NUM_THREADS", str(count_cores()))
    if limit.isdecimal() and 0 < int(limit) < int(count.partition(",")[0]):
        os.environ["OMP_NUM_THREADS"] = limit
    os.environ.pop("OMP_DYNAMIC", None)
    atexit.register(gc.freeze)  # or the end looks through torch's million objects for garbage, for 0.4 s
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS["shared" if _others_run() else "alone"])


def require_directory() -> None:
    """QkvError where the working directory was removed: torch's libraries would end the process without a word."""
    try:
        Path.cwd()
    except OSError as e:
        raise QkvError("the working directory is gone ({reason}); change to one that is there",
                       reason=e.strerror) from e


def _others_run() -> bool:
    """Whether something beside this process wants a core now, and two milliseconds later, and again (Linux says so)."""
    try:
        for wait in (0, 0.002, 0.002):
            time.sleep(wait)
            if int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].split("/")[0]) < 2:
                return False
    except (OSError, ValueError, IndexError):
        return False
    return True


def _report_error(error: BaseException, common: Common) -> int:
    """Print an error as one line, and what to do about it; its exit code."""
    message, code, remedy = _explain_error(error, common)
    if common.debug and not isinstance(error, click.ClickException | click.Abort | KeyboardInterrupt):
        traceback.print_exception(error)
        remedy = ""
    plain = False if os.environ.get("NO_COLOR") else None  # https://no-color.org
    head = click.style(common.say("error:"), fg="red", bold=True)
    click.echo(f"{head}{'' if common.lang == 'zh' else ' '}{message}", err=True, color=plain)
    if remedy:
        click.echo(remedy, err=True)
    return code


def _explain_error(error: BaseException, common: Common) -> tuple[str, int, str]:
    """What an error says, its exit code, and what to try next."""
    if isinstance(error, click.ClickException):
        ctx = getattr(error, "ctx", None)
        remedy = common.say("try {command_path} --help", command_path=ctx.command_path) if ctx else ""
        return said_by_click(error.format_message(), common.lang), error.exit_code, remedy
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return common.say("interrupted"), 130, ""
    if isinstance(error, QkvError):
        return common.say(error.message), getattr(error, "exit_code", 2), ""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {(error.strerror or str(error)).lower()}", 2, ""
    if isinstance(error, OSError) and error.errno in (errno.EBADF, errno.EISDIR):
        return common.say("standard input or output cannot be used: {reason}", reason=error.strerror), 2, ""
    if isinstance(error, OSError) and error.errno in FULL:
        return common.say("cannot write: no space left on the disk"), 2, ""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "out of memory" in str(error):
        return common.say("not enough memory: take a smaller model, batch or text (before training, --dry-run tells "
                          "what it will need)"), 2, ""
    again = common.say("this was not expected; run again with --debug")
    return f"{type(error).__name__}: {error}".splitlines()[0], 1, again
