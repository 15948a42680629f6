"""One row being written: its tokens, its text, and what ends it. Knows no model. Next: pages.py."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from qkv.errors import QkvError
from qkv.generation.constraints import Guide, Rules

Finish = Literal["stop", "length", "stop_string", "cancelled", "error"]
Top = tuple[tuple[int, float], ...]  # ids with their logprobs, best first


class TextStream(Protocol):
    """Turns ids into text piece by piece and never gives half a character, such as `Tokenizer.stream`."""

    def push(self, token: int, /) -> str: ...

    def end(self) -> str: ...


@dataclass(frozen=True)
class DecodeOptions:
    """How prompts are read and when a row ends; which token comes next is `Sampling` or `Search`.

    max_new_tokens  None: until the context ends, for an encoder-decoder also at most 2 x source + 50
    eos             ids that end a row; the one that did stays in its tokens
    start           begins what an encoder-decoder writes, or what a prefix decoder writes after its prompt
    blanks          ids that stand for text to be filled in, where the model writes into such blanks
    context         most tokens of prompt and continuation together; None: what the positions allow
    forbid          ids that are never chosen; the reported logprobs stay the model's own
    guides          what the text must obey (constraints.py): one for all rows, or, of beams, one for each prompt
    continues       what the new ids go on from, as repetition counts: the prompt, or, where that is an
                    encoder-decoder's source, the start alone
    renormalize     beams rank by the probabilities of what is not forbidden, as CTranslate2's do, not by the model's
    stop_strings    texts that end a row; they and what follows stay out of its text
    text_stream     makes, from the ids that a row continues, the stream that turns its new ids into text, such as
                    `tokenizer.stream`; without it there is no text
    chunk           prompt tokens read in one pass; None: all of them
    cache           False reads everything again for each token, as one would without a cache
    top_logprobs    so many of the likeliest ids come with each token, with their logprobs
    """

    max_new_tokens: int | None = None
    eos: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    blanks: tuple[int, ...] = ()
    context: int | None = None
    forbid: tuple[int, ...] = ()
    guides: tuple[Guide, ...] = ()
    continues: Literal["prompt", "start"] = "prompt"
    renormalize: bool = False
    stop_strings: tuple[str, ...] = ()
    text_stream: Callable[[tuple[int, ...]], TextStream] | None = None
    chunk: int | None = None
    cache: bool = True
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        for name, value in (("max_new_tokens", self.max_new_tokens), ("context", self.context)):
            if value is not None and value < 1:
                raise QkvError("{name}: found {value}, expected at least 1, or None for no limit", name=name,
                               value=value)
        if self.chunk is not None and self.chunk < 1:
            raise QkvError("chunk: found {chunk}, expected at least 1, or None for the whole prompt at once",
                           chunk=self.chunk)
        if self.top_logprobs < 0:
            raise QkvError("top_logprobs: found {top_logprobs}, expected 0 or more", top_logprobs=self.top_logprobs)
        if "" in self.stop_strings:
            raise QkvError("stop strings: found an empty string, which would end every text at once; remove it")
        if self.stop_strings and self.text_stream is None:
            raise QkvError("stop strings {stop_strings!r}: they need a tokenizer, and there is none; stop at ids",
                           stop_strings=self.stop_strings)

    def list_before(self, prompt: Seq[int]) -> tuple[int, ...]:
        """The ids that a row's new ones go on from."""
        return self.start if self.continues == "start" else (*prompt, *self.start)


@dataclass(slots=True)
class Timing:
    """Wall seconds of a whole batch: reading the prompts, then writing; `tokens` counts what all rows wrote."""

    prefill: float = 0.0
    decode: float = 0.0
    tokens: int = 0
    decoded: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Tokens after each row's first (that one comes from the prefill) per second of decoding."""
        return self.decoded / self.decode if self.decode else 0.0

    def add_tokens(self, tokens: int, seconds: float) -> None:
        """Add so many tokens, one of each row, and the seconds that they took; the first come from the prefill."""
        if self.tokens == 0:
            self.prefill += seconds
        else:
            self.decode, self.decoded = self.decode + seconds, self.decoded + tokens
        self.tokens += tokens


class StopFilter:
    """Text that holds back what may be the beginning of a stop string; how it is cut into pieces changes nothing."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        self.strings = strings
        self.waiting = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        """What can be shown now: all but a tail that a stop string might begin with; "" once stopped."""
        if self.stopped:
            return ""
        text = self.waiting + piece
        # the string that is complete first wins, the longest of those that end together
        ends = [(at + len(s), at) for s in self.strings if (at := text.find(s)) >= 0]
        if ends:
            self.stopped, self.waiting = True, ""
            return text[: min(ends)[1]]
        keep = max((overlap(text, s) for s in self.strings), default=0)
        self.waiting = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end(self) -> str:
        """What was held back for a stop string that never came."""
        rest, self.waiting = self.waiting, ""
        return rest


def overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with, shorter than `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


@dataclass(slots=True)
class Sequence:
    """A prompt and what was written after it.

    tokens       the written ids, the end id included
    logprobs     of each token under the model itself (temperature 1, nothing filtered), natural log
    text         what may be shown: no stop string, no half character
    top_logprobs the likeliest ids at each token with their logprobs, best first, where they were asked for
    finish_reason  "stop" (end id), "length" (limit or context), "stop_string", "cancelled", "error"; None while it runs
    timing       of the whole batch that it ran in, or of this request where it came by itself
    rules        what the choice of the next token looks at beside its logits
    """

    prompt: tuple[int, ...]
    seed: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[Top] = field(default_factory=list)
    text: str = ""
    finish_reason: Finish | None = None
    timing: Timing = field(default_factory=Timing)
    rules: Rules = field(default_factory=Rules)


class Event(NamedTuple):
    """One token of one row: the text that it lets us show, why the row ended with it, if it did, and what else was
    likely, where that was asked for.
    """

    row: int
    token: int
    logprob: float
    text: str
    finish_reason: Finish | None
    top: Top = ()


class Writer:
    """Writes one sequence token by token and says when it ends; the engine asks nothing else of a row."""

    def __init__(self, sequence: Sequence, options: DecodeOptions, limit: int) -> None:
        self.sequence, self.eos, self.limit = sequence, options.eos, limit
        self.stream = options.text_stream(sequence.prompt) if options.text_stream else None
        self.stops = StopFilter(options.stop_strings) if options.stop_strings else None
        if len(options.guides) > 1:
            raise QkvError("guides: found {count}; a text that beams do not search takes one for all", code="guides",
                           count=len(options.guides))
        sequence.rules = Rules(options.list_before(sequence.prompt), options.eos, next(iter(options.guides), None))

    def write(self, token: int, logprob: float) -> str:
        """Take a token; give the text that may be shown now. Sets the finish reason when the row is done.

        Raises QkvError where its rules left no token to choose.
        """
        row = self.sequence
        if row.rules.fault:
            raise row.rules.fault
        row.tokens.append(token)
        row.logprobs.append(logprob)
        piece = ""
        if token in self.eos:
            row.finish_reason = "stop"
        else:
            piece = self.stream.push(token) if self.stream else ""
            if len(row.tokens) >= self.limit:
                row.finish_reason = "length"
        if row.finish_reason and self.stream:
            piece += self.stream.end()
        if self.stops:
            piece = self.stops.push(piece)
            if self.stops.stopped:
                row.finish_reason = "stop_string"
            elif row.finish_reason:
                piece += self.stops.end()
        row.text += piece
        return piece
