"""The readouts as methods of a trace: `t.lens()`, `t.parts(token="旧")`, `t.walk("layers.3.attn", head=5)`…

Each only hands on to the file that holds it; the files import Trace, so they are imported when they are asked.
"""

from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qkv.lens.choices import Stages
    from qkv.lens.compare import Diff
    from qkv.lens.gradient import Saliency
    from qkv.lens.grid import Wavefront
    from qkv.lens.kept import Shelf
    from qkv.lens.lines import Line
    from qkv.lens.mask import Why
    from qkv.lens.parts import Part, Parts
    from qkv.lens.readout import Alignment, Guesses
    from qkv.lens.routes import Routes
    from qkv.lens.trace import Run, Trace
    from qkv.lens.walk import Walk
    from qkv.lens.words import Nears, Shift
    from qkv.sampling import Sampling

Where = int | str


class Reads:
    """What a trace can be asked. Positions are slots (from the end where negative) or words of the text."""

    def ran(self, path: str = "", run: int | None = None) -> "Run":
        """The run of the stack to which a path belongs, with its ids, phases and places."""
        from qkv.lens import where

        return where.passed(cast("Trace", self), path, run)

    def lines(self, run: int | None = None) -> "list[Line]":
        """The texts of a run whose rows moved: a beam's hypotheses by their parents, the texts of a batch."""
        from qkv.lens import lines

        return lines.lines(cast("Trace", self), run)

    def line(self, which: "int | Sequence[int]" = 0, **how: Any) -> "Trace":
        """One text of such a run as a trace of its own, by its number or the ids that it read; options: origin, run."""
        from qkv.lens import lines

        return lines.line(cast("Trace", self), which, **how)

    def lens(self, pos: Where | None = None, *, top: int = 5, row: int = 0, run: int | None = None) -> "Guesses":
        """Each layer's likeliest next tokens, at every position or at one."""
        from qkv.lens import readout

        return readout.lens(cast("Trace", self), top=top, row=row, run=run, pos=pos)

    def parts(self, pos: Where = -1, token: Where | None = None, **how: Any) -> "Parts":
        """Who pushed the logit of a token; options: vs, row, run."""
        from qkv.lens import parts

        return parts.parts(cast("Trace", self), pos, token, **how)

    def neurons(self, layer: int, pos: Where = -1, token: Where | None = None, **how: Any) -> "tuple[Part, ...]":
        """The neurons of a feed-forward network that pushed it most; options: vs, top, row, run."""
        from qkv.lens import parts

        return parts.neurons(cast("Trace", self), layer, pos, token, **how)

    def walk(self, path: str, **how: Any) -> "Walk":
        """The seven steps of one position; options: head, query, key, row, run."""
        from qkv.lens import walk

        return walk.walk(cast("Trace", self), path, **how)

    def mask(self, path: str | None = None, *, row: int = 0, run: int | None = None) -> "Why":
        """Why each cell of an attention is dark."""
        from qkv.lens import mask

        return mask.mask(cast("Trace", self), path, row=row, run=run)

    def bias(self, path: str, *, run: int | None = None) -> Tensor:
        """What was added to an attention's scores, fp32 [B or 1, H or 1, T, S]."""
        from qkv.lens import mask

        return mask.bias(cast("Trace", self), path, run=run)

    def choices(self, pos: Where = -1, *, sampling: "Sampling | None" = None, **how: Any) -> "Stages":
        """The distribution of the next word, filter by filter; options: row, run."""
        from qkv.lens import choices

        return choices.choices(cast("Trace", self), pos, sampling=sampling, **how)

    def neighbours(self, word: str, n: int = 10) -> "Nears":
        """The tokens whose embeddings are nearest to a word's."""
        from qkv.lens import words

        t = cast("Trace", self)
        return words.neighbours(t.core, t.tokenizer, word, n)

    def analogy(self, a: str, b: str, c: str, *, n: int = 5) -> "Nears":
        """a is to b as c is to…"""
        from qkv.lens import words

        t = cast("Trace", self)
        return words.analogy(t.core, t.tokenizer, a, b, c, n=n)

    def shift(self, pos: Where, anchors: list[str], **how: Any) -> "Shift":
        """How a word's state moves towards anchors; options: row, run, side."""
        from qkv.lens import words

        return words.shift(cast("Trace", self), pos, anchors, **how)

    def routes(self, *, row: int = 0, run: int | None = None) -> "Routes":
        """Which experts each token took, per layer."""
        from qkv.lens import routes

        return routes.routes(cast("Trace", self), row=row, run=run)

    def alignment(self, **how: Any) -> "Alignment":
        """Where each written word looked in the source; options: layer, row, source."""
        from qkv.lens import readout

        return readout.alignment(cast("Trace", self), **how)

    def wavefront(self, *, row: int = 0, run: int | None = None) -> "Wavefront":
        """The grid of layers and tokens: what depends on what, and when it was computed."""
        from qkv.lens import grid

        return grid.wavefront(cast("Trace", self), row=row, run=run)

    def cache(self, *, run: int | None = None) -> "Shelf":
        """Bytes and work of every step, with the cache and without."""
        from qkv.lens import kept

        return kept.cache(cast("Trace", self), run=run)

    def diff(self, other: "Trace", **how: Any) -> "Diff":
        """Where this run and another of the same model part ways; options: row, run."""
        from qkv.lens import compare

        return compare.diff(cast("Trace", self), other, **how)

    def gradient(self, pos: Where = -1, token: Where | None = None, **how: Any) -> "Saliency":
        """How each token read bears on a token's logit: gradient times input, by one more pass; options: row, run."""
        from qkv.lens import gradient

        return gradient.of(cast("Trace", self), pos, token, **how)
