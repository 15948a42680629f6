"""A step of our Muon takes no longer than PyTorch's, and far less where a CPU has no bf16.

The hidden matrices of the demo (width 176) and of Multi30k's published shape (width 128). Ours runs in the precision of
the run: bf16 as PyTorch's does, and fp32. `ONEDNN_MAX_CPU_ISA=AVX2 python bench/muon.py --out …` plays an older CPU.
"""

from collections.abc import Callable

from harness import in_turn, options, summary, write

SHAPES = {
    "width 176": ((176, 176), 36, (352, 176), 6, (176, 352), 6),
    "width 128": ((128, 128), 48, (256, 128), 8, (128, 256), 8),
}


def main() -> None:
    """Both sets of matrices, three optimisers in turn."""
    given = options(__doc__ or "")
    import torch

    torch.set_num_threads(given.threads)
    found = {}
    for name, shapes in ({"smoke": ((16, 16), 2)} if given.smoke else SHAPES).items():
        sizes = [size for size, count in zip(shapes[::2], shapes[1::2], strict=True) for _ in range(count)]
        runs = {"PyTorch's": stepper(sizes)}
        runs |= {"ours bf16": stepper(sizes, low=True), "ours fp32": stepper(sizes, low=False)}
        rounds = in_turn(runs, given.rounds)
        found[name] = {kind: summary([1000 * t for t, _ in each], 2) for kind, each in rounds.items()}
    write("muon", __doc__ or "", given, milliseconds_a_step=found)


def stepper(sizes: list[tuple[int, int]], low: bool | None = None) -> Callable[[], None]:
    """A step over drawn matrices of these sizes: PyTorch's own without `low`, else ours in bf16 or fp32."""
    import torch

    from qkv.training.optim import Muon

    draw = torch.Generator().manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(size, generator=draw)) for size in sizes]
    for w in weights:
        w.grad = torch.randn(w.shape, generator=draw)
    if low is None:
        return torch.optim.Muon(weights, lr=1e-3, weight_decay=0.0, adjust_lr_fn="match_rms_adamw").step
    made = Muon(weights, lr=1e-3, weight_decay=0.0)
    for group in made.param_groups:
        group["low"] = low
    return made.step


if __name__ == "__main__":
    main()
