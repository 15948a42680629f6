"""The planner's defaults beside settings drawn by lot: the same data, the same seconds, one core each.

Each run is `qkv train FILE training.seconds=S` in a process of its own, bound to one core (as many at a time as there
are cores), first without a word, then with settings drawn from SPACE (`--hands`, by `--seed`). Judged by BLEU on test
rows for pairs (Multi30k English to German, Tatoeba Chinese to English), by accuracy on test rows for labels (the sets
of own_labels.py), by nats a character of the held-out end for text (tiny shakespeare, 红楼梦), each whole or cut to its
first `rows` (of text: characters), such as multi30k:5000.
    python bench/hand_settings.py --sets multi30k tatoeba:5000 sst2:2000 shakespeare --seconds 180 --hands 30
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle
from pathlib import Path
from queue import Queue
from typing import Any

import harness
import own_labels
import own_pairs

SPACE: dict[str, tuple[Any, ...]] = {
    "model.width": (64, 96, 128, 192, 256), "model.layers": (1, 2, 3, 4), "model.dropout": (0, 0.1, 0.2, 0.3),
    "training.lr": (0.002, 0.004, 0.008), "training.tokens": (512, 1024, 2048),
    "training.optimizer": ("muon", "muon", "adamw"),  # the better one twice
}
KINDS: dict[str, dict[str, tuple[Any, ...]]] = {  # what else is drawn
    "bleu": {"tokenizer.size": (1000, 2000, 4000, 8000), "training.label_smoothing": (0, 0.1)},
    "accuracy": {"tokenizer.size": (1000, 4000, 16000), "training.label_smoothing": (0, 0.1)},
    "nats": {"model.context": (64, 128, 256)},
}
TEXTS = {"shakespeare": ("tinyshakespeare", "input.txt"), "hongloumeng": ("chinese_novels", "hongloumeng.txt")}


def find_measure(name: str) -> str:
    """What judges a set: bleu, accuracy or nats."""
    return "bleu" if name in own_pairs.SETS else "nats" if name in TEXTS else "accuracy"


def draw_settings(name: str, count: int, seed: int) -> list[list[str]]:
    """No words, then so many lists of settings drawn by lot."""
    lot, space = random.Random(seed), SPACE | KINDS[find_measure(name)]
    hands = [[f"{key}={lot.choice(values)}" for key, values in space.items()] for _ in range(count)]
    return [[], *hands]


def write_data(name: str, rows: int, folder: Path) -> Path:
    """The file to learn from; of pairs also the two sides of the test, of labels the test."""
    measure = find_measure(name)
    if measure == "accuracy":
        return own_labels.write_split(name, folder, rows)[0]
    file = folder / ("train.tsv" if measure == "bleu" else "train.txt")
    if measure == "bleu":
        pairs = own_pairs.write_split(name, folder, rows)["train"]
        file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    else:
        text = Path(os.environ["QKV_DATA"], "lm", *TEXTS[name]).read_text(encoding="utf-8")
        file.write_text(text[:rows], encoding="utf-8")
    return file


def run_one(words: list[str], *, name: str, file: Path, seconds: float, cores: "Queue[int]") -> dict[str, Any]:
    """What one run comes to, on a core that is free."""
    core = cores.get()
    bound, qkv = ["taskset", "-c", str(core)], [sys.executable, "-m", "qkv.cli"]
    own = os.environ | {"OMP_NUM_THREADS": "1"}
    try:
        with tempfile.TemporaryDirectory() as out:
            typed = ["train", str(file), f"--out={out}/model", "-q", f"training.seconds={seconds:g}", *words]
            done = subprocess.run([*bound, *qkv, *typed], capture_output=True, text=True, env=own)
            if done.returncode:
                return {"words": words, "error": done.stderr.strip().splitlines()[-1:]}
            log = (Path(out) / "model" / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
            events = [json.loads(line) for line in log]
            steps = max(event["step"] for event in events if event["kind"] == "step")
            found: dict[str, Any] = {"words": words, "steps": steps}
            measure = find_measure(name)
            if measure == "nats":
                value = round(min(event["loss"] for event in events if event["kind"] == "evaluation"), 3)
            elif measure == "accuracy":
                value = judge_labels([*bound, *qkv, "eval", f"{out}/model", "--accuracy"], file, own)
            else:
                value = judge_pairs([*bound, *qkv, "translate", f"{out}/model", "-q"], file.parent, own)
            return found | {measure: value}
    finally:
        cores.put(core)


def judge_pairs(translate: list[str], folder: Path, own: dict[str, str]) -> float:
    """BLEU on the test rows."""
    import sacrebleu

    with (folder / "test.src").open("rb") as test:
        done = subprocess.run(translate, stdin=test, capture_output=True, check=True, env=own)
    wanted = (folder / "test.trg").read_text(encoding="utf-8").splitlines()
    lines = done.stdout.decode("utf-8").splitlines()
    assert len(lines) == len(wanted), (len(lines), len(wanted))
    return round(sacrebleu.corpus_bleu(lines, [wanted]).score, 2)


def judge_labels(evaluate: list[str], file: Path, own: dict[str, str]) -> float:
    """Accuracy on the test rows."""
    test = file.with_name(f"{file.stem}-test.tsv")
    done = subprocess.run([*evaluate, str(test), "--json"], capture_output=True, check=True, env=own)
    return round(json.loads(done.stdout)["accuracy"], 4)


def compare(which: str, given: argparse.Namespace) -> dict[str, Any]:
    """The default and the drawn settings on one set, and the default's share of the best."""
    name, _, rows = which.partition(":")
    cores: Queue[int] = Queue()
    for core, _ in zip(cycle(sorted(os.sched_getaffinity(0))), range(given.cores), strict=False):
        cores.put(core)
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(given.cores) as pool:
        file = write_data(name, int(rows or 10**9), Path(temporary))
        run = partial(run_one, name=name, file=file, seconds=given.seconds, cores=cores)
        found = list[dict[str, Any]]()
        for one in pool.map(run, draw_settings(name, given.hands, given.seed)):
            found.append(one)
            print(which, one, flush=True)
    key = find_measure(name)
    judged = [one[key] for one in found[1:] if key in one]
    own, best = found[0][key], min(judged) if key == "nats" else max(judged)
    share = best / own if key == "nats" else own / best if best else None
    return {"default": own, "best": best, "of_best": share and round(share, 3), "runs": found}


def main() -> None:
    """Print a line for each run, and write all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["multi30k", "tatoeba", "shakespeare"])
    parser.add_argument("--seconds", type=float, default=180.0, help="of training, on one core")
    parser.add_argument("--hands", type=int, default=30, help="settings that are drawn by lot")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time")
    parser.add_argument("--out", type=Path, default=harness.RESULTS / "hand_settings.json")
    given = parser.parse_args()
    results: dict[str, Any] = {"machine": harness.machine(), "seconds": given.seconds, "hands": given.hands, "sets": {}}
    for which in given.sets:
        results["sets"][which] = compare(which, given)
        given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
