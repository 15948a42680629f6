"""Our products are as fast beside another library's OpenMP in the same process, if idle threads sleep instead of spin.

PyTorch, CTranslate2, scikit-learn and others bring an OpenMP runtime each, and each keeps as many threads as there are
cores. For a while after its work a thread spins, ready for more, and takes a core from the other runtime's threads.
Here CTranslate2 translates a little between our steps; the remedy tried is OMP_WAIT_POLICY=passive, set before either
is loaded.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from harness import Maker, compete, middle, need, options, summary, timed, write
from translation_base import ctranslate, write_model

WIDTH, WIDE, LAYERS, ROWS = 512, 2048, 24, 128
STEPS = 20


def main() -> None:
    """Alone, beside a library that was imported, and beside one that works between our steps; then the remedy."""
    given = options(__doc__ or "", seed=(0, "of the translator's weights"), sentences=(8, "that it translates"),
                    batch=(4, "of them at once"))  # fmt: skip
    given.smoke = True  # a tiny translator is enough
    makers: dict[str, Maker] = {
        "qkv alone": multiply, "qkv, CTranslate2 idle": partial(multiply, beside="idle"),
        "qkv, CTranslate2 in turn": partial(multiply, beside="in turn"),
        "qkv, CTranslate2 in turn, passive": partial(multiply, beside="in turn", policy="passive"),
        "qkv alone, passive": partial(multiply, policy="passive"),
    }  # fmt: skip
    found, skipped = compete(given, makers, prepare=write_model)
    times = {name: summary([1000 * r["seconds"] for r in rounds], 2) for name, rounds in found.items()}
    alone = times["qkv alone"]["median"] if "qkv alone" in times else 1.0
    write("openmp", __doc__ or "", given, milliseconds=times, skipped=skipped,
          times_as_long_as_alone={name: round(t["median"] / alone, 3) for name, t in times.items()},
          runtimes={name: rounds[-1]["runtimes"] for name, rounds in found.items()})  # fmt: skip


def multiply(given: Any, folder: Path, beside: str = "", policy: str = "") -> Callable[[], dict[str, Any]]:
    """The products of small layers, as a step of beam search makes them; the other's work is not in the time."""
    if policy:
        os.environ["OMP_WAIT_POLICY"] = policy
    translate = None
    if beside:
        need("ctranslate2")
        translate = ctranslate(given, folder, "int8")
    import torch

    from qkv.devices import list_openmp

    torch.set_num_threads(given.threads)
    x = torch.randn(ROWS, WIDTH).bfloat16()
    weights = [torch.randn(WIDE, WIDTH).bfloat16() for _ in range(LAYERS)]

    @torch.inference_mode()
    def step() -> None:
        for weight in weights:
            torch.relu(torch.nn.functional.linear(x, weight))

    def run() -> dict[str, Any]:
        spent: list[float] = []
        for _ in range(STEPS):
            if translate and beside == "in turn":
                translate()
            spent.append(timed(step)[0])
        return {"seconds": middle(spent), "runtimes": list_openmp()}

    return run


if __name__ == "__main__":
    main()
