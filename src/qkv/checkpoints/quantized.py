"""Quantised safetensors: the packed parts of each matrix, read by the formula of the method that its config names.

A `Quantized` stands for one matrix among a checkpoint's tensors: called, it is unpacked to fp32; its `read()` keeps the
whole numbers for a kernel. Letters: O outputs, I inputs, G groups of inputs that share a scale.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from qkv.checkpoints.name_table import Slot
from qkv.errors import QkvError
from qkv.families import Config
from qkv.messages import Message

SETTINGS = "quantization_config"  # of a config.json
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where in a word of AWQ's its 8 columns lie
ACTIVATIONS = re.compile(r".*\.((in|out)put_(scale|zero_point)|[qkv]_(scale|zero_point)|weight_format)")  # not weights
FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense", "mixed-precision")


@dataclass(frozen=True)
class Grouped:
    """A matrix in small numbers: weight[o, i] = (codes[o, i] - zero[o, g]) * scale[o, g], where g = group[i]."""

    codes: Tensor  # O I, whole numbers or fp8
    scale: Tensor  # O G, or 1 G where all rows share it
    zero: Tensor | None  # as scale
    group: Tensor  # I

    def unpack(self) -> Tensor:
        """The weights [O, I] in fp32."""
        made = self.codes.float()
        if self.zero is not None:
            made -= self.zero.float()[:, self.group]
        return made.mul_(self.scale.float()[:, self.group])


Grid = tuple[Tensor, Tensor | None, Tensor]  # the scale, zero and group of a Grouped


@dataclass(frozen=True)
class Quantized:
    """A matrix of a quantised checkpoint, read when it is called for."""

    shape: list[int]
    read: Callable[[], Grouped | Tensor]  # a tensor where the method knows no groups of inputs
    bits: int = 0  # of its whole numbers; 0 where layers hold no such ones
    read_grid: Callable[[], Grid] | None = None  # all of it but the numbers
    middle: int = 0  # the zero of a symmetric one

    def __call__(self) -> Tensor:
        found = self.read()
        return found.unpack() if isinstance(found, Grouped) else found


Read = Callable[[], Tensor]


@dataclass(frozen=True)
class Module:
    """The parts of one matrix, with the checkpoint's settings; a part that is taken leaves the tensors."""

    tensors: dict[str, Any]
    name: str
    settings: Mapping[str, Any]
    where: Path

    def take_part(self, part: str, *shape: int) -> Any:
        """What reads a part; QkvError where it is missing, or not of the shape that is given (-1: any)."""
        if f"{self.name}.{part}" not in self.tensors:
            self.refuse(Message("it lacks {part}", part=part))
        found = self.tensors.pop(f"{self.name}.{part}")
        held = list(found.shape)
        if shape and (len(held) != len(shape) or any(n not in (-1, m) for n, m in zip(shape, held, strict=True))):
            self.refuse(Message("{part} has the shape {held}, expected {shape}", part=part, held=held,
                                shape=list(shape)))
        return found

    def find_part(self, part: str, *shape: int) -> Any:
        """What reads a part that may be missing, or None."""
        return self.take_part(part, *shape) if f"{self.name}.{part}" in self.tensors else None

    def read_whole(self, read: Read) -> Tensor:
        """A part that holds whole numbers; QkvError where it holds others."""
        found = read()
        if found.is_floating_point():
            self.refuse(Message("its packed numbers are of {dtype}, expected whole ones", dtype=found.dtype))
        return found

    def refuse(self, what: Message) -> NoReturn:
        raise QkvError("{where}: {name}, quantised by {method}: {what}; was the download complete?", where=self.where,
                       name=self.name, method=self.settings.get("quant_method"), what=what)

    def group_inputs(self, inputs: int, groups: int, sizes: set[Any]) -> Tensor:
        """The group of each input [I], by the one size of groups among those stated that makes so many."""
        sizes = {s if type(s) is int and s > 0 else inputs for s in sizes or {None}}  # -1 and null: one for all
        fit = {s for s in sizes if math.ceil(inputs / s) == groups}
        if len(fit) != 1:
            self.refuse(Message("{groups} scales for {inputs} inputs, expected groups of {sizes}", groups=groups,
                                inputs=inputs, sizes=", ".join(map(str, sizes))))
        return torch.arange(inputs) // fit.pop()


def unpack_bits(words: Tensor, bits: int) -> Tensor:
    """The numbers without sign in words [..., W], lowest bits first: [..., W * 32 / bits]."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((words[..., None] >> shifts) & (2**bits - 1)).to(torch.uint8).flatten(-2)


def read_packed(m: Module) -> Quantized:
    """Whole numbers of 4 or 8 bits in words along the inputs, with 2^(bits - 1) added (compressed-tensors)."""
    words, outputs_inputs = m.take_part("weight_packed", -1, -1), m.read_whole(m.take_part("weight_shape", 2)).tolist()
    outputs, inputs = outputs_inputs
    bits = [b for b in (4, 8) if [outputs, -(-inputs * b // 32)] == list(words.shape)]
    if min(outputs_inputs) < 1 or len(bits) != 1:
        m.refuse(Message("weight_packed has the shape {held} for a matrix {shape}, expected numbers of 4 or 8 bits",
                         held=list(words.shape), shape=outputs_inputs))
    scale, zero = m.take_part("weight_scale"), m.find_part("weight_zero_point", -1, -1)
    order = m.find_part("weight_g_idx", inputs)

    half = 2 ** bits[0] // 2

    def read_grid() -> Grid:
        found = as_rows(scale(), m, outputs)
        group = (m.group_inputs(inputs, found.shape[1], sizes_of(m.settings, 1)) if order is None
                 else check_order(order(), found.shape[1], m))
        low = None if zero is None else unpack_bits(m.read_whole(zero).T, bits[0]).T[:outputs].short() - half
        return found, low, group

    def read_groups() -> Grouped:
        codes = unpack_bits(m.read_whole(words), bits[0])[:, :inputs].short() - half
        return Grouped(codes.to(torch.int8), *read_grid())

    return Quantized(outputs_inputs, read_groups, bits[0], read_grid)


def read_scaled(m: Module) -> Quantized:
    """Numbers of 8 bits, whole or fp8, with a scale for all, for each row, group or block (many methods)."""
    weight = m.take_part("weight", -1, -1)
    scale = m.find_part("weight_scale_inv") or m.take_part("weight_scale")  # both multiply
    outputs, inputs = weight.shape
    zero = m.find_part("weight_zero_point")
    kinds = {(g.get("weights") or {}).get("type", "int") for g in (m.settings.get("config_groups") or {}).values()}

    def read_grid() -> Grid:
        found = as_rows(scale(), m, outputs)
        group = m.group_inputs(inputs, found.shape[1], sizes_of(m.settings, 1))
        return found, None if zero is None else as_rows(zero(), m, outputs), group

    def read_groups() -> Grouped:
        codes = weight()
        if codes.element_size() != 1:
            m.refuse(Message("its weight is of {dtype}, expected numbers of 8 bits", dtype=codes.dtype))
        return Grouped(codes, *read_grid())

    return Quantized([outputs, inputs], read_groups, 8 if kinds == {"int"} else 0, read_grid)


def read_gptq(m: Module) -> Quantized:
    """Words along the inputs, a group named for each input, zeros that are stored less 1 (Frantar et al. 2022)."""
    words, scale, order = m.take_part("qweight", -1, -1), m.take_part("scales", -1, -1), m.find_part("g_idx", -1)
    zeros = m.take_part("qzeros", scale.shape[0], -1)
    stated = m.settings.get("bits")
    inputs = order.shape[0] if order is not None else words.shape[0] * 32 // (stated or 4)
    bits, outputs = words.shape[0] * 32 / max(inputs, 1), words.shape[1]
    if bits not in (2, 4, 8) or zeros.shape[1] * 32 != outputs * bits or scale.shape[1] != outputs:
        m.refuse(Message("qweight {words}, qzeros {zeros} and scales {scale} do not fit {inputs} inputs in 2, 4 or 8 "
                         "bits", words=list(words.shape), zeros=list(zeros.shape), scale=list(scale.shape),
                         inputs=inputs))
    bits = int(bits)
    less = 0 if m.settings.get("checkpoint_format") == "gptq_v2" else sum(1 << at for at in range(0, 32, bits))

    def read_grid() -> Grid:
        group = (m.group_inputs(inputs, scale.shape[0], {m.settings.get("group_size")}) if order is None
                 else check_order(order(), scale.shape[0], m))
        # a whole word: what one number borrowed from the next goes back
        low = (m.read_whole(zeros).long() + less) & 0xFFFFFFFF
        low = (low - ((low >> 31) << 32)).int()
        return scale().T, unpack_bits(low, bits).T, group

    def read_groups() -> Grouped:
        return Grouped(unpack_bits(m.read_whole(words).T, bits), *read_grid())

    return Quantized([outputs, inputs], read_groups, bits, read_grid, middle=2 ** bits // 2)


def read_awq(m: Module) -> Quantized:
    """Words of 8 outputs in an order of their own, groups of inputs in turn (Lin et al. 2023, layout "gemm")."""
    words, scale = m.take_part("qweight", -1, -1), m.take_part("scales", -1, -1)
    inputs, outputs = words.shape[0], words.shape[1] * 8
    zeros = m.take_part("qzeros", scale.shape[0], words.shape[1])
    if scale.shape[1] != outputs:
        m.refuse(Message("{part} has the shape {held}, expected {shape}", part="scales", held=list(scale.shape),
                         shape=[scale.shape[0], outputs]))

    def sort_columns(words: Tensor) -> Tensor:
        return unpack_bits(words, 4).unflatten(1, (-1, 8))[:, :, AWQ_ORDER].flatten(1)

    def read_groups() -> Grouped:
        group = m.group_inputs(inputs, scale.shape[0], {m.settings.get("group_size", 128)})
        return Grouped(sort_columns(m.read_whole(words)).T, scale().T, sort_columns(m.read_whole(zeros)).T, group)

    return Quantized([outputs, inputs], read_groups)


def read_bytes(m: Module) -> Quantized:
    """Whole numbers of 8 bits with the largest of each row (Dettmers et al. 2022)."""
    weight = m.take_part("weight", -1, -1)
    outputs, inputs = weight.shape
    largest, layout = m.take_part("SCB", outputs), m.find_part("weight_format")
    if layout is not None and int(layout()) != 0:
        m.refuse(Message("weight_format is {found}, expected 0 (by rows)", found=int(layout())))
    return Quantized([outputs, inputs], lambda: Grouped(weight(), largest()[:, None].float() / 127, None,
                                                        torch.zeros(inputs, dtype=torch.long)))


def read_table(m: Module) -> Quantized:
    """Numbers of 4 bits into a table of 16, the higher half of a byte first, a scale for each run of `blocksize`
    numbers, which may be packed itself (Dettmers et al. 2023).
    """
    kinds = [kind for kind in ("nf4", "fp4") if f"{m.name}.weight.quant_state.bitsandbytes__{kind}" in m.tensors]
    if not kinds:
        m.refuse(Message("it lacks {part}", part="weight.quant_state"))
    said = m.take_part(f"weight.quant_state.bitsandbytes__{kinds[0]}", -1)()
    weight, table = m.take_part("weight"), m.take_part("weight.quant_map", 16)
    largest = m.take_part("weight.absmax", -1)
    nested, nested_table = m.find_part("weight.nested_absmax", -1), m.find_part("weight.nested_quant_map", 256)
    try:
        state = json.loads(bytes(said.tolist()))
        shape, run, inner = [int(n) for n in state["shape"]], int(state["blocksize"]), state.get("nested_blocksize")
        offset = float(state.get("nested_offset") or 0)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        m.refuse(Message("its quant_state cannot be read ({e})", e=e))
    count = math.prod(shape)
    if min(shape, default=0) < 1 or run < 1 or math.prod(weight.shape) != -(-count // 2) or (
            largest.shape[0] != -(-count // run)) or (nested is not None and nested_table is None):
        m.refuse(Message("{held} packed bytes and {scales} scales do not fit the shape {shape} in runs of {run}",
                         held=math.prod(weight.shape), scales=largest.shape[0], shape=shape, run=run))

    def read_runs() -> Tensor:
        scale = largest()
        if nested is not None:
            scale = nested_table()[scale.long()] * nested().repeat_interleave(int(inner))[: len(scale)] + offset
        codes = weight().flatten()
        codes = torch.stack([codes >> 4, codes & 15], 1).flatten()[:count].long()
        return (table().float()[codes] * scale.float().repeat_interleave(run)[:count]).view(shape)

    return Quantized(shape, read_runs)


def as_rows(scale: Tensor, m: Module, outputs: int) -> Tensor:
    """Scales as [O, G] or [1, G]: a single one, one for each row, or blocks of rows repeated."""
    found = scale.reshape(1, 1) if scale.numel() == 1 else scale[:, None] if scale.ndim == 1 else scale
    if found.ndim == 2 and len(found) not in (1, outputs):
        fit = {s for s in sizes_of(m.settings, 0) if s > 0 and math.ceil(outputs / s) == len(found)}
        found = found.repeat_interleave(fit.pop(), 0)[:outputs] if len(fit) == 1 else found
    if found.ndim != 2 or len(found) not in (1, outputs):
        m.refuse(Message("{part} has the shape {held}, expected {shape}", part="weight_scale", held=list(scale.shape),
                         shape=Message("one for each of {outputs} rows or for blocks of them", outputs=outputs)))
    return found


def check_order(group: Tensor, groups: int, m: Module) -> Tensor:
    """The group of each input, as stated; QkvError where it names one that has no scale."""
    if len(group) and (int(group.min()) < 0 or int(group.max()) >= groups):
        m.refuse(Message("g_idx names group {found} of {groups}", found=int(group.max()), groups=groups))
    return group.long()


def sizes_of(settings: Mapping[str, Any], axis: int) -> set[Any]:
    """How many rows (axis 0) or inputs (axis 1) share a scale, in any part of the settings."""
    weights = [g.get("weights") or {} for g in (settings.get("config_groups") or {}).values()]
    blocks = [settings.get("weight_block_size"), *(w.get("block_structure") for w in weights)]
    found = {block[axis] for block in blocks if isinstance(block, list) and len(cast("list[Any]", block)) == 2}
    return found | ({w.get("group_size") for w in weights if not w.get("block_structure")} if axis else set())


# By method: the part that shows a matrix to be packed, and what reads it.
METHODS: dict[str, dict[str, Callable[[Module], Quantized]]] = {
    "compressed-tensors": {"weight_packed": read_packed, "weight_scale": read_scaled},
    "gptq": {"qweight": read_gptq},
    "awq": {"qweight": read_awq},
    "bitsandbytes": {"weight.absmax": read_table, "SCB": read_bytes},
    "fp8": {"weight_scale_inv": read_scaled, "weight_scale": read_scaled},
    "fbgemm_fp8": {"weight_scale": read_scaled},
}


def check_settings(settings: Config) -> None:
    """QkvError for a key of the settings that holds something else than it should; the key is named."""
    sizes: Callable[[Any], bool] = lambda v: isinstance(v, list) and all(type(n) is int and n > 0 for n in v)  # noqa: E731
    expected = Message("a list of whole numbers above 0")
    settings.part("sparsity_config").text("format", None)
    settings.part("transform_config").part("config_groups")
    settings.value("weight_block_size", None, expected, sizes)
    groups = settings.part("config_groups")
    weights = [groups.part(key).part("weights") for key in groups.values]
    for rows in (settings, *weights):
        rows.count("num_bits", None)
        rows.count("bits", None)
        rows.whole("group_size", None, -1, 1 << 24, null=True)
        rows.value("block_structure", None, expected, sizes)
        rows.value("type", None, Message("int or float"), lambda v: v in ("int", "float"))
    for rows in (settings, *map(groups.part, groups.values)):
        rows.text("format", None)
    if lacking := next((key for key, group in groups.values.items() if group is None), ""):
        raise groups.error(lacking, None, Message("an object with keys"))


def find_unreadable(settings: Mapping[str, Any]) -> str:
    """What of a method's settings is not read: `key = value`, or the empty string."""
    groups = list((settings.get("config_groups") or {}).values())
    weights = [g.get("weights") or {} for g in groups]
    wrong = {
        "compressed-tensors": [
            *(("format", f) for f in (settings.get("format", "dense"), *(g.get("format") or "dense" for g in groups))
              if f not in FORMATS),
            *(("num_bits", w.get("num_bits")) for w in weights if w and w.get("num_bits") not in (4, 8)),
            *(("sparsity_config.format", s) for s in [(settings.get("sparsity_config") or {}).get("format", "dense")]
              if s != "dense"),
            *(("transform_config", "…") for _ in [0] if (settings.get("transform_config") or {}).get("config_groups")),
        ],
        "gptq": [(key, settings[key]) for key, known in (
            ("bits", (2, 4, 8)), ("checkpoint_format", ("gptq", "gptq_v2")), ("pack_dtype", ("int32",)))
            if settings.get(key) not in (None, *known)],
        "awq": [(key, settings[key]) for key, known in (
            ("bits", (4,)), ("w_bit", (4,)), ("version", ("gemm", "GEMM")), ("zero_point", (True,)))
            if settings.get(key) not in (None, *known)],
    }
    return next((f"{key} = {value}" for key, value in wrong.get(str(settings.get("quant_method")), [])), "")


def unpack_tensors(
    tensors: Mapping[str, Any], settings: Mapping[str, Any], where: Path
) -> tuple[dict[str, Any], list[str]]:
    """The tensors with each packed matrix under its plain name, and the names that say nothing: biases of zeros.

    Raises:
        QkvError: a method, or a setting of one, that is not read; parts that are missing or do not fit one another.
    """
    check_settings(Config(dict(settings), f"{where}: {SETTINGS}"))
    method, found = str(settings.get("quant_method")), dict(tensors)
    unread = find_unreadable(settings) if all(hasattr(t, "shape") for t in found.values()) else "pytorch_model.bin"
    if method not in METHODS or unread:
        raise QkvError("{where}: its weights are quantised by {method} {unread}, which is not read (read are: {known}; "
                       "integers of 4 and 8 bits, fp8, nf4 and fp4). Take the release without quantisation, or load it "
                       "with the library that wrote it and save it dequantised", code="quantised", where=where,
                       method=method, unread=f"({unread})" if unread else "", known=", ".join(METHODS))
    zeros: list[str] = []
    for part, read in METHODS[method].items():
        for name in [n for n in tensors if n.endswith(f".{part}") and n in found]:
            module = name.removesuffix(f".{part}")
            found[f"{module}.weight"] = read(Module(found, module, settings, where))
            bias = tensors.get(f"{module}.bias")  # some writers give every layer one
            if bias is not None and method in ("gptq", "awq") and not bool(bias().any()):
                zeros.append(f"{module}.bias")
    return {n: read for n, read in found.items() if not ACTIVATIONS.fullmatch(n)}, zeros


def refuse_transposed(slots: Iterable[Slot], tensors: Mapping[str, Any]) -> None:
    """QkvError for a packed matrix that its family stores the other way round: who packed it chose the way."""
    for slot in slots:
        packed = [t for t in slot.theirs if isinstance(tensors.get(t), Quantized)]
        if packed and "flip" in slot.ops:
            raise QkvError("{name}: quantised matrices of a family that stores them transposed are not read; take the "
                           "release without quantisation", code="quantised", name=packed[0])
