"""Counts and times as Prometheus reads them (text format 0.0.4), by the names that vLLM's dashboards know."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
HELP = {
    "request_success_total": "answers that ended, by the reason why",
    "request_errors_total": "requests that were refused or failed, by HTTP status",
    "prompt_tokens_total": "tokens read", "generation_tokens_total": "tokens written",
    "time_to_first_token_seconds": "from a request's arrival to its first token",
    "inter_token_latency_seconds": "between two tokens of an answer",
    "e2e_request_latency_seconds": "from a request's arrival to the end of its answer",
    "num_requests_running": "requests that are being answered or wait, by model",
    "num_requests_waiting": "texts that wait for a place in the engine, by model",
    "kv_cache_usage_perc": "share of an engine's pages that texts hold, by model",
}


class Metrics:
    """What was counted since the server began; used on the event loop alone."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.times: dict[str, tuple[list[int], list[float]]] = {}  # counts by bucket, and the sum

    def increase(self, name: str, labels: str = "", count: int = 1) -> None:
        """Count something."""
        self.counts.setdefault(name, Counter())[labels] += count

    def observe(self, name: str, seconds: float, times: int = 1) -> None:
        """Note a duration, so many times."""
        buckets, total = self.times.setdefault(name, ([0] * (len(SECONDS) + 1), [0.0]))
        buckets[bisect_left(SECONDS, seconds)] += times
        total[0] += seconds * times

    def format_text(self, gauges: Mapping[str, Mapping[str, float]]) -> str:
        """The text of a scrape; `gauges` are read now: values by name and labels."""
        return "".join(f"{line}\n" for line in self.lines(gauges))

    def lines(self, gauges: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
        """Its lines."""
        for kind, table in (("counter", self.counts), ("gauge", gauges)):
            for name, values in table.items():
                yield from describe_metric(name, kind)
                yield from (f"qkv:{name}{{{labels}}} {value}" for labels, value in values.items())
        for name, (buckets, (total,)) in self.times.items():
            yield from describe_metric(name, "histogram")
            below = 0
            for bound, count in zip((*SECONDS, "+Inf"), buckets, strict=True):
                below += count
                yield f'qkv:{name}_bucket{{le="{bound}"}} {below}'
            yield f"qkv:{name}_sum {total:.6f}"
            yield f"qkv:{name}_count {below}"


def describe_metric(name: str, kind: str) -> tuple[str, str]:
    """The two lines before a metric."""
    return f"# HELP qkv:{name} {HELP[name]}", f"# TYPE qkv:{name} {kind}"


def label(**values: Any) -> str:
    """Labels as Prometheus writes them."""
    safe = {k: str(v).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for k, v in values.items()}
    return ",".join(f'{key}="{value}"' for key, value in safe.items())
