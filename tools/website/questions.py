"""The questions of docs/questions.md, each with its answer on the page: what its command prints, its panel, its lab."""

import contextlib
import io
import json
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from html import escape
from typing import Any

from qkv import cli

from .asked import PANELS, Asked, list_panels, list_recorded, name_page, read_questions
from .course import find_title, list_chapters, name_labs
from .pages import SITE, Site
from .widgets import Widgets

CHAPTERS = {  # which chapter explains, by a word of the command or by the panel
    "walk": "04_qkv", "heads": "06_heads", "mask": "07_mask", "choices": "10_words", "proof": "05_attention",
    "lens": "08_layers", "parts": "08_layers", "guess-map": "08_layers", "wavefront": "08_layers", "show": "08_layers",
    "routes": "09_ffn", "experts": "09_ffn", "neighbours": "02_embedding", "shift": "02_embedding", "cache": "12_cache",
    "info": "12_cache", "demo-bert": "05_attention", "look": "05_attention",
}  # fmt: skip
PICTURES = "--figures"
MOST = 40  # lines of a command that stand on the page


@cache
def run_command(command: str, lang: str) -> str:
    """What a command prints; a lab's is that of its committed result.

    Raises:
        RuntimeError: the command failed.
    """
    words = shlex.split(command)[1:]
    if words[0] == "lab" and "--saved" not in words:
        words = [*words, "--saved"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main([*words, "--lang", lang])
    if code or not out.getvalue().strip():
        raise RuntimeError(f"{command}: exit {code}: {err.getvalue()}")
    return out.getvalue()


def write_questions(site: Site, mentions: dict[str, list[tuple[str, str]]]) -> list[Asked]:
    """The page of questions; every answer stands below its question, or one click away."""
    place, every = "questions.md", list_recorded()
    head = site.say("读者会问的问题", "The questions that readers ask")
    about = site.say("五篇文章留下的问题，每个都有回答：结论、真实模型的输出，或打开到那一处的页面。",
                     "The questions that five texts leave open, each answered: a verdict, what a real model prints, or "
                     "a page that opens at the right place.")
    parts, found, heading = [f"# {head}", "", about, ""], read_questions(), ("", "")
    for asked in found:
        if asked.heading != heading:
            heading = asked.heading
            parts += [f"## {site.say(*heading)}", ""]
        title = site.say(asked.zh, asked.en)
        parts += [f"### {title} {{#q-{asked.number}}}", "", *write_answer(site, place, asked, every)]
        if asked.lab:
            mentions.setdefault(asked.lab, []).append((title, f"{place}#q-{asked.number}"))
    site.write(place, "\n".join(parts), description=about)
    return found


def write_answer(site: Site, place: str, asked: Asked, every: list[tuple[str, str]]) -> Iterator[str]:
    """What answers one question."""
    widgets = Widgets(site, place, files=False)
    if asked.lab:
        yield widgets.verdict(asked.lab)
    else:
        yield find_answer(asked)[site.lang] + "\n"
        yield show_pictures(site, place, asked) if PICTURES in asked.words else show_output(site, asked.command)
    links = [widgets.look(site.say("打开面板：", "open the panel: ") + name_panel(site, panel),
                          name_page(*asked.looks, every), panel, **find_place(asked)) for panel in list_panels(asked)]
    word = site.say("课程", "course")
    links += [f'<a href="{site.html(place, f"course/{name}.md")}">{word} {find_title(site, name)}</a>'
              for name in list_explaining(site, asked)]
    yield f'<p class="ways">{" · ".join([*links, f"<code>{escape(asked.command)}</code>"])}</p>'
    yield ""


def find_place(asked: Asked) -> dict[str, Any]:
    """Where the panels of a question open: the attention, query and key that its command walks through."""
    if "walk" not in asked.words:
        return {}
    found = json.loads(run_command(f"{asked.command} --json", "en"))["readouts"][0]["data"]
    stack, _, rest = found["path"].rpartition("layers.")
    layer, _, kind = rest.partition(".")
    part = "cross" if kind == "cross" else "encoder" if stack == "encoder." else "decoder"
    return {"part": part, "layer": layer} | {key: found[key] for key in ("head", "query", "key")}


def list_explaining(site: Site, asked: Asked) -> list[str]:
    """The chapter that explains: the first that rests on the same lab, else the one on what the command shows."""
    if asked.lab:
        return [name for name in list_chapters() if asked.lab in name_labs(site.lang, name)][:1]
    return [CHAPTERS[word] for word in [*reversed(asked.words), *list_panels(asked)] if word in CHAPTERS][:1]


def find_answer(asked: Asked) -> dict[str, str]:
    """The short answer in words to a question that no lab answers.

    Raises:
        KeyError: site/answers.toml has none.
    """
    found = tomllib.loads((SITE / "answers.toml").read_text(encoding="utf-8"))
    return found[next((key for key in found if asked.zh.startswith(key)), asked.zh)]


def show_pictures(site: Site, place: str, asked: Asked) -> str:
    """The figures that a command writes, which are put where both languages find them."""
    folder = f"figures/{site.lang}/five"
    words = [str(site.assets / folder) if before == PICTURES else word
             for before, word in zip(["", *asked.words], asked.words, strict=False)]
    run_command(shlex.join(words), site.lang)
    return "\n".join(
        f'<p><img src="{site.asset(place, f"{folder}/{path.name}")}" alt="{path.stem}" loading="lazy"></p>'
        for path in sorted((site.assets / folder).glob("*.png"))
    )


def show_output(site: Site, command: str) -> str:
    """What a command prints, the first lines open and the rest of a long one folded."""
    lines = run_command(command, site.lang).strip("\n").splitlines()
    label = escape(command, quote=True)
    box = f'<pre class="said" tabindex="0" role="region" aria-label="{label}">'
    shown = "&#10;".join(escape(line) for line in lines[:MOST])
    rest = site.say(f"（共 {len(lines)} 行）", f"({len(lines)} lines in all)") if len(lines) > MOST else ""
    return f"{box}{shown}{'&#10;…' * bool(rest)}</pre>" + f"<p>{rest}</p>" * bool(rest)


def name_panel(site: Site, panel: str) -> str:
    """A panel's name as the page has it."""
    zh = {"heads": "注意力头", "proof": "证明", "guess-map": "逐层猜词", "walk": "一步步算", "next-word": "下一个词",
          "parts": "谁推高了它", "mask": "掩码与阶段", "cache": "KV 缓存", "alignment": "对齐", "experts": "专家",
          "shift": "词的移动", "cost": "成本", "compare": "比较"}
    en = {name: words for words, name in PANELS.items() if words[0].isupper()}
    return site.say(zh[panel], en[panel])
