"""`qkv show` prints programs that need nothing of qkv: they load what Hugging Face saves and give the core's logits."""

import builtins
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import oracles, zoo

import qkv
from qkv import families, hub
from qkv.checkpoints import model_dir
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.spec import as_json
from qkv.specialize import core_text, program
from qkv.specialize.classes import CASES

FAMILIES = sorted(families.modules())
DRAWN = [f for f in FAMILIES if oracles.draw(f, 0) is not None]
LIMITS = {"llama": 130, "marian": 150, "gpt2": 130, "bert": 155, "chatglm": 160, "deepseek": 240, "t5": 215,
          "glm4_moe": 215, "modernbert": 250, "gemma2": 210, "gemma3": 200, "olmo3": 200}


def execute(text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of a program, run where qkv cannot be imported."""
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "qkv":
            raise ImportError(f"{name} is not installed")
        return real(name, *args, **kwargs)

    names: dict[str, Any] = {"__name__": "model"}
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", refuse)
        exec(compile(text, "model.py", "exec"), names)
    return names


@torch.no_grad()
def compare(model: Any, core: Transformer) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs of a printed model and of the core for the same ids."""
    s, draw = core.spec, torch.Generator().manual_seed(0)
    ids = torch.randint(3, s.vocabulary, (2, 11), generator=draw)
    given, inputs = [ids], Inputs()
    if s.encoder and s.decoder:
        source = torch.randint(3, s.sources or s.vocabulary, (2, 9), generator=draw)
        given, inputs = [ids, model.encode(source)], Inputs(source=source)
    elif s.stack.segments:
        given, inputs = [ids, torch.ones_like(ids)], Inputs(segments=torch.ones_like(ids))
    elif program.has_prefix(s):
        length = torch.tensor([5, 7])
        given, inputs = [ids, length], Inputs(prefix_len=length)
        if program.fills_blanks(s):
            given, inputs = [ids, length, length - 2], Inputs(prefix_len=length, blank_pos=length - 2)
    if s.labels and not s.head:
        return model.classify(*given), core.classify(ids, inputs, mode="prefill")
    got = core(ids, inputs, mode="prefill")
    return model(*given), got.logits if s.head else got.hidden


def hold(model: Any, core: Transformer) -> None:
    """The printed model is the core: but for the order of sums in fp32, and exactly in fp64 where nothing is cast."""
    got, want = compare(model, core)
    assert (got - want).abs().max() <= 1e-5 * want.std()
    if not any("moe" in n for n, _ in core.named_modules()):  # a router computes in fp32
        got, want = compare(model.double(), core.double())
        assert (got - want).abs().max() <= 1e-12 * want.std()


@pytest.mark.parametrize("number", [0, 1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("family", DRAWN)
def test_a_program_loads_a_checkpoint_and_gives_our_logits(
    family: str, number: int, tmp_path: Path, monkeypatch
) -> None:
    oracles.draw(family, number).save_pretrained(tmp_path)
    hold(execute(qkv.show(tmp_path), monkeypatch)["load"](str(tmp_path)), hub.load(tmp_path).core)


@pytest.mark.parametrize("name", zoo.ALL)
def test_a_program_of_any_spec_loads_what_we_save(name: str, tmp_path: Path, monkeypatch) -> None:
    core = zoo.made(zoo.ALL[name]())
    own = {"model_type": "qkv", "spec": as_json(core.spec)}
    model_dir.save_core(tmp_path, core, config=own)
    hold(execute(qkv.show(tmp_path), monkeypatch)["load"](str(tmp_path)), core)


def test_a_spec_that_is_nowhere_saved_is_shown_like_its_model(tmp_path: Path) -> None:
    core = zoo.made(zoo.ALL["gqa"]())
    model_dir.save_core(tmp_path, core, config={"model_type": "qkv", "spec": as_json(core.spec)})
    assert qkv.show(core.spec) == qkv.show(tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_program_reads_as_typed_by_hand(family: str, tmp_path: Path) -> None:
    text = qkv.show(family)
    (tmp_path / "model.py").write_text(text)
    root = Path(__file__).parents[2]
    ruff = [sys.executable, "-m", "ruff", "check", "--config", str(root / "pyproject.toml"), str(tmp_path / "model.py")]
    assert subprocess.run(ruff, check=False, capture_output=True).returncode == 0
    code = re.sub(r'"""[^"]*"""|#.*', "", text)
    for leftover in (
        r"\bqkv\b",
        r"\bstep\b",
        r"\bs\.",
        r"\bspec\b",
        "tap",
        "drop",
        "cache",
        "Identity",
        r"\bpath\b",
        " is None",
    ):
        assert not re.search(leftover, code), leftover
    assert len(text.splitlines()) <= LIMITS.get(family, 190)


def test_a_program_writes_on_from_the_command_line_without_qkv(tmp_path: Path) -> None:
    oracles.draw("gpt2", 0).save_pretrained(tmp_path)
    (tmp_path / "model.py").write_text(qkv.show(tmp_path))
    blocked = (
        "import sys, runpy; sys.modules['qkv'] = None; sys.argv = sys.argv[1:]; "
        "runpy.run_path('model.py', run_name='__main__')"
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        call = [sys.executable, "-I", "-c", blocked, "model.py", str(tmp_path), *words]
        return subprocess.run(call, check=False, capture_output=True, text=True, cwd=tmp_path)

    written = run("5", "6", "7")
    want = hub.load(tmp_path).generate([5, 6, 7], max_new_tokens=8).tokens
    assert json.loads(written.stdout)[: 3 + len(want)] == [5, 6, 7, *want]
    config = json.loads((tmp_path / "config.json").read_text())
    for stop in (want[2], [want[2], 1]):
        (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": stop}))
        assert json.loads(run("5", "6", str(want[2])).stdout)[:3] == [5, 6, want[2]]  # in the prompt it stops nothing
        assert json.loads(run("5", "6", "7").stdout) == [5, 6, 7, *want[: want.index(want[2]) + 1]]
    refused = run("some text")
    assert refused.returncode == 1
    assert "tokenizer.json" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_every_rewrite_and_phrase_still_stands_in_the_core() -> None:
    texts = {p.stem: p.read_text() for p in Path(sys.modules["qkv.core"].__path__[0]).glob("*.py")}
    for text in (*program.REWRITES, *program.WHOLE, *program.EVEN, core_text.SHARES, *(phrase for *_, phrase in CASES)):
        assert any(text in one for one in texts.values()), text


def test_a_fork_decided_the_wrong_way_is_noticed(tmp_path: Path, monkeypatch) -> None:
    oracles.draw("llama", 0).save_pretrained(tmp_path)
    monkeypatch.setitem(program.WHOLE, "x[..., s.dim // 2 : s.dim]", "x[..., : s.dim // 2]")
    with pytest.raises(AssertionError):
        hold(execute(qkv.show(tmp_path), monkeypatch)["load"](str(tmp_path)), hub.load(tmp_path).core)
