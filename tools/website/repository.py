"""The pages made of the repository's own data: labs, misconceptions, documents and benchmarks."""

import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from qkv import labs
from qkv.cli.lab import TOPICS
from qkv.labs import page as lab_page
from qkv.labs.lab import VERDICTS, Lab, Result, Runs, from_json

from .figures import Drawing, cite, render, save_files
from .pages import ROOT, Site
from .rerun import NUMBERS, write_rerun
from .widgets import MARK

FIRST = ("README", "docs/usage", "docs/training", "docs/families", "src/qkv/families/README")  # then the others
LAST = ("docs/house", "CHANGELOG", "docs/LOG")
ELSEWHERE = ("docs/questions", "docs/misconceptions", "docs/benchmarks")  # with a page of their own
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
ABOUT = ("options", "machine", "date", "commit", "versions")  # keys that say how, not what
FRAMED = re.compile(r"\[(!\[[^\]]*\]\([^)]*\))\]\([^)]*\)")  # a picture that is a link
FENCE = re.compile(r"^(```.*?^```$)", re.M | re.S)


def list_sources() -> list[str]:
    """The documents in their order, by their path without an ending; a new file in docs/ is one more."""
    there = sorted(f"docs/{path.stem}" for path in (ROOT / "docs").glob("*.md") if not path.stem.endswith(".zh-CN"))
    return [*FIRST, *(name for name in there if name not in (*FIRST, *LAST, *ELSEWHERE)), *LAST]


def list_topics() -> Iterator[tuple[Any, list[str]]]:
    """The labs by topic, as `qkv lab` lists them."""
    every = labs.list_names()
    others = sorted(set(every).difference(*TOPICS.values()))
    for topic, names in TOPICS.items():
        yield topic, [name for name in names if name in every]
    if others:
        yield labs.Message("More"), others


def write_labs(site: Site, mentions: dict[str, list[tuple[str, str]]], *, files: bool = True) -> list[Drawing]:
    """The list of all labs and a page for each; `mentions` are the pages (title, place) that rest on a lab."""
    head = site.say("实验", "Labs")
    about = site.say(
        "每个实验检验一条说法：先写下预期，再运行，由规则给出结论。数字是随仓库提交的运行结果。",
        "Each lab tests one claim: what is expected is written down, then it runs, and a rule gives the verdict. "
        "The numbers are those of the committed runs.",
    )
    here = ", ".join(f"[`{name}`]({name}.md)" for name in NUMBERS)
    rows = ["", site.say(f"这些可以在浏览器里重跑：{here}。", f"These run in the browser too: {here}.")]
    drawings = list[Drawing]()
    for topic, names in list_topics():
        rows += ["", f"## {topic.to(site.lang)}", "", site.say("| 结论 | 说法 | 实验 |", "| verdict | claim | lab |"),
                 "| --- | --- | --- |"]
        for name in names:
            found = labs.load_result(name)
            assert found, name
            word = VERDICTS[found["verdict"]].to(site.lang)
            claim = found["claim"][int(site.lang == "en")]
            rows.append(f"| {MARK.get(found['verdict'], '·')} {word} | {claim} | [`{name}`]({name}.md) |")
            drawings += write_lab(site, name, found, mentions.get(name, []), files=files)
    site.write("labs/index.md", f"# {head}\n\n{about}\n" + "\n".join(rows), description=about)
    return drawings


def write_lab(
    site: Site, name: str, found: dict[str, Any], mentions: list[tuple[str, str]], *, files: bool
) -> list[Drawing]:
    """A lab: its verdict, what was said before it ran, its picture, its numbers, its command."""
    lab, result, place = labs.find_lab(name), from_json(found, name), f"labs/{name}.md"
    claim = lab.claim.to(site.lang)
    forms = lab_page.make_forms(lab, Runs(result.numbers), site.lang)
    verdict = lab_page.write_verdict(result, site.lang)
    drawing = Drawing(f"lab-{name}", claim, f"{claim} {verdict}", place)
    if files:
        save_files(forms, site.assets / "figures" / site.lang, drawing.name)
    parts = [
        f"# {name}", "", f"**{claim}**", "",
        f'<p class="verdict">{MARK.get(result.verdict.word, "·")} {escape(verdict)}</p>', "",
        *(f"**{h}{site.say('：', ':')}** {t}\n" for h, t in lab_page.describe(lab, site.lang)[1:]),
        f'<div id="{drawing.name}">{render(forms, claim)}{cite(site, place, drawing)}</div>', "",
        *write_numbers(site, lab, result),
        *write_rerun(site, place, lab, result),
        *list_mentions(site, place, mentions),
    ]
    site.write(place, "\n".join(parts), description=claim)
    return [drawing]


def write_numbers(site: Site, lab: Lab, result: Result) -> list[str]:
    """The table of a lab, its runs and the command that repeats it."""
    runs = Runs(result.numbers)
    rows = [f"| {words} | {mean} | {spread} |" for words, mean, spread in lab_page.list_rows(lab, runs, site.lang)]
    facts = site.say(
        f"{len(result.seeds)} 个种子，{result.steps} 步，{result.seconds:.0f} 秒，torch {result.torch}。",
        f"{len(result.seeds)} seeds, {result.steps} steps, {result.seconds:.0f} seconds, torch {result.torch}.",
    )
    raw = site.say("全部运行的数字", "The numbers of every run")
    saved = json.dumps([dict(row) for row in result.numbers], ensure_ascii=False)
    count = len(result.seeds)
    head = site.say("| 测量 | 平均 | 最小 … 最大 |", "| measured | mean | least … greatest |")
    return [
        head, "| --- | --: | --: |", *rows,
        "", facts, "", f"```sh\nqkv lab {result.name} --seeds {count}\nqkv lab {result.name} --saved\n```", "",
        f'??? note "{raw}"', "", "    ```json", *(f"    {line}" for line in saved.splitlines()), "    ```", "",
    ]


def list_mentions(site: Site, page: str, mentions: list[tuple[str, str]]) -> list[str]:
    """Where on the site a lab is referred to."""
    head = site.say("用到它的地方", "Where it is used")
    return [f"## {head}", "", *(f"- [{title}]({site.link(page, to)})" for title, to in mentions)] if mentions else []


def write_misconceptions(site: Site) -> dict[str, list[tuple[str, str]]]:
    """The page of misunderstandings; the labs that show them, with where."""
    head = site.say("常见误解", "Common misunderstandings")
    about = site.say("流传很广但不对的说法。每条都有能演示它的实验或命令。",
                     "What circulates and is not so. Each has a lab or a command that shows it.")
    parts, used = [f"# {head}", "", about, ""], dict[str, list[tuple[str, str]]]()
    for n, entry in enumerate(labs.misconceptions(), 1):
        idea, right = entry[f"idea_{site.lang}"], entry[f"right_{site.lang}"]
        words = entry["show"].split()
        shown = f"`{entry['show']}`"
        if words[1] == "lab":
            shown = f"[{shown}](labs/{words[2]}.md)"
            used.setdefault(words[2], []).append((idea, f"misconceptions.md#m-{n}"))
        colon = site.say("：", ": ")
        parts += [f"## {n}. {idea} {{#m-{n}}}", "", f"**{site.say('其实', 'Rather')}{colon.strip()}** {right}", "",
                  f"{site.say('出处', 'Source')}{colon}{entry['source']}{site.say('。', '. ')}{shown}", ""]
    site.write("misconceptions.md", "\n".join(parts), description=about)
    return used


def list_documents(site: Site) -> dict[str, str]:
    """The documents of the repository with a page, by their path: both languages' files lead to the same page."""
    found = dict[str, str]()
    for name in list_sources():
        place = "docs/" + {"README": "readme", "src/qkv/families/README": "new-family"}.get(
            name, Path(name).name.lower()) + ".md"
        found |= {f"{name}.md": place, f"{name}.zh-CN.md": place}
    found |= {f"docs/misconceptions{end}.md": "misconceptions.md" for end in ("", ".zh-CN")}
    found |= {f"docs/benchmarks{end}.md": "benchmarks/index.md" for end in ("", ".zh-CN")}
    return {**found, "docs/questions.md": "questions.md"}


def find_source(site: Site, name: str) -> Path:
    """The file of a document in a language, or its only one."""
    own = ROOT / f"{name}.zh-CN.md"
    return own if site.lang == "zh" and own.is_file() else ROOT / f"{name}.md"


def carry_over(site: Site, source: Path, place: str) -> str:
    """A document as a page: its links lead to pages of the site; what has none is named, as the path that it is."""
    used = list[Path]()

    def lead(found: re.Match[str]) -> str:
        image, text, to = found.groups()
        to, _, anchor = to.partition("#")
        if re.match(r"[a-z]+:", to) or not to:
            return found[0]
        target = (source.parent / to).resolve()
        name = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else to
        if image and target.is_file():
            used.append(target)
            return f"![{text}]({site.asset(place, f'docs/{target.name}')}){{ loading=lazy }}"
        if name in site.places:
            return f"[{text}]({site.link(place, site.places[name])}{f'#{anchor}' if anchor else ''})"
        return text if text.strip("`").endswith(Path(name).name) or name in text else f"{text} (`{name}`)"

    parts = FENCE.split(FRAMED.sub(r"\1", source.read_text(encoding="utf-8")))
    text = "".join(part if part.startswith("```") else LINK.sub(lead, part) for part in parts)
    for image in used:
        target = site.assets / "docs" / image.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(image.read_bytes())
    return re.sub(r"^\[?(English|中文说明|中文)\]?(\([^)]*\))?\s*$", "", text, flags=re.M).strip() + "\n"


def write_documents(site: Site) -> list[tuple[str, str]]:
    """The repository's documents, as (title, page)."""
    found = list[tuple[str, str]]()
    for name in list_sources():
        source, place = find_source(site, name), site.places[f"{name}.md"]
        text = carry_over(site, source, place)
        hidden = {"search": {"exclude": True}} if name in ("CHANGELOG", "docs/LOG") else {}
        site.write(place, text, **hidden)
        title = re.search(r"^# (.+)$", text, re.M)
        found.append((title[1] if title else place, place))
    return found


def write_benchmarks(site: Site) -> None:
    """The document of benchmarks, and every committed result with its numbers."""
    place = "benchmarks/index.md"
    site.write(place, carry_over(site, find_source(site, "docs/benchmarks"), place))
    head = site.say("每一项测量的结果文件", "The result of every measurement")
    about = site.say("`bench/` 里的每个脚本测一件事，把数字写进一个 JSON 文件。下面是这些文件的原样。",
                     "Each script of `bench/` measures one thing and writes its numbers to a JSON file: these.")
    parts = [f"# {head}", "", about, ""]
    for path in sorted((ROOT / "bench" / "results").glob("*.json")):
        rows = list(flatten(json.loads(path.read_text(encoding="utf-8"))))
        rows.sort(key=lambda row: row[0].startswith(ABOUT))  # what was measured comes first
        parts += [f"## {path.stem}", "", site.say("| 名称 | 值 |", "| name | value |"), "| --- | --- |"]
        parts += [f"| `{key}` | {value} |" for key, value in rows[:14]]
        target = site.assets / "bench" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
        more = site.say(f"全部 {len(rows)} 项", f"all {len(rows)} entries")
        parts += ["", f'<p><a href="{site.asset(place, f"bench/{path.name}")}">{path.name}</a> ({more})</p>', ""]
    site.write("benchmarks/results.md", "\n".join(parts), search={"exclude": True})


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of a JSON value, each with its path, as they stand in a table."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from flatten(one, f"{name}.{key}".strip("."))
    elif isinstance(value, list):
        short = all(not isinstance(one, dict | list) for one in value) and len(value) <= 8
        if short:
            yield name, escape(", ".join(map(str, value))).replace("|", "\\|")[:120]
        else:
            for n, one in enumerate(value):
                yield from flatten(one, f"{name}.{n}")
    else:
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        yield name, escape(shown).replace("|", "\\|").replace("\n", " ")[:120]
