"""`qkv score MODEL [TEXT|-]`: the log-probability of each text, or of what comes after a tab."""

import click

from qkv.cli.common import Common, answered, option, read_lines, verb


@verb(
    "每段文本的总对数概率（自然对数），写在文本之前；用 - 逐行读标准输入。编码器-解码器的一行是“原文、制表符、译文”，"
    "得分的是译文；--pairs 让别的模型也这样读：制表符之前的给定，之后的得分。",
    "The total log-probability (natural logarithm) of each text, before the text; with -, of each line. Of an "
    "encoder-decoder's line, source, tab, translation, it is that of the translation; with --pairs other models take "
    "a line so, too: what stands before the tab is given, what stands after it is scored.",
    examples=(
        'qkv score demo-lm "One, two, buckle my shoe."',
        "qkv score gpt2 - < sentences.txt | sort -g",
        "qkv score demo - < pairs.tsv | sort -g",
    ),
)
@click.argument("model")
@click.argument("text", required=False, metavar="[TEXT|-]")
@option("--pairs", is_flag=True, zh="制表符分开给定的和得分的两段",
        en="a tab parts what is given from what is scored")  # fmt: skip
def command(common: Common, model: str, text: str | None, pairs: bool) -> None:
    lines, loaded = read_lines(text, "score"), common.model(model)
    apart = pairs or loaded.encoder_decoder

    def answer(texts: list[str]) -> list[float]:
        return loaded.score([divided(line) if apart else line for line in texts])

    for line, found in answered(lines, answer, single=text is not None and text != "-"):
        number = None if found is None else float(found)
        if common.json:
            common.emit({"text": line, "logprob": number})
        else:
            click.echo("" if number is None else f"{number:.4f}\t{line}")


def divided(line: str) -> tuple[str, str]:
    """What stands before a line's tab, and what after it."""
    from qkv.errors import QkvError

    parts = tuple(line.split("\t"))
    if len(parts) != 2 or not all(part.strip() for part in parts):
        raise QkvError(f"{line[:60]!r} has {len(parts) - 1} tabs, expected one: what is given, a tab, what is scored",
                       zh=f"{line[:60]!r} 有 {len(parts) - 1} 个制表符，应有一个：给定、制表符、得分")  # fmt: skip
    return parts[0], parts[1]
