"""N-grams of a run's own batches, with Kneser-Ney smoothing. Letters: B batch, T target, N grams, V vocabulary."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from qkv.data.collate import IGNORED, Batch
from qkv.errors import QkvError


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

    def probabilities(self, grams: np.ndarray) -> np.ndarray:
        """The probability of the last id of each row [N, n] given the others (`vocabulary` stands for the edge)."""
        words, history = grams[:, -1], np.zeros(len(grams), dtype=np.int64)
        found = np.full(len(grams), 1.0 / self.vocabulary)
        for k, order in enumerate(self.orders):
            if k:
                history = find_codes(order.histories, encode_grams(history, grams[:, -1 - k], self.vocabulary))
            known = history >= 0
            at = find_codes(order.grams, encode_grams(history, words, self.vocabulary))
            counts = np.where(at >= 0, order.counts[at], 0.0)
            totals, kinds = order.totals[history], order.kinds[history]
            new = (np.maximum(counts - order.discount, 0.0) + order.discount * kinds * found) / np.maximum(totals, 1)
            found = np.where(known, new, found)
        return found

    def loss(self, batches: Iterable[Batch]) -> float:
        """The loss per counted token in nats over some batches; a source, where there is one, is not read."""
        grams = (extract_grams(batch, len(self.orders), self.vocabulary) for batch in batches)
        return float(-np.log(np.concatenate([self.probabilities(g) for g in grams])).mean())


def count_ngrams(batches: Iterable[Batch], *, order: int, vocabulary: int) -> Ngrams:
    """The n-grams of a run's own batches, one pass over them: `order` 3 counts triples.

    Raises:
        QkvError: an order below 1, or batches that do not ask for next words.
    """
    if order < 1:
        raise QkvError("n-grams: found order {order}, expected 1 or more", order=order)
    grams = np.concatenate([extract_grams(batch, order, vocabulary) for batch in batches])
    if not len(grams):
        raise QkvError("n-grams predict the next word; these batches have only labels of texts")
    words, history = grams[:, -1], np.zeros(len(grams), dtype=np.int64)
    tables, ids = [np.zeros(1, dtype=np.int64)], list[np.ndarray]()
    for k in range(order):
        if k:
            known, history = np.unique(encode_grams(history, grams[:, -1 - k], vocabulary), return_inverse=True)
            tables.append(known)
        ids.append(encode_grams(history, words, vocabulary))
    return Ngrams(vocabulary, tuple(tally(tables[k], ids[k], ids[k + 1 : k + 2], vocabulary) for k in range(order)))


def tally(histories: np.ndarray, codes: np.ndarray, longer: Sequence[np.ndarray], vocabulary: int) -> Order:
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


def extract_grams(batch: Batch, order: int, vocabulary: int) -> np.ndarray:
    """Each counted label of a batch behind the `order` - 1 ids before it [N, n]; `vocabulary` is before the edge."""
    target, labels = batch.target.cpu().numpy(), batch.labels.cpu().numpy()
    other = (target[:, 1:] != labels[:, :-1])[labels[:, :-1] != IGNORED][:1000]
    if len(other) and other.mean() > 0.5:
        raise QkvError("n-grams predict the next word; these batches ask for hidden words")
    edge = np.full((len(target), order - 1), vocabulary)
    row = np.concatenate((edge, target), 1)
    windows = np.lib.stride_tricks.sliding_window_view(row, order, axis=1)[:, :, 1:]  # what the label follows
    return np.concatenate((windows, labels[..., None]), -1)[labels != IGNORED].astype(np.int64)


def encode_grams(history: np.ndarray, word: np.ndarray, vocabulary: int) -> np.ndarray:
    """One number for a history's number and a word; negative where the history is unknown."""
    return np.where(history >= 0, history * (vocabulary + 1) + word, -1)


def find_codes(known: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Where each code stands among the sorted known ones, -1 where it does not."""
    at = np.searchsorted(known, codes).clip(max=len(known) - 1)
    return np.where(known[at] == codes, at, -1)
