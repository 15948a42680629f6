"""A linear layer in fp32 as adapt/onednn_linear.py multiplies it, beside PyTorch's own (MKL on x86): 1 to 512 rows.

Every call of a round reads other weights, as the layers of a model are read one after another. Without a gradient.
The error is the largest difference from the product in fp64, so that it can be seen that neither rounds more.
"""

from typing import Any

from harness import in_turn, limits, middle, options, summary, write

SHAPES = ((768, 768), (768, 3072), (3072, 768), (768, 50257))
WEIGHTS = 1 << 26  # numbers, 256 MB: more than the caches hold


def main() -> None:
    """Every shape by every number of rows, both ways in turn."""
    given = options(__doc__ or "")
    import torch

    from qkv.adapt import onednn_linear

    torch.set_num_threads(given.threads)
    draw = torch.Generator().manual_seed(0)
    shapes, counts = (((64, 64),), (4,)) if given.smoke else (SHAPES, (1, 4, 32, 128, 512))
    with torch.inference_mode():
        rows = [measured(given, shape, count, draw) for shape in shapes for count in counts]
    taken = onednn_linear.is_mkl_slow()
    write("linear", __doc__ or "", given, onednn_is_taken_here=taken, rows=rows, limit=limits(given.smoke))


def measured(given: Any, shape: tuple[int, int], count: int, draw: Any) -> dict[str, Any]:
    """Microseconds of one product by way, how often, and each one's error."""
    import torch
    from torch import nn

    width, out = shape
    layers = [nn.Linear(width, out) for _ in range(1 if given.smoke else max(1, WEIGHTS // (width * out)))]
    x = torch.randn(count, width, generator=draw)
    ways = {"PyTorch": lambda m: nn.functional.linear(x, m.weight, m.bias),
            "oneDNN": lambda m: torch.ops.mkldnn._linear_pointwise(x, m.weight, m.bias, "none", [], "")}  # fmt: skip
    few = layers[: max(1, 4096 // count)]

    def all_of(way: Any) -> Any:
        made = [way(m) for m in few]
        return made[0]

    times = in_turn({name: lambda way=way: all_of(way) for name, way in ways.items()}, given.rounds)
    took = {name: [1e6 * t / len(few) for t, _ in found] for name, found in times.items()}
    exact = nn.functional.linear(x.double(), few[0].weight.double(), few[0].bias.double())
    return {
        "rows": count, "width": width, "out": out, "microseconds": {n: summary(t, 1) for n, t in took.items()},
        "times_as_fast": round(middle(took["PyTorch"]) / middle(took["oneDNN"]), 2),
        "gigaflops": {n: round(2 * count * width * out / middle(t) / 1000, 1) for n, t in took.items()},
        "error": {n: float((times[n][-1][1] - exact).abs().max()) for n in ways},
    }  # fmt: skip


if __name__ == "__main__":
    main()
