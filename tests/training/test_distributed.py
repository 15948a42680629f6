"""Several processes are one: the same weights as of a single process, the same end, the same stop."""

import dataclasses
import io
import itertools
import os
import shutil
import signal
import subprocess
import sys
import types
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from qkv.checkpoints import storage
from qkv.cli import main
from qkv.cli import train as cli_train
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.data import collate
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.spec import Attention, Block, Experts, Ffn, Head, Mask, Norm, Rotary, Spec, Stack
from qkv.training import checkpoint, control, distributed, loop, run_dir
from qkv.training import step as stepping
from qkv.training.plan import Plan
from qkv.training.settings import Settings

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals to another process differ on Windows")
WORDS, EACH = 29, 9  # 9 micro-batches an epoch: the last step of 4 has 1 of them, and the second process none
BASE = Settings(
    steps=7, accumulate=4, lr=3e-3, schedule="constant", precision="fp32", log_every=1, threads=1,
    label_smoothing=0.1, clip=0.5, eps=1e-6,
)  # fmt: skip


def core_of(drop: float, seed: int = 0) -> Transformer:
    """A tiny decoder in fp64, so that only the order of sums is left to differ; with experts nobody may choose.

    Biases steer the routers: they move by the loads of all ranks, so they are the same everywhere.
    """
    attn = Attention(2, 1, 8, Mask("causal"), rotary=Rotary(8), dropout=drop)
    norm = Norm("rms", 1e-6)
    blocks = (
        Block(attn, Ffn(32, "silu", gated=True), norm_in=norm, dropout=drop),
        Block(attn, None, moe=Experts(8, 2, Ffn(8, "silu", gated=True), balance="bias"), norm_in=norm, dropout=drop),
    )
    core = Transformer(Spec(WORDS, decoder=Stack(16, blocks, final_norm=norm), head=Head("untied")))
    initialise(core, seed)
    return core.double()


def plan() -> Plan:
    """Micro-batches of unequal size: one to six rows."""
    ids = torch.randint(0, WORDS, (40, 7), generator=torch.Generator().manual_seed(5))
    sizes = [1 + (3 * i) % 6 for i in range(EACH)]
    starts = [sum(sizes[:i]) for i in range(EACH)]

    def order(epoch: int) -> Sequence[int]:
        return [(i + 3 * epoch) % EACH for i in range(EACH)]

    def make(key: int) -> collate.Batch:
        return collate.collate_windows(ids[starts[key] : starts[key] + sizes[key]])

    return Plan(order, make, {"rows": 40})


def measured(core: Transformer, step: int) -> dict[str, Any]:
    return {"loss": -float(step)}


def run(
    folder: Path, settings: Settings, *, drop: float = 0.0, resume: bool = False, fault: str = "", stop: int = 0
) -> None:
    """One rank's part of a run; its last weights are written under its number, for they must be the same."""
    ranks, told = distributed.current_ranks(), list[dict[str, Any]]()
    folder.mkdir(parents=True, exist_ok=True)
    core = core_of(drop, seed=ranks.rank)  # other first weights on each rank: the first one's count
    kill = {"signal": signal.SIGTERM, "killed": signal.SIGKILL}.get(fault) if ranks.rank == 1 else None

    def halt(step: int) -> bool:
        if kill and step == 3:
            os.kill(os.getpid(), kill)
        return step == stop

    with pytest.MonkeyPatch.context() as patch:
        broken(patch, fault, ranks)
        try:
            end = loop.train(core, plan(), settings, directory=folder, resume=resume, stop=halt, report=told.append,
                             evaluate=measured if ranks.first else None)  # fmt: skip
        except (control.Interrupted, QkvError) as error:
            code = getattr(error, "exit_code", 0) or getattr(error, "code", 0) or 2
            code = code if isinstance(code, int) else 2  # that of an exit, not the name of a kind of error
            (folder / f"{ranks.rank}.error").write_text(f"{code} {error}", encoding="utf-8")
            return
        except KeyError as error:
            (folder / f"{ranks.rank}.error").write_text(f"KeyError {error}", encoding="utf-8")
            return
    checkpoint.write(folder / f"{ranks.rank}.weights", checkpoint.weights(core), {"why": end.why, "told": len(told)})


def broken(patch: pytest.MonkeyPatch, fault: str, ranks: distributed.Ranks) -> None:
    """A deliberate mistake put into this rank."""
    if fault == "own tokens":  # at least one: a step without any moves nothing, and the other rank would wait
        total = distributed.Ranks.all_reduce_sum
        own = lambda self, n: [max(1, n[0]), n[1]] if len(n) == 2 else total(self, n)  # noqa: E731
        patch.setattr(distributed.Ranks, "all_reduce_sum", own)
    if fault == "own loads":
        total = distributed.Ranks.all_reduce_sum
        patch.setattr(distributed.Ranks, "all_reduce_sum", lambda self, n: list(n) if len(n) == 8 else total(self, n))
    if fault == "same micro-batch":
        patch.setattr(stepping, "range", lambda rank, n, size: range(0, n, size), raising=False)
    if fault == "full" and ranks.first:
        patch.setattr(storage, "save_file", full)
    if fault == "unmeasured" and ranks.first:
        patch.setattr(sys.modules[__name__], "measured", lambda core, step: {}["loss"])
    if fault in ("nan", "nan once") and ranks.rank == 1:
        true, calls = stepping.step_loss, itertools.count()

        def spoilt(*a: Any, **k: Any) -> Any:
            loss, busy = true(*a, **k)
            return (loss * float("nan") if fault == "nan" or next(calls) == 2 else loss), busy

        patch.setattr(stepping, "step_loss", spoilt)


def full(*given: Any, **how: Any) -> None:
    """What a full disk answers."""
    raise OSError(28, "No space left on device")


def half(**other: Any) -> Settings:
    return dataclasses.replace(BASE, accumulate=BASE.accumulate // 2, **other)


KEPT = {"evaluate_every": 3, "average": 2}
RUNS: list[tuple[str, Settings, dict[str, Any]]] = [
    ("drop 0.0", half(), {}),
    ("drop 0.2", half(), {"drop": 0.2}),
    ("agree", half(rdrop=2.0), {"drop": 0.2}),
    ("own tokens", half(), {"fault": "own tokens"}),
    ("same micro-batch", half(), {"fault": "same micro-batch"}),
    ("own loads", half(), {"fault": "own loads"}),
    ("whole", half(**KEPT), {"drop": 0.2}),
    ("begun", half(**KEPT), {"drop": 0.2, "stop": 4}),
    ("parts", half(**KEPT), {"drop": 0.2, "stop": 4}),
    ("parts", half(**KEPT), {"drop": 0.2, "resume": True}),
    ("nan", half(), {"fault": "nan"}),
    ("nan once", half(on_bad_step="skip"), {"fault": "nan once"}),
    ("back", half(on_bad_step="rewind"), {"fault": "nan once"}),
    ("full", half(**KEPT), {"fault": "full"}),
    ("unmeasured", half(**KEPT), {"fault": "unmeasured"}),
    ("signal", half(steps=2000), {"fault": "signal"}),
    ("killed", half(steps=2000), {"fault": "killed"}),
]


def ranked(folder: str) -> None:
    """All runs, one after the other, in this process as one of two; the process that is left has let go of the group.

    A group that stays has threads that can abort the process as it ends.
    """
    with distributed.join_ranks("cpu"):
        group = weakref.ref(dist.group.WORLD)
        for name, settings, how in RUNS:
            run(Path(folder) / name, settings, **how)
    assert group() is None


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs, made by two processes over gloo as torchrun starts them."""
    folder = tmp_path_factory.mktemp("two")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    own = [str(Path(__file__).parent), *(p for p in sys.path if p)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(own), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    command = [sys.executable, "-c", "import sys, test_distributed as t; t.ranked(sys.argv[1])", str(folder)]
    children = [subprocess.Popen(command, env={**environ, "RANK": str(r)}, stderr=subprocess.PIPE) for r in range(2)]
    said = [child.communicate(timeout=300)[1].decode() for child in children]
    assert [child.returncode for child in children] == [0, -signal.SIGKILL], said
    return folder


def weights(folder: Path, rank: int = 0) -> dict[str, torch.Tensor]:
    return checkpoint.read(folder / f"{rank}.weights")[0]


def one(folder: Path, settings: Settings = BASE, **how: Any) -> dict[str, torch.Tensor]:
    """The same run by this process alone."""
    run(folder, settings, **how)
    return weights(folder)


def gap(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a)


@pytest.mark.parametrize("drop", [0.0, 0.2])
def test_two_processes_are_one_and_only_the_first_writes(two: Path, tmp_path: Path, drop: float) -> None:
    alone, both = one(tmp_path, drop=drop), two / f"drop {drop}"
    assert gap(weights(both, 0), weights(both, 1)) == 0
    assert gap(alone, weights(both)) < 1e-6
    assert gap(alone, checkpoint.weights(core_of(drop))) > 1e-3  # it learnt
    assert checkpoint.read(both / "1.weights")[1] == {"why": "steps", "told": 0}
    mine, theirs = (
        [e["loss"] for e in run_dir.read_events(folder / "train" / "log.jsonl") if e["kind"] == "step"]
        for folder in (tmp_path, both)
    )
    assert theirs == pytest.approx(mine, abs=1e-6)
    assert len(mine) == BASE.steps


def test_two_dropouts_that_shall_agree_are_the_same_ones_in_two_processes(two: Path, tmp_path: Path) -> None:
    alone, both = one(tmp_path, dataclasses.replace(BASE, rdrop=2.0), drop=0.2), two / "agree"
    assert gap(weights(both, 0), weights(both, 1)) == 0
    assert gap(alone, weights(both)) < 1e-6
    assert gap(alone, weights(two / "drop 0.2")) > 1e-4


@pytest.mark.parametrize("fault", ["own tokens", "same micro-batch"])
def test_a_rank_that_divides_by_its_tokens_or_repeats_another_is_caught(two: Path, tmp_path: Path, fault: str) -> None:
    assert gap(one(tmp_path), weights(two / fault)) > 1e-4


def test_routers_that_are_steered_by_their_own_rank_s_loads_are_caught(two: Path) -> None:
    bias = "decoder.layers.1.moe.bias"
    sound, broken = (weights(two / run, 1)[bias] for run in ("drop 0.0", "own loads"))
    assert 0 < float(sound.abs().max()) <= BASE.steps * BASE.moe_bias_lr * 1.0001
    assert not torch.equal(sound, broken)


def test_a_resumed_run_repeats_the_uninterrupted_one_bit_for_bit(two: Path) -> None:
    whole = weights(two / "whole")
    assert gap(whole, weights(two / "parts", 0)) == 0 == gap(whole, weights(two / "parts", 1))
    assert gap(whole, weights(two / "begun")) > 1e-4


def test_a_run_goes_on_with_other_processes_if_its_steps_stay_the_same(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two / "begun" / "train", tmp_path / "train")
    run(tmp_path, half(**KEPT), drop=0.2, resume=True)  # alone, with half the micro-batches of a step
    assert "accumulate * processes: was 4, now 2" in (tmp_path / "0.error").read_text(encoding="utf-8")
    alone = one(tmp_path, dataclasses.replace(BASE, **KEPT), drop=0.2, resume=True)
    assert gap(weights(two / "whole"), alone) < 1e-6


def test_a_loss_that_is_not_a_number_stops_both_in_the_same_step(two: Path) -> None:
    said = [(two / "nan" / f"{rank}.error").read_text(encoding="utf-8") for rank in range(2)]
    assert all(text.startswith("3 training: loss nan at step 1 ") for text in said)


def test_such_a_step_is_skipped_by_both_where_one_may_skip(two: Path) -> None:
    folder = two / "nan once"
    assert gap(weights(folder, 0), weights(folder, 1)) == 0
    assert gap(weights(folder), weights(two / "drop 0.0")) > 1e-4
    assert sorted(f.name for f in (folder / "train" / "bad_batches").iterdir()) == [
        "step-2.0.safetensors", "step-2.1.safetensors"
    ]  # fmt: skip
    losses = [e["loss"] for e in run_dir.read_events(folder / "train" / "log.jsonl") if e["kind"] == "step"]
    assert losses[1] is None  # told as it was
    assert len(losses) == BASE.steps


def test_both_go_back_to_the_checkpoint_where_one_finds_a_bad_number(two: Path) -> None:
    folder = two / "back"
    assert gap(weights(folder, 0), weights(folder, 1)) == 0
    assert gap(weights(folder), weights(two / "nan once")) > 1e-4
    told = [e["text"] for e in run_dir.read_events(folder / "train" / "log.jsonl") if e["kind"] == "note"]
    assert sum("back to step 0, past these batches" in text for text in told) == 1


def test_what_stops_the_first_process_stops_the_others_with_its_words(two: Path) -> None:
    said = [(two / "full" / f"{rank}.error").read_text(encoding="utf-8") for rank in range(2)]
    assert said[0] == said[1]
    assert "could not be written (No space left on device" in said[0]
    said = [(two / "unmeasured" / f"{rank}.error").read_text(encoding="utf-8") for rank in range(2)]
    assert said == ["KeyError 'loss'", "2 process 0: KeyError: 'loss'"]


def test_a_signal_to_any_process_saves_and_ends_all_after_the_same_step(two: Path) -> None:
    assert [(two / "signal" / f"{rank}.error").read_text(encoding="utf-8") for rank in range(2)] == ["143 SIGTERM"] * 2
    assert checkpoint.read(two / "signal" / "train" / "last.safetensors")[1]["progress"]["step"] == 3


def test_a_process_that_dies_ends_the_others_with_a_word(two: Path) -> None:
    assert f"1 training: {distributed.GONE}" in (two / "killed" / "0.error").read_text(encoding="utf-8")


def test_processes_with_other_data_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed.Ranks, "all_reduce_max", lambda self, numbers: [max(n, 7.0) for n in numbers])
    with pytest.raises(QkvError, match="the 2 processes differ in data") as found:
        distributed.Ranks(0, 2).assert_same(Message("data, model or checkpoint"), "rows 40")
    assert "2 个进程的数据、模型或检查点不同" in found.value.message.to("zh")


CHILD = (
    "from qkv.training import distributed\nwith distributed.join_ranks('cpu') as r:\n    r.all_reduce_sum([1])\n    "
)


def test_processes_end_with_the_first_and_an_early_end_names_its_cause() -> None:
    with distributed.start_ranks(2, [sys.executable, "-c", CHILD], device="cpu") as ranks:
        assert (ranks, ranks.all_reduce_sum([1.0])) == (distributed.Ranks(0, 2), [2.0])
    assert distributed.current_ranks() == distributed.Ranks()
    fail = CHILD + "import sys; print('no such file', file=sys.stderr); sys.exit(2)"
    with pytest.raises(distributed.Lost, match="process 1 ended with code 2: no such file") as error:  # noqa: PT012, SIM117
        with distributed.start_ranks(2, [sys.executable, "-c", fail], device="cpu") as ranks:
            ranks.all_reduce_sum([1.0])
            ranks.all_reduce_sum([1.0])
    assert error.value.exit_code == 2


def test_the_other_processes_run_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []

    @contextmanager
    def started(count: int, command: Sequence[str], *, device: str) -> Iterator[None]:
        heard.append(list(command))
        yield

    def learn(common: Any, run: Any, out: Path, resume: str, *, kept: bool, track: tuple[str, ...]) -> int:
        heard.append((run.training, run.model, out, resume, kept, common.device, common.threads))
        return 0

    monkeypatch.setattr(distributed, "start_ranks", started)
    monkeypatch.setattr(cli_train, "learn", learn)
    words = ["train", "demo", "training.lr=0.5", "--seed", "3", "--smoke", "--out", str(tmp_path), "--resume", "auto"]
    before = torch.get_num_threads()
    try:
        assert main([*words, "--processes", "2", "--threads", "1", "--device", "cpu"]) == 0
        command, here = heard
        assert command[:3] == [sys.executable, "-m", "qkv.cli"]
        assert main(command[3:]) == 0
    finally:
        torch.set_num_threads(before)
    assert heard[2] == here
    assert here[0].seed == 3


@pytest.mark.parametrize("said", ["error: the disk is full\nrun again", "错误： the disk is full\n加 --debug 再运行"])
def test_what_ended_another_process_is_told_in_any_language(said: str) -> None:
    child = types.SimpleNamespace(returncode=2)
    found = distributed.find_cause([child], [io.BytesIO(said.encode())])  # type: ignore[list-item]
    assert "process 1 ended with code 2" in str(found)
    assert "the disk is full" in str(found)
