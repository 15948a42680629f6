"""Selectors: which taps a trace keeps, and which heads and positions of them. recording.py keeps and reads by them.

`layers.{4:8}.attn.{q,k}@heads=0:4@pos=-1` is a glob over tap names, with slices of the layers in braces, then a cut.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from qkv.errors import QkvError, nearest
from qkv.lens.taps import position_axis
from qkv.messages import Message

NUMBERS = re.compile(r"-?\d+(?:,-?\d+)*|(?:-?\d+)?:(?:-?\d+)?(?::[1-9]\d*)?")
CUTS = ("heads", "pos")
EXPECTED = Message("expected numbers or a slice, such as @heads=0,3 or @pos=-1 or @heads=0:4@pos=2:10")


@dataclass(frozen=True)
class Selector:
    """A tap, and what of it is meant: its heads (None: all) and its positions as they were typed (empty: all)."""

    name: str
    tap: str
    heads: list[int] | None
    pos: str

    @property
    def cut(self) -> str:
        """What stands behind the name of the tap."""
        return self.name.removeprefix(self.tap)

    def list_slots(self, first: int, count: int) -> list[int]:
        """The slots that are meant of a call's `count` positions from `first` on, in their order.

        Numbers from 0 count over the whole run; negative ones from the end of the call, so that -1 is the last position
        of a prompt and then every word written after it.
        """
        end, here = first + count, range(first, first + count)
        if not self.pos:
            return list(here)
        if ":" not in self.pos:
            return sorted(n for n in {n + end if n < 0 else n for n in parse_numbers(self.pos)} if n in here)
        s = parse_slice(self.pos)
        start, stop = (at + end if at is not None and at < 0 else at for at in (s.start, s.stop))
        return [n for n in range(max(0, start or 0), end if stop is None else stop, s.step or 1) if n in here]

    def slice_tap(self, x: Tensor, where: Sequence[int] | None) -> Tensor:
        """A copy of its heads and of those positions (None: all) of what the tap carried: the rest can be freed."""
        if self.heads is not None:
            x = x.index_select(1, torch.tensor(self.heads, device=x.device))
        return x if where is None else x.index_select(position_axis(x), torch.tensor(where, device=x.device))

    def require_positions(self, met: Sequence[int], last: int) -> None:
        """A QkvError where a position that is named is not among those that a run of slots 0 to `last` met."""
        lost = [] if ":" in self.pos else [n for n in parse_numbers(self.pos) if n >= 0 and n not in met]
        if lost or not met:
            raise QkvError("{name!r}: position {lost} was not read; this run has 0 to {last}", name=self.name,
                           lost=lost[0] if lost else self.pos, last=last)


def parse_selector(name: str) -> tuple[str, dict[str, str]]:
    """A selector as the name (or glob) of its tap, and its heads and positions as they were typed.

    Raises:
        QkvError: something other than heads and pos, each once, as numbers or a slice.
    """
    tap, *more = name.split("@")
    found: dict[str, str] = {}
    for one in more:
        key, _, value = one.partition("=")
        if key not in CUTS or key in found:
            raise QkvError("{name!r}: found @{key}{hint}; a selector has @heads and @pos, each once", name=name,
                           key=key, hint=nearest(key, CUTS))
        if not NUMBERS.fullmatch(value):
            raise QkvError("{name!r}: {key}={said}; {expected}", name=name, key=key, said=value, expected=EXPECTED)
        found[key] = value
    return tap, found


def make_selector(name: str, count: int) -> Selector:
    """The selector of a tap that has `count` heads.

    Raises:
        QkvError: a head that is not there, a slice of none, a tap without heads (`count` 0).
    """
    tap, cut = parse_selector(name)
    typed, found = cut.get("heads"), None
    if typed is not None:
        if not count:
            raise QkvError("{name!r}: {tap} has no heads; leave @heads out", name=name, tap=tap)
        numbers = range(count)[parse_slice(typed)] if ":" in typed else parse_numbers(typed)
        found = [head + count if -count <= head < 0 else head for head in numbers]
        if not found or not all(0 <= head < count for head in found):
            raise QkvError("{name!r}: {tap} has {count} heads, 0 to {count2}; found heads={heads}", name=name,
                           tap=tap, count=count, count2=count - 1, heads=typed)
    order = "".join(f"@{key}={cut[key]}" for key in CUTS if key in cut)
    return Selector(tap + order, tap, found, cut.get("pos", ""))


def parse_numbers(typed: str) -> list[int]:
    """Numbers as they were typed."""
    return [int(part) for part in typed.split(",")]


def parse_slice(typed: str) -> slice:
    """A slice as it was typed."""
    return slice(*(int(part) if part else None for part in typed.split(":")))


def expand_glob(glob: str, layers: int) -> Iterator[str]:
    """A glob with {a,b} as the globs it stands for; {8:12} or {-2:} is a slice of the layers' numbers, as in Python."""
    found = re.search(r"\{([^{}]*)\}", glob)
    if found is None:
        yield glob
        return
    for part in expand_braces(found[1], glob, layers):
        yield from expand_glob(glob[: found.start()] + part + glob[found.end() :], layers)


def expand_braces(inside: str, glob: str, layers: int) -> list[str]:
    """What stands between braces, one by one."""
    if ":" not in inside or not NUMBERS.fullmatch(inside):
        return inside.split(",")
    found = range(layers)[parse_slice(inside)]
    if not found:
        raise QkvError("{glob!r}: the slice {{{inside}}} holds none of the layers, which are 0 to {layers}", glob=glob,
                       inside=inside, layers=layers - 1)
    return [str(layer) for layer in found]


def match_taps(glob: str, known: Sequence[str], readouts: Iterable[str], *, strict: bool = True) -> Iterator[str]:
    """The names that a glob means; none is a QkvError with the nearest name, unless a readout asked."""
    found = [n for n in known if fnmatchcase(n, glob)]
    if strict and not found:
        hint = nearest(glob, [*known, *readouts])
        ways = Message("names look like {known!r}, readouts are {readouts}", known=known[2],
                       readouts=", ".join(readouts))
        raise QkvError("no tap matches {glob!r}{hint}; {ways}", glob=glob, hint=hint, ways=ways)
    yield from found
