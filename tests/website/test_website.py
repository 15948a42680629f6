"""The site: both languages alike, every number computed, every question answered, no link to nowhere."""

import ast
import html
import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support import browsing
from website import asked, course, learning, links, notebooks, offline, questions, repository
from website.pages import LANGS, SITE, Site
from website.widgets import Widgets

import qkv
from qkv import labs

ROOT = Path(__file__).parents[2]
CHAPTERS = course.list_chapters()
chapters = pytest.mark.parametrize("name", CHAPTERS)


def read_template(lang: str, page: str) -> str:
    return (SITE / lang / page).read_text(encoding="utf-8")


@cache
def compute(name: str) -> dict[str, Any]:
    return course.compute_chapter(name)


def make_page(lang: str, name: str, folder: Path) -> str:
    site = Site(lang, folder / lang, folder / "assets")
    course.write_chapter(site, name, compute(name), files=False)
    return (site.source / "course" / f"{name}.md").read_text(encoding="utf-8")


def test_twelve_chapters_in_both_languages() -> None:
    assert [name[:2] for name in CHAPTERS] == [f"{n:02}" for n in range(1, 13)]
    for lang in LANGS:
        there = sorted(path.stem for path in (SITE / lang / "course").glob("[0-9]*.md"))
        assert there == CHAPTERS


@pytest.mark.parametrize(
    "page", [f"course/{name}.md" for name in CHAPTERS] + ["index.md", "course/index.md", "teachers.md"]
)
def test_both_languages_call_the_same_widgets_on_the_same_numbers(page: str) -> None:
    zh, en = (read_template(lang, page) for lang in LANGS)
    assert re.findall(r"\{\{ (\w+)\(", zh) == re.findall(r"\{\{ (\w+)\(", en)
    assert re.findall(r'"([a-z]+-[a-z-]+)"', zh) == re.findall(r'"([a-z]+-[a-z-]+)"', en)
    assert re.search("[一-鿿]", zh)


@chapters
@pytest.mark.parametrize("lang", LANGS)
def test_a_chapter_has_its_four_parts_and_rests_on_labs(lang: str, name: str, tmp_path: Path) -> None:
    text = make_page(lang, name, tmp_path)
    assert text.count('class="predict"') == text.count('class="check"') == text.count('class="wrong"') == 1
    assert 'class="slide"' in text or 'class="softmax"' in text
    assert "nan" not in re.findall(r"\w+", text.lower())
    used = re.findall(r'<p class="lab"><a href="../labs/([a-z-]+)\.html"', text)
    assert used
    assert set(used) <= set(labs.list_names())


@chapters
def test_a_right_answer_is_computed_not_written(name: str) -> None:
    """What a prediction calls right is an expression over computed names; so is the value of a check."""
    for lang in LANGS:
        text = read_template(lang, f"course/{name}.md")
        for call in re.findall(r"\{\{ (?:predict|check)\((.*)\) \}\}", text):
            words = set(re.findall(r"[a-z_]\w*", re.sub(r'"[^"]*"', "", call)))
            assert words & set(compute(name)), call


def test_what_chapters_compute_is_what_is_known_elsewhere() -> None:
    """A word looks at the word it translates; published sizes; softmax by the formula alone."""
    five, ten, twelve = (compute(name) for name in ("05_attention", "10_words", "12_cache"))
    for word, source in {"tea": "茶", "table": "桌上", "finished": "看完"}.items():
        row = five["shares"][five["written"].index(word)]
        assert five["read"][row.index(max(row))] == source
    assert five["needed"] == "书"
    assert all(abs(sum(row) - 100) < 1 for row in five["shares"])
    first = 1 / (1 + math.exp(5.1 - 15.8) + math.exp(-3.2 - 15.8))
    assert ten["real"][0] == pytest.approx(first, abs=1e-12)
    assert twelve["mib"] == 4.5
    assert compute("06_heads")["width"] == compute("06_heads")["heads"] * compute("06_heads")["size"]


def test_a_computed_answer_that_is_no_option_is_an_error(tmp_path: Path) -> None:
    widgets = Widgets(Site("en", tmp_path, tmp_path), "course/x.md", files=False)
    with pytest.raises(ValueError, match="none of"):
        widgets.predict("?", ["a", "b"], "c", "")


def test_a_figure_has_its_files_words_and_a_line_to_cite(tmp_path: Path) -> None:
    site = Site("zh", tmp_path / "zh", tmp_path / "assets")
    widgets = Widgets(site, "course/01_token.md")
    text = widgets.draw("one", widgets.bars("概率", ["书", "茶"], [0.9, 0.1]), "两个词的概率")
    assert 'id="one"' in text
    assert "../assets/figures/zh/one.svg" in text
    assert "两个词的概率" in text
    files = [tmp_path / "assets" / "figures" / "zh" / f"one.{kind}" for kind in ("svg", "png")]
    first = [path.read_bytes() for path in files]
    assert b"<text" in first[0]  # stays text
    widgets.draw("one", widgets.bars("概率", ["书", "茶"], [0.9, 0.1]), "两个词的概率")
    assert [path.read_bytes() for path in files] == first


def test_the_recorded_run_is_whole_and_small() -> None:
    found = json.loads(learning.FILE.read_text(encoding="utf-8"))
    assert learning.FILE.stat().st_size < 2_000_000
    steps = [one["step"] for one in found["steps"]]
    assert steps == sorted(set(steps))
    for one in found["steps"]:
        assert len(one["said"]) == len(found["texts"])
        assert len(one["looks"]) == len(one["written"])
        for row in [*one["looks"], *(row for layer in one["heads"] for row in layer)]:
            assert len(row) == len(found["read"])
            assert abs(sum(row) - 100) <= len(row) / 2  # each is rounded
    assert found["steps"][-1]["loss"] < found["steps"][1]["loss"] / 3
    names, forms = learning.make_frames(Site("zh", ROOT, ROOT))
    assert len(names) == len(forms) == len(steps)


@chapters
def test_a_notebook_runs_and_speaks_both_languages(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = notebooks.make_notebook(name)
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    scope: dict[str, Any] = {"__name__": "__main__"}
    for cell in found["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            exec(compile(ast.parse(source), name, "exec"), scope)
        else:
            assert re.search("[一-鿿]", source)
            assert re.search("[a-z]{3}", source)
    assert set(compute(name)) <= set(scope)


def test_every_question_is_read_with_both_its_halves() -> None:
    found = asked.read_questions()
    rows = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8").count("| `qkv ")
    assert len(found) == rows >= 45
    for one in found:
        assert re.search("[一-鿿]", one.zh), one
        assert re.match("[A-Z]", one.en), one
        assert not re.search("[，。？]", one.en), one


def test_every_question_leads_to_a_lab_a_panel_or_an_output(tmp_path: Path) -> None:
    site = Site("en", tmp_path, tmp_path)
    every = asked.list_recorded()
    for one in asked.read_questions():
        assert one.lab in labs.list_names() if one.lab else set(questions.find_answer(one)) == set(LANGS), one
        assert all(panel in asked.PANELS.values() for panel in asked.list_panels(one))
        assert one.looks in every or not asked.list_panels(one)
        assert set(questions.list_explaining(site, one)) <= set(CHAPTERS)


def test_a_panel_opens_at_the_place_of_its_question(tmp_path: Path) -> None:
    found = {one.number: one for one in asked.read_questions()}
    walked = next(one for one in found.values() if "--part" in one.words and "encoder" in one.words)
    place = questions.find_place(walked)
    model = qkv.load("demo")
    at = model.tokenizer.pieces(model.ids(walked.words[3])).index("它")
    assert (place["part"], place["query"]) == ("encoder", at)
    link = Widgets(Site("en", tmp_path, tmp_path), "questions.md").look("walk", "demo-1", "walk", **place)
    recorded, computes = (html.unescape(one) for one in re.findall(r'"([^"]*)"', link))
    assert recorded == "../assets/inside/demo-1.html#panel=walk&lang=en"
    address, _, said = computes.partition("#")
    assert address == "../assets/look.html?model=demo"
    said = dict(urllib.parse.parse_qsl(said))
    assert json.loads(said.pop("ask")) == {"text": walked.words[3]}
    assert said == {"panel": "walk", "lang": "en", **{key: str(x) for key, x in place.items()}}
    assert questions.find_place(next(one for one in found.values() if one.lab)) == {}


def test_what_a_command_prints_stands_on_the_page(tmp_path: Path) -> None:
    site = Site("en", tmp_path, tmp_path)
    text = questions.show_output(site, "qkv look demo-lm 'One, two,' --show mask")
    assert "causal" in text
    with pytest.raises(RuntimeError, match="exit"):
        questions.run_command("qkv look demo-lm '' --show mask", "en")


def test_a_document_leads_to_pages_and_names_what_has_none(tmp_path: Path) -> None:
    site = Site("en", tmp_path, tmp_path)
    site.places = repository.list_documents(site)
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= set(site.places)
    text = repository.carry_over(site, ROOT / "README.md", "docs/readme.md")
    assert "](usage.md)" in text
    assert "](../misconceptions.md)" in text
    assert "../assets/docs/page.png" in text
    assert "](src/" not in text
    assert "](notebooks/" not in text


PAGE = '<html><body><h1 id="there">x</h1>{}</body></html>'
FAULTS = {
    '<a href="gone.html">x</a>': "gone.html",
    '<a href="#nowhere">x</a>': "nowhere",
    '<a href="b.html#nowhere">x</a>': "nowhere",
    '<img src="gone.png" alt="">': "gone.png",
    '<script src="https://example.org/x.js"></script>': "example.org",
    '<link rel="stylesheet" href="//example.org/x.css">': "example.org",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_link_is_found(fault: str, tmp_path: Path) -> None:
    (tmp_path / "b.html").write_text(PAGE.format(""), encoding="utf-8")
    (tmp_path / "a.html").write_text(PAGE.format('<a href="b.html#there">x</a>'), encoding="utf-8")
    assert links.check_site(tmp_path) == []
    (tmp_path / "a.html").write_text(PAGE.format(fault), encoding="utf-8")
    assert [FAULTS[fault] in line for line in links.check_site(tmp_path)] == [True]


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes the table of moved addresses and the list of promised ones."""

    def write(moved: str, promised: str) -> None:
        for name, text in (("MOVED", f"[moved]\n{moved}"), ("ADDRESSES", promised)):
            path = tmp_path / f"{name.lower()}.toml"
            path.write_text(text, encoding="utf-8")
            monkeypatch.setattr(offline, name, path)

    return write


def test_an_address_that_is_gone_must_have_moved(tables: Any) -> None:
    there = {"questions.html", "questions.html#q-1", "labs/new.html"}
    tables("", "questions.html questions.html#q-1")
    assert list(offline.find_gone(there)) == []
    tables("", "labs/old.html questions.html#q-2")
    assert [line.split(":")[0] for line in offline.find_gone(there)] == ["labs/old.html", "questions.html#q-2"]
    tables('"labs/old.html" = "labs/new.html"', "labs/old.html")
    assert list(offline.find_gone(there)) == []
    tables('"labs/old.html" = "labs/newer.html"', "labs/old.html")
    assert ["labs/newer.html" in line for line in offline.find_gone(there)] == [True]


def test_a_moved_page_leads_on_and_every_file_has_its_hash(tables: Any, tmp_path: Path) -> None:
    tables('"labs/old.html" = "labs/new.html#there"', "")
    folder = tmp_path / "site"
    for name in ("index.html", "en/index.html", "assets/inside/demo-1.html", "assets/lunr/min/lunr.ar.min.js"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name, encoding="utf-8")
    offline.finish_site(folder)
    for page in ("labs/old.html", "en/labs/old.html"):
        assert "url=../labs/new.html?from=labs/old.html#there" in (folder / page).read_text(encoding="utf-8")
    listed = json.loads((folder / "files.json").read_text(encoding="utf-8"))
    assert {path: said.get("lang") for path, said in listed.items()} == {
        "index.html": "zh", "en/index.html": "en", "404.html": "zh", "labs/old.html": "zh", "en/labs/old.html": "en",
        "assets/inside/demo-1.html": None, "assets/lunr/min/lunr.ar.min.js": None, "assets/moved.json": None,
    }  # fmt: skip
    first = (folder / "sw.js").read_text(encoding="utf-8")
    (folder / "index.html").write_text("another", encoding="utf-8")
    offline.finish_site(folder)
    assert (folder / "sw.js").read_text(encoding="utf-8") != first  # browsers see that there is a new build


def test_promised_addresses_are_those_of_what_there_is() -> None:
    """Without building: pages and questions in the list, those of the repository, neither more nor fewer."""
    promised = {a for a in offline.ADDRESSES.read_text(encoding="utf-8").split() if a not in offline.read_moved()}
    assert {f"labs/{name}.html" for name in labs.list_names()} <= promised
    assert {f"course/{name}.html" for name in CHAPTERS} <= promised
    those = {f"questions.html#q-{one.number}" for one in asked.read_questions()}
    assert those == {a for a in promised if a.startswith("questions.html#q-")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("material") is None:
        pytest.skip("needs MkDocs Material: pip install 'qkv[site]'")
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "tools.website", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return folder


@pytest.fixture
def address(built: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=built)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_site_is_whole(built: Path) -> None:
    pages = {path.relative_to(built).as_posix() for path in built.rglob("*.html")}
    own = {page for page in pages if not page.startswith(("en/", "assets/"))}
    assert {f"en/{page}" for page in own - {"404.html"}} <= pages  # that one speaks both languages
    assert {f"labs/{name}.html" for name in labs.list_names()} <= own
    for lang in ("", "en/"):
        index = json.loads((built / lang / "search" / "search_index.json").read_text(encoding="utf-8"))
        assert len(index["docs"]) > 200


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_site_in_a_real_browser(built: Path, address: str) -> None:
    found = browsing.browsed("site.mjs", address)
    assert found["first"]["bytes"] <= 400_000
    assert max(found["heights"].values()) <= 1800  # two screens
    assert all(one["answers"] >= 45 for one in found["questions"])
    assert all(found["search"])


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_site_without_a_network_and_by_old_links(built: Path) -> None:
    found = browsing.browsed("offline.mjs", str(built))
    assert found["asked"] < 200  # one language, without recorded pages


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_site_on_a_phone(built: Path) -> None:
    found = browsing.browsed("phone.mjs", str(built))
    assert found["first"]["bytes"] <= 400_000
    assert found["with_model"] <= 3_000_000
    assert found["again"]["bytes"] == 0  # all of it was kept


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_site_in_firefox(built: Path) -> None:
    firefox = os.environ.get("FIREFOX") or shutil.which("firefox-esr") or shutil.which("firefox")
    if firefox is None or shutil.which("node") is None:
        pytest.skip("needs Node and Firefox")
    program = [shutil.which("node") or "", "--experimental-websocket", "tests/firefox.mjs", str(built)]
    done = subprocess.run(program, cwd=browsing.WEB, capture_output=True, encoding="utf-8", timeout=900, check=False,
                          env={**os.environ, "FIREFOX": firefox})
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["pages"] == 48
    assert "book" in found["translated"]
    assert float(found["lab"]) < 1e-4
