"""The names of a family's checkpoints for one model, as short as a program can have them."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import permutations

from torch import nn

from qkv.checkpoints import name_table

LAYER = "987"  # stands for any layer's number


@dataclass
class Row:
    """One of our parameters, `*` for its layer, with the spellings of theirs that fills it."""

    ours: str
    theirs: list[str]
    slot: name_table.Slot

    def module(self) -> tuple[str, str]:
        """Ours and theirs without the kind of parameter that ends both."""
        for kind in (".weight", ".bias"):
            if self.ours.endswith(kind) and self.theirs[0].endswith(kind):
                return self.ours.removesuffix(kind), self.theirs[0].removesuffix(kind)
        return self.ours, self.theirs[0]


@dataclass
class Naming:
    """How a loader finds the tensor of a parameter."""

    prefix: str = ""  # that some checkpoints put before every name
    aliases: dict[str, str] = field(default_factory=dict)  # old words of theirs
    segments: dict[str, str] = field(default_factory=dict)  # ours to theirs, word by word
    exceptions: dict[str, str] = field(default_factory=dict)  # whole names, alternatives by |
    parts: list[list[str]] = field(default_factory=list)  # what one tensor of theirs is cut into
    flipped: list[str] = field(default_factory=list)  # ends of their names
    rows: bool = False  # some of theirs have a leading 1
    stacked: bool = False
    woven: bool = False


def derive_naming(core: nn.Module, table: str, spell: Callable[[str], str]) -> Naming:
    """The shortest way from our names, as `spell` writes them in the program, to the table's."""
    rows = list_rows(table, core, spell)
    naming = Naming()
    naming.prefix = find_prefix(rows)
    for row in rows:
        row.theirs = list(dict.fromkeys(t.removeprefix(naming.prefix) for t in row.theirs))
    naming.aliases = find_aliases(rows)
    for row in rows:
        first, *others = row.theirs
        others = others if core.spec.sources else []  # type: ignore[union-attr]
        row.theirs = [first, *(t for t in others if not set(t.split(".")) & naming.aliases.keys())]
    having = {op: [r for r in rows if op in r.slot.ops] for op in ("stack", "weave", "split", "flip", "row")}
    flipped = [".".join(r.theirs[0].split(".")[-2:]) for r in having["flip"] if r.ours.endswith(".weight")]
    naming.flipped = list(dict.fromkeys(flipped))
    naming.stacked, naming.woven, naming.rows = (bool(having[op]) for op in ("stack", "weave", "row"))
    naming.parts = [list(cut) for cut in dict.fromkeys(
        tuple(name.split(".")[-2] for name in row.slot.ours) for row in having["split"])]
    simple = [r for r in rows if len(r.theirs) == 1 and r.module() != (r.ours, r.theirs[0]) and "#" not in r.theirs[0]]
    segments, failed = match_words(list(dict.fromkeys(r.module() for r in simple)))
    naming.segments = {k: v for k, v in segments.items() if k != v}
    naming.exceptions = {r.ours: "|".join(r.theirs) for r in rows if r not in simple or r.module() in failed}
    return naming


def list_rows(table: str, core: nn.Module, spell: Callable[[str], str]) -> list[Row]:
    """The rows of a table for the parameters that a core has; ours alone where there is no table."""
    every = name_table.named_tensors(core)
    ours = {re.sub(r"\d+", LAYER, name): tensor for name, tensor in every.items()}
    tied = bool(core.spec.head and core.spec.head.kind == "tied")  # type: ignore[union-attr]
    slots = name_table.expand_rows(table, every | ours)
    slots = slots or [name_table.Slot({name: tensor}, (name,), ()) for name, tensor in ours.items()]
    rows = {name: Row(spell(name.replace(LAYER, "*")), [t.replace(LAYER, "*") for t in slot.theirs], slot)
            for slot in slots for name in slot.ours if name in ours and not (tied and name == "head.weight")}
    if tied:
        rows["head.weight"] = Row("head.weight", rows["embed.weight"].theirs, rows["embed.weight"].slot)
    return list(rows.values())


def find_prefix(rows: list[Row]) -> str:
    """What stands before every name in some checkpoints, or before most names in all."""
    found = [a.removesuffix(b) for row in rows for a, b in permutations(row.theirs, 2) if a.endswith("." + b)]
    if found:
        return found[0]
    first = [row.theirs[0].split(".")[0] + "." for row in rows]
    most = max(set(first), key=first.count)
    return most if first.count(most) >= 0.8 * len(rows) and not any(row.ours.startswith(most) for row in rows) else ""


def find_aliases(rows: list[Row]) -> dict[str, str]:
    """Words that older checkpoints have for others: gamma for weight."""
    found: dict[str, str] = {}
    words = {w for row in rows for w in row.theirs[0].split(".")}
    for first, *others in ([t.split(".") for t in row.theirs] for row in rows):
        for other in (o for o in others if len(o) == len(first) > 1):
            differ = [(o, f) for o, f in zip(other, first, strict=True) if o != f]
            found |= dict(differ) if len(differ) == 1 and differ[0][0] not in words else {}
    return found


def match_words(pairs: list[tuple[str, str]]) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """Words for words such that ours become theirs, and the pairs for which that fails."""
    orders = pairs, sorted(pairs, key=lambda pair: pair[0].count("."))
    ways = [add_words(order, first=first) for order in orders for first in (False, True)]
    return min(ways, key=lambda way: (len(way[1]), len(str(way[0]))))


def add_words(pairs: list[tuple[str, str]], *, first: bool) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """The same pair by pair: each new word of ours stands for one of theirs, the first or the last for what is left."""
    words, failed = dict[str, str](), set[tuple[str, str]]()
    for ours, theirs in pairs:
        found = dict(words)
        for mine, others in zip(ours.split(".*."), theirs.split(".*."), strict=False):
            names, left = mine.split("."), others.split(".")
            for after, word in reversed(list(enumerate(reversed(names)))):
                most = max(len(left) - after, 0)
                found.setdefault(word, ".".join(left[: most if first or not after else min(most, 1)]))
                left = left[len(found[word].split(".")) if found[word] else 0 :]
        if ".".join(filter(None, (found.get(word, word) for word in ours.split(".")))) == theirs:
            words = found
        else:
            failed.add((ours, theirs))
    return words, failed
