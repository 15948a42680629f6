"""How much of what this machine's matrix products reach a run makes use of. Next: loop.py, which tells it."""

import time

import torch

from qkv import cost
from qkv.adapt.onednn_linear import multiply
from qkv.data.collate import Batch
from qkv.spec import Spec

GRAIN = 32  # lengths are rounded up to so many: few of them are counted
SIDES = {"cpu": 1024, "cuda": 8192}  # of the matrices that are multiplied
ROUNDS = 5


class Work:
    """Floating-point operations of training steps: three times those forward, for what is real and not padding.

    An encoder is taken to read as many tokens as the decoder writes; what is computed again is not counted.
    """

    def __init__(self, spec: Spec) -> None:
        self.cost, self.by_length = cost.count(spec), dict[int, int]()

    def of(self, batch: Batch) -> float:
        """The operations of one forward and backward pass."""
        rows, length = batch.target.shape
        real = rows * length if batch.target_real is None else int(batch.target_real.sum())
        whole = min(-(-length // GRAIN) * GRAIN, self.cost.spec.context or 1 << 30)
        if whole not in self.by_length:
            self.by_length[whole] = self.cost.flops_per_token(whole).prefill
        return 3.0 * real * self.by_length[whole]


def peak(device: str, precision: str) -> float:
    """Operations a second of one large matrix product in fp32 or bf16: the best of some, about 0.1 s."""
    side = SIDES.get(device, 2048)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a = torch.full((side, side), 0.5, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        float(multiply(a, a)[0, 0])  # waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * side**3 / best
