"""`qkv data check FILES…` reports on training data; `get NAME` fetches a public set by name, with hashes; `pack FILES…`
writes text as token ids, which train without being read into memory; `distil FILES…` has a translator write pairs;
`cache` lists and prunes what training keeps of large files."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from qkv.cli.common import Common, InputFile, ensemble, option, show_progress, verb
from qkv.errors import QkvError
from qkv.messages import Message


@verb("check: report what your data contain before you train on them: counts, the first bad line, duplicate rows, "
      "overlap with held-out data, overlong rows, scripts and encodings; the exit code is 1 if something must be "
      "fixed. get: download a public data set by name and verify its hash (without a name, list them); QKV_CACHE sets "
      "the cache directory, QKV_DATA_URL a mirror. pack: write text (each file, or `text` of each JSON line) as token "
      "ids, which are not loaded into memory for training. distil: let --model translate the sources of sentence pairs "
      "(--back: generate sources for the targets) into files of the same form, to train on together with your "
      "own. cache: list what training keeps encoded of large files, or remove it (--older-than 30d, --clear).",
      examples=(
        "qkv data check train.en train.de --eval valid.en --eval valid.de",
        "qkv data get multi30k",
        "qkv data distil train.zh train.en --model runs/teacher --out taught",
    ))
@click.argument("what", metavar="check|get|pack|distil|cache",
                type=click.Choice(["check", "get", "pack", "distil", "cache"]))
@click.argument("names", metavar="[FILES…|NAME…]", nargs=-1)
@option("--eval", "held", multiple=True, type=InputFile(), help="held-out file to check for overlap with the training "
        "data")
@option("--kind", type=click.Choice(["auto", "text", "tsv", "jsonl", "parallel"]), default="auto", help="format of the "
        "files; parallel: two by two; auto: by name (two files that are not .tsv or .jsonl are a pair)")
@option("--columns", default="0,1", help="the two columns of a TSV file, starting at 0")
@option("--keys", metavar="K,K", help="keys of JSON lines (default: those of the first row)")
@option("--longest", type=click.IntRange(1), help="report rows longer than this (default: 1000 characters, or the "
        "model's context)")
@option("--model", help="measure length, or pack, in this model's tokens; for distil, the translation model")
@option("--size", type=click.IntRange(3), default=8000, help="size of the BPE vocabulary that pack trains if there is "
        "no --model")
@option("--back", is_flag=True, help="distil: generate sources for the targets with a model of the opposite direction")
@option("--beam", type=click.IntRange(1), default=5, help="distil: beam width")
@option("--nbest", type=click.IntRange(1), default=1, help="distil: number of translations per sentence")
@option("--out", type=click.Path(path_type=Path), help="output directory of get, pack or distil")
@option("--older-than", "age", metavar="30d", help="cache: remove what no run has used for so many days")
@option("--clear", is_flag=True, help="cache: remove everything that no run is using")
@ensemble
def command(
    common: Common, what: str, names: tuple[str, ...], out: Path | None, size: int, back: bool, beam: int, nbest: int,
    ensemble: tuple[str, ...], age: str | None, clear: bool, **how: Any,
) -> int | None:
    if what == "cache":
        return show_cache(common, 0.0 if clear else None if age is None else parse_days(age))
    if what == "get":
        return get_sets(common, names, out)
    if not names:
        raise click.UsageError(Message("{what} needs FILES", what=what))
    if what != "check" or not any(Path(name).exists() for name in names):  # else it says what is missing among others
        for name in names:
            InputFile().convert(name, None, None)
    if what == "check":
        return check_files(common, names, **how)
    if out is None:
        raise click.UsageError(Message("{what} needs --out FOLDER", what=what))
    if what == "pack":
        return pack_files(common, names, out, how["model"], size)
    if how["model"] is None:
        raise click.UsageError(Message("distil needs --model MODEL, the translator that writes"))
    if how["kind"] != "auto":
        raise click.UsageError(Message("distil goes by the names of the files; leave --kind away"))
    if nbest > beam:
        raise click.UsageError(Message("--nbest {nbest} needs --beam {nbest} or more; --beam is {beam}", nbest=nbest,
                                       beam=beam))
    teacher = {"writes": "source" if back else "target", "beam": beam, "nbest": nbest}
    return distil(common, names, out, how, teacher | {"ensemble": ensemble})


def parse_days(said: str) -> float:
    """The days that --older-than names: 30, 30d or 12h."""
    number, unit = (said[:-1], said[-1]) if said[-1:] in ("d", "h") else (said, "d")
    if not number.isdigit():
        raise click.UsageError(Message("--older-than {said}: expected days such as 30d, or hours such as 12h",
                                       said=said))
    return int(number) / (1 if unit == "d" else 24)


def show_cache(common: Common, older_than: float | None) -> None:
    """What is kept encoded, or what was removed of it."""
    from qkv.data import cache

    found = cache.list_entries() if older_than is None else cache.prune_entries(older_than)
    rows = [f"{e.bytes / 1e6:>10,.1f} MB  {common.say('{days:,.0f} days', days=e.days):>9}  {e.source}"
            + (common.say("  (in use)") if e.in_use else "") for e in found]
    total = f"{sum(e.bytes for e in found) / 1e6:,.1f}"
    end = common.say("{total} MB in {folder}", total=total, folder=cache.encoded_dir()) if older_than is None else (
        common.say("{n} removed, {total} MB", n=len(found), total=total))
    common.print_result([asdict(e) for e in found], [*rows, end])


def check_files(
    common: Common, names: tuple[str, ...], *, held: tuple[Path, ...], kind: Any, columns: str, keys: str | None,
    longest: int | None, model: str | None,
) -> int:
    """Report on files; 1 where something must be mended."""
    from qkv.data import check as checks
    from qkv.training.data_files import talk_of

    measure, bound = lengths(common, model)
    with show_progress(common) as tell:
        options = checks.Options(
            kind, two_columns(columns), tuple(k.strip() for k in (keys or "").split(",") if k.strip()),
            longest or bound, measure, None if tell is None else lambda _, lines: tell(lines, 0), talk_of,
        )
        report = checks.check([Path(n) for n in names], held, options)
    found = {"ok": report.ok, "files": report.files, "faults": report.faults, "overlaps": report.overlaps}
    common.print_result(found, list_findings(common, report))
    return 0 if report.ok else 1


def two_columns(said: str) -> tuple[int, int]:
    """The two columns that --columns names."""
    found = [part.strip() for part in said.split(",")]
    if len(found) != 2 or not all(part.isdigit() for part in found):
        raise click.UsageError(Message("--columns {said}: expected two numbers such as 0,1", said=said))
    return int(found[0]), int(found[1])


def distil(common: Common, names: tuple[str, ...], out: Path, how: Mapping[str, Any], teacher: dict[str, Any]) -> None:
    """Write pairs that a translator makes of pairs."""
    from qkv.training import distil as making
    from qkv.training.own_data import from_files

    words = [f"data.columns={list(two_columns(how['columns']))}"]
    words += [f"data.keys={[k.strip() for k in how['keys'].split(',')]}"] if how["keys"] else []
    run = from_files([Path(name) for name in names], words)
    assert run.data is not None
    if run.objective:
        raise QkvError("{names}: these rows have labels, expected pairs of texts", names=names[0])
    making.split_sets(run.data, out)
    teacher |= common.load_models(teacher.pop("ensemble"))

    def doubt(file: str, own: float, read: float) -> None:
        said = Message("what the model writes is more like what it reads (chrF {read:.0f}) than like the other side "
                       "({own:.0f}); is it of this direction? (--back, or --columns 1,0)", read=read, own=own)
        click.echo(common.say("note: {file}: {said}", file=file, said=said), err=True)

    with show_progress(common) as tell:
        translator = making.Teacher(common.load_model(how["model"]), **teacher)
        made = making.write_pairs(translator, run.data, out, tell, doubt)
    common.print_result([asdict(one) for one in made], (
        common.say("{files}: {read:,} pairs read, {written:,} written, {without:,} without a translation",
                   files=" ".join(map(str, one.files)), read=one.read, written=one.written, without=one.without)
        for one in made))


def pack_files(common: Common, names: tuple[str, ...], out: Path, model: str | None, size: int) -> None:
    """Write texts as one token shard, with the tokenizer that cut them."""
    from qkv.data import shards, sources
    from qkv.tokenizers import vocabulary

    def pieces() -> Iterator[tuple[str, bool]]:
        return (piece for name in names for piece in sources.read_pieces(Path(name)))

    if model is None:
        texts, specials = (text for text, _ in pieces()), ("</s>", "<unk>")
        made = vocabulary.train_vocabulary(texts, kind="bpe", size=size, specials=specials)
    else:
        made = load_tokenizer(common, model)
    end = [] if made.eos_id is None else [made.eos_id]
    ids = ((*made.encode(text, special=False), *(end if last else [])) for text, last in pieces())
    shard = shards.write_shard(out, ids, vocabulary=len(made), save=made.save)
    common.print_result({"folder": out, **shard.index}, [
        common.say("{out}: {shard:,} tokens of {made:,} kinds, {size:,} B", out=out, shard=len(shard), made=len(made),
                   size=(out / "tokens.bin").stat().st_size)])


def lengths(common: Common, model: str | None) -> tuple[Callable[[str], int], int]:
    """How long a text is, and from where it is over-long: in characters, or in a model's tokens."""
    if model is None:
        return len, 1000
    made = load_tokenizer(common, model)
    from qkv import hub

    return lambda text: len(made.encode(text)), hub.spec_of(model).context or 1000


def load_tokenizer(common: Common, model: str) -> Any:
    """The tokenizer of a model, or of a directory that holds nothing else; a QkvError where there is none."""
    from qkv.checkpoints.locate import locate
    from qkv.tokenizers import tokenizer

    found = tokenizer.load(model if Path(model).is_dir() else locate(model, common.revision))
    if found is None:
        raise QkvError("{model}: no tokenizer there; name another model, or leave --model away", model=model,
                       code="no-tokenizer")
    return found


def list_findings(common: Common, report: Any) -> Iterator[str]:
    """The report as people read it: each file in three lines, then what was found."""
    from qkv.data.overlap import PARTS

    for a in report.files:
        mark = common.say(", byte order mark") if a.mark else ""
        yield click.style(str(a.path), bold=True) + f"  {a.kind}, {a.bytes:,} B{mark}"
        share = f"{a.over_long / a.rows:.2%}" if a.rows else "–"
        yield common.say("  {lines:,} lines: {rows:,} good rows, {bad:,} bad, {empty:,} blank, {duplicates:,} "
                         "repeated, {over_long:,} over-long ({share})", **asdict(a) | {"share": share})
        written = ", ".join(f"{name} {part:.1%}" for name, part in a.scripts.items()) or "–"
        yield common.say("  longest {longest:,} characters (line {longest_line:,}), {characters:,} different; scripts: "
                         "{written}", **asdict(a) | {"written": written})
    for o in report.overlaps:
        yield common.say("overlap ({parts}): ", parts=PARTS[o.part]) + f"{o.count:,}/{o.of:,}  {o.held} ∩ {o.training}"
    for fault in report.faults:
        word = click.style(common.say("mend"), fg="red") if fault.broken else common.say("note")
        times = f" ({fault.count:,}×)" if fault.count > 1 else ""
        yield f"{word}  " + common.say("{place}: {text}", place=fault.place, text=fault.text) + times
    yield common.say("nothing to mend") if report.ok else common.say("there is something to mend")


def get_sets(common: Common, names: tuple[str, ...], out: Path | None) -> None:
    """Fetch sets, or list them."""
    from qkv.data import download

    if not names:
        known = {n: (s, sum(f.size for f in s.files)) for n, s in download.list_sets().items()}
        common.print_result(
            {n: {"about": s.about, "licence": s.licence, "bytes": size} for n, (s, size) in known.items()},
            (f"{n:<16} {size / 1e6:>5.1f} MB  {common.say(s.about)}\n{'':<26}"
             + common.say("licence: {licence}", licence=s.licence) for n, (s, size) in known.items()))
        return
    found: dict[str, Any] = {}
    for name in names:
        one = download.find_set(name)
        common.note("{name}: {about}; licence: {licence}", name=name, about=one.about, licence=one.licence)
        with show_progress(common) as tell:
            files = download.fetch_set(name, out, tell=tell and (lambda _, done, of, tell=tell: tell(done, of)))
        found[name] = {"licence": one.licence, "files": files}
        if not common.json:
            click.echo("\n".join(map(str, files)))
    if common.json:
        common.emit(found)
