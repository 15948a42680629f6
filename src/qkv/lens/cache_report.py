"""What the KV cache keeps and saves: bytes and work of every step, with it and without, for each kind of attention."""

from dataclasses import dataclass, replace

from qkv import cost
from qkv.core.cache import Static
from qkv.errors import QkvError
from qkv.lens import resolve
from qkv.lens.recording import Recording
from qkv.messages import Message
from qkv.plots.forms import Bars, Drawn, Form, Lines, name_both
from qkv.spec import Attention, Block, Latent, Norm, Rotary, Spec


@dataclass(frozen=True)
class CacheStep:
    """One call: how many positions stand in the cache after it, and the bytes of all its rows, the memory's left out.

    `fresh` counts the positions whose keys and values were computed; `again` those that a run without a cache would
    compute for the same step.
    """

    length: int
    bytes: int
    fresh: int
    again: int


@dataclass(frozen=True)
class CacheReport(Drawn):
    """A run's cache step by step; `real` is what was allocated and filled in the end, None where nothing was kept.

    `kinds` says what the same model would keep per position, in bytes, with other attentions.
    """

    steps: tuple[CacheStep, ...]
    memory: int
    real: int | None
    kinds: dict[str, int]

    def forms(self) -> tuple[Form, ...]:
        """Positions computed with and without the cache, and bytes a position with other attentions."""
        steps = [f"{i}" for i in range(len(self.steps))]
        series = {name_both(Message("computed")): [s.fresh for s in self.steps],
                  name_both(Message("without")): [s.again for s in self.steps]}
        note = Message("{last} bytes kept at the end; {saved:.1f} times the work without it",
                       last=f"{self.steps[-1].bytes:,}", saved=self.saved)
        title = Message("bytes per position of this model with other attentions")
        work = Message("the KV cache: positions computed in each step")
        return Lines(work, steps, series, note), Bars(title, [*self.kinds], [*self.kinds.values()])

    @property
    def saved(self) -> float:
        """How many times as many positions would be computed without the cache."""
        return sum(s.again for s in self.steps) / sum(s.fresh for s in self.steps)


def report_cache(t: Recording, *, run: int | None = None) -> CacheReport:
    """The cache of the traced run, all rows together, counted from the spec and held against what was allocated.

    Raises:
        QkvError: an encoder alone, which reads its text once and keeps nothing.
    """
    if t.core.spec.decoder is None:
        raise QkvError("cache: an encoder alone reads its text once and keeps nothing")
    passed, spec = resolve.find_run(t, run=run), t.core.spec
    size, first = t.core.embed.weight.element_size(), passed.calls[0]
    each = cost.count(spec).kv_per_token * size
    steps = tuple(CacheStep(c.end, c.end * each * len(c.ids), c.ids.shape[1], c.end) for c in passed.calls)
    memory = cost.count(spec).memory_per_token * size * first.sources * first.across if spec.encoder else 0
    real = passed.cache.bytes if isinstance(passed.cache, Static) else None
    kinds = {name: cost.count(s).kv_per_token * size for name, s in attention_variants(spec).items()}
    return CacheReport(steps, memory, real, kinds)


def attention_variants(spec: Spec) -> dict[str, Spec]:
    """The same model with other attentions: its own, a key per head, per four heads (two of few), one key, and latents.

    Latents are sized as in DeepSeek-V2 (Liu et al. 2024, table 1): rank 4 K, and K/2 rotary numbers.
    """
    found, at = {"own": spec}, spec.stack.blocks[0].attn
    dim, heads = at.head_dim if isinstance(at, Attention) else at.nope_head_dim, at.heads
    for name, groups in (("MHA", heads), ("GQA", heads // 4 if heads >= 8 else max(1, heads // 2)), ("MQA", 1)):
        if heads % groups == 0:
            found[name] = replace_attention(spec, Attention(heads, groups, dim, at.mask))
    half = dim // 2 + dim // 2 % 2
    found["MLA"] = replace_attention(spec, Latent(heads, None, 4 * dim, dim, dim, at.mask, Rotary(half), Norm("rms")))
    return found


def replace_attention(spec: Spec, attn: Attention | Latent) -> Spec:
    """A spec with another self-attention in every layer of the decoder; for counting only."""
    blocks: tuple[Block, ...] = tuple(replace(b, attn=replace(attn, mask=b.attn.mask)) for b in spec.stack.blocks)
    return replace(spec, decoder=replace(spec.stack, blocks=blocks))
