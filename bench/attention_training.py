"""On a CPU two batched products train short rows faster than fused attention; past a crossing the fused one wins."""

from functools import partial
from typing import Any

from harness import in_turn, limits, middle, options, write

HEADS, DIM, TOKENS = 4, 32, 4096  # the multi30k recipe's: width 128, about 4096 tokens in a batch


def main() -> None:
    given = options(__doc__ or "", heads=(HEADS, "heads"), dim=(DIM, "numbers in a head"))
    import torch

    torch.set_num_threads(given.threads)
    lengths = (16, 32) if given.smoke else (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
    most = limits(given.smoke)
    rows: list[dict[str, Any]] = []
    for dtype in ("fp32", "bf16"):
        for causal in (False, True):
            rows += [measured(given, dtype, causal, n, most[f"{dtype}_flops"]) for n in lengths]
    crossing = {
        f"{d} {'causal' if c else 'padded'}": crossed([r for r in rows if r["dtype"] == d and r["causal"] == c])
        for d in ("fp32", "bf16")
        for c in (False, True)
    }
    write(
        "attention_training",
        __doc__ or "",
        given,
        rows=rows,
        longest_row_where_few_wins=crossing,
        limit=most,
        limit_of="qkv.core.kernels.attend: small_matmul runs up to 256 keys",
    )


def measured(given: Any, dtype: str, causal: bool, length: int, peak: float) -> dict[str, Any]:
    """Milliseconds of a forward and backward pass over rows of one length, by kernel, about 4096 tokens in all."""
    import torch

    from qkv import spec
    from qkv.core import kernels
    from qkv.core.attention import Attention, attend
    from qkv.core.masks import AttentionBias
    from qkv.core.model import build_step
    from qkv.core.step import Inputs

    kind = torch.float32 if dtype == "fp32" else torch.bfloat16
    at = Attention(
        spec.Attention(given.heads, given.heads, given.dim, spec.Mask("causal")), given.heads * given.dim, 0, ""
    )
    batch = 2 if given.smoke else max(1, TOKENS // length)
    shape = (batch, given.heads, length, given.dim)
    draw = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(shape, generator=draw).to(kind).requires_grad_() for _ in "qkv")
    grad = torch.randn(q.shape, generator=draw).to(kind)
    pad = torch.zeros(batch, 1, 1, length)
    pad[: batch // 2, ..., length - length // 8 :] = torch.finfo(torch.float32).min
    seen = AttentionBias(None, causal=True) if causal else AttentionBias(pad, causal=False)
    plain = spec.Stack(8, (spec.Block(spec.Attention(1, 1, 8, spec.Mask("causal")), spec.Ffn(8, "relu")),))
    step = build_step(made(plain), torch.zeros(1, 1, dtype=torch.long), Inputs())

    def passed(run: Any) -> Any:
        for x in (q, k, v):
            x.grad = None
        out = run(q, k, v, seen, at, step)
        out.backward(grad)
        return out.detach(), q.grad

    runs = {"few": kernels.small_matmul, "sdpa": kernels.sdpa, "open": attend}
    times = in_turn({name: partial(passed, run) for name, run in runs.items()}, given.rounds)
    seconds = {name: middle([t for t, _ in found]) for name, found in times.items()}
    exact = times["open"][-1][1]
    apart = {name: largest(times[name][-1][1], exact) for name in runs}
    flops = 3 * 4 * batch * given.heads * length**2 * given.dim  # two products forward, four back
    return {
        "dtype": dtype,
        "causal": causal,
        "length": length,
        "rows": batch,
        "milliseconds": {name: round(1000 * t, 4) for name, t in seconds.items()},
        "sdpa_over_few": round(seconds["sdpa"] / seconds["few"], 3),
        "share_of_peak_products": round(flops / peak / min(seconds.values()), 3),
        "largest_difference_from_open": {name: float(f"{d:.2g}") for name, d in apart.items()},
    }


def largest(found: Any, exact: Any) -> float:
    """The largest difference of two passes, in what came out and in the gradient of q."""
    return max(float((a - b).abs().max()) for a, b in zip(found, exact, strict=True))


def made(stack: Any) -> Any:
    """A stack for `begin`, which asks one for its masks."""
    from qkv.core.model import Stack

    return Stack(stack, "")


def crossed(rows: list[dict[str, Any]]) -> int | None:
    """The longest row up to which `few` always wins."""
    best = None
    for row in rows:
        if row["sdpa_over_few"] < 1:
            break
        best = row["length"]
    return best


if __name__ == "__main__":
    main()
