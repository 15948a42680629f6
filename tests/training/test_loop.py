"""The loop's promises: it learns, splitting a step changes nothing, a resumed run is the uninterrupted one."""

import dataclasses
import math
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qkv.adapt import onednn_linear
from qkv.checkpoints import storage
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.data import collate
from qkv.data.order import draw_permutation
from qkv.errors import QkvError
from qkv.spec import Attention, Block, Ffn, Head, Init, Mask, Norm, Rotary, Spec, Stack, Table
from qkv.training import checkpoint, control, loop, run_dir
from qkv.training import step as stepping
from qkv.training.control import NonFinite
from qkv.training.losses import mean_loss
from qkv.training.plan import Plan
from qkv.training.run import Run, override_run
from qkv.training.settings import RENAMED, Settings
from qkv.training.splits import Splits

VOCABULARY = 31


def translator(drop: float = 0.0) -> Spec:
    norm, ffn = Norm("layer"), Ffn(48, "relu", bias=True, dropout=drop)

    def attention(kind: Any) -> Attention:
        return Attention(2, 2, 16, Mask(kind), True, True, dropout=drop)

    enc = Block(attention("full"), ffn, norm_sum=norm, dropout=drop)
    dec = Block(attention("causal"), ffn, cross=attention("memory"), norm_sum=norm, dropout=drop)
    table = Table("sinusoid", 64)
    encoder, decoder = (Stack(32, (b,) * 2, table, 32**0.5, dropout=drop) for b in (enc, dec))
    return Spec(VOCABULARY, encoder=encoder, decoder=decoder, head=Head("tied", bias=True), init=Init("xavier"))


def speaker(drop: float = 0.0) -> Spec:
    attn = Attention(4, 2, 16, Mask("causal"), rotary=Rotary(16), dropout=drop)
    block = Block(attn, Ffn(64, "silu", gated=True), norm_in=Norm("rms", 1e-6), dropout=drop)
    return Spec(VOCABULARY, decoder=Stack(32, (block,) * 2, final_norm=Norm("rms", 1e-6)), head=Head("untied"))


def core_of(spec: Spec, seed: int = 0) -> Transformer:
    core = Transformer(spec)
    initialise(core, seed)
    return core


def reversals(rows: int = 48) -> list[tuple[list[int], list[int]]]:
    """Sequences of unequal length and their reversal, ended by id 2."""
    g = torch.Generator().manual_seed(7)
    found = []
    for _ in range(rows):
        n = int(torch.randint(2, 8, (1,), generator=g))
        ids = torch.randint(3, VOCABULARY, (n,), generator=g).tolist()
        found.append(([*ids, 2], [*ids[::-1], 2]))
    return found


def plan_of(pairs: list[tuple[list[int], list[int]]], rows: int = 8, seed: int = 0) -> Plan:
    def order(epoch: int) -> Sequence[tuple[int, ...]]:
        mixed = draw_permutation(len(pairs), seed=seed, epoch=epoch).tolist()
        return [tuple(mixed[i : i + rows]) for i in range(0, len(mixed), rows)]

    def make(key: tuple[int, ...]) -> collate.Batch:
        return collate.collate_pairs([pairs[i] for i in key], pad=0, start=1)

    return Plan(order, make, {"rows": len(pairs)})


BASE = Settings(steps=8, lr=3e-3, schedule="constant", precision="fp32", log_every=1)


def values(core: Transformer) -> dict[str, torch.Tensor]:
    return {n: t.clone() for n, t in checkpoint.weights(core).items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


@pytest.mark.parametrize("spec", [translator(), speaker()], ids=["translator", "speaker"])
def test_one_batch_is_learnt_by_heart(spec: Spec) -> None:
    batch = collate.collate_pairs(reversals(8), pad=0, start=1)
    if spec.encoder is None:
        batch = collate.collate_windows(
            torch.randint(0, VOCABULARY, (4, 13), generator=torch.Generator().manual_seed(1))
        )
    core, plan = core_of(spec), Plan(lambda epoch: [0], lambda key: batch)
    settings = dataclasses.replace(BASE, steps=300, lr=1e-2, warmup=20, schedule="cosine", log_every=100)
    end = loop.train(core, plan, settings)
    assert (end.why, end.steps) == ("steps", 300)
    assert mean_loss(core, [batch]) < 0.05


@pytest.mark.parametrize("says", [True, False])
def test_layers_learn_by_onednn_where_it_is_faster_and_to_the_same_weights(
    says: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(wide: bool) -> tuple[dict[str, torch.Tensor], set[type]]:
        monkeypatch.setattr(onednn_linear, "is_mkl_slow", lambda: wide)
        monkeypatch.setattr(onednn_linear, "LEAST", 1)
        core = core_of(translator())
        loop.train(core, plan_of(reversals(32)), dataclasses.replace(BASE, eps=1e-4))
        return values(core), {type(m) for m in core.modules() if isinstance(m, torch.nn.Linear)}

    (plain, _), (found, kinds) = trained(False), trained(says)
    assert (onednn_linear.Packed in kinds) is says
    assert gap(plain, found) <= 1e-4


def after(split: int, steps: int = 6) -> dict[str, torch.Tensor]:
    """Weights after training with 32 rows a step in `split` micro-batches."""
    core = core_of(translator()).double()
    settings = dataclasses.replace(BASE, steps=steps, accumulate=split, label_smoothing=0.1, clip=1.0, eps=1e-6)
    loop.train(core, plan_of(reversals(64), 32 // split), settings)
    return values(core)


def gap(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a)


def test_splitting_a_step_into_micro_batches_changes_nothing() -> None:
    assert gap(after(1), after(4)) < 1e-6


def test_a_loss_divided_by_each_micro_batch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, true_loss = after(1), stepping.step_loss
    wrong = lambda core, batch, **k: (true_loss(core, batch, **k)[0] / batch.tokens, None)  # noqa: E731
    monkeypatch.setattr(stepping, "step_loss", wrong)
    assert gap(whole, after(4)) > 1e-4


def rising(core: Transformer, step: int) -> dict[str, Any]:
    return {"loss": -step, "size": float(core.embed.weight.detach().square().mean()), "sample": "…"}


@pytest.mark.parametrize("spec", [translator(0.2), speaker(0.2)], ids=["translator", "speaker"])
def test_a_resumed_run_repeats_the_uninterrupted_one_bit_for_bit(spec: Spec, tmp_path: Path) -> None:
    plan = plan_of(reversals(56), 4)  # 14 batches: 5 steps an epoch, the last of them short
    if spec.encoder is None:
        rows = torch.randint(0, VOCABULARY, (56, 9), generator=torch.Generator().manual_seed(1))
        plan = Plan(plan.order, lambda key: collate.collate_windows(rows[list(key)]), {"rows": 56})
    settings = dataclasses.replace(
        BASE, steps=13, accumulate=3, average=2, evaluate_every=3, label_smoothing=0.1, clip=0.5
    )
    whole = core_of(spec)
    one = loop.train(whole, plan, settings, directory=tmp_path / "a", evaluate=rising)
    first = core_of(spec)
    loop.train(first, plan, settings, directory=tmp_path / "b", evaluate=rising, stop=lambda step: step == 7)
    again = core_of(spec, seed=99)  # other first weights: all must come from the checkpoint
    two = loop.train(again, plan, settings, directory=tmp_path / "b", evaluate=rising, resume=True)
    assert same(values(whole), values(again))
    assert not same(values(whole), values(first))
    assert (one.loss, one.metrics, one.weights) == (two.loss, two.metrics, two.weights)
    assert one.weights == "average"
    ends = [checkpoint.read(tmp_path / d / "train/last.safetensors") for d in "ab"]
    assert same(ends[0][0], ends[1][0])  # weights and both moments
    losses = [
        [e["loss"] for e in run_dir.read_events(tmp_path / d / "train/log.jsonl") if e["kind"] == "step"] for d in "ab"
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 13


def test_dropout_from_consumed_state_would_be_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true, calls = stepping.make_dropout, iter(range(1000))
    monkeypatch.setattr(stepping, "make_dropout", lambda *key, **how: true(next(calls), **how))
    plan, settings = plan_of(reversals(56), 4), dataclasses.replace(BASE, steps=6)
    whole = core_of(translator(0.2))
    loop.train(whole, plan, settings)
    again = core_of(translator(0.2))
    loop.train(again, plan, settings, directory=tmp_path, stop=lambda step: step == 3)
    loop.train(again, plan, settings, directory=tmp_path, resume=True)
    assert not same(values(whole), values(again))


def test_a_finished_run_resumes_to_the_same_end(tmp_path: Path) -> None:
    plan, settings = plan_of(reversals()), dataclasses.replace(BASE, average=3, evaluate_every=2)
    one, two = core_of(translator()), core_of(translator(), 5)
    loop.train(one, plan, settings, directory=tmp_path)
    loop.train(two, plan, settings, directory=tmp_path, resume=True)
    assert same(values(one), values(two))


def test_a_run_is_not_overwritten_and_another_model_is_refused(tmp_path: Path) -> None:
    plan = plan_of(reversals())
    loop.train(core_of(translator()), plan, BASE, directory=tmp_path)
    with pytest.raises(QkvError, match="--resume auto"):
        loop.train(core_of(translator()), plan, BASE, directory=tmp_path)
    other = core_of(translator(0.5))
    with pytest.raises(QkvError, match=r"spec\.decoder\.blocks\[0\]\.attn\.dropout: was 0\.0, now 0\.5"):
        loop.train(other, plan, BASE, directory=tmp_path, resume=True)
    with pytest.raises(QkvError, match=r"data\.rows: was 48, now 49"):
        loop.train(core_of(translator()), plan_of(reversals(49)), BASE, directory=tmp_path, resume=True)


def test_other_settings_are_named_when_a_run_goes_on(tmp_path: Path) -> None:
    plan, notes = plan_of(reversals()), list[dict[str, Any]]()
    loop.train(core_of(translator()), plan, BASE, directory=tmp_path)
    longer = dataclasses.replace(BASE, steps=9)
    end = loop.train(core_of(translator()), plan, longer, directory=tmp_path, resume=True, report=notes.append)
    assert end.steps == 9
    assert any("settings.steps: was 8, now 9" in e.get("text", "") for e in notes)


def test_not_a_number_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    plan = plan_of(reversals())
    settings = dataclasses.replace(BASE, steps=20, save_every=2)
    core, good = core_of(translator()), dict[str, torch.Tensor]()

    def poison(step: int) -> bool:
        if step == 4:
            good.update(values(core))
        if step == 5:
            core.decoder.layers[0].ffn.up.weight.data[0, 0] = math.nan  # type: ignore[union-attr]
        return False

    with pytest.raises(NonFinite, match=r"loss nan at step 6 \(epoch 0, batch 5.*last good checkpoint is") as e:
        loop.train(core, plan, settings, directory=tmp_path, stop=poison)
    assert e.value.exit_code == 3
    tensors, state = checkpoint.read(tmp_path / "train/last.safetensors")
    assert state["progress"]["step"] == 4
    assert all(torch.equal(tensors[f"weight:{n}"], t) for n, t in good.items())


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, settings = plan_of(reversals()), dataclasses.replace(BASE, steps=6, save_every=2)
    true = storage.save_file

    def full(tensors: Any, path: str, metadata: dict[str, str]) -> None:
        if '"step": 4' in metadata["state"]:
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        true(tensors, path, metadata)

    monkeypatch.setattr(storage, "save_file", full)
    with pytest.raises(QkvError, match=r"No space left.*the previous checkpoint is intact"):
        loop.train(core_of(translator()), plan, settings, directory=tmp_path)
    assert [p.name for p in (tmp_path / "train").iterdir() if "last" in p.name] == ["last.safetensors"]
    monkeypatch.setattr(storage, "save_file", true)
    core, whole = core_of(translator()), core_of(translator())
    loop.train(core, plan, settings, directory=tmp_path, resume=True)
    loop.train(whole, plan, settings)
    assert same(values(core), values(whole))


def test_the_average_is_of_the_last_snapshots_and_the_best_metric_wins(tmp_path: Path) -> None:
    plan = plan_of(reversals())
    seen = list[dict[str, torch.Tensor]]()

    def look(core: Transformer, step: int) -> dict[str, Any]:
        seen.append(values(core))
        return {"bleu": -float(step == 4) if len(seen) < 5 else 1.0}

    settings = dataclasses.replace(BASE, steps=8, evaluate_every=2, average=3, metric="bleu")
    core = core_of(translator())
    end = loop.train(core, plan, settings, directory=tmp_path, evaluate=look)
    assert end.weights == "average"
    mean = {n: sum(s[n].double() for s in seen[1:4]) / 3 for n in seen[0]}
    assert gap(values(core), {n: t.float() for n, t in mean.items()}) == 0.0  # type: ignore[union-attr]
    assert sorted(p.name for p in (tmp_path / "train/snapshots").iterdir()) == [f"{n}.safetensors" for n in (4, 6, 8)]


def test_the_best_weights_come_back_and_patience_ends_the_run() -> None:
    plan, kept, asked = plan_of(reversals()), dict[int, dict[str, torch.Tensor]](), list[int]()

    def look(core: Transformer, step: int) -> dict[str, Any]:
        kept[step] = values(core)
        asked.append(step)
        return {"loss": abs(step - 4)}

    settings = dataclasses.replace(BASE, steps=50, evaluate_every=2, patience=3)
    core = core_of(translator())
    end = loop.train(core, plan, settings, evaluate=look)
    assert (end.why, end.steps, end.weights, end.metrics["step"]) == ("patience", 10, "best", 4)
    assert same(values(core), kept[4])
    assert sorted(kept) == [2, 4, 6, 8, 10]
    assert len(asked) == 5  # the last weights are not judged again
    rising = dataclasses.replace(settings, warmup=12)  # what no evaluation betters while the rate rises is not counted
    assert loop.train(core_of(translator()), plan, rising, evaluate=look).steps == 18


def test_where_seconds_end_a_run_the_rate_still_falls_to_its_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10_000))
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(ticks) * 0.5))
    heard = list[dict[str, Any]]()
    settings = dataclasses.replace(BASE, steps=0, seconds=20.0, schedule="wsd", decay=0.5, floor=0.1)
    end = loop.train(core_of(translator()), plan_of(reversals(200), 4), settings, report=heard.append)
    rates = [e["lr"] / settings.lr for e in heard if e["kind"] == "step"]
    assert (end.why, end.steps) == ("seconds", 40)
    assert rates[19] == pytest.approx(1.0)
    assert rates[29] == pytest.approx(0.55)
    assert rates[39] == pytest.approx(0.1)
    assert [e["eta"] for e in heard if e["kind"] == "step"][29] == pytest.approx(5.0)


def test_an_unknown_metric_is_an_error_that_names_the_nearest() -> None:
    settings = dataclasses.replace(BASE, evaluate_every=1, metric="bleux")
    with pytest.raises(QkvError, match="did you mean 'bleu'"):
        loop.train(core_of(translator()), plan_of(reversals()), settings, evaluate=lambda c, s: {"bleu": 1.0})


CHILD = """
    import sys, time
    sys.path[:0] = [{tests!r}]
    from pathlib import Path
    import dataclasses, test_loop as t
    from qkv.training import control, loop
    t.torch.set_num_threads(1)
    if hasattr(t.signal, "SIGHUP"):  # the tests themselves may run under nohup
        t.signal.signal(t.signal.SIGHUP, t.signal.SIG_IGN if "deaf" in sys.argv else t.signal.SIG_DFL)
    def slow(step):
        print(step, flush=True)
        time.sleep(600 if "stuck" in sys.argv and step == 3 else 0.02)
        return False
    core = t.core_of(t.translator(0.2))
    settings = dataclasses.replace(t.BASE, steps=int(sys.argv[2]))
    try:
        loop.train(core, t.plan_of(t.reversals()), settings, directory=sys.argv[1], stop=slow, resume=True)
    except control.Interrupted as e:
        sys.exit(e.code)
"""


@contextmanager
def running(folder: Path, *words: str) -> Iterator[Any]:
    """A process that trains for long and has made three steps; it is gone afterwards."""
    code = textwrap.dedent(CHILD.format(tests=str(Path(__file__).parent)))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", code, str(folder), "100000", *words]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environ)
    assert child.stdout is not None
    try:
        for _ in range(3):
            child.stdout.readline()
        yield child
    finally:
        child.kill()
        child.stdout.read()
        child.wait(60)
        child.stdout.close()


not_windows = pytest.mark.skipif(os.name == "nt", reason="signals to a child differ on Windows")


@not_windows
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP"])
def test_a_signal_saves_and_the_run_goes_on_as_if_nothing_had_happened(tmp_path: Path, name: str) -> None:
    number = signal.Signals[name]
    with running(tmp_path) as child:
        child.send_signal(number)
        child.stdout.read()
        assert child.wait(60) == 128 + number
    done = checkpoint.read(tmp_path / "train/last.safetensors")[1]["progress"]["step"]
    assert done >= 3
    if name in ("SIGUSR1", "SIGHUP"):
        return
    settings = dataclasses.replace(BASE, steps=done + 4)
    core, whole = core_of(translator(0.2)), core_of(translator(0.2))
    loop.train(core, plan_of(reversals()), settings, directory=tmp_path, resume=True)
    loop.train(whole, plan_of(reversals()), settings)
    assert same(values(core), values(whole))


@not_windows
def test_a_second_signal_ends_the_run_at_once(tmp_path: Path) -> None:
    with running(tmp_path, "stuck") as child:
        child.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(1)
        for _ in range(20):  # a busy machine may hear the first one so late that this is still it
            child.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(3)
                break
        assert child.returncode == -signal.SIGTERM


@not_windows
def test_a_signal_that_comes_twice_at_once_saves_as_one_does(tmp_path: Path) -> None:
    with running(tmp_path) as child:
        for _ in range(3):  # as a terminal and whoever started the process send it
            child.send_signal(signal.SIGINT)
        child.stdout.read()
        assert child.wait(60) == 130
    assert checkpoint.read(tmp_path / "train/last.safetensors")[1]["progress"]["step"] >= 3


@not_windows
def test_for_half_a_second_a_second_signal_counts_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept, others = [7.0], [], []

    def sleep(seconds: float) -> None:  # what was to be saved is; the terminal's second copy comes now
        slept.append(seconds)
        signal.raise_signal(signal.SIGINT)

    def later(seconds: float) -> None:
        now[0] += seconds
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, lambda number, frame: others.append(number))
    monkeypatch.setattr(control, "time", SimpleNamespace(perf_counter=lambda: now[0], sleep=sleep))
    try:
        with control.catch_signals() as caught:
            later(0.0)
            later(0.2)
        assert caught == [signal.SIGINT]
        assert not others
        assert slept == [pytest.approx(0.3)]
        with control.catch_signals() as caught:
            pass
        assert not caught
        assert len(slept) == 1  # nothing to wait for
        with control.catch_signals() as caught:
            later(0.0)
            later(0.6)
            assert others == [signal.SIGINT]
        assert caught == [signal.SIGINT]
        assert slept[1] == 0.0
    finally:
        signal.signal(signal.SIGINT, before)


@not_windows
def test_a_hangup_that_nohup_ignores_stays_ignored(tmp_path: Path) -> None:
    with running(tmp_path, "deaf") as child:
        child.send_signal(signal.SIGHUP)
        for _ in range(5):
            assert child.stdout.readline()
        child.send_signal(signal.SIGTERM)
        child.stdout.read()
        assert child.wait(60) == 128 + signal.SIGTERM


def test_a_checkpoint_with_the_keys_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    told, plan = list[str](), plan_of(reversals())
    plan = dataclasses.replace(plan, identity={**plan.identity, "tokenizer": {"bpe_dropout": 0.1}})
    settings = dataclasses.replace(BASE, steps=4, label_smoothing=0.1, rdrop=0.5)
    loop.train(core_of(translator()), plan, settings, directory=tmp_path, stop=lambda step: step == 2)
    path = tmp_path / "train" / "last.safetensors"
    tensors, state = checkpoint.read(path)
    state["identity"]["data"]["tokenizer"] = {"dropout": 0.1}
    old = {new.partition(".")[2]: key.partition(".")[2] for key, new in RENAMED.items() if key.startswith("training.")}
    state["settings"] = {old.get(key, key): value for key, value in state["settings"].items()} | {"outputs": "all"}
    assert {"agree", "smoothing", "balance"} <= state["settings"].keys()
    checkpoint.write(path, tensors, state)
    core = core_of(translator())
    loop.train(core, plan, settings, directory=tmp_path, resume=True, report=lambda e: told.append(e.get("text", "")))
    assert any("resumed after step 2" in text for text in told)
    assert not any("settings" in text for text in told)


@pytest.mark.parametrize(("word", "new"), [(f"{old}=1", new) for old, new in RENAMED.items()])
def test_a_key_of_an_earlier_version_is_told_its_new_name(word: str, new: str) -> None:
    run = Run("any", lambda: Splits((), ()))
    with pytest.raises(QkvError, match=f"this key is called {new} now"):
        override_run(run, [word])
