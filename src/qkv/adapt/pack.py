"""Linear layers that multiply by oneDNN where it is faster than what PyTorch takes, for inference on a CPU.

In bf16 they keep a second copy of their weights in the processor's own order, so that reading them gets faster: 1.1
times with 128 rows, 1.4 with 32, 2 to 3 with one. In fp32, on processors with AVX-512 that are not Intel's, PyTorch's
MKL uses half of the width: 1.1 times with one row, 2.1 with 512 (bench/linear.py), without a copy. Names, parameters,
checkpoints and training stay as they are.
"""

import os
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 32  # the order is made for so many; it was the same for every number tried
LEAST = 1 << 20  # numbers of weights times rows: with fewer, oneDNN's bookkeeping costs more than it saves in fp32


class Packed(nn.Linear):
    """An nn.Linear that multiplies by oneDNN wherever no gradient is wanted; in bf16 by a packed copy of its weight."""

    packed: tuple[tuple[int, int], Tensor] | None = None  # what it was made of, and the copy

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  the name that nn.Linear gives it
        weight = self.weight
        same = input.dtype == weight.dtype and weight.device.type == "cpu"
        if torch.is_grad_enabled() or not same or torch.compiler.is_compiling() or not self.pays(input):
            return F.linear(input, weight, self.bias)
        if weight.dtype == torch.float32:
            return torch.ops.mkldnn._linear_pointwise(input, weight, self.bias, "none", [], "")
        made_of = (weight.data_ptr(), 0 if weight.is_inference() else weight._version)  # a changed one is packed again
        if self.packed is None or self.packed[0] != made_of:
            self.packed = made_of, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)
        return torch.ops.mkldnn._linear_pointwise(input, self.packed[1], self.bias, "none", [], "")

    def pays(self, input: Tensor) -> bool:  # noqa: A002
        """Whether oneDNN is the faster one for so many rows."""
        low = input.dtype == torch.bfloat16
        return low or (input.dtype == torch.float32 and wide() and input.numel() * len(self.weight) >= LEAST)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "packed": None}  # a copied layer packs its own


def pack(core: nn.Module) -> int:
    """Let every linear layer of `core` that gains by it multiply by oneDNN; how many there are.

    None on another device, in another precision, where the processor gains nothing, or where both copies of the weights
    in bf16 would take more than half of the machine's memory.
    """
    found = [m for m in core.modules() if type(m) is nn.Linear and fits(m.weight)]
    copied = [m.weight for m in found if m.weight.dtype == torch.bfloat16]
    if 4 * sum(w.numel() * w.element_size() for w in copied) > installed():
        return 0
    for module in found:
        module.__class__ = Packed
    return len(found)


def fits(weight: Tensor) -> bool:
    """Whether oneDNN multiplies by such a weight on this machine, and faster."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not all(hasattr(torch.ops.mkldnn, name) for name in OPERATIONS):
        return False
    if weight.dtype == torch.float32:
        return wide()
    return weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@cache
def wide() -> bool:
    """Whether fp32 products of MKL leave half of this processor unused: AVX-512, but not Intel's."""
    known = getattr(torch.cpu, "get_capabilities", dict[str, Any])()  # an older PyTorch does not say
    name = known.get("cpu_name", "Intel")
    return torch.backends.mkl.is_available() and bool(known.get("avx512_f")) and "Intel" not in name


def installed() -> int:
    """Bytes of the machine's memory; 2 GiB where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 2 << 30


OPERATIONS = ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
