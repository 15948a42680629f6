"""Sharded weights (FSDP2) learn what whole ones learn, and their checkpoints go on with any number of processes."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from qkv import files
from qkv.baselines.lstm import build_core, lstm_spec
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.data import collate
from qkv.errors import QkvError
from qkv.training import checkpoint, control, distributed, fsdp, loop, run_dir
from qkv.training.plan import Plan
from qkv.training.probes.recorder import ProbeSettings, Recorder
from qkv.training.settings import Settings

sys.path.insert(0, str(Path(__file__).parent))
import test_distributed as p
from test_loop import translator

pytestmark = pytest.mark.skipif(os.name == "nt", reason="FSDP on gloo is tested where torchrun's own tests run")
SHARD = p.half(shard=True)
KEPT = {"evaluate_every": 3, "average": 2}
RUNS: list[tuple[str, Settings, dict[str, Any]]] = [
    ("sharded", SHARD, {}),
    ("dropped", p.half(shard=True, **KEPT), {"drop": 0.2}),
    ("agreed", p.half(shard=True, rdrop=2.0, **KEPT), {"drop": 0.2}),
    ("single", SHARD, {"single": True}),
    ("low", p.half(shard=True, precision="bf16"), {"single": True}),
    ("mean instead of sum", SHARD, {"fault": "mean"}),
    ("nan", SHARD, {"fault": "nan"}),
    ("back", p.half(shard=True, on_bad_step="rewind"), {"fault": "nan"}),
    ("full first", SHARD, {"fault": "full first"}),
    ("full second", SHARD, {"fault": "full second"}),
    ("begun", p.half(shard=True), {"stop": 4}),
    ("parts", p.half(shard=True), {"stop": 4}),
    ("parts", p.half(shard=True), {"resume": True}),
    ("from one file", p.half(), {"stop": 4}),
    ("from one file", p.half(shard=True), {"resume": True}),
    ("ema", p.half(shard=True, ema=0.9), {}),
]


def made(drop: float, seed: int = 0) -> Transformer:
    """The decoder of test_distributed; with drop 0.2 an encoder-decoder whose head is its embedding."""
    if not drop:
        return p.core_of(drop, seed)
    core = Transformer(translator(drop))
    initialise(core, seed)
    return core.double()


def plan(drop: float) -> Plan:
    if not drop:
        return p.plan()
    pairs = [([3 + i % 7, 5, 2], [5, 3 + i % 7, 4, 2]) for i in range(40)]

    def make(key: int) -> collate.Batch:
        return collate.collate_pairs(pairs[4 * key : 4 * key + 1 + key % 4], pad=0, start=1)

    return Plan(lambda epoch: [(i + epoch) % p.EACH for i in range(p.EACH)], make, {"rows": 40})


def run(
    folder: Path, settings: Settings, *, drop: float = 0.0, resume: bool = False, fault: str = "", stop: int = 0,
    single: bool = False,
) -> None:  # fmt: skip
    """One rank's part of a run; its last weights, or its error, are written under its number."""
    ranks = distributed.current_ranks()
    folder.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        if fault == "mean":
            from torch.distributed.fsdp import FSDPModule

            patch.setattr(FSDPModule, "set_gradient_divide_factor", lambda self, factor: None)
        if fault == "full first" and ranks.first:
            patch.setattr(fsdp, "write_text_file", p.full)
        if fault == "full second" and not ranks.first:
            from torch.distributed.checkpoint import HuggingFaceStorageWriter

            patch.setattr(HuggingFaceStorageWriter, "write_data", p.full)
        if fault == "nan" and ranks.rank == 1:
            true = fsdp.step_loss
            patch.setattr(fsdp, "step_loss", lambda *a, **k: (true(*a, **k)[0] * float("nan"), None))
        try:
            core = made(drop, seed=ranks.rank)
            core = core.float() if single else core
            eye = Recorder({}, ProbeSettings(steps=(1,)), {}) if ranks.first and stop else None
            loop.train(core, plan(drop), settings, directory=folder, resume=resume, recorder=eye,
                       stop=lambda step: step == (stop or -1),
                       evaluate=p.measured if ranks.first else None)  # fmt: skip
        except (control.Interrupted, QkvError) as error:
            code = getattr(error, "exit_code", 0) or getattr(error, "code", 0) or 2
            (folder / f"{ranks.rank}.error").write_text(f"{code} {error}", encoding="utf-8")
            return
    checkpoint.write(folder / f"{ranks.rank}.weights", checkpoint.weights(core), {})


def ranked(folder: str) -> None:
    """All runs of one rank, which torchrun's variables describe."""
    torch.set_num_threads(1)
    with distributed.join_ranks("cpu"):
        for name, settings, how in RUNS:
            run(Path(folder) / name, settings, **how)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs, made by two processes over gloo as torchrun starts them."""
    folder = tmp_path_factory.mktemp("shards")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    own = [str(Path(__file__).parent), *(path for path in sys.path if path)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(own), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    command = [sys.executable, "-W", "error", "-c", "import sys, test_fsdp as t; t.ranked(sys.argv[1])", str(folder)]
    children = [subprocess.Popen(command, env={**environ, "RANK": str(r)}, stderr=subprocess.PIPE) for r in range(2)]
    said = [child.communicate(timeout=300)[1].decode() for child in children]
    assert [child.returncode for child in children] == [0, 0], said
    return folder


def one(folder: Path, settings: Settings = p.BASE, **how: Any) -> dict[str, torch.Tensor]:
    """The same run by this process alone."""
    run(folder, settings, **how)
    return p.weights(folder)


def test_two_processes_with_half_of_each_weight_are_one(two: Path, tmp_path: Path) -> None:
    alone = one(tmp_path)
    assert p.gap(p.weights(two / "sharded", 0), p.weights(two / "sharded", 1)) == 0
    assert p.gap(alone, p.weights(two / "sharded")) < 1e-6
    assert p.gap(alone, checkpoint.weights(made(0.0))) > 1e-3  # it learnt


def test_an_encoder_decoder_with_dropout_and_an_average_too(two: Path, tmp_path: Path) -> None:
    alone = one(tmp_path, dataclasses.replace(p.BASE, **KEPT), drop=0.2)
    assert p.gap(alone, p.weights(two / "dropped")) < 1e-6


def test_two_dropouts_that_shall_agree_too(two: Path, tmp_path: Path) -> None:
    alone = one(tmp_path, dataclasses.replace(p.BASE, rdrop=2.0, **KEPT), drop=0.2)
    assert p.gap(alone, p.weights(two / "agreed")) < 1e-6
    assert p.gap(alone, p.weights(two / "dropped")) > 1e-4


@pytest.mark.parametrize("name", ["single", "low"])
def test_fp32_and_bf16_too_as_near_as_their_sums_are(two: Path, tmp_path: Path, name: str) -> None:
    settings = dataclasses.replace(p.BASE, precision="bf16" if name == "low" else "fp32")
    alone, first = one(tmp_path, settings, single=True), checkpoint.weights(made(0.0).float())
    moved = p.gap(alone, first)
    assert p.gap(alone, p.weights(two / name)) < moved / (5 if name == "low" else 100)


def test_gradients_that_are_averaged_instead_of_summed_are_caught(two: Path, tmp_path: Path) -> None:
    assert p.gap(one(tmp_path), p.weights(two / "mean instead of sum")) > 1e-5


def test_a_loss_that_is_not_a_number_stops_both_in_the_same_step(two: Path) -> None:
    said = [(two / "nan" / f"{rank}.error").read_text(encoding="utf-8") for rank in range(2)]
    assert all(text.startswith("3 training: loss nan at step 1 ") for text in said)


def test_both_go_back_to_their_part_of_a_checkpoint_and_stop_at_the_third(two: Path) -> None:
    said = [(two / "back" / f"{rank}.error").read_text(encoding="utf-8") for rank in range(2)]
    assert all("loss nan at step 1 " in text and "went back 3 times" in text for text in said)
    state = json.loads((two / "back" / "train" / "last.json").read_text(encoding="utf-8"))
    assert state["progress"]["step"] == 0


@pytest.mark.parametrize("name", ["full first", "full second"])
def test_a_full_disk_of_one_process_stops_both_with_the_same_words(two: Path, name: str) -> None:
    one, other = ((two / name / f"{rank}.error").read_text(encoding="utf-8") for rank in range(2))
    assert one == other
    assert "could not be saved ([Errno 28] No space left on device); the previous checkpoint is intact" in one


def test_a_resumed_run_repeats_the_uninterrupted_one_bit_for_bit(two: Path) -> None:
    whole = p.weights(two / "sharded")
    assert p.gap(whole, p.weights(two / "parts", 0)) == 0 == p.gap(whole, p.weights(two / "parts", 1))
    assert p.gap(whole, p.weights(two / "begun")) > 1e-4


def test_the_checkpoint_is_safetensors_and_json_and_the_old_one_is_gone(two: Path) -> None:
    folder = two / "parts" / "train"
    state = json.loads((folder / "last.json").read_text(encoding="utf-8"))
    assert state["progress"]["step"] == p.BASE.steps
    assert [f.name for f in folder.glob("last-*")] == [state["folder"]]
    files = sorted(f.name for f in (folder / state["folder"]).iterdir())
    assert len(files) == 2
    assert {Path(name).suffix for name in files} == {".safetensors"}
    assert not (folder / "last.safetensors").exists()


def test_one_process_goes_on_from_two_and_two_from_one_file(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two / "begun" / "train", tmp_path / "train")
    alone = one(tmp_path, p.BASE, resume=True)
    assert p.gap(p.weights(two / "sharded"), alone) < 1e-6
    assert [f.name for f in (tmp_path / "train").iterdir() if f.name.startswith("last")] == ["last.safetensors"]
    assert p.gap(p.weights(two / "sharded"), p.weights(two / "from one file")) < 1e-6
    assert not (two / "from one file" / "train" / "last.safetensors").exists()


def test_what_needs_whole_weights_is_refused(two: Path) -> None:
    said = (two / "ema" / "1.error").read_text(encoding="utf-8")
    assert "training.shard does not work with training.ema" in said
    with pytest.raises(QkvError, match=r"training\.optimizer=muon"):
        fsdp.refuse_unsupported(Settings(optimizer="muon"), Transformer(translator()))
    with pytest.raises(QkvError, match="an LSTM has no blocks"):
        fsdp.refuse_unsupported(Settings(), build_core(lstm_spec(50, width=16, attention="none", context=64)))


def test_what_cannot_be_watched_is_told(two: Path) -> None:
    told = [
        event["text"] for event in run_dir.read_events(two / "begun" / "train" / "log.jsonl") if event["kind"] == "note"
    ]
    assert any(text.startswith("watch: nothing is recorded") for text in told)
    assert not (two / "begun" / "train" / "watch").exists()
    assert (two / "from one file" / "train" / "watch").exists()  # whose first part was not sharded


def test_a_checkpoint_with_a_missing_part_is_refused(two: Path, tmp_path: Path) -> None:
    shutil.copytree(two / "begun" / "train", tmp_path / "train")
    next((tmp_path / "train").glob("last-*/*.safetensors")).unlink()
    run(tmp_path, p.BASE, resume=True)
    said = (tmp_path / "0.error").read_text(encoding="utf-8")
    assert "not a complete checkpoint" in said


def test_all_of_a_checkpoint_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts: list[tuple[str, Path]] = []
    for module in (fsdp, files):
        true = module.fsync_path
        monkeypatch.setattr(module, "fsync_path", lambda path, true=true: acts.append(("sync", path)) or true(path))
    rename = os.replace
    monkeypatch.setattr(fsdp.os, "replace", lambda a, b: acts.append(("name", Path(b))) or rename(a, b))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        tensors = {f"weight:{n}": w for n, w in checkpoint.weights(made(0.0)).items()}
        fsdp.write_parts(tmp_path / "last.json", tensors, {"progress": {"step": 3}}, distributed.current_ranks())
    finally:
        dist.destroy_process_group()
    place = tmp_path / "last-3"
    names = [f.name for f in place.iterdir()]
    at = acts.index(("name", place))
    assert {("sync", tmp_path / ".last-3"), *(("sync", tmp_path / ".last-3" / name) for name in names)} <= {*acts[:at]}
    named = acts.index(("name", tmp_path / "last.json"))
    assert named > at
    assert ("sync", tmp_path) in acts[named:]


def test_a_checkpoint_that_cannot_be_named_leaves_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        core = made(0.0)
        pointer, ranks = tmp_path / "last.json", distributed.current_ranks()

        def saved(step: int) -> None:
            tensors = {f"weight:{n}": t + step for n, t in checkpoint.weights(core).items()}
            fsdp.write_parts(pointer, tensors, {"progress": {"step": step}}, ranks)

        saved(1)
        monkeypatch.setattr(fsdp, "write_text_file", p.full)
        with pytest.raises(QkvError, match=r"No space left on device.*the previous checkpoint is intact"):
            saved(2)
        tensors, state = fsdp.read_parts(pointer, core)
        assert state["progress"]["step"] == 1
        assert all(torch.equal(tensors[f"weight:{n}"], t + 1) for n, t in checkpoint.weights(core).items())
        monkeypatch.undo()
        saved(3)
        assert sorted(f.name for f in tmp_path.iterdir()) == ["last-3", "last.json"]
    finally:
        dist.destroy_process_group()
