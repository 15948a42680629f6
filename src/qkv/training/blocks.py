"""How the blocks of a core run while it learns: as they stand, compiled, or made again on the way back. Next: loop.py.

All blocks of one shape share one graph, and a second one serves every other length: the layer is no part of a graph.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qkv.core.dropout import no_dropout
from qkv.core.model import Block
from qkv.core.step import Step, active_tracer
from qkv.training.settings import Settings

Forward = Callable[[Tensor, Step], Tensor]


class Blocks:
    """The replacement of each block's forward pass within `learning`, and nowhere else."""

    def __init__(self, core: nn.Module, settings: Settings, device: torch.device, backend: str = "inductor") -> None:
        self.compiles = settings.compile == "blocks" or (settings.compile == "auto" and device.type == "cuda")
        self.fast: dict[Block, Forward] = {}
        for block in (m for m in core.modules() if isinstance(m, Block)):
            run: Forward = block.forward
            if self.compiles and not block.spec.moe:  # routers are listened to, and a graph hears nothing
                run = torch.compile(run, backend=backend)
            if settings.recompute == "blocks":
                run = recompute_block(run)
            if run != block.forward:
                self.fast[block] = run

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Within it blocks run in their fast way, unless something listens to the taps."""
        blocks = {} if active_tracer.get() else self.fast
        for block, run in blocks.items():
            block.forward = run  # type: ignore[method-assign]
        try:
            yield
        finally:
            for block in blocks:
                del block.forward


def recompute_block(run: Forward) -> Forward:
    """`run`, of which only its input is kept; on the way back it is made again, its dropout too (Chen et al. 2016)."""

    def call_block(x: Tensor, step: Step) -> Tensor:
        marks: list[Tensor] = []

        def replay_dropout(x: Tensor) -> Tensor:
            if step.drop is not no_dropout:
                if marks:
                    step.drop.set_state(marks[0])  # type: ignore[attr-defined]
                else:
                    marks.append(step.drop.get_state())  # type: ignore[attr-defined]
            return run(x, step)

        return checkpoint(replay_dropout, x, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]

    return call_block
