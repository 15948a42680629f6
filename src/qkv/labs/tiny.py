"""Small models for labs, who influences whom in them, a short training, a clock.

Letters: B batch, T positions, D width, L layers.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qkv
from qkv import spec as parts
from qkv.core.cache import Static
from qkv.labs.lab import Tell, ignore
from qkv.lens.taps import use_tracer


@dataclass(frozen=True)
class Tiny:
    """A small model of one stack, said in few words; `model` builds it in fp64, where equal means equal."""

    mask: Literal["causal", "full", "prefix"] = "causal"
    layers: int = 2
    width: int = 32
    heads: int = 4
    groups: int = 0  # 0: as many as heads
    ffn: int = 0  # 0: four times the width
    norm: Literal["pre", "post", "none"] = "pre"
    residual: Literal["serial", "none"] = "serial"
    positions: Literal["learned", "sinusoid", "none"] = "learned"
    vocabulary: int = 32
    context: int = 64
    scale: float | None = None
    head: Literal["tied", "untied"] = "untied"

    @property
    def spec(self) -> qkv.Spec:
        """The spec."""
        norm = parts.Norm()
        attn = parts.Attention(
            self.heads, self.groups or self.heads, self.width // self.heads, parts.Mask(self.mask), scale=self.scale
        )
        block = parts.Block(
            attn, parts.Ffn(self.ffn or 4 * self.width, "gelu"), residual=self.residual,
            norm_in=norm if self.norm == "pre" else None, norm_sum=norm if self.norm == "post" else None,
        )
        table = None if self.positions == "none" else parts.Table(self.positions, self.context)
        stack = parts.Stack(
            self.width, (block,) * self.layers, positions=table, context=self.context,
            final_norm=norm if self.norm == "pre" else None,
        )
        side: dict[str, Any] = {"encoder" if self.mask == "full" else "decoder": stack}
        return parts.Spec(self.vocabulary, head=parts.Head(self.head), init=parts.Init("xavier"), **side)

    def model(self, seed: int, dtype: torch.dtype = torch.float64) -> qkv.Model:
        """The model with its first weights, in fp64 unless it is to be trained."""
        model = qkv.build(self.spec, seed=seed)
        model.core.to(dtype)
        return model


def load_fp64(name: str) -> qkv.Model:
    """A bundled model in fp64."""
    model = qkv.load(name, device="cpu", dtype="fp32")
    model.core.double()
    return model


def draw(seed: int, *shape: int, below: int = 32) -> Tensor:
    """Random ids."""
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


def guesses(model: qkv.Model, ids: Tensor) -> Tensor:
    """The logits [B, T, V] of a model with a head."""
    logits = model(ids).logits
    assert logits is not None
    return logits


class Ears:
    """Hears what taps carry without cutting the graph, so that one can ask for gradients between any two of them."""

    needs_eager_attention = False

    def __init__(self, ends: tuple[str, ...]) -> None:
        self.ends, self.first, self.last = ends, dict[str, Tensor](), dict[str, Tensor]()

    def tap(self, module: nn.Module, name: str, x: Tensor) -> Tensor:
        path = f"{module.path}.{name}" if module.path else name  # pyright: ignore[reportUnknownMemberType]
        if path.endswith(self.ends):
            self.first.setdefault(path, x)
            self.last[path] = x
        return x


def influence(model: qkv.Model, ids: Tensor, seed: int = 0) -> Tensor:
    """How far each state depends on each: |d (layer, token) / d (layer, token)|, [L+1, T, L+1, T], 0 where not at all.

    The gradient of a random direction of the state, so that a zero is a zero of the whole Jacobian (but by a fluke).
    Layer 0 is the embedding. `ids` is one row [1, T].
    """
    ears = Ears(("embed", "resid_out"))
    with use_tracer(ears):
        model(ids)
    sources, targets = list(ears.first.values()), list(ears.last.values())  # each 1 T D
    count, tokens, size = len(sources), ids.shape[1], sources[0].shape[-1]
    found = torch.zeros(count, tokens, count, tokens, dtype=torch.float64)
    way = torch.randn(size, dtype=targets[0].dtype, generator=torch.Generator().manual_seed(seed))
    for layer, target in enumerate(targets):
        for at in range(tokens):
            grads = torch.autograd.grad(target[0, at] @ way, sources, retain_graph=True, allow_unused=True)
            for source, grad in enumerate(grads):
                if grad is not None:
                    found[layer, at, source] = grad[0].norm(dim=-1)
    return found


def fit(
    model: qkv.Model, batch: Callable[[int], tuple[Tensor, Tensor]], *, steps: int, lr: float = 1e-3, warm: int = 50,
    tell: Tell = ignore,
) -> float:
    """Train a model in place by AdamW (`warm` steps of warm-up, then a straight line to 0); the last loss.

    `batch(step)` gives ids [B, T] and labels [B, T], -100 where nothing is asked. Frozen parameters stay as they are.
    """
    optimiser = torch.optim.AdamW(model.core.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    loss = torch.zeros(())
    for step in range(steps):
        rate = lr * min((step + 1) / max(1, warm), 1 - step / steps)
        for group in optimiser.param_groups:
            group["lr"] = rate
        ids, labels = batch(step)
        logits = guesses(model, ids)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.core.parameters(), 1.0)
        optimiser.step()
        if step % 100 == 0:
            tell(f"step {step} of {steps}, loss {loss.item():.3f}")
    return float(loss.detach())


def clock(do: Callable[[], object], times: int = 5) -> float:
    """The median milliseconds of a call, after one to warm up."""
    do()
    took: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        do()
        took.append((time.perf_counter() - began) * 1e3)
    return statistics.median(took)


@torch.no_grad()
def pace(model: qkv.Model, context: int, seed: int = 0) -> tuple[float, float]:
    """Milliseconds to read `context` tokens in one pass, and to write one token after them with the cache."""
    core, stack = model.core.eval(), model.core.decoder
    ids = draw(seed, 1, context, below=model.spec.vocabulary)
    cache = Static(len(stack.layers), capacity=context + 1)

    def run_prefill() -> None:
        cache.truncate(0)
        core.hidden(ids, cache=cache, mode="prefill")

    def run_decode() -> None:
        cache.truncate(context)
        core(ids[:, -1:], cache=cache, mode="decode")

    return clock(run_prefill, 3), clock(run_decode, 5)


def encode_texts(texts: Sequence[str], words: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Ids [B, T] of texts whose words stand between spaces, and the word after each; -100 where a text has ended."""
    rows = [torch.tensor([words.index(word) for word in text.split()]) for text in texts]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    after = nn.utils.rnn.pad_sequence([row[1:] for row in rows], batch_first=True, padding_value=-100)
    return ids[:, : after.shape[1] + 1], F.pad(after, (0, 1), value=-100)


def draw_repeats(
    seed: int, rows: int = 32, length: int = 24, sizes: tuple[int, int] = (5, 12)
) -> tuple[Tensor, Tensor]:
    """Segments of 5 to 12 random symbols (of 16), said again and again up to `length` + 1; asked from the second time.

    A size for each row, so that no fixed distance solves it: one must find what followed the same symbols before.
    """
    luck = torch.Generator().manual_seed(seed)
    size = torch.randint(sizes[0], sizes[1] + 1, (rows, 1), generator=luck)  # B 1
    place = torch.arange(length + 1)[None]
    whole = torch.randint(0, 16, (rows, sizes[1]), generator=luck).gather(1, place % size)  # B T+1
    return whole[:, :-1], torch.where(place[:, 1:] >= size, whole[:, 1:], -100)
