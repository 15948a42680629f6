"""A trace: a recording (recording.py) with the readouts as its methods: `t.lens()`, `t.parts(token="旧")`…

Positions are slots (from the end where negative) or words of the text.
"""

from qkv.lens import (
    attention_maps,
    attribution,
    cache_report,
    compare,
    consistency,
    embeddings,
    gradient,
    lines,
    logit_lens,
    mask_reasons,
    residual_drift,
    resolve,
    routing,
    sampling_filters,
    step_by_step,
    trace_storage,
    wavefront,
)
from qkv.lens.recording import READOUTS, Recording

__all__ = ["READOUTS", "Trace"]


class Trace(Recording):
    """A recording, which says what it takes and how taps are read, with each readout as a method."""

    ran = resolve.find_run
    lens = logit_lens.guess_by_layer
    parts = attribution.attribute_logit
    neurons = attribution.attribute_to_neurons
    walk = step_by_step.walk_steps
    mask = mask_reasons.explain_mask
    bias = mask_reasons.added_bias
    choices = sampling_filters.list_filter_stages
    shift = residual_drift.measure_drift
    routes = routing.read_routing
    alignment = attention_maps.align_words
    diff = compare.compare_runs
    cache = cache_report.report_cache
    line = lines.extract_line
    neighbours = embeddings.find_neighbours
    analogy = embeddings.solve_analogy
    plan = trace_storage.plan_bytes
    save = trace_storage.save_trace
    check = consistency.check_trace
    # those named as their file come last: below them the name is the method
    lines = lines.list_lines
    gradient = gradient.trace_gradient
    wavefront = wavefront.build_wavefront
