"""`qkv fill MODEL [TEXT|-]`: the likeliest words for each mask of a text."""

import click

from qkv.cli.common import Common, option, read_lines, verb
from qkv.errors import QkvError


@verb("Cloze: print the most likely words for each [MASK] of a text. With -, write one line per input line: words "
      "separated by spaces, masks by tabs.", examples=(
        'qkv fill demo-bert "我爱[MASK]。"',
        'qkv fill google-bert/bert-base-chinese "今天天气很[MASK]" --top 3',
        "qkv fill demo-bert - --json < blanks.txt",
    ))
@click.argument("model")
@click.argument("text", required=False, metavar="[TEXT|-]")
@option("--top", type=click.IntRange(1), default=5, help="number of words per mask")
def command(common: Common, model: str, text: str | None, top: int) -> None:
    lines, loaded = read_lines(text, "fill"), common.load_model(model)
    single = text is not None and text != "-"
    for number, line in enumerate(lines, start=1):
        try:
            places = loaded.fill(line, top=top) if line.strip() else []
        except QkvError as error:
            raise error if single else QkvError("standard input, line {number}: {error}", number=number,
                                                error=error) from None
        if common.json:
            guesses = [[{"word": w, "probability": round(p, 6)} for w, p in place] for place in places]
            common.emit({"text": line, "masks": guesses})
        elif single:
            print_predictions(common, places)
        else:
            click.echo("\t".join(" ".join(word for word, _ in place) for place in places))


def print_predictions(common: Common, places: list[list[tuple[str, float]]]) -> None:
    """A word a line, with its probability; several masks are numbered."""
    for number, place in enumerate(places, start=1):
        if len(places) > 1:
            click.echo(common.say("mask {number}", number=number))
        for word, probability in place:
            click.echo(f"{probability:7.2%}  {word}")
