"""A batch of rows through the decoder: prompts in, then one token each; out come logits.

It reads the batches of request.py. Letters: N models of an ensemble, B rows, T new tokens, S source tokens, V
vocabulary.
"""

from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor

from qkv.core.cache import Static
from qkv.core.model import Transformer
from qkv.core.step import Inputs, active_tracer
from qkv.errors import QkvError
from qkv.generation.graphs import Replay, can_capture
from qkv.generation.sequence import DecodeOptions

TOKENS = 512  # of a pass over sources up to which a CPU's kernels take less time than starting them


class Decoder:
    """The decoder of a core and what it has read so far, for the rows of a batch.

    `prefill` takes the prompts, `decode` one token per row; both give logits [B, V] of the last position, and only that
    position goes through the head. `select_rows` chooses the rows that continue.
    """

    def __init__(self, core: Transformer, options: DecodeOptions) -> None:
        self.core, self.options = core, options
        self.device = core.embed.weight.device
        self.cache: Static | None = None
        self.inputs = Inputs()  # what stays the same from call to call: memory, prefix, blank
        self.ids = torch.empty(0, 0, dtype=torch.long)  # B T, without a cache
        self.real: Tensor | None = None  # B T
        self.replay = Replay(core) if can_capture(core) else None

    def encode(self, sources: Seq[Seq[int]]) -> None:
        """Read the sources of an encoder-decoder, right-padded."""
        ids, real = pad_rows(sources, "right", self.device)
        # on a CPU padding costs as much as words; a tracer sees one pass
        apart = self.device.type == "cpu" and active_tracer.get() is None
        groups = batch_by_length(sources, max(4 * ids.shape[1], TOKENS), least=0.5) if apart else []
        if len(groups) < 2:
            memory = self.core.encode(ids, Inputs(padding_mask=real), mode="prefill")  # B S D
        else:
            batches = [pad_rows([sources[r] for r in rows], "right", self.device) for rows in groups]
            parts = [self.core.encode(some, Inputs(padding_mask=kept), mode="prefill") for some, kept in batches]
            memory = parts[0].new_zeros(*ids.shape, parts[0].shape[-1])
            for rows, part in zip(groups, parts, strict=True):
                memory[torch.tensor(rows, device=self.device), : part.shape[1]] = part
        self.inputs = Inputs(memory=memory, source_padding_mask=real)

    def prefill(self, prompts: Seq[Seq[int]], room: int = 64) -> Tensor:
        """Logits [B, V] after the prompts, left-padded so that all end together; of an encoder-decoder after its start.

        The cache is made with space for `room` more tokens; it grows where they are not enough.
        """
        core, options = self.core, self.options
        if core.spec.encoder:
            self.encode(prompts)
            prompts = [options.start] * len(prompts)
        if options.cache:
            capacity = max(map(len, prompts)) + room
            self.cache = Static(len(core.decoder.layers), capacity=min(capacity, core.spec.context or capacity))
        if core.spec.architecture == "prefix decoder":
            if options.chunk:
                raise QkvError("chunk: a bidirectional prefix cannot be read in chunks; remove chunk")
            self.inputs = Inputs(prefix_len=torch.tensor([len(p) for p in prompts], device=self.device))
            if core.spec.fills_blanks:
                places = torch.tensor(find_blanks(prompts, options.blanks), device=self.device)
                self.inputs = replace(self.inputs, blank_pos=places)
            prompts = [[*p, *options.start] for p in prompts]
        ids, real = pad_rows(prompts, "left", self.device)
        if self.cache is None:
            self.ids, self.real = ids, real
            return self.forward(ids, real)
        size = options.chunk or ids.shape[1]
        logits = ids.new_empty(0)
        for at in range(0, ids.shape[1], size):
            part = slice(at, at + size)
            last = at + size >= ids.shape[1]
            logits = self.forward(ids[:, part], None if real is None else real[:, part], head=last)
        return logits

    def decode(self, tokens: Tensor) -> Tensor:
        """Logits [B, V] after one more token per row, tokens [B]."""
        if self.cache is not None:
            found = self.replay.decode(tokens, self.inputs, self.cache) if self.replay else None
            return self.forward(tokens[:, None], None, decode=True) if found is None else found
        self.ids = torch.cat((self.ids, tokens[:, None]), 1)
        if self.real is not None:
            self.real = torch.nn.functional.pad(self.real, (0, 1), value=True)
        return self.forward(self.ids, self.real)

    def forward(self, ids: Tensor, real: Tensor | None, *, head: bool = True, decode: bool = False) -> Tensor:
        """The last states of the decoder through the head: ids [B, T] -> [B, V]."""
        inputs, mode = replace(self.inputs, padding_mask=real), "decode" if decode else "prefill"
        if not head:
            return self.core.hidden(ids, inputs, self.cache, mode=mode)
        return self.core(ids, inputs, self.cache, mode=mode, logits_to_keep=1).logits[:, 0]

    def select_rows(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Row i continues row rows[i]; of the sources these stay, or all."""
        if self.cache is not None:
            self.cache.select_rows(rows, sources)
        else:
            self.ids = self.ids[rows]
            self.real = None if self.real is None else self.real[rows]
        chosen = {"prefix_len": rows, "blank_pos": rows, "memory": sources, "source_padding_mask": sources}
        kept = {name: getattr(self.inputs, name) for name in chosen}
        moved = {n: x[i] for n, x in kept.items() if x is not None and (i := chosen[n]) is not None}
        self.inputs = replace(self.inputs, **moved)

    def reorder(self, parents: Tensor) -> None:
        """Row i continues row parents[i], all sources stay: only rows that change are copied."""
        assert self.cache is not None
        self.cache.reorder(parents)


class Ensemble:
    """Several models that read the same rows and write one text: each token has the mean of their probabilities
    (Sutskever et al. 2014, table 1).
    """

    def __init__(self, members: Seq[Decoder]) -> None:
        self.members, self.device = members, members[0].device

    def prefill(self, prompts: Seq[Seq[int]], room: int = 64) -> Tensor:
        """What all say after the prompts [B, V]."""
        return self.mean([member.prefill(prompts, room) for member in self.members])

    def decode(self, tokens: Tensor) -> Tensor:
        """What all say after one more token per row, tokens [B]: [B, V]."""
        return self.mean([member.decode(tokens) for member in self.members])

    def mean(self, logits: Seq[Tensor]) -> Tensor:
        """Logits [B, V] whose softmax is the mean of each one's softmax, in fp32 or wider."""
        wide = reduce(torch.promote_types, (one.dtype for one in logits), torch.float32)
        each = torch.stack([one.to(wide).log_softmax(-1) for one in logits])  # N B V
        return each.logsumexp(0)  # B V

    def select_rows(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """As `Decoder.select_rows`, in each."""
        for member in self.members:
            member.select_rows(rows, sources)

    def reorder(self, parents: Tensor) -> None:
        """As `Decoder.reorder`, in each."""
        for member in self.members:
            member.reorder(parents)


def find_blanks(prompts: Seq[Seq[int]], blanks: tuple[int, ...]) -> list[int]:
    """Where the first blank of each prompt stands: that is the one that is filled."""
    found: list[int] = []
    for i, prompt in enumerate(prompts):
        place = next((at for at, token in enumerate(prompt) if token in blanks), None)
        if place is None:
            raise QkvError("prompt {i}: it contains no blank (one of the ids {blanks}), and this model fills blanks; "
                           "put one, such as [MASK] or [gMASK], where the new text belongs", i=i,
                           blanks=list(blanks))
        found.append(place)
    return found


def pad_rows(rows: Seq[Seq[int]], side: str, device: torch.device) -> tuple[Tensor, Tensor | None]:
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


def count_new_tokens(core: Transformer, prompts: Seq[Seq[int]], options: DecodeOptions) -> list[int]:
    """How many tokens each row may write at most, after checking that every prompt can be read."""
    spec = core.spec
    if spec.decoder is None or spec.head is None:
        raise QkvError("generation: this model has no decoder with an output head; it can embed, classify or fill, "
                       "but not generate")
    if spec.encoder:
        longest = spec.encoder.positions.size if spec.encoder.positions else None
        check_prompts(prompts, spec.sources or spec.vocabulary, longest)
        if not options.start:
            raise QkvError("start: an encoder-decoder's target begins with a start id, and none was given")
    scalings = [block.attn.rotary.scaling for block in spec.stack.blocks if block.attn.rotary]
    # beyond it all positions turn by other factors, those of stored keys too
    turns = [by.trained for by in scalings if by and by.kind == "longrope"]
    context = min((c for c in (options.context, spec.context, *turns) if c), default=None)
    start = options.start if spec.architecture == "prefix decoder" else ()
    written = [options.start] * len(prompts) if spec.encoder else [[*p, *start] for p in prompts]
    check_prompts(written[:1] if spec.encoder else written, spec.vocabulary, context,
                  "start" if spec.encoder else "prompt")
    found: list[int] = []
    for prompt, row in zip(prompts, written, strict=True):
        usual = 2 * len(prompt) + 50 if spec.encoder else None
        # the last one is written behind the last position, and never read
        bounds = [options.max_new_tokens or usual, None if context is None else context - len(row) + 1]
        known = [b for b in bounds if b is not None]
        if not known:
            raise QkvError("limits: positions are unlimited, so a row might never end; give max_new_tokens or context")
        found.append(min(known))
    return found


def check_prompts(prompts: Seq[Seq[int]], vocabulary: int, context: int | None, what: str = "prompt") -> None:
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


def batch_by_length(prompts: Seq[Seq[int]], tokens: int, *, least: float = 0.0) -> list[list[int]]:
    """Indices of the prompts in batches of similar length, longest first, each at most `tokens` ids with its padding.

    None is shorter than `least` of the longest of its batch. A prompt longer than `tokens` is a batch of its own. For
    many sources: search each batch, put the results back.
    """
    batches: list[list[int]] = []
    for i in sorted(range(len(prompts)), key=lambda i: -len(prompts[i])):
        longest = len(prompts[batches[-1][0]]) if batches else 0
        if batches and longest * (len(batches[-1]) + 1) <= tokens and len(prompts[i]) >= least * longest:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches
