"""Settings that are made in Python are refused as those of a file are: by key, with what was found and is expected."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.cli import main
from qkv.errors import QkvError
from qkv.training.data_files import Data
from qkv.training.own_data import describe_settings
from qkv.training.run import Check, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape


@pytest.mark.parametrize(("made", "message"), [
    (lambda: Settings(optimizer="sgd"), r"training\.optimizer: found 'sgd', expected one of adam, adamw, muon"),
    (lambda: Settings(schedule="cosin"), r"training\.schedule: found 'cosin'.*did you mean 'cosine'\?"),
    (lambda: Settings(lr="0.1"), r"training\.lr: found '0\.1', expected a number"),
    (lambda: Settings(steps=2.5), r"training\.steps: found 2\.5, expected a whole number"),
    (lambda: Shape("transformer"), r"model\.family: found 'transformer', expected one of marian, gpt2"),
    (lambda: Shape(width="64"), r"model\.width: found '64', expected a whole number"),
    (lambda: Vocabulary("wordpiece"), r"tokenizer\.kind: found 'wordpiece', expected one of char, word, bpe"),
    (lambda: Check(tokenize="14a"), r"check\.tokenize: found '14a'"),
    (lambda: Data(tsv="a.tsv", on_bad_row="ignore"), r"data\.on_bad_row: found 'ignore', expected one of error, skip"),
    (lambda: Settings(betas=0.9), r"training\.betas: found 0\.9, expected a list such as"),
    (lambda: Settings(betas=(0.9,)), r"training\.betas: found \[0\.9\], expected a list"),
    (lambda: Settings(lora={"rank": 4}), r"training\.lora: found \{'rank': 4\}, expected Lora"),
    (lambda: Settings(eps=0), r"training\.eps: found 0, expected a number above 0"),
    (lambda: Data(tsv=5), r"data\.tsv: found 5, expected text or a list"),
    (lambda: Data(tsv="a.tsv", valid="5"), r"data\.valid: found '5', expected a number"),
])  # fmt: skip
def test_a_value_that_a_field_cannot_have_is_refused(made: Callable[[], Any], message: str) -> None:
    with pytest.raises(QkvError, match=message):
        made()


def test_numbers_of_numpy_and_whole_ones_for_fractions_are_numbers() -> None:
    s = Settings(steps=np.int64(3), lr=np.float32(0.5), clip=1)  # type: ignore[arg-type]
    assert (s.steps, float(s.lr), s.clip) == (3, 0.5, 1)
    assert dataclasses.replace(Shape(), dropout=None).dropout is None
    assert Data(tsv=[Path("a.tsv")]).tsv == Data(tsv=Path("a.tsv")).tsv == ("a.tsv",)  # type: ignore[arg-type]
    assert Settings(betas=[0.9, 0.99]).betas == (0.9, 0.99)  # type: ignore[arg-type]
    assert Data(tsv="a.tsv").tsv == ("a.tsv",)  # type: ignore[arg-type]


def test_each_setting_has_its_default_and_a_meaning_in_both_languages() -> None:
    found = describe_settings()
    assert {key for key, (_, about) in found.items() if about.to("zh") == about.to("en")} == set()
    assert found["training.tokens"][0] == Settings(steps=1).tokens
    assert found["model.width"][0] == Shape().width


def test_settings_are_listed_by_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--settings", "training.warm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["training.warmup"]["default"] == 0
    assert main(["train", "--settings", "warmpu"]) == 2
    assert "did you mean 'warmup'" in capsys.readouterr().err
