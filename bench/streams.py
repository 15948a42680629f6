"""16 streams at once write at least 8 times as many tokens a second as one, and a shared prompt is read once.

The engine with a LLaMA shape of 430M random weights in bf16. Four parts: one stream and 16; tokens while other prompts
are read (how long the slowest twentieth of the gaps between a stream's tokens is, against quiet); a request that is
cancelled; and two requests after another whose prompts begin with the same 1,000 tokens.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines import CONFIG, TINY, draw_prompt
from harness import compete, options, summary, write


def main() -> None:
    """All parts, one after another, in each round."""
    given = options(__doc__ or "", streams=(16, "requests at once"), tokens=(32, "tokens of each"),
                    prompt=(64, "tokens of each prompt"), shared=(1000, "tokens that two prompts share"),
                    dtype=("bf16", "bf16, int8 or int4"))  # fmt: skip
    if given.smoke:
        given.streams, given.tokens, given.prompt, given.shared = 3, 4, 8, 48
    found, skipped = compete(given, {"qkv engine": measure}, prepare=write_weights)
    rounds = found["qkv engine"]
    numbers = {key: summary([told[key] for told in rounds], 3) for key in rounds[0]}
    write("streams", __doc__ or "", given, results=numbers, skipped=skipped,
          goals={"together_over_one": ">= 8", "gap_p95_while_others_read_over_quiet": "<= 1.5",
                 "steps_until_cancelled_pages_are_free": "<= 1", "second_first_token_of_shared": "<= 0.1"})  # fmt: skip


def write_weights(given: Any, folder: Path) -> None:
    """The model as a directory of Hugging Face."""
    import torch

    from qkv import hub
    from qkv.checkpoints import model_dir

    model = hub.build(model_dir.spec_from_config(CONFIG | (TINY if given.smoke else {}), "bench"))
    model.core.to(torch.bfloat16)
    model.save(folder / "hf", family="llama")


def measure(given: Any, folder: Path) -> Callable[[], dict[str, float]]:
    """One round of all parts."""
    import torch

    import qkv
    from qkv.generation.engine import Engine, Settings

    torch.set_num_threads(given.threads)
    core = qkv.load(folder / "hf", device="cpu", dtype=given.dtype).core
    vocabulary = core.spec.vocabulary

    def begin() -> Any:
        return Engine(core, Settings(tokens=8192))

    def run() -> dict[str, float]:
        prompts = [draw_prompt(given.prompt + n, vocabulary)[n:] for n in range(given.streams)]
        one, many = (write_all(begin(), prompts[:n], given.tokens) for n in (1, given.streams))
        quiet, busy = (gaps(begin(), prompts, given.tokens, readers) for readers in (0, 4))
        return {
            "one_tokens_per_second": one, "together_tokens_per_second": many, "together_over_one": many / one,
            "gap_p95_quiet_ms": 1000 * quiet, "gap_p95_while_others_read_ms": 1000 * busy,
            "gap_p95_while_others_read_over_quiet": busy / quiet,
            "steps_until_cancelled_pages_are_free": cancel(begin(), prompts[0], given.tokens),
            "second_first_token_of_shared": share(begin(), draw_prompt(given.shared, vocabulary)),
        }  # fmt: skip

    return run


def write_all(engine: Any, prompts: list[list[int]], tokens: int) -> float:
    """Tokens a second of these requests while all write: after the last prompt was read, until the first one ends."""
    from qkv.generation.sequence import DecodeOptions

    handles = [engine.submit(prompt, DecodeOptions(tokens)) for prompt in prompts]
    while not all(handle.sequence.tokens for handle in handles):
        engine.step()
    before, start = sum(len(handle.sequence.tokens) for handle in handles), time.perf_counter()
    while not any(handle.done for handle in handles):
        engine.step()
    seconds, after = time.perf_counter() - start, sum(len(handle.sequence.tokens) for handle in handles)
    while engine.busy:
        engine.step()
    return (after - before) / seconds


def gaps(engine: Any, prompts: list[list[int]], tokens: int, readers: int) -> float:
    """The longest of all but a twentieth of the seconds between two tokens of a quarter of the streams, while so many
    other prompts of eight times the length are read.
    """
    from qkv.generation.sequence import DecodeOptions

    handles = [engine.submit(prompt, DecodeOptions(tokens)) for prompt in prompts[: max(1, len(prompts) // 4)]]
    while not all(handle.sequence.tokens for handle in handles):
        engine.step()
    for n in range(readers):
        engine.submit([*prompts[n % len(prompts)][::-1], *prompts[0] * 7], DecodeOptions(1))
    seconds, last = list[float](), time.perf_counter()
    while not all(handle.done for handle in handles):
        engine.step()
        seconds.append(time.perf_counter() - last)
        last = time.perf_counter()
    return sorted(seconds)[int(0.95 * (len(seconds) - 1))]


def cancel(engine: Any, prompt: list[int], tokens: int) -> float:
    """Steps until the pages of a request that is taken back are free."""
    from qkv.generation.sequence import DecodeOptions

    free = engine.pages.free
    handle = engine.submit(prompt, DecodeOptions(tokens))
    other = engine.submit(prompt[::-1], DecodeOptions(tokens))
    while not handle.sequence.tokens:
        engine.step()
    handle.cancel()
    steps = 0.0
    while not handle.done:
        engine.step()
        steps += 1
    other.result()
    assert engine.pages.free == free
    return steps


def share(engine: Any, prompt: list[int]) -> float:
    """The second request's seconds to its first token, over the first one's, where all but its last 8 tokens agree."""
    from qkv.generation.sequence import DecodeOptions

    spent: list[float] = []
    for end in ([3] * 8, [4] * 8):
        start = time.perf_counter()
        engine.submit([*prompt, *end], DecodeOptions(1)).result()
        spent.append(time.perf_counter() - start)
    return spent[1] / spent[0]


if __name__ == "__main__":
    main()
