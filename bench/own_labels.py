"""Labelled texts in one command: `qkv train FILE` with defaults beside TF-IDF with logistic regression, and fastText.

Seven sets of QKV_DATA/cls/sentconv, and three of Chinese sentences: the novel that each is from, which part of 红楼梦
(before or after chapter 81), the first word of its English translation (its pronouns taken out); where a set has no
test file, every tenth row is one. Each program runs in a process of its own and learns from the same rows (fastText: 25
epochs; pairs of words, of characters in Chinese). Peers: pip install scikit-learn fasttext-wheel, here or in the
environment whose python is given as --peers.
    python bench/own_labels.py --seconds 180 --sets sst2 trec --rows 2000
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import harness

SETS = {"sst2": ("stsa.binary.train", "stsa.binary.test"), "sst5": ("stsa.fine.train", "stsa.fine.test"),
        "trec": ("TREC.train.all", "TREC.test.all"), "cr": ("custrev.all", ""), "mr": ("rt-polarity.all", ""),
        "subj": ("subj.all", ""), "mpqa": ("mpqa.all", "")}
NOVELS = ("hongloumeng", "liaozhai", "rulinwaishi", "sanguoyanyi", "shuihuzhuan")
EACH = 3000  # sentences of each
OPENINGS = ("i", "you", "he", "she", "the")
PEERS = {
    "tf-idf": """
import sys
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
counts = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, analyzer=sys.argv[3])
model = make_pipeline(counts, LogisticRegression(C=10, max_iter=1000))
(x, y), (a, b) = [zip(*(line.rstrip("\\n").split("\\t") for line in open(p, encoding="utf-8"))) for p in sys.argv[1:3]]
print(model.fit(x, y).score(a, b))
""",
    "fasttext": """
import sys, tempfile, fasttext
rows = [[line.rstrip("\\n").split("\\t") for line in open(p, encoding="utf-8")] for p in sys.argv[1:3]]
rows = [[(" ".join(t) if sys.argv[3] == "char" else t, label) for t, label in part] for part in rows]
with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
    file.writelines(f"__label__{label} {text}\\n" for text, label in rows[0]); file.flush()
    model = fasttext.train_supervised(file.name, epoch=25, wordNgrams=2, verbose=0)
right = [model.f.predict(text + "\\n", 1, 0.0, "strict")[0][1] == f"__label__{label}" for text, label in rows[1]]
print(sum(right) / len(right))
""",
}


def read_novel(name: str) -> str:
    """The text of a Chinese novel."""
    return Path(os.environ["QKV_DATA"], "lm", "chinese_novels", f"{name}.txt").read_text(encoding="utf-8")


def list_sentences(texts: dict[str, str], most: int) -> list[list[str]]:
    """As many sentences of each text, and which it is."""
    rows: list[list[str]] = []
    for name, text in texts.items():
        found = [part for part in re.split(r"[\s。！？]+", text) if 8 <= len(part) <= 60]
        random.Random(0).shuffle(found)
        rows += [[name, part] for part in found[:most]]
    random.Random(1).shuffle(rows)
    return rows


def read_novels() -> list[list[str]]:
    """Sentences with the novel that each is from."""
    return list_sentences({name: read_novel(name) for name in NOVELS}, EACH)


def read_parts() -> list[list[str]]:
    """Sentences of 红楼梦 with the part that each is from: the first 80 chapters, or those by a later hand."""
    text = read_novel("hongloumeng")
    later = text.index("第八十一回")
    return list_sentences({"first": text[:later], "later": text[later:]}, 2 * EACH)


def read_openings() -> list[list[str]]:
    """Chinese sentences without their pronouns, with the first word of the English one."""
    text = Path(os.environ["QKV_DATA"], "mt", "tatoeba_cmn_eng", "cmn.txt").read_text(encoding="utf-8-sig")
    pairs = [(english.split()[0].lower(), re.sub("[我你他她您它们]", "", chinese))
             for english, chinese, *_ in (line.split("\t") for line in text.splitlines() if line.count("\t") > 1)]
    rows = [[word, chinese] for word, chinese in dict.fromkeys(pairs) if word in OPENINGS and len(chinese) > 3]
    random.Random(1).shuffle(rows)
    return rows


CHINESE = {"novels": read_novels, "parts": read_parts, "openings": read_openings}


def write_split(name: str, folder: Path, most: int) -> tuple[Path, Path]:
    """The rows of a set as text, tab, label: those to learn from, at most so many, and the test."""
    where = Path(os.environ["QKV_DATA"], "cls", "sentconv")
    parts = SETS.get(name, ("", ""))
    texts = ((where / part).read_bytes().decode("utf-8", "replace") if part else "" for part in parts)
    train, test = ([line.split(" ", 1) for line in text.split("\n") if line[2:].strip()] for text in texts)
    train = CHINESE[name]() if name in CHINESE else train
    if not test:
        train, test = [row for n, row in enumerate(train) if n % 10], train[::10]
    random.Random(0).shuffle(train)  # fastText reads rows as they stand, and some files are sorted by label
    train = train[:most]
    files = folder / f"{name}.tsv", folder / f"{name}-test.tsv"
    for file, rows in zip(files, (train, test), strict=True):
        file.write_text("".join(f"{text.strip()}\t{label}\n" for label, text in rows), encoding="utf-8")
    return files


def run_ours(train: Path, test: Path, words: list[str]) -> dict[str, Any]:
    """Accuracy on the test, the seconds of the whole command, and the steps that were made."""
    out, qkv, start = train.with_suffix(""), [sys.executable, "-m", "qkv.cli"], time.perf_counter()
    subprocess.run([*qkv, "train", str(train), f"--out={out}", "-q", *words], check=True, capture_output=True)
    took = time.perf_counter() - start
    found = subprocess.run([*qkv, "eval", str(out), "--accuracy", str(test), "--json"], check=True, capture_output=True)
    events = [json.loads(line) for line in (out / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = max(event["step"] for event in events if event["kind"] == "step")
    return {"accuracy": round(json.loads(found.stdout)["accuracy"], 4), "seconds": round(took), "steps": steps}


def measure_set(name: str, most: int, peers: str, words: list[str]) -> dict[str, Any]:
    """What each reaches on a set, with the share of the commonest label."""
    with tempfile.TemporaryDirectory() as folder:
        train, test = write_split(name, Path(folder), most)
        labels = Counter(line.rsplit("\t", 1)[1] for line in test.read_text(encoding="utf-8").splitlines())
        unit = "char" if name in CHINESE else "word"
        found: dict[str, Any] = {"commonest": round(max(labels.values()) / labels.total(), 4)}
        for peer, program in PEERS.items():
            start = time.perf_counter()
            ran = subprocess.run([peers, "-c", program, train, test, unit], capture_output=True, text=True, check=False)
            said = (ran.stderr.strip().splitlines() or ["no answer"])[-1]
            found[peer] = {"accuracy": round(float(ran.stdout), 4), "seconds": round(time.perf_counter() - start)} if (
                ran.returncode == 0) else f"not measured: {said}"
        found["qkv"] = run_ours(train, test, words)
    return found


def main() -> None:
    """Print a line for each set, and write all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=[*SETS, *CHINESE], default=[*SETS, *CHINESE])
    parser.add_argument("--rows", type=int, default=10**9, help="learn from so many at most")
    parser.add_argument("--seconds", type=float, default=180.0, help="training.seconds of ours")
    parser.add_argument("--peers", default=sys.executable, help="the python that has scikit-learn and fasttext")
    parser.add_argument("--out", type=Path, default=harness.RESULTS / "own_labels.json")
    parser.add_argument("words", nargs="*", help="settings of ours, such as training.dropout=0.2")
    given = parser.parse_args()
    words = [f"training.seconds={given.seconds:g}", *given.words]
    results = {"machine": harness.machine(), "settings": words, "sets": {}}
    for name in given.sets:
        results["sets"][name] = measure_set(name, given.rows, given.peers, words)
        print(name, json.dumps(results["sets"][name]), flush=True)
        given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
