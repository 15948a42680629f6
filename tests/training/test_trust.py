"""The trust suite: every family learns every objective, splits change nothing, kills lose nothing, full disks neither.

The core of it runs with every test; the whole matrix and the long chains of kills are nightly.
"""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.data import collate, corrupt
from qkv.data.collate import IGNORED, Batch
from qkv.data.order import permutation
from qkv.errors import QkvError
from qkv.recipes.run import DROPLESS, Shape
from qkv.spec import Spec
from qkv.training import checkpoint, log, loop, losses
from qkv.training.plan import Plan
from qkv.training.settings import Settings

pytestmark = pytest.mark.skipif(os.name == "nt", reason="fork, limits and signals differ on Windows")
V, PAD, EOS, MASK, START, END = 40, 0, 1, 2, 3, 4
SENTINELS = tuple(range(30, 40))
BASE = Settings(steps=8, lr=3e-3, schedule="constant", precision="fp32", log_every=1, threads=1)

FAMILIES: dict[str, dict[str, Any]] = {
    "marian": {}, "t5": {}, "bart": {}, "gpt2": {}, "llama": {"groups": 1}, "openai_gpt": {}, "bert": {},
    "prefix": {"groups": 1, "experts": 4, "ffn": 16}, "glm_blank": {},
}  # fmt: skip
FITS = {
    "pairs": ("marian", "t5", "bart"), "spans": ("t5", "marian", "bart"), "denoise": ("bart", "t5", "marian"),
    "text": ("gpt2", "llama", "openai_gpt"), "documents": ("gpt2", "llama", "openai_gpt"),
    "labels": ("openai_gpt", "gpt2", "llama", "bert"), "masked": ("bert",), "prefixes": ("prefix",),
    "blanks": ("glm_blank",),
}  # fmt: skip
MATRIX = [(objective, family) for objective, families in FITS.items() for family in families]


def core_of(family: str, drop: float = 0.0, seed: int = 0, labels: int = 3) -> Transformer:
    size = {"width": 32, "layers": 2, "heads": 2, "ffn": 128, "context": 32, **FAMILIES[family]}
    states = 0.0 if family in DROPLESS else drop
    spec: Spec = Shape(family, dropout=states, attention_dropout=drop, **size).spec(V, labels=labels)  # type: ignore[arg-type]
    core = Transformer(spec)
    initialise(core, seed)
    return core


def texts(count: int, seed: int = 0, least: int = 8) -> list[list[int]]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(5, 30, (least + i % 5,), generator=g).tolist() for i in range(count)]


def batch_of(objective: str, rows: list[list[int]], *, width: int | None = None) -> Batch:
    """Rows of ids as a batch of an objective; `width` pads further than the rows need."""
    both = None if width is None else (width, width)
    draws = [corrupt.Draw(0, 0, sum(row)) for row in rows]
    pairs = [(row, [*row[::-1], EOS]) for row in rows]
    if objective == "spans":
        pairs = [(a, [*b, EOS]) for a, b in (corrupt.spans(r, SENTINELS, d) for r, d in zip(rows, draws, strict=True))]
    if objective == "denoise":
        pairs = [(corrupt.infilled(row, MASK, d), [*row, EOS]) for row, d in zip(rows, draws, strict=True)]
    if objective in ("pairs", "spans", "denoise"):
        return collate.seq2seq(pairs, pad=PAD, start=PAD, shape=both)
    if objective == "prefixes":
        return collate.prefixed([(row[:4], row[4:]) for row in rows], pad=PAD, start=(START,), width=width)
    if objective == "blanks":
        holed = [corrupt.blanks(row, MASK, (START, END), d, share=0.3) for row, d in zip(rows, draws, strict=True)]
        return collate.blanked(holed, pad=PAD, width=width)
    if objective == "masked":
        marks = corrupt.Marks(MASK, frozenset({PAD, EOS, MASK}), V)
        hidden = [corrupt.masked(row, marks, d, share=0.3) for row, d in zip(rows, draws, strict=True)]
        return collate.labelled(collate.masked(hidden, pad=PAD, width=width), [sum(row) % 3 for row in rows])
    if objective == "labels":
        return collate.labelled(collate.spoken(rows, pad=PAD, share=0.5, width=width), [sum(row) % 3 for row in rows])
    if objective == "documents":
        number = torch.arange(len(rows))[:, None]
        target, labels = (collate.padded([r[i : len(r) - 1 + i] for r in rows], fill, width=width)
                          for i, fill in ((0, PAD), (1, IGNORED)))  # fmt: skip
        return collate.laid(target, labels, number.expand_as(target).masked_fill(labels == IGNORED, -1))
    longest = max(map(len, rows))
    return collate.causal(torch.tensor([(row * 2)[:longest] for row in rows]))


@pytest.mark.parametrize(
    ("objective", "family"),
    [pytest.param(o, f, marks=() if f == FITS[o][0] else pytest.mark.nightly) for o, f in MATRIX],
)
def test_every_family_learns_a_batch_of_every_objective_by_heart(objective: str, family: str) -> None:
    core, batch = core_of(family), batch_of(objective, texts(4))
    rate = 1e-2 if family == "t5" else 5e-3  # its first weights are small
    settings = dataclasses.replace(BASE, steps=250, lr=rate, warmup=20, schedule="cosine", balance=0.0)
    before = losses.mean_loss(core, [batch])
    loop.train(core, Plan(lambda epoch: [0], lambda key: batch), settings)
    after = losses.mean_loss(core, [batch])
    # a text's own words are guessed from those before it, of which the first of a row has none
    assert after < 0.05 * before + (0.15 if objective in ("labels", "text", "documents") else 0.0)


def gap(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a)


def split(objective: str, family: str, count: int) -> dict[str, torch.Tensor]:
    """Weights after some steps of 8 rows in `count` micro-batches, in fp64; each micro-batch is padded on its own."""
    rows, each = texts(32), 8 // count
    keys = [tuple(range(i, i + each)) for i in range(0, 32, each)]
    plan = Plan(lambda epoch: keys, lambda key: batch_of(objective, [rows[i] for i in key]))
    core = core_of(family).double()
    how = {"smoothing": 0.1, "clip": 1.0, "eps": 1e-6, "balance": 0.0}
    loop.train(core, plan, dataclasses.replace(BASE, steps=4, accumulate=count, **how))
    return {n: t.clone() for n, t in checkpoint.weights(core).items()}


SPLITS = [m for m in MATRIX if m[0] != "text"]  # its rows have one length


@pytest.mark.parametrize(
    ("objective", "family"),
    [pytest.param(o, f, marks=() if f == FITS[o][0] else pytest.mark.nightly) for o, f in SPLITS],
)
def test_1x8_is_2x4_is_8x1(objective: str, family: str) -> None:
    one, two, eight = (split(objective, family, count) for count in (1, 2, 8))
    assert gap(one, two) < 1e-6
    assert gap(one, eight) < 1e-6
    assert gap(one, checkpoint.weights(core_of(family).double())) > 1e-3


def test_a_mean_of_means_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, right = split("spans", "t5", 1), loop.step_loss
    wrong = lambda core, batch, **how: (right(core, batch, **how)[0] / batch.tokens, None)  # noqa: E731
    monkeypatch.setattr(loop, "step_loss", wrong)
    assert gap(whole, split("spans", "t5", 8)) > 1e-4


@pytest.mark.parametrize(("objective", "family"), SPLITS)
def test_padded_is_unpadded(objective: str, family: str) -> None:
    core, rows = core_of(family), texts(4)
    alone = sum(float(losses.token_loss(core, batch_of(objective, [row])).detach()) for row in rows)
    for width in (None, 24):
        together = float(losses.token_loss(core, batch_of(objective, rows, width=width)).detach())
        assert together == pytest.approx(alone, rel=2e-5)


# -- kills ------------------------------------------------------------------------------------------------------------


def plan() -> Plan:
    rows = texts(28)

    def order(epoch: int) -> list[tuple[int, ...]]:
        mixed = permutation(len(rows), seed=0, epoch=epoch).tolist()
        return [tuple(mixed[i : i + 2]) for i in range(0, len(rows), 2)]

    return Plan(order, lambda key: batch_of("pairs", [rows[i] for i in key]), {"rows": len(rows)})


LONG = dataclasses.replace(BASE, steps=40, accumulate=3, smoothing=0.1, clip=0.5, ema=0.9, average=2, evaluate_every=4,
                           save_every=1, optimizer="adamw", weight_decay=0.1)  # fmt: skip


def measured(core: Transformer, step: int) -> dict[str, Any]:
    return {"loss": float(core.embed.weight.detach().square().mean())}


def trained(folder: Path, seed: int = 0) -> None:
    """The run, or what is left of it; with dropout, and at a pace that leaves time to be killed."""
    core = core_of("marian", 0.2, seed)

    def slowly(step: int) -> bool:
        time.sleep(0.02)
        return False

    loop.train(core, plan(), LONG, directory=folder, resume=True, evaluate=measured, stop=slowly)
    checkpoint.write(folder / "end.safetensors", checkpoint.weights(core), {})


def killed(folder: str, kills: str) -> None:
    """Start the run again and again; each child is killed without warning after a random time, wherever it is then."""
    chance, died = random.Random(int(kills)), 0
    torch.set_num_threads(1)
    for attempt in range(400):
        child = os.fork()
        if child == 0:
            if died < int(kills):
                threading.Timer(chance.uniform(0.05, 0.5), os.kill, (os.getpid(), signal.SIGKILL)).start()
            begun = (Path(folder) / "train/last.safetensors").is_file()
            try:
                trained(Path(folder), seed=attempt * begun)  # other first weights: all must come from the checkpoint
            finally:
                os._exit(0 if (Path(folder) / "end.safetensors").is_file() else 1)
        status = os.waitpid(child, 0)[1]
        chance.random()  # the child drew it from its own copy
        if os.WIFSIGNALED(status):
            died += 1
        else:
            print(died, os.WEXITSTATUS(status), flush=True)
            return


def in_another_process(code: str, *words: str) -> str:
    own = [str(Path(__file__).parent), *(p for p in sys.path if p)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(own), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", f"import sys, test_trust as t; {code}", *words]
    return subprocess.run(command, env=environ, check=True, capture_output=True, text=True, timeout=1500).stdout


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_run_killed_at_random_moments_is_the_uninterrupted_one(kills: int, tmp_path: Path) -> None:
    said = in_another_process("t.killed(*sys.argv[1:])", str(tmp_path / "b"), str(kills)).split()
    assert said[1] == "0"
    assert int(said[0]) >= min(kills, 12), "it was killed often enough to mean something"
    trained(tmp_path / "a")
    for name in ("end.safetensors", "train/last.safetensors", "train/best.safetensors"):
        one, two = (checkpoint.read(tmp_path / d / name)[0] for d in "ab")
        assert one.keys() == two.keys()
        assert all(torch.equal(one[n], two[n]) for n in one), name
    seen = [[(e["step"], e["loss"]) for e in log.events(tmp_path / d / "train/log.jsonl") if e["kind"] == "step"]
            for d in "ab"]  # fmt: skip
    assert seen[0] == seen[1]
    assert [step for step, _ in seen[0]] == list(range(1, 41))


# -- a checkpoint's writes --------------------------------------------------------------------------------------------


def state(fill: float) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    return {"weight:x": torch.full((4000,), fill), "exp_avg:x": torch.full((4000,), -fill)}, {"fill": fill}



@contextmanager
def faulty(at: int, fault: Callable[[], None]) -> Iterator[list[str]]:
    """Before and after each of a write's acts, and within the file, `fault` strikes at the one numbered `at`."""
    count = [0]
    acts: list[str] = []

    def point(name: str) -> None:
        acts.append(name)
        count[0] += 1
        if count[0] == at:
            fault()

    def around(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **how: Any) -> Any:
            point(f"before {name}")
            if name == "save_file":
                act(*given, **how)
                whole = Path(given[1]).read_bytes()
                for share in (0, 3, 7):
                    Path(given[1]).write_bytes(whole[: len(whole) * share // 8])
                    point(f"{share}/8 of the file")
                Path(given[1]).write_bytes(whole)
                return None
            found = act(*given, **how)
            point(f"after {name}")
            return found

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save_file", around("save_file", checkpoint.save_file))
        patch.setattr(checkpoint, "sync", around("sync", checkpoint.sync))
        patch.setattr(checkpoint.os, "replace", around("replace", os.replace))
        yield acts


def died(folder: str) -> None:
    """For each moment of a write, a child that is killed there; what its file then holds is printed as JSON."""
    torch.set_num_threads(1)
    path = Path(folder) / "last.safetensors"
    for at in range(1, 40):
        path.unlink(missing_ok=True)
        checkpoint.write(path, *state(1.0))
        child = os.fork()
        if child == 0:
            with faulty(at, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                checkpoint.write(path, *state(2.0))
            os._exit(0)
        over = not os.WIFSIGNALED(os.waitpid(child, 0)[1])
        tensors, found = checkpoint.read(path)
        alike = bool((tensors["weight:x"] == found["fill"]).all() and (tensors["exp_avg:x"] == -found["fill"]).all())
        print(json.dumps([at, found["fill"], alike, over]), flush=True)
        if over:
            return


def test_killed_at_any_moment_of_a_write_the_old_or_the_new_checkpoint_loads(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in in_another_process("t.died(sys.argv[1])", str(tmp_path)).splitlines()]
    assert len(rows) >= 10
    assert rows[-1][3]
    assert all(alike for _, _, alike, _ in rows)
    fills = [fill for _, fill, _, _ in rows]
    assert fills == sorted(fills)
    assert set(fills) == {1.0, 2.0}


def test_a_full_disk_at_any_moment_of_a_write_leaves_the_old_checkpoint_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"

    def full() -> None:
        raise OSError(28, "No space left on device")

    seen = set[float]()
    for at in range(1, 40):
        checkpoint.write(path, *state(1.0))
        with faulty(at, full) as acts:
            whole = True
            try:
                checkpoint.write(path, *state(2.0))
            except QkvError:
                whole = False
        tensors, found = checkpoint.read(path)
        assert bool((tensors["weight:x"] == found["fill"]).all())
        assert [p.name for p in tmp_path.iterdir()] == ["last.safetensors"]
        seen.add(found["fill"])
        if whole:
            assert len(acts) >= 9
            break
    assert seen == {1.0, 2.0}


@pytest.mark.parametrize("room", [0, 7, 100, 5_000, 31_000, 32_000])
def test_a_disk_that_fills_up_in_the_midst_of_a_file_leaves_the_old_one(room: int, tmp_path: Path) -> None:
    import resource

    path = tmp_path / "last.safetensors"
    checkpoint.write(path, *state(1.0))
    assert path.stat().st_size > 32_000
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write past the limit is an error then, as on a full disk
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        with pytest.raises(QkvError, match="the checkpoint before it is whole"):
            checkpoint.write(path, *state(2.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    tensors, found = checkpoint.read(path)
    assert (found["fill"], float(tensors["weight:x"][0])) == (1.0, 1.0)
    assert [p.name for p in tmp_path.iterdir()] == ["last.safetensors"]


def test_a_write_in_place_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deliberate fault: the file itself is written, not one beside it."""
    monkeypatch.setattr(Path, "with_name", lambda self, name: self)
    with pytest.raises((AssertionError, QkvError, FileNotFoundError)):
        test_a_full_disk_at_any_moment_of_a_write_leaves_the_old_checkpoint_or_the_new(tmp_path)
