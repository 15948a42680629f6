"""`qkv embed MODEL [TEXT|-]`: a vector for each text."""

import click

from qkv.cli.common import Common, answer_lines, read_lines, verb


@verb("Print a vector for each text, one JSON object per line: the mean of its last states, of length 1, or what a "
      "sentence-transformers directory says. With -, read one text per line.", examples=(
        'qkv embed demo-bert "书放在桌上。"',
        "qkv embed demo-bert - < sentences.txt > vectors.jsonl",
        'qkv embed sentence-transformers/all-MiniLM-L6-v2 "The cat sat on the mat." --json',
    ))
@click.argument("model")
@click.argument("text", required=False, metavar="[TEXT|-]")
def command(common: Common, model: str, text: str | None) -> None:
    lines, loaded = read_lines(text, "embed"), common.load_model(model)
    for line, vector in answer_lines(lines, lambda texts: loaded.embed(texts).tolist()):
        common.emit({"text": line, "embedding": vector and [round(x, 7) for x in vector]})
