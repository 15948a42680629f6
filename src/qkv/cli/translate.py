"""`qkv translate MODEL [TEXT|-]`: one line in, one line out; a blank line stays blank."""

from typing import Any

import click

from qkv.cli.common import BATCH, Common, answered, ensemble, given, option, read_lines, verb
from qkv.errors import Note

ROWS = 1024  # hypotheses of the lines that are read together: enough lines to sort by length, and memory for them


@verb(
    "翻译一句话，或用 - 逐行翻译标准输入：一行进，一行出，空行还是空行。",
    "Translate a text, or standard input line by line with -: one line in, one line out, a blank line stays blank.",
    examples=(
        "qkv translate demo 我爱学习。",
        "qkv translate demo --nbest 3 --scores --align 书和茶都在桌上，我看完了它。",
        "qkv translate ./my-model - < source.zh > target.en",
    ),
)
@click.argument("model")
@click.argument("text", required=False, metavar="[TEXT|-]")
@option("--beam", type=click.IntRange(1), default=4, zh="束宽；1 是贪心", en="beam width; 1 is greedy")
@option("--length-penalty", type=float, default=0.6, zh="长度惩罚", en="length penalty, the paper's alpha")
@option("--nbest", type=click.IntRange(1), default=1, zh="给出最好的 N 个译文", en="the N best of each line")
@option("--max-new-tokens", type=click.IntRange(1), zh="译文最多多少个词元", en="the longest translation, in tokens")
@option("--scores", is_flag=True, zh="每行前加上分数", en="the score before each line")
@option("--align", is_flag=True, zh="显示每个词元看了哪个源词元", en="which source token each token looked at")
@ensemble
def command(
    common: Common, model: str, text: str | None, scores: bool, align: bool, ensemble: tuple[str, ...], **how: Any
) -> None:
    from qkv.tokenizers.vocabulary import closed

    if how["nbest"] > how["beam"]:
        raise click.UsageError(Note(
            f"--nbest {how['nbest']} needs --beam {how['nbest']} or more; --beam is {how['beam']}",
            zh=f"--nbest {how['nbest']} 要 --beam 不小于 {how['nbest']}；--beam 是 {how['beam']}"))  # fmt: skip
    lines, loaded, others = read_lines(text, "translate"), common.model(model), common.models(ensemble)
    how = given(**how, **({"align": True} if align else {})) | others
    blank = loaded.tokenizer is not None and closed(loaded.tokenizer)
    single, most = text is not None and text != "-", max(BATCH, ROWS // how["beam"])
    for line, result in answered(lines, lambda texts: loaded.translate(texts, **how), single=single, most=most):
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
        common.note(f"词表里没有：{words}{'；这一句不译' if blank else ''}",
                    f"not in the vocabulary: {words}{'; left blank' if blank else ''}")  # fmt: skip
    if not best or (missing and blank):
        return click.echo("")
    for r in best:
        click.echo(f"{r.score:.4f}\t{r.text}" if scores else r.text)
        if align and r.alignment is not None:
            click.echo("\t" + " ".join(f"{t}-{s}" for t, s in enumerate(_strongest(r.alignment))))
    return None


def _strongest(alignment: Any) -> list[int]:
    """The source position that each target token looked at most."""
    rows = alignment.tolist() if hasattr(alignment, "tolist") else alignment
    return [max(range(len(row)), key=row.__getitem__) for row in rows]
