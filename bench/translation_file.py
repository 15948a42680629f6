"""A file whose lines come in any order: `qkv translate` reads groups of lines that grow, and sorts them by length.

The model is that of translation_base.py: Transformer-base in bf16 with random weights and translations about as long
as their sources. "32 lines" is how it was read before; "growing" is what `qkv translate MODEL - < FILE` does; "one
group" sorts the whole file, and writes nothing until all is read.
"""

import io
import random
import sys
from collections.abc import Iterable
from typing import Any

from harness import in_turn, middle, options, summary, write
from translation_base import BEAMS, counting, sentences, shape


def main() -> None:
    """Each way of reading in turn, and whether the translations are the same."""
    given = options(__doc__ or "", lines=(512, "lines of the file"), seed=(0, "of weights and sentences"))
    import torch

    from qkv.adapt.onednn_linear import pack_weights
    from qkv.cli.common import BATCH, group_lines
    from qkv.cli.translate import ROWS

    torch.set_num_threads(given.threads)
    sys.stdin = io.StringIO()  # as where a file is read: nobody types
    model = counting(shape(given.smoke), given.seed)
    model.core.to(torch.bfloat16).tie()
    pack_weights(model.core)
    lines: list[Any] = sentences(40 if given.smoke else given.lines, model.spec.vocabulary - 1, given.seed)
    random.Random(given.seed).shuffle(lines)
    ways = {"32 lines": BATCH, "growing": ROWS // BEAMS}
    groups = {name: list(group_lines(iter(lines), most)) for name, most in ways.items()} | {"one group": [lines]}
    times = in_turn({n: lambda g=g: translated(model, g) for n, g in groups.items()}, given.rounds, warm=False)
    rates = {name: sum(map(len, found[-1][1])) / middle([t for t, _ in found]) for name, found in times.items()}
    exact = times["32 lines"][-1][1]
    write(
        "translation_file",
        __doc__ or "",
        given,
        target_tokens_per_second={name: round(rate, 1) for name, rate in rates.items()},
        seconds={name: summary([t for t, _ in found], 3) for name, found in times.items()},
        times_as_fast_as_32_lines={name: round(rate / rates["32 lines"], 3) for name, rate in rates.items()},
        same_as_32_lines={
            name: round(sum(a == b for a, b in zip(found[-1][1], exact, strict=True)) / len(exact), 4)
            for name, found in times.items()
        },
        groups={name: [len(part) for part in parts] for name, parts in groups.items()},
    )


def translated(model: Any, groups: Iterable[list[Any]]) -> list[list[int]]:
    """What the model says to each line, group by group."""
    return [result.tokens for part in groups for result in model.translate(part, beam=BEAMS, max_new_tokens=128)]


if __name__ == "__main__":
    main()
