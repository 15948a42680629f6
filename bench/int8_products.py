"""What int8 with a scale for each row would save of the products in a decoding step of Transformer-base in bf16.

Every layer has its own weights, read in the order of a step: q, k and v of one input, out, the cross-attention's q and
out, up, down, then the vocabulary. "bf16" is what adapt/onednn_linear.py does. "int8 products" are the bare ones of
oneDNN on bytes that are there: the limit. "int8" makes the bytes of each row from its own smallest and largest number
(fbgemm), once for q, k and v, and scales the sums back, so that no row depends on its neighbours. The rest of a step
(attention, norms, the choice of tokens) is the same in each and is not in these times.
"""

from typing import Any

from harness import in_turn, limits, middle, options, summary, write

LAYERS, VOCABULARY = 6, 37000
LAYER = ((512, (512, 512, 512)), (512, (512,)), (512, (512,)), (512, (512,)), (512, (2048,)), (2048, (512,)))
AGAIN = 3


def main() -> None:
    """Every number of rows by every way, in turn."""
    given = options(__doc__ or "")
    import torch

    from qkv.devices import keep_freed

    torch.set_num_threads(given.threads)
    keep_freed()  # as `beam` does
    layer = (*(LAYER[:1] if given.smoke else LAYER * LAYERS), (512, (300 if given.smoke else VOCABULARY,)))
    draw = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        weights = [[torch.randn(n, k, generator=draw) * k**-0.5 for n in outs] for k, outs in layer]
        rows = [measured(given, weights, count, draw) for count in ((4,) if given.smoke else (4, 32, 128))]
    write("int8_products", __doc__ or "", given, about=" ".join((__doc__ or "").split("\n\n")[1].split()), rows=rows,
          limit=limits(given.smoke))  # fmt: skip


def measured(given: Any, weights: Any, count: int, draw: Any) -> dict[str, Any]:
    """Milliseconds of one step's products by way, the ratio, and the error of each against fp32."""
    import torch
    import torch.nn.functional as F

    inputs = [torch.randn(count, part[0].shape[1], generator=draw).bfloat16() for part in weights]
    calls = {"bf16": bf16(weights, inputs), "int8": int8(weights, inputs), "int8 products": bare(weights, inputs)}
    times = in_turn({name: lambda call=call: again(call) for name, call in calls.items()}, given.rounds)
    took = {name: [t / AGAIN for t, _ in found] for name, found in times.items()}
    exact = F.linear(inputs[0].float(), weights[0][0])
    error = {n: float((times[n][-1][1].float() - exact).norm() / exact.norm()) for n in ("bf16", "int8")}
    return {
        "rows": count,
        "milliseconds": {name: summary([1000 * t for t in found], 3) for name, found in took.items()},
        "int8_times_as_fast_as_bf16": round(middle(took["bf16"]) / middle(took["int8"]), 3),
        "bare_products_times_as_fast": round(middle(took["bf16"]) / middle(took["int8 products"]), 3),
        "relative_error": {name: round(e, 5) for name, e in error.items()},
    }


def again(call: Any) -> Any:
    """What the last of several steps gives for the first product."""
    for _ in range(AGAIN - 1):
        call()
    return call()


def bf16(weights: Any, inputs: Any) -> Any:
    """Products by packed copies; gives the first."""
    import torch

    packed = [[torch.ops.mkldnn._reorder_linear_weight(w.bfloat16(), 32) for w in part] for part in weights]
    bias = [[torch.zeros(len(w), dtype=torch.bfloat16) for w in part] for part in weights]

    def run() -> Any:
        first = None
        for x, part, biases in zip(inputs, packed, bias, strict=True):
            for w, b in zip(part, biases, strict=True):
                y = torch.ops.mkldnn._linear_pointwise(x, w, b, "none", [], "")
                first = y if first is None else first
        return first

    return run


def prepared(w: Any) -> Any:
    """A weight as signed bytes in oneDNN's order, its scales, no offsets, and what an offset of a row adds."""
    import torch

    scale = w.abs().amax(1) / 127  # N
    whole = (w / scale[:, None]).round().to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(whole, None)
    return packed, scale, torch.zeros(len(w), dtype=torch.int32), whole.sum(1) * scale


def product(x: Any, packed: Any, scale: Any, none: Any) -> Any:
    """Unsigned bytes times signed ones, scaled by column: fp32."""
    import torch

    kind = torch.float32
    return torch.ops.onednn.qlinear_pointwise(x, 1.0, 0, packed, scale, none, None, 1.0, 0, kind, "none", [], "")


def int8(weights: Any, inputs: Any) -> Any:
    """Products of bytes that are made from bf16 rows first; gives the first, in bf16."""
    import torch

    made = [[(*prepared(w), torch.zeros(len(w))) for w in part] for part in weights]

    def run() -> Any:
        first = None
        for x, part in zip(inputs, made, strict=True):
            table = torch.ops.quantized.embedding_bag_byte_prepack(x.float())  # B K+8: the last are scale and smallest
            ends = table.view(torch.float32)
            rows, scale, low = table[:, :-8].contiguous(), ends[:, -2:-1], ends[:, -1:]
            for packed, by_column, none, total, bias in part:
                sums = product(rows, packed, by_column, none)
                y = torch.addcmul(bias, low, total).addcmul_(sums, scale).bfloat16()
                first = y if first is None else first
        return first

    return run


def bare(weights: Any, inputs: Any) -> Any:
    """Products alone, on bytes made before."""
    import torch

    made = [[prepared(w)[:3] for w in part] for part in weights]
    rows = [torch.randint(0, 256, x.shape, dtype=torch.uint8) for x in inputs]

    def run() -> Any:
        for x, part in zip(rows, made, strict=True):
            for packed, scale, none in part:
                product(x, packed, scale, none)

    return run


if __name__ == "__main__":
    main()
