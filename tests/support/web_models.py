"""What the tests of the models in the browser share: Node, and the Python model with the same weights."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import qkv
from qkv.explore.web_model import unpack_tensors
from qkv.specialize.traced import TracedProgram

WEB = Path(__file__).parents[2] / "web"
MODELS = ("demo", "demo-lm", "demo-bert", "demo-moe")
needs_node = pytest.mark.skipif(shutil.which("node") is None or not (WEB / "node_modules").is_dir(),
                                reason="needs Node and web/node_modules")


def run_node(program: str, *given: object) -> None:
    """A program of web/tests, to its end."""
    subprocess.run(["node", f"tests/{program}", *map(str, given)], cwd=WEB, check=True, timeout=600)


def load_unpacked(name: str, folder: Path) -> Any:
    """The Python model with the numbers that a folder's weights say."""
    model = qkv.load(name)
    spell = TracedProgram(model.spec).spell_parameter
    stored = unpack_tensors(load_file(folder / "model.safetensors"))
    model.core.load_state_dict({n: stored.get(spell(n), stored["embed.weight"]) for n in model.core.state_dict()})
    return model
