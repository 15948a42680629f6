"""What goes wrong around the page's server: odd texts, questions beyond all bounds, models that vanish, memory."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

import qkv
from qkv.errors import QkvError
from qkv.explore import answers, server
from qkv.explore.question import Question, ask

sys.path.insert(0, str(Path(__file__).parent))
from test_server import PORT, ROW, TOKEN, Browser

TEXTS = {
    "right to left": "שלום, مرحبا", "turned round": "\u202eabc\u202c def", "no width": "a\u200b\u200d\ufeffb",
    "joined signs": "👩‍👩‍👧‍👦🇨🇳 🏳️‍🌈", "four bytes": "𠮷野家 𝕏", "nothing but null": "\0", "null": "a\0b",
    "stacked": "e\u0301" * 50, "masks": "[MASK]" * 300, "special tokens": "<s></s><pad><unk>[CLS][SEP]",
    "one word": "我", "one sign": "。", "the last character": "\ue000\U0010ffff", "control": "\x1b[31mred\x07",
    "markup": "<img src=x onerror=alert(1)>&amp;\"'`", "far too long": "书" * 100_000,
}
SHOWN = {"query": "1", "key": "0", "layer": "0", "head": "0"}


@pytest.mark.parametrize("name", [
    "demo-lm", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("demo", "demo-bert", "demo-moe")),
])
def test_texts_in_odd_signs_are_read_and_every_answer_is_made_or_says_why(name: str) -> None:
    model = qkv.load(name, device="cpu")
    for what, text in TEXTS.items():
        run = ask(model, Question.from_json({"text": text, "max_new_tokens": 6}), name)
        made, refused = 0, list[str]()
        for one in ("meta", *answers.list_panels(run)):
            if one not in answers.TABLES:
                try:
                    said = {k: v for k, v in SHOWN.items() if k in answers.ANSWERS[one][1]}
                    made += len(answers.answer(run, one, said).body()) > 0
                except QkvError as error:
                    refused.append(str(error))
        assert [e for e in refused if "up to 32 tokens" not in e and "expected 0 to 0" not in e] == [], what
        assert made >= 8, what


def test_a_question_beyond_all_bounds_is_refused_before_computing(lm: qkv.Model) -> None:
    browser = Browser(desk(lm))
    for wrong, said in (
        ({"beam": 10**9}, "beam: found 1000000000, expected 1 to 64"), ({"beam": 65}, "1 to 64"),
        ({"max_new_tokens": 10**12}, "1 to 4096"), ({"beam": True}, "beam"), ({"beam": 2.0}, "beam"),
        ({"force": [10**7]}, "no id 10000000"), ({"force": [5] * 5000}, "context holds"),
        ({"cut": {"part": "decoder", "layer": 99, "head": 0}}, "expected 0 to 3"),
        ({"sampling": {"temperature": -1}}, "temperature"),
    ):
        reply = browser.post("/api/run", {"text": "One, two,", **wrong})
        assert reply.status == 422, wrong
        assert said in reply.error, wrong
    assert browser.post("/api/run", {"text": "One, two,", "beam": 2, "max_new_tokens": 2}).status == 200


def test_half_a_character_is_named_wherever_it_stands(lm: qkv.Model) -> None:
    browser = Browser(desk(lm))
    for body in (b'{"text": "a\\ud800b"}', b'{"text": "a", "model": "\\udfff"}', b'{"\\ud800": 1}',
                 b'{"text": "a", "sampling": {"seed": ["\\ud800"]}}'):
        reply = browser.post("/api/run", body)
        assert (reply.status, reply.error) == (400, "there is half a character in it: a lone surrogate")
    whole = b'{"text": "\\ud83d\\ude00", "max_new_tokens": 1}'
    assert browser.post("/api/run", whole).status == 200
    assert browser.post("/api/run", b"[" * 100_000).status == 400
    assert browser.post("/api/run", b'{"beam": ' + b"9" * 5000 + b"}").status == 400


def test_a_run_says_what_it_was_asked(lm: qkv.Model) -> None:
    browser = Browser(desk(lm))
    question = {"text": "One, two,", "max_new_tokens": 3, "beam": 2, "force": [5], "second": "One, three,"}
    run = browser.post("/api/run", question).json["run"]
    told = browser.get(f"/api/r/{run}/meta").json["question"]
    assert told == question
    assert browser.post("/api/run", told).json["run"] == run


def test_a_model_whose_folder_vanishes_is_told_and_the_others_answer_on(lm: qkv.Model, tmp_path: Path) -> None:
    for name in ("gone", "later", "half"):
        qkv.load("demo-bert", device="cpu").save(tmp_path / name)
    names = ["demo-lm", *(str(tmp_path / name) for name in ("gone", "later", "half"))]
    browser = Browser(server.Desk(names, lambda name: qkv.load(name, device="cpu"), models={"demo-lm": lm}))
    loaded = browser.post("/api/run", {"text": "我爱[MASK]。", "model": names[2]}).json["run"]
    for name in ("gone", "later"):
        shutil.rmtree(tmp_path / name)
    next((tmp_path / "half").glob("*.safetensors")).unlink()
    for name, said in ((names[1], "gone"), (names[3], "half")):
        reply = browser.post("/api/run", {"text": "我爱[MASK]。", "model": name})
        assert (reply.status, said in reply.error) == (422, True), reply.body
    assert browser.get(f"/api/r/{loaded}/lens").status == 200  # what was loaded stays
    assert browser.post("/api/run", {"text": "你爱[MASK]。", "model": names[2]}).status == 200
    assert browser.run()


def test_the_page_is_at_home_on_127_0_0_1_and_localhost_and_nowhere_else(lm: qkv.Model) -> None:
    browser = Browser(desk(lm))
    assert browser.get("/api/about", host=f"localhost:{PORT}").status == 200
    others = (f"[::1]:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", f"127.0.0.2:{PORT}", f"x@127.0.0.1:{PORT}")
    for host in others:
        reply = browser.get("/api/about", host=host)
        assert (reply.status, f"Host is '{host}'" in reply.error) == (403, True), host


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_a_server_that_is_stopped_for_a_while_answers_when_it_goes_on() -> None:
    env = {**os.environ, "QKV_TOKEN": TOKEN, "PYTHONPATH": str(Path(qkv.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "qkv.cli", "look", "demo-lm", "--serve", "--no-browser", "--lang", "en"]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as made:
        assert made.stdout
        url = made.stdout.readline().strip()
        port = url.split(":")[2].split("/")[0]
        asked = urllib.request.Request(f"{url.split('?')[0]}api/about", headers={"Cookie": f"qkv-{port}={TOKEN}"})
        got: list[int] = []
        made.send_signal(signal.SIGSTOP)
        waiting = threading.Thread(target=lambda: got.append(urllib.request.urlopen(asked, timeout=60).status))
        waiting.start()  # its socket listens already: the question waits there
        time.sleep(0.3)
        assert got == []
        made.send_signal(signal.SIGCONT)
        waiting.join(60)
        assert got == [200]
        made.send_signal(signal.SIGINT)
        assert made.wait(60) == 0


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory as Linux tells it")
def test_five_hundred_questions_leave_no_memory_behind(lm: qkv.Model) -> None:
    browser, sizes = Browser(desk(lm)), list[float]()
    asked = ("meta", "lens", "thumbs?part=decoder", "choices?pos=2", ROW, "parts?pos=1", "walk?part=decoder&query=1")
    for n in range(500):
        run = browser.post("/api/run", {"text": f"One, two, {n}", "max_new_tokens": 3}).json["run"]
        for what in asked:
            assert browser.get(f"/api/r/{run}/{what}").status == 200
        sizes.append(resident())
    print(f"{sizes[0]:.0f} MB after the first, {sizes[99]:.0f} after 100, {sizes[-1]:.0f} after 500 questions")
    assert sizes[-1] - sizes[99] < 24, sizes[::50]


def resident() -> float:
    """Megabytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.fixture(scope="module")
def lm() -> qkv.Model:
    return qkv.load("demo-lm", device="cpu")


def desk(lm: qkv.Model) -> server.Desk:
    return server.Desk(["demo-lm"], qkv.load, models={"demo-lm": lm})
