"""`qkv data check FILES…` reports on training data; `get NAME` fetches a public set by name, with hashes; `pack FILES…`
writes text as token ids, which train without being read into memory; `distil FILES…` has a translator write pairs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from qkv.cli.common import Common, ensemble, option, show_progress, verb
from qkv.messages import Message


@verb("check: report what your data contain before you train on them: counts, the first bad line, duplicate rows, "
      "overlap with held-out data, overlong rows, scripts and encodings; the exit code is 1 if something must be "
      "fixed. get: download a public data set by name and verify its hash (without a name, list them); QKV_CACHE sets "
      "the cache directory, QKV_DATA_URL a mirror. pack: write text (each file, or `text` of each JSON line) as token "
      "ids, which are not loaded into memory for training. distil: let --model translate the sources of sentence pairs "
      "(--back: generate sources for the targets) into files of the same form, to train on together with your "
      "own.", examples=(
        "qkv data check train.en train.de --eval valid.en --eval valid.de",
        "qkv data get multi30k",
        "qkv data distil train.zh train.en --model runs/teacher --out taught",
    ))
@click.argument("what", metavar="check|get|pack|distil", type=click.Choice(["check", "get", "pack", "distil"]))
@click.argument("names", metavar="[FILES…|NAME…]", nargs=-1)
@option("--eval", "held", multiple=True, help="held-out file to check for overlap with the training data")
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
@ensemble
def command(
    common: Common, what: str, names: tuple[str, ...], out: Path | None, size: int, back: bool, beam: int, nbest: int,
    ensemble: tuple[str, ...], **how: Any,
) -> int:
    if what == "get":
        return get_sets(common, names, out)
    if not names:
        raise click.UsageError(Message("{what} needs FILES", what=what))
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


def check_files(
    common: Common, names: tuple[str, ...], *, held: tuple[str, ...], kind: Any, columns: str, keys: str | None,
    longest: int | None, model: str | None,
) -> int:
    """Report on files; 1 where something must be mended."""
    from qkv.data import check as checks
    from qkv.training.data_files import talk_of

    places = two_columns(columns)
    measure, bound = lengths(common, model)
    with show_progress(common) as tell:
        options = checks.Options(
            kind, places, tuple(k.strip() for k in (keys or "").split(",") if k.strip()),
            longest or bound, measure, None if tell is None else lambda _, lines: tell(lines, 0), talk_of,
        )
        report = checks.check([Path(n) for n in names], [Path(n) for n in held], options)
    if common.json:
        common.emit({"ok": report.ok, "files": report.files, "faults": report.faults, "overlaps": report.overlaps})
    else:
        print_report(common, report)
    return 0 if report.ok else 1


def two_columns(said: str) -> tuple[int, int]:
    """The two columns that --columns names."""
    found = [part.strip() for part in said.split(",")]
    if len(found) != 2 or not all(part.isdigit() for part in found):
        raise click.UsageError(Message("--columns {said}: expected two numbers such as 0,1", said=said))
    return int(found[0]), int(found[1])


def distil(common: Common, names: tuple[str, ...], out: Path, how: Mapping[str, Any], teacher: dict[str, Any]) -> int:
    """Write pairs that a translator makes of pairs."""
    from qkv.errors import QkvError
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
                        "({own:.0f}); is it of this direction? (--back, or --columns 1,0)", read=read,
                        own=own)
        click.echo(common.say("note: {file}: {said}", file=file, said=said), err=True)

    with show_progress(common) as tell:
        translator = making.Teacher(common.load_model(how["model"]), **teacher)
        made = making.write_pairs(translator, run.data, out, tell, doubt)
    if common.json:
        common.emit([{**asdict(one), "files": [str(path) for path in one.files]} for one in made])
        return 0
    for one in made:
        files = " ".join(map(str, one.files))
        click.echo(common.say("{files}: {read:,} pairs read, {written:,} written, {without:,} without a translation",
                              files=files, read=one.read, written=one.written, without=one.without))
    return 0


def pack_files(common: Common, names: tuple[str, ...], out: Path, model: str | None, size: int) -> int:
    """Write texts as one token shard, with the tokenizer that cut them."""
    from qkv.checkpoints.locate import locate
    from qkv.data import shards, sources
    from qkv.errors import QkvError
    from qkv.tokenizers import tokenizer, vocabulary

    def pieces() -> Iterator[tuple[str, bool]]:
        return (piece for name in names for piece in sources.read_pieces(Path(name)))

    if model is None:
        texts, specials = (text for text, _ in pieces()), ("</s>", "<unk>")
        made = vocabulary.train_vocabulary(texts, kind="bpe", size=size, specials=specials)
    else:
        found = tokenizer.load(model if Path(model).is_dir() else locate(model, common.revision))
        if found is None:
            raise QkvError("{model}: no tokenizer there; leave --model away to train one", model=model)
        made = found
    end = [] if made.eos_id is None else [made.eos_id]
    ids = ((*made.encode(text, special=False), *(end if last else [])) for text, last in pieces())
    shard = shards.write_shard(out, ids, vocabulary=len(made), save=made.save)
    if common.json:
        common.emit({"folder": str(out), **shard.index})
    else:
        size = (out / "tokens.bin").stat().st_size
        click.echo(common.say("{out}: {shard:,} tokens of {made:,} kinds, {size:,} B", out=out, shard=len(shard),
                              made=len(made), size=size))
    return 0


def lengths(common: Common, model: str | None) -> tuple[Callable[[str], int], int]:
    """How long a text is, and from where it is over-long: in characters, or in a model's tokens."""
    if model is None:
        return len, 1000
    from qkv import hub
    from qkv.checkpoints.locate import locate
    from qkv.errors import QkvError
    from qkv.tokenizers import tokenizer

    made = tokenizer.load(locate(model, common.revision))
    if made is None:
        raise QkvError("{model}: no tokenizer there; leave --model away to count characters", model=model)
    return lambda text: len(made.encode(text)), hub.spec_of(model).context or 1000


def print_report(common: Common, report: Any) -> None:
    """The report as people read it: each file in three lines, then what was found."""
    from qkv.data.overlap import PARTS

    for a in report.files:
        mark = common.say(", byte order mark") if a.mark else ""
        click.echo(click.style(str(a.path), bold=True) + f"  {a.kind}, {a.bytes:,} B{mark}")
        click.echo(common.say("  {lines:,} lines: {rows:,} good rows, {bad:,} bad, {empty:,} blank, {duplicates:,} "
                              "repeated, {over_long:,} over-long ({share})", lines=a.lines, rows=a.rows, bad=a.bad,
                              empty=a.empty, duplicates=a.duplicates, over_long=a.over_long,
                              share=share(a.over_long, a.rows)))
        written = ", ".join(f"{name} {part:.1%}" for name, part in a.scripts.items()) or "–"
        click.echo(common.say("  longest {longest:,} characters (line {longest_line:,}), {characters:,} different; "
                              "scripts: {written}", longest=a.longest, longest_line=a.longest_line,
                              characters=a.characters, written=written))
    for o in report.overlaps:
        part = common.say("overlap ({parts}): ", parts=PARTS[o.part])
        click.echo(f"{part}{o.count:,}/{o.of:,}  {o.held} ∩ {o.training}")
    for fault in report.faults:
        word = click.style(common.say("mend"), fg="red") if fault.broken else common.say("note")
        times = f" ({fault.count:,}×)" if fault.count > 1 else ""
        said = common.say("{place}: {text}", place=fault.place, text=fault.text)
        click.echo(f"{word}  {said}{times}")
    click.echo(
        common.say("nothing to mend")
        if report.ok
        else common.say("there is something to mend")
    )


def share(part: int, of: int) -> str:
    """A share in percent."""
    return f"{part / of:.2%}" if of else "–"


def get_sets(common: Common, names: tuple[str, ...], out: Path | None) -> int:
    """Fetch sets, or list them."""
    from qkv.data import download

    if not names:
        known = download.list_sets()
        if common.json:
            common.emit({n: {"about": s.about, "licence": s.licence, "bytes": sum(f.size for f in s.files)}
                         for n, s in known.items()})
            return 0
        for name, one in known.items():
            said = common.say(one.about)
            click.echo(f"{name:<16} {sum(f.size for f in one.files) / 1e6:>5.1f} MB  {said}")
            click.echo(f"{'':<26}" + common.say("licence: {licence}", licence=one.licence))
        return 0
    found: dict[str, Any] = {}
    for name in names:
        one = download.find_set(name)
        common.note("{name}: {about}; licence: {licence}", name=name, about=one.about, licence=one.licence)
        with show_progress(common) as tell:
            files = download.fetch_set(
                name, out, tell=(lambda _, done, of, tell=tell: tell(done, of)) if tell else None
            )
        found[name] = {"licence": one.licence, "files": [str(path) for path in files]}
        if not common.json:
            click.echo("\n".join(map(str, files)))
    if common.json:
        common.emit(found)
    return 0
