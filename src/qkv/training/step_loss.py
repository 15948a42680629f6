"""What one step of any model makes smaller, and what it gets right, over a Batch. Next: losses.py, balance.py.

The batch says what is learnt (data/collate.py): labels of words, of whole texts, or both. Experts add their balance.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qkv.core.dropout import Drop, keep
from qkv.core.experts import Experts
from qkv.core.model import Transformer
from qkv.core.step import Listener, listener
from qkv.data.collate import IGNORED, Batch, twice
from qkv.training.crossentropy import likeliest
from qkv.training.load_balancing import balance, load
from qkv.training.losses import states, summed, text_logits, token_loss


class Routes:
    """Hears what every router decides in one pass: `logits` [B, T, E] and `index` [B, T, J] by path and name.

    Whoever listened before hears all the same.
    """

    def __init__(self, outer: Listener | None = None) -> None:
        self.outer, self.opens = outer, bool(outer and outer.opens)
        self.heard: dict[str, dict[str, Tensor]] = {}
        begins = getattr(outer, "begins", None)
        if begins:
            self.begins = begins

    def tap(self, module: nn.Module, name: str, x: Tensor) -> Tensor:
        """Take note of a router's decisions."""
        if self.outer:
            x = self.outer.tap(module, name, x)
        if isinstance(module, Experts) and name in ("logits", "index"):
            self.heard.setdefault(module.path, {})[name] = x
        return x


@contextmanager
def routed() -> Iterator[Routes]:
    """Listen to the routers of what runs within."""
    routes = Routes(listener.get())
    token = listener.set(routes)
    try:
        yield routes
    finally:
        listener.reset(token)


def step_loss(
    core: Transformer, batch: Batch, *, smoothing: float = 0.0, even: float = 0.0, agree: float = 0.0, drop: Drop = keep
) -> tuple[Tensor, Tensor | None]:
    """(the loss summed over what is learnt, how many tokens chose each expert of each layer [L, E] or None).

    With experts, `even` times the loss that evens them out (Fedus et al. 2021, equation 4), mean over layers, is added
    for each counted token; padding is left out of it. With `agree` the batch is read twice, and the loss is half the
    sum of both plus what their predictions differ (losses.token_loss).
    """
    batch, passes = (twice(batch), 2) if agree else (batch, 1)
    if not any(block.moe for block in core.spec.stack.blocks):
        return token_loss(core, batch, smoothing=smoothing, agree=agree, drop=drop) / passes, None
    with routed() as routes:
        total = token_loss(core, batch, smoothing=smoothing, agree=agree, drop=drop)
    logits, index, loads = decisions(routes, batch)
    if even:
        pulls = [balance(one, of, logits.shape[-1]) for one, of in zip(logits, index, strict=True)]
        total = total + even * batch.tokens * torch.stack(pulls).mean()
    return total / passes, loads


def decisions(routes: Routes, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """What the routers of all layers decided about real tokens: logits [L, N, E], chosen [L, N, J], loads [L, E]."""
    logits, index = (torch.stack([of[name] for of in routes.heard.values()]) for name in ("logits", "index"))
    if batch.target_real is not None:
        logits, index = logits[:, batch.target_real], index[:, batch.target_real]  # L N E, L N J
    else:
        logits, index = logits.flatten(1, 2), index.flatten(1, 2)
    return logits, index, torch.stack([load(layer, logits.shape[-1]) for layer in index])


def busiest(loads: Tensor) -> float:
    """The load of the busiest expert over the mean load, in the worst layer: 1 is even, E is one expert for all."""
    return float((loads.amax(-1) / loads.mean(-1).clamp_min(1e-9)).max())


@torch.no_grad()
def measure(core: Transformer, batches: Sequence[Batch]) -> dict[str, Any]:
    """What validation reports: `loss` per counted token in nats, and the share of right guesses.

    `accuracy` counts words (masked ones, or the next one given those before), `label_accuracy` the labels of texts;
    with experts, `busiest` is how uneven their loads are (1 is even).
    """
    total, counted = 0.0, 0
    words, texts, loads = [0, 0], [0, 0], list[Tensor]()
    for batch in batches:
        with routed() as routes:
            hidden = states(core, batch)  # B T D
        loads += [decisions(routes, batch)[2]] if routes.heard else []
        total, counted = total + float(summed(core, hidden, batch)), counted + batch.tokens
        there = batch.labels != IGNORED
        if bool(there.any()):
            guesses = likeliest(hidden[there], core.head, core.spec.vocabulary)
            words[0] += int((guesses == batch.labels[there]).sum())
            words[1] += int(there.sum())
        if batch.classes is not None:
            guess = text_logits(core, hidden, batch).argmax(-1)
            texts[0] += int((guess == batch.classes).sum())  # a label that training lacks is never right
            texts[1] += len(batch.classes)
    found: dict[str, Any] = {"loss": total / max(1, counted)}
    for name, (right, of) in (("accuracy", words), ("label_accuracy", texts)):
        found |= {name: right / of} if of else {}
    return found | ({"busiest": busiest(torch.stack(loads).sum(0))} if loads else {})
