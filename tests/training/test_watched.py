"""A watched run is the same run, its records are what really was, its cost keeps within what is allowed."""

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import qkv
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.data import collate
from qkv.data.order import draw_permutation
from qkv.errors import QkvError
from qkv.spec import Attention, Block, Ffn, Head, Mask, Norm, Rotary, Spec, Stack
from qkv.training import checkpoint, loop
from qkv.training import step as stepping
from qkv.training.losses import token_loss
from qkv.training.plan import Plan
from qkv.training.probes import recorder, records
from qkv.training.probes.recorder import ProbeSettings, Reading, Recorder
from qkv.training.probes.records import ProbeLog
from qkv.training.settings import Settings

VOCABULARY = 23
RARE = 22  # an id that no batch holds
BASE = Settings(steps=9, lr=1e-2, schedule="constant", precision="fp32", log_every=1, clip=0.5, accumulate=2)
ALWAYS = ProbeSettings(times=1000)


def speaker(drop: float = 0.2, kind: str = "untied") -> Transformer:
    attn = Attention(2, 1, 8, Mask("causal"), rotary=Rotary(8), dropout=drop)
    block = Block(attn, Ffn(32, "silu", gated=True), norm_in=Norm("rms", 1e-6), dropout=drop)
    stack = Stack(16, (block,) * 2, final_norm=Norm("rms", 1e-6))
    core = Transformer(Spec(VOCABULARY, decoder=stack, head=Head("tied" if kind == "tied" else "untied")))
    initialise(core, 0)
    return core


def plan() -> Plan:
    rows = torch.randint(0, RARE, (24, 9), generator=torch.Generator().manual_seed(1))

    def order(epoch: int) -> list[tuple[int, ...]]:
        mixed = draw_permutation(24, seed=0, epoch=epoch).tolist()
        return [tuple(mixed[i : i + 4]) for i in range(0, 24, 4)]

    return Plan(order, lambda key: collate.collate_windows(rows[list(key)]), {"rows": 24})


class Always(Recorder):
    """Records every step, whatever it costs: no test waits on a clock."""

    def is_due(self, step: int, seconds: float, total: int) -> bool:
        return True


def hearing(core: Transformer) -> Reading:
    """A reading as real ones are: a pass without gradients."""
    with torch.inference_mode():
        loss = float(token_loss(core, plan().make((0, 1))))
    return [{"output": f"{loss:.3f}"}], {"loss": torch.tensor([loss])}


def trained(
    folder: Path, how: ProbeSettings | None = ALWAYS, read: Callable[[Transformer], Reading] = hearing, **more: Any
) -> tuple[Transformer, list[dict[str, Any]]]:
    """A core after a run, watched or not, and what the run told."""
    core, told = speaker(), list[dict[str, Any]]()
    eye = Always({"texts": lambda: read(core)}, how, {"kind": "decoder"}) if how else None
    loop.train(core, plan(), BASE, directory=folder, report=told.append, recorder=eye, **more)
    return core, told


def state(core: Transformer, told: list[dict[str, Any]]) -> tuple[dict[str, Tensor], list[float], Tensor]:
    """What a watched run may not change: weights, losses, the random numbers drawn."""
    losses = [e["loss"] for e in told if e["kind"] == "step"]
    return {n: p.detach().clone() for n, p in core.named_parameters()}, losses, torch.get_rng_state()


def same(folder: Path, read: Callable[[Transformer], Reading]) -> bool:
    """Whether a run with a reading is the run without it, bit for bit."""
    found = []
    for name, how in (("plain", None), ("watched", ALWAYS)):
        torch.manual_seed(5)
        found.append(state(*trained(folder / name, how, read)))
    (a, losses, numbers), (b, again, drawn) = found
    assert ProbeLog(folder / "watched").steps == list(range(10))
    return all(torch.equal(a[n], b[n]) for n in a) and losses == again and torch.equal(numbers, drawn)


def test_a_watched_run_is_the_run_that_was_not_watched(tmp_path: Path) -> None:
    assert same(tmp_path, hearing)


def test_a_last_step_that_nothing_foretold_is_recorded_too(tmp_path: Path) -> None:
    core, eye = speaker(), Recorder({}, ProbeSettings(steps=(1,)), {})
    told = list[dict[str, Any]]()
    stop = lambda step: step == 4  # noqa: E731
    loop.train(core, plan(), BASE, directory=tmp_path, report=told.append, recorder=eye, stop=stop)
    w = ProbeLog(tmp_path)
    assert w.steps == [0, 1, 4]
    assert [e["step"] for e in told if e["kind"] == "watch"] == [0, 1, 4]
    assert (w.read(1).json["gradient"] > 0, w.read(4).json["gradient"]) == (True, None)
    weights = w.weights(4)
    assert all(torch.equal(weights[n], t) for n, t in checkpoint.weights(core).items())
    assert w.read(4).json["lr"] == BASE.lr
    again = Recorder({}, ProbeSettings(steps=(1,)), {})
    loop.train(speaker(), plan(), BASE, directory=tmp_path, recorder=again, resume=True)
    assert ProbeLog(tmp_path).steps == [0, 1, 4, 9]
    assert ProbeLog(tmp_path).read(9).json["gradient"] > 0


@pytest.mark.parametrize("how", [{"seconds": 0.5}, {"patience": 2}, {"epochs": 2}, {"steps": 5}])
def test_a_last_step_that_could_be_foretold_says_what_it_moved(
    how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(ticks) * 0.02, sleep=lambda _: None))
    core, eye = speaker(), Recorder({}, ProbeSettings(times=1), {})
    made = dataclasses.replace(BASE, **{"steps": 0, "epochs": 99, **how})
    monkeypatch.setattr(eye, "is_due", lambda step, seconds, total: False)
    judge = lambda core, step: {"loss": 1.0}  # noqa: E731
    end = loop.train(core, plan(), made, directory=tmp_path, recorder=eye, evaluate=judge)
    assert (end.why, ProbeLog(tmp_path).steps) == (next(iter(how)), [0, end.steps])
    last = ProbeLog(tmp_path).read(end.steps)
    assert last.json["gradient"] > 0
    assert float(last["matrices.update"].max()) > 0


def nudging(core: Transformer) -> Reading:
    with torch.no_grad():
        core.embed.weight[0, 0] += 1e-6
    return [], {}


def drawing(core: Transformer) -> Reading:
    torch.rand(1)
    return [], {}


def leaving(core: Transformer) -> Reading:
    token_loss(core, plan().make((0, 1))).backward()
    return [], {}


@pytest.mark.parametrize("fault", [nudging, drawing, leaving])
def test_a_reading_that_touches_the_run_is_caught(fault: Callable[[Transformer], Reading], tmp_path: Path) -> None:
    assert not same(tmp_path, fault)


def test_norms_and_rows_are_those_of_the_step(tmp_path: Path) -> None:
    trained(tmp_path)
    w = ProbeLog(tmp_path)
    assert w.kept == w.steps == list(range(10))
    named = [m["name"] for m in w.index["matrices"]]
    for step in (1, 4, 9):
        old, new, r = w.weights(step - 1), w.weights(step), w.read(step)
        for i, name in enumerate(named):
            assert float(r["matrices.weight"][i]) == pytest.approx(float(new[name].norm()), rel=1e-5)
            assert float(r["matrices.update"][i]) == pytest.approx(float((new[name] - old[name]).norm()), rel=1e-4)
            assert int(r["matrices.moved"][i]) == int((new[name] != old[name]).reshape(len(old[name]), -1).any(1).sum())
    first = w.read(0)
    assert first.json["loss"] is None
    assert not first["matrices.update"].any()
    assert not first["matrices.moved"].any()


def test_the_gradients_are_those_before_clipping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "make_dropout", lambda *key, **how: lambda x, p: x)
    trained(tmp_path)
    w, core = ProbeLog(tmp_path), speaker()
    checkpoint.fill(core, w.weights(0))
    batches = [plan().make(key) for key in plan().order(0)[:2]]
    (torch.stack([token_loss(core, b) for b in batches]).sum() / sum(b.tokens for b in batches)).backward()
    right = {n: float(p.grad.norm()) for n, p in core.named_parameters() if p.grad is not None}
    r = w.read(1)
    found = dict(zip([m["name"] for m in w.index["matrices"]], r["matrices.gradient"].tolist(), strict=True))
    assert found == pytest.approx(right, rel=1e-4)
    assert r.json["gradient"] == pytest.approx(sum(x * x for x in right.values()) ** 0.5, rel=1e-4)
    assert r.json["gradient"] > BASE.clip  # else this says nothing of clipping


def test_a_row_without_a_gradient_does_not_move(tmp_path: Path) -> None:
    trained(tmp_path)
    w = ProbeLog(tmp_path)
    embed = next(m for m in w.compare_weights(0, 9) if m.name == "embed.weight")
    assert (embed.rows, embed.part) == (VOCABULARY, "embedding")
    assert embed.moved == VOCABULARY - 1
    assert torch.equal(w.weights(0)["embed.weight"][RARE], w.weights(9)["embed.weight"][RARE])
    assert all(m.moved == 0 and m.distance == 0 for m in w.compare_weights(3, 3))


@settings(max_examples=60, deadline=None)
@given(
    cost=st.floats(0.001, 50), each=st.floats(0.01, 5), total=st.integers(1, 3000), times=st.integers(1, 200),
    share=st.floats(0.01, 0.5), known=st.booleans(),
)  # fmt: skip
def test_what_it_may_cost_holds_by_construction(
    cost: float, each: float, total: int, times: int, share: float, known: bool
) -> None:
    eye = Recorder({}, ProbeSettings(times=times, share=share), {})
    eye.spent, eye.cost, eye.last = cost, cost, 0
    for step in range(1, total + 1):
        if eye.is_due(step, step * each, total if known else loop.ENDLESS) or (known and step == total):  # `end` has it
            eye.spent, eye.last = eye.spent + cost, step
    assert eye.spent <= max(cost, share * total * each * 1.001) + (cost if known else 0)
    assert not known or eye.last == total


def test_the_last_step_is_there_where_records_are_dear() -> None:
    eye, found = Recorder({}, ProbeSettings(times=100, share=0.05), {}), list[int]()
    eye.last, eye.spent, eye.cost = 0, 1.0, 1.0
    for step in range(1, 201):
        if eye.is_due(step, float(step), 200) or step == 200:
            eye.last, eye.spent = step, eye.spent + 1.0
            found.append(step)
    assert len(found) == 8  # of ten seconds one is spent before the first step, one is kept for a dear last record


def test_steps_that_were_asked_for_are_recorded_whatever_they_take() -> None:
    for times in (0, 100):
        eye, found = Recorder({}, ProbeSettings(times=times, steps=(3, 7), share=0.01), {}), list[int]()
        eye.last, eye.spent, eye.cost = 0, 50.0, 50.0
        for step in range(1, 21):
            if eye.is_due(step, float(step), 20):
                eye.last, eye.spent = step, eye.spent + 50.0
                found.append(step)
        assert found == [3, 7]
    with pytest.raises(QkvError, match=r"watch\.steps: found \[0, 3\]"):
        ProbeSettings(steps=(0, 3))


def test_early_steps_are_dense() -> None:
    eye, found = Recorder({}, ProbeSettings(times=10), {}), list[int]()
    eye.last = 0
    for step in range(1, 205):
        if eye.is_due(step, float(step), 204):
            eye.last = step
            found.append(step)
    assert found[:5] == [1, 2, 4, 8, 16]
    assert max(b - a for a, b in itertools.pairwise([*found, 204])) <= 20


def test_a_resumed_run_records_again_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    trained(tmp_path / "whole")
    part = tmp_path / "part"
    trained(part, stop=lambda step: step == 6)
    older = checkpoint.read(part / "train/last.safetensors")
    assert older[1]["progress"]["step"] == 6
    index = json.loads((part / "train/watch/index.json").read_text(encoding="utf-8"))
    index["steps"].append({**index["steps"][-1], "step": 7})  # recorded, and killed before the next checkpoint
    index["steps"].insert(1, {**index["steps"][-1], "step": -1})  # its file was deleted
    (part / "train/watch/index.json").write_text(json.dumps(index), encoding="utf-8")
    (part / "train/watch/000007.safetensors").write_bytes(b"from before")
    trained(part, resume=True)
    a, b = ProbeLog(tmp_path / "whole"), ProbeLog(part)
    assert a.steps == b.steps
    for step in (3, 7, 9):
        for name in a.read(step).names:
            assert torch.equal(a.read(step)[name], b.read(step)[name])


def test_a_full_disk_costs_the_record_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    plain = state(*trained(tmp_path / "a", None))
    true = checkpoint.write

    def full(path: Path, tensors: Any, said: Any) -> None:
        if path.parent.name == "watch":
            raise QkvError(f"{path}: no space left")
        true(path, tensors, said)

    monkeypatch.setattr(recorder.checkpoint, "write", full)
    torch.manual_seed(5)
    core, told = trained(tmp_path / "b")
    assert all(torch.equal(plain[0][n], p) for n, p in core.named_parameters())
    assert any("was not recorded" in e.get("text", "") and "no space left" in e["text"] for e in told)
    assert ProbeLog(tmp_path / "b").steps == []


def test_weights_beyond_the_limit_are_let_go_evenly_and_never_the_ends(tmp_path: Path) -> None:
    size = sum(p.numel() * 4 for p in speaker().parameters())
    one = dataclasses.replace(ALWAYS, megabytes=1)
    assert 4 * size < 1e6
    eye = Recorder({}, one, {})
    eye.size = 200_000  # as if they were so large
    eye.index = {"steps": [{"step": n, "weights": True} for n in range(11)]}
    eye.drop_weights()
    kept = [row["step"] for row in eye.index["steps"] if row["weights"]]
    assert (len(kept), kept[0], kept[-1]) == (5, 0, 10)
    assert max(b - a for a, b in itertools.pairwise(kept)) < 7
    trained(tmp_path, dataclasses.replace(ALWAYS, megabytes=0))
    w = ProbeLog(tmp_path)
    assert (len(w.steps), w.kept) == (10, [])
    with pytest.raises(QkvError, match="no weights were kept at step 3"):
        w.weights(3)


def test_released_weights_leave_the_disk_and_twice_their_size_is_needed(tmp_path: Path) -> None:
    size = sum(p.numel() * 4 for p in speaker().parameters())
    core, eye = speaker(), Always({}, ALWAYS, {})
    for megabytes, kept in ((3.5 * size / 1e6, 3), (1.9 * size / 1e6, 0)):  # no whole number: a core this small
        eye.settings = dataclasses.replace(ALWAYS)
        object.__setattr__(eye.settings, "megabytes", megabytes)
        folder = tmp_path / str(kept)
        loop.train(core, plan(), BASE, directory=folder, recorder=eye)
        w = ProbeLog(folder)
        assert len(w.kept) == kept
        files = {path.name for path in (w.folder / "weights").glob("*.safetensors")}
        assert files == {f"{step:06}.safetensors" for step in w.kept}


def test_a_limit_that_was_lowered_lets_go_of_all_that_does_not_fit(tmp_path: Path) -> None:
    trained(tmp_path, stop=lambda step: step == 4)
    assert len(ProbeLog(tmp_path).kept) > 2
    _, told = trained(tmp_path, dataclasses.replace(ALWAYS, megabytes=0), resume=True)
    assert told[-1]["kind"] == "end"
    assert (len(ProbeLog(tmp_path).steps), ProbeLog(tmp_path).kept) == (10, [])


def test_a_row_that_moved_in_one_number_has_moved(tmp_path: Path) -> None:
    trained(tmp_path)
    w, name = ProbeLog(tmp_path), "embed.weight"
    later = w.weights(0)
    norm = float(later[name].norm())
    later[name] = later[name].clone()
    later[name][3, 0] += 2.0
    later[name][5, 1] -= 1.5
    checkpoint.write(w.folder / "weights" / "000009.safetensors", later, {"step": 9})
    moved = {m.name: m for m in w.compare_weights(0, 9)}
    assert (moved[name].moved, moved[name].distance) == (2, pytest.approx(2.5))
    assert moved[name].norm == pytest.approx(norm)
    assert all(m.moved == 0 for n, m in moved.items() if n != name)
    core, eye = speaker(), Recorder({}, ALWAYS, {})
    eye.core, eye.copies = core, {n: p.detach().clone() for n, p in core.named_parameters()}
    with torch.no_grad():
        core.embed.weight[3, 0] += 2.0
    found = dict(zip(eye.copies, eye.measure_changes()["matrices.moved"].tolist(), strict=True))
    assert found.pop(name) == 1
    assert not any(found.values())


def test_the_time_of_every_record_is_counted(tmp_path: Path) -> None:
    eye = Always({}, ALWAYS, {})
    loop.train(speaker(), plan(), BASE, directory=tmp_path, recorder=eye)
    rows = ProbeLog(tmp_path).index["steps"]
    assert eye.made == len(rows) == 10
    assert eye.spent >= sum(row["took"] for row in rows) > 0
    assert eye.cost == pytest.approx(eye.spent / 10)
    assert ProbeLog(tmp_path).index["spent"] >= sum(row["took"] for row in rows[:-1])


def test_records_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained(run)
    w = ProbeLog(run)
    assert w.read(2)["texts.loss"].shape == (1,)
    assert w.series("matrices.update").shape == (10, len(w.index["matrices"]))
    assert records.find_recorded_runs(tmp_path) == records.find_recorded_runs(run) == [run]
    assert w.paths().shape == (10, 0, 2)  # no words were watched
    with pytest.raises(QkvError, match=r"step 0 has no array 'x'"):
        w.series("x")
    with pytest.raises(QkvError, match=r"nothing was recorded at step 40 \(the nearest: 5, 6, 7, 8, 9\)"):
        w.read(40)
    with pytest.raises(QkvError, match=r"has no array 'matrix'.*matrices\.update"):
        w.read(1)["matrix"]
    for path in (run / "train/watch").glob("*.safetensors"):
        path.write_bytes(b"broken")
    with pytest.raises(QkvError, match="not a complete record"):
        w.read(2)
    with pytest.raises(QkvError, match=r"recorded nothing during training; train with watch\.times"):
        ProbeLog(tmp_path)


def test_the_way_of_words_keeps_their_distances(tmp_path: Path) -> None:
    places = torch.tensor([[[0.0, 0.0], [3.0, 1.0]], [[1.0, 5.0], [4.0, 4.0]]])  # S W 2
    turn = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))[0][:2]
    ways = iter(places @ turn)
    words = lambda: ([], {"vectors": next(ways)})  # noqa: E731
    core = speaker()
    eye = Always({"words": words}, ALWAYS, {"words": ["a", "b"]})
    loop.train(core, plan(), dataclasses.replace(BASE, steps=1), directory=tmp_path, recorder=eye)
    found = ProbeLog(tmp_path).paths()
    assert found.shape == (2, 2, 2)
    assert torch.cdist(found.flatten(0, 1), found.flatten(0, 1)) == pytest.approx(
        torch.cdist(places.flatten(0, 1), places.flatten(0, 1)), abs=1e-4
    )


@pytest.mark.parametrize("name", ["demo", "demo-lm", "demo-bert", "demo-moe"])
def test_every_weight_has_its_part(name: str) -> None:
    found = {
        m["name"]: m["part"]
        for m in records.describe_weights(dict(qkv.load(name, device="cpu").core.named_parameters()))
    }
    assert "other" not in found.values()
    ends = (".q.weight", ".k.weight", ".v.weight", ".out.weight")
    assert all(found[n] == f"W_{n.split('.')[-2][0].upper()}" for n in found if n.endswith(ends) and "labels" not in n)
    assert {p for n, p in found.items() if ".ffn." in n and not n.endswith("bias")} <= {"FFN"}
    assert {p for n, p in found.items() if "_sum." in n and not n.endswith("bias")} <= {"norm"}


@pytest.mark.parametrize(
    ("wrong", "told"), [({"times": -1}, "times"), ({"share": 0.0}, "share"), ({"longest": 0}, "longest")]
)
def test_settings_that_cannot_be_are_named(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(QkvError, match=rf"watch\.{told}"):
        ProbeSettings(**wrong)
