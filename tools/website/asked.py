"""The rows of docs/questions.md, and the pages on which their panels stand: one for each model and sentence."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import qkv
from qkv.explore.question import Question
from qkv.explore.record import record

from .pages import ROOT

PANELS = {
    "Heads": "heads", "Proof": "proof", "Guess map": "guess-map", "guess map": "guess-map", "Walk": "walk",
    "Next word": "next-word", "Who pushed": "parts", "Mask & phase": "mask", "KV cache": "cache",
    "Alignment": "alignment", "Experts": "experts", "Word shift": "shift", "Cost": "cost", "Compare": "compare",
}  # fmt: skip
FIRST = ("demo", "书和茶都在桌上，我看完了它。")
ENGLISH = re.compile(r"\s(?=[A-Z][^一-鿿？，。：“”]*(?:它[^一-鿿？，。：“”]*)?$)")  # where a row's second half begins
BYTES = 2_000_000  # of a recorded page, which is read where nothing can be computed: from a file


@dataclass(frozen=True)
class Asked:
    """One question: its number, its words in two languages, the heading it stands under, panels and command."""

    number: int
    zh: str
    en: str
    heading: tuple[str, str]
    panel: str
    command: str

    @property
    def words(self) -> list[str]:
        """The command as words."""
        return shlex.split(self.command)

    @property
    def lab(self) -> str:
        """The lab that answers, or nothing."""
        return self.words[2] if self.words[1] == "lab" else ""

    @property
    def looks(self) -> tuple[str, str]:
        """The model and the sentence whose recorded page has the panel."""
        words = self.words
        return (words[2], words[3]) if words[1] == "look" and words[3:] and words[3][:2] != "--" else FIRST


def read_questions() -> list[Asked]:
    """The rows of docs/questions.md."""
    text, found, heading = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8"), list[Asked](), ("", "")
    for line in text.splitlines():
        if line.startswith("## "):
            zh, _, en = line[3:].partition(" · ")
            heading = (zh.strip(), en.strip())
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[2].startswith("`qkv "):
            asked = cells[0]
            at = ENGLISH.search(asked)
            assert at, asked
            zh, en = asked[: at.start()].strip(), asked[at.end() :].strip()
            found.append(Asked(len(found) + 1, zh, en, heading, cells[1], cells[2].strip("`")))
    return found


def name_page(model: str, sentence: str, every: list[tuple[str, str]]) -> str:
    """The name of a recorded page."""
    return f"{model}-{every.index((model, sentence)) + 1}"


def find_recorded(name: str) -> tuple[str, str]:
    """The model and the sentence of a recorded page."""
    return list_recorded()[int(name.rpartition("-")[2]) - 1]


def list_recorded() -> list[tuple[str, str]]:
    """The models and sentences whose recorded pages are needed, the demo's first."""
    asked = (q.looks for q in read_questions() if list_panels(q))
    return list(dict.fromkeys([FIRST, *asked]))


def list_panels(asked: Asked) -> list[str]:
    """The panels that a question names, as the page knows them."""
    places = {asked.panel.find(name): panel for name, panel in PANELS.items() if name in asked.panel}
    return [panel for _, panel in sorted(places.items())]


def record_pages(folder: Path) -> None:
    """Write the recorded pages (`qkv look --html`) that the questions open."""
    every = list_recorded()
    folder.mkdir(parents=True, exist_ok=True)
    models = {name: qkv.load(name) for name in dict.fromkeys(name for name, _ in every)}
    for name, sentence in every:
        made = record([(name, Question(sentence))], {name: models[name]}, limit=BYTES)
        (folder / f"{name_page(name, sentence, every)}.html").write_text(made, encoding="utf-8")
