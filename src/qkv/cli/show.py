"""`qkv show FAMILY|MODEL`: one model as a program that stands alone."""

from typing import Any

import click

from qkv.cli.common import Common, option, verb


@verb("Print a model as a standalone program: the model as you would have written it by hand, a loader for Hugging "
      "Face weights and a greedy loop. It needs only torch and safetensors.",
      examples=("qkv show llama", "qkv show gpt2 > model.py",
                "qkv show demo --language typescript > demo.ts"))
@click.argument("name", metavar="FAMILY|MODEL")
@option("--mode", type=click.Choice(["core", "train", "prefill", "decode"]), help="print the core's own code instead, "
        "with its branches resolved; the last three: for one situation only")
@option("--language", type=click.Choice(["python", "typescript"]), default="python", help="typescript: one file for "
        "browsers and Node that needs nothing else; qkv convert MODEL FOLDER --to web writes its weights")
def command(common: Common, name: str, mode: Any, language: Any) -> None:
    import qkv

    source = qkv.show(name, mode=mode, language=language)
    common.print_result({"name": name, "mode": mode, "language": language, "source": source}, [source.rstrip("\n")])
