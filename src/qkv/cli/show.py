"""`qkv show FAMILY|MODEL`: the core folded into the forward pass of one model."""

from typing import Any

import click

from qkv.cli.common import Common, option, verb


@verb("The core folded by one model: branches not taken are dropped, what is left is the forward pass that you would "
      "have written by hand.",
      examples=("qkv show llama", "qkv show gpt2 --mode decode", "qkv show demo --mode train | less"))
@click.argument("name", metavar="FAMILY|MODEL")
@option("--mode", type=click.Choice(["train", "prefill", "decode"]), help="one situation alone")
def command(common: Common, name: str, mode: Any) -> None:
    import qkv

    source = qkv.show(name, mode=mode)
    if common.json:
        common.emit({"name": name, "mode": mode, "source": source})
    else:
        click.echo(source.rstrip("\n"))
