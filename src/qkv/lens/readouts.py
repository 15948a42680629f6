"""The readouts as methods of a trace: `t.lens()`, `t.parts(token="旧")`, `t.walk("layers.3.attn", head=5)`…

Each method calls the file that holds the readout; those import Trace, so they are imported late.
"""

from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qkv.lens.attention_maps import Alignment
    from qkv.lens.attribution import Part, Parts
    from qkv.lens.cache_report import CacheReport
    from qkv.lens.compare import Diff
    from qkv.lens.embeddings import Neighbours
    from qkv.lens.gradient import Saliency
    from qkv.lens.lines import Line
    from qkv.lens.logit_lens import Guesses
    from qkv.lens.mask_reasons import MaskReasons
    from qkv.lens.residual_drift import Drift
    from qkv.lens.routing import Routes
    from qkv.lens.sampling_filters import Stages
    from qkv.lens.step_by_step import Walk
    from qkv.lens.trace import Run, Trace
    from qkv.lens.wavefront import Wavefront
    from qkv.sampling import Sampling

Where = int | str


class Readouts:
    """What can be read from a trace. Positions are slots (from the end where negative) or words of the text."""

    def ran(self, path: str = "", run: int | None = None) -> "Run":
        """The run of the stack to which a path belongs, with its ids, phases and places."""
        from qkv.lens import resolve

        return resolve.find_run(cast("Trace", self), path, run)

    def lines(self, run: int | None = None) -> "list[Line]":
        """The texts of a run whose rows moved: a beam's hypotheses by their parents, the texts of a batch."""
        from qkv.lens import lines

        return lines.list_lines(cast("Trace", self), run)

    def line(self, which: "int | Sequence[int]" = 0, **how: Any) -> "Trace":
        """One text of such a run as a trace of its own, by its number or the ids that it read; options: origin, run."""
        from qkv.lens import lines

        return lines.extract_line(cast("Trace", self), which, **how)

    def lens(self, pos: Where | None = None, *, top: int = 5, row: int = 0, run: int | None = None) -> "Guesses":
        """Each layer's likeliest next tokens, at every position or at one."""
        from qkv.lens import logit_lens

        return logit_lens.guess_by_layer(cast("Trace", self), top=top, row=row, run=run, pos=pos)

    def parts(self, pos: Where = -1, token: Where | None = None, **how: Any) -> "Parts":
        """Who pushed the logit of a token; options: vs, row, run."""
        from qkv.lens import attribution

        return attribution.attribute_logit(cast("Trace", self), pos, token, **how)

    def neurons(self, layer: int, pos: Where = -1, token: Where | None = None, **how: Any) -> "tuple[Part, ...]":
        """The neurons of a feed-forward network that pushed it most; options: vs, top, row, run."""
        from qkv.lens import attribution

        return attribution.attribute_to_neurons(cast("Trace", self), layer, pos, token, **how)

    def walk(self, path: str, **how: Any) -> "Walk":
        """The seven steps of one position; options: head, query, key, row, run."""
        from qkv.lens import step_by_step

        return step_by_step.walk_steps(cast("Trace", self), path, **how)

    def mask(self, path: str | None = None, *, row: int = 0, run: int | None = None) -> "MaskReasons":
        """Why each cell of an attention is masked."""
        from qkv.lens import mask_reasons

        return mask_reasons.explain_mask(cast("Trace", self), path, row=row, run=run)

    def bias(self, path: str, *, run: int | None = None) -> Tensor:
        """What was added to an attention's scores, fp32 [B or 1, H or 1, T, S]."""
        from qkv.lens import mask_reasons

        return mask_reasons.added_bias(cast("Trace", self), path, run=run)

    def choices(self, pos: Where = -1, *, sampling: "Sampling | None" = None, **how: Any) -> "Stages":
        """The distribution of the next word, filter by filter; options: row, run."""
        from qkv.lens import sampling_filters

        return sampling_filters.list_filter_stages(cast("Trace", self), pos, sampling=sampling, **how)

    def neighbours(self, word: str, n: int = 10) -> "Neighbours":
        """The tokens whose embeddings are nearest to a word's."""
        from qkv.lens import embeddings

        t = cast("Trace", self)
        return embeddings.find_neighbours(t.core, t.tokenizer, word, n)

    def analogy(self, a: str, b: str, c: str, *, n: int = 5) -> "Neighbours":
        """a is to b as c is to…"""
        from qkv.lens import embeddings

        t = cast("Trace", self)
        return embeddings.solve_analogy(t.core, t.tokenizer, a, b, c, n=n)

    def shift(self, pos: Where, anchors: list[str], **how: Any) -> "Drift":
        """How a word's state moves towards anchors; options: row, run, side."""
        from qkv.lens import residual_drift

        return residual_drift.measure_drift(cast("Trace", self), pos, anchors, **how)

    def routes(self, *, row: int = 0, run: int | None = None) -> "Routes":
        """Which experts each token took, per layer."""
        from qkv.lens import routing

        return routing.read_routing(cast("Trace", self), row=row, run=run)

    def alignment(self, **how: Any) -> "Alignment":
        """Where each written word looked in the source; options: layer, row, source."""
        from qkv.lens import attention_maps

        return attention_maps.align_words(cast("Trace", self), **how)

    def wavefront(self, *, row: int = 0, run: int | None = None) -> "Wavefront":
        """The grid of layers and tokens: what depends on what, and when it was computed."""
        from qkv.lens import wavefront

        return wavefront.build_wavefront(cast("Trace", self), row=row, run=run)

    def cache(self, *, run: int | None = None) -> "CacheReport":
        """Bytes and work of every step, with the cache and without."""
        from qkv.lens import cache_report

        return cache_report.report_cache(cast("Trace", self), run=run)

    def diff(self, other: "Trace", **how: Any) -> "Diff":
        """Where this run and another of the same model part ways; options: row, run."""
        from qkv.lens import compare

        return compare.compare_runs(cast("Trace", self), other, **how)

    def gradient(self, pos: Where = -1, token: Where | None = None, **how: Any) -> "Saliency":
        """How each input token influences a logit: gradient times input, by one more pass; options: row, run."""
        from qkv.lens import gradient

        return gradient.trace_gradient(cast("Trace", self), pos, token, **how)
