"""Labs: one file, one claim, settled by running it. Start with order_blind.py, then lab.py; the folder is scanned.

A lab uses public API alone, which is what PUBLIC lists (a test reads the imports): `qkv` itself, spec, cost, sample,
the corpus, looking inside (lens), and of the core its documented parts: the step, the cache's interface, attention.
"""

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import QkvError
from qkv.messages import Message, join

if TYPE_CHECKING:
    from qkv.labs.lab import Lab

PUBLIC: Mapping[str, tuple[str, ...]] = {  # module: the names that a lab may take from it, () for all
    "qkv": (),
    "qkv.messages": (),
    "qkv.spec": (),
    "qkv.cost": (),
    "qkv.sampling": (),
    "qkv.errors": (),
    "qkv.data.corpus": (),
    "qkv.lens": (),
    "qkv.lens.edit": (),
    "qkv.lens.edge_ablation": (),
    "qkv.lens.logit_lens": (),
    "qkv.lens.trace": (),
    "qkv.hub": ("spec_of",),
    "qkv.model": ("Model",),
    "qkv.core.model": ("build_step",),
    "qkv.core.step": ("Inputs", "listener"),
    "qkv.core.cache": ("Cache", "Static"),
    "qkv.core.attention": ("Attention", "attend"),
    "qkv.core.masks": ("Cells", "reasons", "REASONS"),
    "qkv.labs": (),
    "qkv.labs.lab": (),
    "qkv.labs.tiny": (),
    "qkv.labs.antecedent": (),
    "qkv.labs.arms": (),
    "qkv.baselines.lstm": ("compute_alignment", "lstm_spec"),
}


def list_names() -> list[str]:
    """The labs: the files of this folder that end in a LAB; the others are what labs share."""
    files = (file for file in Path(__file__).parent.glob("*.py") if "\nLAB = " in file.read_text(encoding="utf-8"))
    return sorted(file.stem.replace("_", "-") for file in files)


def find_lab(name: str) -> "Lab":
    """The lab of a name.

    Raises:
        QkvError: no such lab; the nearest names are told.
    """
    if name not in list_names():
        close = get_close_matches(name, list_names(), n=3, cutoff=0.4)
        hint = Message("; did you mean {close}?", close=join(" or ", close)) if close else ""
        raise QkvError("there is no lab {name!r}{hint} (`qkv lab` lists all {names})", name=name, hint=hint,
                       names=len(list_names()))
    return import_module(f"qkv.labs.{name.replace('-', '_')}").LAB


def find_results() -> Path:
    """The folder of the results that come with the package."""
    return Path(__file__).parent / "results"


def load_result(name: str, directory: Path | None = None) -> dict[str, Any] | None:
    """The saved result of a lab, None where it was never run."""
    file = (directory or find_results()) / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def list_labs() -> Iterator[dict[str, Any]]:
    """Every lab with its claim and its saved verdict; one without a result is "not run yet"."""
    for name in list_names():
        found = load_result(name)
        if found is None:
            lab = find_lab(name)
            found = {"name": name, "kind": lab.kind, "claim": [lab.claim.to("zh"), str(lab.claim)]}
            found |= {"verdict": "not run yet", "says": ["", ""]}
        keys = ("name", "kind", "claim", "verdict", "says", "effect", "spread", "seconds", "cpu")
        yield {key: found.get(key) for key in keys}


def misconceptions() -> list[dict[str, Any]]:
    """What circulates and is wrong: the idea, the right statement (each zh and en), its source, what shows it."""
    import tomllib

    text = (Path(__file__).parent / "misconceptions.toml").read_text(encoding="utf-8")
    said = [(Message(e["idea"]), Message(e["right"]), e) for e in tomllib.loads(text)["entry"]]
    return [{"idea_zh": idea.to("zh"), "idea_en": str(idea), "right_zh": right.to("zh"), "right_en": str(right),
             "source": e["source"], "show": e["show"]} for idea, right, e in said]


def document(lang: str) -> str:
    """The misconceptions as the Markdown of docs/misconceptions.md ("en") or docs/misconceptions.zh-CN.md ("zh")."""
    lines = [Message("# Common misunderstandings").to(lang), ""]
    lines += [Message("What circulates and is not so: the ideas, not the people. Each has a command that shows "
                      "it.").to(lang), ""]
    colon = Message(": ").to(lang)
    for n, e in enumerate(misconceptions(), 1):
        right, source = (Message("Rather").to(lang), Message("Source").to(lang))
        lines += [f"## {n}. {e[f'idea_{lang}']}", "", f"**{right}{colon.strip()}** {e[f'right_{lang}']}", ""]
        lines += [f"{source}{colon}{e['source']}. `{e['show']}`", ""]
    other = "[English](misconceptions.md)" if lang == "zh" else "[中文](misconceptions.zh-CN.md)"
    return "\n".join([*lines, other, ""])
