"""First weights, one table: Glorot & Bengio 2010 as in the 2017 Transformer, or plain normal (Radford et al. 2019)."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qkv.core.experts import ExpertLinear, Experts
from qkv.core.model import Transformer
from qkv.core.norm import Norm

DRAWS = {nn.init.kaiming_uniform_, nn.init.normal_, nn.init.uniform_, Tensor.normal_, Tensor.uniform_}


class SkipDraws(TorchFunctionMode):
    """Leaves every tensor as it is where torch's layers would draw it."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        return (args[0] if args else given["tensor"]) if func in DRAWS else func(*args, **given)


@contextmanager
def build_on_meta() -> Iterator[None]:
    """Modules made within have shapes and no memory; a draw there would import torch._dynamo, for over a second."""
    with torch.device("meta"), SkipDraws():
        yield


def allocate(core: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Give modules made on the meta device memory with nothing in it; `to_empty` would import all of sympy."""
    core._apply(  # pyright: ignore[reportPrivateUsage]
        lambda t: torch.empty(t.shape, dtype=dtype if t.is_floating_point() else t.dtype, device=device)
    )


def initialise(core: Transformer, seed: int = 0) -> None:
    """Draw every weight of `core` from its spec's `Init`, in a fixed order from `seed`; biases 0, norms 1."""
    init, generator = core.spec.init, torch.Generator().manual_seed(seed)
    layers = sum(len(s.blocks) for s in (core.spec.encoder, core.spec.decoder) if s)
    width = core.spec.stack.width
    with torch.no_grad():
        for name, module in core.named_modules():
            if isinstance(module, Norm):
                module.weight.fill_(1.0 - module.spec.offset)
                if module.spec.kind == "layer":
                    module.bias.zero_()
            elif isinstance(module, nn.Embedding):
                module.weight.normal_(0.0, width**-0.5 if init.kind == "xavier" else init.std, generator=generator)
            elif isinstance(module, Experts) and module.spec.balance == "bias":
                module.bias.zero_()
            elif isinstance(module, nn.Linear | ExpertLinear):
                if module.weight is not core.embed.weight:
                    writes = name.endswith((".out", ".down")) and init.depth_scaled
                    std = init.std / math.sqrt(2 * layers) if writes else init.std
                    linear(module.weight, init.kind, std, generator)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    module.bias.zero_()
        generator.manual_seed(seed)
        for module in core.modules():
            if draw := getattr(module, "draw_weights", None):  # a part from outside the core
                draw(generator)


def linear(weight: Tensor, kind: str, std: float, generator: torch.Generator) -> None:
    """Matrices [..., out, in]: uniform within sqrt(6 / (in + out)), or normal with `std`."""
    if kind == "xavier":
        bound = math.sqrt(6.0 / (weight.shape[-2] + weight.shape[-1]))
        weight.uniform_(-bound, bound, generator=generator)
    else:
        weight.normal_(0.0, std, generator=generator)
