"""One description and three back-ends: letters, HTML and matplotlib say the same numbers; a fault is seen."""

import math
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from qkv.errors import QkvError
from qkv.plots import figure, forms, html, terminal
from qkv.plots.forms import Bars, Grid, Lines, Table
from qkv.plots.text import bar, clean, format_number, percent

POINTS = st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=30)


def read_svg(page: str) -> ElementTree.Element:
    """The first picture of a page."""
    return ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])


@given(st.dictionaries(st.text(min_size=1, max_size=8), POINTS, min_size=1, max_size=4), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_any_curves_can_be_drawn(lines: dict[str, list[tuple[float, float]]], wide: int) -> None:
    rows = terminal.plot_dots(lines, wide=wide, height=5)
    assert [len(row) for row in rows] == [wide] * 5
    marked = [(letter, who) for row in rows for letter, who in row if who >= 0]
    assert marked
    ends = "ABCD" * (len(lines) > 1)  # of several curves each ends in its letter
    assert all("\u2800" < letter <= "\u28ff" or letter in ends for letter, _ in marked)
    tidy = {re.sub(r"[\x00-\x1f\ud800-\udfff\ufffe\uffff]", "", k): v for k, v in lines.items()}
    tree = read_svg(html.render(Lines("", (), tidy, x_label="<steps>", y_label="a&b")))
    drawn = list(tree.iter("polyline"))
    assert len(drawn) == len(tidy)
    _, _, most_x, most_y = map(float, tree.attrib["viewBox"].split())
    for line in drawn:
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= most_x
            assert 0 <= y <= most_y


def test_a_falling_curve_falls() -> None:
    rows = terminal.plot_dots({"a": [(0, 9), (10, 1)]}, wide=10, height=4)
    columns = [next(i for i, row in enumerate(rows) if row[x][1] == 0) for x in range(10)]
    assert columns == sorted(columns)
    assert (columns[0], columns[-1]) == (0, 3)
    points = read_svg(html.render(Lines("", (), {"a": [(0, 9), (10, 1)]}))).find("polyline")
    assert points is not None
    (x0, y0), (x1, y1) = (map(float, p.split(",")) for p in points.attrib["points"].split())
    assert (x0 < x1, y0 < y1) == (True, True), "the picture's y counts from the top"


def test_points_that_are_not_finite_are_left_out() -> None:
    form = Lines("", (), {"a": [(0, math.nan), (1, 2), (2, math.inf)], "b": [(3, math.nan)]})
    assert form.curves == {"a": [(1, 2)], "b": []}
    assert forms.find_bounds(form.curves)[:2] == (1, 2)
    assert html.render(form).count("<polyline") == 2
    assert len(terminal.render(form)) == 21
    assert "nan" in "\n".join(terminal.render(Bars("", ["a", "b"], [math.nan, 1.0])))
    assert "nan" in html.render(Bars("", ["a", "b"], [math.nan, 1.0]))
    pytest.importorskip("matplotlib")
    assert len(figure.draw([form, Bars("", ["a", "b"], [math.nan, 1.0])]).axes) == 2


def test_a_log_scale_keeps_the_least_positive_value_visible() -> None:
    assert forms.scale([[1.0, 10.0, 100.0, 0.0]], log=True)[0] == pytest.approx([0.2, 0.6, 1.0, 0.0])
    assert forms.scale([[1.0, -4.0]]) == [[0.25, 1.0]]
    rows = terminal.render(Bars("", ["a", "b"], [1.0, 1e6], log=True))
    assert [row.count("█") for row in rows] == [3, terminal.COLUMNS, 0, 0]
    assert "(logarithmic scale)" in rows
    ticks = [t.text for t in read_svg(html.render(Lines("", ["x", "y"], {"": [2.0, 900.0]}, log=True))).iter("text")]
    assert {"2", "5", "10", "100"} <= set(ticks)


@pytest.mark.parametrize("back", ["terminal", "html", "figure"])
def test_every_number_of_several_series_is_there(back: str) -> None:
    form = Bars("t", ["one", "two"], {"ours": [1.5, 2.5], "theirs": [3.5, 4.5]}, "their page", published=True)
    if back == "figure":
        pytest.importorskip("matplotlib")
        fig = figure.draw([form])
        text = "\n".join(t.get_text() for t in fig.findobj(lambda x: hasattr(x, "get_text")))
        assert fig.axes[0].get_facecolor()[0] < 1.0, "numbers of others stand on grey"
    else:
        text = html.render(form) if back == "html" else "\n".join(terminal.render(form))
    assert all(word in text for word in ("t", "one", "two", "1.5", "2.5", "3.5", "4.5", "their page"))
    assert all(word in text for word in ("ours", "theirs"))


def test_forms_stand_side_by_side_in_their_rows() -> None:
    pytest.importorskip("matplotlib")
    grids = [Grid(f"g{i}", ["r"], [""] * 4, [[0.1, 0.2, -0.3, 1.0]]) for i in range(5)]
    axes = figure.draw([grids[:3], grids[3:], Lines("l", ["a", "b"], {"s": [1.0, 2.0]})], "whole").axes
    assert [ax.get_title(loc="left") for ax in axes] == ["g0", "g1", "g2", "g3", "g4", "l"]
    spans = [ax.get_subplotspec().colspan for ax in axes]  # type: ignore[union-attr]
    assert [len(span) for span in spans] == [2, 2, 2, 3, 3, 6]
    assert axes[0].images[0].get_array().tolist() == [[0.1, 0.2, -0.3, 1.0]]  # type: ignore[union-attr]


def test_columns_stand_under_each_other_in_chinese_too() -> None:
    rows = terminal.render(Table("", [[("书", 0.0), percent(0.5)], [("book", 0.7), bar(1.0, 1.0, 4)]], "note"))
    first, second, note = map(click.unstyle, rows)
    assert cell_len(first[: first.index("▒")]) == cell_len(second[: second.index("█")]) == 8
    assert note == "  note"
    assert rows[1] != second, "a heavy cell has its colour"


def test_cells_hold_no_control_characters() -> None:
    assert [clean(t) for t in (" a ", "", " ", "a\n", "\x1b[31m")] == ["a", "", "␣", "a⏎", "\\x1b[31m"]
    assert [format_number(x) for x in (3.0, 12345.0, 0.12345, 1e20)] == ["3", "12,345", "0.123", "1e+20"]


def test_numbers_of_a_table_stand_to_the_right() -> None:
    page = html.render(Table("", [["name", "loss"], ["a", "1,234.5"], ["b", "–"]]))
    assert page.count("text-align:right") == 3


def test_a_page_needs_nothing_from_elsewhere_and_names_are_text() -> None:
    body = html.render(Lines("", (), {"<b>x</b>": [(0, 1), (1, 2)]}, x_label="steps", y_label="loss"))
    text = html.page("<b>", body + html.render(Table("", [["name"], ["<b>x</b>"]])), "en")
    assert "<b>" not in text
    assert "&lt;b&gt;x&lt;/b&gt;" in text
    assert not re.search(r"(src|href)\s*=|@import|url\(|https?:", text)
    assert text.count("<polyline") == 1


def test_a_picture_is_written_or_matplotlib_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    form = Lines("", (), {"a": [(0, 1), (1, 2)]}, x_label="steps", y_label="loss")
    for name in ("deep/a.png", "deep/b.png"):
        figure.save_figure(figure.draw([form]), tmp_path / name)
    assert (tmp_path / "deep" / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "deep" / "a.png").read_bytes() == (tmp_path / "deep" / "b.png").read_bytes()
    with pytest.raises(QkvError, match="expected a name that ends in"):
        figure.check_name(tmp_path / "a.gif")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(QkvError, match=r"pip install 'qkv\[plot\]'"):
        figure.draw([form])


@pytest.mark.parametrize("fault", ["scale", "curves", "order"])
def test_a_fault_would_be_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "scale":
        monkeypatch.setattr(forms, "scale", lambda rows, log=False: [[1.0 for _ in row] for row in rows])
        with pytest.raises(AssertionError):
            test_a_log_scale_keeps_the_least_positive_value_visible()
    elif fault == "curves":
        monkeypatch.setattr(Lines, "curves", property(lambda form: dict(form.series)))
        with pytest.raises((AssertionError, ValueError)):
            test_points_that_are_not_finite_are_left_out()
    else:
        right = terminal.plot_dots
        monkeypatch.setattr(terminal, "plot_dots", lambda curves, **size: right(curves, **size)[::-1])
        with pytest.raises(AssertionError):
            test_a_falling_curve_falls()
