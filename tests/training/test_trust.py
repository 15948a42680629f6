"""The trust suite: every family learns every objective, splits change nothing, kills lose nothing, full disks neither.

The core of it runs with every test; the whole matrix and the long chains of kills are nightly.
"""

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small import pack_documents

from qkv import files
from qkv.baselines.lstm import LSTMModel, LSTMSpec
from qkv.checkpoints import storage
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.data import collate, corrupt
from qkv.data.collate import IGNORED, Batch
from qkv.data.order import draw_permutation
from qkv.errors import QkvError
from qkv.training import checkpoint, fsdp, loop, losses, run_dir
from qkv.training import step as stepping
from qkv.training.compatibility import OBJECTIVES
from qkv.training.plan import Plan
from qkv.training.settings import Settings
from qkv.training.shape import Shape, find_ignored

pytestmark = pytest.mark.skipif(os.name == "nt", reason="fork, limits and signals differ on Windows")
V, PAD, EOS, MASK, START, END = 40, 0, 1, 2, 3, 4
SENTINELS = tuple(range(30, 40))
BASE = Settings(steps=8, lr=3e-3, schedule="constant", precision="fp32", log_every=1, threads=1)

FAMILIES: dict[str, dict[str, Any]] = {
    "marian": {}, "t5": {}, "bart": {}, "lstm": {}, "lstm-attention": {}, "gpt2": {}, "llama": {"groups": 1},
    "openai_gpt": {}, "bert": {}, "glm_blank": {}, "prefix": {"groups": 1},
    "experts": {"family": "prefix", "groups": 1, "experts": 4, "ffn": 16},
    "mixtral": {"family": "llama", "groups": 1, "experts": 4, "ffn": 16, "moe_bias": True},
}  # fmt: skip
TRANSLATES, SPEAKS = ("marian", "t5", "bart", "lstm", "lstm-attention"), ("gpt2", "llama", "openai_gpt", "mixtral")
JUDGES = ("openai_gpt", "bert", "gpt2", "llama")
FITS = {
    "pairs": TRANSLATES, "spans": TRANSLATES, "denoise": TRANSLATES, "text": SPEAKS, "documents": SPEAKS,
    "chat": SPEAKS, "labels": JUDGES, "similarity": JUDGES, "choice": JUDGES, "masked": ("bert",),
    "prefixes": ("experts", "prefix", "glm_blank"), "blanks": ("glm_blank", "prefix", "experts"),
}  # fmt: skip
MATRIX = [(objective, family) for objective, families in FITS.items() for family in families]
JUDGED = ("labels", "similarity", "choice")
AGREE = [("pairs", "marian"), ("labels", "bert"), ("prefixes", "experts")]  # with every test; nightly all others too


def shape_of(family: str, drop: float = 0.0) -> Shape:
    size: dict[str, Any] = {"family": family, "width": 32, "layers": 2, "heads": 2, "ffn": 128, "context": 32}
    size |= FAMILIES[family]
    ignored = find_ignored(size["family"])
    states, within = (0.0 if key in ignored else drop for key in ("dropout", "attention_dropout"))
    return Shape(dropout=states, attention_dropout=within, **size)


def core_of(family: str, drop: float = 0.0, seed: int = 0, labels: int = 3) -> Transformer:
    spec = shape_of(family, drop).spec(V, labels=labels)
    core = LSTMModel(spec) if isinstance(spec, LSTMSpec) else Transformer(spec)
    initialise(core, seed)
    return core


def learner(objective: str, family: str, drop: float = 0.0, seed: int = 0) -> Transformer:
    return core_of(family, drop, seed, labels=1 if objective == "choice" else 3)


def texts(count: int, seed: int = 0, least: int = 8) -> list[list[int]]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(5, 30, (least + i % 5,), generator=g).tolist() for i in range(count)]


def batch_of(objective: str, rows: list[list[int]], *, family: str = "", width: int | None = None) -> Batch:
    """Rows of ids as a batch of an objective; `width` pads further than the rows need."""
    both = None if width is None else (width, width)
    draws = [corrupt.Draw(0, 0, sum(row)) for row in rows]
    pairs = [(row, [*row[::-1], EOS]) for row in rows]
    if objective == "spans":
        pairs = [
            (a, [*b, EOS])
            for a, b in (corrupt.corrupt_spans(r, SENTINELS, d) for r, d in zip(rows, draws, strict=True))
        ]
    if objective == "denoise":
        pairs = [(corrupt.infill_spans(row, MASK, d), [*row, EOS]) for row, d in zip(rows, draws, strict=True)]
    if objective in ("pairs", "spans", "denoise"):
        return collate.collate_pairs(pairs, pad=PAD, start=PAD, shape=both)
    if objective == "prefixes":
        return collate.collate_prefixes([(row[:4], row[4:]) for row in rows], pad=PAD, start=(START,), width=width)
    if objective == "blanks":
        holed = [corrupt.blank_spans(row, MASK, (START, END), d, share=0.3) for row, d in zip(rows, draws, strict=True)]
        return collate.collate_blanks(holed, pad=PAD, width=width)
    if objective == "masked":
        marks = corrupt.TokenIds(MASK, frozenset({PAD, EOS, MASK}), V)
        hidden = [corrupt.mask_words(row, marks, d, share=0.3) for row, d in zip(rows, draws, strict=True)]
        return collate.add_labels(collate.collate_masked(hidden, pad=PAD, width=width), [sum(row) % 3 for row in rows])
    if objective in JUDGED:
        return judged(objective, rows, encoder=family == "bert", width=width)
    if objective in ("documents", "chat"):
        return side_by_side(rows, silent=3 if objective == "chat" else 0, width=width)
    longest = max(map(len, rows))
    return collate.collate_windows(torch.tensor([(row * 2)[:longest] for row in rows]))


def judged(objective: str, rows: list[list[int]], *, encoder: bool, width: int | None) -> Batch:
    """Texts with labels: alone, in both orders, or as a question with two answers; a decoder says their words too."""
    parts = {"labels": lambda row: [row], "similarity": lambda row: [row, row[4:] + row[:4]],
             "choice": lambda row: [row[:-2], [*row[:3], *row[-3:]]]}[objective]  # fmt: skip
    many = [part for row in rows for part in parts(row)]
    each = len(many) // len(rows)
    if encoder:
        made = collate.collate_masked([(row, [IGNORED] * len(row)) for row in many], pad=PAD, width=width)
    else:
        made = collate.collate_labelled_text(many, pad=PAD, share=0.5 / each, width=width)
    shape = {"similarity": {"orders": each}, "choice": {"choices": each}}.get(objective, {})
    return collate.add_labels(made, [sum(row) % (2 if objective == "choice" else 3) for row in rows], **shape)


def side_by_side(rows: list[list[int]], *, silent: int, width: int | None) -> Batch:
    """Documents packed into rows, of which the first words are not learnt; one alone has no padding."""
    wide = width or (32 if len(rows) > 1 else len(rows[0]) - 1)
    ids, numbers = pack_documents([row[:-1] for row in rows], wide, pad=PAD)
    labels, _ = pack_documents([[IGNORED] * silent + row[1 + silent :] for row in rows], wide, pad=IGNORED)
    return collate.collate_packed_labels(ids, labels, numbers)


def test_the_matrix_holds_every_family_with_every_objective_it_can_learn() -> None:
    families = [f for f in typing.get_args(typing.get_type_hints(Shape)["family"]) if f]
    kinds = {family: shape_of(family).spec(V).architecture for family in families}
    able = {(name, f) for name, o in OBJECTIVES.items() for f, kind in kinds.items() if kind in o.models}
    assert able == {(name, f) for name, f in MATRIX if f in kinds}
    assert {name for name, _ in able} == set(OBJECTIVES)


def learnt(objective: str, family: str, drop: float = 0.0, **how: Any) -> tuple[float, float]:
    """The loss of a batch before and after it was learnt by heart."""
    core, batch = learner(objective, family, drop), batch_of(objective, texts(4), family=family)
    rate = 1e-2 if family == "t5" else 5e-3  # its first weights are small
    settings = dataclasses.replace(BASE, steps=250, lr=rate, warmup=20, schedule="cosine", moe_aux_loss=0.0, **how)
    before = losses.mean_loss(core, [batch])
    loop.train(core, Plan(lambda epoch: [0], lambda key: batch), settings)
    return before, losses.mean_loss(core, [batch])


SAYS = (*JUDGED, "text", "documents", "chat")  # the first of a text's own words is guessed from nothing


@pytest.mark.parametrize(
    ("objective", "family"),
    [pytest.param(o, f, marks=() if f == FITS[o][0] else pytest.mark.nightly) for o, f in MATRIX],
)
def test_every_family_learns_a_batch_of_every_objective_by_heart(objective: str, family: str) -> None:
    before, after = learnt(objective, family)
    assert after < 0.05 * before + (0.15 if objective in SAYS else 0.0)


@pytest.mark.parametrize(
    ("objective", "family"), [pytest.param(*m, marks=() if m in AGREE else pytest.mark.nightly) for m in MATRIX]
)
def test_it_is_learnt_by_heart_with_two_dropouts_that_shall_agree_too(objective: str, family: str) -> None:
    before, after = learnt(objective, family, drop=0.1, rdrop=1.0)
    assert after < 0.1 * before + (0.2 if objective in SAYS else 0.05)


def gap(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a)


def split(objective: str, family: str, count: int, **how: Any) -> tuple[dict[str, torch.Tensor], float]:
    """Weights and loss after some steps of 8 rows in `count` micro-batches, in fp64, each padded on its own."""
    rows, each = texts(32), 8 // count
    keys = [tuple(range(i, i + each)) for i in range(0, 32, each)]
    plan = Plan(lambda epoch: keys, lambda key: batch_of(objective, [rows[i] for i in key], family=family))
    core = learner(objective, family).double()
    settings = dataclasses.replace(BASE, steps=4, label_smoothing=0.1, clip=1.0, eps=1e-6, moe_aux_loss=0.0, **how)
    end = loop.train(core, plan, dataclasses.replace(settings, accumulate=count))
    return {n: t.clone() for n, t in checkpoint.weights(core).items()}, end.loss


SPLITS = [m for m in MATRIX if m[0] != "text"]  # its rows have one length


@pytest.mark.parametrize(
    ("objective", "family"),
    [pytest.param(o, f, marks=() if f == FITS[o][0] else pytest.mark.nightly) for o, f in SPLITS],
)
def test_1x8_is_2x4_is_8x1(objective: str, family: str) -> None:
    (one, loss), *others = (split(objective, family, count) for count in (1, 2, 8))
    for other, theirs in others:
        assert gap(one, other) < 1e-6
        assert theirs == pytest.approx(loss, rel=1e-5)
    assert gap(one, checkpoint.weights(learner(objective, family).double())) > 1e-3


@pytest.mark.parametrize(
    ("objective", "family"), [pytest.param(*m, marks=() if m in AGREE else pytest.mark.nightly) for m in SPLITS]
)
def test_two_passes_without_dropout_are_one_however_a_step_is_split(objective: str, family: str) -> None:
    one, loss = split(objective, family, 1)
    for count in (1, 8):
        two, theirs = split(objective, family, count, rdrop=2.0)
        assert gap(one, two) < 1e-6
        assert theirs == pytest.approx(loss, rel=1e-5)


def test_a_mean_of_means_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, right = split("spans", "t5", 1)[0], stepping.step_loss
    wrong = lambda core, batch, **how: (right(core, batch, **how)[0] / batch.tokens, None)  # noqa: E731
    monkeypatch.setattr(stepping, "step_loss", wrong)
    assert gap(whole, split("spans", "t5", 8)[0]) > 1e-4


def test_two_passes_that_are_not_halved_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = stepping.step_loss
    wrong = lambda core, batch, **how: (right(core, batch, **how)[0] * (2 if how["rdrop"] else 1), None)  # noqa: E731
    monkeypatch.setattr(stepping, "step_loss", wrong)
    with pytest.raises(AssertionError):
        test_two_passes_without_dropout_are_one_however_a_step_is_split("labels", "bert")


@pytest.mark.parametrize(("objective", "family"), SPLITS)
def test_padded_is_unpadded(objective: str, family: str) -> None:
    core, rows = learner(objective, family), texts(4)
    batches = [batch_of(objective, [row], family=family) for row in rows]
    alone = sum(float(losses.token_loss(core, batch).detach()) for batch in batches)
    for width in (None, 24):
        batch = batch_of(objective, rows, family=family, width=width)
        together = float(losses.token_loss(core, batch).detach())
        assert together == pytest.approx(alone, rel=2e-5)


# -- kills ------------------------------------------------------------------------------------------------------------


def plan() -> Plan:
    rows = texts(28)

    def order(epoch: int) -> list[tuple[int, ...]]:
        mixed = draw_permutation(len(rows), seed=0, epoch=epoch).tolist()
        return [tuple(mixed[i : i + 2]) for i in range(0, len(rows), 2)]

    return Plan(order, lambda key: batch_of("pairs", [rows[i] for i in key]), {"rows": len(rows)})


LONG = dataclasses.replace(BASE, steps=40, accumulate=3, label_smoothing=0.1, clip=0.5, ema=0.9, average=2,
                           evaluate_every=4, save_every=1, optimizer="adamw", weight_decay=0.1)  # fmt: skip


RUNS = {
    "plain": LONG,
    "agree": dataclasses.replace(LONG, rdrop=1.0, scheduled_sampling=0.3, scheduled_sampling_ramp=20),
}


def measured(core: Transformer, step: int) -> dict[str, Any]:
    return {"loss": float(core.embed.weight.detach().square().mean())}


def trained(folder: Path, run: str, seed: int = 0) -> None:
    """A run of RUNS, or what is left of it; with dropout, and at a pace that leaves time to be killed."""
    core = core_of("marian", 0.2, seed)

    def slowly(step: int) -> bool:
        time.sleep(0.02)
        return False

    loop.train(core, plan(), RUNS[run], directory=folder, resume=True, evaluate=measured, stop=slowly)
    checkpoint.write(folder / "end.safetensors", checkpoint.weights(core), {})


def killed(folder: str, kills: str, run: str) -> None:
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
                trained(Path(folder), run, seed=attempt * begun)  # other first weights: all come from the checkpoint
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


@pytest.mark.parametrize(
    ("kills", "run"),
    [(3, "plain"), *(pytest.param(20, run, marks=pytest.mark.nightly) for run in RUNS)],
)
def test_a_run_killed_at_random_moments_is_the_uninterrupted_one(kills: int, run: str, tmp_path: Path) -> None:
    name = "ein Lauf 模型 🙂"
    said = in_another_process("t.killed(*sys.argv[1:])", str(tmp_path / name), str(kills), run).split()
    assert said[1] == "0"
    assert int(said[0]) >= min(kills, 12), "it was killed often enough to mean something"
    trained(tmp_path / "a", run)
    (tmp_path / name).rename(tmp_path / "b")
    for name in ("end.safetensors", "train/last.safetensors", "train/best.safetensors"):
        one, two = (checkpoint.read(tmp_path / d / name)[0] for d in "ab")
        assert one.keys() == two.keys()
        assert all(torch.equal(one[n], two[n]) for n in one), name
    logs = [run_dir.read_events(tmp_path / d / "train/log.jsonl") for d in "ab"]
    seen = [[(e["step"], e["loss"]) for e in events if e["kind"] == "step"] for events in logs]
    assert seen[0] == seen[1]
    assert [step for step, _ in seen[0]] == list(range(1, 41))


# -- a checkpoint's writes --------------------------------------------------------------------------------------------


def state(fill: float) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    return {"weight:x": torch.full((4000,), fill), "exp_avg:x": torch.full((4000,), -fill)}, {"fill": fill}


@contextmanager
def faulty(at: int, fault: Callable[[], None]) -> Iterator[list[str]]:
    """Before and after each act of a write, and within a file, `fault` strikes at the one numbered `at`."""
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
        patch.setattr(storage, "save_file", around("save_file", storage.save_file))
        for module in (files, fsdp):
            patch.setattr(module, "fsync_path", around("sync", module.fsync_path))
        for module in (run_dir, fsdp):
            patch.setattr(module, "to_json", around("line", module.to_json))
        patch.setattr(checkpoint.os, "replace", around("replace", os.replace))
        yield acts


def died(folder: str) -> None:
    """For each moment of a write, a child that is killed there; what its file then holds is printed as JSON."""
    torch.set_num_threads(1)
    path = Path(folder) / "last.safetensors"
    for at in range(1, 40):
        path.unlink(missing_ok=True)
        checkpoint.write(path, *state(1.0))

        def write(at: int = at) -> None:
            with faulty(at, kill):
                checkpoint.write(path, *state(2.0))

        over = child(write) == 0
        tensors, found = checkpoint.read(path)
        alike = bool((tensors["weight:x"] == found["fill"]).all() and (tensors["exp_avg:x"] == -found["fill"]).all())
        print(json.dumps([at, found["fill"], alike, over]), flush=True)
        if over:
            return


def test_killed_during_a_write_the_old_or_the_new_checkpoint_loads(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in in_another_process("t.died(sys.argv[1])", str(tmp_path)).splitlines()]
    assert len(rows) >= 10
    assert rows[-1][3]
    assert all(alike for _, _, alike, _ in rows)
    fills = [fill for _, fill, _, _ in rows]
    assert fills == sorted(fills)
    assert set(fills) == {1.0, 2.0}


def test_a_full_disk_leaves_the_old_checkpoint_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
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


BRIEF = dataclasses.replace(BASE, steps=4, accumulate=2, ema=0.9, average=2, evaluate_every=2, save_every=2)


def brief(folder: Path) -> None:
    """A short run, or what is left of it; its last weights and its log are written when it is over."""
    torch.set_num_threads(1)
    core = core_of("gpt2", 0.2)
    rows = texts(14)
    made = Plan(lambda epoch: range(7), lambda key: batch_of("text", rows[2 * key : 2 * key + 2]), {"rows": 14})
    loop.train(core, made, BRIEF, directory=folder, resume=True, evaluate=measured)
    checkpoint.write(folder / "end.safetensors", checkpoint.weights(core), {})


def child(work: Callable[[], None]) -> int:
    """What became of work in a process of its own: 0, 1 for an error that is told, minus the signal that ended it."""
    number = os.fork()
    if number == 0:
        code = 9
        try:
            work()
            code = 0
        except QkvError:
            code = 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def struck(folder: str, fault: str, every: str) -> None:
    """A run that is struck at a write, and one that goes on, for every so many writes; prints (write, ends of both)."""
    torch.set_num_threads(1)
    for at in range(1, 400, int(every)):
        place = Path(folder) / str(at)

        def first(at: int = at, place: Path = place) -> None:
            with faulty(at, full if fault == "full" else kill):
                brief(place)

        ends = [child(first), child(lambda place=place: brief(place))]
        print(json.dumps([at, *ends]), flush=True)
        if ends[0] == 0:
            return


def full() -> None:
    raise OSError(28, "No space left on device")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("fault", "end"), [("killed", -signal.SIGKILL), ("full", 1)])
def test_struck_at_any_write_a_run_goes_on_as_if_nothing_had_happened(
    fault: str, end: int, every: int, tmp_path: Path
) -> None:
    said = in_another_process("t.struck(*sys.argv[1:])", str(tmp_path), fault, str(every))
    rows = [json.loads(line) for line in said.splitlines()]
    assert [first for _, first, _ in rows] == [end] * (len(rows) - 1) + [0]
    assert rows[-1][0] > 40, "so many acts has a run"
    brief(tmp_path / "whole")
    want = checkpoint.read(tmp_path / "whole/end.safetensors")[0]
    for at, _, then in rows:
        place = tmp_path / str(at)
        assert then == 0
        found = checkpoint.read(place / "end.safetensors")[0]
        assert all(torch.equal(found[n], want[n]) for n in want), at
        steps = [e["step"] for e in run_dir.read_events(place / "train/log.jsonl") if e["kind"] == "step"]
        assert steps == [1, 2, 3, 4], at
        assert not [p.name for p in (place / "train").rglob(".*")], "nothing half written is left"


def one_part(folder: str, before: str, after: str, fault: str) -> None:
    """For each act of writing a checkpoint over another, in one file or in parts, which of both is there then."""
    import torch.distributed as dist
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    from qkv.training.distributed import Ranks

    torch.set_num_threads(1)

    def save(place: Path, how: str, step: int) -> None:
        core = torch.nn.Linear(40, 40)
        torch.nn.init.constant_(core.weight, step)
        torch.nn.init.constant_(core.bias, -step)
        ranks = None
        if how == "parts":
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            ranks = Ranks(0, 1)
        tensors = {f"weight:{name}": t for name, t in checkpoint.weights(core).items()}
        checkpoint.write_last(place, tensors, {"progress": {"step": step}}, ranks)

    def over(place: Path, at: int) -> None:
        written = HuggingFaceStorageWriter.write_data
        with faulty(at, full if fault == "full" else kill), pytest.MonkeyPatch.context() as patch:

            def data(self: Any, *given: Any) -> Any:
                run_dir.to_json({})  # before and after it
                found = written(self, *given)
                run_dir.to_json({})
                return found

            patch.setattr(HuggingFaceStorageWriter, "write_data", data)
            freeing = ((Path, "unlink"), (shutil, "rmtree")) if fault == "killed" else ()  # it needs no room
            for owner, name in ((Path, "mkdir"), *freeing):
                true = getattr(owner, name)
                patch.setattr(owner, name, lambda *a, true=true, **k: run_dir.to_json({}) and true(*a, **k))
            save(place, after, 2)

    for at in range(1, 90):
        place = Path(folder) / str(at)
        assert child(lambda place=place: save(place, before, 1)) == 0
        end = child(lambda place=place, at=at: over(place, at))
        last = run_dir.find_last(place)
        assert last is not None
        parts = partial(fsdp.read_parts, core=torch.nn.Linear(40, 40))
        read = checkpoint.read if last.suffix == ".safetensors" else parts
        tensors, state = read(last)
        step = state["progress"]["step"]
        alike = bool((tensors["weight:weight"] == step).all() and (tensors["weight:bias"] == -step).all())
        print(json.dumps([at, end, step, alike]), flush=True)
        if end == 0:
            return


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [("parts", "parts", "killed"), ("parts", "parts", "full"), ("file", "parts", "killed"),
     ("parts", "file", "killed")],
)  # fmt: skip
def test_struck_at_any_moment_a_checkpoint_in_parts_is_the_old_or_the_new(
    before: str, after: str, fault: str, tmp_path: Path
) -> None:
    said = in_another_process("t.one_part(*sys.argv[1:])", str(tmp_path), before, after, fault)
    rows = [json.loads(line) for line in said.splitlines()]
    assert len(rows) >= 12
    assert [end for _, end, _, _ in rows] == [1 if fault == "full" else -signal.SIGKILL] * (len(rows) - 1) + [0]
    assert all(alike for *_, alike in rows)
    steps = [step for _, _, step, _ in rows]
    assert steps == sorted(steps)
    assert set(steps) == {1, 2}


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
        with pytest.raises(QkvError, match="the previous checkpoint is intact"):
            checkpoint.write(path, *state(2.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    tensors, found = checkpoint.read(path)
    assert (found["fill"], float(tensors["weight:x"][0])) == (1.0, 1.0)
    assert [p.name for p in tmp_path.iterdir()] == ["last.safetensors"]


def test_a_write_in_place_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deliberate fault: the file itself is written, not one beside it."""
    monkeypatch.setattr(checkpoint, "replace_file", lambda path, **_: nullcontext(path))
    with pytest.raises((AssertionError, QkvError, OSError)):
        test_a_full_disk_leaves_the_old_checkpoint_or_the_new(tmp_path)
