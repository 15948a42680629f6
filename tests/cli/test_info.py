"""`qkv info` prints integers, and says first where sizes were never published."""

import json
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len

import qkv
from qkv.adapt import lora
from qkv.checkpoints.model_dir import modules
from qkv.cli import main


def unpublished() -> list[str]:
    return [f"{n}:{next(iter(m.SIZES))}" for n, m in modules().items() if hasattr(m, "UNPUBLISHED")]


@pytest.mark.parametrize("name", unpublished())
def test_unpublished_sizes_are_marked_in_every_output(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    note = modules()[name.partition(":")[0]].UNPUBLISHED
    assert main(["info", name]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.split(maxsplit=1) == ["note", note]
    assert main(["info", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["note"] == note
    assert main(["show", name]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"# {note}"
    assert qkv.show("gpt2").startswith('"""')


def test_numbers_are_integers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "gpt2:124m", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    keys = ("parameters", "active_parameters", "stored", "kv_bytes_per_token", "weight_bytes", "flops_per_token")
    assert all(type(found[k]) is int for k in keys)
    assert found["parameters"] == 124_439_808
    assert "note" not in found


def test_every_line_of_the_report_but_its_parts_is_in_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "llama:7b", "--lang", "zh"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert [row for row in rows if not any("一" <= sign <= "鿿" for sign in row)] == []
    assert len({cell_len(row[: row.rindex("  ")]) for row in rows if "  " in row}) == 1


def test_adapters_are_looked_at_through_their_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = qkv.load("demo-lm", device="cpu")
    lora.attach(model.core, lora.Lora(2))
    model.base = "demo-lm"
    model.save(tmp_path / "adapters")
    where = str(tmp_path / "adapters")
    assert main(["info", where, "--json"]) == main(["info", "demo-lm", "--json"]) == 0
    theirs, base = map(json.loads, capsys.readouterr().out.splitlines())
    assert theirs.pop("note") == "adapters for demo-lm; counted as loaded, merged into it"
    assert theirs == base
    assert qkv.show(where) == qkv.show("demo-lm")
    assert main(["check", where, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["base"], found["parameters"]) == (True, "demo-lm", base["parameters"])
    assert main(["check", where, "--against", "hf", "--lang", "en"]) == 2
    assert "these are adapters" in capsys.readouterr().err


def test_a_broken_number_in_adapters_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = qkv.load("demo-lm", device="cpu")
    lora.attach(model.core, lora.Lora(2))
    with torch.no_grad():
        next(iter(lora.find_adapters(model.core).values())).a[0, 0] = torch.nan
    model.base = "demo-lm"
    model.save(tmp_path)
    assert main(["check", str(tmp_path), "--json"]) == 1
    assert list(json.loads(capsys.readouterr().out)["not_finite"].values()) == [1]
