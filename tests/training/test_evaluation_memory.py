"""What evaluation holds: the logits of a few rows at a time, as training does, however long a batch is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.data import collate
from qkv.data.collate import Batch
from qkv.training import losses, scheduled_sampling
from qkv.training.shape import Shape

V, ROWS = 61, 3


class Widest(TorchDispatchMode):
    """Remembers the most rows of V numbers that any operation gave."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        new = isinstance(out, torch.Tensor) and out.shape[-1:] == (V,) and func is not torch.ops.aten.t.default
        self.rows = max(self.rows, out.numel() // V if new else 0)
        return out


def core_of(tied: bool = False) -> Transformer:
    core = Transformer(Shape("gpt2", width=32, layers=1, heads=2, ffn=64, dropout=0.0, context=16, tied=tied).spec(V))
    initialise(core, 0)
    return core.eval()


def batch() -> Batch:
    ids = torch.randint(V, (4, 13), generator=torch.Generator().manual_seed(0))
    return collate.collate_windows(ids)


JUDGES: dict[str, Callable[[Transformer, Batch], Any]] = {
    "loss": lambda core, one: losses.mean_loss(core, [one]),
    "smoothed": lambda core, one: losses.mean_loss(core, [one], smoothing=0.1),
    "accuracy": lambda core, one: losses.measure(core, [one]),
    "sampled": lambda core, one: scheduled_sampling.replace_inputs(core, one, 0.5, 1).target.tolist(),
}


@pytest.mark.parametrize("name", JUDGES)
def test_logits_are_made_for_a_few_rows_at_a_time_and_say_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    core, one, judge = core_of(), batch(), JUDGES[name]
    whole = judge(core, one)
    with Widest() as before:
        judge(core, one)
    assert before.rows > ROWS, "few words of a small vocabulary fit at once"
    monkeypatch.setattr(losses, "chunk_rows", lambda hidden, vocabulary: ROWS)
    with Widest() as few:
        found = judge(core, one)
    assert 0 < few.rows <= ROWS
    assert found == pytest.approx(whole, rel=1e-6) if isinstance(whole, float | dict) else found == whole


def test_of_a_large_vocabulary_a_cpu_holds_ten_megabytes() -> None:
    rows = losses.chunk_rows(torch.zeros(1), 50_257)
    assert 9e6 < rows * 50_257 * 4 <= 10e6
    assert losses.chunk_rows(torch.zeros(1), 10**9) == 1
