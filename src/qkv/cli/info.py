"""`qkv info MODEL|FAMILY:SIZE`: parameters, FLOPs and bytes, counted without reading the weights."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from qkv.cli.common import Common, option, verb
from qkv.files import to_json_value
from qkv.messages import Message


@verb("Show parameters, FLOPs per token and the bytes of weights and KV cache. Only file headers are read, not "
      "weights.",
      examples=("qkv info demo", "qkv info qwen2:72b --dtype bf16 --attention mha", "qkv info llama:7b --json"))
@click.argument("name", metavar="MODEL|FAMILY:SIZE")
@option("--context", type=click.IntRange(1), help="context length to count for, in tokens")
@option("--attention", metavar="mha|mqa|gqa:N", help="show the cost of other key/value heads")
def command(common: Common, name: str, context: int | None, attention: str | None) -> None:
    from qkv.hub import report as count

    dtype = "fp32" if common.dtype == "auto" else common.dtype
    report = to_json_value(count(name, dtype=dtype, context=context, attention=attention))
    shown = {k: v for k, v in report.items() if v != ""} | say_units(report)
    common.print_result(report, format_report(shown, common.say))


def say_units(report: Mapping[str, Any]) -> dict[str, str]:
    """The bytes of a report in units; of weights and cache in fp32, in bf16 too, as everybody quotes them."""
    found = dict[str, str]()
    for key, value in report.items():
        if "bytes" in key and isinstance(value, int):
            half = report.get("dtype") in ("fp32", "float32") and value and not key.startswith("activation")
            show = "{:,} B".format if "per_token" in key else format_bytes
            found[key] = show(value) + (f" ({show(value // 2)} in bf16)" if half else "")
    return found


def format_bytes(count: int) -> str:
    """A number of bytes with a unit of 1,000 to a step."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{count:,} B" if unit == "B" else f"{size:.3g} {unit}" if size >= 100 else f"{size:.1f} {unit}"


LABELS = {one.replace(" ", "_"): one for one in (
    Message("parameters"), Message("active parameters"), Message("stored"), Message("by part"), Message("dtype"),
    Message("weight bytes"), Message("kv bytes per token"), Message("kv formula"), Message("memory bytes per token"),
    Message("context"), Message("kv bytes"), Message("flops per token"), Message("flops per token prefill"),
    Message("activation bytes per token"))}


def format_report(report: Mapping[str, Any], say: Callable[[str], str], indent: str = "") -> list[str]:
    """The report as aligned lines; parts of parts are indented."""
    from qkv.plots.text import find_widest, pad

    labels = {key: say(LABELS[key]) if key in LABELS else str(key).replace("_", " ") for key in report}
    width, lines = find_widest(labels.values()), list[str]()
    for key, value in report.items():
        if isinstance(value, dict):
            lines += [f"{indent}{labels[key]}", *format_report(value, say, indent + "  ")]
        else:
            lines.append(f"{indent}{pad(labels[key], width)}  {f'{value:,}' if isinstance(value, int) else value}")
    return lines
