"""One text of a run whose rows moved: a hypothesis of a beam by its parents, a text that left its batch early.

Letters: B rows, T positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor

from qkv.core.cache import Cache
from qkv.core.masks import AttentionBias
from qkv.core.positions import Positions
from qkv.errors import QkvError
from qkv.lens import resolve
from qkv.lens.recording import Recording
from qkv.lens.taps import Call, Run, of_memory

Traced = TypeVar("Traced", bound=Recording)


@dataclass(frozen=True)
class Line:
    """A text's row in each call from the first on, and the ids that it read there, padding of a prompt included."""

    rows: tuple[int, ...]
    ids: tuple[int, ...]

    @property
    def origin(self) -> int:
        """The prompt, or the source's row, that it began from."""
        return self.rows[0]


def parent_rows(call: Call) -> list[int]:
    """The row of the call before that each row continues."""
    return list(range(len(call.ids))) if call.parents is None else call.parents


def path_back(run: Run, call: int, row: int) -> Line:
    """The way back from a row of a call to the first one."""
    rows = [row]
    for later in reversed(run.calls[1 : call + 1]):
        rows.insert(0, parent_rows(later)[rows[0]])
    ids = [i for c, r in zip(run.calls, rows, strict=False) for i in c.ids[r].tolist()]
    return Line(tuple(rows), tuple(ids))


def list_lines(t: Recording, run: int | None = None) -> list[Line]:
    """Every text of a run, a hypothesis that was given up too: those that no later call continues, in that order."""
    passed, found = resolve.find_run(t, run=run), list[Line]()
    for n, call in enumerate(passed.calls):
        gone_on = {row for later in passed.calls[n + 1 : n + 2] for row in parent_rows(later)}
        found += [path_back(passed, n, row) for row in range(len(call.ids)) if row not in gone_on]
    return found


def extract_line(t: Traced, which: int | Sequence[int] = 0, *, origin: int = 0, run: int | None = None) -> Traced:
    """One text of a run as a trace of its own, of one row: `which` counts `lines`, or is the ids that it read last.

    With ids, any beginning of a text can be meant (a beam's end token goes on nowhere); `origin` is its prompt.

    Raises:
        QkvError: no such text.
    """
    passed, chosen = resolve.find_run(t, run=run), find_line(t, which, origin, run)
    one = type(t)(t.core, tokenizer=t.tokenizer)
    one.wanted, one.needed = t.wanted, t.needed
    first = passed.calls[0]
    source = chosen.origin * first.sources // len(first.ids)
    for other in t.runs:
        if other.stack != passed.stack and len(other.calls) == 1 and len(other.calls[0].ids) == first.sources:
            one.runs.append(Run(other.stack, Cache(), [extract_row(other.calls[0], source, source)]))
    calls = [extract_row(c, row, source) for c, row in zip(passed.calls, chosen.rows, strict=False)]
    one.runs.append(Run(passed.stack, Cache(), calls))
    return one


def find_line(t: Recording, which: int | Sequence[int], origin: int, run: int | None) -> Line:
    """The text of a number, or the first one of a prompt that read these ids last."""
    if isinstance(which, int):
        known = list_lines(t, run)
        if not -len(known) <= which < len(known):
            raise QkvError("line {which}: this run has {known} texts, 0 to {known2}", which=which, known=len(known),
                           known2=len(known) - 1)
        return known[which]
    passed = resolve.find_run(t, run=run)
    for way in (path_back(passed, n, row) for n, call in enumerate(passed.calls) for row in range(len(call.ids))):
        if way.origin == origin and way.ids[-len(which) :] == tuple(which):
            return way
    raise QkvError("line: no text of prompt {origin} read the ids {wanted}; t.lines() lists them",
                   origin=origin, wanted=list(which))


def extract_row(call: Call, row: int, source: int) -> Call:
    """One row of a call; of what was made once of the memory, its source's."""
    rows = len(call.ids)

    def take_row(x: Tensor, at: int = row) -> Tensor:
        at = at * len(x) // rows if len(x) < rows else at
        return x[at : at + 1]

    memory = {name for name in call.taps if of_memory(name.split("@")[0])}
    taps = {name: take_row(x, source if name in memory else row) for name, x in call.taps.items()
            if len(x) == rows or name in memory}
    mask = {rule: AttentionBias(None if s.bias is None else take_row(s.bias), s.causal)
            for rule, s in call.mask.items()}
    place = Positions(*(x.expand(call.ids.shape)[row : row + 1] for x in call.place))
    return replace(call, ids=call.ids[row : row + 1], sources=1, mask=mask, place=place, taps=taps, parents=None)
