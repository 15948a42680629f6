"""`--workers` and `--out DIR` of the verbs that answer lines: parts, each answered once, by so many workers.

Without DIR the parts are lines of standard input, and the answers are printed in their order.
DIR holds batch.json, which says what was asked of which file, and part-00000.jsonl and so on: one JSON object for each
row of the file, in its order. Next: workers.py.
"""

import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import click

from qkv.cli.common import Common, group_lines, option, read_lines, show_progress
from qkv.errors import QkvError
from qkv.files import hold_lock, to_json, to_json_value, write_text_file
from qkv.messages import Message, join

BATCH = Message("Files in parts")
OWN = ("out", "rows", "column", "on_bad_row", "workers", "ray")  # the options below, as click calls them
FREE = ("device", "threads", "json", "quiet", "verbose")  # what may differ when a batch goes on
LINES = 256  # of standard input that a worker answers together, at most
Text = str | QkvError


@dataclass(frozen=True)
class Part:
    """Rows of a file: the number of each, from 1, with its text, or with what is wrong with it."""

    number: int
    rows: tuple[tuple[int, Text], ...]

    @property
    def name(self) -> str:
        """The file in which its answers lie."""
        return f"part-{self.number:05d}.jsonl"


def batches(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """The options with which a verb answers a file in parts; the verb itself sees none of them."""

    @functools.wraps(function)
    def run(common: Common, **given: Any) -> int | None:
        own = {key: given.pop(key) for key in OWN}
        if own["out"] is not None:
            return answer_file(common, own, click.get_current_context())
        context = click.get_current_context()
        crew = own["workers"] if (own["workers"] or 1) > 1 and reads_lines(context) else None
        for key in OWN if crew is None else (key for key in OWN if key != "workers"):
            if context.get_parameter_source(key) is click.core.ParameterSource.COMMANDLINE:
                raise click.UsageError(
                    Message("--workers needs --out DIR, where the answers go, or many lines on standard input")
                    if key == "workers" else
                    Message("--{option} needs --out DIR, where the answers go", option=key.replace("_", "-")))
        return function(common, **given) if crew is None else answer_input(common, crew, context)

    for add in reversed((
        option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", group=BATCH, help="answer the "
               "rows of a file (.txt, .jsonl, .parquet) that stands in place of TEXT, in parts, which DIR holds; the "
               "same command again goes on where it stopped"),
        option("--rows", type=click.IntRange(1), default=1000, group=BATCH, help="rows of a part"),
        option("--column", multiple=True, metavar="NAME", group=BATCH, help="column of a .jsonl or .parquet file that "
               "holds the text; several are joined by tabs (default: text)"),
        option("--on-bad-row", type=click.Choice(["stop", "keep"]), default="stop", group=BATCH, help="keep: a row "
               "that cannot be answered has an error in place of its answer"),
        option("--workers", type=click.IntRange(1), metavar="N", group=BATCH, help="processes that answer, each with a "
               "model of its own; also of many lines of standard input"),
        option("--ray", is_flag=False, flag_value="", metavar="[ADDRESS]", group=BATCH, help="let workers of a Ray "
               "cluster answer; without ADDRESS the one of RAY_ADDRESS, or this machine"),
    )):
        run = add(run)
    return run


def answer_file(common: Common, own: Mapping[str, Any], context: click.Context) -> int:
    """Answer each part of a file that has no answers yet.

    Raises:
        QkvError: a row that cannot be answered, unless such rows are kept; DIR holds another batch, or is being filled.
    """
    from qkv.cli import workers

    file, out, params = find_file(context.params[find_argument(context)]), own["out"], read_params(context)
    if "seed" in params and params["seed"] is None:
        params["seed"] = 0  # so that a part that is answered again is answered the same
    keep = own["on_bad_row"] == "keep"
    read = functools.partial(read_texts, file, own["column"], keep=keep)
    total = sum(1 for _ in read())
    with hold_directory(out):
        record = describe(common, context.info_name or "", file, params) | {"rows": total, "part": own["rows"]}
        write_record(out, record | {"columns": list(own["column"]), "on_bad_row": own["on_bad_row"]})
        missing = (part for part in split_rows(read(), own["rows"]) if not (out / part.name).exists())
        job = workers.Job(context.info_name or "", params, common.lang, str(file), keep)
        answered, errors = 0, 0
        with show_progress(common) as tell:
            for part, rows in workers.choose_crew(job, missing, own["workers"], own["ray"]):
                write_text_file(out / part.name, "".join(map(to_json, rows)))
                answered, errors = answered + len(rows), errors + sum("error" in row for row in rows)
                if tell:
                    tell(answered, total)
    found = {"out": str(out), "rows": total, "answered": answered, "errors": errors}
    common.print_result(found, [common.say("{out}: {answered:,} of {rows:,} rows answered now, {errors:,} of them with "
                                          "an error", **found)])
    return 0


def answer_input(common: Common, crew: int, context: click.Context) -> int:
    """Answer the lines of standard input by so many processes, and print the answers in the order of the lines.

    Raises:
        QkvError: a line that cannot be answered, or read; those before it are printed.
    """
    from qkv.cli import workers

    job = workers.Job(context.info_name or "", read_params(context), common.lang, "", keep=True, shown=True)
    lines, waiting, due = read_lines(None), dict[int, tuple[Part, list[dict[str, Any]]]](), 0
    for part, rows in workers.choose_crew(job, split_lines(lines), crew, None):
        waiting[part.number] = part, rows
        while due in waiting:
            print_rows(common, *waiting.pop(due))
            due += 1
    return 0


def print_rows(common: Common, part: Part, rows: list[dict[str, Any]]) -> None:
    """Print the answers to lines.

    Raises:
        QkvError: one of them has none.
    """
    for (number, text), row in zip(part.rows, rows, strict=True):
        if isinstance(text, QkvError):
            raise text
        if "error" in row:
            raise QkvError("standard input, line {number}: {e}", number=number, e=row["error"])
        common.print_result({k: value for k, value in row.items() if k not in ("row", "shown")}, row["shown"])


def split_lines(lines: Iterator[str]) -> Iterator[Part]:
    """Lines in parts, the first ones smaller; a line that cannot be read is the last one."""
    first, groups = 1, group_lines(lines, LINES)
    for number in count():
        try:
            group: list[Text] = [*next(groups, ())]
        except QkvError as error:
            group = [error]
        if group:
            yield Part(number, tuple(enumerate(group, first)))
        if not group or isinstance(group[0], QkvError):
            return
        first += len(group)


def find_argument(context: click.Context) -> str:
    """The argument that holds the texts of a verb."""
    return next(p for p in reversed(context.command.params) if isinstance(p, click.Argument)).name or ""


def reads_lines(context: click.Context) -> bool:
    """Whether a verb is to read standard input, in which nobody types."""
    given = context.params[find_argument(context)]
    return given in (None, (), "-", ("-",)) and not (sys.stdin is None or sys.stdin.isatty())


def read_params(context: click.Context) -> dict[str, Any]:
    """What a worker prepares its verb with: the options, and that it reads lines."""
    given = find_argument(context)
    return {**context.params, **dict.fromkeys(OWN), given: ("-",) if given == "texts" else "-"}


def split_rows(texts: Iterator[tuple[int, Text]], size: int) -> Iterator[Part]:
    """Rows in parts of one size, but for the last."""
    number = 0
    while rows := tuple(islice(texts, size)):
        yield Part(number, rows)
        number += 1


def find_file(given: Any) -> Path:
    """The file that stands where a verb has its TEXT.

    Raises:
        QkvError: it is missing, or there are several.
    """
    from qkv.data.text_files import explain_missing

    words = [given] if isinstance(given, str) else list(given or ())
    if len(words) != 1 or words == ["-"]:
        raise click.UsageError(Message("--out needs one file in place of TEXT"))
    file = Path(words[0])
    if not file.is_file():
        raise explain_missing(file, FileNotFoundError())
    return file


def read_texts(file: Path, columns: tuple[str, ...], *, keep: bool) -> Iterator[tuple[int, Text]]:
    """The text of each row with its number; of a row that has none the error, or, unless such rows are kept, it raises.

    Raises:
        QkvError: see above; a file without rows, a column that a text file cannot have.
    """
    from qkv.data.formats import find_format
    from qkv.data.sources import get_string

    kind, count, names = find_format(file), 0, columns or ("text",)
    if columns and kind not in ("jsonl", "parquet"):
        raise QkvError("--column {column}: {file} has no named columns; only .jsonl and .parquet have", file=file,
                       column=columns[0])
    for number, place, read in (read_parquet_rows if kind == "parquet" else read_line_rows)(file, kind):
        count += 1
        try:
            row = read()
            found: Text = row if isinstance(row, str) else "\t".join(get_string(row, c, place) for c in names)
        except QkvError as error:
            if not keep:
                raise
            found = error
        yield number, found
    if not count:
        raise QkvError("{file}: no rows", file=file)


Raw = tuple[int, str, Callable[[], Any]]  # the number of a row, its place as errors name it, what reads it


def read_line_rows(file: Path, kind: str) -> Iterator[Raw]:
    """The lines of a text file, or the objects of JSON lines, where blank lines are no rows."""
    from qkv.data.sources import parse_object
    from qkv.data.text_files import decode_line, read_raw_lines

    for line in read_raw_lines(file):
        place = f"{file}:{line.number}"
        if kind != "jsonl":
            yield line.number, place, functools.partial(decode_line, file, line)
        elif line.raw.strip():
            yield line.number, place, lambda line=line, place=place: parse_object(decode_line(file, line), place)


def read_parquet_rows(file: Path, kind: str) -> Iterator[Raw]:
    """The rows of a Parquet file."""
    from qkv.data.hf_datasets import open_dataset

    for number, row in enumerate(next(iter(open_dataset(str(file)).values())), 1):
        yield number, f"{file}, row {number}", lambda row=row: row


def describe(common: Common, verb: str, file: Path, params: Mapping[str, Any]) -> dict[str, Any]:
    """What a batch asks of which model and which file: what must be the same when it goes on."""
    from qkv.checkpoints.locate import locate
    from qkv.checkpoints.storage import hash_files
    from qkv.downloads import hash_file

    place = locate(params["model"], common.revision)
    weights = {name: sign[:16] for name, sign in hash_files(place).items()}
    options = {key: value for key, value in params.items()
               if key not in (*OWN, *FREE, "model") and value not in (None, (), "-", ("-",))}
    return {"verb": verb, "model": params["model"], "options": to_json_value(options), "weights": weights,
            "file": str(file), "sha256": hash_file(file)}


def write_record(out: Path, record: Mapping[str, Any]) -> None:
    """Keep what a batch is; where one has begun, it must be this one.

    Raises:
        QkvError: it is another one; each difference is named.
    """
    from qkv.json_files import read_json
    from qkv.options import flatten

    path, now, kept = out / "batch.json", flatten(json.loads(json.dumps(record))), dict[str, Any]()
    if path.exists():
        kept = flatten(read_json(path))
    elif any(out.glob("part-*.jsonl")):
        raise QkvError("{out}: holds parts of a batch whose batch.json is gone; give another --out", out=out)
    wrong = [Message("{key}: was {was}, now {now}", key=key, was=json.dumps(kept.get(key), ensure_ascii=False),
                     now=json.dumps(now.get(key), ensure_ascii=False))
             for key in {**kept, **now} if kept and key != "file" and kept.get(key) != now.get(key)]
    if wrong:
        raise QkvError("{out}: another batch has begun here ({wrong}); give another --out", out=out,
                       wrong=join("; ", wrong))
    if not kept:
        write_text_file(path, to_json(record, indent=2))


@contextmanager
def hold_directory(out: Path) -> Iterator[None]:
    """Fill a directory alone.

    Raises:
        QkvError: another process fills it.
    """
    with hold_lock(out / ".lock", wait=False) as free:
        if not free:
            raise QkvError("{out}: another process answers here; wait for it, or give another --out", out=out)
        yield
