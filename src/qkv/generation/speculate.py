"""Several tokens in one pass: guess what comes, read the guesses together, keep those that would have been chosen.

Each token is chosen by the sampler from the model's own logits, so that the text is the one without guesses, drawn or
greedy, but where rounding decides between two equals (Leviathan et al. 2023 for drafts, Saxena 2023 for look-ups).
Whether guessing pays is decided by counting, never by a clock. Letters: T tokens of a pass, V vocabulary.
"""

import math
import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.generation.decoder import Decoder, count_new_tokens
from qkv.generation.sampler import Sampler
from qkv.generation.sequence import DecodeOptions, Event, Sequence, Writer
from qkv.sampling import Sampling

MOST, TRIAL = 8, 16  # guesses of a pass; passes after which it is known whether they pay


class Guesser(Protocol):
    """Who guesses how a text goes on."""

    worth: float  # how many guesses of a pass must come true for it to pay

    def guess(self, text: Seq[int], count: int) -> Seq[int]:
        """At most `count` ids that may follow a text, which continues the one of the call before."""
        ...


class Lookup:
    """Guesses what followed when the last three ids, or two, stood in the text before: it costs no pass."""

    worth = 0.25

    def __init__(self) -> None:
        self.places: dict[tuple[int, ...], int] = {}
        self.read = 0

    def guess(self, text: Seq[int], count: int) -> Seq[int]:
        for at in range(self.read, len(text)):
            self.places.update({tuple(text[at - n : at]): at for n in (2, 3) if at >= n})
        self.read = len(text)
        found = (self.places.get(tuple(text[-n:])) for n in (3, 2))
        at = next((at for at in found if at is not None), len(text))
        return text[at : at + count]


class Draft:
    """Guesses what a smaller model of the same vocabulary finds likeliest."""

    worth = 1.0

    def __init__(self, core: Transformer, prompt: Seq[int], options: DecodeOptions) -> None:
        count_new_tokens(core, [prompt], options)  # refuses what it cannot read
        self.decoder, self.read = Decoder(core, options), list(options.list_before(prompt))
        self.decoder.prefill([prompt])

    def guess(self, text: Seq[int], count: int) -> Seq[int]:
        same = next((n for n, (a, b) in enumerate(zip(self.read, text, strict=False)) if a != b), len(self.read))
        same = min(same, len(text) - 1)
        forget_after(self.decoder, same)
        found, new = list[int](), list(text[same:])
        for _ in range(min(count, (self.decoder.core.spec.context or len(text) + count) - len(text))):
            new = [int(read_tokens(self.decoder, new)[-1].argmax())]
            found += new
        self.read = [*text, *found[:-1]] if found else list(text[:same])
        return found


@dataclass
class Gain:
    """How many passes read guesses, how many tokens these were, and how many of them came true."""

    passes: int = 0
    guessed: int = 0
    accepted: int = 0
    count: int = 4  # guesses of the next pass

    def count_pass(self, guessed: int, accepted: int, worth: float) -> None:
        """Count a pass: guess more where all came true, fewer where not, and none any more where it does not pay."""
        self.passes, self.guessed, self.accepted = self.passes + 1, self.guessed + guessed, self.accepted + accepted
        self.count = min(MOST, 2 * self.count) if accepted == guessed else max(1, accepted + 1)
        if self.passes >= TRIAL and self.accepted < worth * self.passes:
            self.count = 0


class Speculation:
    """One text that is written with guesses; iterate for its tokens, then see `sequence` and `gain`."""

    def __init__(
        self, core: Transformer, sequence: Sequence, guesser: Guesser, *, sampling: Sampling, options: DecodeOptions
    ) -> None:
        if not options.cache or options.chunk or core.spec.architecture == "prefix decoder":
            raise QkvError("speculation: it needs the cache and a model that reads from left to right; remove "
                           "cache=False and chunk, or the speculation", code="speculation")
        (limit,) = count_new_tokens(core, [sequence.prompt], options)
        self.sequence, self.guesser, self.gain = sequence, guesser, Gain()
        self.sampler = Sampler(sampling, options, core.embed.weight.device)
        self.writer, self.decoder = Writer(sequence, options, limit), Decoder(core, options)
        sequence.finish_reason = None if limit else "length"

    @torch.inference_mode()
    def __iter__(self) -> Iterator[Event]:
        row, timing, guesses = self.sequence, self.sequence.timing, list[int]()
        if row.finish_reason:
            return
        began = time.perf_counter()
        logits = self.decoder.prefill([row.prompt], self.writer.limit)  # T V
        while True:
            events = self.take_tokens(logits, guesses)
            timing.tokens += len(events)
            timing.prefill = timing.prefill or time.perf_counter() - began
            timing.decode, timing.decoded = time.perf_counter() - began - timing.prefill, timing.tokens - 1
            yield from events
            if row.finish_reason:
                return
            if guesses:
                self.gain.count_pass(len(guesses), len(events) - 1, self.guesser.worth)
            assert self.decoder.cache is not None
            forget_after(self.decoder, self.decoder.cache.length - len(guesses) + len(events) - 1)
            room = min(self.gain.count, self.writer.limit - len(row.tokens) - 1)
            text = [*row.rules.before, *row.tokens]
            guesses = list(self.guesser.guess(text, room)) if room > 0 else []
            logits = read_tokens(self.decoder, [row.tokens[-1], *guesses])

    def take_tokens(self, logits: Tensor, guesses: Seq[int]) -> list[Event]:
        """The tokens chosen by logits [T, V], up to the first that was guessed otherwise."""
        row, events = self.sequence, list[Event]()
        for n, guess in enumerate([*guesses, None]):
            choice = self.sampler.choose(logits[n : n + 1], [row])
            (token,), (logprob,) = choice.tokens, choice.logprobs
            if not math.isfinite(logprob):
                raise QkvError("row {i}, token {tokens}: its logits are not finite numbers; `check` scans its weights",
                               i=0, tokens=len(row.tokens))
            text = self.writer.write(token, logprob)
            events.append(Event(0, token, logprob, text, row.finish_reason))
            if row.finish_reason or token != guess:
                break
        return events


def read_tokens(decoder: Decoder, tokens: Seq[int]) -> Tensor:
    """The logits [T, V] after each of some more tokens of a single row."""
    ids = torch.tensor([tokens], device=decoder.device)
    mode = "decode" if len(tokens) == 1 else "prefill"
    inputs = replace(decoder.inputs, padding_mask=None)
    return decoder.core(ids, inputs, decoder.cache, mode=mode, logits_to_keep=len(tokens)).logits[0]


def forget_after(decoder: Decoder, length: int) -> None:
    """Keep the first `length` positions that a decoder has read."""
    assert decoder.cache is not None
    if length < decoder.cache.length:
        decoder.cache.truncate(length)
