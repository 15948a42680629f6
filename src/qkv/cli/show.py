"""`qkv show FAMILY|MODEL`: one model as a program that stands alone."""

from typing import Any

import click

from qkv.cli.common import Common, option, verb


@verb("One model as a program that stands alone: the model as you would have written it by hand, a loader of Hugging "
      "Face weights and a greedy loop; it needs torch and safetensors.",
      examples=("qkv show llama", "qkv show gpt2 > model.py", "qkv show demo --mode core | less"))
@click.argument("name", metavar="FAMILY|MODEL")
@option("--mode", type=click.Choice(["core", "train", "prefill", "decode"]), help="the core's own text with its forks "
        "decided instead; the last three: one situation alone")
def command(common: Common, name: str, mode: Any) -> None:
    import qkv

    source = qkv.show(name, mode=mode)
    if common.json:
        common.emit({"name": name, "mode": mode, "source": source})
    else:
        click.echo(source.rstrip("\n"))
