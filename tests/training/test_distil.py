"""Pairs that a translator makes: which side, how many, in which form and cut; nothing is lost or written over."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import qkv
from qkv.errors import QkvError
from qkv.paths import bundled_dir
from qkv.tasks.types import Result
from qkv.training import distil, recipes
from qkv.training.data_files import Data
from qkv.training.distil import Teacher, write_pairs

PAIRS = [("我爱学习。", "I love learning."), ("他喝茶。", "He drinks tea."), ("妈妈买了书。", "Mum bought a book.")]


@pytest.fixture(scope="module")
def model() -> Any:
    if not (bundled_dir() / "demo").is_dir():
        pytest.skip("demo is not bundled")
    return qkv.load("demo")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    put("p.tsv", *("\t".join(pair) for pair in PAIRS))
    put("wide.tsv", *(f"{b}\tnote\t{a}" for a, b in PAIRS))
    put("p.jsonl", *(json.dumps({"q": a, "r": b, "n": 1}) for a, b in PAIRS))
    put("p.zh", *(a for a, _ in PAIRS))
    put("p.en", *(b for _, b in PAIRS))
    return tmp_path


def put(name: str, *lines: str) -> None:
    Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def lines(name: str) -> list[str]:
    return Path(name).read_text(encoding="utf-8").splitlines()


def backwards(model: Any) -> Any:
    """A stand-in for a model of the other direction: it upper-cases what it reads, and so shows what that was."""

    def translate(texts: list[str], **how: Any) -> list[Result]:
        said = [t.upper() for t in texts]
        return [Result(t, model.tokenizer.encode(t, special=False), [], "stop", {}) for t in said]

    return SimpleNamespace(translate=translate, tokenizer=model.tokenizer, special=model.special)


def test_each_source_gets_what_the_model_says_of_it_alone(model: Any, folder: Path) -> None:
    write_pairs(Teacher(model, beam=4), Data(tsv=("p.tsv",)), Path("out"))
    alone = [model.translate(a, beam=4, length_penalty=1.0).text for a, _ in PAIRS]
    assert lines("out/p.tsv") == [f"{a}\t{text}" for (a, _), text in zip(PAIRS, alone, strict=True)]


def test_the_n_best_are_rows_of_their_own_the_best_first(model: Any, folder: Path) -> None:
    (made,) = write_pairs(Teacher(model, nbest=3), Data(tsv=("p.tsv",)), Path("out"))
    found = model.translate(PAIRS[1][0], beam=5, length_penalty=1.0, nbest=3)
    want = [f"{PAIRS[1][0]}\t{r.text}" for r in (found, *found.others)]
    assert [row for row in lines("out/p.tsv") if row.startswith(PAIRS[1][0])] == list(dict.fromkeys(want))
    assert (made.read, made.written, made.without) == (3, len(lines("out/p.tsv")), 0)


@pytest.mark.parametrize("writes", ["target", "source"])
@pytest.mark.parametrize(
    ("data", "pair"),
    [
        (Data(tsv=("p.tsv",)), lambda a, b: f"{a}\t{b}"),
        (Data(tsv=("wide.tsv",), columns=(2, 0)), lambda a, b: f"{b}\t\t{a}"),
        (Data(jsonl=("p.jsonl",), keys=("q", "r")), lambda a, b: json.dumps({"q": a, "r": b}, ensure_ascii=False)),
    ],
)
def test_files_keep_their_form_and_the_other_side(
    model: Any, folder: Path, data: Data, pair: Any, writes: Any
) -> None:  # fmt: skip
    write_pairs(Teacher(backwards(model), writes=writes), data, Path("out"))
    want = [(a, a.upper()) if writes == "target" else (b.upper(), b) for a, b in PAIRS]
    assert lines(f"out/{data.name}") == [pair(a, b) for a, b in want]
    again = [row for _, row in next(data.split_files()).read_rows(Path("out"), distil.BadRowPolicy())]
    assert again == want


def test_parallel_files_stay_parallel(model: Any, folder: Path) -> None:
    put("more.zh", "他喝茶。")
    put("more.en", "tea")
    both = Data(source=("p.zh", "more.zh"), target=("p.en", "more.en"))
    one, two = write_pairs(Teacher(backwards(model), writes="source"), both, Path("out"))
    assert (lines("out/p.zh"), lines("out/p.en")) == ([b.upper() for _, b in PAIRS], [b for _, b in PAIRS])
    assert (one.files, one.read, two.read) == ((Path("out/p.zh"), Path("out/p.en")), 3, 1)
    assert (lines("out/more.zh"), lines("out/more.en")) == (["TEA"], ["tea"])


def test_what_the_model_cannot_read_or_end_makes_no_pair_and_is_counted(model: Any, folder: Path) -> None:
    put("odd.tsv", "我爱学习。\tI love learning.", "龘喝茶。\tYes.")
    (made,) = write_pairs(Teacher(model), Data(tsv=("odd.tsv",)), Path("out"))
    assert [row.partition("\t")[0] for row in lines("out/odd.tsv")] == ["我爱学习。"]
    assert (made.read, made.written, made.without) == (2, 1, 1)
    endless = Result("on and on", [], [], "length", {})
    assert Teacher(model).texts(endless) == []
    assert Teacher(model).texts(Result(" ", [], [], "stop", {})) == []
    half = model.tokenizer.encode("half a \ufffd", special=False)
    assert Teacher(model).texts(Result("half a \ufffd", half, [], "stop", {})) == []
    ids = model.tokenizer.encode("I love", special=False)
    twice = Result("I\tlove\n", ids, [], "stop", {}, others=(Result("I love", ids, [], "stop", {}),))
    assert Teacher(model).texts(twice) == ["I love"]


def test_nothing_is_written_over_nor_begun_when_a_later_row_is_bad(model: Any, folder: Path) -> None:
    put("bad.tsv", "我爱学习。\tI love learning.", "他喝茶。")
    with pytest.raises(QkvError, match=r"bad\.tsv:2"):
        write_pairs(Teacher(model), Data(tsv=("p.tsv", "bad.tsv")), Path("out"))
    assert not Path("out").exists()
    write_pairs(Teacher(backwards(model)), Data(tsv=("p.tsv",)), Path("out"))
    with pytest.raises(QkvError, match=r"p\.tsv: exists already"):
        write_pairs(Teacher(model), Data(tsv=("p.tsv",)), Path("out"))
    with pytest.raises(QkvError, match="expected pairs"):
        write_pairs(Teacher(model), Data(text=("p.zh",)), Path("else"))
    Path("zh").mkdir()
    put("zh/p.tsv", "我爱学习。\tI love learning.")
    with pytest.raises(QkvError, match="two of the files"):
        write_pairs(Teacher(model), Data(tsv=("p.tsv", "zh/p.tsv")), Path("new"))
    silent = SimpleNamespace(translate=lambda texts, **how: [Result("", [], [], "length", {}) for _ in texts])
    with pytest.raises(QkvError, match=r"p\.tsv: the model finished no translation of 3 texts"):
        write_pairs(Teacher(silent), Data(tsv=("p.tsv",)), Path("new"))  # type: ignore[arg-type]
    assert not Path("new").exists()
    put("else.tsv", "我爱学习。\tI love learning.", "他喝茶。")
    write_pairs(Teacher(backwards(model)), Data(tsv=("else.tsv",), on_bad_row="quarantine"), Path("out"))
    assert (len(lines("out/else.tsv")), len(lines("out/quarantine.jsonl"))) == (1, 1)


def test_a_model_of_the_other_direction_is_doubted_at_once_and_once_a_file(
    model: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distil, "BATCH", 2)
    heard = list[tuple[str, float, float]]()
    copier = backwards(model)
    copier.translate = lambda texts, **how: [Result(t, model.tokenizer.encode(t, special=False), [], "stop", {})
                                             for t in texts]  # fmt: skip
    write_pairs(Teacher(copier), Data(tsv=("p.tsv",)), Path("out"), doubt=lambda *what: heard.append(what))
    assert [(name, read) for name, _, read in heard] == [("p.tsv", pytest.approx(100.0))]
    assert heard[0][1] < 50
    heard.clear()
    teacher = Teacher(copier, writes="source")
    write_pairs(teacher, Data(tsv=("p.tsv",)), Path("back"), doubt=lambda *what: heard.append(what))
    assert [read for _, _, read in heard] == [pytest.approx(100.0)]
    heard.clear()
    write_pairs(Teacher(model), Data(tsv=("p.tsv",)), Path("right"), doubt=lambda *what: heard.append(what))
    assert not heard


def test_likeness_is_of_the_best_text_and_leaves_out_what_was_not_written() -> None:
    given = [("abc def", "ABC DEF"), ("ghi", "GHI"), ("xyz", "XYZ")]
    found = [[("abc def", "ABC DEF"), ("abc def", "nothing")], [], [("xyz", "XYZ")]]
    assert distil.compare_pairs(given, found, "target") == (pytest.approx(100.0), pytest.approx(0.0))
    turned = [[(b, a) for a, b in many] for many in found]
    back = [(b, a) for a, b in given]
    assert distil.compare_pairs(back, turned, "source") == (pytest.approx(100.0), pytest.approx(0.0))
    assert distil.compare_pairs(given, [[], [], []], "target") == (0.0, 0.0)


def test_cut_text_is_written_as_it_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"a@@ b {'c@@ ' * (i % 3)}d x{i}\tlo@@ w er@@ {'er@@ ' * (i % 4)}st y{i % 5}" for i in range(60)]
    put("cut.tsv", *rows)
    small = ["model.width=16", "model.layers=1", "model.heads=2", "model.ffn=64", "model.context=32", "data.valid=4",
             "tokenizer.kind=split", "tokenizer.size=200", "training.tokens=256", "training.precision=fp32",
             "training.steps=60", "training.evaluate_every=60", "training.lr=0.01", "training.warmup=5"]  # fmt: skip
    recipes.train(recipes.configure("cut.tsv", small), out="m")
    model = qkv.load("m")
    write_pairs(Teacher(model, nbest=2), Data(tsv=("cut.tsv",)), Path("out"))
    written = [row.partition("\t")[2] for row in lines("out/cut.tsv")]
    assert any("@@ " in text for text in written)
    known = {piece for row in rows for piece in row.replace("\t", " ").split()}
    assert {piece for text in written for piece in text.split()} <= known  # so each piece has its own id again
    found = model.translate(rows[0].partition("\t")[0], beam=5, length_penalty=1.0)
    assert model.tokenizer.encode(written[0], special=False) == found.tokens[:-1]


def test_a_translation_is_read_again_as_a_target() -> None:
    sides = list[str]()

    def encode(texts: list[str], *, special: bool, side: str) -> list[list[int]]:
        sides.append(side)
        return [[len(text)] for text in texts]  # "lower" is one token, which is not what was written

    names = {7: "lo@@", 8: "wer"}
    fake = SimpleNamespace(token=names.__getitem__, encode_batch=encode)
    model: Any = SimpleNamespace(tokenizer=fake, special=SimpleNamespace(eos=(1,)))
    teacher = Teacher(model)
    assert teacher.format_text(Result("lower", [7, 8, 1], [], "stop", {})) == "lower"  # nor are the pieces read so
    assert teacher.format_text(Result("lower", [8, 1], [], "stop", {})) == "lower"
    assert set(sides) == {"target"}


def test_progress_is_told_and_batches_do_not_change_what_is_written(
    model: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = list[tuple[int, int]]()
    monkeypatch.setattr(distil, "BATCH", 2)
    write_pairs(Teacher(backwards(model)), Data(tsv=("p.tsv", "wide.tsv")), Path("out"), lambda *n: heard.append(n))
    assert heard == [(2, 6), (3, 6), (5, 6), (6, 6)]
    assert len(lines("out/p.tsv")) == 3
