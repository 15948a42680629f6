"""A decoding step of all blocks in one call of a kernel takes 0.7 times the time of their parts or less, if small.

The bundled language model, or a GGUF file (--model) in --dtype: one row, greedy, after a prompt of 64. Beside both, a
call for each block. All ways run in turn in one process, since they are the same program; medians of the rounds, by the
clock and by processor time. Without a C compiler there is no such kernel, and nothing is measured.
"""

import time
from pathlib import Path
from typing import Any

from harness import in_turn, options, summary, write


def main() -> None:
    given = options(__doc__ or "", model=("demo-lm", "bundled, or a file"), dtype=("auto", "of its weights"),
                    tokens=(64, "tokens to write"))  # fmt: skip
    if given.smoke:
        given.tokens = 4
    import torch

    import qkv
    from qkv.adapt import native, row_layers
    from qkv.generation.decoder import Decoder
    from qkv.generation.sequence import DecodeOptions

    torch.set_num_threads(given.threads)
    if native.library() is None:
        print("skipped: no compiled kernels here, so nothing was measured and nothing written")
        return
    core = qkv.load(given.model, device="cpu", dtype=given.dtype).core
    blocks = [block for block in core.modules() if type(block) is row_layers.RowBlock]
    stacks = {block: block.stack for block in blocks}
    texts: dict[str, list[int]] = {}

    @torch.inference_mode()
    def run(way: str) -> tuple[float, float]:
        for block in blocks:
            block.__class__ = row_layers.Block if way == "parts" else row_layers.RowBlock  # type: ignore[assignment]
            block.stack = stacks[block] if way == "one call" else {}
        decoder = Decoder(core, DecodeOptions())
        token, found = decoder.prefill([list(range(5, 69))], given.tokens).argmax(-1), list[int]()
        began, busy = time.perf_counter(), time.process_time()
        for _ in range(given.tokens):
            token = decoder.decode(token).argmax(-1)
            found.append(int(token))
        texts[way] = found
        return tuple(1000 * t / given.tokens for t in (time.perf_counter() - began, time.process_time() - busy))  # type: ignore[return-value]

    rounds = in_turn({way: lambda way=way: run(way) for way in ("one call", "a call each", "parts")}, given.rounds)
    names = ("milliseconds_a_token", "processor_milliseconds")
    found: dict[str, Any] = {
        way: {name: summary([each[n] for _, each in turns], 3) for n, name in enumerate(names)}
        for way, turns in rounds.items()}  # fmt: skip
    ratio = {name: {way: round(found["one call"][name]["median"] / found[way][name]["median"], 3)
                    for way in ("a call each", "parts")} for name in names}  # fmt: skip
    given.model = Path(given.model).name
    write("block_call", __doc__ or "", given, blocks=len(blocks), **found, ratio=ratio,
          same_text=texts["one call"] == texts["a call each"] == texts["parts"])  # fmt: skip


if __name__ == "__main__":
    main()
