"""What stands round the model in a program: imports, the loader of its weights, and a way to run it."""

import json
import re
from typing import Any

from qkv import spec as parts
from qkv.specialize import layout
from qkv.specialize.naming import Naming


def fill_template(name: str, **fields: Any) -> str:
    """The text of a template."""
    from jinja2 import Environment, PackageLoader

    return Environment(loader=PackageLoader("qkv.specialize", ""), trim_blocks=True).get_template(name).render(**fields)


def print_head(s: parts.Spec, body: str, **fields: Any) -> str:
    """What stands above a text: what it is, and the imports that it needs."""
    towers = [f"{n} of {len(t.blocks)} layers" for n, t in (("encoder", s.encoder), ("decoder", s.decoder)) if t]
    doc, _, imports = fill_template("head.jinja", s=s, towers=towers, **fields).rpartition('"""')
    words, groups = set(re.findall(r"\w+", re.sub(r'"[^"\n]*"', "", body))), list[str]()
    for group in imports.strip().split("\n\n"):
        lines = [line.rpartition("import ") for line in group.split("\n")]
        kept = [(start, [n for n in names.split(", ") if n.split(" ")[-1] in words]) for start, _, names in lines]
        groups.append("\n".join(f"{start}import {', '.join(names)}" for start, names in kept if names))
    return f'{doc}"""\n\n' + "\n\n".join(filter(None, groups))


def print_frame(s: parts.Spec, naming: Naming, *, free: bool, blanks: bool) -> str:
    """The table of names, the function that fills a model by it, and the one that runs the model on a prompt."""
    words = 'NAMES.get(word, word) for word in name.split(".")'
    words = f'".".join(filter(None, ({words})))' if "" in naming.segments.values() else f'".".join({words})'
    words = words if naming.segments else "name"
    starred = any("*" in name for name in naming.exceptions)
    key = "key" if starred else f"NAMES.get(name, {words})" if naming.exceptions else words
    if any("|" in theirs for theirs in naming.exceptions.values()):
        key = f'next(key for key in {key}.split("|") if key in stored)'
    theirs = "name" + f'.removeprefix("{naming.prefix}")' * bool(naming.prefix)
    theirs += "".join(f'.replace(".{old}", ".{new}")' for old, new in naming.aliases.items())
    what = "a prompt and what follows it, the likeliest token each time"
    if not s.decoder or not s.head:
        what = "what the model says of a text"
    elif s.encoder:
        what = "what the model writes for a source, the likeliest token each time"
    learned = s.stack.positions and s.stack.positions.kind == "learned"
    text = fill_template(
        "frame.jinja",
        s=s, naming=naming, table=print_table("NAMES", naming.segments | naming.exceptions), words=words, key=key,
        theirs=theirs, starred=starred, changed=bool(naming.flipped or naming.parts or naming.stacked), what=what,
        writes=bool(s.decoder and s.head), free=free, blanks=blanks, list=lambda words: f"({json.dumps(words)[1:-1]})",
        count="min(start + 50, POSITIONS)" if learned else "start + 50",
        given="torch.tensor([ids])" + ", torch.zeros(1, len(ids), dtype=torch.long)" * bool(s.stack.segments),
    )
    lines = ((line.lstrip(), len(line) - len(line.lstrip())) for line in text.split("\n"))
    return "\n".join(short for line, indent in lines for short in layout.wrap(line, indent))


def print_table(name: str, words: dict[str, str]) -> str:
    """A dict of words, as many on a line as fit; nothing of none."""
    entries = [f"{json.dumps(ours)}: {json.dumps(theirs)}," for ours, theirs in words.items()]
    rows = layout.fill_rows(entries, lambda row: len(" ".join(row)) + 4 <= layout.WIDE)
    return "\n".join([f"{name} = {{", *("    " + " ".join(row) for row in rows), "}"]) if words else ""
