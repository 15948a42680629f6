"""`qkv translate MODEL [TEXT|-]`: one line in, one line out; a blank line stays blank."""

from typing import Any

import click

from qkv.cli.common import BATCH, Common, answer_lines, drop_unset, ensemble, option, read_lines, verb
from qkv.messages import Message

ROWS = 1024  # hypotheses of the lines that are read together: enough lines to sort by length, and memory for them


@verb("Translate a text, or standard input line by line with -: one line in, one line out; blank lines stay blank.",
      examples=(
        "qkv translate demo 我爱学习。",
        "qkv translate demo --nbest 3 --scores --align 书和茶都在桌上，我看完了它。",
        "qkv translate ./my-model - < source.zh > target.en",
    ))
@click.argument("model")
@click.argument("text", required=False, metavar="[TEXT|-]")
@option("--beam", type=click.IntRange(1), default=4, help="beam width (1: greedy)")
@option("--length-penalty", type=float, default=0.6, help="length penalty (alpha in the paper)")
@option("--nbest", type=click.IntRange(1), default=1, help="print the N best translations of each line")
@option("--max-new-tokens", type=click.IntRange(1), help="maximum number of tokens per translation")
@option("--scores", is_flag=True, help="print the score before each line")
@option("--align", is_flag=True, help="print the source token that each target token attends to most")
@ensemble
def command(
    common: Common, model: str, text: str | None, scores: bool, align: bool, ensemble: tuple[str, ...], **how: Any
) -> None:
    from qkv.tokenizers.vocabulary import is_closed

    if how["nbest"] > how["beam"]:
        raise click.UsageError(Message("--nbest {nbest} needs --beam {nbest} or more; --beam is {beam}",
                                       nbest=how["nbest"], beam=how["beam"]))
    lines, loaded, others = read_lines(text, "translate"), common.load_model(model), common.load_models(ensemble)
    how = drop_unset(**how, **({"align": True} if align else {})) | others
    blank = loaded.tokenizer is not None and is_closed(loaded.tokenizer)
    single, most = text is not None and text != "-", max(BATCH, ROWS // how["beam"])
    for line, result in answer_lines(lines, lambda texts: loaded.translate(texts, **how), single=single, most=most):
        _tell(common, line, result, scores, align, blank)


def _tell(common: Common, line: str, result: Any, scores: bool, align: bool, blank: bool) -> None:
    """One line's translation, and the next best if they were asked for; `blank` where unknown words forbid a guess."""
    best = [] if result is None else [result, *result.others]
    if common.json:
        keys = ("text", "score", "tokens", "alignment", "unknown")
        told = [{key: getattr(r, key, None) for key in keys} for r in best]
        first = told[0] if told else {"text": ""}
        return common.emit({"source": line, **first, **({"nbest": told} if len(told) > 1 else {})})
    if missing := getattr(result, "unknown", ()):
        words = ", ".join(missing)
        common.note("not in the vocabulary: {words}{plural}", words=words,
                    plural=Message("; left blank") if blank else "")
    if not best or (missing and blank):
        return click.echo("")
    for r in best:
        click.echo(f"{r.score:.4f}\t{r.text}" if scores else r.text)
        if align and r.alignment is not None:
            click.echo("\t" + " ".join(f"{t}-{s}" for t, s in enumerate(_find_strongest(r.alignment))))
    return None


def _find_strongest(alignment: Any) -> list[int]:
    """The source position that each target token looked at most."""
    rows = alignment.tolist() if hasattr(alignment, "tolist") else alignment
    return [max(range(len(row)), key=row.__getitem__) for row in rows]
