"""The page's front end: its words in both languages, its bundle, and every panel in a real browser."""

import gzip
import importlib.util
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support import browsing

from qkv.explore import server
from qkv.explore.question import RecentRuns

ROOT = Path(__file__).parents[2]
WEB, STATIC = ROOT / "web", ROOT / "src" / "qkv" / "explore" / "static"
TINY = ("gqa", "latent", "relative", "window")  # random models: shared keys, MLA, T5's bias, a sliding window
EXAMPLES = {
    "demo": ["书和茶都在桌上，我看完了它。"],
    "demo-lm": ["One, two, buckle my"],
    "demo-bert": ["我爱[MASK]。"],
    "demo-moe": ["我看完了那本书。"],
    **{name: ["丐丑且丕世"] for name in TINY},
}
ENTRY = re.compile(r'^\s+"([^"]+)": \[(.*)\],?$')
PAIR = re.compile(r'\s*("(?:[^"\\]|\\.)+"),\s*("(?:[^"\\]|\\.)+")\s*')

in_source = pytest.mark.skipif(not (WEB / "src").is_dir(), reason="the page's source is not here")


def sources() -> list[Path]:
    return sorted((WEB / "src").rglob("*.ts"))


def entries(folder: Path | None = None) -> Iterator[tuple[str, str]]:
    """Each key of the dictionaries, or of a folder's, and what stands between its brackets."""
    for path in sources():
        if path.name.startswith("words") and folder in (None, path.parent):
            for line in path.read_text(encoding="utf-8").splitlines():
                if found := ENTRY.match(line):
                    yield found[1], found[2]


def faulty(found: dict[str, str]) -> list[str]:
    """Keys that lack a language, or whose two texts are filled in with different things."""
    bad: list[str] = []
    for key, text in found.items():
        pair = PAIR.fullmatch(text)
        if pair is None or set(re.findall(r"\{\d\}", pair[1])) != set(re.findall(r"\{\d\}", pair[2])):
            bad.append(key)
    return bad


@in_source
def test_every_word_is_there_in_chinese_and_english() -> None:
    found = dict(entries())
    assert len(found) > 150
    assert faulty(found) == []


def test_a_missing_language_and_a_lost_filling_are_found() -> None:
    found = {"a": '"好", "good"', "b": '"只有"', "c": '"第 {0} 层", "layer"', "d": '"", "empty"'}
    assert faulty(found) == ["b", "c", "d"]


@in_source
def test_keys_are_written_once() -> None:
    for folder in {path.parent for path in sources()}:  # each page has words of its own
        keys = [key for key, _ in entries(folder)]
        assert sorted(set(keys)) == sorted(keys)


@in_source
def test_no_number_is_invented_and_nothing_is_fetched_from_elsewhere() -> None:
    for path in sources():
        text = path.read_text(encoding="utf-8")
        assert "Math.random" not in text, path
        assert "getRandomValues" not in text, path
        assert not re.search(r"https?://", text), path
        assert ".innerHTML" not in text, path
        assert "unsafeHTML" not in text, path


@in_source
def test_words_stand_in_the_dictionary_only() -> None:
    for path in sources():
        if path.name.startswith("words"):
            continue
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        code = re.sub(r"\{ zh: .*? en: .*? \}", "", code)  # what goes wrong is said in both at once
        code = code.replace('"它"', "")  # a word that is looked for, not one that is said
        assert not re.search(r"[\u4e00-\u9fff]", code), path


def test_the_bundle_is_small_and_whole() -> None:
    size = sum(len(gzip.compress((STATIC / n).read_bytes(), 9, mtime=0)) for n in ("app.js", "app.css", "index.html"))
    assert size <= 250_000
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert 'src="app.js"' in page
    assert 'href="app.css"' in page
    assert not re.search(r"<script(?![^>]*src=)", page)  # the policy forbids a script in the page itself


def test_the_lock_file_names_no_registry() -> None:
    lock = WEB / "package-lock.json"
    if not lock.is_file():
        pytest.skip("the page's source is not here")
    text = lock.read_text(encoding="utf-8")
    assert "://" not in re.sub(r'"(url|funding)": "[^"]*"', "", text)
    assert '"resolved"' not in text


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("web", ROOT / "tools" / "web.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_bundle_that_is_not_what_is_built_is_named(tmp_path: Path) -> None:
    web = tool()
    for name in web.BUILT:
        shutil.copy(STATIC / name, tmp_path / name)
    assert web.differing(tmp_path, STATIC) == []
    with (tmp_path / "app.js").open("a", encoding="utf-8") as file:
        file.write("\n")
    assert web.differing(tmp_path, STATIC) == ["app.js"]


# In a browser


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_every_panel_works_in_a_browser_and_numbers_are_what_lines_give() -> None:
    browsing.chromium()
    from explore.test_answers import model_of

    desk = server.Desk(list(EXAMPLES), model_of, examples=EXAMPLES, shelf=RecentRuns(64))
    page = server.Page(desk)
    url = page.start()
    try:
        numbers = browsing.browsed("page.mjs", url, ",".join(EXAMPLES), timeout=3400)
    finally:
        page.stop()
    assert len(numbers) >= 100
    assert browsing.wrong(numbers, desk.shelf) == []
    assert browsing.wrong([{**numbers[0], "value": "123456.5"}], desk.shelf)  # a false number is found
