"""`qkv eval MODEL --bleu SRC REF | --ppl FILE | --accuracy FILE`: how good a model is on a file."""

from pathlib import Path
from typing import Any

import click

from qkv.cli.common import Common, counted, ensemble, given, option, verb
from qkv.errors import Note, QkvError

FILE = click.Path(path_type=Path)


@verb(
    "在文件上评估：译文的 BLEU 和 chrF（sacreBLEU，带签名），困惑度（每词元、每词、每字节比特），或标签的准确率。",
    "How good a model is on a file: BLEU and chrF of its translations (sacreBLEU, with signatures), the perplexity of "
    "a text (per token, per word, bits per byte), or the accuracy of its labels.",
    examples=(
        "qkv eval demo --bleu test.zh test.en --out test.hyp",
        "qkv eval demo-lm --ppl book.txt --stride 64",
        "qkv eval demo-bert --accuracy labelled.tsv --json",
    ),
)
@click.argument("model")
@option(
    "--bleu", type=(FILE, FILE), metavar="SRC REF", zh="翻译 SRC，与 REF 比较", en="translate SRC, compare with REF"
)
@option("--ppl", type=FILE, metavar="FILE", zh="一个文本文件的困惑度；模型在源文之后写的，给句对（*.tsv）",
        en="perplexity of a text file, or of pairs (*.tsv) by a model that writes after a source")  # fmt: skip
@option(
    "--accuracy",
    type=FILE,
    metavar="FILE",
    zh="每行“文本 制表符 标签”（与训练相同），或 JSONL 的 label 和 text",
    en='lines of text TAB label, as training reads them, or JSON lines with "label" and "text" (*.jsonl)',
)
@option("--out", type=FILE, zh="把译文写进这个文件", en="write the translations into this file")
@option("--beam", type=click.IntRange(1), zh="束宽（默认 4）", en="beam width (default: 4)")
@option("--length-penalty", type=float, zh="长度惩罚（默认 0.6）", en="length penalty (default: 0.6)")
@option("--max-new-tokens", type=click.IntRange(1), zh="译文最多多少个词元", en="the longest translation, in tokens")
@option(
    "--tokenize",
    type=click.Choice(["auto", "13a", "none", "zh", "char", "intl"]),
    default="auto",
    zh="sacreBLEU 的切分；auto：中文 zh，日文 char，其余 13a",
    en="sacreBLEU's; auto: zh for Chinese, char for Japanese, else 13a",
)
@option("--lowercase", is_flag=True, zh="不分大小写", en="regardless of case")
@option("--joint", metavar='"@@ "', zh="文件里词的各部分之间的记号", en="what joins the parts of a word in the files")
@option(
    "--window",
    type=click.IntRange(2),
    zh="一次读的词元（默认：上下文）",
    en="tokens read at once (default: the context)",
)
@option(
    "--stride", type=click.IntRange(1), zh="窗口前移多少（默认一半）", en="how far windows move (default: half of it)"
)
@ensemble
def command(common: Common, model: str, out: Path | None, ensemble: tuple[str, ...], **typed: Any) -> int:
    what = given(**typed)
    kinds = [kind for kind in ("bleu", "ppl", "accuracy") if kind in what]
    if len(kinds) != 1:
        raise click.UsageError(Note(f"give one of --bleu, --ppl, --accuracy; found {len(kinds)}",
                                    zh=f"请给 --bleu、--ppl、--accuracy 之一；给了 {len(kinds)} 个"))  # fmt: skip
    kind = kinds[0]
    if kind != "bleu":
        what = {k: v for k, v in what.items() if (k, v) not in (("tokenize", "auto"), ("lowercase", False))}
    if out is not None and kind != "bleu":
        raise click.UsageError(Note("--out takes translations: it goes with --bleu",
                                    zh="--out 存的是译文：与 --bleu 同用"))  # fmt: skip
    if ensemble and kind == "ppl":
        raise click.UsageError(Note("--ensemble is of models that translate or classify: it goes with --bleu, "
                                    "--accuracy",
                                    zh="--ensemble 是能翻译或分类的模型：与 --bleu、--accuracy 同用"))  # fmt: skip
    if out is not None and any(out.resolve() == Path(name).resolve() for name in what["bleu"]):
        raise QkvError(f"--out {out}: is a file that is compared with, and would be written over; name another",
                       zh=f"--out {out}：是要与之比较的文件，会被覆盖；请另给一个")  # fmt: skip
    loaded = common.model(model)
    what |= common.models(ensemble)
    with counted(common) as tell:
        found = loaded.eval(**what, tell=tell)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("".join(line + "\n" for line in found.hypotheses), encoding="utf-8")
    {"bleu": told_bleu, "ppl": told_perplexity, "accuracy": told_accuracy}[kind](common, found, out)
    return 0


def told_bleu(common: Common, found: Any, out: Path | None) -> None:
    """BLEU and chrF with what reproduces them."""
    if common.json:
        values = {k: v for k, v in vars(found).items() if k != "hypotheses"}
        return common.emit(values | ({"out": str(out)} if out else {"hypotheses": found.hypotheses}))
    click.echo(f"BLEU {found.bleu:.2f}  chrF {found.chrf:.2f}  "
               + common.say(f"完全一致 {found.exact_match:.1%}  {found.sentences} 句",
                            f"exact match {found.exact_match:.1%}  {found.sentences} sentences"))  # fmt: skip
    click.echo(f"BLEU|{found.signature}\nchrF|{found.chrf_signature}")
    return None


def told_perplexity(common: Common, found: Any, _: Path | None) -> None:
    """Perplexity in its three units, and how it was measured."""
    if common.json:
        return common.emit(vars(found))
    words = "–" if found.word_perplexity is None else f"{found.word_perplexity:,.2f}"
    rows = (
        ("困惑度，每词元", "perplexity per token", f"{found.perplexity:,.3f}"),
        ("困惑度，每词（以空白分）", "perplexity per word (between spaces)", words),
        ("每字节比特数", "bits per byte", f"{found.bits_per_byte:.4f}"),
        ("损失，纳特每词元", "loss in nats per token", f"{found.loss:.4f}"),
        ("词元，词，字节", "tokens, words, bytes", f"{found.tokens:,}, {found.words:,}, {found.bytes:,}"),
        *([("窗口，步幅", "window, stride", f"{found.window}, {found.stride}")] if found.window else []),
    )
    for zh, en, value in rows:
        click.echo(f"{common.say(zh, en):<38} {value}")
    return None


def told_accuracy(common: Common, found: Any, _: Path | None) -> None:
    """Accuracy, and each label's share."""
    if common.json:
        names = ("texts", "right", "said")
        labels = {name: dict(zip(names, numbers, strict=True)) for name, numbers in found.labels.items()}
        return common.emit(vars(found) | {"labels": labels})
    click.echo(
        common.say("准确率", "accuracy") + f" {found.accuracy:.2%} ({found.right}/{found.texts}); "
        + common.say("总猜最常见的类别", "always the commonest label") + f" {found.majority:.2%}"
    )  # fmt: skip
    click.echo(common.say("类别\t文本\t说对\t说了", "label\ttexts\tright\tsaid"))
    for name, numbers in found.labels.items():
        click.echo("\t".join([name, *map(str, numbers)]))
    return None
