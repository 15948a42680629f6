"""Weights of 4 and 8 bits in safetensors as compressed-tensors lays them out, so that transformers and vLLM read ours.

A matrix X.weight is stored as X.weight_packed (32 bits hold 8 or 4 numbers along the inputs, lowest first, each plus
half its range), X.weight_scale [out, groups] and X.weight_shape; `int-quantized` ones as bytes in X.weight with scales.
In memory it is int8 [out, in] with a scale for each output, or GGUF's blocks [out, in / 32, bytes] (adapt/quantise.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.checkpoints.quantized import Quantized
from qkv.checkpoints.storage import Tensors
from qkv.gguf_file import PackedTensor

BITS = {34: 8, 18: 4}  # of the numbers in blocks of so many bytes


@dataclass(frozen=True)
class Packed:
    """A stored matrix of few bits: its bytes and scales where layers can hold those.

    `block` counts the bytes of a block; 0 stands for signed bytes [out, in] with a scale for each output.
    """

    shape: list[int]
    read: Callable[[], tuple[Tensor, Tensor | None]]
    block: int = 0

    def on_meta(self) -> tuple[Tensor, Tensor | None]:
        """What `read` gives, without memory."""
        rows, columns = self.shape
        if self.block:
            return torch.empty(rows, columns // 32, self.block, dtype=torch.uint8, device="meta"), None
        return torch.empty(rows, columns, dtype=torch.int8, device="meta"), torch.empty(rows, 1, device="meta")


def find_packed(tensors: Tensors) -> dict[str, Packed]:
    """The matrices of few bits whose bytes layers may hold, by the name of their weight."""
    found = {name: from_gguf(t) if isinstance(t, PackedTensor) else from_grid(t) if isinstance(t, Quantized) else None
             for name, t in tensors.items()}
    return {name: packed for name, packed in found.items() if packed is not None}


def from_grid(matrix: Quantized) -> Packed | None:
    """A matrix of signed whole numbers, where runs of 32 inputs share a scale that fp16 holds, or all inputs one."""
    inputs = matrix.shape[1]
    if matrix.read_grid is None or matrix.bits not in (4, 8) or inputs % 32:
        return None
    scale, zero, group = matrix.read_grid()
    block = 0 if matrix.bits == 8 and scale.shape[1] == 1 else 34 if matrix.bits == 8 else 18
    first, middle = group[::32], 0 if zero is None else matrix.middle
    if not torch.equal(first.repeat_interleave(32), group) or (zero is not None and bool((zero != middle).any())):
        return None
    if block and not torch.equal(scale.half().to(scale.dtype), scale):
        return None

    def read_bytes() -> tuple[Tensor, Tensor | None]:
        found: Any = matrix.read()
        numbers = (found.codes.short() - middle).to(torch.int8) if middle else found.codes
        wide = found.scale.float().expand(len(numbers), -1)
        return (to_blocks(numbers, wide[:, first], matrix.bits), None) if block else (numbers, wide.contiguous())

    return Packed(matrix.shape, read_bytes, block)


def pack_words(numbers: Tensor, bits: int) -> Tensor:
    """Signed numbers [out, in] in 32-bit words [out, in / 8 or in / 4]."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int64)
    parts = (numbers.long() + (1 << bits - 1)).unflatten(1, (-1, 32 // bits)) << shifts
    words = parts.sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def to_blocks(numbers: Tensor, scale: Tensor, bits: int) -> Tensor:
    """GGUF's blocks [out, in / 32, bytes] of numbers [out, in] and scales [out, in / 32]."""
    blocks, scales = numbers.unflatten(1, (-1, 32)), scale[..., None].half().view(torch.uint8)
    if bits == 8:
        return torch.cat((scales, blocks.contiguous().view(torch.uint8)), -1)
    low, high = (blocks + 8).to(torch.uint8).chunk(2, -1)
    return torch.cat((scales, low | high << 4), -1)


def from_blocks(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The reverse: numbers [out, in] in int8, and fp16 scales [out, in / 32]."""
    scale, held = blocks[..., :2].contiguous().view(torch.float16)[..., 0], blocks[..., 2:]
    if BITS[blocks.shape[2]] == 8:
        return held.contiguous().view(torch.int8).flatten(1), scale
    return (torch.cat((held & 15, held >> 4), -1).to(torch.int8) - 8).flatten(1), scale


def from_gguf(tensor: PackedTensor) -> Packed | None:
    """A GGUF matrix whose kind layers can hold."""
    if tensor.kind not in ("Q8_0", "Q4_0", "Q4_1") or len(tensor.shape) != 2:
        return None
    blocks = torch.from_numpy(tensor.raw).view(tensor.shape[0], tensor.shape[1] // 32, -1)
    return Packed(list(tensor.shape), lambda: (blocks, None), blocks.shape[2])


def compress(tensors: Mapping[str, Tensor], linears: list[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors as they are stored, and the quantization_config that says so.

    `linears` names all linear layers, as the file does; those that stay whole are listed in it.
    """
    stored, kinds = dict[str, Tensor](), dict[tuple[int, int | None], list[str]]()
    for name, held in tensors.items():
        if name.endswith(".weight_scale"):
            continue
        if held.is_floating_point():
            stored[name] = held
            continue
        base = name.removesuffix(".weight")
        if held.ndim == 2:
            bits, group, numbers, scale = 8, None, held, tensors[f"{base}.weight_scale"]
        else:
            numbers, scale = from_blocks(held)
            bits, group = BITS[held.shape[2]], 32
        narrow = scale.to(torch.bfloat16)
        exact = torch.equal(narrow.float(), scale.float())
        stored |= {f"{base}.weight_packed": pack_words(numbers, bits),
                   f"{base}.weight_scale": narrow if exact else scale.float(),
                   f"{base}.weight_shape": torch.tensor(numbers.shape)}
        kinds.setdefault((bits, group), []).append(base)
    done = {name for names in kinds.values() for name in names}
    groups = {f"group_{i}": {
        "targets": ["Linear"] if len(kinds) == 1 else names, "input_activations": None, "output_activations": None,
        "weights": {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group" if group else "channel",
                    "group_size": group, "dynamic": False, "actorder": None}}
        for i, ((bits, group), names) in enumerate(kinds.items())}
    return stored, {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups,
                    "quantization_status": "compressed", "ignore": [name for name in linears if name not in done]}
