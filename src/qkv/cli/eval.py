"""`qkv eval MODEL --bleu SRC REF | --ppl FILE | --accuracy FILE | …`: how good a model is on a file."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from qkv.cli.common import Common, InputFile, drop_unset, ensemble, option, show_progress, verb
from qkv.errors import QkvError
from qkv.files import write_text_file
from qkv.messages import Message

FILE = InputFile()
LARGE = 1e9  # a perplexity per word that says only that there are no words between spaces


@verb("Evaluate a model on a file: BLEU and chrF of its translations (sacreBLEU, with signatures), the perplexity of a "
      "text (per token, per word, bits per byte), the accuracy of its labels with F1 and a confusion table, of the "
      "last words that it predicts, or of its choice among answers.", examples=(
        "qkv eval demo --bleu test.zh test.en --out test.hyp",
        "qkv eval demo-lm --ppl book.txt --stride 64",
        "qkv eval demo-bert --accuracy labelled.tsv --json",
    ))
@click.argument("model")
@option("--bleu", type=(FILE, FILE), metavar="SRC REF", help="translate SRC and compare with REF")
@option("--ppl", type=FILE, metavar="FILE", help="perplexity of a text file, or of pairs (*.tsv) for a model that "
        "continues a source")
@option("--accuracy", type=FILE, metavar="FILE", help="labelled texts in any form that training reads: tabs, CSV, "
        "JSON, Parquet, a folder for each label")
@option("--last-word", type=FILE, metavar="FILE", help="predict the last word of each line (a tab before it where "
        "words have no spaces between them), as LAMBADA does")
@option("--choice", type=FILE, metavar="FILE", help="JSON lines with \"question\", \"choices\" and \"answer\": the "
        "likeliest choice is taken, by log-probability and by it per byte")
@option("--out", type=click.Path(path_type=Path), help="write the translations to this file")
@option("--beam", type=click.IntRange(1), help="beam width (default: 4)")
@option("--length-penalty", type=float, help="length penalty (default: 0.6)")
@option("--max-new-tokens", type=click.IntRange(1), help="maximum number of tokens per translation")
@option("--tokenize", type=click.Choice(["auto", "13a", "none", "zh", "char", "intl"]), default="auto",
        help="sacreBLEU tokenizer; auto: zh for Chinese, char for Japanese, otherwise 13a")
@option("--lowercase", is_flag=True, help="ignore case")
@option("--joint", metavar='"@@ "', help="marker that joins the parts of a word in the files")
@option("--window", type=click.IntRange(2), help="tokens per window (default: the context)")
@option("--stride", type=click.IntRange(1), help="tokens between the starts of two windows (default: half a window)")
@ensemble
def command(common: Common, model: str, out: Path | None, ensemble: tuple[str, ...], **typed: Any) -> None:
    what = drop_unset(**typed)
    kinds = [kind for kind in LISTS if kind in what]
    if len(kinds) != 1:
        known = ", ".join(f"--{kind.replace('_', '-')}" for kind in LISTS)
        raise click.UsageError(Message("give one of {known}; found {kinds}", known=known, kinds=len(kinds)))
    kind = kinds[0]
    if kind != "bleu":
        what = {k: v for k, v in what.items() if (k, v) not in (("tokenize", "auto"), ("lowercase", False))}
    if out is not None and kind != "bleu":
        raise click.UsageError(Message("--out takes translations: it goes with --bleu"))
    if ensemble and kind not in ("bleu", "accuracy"):
        raise click.UsageError(Message("--ensemble is of models that translate or classify: it goes with --bleu, "
                                       "--accuracy"))
    if out is not None and any(out.resolve() == Path(name).resolve() for name in what["bleu"]):
        raise QkvError("--out {out}: is a file that is compared with, and would be written over; name another", out=out)
    loaded = common.load_model(model)
    what |= common.load_models(ensemble)
    with show_progress(common) as tell:
        found = loaded.eval(**what, tell=tell)
    if out is not None:
        write_text_file(out, "".join(line + "\n" for line in found.hypotheses))
    values = found.record if kind == "accuracy" else dict(vars(found))
    if kind == "bleu":
        values |= {"out": str(out)} if out else {}
        values = {k: v for k, v in values.items() if k != "hypotheses" or out is None}
    common.print_result(values, LISTS[kind](found, common.say))


def list_bleu(found: Any, say: Callable[..., str]) -> Iterator[str]:
    """BLEU and chrF with what reproduces them."""
    yield f"BLEU {found.bleu:.2f}  chrF {found.chrf:.2f}  " + say(
        "exact match {exact_match:.1%}  {sentences} sentences", **vars(found))
    yield f"BLEU|{found.signature}\nchrF|{found.chrf_signature}"


def list_perplexity(found: Any, say: Callable[..., str]) -> Iterator[str]:
    """Perplexity in its three units, and how it was measured."""
    words, unit = found.word_perplexity, Message("perplexity per word (between spaces)")
    if (words is None or words >= LARGE) and found.character_perplexity is not None:  # a language without spaces
        words, unit = found.character_perplexity, Message("perplexity per character")
    rows = (
        (Message("perplexity per token"), f"{found.perplexity:,.3f}"),
        (unit, "–" if words is None else f"{words:,.2f}" if words < LARGE else f"{words:.3e}"),
        (Message("bits per byte"), f"{found.bits_per_byte:.4f}"),
        (Message("loss in nats per token"), f"{found.loss:.4f}"),
        (Message("tokens, words, bytes"), f"{found.tokens:,}, {found.words:,}, {found.bytes:,}"),
        *([(Message("window, stride"), f"{found.window}, {found.stride}")] if found.window else []),
    )
    return (f"{say(text):<38} {value}" for text, value in rows)


def list_accuracy(found: Any, say: Callable[..., str]) -> Iterator[str]:
    """Accuracy, Matthews correlation and F1, each label's share, and which labels are taken for which."""
    from qkv.plots.terminal import draw_table
    from qkv.tasks.label_scores import draw_confusion

    yield (say("accuracy") + f" {found.accuracy:.2%} ({found.right}/{found.texts}); "
           + say("always the commonest label") + f" {found.majority:.2%}")
    yield say("Matthews correlation {matthews:.4f}, macro F1 {macro_f1:.4f}", matthews=found.matthews,
              macro_f1=found.macro_f1)
    yield say("label\ttexts\tright\tsaid") + "\tF1"
    yield from ("\t".join([name, *map(str, row), f"{found.f1[name]:.4f}"]) for name, row in found.labels.items())
    yield from draw_table(draw_confusion(found, corner=say("true ↓ said →")))


def list_last_word(found: Any, say: Callable[..., str]) -> Iterator[str]:
    """The share of last words that were predicted, and their perplexity."""
    yield say("accuracy") + f" {found.accuracy:.2%} ({found.right}/{found.texts})"
    yield say("perplexity per last word") + f" {found.perplexity:,.3f}"


def list_choice(found: Any, say: Callable[..., str]) -> Iterator[str]:
    """The share of questions answered right, by both ways to compare answers of unlike length."""
    yield say("accuracy") + f" {found.accuracy:.2%}, " + say(
        "per byte of the answer {share:.2%}; guessing {chance:.2%}  {questions} questions",
        share=found.normalized_accuracy, chance=found.chance, questions=found.questions)


LISTS: dict[str, Callable[[Any, Callable[..., str]], Iterator[str]]] = {
    "bleu": list_bleu, "ppl": list_perplexity, "accuracy": list_accuracy, "last_word": list_last_word,
    "choice": list_choice}
