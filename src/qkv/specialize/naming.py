"""The names of a family's checkpoints for one model, as short as a program can have them."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import nn

from qkv.checkpoints import name_table

KINDS = (".weight", ".bias")


@dataclass
class Row:
    """One of our parameters, `*` for its layer, with the spellings of theirs that fills it."""

    ours: str
    theirs: list[str]
    ops: list[str]
    parts: list[str]  # the modules of ours that share theirs, in its order

    def module(self) -> tuple[str, str]:
        """Ours and theirs without the kind of parameter that ends both."""
        for kind in KINDS:
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
    parts: list[str] = field(default_factory=list)  # what one tensor of theirs is cut into
    flipped: list[str] = field(default_factory=list)  # ends of their names
    rows: list[str] = field(default_factory=list)  # their names that have a leading 1
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
        if not core.spec.sources:  # type: ignore[union-attr]
            row.theirs = row.theirs[:1]
        known = {row.theirs[0]} | {t for t in row.theirs if set(t.split(".")) & naming.aliases.keys()}
        row.theirs = [t for t in row.theirs if t == row.theirs[0] or t not in known]
        naming.stacked |= "stack" in row.ops
        naming.woven |= "weave" in row.ops
        naming.parts = row.parts or naming.parts
        if "flip" in row.ops and row.ours.endswith(".weight"):
            end = ".".join(row.theirs[0].split(".")[-2:])
            naming.flipped += [end] * (end not in naming.flipped)
        if "row" in row.ops:
            naming.rows.append(row.theirs[0])
    simple = [r for r in rows if len(r.theirs) == 1 and r.module() != (r.ours, r.theirs[0]) and "#" not in r.theirs[0]]
    naming.segments, failed = match_segments(list(dict.fromkeys(r.module() for r in simple)))
    for row in rows:
        if row not in simple or row.module() in failed:
            naming.exceptions[row.ours] = "|".join(row.theirs)
    naming.segments = {k: v for k, v in naming.segments.items() if k != v}
    return naming


def list_rows(table: str, core: nn.Module, spell: Callable[[str], str]) -> list[Row]:
    """The rows of a table for the parameters that a core has; ours alone where there is no table."""
    ours = name_table.named_tensors(core)
    tied = bool(core.spec.head and core.spec.head.kind == "tied")  # type: ignore[union-attr]
    found: dict[str, Row] = {}
    for mine, theirs, ops in name_table.read_table(table, ours):
        for name in mine:
            for kind in ("", *KINDS):
                pattern = re.compile(re.escape(name + kind).replace(r"\*", r"\d+"))
                if any(pattern.fullmatch(n) for n in ours) and not (tied and name + kind == "head.weight"):
                    spelled = [t + kind for t in theirs]
                    parts = [m.split(".")[-1] for m in mine] if "split" in ops else []
                    row = Row(spell(name + kind), spelled, list(ops), parts)
                    if row.ours in found:
                        found[row.ours].theirs += spelled
                    found.setdefault(row.ours, row)
    if not table.strip():
        for name in ours:
            pattern = re.sub(r"\d+", "*", name)
            if not (tied and name == "head.weight"):
                found.setdefault(pattern, Row(spell(pattern), [pattern], [], []))
    if tied:
        found["head.weight"] = Row("head.weight", list(found[spell("embed.weight")].theirs), [], [])
    return list(found.values())


def find_prefix(rows: list[Row]) -> str:
    """What stands before every name in some checkpoints, or before most names in all."""
    for row in rows:
        for longer in row.theirs:
            for shorter in row.theirs:
                if longer != shorter and longer.endswith("." + shorter):
                    return longer.removesuffix(shorter)
    first = [row.theirs[0].split(".")[0] + "." for row in rows]
    most = max(set(first), key=first.count)
    return most if first.count(most) >= 0.8 * len(rows) and rows[0].ours.split(".")[0] + "." != most else ""


def find_aliases(rows: list[Row]) -> dict[str, str]:
    """Words that older checkpoints have for others: gamma for weight."""
    found: dict[str, str] = {}
    words = {w for row in rows for w in row.theirs[0].split(".")}
    for row in rows:
        first = row.theirs[0].split(".")
        for other in (t.split(".") for t in row.theirs[1:]):
            differ = [(o, f) for o, f in zip(other, first, strict=False) if o != f]
            if len(other) == len(first) and len(differ) == 1 and differ[0][0] not in words and "." in row.theirs[0]:
                found[differ[0][0]] = differ[0][1]
    return found


def match_segments(pairs: list[tuple[str, str]]) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """Words for words such that ours become theirs, and the pairs for which that fails."""
    best: tuple[dict[str, str], set[tuple[str, str]]] = {}, set(pairs)
    for order in (pairs, sorted(pairs, key=lambda p: p[0].count(".")), sorted(pairs, key=lambda p: -p[0].count("."))):
        for most in (False, True):
            words: dict[str, str] = {"*": "*"}
            failed = set[tuple[str, str]]()
            for ours, theirs in order:
                more = next(extend(ours.split("."), theirs.split("."), words, most), None)
                if more is None:
                    failed.add((ours, theirs))
                else:
                    words = more
            if (len(failed), len(str(words))) < (len(best[1]), len(str(best[0])) or 10**9):
                best = words, failed
    return best


def extend(ours: list[str], theirs: list[str], words: dict[str, str], most: bool) -> Iterator[dict[str, str]]:
    """The ways to add to `words` so that ours become theirs, the likeliest first."""
    if not ours:
        if not theirs:
            yield words
        return
    first, rest = ours[0], ours[1:]
    if first in words:
        known = words[first].split(".") if words[first] else []
        if theirs[: len(known)] == known:
            yield from extend(rest, theirs[len(known) :], words, most)
        return
    counts = range(1, len(theirs) + 1) if not most else range(len(theirs), 0, -1)
    for count in (*counts, *[0] * bool(rest)):
        if "*" not in theirs[:count]:
            yield from extend(rest, theirs[count:], words | {first: ".".join(theirs[:count])}, most)
