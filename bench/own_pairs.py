"""Pairs in one command: `qkv train FILE` with defaults beside JoeyNMT's Transformer, in the same minutes.

Multi30k (English to German) and Tatoeba (Chinese to English; the test is of rows that are left out), whole or cut.
JoeyNMT has two settings: the model and optimiser of its `transformer_small.yaml`, and twice that width in batches of
tokens, with a warm-up that fits these minutes; SentencePiece of 4,000 on each side. It is interrupted when its time is
over, and its best checkpoint translates with a beam of 5; ours translates with its defaults. BLEU by sacrebleu.
Peer: pip install joeynmt importlib_metadata "sentencepiece<0.2.1" "protobuf<3.21", in an environment whose python is
given as --peers.
    python bench/own_pairs.py --seconds 600 --sets multi30k tatoeba --peers ENV/bin/python
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import harness

SETS = ("multi30k", "tatoeba")
SHAPES: dict[str, dict[str, Any]] = {
    "small": {"width": 64, "inner": 128, "batch": 10, "unit": "sentence", "every": 2000, "training": {
        "learning_rate": 0.005, "learning_rate_min": 0.0001, "scheduling": "plateau", "patience": 5,
        "decrease_factor": 0.5, "clip_grad_val": 1.0, "label_smoothing": 0.0}},
    "tuned": {"width": 128, "inner": 512, "batch": 1024, "unit": "token", "every": 200, "training": {
        "learning_rate": 0.002, "learning_rate_min": 0.0001, "scheduling": "warmupinversesquareroot",
        "learning_rate_warmup": 200, "label_smoothing": 0.1}},
}
VOCABULARY = """
import sys, sentencepiece
folder, size = sys.argv[1], int(sys.argv[2])
for side in ("src", "trg"):
    sentencepiece.SentencePieceTrainer.train(input=f"{folder}/train.{side}", model_prefix=f"{folder}/{side}",
        vocab_size=size, model_type="unigram", character_coverage=1.0, unk_id=0, pad_id=1, bos_id=2, eos_id=3,
        hard_vocab_limit=False, minloglevel=2)
    with open(f"{folder}/{side}.vocab") as file:
        names = [line.split("\\t")[0] for line in file]
    with open(f"{folder}/{side}.txt", "w") as file:
        file.writelines(name + "\\n" for name in names[4:])
"""

JOEY = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a program in the background ignores
import torch.optim.lr_scheduler as schedulers
class Plateau(schedulers.ReduceLROnPlateau):
    def __init__(self, *given, verbose=None, **named):  # which torch no longer takes, and JoeyNMT still gives
        super().__init__(*given, **named)
schedulers.ReduceLROnPlateau = Plateau
from joeynmt.__main__ import main
main()
"""


def write_split(name: str, folder: Path, most: int) -> dict[str, list[tuple[str, str]]]:
    """The pairs of a set to learn from, for validation and for the test, also as files of one side each."""
    where, draw = Path(os.environ["QKV_DATA"], "mt"), random.Random(0)
    if name == "multi30k":
        def read(part: str) -> list[tuple[str, str]]:
            sides = ((where / "multi30k" / f"{part}.{side}").read_text(encoding="utf-8") for side in ("en", "de"))
            return list(zip(*(side.splitlines() for side in sides), strict=True))

        parts = {"train": read("train"), "dev": read("val"), "test": read("test_2016_flickr")}
    else:
        lines = (where / "tatoeba_cmn_eng" / "cmn.txt").read_text(encoding="utf-8-sig").splitlines()
        rows = [(zh, en) for en, zh in (line.split("\t")[:2] for line in lines if "\t" in line)]
        held = set(draw.sample(sorted({zh for zh, _ in rows}), 2000))  # with all translations of each
        apart = list({zh: (zh, en) for zh, en in rows if zh in held}.values())
        parts = {"train": [row for row in rows if row[0] not in held], "dev": apart[:1000], "test": apart[1000:]}
    draw.shuffle(parts["train"])
    parts["train"] = parts["train"][:most]
    for part, rows in parts.items():
        for n, side in enumerate(("src", "trg")):
            (folder / f"{part}.{side}").write_text("".join(f"{row[n]}\n" for row in rows), encoding="utf-8")
    return parts


def write_config(folder: Path, shape: dict[str, Any]) -> Path:
    """The file that JoeyNMT reads, in JSON, which is YAML too (but for 1e-05, a text in YAML)."""
    def side(name: str) -> dict[str, Any]:
        return {"lang": name, "level": "bpe", "max_length": 100, "lowercase": False, "voc_min_freq": 1,
                "voc_file": str(folder / f"{name}.txt"), "tokenizer_type": "sentencepiece",
                "tokenizer_cfg": {"model_file": str(folder / f"{name}.model"), "pretokenizer": "none"}}

    half = {"type": "transformer", "num_layers": 3, "num_heads": 4, "dropout": 0.1, "layer_norm": "pre",
            "hidden_size": shape["width"], "ff_size": shape["inner"], "activation": "relu",
            "embeddings": {"embedding_dim": shape["width"], "scale": True}}
    found = {
        "name": "own_pairs", "joeynmt_version": "2.3.0", "model_dir": str(folder / "model"), "use_cuda": False,
        "fp16": False, "random_seed": 42,
        "data": {**{part: str(folder / part) for part in ("train", "dev", "test")}, "dataset_type": "plain",
                 "sample_dev_subset": 100, "src": side("src"), "trg": side("trg"),
                 "special_symbols": {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>",
                                     "eos_token": "</s>", "unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3}},
        "testing": {"n_best": 1, "beam_size": 5, "beam_alpha": 1.0, "batch_size": 32, "batch_type": "sentence",
                    "max_output_length": 50, "eval_metrics": ["bleu"], "sacrebleu_cfg": {"tokenize": "13a"}},
        "training": {"optimizer": "adamw", "adam_betas": [0.9, 0.999], "weight_decay": 0.0, "loss": "crossentropy",
                     "batch_size": shape["batch"], "batch_type": shape["unit"], "normalization": "tokens",
                     "epochs": 10_000, "updates": 10_000_000, "validation_freq": shape["every"], "logging_freq": 100,
                     "early_stopping_metric": "loss", "shuffle": True, "overwrite": True, "print_valid_sents": [0],
                     "keep_best_ckpts": 1, **shape["training"]},
        "model": {"initializer": "xavier_uniform", "bias_initializer": "zeros", "embed_initializer": "xavier_uniform",
                  "tied_embeddings": False, "tied_softmax": True, "encoder": half, "decoder": half},
    }
    path = folder / "joey.yaml"
    path.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return path


def run_joey(python: str, folder: Path, shape: dict[str, Any], seconds: float) -> list[str]:
    """What JoeyNMT translates after so many seconds of training, its vocabulary and its start among them."""
    start, config = time.perf_counter(), write_config(folder, shape)
    subprocess.run([python, "-c", VOCABULARY, folder, "4000"], check=True, capture_output=True)
    with (folder / "joey.log").open("w") as log:
        process = subprocess.Popen([python, "-c", JOEY, "train", config, "--skip-test"], stdout=log, stderr=log)
        try:
            process.wait(timeout=seconds - (time.perf_counter() - start))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait()
    out = folder / "joey"
    subprocess.run([python, "-c", JOEY, "test", config, "-o", out], check=True, capture_output=True)
    return Path(f"{out}.test").read_text(encoding="utf-8").splitlines()


def run_ours(folder: Path, rows: list[tuple[str, str]], words: list[str]) -> list[str]:
    """What a model of ours translates that was trained with one command."""
    file, out, qkv = folder / "pairs.tsv", folder / "ours", [sys.executable, "-m", "qkv.cli"]
    file.write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    subprocess.run([*qkv, "train", str(file), f"--out={out}", "-q", *words], check=True, capture_output=True)
    with (folder / "test.src").open("rb") as test:
        done = subprocess.run([*qkv, "translate", str(out), "-q"], stdin=test, check=True, capture_output=True)
    return done.stdout.decode("utf-8").splitlines()


def measure_set(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """BLEU of each program on a set, and the seconds of its training and translation together."""
    import sacrebleu

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        parts = write_split(name, folder, given.rows)
        wanted = [row[1] for row in parts["test"]]
        runs: dict[str, Any] = {f"joeynmt {key}": partial(run_joey, given.peers, folder, SHAPES[key], given.seconds)
                                for key in given.shapes}
        words = [f"training.seconds={given.seconds:g}", *given.words]
        for who, run in {**runs, "qkv": partial(run_ours, folder, parts["train"], words)}.items():
            start = time.perf_counter()
            try:
                lines = run()
            except subprocess.CalledProcessError as e:
                found[who] = f"not measured: {(e.stderr or b'').decode().strip().splitlines()[-1:]}"
                print(name, who, found[who], flush=True)
                continue
            assert len(lines) == len(wanted), (who, len(lines))
            found[who] = {"bleu": round(sacrebleu.corpus_bleu(lines, [wanted]).score, 2),
                          "seconds": round(time.perf_counter() - start)}  # of training and translation
            print(name, who, found[who], lines[:2], flush=True)
    return {"rows": len(parts["train"]), "test": len(wanted), **found}


def main() -> None:
    """Print a line for each program and set, and write all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=list(SHAPES), help="of JoeyNMT")
    parser.add_argument("--rows", type=int, default=10**9, help="learn from so many at most")
    parser.add_argument("--seconds", type=float, default=600.0, help="of training, of each")
    parser.add_argument("--peers", default=sys.executable, help="the python that has joeynmt")
    parser.add_argument("--out", type=Path, default=harness.RESULTS / "own_pairs.json")
    parser.add_argument("words", nargs="*", help="settings of ours, such as training.dropout=0.2")
    given = parser.parse_args()
    results: dict[str, Any] = {"machine": harness.machine(), "seconds": given.seconds, "sets": {}}
    for name in given.sets:
        results["sets"][name] = measure_set(name, given)
        given.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
