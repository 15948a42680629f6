"""From logits to the drawn word: the whole vocabulary's distribution after each filter, in the order they act."""

from dataclasses import dataclass, replace

from torch import Tensor

from qkv.errors import QkvError
from qkv.lens import resolve
from qkv.lens.recording import Recording
from qkv.messages import Message, join
from qkv.plots.forms import Bars, Drawn, Form
from qkv.sampling import Sampling, distribution


@dataclass(frozen=True)
class Stage:
    """The distribution after a filter: `chances` [V], how many tokens are left, its entropy in nats.

    `gone` is the chance, before this filter, of all that it threw away; `words` are the ten likeliest tokens.
    """

    name: str
    chances: Tensor
    kept: int
    entropy: float
    gone: float
    words: tuple[str, ...] = ()

    def top_tokens(self, n: int = 10) -> tuple[list[int], list[float]]:
        """The n likeliest ids that are left, and their chances."""
        best = self.chances.topk(min(n, self.kept))
        return best.indices.tolist(), best.values.tolist()


class Stages(tuple[Stage, ...], Drawn):
    """The filters in the order in which they act."""

    def forms(self) -> tuple[Form, ...]:
        """The likeliest tokens after each."""
        made: list[Form] = []
        for s in self:
            left = Message("{kept} tokens left, entropy {entropy:.2f} nats", kept=s.kept, entropy=s.entropy)
            gone = Message(", {gone:.1f}% cut", gone=100 * s.gone) if s.gone else ""
            made.append(Bars(join("", [f"{s.name} (", left, gone, ")"]), s.words, s.top_tokens(len(s.words))[1]))
        return tuple(made)


def list_filter_stages(
    t: Recording, pos: int | str = -1, *, sampling: Sampling | None = None, row: int = 0, run: int | None = None
) -> Stages:
    """What the model could say after a position, and what temperature, top-k, top-p and min-p leave of it, in turn."""
    resolve.require_saved(t, "choices", "logits")
    slot = resolve.find_position(t, pos, row=row, run=run)
    start, logits = t.start("logits", run=run), t.get("logits", run=run)[row]
    if slot < start:
        raise QkvError("choices: no logits were made at position {slot}: generation asks from {start} on", slot=slot,
                       start=start)
    found = apply_filters(logits[slot - start], sampling or Sampling(temperature=1.0))
    return Stages(replace(s, words=tuple(resolve.show_token(t, i) for i in s.top_tokens()[0])) for s in found)


def apply_filters(logits: Tensor, sampling: Sampling) -> tuple[Stage, ...]:
    """The same for one row of logits [V]; filters that are off are not listed."""
    steps = [("model", Sampling(temperature=1.0))]
    now = Sampling(temperature=sampling.temperature)
    if sampling.temperature != 1:
        steps.append((f"temperature {sampling.temperature:g}", now))
    for name in ("top_k", "top_p", "min_p"):
        value = getattr(sampling, name)
        if value is not None:
            now = replace(now, **{name: value})
            steps.append((f"{name} {value:g}", now))
    found: list[Stage] = []
    for name, by in steps:
        chances = distribution(logits[None], by)[0]
        some = chances[chances > 0]
        gone = float((found[-1].chances if found else chances)[chances == 0].sum())
        found.append(Stage(name, chances, len(some), abs(float((some * some.log()).sum())), gone))
    return tuple(found)

