"""A device of its own without one: fake tensors that refuse to meet tensors of the host, and a count of host reads.

PyTorch's fake tensors check the device of every operand, and their `meta` device needs no driver. What a value would
decide is answered with zeros, so programs run on as far as shapes carry them.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from qkv import cost
from qkv.core.model import Transformer
from qkv.spec import Spec, Stack

DEVICE = torch.device("meta")


def shorten(spec: Spec) -> Spec:
    """A spec with one block of each kind, at most two, in each stack."""
    def cut(stack: Stack | None) -> Stack | None:
        return stack and replace(stack, blocks=tuple(dict.fromkeys(stack.blocks))[:2])

    return replace(spec, encoder=cut(spec.encoder), decoder=cut(spec.decoder))


def move(core: Transformer) -> Transformer:
    """The core with fake weights on the device, shared where they were."""
    moved: dict[int, Any] = {}
    for module in core.modules():
        for table in (module._parameters, module._buffers):
            for name, old in table.items():
                if old is not None and id(old) not in moved:
                    new = torch.empty(old.shape, dtype=old.dtype, device=DEVICE)
                    moved[id(old)] = nn.Parameter(new) if isinstance(old, nn.Parameter) else new
                table[name] = None if old is None else moved[id(old)]
    return core


def zeros(shape: tuple[int, ...], kind: type) -> Any:
    return [zeros(shape[1:], kind) for _ in range(shape[0])] if shape else kind(0)


@contextmanager
def elsewhere(spec: Spec) -> Iterator[tuple[Transformer, list[str]]]:
    """A core of the spec on the device, and the reads of the host, as they come."""
    reads: list[str] = []
    make = torch.tensor

    def tensor(data: Any, *, dtype: torch.dtype | None = None, device: Any = None, **more: Any) -> Tensor:
        real = make(data, dtype=dtype, **more)  # which cannot be lifted to the device; shape and type can
        return real if device is None else torch.empty(real.shape, dtype=real.dtype, device=device)

    def read(name: str, answer: Any) -> Any:
        def heard(self: Tensor, *rest: Any, **more: Any) -> Any:
            reads.extend([name] if self.device == DEVICE else [])
            return answer(self, *rest, **more)

        return mock.patch.object(FakeTensor, name, heard)

    def places(self: Tensor, *, as_tuple: bool = False) -> Any:
        found = torch.empty(0, self.ndim, dtype=torch.long, device=self.device)
        return tuple(found.T) if as_tuple else found

    answers = {
        "tolist": lambda self: zeros(tuple(self.shape), float if self.is_floating_point() else int),
        "item": lambda self: 1, "__bool__": lambda self: False, "__int__": lambda self: 0,
        "__float__": lambda self: 0.0, "nonzero": places, "unique": lambda self: self.flatten()[:1],
    }  # fmt: skip
    core = cost.build_meta(shorten(spec))
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode())
        stack.enter_context(mock.patch.object(torch, "tensor", tensor))
        stack.enter_context(mock.patch.object(torch, "autocast", return_value=nullcontext()))  # knows no meta
        stack.enter_context(mock.patch.object(torch, "is_autocast_enabled", return_value=False))
        for name, answer in answers.items():
            stack.enter_context(read(name, answer))
        yield move(core), reads
