"""A trace: a recording (recording.py) with the readouts as its methods: `t.lens()`, `t.parts(token="旧")`…

Positions are slots (from the end where negative) or words of the text.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from qkv.arguments import check_arguments
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

Ask = TypeVar("Ask", bound=Callable[..., Any])
__all__ = ["READOUTS", "Trace"]


def readout(ask: Ask) -> Ask:
    """A function as a method of Trace: its arguments are checked, and that there is the row that it is asked for."""

    @wraps(ask)
    def ask_row(t: Recording, *given: Any, **named: Any) -> Any:
        if isinstance(row := named.get("row"), int):
            resolve.require_row(t, row)
        return ask(t, *given, **named)

    return check_arguments(cast("Ask", ask_row))


class Trace(Recording):
    """A recording, which says what it takes and how taps are read, with each readout as a method."""

    ran = readout(resolve.find_run)
    lens = readout(logit_lens.guess_by_layer)
    parts = readout(attribution.attribute_logit)
    neurons = readout(attribution.attribute_to_neurons)
    walk = readout(step_by_step.walk_steps)
    mask = readout(mask_reasons.explain_mask)
    bias = readout(mask_reasons.added_bias)
    choices = readout(sampling_filters.list_filter_stages)
    shift = readout(residual_drift.measure_drift)
    routes = readout(routing.read_routing)
    alignment = readout(attention_maps.align_words)
    diff = readout(compare.compare_runs)
    cache = readout(cache_report.report_cache)
    line = readout(lines.extract_line)
    neighbours = readout(embeddings.find_neighbours)
    analogy = readout(embeddings.solve_analogy)
    plan = readout(trace_storage.plan_bytes)
    save = readout(trace_storage.save_trace)
    check = readout(consistency.check_trace)
    # those named as their file come last: below them the name is the method
    lines = readout(lines.list_lines)
    gradient = readout(gradient.trace_gradient)
    wavefront = readout(wavefront.build_wavefront)
