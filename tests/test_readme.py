"""The READMEs tell the truth: every command line is one that qkv takes, every Python block runs, both say the same."""

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from qkv import labs, paths
from qkv.cli import VERBS, main
from qkv.cli.common import Common, InputFile

ROOT = Path(__file__).parents[1]
READMES = ("README.md", "README.zh-CN.md")
USAGE = ("docs/usage.md", "docs/usage.zh-CN.md")
DECODING = ("docs/decoding.md", "docs/decoding.zh-CN.md")
ENGINE = ("docs/engine.md", "docs/engine.zh-CN.md")
SERVE = ("docs/serve.md", "docs/serve.zh-CN.md")
MIRRORS = (READMES, USAGE, DECODING, ENGINE, SERVE, ("docs/benchmarks.md", "docs/benchmarks.zh-CN.md"))
PAGES = (*READMES, *USAGE, *DECODING, "docs/questions.md")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
RUN = {
    "translate", "generate", "embed", "classify", "fill", "score", "look", "show", "info", "check", "convert", "doctor",
    "eval", "lab",
}  # training and talking are run by their own tests
every = pytest.mark.parametrize("readme", READMES)


def text(readme: str) -> str:
    return (ROOT / readme).read_text(encoding="utf-8")


def blocks(readme: str, kind: str) -> list[str]:
    return [body for found, body in FENCE.findall(text(readme)) if found == kind]


def words(line: str) -> list[str]:
    """A shell line as words without its comment; pipes and redirections are words of their own."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>")
    lexer.whitespace_split = True
    return list(lexer)


def lines(readme: str) -> list[list[str]]:
    """The command lines of the sh blocks."""
    return [w for block in blocks(readme, "sh") for line in block.splitlines() if (w := words(line))]


def spans(readme: str) -> Iterator[list[str]]:
    """The command lines in running text: `qkv …`."""
    for span in re.findall(r"`(qkv [^`]+)`", FENCE.sub("", text(readme))):
        yield words(span)


def own(line: list[str]) -> list[str]:
    """What qkv itself gets of a shell line."""
    end = next((i for i, word in enumerate(line) if word in ("|", "<", ">")), len(line))
    return line[1:end]


def parsed(args: list[str]) -> dict[str, Any]:
    """What the verb of a command line understands of it; click raises where it does not."""
    if args[0] == "--help":
        return {}
    assert args[0] in VERBS, f"there is no verb {args[0]}"
    command: click.Command = import_module(f"qkv.cli.{args[0]}").command
    return command.make_context(args[0], args[1:], obj=Common()).params


COMMANDS = {" ".join(line): line for r in PAGES for line in [*lines(r), *spans(r)] if line[0] == "qkv"}
PYTHON = {f"{r}-{i}": block for r in (*READMES, *USAGE, *DECODING, *ENGINE)
          for i, block in enumerate(blocks(r, "python"))}
BUNDLED = ("demo", "demo-lm", "demo-bert", "demo-moe")
missing = {name for name in BUNDLED if not (paths.bundled_dir() / name).is_dir()}
commands = pytest.mark.parametrize("line", COMMANDS.values(), ids=COMMANDS.keys())


@commands
def test_each_command_line_is_understood(line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(InputFile, "convert", lambda _, value, *__: Path(value))
    for name in ("book.txt", "train.zh", "train.en"):  # what they hold is found in their content
        Path(name).write_text("".join(f"line {n} of a text\n" for n in range(40)), encoding="utf-8")
    Path("pairs.tsv").write_text("".join(f"source {n}\ttarget {n}\n" for n in range(40)), encoding="utf-8")
    args = own(line)
    found = parsed(args)
    if args[0] == "train":
        from qkv.training import recipes

        if found["recipe"] and not found["recipe"].endswith((".toml", "/train")) and not found.get("settings"):
            recipes.configure(found["recipe"], found["overrides"])


@commands
def test_each_cheap_command_line_runs(line: list[str], tmp_path: Path, monkeypatch, capsys) -> None:
    args = own(line)
    if args[0] != "--help" and args[0] not in RUN:
        pytest.skip(f"{args[0]} takes minutes")
    if "--serve" in args:
        pytest.skip("serves until it is stopped")
    if args[0] == "lab" and args[1:] and labs.find_lab(args[1]).kind != "exact":
        pytest.skip("a lab that trains or measures has its own tests")
    if "-" in args or any("/" in a for a in args[1:2]):
        pytest.skip("needs a file of yours or the network")
    if missing & set(args[1:2]):
        pytest.skip("the bundled models are not made yet")
    monkeypatch.chdir(tmp_path)
    for name in ("book.txt", "texts.txt"):
        Path(name).write_text("One, two, buckle my shoe.\n", encoding="utf-8")
    Path("labelled.tsv").write_text("I love it.\tpast\nMum is cooking.\tpresent\n", encoding="utf-8")
    assert main(args) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.strip()
    if "--html" in args:
        assert (tmp_path / args[args.index("--html") + 1]).stat().st_size > 0


@every
def test_each_make_target_exists(readme: str) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    named = {line[1] for line in lines(readme) if line[0] == "make"}
    assert {"demo", "test"} <= named
    assert named | set(re.findall(r"`make (\w+)", text(readme))) <= targets


@every
def test_only_known_programs_are_named(readme: str) -> None:
    assert {line[0] for line in lines(readme)} == {"qkv", "make", "python3", "pip"}


@every
def test_a_readme_is_short(readme: str) -> None:
    assert len(text(readme).splitlines()) <= 150


@pytest.mark.parametrize("page", USAGE)
def test_every_verb_is_listed(page: str) -> None:
    assert re.findall(r"^\| `(\w+)` \|", text(page), re.M) == list(VERBS)


@pytest.mark.parametrize("block", PYTHON.values(), ids=PYTHON.keys())
def test_each_python_block_runs(block: str, tmp_path: Path, monkeypatch) -> None:
    if any(f'load("{name}")' in block for name in missing):
        pytest.skip("the bundled models are not made yet")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README", "exec"), {"__name__": "readme"})


def test_the_changelog_leads_to_pages_not_to_places_in_them() -> None:
    assert re.findall(r"\]\([^)]*\.md#[^)]*\)", text("CHANGELOG.md")) == []  # the site has it in both languages


@pytest.mark.parametrize("page", [page for pair in MIRRORS for page in pair] + ["docs/house.md"])
def test_links_and_scripts_point_at_what_is_there(page: str) -> None:
    links = [(ROOT / page).parent / link for link in re.findall(r"\]\(([^)#:]+)\)", text(page))]
    tree = [
        ROOT / line.split()[0]
        for block in blocks(page, "text")
        for line in block.splitlines()
        if line.startswith(("src/", "tests/", "tools/", "web/", "bench/", "docs/"))
    ]
    scripts = re.findall(r"`(bench/\w+\.py)[ `]", text(page)) + re.findall(r"ARGS=([\w/.]+)`", text(page))
    assert [str(place) for place in [*links, *tree, *(ROOT / s for s in scripts)] if not place.exists()] == []


def test_the_family_that_is_shown_as_an_example_goes_both_ways() -> None:
    from qkv.families import Config

    family: dict[str, Any] = {}
    exec(blocks("src/qkv/families/README.md", "python")[0], family)
    for size, config in family["SIZES"].items():
        spec = family["spec"](Config(config, size))
        assert family["spec"](Config(family["config"](spec), size)) == spec


@pytest.mark.parametrize(("one", "two"), MIRRORS)
def test_both_languages_say_the_same(one: str, two: str) -> None:
    assert lines(one) == lines(two)
    assert list(spans(one)) == list(spans(two))
    assert [ast.dump(ast.parse(b)) for b in blocks(one, "python")] == [
        ast.dump(ast.parse(b)) for b in blocks(two, "python")
    ]
    for pattern in (r"^#+ ", r"^\|", r"^- ", r"^\d\. ", r"<!-- [\w ]+ -->"):
        assert len(re.findall(pattern, text(one), re.M)) == len(re.findall(pattern, text(two), re.M)), pattern


@every
def test_the_labs_are_counted(readme: str) -> None:
    counts = Counter(lab["verdict"] for lab in labs.list_labs())
    order = ("shown", "true only when", "not shown", "refuted")
    about = re.search(r"^`qkv lab` .*?\n\n", text(readme), re.M | re.S)
    assert about
    said = [int(n) for n in re.findall(r"\b(\d+)\b", about[0].replace("条", " 条"))]
    assert said == [counts.total(), *(counts[word] for word in order), len(labs.misconceptions())]


@pytest.mark.parametrize(
    "fault", ["qkv shwo gpt2", "qkv show gpt2 --mod decode", "qkv translate", "qkv generate x y z"]
)
def test_a_false_command_line_is_found(fault: str) -> None:
    with pytest.raises((AssertionError, click.ClickException)):
        parsed(own(words(fault)))


def test_a_shell_line_ends_where_qkv_s_part_ends() -> None:
    assert own(words("qkv translate m - < a > b  # why")) == ["translate", "m", "-"]
    assert own(words('qkv score m "a | b" | sort')) == ["score", "m", "a | b"]
