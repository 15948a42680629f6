"""The page that computes, in a real browser and without a server of ours: every view of every model, and bad input."""

import functools
import http.server
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browsing import browsed, chromium, wrong
from support.web_models import MODELS, WEB, load_unpacked

import qkv
from qkv.explore.question import Question, ask
from qkv.explore.web_model import write_web_model

pytestmark = pytest.mark.nightly
TEXT = "我看完了那本书。"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Plain files, as `python -m http.server` gives them."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Where the built page is served."""
    chromium()
    subprocess.run(["node", "build.mjs", "live", str(tmp_path)], cwd=WEB, check=True, timeout=120)
    for name in MODELS:
        folder = tmp_path / "models" / name
        write_web_model(qkv.load(name), folder, name=name, dtype="int8", examples=[TEXT])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join(5)


def test_every_view_of_every_model_and_bad_input(address: str, tmp_path: Path) -> None:
    found = browsed("computing.mjs", address)
    assert set(found) == {"load", "again", "proof"}


def test_the_first_load_is_small(address: str, tmp_path: Path) -> None:
    page = sum((tmp_path / name).stat().st_size for name in ("index.html", "qkv-live.js"))
    model = sum(path.stat().st_size for path in (tmp_path / "models" / "demo").iterdir())
    assert page <= 400_000
    assert page + model <= 3_000_000


@pytest.mark.timeout(1800)
def test_numbers_of_every_panel_are_what_their_lines_give(address: str, tmp_path: Path) -> None:
    numbers = browsed("numbers.mjs", address, ",".join(MODELS))
    assert len(numbers) >= 735  # as many as the page that asks a server has had re-evaluated
    runs = {name: ask(load_unpacked(name, tmp_path / "models" / name), Question(TEXT), name) for name in MODELS}

    class Shelf:
        """The runs by the names of their models."""

        get = runs.__getitem__

    assert wrong(numbers, Shelf(), rough=2e-3) == []
    assert wrong([{**numbers[0], "value": "123456.5"}], Shelf(), rough=2e-3)  # a false number is found
