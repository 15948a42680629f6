"""`qkv fill MODEL [TEXT|-]`: the likeliest words for each mask of a text."""

from collections.abc import Iterator

import click

from qkv.cli.common import Common, answer_lines, is_single, option, read_lines, verb


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
    for line, places in answer_lines(lines, lambda texts: [loaded.fill(one, top=top) for one in texts]):
        guesses = [[{"word": w, "probability": round(p, 6)} for w, p in place] for place in places or ()]
        told = (list_predictions(common, places) if is_single(text)
                else ["\t".join(" ".join(word for word, _ in place) for place in places or ())])
        common.print_result({"text": line, "masks": guesses}, told)


def list_predictions(common: Common, places: list[list[tuple[str, float]]]) -> Iterator[str]:
    """A word a line, with its probability; several masks are numbered."""
    for number, place in enumerate(places, start=1):
        if len(places) > 1:
            yield common.say("mask {number}", number=number)
        yield from (f"{probability:7.2%}  {word}" for word, probability in place)
