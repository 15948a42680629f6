"""Linear layers whose weights have 8 or 4 bits, swapped in by module name from outside; all else stays as it is.

int8: signed bytes with one scale for each output. int4: ggml's Q4_0, numbers -8 to 7 in groups of 32 with one scale.
Q8_0 and Q4_0 tensors of GGUF files keep their own bits. `weight` gives the numbers written out, and F.linear with them
is the formula that every kernel is held to (row_products.py). Embeddings, norms, routers, experts and the head stay.
"""

import copy
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.adapt import native, row_products
from qkv.adapt.lora import find_linears
from qkv.core.model import Transformer
from qkv.errors import QkvError

GROUP = 32  # numbers that share a scale in int4
KINDS = {"int8": "int8", "int4": "Q4_0"}  # what people type, and how it lies in memory
FEW = 4  # rows up to which PyTorch's own 8-bit product reads the weights once


class Quantised(nn.Linear):
    """A linear layer with a weight of few bits. Its bytes stand among the buffers, under the weight's own name.

    int8 is [out, in] in signed bytes with `weight_scale` [out, 1]; Q8_0 and Q4_0 are blocks [out, in / 32, bytes].
    """

    kind: str
    like: Tensor  # empty, of the type in which the numbers are written out

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The numbers [out, in] written out."""
        held, scale = self.stored_bytes()
        found = native.library()
        dtype = self.like.dtype
        if found and held.device.type == "cpu" and dtype in (torch.float32, torch.bfloat16):
            return row_products.unpack(found, self.kind, held, scale, dtype)
        return row_products.open_matrix(self.kind, held, scale).to(dtype)

    def fill(self, kind: str, weight: Tensor, scale: Tensor | None, like: Tensor) -> None:
        """Take these bytes."""
        self.kind, self.like, self._buffers["weight"] = kind, like, weight
        if scale is not None:
            self._buffers["weight_scale"] = scale

    def release(self) -> Tensor:
        """The numbers written out, and no bytes any more."""
        weight = self.weight
        self._buffers.clear()
        return weight

    def _apply(self, fn: Any, recurse: bool = True) -> "Quantised":
        super()._apply(fn, recurse)
        self.like = fn(self.like)
        if (scale := self._buffers.get("weight_scale")) is not None:
            self._buffers["weight_scale"] = scale.float()  # kernels read it so
        return self

    def stored_bytes(self) -> tuple[Tensor, Tensor | None]:
        """The bytes, and the scales that stand apart from them."""
        held, scale = self._buffers["weight"], self._buffers.get("weight_scale")
        assert held is not None
        return held, scale

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  the name that nn.Linear gives it
        if not is_plain(input) or input.numel() > row_products.MOST[self.kind] * input.shape[-1]:
            return F.linear(input, self.weight, self.bias)
        held, scale = self.stored_bytes()
        if found := native.library():
            return row_products.multiply(found, input, row_products.Matrix(self.kind, held, scale, self.bias))
        if self.kind == "int8" and input.dtype == torch.bfloat16 and input.numel() <= FEW * input.shape[-1]:
            assert scale is not None
            scale = scale[:, 0].to(input.dtype)
            out = torch.ops.aten._weight_int8pack_mm(input.flatten(0, -2), held, scale)
            out = out.view(*input.shape[:-1], -1)
            return out if self.bias is None else out + self.bias
        return F.linear(input, self.weight, self.bias)


def is_plain(x: Tensor) -> bool:
    """Whether x is numbers on a CPU that nothing but this product will read: no graph, no gradient, no fake."""
    return (
        type(x) is Tensor and x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float32)
        and not (torch.is_grad_enabled() and x.requires_grad) and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()  # pyright: ignore[reportPrivateUsage]
    )


def quantise(core: nn.Module, dtype: str, targets: Iterable[str] = ("*",)) -> int:
    """Give every linear layer within blocks whose path some glob fits a weight of 8 or 4 bits, in place; how many.

    Layers whose inputs are no multiple of 32 stay as they are.

    Raises:
        QkvError: no layer can be quantised.
    """
    chosen = [m for name, m in find_linears(core).items()
              if any(fnmatchcase(name, glob) for glob in targets) and not isinstance(m, Quantised)
              and m.in_features % GROUP == 0]
    if not (chosen or find_quantised(core)):
        raise QkvError("dtype {dtype}: this model has no linear layer in its blocks whose inputs are a multiple of 32",
                       dtype=dtype)
    for layer in chosen:
        hold(layer, *round_weight(layer.weight.detach(), dtype))
    return len(chosen)


def round_weight(weight: Tensor, dtype: str) -> tuple[Tensor, Tensor | None]:
    """The bytes of a weight [out, in] in int8 or int4, to the nearest number, and the scales that stand apart.

    Scales are rounded to bf16 first, so that every reader of them has the same ones.
    """
    wide = weight.float()
    if dtype == "int8":
        scale = round_scale(wide.abs().amax(1, keepdim=True) / 127, 2.0**-120)
        return (wide / scale).round().clamp(-127, 127).to(torch.int8), scale
    groups = wide.unflatten(1, (-1, GROUP))
    # the smallest scale that clips nothing by more than half a step
    most = torch.maximum(-groups.amin(2, keepdim=True) / 8, groups.amax(2, keepdim=True) / 7.5)
    scale = round_scale(most, 2.0**-17)
    numbers = (groups / scale).round().clamp(-8, 7).to(torch.int8)
    return make_blocks(numbers, scale), None


def round_scale(scale: Tensor, least: float) -> Tensor:
    """Scales that bf16 holds exactly, in fp32; from 2**-17 on fp16 does as well."""
    return scale.clamp_min(least).to(torch.bfloat16).float()


def make_blocks(numbers: Tensor, scale: Tensor) -> Tensor:
    """Q4_0 blocks [out, groups, 18] of numbers -8 to 7 [out, groups, 32] and their scales [out, groups, 1]."""
    low, high = (numbers + 8).to(torch.uint8).chunk(2, -1)
    return torch.cat((scale.half().view(torch.uint8), low | high << 4), -1)


def hold(layer: nn.Linear, weight: Tensor, scale: Tensor | None) -> None:
    """Make a layer in place one that holds these bytes instead of its weight."""
    like = layer.weight.detach().new_empty(0)
    del layer.weight
    layer.__class__ = Quantised
    assert isinstance(layer, Quantised)
    layer.fill(kind_of(weight), weight, scale, like)


def hold_parameter(
    kinds: Sequence[str], core: nn.Module, parameter: Tensor, weight: Tensor, scale: Tensor | None
) -> bool:
    """Let the layer of a parameter hold bytes instead where it is one within a block, and they are of such a kind."""
    linears = (m for m in find_linears(core).values() if not isinstance(m, Quantised))
    layer = next((m for m in linears if m.weight is parameter), None)
    if layer is None or kind_of(weight) not in kinds:
        return False
    hold(layer, weight, scale)
    return True


def kind_of(weight: Tensor) -> str:
    """The kind of bytes as row_products.py names it."""
    return "int8" if weight.ndim == 2 else {34: "Q8_0", 18: "Q4_0"}[weight.shape[2]]


def kept_kinds(dtype: str, *, gguf: bool) -> tuple[str, ...]:
    """The stored kinds that stay as they are when a model is loaded with a dtype that people type."""
    if dtype == "auto":  # without a kernel, writing blocks out at each step would be slower than at once
        return ("int8", "Q8_0", "Q4_0") if not gguf or native.library() else ()
    return {"int8": ("int8", "Q8_0"), "int4": ("Q4_0",)}.get(dtype, ())


def find_quantised(core: nn.Module) -> dict[str, Quantised]:
    """The layers of few bits, by path."""
    return {name: m for name, m in core.named_modules() if isinstance(m, Quantised)}


def write_out(core: nn.Module) -> int:
    """Give every quantised layer its numbers back as a weight that can learn; how many there were."""
    found = find_quantised(core)
    for layer in found.values():
        weight = layer.release()
        layer.__class__ = nn.Linear  # type: ignore[assignment]
        layer.register_parameter("weight", nn.Parameter(weight))
    return len(found)


def share(core: Transformer, dtype: str) -> Transformer:
    """A core with the same tensors whose layers are quantised to int8 or int4, or written out; the first stays."""
    memo = {id(t): t for t in (*core.parameters(), *core.buffers())}
    twin = copy.deepcopy(core, memo)
    if dtype not in KINDS:
        write_out(twin)
    else:
        for layer in find_quantised(twin).values():
            if layer.kind not in kept_kinds(dtype, gguf=False):
                write_out(layer)
        quantise(twin, dtype)
    return twin
