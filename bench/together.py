"""Requests that come together cost what one dense batch costs; pages and batch invariance cost what is printed here.

The same prompts are continued greedily in turn, side by side in one buffer, as requests of their own in pages, and so
that each has the bits that it has alone. Processor time per step of all rows, prompts included.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from harness import in_turn, options, summary, write

LLAMA = {"model_type": "llama", "vocab_size": 32_000, "hidden_size": 768, "intermediate_size": 2048,
         "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 6, "tie_word_embeddings": True,
         "max_position_embeddings": 2048, "rms_norm_eps": 1e-6}  # fmt: skip
TINY = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1}  # fmt: skip


def main() -> None:
    given = options(__doc__ or "", tokens=(40, "tokens that each row writes"))
    import torch

    torch.set_num_threads(given.threads)
    if given.smoke:
        given.tokens = 3
    cases = {"demo, 1 row": ("demo", 1), "demo, 32 rows": ("demo", 32), "demo-lm, 1 row": ("demo-lm", 1),
             "demo-lm, 32 rows": ("demo-lm", 32), "llama 102M bf16, 1 row": ("llama", 1),
             "llama 102M bf16, 4 rows": ("llama", 4)}  # fmt: skip
    found = {name: compare(*case, given) for name, case in cases.items()}
    write("together", __doc__ or "", given, cases=found)


def compare(name: str, rows: int, given: Any) -> dict[str, Any]:
    """Milliseconds of a step in each way, and the ratios to the rows side by side."""
    import torch

    from qkv.generation.engine import Engine, Settings
    from qkv.generation.scheduler import Limits
    from qkv.generation.sequence import DecodeOptions

    core, start = load(name, smoke=given.smoke)
    tokens = given.tokens if name != "llama" else max(2, given.tokens // 4)
    draw = torch.Generator().manual_seed(1)
    length = 64 if name == "llama" and not given.smoke else 10
    prompts = [torch.randint(4, core.spec.sources or core.spec.vocabulary, (length - n % 4,), generator=draw).tolist()
               for n in range(rows)]  # fmt: skip
    limits = Limits(rows=64, tokens=4096, beside=4096)
    made = {invariant: Engine(core, Settings(rows * 256, limits=limits, keep_prefixes=False, batch_invariant=invariant))
            for invariant in (False, True)}  # fmt: skip
    options_ = DecodeOptions(tokens, start=start)
    ways: dict[str, Callable[[], Any]] = {
        "side by side": partial(together, Engine(core), prompts, options_),
        "in pages": partial(apart, made[False], prompts, options_),
        "batch invariant": partial(apart, made[True], prompts, options_),
    }
    turns = in_turn(ways, given.rounds)
    steps = {way: [1e3 * seconds / tokens for _, (seconds, _) in spent] for way, spent in turns.items()}
    first = steps["side by side"]
    texts = {way: spent[-1][1][1] for way, spent in turns.items()}
    return {
        "parameters": sum(p.numel() for p in core.parameters()),
        "milliseconds_a_step": {way: summary(spent, 3) for way, spent in steps.items()},
        "ratio": {way: summary([a / b for a, b in zip(spent, first, strict=True)], 3)["median"]
                  for way, spent in steps.items()},
        "tile_sizes": list(getattr(made[True].passes, "sizes", ())),
        "same_tokens": {way: text == texts["side by side"] for way, text in texts.items()},
    }  # fmt: skip


def load(name: str, *, smoke: bool) -> tuple[Any, tuple[int, ...]]:
    """A core, and what its targets begin with."""
    import torch

    import qkv
    from qkv.checkpoints import model_dir
    from qkv.core.init import initialise
    from qkv.core.model import Transformer

    if name != "llama":
        model = qkv.load(name, device="cpu", dtype="fp32")
        return model.core, (model.special.start,) if model.encoder_decoder and model.special.start is not None else ()
    core = Transformer(model_dir.spec_from_config(LLAMA | (TINY if smoke else {}), "bench"))
    initialise(core, 0)
    return core.to(torch.bfloat16).requires_grad_(False), ()


def together(engine: Any, prompts: list[list[int]], options_: Any) -> tuple[float, list[list[int]]]:
    """Processor seconds and texts of requests that came together."""
    start = time.process_time()
    texts = [handle.result().tokens for handle in engine.submit_batch(prompts, options_)]
    return time.process_time() - start, texts


def apart(engine: Any, prompts: list[list[int]], options_: Any) -> tuple[float, list[list[int]]]:
    """The same of requests of their own."""
    start = time.process_time()
    handles = [engine.submit(prompt, options_) for prompt in prompts]
    texts = [handle.result().tokens for handle in handles]
    return time.process_time() - start, texts


if __name__ == "__main__":
    main()
