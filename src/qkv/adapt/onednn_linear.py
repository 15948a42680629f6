"""Linear layers that multiply by oneDNN where it is faster than what PyTorch takes, on a CPU.

In bf16, for inference, they keep a second copy of their weights in the processor's own order, so that reading them gets
faster: 1.1 times with 128 rows, 1.4 with 32, 2 to 3 with one, which our own kernel reads as fast without a copy where
there is a compiler. In fp32, on processors with AVX-512 that are not Intel's, PyTorch's MKL uses half of the width: 1.1
times with one row, 2.1 with 512 (bench/linear.py), without a copy, and the gradients as well (bench/training_speed.py).
Where the processor does not multiply bf16, many rows are multiplied in fp32: PyTorch's own loop takes 4 to 10 times
as long.
A token of each of a few texts is multiplied by row_products.c, which adds up a row in one order in any company; MKL
does not. Names, parameters and checkpoints stay as they are.
"""

import os
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.adapt import native, row_products

ROWS = 32  # the order is made for so many; it was the same for every number tried
WIDENED = 16  # rows from which on bf16 is multiplied in fp32, where the processor does not multiply it
LEAST = 1 << 20  # numbers of weights times rows: with fewer, oneDNN's bookkeeping costs more than it saves in fp32


class Packed(nn.Linear):
    """An nn.Linear that multiplies few rows by our kernel and many by oneDNN, in bf16 by a packed copy of itself."""

    packed: tuple[tuple[int, int], Tensor] | None = None  # what it was made of, and the copy

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  the name that nn.Linear gives it
        weight = self.weight
        if (few := multiply_few(input, weight, self.bias)) is not None:
            return few
        if torch.compiler.is_compiling() or (
            weight.dtype == torch.float32 and input.numel() * self.out_features < LEAST
        ):
            return F.linear(input, weight, self.bias)
        low = input.dtype == weight.dtype == torch.bfloat16 and weight.device.type == "cpu"
        if torch.is_grad_enabled() or not low or not has_bf16_products():
            return multiply(input, weight, self.bias)
        made_of = (weight.data_ptr(), 0 if weight.is_inference() else weight._version)  # a changed one is packed again
        if self.packed is None or self.packed[0] != made_of:
            self.packed = made_of, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)
        return torch.ops.mkldnn._linear_pointwise(input, self.packed[1], self.bias, "none", [], "")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "packed": None}  # a copied layer packs its own


def multiply_few(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """The product by our own kernel where x has few rows; None where it cannot."""
    kind = row_products.DTYPES.get(x.dtype)
    if kind is None or torch.is_grad_enabled() or not native.is_plain(x) or weight.dtype != x.dtype:
        return None
    rows, tokens = x.numel() // x.shape[-1], x.shape[-2] if x.ndim > 1 else 1
    few = rows <= row_products.most_rows(kind, weight.numel(), low=kind == "bf16", tokens=tokens)
    fits = few and row_products.fits_kernels(kind, x.shape[-1]) and weight.is_contiguous()
    if not fits or not (found := native.library()):
        return None
    return row_products.multiply(found, x, row_products.Matrix(kind, weight, None, bias))


class Product(torch.autograd.Function):
    """x @ weight.T + bias by oneDNN, whose gradients are such products too, and theirs again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        by_input, by_weight, by_bias = ctx.needs_input_grad
        rows, read = grad.flatten(0, -2), x.flatten(0, -2)  # N E, N D
        return (
            multiply(rows, weight.T).view_as(x) if by_input else None,
            multiply(rows.T, read.T) if by_weight else None,
            rows.sum(0) if by_bias else None,
        )


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [... D] @ weight.T + bias, weight [E D]; of many rows by oneDNN, or of bf16 in fp32, where that is faster."""
    # a graph holds PyTorch's own products; autocast narrows and torch.func transforms those, and nothing else
    if (
        torch.compiler.is_compiling()
        or x.dtype != weight.dtype
        or not x.device.type == weight.device.type == "cpu"
        or x.numel() * len(weight) < LEAST
        or torch._C._are_functorch_transforms_active()  # pyright: ignore[reportPrivateUsage]
        or torch.is_autocast_enabled("cpu")
    ):
        return F.linear(x, weight, bias)
    if x.dtype != torch.float32:
        many = x.numel() >= WIDENED * x.shape[-1] and not torch.is_grad_enabled()
        wide = many and x.dtype == torch.bfloat16 and not has_bf16_products()
        return (multiply_widened if wide else F.linear)(x, weight, bias)
    if not is_mkl_slow():
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return Product.apply(x, weight, bias)  # type: ignore[no-any-return]
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]


def multiply_widened(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product of bf16 numbers in fp32, rounded to bf16 once."""
    wide, added = x.float(), None if bias is None else bias.float()
    found = native.library() if weight.is_contiguous() and row_products.fits_kernels("bf16", weight.shape[1]) else None
    if found is None:
        return multiply(wide, weight.float(), added).to(x.dtype)
    with row_products.unpack_for_now(found, "bf16", weight, None, torch.float32) as numbers:
        return multiply(wide, numbers, added).to(x.dtype)


def pack_weights(core: nn.Module) -> int:
    """Let every linear layer of `core` that gains by it multiply by oneDNN; how many there are.

    None on another device, in another precision, where the processor gains nothing, or where both copies of the weights
    in bf16 would take more than half of the machine's memory.
    """
    found = [m for m in core.modules() if type(m) is nn.Linear and fits(m.weight)]
    copied = [m.weight for m in found if m.weight.dtype == torch.bfloat16 and has_bf16_products()]
    if copied and 4 * sum(w.numel() * w.element_size() for w in copied) > read_memory_size():
        return 0
    for module in found:
        module.__class__ = Packed
    return len(found)


def fits(weight: Tensor) -> bool:
    """Whether there is a faster way than PyTorch's own to multiply by such a weight on this machine."""
    if weight.device.type != "cpu":
        return False
    return is_mkl_slow() if weight.dtype == torch.float32 else weight.dtype == torch.bfloat16 and has_operations()


@cache
def has_bf16_products() -> bool:
    """Whether oneDNN multiplies in bf16 on this machine."""
    return has_operations() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@cache
def has_operations() -> bool:
    """Whether this PyTorch was built with oneDNN's linear layers."""
    known = torch.backends.mkldnn.is_available()
    return known and all(hasattr(torch.ops.mkldnn, name) for name in OPERATIONS)


@cache
def is_mkl_slow() -> bool:
    """Whether fp32 products of MKL leave half of this processor unused: AVX-512, but not Intel's."""
    known = getattr(torch.cpu, "get_capabilities", dict[str, Any])()  # an older PyTorch does not say
    if not known.get("avx512_f") or "Intel" in known.get("cpu_name", "Intel"):
        return False
    return torch.backends.mkl.is_available() and has_operations()


def read_memory_size() -> int:
    """Bytes of the machine's memory; 2 GiB where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 2 << 30


OPERATIONS = ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
