"""Attention weights read from a trace: the paths of the attentions, and the alignment of a translation.

Weights say where a head looked, not what mattered: edge_ablation.py measures that.
Letters: T positions, S source positions, H heads.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from qkv.errors import QkvError
from qkv.lens import resolve
from qkv.lens.recording import Recording
from qkv.messages import Message
from qkv.plots.forms import Drawn, Form, Grid
from qkv.spec import Spec

AttentionPart = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True)
class Alignment(Drawn):
    """How much each target position looked at each source position: `weight` [T, S], mean over a layer's heads."""

    layer: int
    weight: Tensor
    target: tuple[str, ...] = ()
    source: tuple[str, ...] = ()

    def forms(self) -> tuple[Form, ...]:
        """Target rows over source columns, in percent."""
        cells = [[f"{100 * w:.0f}" if w >= 0.01 else "" for w in row] for row in self.weight.tolist()]
        title = Message("alignment (layer {layer}, %): where each row's token looked once it was read",
                        layer=self.layer + 1)
        return (Grid(title, self.target, self.source, self.weight, cells),)


def attention_paths(spec: Spec, part: AttentionPart) -> list[str]:
    """The paths of the attentions of a part, from the first layer up.

    Raises:
        QkvError: the model has no such part.
    """
    stack = spec.encoder if part == "encoder" else spec.decoder
    if stack is None or (part == "cross" and stack.blocks[0].cross is None):
        raise QkvError("this model has no {part}", part=part)
    dot = ("encoder." if part == "encoder" else "decoder.") if spec.encoder and spec.decoder else ""
    return [f"{dot}layers.{i}.{'cross' if part == 'cross' else 'attn'}" for i in range(len(stack.blocks))]


def align_words(t: Recording, *, layer: int | None = None, row: int = 0, source: int | None = None) -> Alignment:
    """The soft alignment of one layer's cross-attention; `source` counts the real words to be covered, end tokens not.

    Without `layer`, the one is chosen that covers the source best: the mean over source words of the largest share that
    any target position gave them. A layer that rests on one token covers little.
    """
    across = attention_paths(t.core.spec, "cross")
    wanted = range(len(across)) if layer is None else [layer]
    if layer is not None and not 0 <= layer < len(across):
        raise QkvError("alignment: there is no layer {layer}, expected 0 to {last}", layer=layer, last=len(across) - 1)
    maps = {i: t[f"{across[i]}.pattern"][row].mean(0) for i in wanted}  # each T S
    layer = max(maps, key=lambda i: float(maps[i][:, :source].amax(0).mean()))
    words = resolve.tokens_read(t, row=row), resolve.tokens_read(t, "encoder.", row=row)
    return Alignment(layer, maps[layer], *words)
