"""`qkv embed MODEL [TEXT ...|-]`: a vector for each text."""

from collections.abc import Iterator
from typing import Any

import click

from qkv.cli.batches import batches
from qkv.cli.common import Common, answer_lines, read_lines, verb
from qkv.errors import QkvError


@verb("Print a vector for each text, one JSON object per line: the mean of its last states, of length 1, or what a "
      "sentence-transformers directory says. With -, read one text per line.", examples=(
        'qkv embed demo-bert "书放在桌上。" "猫坐在垫子上。"',
        "qkv embed demo-bert - < sentences.txt > vectors.jsonl",
        'qkv embed intfloat/e5-small-v2 "where do cats sleep" --prompt query --json',
    ))
@click.argument("model")
@click.argument("texts", nargs=-1, metavar="[TEXT ...|-]")
@click.option("--prompt", metavar="NAME", help="put the model's prompt of this name before each text, such as query")
@batches
def command(common: Common, model: str, texts: tuple[str, ...], prompt: str | None) -> None:
    if len(texts) > 1 and not all(text.strip() for text in texts):
        raise QkvError("TEXT is empty: there is nothing to {to}", to="embed")
    lines = iter(texts) if len(texts) > 1 else read_lines(texts[0] if texts else None, "embed")
    loaded = common.load_model(model)

    def list_vectors(lines: Iterator[str]) -> Iterator[tuple[Any, Any]]:
        for line, vector in answer_lines(lines, lambda batch: loaded.embed(batch, prompt=prompt).tolist()):
            yield {"text": line, "embedding": vector and [round(x, 7) for x in vector]}, None

    common.answer(lines, list_vectors)
