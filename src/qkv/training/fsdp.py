"""Each process keeps a part of every weight, gradient and optimiser state: PyTorch's FSDP2 around the loss.

Its checkpoints are PyTorch's distributed ones in safetensors, a file a process, read on any number of processes. Only
the plan of who writes what travels between the processes as pickle, as PyTorch sends it; on disk nothing is pickled.
Next: loop.py.
"""

import copy
import json
import logging
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from qkv.core.model import Stack, Transformer
from qkv.data.collate import Batch
from qkv.errors import QkvError
from qkv.files import fsync_path, to_json, write_text_file
from qkv.messages import join
from qkv.training import tensor_parallel
from qkv.training.distributed import Ranks, watch_peers
from qkv.training.losses import step_loss

if TYPE_CHECKING:
    from qkv.training.settings import Settings

ALONE = ("ema", "scheduled_sampling")  # settings that need whole weights in each process


class Sharded(nn.Module):
    """A core whose blocks and whose rest are each gathered for their part of the loss only; the loss is its forward."""

    def __init__(self, core: Transformer, settings: "Settings") -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        super().__init__()
        refuse_unsupported(settings, core)
        self.core, cut = copy.deepcopy(core), settings.tensor_parallel
        mesh = init_device_mesh(core.embed.weight.device.type, (dist.get_world_size() // cut, cut),
                                mesh_dim_names=("data", "tensor"))
        self.mesh = mesh["tensor"]
        self.norms = tensor_parallel.parallelize(self.core, self.mesh) if cut > 1 else []
        # it warns that weights cut twice are gathered in two steps, as they must be
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        blocks = [block for m in self.core.modules() if isinstance(m, Stack) for block in m.layers]
        for part in (*blocks, self):
            fully_shard(part, mesh=mesh["data"])
        for part in self.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(1.0)  # a step's loss is a sum over its tokens, divided once
                part.set_force_sum_reduction_for_comms(True)  # gloo knows no other in fp32

    def forward(self, batch: Batch, **how: Any) -> tuple[Tensor, Tensor | None]:
        """As losses.step_loss; weights that met no token get zeros, for all processes must send the same."""
        loss, busy = step_loss(self.core, batch, **how)
        own = [p for p in self.core.parameters() if p.requires_grad and not is_part(p)]
        return loss + 0 * sum(p.sum() for p in own), busy

    def sum_gradients(self) -> None:
        """Sum the gradients of weights of which each process of a layer saw a part."""
        tensor_parallel.sum_gradients(self.norms, self.mesh.get_group())

    @torch.no_grad()
    def gather(self, core: Transformer) -> None:
        """Put the whole weights and buffers into `core`; all processes call it."""
        mine = dict((*self.core.named_parameters(), *self.core.named_buffers()))
        with watch_peers():
            for name, tensor in (*core.named_parameters(), *core.named_buffers()):
                tensor.copy_(gather_tensor(mine[name].detach()))


def refuse_unsupported(settings: "Settings", core: Transformer) -> None:
    """Refuse what sharded weights cannot do yet."""
    if not core.spec.has_blocks:
        raise QkvError("training.shard: an LSTM has no blocks to shard; remove it")
    asked = [f"training.{key}" for key in ALONE if getattr(settings, key)]
    asked += [] if settings.optimizer in ("adam", "adamw") else [f"training.optimizer={settings.optimizer}"]
    if asked:
        raise QkvError("training.shard does not work with {asked} yet: remove one of them", asked=join(", ", asked))


def is_part(tensor: Tensor) -> bool:
    """Whether a tensor is one process's part of a larger one."""
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def gather_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor of which each process has a part; a collective where that is so."""
    return tensor.full_tensor() if is_part(tensor) else tensor  # type: ignore[attr-defined]


def group_by_mesh(tensors: Iterable[Tensor]) -> list[list[Any]]:
    """Tensors that may be computed with together: whole ones, and those that the same processes have parts of."""
    found: dict[Any, list[Any]] = {}
    for tensor in tensors:
        found.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    return list(found.values())


def measure_norm(grads: Iterable[Tensor]) -> Tensor:
    """The norm of all gradients together; a collective where processes have parts of them."""
    norms = [gather_tensor(nn.utils.get_total_norm(some)) for some in group_by_mesh(grads) or [[]]]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def cut_like(own: Tensor, tensor: Tensor) -> Tensor:
    """A whole tensor cut as `own` is."""
    from torch.distributed.tensor import distribute_tensor

    if not is_part(own) or is_part(tensor) or tensor.shape != own.shape:
        return tensor
    place: Any = own
    return distribute_tensor(tensor.to(own.device), place.device_mesh, place.placements, src_data_rank=None)


def write_parts(pointer: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any], ranks: Ranks) -> None:
    """A checkpoint as a folder, and the JSON file `pointer` that names it; whole or not at all.

    All processes call it. The old folder goes only after the new one is named.

    Raises:
        QkvError: the disk is full or not writable; the checkpoint before it is whole.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    place = pointer.with_name(f"{pointer.stem}-{state['progress']['step']}")
    aside = place.with_name(f".{place.name}")
    with ranks.barrier_on_error(), explain_save_errors(place):
        if ranks.first:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
    with explain_save_errors(place):  # PyTorch reports an error of one process to all
        dcp.save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(aside), save_distributed=True))
    with ranks.barrier_on_error(), explain_save_errors(place):
        if ranks.first:
            for file in (*aside.iterdir(), aside):
                fsync_path(file)
            shutil.rmtree(place, ignore_errors=True)
            os.replace(aside, place)
            files = {file.name: file.stat().st_size for file in place.iterdir()}
            write_text_file(pointer, to_json({"folder": place.name, "files": files, **state}))
            for old in pointer.parent.glob(f"{pointer.stem}-*"):
                if old != place:
                    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def explain_save_errors(place: Path) -> Iterator[None]:
    """Says what a failure to write a checkpoint means, and what to do."""
    from torch.distributed.checkpoint import CheckpointException

    try:
        yield
    except (OSError, CheckpointException) as e:
        cause = min(e.failures.items())[1][0] if isinstance(e, CheckpointException) else e
        raise QkvError("{place}: could not be saved ({cause}); the previous checkpoint is intact. Make room and run "
                       "again with --resume auto", place=place, cause=str(cause)[:300]) from e


def delete_parts(pointer: Path) -> None:
    """Delete a checkpoint and its folder, if there is one."""
    pointer.unlink(missing_ok=True)
    for old in pointer.parent.glob(f"{pointer.stem}-*"):
        shutil.rmtree(old, ignore_errors=True)


def read_parts(pointer: Path, core: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the JSON of a checkpoint; of what has a weight's shape, each process reads its part of `core`'s.

    Raises:
        QkvError: the folder that `pointer` names is not a whole checkpoint.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    own = dict((*core.named_parameters(), *core.named_buffers()))
    try:
        state = json.loads(pointer.read_text(encoding="utf-8"))
        folder = pointer.with_name(state["folder"])
        for name, size in state["files"].items():  # without one of them PyTorch reads smaller weights
            if (found_size := (folder / name).stat().st_size) != size:
                raise ValueError(f"{name} has {found_size} bytes, expected {size}")
        reader = HuggingFaceStorageReader(str(folder))
        found: dict[str, Tensor] = {}
        for name, kind in reader.read_metadata().state_dict_metadata.items():
            assert isinstance(kind, TensorStorageMetadata)  # in safetensors there is nothing else
            weight = own.get(name.partition(":")[2])
            if weight is not None and weight.shape == kind.size:
                found[name] = torch.empty_like(weight.detach())
            else:
                found[name] = torch.empty(kind.size, dtype=kind.properties.dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process reads what several wrote
            dcp.load(found, storage_reader=reader, no_dist=not dist.is_initialized())
        return found, state
    except (OSError, ValueError, KeyError, dcp.CheckpointException) as e:
        raise QkvError("{pointer}: not a complete checkpoint of a run ({e}); delete it to start a new run",
                       pointer=pointer, e=str(e)[:300]) from e
