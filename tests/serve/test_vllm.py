"""What vLLM is told, and what it is not asked because it cannot do it. The program here only repeats its words."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qkv.cli import main
from qkv.paths import bundled_dir

pytestmark = pytest.mark.skipif(os.name == "nt", reason="a program of the shell stands for vLLM")


def serve(folder: Path, *words: str, **environ: str) -> list[str]:
    """The lines of a program called vllm that qkv became: its key, and its words."""
    program = folder / "vllm"
    program.write_text('#!/bin/sh\necho "$VLLM_API_KEY"; for w in "$@"; do echo "$w"; done\n', encoding="utf-8")
    program.chmod(0o755)
    environ = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", **environ}
    environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run([sys.executable, "-m", "qkv", "serve", *words], env=environ, capture_output=True, text=True,
                          check=True, timeout=120)  # fmt: skip
    return done.stdout.splitlines()


def test_a_model_and_its_options_are_told_in_vllm_s_words(tmp_path: Path) -> None:
    key, *words = serve(tmp_path, "lm=demo-lm", "--engine", "vllm", "--port", "9000", "--dtype", "bf16", "--rows", "8",
                        "--cors", "https://a.example", "--", "--tensor-parallel-size", "8",
                        QKV_API_KEY="k" * 32)  # fmt: skip
    assert key == "k" * 32
    assert words[:2] == ["serve", str(bundled_dir() / "demo-lm")]
    pairs = dict(zip(words[2::2], words[3::2], strict=True))
    assert pairs.pop("--allowed-origins") == json.dumps(["https://a.example"])
    assert pairs == {"--served-model-name": "lm", "--host": "127.0.0.1", "--port": "9000", "--dtype": "bfloat16",
                     "--max-num-seqs": "8", "--tensor-parallel-size": "8"}  # fmt: skip


@pytest.mark.parametrize(("words", "says"), [
    (["demo"], "encoder-decoder"), (["demo-lm", "--memory", "4"], "--memory"), (["demo-lm", "demo"], "one model"),
    (["demo-lm", "--max-body", "1"], "--max-body"), (["demo-lm", "--dtype", "int4"], "--dtype int4"),
    (["demo-lm", "--host", "0.0.0.0"], "--keys"), (["demo-lm"], "pip install vllm"),
], ids=lambda x: " ".join(x)[-20:] if isinstance(x, list) else "")  # fmt: skip
def test_what_vllm_cannot_do_is_refused_by_name(
    words: list[str], says: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["serve", *words, "--engine", "vllm"]) == 2
    assert says in capsys.readouterr().err


def test_models_that_only_qkv_reads_are_refused(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qkv"}', encoding="utf-8")
    assert main(["serve", str(tmp_path), "--engine", "vllm"]) == 2
    assert "own type" in capsys.readouterr().err
    (tmp_path / "m.gguf").touch()
    assert main(["serve", str(tmp_path / "m.gguf"), "--engine", "vllm"]) == 2
    assert "qkv convert" in capsys.readouterr().err
    assert main(["serve", "demo-lm", "--", "--x"]) == 2
