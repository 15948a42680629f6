"""What a forward pass is given, checked before it begins: numbers outside a table end the process on some devices."""

import torch
from torch import Tensor

from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.spec import Spec


def check_inputs(spec: Spec, ids: Tensor, inputs: Inputs) -> None:
    """QkvError where ids are no rows [B, T] of a vocabulary's numbers, or what stands beside them does not fit."""
    source = ids if inputs.source is None else inputs.source
    padding = inputs.padding_mask if inputs.source is None else inputs.source_padding_mask
    check_numbers("ids" if source is ids else "target", ids, spec.vocabulary)
    if source is not ids:
        check_numbers("source", source, spec.sources or spec.vocabulary)
        if len(source) != len(ids):
            raise QkvError("source: found {found} rows, expected {wanted} as in target", found=len(source),
                           wanted=len(ids))
    if padding is not None and (padding.dtype != torch.bool or padding.shape != source.shape):
        hint = Message("; ones and zeros become so by .bool()") if padding.shape == source.shape else Message()
        raise QkvError("padding: found {shape} of {dtype}, expected {wanted} of bool, True for real tokens{hint}",
                       shape=list(padding.shape), dtype=name_dtype(padding), wanted=list(source.shape), hint=hint)
    if inputs.segments is not None:
        if not spec.stack.segments:
            raise QkvError("segments: this model does not tell texts apart; call it without segments")
        check_numbers("segments", inputs.segments, spec.stack.segments, list(ids.shape))
    if inputs.prefix_len is not None:
        if spec.architecture != "prefix decoder":
            raise QkvError("prefix: this model is no prefix decoder; call it without prefix")
        check_numbers("prefix", inputs.prefix_len, ids.shape[1] + 1, [len(ids)])


def check_numbers(name: str, rows: Tensor, count: int, shape: list[int] | None = None) -> None:
    """QkvError where a tensor is no whole numbers from 0 to below `count`, in the shape given or in rows [B, T]."""
    found = list(rows.shape)
    fits = found == shape if shape else len(found) == 2 and rows.numel() > 0
    if not fits or rows.dtype == torch.bool or rows.is_floating_point() or rows.is_complex():
        row = rows.ndim == 1 and not shape
        hint = Message("; one row of ids is {name}[None]", name=name) if row else Message()
        raise QkvError("{name}: found {shape} of {dtype}, expected whole numbers {wanted}{hint}", name=name,
                       shape=found, dtype=name_dtype(rows), wanted=shape or Message("[rows, positions]"), hint=hint)
    if rows.is_meta or torch.compiler.is_compiling():
        return
    least, most = (int(number) for number in torch.aminmax(rows))
    if least < 0 or most >= count:
        raise QkvError("{name}: found the number {bad}, expected 0 to {last}", code="token-id", name=name,
                       bad=least if least < 0 else most, last=count - 1)


def name_dtype(x: Tensor) -> str:
    """The name of a tensor's kind of numbers, such as float32."""
    return str(x.dtype).removeprefix("torch.")
