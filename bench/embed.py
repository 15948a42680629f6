"""MiniLM's vectors of 1,000 sentences come at least twice as fast as from sentence-transformers, and are the same."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import in_turn, middle, options, summary, write

READ = """
import json, os, sys, time, torch
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
path, texts = sys.argv[1], json.load(sys.stdin)
"""
TAKE = """
embed(texts[:32])
start = time.perf_counter()
vectors = torch.as_tensor(embed(texts))
print(json.dumps([time.perf_counter() - start, vectors[:, :8].tolist()]))
"""
WAYS = {
    "qkv": "import qkv; embed = qkv.load(path, device='cpu').embed",
    "sentence-transformers":
        "from sentence_transformers import SentenceTransformer; embed = SentenceTransformer(path, device='cpu').encode",
}  # fmt: skip


def main() -> None:
    """Each in processes of its own, in turn; what is timed is the second call of a warm model."""
    given = options(__doc__ or "", model=("", "the directory of all-MiniLM-L6-v2"), texts=(1000, "sentences"))
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from real.test_minilm import draw_sentences

    texts = draw_sentences(64 if given.smoke else given.texts)
    turns = in_turn({name: lambda name=name: run_alone(name, given.model, texts) for name in WAYS}, given.rounds,
                    warm=False)
    found = {name: [result for _, result in rows] for name, rows in turns.items()}
    apart = max(abs(a - b) for one, other in zip(found["qkv"][0][1], found["sentence-transformers"][0][1], strict=True)
                for a, b in zip(one, other, strict=True))
    rates = {name: [len(texts) / seconds for seconds, _ in rows] for name, rows in found.items()}
    write("embed", __doc__ or "", given, sentences_per_second={n: summary(r, 1) for n, r in rates.items()},
          ratio=round(middle(rates["qkv"]) / middle(rates["sentence-transformers"]), 3), largest_difference=apart,
          limit="the matrix products of the encoder")


def run_alone(name: str, model: str, texts: list[str]) -> Any:
    """Seconds and the first numbers of each vector, from a fresh process."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", READ + WAYS[name] + TAKE, model],
                          input=json.dumps(texts), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
