"""A decoding step of the core takes within 1 % of the time of its text that `qkv show` folds, without taps, at 124M.

The folded text is what one would have typed by hand for this model and this mode: nobody could listen to it. Both read
the same prompt and write the same tokens, greedily, one sequence, in turn; equal bit for bit.
"""

import linecache
import time
from types import ModuleType
from typing import Any

from harness import in_turn, options, summary, write

CONFIG = {"model_type": "gpt2", "vocab_size": 50_257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
TINY = {"vocab_size": 97, "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64}


def main() -> None:
    given = options(__doc__ or "", prompt=(64, "tokens read first"), tokens=(32, "decoding steps that are timed"))
    import torch

    from qkv.checkpoints import model_dir
    from qkv.core.init import initialise
    from qkv.core.model import Transformer
    from qkv.specialize.core_text import print_core

    torch.set_num_threads(given.threads)
    if given.smoke:
        given.prompt, given.tokens = 8, 4
    spec = model_dir.spec_from_config(CONFIG | (TINY if given.smoke else {}), "bench")
    core = Transformer(spec)
    initialise(core)
    folded = typed(print_core(spec, mode="decode"))
    folded.load_state_dict(core.state_dict(), strict=True)
    ids = torch.randint(spec.vocabulary, (1, given.prompt), generator=torch.Generator().manual_seed(0))
    models = {"core": core, "folded": folded}
    found = in_turn({name: lambda m=m: written(core, m, ids, given.tokens) for name, m in models.items()}, given.rounds)
    steps = {name: [seconds / given.tokens for _, (seconds, _) in rounds] for name, rounds in found.items()}
    ratios = [a / b for a, b in zip(steps["core"], steps["folded"], strict=True)]
    last = {name: rounds[-1][1][1] for name, rounds in found.items()}
    write(
        "folded", __doc__ or "", given,
        milliseconds={name: summary([1e3 * s for s in spent], 4) for name, spent in steps.items()},
        core_over_folded=summary(ratios, 4), wanted_at_most=1.01, reached=summary(ratios)["median"] <= 1.01,
        quality={"last logits equal bit for bit": torch.equal(last["core"], last["folded"])},
        parameters=sum(p.numel() for p in core.parameters()),
    )  # fmt: skip


def typed(text: str) -> Any:
    """The model of a folded text."""
    module = ModuleType("folded")
    linecache.cache["folded.py"] = (len(text), None, text.splitlines(True), "folded.py")
    exec(compile(text, "folded.py", "exec"), vars(module))  # noqa: S102  our own text
    return module.Model()


def written(core: Any, model: Any, ids: Any, count: int) -> tuple[float, Any]:
    """The seconds of `count` decoding steps behind a prompt that the core reads, and the last logits."""
    import torch

    from qkv.core.cache import Static

    cache = Static(len(core.decoder.layers), capacity=ids.shape[1] + count)
    with torch.inference_mode():
        logits = core(ids, cache=cache, mode="prefill").logits
        start = time.perf_counter()
        for _ in range(count):
            token = logits[:, -1:].argmax(-1)
            logits = model(token, cache=cache, mode="decode").logits
        return time.perf_counter() - start, logits


if __name__ == "__main__":
    main()
