"""Bigrams as tokens: each word or character is followed by the bigram that it makes with the next, where that is known.

In short texts a bigram says what its parts do not ("not good", 葡萄), and Chinese is written without the spaces that
show its words; fastText reads bigrams too (Joulin et al. 2017, section 2.1).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any

import tokenizers
from tokenizers import models

BETWEEN = " "  # of the two parts in a bigram's name: no word or character of a vocabulary has it within
MOST = 2_000_000  # bigrams that are counted at a time; then those that came once are forgotten


@dataclass(frozen=True)
class Bigrams:
    """The ids of bigrams, by the ids of their parts."""

    ids: Mapping[tuple[int, int], int]

    def add_to(self, row: Sequence[int]) -> list[int]:
        """The row with each known bigram behind its first part."""
        made = chain.from_iterable((a, self.ids.get((a, b))) for a, b in pairwise(row))
        return [*(i for i in made if i is not None), *row[-1:]]

    def remove_from(self, row: Sequence[int]) -> list[int]:
        """The row without its bigrams."""
        bigrams = set(self.ids.values())
        return [i for i in row if i not in bigrams]

    def add_spans(self, row: Sequence[int], spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Where each token of `add_to(row)` lies, given where those of the row do."""
        found: list[tuple[int, int]] = []
        for n, (id_, span) in enumerate(zip(row, spans, strict=True)):
            found.append(span)
            if n + 1 < len(row) and (id_, row[n + 1]) in self.ids:
                found.append((span[0], spans[n + 1][1]))
        return found


def find_bigrams(vocabulary: Mapping[str, int]) -> Bigrams:
    """The bigrams among the tokens of a vocabulary."""
    parts = ((id_, token.split(BETWEEN, 1)) for token, id_ in vocabulary.items() if BETWEEN in token[1:-1])
    known = ((id_, *(vocabulary.get(part) for part in pair)) for id_, pair in parts)
    return Bigrams({(a, b): id_ for id_, a, b in known if a is not None and b is not None})


def learn_bigrams(backend: tokenizers.Tokenizer, texts: Iterable[str], size: int, unk: str) -> None:
    """Add the commonest bigrams of `texts` to a vocabulary of words or characters, until it has `size` tokens.

    Those with a part that begins with no letter or digit, and those that come once, are left out.
    """
    counts: Counter[tuple[int, int]] = Counter()
    left = iter(texts)
    while some := list(islice(left, 1000)):
        for found in backend.encode_batch_fast(some, add_special_tokens=False):
            counts.update(pairwise(found.ids))
        if len(counts) > MOST:
            counts = Counter({pair: n for pair, n in counts.items() if n > 1})
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=False)
    spelt = {i: token for token, i in vocabulary.items() if token[0].isalnum()}
    known: Any = (BETWEEN.join((spelt[a], spelt[b])) for (a, b), n in counts.most_common()
                  if n > 1 and a in spelt and b in spelt)
    for number, token in zip(range(len(vocabulary), size), known, strict=False):
        vocabulary[token] = number
    backend.model = models.WordLevel(vocabulary, unk_token=unk)
