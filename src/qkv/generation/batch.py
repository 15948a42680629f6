"""Writing a closed batch of prompts side by side: prefill, choose, decode, and finished rows leave the batch.

`stream_tokens` yields every token as it is chosen; `generate` collects them. Nobody joins such a batch later, so its
keys lie in one buffer and are read without a copy; engine.py takes requests at any time. Both choose by sampler.py.
"""

import contextvars
import math
import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from qkv import sampling as sample
from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.generation.decoder import Decoder, count_new_tokens
from qkv.generation.sampler import Sampler
from qkv.generation.sequence import DecodeOptions, Event, Sequence, Timing, Writer
from qkv.sampling import Sampling


class Batch:
    """Rows written side by side; `advance` moves each of them by one token."""

    def __init__(
        self, core: Transformer, prompts: Seq[Seq[int]], sampling: Sampling, options: DecodeOptions
    ) -> None:
        self.sampler = Sampler(sampling, options, core.embed.weight.device)
        self.timing = Timing()
        limits = count_new_tokens(core, prompts, options)
        seeds = sample.seeds(sampling.seed, prompts) if sampling.temperature else [0] * len(prompts)
        self.sequences = [Sequence(tuple(p), s, timing=self.timing) for p, s in zip(prompts, seeds, strict=True)]
        self.writers = [Writer(s, options, n) for s, n in zip(self.sequences, limits, strict=True)]
        for writer in self.writers:
            if writer.limit == 0:
                writer.sequence.finish_reason = "length"
        self.live = [i for i, writer in enumerate(self.writers) if writer.limit > 0]
        self.decoder = Decoder(core, options)
        self.last = torch.empty(0, dtype=torch.long)

    @torch.inference_mode()
    def advance(self) -> list[Event]:
        """Choose one token for each live row, first reading the prompts if that was not done."""
        began = time.perf_counter()
        if first := self.timing.tokens == 0:
            room = max(self.writers[i].limit for i in self.live)
            logits = self.decoder.prefill([self.sequences[i].prompt for i in self.live], min(room, 256))
        else:
            logits = self.decoder.decode(self.last)
        chosen = self.sampler.choose(logits, [self.sequences[i] for i in self.live])
        events: list[Event] = []
        for i, token, logprob in zip(self.live, chosen.tokens, chosen.logprobs, strict=True):
            if not math.isfinite(logprob):
                raise QkvError("row {i}, token {tokens}: its logits are not finite numbers; `check` scans its weights",
                               i=i, tokens=len(self.sequences[i].tokens))
            text = self.writers[i].write(token, logprob)
            events.append(Event(i, token, logprob, text, self.sequences[i].finish_reason))
        self.drop_finished(chosen.ids)
        seconds = time.perf_counter() - began
        self.timing.tokens += len(events)
        if first:
            self.timing.prefill += seconds
        else:
            self.timing.decode += seconds
            self.timing.decoded += len(events)
        return events

    def drop_finished(self, tokens: Tensor) -> None:
        """Finished rows leave the batch; the others continue with their tokens [B]."""
        stay = [n for n, i in enumerate(self.live) if self.sequences[i].finish_reason is None]
        if len(stay) < len(self.live):
            self.live = [self.live[n] for n in stay]
            index = torch.tensor(stay, dtype=torch.long, device=tokens.device)
            tokens = tokens[index]
            if stay:
                self.decoder.select_rows(index, index)
        self.last = tokens


def generate(
    core: Transformer,
    prompts: Seq[Seq[int]],
    *,
    sampling: Sampling = Sampling(),  # noqa: B008  frozen
    options: DecodeOptions = DecodeOptions(),  # noqa: B008
) -> list[Sequence]:
    """Continue each prompt until it stops; of an encoder-decoder the prompts are sources, `options.start` its targets'.

    Raises QkvError for a prompt that is empty, longer than the context, or of unknown ids, and for logits that are
    not finite. A row that reaches the context's end stops with "length".
    """
    batch = Batch(core, prompts, sampling, options)
    while batch.live:
        batch.advance()
    return batch.sequences


def stream_tokens(
    core: Transformer,
    prompts: Seq[Seq[int]],
    *,
    sampling: Sampling = Sampling(),  # noqa: B008  frozen
    options: DecodeOptions = DecodeOptions(),  # noqa: B008
) -> Iterator[Event]:
    """As `generate`, but each token comes as an Event when it is chosen; a row's texts join to its final text.

    Prompts are checked, and the active tracer is noted, at the call and not at the first event.
    """
    batch = Batch(core, prompts, sampling, options)
    context = contextvars.copy_context()

    def events() -> Iterator[Event]:
        while batch.live:
            yield from context.run(batch.advance)

    return events()
