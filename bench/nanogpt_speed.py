"""Our loop trains nanoGPT's models faster than nanoGPT's loop: its CPU preset, and 10 million parameters.

`--nanogpt DIR` names a checkout of github.com/karpathy/nanoGPT; its model and optimiser are imported from there, and
its loop's acts are repeated in its order (draw rows, forward, backward, clip, step). It runs as it comes on a CPU
(fp32) and, more kindly, under bf16 autocast. Ours is the loop of `qkv train` with AdamW, in the precision it chooses.
"""

import importlib.util
import random
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import in_turn, limits, options, summary, write

LETTERS = "".join(chr(33 + i) for i in range(65))
VOCABULARY = 80  # 65 letters and our special tokens; nanoGPT gets as many rows


@dataclass(frozen=True)
class Preset:
    """A size of nanoGPT's: layers, heads, width, window, rows in a step, dropout."""

    layers: int
    heads: int
    width: int
    context: int
    rows: int
    dropout: float

    def flops(self, parameters: int) -> float:
        """FLOPs of a step as nanoGPT counts them: 6 a parameter and token, and attention's products."""
        return (6.0 * parameters + 12.0 * self.layers * self.width * self.context) * self.rows * self.context


PRESETS = {
    "cpu preset": Preset(4, 4, 128, 64, 12, 0.0),
    "10 million": Preset(6, 6, 384, 256, 16, 0.2),
}
SMOKE = {"smoke": Preset(1, 2, 32, 16, 2, 0.1)}


def main() -> None:
    """Every preset, all competitors in turn."""
    given = options(
        __doc__ or "", nanogpt=("", "a checkout of nanoGPT; without it only ours is measured"),
        steps=(6, "steps in a round of the largest; the small one makes ten times as many"),
    )  # fmt: skip
    import torch

    torch.set_num_threads(given.threads)
    text = "".join(random.Random(0).choices(LETTERS, k=2_000 if given.smoke else 400_000))
    peer, skipped = imported(given.nanogpt), {}
    if peer is None:
        skipped["nanoGPT"] = "not measured: give --nanogpt DIR"
    most = limits(given.smoke)
    found = {name: raced(p, given, text, peer, most) for name, p in (SMOKE if given.smoke else PRESETS).items()}
    given.nanogpt = "a checkout of github.com/karpathy/nanoGPT" if given.nanogpt else ""
    write("nanogpt_speed", __doc__ or "", given, presets=found, limit=most, skipped=skipped)


def imported(folder: str) -> Any:
    """nanoGPT's model.py, or None where no checkout is named."""
    if not folder:
        return None
    place = importlib.util.spec_from_file_location("nanogpt", Path(folder) / "model.py")
    assert place
    assert place.loader
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


def raced(p: Preset, given: Any, text: str, peer: Any, most: dict[str, float]) -> dict[str, Any]:
    """Tokens a second of each competitor, the ratios, and the share of the machine's products."""
    steps = 2 if given.smoke else given.steps * (10 if p.width < 256 else 1)
    loop, size = ours(p, text)
    runs = {f"qkv {loop.at.precision}": lambda: [(loop.step(), loop.after()) for _ in range(steps)] and loop.loss}
    if peer:
        runs |= {"nanoGPT fp32": theirs(peer, p, text, steps, low=False),
                 "nanoGPT bf16 autocast": theirs(peer, p, text, steps, low=True)}  # fmt: skip
    found = in_turn(runs, given.rounds)
    tokens = steps * p.rows * p.context
    rates = {name: summary([tokens / t for t, _ in rounds], 1) for name, rounds in found.items()}
    mine = next(iter(rates))
    work = p.flops(size) / (p.rows * p.context) * rates[mine]["median"]
    return {
        "shape": vars(p), "parameters": size, "tokens_per_second": rates,
        "ratio": {name: round(rates[mine]["median"] / r["median"], 3) for name, r in rates.items() if name != mine},
        "qkv_tflops": round(work / 1e12, 3), "share_of_bf16_peak": round(work / most["bf16_flops"], 3),
        "last_loss": {name: round(float(rounds[-1][1]), 4) for name, rounds in found.items()},
    }  # fmt: skip


def ours(p: Preset, text: str) -> tuple[Any, int]:
    """A run of the trainer that has begun, and how many parameters it trains."""
    from qkv.training import assemble, loop, run_dir
    from qkv.training.run import Run, Vocabulary
    from qkv.training.settings import Settings
    from qkv.training.shape import Shape
    from qkv.training.splits import Splits

    cut = len(text) * 9 // 10
    shape = Shape("gpt2", p.width, p.layers, p.heads, ffn=4 * p.width, dropout=p.dropout,
                  attention_dropout=p.dropout, context=p.context)  # fmt: skip
    settings = Settings(steps=10**6, tokens=p.rows * p.context, optimizer="adamw", lr=1e-4, betas=(0.9, 0.99), eps=1e-8,
                        weight_decay=0.1, schedule="constant", clip=1.0, evaluate_every=10**9)  # fmt: skip
    run = Run("speed", lambda: Splits(text[:cut], text[cut:]), shape, Vocabulary("char", 256), settings)
    a = assemble.assemble(run, device="cpu")
    found = loop.Loop(a.model.core, a.plan, settings, None, None, run_dir.open_log(None, None))
    found.open(False)
    a.model.core.train()
    return found, sum(w.numel() for w in a.model.core.parameters())


def theirs(peer: Any, p: Preset, text: str, steps: int, *, low: bool) -> Any:
    """nanoGPT's model and optimiser in the acts of its loop on a CPU."""
    import numpy as np
    import torch

    config = peer.GPTConfig(block_size=p.context, vocab_size=VOCABULARY, n_layer=p.layers, n_head=p.heads,
                            n_embd=p.width, dropout=p.dropout, bias=False)  # fmt: skip
    torch.manual_seed(0)
    model = peer.GPT(config).train()
    optimizer = model.configure_optimizers(0.1, 1e-4, (0.9, 0.99), "cpu")
    data = np.array([LETTERS.index(c) for c in text], dtype=np.uint16)

    def draw() -> tuple[Any, Any]:
        at = torch.randint(len(data) - p.context, (p.rows,))
        rows = [torch.from_numpy(data[i : i + p.context + 1].astype(np.int64)) for i in at]
        return torch.stack([r[:-1] for r in rows]), torch.stack([r[1:] for r in rows])

    def run() -> float:
        loss = torch.zeros(())
        for _ in range(steps):
            x, y = draw()
            with torch.autocast("cpu", torch.bfloat16) if low else nullcontext():
                loss = model(x, y)[1]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return run


if __name__ == "__main__":
    main()
