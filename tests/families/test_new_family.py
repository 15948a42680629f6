"""A family is one file: that of the guide is thrown into a folder, found, tested, shown, and taken away again.

Its text and its oracle's are those of src/qkv/families/README.md, so the guide is tested with them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from qkv import cost, families, hub
from qkv.checkpoints import model_dir
from qkv.cli import main
from qkv.errors import QkvError

pytest.importorskip("transformers")
HERE, SEED = Path(__file__).parent, 7  # with two groups for four heads, biases and a head of its own
GUIDE = (Path(families.__file__).with_name("README.md")).read_text(encoding="utf-8")
FAMILY, ORACLE = (textwrap.dedent(t) for t in re.findall(r"^ *```python\n(.*?)^ *```$", GUIDE, re.M | re.S))
NAME = "ernie4_5"


@pytest.fixture
def thrown_in(tmp_path):
    """A folder of families beside our own, with the guide's file in it; nothing of it is left behind."""
    folder = tmp_path / "families"
    folder.mkdir()
    (folder / f"{NAME}.py").write_text(FAMILY, encoding="utf-8")
    families.__path__.append(str(folder))
    model_dir.modules.cache_clear()
    yield folder
    families.__path__.remove(str(folder))
    model_dir.modules.cache_clear()
    sys.modules.pop(f"qkv.families.{NAME}", None)
    vars(families).pop(NAME, None)


@pytest.fixture
def oracle(tmp_path):
    """transformers' model as the guide draws it, saved; the tests' own oracles stay as they are."""
    own = {}
    exec(ORACLE, own)
    model = own["draw"](NAME, SEED)
    model.save_pretrained(tmp_path / "theirs")
    model.set_attn_implementation("eager")
    return model


def gap(oracle, folder) -> float:
    """The largest difference of logits, as a share of their spread."""
    ids = torch.randint(3, oracle.config.vocab_size, (2, 13), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = oracle(ids).logits
        return ((hub.load(folder)(ids).logits - want).abs().max() / want.std()).item()


@pytest.mark.usefixtures("thrown_in")
def test_it_is_found_loaded_equal_shown_counted_and_written(oracle, tmp_path, capsys):
    assert NAME in model_dir.modules()
    theirs = tmp_path / "theirs"
    assert gap(oracle, theirs) <= 3e-5
    model = hub.load(theirs)
    assert cost.count(model.spec).parameters == sum(p.numel() for p in oracle.parameters())
    for name in (NAME, str(theirs)):
        assert main(["show", name]) == 0
        assert "class Attention" in capsys.readouterr().out
    assert main(["info", f"{NAME}:0.3b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == 360_748_032
    assert main(["check", str(theirs), "--against", "hf", "--lang", "en"]) == 0
    assert capsys.readouterr().out.count("✓") == 3
    model.config = None  # as for a model that we built: some family says it, and this one when it is asked
    model.save(tmp_path / "ours", family=NAME)
    assert gap(oracle, tmp_path / "ours") <= 3e-5


def test_before_and_after_nobody_knows_it(oracle, tmp_path, request):
    known = model_dir.modules()
    with pytest.raises(QkvError, match="model_type is 'ernie4_5'"):
        hub.load(tmp_path / "theirs")
    request.getfixturevalue("thrown_in")
    assert set(model_dir.modules()) - set(known) == {NAME}


def test_nothing_was_left_behind():
    assert NAME not in model_dir.modules()
    assert f"qkv.families.{NAME}" not in sys.modules
    assert not hasattr(families, NAME)
    assert len(families.__path__) == 1


@pytest.mark.parametrize(("right", "wrong"), [
    ('pairs="interleaved"', 'pairs="half"'), ("{q,k,v,out}  ", "{q,v,k,out}  "),
    ("{gate,up,down}  ", "{up,gate,down}  "),
])  # fmt: skip
def test_a_mistake_in_the_file_shows(right, wrong, oracle, thrown_in, tmp_path):
    assert right in FAMILY
    (thrown_in / f"{NAME}.py").write_text(FAMILY.replace(right, wrong), encoding="utf-8")
    assert gap(oracle, tmp_path / "theirs") > 1e-2


@pytest.mark.parametrize(("right", "wrong", "says"), [
    ("o_proj}", "o_prj}", "did you mean 'model.layers.0.self_attn.o_proj.weight'"),
    ('c.flag("use_bias", False)', "True", "use_bias = True"),
    ("head                            lm_head\n", "", r"Never read \(1\): lm_head.weight"),
])  # fmt: skip
@pytest.mark.usefixtures("oracle")
def test_what_the_file_leaves_out_is_told(right, wrong, says, thrown_in, tmp_path):
    assert right in FAMILY
    (thrown_in / f"{NAME}.py").write_text(FAMILY.replace(right, wrong), encoding="utf-8")
    with pytest.raises(QkvError, match=says):
        hub.load(tmp_path / "theirs")


RUN = "from qkv import families; families.__path__.append({!r}); import pytest, sys; sys.exit(pytest.main())"
INI = "[pytest]\nmarkers =\n  nightly\n  parity\npythonpath = .\naddopts = --import-mode=importlib -m 'not nightly'\n"


def test_every_family_test_runs_over_it(thrown_in, tmp_path):
    tests = tmp_path / "tests"  # a copy, in which the guide's oracle lies beside the others
    tests.mkdir()
    for name in ("conftest.py", "test_families.py", "test_capable.py"):
        shutil.copy(HERE / name, tests)
    shutil.copytree(HERE.parent / "support", tests / "support")
    (tests / "support" / f"oracles_{NAME}.py").write_text(ORACLE, encoding="utf-8")
    (tests / "pytest.ini").write_text(INI, encoding="utf-8")
    env = {key: value for key, value in os.environ.items() if key != "QKV_RECORD"}
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(str(thrown_in)), "-q", "-k", NAME, "-c", "pytest.ini", "."],
        capture_output=True, text=True, check=False, cwd=tests, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 20, done.stdout[-3000:]
