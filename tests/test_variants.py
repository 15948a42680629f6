"""bench/variants.py: every variant is a recipe with documented overrides; the labels of phrases."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from qkv.data import download
from qkv.errors import QkvError
from qkv.training import recipes
from qkv.training.splits import find_data_file

ROOT = Path(__file__).parents[1]

TREES = """\
(3 (2 A) (4 (4 Fine) (2 film)))
(1 (1 (1 dull) (1 .)) (1 (2 -LRB-) (0 BAD)))
(4 (3 dull) (3 fine))
"""


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("variants")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A few sentences to judge, and nothing fetched yet."""
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("QKV_DATA", str(tmp_path / "data"))
    place = tmp_path / "data" / "cls" / "sentconv"
    place.mkdir(parents=True)
    (place / "stsa.binary.train").write_text("1 never read\n", encoding="utf-8")
    (place / "stsa.binary.dev").write_text("0 -lrb- bad !\n1 what a film\n", encoding="utf-8")
    (place / "stsa.binary.test").write_text("1 'a ... fine film'\n", encoding="utf-8")
    return tmp_path


def test_every_variant_is_a_recipe_and_its_overrides_are_documented(variants: Any) -> None:
    for name, (recipe, overrides) in variants.VARIANTS.items():
        run = variants.configure(name)
        assert (run.name, recipe in recipes.names(), name in recipes.names()) == (name, True, False)
        for page in ("docs/training.md", "docs/training.zh-CN.md"):
            said = (ROOT / page).read_text(encoding="utf-8")
            assert not name.startswith("sst2") or "bench/recipe.py --name sst2_phrases" in said
            command = f"qkv train {recipe} {' '.join(variants.shorten(overrides))}"
            assert name.startswith("sst2") or command in said, command


def test_each_phrase_once_without_neutral_doubtful_and_judged_ones(folders: Path, variants: Any) -> None:
    place = folders / "cache" / "data" / "cls" / "sst_trees" / "train.txt"
    place.parent.mkdir(parents=True)
    place.write_text(TREES, encoding="utf-8")
    found = variants.read_phrases()
    assert isinstance(found.train, list)
    assert sorted(found.train) == [  # "a fine film" and "( bad" are judged, "dull" is called both, the rest neutral
        (".", "negative"), ("dull .", "negative"), ("dull . ( bad", "negative"), ("dull fine", "positive"),
        ("fine", "positive"), ("fine film", "positive"),
    ]  # fmt: skip
    assert found.valid == [("( bad !", "negative"), ("what a film", "positive")]
    assert found.test == [("'a ... fine film'", "positive")]
    assert [text.count(" ") for text, _ in found.train] == [0, 0, 1, 1, 1, 3]  # short ones more often, once on average
    assert found.often is not None
    assert found.often.mean() == pytest.approx(1.0)
    assert found.often / found.often[0] == pytest.approx([1, 1, 2**-0.3, 2**-0.3, 2**-0.3, 4**-0.3])
    (note,) = found.notes
    assert note == ("6 phrases; left out: 3 with the words of a validation or test sentence, 1 with labels of both "
                    "signs")  # fmt: skip


def test_whole_sentences_come_after_spelt_as_phrases_are(folders: Path, variants: Any) -> None:
    found = variants.read_sentences()
    assert (found.train, found.often) == ([("never read", "positive")], None)
    assert found.valid == [("( bad !", "negative"), ("what a film", "positive")]
    run = variants.configure("sst2_sentences")
    assert run.base == "./runs/sst2_phrases"
    with pytest.raises(QkvError, match=r"\./runs/sst2_phrases: no such directory"):
        recipes.train(run, device="cpu")


def test_the_command_is_named_where_the_trees_are_not_there(folders: Path, variants: Any) -> None:
    with pytest.raises(QkvError, match=r"sst_trees.*no such file\. qkv data get sst-trees fetches it"):
        variants.configure("sst2_phrases").splits()


@pytest.mark.needs_data
def test_the_real_trees(variants: Any) -> None:
    try:
        find_data_file("cls", "sst_trees", "train.txt")
        find_data_file("cls", "sentconv", "stsa.binary.dev")
    except QkvError as e:
        pytest.skip(str(e))
    found = variants.read_phrases()
    assert isinstance(found.valid, list)
    assert (len(found.train), len(found.valid), len(found.test)) == (77_076, 872, 1_821)
    assert download.list_sets()["sst-trees"].files[0].path == "cls/sst_trees/train.txt"
