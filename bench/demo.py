"""The demo keeps its promises: minutes of training, exact match >= 95 %, and in >= 90 % the noun flips with the verb.

One run of `qkv demo --json` for each of `--rounds` seeds, each in a process and a directory of its own.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import options, summary, write

CLAIM = "The demo keeps its promises."
KEYS = ("exact_match", "bleu", "longer_exact_match", "longer_bleu", "flip_rate", "train_seconds", "total_seconds",
        "first_readable_seconds", "cut_effect", "others_before", "others_after")  # fmt: skip


def main() -> None:
    """Run the seeds one after another."""
    given = options(CLAIM)
    runs = []
    for seed in range(given.rounds if not given.smoke else 1):
        with tempfile.TemporaryDirectory() as folder:
            how = ["--model", "demo"] if given.smoke else ["--out", str(Path(folder) / "run")]
            command = [sys.executable, "-m", "qkv.cli", "demo", "--json", "--seed", str(seed), *how]
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
            if done.returncode:
                raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
            runs.append(json.loads(done.stdout))
        print({key: runs[-1].get(key) for key in KEYS})
    found = {key: summary([r[key] for r in runs], 4) for key in KEYS if key in runs[0]}
    parts = [r["seconds"] for r in runs]
    found["seconds"] = {part: summary([p[part] for p in parts], 2) for part in parts[0]}
    whole = ("edge_moves", "strongest", "severed", "cut_head", "head_before", "head_after")
    found |= {key: [r[key] for r in runs] for key in whole}
    write("demo", CLAIM, given, **found, signature=runs[0]["signature"], continuation=runs[0]["continuation"])


if __name__ == "__main__":
    main()
