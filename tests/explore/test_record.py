"""The page in one file: its own script alone may run, what is recorded is what a server would answer, and it fits."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import qkv
from qkv.errors import QkvError
from qkv.explore import probe_answers, record
from qkv.explore.answers import answer, list_panels
from qkv.explore.question import Cut, Question, ask, question_as_json
from qkv.model import Model
from qkv.training.probes.records import ProbeLog

INDEX = """<!doctype html>
<html lang="en"><head>
<meta charset="utf-8">
<link rel="stylesheet" href="app.css">
</head><body><script src="app.js"></script></body></html>
"""
SCRIPT = 'const evil = "</script><b>"; /* <!-- */ console.log(1);'


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A page of three short files, whatever lies in static/ just now."""
    for name, text in {"index.html": INDEX, "app.js": SCRIPT, "app.css": "b{color:red}"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(record, "STATIC", tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {n: qkv.load(n) for n in ("demo-lm", "demo-bert")}


ASKED = [("demo-lm", Question("One, <two>", max_new_tokens=2)), ("demo-bert", Question("我爱[MASK]。"))]


def answers_in(html: str) -> dict[str, dict[str, str]]:
    found = re.search(r'<script type="application/json" id="recorded">(.*?)</script>', html, re.S)
    assert found
    return json.loads(found[1])


def body(one: dict[str, str]) -> bytes:
    return one["body"].encode() if one["type"] == "application/json" else base64.b64decode(one["body"])


def test_the_file_runs_its_own_script_and_asks_nobody(models: dict[str, Model]) -> None:
    html = record.record(ASKED[1:], models, limit=300_000)
    policy = re.search(r'content-security-policy" content="([^"]*)"', html)
    scripts = re.findall(r"<script>(.*?)</script>", html, re.S)
    assert policy
    assert len(scripts) == 1
    assert "<\\/script><b>" in scripts[0]
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy[1]
    assert "default-src 'none'" in policy[1]
    assert "connect-src" not in policy[1]
    assert not re.search(r'(src|href)="', html.replace('href="data:', ""))
    assert html.index('id="recorded"') < html.index("<script>")


def test_what_is_recorded_is_what_a_server_answers(models: dict[str, Model]) -> None:
    html = record.record(ASKED, models, lang="zh", limit=1_500_000)
    assert len(html.encode()) <= 1_500_000
    assert "<two>" not in html, "no tag of a text may end the element that holds it"
    book = answers_in(html)
    about = json.loads(book["/api/about"]["body"])
    assert about["lang"] == "zh"
    bert = {"text": "我爱[MASK]。", "model": "demo-bert"}
    assert about["recorded"] == [{"text": "One, <two>", "max_new_tokens": 2}, bert]
    assert json.loads(book["/api/about?model=demo-bert"]["body"])["kind"] == "encoder"
    asked = json.loads(book['/api/run?{"max_new_tokens":2,"text":"One, <two>"}']["body"])["run"]
    assert '/api/run?{"model":"demo-bert","text":"我爱[MASK]。"}' in book
    live = ask(models["demo-lm"], ASKED[0][1], "demo-lm")
    assert asked == live.id
    rows = [f"row?head={h}&layer={i}&part=decoder&query=3" for h in range(4) for i in range(4)]
    seen = ("meta", "lens", "thumbs?part=decoder", "choices?pos=2&top=20", "parts?pos=1", "wavefront", "proof")
    for path in (*seen, *rows):
        what, _, query = path.partition("?")
        said = dict(pair.split("=") for pair in query.split("&")) if query else {}
        assert body(book[f"/api/r/{asked}/{path}"]) == answer(live, what, said).body(), path
    kept = {path.split("/")[4].split("?")[0] for path in book if path.startswith(f"/api/r/{asked}/")}
    assert set(list_panels(live)) - {"neighbours", "analogy", "cost", "gradient"} <= kept
    assert any(path.startswith("/api/neighbours?") for path in book)
    assert "/api/watch?model=demo-bert" in book


def test_a_recorded_page_holds_the_numbers_at_which_it_opens(models: dict[str, Model]) -> None:
    question = Question("One, <two>", max_new_tokens=6)
    run, prompt = ask(models["demo-lm"], question, "demo-lm"), len(models["demo-lm"].ids(question.text))
    weight = run.t["layers.3.attn.pattern"][0, 0, prompt - 1]  # the position that writes the first word
    walk = f"/api/r/{run.id}/walk?head=0&key={int(weight.argmax())}&layer=3&part=decoder&query={prompt - 1}"
    assert walk in answers_in(record.record([("demo-lm", question)], models, limit=300_000))


def test_a_wrong_answer_would_be_noticed(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    right = record.encode_answer
    monkeypatch.setattr(record, "encode_answer", lambda found: {**right(found), "body": right(found)["body"][:-2]})
    with pytest.raises((AssertionError, ValueError)):
        test_what_is_recorded_is_what_a_server_answers(models)


def test_a_small_file_holds_what_is_seen_first(models: dict[str, Model]) -> None:
    big, small = (answers_in(record.record(ASKED[:1], models, limit=n)) for n in (700_000, 120_000))
    assert set(small) < set(big)
    first = [path for path in small if "/walk?" in path or "/row?" in path]
    assert any("/lens" in path for path in small)
    assert any("/row?" in path for path in first)


def test_a_weight_is_in_bytes() -> None:
    one = {"type": "application/json", "body": "书和茶"}
    size = len('{"/api/x":{"type":"application/json","body":"书和茶"}}'.encode())
    assert record.recorded_size(("/api/x", one)) == size


def test_some_steps_are_recorded_the_first_and_the_last_among_them(tmp_path: Path) -> None:
    count = 3 * record.STEPS + 2
    run = long_run(tmp_path, count)
    w, key = ProbeLog(run), probe_answers.run_key(run)
    book = record.record_training(w)
    kept = [int(path.rpartition("/")[2]) for path in book if "/step/" in path]
    assert len(kept) <= record.STEPS + 1
    assert (kept[0], kept[-1]) == (0, count - 1)
    whole = book[f"watch/{key}/steps"]
    assert whole.keys["recorded"] == [row["step"] for row in whole.keys["steps"]] == kept
    assert whole.arrays["weight"][:, 0].tolist() == kept  # each row is its own step's
    assert book["watch"].keys["runs"][0]["run"] == key


def test_a_long_curve_is_thinned_and_a_run_has_one_name(tmp_path: Path) -> None:
    run = long_run(tmp_path, 2)
    events = [{"kind": "step", "step": n, "loss": 1.0} for n in range(2 * probe_answers.POINTS + 1)]
    events += [{"kind": "evaluation", "step": 1, "loss": 0.5}]
    (run / "train" / "log.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events), encoding="utf-8")
    found = probe_answers.answer_run(ProbeLog(run))
    assert found.keys["loss"][:2] == [[0, 1.0], [3, 1.0]]
    assert len(found.keys["loss"]) <= probe_answers.POINTS
    assert found.keys["evaluations"] == [{"step": 1, "loss": 0.5}]
    assert found.arrays["moved"].dtype == torch.int32
    at = probe_answers.answer_step(ProbeLog(run), "1")
    assert {n: x.dtype for n, x in at.arrays.items()}["teacher.mask"] == torch.uint8
    assert probe_answers.run_key(run) == probe_answers.run_key(run / ".." / run.name)


def long_run(folder: Path, count: int) -> Path:
    """A run of so many recorded steps, whose weights' norm is the number of the step."""
    run = folder / "long"
    (run / "train" / "watch").mkdir(parents=True)
    for step in range(count):
        arrays = {f"matrices.{n}": torch.full((1,), float(step)) for n in ("weight", "gradient", "update")}
        arrays |= {"matrices.moved": torch.ones(1, dtype=torch.int64), "teacher.mask": torch.ones(2, 2) > 0}
        save_file(arrays, run / "train" / "watch" / f"{step:06}.safetensors", {"state": json.dumps({"step": step})})
    rows = [{"step": step, "outputs": [], "weights": False} for step in range(count)]
    index = {"format": 1, "kind": "decoder", "texts": [], "words": [], "matrices": [], "steps": rows}
    (run / "train" / "watch" / "index.json").write_text(json.dumps(index), encoding="utf-8")
    return run


def test_what_was_measured_elsewhere_goes_with_its_model(models: dict[str, Model]) -> None:
    more = {"demo-lm": {"timed": [[8, 40.0, 50.5]]}, "demo-bert": {"facts": [["完全一致", "exact match", "91.0%"]]}}
    book = answers_in(record.record(ASKED, models, more=more, limit=700_000))
    lm, bert = (json.loads(book[p]["body"]) for p in ("/api/about", "/api/about?model=demo-bert"))
    assert lm["timed"] == [[8, 40.0, 50.5]]
    assert bert["facts"] == [["完全一致", "exact match", "91.0%"]]
    assert "facts" not in lm
    assert "timed" not in bert


def test_a_full_file_stops_the_work(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    plain = record.answers.answer
    monkeypatch.setattr(record.answers, "answer", lambda *a: asked.append(a[1]) or plain(*a))
    sizes: dict[int, int] = {}
    for misses in (4, 1 << 30):
        asked.clear()
        monkeypatch.setattr(record, "MISSES", misses)
        record.record(ASKED[:1], models, limit=120_000)
        sizes[misses] = len(asked)
    assert sizes[4] < sizes[1 << 30] / 2


@pytest.mark.parametrize(
    ("path", "query", "written"),
    [
        ("about", {}, "/api/about"), ("r/r1/lens", {"top": "5"}, "/api/r/r1/lens"),
        ("r/r1/choices", {"top": "20", "pos": "3", "top_p": "1"}, "/api/r/r1/choices?pos=3&top=20"),
        ("neighbours", {"word": "小 (a)!'*~b/?&,", "n": "10"},
         "/api/neighbours?n=10&word=%E5%B0%8F%20(a)!'*~b%2F%3F%26%2C"),
        ("r/r1/shift", {"pos": "0", "anchors": ""}, "/api/r/r1/shift?pos=0"),
    ],
)
def test_paths_are_written_as_the_script_writes_them(path: str, query: dict[str, str], written: str) -> None:
    assert record.path_of(path, query) == written


def test_a_question_is_put_as_the_page_puts_it() -> None:
    q = Question("a", sampling=(("temperature", 0.5),), force=(3,), cut=Cut("decoder", 0, 1))
    said: dict[str, Any] = question_as_json(q)
    assert Question.from_json(said) == q
    assert "query" not in said["cut"]


def test_what_cannot_be_recorded_says_so(models: dict[str, Model], built: Path) -> None:
    with pytest.raises(QkvError, match="no text"):
        record.record([], models)
    with pytest.raises(QkvError, match="record fewer texts"):
        record.record(ASKED, models, limit=9_000)
    (built / "index.html").write_text("<html></html>", encoding="utf-8")
    with pytest.raises(QkvError, match="build the page again"):
        record.record(ASKED, models)
    (built / "app.js").unlink()
    with pytest.raises(QkvError, match="not built"):
        record.record(ASKED, models)
