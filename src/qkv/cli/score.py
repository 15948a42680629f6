"""`qkv score MODEL [TEXT|-]`: the log-probability of each text."""

import click

from qkv.cli.common import Common, answered, read_lines, verb


@verb(
    "每段文本的总对数概率（自然对数），写在文本之前；用 - 逐行读标准输入。",
    "The total log-probability (natural logarithm) of each text, before the text; with -, of each line.",
    examples=(
        'qkv score demo-lm "One, two, buckle my shoe."',
        'qkv score gpt2 "The cat sat on the mat." --json',
        "qkv score gpt2 - < sentences.txt | sort -g",
    ),
)
@click.argument("model")
@click.argument("text", required=False, metavar="[TEXT|-]")
def command(common: Common, model: str, text: str | None) -> None:
    lines, loaded = read_lines(text, "score"), common.model(model)
    for line, found in answered(lines, loaded.score, single=text is not None and text != "-"):
        number = None if found is None else float(found)
        if common.json:
            common.emit({"text": line, "logprob": number})
        else:
            click.echo("" if number is None else f"{number:.4f}\t{line}")
