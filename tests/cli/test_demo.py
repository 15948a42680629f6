"""The demo as a show: a live page on a screen, the terminal everywhere else, and nothing that a pipe would wait for."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qkv.cli import common, demo, main
from qkv.cli.common import Common
from qkv.errors import QkvError
from qkv.explore import record, server
from qkv.training import recipes
from qkv.training.probes import records

EVENT = {"kind": "step", "step": 1, "loss": 2.0}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser was sent to; no browser is."""
    found: list[str] = []
    monkeypatch.setattr(server, "open_browser", lambda url: bool(found.append(url) or True))
    monkeypatch.setattr(demo.sys, "stdin", SimpleNamespace(isatty=lambda: False))
    return found


def played(monkeypatch: pytest.MonkeyPatch) -> list[demo.Story]:
    """The stories that were played; training and acts are left out."""
    found: list[demo.Story] = []

    def play(story: demo.Story, *rest: Any) -> None:
        found.append(story)
        story.hear(EVENT, None)
        story.scene("proof", text="它")

    monkeypatch.setattr(demo, "play", play)
    return found


@pytest.mark.parametrize(
    ("terminal", "environment", "flags", "expected"),
    [
        (True, {"DISPLAY": ":0"}, {}, True),
        (True, {"WAYLAND_DISPLAY": "wayland-0"}, {}, True),
        (True, {}, {}, False),
        (False, {"DISPLAY": ":0"}, {}, False),
        (True, {"DISPLAY": ":0", "CI": "true"}, {}, False),
        (True, {"DISPLAY": ":0"}, {"json": True}, False),
        (True, {"DISPLAY": ":0"}, {"quiet": True}, False),
    ],
)
def test_a_browser_opens_on_a_screen_alone(
    terminal: bool, environment: dict[str, str], flags: dict[str, Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "CI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", "linux")
    end = SimpleNamespace(isatty=lambda: terminal)
    monkeypatch.setattr(common, "sys", SimpleNamespace(stdin=end, stdout=end))
    assert demo.has_display(Common(**flags)) is expected


def test_a_pipe_gets_no_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def never(*args: Any, **more: Any) -> None:
        raise AssertionError("a page was made")

    monkeypatch.setattr(server, "Page", never)
    stories = played(monkeypatch)
    assert main(["demo"]) == 0
    assert stories[0].stage is None
    assert "127.0.0.1" not in capsys.readouterr().out


def test_the_page_hears_what_training_tells_and_ends_with_the_demo(
    opened: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QKV_TOKEN", "abc")
    stories = played(monkeypatch)
    assert main(["demo", "--browser", "--lang", "en"]) == 0
    stage, told = stories[0].stage, capsys.readouterr().out
    assert opened == [f"http://127.0.0.1:{stage.port}/?token=abc#panel=training"]
    assert opened[0] in told
    assert f"http://127.0.0.1:{stage.port}/#panel=proof&ask=%7B" in told
    assert [event for _, event in stage.desk.events.events_after(0)] == [EVENT]
    assert not stage.thread.is_alive()


def test_a_demo_that_fails_closes_its_page(opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[Any] = []

    def broken(story: demo.Story, *rest: Any) -> None:
        stages.append(story.stage)
        raise QkvError("no")

    monkeypatch.setattr(demo, "play", broken)
    assert main(["demo", "--browser"]) == 2
    assert not stages[0].thread.is_alive()


def test_without_a_port_the_terminal_goes_on(
    opened: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def taken(*args: Any, **more: Any) -> None:
        raise QkvError("all taken")

    monkeypatch.setattr(server, "Page", taken)
    stories = played(monkeypatch)
    assert main(["demo", "--browser", "--lang", "en"]) == 0
    assert (stories[0].stage, opened) == (None, [])
    assert "all taken" in capsys.readouterr().out


def test_your_sentence_is_watched_first_where_its_words_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    run, shared = recipes.configure("demo"), Common(lang="en")
    own = demo.watch_own_sentence(demo.Story(shared, own="我爱喝茶。"), run)
    assert own.watch.texts == ("我爱喝茶。", *run.watch.texts)
    assert demo.watch_own_sentence(demo.Story(shared, own="鹦鹉学舌。"), run) is run
    assert "鹦" in capsys.readouterr().out
    assert demo.watch_own_sentence(demo.Story(shared, own=""), run) is run


def test_the_demo_records_itself(tmp_path: Any) -> None:
    run = recipes.configure("demo")
    assert run.watch.times
    assert json.dumps(run.watch.words, ensure_ascii=False) == '["小", "苹果", "书"]'


def test_the_page_is_the_live_one_recorded_with_what_the_acts_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def record_of(questions: Any, models: Any, **more: Any) -> str:
        asked.update(more, questions=questions, models=models)
        return "<!doctype html>"

    monkeypatch.setattr(record, "record", record_of)
    monkeypatch.setattr(records, "ProbeLog", lambda directory: f"records of {directory}")
    shared = Common(lang="zh")
    model = shared.load_model("demo")
    result = {"directory": "runs/demo", "exact_match": 0.91, "cache_milliseconds": [[8, 1.0, 2.0]]}
    pair = SimpleNamespace(zh_a="我喝完了它。", zh_b="我看完了它。")
    file = tmp_path / "page.html"
    story = demo.Story(shared, result=result)
    demo.write_page(story, file, {"runs/demo": model, "demo-lm": None}, pair, "我爱喝茶。")
    assert file.read_text(encoding="utf-8") == "<!doctype html>"
    assert [(name, q.text) for name, q in asked["questions"]] == [
        ("runs/demo", "我喝完了它。"), ("runs/demo", "我看完了它。"), ("runs/demo", "我爱学习。"),
        ("runs/demo", "我爱喝茶。"), ("demo-lm", demo.PROMPT)]  # fmt: skip
    assert asked["watched"] == "records of runs/demo"
    assert asked["lang"] == "zh"
    assert asked["more"]["runs/demo"] == {"facts": [["完全一致", "exact match", "91.0%"]]}
    assert asked["more"]["demo-lm"] == {"timed": [[8, 1.0, 2.0]]}
    del result["directory"]
    demo.write_page(story, file, {"demo": model, "demo-lm": None}, pair, "鹦鹉学舌。")
    assert asked["watched"] is None
    assert len(asked["questions"]) == 4, "a sentence with unknown words is left out"


def told(story: demo.Story, *events: dict[str, Any]) -> list[str]:
    """What is shown of these events."""
    shown: list[str] = []
    for event in events:
        story.hear(event, lambda e: shown.append(e.get("text", e["kind"])))
    return shown


def test_a_watched_sentence_is_told_when_its_translation_changes() -> None:
    story = demo.Story(Common(), watched=(("我爱学习。", "I love studying."), ("我喝茶。", "")))
    first = {"kind": "watch", "step": 0, "outputs": ["the the", "the"], "took": 0.1}
    later = {"kind": "watch", "step": 8, "outputs": ["the the", "I drink"], "took": 0.1}
    last = {"kind": "watch", "step": 9, "outputs": ["the the", "I drink"], "took": 0.1}
    assert told(story, first, later, last) == [
        "watch", "step 0  我爱学习。 → the the", "watch", "step 8  我喝茶。 → I drink", "watch"]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Apple will will a new new tomorrow.", False),
        ("Apple will produce a new phone tomorrow.", True),
        ("tomorrow. phone new a launch will Apple", False),
        ("", False),
    ],
)
def test_readable_is_three_quarters_of_the_words_in_order(said: str, expected: bool) -> None:
    assert demo.is_readable("Apple will launch a new phone tomorrow.", said) is expected


def test_the_first_readable_translation_is_timed_and_the_parts_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 3.0, 5.0, 5.5, 6.0, 9.0])
    monkeypatch.setattr(demo.time, "monotonic", lambda: next(clock))
    story = demo.Story(Common(json=True), watched=(("我爱学习。", "I love studying."),))
    story.began = demo.time.monotonic()
    note, step = {"kind": "note", "step": 0, "text": "fp32"}, {"kind": "step", "step": 10}
    young = {"kind": "watch", "step": 10, "outputs": ["I I studying."], "took": 0.5}
    score = {"kind": "evaluation", "step": 10, "samples": [["我爱你。", "I love you.", "I love you."]]}
    told(story, note, step, young, score, step)
    assert story.parts == {"start": 3.0, "training": 5.0, "records": 0.5, "evaluations": 0.5}
    assert story.result["first_readable_seconds"] == 6.0


def test_what_stands_against_the_demo_is_told_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "train_translator", lambda *given: pytest.fail("it trained"))
    run = tmp_path / "old" / "train"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}", encoding="utf-8")
    Path("file").write_text("", encoding="utf-8")
    faults = (
        (["--page", "."], "a directory; name a file in it"),
        (["--out", "old"], "qkv train demo --resume auto --out old"),
        (["--out", "file/run"], "--out file/run: cannot be made"),
        (["--model", "demo-lm"], "cannot translate; the bundled `demo` can"),
    )
    for args, said in faults:
        assert main(["demo", *args, "--lang", "en"]) == 2
        out, err = capsys.readouterr()
        assert (said in err, out) == (True, ""), (args, err)


@pytest.mark.parametrize(("wide", "zh"), [(60, False), (60, True), (200, True)])
def test_headings_and_the_grid_fit_the_terminal(
    wide: int, zh: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.cells import cell_len

    monkeypatch.setenv("COLUMNS", str(wide))
    story = demo.Story(Common(lang="zh" if zh else "en"))
    story.act("Act three: the same core as a language model")
    demo.print_guesses(story, story.common.load_model("demo-lm"))
    lines = capsys.readouterr().out.splitlines()
    assert cell_len(lines[1]) == min(72, wide)
    table = lines[2:-1]
    assert len(table) == 6
    assert max(map(cell_len, table)) <= min(72, wide)
    assert "(" in table[1], "a guess that is thrown away is marked without colour too"


def test_an_empty_directory_is_free_and_a_full_one_is_not(tmp_path: Path) -> None:
    from qkv.cli.demo import find_free_directory

    assert find_free_directory(tmp_path / "demo") == tmp_path / "demo"
    (tmp_path / "demo").mkdir()
    assert find_free_directory(tmp_path / "demo") == tmp_path / "demo", "a run that never began left it"
    (tmp_path / "demo" / "config.json").write_text("{}")
    assert find_free_directory(tmp_path / "demo") == tmp_path / "demo-2"


def test_a_run_that_has_not_ended_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "play", lambda *_: None)
    (tmp_path / "runs" / "demo" / "train").mkdir(parents=True)
    assert main(["demo", "--no-browser"]) == 0
    assert "to go on with it: qkv train runs/demo --resume" in capsys.readouterr().err
    (tmp_path / "runs" / "demo" / "train" / "result.json").write_text("{}")
    assert main(["demo", "--no-browser"]) == 0
    assert capsys.readouterr().err == ""
