"""The command line: a table of verbs, each a small file that is imported when it is typed. Next: common.py.

Nothing heavy is imported here, so `qkv --help` answers at once. Errors end in one line on stderr and an exit code.
"""

import errno
import os
import sys
import time
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

import click

from qkv.cli.common import Talk, choose_language
from qkv.cli.usage import said_by_click
from qkv.errors import QkvError
from qkv.messages import Message, join

# verb: what it does, in Chinese and in English. The file qkv/cli/<verb>.py holds it, as `command`.
VERBS = {
    "demo": Message("train the 2017 Transformer, translate, look inside"),
    "train": Message("train by a recipe or a TOML file"),
    "translate": Message("translate: one line in, one line out"),
    "generate": Message("continue a text"),
    "chat": Message("converse, by the model's chat template"),
    "embed": Message("a vector for a text"),
    "classify": Message("the label of a text"),
    "fill": Message("fill in masked words"),
    "score": Message("the log-probability of a text"),
    "eval": Message("BLEU, perplexity or accuracy on a file"),
    "data": Message("check your data, or get a public set"),
    "runs": Message("compare runs: table and plot"),
    "look": Message("look inside a model in the terminal"),
    "show": Message("print one model as a PyTorch program that stands alone"),
    "info": Message("parameters, FLOPs and bytes"),
    "check": Message("strict load, hashes, NaN scan, parity"),
    "convert": Message("other key/value heads, dtype or family"),
    "lab": Message("claims as experiments that you can run, and their verdicts"),
    "doctor": Message("what this machine can do"),
}
SPINS = {"alone": "5000", "shared": "1000"}  # of a loop that looks whether the others are done: 15 microseconds, 3


class Verbs(click.Group):
    """A group that knows its verbs by name and imports one when it is typed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return import_module(f"qkv.cli.{cmd_name}").command if cmd_name in VERBS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in VERBS and not args[0].startswith("-"):
            close = get_close_matches(args[0], VERBS, n=3, cutoff=0.5)
            hint = Message("the verbs are {verbs}.", verbs=", ".join(VERBS))
            if close:
                hint = Message("did you mean {close}?", close=join(" or ", close))
            said = Message("there is no verb {args!r}; {hint}", args=args[0], hint=hint)
            raise click.UsageError(said, ctx)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        talk = ctx.ensure_object(Talk)
        formatter.write_text(talk.say("Every Transformer, from one core."))
        formatter.write_paragraph()
        formatter.write_usage("qkv", talk.say("VERB …"))
        with formatter.section(talk.say("Verbs")):
            formatter.write_dl([(verb, talk.say(about)) for verb, about in VERBS.items()])
        with formatter.section(talk.say("Options")):
            formatter.write_dl(
                [
                    ("--lang zh|en", talk.say("language (default: the locale's)")),
                    ("--debug", talk.say("show the traceback of an error")),
                    ("--version", talk.say("the version")),
                    ("--help", talk.say("help; that of a verb has three examples")),
                ]
            )


@click.group(cls=Verbs, invoke_without_command=True)
@click.option("--version", is_flag=True)
@click.option("--lang", type=click.Choice(["zh", "en"]), expose_value=False)
@click.option("--debug", is_flag=True, expose_value=False)
@click.pass_context
def verbs(ctx: click.Context, version: bool) -> None:
    if version:
        from qkv import __version__

        click.echo(f"qkv {__version__}")
        ctx.exit()
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _give_way() -> None:
    """Let threads that wait for one another leave their core soon, sooner where other programs want it now.

    GNU's OpenMP lets them wait on it for a millisecond and more: nothing where the cores are idle, but beside another
    program a run reads less than half of the text in the same time (bench/neighbour.py). It reads this as torch loads.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS["shared" if _others_run() else "alone"])


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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0 ok, 1 failed, 2 usage, 3 not finite, 130 interrupted."""
    args = list(sys.argv[1:] if argv is None else argv)
    _give_way()
    _reopen()
    for stream in (sys.stdout, sys.stderr):
        if (getattr(stream, "encoding", None) or "utf-8").lower() != "utf-8" and hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8")  # pyright: ignore[reportAttributeAccessIssue]
    talk = Talk(lang=choose_language(args, os.environ), debug="--debug" in args)
    try:
        with verbs.make_context("qkv", args, obj=talk, color=False if os.environ.get("NO_COLOR") else None) as ctx:
            verbs.invoke(ctx)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.ClickException as error:
        said = error.format_message()
        return _print_error(said_by_click(said, talk.lang), error.exit_code, _suggest_help(error, talk), talk=talk)
    except (KeyboardInterrupt, click.Abort):
        return _print_error(talk.say("interrupted"), 130, talk=talk)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit is quiet too
    except Exception as error:
        return _report_error(error, talk)
    return 0


def _reopen() -> None:
    """Streams that were closed from the start (`2>&-`) lead nowhere: no file of ours may take their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            place = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one, if nobody has it yet
            setattr(sys, name, os.fdopen(place, "r" if number == 0 else "w", encoding="utf-8", closefd=False))


def _suggest_help(error: click.ClickException, talk: Talk) -> str:
    ctx = getattr(error, "ctx", None)
    return talk.say("try {command_path} --help", command_path=ctx.command_path) if ctx else ""


def _report_error(error: Exception, talk: Talk) -> int:
    if talk.debug:
        traceback.print_exc()
    if isinstance(error, QkvError):
        return _print_error(talk.say(error.message), getattr(error, "exit_code", 2), talk=talk)
    if isinstance(error, OSError) and error.filename is not None:
        return _print_error(f"{error.filename}: {(error.strerror or str(error)).lower()}", 2, talk=talk)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return _print_error(talk.say("cannot write: no space left on the disk"), 2, talk=talk)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "out of memory" in str(error):
        return _print_error(talk.say("not enough memory: take a smaller model, batch or text (before training, "
                                     "--dry-run tells what it will need)"), 2, talk=talk)
    again = talk.say("this was not expected; run again with --debug")
    return _print_error(f"{type(error).__name__}: {error}".splitlines()[0], 1, "" if talk.debug else again, talk=talk)


def _print_error(message: str, code: int, remedy: str = "", *, talk: Talk) -> int:
    plain = False if os.environ.get("NO_COLOR") else None  # https://no-color.org
    head = click.style(talk.say("error:"), fg="red", bold=True)
    click.echo(f"{head}{'' if talk.lang == 'zh' else ' '}{message}", err=True, color=plain)
    if remedy:
        click.echo(remedy, err=True)
    return code
