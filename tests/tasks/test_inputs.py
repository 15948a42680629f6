"""What a forward pass is given: numbers outside a table, other shapes and kinds, and what a model does not read."""

import re
from typing import Any

import pytest
import torch

import qkv

IDS = torch.tensor([[3, 4, 5], [6, 7, 8]])
REAL = torch.ones(2, 3, dtype=torch.bool)


@pytest.fixture(scope="module")
def models() -> dict[str, qkv.Model]:
    return {name: qkv.load(name) for name in ("demo", "demo-lm", "demo-bert", "demo-moe")}


@pytest.mark.parametrize(("name", "given", "says"), [
    ("demo-lm", {"ids": IDS.float()}, "ids: found [2, 3] of float32, expected whole numbers"),
    ("demo-lm", {"ids": IDS[0]}, "one row of ids is ids[None]"),
    ("demo-lm", {"ids": IDS - 4}, "ids: found the number -1, expected 0 to"),
    ("demo-lm", {"ids": IDS + 10**6}, "ids: found the number 1000008, expected 0 to"),
    ("demo-lm", {"ids": IDS[:, :0]}, "ids: found [2, 0]"),
    ("demo-lm", {"ids": IDS, "padding": REAL.long()}, "ones and zeros become so by .bool()"),
    ("demo-lm", {"ids": IDS, "padding": REAL[:, :2]}, "padding: found [2, 2] of bool, expected [2, 3]"),
    ("demo-lm", {"ids": IDS, "prefix": torch.tensor([1, 1])}, "prefix: this model is no prefix decoder"),
    ("demo-lm", {"ids": IDS, "segments": IDS * 0}, "segments: this model does not tell texts apart"),
    ("demo-bert", {"ids": IDS, "segments": IDS}, "segments: found the number 8"),
    ("demo-moe", {"ids": IDS, "prefix": torch.tensor([1, 4])}, "prefix: found the number 4, expected 0 to 3"),
    ("demo-moe", {"ids": IDS, "prefix": torch.tensor(1)}, "prefix: found"),
    ("demo", {"source": IDS, "target": IDS[:1]}, "source: found 2 rows, expected 1 as in target"),
    ("demo", {"source": IDS + 10**6, "target": IDS}, "source: found the number"),
])  # fmt: skip
def test_what_a_pass_cannot_read_is_named(
    name: str, given: dict[str, Any], says: str, models: dict[str, qkv.Model]
) -> None:
    with pytest.raises(qkv.QkvError, match=re.escape(says)):
        models[name](**given)


def test_what_it_reads_passes(models: dict[str, qkv.Model]) -> None:
    assert models["demo-lm"](IDS, padding=REAL).logits.shape[:2] == (2, 3)
    assert models["demo-moe"](IDS, prefix=torch.tensor([0, 3])).logits.shape[:2] == (2, 3)
    assert models["demo"](source=IDS, target=IDS[:, :1], padding=REAL).logits.shape[:2] == (2, 1)


def test_a_special_id_beyond_the_vocabulary_is_told(models: dict[str, qkv.Model]) -> None:
    from qkv.tasks.types import SpecialTokens

    with pytest.raises(qkv.QkvError, match="special: eos: found 1000000, expected"):
        qkv.Model(models["demo-lm"].core, special=SpecialTokens(eos=(10**6,)))
