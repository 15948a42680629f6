"""`qkv show FAMILY|MODEL`: one model as a program that stands alone."""

from typing import Any

import click

from qkv.cli.common import Common, option, verb


@verb(
    "把一个模型打印成一份独立的程序：你会亲手写出的那个模型，"
    "附上读取 Hugging Face 权重的函数和贪心生成；只需要 torch 和 safetensors。",
    "One model as a program that stands alone: the model as you would have written it by hand, a loader of Hugging "
    "Face weights and a greedy loop; it needs torch and safetensors.",
    examples=("qkv show llama", "qkv show gpt2 > model.py", "qkv show demo --mode core | less"),
)
@click.argument("name", metavar="FAMILY|MODEL")
@option(
    "--mode", type=click.Choice(["core", "train", "prefill", "decode"]),
    zh="改为打印核心自己的代码，分支已定；后三个只看一种情形",
    en="the core's own text with its forks decided instead; the last three: one situation alone",
)  # fmt: skip
def command(common: Common, name: str, mode: Any) -> None:
    import qkv

    source = qkv.show(name, mode=mode)
    if common.json:
        common.emit({"name": name, "mode": mode, "source": source})
    else:
        click.echo(source.rstrip("\n"))
