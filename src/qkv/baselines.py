"""What came before: LSTMs with and without attention, trained as any core is, and n-grams of the same batches.

An LSTM core (core/recurrent.py) stands where a Transformer stands: the same embedding, head, batches, losses and loop.
They exist so that "why the Transformer" is a measurement. Letters: B batch, T target, S source, N grams, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from qkv.core.recurrent import Recurrent
from qkv.core.step import Given, Step, begin
from qkv.data.collate import IGNORED, Batch, filled
from qkv.errors import QkvError
from qkv.spec import Head, Init, Recurrence, Stack


def recurrence(
    vocabulary: int, *, width: int, layers: int = 1, attention: Literal["none", "additive"] = "none",
    source: bool = True, dropout: float = 0.0, context: int | None = None, tied: bool = True,
) -> Recurrence:  # fmt: skip
    """The spec of an LSTM model; without a `source` it is a language model."""
    stack = Stack(width, (), embed_scale=width**0.5, dropout=dropout, context=context)
    return Recurrence(vocabulary, stack, stack if source else None, Head("tied" if tied else "untied"),
                      init=Init("xavier"), layers=layers, attention=attention)  # fmt: skip


@dataclass(frozen=True)
class Written:
    """A translation: its ids, the log-probability of each, whether an end id ended it."""

    tokens: list[int]
    logprobs: list[float]
    ended: bool


def over(core: Recurrent, sources: Sequence[Sequence[int]], ids: Tensor) -> Step:
    """The step of a decoder that reads `ids` with these sources as its memory."""
    source, real = filled(sources, ids.device)
    memory = core.encode(source, begin(core.encoder, source, Given(real=real)))
    return begin(core.decoder, ids, Given(memory=memory, memory_real=real), mode="decode")


@torch.inference_mode()
def translate(
    core: Recurrent, sources: Sequence[Sequence[int]], *, start: int, ends: Sequence[int], longest: int,
    forbid: Sequence[int] = (),
) -> list[Written]:  # fmt: skip
    """The likeliest next word, again and again, for a batch of sources: an end id, or `longest`, ends a row."""
    ids = torch.full((len(sources), 1), start, device=core.embed.weight.device)
    step, ending = over(core, sources, ids), torch.tensor(list(ends), device=ids.device)
    state, going = core.writer.start(len(ids), step), torch.ones_like(ids[:, 0], dtype=torch.bool)
    chosen, chances = list[Tensor](), list[Tensor]()
    while len(chosen) < longest and bool(going.any()):
        states, _, state = core.writer.write(core.embed(ids), state, step)
        scores = core.head(states[:, 0]).float().log_softmax(-1)  # B V
        scores[:, list(forbid)] = -torch.inf
        best = scores.max(-1)
        chosen.append(best.indices)
        chances.append(best.values)
        ids, going = best.indices[:, None], going & ~torch.isin(best.indices, ending)
    rows = zip(torch.stack(chosen, 1).tolist(), torch.stack(chances, 1).tolist(), strict=True)
    return [cut(tokens, logprobs, ends) for tokens, logprobs in rows]


def cut(tokens: list[int], logprobs: list[float], ends: Sequence[int]) -> Written:
    """A row up to and with its end id."""
    end = next((i + 1 for i, token in enumerate(tokens) if token in ends), 0)
    size = end or len(tokens)
    return Written(tokens[:size], logprobs[:size], bool(end))


@torch.inference_mode()
def alignment(core: Recurrent, source: Sequence[int], target: Sequence[int]) -> Tensor:
    """Where a core with attention looks in the source before each word that follows `target` ids: [T, S].

    Raises:
        QkvError: the core has no attention.
    """
    if core.spec.attention == "none":
        raise QkvError("this LSTM knows its source by one vector; only one with attention has an alignment to "
                       "show")
    ids = torch.tensor([list(target)], device=core.embed.weight.device)
    step = over(core, [source], ids)
    return core.writer.write(core.embed(ids), core.writer.start(1, step), step)[1][0]


@dataclass(frozen=True)
class Order:
    """The counts of one order: sorted codes of histories and of histories with a word, and what KN needs of each."""

    histories: np.ndarray  # code of (history one shorter, word before it)
    grams: np.ndarray  # code of (history, word)
    counts: np.ndarray  # by gram
    totals: np.ndarray  # by history
    kinds: np.ndarray  # by history: different words after it
    discount: float


@dataclass(frozen=True)
class Ngrams:
    """An n-gram model of token ids: interpolated Kneser-Ney with one discount an order (Chen & Goodman 1998, 3)."""

    vocabulary: int
    orders: tuple[Order, ...]

    def chances(self, grams: np.ndarray) -> np.ndarray:
        """The probability of the last id of each row [N, n] given the others (`vocabulary` stands for the edge)."""
        words, history = grams[:, -1], np.zeros(len(grams), dtype=np.int64)
        found = np.full(len(grams), 1.0 / self.vocabulary)
        for k, order in enumerate(self.orders):
            if k:
                history = place(order.histories, coded(history, grams[:, -1 - k], self.vocabulary))
            known = history >= 0
            at = place(order.grams, coded(history, words, self.vocabulary))
            counts = np.where(at >= 0, order.counts[at], 0.0)
            totals, kinds = order.totals[history], order.kinds[history]
            new = (np.maximum(counts - order.discount, 0.0) + order.discount * kinds * found) / np.maximum(totals, 1)
            found = np.where(known, new, found)
        return found

    def loss(self, batches: Iterable[Batch]) -> float:
        """The loss per counted token in nats over some batches; a source, where there is one, is not read."""
        logs = np.log(np.concatenate([self.chances(grams_of(b, len(self.orders), self.vocabulary)) for b in batches]))
        return float(-logs.mean())


def counted(batches: Iterable[Batch], *, order: int, vocabulary: int) -> Ngrams:
    """The n-grams of a run's own batches, one pass over them: `order` 3 counts triples.

    Raises:
        QkvError: an order below 1, or batches that do not ask for next words.
    """
    if order < 1:
        raise QkvError("n-grams: found order {order}, expected 1 or more", order=order)
    grams = np.concatenate([grams_of(batch, order, vocabulary) for batch in batches])
    if not len(grams):
        raise QkvError("n-grams guess the next word; these batches ask for labels of texts alone")
    words, history = grams[:, -1], np.zeros(len(grams), dtype=np.int64)
    tables, ids = [np.zeros(1, dtype=np.int64)], list[np.ndarray]()
    for k in range(order):
        if k:
            known, history = np.unique(coded(history, grams[:, -1 - k], vocabulary), return_inverse=True)
            tables.append(known)
        ids.append(coded(history, words, vocabulary))
    return Ngrams(vocabulary, tuple(tallied(tables[k], ids[k], ids[k + 1 : k + 2], vocabulary) for k in range(order)))


def tallied(histories: np.ndarray, codes: np.ndarray, longer: Sequence[np.ndarray], vocabulary: int) -> Order:
    """The counts of an order: of the highest as they are, of a lower one the different words before each gram."""
    if longer:
        codes = codes[np.unique(longer[0], return_index=True)[1]]
    grams, counts = np.unique(codes, return_counts=True)
    owner = grams // (vocabulary + 1)
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    # Ney et al. 1994's estimate; where no count is one, nothing tells how much the unseen are worth
    discount = once / (once + 2 * twice) if once else 0.5
    size = len(histories)
    totals = np.bincount(owner, weights=counts, minlength=size)
    return Order(histories, grams, counts, totals, np.bincount(owner, minlength=size), min(discount, 0.95))


def grams_of(batch: Batch, order: int, vocabulary: int) -> np.ndarray:
    """Each counted label of a batch behind the `order` - 1 ids before it [N, n]; `vocabulary` is before the edge."""
    target, labels = batch.target.cpu().numpy(), batch.labels.cpu().numpy()
    other = (target[:, 1:] != labels[:, :-1])[labels[:, :-1] != IGNORED][:1000]
    if len(other) and other.mean() > 0.5:
        raise QkvError("n-grams guess the next word; these batches ask for hidden ones")
    edge = np.full((len(target), order - 1), vocabulary)
    row = np.concatenate((edge, target), 1)
    windows = np.lib.stride_tricks.sliding_window_view(row, order, axis=1)[:, :, 1:]  # what the label follows
    return np.concatenate((windows, labels[..., None]), -1)[labels != IGNORED].astype(np.int64)


def coded(history: np.ndarray, word: np.ndarray, vocabulary: int) -> np.ndarray:
    """One number for a history's number and a word; negative where the history is unknown."""
    return np.where(history >= 0, history * (vocabulary + 1) + word, -1)


def place(known: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Where each code stands among the sorted known ones, -1 where it does not."""
    at = np.searchsorted(known, codes).clip(max=len(known) - 1)
    return np.where(known[at] == codes, at, -1)
