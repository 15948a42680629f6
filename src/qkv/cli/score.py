"""`qkv score MODEL [TEXT|-]`: the log-probability of each text, or of what comes after a tab."""

from collections.abc import Iterator
from typing import Any

import click

from qkv.cli.batches import batches
from qkv.cli.common import Common, answer_lines, option, read_lines, verb
from qkv.errors import QkvError


@verb("Print the total log-probability (natural logarithm) of each text, before the text; with -, read one text per "
      "line. For an encoder-decoder, a line is source, tab, translation, and the translation is scored. With --pairs, "
      "other models also read such lines: the text before the tab is given, the text after it is scored.", examples=(
        'qkv score demo-lm "One, two, buckle my shoe."',
        "qkv score gpt2 - < sentences.txt | sort -g",
        "qkv score demo - < pairs.tsv | sort -g",
    ))
@click.argument("model")
@click.argument("text", required=False, metavar="[TEXT|-]")
@option("--pairs", is_flag=True, help="a tab separates the given text from the scored text")
@batches
def command(common: Common, model: str, text: str | None, pairs: bool) -> None:
    lines, loaded = read_lines(text, "score"), common.load_model(model)
    apart = pairs or loaded.encoder_decoder

    def score_lines(texts: list[str]) -> list[float]:
        return loaded.score([split_pair(line) if apart else line for line in texts])

    def list_scores(lines: Iterator[str]) -> Iterator[tuple[Any, Any]]:
        for line, found in answer_lines(lines, score_lines):
            number = None if found is None else float(found)
            yield {"text": line, "logprob": number}, ["" if number is None else f"{number:.4f}\t{line}"]

    common.answer(lines, list_scores)


def split_pair(line: str) -> tuple[str, str]:
    """What stands before a line's tab, and what after it."""
    parts = tuple(line.split("\t"))
    if len(parts) != 2 or not all(part.strip() for part in parts):
        raise QkvError("{line!r} has {parts} tabs, expected one: what is given, a tab, what is scored", line=line[:60],
                       parts=len(parts) - 1)
    return parts[0], parts[1]
