"""One row being written: its tokens, its text, and what ends it. Knows no model. Next: rows.py."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from qkv.errors import QkvError

Finish = Literal["stop", "length", "stop_string"]


class Speech(Protocol):
    """Turns ids into text piece by piece and never gives half a character: a tokenizer's stream."""

    def push(self, token: int, /) -> str: ...

    def end(self) -> str: ...


@dataclass(frozen=True)
class Stops:
    """What ends a row: an end id (it stays in the tokens), or a string (it and what follows stay out of the text).

    `speech` makes, from the ids that a row continues, the stream that turns its new ids into text, such as
    `tokenizer.stream`; without it there is no text.
    """

    eos: tuple[int, ...] = ()
    strings: tuple[str, ...] = ()
    speech: Callable[[tuple[int, ...]], Speech] | None = None

    def __post_init__(self) -> None:
        if "" in self.strings:
            raise QkvError("stop strings: found an empty string, which would end every text at once; leave it "
                           "out")
        if self.strings and self.speech is None:
            raise QkvError("stop strings {strings!r}: they need a tokenizer, and there is none; stop at ids",
                           strings=self.strings)


@dataclass(frozen=True)
class Limits:
    """How much may be written: at most so many new tokens, and prompt and tokens together at most the context.

    max_new_tokens None: until the context ends, for an encoder-decoder also at most 2 x source + 50. context None: what
    the positions allow. `forbid` are ids that are never chosen; the reported logprobs stay the model's own.
    """

    max_new_tokens: int | None = None
    context: int | None = None
    forbid: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, value in (("max_new_tokens", self.max_new_tokens), ("context", self.context)):
            if value is not None and value < 1:
                raise QkvError("{name}: found {value}, expected at least 1, or None for no limit", name=name,
                               value=value)


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


class Held:
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
        keep = max((tail(text, s) for s in self.strings), default=0)
        self.waiting = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end(self) -> str:
        """What was held back for a stop string that never came."""
        rest, self.waiting = self.waiting, ""
        return rest


def tail(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with, shorter than `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


@dataclass(slots=True)
class Sequence:
    """A prompt and what was written after it.

    tokens       the written ids, the end id included
    logprobs     of each token under the model itself (temperature 1, nothing filtered), natural log
    text         what may be shown: no stop string, no half character
    finish_reason  "stop" (end id), "length" (limit or context), "stop_string"; None while it runs
    timing       of the whole batch that it ran in
    """

    prompt: tuple[int, ...]
    seed: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: Finish | None = None
    timing: Timing = field(default_factory=Timing)


class Writer:
    """Writes one sequence token by token and says when it ends; the engine asks nothing else of a row."""

    def __init__(self, sequence: Sequence, stops: Stops, room: int) -> None:
        self.sequence, self.stops, self.room = sequence, stops, room
        self.speech = stops.speech(sequence.prompt) if stops.speech else None
        self.held = Held(stops.strings)

    def write(self, token: int, logprob: float) -> str:
        """Take a token; give the text that may be shown now. Sets the finish reason when the row is done."""
        row = self.sequence
        row.tokens.append(token)
        row.logprobs.append(logprob)
        piece = ""
        if token in self.stops.eos:
            row.finish_reason = "stop"
        else:
            piece = self.held.push(self.speech.push(token)) if self.speech else ""
            if len(row.tokens) >= self.room:
                row.finish_reason = "length"
        if row.finish_reason and self.speech:
            piece += self.held.push(self.speech.end())
        if self.held.stopped:
            row.finish_reason = "stop_string"
        elif row.finish_reason:
            piece += self.held.end()
        row.text += piece
        return piece
