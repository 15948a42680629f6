"""Which input words would move a logit most: its gradient with respect to each embedding, times that embedding.

A first-order answer, read off one backward pass: cutting (edge_ablation.py) measures what this estimates.
Letters: T tokens, D width.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.errors import QkvError
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


def input_gradient(
    core: Transformer, ids: list[int], *, source: list[int] | None = None, pos: int = -1, token: int | None = None,
    given: Inputs | None = None,
) -> Saliency:
    """How each input token (of the source, for an encoder-decoder) influences a logit after position `pos`.

    Without `token` the likeliest one is taken; `given` holds a free prefix and its blank. Weights get no
    gradients.
    """
    both = bool(core.spec.encoder and core.spec.decoder)
    if core.spec.head is None or both != (source is not None):
        raise QkvError("gradient: this needs a head, and source= exactly where an encoder reads for a "
                       "decoder")
    ear, device = EmbeddingLeaf("encoder.embed" if both else "embed"), core.embed.weight.device
    with use_tracer(ear), torch.inference_mode(False), torch.enable_grad():
        given = given or Inputs()
        if source is not None:
            given = replace(given, source=torch.tensor([source], device=device))
        logits = core(torch.tensor([ids], device=device), given).logits[0, pos]
        wanted = int(logits.argmax()) if token is None else token
        (grad,) = torch.autograd.grad(logits[wanted], ear.leaf)
    return Saliency(wanted, float(logits[wanted].detach()), (grad * ear.leaf.detach()).sum(-1)[0], grad.norm(dim=-1)[0])


def trace_gradient(
    t: Recording, pos: int | str = -1, token: int | str | None = None, *, row: int = 0, run: int | None = None
) -> Saliency:
    """The same for the text of a trace: its tokens are read once more, with gradients."""
    passed, side = resolve.find_run(t, run=run), "encoder." if t.core.spec.encoder and t.core.spec.decoder else ""
    found = input_gradient(
        t.core, passed.ids[row].tolist(), source=resolve.find_run(t, side, run).ids[row].tolist() if side else None,
        pos=resolve.find_position(t, pos, row=row, run=run), given=rebuild_inputs(passed, row),
        token=None if token is None else resolve.find_token(t, token),
    )
    read = resolve.tokens_read(t, side, row=row, run=run)
    return replace(found, read=read, goal=resolve.show_token(t, found.token))


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
