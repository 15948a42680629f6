"""Each process computes with some heads and some of the feed-forward width of every layer, by PyTorch's DTensor plans.

What a spec's parts are decides the plan, no family's name does: matrices that make heads or the feed-forward width are
cut by their rows, those that read them by their columns (Shoeybi et al. 2019, section 3). Norms, embeddings, experts
and the head are whole everywhere. fsdp.py shards what is left among the processes that read other batches.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from qkv import spec
from qkv.core.attention import Attention
from qkv.core.ffn import Ffn
from qkv.core.latent import Latent
from qkv.core.model import Stack, Transformer
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.training.distributed import watch_peers

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

ROWS = ("q", "k", "v", "q_up", "kv_up", "up", "gate", "relative")  # layers whose outputs are heads or ffn width
COLUMNS = ("out", "down")  # layers that read these


def parallelize(core: Transformer, mesh: "DeviceMesh") -> list[nn.Module]:
    """Cut the layers of a core among the processes of a mesh, in place; the norms that each process sees a part of.

    The gradients of these are sums over the mesh, which `sum_gradients` makes after the backward passes.

    Raises:
        QkvError: see refuse_uneven.
    """
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    refuse_uneven(core, mesh.size())
    norms = list[nn.Module]()
    for part in core.modules():
        if not isinstance(part, Attention | Latent | Ffn | Stack):
            continue
        names = dict(part.named_children())
        plan: dict[str, Any] = {name: ColwiseParallel() for name in ROWS if name in names}
        plan |= {name: RowwiseParallel() for name in COLUMNS if name in names}
        parallelize_module(part, mesh, plan)
        s: Any = part.spec
        if isinstance(part, Attention):
            part.spec = replace(s, heads=s.heads // mesh.size(), groups=s.groups // mesh.size())
            norms += [part.q_norm, part.k_norm] if s.qk_norm else []
        if isinstance(part, Latent):
            part.spec = replace(s, heads=s.heads // mesh.size())
            part.kv_down.register_forward_hook(partial(share_rotary_key, part.spec.kv_rank, mesh))
    return norms


def share_rotary_key(rank: int, mesh: "DeviceMesh", module: nn.Module, given: Any, x: Tensor) -> Tensor:
    """What a latent's first layer gives, whose rotary key serves the heads of all processes: its gradients are summed.

    The latent itself meets a layer that is cut by rows, which sums them.
    """
    from torch.distributed.tensor import DTensor, Partial, Replicate

    key = DTensor.from_local(x[..., rank:], mesh, (Replicate(),), run_check=False)
    return torch.cat((x[..., :rank], key.to_local(grad_placements=(Partial(),))), -1)


def sum_gradients(norms: Sequence[nn.Module], group: dist.ProcessGroup) -> None:
    """Sum the gradients of norms over the processes that each saw some of the heads."""
    for weight in (p for norm in norms for p in norm.parameters() if p.grad is not None):
        grad: Any = weight.grad
        with watch_peers():
            dist.all_reduce(grad.to_local(), group=group)


def refuse_uneven(core: Transformer, size: int) -> None:
    """Refuse what cannot be cut in so many parts.

    Raises:
        QkvError: heads, groups or a width that `size` does not divide; parts that need all heads in one place.
    """
    parts = [m.spec for m in core.modules() if size > 1 and isinstance(m, Attention | Latent | Ffn)]
    counts = {Message("heads"): [s.heads for s in parts if not isinstance(s, spec.Ffn)],
              Message("key/value groups"): [s.groups for s in parts if isinstance(s, spec.Attention)],
              Message("the width of the feed-forward network"): [s.width for s in parts if isinstance(s, spec.Ffn)]}
    for what, found in counts.items():
        if wrong := [n for n in found if n % size]:
            raise QkvError("training.tensor_parallel={size} does not divide {what} ({found})", size=size, what=what,
                           found=wrong[0])
    whole = {Message("ALiBi"): any(s.mask.alibi_heads for s in parts if isinstance(s, spec.Attention)),
             Message("a norm over all heads"): any(s.qk_norm and s.qk_normed == "together" for s in parts
                                                   if isinstance(s, spec.Attention)),
             Message("dropout within attention or the feed-forward network"): any(s.dropout for s in parts)}
    for what, has in whole.items():
        if has:
            raise QkvError("training.tensor_parallel does not work with {what} yet: remove one of them", what=what)
