"""Who reads and who writes in the next pass: first come, first served, within a budget of tokens and of pages.

`plan` gives each row that can go on a number of tokens: one where it writes, a piece of its text where it still reads.
Where pages run out, the request that came last gives its pages back and reads its own text again later; the one that
came first is never sent back, so every request ends.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from qkv.core.cache import Pair
from qkv.core.step import Inputs
from qkv.generation.pages import BLOCK, Pages, Table

SHORT = 64  # tokens of a piece that is read among rows of other texts


@dataclass(eq=False)
class Row:
    """One text in the pages: all its ids, those that are stored, and the logits [V] after them once all are."""

    ids: list[int]
    table: Table = field(default_factory=Table)
    logits: Tensor | None = None

    @property
    def pending(self) -> int:
        """Ids that are still to be read."""
        return len(self.ids) - self.table.length


@dataclass(eq=False)
class Group:
    """The rows of one request, which move together: one, or the beams of a search.

    root    begins the names of its pages: texts of the same root have the same keys for the same ids; None: own keys
    whole   so many first ids must be read in one pass, as a free prefix is
    blocks  so many first ids are read BLOCK at a time, and what is left of them, each block in a pass of its own
    window  positions that any layer still looks back to; None: all of them
    inputs  what goes with its ids into every pass; `memory` has the keys of its source by layer
    """

    number: int
    rows: list[Row]
    root: bytes | None = b""
    whole: int = 0
    blocks: int = 0
    window: int | None = None
    inputs: Inputs = field(default_factory=Inputs)
    memory: dict[int, Pair] = field(default_factory=dict)
    preempted: int = 0
    done: bool = False


class Work(NamedTuple):
    """So many new tokens of a row, from a position on."""

    group: Group
    row: Row
    at: int
    tokens: int = 1


@dataclass(frozen=True)
class Limits:
    """How much goes into one step.

    rows    texts that are read and written at the same time
    tokens  in one step at most, those being written first; a block or a free prefix may be more
    beside  tokens that are read in a step in which others write, so that these do not wait long; None: as many as the
            core multiplies in about half the time in which its weights are read (passes.py) and those that cost no
            more, the rest of one text of at most 64, which else would begin many steps later, and 64 where somebody
            waits for a row
    """

    rows: int = 64
    tokens: int = 512
    beside: int | None = None


class Scheduler:
    """The requests that wait and those that run, in the order in which they came."""

    def __init__(self, pages: Pages, limits: Limits, beside: int, round_up: Callable[[int], int] = int) -> None:
        self.pages, self.limits, self.beside = pages, limits, limits.beside or beside
        self.round_up = int if limits.beside else round_up  # to rows that take no longer
        self.short = 0 if limits.beside else SHORT
        self.waiting: deque[Group] = deque()
        self.running: list[Group] = []

    def plan(self) -> list[Work]:
        """The work of the next step: each running row's next token, then texts that are still read, then new ones."""
        plan: list[Work] = []
        for group in list(self.running):
            for row in group.rows:
                if row.pending == 1 and row.table.length >= group.whole and group in self.running:
                    self.plan_work(plan, group, row, 1)
        left = self.limits.tokens - len(plan)
        short = min(self.short, left - self.beside) if plan else 0
        beside = max(self.beside, self.short if self.is_crowded() else 0)
        left = min(left, self.round_up(len(plan) + beside) - len(plan)) if plan else left
        for group in list(self.running):
            left -= self.read_on(plan, group, left, short)
        while self.waiting and left > 0 and self.admit(self.waiting[0]):
            self.running.append(self.waiting.popleft())
            left -= self.read_on(plan, self.running[-1], left, short)
        return plan

    def is_crowded(self) -> bool:
        """Whether somebody waits for a row: then texts are read faster, and those who write wait a little longer."""
        rows = sum(len(group.rows) for group in self.running)
        return bool(self.waiting) and rows + len(self.waiting[0].rows) > self.limits.rows

    def read_on(self, plan: list[Work], group: Group, left: int, short: int) -> int:
        """Plan what a request still reads, at most `left` tokens, or a whole prefix, block or short rest; how many."""
        count = 0
        for row in group.rows:
            if group not in self.running or left <= count or row.pending == 0 or any(w.row is row for w in plan):
                continue
            at = row.table.length
            whole = group.whole if at < group.whole else row.pending * (row.pending <= short)
            tokens = whole or min(row.pending, left - count)
            if at + tokens < group.blocks:
                tokens = min(max(1, tokens // BLOCK) * BLOCK, group.blocks - at)
            count += tokens if self.plan_work(plan, group, row, tokens) else 0
        return count

    def plan_work(self, plan: list[Work], group: Group, row: Row, tokens: int) -> bool:
        """Plan work for which there are pages, or can be: those who came last leave first."""
        while not self.pages.reserve(row.table, row.table.length + tokens):
            last = self.running[-1]
            self.preempt(last)
            plan[:] = [work for work in plan if work.group is not last]
            if last is group:
                return False
        plan.append(Work(group, row, row.table.length, tokens))
        return True

    def admit(self, group: Group) -> bool:
        """Whether a request can begin: its rows find the pages that are known, and there is room for the rest."""
        if sum(len(g.rows) for g in (*self.running, group)) > max(self.limits.rows, len(group.rows)):
            return False
        for row in group.rows:
            if group.root is not None and not row.table.pages:
                row.table = self.pages.find_prefix(row.ids, group.root, group.blocks)
        missing = sum(-(-len(row.ids) // self.pages.size) - len(row.table.pages) for row in group.rows)
        if missing <= self.pages.free:
            return True
        for row in group.rows:
            self.pages.release(row.table)
        return False

    def preempt(self, group: Group) -> None:
        """Send a running request back to the front of those who wait; what it has written it reads again."""
        self.remove(group)
        group.preempted += 1
        place = sum(other.number < group.number for other in self.waiting)
        self.waiting.insert(place, group)

    def remove(self, group: Group) -> None:
        """Take a request out, wherever it is; its pages are free at once."""
        for queue in (self.waiting, self.running):
            if group in queue:
                queue.remove(group)
        for row in group.rows:
            self.pages.release(row.table)
            row.logits = None

    def note(self, work: Work) -> None:
        """The tokens of some work are stored now: name full pages, give back those behind the window."""
        group, table = work.group, work.row.table
        table.length += work.tokens
        if group.root is not None:
            self.pages.give_names(table, work.row.ids, group.blocks)
        if group.window is not None:
            self.pages.release(table, table.length + 1 - group.window)
