"""docs/training.md tells the truth: its blocks run in order with small sizes.

"Small" is --smoke, put behind every `qkv train`; what serves a page or starts processes is only parsed. The Chinese
page holds the same blocks.
"""

import dataclasses
import io
import re
import shlex
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from qkv import paths
from qkv.cli import VERBS, main
from qkv.cli.common import Common, InputFile
from qkv.training import recipes
from qkv.training.objectives import OBJECTIVES
from qkv.training.probes.records import ProbeLog
from qkv.training.settings import Settings

DOCS = Path(__file__).parents[1] / "docs"
ENGLISH, CHINESE = ((DOCS / name).read_text(encoding="utf-8") for name in ("training.md", "training.zh-CN.md"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
HERE = re.compile(r"^(?:cat > (?P<file>\S+)|python -) <<'EOF'\n(?P<body>.*?)^EOF$", re.M | re.S)

pages = pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=["en", "zh"])
Item = tuple[str, str, str]  # kind (file, python, line), name of the file, content


def items(page: str) -> Iterator[Item]:
    """What a reader would paste, in order: files written, Python run, command lines."""
    for kind, body in FENCE.findall(page):
        if kind == "python":
            yield "python", "", body
        elif kind == "sh":
            at = 0
            for here in HERE.finditer(body):
                yield from (("line", "", x) for x in body[at : here.start()].splitlines() if x.strip())
                yield ("file" if here["file"] else "python", here["file"] or "", here["body"])
                at = here.end()
            yield from (("line", "", x) for x in body[at:].splitlines() if x.strip())


def parsed(line: str) -> tuple[list[str], str, int]:
    """What qkv gets of a shell line, what it reads on stdin, and the exit code that a comment foretells."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>")
    lexer.whitespace_split = True
    words = list(lexer)
    code = int(found[1]) if (found := re.search(r"# exit code (\d+)", line)) else 0
    given = ""
    if words[0] == "echo":
        given, words = words[1] + "\n", words[words.index("|") + 1 :]
    if words[0] == "torchrun":
        words = words[words.index("qkv") :]
    assert words[0] == "qkv", line
    if "<" in words:
        given = "<" + words[words.index("<") + 1]
    end = next((i for i, word in enumerate(words) if word in ("<", ">", "|")), len(words))
    return words[1:end], given, code


def understood(args: list[str]) -> dict[str, Any]:
    """What the verb of a command line understands of it; click raises where it does not."""
    assert args[0] in VERBS, f"there is no verb {args[0]}"
    command: click.Command = import_module(f"qkv.cli.{args[0]}").command
    return command.make_context(args[0], args[1:], obj=Common()).params


ITEMS = list(items(ENGLISH))
LINES = [content for kind, _, content in ITEMS if kind == "line"]


SPANS = re.findall(r"`(qkv [^`]+)`", FENCE.sub("", ENGLISH + CHINESE))


@pytest.mark.parametrize("line", [*LINES, *(span for span in SPANS if span not in ("qkv data check", "qkv convert"))])
def test_each_command_line_is_understood(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InputFile, "convert", lambda _, value, *__: Path(value))
    understood(parsed(line)[0])


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole page, pasted into an empty folder; the folder."""
    missing = [name for name in ("demo-lm",) if not (paths.bundled_dir() / name).is_dir()]
    if missing:
        pytest.skip("the bundled models are not made yet")
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for kind, name, content in ITEMS:
            if kind == "file":
                Path(name).write_text(content, encoding="utf-8")
            elif kind == "python":
                exec(compile(content, "docs/training.md", "exec"), {"__name__": "page"})
            else:
                ran(content, patch)
    return folder


def ran(line: str, patch: pytest.MonkeyPatch) -> None:
    """Run a command line of the page with small sizes."""
    args, given, code = parsed(line)
    if "--serve" in args or "--processes" in args or line.startswith("torchrun") or args[:2] == ["runs", "runs"]:
        return
    if args[:2] in (["train", "multi30k"], ["train", "shakespeare"]) and not paths.data_dir().is_dir():
        return  # recipes over real data
    if args[0] == "train" and "--dry-run" not in args:
        short = ["training.steps=60", "training.evaluate_every=60"] if "runs/back" in args else ["--smoke"]
        args += [word for word in short if word not in args]  # what `data distil` asks must end its sentences
    if args[0] == "look":
        last = str(ProbeLog(args[1]).steps[-1])
        args = [last if word == "400" else word for word in args]
    fed = Path(given[1:]).read_bytes() if given[:1] == "<" else given.encode()
    patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(fed), encoding="utf-8"))
    assert main([*args, "--quiet"]) == code, line


@pytest.mark.timeout(300)
def test_the_page_runs_as_pasted(walked: Path) -> None:
    made = {path.parent.name for path in walked.glob("runs/*/train")}
    assert {"pairs", "lstm", "reviews", "labels", "scratch", "chat", "poems"} <= made
    assert (walked / "translator" / "model.safetensors").is_file()
    assert (walked / "runs" / "poems" / "adapter_model.safetensors").is_file()
    assert ProbeLog(walked / "runs" / "pairs").steps[0] == 0


@pytest.mark.nightly
def test_the_claims_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At full size: the pairs come out exactly, and what read plain text labels better than what did not."""
    monkeypatch.chdir(tmp_path)
    for kind, name, content in ITEMS:
        if kind == "file":
            Path(name).write_text(content, encoding="utf-8")
        elif kind == "python" and any(made in content for made in ('"pairs.tsv", "w"', '"reviews.txt", "w"')):
            exec(compile(content, "docs/training.md", "exec"), {"__name__": "page"})
    found = {
        name: recipes.train(f"{name}.toml", out=f"runs/{name}") for name in ("pairs", "reviews", "labels", "scratch")
    }
    assert found["pairs"].outcome.metrics["bleu"] > 95
    assert found["labels"].test["label_accuracy"] > found["scratch"].test["label_accuracy"] + 0.05


def test_the_tables_name_every_objective_optimiser_and_schedule() -> None:
    def column(head: str) -> set[str]:
        table = ENGLISH.partition(f"| {head} |")[2].partition("\n\n")[0]
        return set(re.findall(r"^\| `([\w-]+)`", table, re.M))

    hints = {f.name: f.type for f in dataclasses.fields(Settings)}
    for name in ("optimizer", "schedule"):
        assert column(name) == set(hints[name].__args__)  # type: ignore[union-attr]
    assert column("objective") == set(OBJECTIVES)
    named = set(re.findall(r"`([\w-]+)`", CHINESE))
    assert named >= column("optimizer") | column("schedule") | column("objective")


@pages
def test_what_keeps_a_model_from_overfitting_is_described_by_the_table(page: str) -> None:
    against = FENCE.sub("", page).rpartition("\n## 9. ")[2].partition("\n## 10. ")[0]
    keys = ("rdrop", "average", "dropout", "ema", "recompute", "scheduled_sampling", "scheduled_sampling_ramp",
            "label_smoothing", "word_dropout", "rare_words")  # fmt: skip
    assert [key for key in keys if not re.search(rf"`(\w+\.)?{key}( = [^`]+)?`", against)] == []
    assert "R-Drop" in against


def test_the_chinese_page_holds_the_same_blocks() -> None:
    def blocks(page: str) -> list[str]:
        return [re.sub(r"  # .*", "", body) for kind, body in FENCE.findall(page) if kind in ("sh", "python")]

    assert blocks(CHINESE) == blocks(ENGLISH)


@pytest.mark.parametrize("fault", ["qkv trian x", "qkv train x --smok", "qkv look runs/pairs --step many"])
def test_a_false_command_line_is_found(fault: str) -> None:
    with pytest.raises((AssertionError, click.ClickException)):
        understood(parsed(fault)[0])
