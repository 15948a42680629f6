"""Logits to a distribution, and a draw from it: pure functions, one stream of numbers per sequence.

The order is fixed: `adjust` (logit bias, repetition, presence and frequency penalties, no repeated n-gram, fewest new
tokens), what is forbidden, then `distribution` (temperature, top-k, top-p, min-p, normalise). Next:
generation/sampler.py. Letters: B rows, V vocabulary, T tokens of a text, W of an n-gram's places in it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from qkv.arguments import check_fields
from qkv.errors import QkvError

WORD = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True)
class Adjustments:
    """What changes a row's logits before a token is chosen or ranked, in this order; the defaults change nothing.

    logit_bias          what is added to the logits of these ids, as pairs
    repetition_penalty  logits of ids that stand in the prompt or in the text so far are divided by it where they are
                        positive and multiplied by it where they are negative (Keskar et al. 2019)
    presence_penalty    subtracted once for an id that was written
    frequency_penalty   subtracted for each time that an id was written
    no_repeat_ngram     so many tokens in a row never stand twice in prompt and text (Paulus et al. 2018); 0: no limit
    min_new_tokens      no end id before so many tokens are written
    """

    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram: int = 0
    min_new_tokens: int = 0

    where = "sampling"  # what errors call it

    def __post_init__(self) -> None:
        check_fields(self, self.where)
        if self.repetition_penalty <= 0:
            raise QkvError("repetition_penalty: found {value}, expected a number above 0 (1 changes nothing)",
                           code="repetition-penalty", value=self.repetition_penalty)
        for name, value in (("no_repeat_ngram", self.no_repeat_ngram), ("min_new_tokens", self.min_new_tokens)):
            if value < 0:
                raise QkvError("{name}: found {value}, expected 0 (off) or more", code="negative", name=name,
                               value=value)

    @cached_property
    def adjusts(self) -> bool:
        """Whether anything is changed."""
        return any(getattr(self, f.name) != f.default for f in fields(Adjustments))


@dataclass(frozen=True)
class Sampling(Adjustments):
    """How the next token is chosen: temperature 0 takes the likeliest; a filter that is None does not filter.

    `top_k` keeps the k likeliest (Fan et al. 2018), `top_p` the fewest that hold mass p (Holtzman et al. 2020),
    `min_p` those at least p times as likely as the likeliest (Nguyen et al. 2024).
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise QkvError("temperature: found {temperature}, expected a finite number >= 0 (0: the likeliest)",
                           temperature=self.temperature)
        if self.top_k is not None and self.top_k < 1:
            raise QkvError("top_k: found {top_k}, expected at least 1, or None for no limit", top_k=self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise QkvError("top_p: found {top_p}, expected 0 < top_p <= 1, or None for no limit", top_p=self.top_p)
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise QkvError("min_p: found {min_p}, expected 0 <= min_p <= 1, or None for no limit", min_p=self.min_p)


def adjust(logits: Tensor, how: Adjustments, text: Tensor, written: Tensor, ends: Tensor) -> Tensor:
    """The logits [B, V] after `how`: of texts [B, T] whose last `written` [B] ids are new; `ends` [B, E] end a text.

    Texts end together; what stands before a shorter one is V, and so does what fills up `ends`. A row depends on
    nothing but itself. Logits may be log probabilities, as beams have them.
    """
    x, size = logits, logits.shape[-1]
    if how.logit_bias:
        ids, values = zip(*how.logit_bias, strict=True)
        bias = torch.tensor(values, dtype=x.dtype, device=x.device).expand(len(x), -1)
        x = x.index_add(-1, torch.tensor(ids, device=x.device), bias)  # B V
    if how.repetition_penalty != 1 and text.shape[1]:
        last = text[:, -1:]  # B 1, which stands for the padding too
        ids = text.where(text < size, last).clamp_max(size - 1)  # B T
        old = x.gather(1, ids)
        new = torch.where(old > 0, old / how.repetition_penalty, old * how.repetition_penalty)
        x = x.scatter(1, ids, new.where(last < size, old))  # B V
    if how.presence_penalty or how.frequency_penalty:
        fresh = torch.arange(text.shape[1], device=text.device) >= text.shape[1] - written[:, None]  # B T
        times = count_ids(text.where(fresh, size), size).to(x.dtype)  # B V
        x = x - how.frequency_penalty * times - how.presence_penalty * times.clamp_max(1)
    if how.no_repeat_ngram:
        x = ban_ids(x, find_repeats(text, how.no_repeat_ngram, size))
    if how.min_new_tokens:
        early = (written < how.min_new_tokens)[:, None]  # B 1
        x = ban_ids(x, ends.where(early, size))
    return x


def ban_ids(logits: Tensor, ids: Tensor) -> Tensor:
    """The logits [B, V] without ids [B, W]; V itself stands for none."""
    size = logits.shape[-1]
    most = torch.where(ids < size, -math.inf, math.inf).to(logits.dtype)  # B W
    return logits.scatter_reduce(1, ids.clamp_max(size - 1), most, "amin")


def count_ids(ids: Tensor, size: int) -> Tensor:
    """How often each id below `size` stands in each row of ids [B, T]: [B, V]; `size` itself stands for none."""
    zeros = torch.zeros(len(ids), size + 1, dtype=torch.int32, device=ids.device)
    return zeros.scatter_add_(1, ids, torch.ones_like(ids, dtype=torch.int32))[:, :size]


def find_repeats(text: Tensor, length: int, none: int) -> Tensor:
    """The ids after which the last `length` ids of a text [B, T] had stood in it before: [B, W], else `none`."""
    if text.shape[1] < length:
        return text.new_empty(len(text), 0)
    places = text.unfold(1, length, 1)  # B W n
    last = text[:, text.shape[1] - length + 1 :]  # B n-1
    same = (places[:, :, :-1] == last[:, None]).all(-1)  # B W
    return places[:, :, -1].where(same, none)


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """The probabilities [B, V] in fp32 from which `sampling` draws, given logits [B, V]."""
    if sampling.temperature == 0:
        return torch.zeros_like(logits, dtype=torch.float32).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    x = logits.float()
    # the likeliest at 0 before dividing: a tiny temperature must not overflow
    x = (x - x.amax(-1, keepdim=True)) / sampling.temperature  # B V
    if sampling.top_k is not None and sampling.top_k < x.shape[-1]:
        best = x.topk(sampling.top_k)
        x = torch.full_like(x, -math.inf).scatter_(-1, best.indices, best.values)  # B V
    probs = x.softmax(-1)  # B V
    if sampling.top_p is not None and sampling.top_p < 1:
        probs = nucleus(probs, sampling.top_p)
    if sampling.min_p:
        probs = probs.masked_fill(probs < sampling.min_p * probs.amax(-1, keepdim=True), 0.0)
    return probs / probs.sum(-1, keepdim=True)


def nucleus(probs: Tensor, mass: float) -> Tensor:
    """The fewest likeliest whose sum reaches `mass`; the rest is 0."""
    size = probs.shape[-1]
    if probs.device.type == "cpu":  # a whole vocabulary is rarely needed, and sorting it is slow; elsewhere asking is
        size = min(1024, size)
    best = probs.topk(size)
    if size < probs.shape[-1] and bool((best.values.sum(-1) < mass).any()):
        best = probs.topk(probs.shape[-1])
    before = best.values.cumsum(-1) - best.values
    return torch.zeros_like(probs).scatter_(-1, best.indices, best.values.masked_fill(before >= mass, 0.0))


def select_top(logits: Tensor, count: int, forbid: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """The best `count` ids of each row, best first, with their log probabilities in fp32 or wider: two [B, count].

    As `topk` of the log softmax, which is never written: that would be the vocabulary in fp32 for every row. What is
    forbidden counts in the sum and is never chosen.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    barred = torch.tensor(forbid, dtype=torch.long, device=logits.device)
    rows = max(1, IN_CACHE // logits.shape[-1]) if logits.device.type == "cpu" else max(1, len(logits))
    found: list[tuple[Tensor, Tensor]] = []
    for part in logits.split(rows):
        x = part.to(wide, copy=True)  # B V
        saved = x[:, barred]
        best, ids = top_of(x.index_fill_(-1, barred, -math.inf), min(count, x.shape[-1]))
        top = torch.cat((best[:, :1], saved), 1).amax(-1, keepdim=True)
        # powers of two are several times as fast as those of e, and exact up to one rounding of the factor
        total = torch.add(top * -LOG2E, x, alpha=LOG2E, out=x).exp2_().sum(-1, keepdim=True)
        total += (saved - top).exp_().sum(-1, keepdim=True)
        found.append((best - (top + total.log_()), ids))
    return torch.cat([values for values, _ in found]), torch.cat([ids for _, ids in found])


IN_CACHE = 1 << 19  # numbers of a piece in fp32: 2 MB, measured best
LOG2E = math.log2(math.e)


def top_of(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`x.topk(count)` of x [B, V] by way of the best of each 32 columns: every number is read once."""
    blocks = x.shape[-1] // 32
    if blocks < 4 * count:
        best = x.topk(count)
        return best.values, best.indices
    # column j stands in block j % blocks, so that the maxima are taken across whole lines
    maxima = x[:, : blocks * 32].unflatten(-1, (32, blocks)).amax(1)  # B V/32
    lanes = torch.arange(32, device=x.device) * blocks
    inside = (maxima.topk(count).indices[:, :, None] + lanes).flatten(1)
    rest = torch.arange(blocks * 32, x.shape[-1], device=x.device).expand(len(x), -1)
    columns = torch.cat((inside, rest), 1)
    best = x.gather(1, columns).topk(count)
    return best.values, columns.gather(1, best.indices)


def draw(probs: Tensor, seeds: Sequence[int], positions: Sequence[int]) -> Tensor:
    """One token id per row of `probs` [B, V] -> [B], a function of that row, its seed and its position alone."""
    chance = [uniform(s, p) for s, p in zip(seeds, positions, strict=True)]
    wide = probs.cpu().double() if probs.device.type == "mps" else probs.double()  # MPS has no fp64
    heap = wide.cumsum(-1)  # B V
    mark = torch.tensor(chance, dtype=torch.float64, device=wide.device)[:, None] * heap[:, -1:]
    # right=True never lands on a token of probability 0
    found = torch.searchsorted(heap, mark, right=True).squeeze(-1)
    return found.clamp_max(probs.shape[-1] - 1).to(probs.device)


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that belongs to this seed and position."""
    return (mix(seed, position) >> 12) * 2.0**-52


def mix(*parts: int) -> int:
    """A well-stirred 64-bit number from any integers (SplitMix64's finaliser, Steele et al. 2014)."""
    state = 0
    for part in parts:
        state = (state + part + 0x9E3779B97F4A7C15) & WORD
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & WORD
        state ^= state >> 31
    return state


def seeds(seed: int, prompts: Sequence[Sequence[int]]) -> list[int]:
    """A seed per prompt, from `seed`, its ids, and how often they stood before it: its neighbours change nothing."""
    times: dict[tuple[int, ...], int] = {}
    found: list[int] = []
    for prompt in map(tuple, prompts):
        times[prompt] = times.get(prompt, -1) + 1
        found.append(mix(seed, times[prompt], *prompt))
    return found
