"""`qkv generate MODEL [PROMPT|-]`: continue a text; on a terminal the words appear as they come."""

import sys
from typing import Any

import click

from qkv.cli.common import Common, answered, given, option, read_lines, verb


@verb(
    "续写一段文本。默认贪心；给出 -t 等选项时按概率抽样。用 - 逐行读提示，每行写一行（换行写作 \\n）。",
    "Continue a text: greedy, unless -t and its like ask for sampling. With -, one prompt a line in and one line out "
    "(line breaks are written as \\n).",
    examples=(
        'qkv generate demo-lm "One, two,"',
        'qkv generate gpt2 "Once upon a time" -n 100 -t 0.8 --top-p 0.95 --seed 1',
        'qkv generate ./my-model "1, 2, 3," --stop "." --json',
    ),
)
@click.argument("model")
@click.argument("prompt", required=False, metavar="[PROMPT|-]")
@option("-n", "--max-new-tokens", type=click.IntRange(1), zh="最多生成多少个词元", en="at most so many tokens")
@option("-t", "--temperature", type=click.FloatRange(0), zh="温度；0 是贪心", en="temperature; 0 is greedy")
@option("--top-p", type=click.FloatRange(0, 1, min_open=True), zh="核采样", en="the smallest set of this probability")
@option("--top-k", type=click.IntRange(1), zh="只取前 k 个", en="the k likeliest tokens")
@option("--min-p", type=click.FloatRange(0, 1), zh="相对最大概率的下限", en="at least this share of the likeliest")
@option("--sampling", type=click.Choice(["greedy", "model"]), zh="model：按模型自带的设置", en="model: its makers' own")
@option("--seed", type=int, zh="随机种子（默认 0）", en="seed of the draws (default: 0)")
@option("--beam", type=click.IntRange(1), zh="束宽", en="beam width")
@option("--stop", multiple=True, zh="遇到即停（可重复）", en="stop at this text (may be repeated)")
def command(common: Common, model: str, prompt: str | None, stop: tuple[str, ...], **how: Any) -> None:
    how = given(**how, stop=list(stop) or None)
    lines, loaded = read_lines(prompt), common.model(model)
    single = prompt is not None and prompt != "-"
    if single and sys.stdout.isatty() and not common.json and how.get("beam", 1) == 1:
        how.pop("beam", None)
        for piece in loaded.stream(prompt, **how):
            click.echo(piece, nl=False)
            sys.stdout.flush()
        return click.echo()
    for line, result in answered(lines, lambda texts: loaded.generate(texts, **how), single=single):
        text = "" if result is None else result.text
        if common.json:
            keys = ("tokens", "logprobs", "finish_reason", "timing")
            common.emit({"prompt": line, "text": text, **{key: getattr(result, key, None) for key in keys}})
        else:
            click.echo(text if single else text.replace("\\", "\\\\").replace("\n", "\\n"))
    return None
