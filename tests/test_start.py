"""Starting is cheap: `import qkv` and `qkv --help` load neither torch nor anything else that is slow."""

import os
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
        "from qkv.cli import main; assert main(['train', 'nope']) == 2",
        "from qkv.cli import main; assert main(['train', 'nope.tsv']) == 2",
        "from qkv.cli import main; assert main(['translate', './nope', 'x']) == 2",
        "from qkv.cli import main; assert main(['runs', 'nope']) == 2",
        "from qkv.cli import main; assert main(['info', './nope']) == 2",
        "from qkv.cli import main; assert main(['eval', 'demo-lm', '--ppl', 'nope']) == 2",
        "from qkv.cli import main; assert main(['eval', 'demo', '--bleu', '.', 'nope']) == 2",
        "from qkv.cli import main; assert main(['convert', 'demo-lm', 'out', '--text', 'nope']) == 2",
        "from qkv.cli import main; assert main(['translate', 'demo', 'x', '--ensemble', './nope']) == 2",
        "from qkv.cli import main; assert main(['data', 'check', 'nope']) == 2",
        "from qkv.cli import main; assert main(['data', 'check', '.', '--eval', 'nope']) == 2",
        "from qkv.cli import main; assert main(['data', 'pack', 'nope', '--out', 'out']) == 2",
        "from qkv.cli import main; assert main(['data', 'distil', 'nope', '--model', 'demo', '--out', 'out']) == 2",
    ],
)
def test_the_start_loads_nothing_slow(code: str) -> None:
    after = f"{code}\nimport sys\nprint('slow:', [m for m in {SLOW!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", after], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "slow: []"


def test_a_name_that_is_nowhere_is_refused_before_torch() -> None:
    code = ("import sys; from qkv.cli import main\n"
            "for verb in 'translate generate embed classify fill score look check chat eval convert'.split():\n"
            "    more = {'chat': [], 'check': [], 'eval': ['--ppl', '.']}.get(verb, ['x'])\n"
            "    assert main([verb, 'nope', *more]) == 2, verb\n"
            "    assert 'torch' not in sys.modules, verb")
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=offline)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("error: nope: no such directory") == 11


def test_loading_a_model_leaves_the_compiler_of_torch_alone() -> None:
    code = ("import sys; from qkv.cli import main; assert main(['translate', 'demo', '我爱学习。']) == 0\n"
            "print([m for m in ('torch._dynamo', 'sympy', 'qkv.specialize') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["I love studying.", "[]"], done.stderr


@pytest.mark.parametrize("module", ["qkv", "qkv.cli"])
def test_python_m_is_the_command(module: str) -> None:
    command = [sys.executable, "-m", module]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"qkv {qkv.__version__}\n")
    wrong = subprocess.run([*command, "trnslate"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2
    assert "did you mean translate" in wrong.stderr
