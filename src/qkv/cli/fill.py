"""`qkv fill MODEL [TEXT|-]`: the likeliest words for each mask of a text."""

import click

from qkv.cli.common import Common, option, read_lines, verb
from qkv.errors import QkvError


@verb(
    "完形填空：为文本里的每个 [MASK] 给出最可能的词；用 - 逐行读标准输入，每行写一行：词以空格隔开，各处以制表符隔开。",
    "Cloze: the likeliest words for each [MASK] of a text. With -, one line in and one line out: words with spaces "
    "between, masks with tabs between.",
    examples=(
        'qkv fill demo-bert "我爱[MASK]。"',
        'qkv fill google-bert/bert-base-chinese "今天天气很[MASK]" --top 3',
        "qkv fill demo-bert - --json < blanks.txt",
    ),
)
@click.argument("model")
@click.argument("text", required=False, metavar="[TEXT|-]")
@option("--top", type=click.IntRange(1), default=5, zh="每处给几个词", en="words for each mask")
def command(common: Common, model: str, text: str | None, top: int) -> None:
    lines, loaded = read_lines(text, "fill"), common.model(model)
    single = text is not None and text != "-"
    for number, line in enumerate(lines, start=1):
        try:
            places = loaded.fill(line, top=top) if line.strip() else []
        except QkvError as error:
            raise error if single else QkvError(f"standard input, line {number}: {error}",
                                                zh=f"标准输入第 {number} 行：{error.note.zh}") from None  # fmt: skip
        if common.json:
            guesses = [[{"word": w, "probability": round(p, 6)} for w, p in place] for place in places]
            common.emit({"text": line, "masks": guesses})
        elif single:
            shown(common, places)
        else:
            click.echo("\t".join(" ".join(word for word, _ in place) for place in places))


def shown(common: Common, places: list[list[tuple[str, float]]]) -> None:
    """A word a line, with its probability; several masks are numbered."""
    for number, place in enumerate(places, start=1):
        if len(places) > 1:
            click.echo(common.say(f"第 {number} 处", f"mask {number}"))
        for word, probability in place:
            click.echo(f"{probability:7.2%}  {word}")
