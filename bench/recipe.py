"""A recipe trained in its time reaches its quality: Multi30k En-De >= 36.0 BLEU on test2016 in 30 minutes on 2 cores.

`bench/recipe.py --name multi30k` (or tatoeba_zh_en, or multi30k_longer of variants.py, …) trains and writes
bench/results/<run>.json and the hypotheses beside it; `--run DIR` writes the same from a run that `qkv train` made,
`--run DIR,DIR,…` from runs that differ by their seed (the first is told in full; of Multi30k all three test sets, of
each run and of all together). `--of N` takes of every N of them in turn the one with the lowest validation loss, as
somebody would who trains N and keeps one; of models that classify it also asks each N together (`--ensemble`).
Of a language model the whole held-out text is read once more.
"""

import json
import math
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from harness import RESULTS, judged, options, write
from variants import configure

CLAIM = "A recipe trained in its time reaches its quality."
WU = "41.02 (transformer_tiny of Wu et al. 2021, the same files, 65M target tokens on 2 GPUs)"
CNN = "83.5 (CNN without word vectors, harvardnlp/sent-conv-torch, which also learnt from the labels of all phrases)"
NANOGPT = "1.4697 nats a character (nanoGPT's README, train_shakespeare_char.py on one A100)"
ANCHORS = {
    "multi30k": WU, "multi30k_longer": WU, "multi30k_agreed": WU, "multi30k_hour": WU,
    "sst2": CNN, "sst2_phrases": CNN, "sst2_sentences": CNN, "shakespeare_longest": NANOGPT,
}  # fmt: skip
GOALS = {
    "multi30k": 36.0, "multi30k_longer": 41.02, "multi30k_agreed": 41.02, "multi30k_hour": 41.02,
    "sst2": 83.5, "sst2_phrases": 83.5, "sst2_sentences": 83.5, "shakespeare_longest": 1.47,
}  # fmt: skip


def main() -> None:
    """Train (or read) the run and write what it reached."""
    given = options(
        CLAIM, name=("multi30k", "the recipe"), run=("", "finished runs' directories, commas between: only write"),
        of=(0, "of every so many runs, the one that does best on validation"),
    )  # fmt: skip
    from qkv.cli.train import Plain
    from qkv.training import recipes

    run = configure("demo_lm" if given.smoke else given.name, smoke=given.smoke)
    with tempfile.TemporaryDirectory() as folder:
        directories = [Path(name) for name in given.run.split(",")] if given.run else [Path(folder)]
        if not given.run:
            recipes.train(run, out=directories[0], report=Plain())
        given.run = ",".join(d.name for d in directories) if given.run else ""  # no path of this machine in the file
        content = {"changes": changes(run, directories[0])} | reached(run, directories[0])
        content |= seeds(directories, given.of) | asked_together(run, directories, given.of)
        content |= three_tests(run, directories)
        hypotheses = directories[0] / "train" / "test.hyp"
        if hypotheses.exists() and not given.smoke and not given.out:
            shutil.copy(hypotheses, RESULTS / f"{run.name}_en_de.test2016.hyp" if "multi30k" in run.name
                        else RESULTS / f"{run.name}.test.hyp")  # fmt: skip
    name = "recipe" if given.smoke else f"{run.name}_en_de" if "multi30k" in run.name else run.name
    told = f" --run {given.run} --of {given.of}" if given.of else ""
    write(name, CLAIM, given, command=f"python bench/recipe.py --name {given.name}{told}", **content)


def changes(run: Any, directory: Path) -> list[str]:
    """What the run was told beyond the recipe, as `qkv train` takes it; seed and threads aside."""
    said = json.loads((directory / "train" / "run.json").read_text(encoding="utf-8"))
    parts = {part: vars(getattr(run, part)) for part in ("model", "tokenizer", "training")}
    own = json.loads(json.dumps(parts, default=vars))
    told = [(part, key, said[part].get(key, value), value) for part, values in own.items()
            for key, value in values.items() if key not in ("seed", "threads")]  # fmt: skip
    return [f"{part}.{key}={found}" for part, key, found, value in told if found != value]


def reached(run: Any, directory: Path) -> dict[str, Any]:
    """What a finished run says of itself: its test, what it took, its curve, and what a language model wrote last."""
    result = json.loads((directory / "train" / "result.json").read_text(encoding="utf-8"))
    log = [json.loads(x) for x in (directory / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    outcome, test = result["outcome"], result["test"]
    key = "test2016_bleu" if "multi30k" in run.name else "test_bleu"
    judged = [event for event in log if event["kind"] == "evaluation"]
    curve = [[e["step"], e.get("loss"), e.get("bleu", e.get("exact_match"))] for e in judged]
    return dict(
        **({key: test["bleu"]} if "bleu" in test else {}), test=test, valid=outcome["metrics"].get("loss"),
        **held_out(run, directory), beam=run.check.beam, seconds=round(outcome["seconds"], 1),
        cpu_seconds=result.get("cpu_seconds"), steps=outcome["steps"], epochs=round(outcome["epochs"], 2),
        target_tokens=outcome["tokens"], precision=outcome["precision"], weights=outcome["weights"],
        goal=GOALS.get(run.name), anchor=ANCHORS.get(run.name), curve=curve,
    )  # fmt: skip


def held_out(run: Any, directory: Path) -> dict[str, Any]:
    """Of a language model: the whole held-out text read once, in bits a character, and its last three samples."""
    import qkv
    from qkv.tasks.evaluate import Perplexity

    text = run.splits().valid
    if not isinstance(text, str):
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "held.txt"
        path.write_text(text, encoding="utf-8", newline="")
        found = qkv.load(directory).eval(ppl=path)
    assert isinstance(found, Perplexity)
    log = (directory / "train" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    samples = [e["samples"] for e in map(json.loads, log) if e["kind"] == "evaluation" and e.get("samples")]
    return {
        "whole": {"nats_per_token": found.loss, "tokens": found.tokens, "characters": len(text),
                  "window": found.window, "stride": found.stride},
        "bits_per_character": found.loss * found.tokens / len(text) / math.log(2),
        "bits_per_byte": found.bits_per_byte,
        "samples": samples[-1][:3] if samples else [],
    }  # fmt: skip


def seeds(directories: list[Path], of: int = 0) -> dict[str, Any]:
    """The tests of runs that differ by their seed: the mean of BLEU, or of what labels are right, and its spread.

    With `of`, the same of those that a choice by validation loss keeps, one of each so many.
    """
    found = []
    for directory in directories if len(directories) > 1 else ():
        said, done = (json.loads((directory / "train" / name).read_text(encoding="utf-8"))
                      for name in ("run.json", "result.json"))  # fmt: skip
        valid = {k: v for k, v in done["outcome"]["metrics"].items() if k in ("loss", "exact_match", "bleu")}
        found.append({"seed": said["training"]["seed"], "valid": valid, "test": done["test"]})
    told = {"seeds": found, **spread(found)} if found else {}
    if not of:
        return told
    best = [min(found[at : at + of], key=lambda one: one["valid"]["loss"]) for at in range(0, len(found) - of + 1, of)]
    return {**told, "chosen": {"of": of, "seeds": [one["seed"] for one in best], **spread(best)}}


def asked_together(run: Any, directories: list[Path], of: int) -> dict[str, Any]:
    """What share of the test texts each so many models label right by the mean of their probabilities."""
    import qkv

    models = [qkv.load(directory) for directory in directories] if of else []
    if not models or not models[0].labels:
        return {}
    texts, labels = zip(*run.splits().test, strict=True)
    each = []
    for at in range(0, len(models) - of + 1, of):
        said = models[at].classify(list(texts), ensemble=models[at + 1 : at + of])
        right = sum(verdict.label == label for verdict, label in zip(said, labels, strict=True))
        each.append({"test": {"exact_match": right / len(texts)}})
    return {"together": {"of": of, **spread(each)}}


def three_tests(run: Any, directories: list[Path]) -> dict[str, Any]:
    """Of Multi30k from English to German: BLEU of all three test sets, of each run and of all of them together."""
    if not run.name.startswith("multi30k"):
        return {}
    told = {"bleu": [judged(directory) for directory in directories]}
    return told | ({"bleu_together": judged(*directories)} if len(directories) > 1 else {})


def spread(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Each test's BLEU, or share of answers that are right, their mean and deviation; nothing for a single one."""
    right = [one["test"].get("bleu", 100 * one["test"]["exact_match"]) for one in found if "exact_match" in one["test"]]
    if len(right) < 2:
        return {}
    each = [round(one, 2) for one in right]
    return {"each": each, "mean": round(statistics.mean(right), 2), "deviation": round(statistics.stdev(right), 2)}


if __name__ == "__main__":
    main()
