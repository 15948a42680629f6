"""Data of any size in one command: peak memory, time to the first step, encoding rate against `tokenizers` alone.

Each run is a process of its own over a file made by repetition with noise: twice, the second time from the cache.
    python bench/own_size.py --text 3 30 300 --pairs 100000 1000000 --labels 800000
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WORDS = ["model.width=64", "training.steps=2", "training.evaluate_every=2", "check.sentences=2", "training.patience=0"]


def write_text(path: Path, source: Path, size: int) -> None:
    """Lines of a text again and again, with a word changed in half of them."""
    lines, draw, written = source.read_text(encoding="utf-8").split("\n"), random.Random(0), 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            for line in lines:
                words = line.split(" ")
                if len(words) > 3 and draw.random() < 0.5:
                    words[draw.randrange(len(words))] += draw.choice("aeiou")
                written += file.write(" ".join(words) + "\n")


def write_pairs(path: Path, source: Path, rows: int) -> None:
    """Pairs of a file again and again, the later ones longer by a drawn character and word."""
    found = [line.split("\t")[:2] for line in source.read_text(encoding="utf-8-sig").split("\n") if "\t" in line]
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for i in range(rows):
            english, chinese = found[i % len(found)]
            if i >= len(found):
                english, chinese = f"{english} {draw.choice(found)[0]}", chinese + draw.choice(found)[1]
            file.write(f"{chinese}\t{english}\n")


def write_labels(path: Path, source: Path, rows: int) -> None:
    """A JSON list of sixty words each, drawn from a text, with one of three labels."""
    words, draw = source.read_text(encoding="utf-8").split(), random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for i in range(rows):
            row = json.dumps({"text": " ".join(draw.choices(words, k=60)), "label": i % 3})
            file.write(f"{',' if i else '['}\n{row}")
        file.write("\n]\n")


def train(file: Path, out: Path, *words: str) -> dict[str, Any]:
    """What a run takes: seconds of encoding and until the first step, and the peak of the process in MB."""
    start, times = time.perf_counter(), dict[str, float]()
    command = [sys.executable, "-m", "qkv.cli", "train", str(file), f"--out={out}", *WORDS, *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        for key in ("encoding", "vocabulary from", "step 1"):
            if line.lstrip().startswith(key):
                times.setdefault(key, time.perf_counter() - start)
    _, status, usage = os.wait4(process.pid, 0)
    first = times.get("step 1", float("nan"))
    return {"rc": os.waitstatus_to_exitcode(status), "first_step_s": round(first, 1),
            "peak_mb": round(usage.ru_maxrss / 1e3)}


def rate_encoding(file: Path, model: Path) -> dict[str, float]:
    """MB a second of `tokenizers` alone, in batches, and of ours, in turn in this process."""
    from qkv.data.bad_rows import BadRowPolicy
    from qkv.tokenizers import tokenizer as tokenizers
    from qkv.training import large_text

    made = tokenizers.load(model)
    assert made is not None
    blocks = file.read_bytes()[:20_000_000].decode("utf-8", "ignore").splitlines(keepends=True)
    texts = ["".join(blocks[i : i + 1000]) for i in range(0, len(blocks), 1000)]
    part = file.with_name("part.txt")
    part.write_text("".join(texts), encoding="utf-8")
    best = {"tokenizers": 0.0, "qkv": 0.0}
    for _ in range(3):
        start = time.perf_counter()
        for i in range(0, len(texts), 64):
            made.backend.encode_batch_fast(texts[i : i + 64], add_special_tokens=False)
        best["tokenizers"] = max(best["tokenizers"], part.stat().st_size / 1e6 / (time.perf_counter() - start))
        os.environ["QKV_CACHE"] = tempfile.mkdtemp(dir=file.parent)
        text = large_text.LargeText((large_text.scan_text(part),), BadRowPolicy())
        start = time.perf_counter()
        text.encode(made, documents=False)
        best["qkv"] = max(best["qkv"], part.stat().st_size / 1e6 / (time.perf_counter() - start))
    return {key: round(value, 2) for key, value in best.items()}


def main() -> None:
    """Print a line of JSON for each size."""
    from qkv.paths import data_dir

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=float, nargs="*", default=[3, 30], help="megabytes")
    parser.add_argument("--pairs", type=int, nargs="*", default=[100_000], help="rows")
    parser.add_argument("--labels", type=int, nargs="*", default=[], help="rows of a JSON list")
    args = parser.parse_args()
    sources = data_dir() / "lm" / "tinyshakespeare" / "input.txt", data_dir() / "mt" / "tatoeba_cmn_eng" / "cmn.txt"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["QKV_CACHE"] = str(folder / "cache")
        for kind, size in ((part, n) for part in ("text", "pairs", "labels") for n in getattr(args, part)):
            file = folder / {"text": "data.txt", "pairs": "data.tsv", "labels": "data.json"}[kind]
            if kind == "text":
                write_text(file, sources[0], int(size * 1e6))
            elif kind == "pairs":
                write_pairs(file, sources[1], int(size))
            else:
                write_labels(file, sources[0], int(size))
            first, again = (train(file, folder / f"{kind}{size}{run}") for run in "ab")
            print(json.dumps({kind: size, "first": first, "again": again}), flush=True)
        if args.text:
            os.environ["QKV_CACHE"] = str(folder / "rate")
            print(json.dumps({"MB/s": rate_encoding(folder / "data.txt", folder / f"text{args.text[-1]}a")}))
    print("peak of this process's children:", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1000, "MB")


if __name__ == "__main__":
    main()
