"""What a reader does with the page, in a real browser: its pictures, its beams, a copied state, and every question."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import browsing

import qkv
from qkv.explore import server
from qkv.explore.question import RecentRuns
from qkv.training import recipes
from qkv.training.probes import recorder
from qkv.training.probes.records import ProbeLog

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    "demo": ["书和茶都在桌上，我看完了它。"], "demo-lm": ["One, two,"], "demo-bert": ["我爱[MASK]。"],
    "demo-moe": ["我爱喝茶。"],
}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that recorded itself."""
    sys.path.insert(0, str(ROOT / "tests" / "training"))
    from test_probes import run_of  # pyright: ignore[reportMissingImports]

    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder.Recorder, "is_due", lambda self, step, seconds, total: True)
        recipes.train(run_of("marian"), out=folder / "toy", device="cpu")
    return folder


@contextmanager
def served(watched: Path) -> Iterator[server.Page]:
    """The page, once it is ready to open at once."""
    browsing.chromium()
    desk = server.Desk(list(EXAMPLES), qkv.load, examples=EXAMPLES, shelf=RecentRuns(64), watched=watched)
    desk.events.send({"kind": "step", "step": 6, "loss": 0.1})
    page = server.Page(desk)
    page.start()
    try:
        assert page.desk.begun
        page.desk.begun[1].result(120)
        yield page
    finally:
        page.stop()


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_pictures_beams_copied_states_and_wishes(watched: Path, tmp_path: Path) -> None:
    with served(watched) as page:
        numbers = browsing.browsed("tools.mjs", page.url, str(tmp_path))
    assert len(numbers) >= 12
    assert browsing.wrong(numbers, page.desk.shelf) == []
    assert ProbeLog(watched / "toy").requests == ("我爱 茶。",)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_every_question_that_names_a_panel_is_answered_by_clicking(watched: Path) -> None:
    with served(watched) as page:
        found = browsing.browsed("questions.mjs", page.url, str(ROOT / "docs" / "questions.md"))
    assert len(found) >= 30
    assert [one["question"] for one in found if one["seconds"] > 60] == []
