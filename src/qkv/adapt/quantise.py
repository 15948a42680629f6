"""Linear layers whose weights have 8 or 4 bits, swapped in by module name from outside; all else stays as it is.

int8: signed bytes with one scale for each output. int4: ggml's Q4_0, numbers -8 to 7 in groups of 32 with one scale,
but values of attention, a few hundredths of all weights, in int8: they took a quarter of the loss (docs/LOG.md).
Q8_0, Q4_0 and Q4_1 tensors of GGUF files keep their own bits. `weight` gives the numbers written out, and F.linear with
them is the formula that every kernel is held to (row_products.py). Embeddings, norms, routers and experts stay; so does
the head's weight, which is multiplied in int8.
"""

import copy
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.adapt import native, onednn_linear, row_products
from qkv.adapt.lora import find_linears
from qkv.adapt.native import is_plain
from qkv.adapt.row_products import Matrix
from qkv.core.model import Transformer
from qkv.errors import QkvError

GROUP = 32  # numbers that share a scale in int4
KINDS = {"int8": "int8", "int4": "Q4_0"}  # what people type, and how it lies in memory
TRIED = (8.5, 7.5)  # what the largest number of a group becomes at first in int4; the better one stays
FEW = 4  # rows up to which PyTorch's own 8-bit product reads the weights once


class Quantised(nn.Linear):
    """A linear layer with a weight of few bits. Its bytes stand among the buffers, under the weight's own name.

    int8 is [out, in] in signed bytes with `weight_scale` [out, 1]; Q8_0 and Q4_0 are blocks [out, in / 32, bytes].
    """

    kind: str
    packed: tuple[int, Tensor, Tensor] | None = None  # 4 bits as PyTorch's own product reads them, and what they were
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
        if not is_plain(input):
            return F.linear(input, self.weight, self.bias)
        if input.numel() > most_rows(self.kind, input) * input.shape[-1]:
            return self.multiply_many(input)
        out = multiply_few(input, Matrix(self.kind, *self.stored_bytes(), self.bias), self)
        return F.linear(input, self.weight, self.bias) if out is None else out

    def multiply_many(self, x: Tensor) -> Tensor:
        """The product with the numbers written out, in memory that all such layers share."""
        found, dtype = native.library(), self.like.dtype
        if not found or dtype not in (torch.float32, torch.bfloat16):
            return F.linear(x, self.weight, self.bias)
        if dtype == torch.bfloat16 and not onednn_linear.has_bf16_products():
            with row_products.unpack_for_now(found, self.kind, *self.stored_bytes(), torch.float32) as weight:
                added = None if self.bias is None else self.bias.float()
                return onednn_linear.multiply(x.float(), weight, added).to(dtype)
        with row_products.unpack_for_now(found, self.kind, *self.stored_bytes(), dtype) as weight:
            return onednn_linear.multiply(x, weight, self.bias)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "packed": None}  # a copied layer packs its own


class RoundedHead(nn.Linear):
    """An output projection that multiplies in int8; its weight, which may be the embedding's, stays as it is."""

    rounded: tuple[tuple[int, int], Tensor, Tensor] | None = None  # what it was made of, the bytes, the scales

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  the name that nn.Linear gives it
        weight = self.weight
        made_of = (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
        if self.rounded is None or self.rounded[0] != made_of:
            held, scale = round_weight(weight.detach(), "int8")
            assert scale is not None
            self.rounded = made_of, held, scale
        _, held, scale = self.rounded
        few = is_plain(input) and input.numel() <= most_rows("int8", input) * input.shape[-1]
        out = multiply_few(input, Matrix("int8", held, scale, self.bias)) if few else None
        if out is not None:
            return out
        opened = row_products.open_matrix("int8", held, scale).to(weight.dtype)
        return onednn_linear.multiply(input, opened, self.bias)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "rounded": None}  # a copied layer rounds its own


def round_head(core: nn.Module) -> None:
    """Let the plain head of a core whose layers have few bits multiply in int8: half of what a step would read."""
    head = getattr(core, "head", None)
    if not isinstance(head, nn.Linear) or type(head) not in (nn.Linear, onednn_linear.Packed):
        return
    if find_quantised(core) and head.in_features % GROUP == 0:
        head.__class__ = RoundedHead


def most_rows(kind: str, x: Tensor) -> int:
    """The rows up to which such numbers are multiplied without writing the matrix out."""
    return row_products.most_rows(kind, 0, low=x.dtype == torch.bfloat16)


def multiply_few(x: Tensor, matrix: Matrix, layer: Quantised | None = None) -> Tensor | None:
    """x [..., in] times a matrix of few bits, plus bias, without writing it out; None where there is no kernel for it.

    Where nothing was compiled PyTorch's own products for bf16 do it; of 4 bits `layer` keeps their packed copy.
    """
    if found := native.library():
        return row_products.multiply(found, x, matrix)
    kind, held, scale, bias = matrix
    rows = x.flatten(0, -2)
    if x.dtype != torch.bfloat16 or len(rows) > FEW:
        return None
    if kind == "int8" and scale is not None:
        out = torch.ops.aten._weight_int8pack_mm(rows, held, scale[:, 0].to(x.dtype))
    elif kind in ("Q4_0", "Q4_1") and layer is not None and len(held) % 16 == 0:
        if layer.packed is None or layer.packed[0] != held.data_ptr():
            layer.packed = held.data_ptr(), *pack_int4(kind, held)
        out = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, layer.packed[1], GROUP, layer.packed[2])
    else:
        return None
    out = out.view(*x.shape[:-1], -1)
    return out if bias is None else out + bias


def pack_int4(kind: str, held: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks of 4 bits as PyTorch's own product reads them: its order of numbers, and scale and middle by group."""
    start = 4 if kind == "Q4_1" else 2
    numbers = torch.cat((held[..., start:] & 15, held[..., start:] >> 4), -1).flatten(1)
    scale = held[..., :2].contiguous().view(torch.float16).float()
    plus = held[..., 2:4].contiguous().view(torch.float16).float() if kind == "Q4_1" else -8 * scale
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers.int(), 1)
    both = torch.cat((scale, plus + 8 * scale), -1)  # it takes 8 off each number first
    return packed, both.transpose(0, 1).contiguous().to(torch.bfloat16)


def quantise(core: nn.Module, dtype: str, targets: Iterable[str] = ("*",)) -> int:
    """Give every linear layer within blocks whose path some glob fits a weight of 8 or 4 bits, in place; how many.

    Layers whose inputs are no multiple of 32 stay as they are.

    Raises:
        QkvError: no layer can be quantised.
    """
    chosen = {name: m for name, m in find_linears(core).items()
              if any(fnmatchcase(name, glob) for glob in targets) and not isinstance(m, Quantised)
              and m.in_features % GROUP == 0}
    if not (chosen or find_quantised(core)):
        raise QkvError("dtype {dtype}: this model has no linear layer in its blocks whose inputs are a multiple of 32",
                       dtype=dtype)
    for name, layer in chosen.items():
        hold(layer, *round_weight(layer.weight.detach(), "int8" if name.endswith(".v") else dtype))
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
    largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    tries = [fit_scale(groups, largest / -first) for first in TRIED]
    better = tries[1][0] < tries[0][0]
    numbers, scale = (torch.where(better, two, one) for one, two in zip(tries[0][1:], tries[1][1:], strict=True))
    return make_blocks(numbers.to(torch.int8), scale), None


def fit_scale(groups: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The squared error of groups [out, groups, 32] in numbers -8 to 7, these numbers, and their scale: the given one
    once replaced by that of least squares.
    """
    scale = round_scale(scale, 2.0**-17)
    numbers = (groups / scale).round().clamp(-8, 7)
    best = (numbers * groups).sum(2, keepdim=True) / numbers.square().sum(2, keepdim=True).clamp_min(1)
    scale = torch.where(best == 0, scale, round_scale(best, 2.0**-17))
    numbers = (groups / scale).round().clamp(-8, 7)
    return (numbers * scale - groups).square().sum(2, keepdim=True), numbers, scale


def round_scale(scale: Tensor, least: float) -> Tensor:
    """Scales that bf16 holds exactly, in fp32, and not nearer to 0 than `least`; from 2**-17 on fp16 does as well."""
    return scale.sign().where(scale != 0, 1.0) * scale.abs().clamp_min(least).to(torch.bfloat16).float()


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
    return "int8" if weight.ndim == 2 else row_products.OF_BYTES[weight.shape[2]]


def kept_kinds(dtype: str, *, gguf: bool) -> tuple[str, ...]:
    """The stored kinds that stay as they are when a model is loaded with a dtype that people type."""
    if dtype == "auto":  # without a kernel, writing blocks out at each step would be slower than at once
        return ("int8", "Q8_0", "Q4_0", "Q4_1") if not gguf or native.library() else ()
    return {"int8": ("int8", "Q8_0"), "int4": ("Q4_0", "Q4_1")}.get(dtype, ())


def is_storable(core: nn.Module) -> bool:
    """Whether every layer of few bits has a place in safetensors; Q4_1 has none."""
    return all(layer.kind != "Q4_1" for layer in find_quantised(core).values())


def find_quantised(core: nn.Module) -> dict[str, Quantised]:
    """The layers of few bits, by path."""
    return {name: m for name, m in core.named_modules() if isinstance(m, Quantised)}


def find_shapes(module: nn.Module) -> dict[str, torch.Size]:
    """The shape of each weight by name, of those of few bits as well; one that is shared comes once."""
    shapes = {name: p.shape for name, p in module.named_parameters()}
    return shapes | {f"{n}.weight".removeprefix("."): torch.Size((m.out_features, m.in_features))
                     for n, m in find_quantised(module).items()}


def count_parameters(module: nn.Module) -> int:
    """How many numbers the weights hold, those of few bits as well."""
    return sum(shape.numel() for shape in find_shapes(module).values())


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
        for name, layer in find_quantised(twin).items():
            stays = layer.kind in kept_kinds(dtype, gguf=False) and layer.kind != "Q4_1"  # it has no place on disk
            if not stays and not (layer.kind == "int8" and name.endswith(".v")):
                write_out(layer)
        quantise(twin, dtype)
    return twin
