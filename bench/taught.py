"""Two short teachers and the student of their translations pass Multi30k's 41.02 within an hour of two cores.

`bench/taught.py` trains English to German and back, one core each, has each write pairs (`qkv data distil`), and trains
on them and the true ones. All of it is done by the verbs of `qkv` and three TOML files, which lie in `--folder`; a part
whose result lies there is not done again. It writes bench/results/taught.json and the hypotheses beside it.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from common import RESULTS, options, write

CLAIM = "Two short teachers and the student of their translations pass Multi30k's 41.02 within an hour of two cores."
WU = "41.02 (transformer_tiny of Wu et al. 2021, the same files, 65M target tokens on 2 GPUs)"
TESTS = {"2016": "test.2016", "2017": "test.2017", "coco": "test.coco"}


def main() -> None:
    """All parts, those that are done already left out."""
    given = options(
        CLAIM, folder=("", "where the parts lie (default: none stays)"), teachers=(6000, "steps of each teacher"),
        steps=(16_000, "steps of the student"), processes=(1, "processes of the student"), nbest=(2, "see distil"),
        seeds=("0", "of students, commas between; the first one's hypotheses are kept"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as aside:
        folder = Path(given.folder or aside).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        sides = toy(folder) if given.smoke else sides_of_multi30k()
        students = [f"student{seed}" for seed in given.seeds.split(",")]
        settings(folder, sides, students, given)
        parts, (one, two) = Parts(folder), sides["train"]
        quiet, again = "--quiet --threads 1", "--quiet --threads 1 --resume auto"
        parts.beside(*(f"train {name}.toml --out {name} {again}" for name in ("forward", "backward")))
        pairs = f"data distil {one} {two} --nbest {given.nbest} {quiet}"
        parts.beside(f"{pairs} --model forward --out taught", f"{pairs} --model backward --back --out back")
        own = "" if given.processes == 1 else f" --processes {given.processes}"
        for student in students:
            parts.beside(f"train {student}.toml --out {student} {again}{own}")
        found = reached(folder, sides, students) | took(parts.known(), students)
        if not given.smoke and not given.out:
            shutil.copy(folder / students[0] / "train" / "test.hyp", RESULTS / "taught.test2016.hyp")
        given.folder = ""  # no path of this machine in the file
        write("taught", CLAIM, given, goal=41.02, anchor=WU, **found)


def sides_of_multi30k() -> dict[str, tuple[str, str]]:
    """The files, English and German."""
    from qkv.runs.splits import shared

    return {part: (str(shared("mt", "multi30k_bpe_en_de", f"{part}.en")),
                   str(shared("mt", "multi30k_bpe_en_de", f"{part}.de")))
            for part in ("train", "valid", *TESTS.values())}  # fmt: skip


def toy(folder: Path) -> dict[str, tuple[str, str]]:
    """A few pairs of a language of numbers, for --smoke."""
    found = {}
    for n, part in enumerate(("train", "valid", *TESTS.values())):
        rows = [(f"a {i} b", f"x {i * 7 % 20} y") for i in range(n, 20, 1 if n == 0 else 5)]
        for side, name in enumerate("ab"):
            (folder / f"{part}.{name}").write_text("".join(f"{r[side]} {n}\n" for r in rows), encoding="utf-8")
        found[part] = (str(folder / f"{part}.a"), str(folder / f"{part}.b"))
    return found


def settings(folder: Path, sides: dict[str, tuple[str, str]], students: list[str], given: Any) -> None:
    """A TOML file of each model: the recipe `multi30k_longer` with its data named, and how many steps."""
    from qkv import recipes
    from qkv.runs.splits import shared

    run = recipes.configure("multi30k_longer")
    teacher, student = (replace(run.training, steps=n, threads=1, evaluate_every=min(1200, n))
                        for n in (given.teachers, given.steps))  # fmt: skip
    cut = asdict(run.tokenizer)
    cut["merges"] = "" if given.smoke else str(shared(*str(run.tokenizer.merges).split("/")))
    shape = asdict(run.model)
    if given.smoke:
        teacher = student = replace(teacher, steps=40, evaluate_every=40, warmup=4, tokens=64)
        shape |= {"width": 16, "layers": 1, "heads": 2, "ffn": 32}
    more = ("taught", "back")
    for name, flip in (("forward", 1), ("backward", -1), *((student, 1) for student in students)):
        names = [[path, *(str(folder / part / Path(path).name) for part in more * (name in students))]
                 for path in sides["train"][::flip]]
        held = {f"{part}_{side}": path for part, key in (("valid", "valid"), ("test", "test.2016"))
                for side, path in zip(("source", "target"), sides[key][::flip], strict=True)}  # fmt: skip
        data = {"source": names[0], "target": names[1], **held, "overlap": "drop"}
        training = teacher
        if name in students:  # a process adds its own batch to a step
            seed = int(name.removeprefix("student"))
            training = replace(student, tokens=student.tokens // given.processes, seed=seed)
        tables = {"data": data, "model": shape, "tokenizer": cut, "training": asdict(training),
                  "check": asdict(run.check)}  # fmt: skip
        text = "\n".join(map(table, tables, tables.values()))
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")


def table(name: str, values: dict[str, Any]) -> str:
    """A table of TOML with numbers, texts and lists of them; tables inside it stay as the defaults have them."""
    rows = (f"{key} = {json.dumps(value)}\n" for key, value in values.items() if not isinstance(value, dict))
    return f"[{name}]\n{''.join(rows)}"


class Parts:
    """The verbs that do the work, those that run beside each other on a core each, and what each took."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def beside(self, *lines: str) -> None:
        """Run some verbs at once, but for those that were done; the folder keeps their seconds."""
        cores, begun, new = sorted(os.sched_getaffinity(0)), time.perf_counter(), list[tuple[str, Any]]()
        for n, line in enumerate(lines):
            if line in self.known():
                continue
            own = {cores[n % len(cores)]} if len(lines) > 1 else set(cores)
            print(f"qkv {line}", flush=True)
            child = subprocess.Popen([sys.executable, "-m", "qkv.cli", *line.split(" ")], cwd=self.folder)
            os.sched_setaffinity(child.pid, own)
            new.append((line, child))
        for line, child in new:
            _, status, used = os.wait4(child.pid, 0)
            if status:
                for _, other in new:
                    other.terminate()
                raise SystemExit(f"failed: qkv {line}")
            spent = {"seconds": round(time.perf_counter() - begun, 1),
                     "cpu_seconds": round(used.ru_utime + used.ru_stime, 1)}
            self.keep(line, spent)

    def known(self) -> dict[str, dict[str, float]]:
        """The verbs that are done, and what they took."""
        place = self.folder / "took.json"
        return json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}

    def keep(self, line: str, spent: dict[str, float]) -> None:
        """One more verb is done."""
        (self.folder / "took.json").write_text(json.dumps(self.known() | {line: spent}, indent=2), encoding="utf-8")


def reached(folder: Path, sides: dict[str, tuple[str, str]], students: list[str]) -> dict[str, Any]:
    """BLEU of the students on the three tests, with mean and deviation, and of the teachers on theirs."""
    import qkv

    told = {name: json.loads((folder / name / "train" / "result.json").read_text(encoding="utf-8"))
            for name in (*students, "forward", "backward")}  # fmt: skip
    bleu: dict[str, dict[str, float]] = {}
    for name in students:
        model, how = qkv.load(folder / name), {"tokenize": "none", "joint": "@@ ", "beam": 5, "length_penalty": 1.0}
        bleu[name] = {year: round(model.eval(bleu=sides[key], **how).bleu, 2) for year, key in TESTS.items()}
    means = {year: round(statistics.mean(one[year] for one in bleu.values()), 2) for year in TESTS}
    spread = round(statistics.stdev(one["2016"] for one in bleu.values()), 2) if len(bleu) > 1 else None
    return {
        "test2016_bleu": means["2016"], "deviation": spread, "mean": means, "bleu": bleu,
        "teachers_bleu": {name: told[name]["test"]["bleu"] for name in ("forward", "backward")},
        "signature": told[students[0]]["test"]["signature"],
        "outcomes": {name: told[name]["outcome"] for name in students},
    }  # fmt: skip


def took(known: dict[str, dict[str, float]], students: list[str]) -> dict[str, Any]:
    """What each part took, and the processor time of both teachers, what they wrote, and one student."""
    parts = {" ".join(Path(word).name for word in line.split(" ")): spent for line, spent in known.items()}
    shared = [spent["cpu_seconds"] for line, spent in parts.items() if "student" not in line]
    own = [spent["cpu_seconds"] for line, spent in parts.items() if any(name in line for name in students)]
    return {"cpu_minutes": round((sum(shared) + statistics.mean(own)) / 60, 1), "parts": parts}


if __name__ == "__main__":
    main()
