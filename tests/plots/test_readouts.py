"""Readouts show themselves in a notebook and as figures: real numbers and words, no script, readable light and dark."""

import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.errors import QkvError
from qkv.lens import attribution, embeddings, logit_lens
from qkv.messages import Given
from qkv.plots import figure, forms, html
from qkv.plots.forms import Bars, Drawn, Grid, Lines, Table
from qkv.plots.text import format_number
from qkv.sampling import Sampling

TAPS = ["lens", "parts", "walk", "choices", "shift", "diff", "patterns"]


@pytest.fixture(scope="module")
def found() -> dict[str, Drawn]:
    """Every readout once, from the bundled models."""
    lm, nmt, moe = (qkv.load(n) for n in ("demo-lm", "demo", "demo-moe"))
    with lm.trace(save=TAPS) as t:
        lm.generate("One, two, <b>", max_new_tokens=3)
    with lm.trace(save=["diff"]) as other:
        lm.generate("Three, two, <b>", max_new_tokens=3)
    with nmt.trace(save=["alignment", "shift"]) as source:
        nmt.translate("书和茶都在桌上，我看完了它。", beam=1)
    with moe.trace(save=["routes"]) as routed:
        moe.generate("我看完了那本书。", max_new_tokens=2)
    return {
        "lens": t.lens(), "parts": t.parts(), "walk": t.walk("layers.1.attn", query=2, key=1), "mask": t.mask(),
        "choices": t.choices(sampling=Sampling(0.7, top_k=3)), "wavefront": t.wavefront(), "cache": t.cache(),
        "gradient": t.gradient(), "neighbours": t.neighbours("One"), "diff": t.diff(other),
        "analogy": source.analogy("书", "看", "茶"), "routes": routed.routes(), "alignment": source.alignment(),
        "shift": source.shift("它", ["书", "茶"], side="encoder."), "cross mask": source.mask("decoder.layers.0.cross"),
    }  # fmt: skip


EMPTY = ("rect", "line", "circle")


class Tags(HTMLParser):
    """Reads HTML and keeps its tags, its cells, and whether every one was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def each(test: Callable[..., None]) -> Callable[..., None]:
    names = ("lens", "parts", "walk", "mask", "choices", "wavefront", "cache", "gradient", "neighbours", "diff",
             "analogy", "routes", "alignment", "shift", "cross mask")  # fmt: skip
    return pytest.mark.parametrize("name", names)(test)


@each
def test_a_notebook_shows_every_readout_without_script(found: dict[str, Drawn], name: str) -> None:
    shown = found[name]._repr_html_()
    read = Tags(shown)
    assert read.open == []
    assert read.tags <= {"figure", "figcaption", "div", "table", "tr", "th", "td", "svg", "rect", "polyline", "text",
                         "line", "circle", "title"}  # fmt: skip
    assert not re.search(r"https?:|url\(|\bon\w+=|src=", shown)
    assert not re.search(r"[^-]color:(?!inherit)", shown), "text has the notebook's own colour"
    assert len(read.texts) > 4


@each
def test_every_readout_makes_a_figure(found: dict[str, Drawn], name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    fig = found[name].plot()
    assert len(fig.axes) == len(found[name].forms())
    fig.savefig(tmp_path / "one.svg")
    assert (tmp_path / "one.svg").read_text(encoding="utf-8").count("<svg") == 1
    assert fig._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_what_is_drawn_is_what_the_readout_says(found: dict[str, Drawn]) -> None:
    guesses, pushed = found["lens"], found["parts"]
    assert isinstance(guesses, logit_lens.Guesses)
    assert isinstance(pushed, attribution.Parts)
    (grid,) = guesses.forms()
    assert isinstance(grid, Grid)
    assert grid.cells[0][-1] == f"{guesses.best[-1][-1]} {100 * float(guesses.chances[-1, -1, 0]):.0f}%"
    assert grid.cells[0][0] == f"({guesses.best[-1][0]})"
    assert [float(grid.shade[0, i]) for i in (0, -1)] == [0.0, float(guesses.chances[-1, -1, 0])]
    sums, _ = pushed.forms()
    assert isinstance(sums, Bars)
    assert abs(sum(sums.series[""]) - pushed.logit) < 1e-4
    assert pushed.goal in sums.title
    near = found["neighbours"]
    assert isinstance(near, embeddings.Neighbours)
    assert format_number(near[0].cosine, 4) in near._repr_html_()
    texts = Tags(found["alignment"]._repr_html_()).texts
    assert {"书", "茶", "它"} <= {x.strip() for x in texts}
    (square,) = found["mask"].forms()
    assert isinstance(square, Grid)
    assert square.cells[0][:2] == ["■", "·"]


def test_words_of_the_text_cannot_become_html(found: dict[str, Drawn]) -> None:
    table = html.render(Table("<i>", [["<b>", "&"], ["x", "<script>"]]))
    assert "<i>" not in table
    assert "<script>" not in table
    for form in (Bars("", ["<b>"], [1.0]), Lines("", ["<b>", "c"], {"<b>": [1.0, 2.0]}),
                 Bars("<b>", ["x"], {"<b>": [1.0], "<b>c": [2.0]}, "<b>", x_label="<b>", y_label="<b>"),
                 Lines("<b>", (), {"<b>": [(1.0, 2.0)]}, "<b>", x_label="<b>", y_label="<b>"),
                 Grid("", ["<b>"], ["<b>"], torch.ones(1, 1), [["<b>"]])):  # fmt: skip
        assert "<b>" not in html.render(form)


def test_text_is_readable_on_every_shade_in_light_and_in_dark() -> None:
    """Contrast as WCAG 2 counts it, of black on white blended with the colour, and of white on black."""

    def light(rgb: list[float]) -> float:
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
        return sum(c * w for c, w in zip(parts, (0.2126, 0.7152, 0.0722), strict=True))

    for colour in (html.BLUE, html.ORANGE):
        rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        for paper in (0.0, 1.0):
            for share in (0.1, 0.5, 1.0):
                under = light([share * c + (1 - share) * paper for c in rgb])
                ink = 1.0 - paper
                contrast = (max(under, ink) + 0.05) / (min(under, ink) + 0.05)
                assert contrast >= 4.5, (colour, paper, share, contrast)


class Pictures(Drawn):
    """Some forms."""

    def __init__(self, *made: forms.Form) -> None:
        self.made = made

    def forms(self) -> tuple[forms.Form, ...]:
        return self.made


def test_a_very_large_grid_shows_its_end_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    size = forms.MAX_CELLS + 6
    names = [f"w{i}" for i in range(size)]
    shown = html.render(Grid("", names, names, torch.eye(size)))
    assert f"the last {forms.MAX_CELLS} of {size} × {size}" in shown
    assert f">w{size - 1}<" in shown
    assert ">w5<" not in shown
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(figure, "find_chinese", lambda: ["DejaVu Sans"])
    (ax,) = Pictures(Grid(Given({"zh": "题", "en": "title"}), names, names, torch.eye(size))).plot().axes
    assert len(ax.get_yticks()) == forms.MAX_CELLS
    told = (
        f"题（最后 {forms.MAX_CELLS} 个，全部 {size} × {size}）\ntitle (the last {forms.MAX_CELLS} of {size} × {size})"
    )
    assert ax.get_title(loc="left") == told
    (whole,) = Pictures(Grid(Given({"zh": "题", "en": "title"}), names[:3], names[:3], torch.eye(3))).plot().axes
    assert whole.get_title(loc="left") == "题\ntitle"
    monkeypatch.setattr(figure, "find_chinese", list)
    (bare,) = Pictures(Grid(Given({"zh": "题", "en": "title"}), names[:3], names[:3], torch.eye(3))).plot().axes
    assert bare.get_title(loc="left") == "title", "no Chinese font is installed"


def test_a_chinese_font_is_found_that_matplotlib_did_not_list(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = pytest.importorskip("matplotlib.font_manager").fontManager
    if not (known := figure.find_chinese()):
        pytest.skip("no Chinese font is installed")
    files = {f.fname for f in manager.ttflist if f.name in figure.CJK}
    monkeypatch.setattr(manager, "ttflist", [f for f in manager.ttflist if f.fname not in files])
    figure.read_new_fonts.cache_clear()
    assert figure.find_chinese() == known
    figure.read_new_fonts.cache_clear()


def test_without_matplotlib_the_error_says_what_to_install(
    found: dict[str, Drawn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(QkvError, match=r"pip install 'qkv\[plot\]'"):
        found["lens"].plot()
    assert "<table" in found["lens"]._repr_html_()


@pytest.mark.parametrize("fault", ["escape", "style", "names"])
def test_a_fault_would_be_seen(found: dict[str, Drawn], fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "escape":
        monkeypatch.setattr(html, "escape", lambda text: text)
        with pytest.raises(AssertionError):
            test_words_of_the_text_cannot_become_html(found)
    elif fault == "style":
        monkeypatch.setattr(html, "BLUE", "#003a70")
        with pytest.raises(AssertionError):
            test_text_is_readable_on_every_shade_in_light_and_in_dark()
    else:
        monkeypatch.setattr(logit_lens.Guesses, "best", ((),), raising=False)
        moved = logit_lens.Guesses(**{**vars(found["lens"]), "chances": vars(found["lens"])["chances"].flip(0)})
        with pytest.raises(AssertionError):
            test_what_is_drawn_is_what_the_readout_says({**found, "lens": Swapped(moved, found["lens"])})


class Swapped(logit_lens.Guesses):
    """Says one thing and draws another."""

    def __init__(self, drawn: Any, said: Any) -> None:
        self.__dict__.update(vars(said))
        self.__dict__["drawn"] = drawn

    def forms(self) -> Any:
        return self.__dict__["drawn"].forms()
