"""Which input words would move a logit most: its gradient with respect to each embedding, times that embedding.

A first-order answer, read off one backward pass: cutting (edge_ablation.py) measures what this estimates.
Letters: T tokens, S tokens that are read, D width.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from qkv.core.step import Inputs
from qkv.lens import resolve
from qkv.lens.recording import Recording
from qkv.lens.taps import Run, use_tracer
from qkv.messages import Message
from qkv.plots.forms import Bars, Drawn, Form


@dataclass(frozen=True)
class Saliency(Drawn):
    """For each token read: `times` [T], gradient · embedding, and `size` [T], the length of the gradient.

    `read` are those tokens, `goal` is the one whose logit it is.
    """

    token: int
    logit: float
    times: Tensor
    size: Tensor
    read: tuple[str, ...] = ()
    goal: str = ""

    def forms(self) -> tuple[Form, ...]:
        """A bar for each token read."""
        title = Message("gradient × input: what influences {goal}", goal=self.goal)
        return (Bars(title, self.read, self.times.tolist()),)


class EmbeddingLeaf:
    """Puts a leaf in the place of what goes into the first layer, so that a gradient arrives there."""

    needs_eager_attention = False

    def __init__(self, name: str) -> None:
        self.name, self.leaf = name, torch.empty(0)

    def tap(self, module: nn.Module, name: str, x: Tensor) -> Tensor:
        """Only the embedding's tap is changed, and its value stays."""
        path = getattr(module, "path", "")
        if (f"{path}.{name}" if path else name) == self.name:
            self.leaf = x = x.detach().requires_grad_()
        return x


def trace_gradient(
    t: Recording, pos: int | str = -1, token: int | str | None = None, *, row: int = 0, run: int | None = None
) -> Saliency:
    """How each input token (of the source, for an encoder-decoder) influences a logit after a position.

    Its tokens are read once more, with gradients, which weights do not get. Without `token` the likeliest one is taken.
    """
    resolve.require_head(t, "gradient")
    passed, side = resolve.find_run(t, run=run), "encoder." if t.core.spec.encoder and t.core.spec.decoder else ""
    slot, ear = resolve.find_position(t, pos, row=row, run=run), EmbeddingLeaf(f"{side}embed")
    read = resolve.find_run(t, side, run).ids[row : row + 1]  # 1 S
    with use_tracer(ear), torch.inference_mode(False), torch.enable_grad():
        given = rebuild_inputs(passed, row)
        given = replace(given, source=read.clone()) if side else given
        logits = t.core(passed.ids[row : row + 1].clone(), given).logits[0, slot]
        wanted = int(logits.argmax()) if token is None else resolve.find_token(t, token)
        (grad,) = torch.autograd.grad(logits[wanted], ear.leaf)
    times, size = (grad * ear.leaf.detach()).sum(-1)[0], grad.norm(dim=-1)[0]  # each S
    words = tuple(resolve.show_tokens(t, read[0].tolist()))
    return Saliency(wanted, float(logits[wanted].detach()), times, size, words, resolve.show_token(t, wanted))


def rebuild_inputs(passed: Run, row: int) -> Inputs:
    """The inputs of one row of a run's first call: the length of its free prefix, and the blank its words filled."""
    first = passed.calls[0]
    seen = next((s for rule, s in first.mask.items() if rule.kind == "prefix"), None)
    if seen is None:
        return Inputs()
    free = first.ids.shape[1]
    if seen.bias is not None:
        visible = seen.bias[row if len(seen.bias) > 1 else 0, 0, 0]  # S, what the first token sees
        free = int((visible > torch.finfo(visible.dtype).min / 2).sum())
    place = passed.place
    blank = torch.where(place.blank > 0, place.token, -1)[row : row + 1]  # 1 T
    prefix = torch.tensor([free], device=first.ids.device)
    return Inputs(prefix_len=prefix, blank_pos=blank if bool((blank >= 0).any()) else None)
