"""What a chapter calls: figures, figures that a slider moves, a prediction, a check, a lab's verdict, the live model.

Every widget is plain HTML that can be read without a script; site/assets/course.js makes it move.
"""

import json
from collections.abc import Sequence
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

from qkv import labs
from qkv.labs.lab import VERDICTS
from qkv.plots.forms import Bars, Form, Grid, Lines, Table

from . import asked, learning
from .figures import Drawing, cite, render, save_files
from .pages import Site

MARK = {"shown": "✓", "true only when": "±", "not shown": "?", "refuted": "✗"}


def attribute(text: object) -> str:
    """A text between the quotes of an attribute."""
    return escape(str(text), quote=True)


def make_slider(name: str, label: str, over: tuple[float, float, float], value: float) -> str:
    """A slider with its label and what it says: from, to, step."""
    low, high, step = over
    return (
        f'<p class="slider"><label for="{name}">{escape(label)}</label> <input type="range" id="{name}" min="{low}" '
        f'max="{high}" step="{step}" value="{value}"> <output for="{name}"></output></p>'
    )


class Widgets:
    """The functions that a page's template sees; `drawings` collects the figures that were given files."""

    def __init__(self, site: Site, page: str, *, files: bool = True) -> None:
        self.site, self.page, self.files = site, page, files
        self.drawings: list[Drawing] = []
        self.count = 0

    def names(self) -> dict[str, Any]:
        """What a template may call."""
        listed = ("bars", "grid", "lines", "table", "draw", "slide_bars", "slide_grid", "slide_rows", "predict",
                  "check", "refute", "verdict", "mean", "live", "look", "softmax", "percent", "watch")
        return {name: getattr(self, name) for name in listed}

    def percent(self, share: float, digits: int = 0) -> str:
        """A share in percent."""
        return f"{100 * share:.{digits}f}%"

    def bars(self, title: str, names: Sequence[str], values: Any, **axes: Any) -> Form:
        """Bars, as a form."""
        return Bars(title, names, values, **axes)

    def lines(self, title: str, places: Sequence[str], series: Any, **axes: Any) -> Form:
        """Lines, as a form."""
        return Lines(title, places, series, **axes)

    def table(self, title: str, rows: Sequence[Sequence[Any]], **axes: Any) -> Form:
        """A table, as a form; numbers become words."""
        return Table(title, [[str(cell) for cell in row] for row in rows], **axes)

    def grid(self, title: str, rows: Sequence[str], columns: Sequence[str], shade: Any, **axes: Any) -> Form:
        """Shaded cells with percents in them, as a form."""
        shades = shade.tolist() if hasattr(shade, "tolist") else shade
        cells = axes.pop("cells", [[f"{100 * x:.0f}" if x >= 0.01 else "" for x in row] for row in shades])
        return Grid(title, rows, columns, shades, cells, **axes)

    def slide_bars(
        self, name: str, label: str, steps: Sequence[str], names: Sequence[str], rows: Sequence[Any], *, title: str,
        alt: str, start: int = 0, **axes: Any,
    ) -> str:
        """Bars for each step: a row of values, the names the same for all."""
        return self.slide(name, label, steps, [[Bars(title, names, row, **axes)] for row in rows], alt=alt, start=start)

    def slide_grid(
        self, name: str, label: str, steps: Sequence[str], grids: Sequence[tuple[Any, ...]], *, title: str, alt: str,
        start: int = 0,
    ) -> str:
        """A grid for each step: (rows, columns, shades), and cells where they are not percents."""
        forms = [[self.grid(title, *one[:3], **({"cells": one[3]} if one[3:] else {}))] for one in grids]
        return self.slide(name, label, steps, forms, alt=alt, start=start)

    def slide_rows(
        self, name: str, label: str, steps: Sequence[str], heads: Sequence[str], tables: Sequence[Any], *, alt: str,
        title: str = "", start: int = 0,
    ) -> str:
        """A table for each step, whose rows have a head each."""
        forms = [[self.table(title, [[head, *row] for head, row in zip(heads, rows, strict=True)])] for rows in tables]
        return self.slide(name, label, steps, forms, alt=alt, start=start)

    def draw(self, name: str, form: Form, alt: str) -> str:
        """A figure that stands still."""
        return f'<div id="{name}">{render([form], alt)}{self.keep(name, [form], alt)}</div>'

    def slide(
        self, name: str, label: str, steps: Sequence[str], forms: Sequence[Sequence[Form]], *, alt: str, start: int = 0,
        fold: tuple[int, str] | None = None,
    ) -> str:
        """Forms of each step, which a slider shows; those that it starts on are the figure with files.

        `fold` is from which form on they are folded in, and what the fold is called.
        """
        first, called = fold or (None, "")
        made = list[str]()
        for step, some in zip(steps, forms, strict=True):
            shown, rest = (render(part, f"{label}: {step}") for part in (some[:first], some[first:] if fold else ()))
            more = f'<details class="cite"><summary>{escape(called)}</summary>{rest}</details>' if rest else ""
            head = f'<p class="step">{escape(step)}</p>'
            made.append(f'<div class="frame" data-step="{attribute(step)}">{head}{shown}{more}</div>')
        slider = make_slider(f"{name}-at", label, (0, len(made) - 1, 1), start)
        body = "".join(made)
        return (f'<div class="slide" id="{name}" data-start="{start}">{slider}{body}'
                f"{self.keep(name, forms[start], alt)}</div>")

    def keep(self, name: str, forms: Sequence[Form], alt: str) -> str:
        """Write a figure's files, and give the fold that tells of them."""
        drawing = Drawing(name, alt, alt, self.page)
        self.drawings.append(drawing)
        if self.files:
            save_files(forms, self.site.assets / "figures" / self.site.lang, name)
        return cite(self.site, self.page, drawing)

    def predict(self, question: str, options: Sequence[str], right: str, why: str) -> str:
        """A question to answer before looking; `right` is one of the options, and was computed.

        Raises:
            ValueError: what was computed is none of the options.
        """
        if right not in options:
            raise ValueError(f"{self.page}: {right!r} was computed, which is none of {list(options)}")
        self.count += 1
        name = f"predict-{self.count}"
        made = "".join(
            f'<label><input type="radio" name="{name}" value="{i}"> {escape(o)}</label>' for i, o in enumerate(options)
        )
        head, look = self.site.say("先猜", "Predict first"), self.site.say("看答案", "Look")
        return (
            f'<fieldset class="predict" data-right="{list(options).index(right)}"><legend>{head}</legend>'
            f"<p>{question}</p><p class='options'>{made}</p>"
            f"<details><summary>{look}</summary><p><strong>{escape(right)}</strong>{self.site.say('。', '. ')}{why}</p>"
            "</details></fieldset>"
        )

    def check(self, question: str, value: float, why: str, *, unit: str = "", within: float = 0.02) -> str:
        """A number to work out, compared with the one that was computed; `within` is a share of it."""
        self.count += 1
        name, head = f"check-{self.count}", self.site.say("自己算", "Work it out")
        look, button = self.site.say("看答案", "Look"), self.site.say("对吗？", "Is it right?")
        shown = f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
        return (
            f'<fieldset class="check" data-value="{value}" data-within="{within}"><legend>{head}</legend>'
            f'<p><label for="{name}">{question}</label> <input type="text" inputmode="decimal" id="{name}" size="8"> '
            f'{escape(unit)} <button type="button">{button}</button> <output for="{name}"></output></p>'
            f"<details><summary>{look}</summary><p><strong>{shown} {escape(unit)}</strong>"
            f"{self.site.say('。', '. ')}{why}</p></details></fieldset>"
        )

    def mean(self, name: str, number: str) -> float:
        """A number of a lab's committed result, the mean over its seeds."""
        rows = [row[number] for row in labs.load_result(name)["numbers"]]  # type: ignore[index]
        return sum(rows) / len(rows)

    def verdict(self, name: str) -> str:
        """One lab in a line: the mark of its verdict, its claim, what came out, the link to it."""
        found = labs.load_result(name)
        assert found, name
        lang = int(self.site.lang == "en")
        word, to = found["verdict"], self.site.html(self.page, f"labs/{name}.md")
        said = VERDICTS[word].to(self.site.lang)
        colon = self.site.say("：", ": ")
        return (
            f'<p class="lab"><a href="{to}"><span class="mark" aria-hidden="true">{MARK.get(word, "·")}</span> '
            f"<code>{name}</code></a> <strong>{said}</strong>{colon}{escape(found['says'][lang].rstrip('。.'))}"
            f"{self.site.say('。', '.')}</p>"
        )

    def refute(self, text: str, *names: str) -> str:
        """What is said and is not so, with the labs that show it."""
        head = self.site.say("哪里说错了", "What is often said, and is not so")
        return f'<div class="wrong"><p class="head">{head}</p><p>{text}</p>{"".join(map(self.verdict, names))}</div>'

    def live(self, view: str, model: str, sentence: str) -> str:
        """The model itself in the browser, on a sentence of one's own; without it, the way to run it with Python."""
        module = self.site.asset(self.page, "qkv-live.js")
        weights = self.site.assets / "models" / model / "model.safetensors"
        size = f"{weights.stat().st_size / 1e6:.1f} MB" if weights.is_file() else ""
        button = self.site.say(f"换成自己的句子（取一次模型，{size}）", f"A sentence of your own (fetches {size} once)")
        command = f"qkv look {model} '{sentence}' --serve"
        without = self.site.say("输入自己的句子，用 Python：", "A sentence of your own, with Python:")
        return (
            f'<div class="qkv-live" data-view="{view}" data-model="{model}" data-sentence="{attribute(sentence)}" '
            f'data-lang="{self.site.lang}" data-module="{module}"><button type="button" hidden>'
            f'{button}</button><p class="instead">{without} <code>{escape(command)}</code></p></div>'
        )

    def look(self, text: str, name: str, panel: str, *, live: bool = True, **place: object) -> str:
        """A link into a recorded page (`qkv look --html`), at a panel; `live`, into the page that computes, at a place.

        The recorded page opens from a file, too; where course.js finds the models, it takes the other address.
        """
        said = {"panel": panel, "lang": self.site.lang}
        recorded = f'{self.site.asset(self.page, f"inside/{name}.html")}#{urlencode(said)}'
        if not live:
            return f'<a href="{attribute(recorded)}">{text}</a>'
        model, sentence = asked.find_recorded(name)
        more = {**said, **place, "ask": json.dumps({"text": sentence}, ensure_ascii=False)}
        computes = f'{self.site.asset(self.page, "look.html")}?model={model}#{urlencode(more, quote_via=quote)}'
        return f'<a href="{attribute(recorded)}" data-live="{attribute(computes)}">{text}</a>'

    def softmax(self, name: str, words: Sequence[str], logits: Sequence[float]) -> str:
        """The likeliest words of real logits with sliders for temperature and top-p, computed in the browser."""
        shown = ",".join(f"{x:.3f}" for x in logits)
        data = attribute("\u0001".join(words))
        temperature = self.site.say("温度 T", "temperature T")
        still = self.site.say("需要 JavaScript 才能动。", "Moving it needs JavaScript.")
        return (
            f'<div class="softmax" id="{name}" data-words="{data}" data-logits="{shown}">'
            f'{make_slider(f"{name}-t", temperature, (0.1, 5, 0.1), 1)}'
            f'{make_slider(f"{name}-p", "top-p", (0.05, 1, 0.05), 1)}'
            f'<div class="rows" aria-live="polite"><p>{still}</p></div></div>'
        )

    def watch(self) -> str:
        """The recorded run of the demo, step by step; nothing where none was recorded."""
        if not learning.FILE.is_file():
            return ""
        say = self.site.say
        steps, forms = learning.make_frames(self.site)
        alt = say("训练中每一步的译文、损失和对齐", "translations, loss and alignment at each step of training")
        last = steps[-1]
        about = say(f"一次真的训练，从随机数开始，录到第 {last} 步。", f"A real run from random numbers, {last} steps.")
        played = self.slide("learning", say("训练步", "step"), steps, forms, alt=alt, start=len(steps) - 1,
                            fold=(2, say("每个头看了哪里", "where each head looked")))
        return f'<p class="learning"><strong>{say("看它怎样学会。", "Watch it learn.")}</strong> {about}</p>{played}'
