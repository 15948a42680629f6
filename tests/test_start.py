"""Starting is cheap: `import qkv` and `qkv --help` load neither torch nor anything else that is slow."""

import subprocess
import sys

import pytest

import qkv

SLOW = ("torch", "numpy", "rich", "transformers", "tokenizers", "huggingface_hub", "jinja2", "sacrebleu", "starlette")


@pytest.mark.parametrize(
    "code",
    [
        "import qkv",
        "import qkv; dir(qkv); qkv.QkvError",
        "from qkv.cli import main; main(['--help'])",
        "from qkv.cli import main; main(['--version'])",
        "from qkv.cli import main; main(['translate', '--help'])",
        "from qkv.cli import main; main(['trnslate'])",
    ],
)
def test_the_start_loads_nothing_slow(code: str) -> None:
    after = f"{code}\nimport sys\nprint('slow:', [m for m in {SLOW!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", after], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "slow: []"


@pytest.mark.parametrize("module", ["qkv", "qkv.cli"])
def test_python_m_is_the_command(module: str) -> None:
    command = [sys.executable, "-m", module]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"qkv {qkv.__version__}\n")
    wrong = subprocess.run([*command, "trnslate"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2
    assert "did you mean translate" in wrong.stderr
