"""Runs over your own data: what a TOML file says, what is typed beside it, and files that need no TOML file."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qkv import cli
from qkv.data import shards
from qkv.data.labelled_rows import read_labelled_rows
from qkv.errors import QkvError
from qkv.training import assemble, compatibility, recipes
from qkv.training.data_files import Data

PAIRS = [(f"{a} {b}", f"{b.upper()} {a.upper()}") for a in "abcdef" for b in "uvwxyz"]
SMALL = 'training.precision="fp32"'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same 36 pairs in every form, and a TOML file."""
    written = {
        "a.en": [a for a, _ in PAIRS], "a.fr": [b for _, b in PAIRS], "a.tsv": [f"{a}\t{b}" for a, b in PAIRS],
        "talks.jsonl": [json.dumps({"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]})
                        for a, b in PAIRS],
        "pairs.jsonl": [json.dumps({"prompt": a, "completion": b}) for a, b in PAIRS],
        "labels.jsonl": [json.dumps({"text": a, "label": b[0]}) for a, b in PAIRS],
        "texts.jsonl": [json.dumps({"text": f"{a}\n{b}"}) for a, b in PAIRS], "book.txt": [a for a, _ in PAIRS],
        "mine.toml": ["[data]", 'tsv = "a.tsv"', "valid = 6"],
    }  # fmt: skip
    for name, lines in written.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path


def test_what_is_typed_changes_every_part_of_a_file(folder: Path) -> None:
    run = recipes.configure(folder / "mine.toml", ["data.valid=3", "data.columns=[1, 0]", "model.width=32"])
    splits = run.splits()
    assert (len(splits.valid), run.model.width) == (3, 32)
    assert {*list(splits.train), *list(splits.valid)} == {(b, a) for a, b in PAIRS}  # type: ignore[arg-type]
    assert len(recipes.configure(folder / "mine.toml").splits().valid) == 6
    assert recipes.configure(folder / "mine.toml", ["data.text=book.txt", "data.tsv="]).model.family == "gpt2"
    assert recipes.configure(folder / "mine.toml", ["objective=labels"]).training.metric == "label_accuracy"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["data.vaild=3"], r"^data\.vaild: unknown key; did you mean 'valid'"),
        (["data=3"], "^data=3: names a part"),
        (["valid=3"], "did you mean 'data.valid'"),
        (["data.valid=many"], "^data.valid: found 'many', expected a number"),
    ],
)
def test_a_word_that_is_wrong_is_told_without_the_file(folder: Path, words: list[str], told: str) -> None:
    with pytest.raises(QkvError, match=told):
        recipes.configure(folder / "mine.toml", words)


def test_what_is_wrong_in_the_file_is_told_with_it(folder: Path) -> None:
    for text, told in (("data = 3\n", r"bad\.toml: data: found 3, expected keys in it such as data\.source"),
                       ("training = 3\n[data]\n", r"bad\.toml: training: found 3, expected keys")):  # fmt: skip
        (folder / "bad.toml").write_text(text, encoding="utf-8")
        with pytest.raises(QkvError, match=told):
            recipes.configure(folder / "bad.toml", ["model.width=32"])


def test_what_a_file_names_is_looked_for_beside_it_first(folder: Path) -> None:
    (folder / "first").mkdir()
    for name in ("mine", "else"):
        of = "first" if name == "mine" else "second"
        text = f'base = "{of}"\n[tokenizer]\nof = "{of}"\nmerges = "a.en"\n[data]\ntsv = "a.tsv"\n'
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    run = recipes.configure(folder / "mine.toml")
    assert (run.base, run.tokenizer.of) == (str(folder / "first"),) * 2
    assert run.tokenizer.merges == str(folder / "a.en")
    run = recipes.configure(folder / "else.toml")  # a bundled name, or one of a hub
    assert (run.base, run.tokenizer.of) == ("second", "second")


def test_a_recipe_reads_its_own_data() -> None:
    with pytest.raises(QkvError, match="data: unknown key; a recipe reads its own data"):
        recipes.configure("demo", ["data.valid=3"])


@pytest.mark.parametrize(
    ("file", "words", "ends"),
    [
        ("", [], (0, 200)), ("", ["training.steps=7"], (0, 7)), ("steps = 5", [], (0, 5)), ("epochs = 3", [], (3, 0)),
        ("steps = 5", ["training.steps=7"], (0, 7)), ("epochs = 3", ["training.steps=7"], (3, 7)),
        ("", ["training.steps=7", "training.epochs=2"], (2, 7)),
    ],
)  # fmt: skip
def test_the_usual_epochs_end_no_run_that_has_an_end(
    folder: Path, file: str, words: list[str], ends: tuple[int, int]
) -> None:
    with (folder / "mine.toml").open("a", encoding="utf-8") as toml:
        toml.write(f"[training]\n{file}\n")
    training = recipes.configure(folder / "mine.toml", words).training
    assert (training.epochs, training.steps) == ends


@pytest.mark.parametrize(
    ("files", "data", "objective", "family"),
    [
        (["a.en", "a.fr"], Data(source="a.en", target="a.fr"), "", "marian"),
        (["a.tsv"], Data(tsv="a.tsv"), "", "marian"),
        (["book.txt"], Data(text="book.txt"), "", "gpt2"),
        (["talks.jsonl"], Data(messages="talks.jsonl"), "", "gpt2"),
        (["texts.jsonl"], Data(text="texts.jsonl"), "", "gpt2"),
        (["pairs.jsonl"], Data(jsonl="pairs.jsonl", keys=("prompt", "completion")), "", "marian"),
        (["labels.jsonl"], Data(jsonl="labels.jsonl", keys=("text", "label")), "labels", "bert"),
    ],
)
def test_files_say_what_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], data: Data, objective: str, family: str
) -> None:
    monkeypatch.chdir(folder)
    run = recipes.configure(files[0], [*files[1:], "model.layers=2"])
    assert run.data
    assert replace(run.data, valid=None) == data
    assert (run.objective, run.model.family, run.model.layers) == (objective, family, 2)
    assert run.name == Path(files[0]).stem
    small = recipes.configure(files[0], files[1:], smoke=True)
    assert (
        assemble.assemble(small, device="cpu").objective
        is compatibility.OBJECTIVES[
            objective or {"marian": "pairs", "gpt2": "chat" if data.messages else "text"}[family]
        ]
    )


def test_keys_that_are_typed_say_which_texts_are_pairs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    talk = {"messages": [{"role": "assistant", "content": "hm"}], "text": "hm", "q": "one", "r": "un"}
    Path("all.jsonl").write_text(f"{json.dumps(talk)}\n", encoding="utf-8")
    run = recipes.configure("all.jsonl", ['data.keys=["q", "r"]', "data.valid=0"])
    assert (run.data and run.data.jsonl, run.objective) == (("all.jsonl",), "")
    assert run.splits().train == [("one", "un")]
    assert recipes.configure("labels.jsonl", ['data.keys=["text", "label"]']).objective == "labels"


def test_a_bad_first_row_is_left_out_where_one_says_so(folder: Path) -> None:
    good = (folder / "labels.jsonl").read_text(encoding="utf-8")
    for bad, told in (("{oops", r"bad\.jsonl:2: not JSON"), ('{"q": 1}', r"bad\.jsonl:2: no key 'text'")):
        (folder / "bad.jsonl").write_text(f"\n{bad}\n{good}", encoding="utf-8")
        with pytest.raises(QkvError, match=told):
            recipes.configure(folder / "bad.jsonl")
        run = recipes.configure(folder / "bad.jsonl", ["data.on_bad_row=skip"])
        assert (run.objective, len(run.splits().notes)) == ("labels", 1)
    (folder / "bad.jsonl").write_text("{oops\n", encoding="utf-8")
    with pytest.raises(QkvError, match=r"all 1 rows are bad; the first: .*bad\.jsonl:1: not JSON"):
        recipes.configure(folder / "bad.jsonl", ["data.on_bad_row=quarantine"])


def test_a_folder_of_token_shards_is_data_too(folder: Path) -> None:
    shards.write_shard(folder / "packed", [[1, 2, 3]], vocabulary=9, save=lambda place: None)
    assert recipes.configure(folder / "packed").data == Data(shards=(str(folder / "packed"),))


def test_of_json_lines_the_texts_are_read_with_a_blank_line_between(folder: Path) -> None:
    with (folder / "texts.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"txt": "x"}\n')
    with pytest.raises(QkvError, match=r"texts\.jsonl:37: no key 'text'"):
        recipes.configure(folder / "texts.jsonl").splits()
    splits = recipes.configure(folder / "texts.jsonl", ["data.on_bad_row=skip"]).splits()
    assert isinstance(splits.train, str)
    assert isinstance(splits.valid, str)
    assert (splits.train + splits.valid).split("\n\n") == [f"{a}\n{b}" for a, b in PAIRS]
    assert "1 bad row" in splits.notes[0]


@pytest.mark.parametrize(
    ("name", "more", "told"),
    [
        ("bok.txt", [], "did you mean 'book.txt'"),
        ("a.en", ["a.fr", "book.txt"], "found 3 files, expected two parallel ones"),
        ("a.tsv", ["pairs.jsonl"], r"^found files of different kinds: a\.tsv .*, pairs\.jsonl .*; use one format"),
        ("a.en", ["a.tsv"], r"^found files of different kinds: a\.en"),
        ("packed", ["book.txt"], r"^packed: found no file of data"),
        ("odd.jsonl", [], r"odd\.jsonl: found the keys x, y, z"),
        ("bok", [], r"known: .*; or a TOML file, or your data: \*\.txt"),
    ],
)
def test_files_that_do_not_say_it_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, more: list[str], told: str
) -> None:
    monkeypatch.chdir(folder)
    Path("odd.jsonl").write_text('{"x": "a", "y": "b", "z": "c"}\n', encoding="utf-8")
    Path("packed").mkdir()
    with pytest.raises(QkvError, match=told):
        recipes.configure(name, more).splits()


def test_a_run_of_files_alone_learns_and_says_which(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    words = ["model.width=16", "model.layers=1", "model.heads=2", "model.ffn=32", "training.steps=2", SMALL]
    assert cli.main(["train", "a.en", "a.fr", *words, "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["directory"] == str(Path("runs", "a"))
    kept = json.loads(Path("runs/a/train/run.json").read_text(encoding="utf-8"))
    assert (kept["data"]["source"], kept["data"]["target"]) == (["a.en"], ["a.fr"])


@pytest.mark.parametrize("words", [["base=demo-lm"], ["objective=chat"], ["base=demo-lm", "objective=chat"]])
def test_pairs_that_a_decoder_learns_are_questions_and_answers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(folder)
    run = recipes.configure("pairs.jsonl", words)
    assert str(run.about[0]) == "a chat model from 36 pairs: prompt asks, completion answers"
    pairs = assemble.assemble(run, device="cpu")
    talking = recipes.configure("talks.jsonl", words)
    assert (run.training.optimizer, run.training.lr) == (talking.training.optimizer, talking.training.lr)
    talks = assemble.assemble(talking, device="cpu")
    assert pairs.objective is compatibility.OBJECTIVES["chat"]
    assert pairs.splits.kind == "conversations"
    assert {repr(row) for row in (*pairs.splits.train, *pairs.splits.valid)} == {  # type: ignore[misc]
        repr(row) for row in (*talks.splits.train, *talks.splits.valid)  # type: ignore[misc]
    }


@pytest.mark.parametrize("name", ["list.json", "alpaca.json", "turns.json", "fasttext.txt", "reviews"])
def test_other_tools_data_train_as_they_are(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(folder)
    texts = [(f"{a} {b}", "up" if a < "d" else "down") for a in "abcdef" for b in "uvwxyz"]
    kept = {
        "list.json": [{"text": a, "label": b} for a, b in texts],
        "alpaca.json": [{"instruction": "Say", "input": a, "output": b} for a, b in PAIRS],
        "turns.json": [{"conversations": [{"from": "human", "value": a}, {"from": "gpt", "value": b}]}
                       for a, b in PAIRS],
    }  # fmt: skip
    for file, rows in kept.items():
        Path(file).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    Path("fasttext.txt").write_text("".join(f"__label__{b} {a}\n" for a, b in texts), encoding="utf-8")
    for n, (text, label) in enumerate(texts):
        Path("reviews", label).mkdir(parents=True, exist_ok=True)
        Path("reviews", label, f"{n}.txt").write_text(text, encoding="utf-8")
    asked = ["objective=labels"] if name == "reviews" else []
    run = recipes.configure(name, [*asked, "training.steps=2"])
    done = recipes.train(run, out=folder / "run", device="cpu")
    assert done.outcome.steps == 2
    assert done.model.labels == (() if name in ("alpaca.json", "turns.json") else ("down", "up"))
    if not done.model.labels:
        splits = run.splits()
        first = next(row for row in (*splits.train, *splits.valid) if row[1]["content"] == "U A")  # type: ignore[misc]
        assert first[0]["content"] == ("Say\n\na u" if name == "alpaca.json" else "a u")


@pytest.mark.parametrize("name", ["fasttext.txt", "reviews"])
def test_what_labels_were_learnt_from_is_judged_in_the_same_form(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(folder)
    labels = ("bad", "good")
    Path("fasttext.txt").write_text("__label__good fine\n__label__bad fine\n", encoding="utf-8")
    for label in labels:
        Path("reviews", label).mkdir(parents=True, exist_ok=True)
        Path("reviews", label, "1.txt").write_text("fine", encoding="utf-8")
    rows = [row for _, row in read_labelled_rows(Path(name), labels)]
    assert rows == ([("fine", "bad"), ("fine", "good")] if name == "reviews" else [("fine", "good"), ("fine", "bad")])
    Path("fasttext.txt").write_text("__label__good __label__bad fine\n", encoding="utf-8")
    with pytest.raises(QkvError, match=r"fasttext\.txt:1: found several labels"):
        [*read_labelled_rows(Path("fasttext.txt"), labels)]
