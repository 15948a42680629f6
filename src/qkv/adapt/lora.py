"""LoRA (Hu et al. 2021): small matrices beside frozen ones, put on from outside by module name and merged away again.

A layer with an adapter computes x Wᵀ + scale · (x Aᵀ) Bᵀ with A [rank, in] and B [out, rank]. B begins at 0, so that
nothing changes before the first step. How it is stored: checkpoints/peft.py. Next: pack.py.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.adapt.onednn_linear import multiply
from qkv.errors import QkvError, nearest


@dataclass(frozen=True)
class Lora:
    """Which layers get an adapter, of what rank; its part counts alpha / rank. Rank 0: none, all weights learn."""

    rank: int = 0
    alpha: float = 16.0
    targets: tuple[str, ...] = ("*.attn.q", "*.attn.v")  # globs of module paths, as Hu et al. 2021 chose them
    also: tuple[str, ...] = ("labels.*",)  # globs of weights that learn in full beside them

    def __post_init__(self) -> None:
        if self.rank < 0 or self.alpha <= 0:
            raise QkvError("lora: found rank {rank} and alpha {alpha}, expected rank >= 0 and alpha > 0",
                           rank=self.rank, alpha=self.alpha)
        if not self.targets:
            raise QkvError("lora.targets: found no module, expected globs such as *.attn.q or layers.*.ffn.*")


class Adapted(nn.Linear):
    """A linear layer with an adapter beside it."""

    a: nn.Parameter
    b: nn.Parameter
    scale: float

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  the name that nn.Linear gives it
        return multiply(input, self.weight, self.bias) + self.scale * F.linear(F.linear(input, self.a), self.b)


def find_linears(core: nn.Module) -> dict[str, nn.Linear]:
    """The layers that can be adapted, by path: those within blocks that are asked for their output alone."""
    # a router and MLA's kv_up are read by their weight, and a head may share the embedding's
    apart = (".router", ".kv_up", ".shared_gate")
    return {
        name: m for name, m in core.named_modules()
        if isinstance(m, nn.Linear) and "layers." in name and not name.endswith(apart)
    }


def match_targets(core: nn.Module, targets: Sequence[str]) -> list[str]:
    """The paths that some glob of `targets` fits, each in the core's order; a glob may leave the beginning away.

    Raises:
        QkvError: a glob that fits nothing, with the nearest path.
    """
    known = find_linears(core)
    found = {t: [n for n in known if fnmatchcase(n, t) or fnmatchcase(n, f"*.{t}")] for t in targets}
    for target, names in found.items():
        if not names:
            ends = sorted({n.partition("layers.")[2].partition(".")[2] for n in known})
            raise QkvError("lora.targets: {target!r} matches no layer{hint} (in each block there are: {ends})",
                           target=target, hint=nearest(target.removeprefix("*."), ends), ends=", ".join(ends))
    every = {name for names in found.values() for name in names}
    return [name for name in known if name in every]


def attach(core: nn.Module, s: Lora, *, seed: int = 0) -> list[str]:
    """Freeze the core, put adapters beside the layers that `s` names, and let them (and `s.also`) learn; their paths.

    Raises:
        QkvError: a glob that fits no layer, or no weight.
    """
    names, generator = match_targets(core, s.targets), torch.Generator().manual_seed(seed)
    known = dict(core.named_parameters())
    for glob in s.also if s.also != Lora.also else ():
        if not any(fnmatchcase(name, glob) for name in known):
            raise QkvError("lora.also: {glob!r} matches no weight{hint}", glob=glob, hint=nearest(glob, known))
    for name, p in core.named_parameters():
        p.requires_grad_(any(fnmatchcase(name, glob) for glob in s.also))
    for name in names:
        layer = find_linears(core)[name]
        a = torch.empty(s.rank, layer.in_features)
        bound = math.sqrt(1 / layer.in_features)  # as PEFT draws it: Kaiming with a = √5
        a.uniform_(-bound, bound, generator=generator)
        attach_adapter(layer, a, torch.zeros(layer.out_features, s.rank), s)
    return names


def attach_adapter(layer: nn.Linear, a: Tensor, b: Tensor, s: Lora, scale: float | None = None) -> None:
    """Give a layer an adapter in place."""
    layer.__class__ = Adapted
    assert isinstance(layer, Adapted)
    layer.a, layer.b = (nn.Parameter(t.to(layer.weight)) for t in (a, b))
    layer.scale = s.alpha / s.rank if scale is None else scale


def find_adapters(core: nn.Module) -> dict[str, Adapted]:
    """The layers with an adapter, by path; empty where there are none."""
    return {name: m for name, m in core.named_modules() if isinstance(m, Adapted)}


def attach_stored(core: nn.Module, parts: Mapping[str, tuple[Tensor, Tensor, float]]) -> None:
    """Put stored adapters (A, B, scale) on the layers of the paths given.

    Raises:
        QkvError: there is no such layer, or an adapter of another size.
    """
    known = find_linears(core)
    for name, (a, b, scale) in parts.items():
        if name not in known:
            raise QkvError("the adapter is for {name!r}, which this model lacks{hint}", name=name,
                           hint=nearest(name, known))
        layer, rank = known[name], a.shape[0]
        if tuple(a.shape) != (rank, layer.in_features) or tuple(b.shape) != (layer.out_features, rank):
            fit = f"[rank, {layer.in_features}] and [{layer.out_features}, rank]"
            raise QkvError("{name}: the adapter is {shape} and {shape2}, expected {fit}: was it made for another "
                           "model?", name=name, shape=list(a.shape), shape2=list(b.shape), fit=fit)
        attach_adapter(layer, a, b, Lora(rank), scale)


@torch.no_grad()
def merge(core: nn.Module) -> int:
    """Add every adapter to its layer's weight and take it off; how many there were. Sums are made in at least fp32."""
    found = find_adapters(core)
    for layer in found.values():
        wide = torch.promote_types(layer.weight.dtype, torch.float32)
        delta = layer.scale * layer.b.to(wide) @ layer.a.to(wide)  # out in
        layer.weight.copy_(layer.weight.to(wide) + delta)
        del layer.a, layer.b
        layer.__class__ = nn.Linear  # type: ignore[assignment]
    core.requires_grad_(True)
    return len(found)
