"""GPT-2 of 124M parameters trains in bf16 on one GPU: first step within 60 s, then at least 520,000 tokens a second.

The loop of `qkv train` with what it chooses on a GPU (compiled blocks, bf16, fused AdamW) over windows of random words,
no dropout; the vocabulary is rounded up to 50,304 as nanoGPT rounds it. The share is of the bf16 products that this
GPU does here, FLOPs counted as nanoGPT counts them. Without a GPU nothing is measured, and it says so.
"""

import dataclasses
import time
from typing import Any

from harness import options, summary, write

CONFIG = {"model_type": "gpt2", "vocab_size": 50_304, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
          "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}  # fmt: skip
TINY = {"vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 32}
GOAL, STRETCH = 520_000, 650_000


def main() -> None:
    given = options(
        __doc__ or "", rows=(64, "windows in a micro-batch"), accumulate=(8, "micro-batches in a step"),
        steps=(20, "steps that are timed"), eager=(False, "the same without compiled blocks, beside it"),
    )  # fmt: skip
    import torch

    if not torch.cuda.is_available() and not given.smoke:
        print("skipped: no GPU here, so nothing was measured and nothing written")
        return
    device = "cpu" if given.smoke else "cuda"
    if given.smoke:
        given.rows, given.accumulate, given.steps = 2, 2, 2
    found = {"compiled": trained(given, device, "auto")}
    if given.eager:
        found["eager"] = trained(given, device, "never")
    peak = products(device, 256 if given.smoke else 8192)
    for one in found.values():
        one["share_of_measured_products"] = round(one["flops_per_second"] / peak, 3)
    gpu = None if given.smoke else torch.cuda.get_device_name()
    write("gpt2_gpu", __doc__ or "", given, gpu=gpu, **found, limit={"bf16_flops": peak},
          goals={"tokens_per_second": GOAL, "stretch": STRETCH, "first_step_seconds": 60})  # fmt: skip


def trained(given: Any, device: str, compiled: Any) -> dict[str, Any]:
    """Steps of the true loop: seconds of the first, tokens a second of the others, the memory at its highest."""
    import torch

    from qkv.checkpoints import model_dir
    from qkv.core.init import initialise
    from qkv.core.model import Transformer
    from qkv.data.collate import collate_windows
    from qkv.training.loop import ENDLESS, Loop
    from qkv.training.plan import Plan
    from qkv.training.settings import Settings

    config = CONFIG | (TINY if given.smoke else {})
    core = Transformer(model_dir.spec_from_config(config, "bench"))
    initialise(core)
    core.to(device).train()
    draw = torch.Generator().manual_seed(0)
    windows = torch.randint(config["vocab_size"], (given.rows, config["n_positions"] + 1), generator=draw)
    steps = given.steps + 3
    plan = Plan(lambda _: range(steps * given.accumulate), lambda key: collate_windows(windows.roll(key, 0)))
    settings = Settings(steps=steps, accumulate=given.accumulate, optimizer="adamw", lr=6e-4, betas=(0.9, 0.95),
                        eps=1e-8, weight_decay=0.1, clip=1.0, precision="bf16", compile=compiled,
                        log_every=ENDLESS)  # fmt: skip
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    run = Loop(core, plan, settings, None, None, lambda _: None)
    run.open(False)
    run.step()
    first = time.perf_counter() - start
    spent = list[float]()
    for _ in range(given.steps + 2):  # the first two warm up
        before = run.at.seconds
        run.step()  # ends with the gradient's norm as a number, so the GPU has done its work but for the update
        spent.append(run.at.seconds - before)
    tokens = given.rows * config["n_positions"] * given.accumulate
    rates = summary([tokens / t for t in spent[2:]], 1)
    parameters = sum(p.numel() for p in core.parameters()) - core.decoder.positions.weight.numel()
    each = 6.0 * parameters + 12.0 * config["n_layer"] * config["n_embd"] * config["n_positions"]
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else None
    return {
        "first_step_seconds": round(first, 2), "tokens_per_second": rates, "tokens_per_step": tokens,
        "flops_per_second": rates["median"] * each, "flops_per_token": each, "highest_bytes": memory,
        "loss": [round(run.loss, 4)], "settings": dataclasses.asdict(settings),
    }  # fmt: skip


def products(device: str, size: int) -> float:
    """FLOP/s of large bf16 products on this device, the best of ten."""
    import torch

    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        c = a @ b
        float(c[0, 0])  # waits for the device
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best


if __name__ == "__main__":
    main()
