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

from qkv.checkpoints.storage import Tensors
from qkv.errors import QkvError
from qkv.gguf_file import PackedTensor

KEY, METHOD = "quantization_config", "compressed-tensors"
FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")
BITS = {34: 8, 18: 4}  # of the numbers in blocks of so many bytes


@dataclass(frozen=True)
class Packed:
    """A stored matrix of few bits: its bytes and scales where layers can hold those.

    `block` counts the bytes of a block; 0 stands for signed bytes [out, in] with a scale for each output.
    """

    shape: list[int]
    read: Callable[[], tuple[Tensor, Tensor | None]] | None = None
    block: int = 0

    def on_meta(self) -> tuple[Tensor, Tensor | None]:
        """What `read` gives, without memory."""
        rows, columns = self.shape
        if self.block:
            return torch.empty(rows, columns // 32, self.block, dtype=torch.uint8, device="meta"), None
        return torch.empty(rows, columns, dtype=torch.int8, device="meta"), torch.empty(rows, 1, device="meta")


def find_packed(tensors: Tensors, settings: Mapping[str, Any], where: object) -> dict[str, Packed]:
    """The matrices of few bits whose bytes layers may hold, by the name of their weight; quantized.py writes out all.

    Raises:
        QkvError: a part of such a matrix is missing.
    """
    found = {name: packed for name, t in tensors.items()
             if isinstance(t, PackedTensor) and (packed := from_gguf(t)) is not None}
    if is_plain(settings):
        ends = (".weight_packed", ".weight_scale", ".weight_shape", ".weight")
        for scale in [n for n, t in tensors.items() if n.endswith(".weight_scale") and len(shape_of(t)) == 2]:
            base = scale.removesuffix(".weight_scale")
            parts = {end: tensors[base + end] for end in ends if base + end in tensors}
            found[f"{base}.weight"] = from_parts(parts, base, where)
    return found


def is_plain(said: Mapping[str, Any]) -> bool:
    """Whether a quantization_config describes symmetric whole numbers in the order of the inputs."""
    weights = [group.get("weights") or {} for group in (said.get("config_groups") or {}).values()]
    return said.get("quant_method") == METHOD and said.get("format") in FORMATS and all(
        w.get("type", "int") == "int" and w.get("symmetric", True) and not w.get("actorder") for w in weights)


def from_parts(parts: Mapping[str, Callable[[], Tensor]], base: str, where: object) -> Packed:
    """The matrix whose tensors, by the ends of their names, these are."""
    whole = {".weight_scale", ".weight"} <= set(parts)
    if not whole and not {".weight_packed", ".weight_scale", ".weight_shape"} <= set(parts):
        raise QkvError("{where}: of the quantised {base} only {found} are there", where=where, base=base,
                       found=", ".join(parts))
    shape = list(shape_of(parts[".weight"])) if whole else parts[".weight_shape"]().tolist()

    def read_numbers() -> Tensor:  # out in, int8
        return parts[".weight"]() if whole else unpack_words(parts[".weight_packed"](), shape[1])

    def read_bytes() -> tuple[Tensor, Tensor | None]:
        numbers, scale = read_numbers(), parts[".weight_scale"]().float()
        if bits == 8 and groups == 1:
            return numbers, scale
        return to_blocks(numbers, scale, bits), None

    groups = shape_of(parts[".weight_scale"])[1]
    bits = 8 if whole else 32 * shape_of(parts[".weight_packed"])[1] // shape[1]
    fits = shape[1] % 32 == 0 and (shape[1] // groups) % 32 == 0 and bits in (4, 8)
    if fits and (bits == 4 or groups > 1):  # blocks hold their scales in fp16
        scale = parts[".weight_scale"]()
        fits = torch.equal(scale.half().to(scale.dtype), scale)
    block = 0 if bits == 8 and groups == 1 else 34 if bits == 8 else 18
    return Packed(shape, read_bytes if fits else None, block)


def shape_of(read: Callable[[], Tensor]) -> list[int]:
    """The shape of a stored tensor, from the header where there is one."""
    return list(getattr(read, "shape", None) or read().shape)


def unpack_words(words: Tensor, columns: int) -> Tensor:
    """The signed numbers [out, in] in 32-bit words [out, in / 8 or in / 4]."""
    bits = 32 * words.shape[1] // columns
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    numbers = (words[..., None] >> shifts) & ((1 << bits) - 1)
    return (numbers.flatten(1)[:, :columns] - (1 << bits - 1)).to(torch.int8)


def pack_words(numbers: Tensor, bits: int) -> Tensor:
    """The reverse of `unpack_words`."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int64)
    parts = (numbers.long() + (1 << bits - 1)).unflatten(1, (-1, 32 // bits)) << shifts
    words = parts.sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def to_blocks(numbers: Tensor, scale: Tensor, bits: int) -> Tensor:
    """GGUF's blocks [out, in / 32, bytes] of numbers [out, in] and scales [out, groups]; larger groups share one."""
    blocks = numbers.unflatten(1, (-1, 32))
    scales = scale.repeat_interleave(blocks.shape[1] // scale.shape[1], 1)[..., None].half().view(torch.uint8)
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
    """Tensors as they are stored, and the quantization_config that says so, empty where no weight has few bits.

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
    if not kinds:
        return stored, {}
    done = {name for names in kinds.values() for name in names}
    groups = {f"group_{i}": {
        "targets": ["Linear"] if len(kinds) == 1 else names, "input_activations": None, "output_activations": None,
        "weights": {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group" if group else "channel",
                    "group_size": group, "dynamic": False, "actorder": None}}
        for i, ((bits, group), names) in enumerate(kinds.items())}
    return stored, {"quant_method": METHOD, "format": FORMATS[0], "quantization_status": "compressed",
                    "config_groups": groups, "ignore": [name for name in linears if name not in done]}
