"""`qkv info` prints integers, and says first where sizes were never published."""

import json

import pytest

from qkv.cli import main
from qkv.convert.checkpoint import modules


def unpublished() -> list[str]:
    return [f"{n}:{next(iter(m.SIZES))}" for n, m in modules().items() if hasattr(m, "UNPUBLISHED")]


@pytest.mark.parametrize("name", unpublished())
def test_unpublished_sizes_are_marked_in_text_and_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    note = modules()[name.partition(":")[0]].UNPUBLISHED
    assert main(["info", name]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.split(maxsplit=1) == ["note", note]
    assert main(["info", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["note"] == note


def test_numbers_are_integers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "gpt2:124m", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    keys = ("parameters", "active_parameters", "stored", "kv_bytes_per_token", "weight_bytes", "flops_per_token")
    assert all(type(found[k]) is int for k in keys)
    assert found["parameters"] == 124_439_808
    assert "note" not in found
