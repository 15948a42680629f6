"""The pure parts of training against formulas and slow loops written here."""

import copy
import dataclasses
import itertools
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv import files
from qkv.adapt import onednn_linear
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.data import collate
from qkv.errors import QkvError
from qkv.options import parse_assignments, replace_from_dict
from qkv.spec import Attention, Block, Ffn, Mask, Norm, Spec, Stack
from qkv.training import checkpoint, loop, losses, machine, optim, run_dir, schedule
from qkv.training.plan import Plan
from qkv.training.settings import Settings
from qkv.training.shape import Shape

RATE = Settings(lr=0.005, warmup=2000)


def small() -> Transformer:
    block = Block(Attention(2, 2, 8, Mask("causal"), True, True), Ffn(32, "gelu", bias=True), norm_in=Norm())
    core = Transformer(Spec(23, decoder=Stack(16, (block,), final_norm=Norm())))
    initialise(core, 3)
    return core


@pytest.mark.parametrize(
    ("kind", "step", "expected"),
    [
        ("noam", 1, 512**-0.5 * 4000**-1.5), ("noam", 4000, 512**-0.5 * 4000**-0.5),
        ("noam", 100_000, 512**-0.5 * 100_000**-0.5),
        ("inverse", 1, 0.005 / 2000), ("inverse", 2000, 0.005), ("inverse", 8000, 0.0025),
        ("cosine", 1000, 0.0025), ("cosine", 2000, 0.005), ("cosine", 6000, 0.005 * 0.55), ("cosine", 10_000, 0.0005),
        ("cosine", 20_000, 0.0005),
        ("wsd", 500, 0.00125), ("wsd", 8000, 0.005), ("wsd", 9000, 0.00275), ("wsd", 10_000, 0.0005),
        ("constant", 1000, 0.0025), ("constant", 9999, 0.005),
    ],
)  # fmt: skip
def test_a_schedule_follows_its_formula(kind: Any, step: int, expected: float) -> None:
    s = dataclasses.replace(RATE, schedule=kind, floor=0.1, decay=0.2)
    if kind == "noam":
        s = dataclasses.replace(s, lr=1.0, warmup=4000)
    assert schedule.learning_rate(s, step, total=10_000, width=512) == pytest.approx(expected, rel=1e-12)


def test_a_warm_up_that_meets_the_decay_does_not_jump() -> None:
    s = Settings(lr=1.0, warmup=60, decay=0.8, floor=0.0, schedule="wsd")
    rates = [schedule.learning_rate(s, n, total=100, width=1) for n in range(101)]
    assert max(abs(a - b) for a, b in itertools.pairwise(rates)) < 0.02
    assert max(rates) == pytest.approx(5 / 7, abs=0.01)  # where n / 60 = (100 - n) / 80


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["noam", "inverse", "cosine", "wsd", "constant"]), st.integers(0, 50), st.integers(1, 200))
def test_every_schedule_is_positive_and_below_its_peak(kind: Any, warmup: int, step: int) -> None:
    s = Settings(lr=1.0, warmup=warmup, schedule=kind, floor=0.1)
    assert 0 < schedule.learning_rate(s, step, total=100, width=1) <= 1.0 + 1e-12


def by_hand(core: Transformer, batch: collate.Batch, eps: float) -> float:
    """The smoothed loss, token by token, over all logits."""
    logp = core.head(losses.states(core, batch)).double().log_softmax(-1)
    total = 0.0
    for row, labels in zip(logp, batch.labels.tolist(), strict=True):
        for p, label in zip(row, labels, strict=True):
            if label != collate.IGNORED:
                goal = [eps / len(p)] * len(p)
                goal[label] += 1 - eps
                total -= sum(g * float(x) for g, x in zip(goal, p, strict=True))
    return total


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_the_smoothed_loss_is_the_slow_loops(eps: float) -> None:
    core = small()
    ids = torch.randint(0, 23, (3, 9), generator=torch.Generator().manual_seed(2))
    batch = collate.collate_windows(ids)
    batch.labels[1, 3:] = collate.IGNORED
    with torch.no_grad():
        found, slow = float(losses.token_loss(core, batch, smoothing=eps)), by_hand(core, batch, eps)
        assert found == pytest.approx(slow, rel=1e-5)
        logits = core.head(losses.states(core, batch)).flatten(0, 1)
    kinds = {"ignore_index": collate.IGNORED, "reduction": "sum", "label_smoothing": eps}
    peer = torch.nn.functional.cross_entropy(logits, batch.labels.flatten(), **kinds)  # type: ignore[arg-type]
    assert float(losses.token_loss(core, batch, smoothing=eps).detach()) == pytest.approx(float(peer), rel=1e-5)


@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_the_loss_by_onednn_and_its_gradients_are_what_they_are_in_fp64(
    eps: float, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn_linear, "is_mkl_slow", lambda: True)
    monkeypatch.setattr(losses, "chunk_rows", lambda *_: 40)  # three chunks
    torch.manual_seed(1)
    head, hidden, labels = torch.nn.Linear(64, 700, bias=bias), torch.randn(100, 64), torch.randint(0, 700, (100,))
    found = list[tuple[torch.Tensor, ...]]()
    for one, given_ in ((head, hidden), (copy.deepcopy(head).double(), hidden.double())):
        x = given_.detach().requires_grad_()
        if x.dtype == torch.float32:
            loss = losses.linear_cross_entropy(x, one, labels, smoothing=eps)
        else:
            loss = torch.nn.functional.cross_entropy(one(x), labels, reduction="sum", label_smoothing=eps)
        found.append((loss.detach(), *torch.autograd.grad(loss, [x, *one.parameters()])))
    for got, want in zip(*found, strict=True):
        assert (got - want).abs().max() <= 3e-6 * want.abs().max()


def test_weight_decay_spares_norms_biases_and_embeddings() -> None:
    core = small()
    groups = optim.make_optimizer(core, Settings(optimizer="adamw", weight_decay=0.1)).param_groups
    decayed = {id(p) for p in groups[0]["params"]}
    names = {n for n, p in core.named_parameters() if id(p) in decayed}
    parts = ("attn.q", "attn.k", "attn.v", "attn.out", "ffn.up", "ffn.down")
    assert names == {f"decoder.layers.0.{part}.weight" for part in parts}
    assert [g["weight_decay"] for g in groups] == [0.1, 0.0]
    assert sum(len(g["params"]) for g in groups) == len(list(core.parameters()))


def test_adam_makes_the_papers_step() -> None:
    core, s = small(), Settings(lr=0.1, betas=(0.9, 0.98), eps=1e-9)
    optimizer, p = optim.make_optimizer(core, s), core.decoder.final_norm.weight
    before, m, v = p.detach().clone().double(), 0.0, 0.0
    for t in (1, 2, 3):
        g = torch.full_like(p, 0.5 * t)
        p.grad = g
        optimizer.step()
        m, v = 0.9 * m + 0.1 * g.double(), 0.98 * v + 0.02 * g.double() ** 2
        before -= 0.1 * (m / (1 - 0.9**t)) / ((v / (1 - 0.98**t)).sqrt() + 1e-9)
    assert torch.allclose(p.detach().double(), before, atol=1e-6)


def test_settings_from_words_and_their_errors() -> None:
    words = ["lr=1e-3", "betas=[0.9, 0.95]", "schedule=wsd", "clip=1"]
    s = replace_from_dict(Settings(), parse_assignments(words))
    assert (s.lr, s.betas, s.schedule, s.clip) == (1e-3, (0.9, 0.95), "wsd", 1.0)
    for words, match in (
        (["warmpu=3"], "did you mean 'warmup'"), (["schedule=wsb"], "did you mean 'wsd'"),
        (["tokens=0"], "1 to 16,777,216"),
        (["steps=many"], "a whole number"), (["steps=true"], "a whole number"), (["label_smoothing=2"], "a share"),
        (["lr"], "key=value"),
    ):  # fmt: skip
        with pytest.raises(QkvError, match=match):
            replace_from_dict(Settings(), parse_assignments(words))


@pytest.mark.parametrize(("width", "known", "allowed", "expected"), [
    (128, {"amx_bf16": True}, "", "bf16"), (64, {"amx_bf16": True}, "", "fp32"), (128, {"amx_bf16": False}, "", "fp32"),
    (128, {"avx512_bf16": True, "cpu_name": "AMD EPYC"}, "", "bf16"), (128, {"amx_bf16": True}, "AVX2", "fp32"),
    (128, {}, "", "fp32"),
])  # fmt: skip
def test_the_precision_is_decided_by_what_the_processor_has_and_the_width(
    width: int, known: dict[str, Any], allowed: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", allowed or "ALL")
    core = Transformer(Shape("gpt2", width=width, layers=1, heads=2).spec(23))
    monkeypatch.setattr(machine, "time", None)  # no clock decides
    assert machine.choose_precision(core) == expected


def test_a_log_survives_a_half_line_and_holds_no_nan(tmp_path: Path) -> None:
    path, heard = tmp_path / "log.jsonl", list[run_dir.Event]()
    tell = run_dir.open_log(path, heard.append)
    for step in (1, 2, 3):
        tell({"kind": "step", "step": step, "loss": math.nan})
    with path.open("a", encoding="utf-8") as file:
        file.write('{"kind": "st')
    assert [e["loss"] for e in run_dir.read_events(path)] == [None] * 3
    run_dir.truncate(path, 2)
    assert [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()] == [1, 2]
    assert len(heard) == 3


def test_a_log_keeps_what_a_crash_or_a_text_may_hold(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tell = run_dir.open_log(path, None)
    said = ["a\u2028b", "c\x85d", "e\rf\u2029", "书"]
    for step, text in enumerate(said, 1):
        tell({"kind": "note", "step": step, "text": text})
    whole = path.read_bytes()
    path.write_bytes(whole + '{"kind": "note", "text": "书'.encode()[:-1])  # cut within a letter
    assert [e["text"] for e in run_dir.read_events(path)] == said
    run_dir.truncate(path, 9)
    assert path.read_bytes() == whole
    run_dir.truncate(path, 3)
    assert [e["text"] for e in run_dir.read_events(path)] == said[:3]


@pytest.mark.parametrize("act", ["fsync_path", "replace"])
def test_a_log_that_cannot_be_cut_is_as_it_was(act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    for step in (1, 2):
        run_dir.open_log(path, None)({"kind": "step", "step": step})
    before = path.read_bytes()

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files if act == "fsync_path" else files.os, act, full)
    with pytest.raises(QkvError, match=r"log\.jsonl: could not be written \(.*No space left on device\); what"):
        run_dir.truncate(path, 1)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_log_whose_folder_is_gone_or_cannot_be_made_is_told(tmp_path: Path) -> None:
    tell = run_dir.open_log(tmp_path / "run" / "log.jsonl", None)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(QkvError, match=r"log\.jsonl: the folder .*run is not there"):
        tell({"kind": "step", "step": 1})
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(QkvError, match="could not be written"):
        run_dir.open_log(tmp_path / "file" / "log.jsonl", None)


def test_what_killed_processes_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    left = [".last.safetensors.71", "snapshots/.8.safetensors.9", ".log.jsonl.5", ".last.json.5", ".last-4/a.json",
            ".log.jsonl.qkv-ab12/log.jsonl"]
    kept = ["last.safetensors", "log.jsonl", "snapshots/8.safetensors", "last-4/a.safetensors", ".note", "lock"]
    for name in (*left, *kept):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    run_dir.remove_partial(tmp_path)
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()) == sorted(kept)
    run_dir.remove_partial(tmp_path / "none")


def test_a_broken_checkpoint_is_named(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    path.write_bytes(b"\x10\0\0\0\0\0\0\0not json at all")
    with pytest.raises(QkvError, match="not a complete checkpoint"):
        checkpoint.read(path)
    with pytest.raises(QkvError, match=r"it lacks decoder"):
        checkpoint.fill(small(), {})
    whole = checkpoint.weights(small())
    wide = whole | {"embed.weight": torch.zeros(3, 4), "more": torch.zeros(1)}
    shape = re.escape(str(list(whole["embed.weight"].shape)))
    with pytest.raises(QkvError, match=rf"it has more in addition; embed\.weight was \[3, 4\], now {shape}\. "):
        checkpoint.fill(small(), wide)


def test_differences_name_each_leaf() -> None:
    old, new = {"a": {"b": [1, 2]}, "c": "x"}, {"a": {"b": [1, 3]}, "d": 0}
    expected = ["a.b[1]: was 2, now 3", 'c: was "x", now null', "d: was null, now 0"]
    assert list(checkpoint.differences(old, new)) == expected


def test_threads_that_hinder_each_other_are_measured_and_left_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    core, batch = (
        small(),
        collate.collate_windows(torch.randint(0, 23, (16, 9), generator=torch.Generator().manual_seed(2))),
    )
    asked: list[tuple[int, int]] = []
    now = [1]
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: now.__setitem__(0, n))

    def passed(core: Any, batch: Any, low: bool) -> float:
        asked.append((now[0], len(batch.target)))
        return 3.0 * now[0]

    monkeypatch.setattr(machine, "time_pass", passed)
    assert (machine.warn_oversubscribed(core, batch, "bf16"), asked) == ([], [])
    now[0] = 2
    (note,) = machine.warn_oversubscribed(core, batch, "bf16")
    assert ("2 threads take 2.0 times" in note, now, set(asked)) == (True, [2], {(1, 2), (2, 2)})

    def broken(*_: Any) -> float:
        raise RuntimeError("no")

    monkeypatch.setattr(machine, "time_pass", broken)
    with pytest.raises(RuntimeError):
        machine.warn_oversubscribed(core, batch, "bf16")
    assert now == [2]


@pytest.mark.parametrize(("times", "told"), [(1.1, False), (2.0, True)])
def test_a_run_says_where_one_thread_is_faster(monkeypatch: pytest.MonkeyPatch, times: float, told: bool) -> None:
    batch = collate.collate_windows(torch.randint(0, 23, (8, 9), generator=torch.Generator().manual_seed(2)))
    events: list[dict[str, Any]] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    passes = itertools.cycle([1.0, times])  # one thread, then both
    monkeypatch.setattr(machine, "time_pass", lambda *_: next(passes))
    settings = Settings(steps=1, warmup=0, precision="fp32")
    loop.train(small(), Plan(lambda epoch: [0], lambda key: batch), settings, report=events.append)
    notes = [event["text"] for event in events if event["kind"] == "note" and "--threads 1" in event["text"]]
    assert [" threads take 2.0 times as long as one here" in note for note in notes] == [True] * told
