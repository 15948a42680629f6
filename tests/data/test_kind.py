"""What files hold is found in them: little files of every kind, Chinese and English; their names prove nothing."""

import bz2
import gzip
import json
import random
import sys
import zlib
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from qkv import cli
from qkv.data import columns, hf_datasets
from qkv.data.bad_rows import BadRowPolicy
from qkv.data.formats import sample_lines
from qkv.data.kind import find_kind
from qkv.data.sources import read_document, read_folder_rows, read_tsv_rows
from qkv.errors import QkvError
from qkv.training import recipes

ZH = [f"{a}{b}{c}很好。" for a in "我你他她书茶猫狗天" for b in "我你他她书茶猫" for c in "喜看听"]
EN = [f"{a} {b} {c} is quite fine."
      for a in ("I", "you", "he", "we", "book", "tea", "cat", "dog", "sky") for b in "abcdefg" for c in "xyz"]
RATED = ("好评", "差评")
TALK = [{"role": "user", "content": "你好"}, {"role": "assistant", "content": "hello"}]


def table(*columns: list[str], mark: str = "\t", header: str = "") -> str:
    return (header and f"{header}\n") + "".join(f"{mark.join(row)}\n" for row in zip(*columns, strict=True))


def lines(*rows: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def cycle(labels: "tuple[str, ...] | list[str]", texts: list[str] = EN) -> list[str]:
    return [labels[i % len(labels)] for i in range(len(texts))]


IDS = [str(i) for i in range(len(EN))]
CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("labels.txt", table(ZH, cycle(RATED)), "labels", {"columns": [0, 1]}),
    ("labels.tsv", table(EN, cycle(("pos", "neg", "neutral"))), "labels", {"columns": [0, 1]}),
    ("numbers.dat", table(EN, cycle(("0", "1"))), "labels", {"columns": [0, 1]}),
    ("first.tsv", table(cycle(RATED), ZH), "labels", {"columns": [1, 0]}),
    ("first.txt", table(cycle(("spam", "ham")), EN), "labels", {"columns": [1, 0]}),
    ("intents.tsv", table([f"{t} {n}" for n in range(10) for t in EN],
                          cycle([f"card_payment_{i}" for i in range(77)], EN * 10)), "labels", {}),
    ("named.tsv", table(EN, cycle(("0", "1")), header="sentence\tlabel"), "labels", {"header": True}),
    ("id.tsv", table(IDS, EN, cycle(("a", "b"))), "labels", {"columns": [1, 2]}),
    ("few.tsv", table(ZH[:12], cycle(RATED, ZH[:12])), "labels", {}),
    ("rev.csv", table([f'"{t}, so"' for t in EN], cycle(("pos", "neg")), mark=",", header="review,mood"), "labels",
     {"header": True, "columns": [0, 1]}),
    ("semi.csv", table(IDS, ZH, cycle(RATED), mark=";", header="id;text;label"), "labels", {"columns": [1, 2]}),
    ("bare.csv", table(EN, cycle(("pos", "neg")), mark=","), "labels", {"columns": [0, 1]}),
    ("中文.csv", table(cycle(RATED), ZH, mark=",", header="标签,内容"), "labels", {"columns": [1, 0], "header": True}),
    ("stars.jsonl", lines(*({"review": t, "stars": i % 5} for i, t in enumerate(EN))), "labels",
     {"keys": ["review", "stars"]}),
    ("labels.json", lines(*({"text": t, "label": RATED[i % 2]} for i, t in enumerate(ZH))), "labels",
     {"keys": ["text", "label"]}),
    ("pairs.txt", table(ZH, EN), "pairs", {"columns": [0, 1]}),
    ("pairs.tsv", table(EN, ZH), "pairs", {"columns": [0, 1]}),
    ("words.tsv", table(EN[0].split() * 3, ["un", "deux", "trois", "quatre", "cinq", "six"] * 3), "pairs", {}),
    ("anki.txt", table(EN, ZH, [f"CC-BY 2.0 tatoeba.org #{i}" for i in IDS]), "pairs", {"columns": [0, 1]}),
    ("pairs.csv", table(ZH, EN, mark=",", header="zh,en"), "pairs", {"header": True}),
    ("pairs.jsonl", lines(*({"prompt": a, "completion": b} for a, b in zip(ZH, EN, strict=True))), "pairs",
     {"keys": ["prompt", "completion"]}),
    ("opus.txt", lines(*({"translation": {"zh": a, "en": b}} for a, b in zip(ZH, EN, strict=True))), "pairs",
     {"keys": ["translation.zh", "translation.en"]}),
    ("book.txt", "\n".join(ZH), "text", {}),
    ("book.md", "# One\n\n" + "\n".join(EN), "text", {}),
    ("code.txt", "def f():\n\treturn 1\n\nx = 3\n" * 40, "text", {}),
    ("rare.txt", "\n".join([*EN, "a\tb", "c\td"]), "text", {}),
    ("docs.jsonl", lines(*({"text": t} for t in ZH)), "documents", {"text": ["docs.jsonl"]}),
    ("docs.txt", lines(*({"content": t, "id": i} for i, t in enumerate(EN))), "documents", {"keys": ["content"]}),
    ("chat.jsonl", lines(*({"messages": TALK} for _ in EN)), "chat", {"messages": ["chat.jsonl"]}),
    ("chat.txt", lines(*({"messages": TALK, "id": i} for i in range(9))), "chat", {}),
    ("turns.jsonl", lines(*({"conversations": [{"from": "human", "value": t}, {"from": "gpt", "value": "ok"}]}
                            for t in EN)), "chat", {"messages": ["turns.jsonl"]}),
    ("alpaca.json", json.dumps([{"instruction": t, "input": "", "output": "ok"} for t in EN]), "chat",
     {"messages": ["alpaca.json"]}),
    ("list.json", json.dumps([{"text": t, "label": RATED[i % 2]} for i, t in enumerate(ZH)], indent=1), "labels",
     {"keys": ["text", "label"]}),
    ("fasttext.txt", "".join(f"__label__{i % 3} {t}\n" for i, t in enumerate(EN)), "labels", {"columns": [1, 0]}),
    ("short.jsonl", lines(*({"document": a * 9, "summary": a} for a in ZH)), "pairs",
     {"keys": ["document", "summary"]}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(name: str, text: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text, encoding="utf-8")
    return name


@pytest.mark.parametrize(("name", "text", "expected", "data"), CASES, ids=[name for name, *_ in CASES])
def test_a_file_says_what_it_holds(name: str, text: str, expected: str, data: dict[str, Any]) -> None:
    found = find_kind([put(name, text)], {})
    assert found.name == expected
    assert {key: found.data[key] for key in data} == data
    packed = Path(f"{name}.gz")
    packed.write_bytes(gzip.compress(text.encode()))
    again = find_kind([str(packed)], {})
    assert (again.name, again.rows, again.labels) == (found.name, found.rows, found.labels)


def test_the_order_of_rows_changes_nothing() -> None:
    for name, text, expected, data in CASES[:6]:
        rows = text.splitlines()
        for seed in range(4):
            random.Random(seed).shuffle(rows)
            found = find_kind([put(name, "\n".join(rows))], {})
            assert (found.name, {key: found.data[key] for key in data}) == (expected, data)


def test_what_a_person_says_counts() -> None:
    labels, pairs = put("a.txt", table(ZH, cycle(RATED))), put("b.txt", table(ZH, EN))
    assert [find_kind([labels], {}, goal).name for goal in ("pairs", "text", "labels")] == ["pairs", "text", "labels"]
    assert find_kind([pairs], {}, "labels").name == "labels"
    three = put("c.tsv", table(ZH, EN, cycle(RATED)))
    assert find_kind([three], {"columns": [1, 0]}).data["columns"] == [1, 0]
    keyed = put("d.jsonl", lines(*({"messages": TALK, "q": a, "r": b} for a, b in zip(ZH, EN, strict=True))))
    assert find_kind([keyed], {"keys": ["r", "q"]}).data["keys"] == ["r", "q"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (table(EN[:40], [f"w{i % 30}" for i in range(40)]), ["labels", "pairs"]),
        (table(EN * 160, [f"class{i % 10_000}" for i in range(len(EN) * 160)]), ["labels", "pairs"]),
        (table(EN, cycle(("same",))), ["labels", "pairs"]),
    ],
    ids=["thirty in forty", "ten thousand labels", "one"],
)
def test_what_may_be_either_is_asked_with_both_commands(text: str, shown: list[str]) -> None:
    put("my rows.tsv", text)
    with pytest.raises(QkvError) as error:
        find_kind(["my rows.tsv"], {})
    for goal in shown:
        assert f"qkv train 'my rows.tsv' objective={goal}" in str(error.value)
        assert find_kind(["my rows.tsv"], {}, goal).name == goal


def test_two_files_are_parallel_or_two_texts() -> None:
    one, two, three = put("a.txt", "\n".join(ZH)), put("b.txt", "\n".join(EN)), put("c.txt", "\n".join(EN[:9]))
    assert find_kind([one, two], {}).data == {"source": one, "target": two}
    assert find_kind([one, two], {}, "text").data == {"text": [one, two]}
    with pytest.raises(QkvError, match=r"189 and 9 lines.*(?s:.)*qkv train a\.txt c\.txt objective=text"):
        find_kind([one, three], {})
    rows = [put("d.txt", table(ZH, EN)), put("e.tsv", table(ZH, EN))]
    assert find_kind(rows, {}).data["tsv"] == rows  # names that differ, one format


def test_folders_and_globs_name_many() -> None:
    names = [put(f"books/{n}.txt", "\n".join(ZH)) for n in "cab"]
    put("books/README.md", "about")
    for words in (["books"], ["books/*.txt"], ["books/a.txt", "books/[bc].txt"]):
        assert find_kind(words, {}).data == {"text": sorted(names)}
    put("books/rows.tsv", table(ZH, EN))
    with pytest.raises(QkvError, match=r"books: found files of different kinds \(3 \.txt, 1 \.tsv\)"):
        find_kind(["books"], {})
    with pytest.raises(QkvError, match=r"found no file of data"):
        find_kind(["books/*.json"], {})
    with pytest.raises(QkvError, match=r"first\.tsv: found labels in column 1, unlike in the other files"):
        find_kind([put("l.tsv", table(ZH, EN)), put("first.tsv", table(cycle(RATED), ZH))], {})


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("p.jsonl", lines({"prompt": "a", "chosen": "b", "rejected": "c"}), "preferences .* are not trained here"),
        ("m.jsonl", lines({"text": "a", "labels": ["b", "c"]}), "'labels' holds lists, expected one label for each"),
        ("n.jsonl", lines({"a": 1, "b": 2.5}), r"no column holds text \(found: a, b\)"),
        ("k.jsonl", lines({"x": "1", "y": "2", "z": "3"}), "found the keys x, y, z; name those to learn from"),
        ("bad.jsonl", "\n{oops\n", r"bad\.jsonl:2: not JSON"), ("one.csv", table(EN, header="text"), "found 1 column"),
        ("list.json", "[\n1\n]", "expected a list of objects"), ("gone.tsv", "", "no row of data"),
    ],
)  # fmt: skip
def test_what_is_not_trained_is_named(name: str, text: str, told: str) -> None:
    with pytest.raises(QkvError, match=told):
        find_kind([put(name, text)], {})


def test_two_texts_beside_a_label_are_read_together_which_is_noted() -> None:
    rows = [{"premise": a, "hypothesis": b, "label": i % 3} for i, (a, b) in enumerate(pairwise(EN))]
    found = find_kind([put("nli.jsonl", lines(*rows))], {})
    assert found.data == {"jsonl": ["nli.jsonl"], "keys": ["premise", "hypothesis", "label"]}
    assert [str(note).partition(" are ")[0] for note in found.notes] == ["premise and hypothesis"]
    assert find_kind(["nli.jsonl"], {"keys": ["premise", "label"]}).notes == ()
    few = [{"premise": EN[i // 30], "hypothesis": b, "label": i % 3} for i, b in enumerate(EN)]  # said again and again
    assert find_kind([put("few.jsonl", lines(*few))], {}).data["keys"] == ["premise", "hypothesis", "label"]
    asked = [{"question1": a, "question2": f"{b}?", "is_duplicate": i % 2} for i, (a, b) in enumerate(pairwise(EN))]
    assert find_kind([put("asked.jsonl", lines(*asked))], {}).data["keys"] == ["question1", "question2", "is_duplicate"]
    titled = table(IDS, EN, EN[::-1], cycle(["0", "1"]), header="id\tquestion1\tquestion2\tis_duplicate")
    found = find_kind([put("asked.tsv", titled)], {})
    assert found.data == {"tsv": ["asked.tsv"], "columns": [1, 2, 3], "header": True}
    dated = [f"20{i % 24:02}-0{1 + i % 9}-{10 + i % 20} {i % 24:02}:30:00 +08 00" for i in range(len(EN))]
    assert find_kind([put("dated.tsv", table(dated, EN, cycle(["no", "yes"])))], {}).data["columns"] == [1, 2]
    untitled = table([str(int(i) % 2) for i in IDS], EN, [f"{zh}真的" for zh in ZH])
    assert find_kind([put("untitled.tsv", untitled)], {}).data["columns"] == [1, 2, 0]
    assert find_kind(["untitled.tsv"], {"columns": [2, 0]}).data["columns"] == [2, 0]


def test_words_beside_a_text_are_noted_and_may_be_read_with_it() -> None:
    words = cycle([f"{a}{b}" for a in ("red", "blue", "green", "black") for b in "xyz"])
    found = find_kind([put("member.tsv", table(EN, words, cycle(["in", "out"])))], {})
    assert found.data["columns"] == [0, 2]
    (note,) = map(str, found.notes)
    assert note.startswith("column 2 is not read")
    assert note.endswith("with column 1: data.columns='[0, 1, 2]'; to learn it as the label: data.columns='[0, 1]'")
    found = find_kind(["member.tsv"], {"columns": [0, 1, 2]})
    assert [str(note).partition(" are ")[0] for note in found.notes] == ["column 1 and column 2"]
    rows = [{"text": a, "topic": f"{b}{i}", "label": i % 2} for i, (a, b) in enumerate(zip(EN, words, strict=True))]
    (note,) = map(str, find_kind([put("topics.jsonl", lines(*rows))], {}).notes)
    assert note.endswith("""with text: data.keys='["text", "topic", "label"]'""")
    for name, second in (("years.tsv", cycle(["1999", "2000", "2001"])), ("one.tsv", ["web"] * len(EN)),
                         ("days.tsv", cycle(["2024-01-02", "2024-03-04", "2025-05-06"]))):
        assert find_kind([put(name, table(EN, second, cycle(["in", "out"])))], {}).notes == ()


def test_a_second_text_may_come_several_times_and_be_short_in_chinese() -> None:
    few = [EN[i // 6] for i in range(len(EN))]
    assert find_kind([put("said.tsv", table(EN, few, cycle(["yes", "no"])))], {}).data["columns"] == [0, 1, 2]
    short = [f"{zh[:3]}没有" for zh in ZH]
    assert find_kind([put("短.tsv", table(ZH, short, cycle(["是", "否"], ZH)))], {}).data["columns"] == [0, 1, 2]
    names = [f"{zh[0]}小{zh[2]}" for zh in ZH]
    assert find_kind([put("名.tsv", table(ZH, names, cycle(["是", "否"], ZH)))], {}).data["columns"] == [0, 2]


def test_texts_beside_those_that_are_read_are_noted() -> None:
    rows = [{"text": a, "by": f"{b} {i}", "why": f"{i} {b}", "label": i % 3} for i, (a, b) in enumerate(pairwise(EN))]
    found = find_kind([put("three.jsonl", lines(*rows))], {})
    assert (found.data["keys"], str(found.notes[0])[:18]) == (["text", "label"], "not read: by, why;")
    licensed = table(EN, ZH, [f"CC-BY 2.0 (France) Attribution: tatoeba.org #{i}" for i in IDS])
    assert find_kind([put("anki.txt", licensed)], {}).notes == ()


def test_numbers_that_are_learnt_as_text_are_noted() -> None:
    (note,) = find_kind([put("scores.tsv", table(EN, [f"{i / 7:.3f}" for i in range(len(EN))]))], {}).notes
    assert str(note).startswith("column 2 holds numbers")
    sums = table([f"{i} + {i}" for i in range(99)], [f"{2 * i}" for i in range(99)])
    for text in (table(EN, ZH), sums):
        assert find_kind([put("pairs.tsv", text)], {}).notes == ()


def test_scores_beside_pairs_are_no_text_which_is_noted() -> None:
    found = find_kind([put("mined.tsv", table([f"0.{i + 10}" for i in range(len(EN))], ZH, EN))], {})
    assert (found.name, found.data["columns"]) == ("pairs", [1, 2])
    assert [str(note).partition(";")[0] for note in found.notes] == ["column 1 holds numbers, which are not read"]
    rated = table(ZH, EN, [str(1 + i % 5) for i in range(len(EN))])  # few numbers are labels
    assert find_kind([put("rated.tsv", rated)], {}).name == "labels"


def test_names_of_columns_may_have_two_words_or_stand_behind_an_index() -> None:
    ag = "Class Index,Title\n" + table(cycle(["1", "2", "3"]), EN, mark=",")
    assert find_kind([put("ag.csv", ag)], {}).data == {"tsv": ["ag.csv"], "columns": [1, 0], "header": True}
    frame = ",question,answer\n" + table(IDS, ZH, [f"{zh}真的" for zh in ZH], mark=",")
    assert find_kind([put("frame.csv", frame)], {}).data == {"tsv": ["frame.csv"], "columns": [1, 2], "header": True}


def test_folders_of_short_texts_may_be_labels_which_is_asked() -> None:
    for i, text in enumerate(ZH[:24]):
        put(f"reviews/{RATED[i % 2]}/{i}.txt", text)
    with pytest.raises(QkvError, match=r"24 texts in 2 folders .*(?s:.)*qkv train reviews objective=labels"):
        find_kind(["reviews"], {})
    assert find_kind(["reviews"], {}, "text").name == "documents"
    found = find_kind(["reviews"], {}, "labels")
    assert (found.name, found.rows, found.labels, found.data) == ("labels", 24, 2, {"folders": ["reviews"]})
    rows = [row for _, row in read_folder_rows(Path("reviews"))]
    assert sorted(rows) == sorted((text, RATED[i % 2]) for i, text in enumerate(ZH[:24]))
    put("reviews/好评/empty.txt", "")
    with pytest.raises(QkvError, match=r"好评/empty\.txt: the file is empty"):
        [*read_folder_rows(Path("reviews"))]
    put("reviews/差评/empty.txt", "")
    with BadRowPolicy("skip") as policy:
        assert len([*read_folder_rows(Path("reviews"), policy=policy)]) == 24
    assert [str(note)[:18] for note in policy.notes] == ["2 bad row(s) left "]


@pytest.mark.parametrize("suffix", [".md", ".jsonl"])
def test_folders_of_other_files_are_no_labels(suffix: str) -> None:
    for i, text in enumerate(EN[:24]):
        put(f"docs/{'ab'[i % 2]}/{i}{suffix}", text if suffix == ".md" else lines({"text": text}))
    assert find_kind(["docs"], {}).name == "documents"


def test_an_encoding_is_named_with_its_file() -> None:
    Path("gbk.txt").write_bytes(table(ZH, cycle(RATED)).encode("gb18030"))
    with pytest.raises(QkvError, match=r"gbk\.txt: not UTF-8, looks like GB18030: iconv"):
        find_kind(["gbk.txt"], {})


def test_a_label_that_stands_once_is_noted() -> None:
    rows = table([*ZH, "又", "再"], [*cycle(RATED, ZH), "中评", "好坪"])
    assert "2 labels stand in only one row each ('中评', '好坪')" in find_kind([put("l.tsv", rows)], {}).notes[0]
    assert find_kind([put("m.tsv", table(ZH, cycle(RATED)))], {}).notes == ()


def test_rows_come_from_all_over_a_file_in_bounded_memory() -> None:
    whole = [f"row {i}" for i in range(50_000)]
    put("a.txt", "\n".join(whole))
    found = sample_lines(Path("a.txt"), 1 << 16)
    places = [int(line.split()[1]) for line in found.lines]
    assert (found.count, found.whole) == (50_000, False)
    assert sum(map(len, found.lines)) <= 1 << 16
    assert {*found.lines} <= {*whole}
    assert [sum(at // 5000 == n for at in places) > 50 for n in range(10)] == [True] * 10
    assert sample_lines(Path("a.txt"), 1 << 20).lines == whole


def test_compressed_files_are_read_as_what_they_hold() -> None:
    text = table(ZH, EN)
    for name, made in (("a.tsv.gz", gzip.compress(text.encode())), ("a.tsv.bz2", bz2.compress(text.encode())),
                       ("b.tsv", gzip.compress(b"\xef\xbb\xbf" + text.encode()))):  # fmt: skip
        Path(name).write_bytes(made)
        assert [row for _, row in read_tsv_rows(Path(name))] == list(zip(ZH, EN, strict=True))
        assert read_document(Path(name)) == text
    Path("cut.gz").write_bytes(gzip.compress(random.Random(0).randbytes(9000).hex().encode())[:5000])
    with pytest.raises(QkvError, match=r"cut\.gz: this compressed file is damaged or cut off"):
        read_document(Path("cut.gz"))
    Path("in.gz").write_bytes(gzip.compress(b"PK\x03\x04\xff\xfe"))
    with pytest.raises(QkvError, match=r"in\.gz: not a UTF-8 text file, found zip"):
        read_document(Path("in.gz"))


def test_zstandard_is_read_by_its_package_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.txt.zst").write_bytes(b"\x28\xb5\x2f\xfd" + zlib.compress(b"one\n"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(QkvError, match=r"a\.txt\.zst: .* pip install zstandard"):
        find_kind(["a.txt.zst"], {})
    Path("b.txt.zst").write_bytes(b"")

    class Fake(ModuleType):
        class ZstdDecompressor:
            def stream_reader(self, file: Any, **_: Any) -> Any:
                file.read(4)
                return __import__("io").BytesIO(zlib.decompress(file.read()))

    monkeypatch.setitem(sys.modules, "zstandard", Fake("zstandard"))
    assert read_document(Path("a.txt.zst")) == "one\n"


def test_cells_of_csv_may_hold_commas_quotes_and_line_ends() -> None:
    put("a.csv", 'text,label\n"one, ""two""\nthree",x\n\nfour,y\nfive\nsix,z\n')
    with pytest.raises(QkvError, match=r"a\.csv:6: found 1 column\(s\), expected at least 2"):
        list(read_tsv_rows(Path("a.csv"), header=True))
    policy = BadRowPolicy("skip")
    rows = list(read_tsv_rows(Path("a.csv"), header=True, policy=policy))
    assert rows == [(2, ('one, "two"\nthree', "x")), (5, ("four", "y")), (7, ("six", "z"))]
    assert policy.dropped == {"a.csv": 1}
    put("open.csv", 'a,b\n"never closed,x\n' + "y,z\n" * 40_000)
    with pytest.raises(QkvError, match=r"open\.csv:2: not CSV: .* is a quotation mark left open"):
        list(read_tsv_rows(Path("open.csv")))


def test_parquet_is_read_by_its_columns_or_the_package_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(QkvError, match=r"a\.parquet: .* pip install pyarrow"):
        find_kind(["a.parquet"], {})
    rows = [{"id": i, "text": t, "label": i % 2} for i, t in enumerate(EN)]
    for some, name, keys in ((rows, "labels", ["text", "label"]), ([{"text": t} for t in EN], "documents", ["text"])):
        monkeypatch.setattr(hf_datasets, "open_dataset", lambda _, some=some: {"train": some})
        found = find_kind(["a.parquet"], {})
        assert (found.name, found.data) == (name, {"dataset": "a.parquet", "keys": keys})
    monkeypatch.setattr(hf_datasets, "open_dataset", lambda _: {"train": [{"a": 1, "b": 2.5}]})
    with pytest.raises(QkvError, match=r"no column holds text \(found: a, b\)"):
        find_kind(["a.parquet"], {})


def test_parquet_itself_is_sampled_and_classes_have_names() -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = {"info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}}
    made = arrow.Table.from_pylist([{"text": t, "label": i % 2} for i, t in enumerate(EN)])
    Path("d/data").mkdir(parents=True)
    for part in ("train", "validation"):
        parquet.write_table(made.replace_schema_metadata({"huggingface": json.dumps(names)}),
                            f"d/data/{part}-00000.parquet", row_group_size=20)  # fmt: skip
    found = find_kind(["d"], {})
    assert (found.name, found.rows, found.labels, found.data["dataset"]) == ("labels", len(EN), 2, "d")
    read = hf_datasets.open_dataset("d")
    assert next(hf_datasets.read_rows(read["validation"], ("text", "label"))) == (0, (EN[0], "no"))


def test_the_first_line_says_it_in_both_languages(capsys: pytest.CaptureFixture[str]) -> None:
    put("labels.txt", table(ZH, cycle(RATED)))
    words = ["train", "labels.txt", "model.width=16", "model.layers=1", "training.steps=2", "--device", "cpu"]
    assert cli.main([*words, "--dry-run"]) == 0
    told = "a classifier of 2 labels from 189 rows, by column 2 (to train a translator instead: objective=pairs)"
    assert capsys.readouterr().err.splitlines()[0] == told
    assert cli.main([*words, "--dry-run", "--lang", "zh"]) == 0
    assert "2 个标签的分类器" in capsys.readouterr().err.splitlines()[0]
    assert cli.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["about"] == told
    run = recipes.configure("labels.txt", ["objective=pairs", "training.steps=2"])
    assert (run.objective, run.model.family) == ("pairs", "marian")
    assert run.about[0].startswith("a translator from 189 pairs, column 1 to column 2")


def test_without_the_count_of_labels_these_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns.Column, "is_label", False)
    name, text, _, _ = CASES[0]
    with pytest.raises(QkvError):
        find_kind([put(name, text)], {})


def test_a_table_of_one_endless_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("text_files", "formats"):
        monkeypatch.setattr(f"qkv.data.{module}.LONGEST", 1000, raising=False)
    monkeypatch.setattr("qkv.data.kind.LIMIT", 1000)
    with pytest.raises(QkvError, match=r"a.tsv:1: one line of 9,002 bytes"):
        find_kind([put("a.tsv", "x\t" + "a" * 9000 + "\n")], {})
