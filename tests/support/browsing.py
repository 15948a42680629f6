"""What tests in a real browser share: programs of web/tests, and whether their numbers are what their lines give."""

import json
import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

WEB = Path(__file__).parents[2] / "web"


def chromium() -> str:
    """The way to a Chromium; skips without it, without Node, or without what npm installs."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None or shutil.which("node") is None or not (WEB / "node_modules").is_dir():
        pytest.skip("needs Node, a Chromium and `npm ci` in web/")
    return found


def browsed(program: str, *words: str, timeout: int = 1700) -> Any:
    """What a program of web/tests says on its last line."""
    done = subprocess.run(
        ["node", f"tests/{program}", *words], cwd=WEB, capture_output=True, encoding="utf-8", timeout=timeout,
        check=False, env={**os.environ, "CHROMIUM": chromium()},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def wrong(numbers: list[dict[str, Any]], shelf: Any, rough: float = 1e-4) -> list[str]:
    """The numbers that their own lines do not give; `rough` is a share, and a hundredth of it near nought."""
    bad: list[str] = []
    scopes = {run: shelf.get(run).scope for run in {n["run"] for n in numbers}}
    for n in numbers:
        try:
            said, made = float(n["value"]), float(eval(n["line"], dict(scopes[n["run"]])))  # noqa: S307
            fits = said == made or math.isclose(said, made, rel_tol=rough, abs_tol=rough / 100)
        except Exception as error:  # whatever a line raises is its fault
            made, fits = error, False
        if not fits:
            where = f"{n.get('model', '')} {n.get('panel', '')}"
            bad.append(f"{where}: {n['line']} gives {made}, shown {n['value']} ({n['name']})")
    return bad
