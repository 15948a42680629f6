"""Keys and values in pages that texts share: a pool, each text's table of pages, and the cache that one pass reads.

A page holds `size` positions of every layer and is counted; who writes into a shared one gets a copy first. A full page
has a name, the hash of all ids up to its end, by which the next text that begins alike finds it. Page 0 belongs to
nobody: rows that only fill a batch write there. Letters: B rows, T new tokens, G key/value groups, K head dim.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from qkv.adapt import native, row_ops
from qkv.adapt.native import is_plain
from qkv.adapt.row_block import Keys, Places
from qkv.core import kernels
from qkv.core.attention import Attention
from qkv.core.cache import Cache, Pair
from qkv.core.latent import Latent
from qkv.core.masks import AttentionBias, MaskContext, build_mask
from qkv.core.step import Step

BLOCK = 128  # tokens of a prompt that are read in a pass of their own, where results do not depend on company
MOST_SINGLE = 16  # new tokens of a text up to which each is a row that reads its keys alone, as single tokens do


@dataclass(eq=False)
class Table:
    """The pages of one text: `length` positions are stored, the first `named` pages can be found by `name`."""

    pages: list[int] = field(default_factory=list)
    length: int = 0
    named: int = 0
    name: bytes = b""


class Pages:
    """The pool: `count` pages of `size` positions. Page 0 is never given away, so `count` - 1 can be taken."""

    def __init__(self, count: int, size: int, device: torch.device) -> None:
        self.count, self.size, self.device = count, size, device
        self.taken = bytearray(count)  # 1: in a table, or kept for its name
        self.taken[0] = 1
        self.readers = [0] * count
        self.known: dict[bytes, int] = {}
        self.names: dict[int, bytes] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()  # named, and in no table now: the longest unused first
        self.storage: dict[int, Pair] = {}  # by layer: [count x size, G, K] each

    @property
    def free(self) -> int:
        """Pages that can be taken now, those kept for their names included."""
        return self.count - sum(self.taken) + len(self.idle)

    def allocate(self, after: int = 0) -> int:
        """A free page, the one next to `after` if it can be, so that most texts lie in one piece."""
        page = after + 1
        if not after or page >= self.count or self.taken[page]:
            gap = self.taken.find(bytes(8))  # room to grow into
            page = gap if gap > 0 else self.taken.find(0)
        if page < 0:
            page, _ = self.idle.popitem(last=False)
            del self.known[self.names.pop(page)]
        self.taken[page], self.readers[page] = 1, 1
        return page

    def reserve(self, table: Table, end: int) -> bool:
        """Make room for the positions before `end`, and give a shared page that will be written its copy; or False."""
        missing = -(-end // self.size) - len(table.pages)
        shared = table.length % self.size > 0 and self.readers[table.pages[-1]] > 1
        if missing <= 0 and not shared:
            return True
        if missing + shared > self.free:
            return False
        if shared:
            old = table.pages[-1]
            new = table.pages[-1] = self.allocate()
            self.readers[old] -= 1
            for store in (half for pair in self.storage.values() for half in pair):
                store[new * self.size : (new + 1) * self.size] = store[old * self.size : (old + 1) * self.size]
        for _ in range(missing):
            table.pages.append(self.allocate(table.pages[-1] if table.pages else 0))
        return True

    def fork(self, table: Table) -> Table:
        """A second table of the same pages."""
        for page in table.pages:
            self.readers[page] += page > 0
        return Table(list(table.pages), table.length, table.named, table.name)

    def release(self, table: Table, before: int | None = None) -> None:
        """Give back the pages of a table, or those whose positions all lie before a rolling window."""
        for n, page in enumerate(table.pages[: None if before is None else max(0, before) // self.size]):
            if page:
                table.pages[n] = 0  # what stood there is masked from now on
                self.readers[page] -= 1
                if self.readers[page] == 0 and page in self.names:
                    self.idle[page] = None
                elif self.readers[page] == 0:
                    self.taken[page] = 0
        if before is None:
            table.pages, table.length, table.named, table.name = [], 0, 0, b""

    def give_names(self, table: Table, ids: Seq[int], blocks: int = 0) -> None:
        """Name the pages of a table that are full, given all ids of its text and how many were read in blocks."""
        while (table.named + 1) * self.size <= table.length:
            table.name, page = self.name_page(table, ids, blocks), table.pages[table.named]
            if page and table.name not in self.known:
                self.known[table.name], self.names[page] = page, table.name
            table.named += 1

    def find_prefix(self, ids: Seq[int], root: bytes, blocks: int = 0) -> Table:
        """The pages of the longest known beginning of a text; its last token is always left to read.

        Of the first `blocks` ids, which are read in passes of BLOCK and one of the rest, whole such passes only.
        """
        table, names, whole = Table(name=root), [root], 0
        while len(ids) - table.length > self.size:
            table.name = self.name_page(table, ids, blocks)
            page = self.known.get(table.name)
            if page is None:
                break
            names.append(table.name)
            table.pages.append(page)
            table.named, table.length = table.named + 1, table.length + self.size
            if table.length >= blocks or table.length % BLOCK == 0:
                whole = table.named
        found = Table(table.pages[:whole], whole * self.size, whole, names[whole])
        for page in found.pages:
            self.idle.pop(page, None)
            self.readers[page] += 1
        return found

    def name_page(self, table: Table, ids: Seq[int], blocks: int) -> bytes:
        """The name of a table's next page: of its ids, how many were read in blocks, and the last block's size."""
        at, end = table.named * self.size, (table.named + 1) * self.size
        last = blocks % BLOCK if blocks - blocks % BLOCK < end and at < blocks else 0
        return chain(table.name, (*ids[at:end], -min(max(0, blocks - at), self.size), -last))

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store keys and values [B, G, T, K] of a layer at the slots [BT]."""
        if layer not in self.storage:
            size = self.count * self.size
            one, two = (t.new_empty(size, t.shape[1], t.shape[3]) for t in (k, v))
            one[: self.size], two[: self.size] = 0, 0  # what rolled out of a window is read as this, and masked
            self.storage[layer] = one, two
        for store, new in zip(self.storage[layer], (k, v), strict=True):
            store.index_copy_(0, slots, new.transpose(1, 2).flatten(0, 1))


def chain(name: bytes, ids: Iterable[int]) -> bytes:
    """The name of a page: the hash of the name of the page before it, and of its ids."""
    return hashlib.blake2b(name + array("q", ids).tobytes(), digest_size=16).digest()


@dataclass(frozen=True, eq=False)
class Reading:
    """A text in a pass: its table, how many positions it has after it, its memory's keys by layer, its new tokens."""

    table: Table
    end: int
    memory: dict[int, Pair] = field(default_factory=dict)
    tokens: int = 1


class Paged(Cache):
    """What one pass reads and writes: the new tokens of one text, or of several, each of them a row.

    Rows may belong to one text, at different positions. Each text is read alone, as it lies in its pages: a view where
    they lie side by side. What a row reads, and in which shape, depends on its position and on nothing beside it; but
    not where `gather` allows that rows of like length are copied together and read at once, nor where a text has
    more than a few new tokens.
    """

    def __init__(self, pages: Pages, *, gather: bool = False) -> None:
        self.pages, self.gather = pages, gather
        self.texts: list[Reading] = []
        self.ends: list[int] = []  # of each row
        self.all: Tensor | None = None  # BS, the slots of all rows, each ending at the last

    def place(self, texts: Seq[Reading]) -> "Paged":
        """Stand before a pass over the new tokens of these texts."""
        self.texts, size = list(texts), self.pages.size
        self.ends = [end for text in texts for end in range(text.end - text.tokens + 1, text.end + 1)]
        most, alone = max(self.ends), len(texts) == 1
        even = len(self.ends) == len(texts) and len(texts) * most < 2 * sum(self.ends)
        together = self.gather and not alone and even
        # rows one by one: a multiple, for which the same kernels run
        self.length = most - texts[0].tokens if alone else most - 1 if together else -(-most // 64) * 64 - 1
        places = [(text.table.pages, at) for text in texts for at in range(text.end - text.tokens, text.end)]
        slots = [pages[at // size] * size + at % size for pages, at in places]
        self.written, self.slots = slots, torch.tensor(slots, device=self.pages.device)
        self.read: dict[int | None, tuple[list[int | Tensor], list[int]]] = {}  # by window
        self.alike: dict[tuple[int | None, tuple[int, ...]], Places] = {}  # of layers by window and strides
        # rows that compiled kernels read one by one: all, or the single tokens, which come first
        few = all(text.tokens <= MOST_SINGLE for text in texts)
        self.single_rows = len(self.ends) if few else sum(text.tokens == 1 for text in texts)
        self.all = self.join_slots() if together else None
        self.places = [self.locate(text) for text in texts] if self.all is None else []
        return self

    def join_slots(self) -> Tensor:
        """The slots of the last positions of each row, those before its first in page 0."""
        size, device = self.pages.size, self.pages.device
        tables = [text.table.pages for text in self.texts]
        most = max(map(len, tables))
        pages = torch.tensor([table + [0] * (most - len(table)) for table in tables], device=device)
        ends = torch.tensor(self.ends, device=device)
        at = ends[:, None] - torch.arange(self.length, -1, -1, device=device) - 1  # B S
        slots = pages.gather(1, at.clamp_min(0) // size) * size + at % size
        return slots.masked_fill(at < 0, 0).flatten()

    def locate(self, text: Reading) -> int | Tensor:
        """Where a text begins, if its pages lie side by side, else the slot of each of its positions."""
        pages, size = text.table.pages[: -(-text.end // self.pages.size)], self.pages.size
        if pages == list(range(pages[0], pages[0] + len(pages))) and pages[0]:
            return pages[0] * size
        table = torch.tensor(pages, device=self.pages.device)
        return (table[:, None] * size + torch.arange(size, device=table.device)).flatten()[: text.end]

    def fetch(self, layer: int, n: int, begin: int = 0) -> Pair:
        """The keys and values [1, G, S, K] of text n from position `begin` on."""
        place, end = self.places[n], self.texts[n].end
        if isinstance(place, int):
            found = (store[place + begin : place + end] for store in self.pages.storage[layer])
        else:
            found = (store.index_select(0, place[begin:]) for store in self.pages.storage[layer])
        k, v = (t.transpose(0, 1)[None] for t in found)
        return k, v

    def extend_mask(self, padding_mask: Tensor | None, rows: int, tokens: int) -> Tensor | None:
        if len(self.texts) == 1:
            return None
        ends = torch.tensor(self.ends, device=self.slots.device)
        slots = torch.arange(self.length + 1, device=ends.device)
        return slots > self.length - ends[:, None]  # B S, every row ends at the last slot

    def append(self, layer: int, k: Tensor, v: Tensor) -> Pair:
        self.pages.store(layer, self.slots, k, v)
        if self.all is not None:
            found = (store.index_select(0, self.all) for store in self.pages.storage[layer])
            k, v = (t.unflatten(0, (len(self.ends), -1)).transpose(1, 2) for t in found)
            return k, v  # B G S K
        return self.fetch(layer, 0) if len(self.texts) == 1 else (k, v)

    def get_or_compute(self, layer: int, make: Callable[[], Pair]) -> Pair:
        memory = self.texts[0].memory
        if layer not in memory:
            k, v = make()
            memory[layer] = k.contiguous(), v.contiguous()
        if len(self.texts) == 1:
            return memory[layer]
        both = memory[layer]
        k, v = (t.expand(len(self.ends), -1, -1, -1) for t in both)  # `attend_rows` reads each row's own
        return k, v

    def choose_attend(self, usual: Callable[..., Tensor]) -> Callable[..., Tensor]:
        if len(self.texts) == 1:
            return usual
        return self.attend_rows if self.all is None else partial(self.attend_together, usual)

    def attend_together(
        self, usual: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, mask: AttentionBias,
        at: Attention | Latent, step: Step,
    ) -> Tensor:
        """All queries at once; memories, of which each row has its own, one by one."""
        return (self.attend_rows if at.spec.mask.kind == "memory" else usual)(q, k, v, mask, at, step)

    def attend_rows(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionBias, at: Attention | Latent, step: Step
    ) -> Tensor:
        """Each text's queries to its own keys: q [B, H, 1, K]; k and v, the new ones, are stored already."""
        rule, found, first = at.spec.mask, list[Tensor](), 0
        # of a row's mask only what differs by distance is left: its keys are all in the past, and none is padding
        biased = mask.bias is not None and mask.bias.shape[1] > 1
        joined = None if biased else self.attend_compiled(q, at)
        if joined is not None:
            found, first = [joined], len(joined)
        row = first
        for n, text in enumerate(self.texts[first:], first):
            own, seen = q[row : row + text.tokens], AttentionBias(None, causal=False)
            if rule.kind == "memory":
                k, v = text.memory[at.layer]
            else:
                begin = max(0, text.end - text.tokens + 1 - rule.window) if rule.window else 0
                k, v = self.fetch(at.layer, n, begin)
                if isinstance(at, Latent):  # absorbed: the latent and the rotary key are keys and values
                    k = v = torch.cat((k, v), -1)
                if text.tokens > 1:
                    slots = torch.arange(begin, text.end, device=q.device)
                    seen = build_mask(rule, MaskContext(slots[-text.tokens :], slots))
                elif biased and mask.bias is not None:
                    lean = mask.bias[row if len(mask.bias) > 1 else 0][None, ..., self.length + 1 - k.shape[2] :]
                    seen = AttentionBias(lean, causal=False)
            z = kernels.attend(own.transpose(0, 2), k, v, seen, at, step)  # type: ignore[arg-type]
            found.append(z.transpose(0, 2))  # B H 1 W
            row += text.tokens
        return torch.cat(found)

    def find_read(self, window: int | None) -> tuple[list[int | Tensor], list[int]]:
        """Of the rows that are read apart, the slots that each reads within a window: the first, or all; how many."""
        if window not in self.read:
            ends = self.ends[: self.single_rows]
            begins = [max(0, end - window) if window else 0 for end in ends]
            places = (place for place, text in zip(self.places, self.texts, strict=True) for _ in range(text.tokens))
            self.read[window] = (
                [place + begin if isinstance(place, int) else place[begin:]
                 for place, begin in zip(places, begins, strict=False)],
                [end - begin for end, begin in zip(ends, begins, strict=True)])
        return self.read[window]

    def place_rows(self, layer: int, window: int | None) -> Keys | None:
        """Where all rows read and write; None where some are read together."""
        if self.all is not None or self.single_rows < len(self.ends) or layer not in self.pages.storage:
            return None
        k, v = self.pages.storage[layer]
        steps = k.stride(0), v.stride(0), k.stride(1), v.stride(1)
        if (key := (window, steps)) not in self.alike:
            places, lengths = self.find_read(window)
            first = [place if isinstance(place, int) else 0 for place in places]
            slots = [0 if isinstance(place, int) else place.data_ptr() for place in places]
            starts, to = (([at * steps[0] for at in row], [at * steps[1] for at in row])
                          for row in (first, self.written))
            self.alike[key] = Places(starts, lengths, to, steps, slots)
        return Keys(k, v, self.alike[key])

    def attend_compiled(self, q: Tensor, at: Attention | Latent) -> Tensor | None:
        """The rows that are read apart, in one compiled pass [B, H, 1, W]; None without a kernel for it."""
        rule, count = at.spec.mask, self.single_rows
        if isinstance(at, Latent) or rule.kind == "memory" or not is_plain(q) or not count:
            return None
        k, v = self.pages.storage[at.layer]
        found = native.library() if k.dtype == q.dtype and q.stride(1) == q.shape[3] and q.stride(3) == 1 else None
        if found is None:
            return None
        places, lengths = self.find_read(rule.window)
        z = row_ops.attend_pages(found, q[:count], k, v, places, lengths, scale=at.scale, cap=at.spec.cap or 0.0)
        return z.view(count, *q.shape[1:3], -1)
