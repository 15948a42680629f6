"""Several processes train one model on PyTorch's own collectives: gloo between CPUs, NCCL between GPUs. Next: loop.py.

A step of n ranks takes the micro-batches of a step of one rank, rank r those numbered r, r + n, ...; each keeps its
number, so that it has the same dropout wherever it is computed.
"""

import os
import subprocess
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from tempfile import TemporaryFile
from typing import IO

import torch
import torch.distributed as dist
from torch import nn

from qkv.errors import QkvError
from qkv.messages import Message

PATIENCE = timedelta(hours=6)  # ranks wait this long for one that evaluates; a rank that dies is noticed at once
GRACE = 20  # seconds in which the other processes should end by themselves, on a busy machine too; nothing is lost then
WORDS = 2000  # bytes of an error that another rank hears of
NEEDED = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")  # what torchrun passes to each process
GONE = Message("another process of this run ended early")


class Lost(QkvError):
    """Another rank is gone; its own message says why."""

    exit_code = 1


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together. Every method is a collective: all ranks call it, in one order.

    One process alone calls none of them.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this rank writes, reports and evaluates."""
        return self.rank == 0

    def all_reduce_sum(self, numbers: Sequence[float]) -> list[float]:
        """Each number summed over the ranks."""
        return self.all_reduce(numbers, dist.ReduceOp.SUM)

    def all_reduce_max(self, numbers: Sequence[float]) -> list[float]:
        """The largest of each number over the ranks."""
        return self.all_reduce(numbers, dist.ReduceOp.MAX)

    def broadcast_numbers(self, *numbers: float) -> list[float]:
        """The first rank's numbers, on all ranks."""
        return self.all_reduce_max(numbers if self.first else [-float("inf")] * len(numbers))

    def all_reduce(self, numbers: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        """Numbers reduced over the ranks in fp64, on the CPU whatever the model is on."""
        both = torch.tensor(numbers, dtype=torch.float64)
        with watch_peers():
            dist.all_reduce(both, operation)
        return both.tolist()

    def all_reduce_gradients(self, weights: Sequence[nn.Parameter], loss: float) -> float:
        """Sum all gradients over the ranks, in place, and give the sum of their losses.

        A NaN or an infinity anywhere spoils the sums everywhere, so all ranks find it in the same step.
        """
        # one flat all_reduce and not DistributedDataParallel: its overlap needs a module's forward (ours is a loss over
        # encode and hidden), gains nothing where the cores are busy, and it gives zeros to weights that met no token
        loss, *counts = self.all_reduce_sum([loss, *(p.grad is not None for p in weights)])
        met = [p for p, count in zip(weights, counts, strict=True) if count]
        for dtype in dict.fromkeys(p.dtype for p in met):
            of = [p for p in met if p.dtype == dtype]
            flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in of])
            with watch_peers():
                dist.all_reduce(flat)
            for p, part in zip(of, flat.split([p.numel() for p in of]), strict=True):
                p.grad = part.view_as(p)
        return loss

    def broadcast(self, core: nn.Module) -> None:
        """Give all ranks the first one's weights and buffers."""
        with watch_peers(), torch.no_grad():
            for tensor in (*core.parameters(), *core.buffers()):
                dist.broadcast(tensor.detach(), 0)

    def assert_same(self, what: Message, value: str) -> None:
        """Raise a QkvError on all ranks unless they hold the same value."""
        sign = zlib.crc32(value.encode())
        high, low = self.all_reduce_max([sign, -sign])
        if high != -low:
            raise QkvError("training: the {size} processes differ in {what} (here, process {rank}: {value}); give all "
                           "the same files, folder and settings", size=self.size, what=what, rank=self.rank,
                           value=value[:200])

    @contextmanager
    def barrier_on_error(self) -> Iterator[None]:
        """What the first rank does while the others wait, or all do: an error of one is raised on all, in its words."""
        error: Exception | None = None
        try:
            yield
        except Lost:
            raise
        except Exception as e:
            error = e
        # the first that did; or `size`
        failed = self.size - int(self.all_reduce_max([self.size - self.rank if error else 0])[0])
        if failed < self.size:
            what = str(error) if isinstance(error, QkvError) else f"process {failed}: {type(error).__name__}: {error}"
            own = what.encode()[:WORDS] if self.rank == failed else b""
            said = bytes(map(int, self.all_reduce_sum([*own, *[0] * (WORDS - len(own))]))).rstrip(b"\0")
            told = said.decode("utf-8", "ignore")  # the language of the first that failed
            raise error or QkvError(told)


@contextmanager
def watch_peers() -> Iterator[None]:
    """Turns the failure of a collective into Lost."""
    try:
        yield
    except RuntimeError as e:
        raise Lost("training: {gone} ({e}); --resume auto continues", gone=GONE, e=str(e).splitlines()[0][:120]) from e


def current_ranks() -> Ranks:
    """The ranks of PyTorch's process group, or one alone."""
    on = dist.is_available() and dist.is_initialized()
    return Ranks(dist.get_rank(), dist.get_world_size()) if on else Ranks()


@contextmanager
def join_ranks(device: str = "auto") -> Iterator[Ranks]:
    """Among the processes that torchrun started, each on its own GPU if there are any."""
    if current_ranks().size > 1 or not all(key in os.environ for key in NEEDED) or os.environ["WORLD_SIZE"] == "1":
        yield current_ranks()
        return
    join_group(device, int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))
    try:
        yield current_ranks()
    finally:
        dist.destroy_process_group()


def join_group(device: str, local: int, address: str = "env://", *, rank: int = -1, size: int = -1) -> None:
    """Wait for the other ranks, with the GPU numbered `local` where they compute on GPUs."""
    backend = "gloo"
    if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()):
        if local >= torch.cuda.device_count():
            raise QkvError("training: process {local} finds {device_count} GPUs here; start one per GPU", local=local,
                           device_count=torch.cuda.device_count())
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    elif device == "mps" or (device == "auto" and torch.backends.mps.is_available()):
        raise QkvError("training: several processes need CPUs or NVIDIA GPUs; add --device cpu")
    # its functions take the group that stands when they are first imported as their default and never let go of it; the
    # group's threads then outlive it and can abort the process as it ends
    from torch.distributed.nn import functional as _  # noqa: F401

    with watch_peers():
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        if restarts == "0" or os.environ.get("LOCAL_WORLD_SIZE") != os.environ["WORLD_SIZE"]:
            dist.init_process_group(backend, address, timeout=PATIENCE, world_size=size, rank=rank)
            return
        # torchrun keeps its store when it starts all again, and in it the addresses of those that are gone
        store, rank, size = next(dist.rendezvous(address, rank, size))
        dist.init_process_group(backend, store=dist.PrefixStore(f"restart {restarts}", store), timeout=PATIENCE,
                                world_size=size, rank=rank)


@contextmanager
def start_ranks(count: int, command: Sequence[str], *, device: str = "auto") -> Iterator[Ranks]:
    """This process as the first of `count` on this machine; the others run `command`, which must come to `join_ranks`.

    Raises:
        Lost: one of them ended early; the error has its last output and its exit code.
    """
    # it takes a free port now; the process group below finds it there, as both are "multi-tenant"
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, multi_tenant=True)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(count)}
    said = [TemporaryFile() for _ in range(1, count)]  # noqa: SIM115, closed below
    children: list[subprocess.Popen[bytes]] = []
    try:
        for rank, file in enumerate(said, 1):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}
            # in a separate session: Ctrl-C reaches only the first rank, which informs the others after the step
            child = subprocess.Popen(
                command, env={**os.environ, **address, **own}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=file, start_new_session=True,
            )
            children.append(child)
        join_group(device, 0, f"tcp://127.0.0.1:{store.port}", rank=0, size=count)
        yield current_ranks()
    except Lost as e:
        leave_group(children)
        raise find_cause(children, said) or e from e
    finally:
        leave_group(children)
        for file in said:
            file.close()


def leave_group(children: Iterable[subprocess.Popen[bytes]]) -> None:
    """End the process group, and the other processes that do not end by themselves then."""
    if dist.is_initialized():
        dist.destroy_process_group()
    for child in children:
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def find_cause(children: Sequence[subprocess.Popen[bytes]], said: Sequence[IO[bytes]]) -> Lost | None:
    """The error of the process that failed itself, if there is one."""
    for rank, (child, file) in enumerate(zip(children, said, strict=True), 1):
        file.seek(0)
        text = file.read().decode("utf-8", "replace").strip()
        if child.returncode and GONE not in text:
            code = child.returncode if child.returncode > 0 else 128 - child.returncode
            lines = text.splitlines() or ["it said nothing"]
            heads = "error:", Message("error:").to("zh")
            said_last = next((line for line in lines if line.startswith(heads)), lines[-1])
            error = Lost("training: process {rank} ended with code {exit}: {said_last}; --resume auto continues",
                         rank=rank, exit=code, said_last=said_last[:300])
            error.exit_code = code
            return error
    return None
