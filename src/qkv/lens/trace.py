"""A trace: a recording (recording.py) with the readouts as its methods: `t.lens()`, `t.parts(token="旧")`…

Positions are slots (from the end where negative) or words of the text.
"""

from qkv.lens.attention_maps import align_words
from qkv.lens.attribution import attribute_logit, attribute_to_neurons
from qkv.lens.cache_report import report_cache
from qkv.lens.compare import compare_runs
from qkv.lens.consistency import check_trace
from qkv.lens.embeddings import Neighbours, find_neighbours, solve_analogy
from qkv.lens.gradient import trace_gradient
from qkv.lens.lines import extract_line, list_lines
from qkv.lens.logit_lens import guess_by_layer
from qkv.lens.mask_reasons import added_bias, explain_mask
from qkv.lens.recording import READOUTS, Recording
from qkv.lens.residual_drift import measure_drift
from qkv.lens.resolve import find_run
from qkv.lens.routing import read_routing
from qkv.lens.sampling_filters import list_filter_stages
from qkv.lens.step_by_step import walk_steps
from qkv.lens.trace_storage import plan_bytes, save_trace
from qkv.lens.wavefront import build_wavefront

__all__ = ["READOUTS", "Trace"]


class Trace(Recording):
    """A recording, which says what it takes and how taps are read, with each readout as a method."""

    ran = find_run
    lines = list_lines
    line = extract_line
    lens = guess_by_layer
    parts = attribute_logit
    neurons = attribute_to_neurons
    walk = walk_steps
    mask = explain_mask
    bias = added_bias
    choices = list_filter_stages
    shift = measure_drift
    routes = read_routing
    alignment = align_words
    wavefront = build_wavefront
    cache = report_cache
    diff = compare_runs
    gradient = trace_gradient
    check = check_trace
    plan = plan_bytes
    save = save_trace

    def neighbours(self, word: str, n: int = 10) -> Neighbours:
        """The tokens whose embeddings are nearest to a word's."""
        return find_neighbours(self.core, self.tokenizer, word, n)

    def analogy(self, a: str, b: str, c: str, *, n: int = 5) -> Neighbours:
        """a is to b as c is to…"""
        return solve_analogy(self.core, self.tokenizer, a, b, c, n=n)
