"""Text that was packed trains as the same text does, from one folder or several, and goes on exactly."""

import itertools
import json
import re
from pathlib import Path

import pytest
import torch

from qkv.cli import main
from qkv.core.step import Inputs
from qkv.data import shards, sources
from qkv.data.collate import IGNORED
from qkv.errors import QkvError
from qkv.tokenizers.vocabulary import train_vocabulary
from qkv.training import checkpoint, losses, recipes
from qkv.training.assemble import assemble
from qkv.training.data_files import Data

TEXT = "the tea is warm and the soup is cold .\n" * 120
MORE = "a book is old , a song is new .\n" * 120
TOML = """
[data]
shards = ["one", "two"]
weights = [3, 1]
[model]
width = 16
layers = 1
heads = 2
ffn = 32
context = 16
[training]
steps = 6
tokens = 64
precision = "fp32"
schedule = "constant"
warmup = 1
evaluate_every = 3
"""


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two shards of one vocabulary, made by the verb."""
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(TEXT, encoding="utf-8")
    Path("b.jsonl").write_text("".join(json.dumps({"text": x}) + "\n" for x in MORE.splitlines()), encoding="utf-8")
    assert main(["data", "pack", "a.txt", "b.jsonl", "--size", "300", "--out", "both", "--quiet"]) == 0
    for file, name in (("a.txt", "one"), ("b.jsonl", "two")):
        assert main(["data", "pack", file, "--model", "both", "--out", name, "--quiet"]) == 0
    Path("mine.toml").write_text(TOML, encoding="utf-8")
    return tmp_path


def test_packed_text_trains_and_goes_on_bit_for_bit(packed: Path) -> None:
    whole = recipes.train("mine.toml", out="whole", device="cpu")
    assert whole.outcome.steps == 6
    assert whole.model.generate("the tea", max_new_tokens=2).tokens
    recipes.train("mine.toml", overrides=["training.steps=4"], out="parts", device="cpu")
    parts = recipes.train("mine.toml", out="parts", device="cpu", resume=True)
    mine, theirs = (checkpoint.weights(t.model.core) for t in (whole, parts))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert [f.name for f in (packed / "both").iterdir() if f.suffix == ".bin"] == ["tokens.bin"]


def test_other_weights_are_other_data(packed: Path) -> None:
    recipes.train("mine.toml", out="run", device="cpu")
    Path("mine.toml").write_text(TOML.replace("[3, 1]", "[1, 1]"), encoding="utf-8")
    with pytest.raises(QkvError, match=r"data.weights\[0\]: was 0.75, now 0.5"):
        recipes.train("mine.toml", overrides=["training.steps=9"], out="run", device="cpu", resume=True)


def test_a_smoke_run_and_an_estimate_know_shards(packed: Path) -> None:
    assert main(["train", "mine.toml", "--smoke", "--quiet", "--device", "cpu"]) == 0
    assert recipes.estimate("mine.toml", device="cpu").steps == 6


def test_a_model_of_another_vocabulary_is_refused(packed: Path) -> None:
    Path("c.txt").write_text("x y z\n" * 50, encoding="utf-8")
    assert main(["data", "pack", "c.txt", "--size", "260", "--out", "three", "--quiet"]) == 0
    recipes.train("mine.toml", out="run", device="cpu")
    Path("mine.toml").write_text(
        'base = "run"\n' + TOML.replace('"one", "two"]\nweights = [3, 1]', '"three"]'), encoding="utf-8"
    )
    with pytest.raises(QkvError, match=r"another vocabulary \(\d+ tokens\) than the model's \(293\); pack .*run"):
        assemble(recipes.configure("mine.toml"), device="cpu")


def test_a_long_text_comes_in_pieces_that_are_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text(TEXT + "last", encoding="utf-8")
    monkeypatch.setattr(sources, "PIECE", 1000)
    found = list(sources.read_pieces(tmp_path / "a.txt"))
    assert len(found) > 3
    assert "".join(text for text, _ in found) == TEXT + "last"
    assert [end for _, end in found] == [False] * (len(found) - 1) + [True]
    (tmp_path / "b.txt").write_text("\n \n", encoding="utf-8")
    with pytest.raises(QkvError, match="the file is empty"):
        list(sources.read_pieces(tmp_path / "b.txt"))


def test_held_out_shards_that_are_trained_on_are_told(packed: Path) -> None:
    words = "\n".join(f"line {n} of {n * n % 89} tells {n * 7 % 31} things" for n in range(400))
    Path("c.txt").write_text(words, encoding="utf-8")
    Path("d.txt").write_text(words[:9000], encoding="utf-8")
    for file, name in (("c.txt", "three"), ("d.txt", "four")):
        assert main(["data", "pack", file, "--model", "both", "--out", name, "--quiet"]) == 0
    (note,) = Data(shards=("one", "three"), valid_file="four").splits(packed).notes
    assert re.match(r"four: [\d,]+ of [\d,]+ held-out runs of 64 tokens also occur in training, the first at .*three, "
                    r"token 0: the evaluation looks too good", note)  # fmt: skip
    assert Data(shards=("one", "two"), valid_file="four").splits(packed).notes == ()
    found = Data(shards=("one", "three"), valid_file="two", test_file="four").splits(packed)
    assert ["four: " in note for note in found.notes] == [True]
    done = recipes.train("mine.toml", overrides=["data.test_file=four"], out="tested", device="cpu")
    assert done.test["loss"] > 0


WORDS = [("old", "new", "big"), ("cat", "book", "song"), ("warm", "cold")]
SAID = [f"the {a} {b} is {c} ." for a, b, c in itertools.product(*WORDS)]


@pytest.fixture
def sayings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shard of many short texts, each ended."""
    monkeypatch.chdir(tmp_path)
    Path("s.jsonl").write_text("".join(json.dumps({"text": x}) + "\n" for x in SAID * 20), encoding="utf-8")
    assert main(["data", "pack", "s.jsonl", "--size", "280", "--out", "one", "--quiet"]) == 0
    Path("mine.toml").write_text(
        'objective = "documents"\n' + TOML.replace('"one", "two"]\nweights = [3, 1]', '"one"]'), encoding="utf-8"
    )
    return tmp_path


def test_texts_of_a_shard_do_not_see_each_other(sayings: Path) -> None:
    a = assemble(recipes.configure("mine.toml", ["model.context=48", "model.family=llama"]), device="cpu")
    assert a.model.tokenizer
    core, end, several = a.model.core.eval(), a.model.tokenizer.eos_id, 0
    assert end is not None
    for b in [*map(a.plan.make, a.plan.order(0)), *a.valid]:
        assert b.documents is not None
        logits = core.head(losses.states(core, b))
        for row, ids in enumerate(b.target.tolist()):
            at = [0, *(i + 1 for i, token in enumerate(ids) if token == end), len(ids)]
            for begins, ends in itertools.pairwise(at):
                if begins == ends:
                    continue
                alone = b.target[row : row + 1, begins:ends]
                want = core(alone, Inputs()).logits[0]
                assert torch.allclose(logits[row, begins:ends], want, atol=1e-5)
                inside = b.labels[row, begins:ends].tolist()
                assert inside[:-1] == ids[begins + 1 : ends]
                assert (inside[-1] == IGNORED) == (ids[ends - 1] == end), "nobody guesses the next text from this one"
            several += len(at) > 3
        assert b.tokens == int((b.labels != IGNORED).sum())
    assert several


def test_texts_of_a_shard_train_and_go_on_bit_for_bit(sayings: Path) -> None:
    whole = recipes.train("mine.toml", out="whole", device="cpu")
    recipes.train("mine.toml", overrides=["training.steps=4"], out="parts", device="cpu")
    parts = recipes.train("mine.toml", out="parts", device="cpu", resume=True)
    mine, theirs = (checkpoint.weights(t.model.core) for t in (whole, parts))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_shard_whose_texts_have_no_end_is_told(sayings: Path) -> None:
    bare = train_vocabulary(SAID, kind="word", size=60, specials=("<unk>",))
    shards.write_shard(sayings / "bare", (bare.encode(x) for x in SAID * 20), vocabulary=len(bare), save=bare.save)
    with pytest.raises(QkvError, match=r"bare: its vocabulary has no end symbol, .*: objective=text"):
        assemble(recipes.configure("mine.toml", ["data.shards=bare"]), device="cpu")
