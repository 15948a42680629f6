"""Every benchmark runs from end to end at tiny sizes and writes what a reader needs; absent peers are named."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
SCRIPTS = sorted(p.stem for p in BENCH.glob("*.py") if p.stem not in ("harness", "engines", "variants"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_opens_with_its_claim(name: str) -> None:
    said = ast.get_docstring(ast.parse((BENCH / f"{name}.py").read_text(encoding="utf-8"))) or ""
    assert said.split("\n")[0].endswith(".")


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_and_writes_its_numbers(name: str, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, str(BENCH / f"{name}.py"), "--smoke", "--threads", "1", "--out", str(out)]
    root = BENCH.parent
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(out.read_text(encoding="utf-8"))
    assert {"claim", "command", "machine", "options"} < set(found)
    assert found["machine"]["cpu"]
    assert found["machine"]["threads"] == 1
