"""What there is to train on. Next: loop.py, which trains on it, and estimate.py, which says what that will cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qkv.data.collate import Batch


@dataclass(frozen=True)
class Plan:
    """The batches of a run: `order` gives an epoch's keys as a function of its number, `make` the tensors of a key.

    `identity` says in JSON which data and tokenizer these are; a checkpoint of others is not resumed. `judged` is a
    number of the held-out data alone (None: not known): a run goes on with others, and chooses its best weights anew.
    """

    order: Callable[[int], Sequence[Any]]
    make: Callable[[Any], Batch]
    identity: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what was skipped, to be reported before the run
    judged: int | None = None
