"""The rows of a batch on their way through the decoder: prompts in, then a token each; out come logits.

Used by engine.py and beam.py alike. Letters: N models of an ensemble, B rows, T new tokens, S source tokens,
V vocabulary.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from qkv.core.cache import Cache, Static
from qkv.core.model import Transformer
from qkv.core.step import Given, begin, listener
from qkv.errors import QkvError
from qkv.generation.sequence import Limits
from qkv.uses import fills_blanks


@dataclass(frozen=True)
class Feed:
    """How ids go in: `start` begins what is written by an encoder-decoder, or after the prompt by a prefix decoder,
    whose `blanks` are the ids that stand for text to be filled in. Prefill goes in chunks of so many tokens;
    `cache=False` reads everything again for each token, as one would without a cache.
    """

    start: tuple[int, ...] = ()
    blanks: tuple[int, ...] = ()
    chunk: int | None = None
    cache: bool = True

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise QkvError("chunk: found {chunk}, expected at least 1, or None for the whole prompt at once",
                           chunk=self.chunk)


class Rows:
    """The decoder and what it has read so far.

    `read` takes the prompts, `next` one token per row; both give logits [B, V] of the last position, and only that
    position goes through the head. `keep` says which rows go on.
    """

    def __init__(self, core: Transformer, feed: Feed, *, capacity: int = 64) -> None:
        self.core, self.feed = core, feed
        self.device = core.embed.weight.device
        self.cache: Static | None = Static(len(core.decoder.layers), capacity=capacity) if feed.cache else None
        self.memory: Tensor | None = None  # B S D
        self.memory_real: Tensor | None = None  # B S
        self.ids = torch.empty(0, 0, dtype=torch.long)  # B T
        self.real: Tensor | None = None  # B T
        self.prefix: Tensor | None = None  # B
        self.blank: Tensor | None = None  # B

    def encode(self, sources: Seq[Seq[int]]) -> None:
        """Read the sources of an encoder-decoder, right-padded."""
        ids, self.memory_real = padded(sources, "right", self.device)
        # on a CPU padding costs as much as words; whoever listens hears one pass
        apart = self.device.type == "cpu" and listener.get() is None
        groups = by_length(sources, 4 * ids.shape[1]) if apart else []
        if len(groups) < 2:
            self.memory = self.encoded(ids, self.memory_real)
            return
        parts = [self.encoded(*padded([sources[r] for r in rows], "right", self.device)) for rows in groups]  # B S D
        self.memory = parts[0].new_zeros(*ids.shape, parts[0].shape[-1])
        for rows, part in zip(groups, parts, strict=True):
            self.memory[torch.tensor(rows, device=self.device), : part.shape[1]] = part

    def encoded(self, ids: Tensor, real: Tensor | None) -> Tensor:
        """The encoder's states of sources [B, S]."""
        return self.core.encode(ids, begin(self.core.encoder, ids, Given(real=real), mode="prefill"))

    def read(self, prompts: Seq[Seq[int]]) -> Tensor:
        """Logits [B, V] after the prompts, left-padded so that all end together."""
        if free_prefix(self.core):
            if self.feed.chunk:
                raise QkvError("chunk: a free prefix sees itself whole, and cannot be read in chunks; leave chunk "
                               "out")
            self.prefix = torch.tensor([len(p) for p in prompts], device=self.device)
            if fills_blanks(self.core.spec):
                self.blank = torch.tensor(places(prompts, self.feed.blanks), device=self.device)
            prompts = [[*p, *self.feed.start] for p in prompts]
        ids, real = padded(prompts, "left", self.device)
        if self.cache is None:
            self.ids, self.real = ids, real
            return self.forward(ids, real)
        size = self.feed.chunk or ids.shape[1]
        logits = ids.new_empty(0)
        for at in range(0, ids.shape[1], size):
            part = slice(at, at + size)
            last = at + size >= ids.shape[1]
            logits = self.forward(ids[:, part], None if real is None else real[:, part], head=last)
        return logits

    def next(self, tokens: Tensor) -> Tensor:
        """Logits [B, V] after one more token per row, tokens [B]."""
        if self.cache is not None:
            return self.forward(tokens[:, None], None, decode=True)
        self.ids = torch.cat((self.ids, tokens[:, None]), 1)
        if self.real is not None:
            self.real = torch.nn.functional.pad(self.real, (0, 1), value=True)
        return self.forward(self.ids, self.real)

    def forward(self, ids: Tensor, real: Tensor | None, *, head: bool = True, decode: bool = False) -> Tensor:
        """The last states of the decoder through the head: ids [B, T] -> [B, V]."""
        given = Given(real=real, prefix=self.prefix, blank=self.blank, memory=self.memory, memory_real=self.memory_real)
        mode = "decode" if decode else "prefill"
        step = begin(self.core.decoder, ids, given, cache=self.cache or Cache(), mode=mode)
        state = self.core.hidden(ids, step)[:, -1:]  # B 1 D
        return step.tap(self.core, "logits", self.core.head(state))[:, 0] if head else state

    def keep(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Row i continues row rows[i]; of the sources these stay, or all."""
        if self.cache is not None:
            self.cache.keep(rows, sources)
        else:
            self.ids = self.ids[rows]
            self.real = None if self.real is None else self.real[rows]
        self.prefix = None if self.prefix is None else self.prefix[rows]
        self.blank = None if self.blank is None else self.blank[rows]
        if sources is not None and self.memory is not None:
            self.memory = self.memory[sources]
            self.memory_real = None if self.memory_real is None else self.memory_real[sources]

    def reorder(self, parents: Tensor) -> None:
        """Row i continues row parents[i], all sources stay: only rows that change are copied."""
        assert self.cache is not None
        self.cache.reorder(parents)


class Ensemble:
    """Several models that read the same rows and write one text: each token has the mean of their probabilities
    (Sutskever et al. 2014, table 1).
    """

    def __init__(self, members: Seq[Rows]) -> None:
        self.members, self.device = members, members[0].device

    def encode(self, sources: Seq[Seq[int]]) -> None:
        """Each reads the sources."""
        for rows in self.members:
            rows.encode(sources)

    def read(self, prompts: Seq[Seq[int]]) -> Tensor:
        """What all say after the prompts [B, V]."""
        return self.mean([rows.read(prompts) for rows in self.members])

    def next(self, tokens: Tensor) -> Tensor:
        """What all say after one more token per row, tokens [B]: [B, V]."""
        return self.mean([rows.next(tokens) for rows in self.members])

    def mean(self, logits: Seq[Tensor]) -> Tensor:
        """Logits [B, V] whose softmax is the mean of each one's softmax, in fp32 or wider."""
        wide = reduce(torch.promote_types, (one.dtype for one in logits), torch.float32)
        each = torch.stack([one.to(wide).log_softmax(-1) for one in logits])  # N B V
        return each.logsumexp(0)  # B V

    def keep(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """As `Rows.keep`, in each."""
        for member in self.members:
            member.keep(rows, sources)

    def reorder(self, parents: Tensor) -> None:
        """As `Rows.reorder`, in each."""
        for member in self.members:
            member.reorder(parents)


def free_prefix(core: Transformer) -> bool:
    """Whether the decoder sees its whole prompt at once."""
    return any(m.kind == "prefix" for m in core.decoder.masks)


PIECE = ("<|startofpiece|>", "<|endofpiece|>")  # what begins and ends the words of a blank, as GLM calls them
BLANKS = ("[gMASK]", "[MASK]", "[sMASK]", "<mask>")  # what stands for words to be filled in; the first for an end


def places(prompts: Seq[Seq[int]], blanks: tuple[int, ...]) -> list[int]:
    """Where the first blank of each prompt stands: that is the one that is filled."""
    found: list[int] = []
    for i, prompt in enumerate(prompts):
        place = next((at for at, token in enumerate(prompt) if token in blanks), None)
        if place is None:
            raise QkvError("prompt {i}: it holds no blank (one of the ids {blanks}), and this model writes into "
                           "blanks; put one, such as [MASK] or [gMASK], where the new text belongs", i=i,
                           blanks=list(blanks))
        found.append(place)
    return found


def padded(rows: Seq[Seq[int]], side: str, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Unequal rows as one tensor [B, T], and which of its ids are real, None where all are."""
    longest = max(map(len, rows))
    # any id will do for padding: it is masked
    ids = [[0] * (longest - len(r)) + list(r) if side == "left" else list(r) + [0] * (longest - len(r)) for r in rows]
    table = torch.tensor(ids, device=device)  # B T
    if all(len(r) == longest for r in rows):
        return table, None
    length = torch.tensor([len(r) for r in rows], device=device)[:, None]
    slots = torch.arange(longest, device=device)[None]
    return table, slots >= longest - length if side == "left" else slots < length


def rooms(core: Transformer, prompts: Seq[Seq[int]], limits: Limits, feed: Feed) -> list[int]:
    """How many tokens each row may write, after checking that every prompt can be read.

    Where max_new_tokens is None an encoder-decoder may write twice its source + 50, a decoder until its context ends.
    """
    spec = core.spec
    if spec.decoder is None or spec.head is None:
        raise QkvError("generation: this model has no decoder that speaks; it can embed, classify or fill, not "
                       "write")
    if spec.encoder:
        check(prompts, spec.sources or spec.vocabulary, spec.encoder.positions.size if spec.encoder.positions else None)
        if not feed.start:
            raise QkvError("start: an encoder-decoder's target begins with a start id, and none was given")
    context = min((c for c in (limits.context, spec.context) if c), default=None)
    begun = feed.start if free_prefix(core) else ()
    written = [feed.start] * len(prompts) if spec.encoder else [[*p, *begun] for p in prompts]
    check(written[:1] if spec.encoder else written, spec.vocabulary, context, "start" if spec.encoder else "prompt")
    found: list[int] = []
    for prompt, row in zip(prompts, written, strict=True):
        usual = 2 * len(prompt) + 50 if spec.encoder else None
        bounds = [limits.max_new_tokens or usual, None if context is None else context - len(row)]
        known = [b for b in bounds if b is not None]
        if not known:
            raise QkvError("limits: the positions never end, so a row might not; give max_new_tokens or "
                           "context")
        found.append(min(known))
    return found


def check(prompts: Seq[Seq[int]], vocabulary: int, context: int | None, what: str = "prompt") -> None:
    """Raise a QkvError naming the first prompt that is empty, too long, or holds an id without an embedding."""
    for i, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise QkvError("{what} {i}: it is empty, expected at least one token (a tokenizer's start id will do)",
                           what=what, i=i)
        if context is not None and len(prompt) > context:
            raise QkvError("{what} {i}: it has {prompt} tokens, and the context holds {context}; shorten it", what=what,
                           i=i, prompt=len(prompt), context=context)
        low, high = min(prompt), max(prompt)
        if low < 0 or high >= vocabulary:
            bad = low if low < 0 else high
            raise QkvError("{what} {i}: token id {bad} has no embedding, ids go from 0 to {vocabulary}; is this the "
                           "model's own tokenizer?", what=what, i=i, bad=bad, vocabulary=vocabulary - 1)


def by_length(prompts: Seq[Seq[int]], tokens: int) -> list[list[int]]:
    """Indices of the prompts in batches of similar length, longest first, each at most `tokens` ids with its padding.

    A prompt longer than `tokens` is a batch of its own. For many sources: search each batch, put the results back.
    """
    batches: list[list[int]] = []
    for i in sorted(range(len(prompts)), key=lambda i: -len(prompts[i])):
        if batches and len(prompts[batches[-1][0]]) * (len(batches[-1]) + 1) <= tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches
