"""`qkv data check FILES…` reports on training data; `get NAME` fetches a public set by name, with hashes; `pack FILES…`
writes text as token ids, which train without being read into memory; `distil FILES…` has a translator write pairs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from qkv.cli.common import Common, counted, ensemble, option, verb
from qkv.errors import Note


@verb(
    "check：训练之前检查数据：行数、第一处坏行、重复、与评估集的重叠、过长的行、文字、编码；有要修的就以 1 退出。"
    "get：按名字下载公开数据集并核对哈希（不带名字则列出）。QKV_CACHE 指定缓存目录，QKV_DATA_URL 指定镜像。"
    "pack：把文本（每个文件，或 JSONL 每行的 text）写成词元文件，训练时不必读进内存。"
    "distil：让 --model 翻译句对的源文（--back：由译文写出源文），写成同样形式的文件，可与原文件一起训练。",
    "check: what your data hold before you train on them: counts, the first bad line, repeated rows, overlap with what "
    "is held out, over-long rows, scripts, encodings; exit code 1 where something must be mended. get: fetch a public "
    "set by name and check its hash (without a name: list them); QKV_CACHE names the cache, QKV_DATA_URL a mirror. "
    "pack: write text (each file, or `text` of each JSON line) as token ids, which train without being in memory. "
    "distil: let --model translate the sources of pairs (--back: write sources for the targets) into files of the same "
    "form, to train on beside your own.",
    examples=(
        "qkv data check train.en train.de --eval valid.en --eval valid.de",
        "qkv data get multi30k",
        "qkv data distil train.zh train.en --model runs/teacher --out taught",
    ),
)
@click.argument("what", metavar="check|get|pack|distil", type=click.Choice(["check", "get", "pack", "distil"]))
@click.argument("names", metavar="[FILES…|NAME…]", nargs=-1)
@option(
    "--eval", "held", multiple=True, zh="留作评估的文件：与训练重叠吗", en="a held-out file: is it in training too?"
)
@option(
    "--kind",
    type=click.Choice(["auto", "text", "tsv", "jsonl", "parallel"]),
    default="auto",
    zh="文件的种类；parallel：两两成对；auto 看文件名（两个既非 .tsv 也非 .jsonl 的文件成对）",
    en="of the files; parallel: two by two; auto goes by names (two that are no .tsv or .jsonl are a pair)",
)
@option("--columns", default="0,1", zh="TSV 的两列，从 0 数", en="the two columns of TSV, counted from 0")
@option("--keys", metavar="K,K", zh="JSONL 的键（默认看第一行）", en="of JSON lines (default: by the first row)")
@option("--longest", type=click.IntRange(1), zh="超过即过长（默认 1000 字符，或模型的上下文）",
        en="rows beyond it are over-long (default: 1000 characters, or the model's context)")  # fmt: skip
@option("--model", zh="用这个模型的词表数长度、打包；distil：翻译的模型",
        en="count length, or pack, in this model's tokens; of distil the translator")  # fmt: skip
@option("--size", type=click.IntRange(3), default=8000, zh="pack 没有 --model 时训练的 BPE 词表大小",
        en="of the BPE vocabulary that pack trains where there is no --model")  # fmt: skip
@option("--back", is_flag=True, zh="distil：由译文写出源文，模型的方向相反",
        en="distil: write sources for the targets, by a model of the other direction")  # fmt: skip
@option("--beam", type=click.IntRange(1), default=5, zh="distil：束宽", en="distil: beam width")
@option("--nbest", type=click.IntRange(1), default=1, zh="distil：每句写几个最好的", en="distil: the N best of each")
@option("--out", type=click.Path(path_type=Path), zh="get、pack、distil 写到这个目录",
        en="the folder that get, pack or distil writes")  # fmt: skip
@ensemble
def command(
    common: Common, what: str, names: tuple[str, ...], out: Path | None, size: int, back: bool, beam: int, nbest: int,
    ensemble: tuple[str, ...], **how: Any,
) -> int:  # fmt: skip
    if what == "get":
        return get(common, names, out)
    if not names:
        raise click.UsageError(Note(f"{what} needs FILES", zh=f"{what} 要有文件"))
    if what == "check":
        return check(common, names, **how)
    if out is None:
        raise click.UsageError(Note(f"{what} needs --out FOLDER", zh=f"{what} 要有 --out 目录"))
    if what == "pack":
        return pack(common, names, out, how["model"], size)
    if how["model"] is None:
        raise click.UsageError(Note("distil needs --model MODEL, the translator that writes",
                                    zh="distil 要有 --model，即写译文的翻译模型"))  # fmt: skip
    if how["kind"] != "auto":
        raise click.UsageError(Note("distil goes by the names of the files; leave --kind away",
                                    zh="distil 看文件名；请去掉 --kind"))  # fmt: skip
    if nbest > beam:
        raise click.UsageError(Note(f"--nbest {nbest} needs --beam {nbest} or more; --beam is {beam}",
                                    zh=f"--nbest {nbest} 要 --beam 不小于 {nbest}；--beam 是 {beam}"))  # fmt: skip
    teacher = {"writes": "source" if back else "target", "beam": beam, "nbest": nbest}
    return distil(common, names, out, how, teacher | {"ensemble": ensemble})


def check(
    common: Common, names: tuple[str, ...], *, held: tuple[str, ...], kind: Any, columns: str, keys: str | None,
    longest: int | None, model: str | None,
) -> int:  # fmt: skip
    """Report on files; 1 where something must be mended."""
    from qkv.data import check as checks
    from qkv.training.data_files import talk_of

    places = two_columns(columns)
    measure, bound = lengths(common, model)
    with counted(common) as tell:
        options = checks.Options(
            kind, places, tuple(k.strip() for k in (keys or "").split(",") if k.strip()),
            longest or bound, measure, None if tell is None else lambda _, lines: tell(lines, 0), talk_of,
        )  # fmt: skip
        report = checks.check([Path(n) for n in names], [Path(n) for n in held], options)
    if common.json:
        common.emit({"ok": report.ok, "files": report.files, "faults": report.faults, "overlaps": report.overlaps})
    else:
        told(common, report)
    return 0 if report.ok else 1


def two_columns(said: str) -> tuple[int, int]:
    """The two columns that --columns names."""
    found = [part.strip() for part in said.split(",")]
    if len(found) != 2 or not all(part.isdigit() for part in found):
        raise click.UsageError(Note(f"--columns {said}: expected two numbers such as 0,1",
                                    zh=f"--columns {said}：应是两个数，如 0,1"))  # fmt: skip
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
        raise QkvError(f"{names[0]}: these rows have labels, expected pairs of texts",
                       zh=f"{names[0]}：这些行有标签，应是文本对")  # fmt: skip
    making.free(run.data, out)
    teacher |= common.models(teacher.pop("ensemble"))

    def doubt(file: str, own: float, read: float) -> None:
        zh = f"译文像模型读到的一边（chrF {read:.0f}），不像另一边（{own:.0f}）；方向反了？（--back 或 --columns 1,0）"
        said = (f"what the model writes is more like what it reads (chrF {read:.0f}) than like the other side "
              f"({own:.0f}); is it of this direction? (--back, or --columns 1,0)")  # fmt: skip
        click.echo(common.say(f"注意：{file}：{zh}", f"note: {file}: {said}"), err=True)

    with counted(common) as tell:
        made = making.write(making.Teacher(common.model(how["model"]), **teacher), run.data, out, tell, doubt)
    if common.json:
        common.emit([{**asdict(one), "files": [str(path) for path in one.files]} for one in made])
        return 0
    for one in made:
        files = " ".join(map(str, one.files))
        click.echo(common.say(f"{files}：读 {one.read:,} 对，写 {one.written:,} 对，{one.without:,} 对没有译文",
                              f"{files}: {one.read:,} pairs read, {one.written:,} written, {one.without:,} without a "
                              "translation"))  # fmt: skip
    return 0


def pack(common: Common, names: tuple[str, ...], out: Path, model: str | None, size: int) -> int:
    """Write texts as one token shard, with the tokenizer that cut them."""
    from qkv.checkpoints.locate import locate
    from qkv.data import shards, sources
    from qkv.errors import QkvError
    from qkv.tokenizers import tokenizer, vocabulary

    def pieces() -> Iterator[tuple[str, bool]]:
        return (piece for name in names for piece in sources.read_pieces(Path(name)))

    if model is None:
        made = vocabulary.train((text for text, _ in pieces()), kind="bpe", size=size, specials=("</s>", "<unk>"))
    else:
        found = tokenizer.load(model if Path(model).is_dir() else locate(model, common.revision))
        if found is None:
            raise QkvError(f"{model}: no tokenizer there; leave --model away to train one",
                           zh=f"{model}：那里没有分词器；要训练一个，请去掉 --model")  # fmt: skip
        made = found
    end = [] if made.eos_id is None else [made.eos_id]
    ids = ((*made.encode(text, special=False), *(end if last else [])) for text, last in pieces())
    shard = shards.write_shard(out, ids, vocabulary=len(made), save=made.save)
    if common.json:
        common.emit({"folder": str(out), **shard.index})
    else:
        size = (out / "tokens.bin").stat().st_size
        click.echo(common.say(f"{out}：{len(shard):,} 个词元，词表 {len(made):,}，{size:,} B",
                              f"{out}: {len(shard):,} tokens of {len(made):,} kinds, {size:,} B"))  # fmt: skip
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
        raise QkvError(f"{model}: no tokenizer there; leave --model away to count characters",
                       zh=f"{model}：那里没有分词器；要数字符，请去掉 --model")  # fmt: skip
    return lambda text: len(made.encode(text)), hub.spec_of(model).context or 1000


def told(common: Common, report: Any) -> None:
    """The report as people read it: each file in three lines, then what was found."""
    from qkv.data.overlap import PARTS

    for a in report.files:
        mark = common.say("，有 BOM", ", byte order mark") if a.mark else ""
        click.echo(click.style(str(a.path), bold=True) + f"  {a.kind}, {a.bytes:,} B{mark}")
        click.echo(common.say(
            f"  {a.lines:,} 行，{a.rows:,} 条好的，{a.bad:,} 条坏的，{a.empty:,} 空行，{a.duplicates:,} 重复，"
            f"{a.over_long:,} 过长（{share(a.over_long, a.rows)}）",
            f"  {a.lines:,} lines: {a.rows:,} good rows, {a.bad:,} bad, {a.empty:,} blank, {a.duplicates:,} repeated, "
            f"{a.over_long:,} over-long ({share(a.over_long, a.rows)})",
        ))  # fmt: skip
        written = ", ".join(f"{name} {part:.1%}" for name, part in a.scripts.items()) or "–"
        click.echo(common.say(
            f"  最长 {a.longest:,} 字符（第 {a.longest_line:,} 行），{a.characters:,} 种字符；文字：{written}",
            f"  longest {a.longest:,} characters (line {a.longest_line:,}), {a.characters:,} different; "
            f"scripts: {written}",
        ))  # fmt: skip
    for o in report.overlaps:
        part = common.say(f"重叠（{PARTS[o.part]}）：", f"overlap ({PARTS[o.part]}): ")
        click.echo(f"{part}{o.count:,}/{o.of:,}  {o.held} ∩ {o.training}")
    for fault in report.faults:
        word = click.style(common.say("要修", "mend"), fg="red") if fault.broken else common.say("留意", "note")
        times = f" ({fault.count:,}×)" if fault.count > 1 else ""
        said = common.say(f"{fault.place}：{fault.text.zh}", f"{fault.place}: {fault.text}")
        click.echo(f"{word}  {said}{times}")
    click.echo(
        common.say("没有要修的", "nothing to mend")
        if report.ok
        else common.say("有要修的", "there is something to mend")
    )


def share(part: int, of: int) -> str:
    """A share in percent."""
    return f"{part / of:.2%}" if of else "–"


def get(common: Common, names: tuple[str, ...], out: Path | None) -> int:
    """Fetch sets, or list them."""
    from qkv.data import download

    if not names:
        known = download.list_sets()
        if common.json:
            common.emit({n: {"about": s.about, "licence": s.licence, "bytes": sum(f.size for f in s.files)}
                         for n, s in known.items()})  # fmt: skip
            return 0
        for name, one in known.items():
            said = common.say(one.about)
            click.echo(f"{name:<16} {sum(f.size for f in one.files) / 1e6:>5.1f} MB  {said}")
            click.echo(f"{'':<26}" + common.say(f"许可：{one.licence.zh}", f"licence: {one.licence}"))
        return 0
    found: dict[str, Any] = {}
    for name in names:
        one = download.find_set(name)
        common.note(f"{name}：{one.about.zh}；许可：{one.licence.zh}", f"{name}: {one.about}; licence: {one.licence}")
        with counted(common) as tell:
            files = download.fetch_set(
                name, out, tell=(lambda _, done, of, tell=tell: tell(done, of)) if tell else None
            )
        found[name] = {"licence": one.licence, "files": [str(path) for path in files]}
        if not common.json:
            click.echo("\n".join(map(str, files)))
    if common.json:
        common.emit(found)
    return 0
