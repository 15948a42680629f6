"""100,000 short texts in a file: two workers of a thread each answer it at least 1.8 times as fast as one.

`qkv embed demo-bert texts.txt --out DIR --workers 1|2 --threads 1`, in turn, each as a program of its own; the time is
that of the whole program, with its start. Texts are three to nine words of Shakespeare. Both must give the same rows.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import in_turn, middle, options, summary, write

TEXT = Path("lm/tinyshakespeare/input.txt")


def main() -> None:
    """One worker and two, in turn."""
    given = options(__doc__ or "", texts=(100_000, "texts"), model=("demo-bert", "a MODEL that embeds"))
    place = Path(os.environ.get("QKV_DATA", "data")) / TEXT
    if not place.is_file():
        print(f"skipped: no {TEXT} in QKV_DATA, so nothing was measured and nothing written")
        return
    words, draw = place.read_text(encoding="utf-8").split(), random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "texts.txt")
        starts = [draw.randrange(len(words) - 9) for _ in range(200 if given.smoke else given.texts)]
        file.write_text("".join(" ".join(words[n : n + draw.randint(3, 9)]) + "\n" for n in starts), encoding="utf-8")
        ways = {f"{n} workers": lambda n=n: answer(given, file, n) for n in (1, 2)}
        rounds = in_turn(ways, given.rounds, warm=False)
    seconds = {way: [result[0] for _, result in turns] for way, turns in rounds.items()}
    rows = {result[1] for turns in rounds.values() for _, result in turns}
    ratio = round(middle(seconds["1 workers"]) / middle(seconds["2 workers"]), 3)
    write("batch", __doc__ or "", given, seconds={way: summary(each, 2) for way, each in seconds.items()}, ratio=ratio,
          rows_of_each=sorted(rows), goals={"ratio": ">= 1.8"})  # fmt: skip


def answer(given: Any, file: Path, workers: int) -> tuple[float, int]:
    """Seconds of one run into a new directory, and how many different rows it answered."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "qkv", "embed", given.model, str(file), "--out", folder, "--workers",
                        str(workers), "--threads", "1", "-q"], check=True, capture_output=True)  # fmt: skip
        seconds = time.perf_counter() - began
        parts = Path(folder).glob("part-*.jsonl")
        return seconds, len({json.loads(line)["row"] for part in parts for line in part.open(encoding="utf-8")})


if __name__ == "__main__":
    main()
