"""Reading in bf16 on a CPU: our kernel for prompts is fastest; without it, products for 64 queries after others.

Both beat PyTorch's fused attention where there is no AMX. `attend_prompt` is that of adapt/row_ops.py; its gains are
over what the core takes by itself.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

from harness import in_turn, limits, middle, options, write

# rows, heads, key/value heads, queries, keys: decoding, beams, sentences of an encoder, prompts
CASES = (
    (1, 16, 16, 1, 512), (1, 16, 4, 1, 512), (1, 32, 8, 1, 2048), (128, 8, 8, 1, 32), (32, 8, 8, 32, 32),
    (8, 8, 8, 128, 128), (1, 16, 4, 32, 544), (1, 16, 16, 128, 128), (1, 16, 16, 256, 256), (1, 16, 16, 512, 512),
    (1, 16, 4, 512, 512), (1, 16, 4, 2048, 2048), (1, 32, 8, 2048, 2048),
)  # fmt: skip
AGAIN = 12


def main() -> None:
    """Every case by every kernel that can do it, in turn, and which one the table takes."""
    given = options(__doc__ or "", dim=(64, "numbers in a head"))
    import torch

    torch.set_num_threads(given.threads)
    cases = CASES[:2] if given.smoke else CASES
    with torch.inference_mode():
        rows = [measured(given, case) for case in cases]
    slower = [r["case"] for r in rows if r["taken_over_fastest"] > 1.2]
    write("attention_inference", __doc__ or "", given, rows=rows, taken_is_slower_than_the_fastest_in=slower,
          limit=limits(given.smoke), limit_of="qkv.core.kernels.attend")  # fmt: skip


def measured(given: Any, case: tuple[int, int, int, int, int]) -> dict[str, Any]:
    """Milliseconds of one case by kernel, the one that the table takes, and how far each is from the open maths."""
    import torch

    from qkv.core import kernels
    from qkv.core.attention import attend
    from qkv.core.dropout import no_dropout
    from qkv.core.masks import AttentionBias

    rows, heads, groups, queries, keys = case
    draw = torch.Generator().manual_seed(keys)
    q, k, v = (torch.randn(rows, n, t, given.dim, generator=draw).bfloat16()
               for n, t in ((heads, queries), (groups, keys), (groups, keys)))  # fmt: skip
    at = SimpleNamespace(scale=given.dim**-0.5, spec=SimpleNamespace(dropout=0.0, cap=None))
    step = SimpleNamespace(drop=no_dropout, tap=lambda module, name, x: x)
    seen = AttentionBias(None, causal=queries == keys)
    names = ("small_matmul", "in_blocks", "sdpa", *(("gqa_decode",) if queries == 1 else ()))
    able = {name: getattr(kernels, name) for name in names}
    compiled = find_compiled(q, k, v)
    if compiled:
        able["attend_prompt"] = compiled
    calls = {n: partial(again, partial(run, q, k, v, seen, at, step)) for n, run in able.items()}
    times = in_turn(calls, given.rounds)
    took = {name: middle([t for t, _ in found]) / AGAIN for name, found in times.items()}
    usual = find_taken(q, k, v, seen, at, step)
    taken = "attend_prompt" if compiled else usual
    exact = attend(q.float(), k.float(), v.float(), seen, at, step)
    return {
        "case": f"{rows} rows, {heads} heads on {groups}, {queries} queries, {keys} keys",
        "milliseconds": {name: round(1000 * t, 4) for name, t in took.items()},
        "taken": taken,
        **({"attend_prompt_over_the_core": round(took[usual] / took["attend_prompt"], 2)} if compiled else {}),
        "taken_over_fastest": round(took[taken] / min(took.values()), 2),
        "largest_difference_from_fp32": {
            name: float(f"{(found[-1][1].float() - exact).abs().max():.2g}") for name, found in times.items()
        },
    }


def find_compiled(q: Any, k: Any, v: Any) -> Any:
    """Our kernel for prompts, where it is there and takes such sizes."""
    from qkv.adapt import native, row_ops

    library = native.library()
    if library is None or not (row_ops.attends_prompts(library) and row_ops.fits_prompt(q, k, v)):
        return None

    def read(q: Any, k: Any, v: Any, mask: Any, at: Any, step: Any) -> Any:
        z = row_ops.attend_prompt(library, q, k, v, mask, scale=at.scale)
        return z.unflatten(-1, (q.shape[1], -1)).transpose(1, 2)

    return read


def find_taken(*given: Any) -> str:
    """The kernel that attend() chooses."""
    from qkv.core import kernels

    names, found = [kernel.__name__ for kernel in kernels.KERNELS], list[str]()
    own = {name: getattr(kernels, name) for name in names}
    try:
        for name in names:
            setattr(kernels, name, lambda *_, name=name: found.append(name))
        kernels.attend(*given)
    finally:
        for name, run in own.items():
            setattr(kernels, name, run)
    return found[0]


def again(call: Any) -> Any:
    """What the last of several calls gives: the layers of a model call a kernel one after the other."""
    for _ in range(AGAIN - 1):
        call()
    return call()


if __name__ == "__main__":
    main()
