"""Layers that processes compute together, runs that go on with other numbers of them, and ranks that are killed."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.data import collate
from qkv.errors import QkvError
from qkv.spec import Attention, Block, Experts, Ffn, Head, Init, Latent, Mask, Norm, Relative, Rotary, Spec, Stack
from qkv.training import checkpoint, distributed, loop, run_dir, tensor_parallel
from qkv.training.plan import Plan
from qkv.training.settings import Settings

sys.path.insert(0, str(Path(__file__).parent))
import test_distributed as p

pytestmark = pytest.mark.skipif(os.name == "nt", reason="gloo is tested where torchrun's own tests run")
RMS, WORDS, EACH = Norm("rms", 1e-6), 29, 9
TWO = dataclasses.replace(p.BASE, tensor_parallel=2)  # the same micro-batches as one process
FOUR = p.half(tensor_parallel=2)  # two pairs, each with half of the micro-batches


def spec_of(kind: str) -> Spec:
    """A tiny model of a kind whose parts are cut in different ways."""
    causal, rotary, gated = Mask("causal"), Rotary(8), Ffn(32, "silu", gated=True)
    if kind == "grouped":
        attn = Attention(4, 2, 8, causal, bias=True, out_bias=True, rotary=rotary, qk_norm=RMS)
        experts = Experts(8, 2, Ffn(8, "silu", gated=True), balance="bias")
        blocks = (Block(attn, gated, norm_in=RMS, dropout=0.2),
                  Block(attn, None, moe=experts, norm_in=RMS, dropout=0.2))  # fmt: skip
    elif kind == "latent":
        latent = Latent(4, 12, 8, 8, 8, causal, Rotary(4), RMS)
        blocks = (Block(latent, gated, norm_in=RMS),) * 2
    else:
        enc = Block(Attention(4, 4, 8, Mask("full")), Ffn(32, "relu", bias=True), norm_in=RMS)
        dec = Block(Attention(4, 4, 8, causal), Ffn(32, "relu", bias=True), norm_in=RMS,
                    cross=Attention(4, 4, 8, Mask("memory")))  # fmt: skip
        stacks = [Stack(16, (block,) * 2, final_norm=RMS, relative=Relative(8, 16, 4, to))  # type: ignore[arg-type]
                  for block, to in ((enc, "both"), (dec, "past"))]  # fmt: skip
        return Spec(WORDS, encoder=stacks[0], decoder=stacks[1], head=Head("tied"), init=Init("normal", 0.3))
    return Spec(WORDS, decoder=Stack(16, blocks, final_norm=RMS), head=Head("untied"), init=Init("normal", 0.3))


KINDS = ("grouped", "latent", "relative")


def core_of(kind: str, seed: int = 0) -> Transformer:
    core = Transformer(spec_of(kind))
    initialise(core, seed)
    return core.double()


def plan_of(kind: str) -> Plan:
    if kind != "relative":
        return p.plan()
    pairs = [([3 + i % 7, 5, 2], [5, 3 + i % 7, 4, 2]) for i in range(40)]

    def make(key: int) -> collate.Batch:
        return collate.collate_pairs(pairs[4 * key : 4 * key + 1 + key % 4], pad=0, start=1)

    return Plan(lambda epoch: [(i + epoch) % EACH for i in range(EACH)], make, {"rows": 40})


def run(folder: Path, kind: str, settings: Settings, *, stop: int = 0, fault: str = "", resume: bool = False) -> None:
    """One rank's part of a run; its last weights, or its error, are written under its number."""
    rank = distributed.current_ranks().rank
    folder.mkdir(parents=True, exist_ok=True)
    core = core_of(kind, seed=rank)
    with pytest.MonkeyPatch.context() as patch:
        if fault == "norms":
            patch.setattr(tensor_parallel, "sum_gradients", lambda norms, group: None)
        if fault == "rotary key":
            patch.setattr(tensor_parallel, "share_rotary_key", lambda at, mesh, module, given, x: x)
        try:
            loop.train(core, plan_of(kind), settings, directory=folder, resume=resume,
                       stop=lambda step: step == stop)  # fmt: skip
        except QkvError as error:
            (folder / f"{rank}.error").write_text(str(error), encoding="utf-8")
            return
    checkpoint.write(folder / f"{rank}.weights", checkpoint.weights(core), {})


def join(folder: str, size: int) -> None:
    """All runs of one rank among `size`."""
    torch.set_num_threads(1)
    with distributed.join_ranks("cpu"):
        for kind in KINDS:
            run(Path(folder) / f"{size} {kind}", kind, TWO if size == 2 else FOUR)
        if size == 2:
            run(Path(folder) / "norms", "grouped", TWO, fault="norms")
            run(Path(folder) / "key", "latent", TWO, fault="rotary key")
            run(Path(folder) / "odd", "grouped", dataclasses.replace(TWO, tensor_parallel=3))
            run(Path(folder) / "parts", "grouped", TWO, stop=4)
            run(Path(folder) / "parts", "grouped", TWO, resume=True)
            run(Path(folder) / "calm parts", "grouped", p.half(shard=True))
            run(Path(folder) / "calm whole", "grouped", p.half())
            run(Path(folder) / "from four", "grouped", p.half(shard=True), resume=True)
            run(Path(folder) / "from four cut", "grouped", TWO, resume=True)
        else:
            run(Path(folder) / "from four", "grouped", dataclasses.replace(p.BASE, accumulate=1, shard=True), stop=4)
            run(Path(folder) / "from four cut", "grouped", FOUR, stop=4)


def start(size: int, code: str, *words: str) -> None:
    """Run `size` processes over gloo as torchrun starts them."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    own = [str(Path(__file__).parent), *(path for path in sys.path if path)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(own), "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(size)}
    environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    command = [sys.executable, "-c", f"import sys, test_many_ranks as t; {code}", *words]
    children = [subprocess.Popen(command, env={**environ, "RANK": str(r)}, stderr=subprocess.PIPE) for r in range(size)]
    said = [child.communicate(timeout=400)[1].decode() for child in children]
    assert [child.returncode for child in children] == [0] * size, said
    assert not any(said), said


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs: of four processes first, then of two, some of which go on."""
    found = tmp_path_factory.mktemp("ranks")
    for size in (4, 2):
        start(size, "t.join(sys.argv[1], int(sys.argv[2]))", str(found), str(size))
    return found


def alone(folder: Path, kind: str) -> dict[str, Tensor]:
    """The same run by this process alone."""
    run(folder, kind, p.BASE)
    return p.weights(folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 4])
def test_layers_computed_together_learn_what_one_process_does(
    folder: Path, kind: str, size: int, tmp_path: Path
) -> None:
    one, found = alone(tmp_path, kind), [p.weights(folder / f"{size} {kind}", rank) for rank in range(size)]
    assert all(p.gap(found[0], other) == 0 for other in found)
    assert p.gap(one, found[0]) < 1e-6
    assert p.gap(one, checkpoint.weights(core_of(kind))) > 1e-3


def test_gradients_that_see_some_heads_must_be_summed(folder: Path, tmp_path: Path) -> None:
    for name, kind in (("norms", "grouped"), ("key", "latent")):
        assert p.gap(alone(tmp_path / name, kind), p.weights(folder / name)) > 1e-5


def test_a_resumed_run_of_cut_layers_repeats_the_whole_one_bit_for_bit(folder: Path) -> None:
    whole = p.weights(folder / "2 grouped")
    assert p.gap(whole, p.weights(folder / "parts", 0)) == 0 == p.gap(whole, p.weights(folder / "parts", 1))


@pytest.mark.parametrize("name", ["from four", "from four cut"])
def test_two_processes_go_on_from_the_checkpoint_of_four(folder: Path, name: str, tmp_path: Path) -> None:
    assert p.gap(alone(tmp_path, "grouped"), p.weights(folder / name)) < 1e-6
    assert len(list((folder / name / "train").glob("last-*/*.safetensors"))) == 2


def test_what_cannot_be_cut_is_refused_by_name(folder: Path) -> None:
    said = (folder / "odd" / "0.error").read_text(encoding="utf-8")
    assert "training.tensor_parallel=3" in said
    grouped = spec_of("grouped")
    assert grouped.decoder is not None
    one = grouped.decoder.blocks[0]
    assert isinstance(one.attn, Attention)
    for attn, ffn, says in ((dataclasses.replace(one.attn, groups=1), one.ffn, "key/value groups (1)"),
                            (dataclasses.replace(one.attn, dropout=0.1), one.ffn, "dropout"),
                            (dataclasses.replace(one.attn, qk_normed="together"), one.ffn, "norm"),
                            (dataclasses.replace(one.attn, mask=Mask("causal", alibi_heads=4)), one.ffn, "ALiBi"),
                            (one.attn, Ffn(33, "silu"), "(33)")):  # fmt: skip
        stack = dataclasses.replace(grouped.decoder, blocks=(dataclasses.replace(one, attn=attn, ffn=ffn),))
        with pytest.raises(QkvError) as error:
            tensor_parallel.refuse_uneven(Transformer(dataclasses.replace(grouped, decoder=stack)), 2)
        assert says in str(error.value)
    with pytest.raises(QkvError, match="tensor_parallel=2"):
        loop.train(core_of("grouped"), p.plan(), TWO)


# torchrun starts all ranks again when one is killed


def die_once(step: int, folder: str) -> bool:
    """Ends the second rank as it comes to a step for the first time; never stops the run."""
    once = Path(folder) / "died"
    if step == 5 and distributed.current_ranks().rank == 1 and not once.exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return False


def survive(folder: str, shard: str) -> None:
    """A rank of a run under torchrun, which saves every second step."""
    torch.set_num_threads(1)
    settings = p.half(shard=shard == "parts", save_every=2)
    with distributed.join_ranks("cpu") as ranks:
        core = core_of("grouped")
        loop.train(core, p.plan(), settings, directory=folder, resume=True, stop=lambda n: die_once(n, folder))
        checkpoint.write(Path(folder) / f"{ranks.rank}.weights", checkpoint.weights(core), {})


@pytest.mark.parametrize("shard", ["parts", "whole"])
def test_torchrun_goes_on_bit_for_bit_after_a_killed_rank(folder: Path, shard: str, tmp_path: Path) -> None:
    own = [str(Path(__file__).parent), *(path for path in sys.path if path)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(own), "OMP_NUM_THREADS": "1"}
    script = tmp_path / "rank.py"
    script.write_text("import sys, test_many_ranks as t; t.survive(*sys.argv[1:])", encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               "--max-restarts", "1", str(script), str(tmp_path), shard]  # fmt: skip
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "died").exists()
    assert all(p.gap(p.weights(tmp_path, rank), p.weights(folder / f"calm {shard}")) == 0 for rank in range(2))
    events = run_dir.read_events(tmp_path / "train" / "log.jsonl")
    assert [e["step"] for e in events if e["kind"] == "step"] == list(range(1, p.BASE.steps + 1))
    assert any("resumed after step 4" in e.get("text", "") for e in events)
