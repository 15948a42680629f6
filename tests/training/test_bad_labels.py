"""Labels that are none: batches without any loss stay finite and change nothing, labels out of range are told."""

from pathlib import Path

import pytest
import torch

from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.data import collate
from qkv.data.collate import IGNORED, Batch
from qkv.errors import QkvError
from qkv.training import loop, losses
from qkv.training.losses import measure, step_loss
from qkv.training.plan import Plan
from qkv.training.settings import Settings
from qkv.training.shape import Shape

V = 30


def made(family: str, labels: int = 0) -> Transformer:
    shape = Shape(family, width=16, layers=1, heads=2, ffn=32, dropout=0.0, context=16)  # type: ignore[arg-type]
    core = Transformer(shape.spec(V, labels=labels))
    initialise(core, 0)
    return core


def silent(family: str) -> Batch:
    ids = torch.randint(4, V, (2, 5), generator=torch.Generator().manual_seed(0))
    none = torch.full_like(ids, IGNORED)
    if family == "bert":
        return Batch(ids, none, classes=torch.tensor([IGNORED, IGNORED]))
    return Batch(ids, none, source=ids if family == "marian" else None)


@pytest.mark.parametrize("family", ["marian", "gpt2", "bert", "prefix"])
def test_a_batch_without_labels_contributes_nothing_and_is_never_nan(family: str) -> None:
    core, batch = made(family, labels=3), silent(family)
    assert batch.tokens == 0
    for smoothing, agree in ((0.0, 0.0), (0.1, 0.0), (0.1, 2.0)):
        core.zero_grad(set_to_none=True)
        loss, _ = step_loss(core, batch, smoothing=smoothing, rdrop=agree)
        loss.backward()
        assert float(loss.detach()) == 0.0
        assert all(p.grad is None or bool((p.grad == 0).all()) for p in core.parameters())
    assert measure(core, [batch])["loss"] == 0.0


@pytest.mark.parametrize("family", ["marian", "gpt2", "bert"])
def test_beside_others_it_changes_no_loss(family: str) -> None:
    core, none = made(family, labels=3), silent(family)
    real = Batch(none.target, none.target.clone(), source=none.source, tokens=10)
    both = Batch(torch.cat([real.target, none.target]), torch.cat([real.labels, none.labels]),
                 source=None if real.source is None else torch.cat([real.source, real.source]), tokens=10)  # fmt: skip
    one, two = (float(losses.token_loss(core, b).detach()) for b in (real, both))
    assert one == pytest.approx(two, rel=1e-6)
    assert one > 1


def test_a_run_goes_on_over_batches_without_labels(tmp_path: Path) -> None:
    core, none = made("gpt2"), silent("gpt2")
    real = Batch(none.target, none.target.clone(), tokens=10)
    batches = [real, none, none, real]
    plan = Plan(lambda epoch: range(len(batches)), batches.__getitem__, {})
    settings = Settings(epochs=2, tokens=10, warmup=1, precision="fp32", log_every=1)
    said: list[dict] = []
    done = loop.train(core, plan, settings, directory=tmp_path, report=said.append)
    assert (done.steps, done.tokens, done.empty) == (8, 40, 4)
    assert [e["step"] for e in said if "without labels" in e.get("text", "")] == [1], "the first of them is told"
    seen = [e["loss"] for e in said if e["kind"] == "step"]
    assert [loss == 0 for loss in seen] == [False, True, True, False] * 2
    assert all(bool(torch.isfinite(p).all()) for p in core.parameters())


@pytest.mark.parametrize("wrong", [V, V + 1000, -1, -101])
def test_a_token_label_out_of_range_is_told(wrong: int) -> None:
    core, batch = made("gpt2"), silent("gpt2")
    labels = batch.labels.clone()
    labels[1, 2] = wrong
    told = rf"word in row 1, place 2 of the batch is {wrong}, expected 0 to {V - 1}, or -100"
    with pytest.raises(QkvError, match=told):
        losses.token_loss(core, Batch(batch.target, labels, tokens=1))


def test_in_a_run_the_rows_of_the_data_are_told() -> None:
    core, batch = made("gpt2"), silent("gpt2")
    bad = Batch(batch.target, torch.full_like(batch.target, V), tokens=10)
    plan = Plan(lambda epoch: [(7, 9)], lambda key: bad, {})
    with pytest.raises(QkvError, match=r"step 1 \(epoch 0, rows \(7, 9\)\): the label of a word in row 0, place 0"):
        loop.train(core, plan, Settings(steps=1, precision="fp32"))


@pytest.mark.parametrize("wrong", [3, -1, 10**6])
def test_the_label_of_a_text_out_of_range_is_told(wrong: int) -> None:
    core, batch = made("bert", labels=3), silent("bert")
    batch = collate.add_labels(Batch(batch.target, batch.labels), [0, wrong])
    with pytest.raises(QkvError, match=rf"label of a text in row 1 of the batch is {wrong}, expected 0 to 2"):
        losses.token_loss(core, batch)


def test_the_guard_is_what_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "check_label_range", lambda *given: None)
    with pytest.raises(IndexError):
        test_the_label_of_a_text_out_of_range_is_told(3)


@pytest.mark.parametrize("pair", [([], [1]), ([1], [])])
def test_a_pair_with_an_empty_side_is_told(pair: tuple[list[int], list[int]]) -> None:
    with pytest.raises(QkvError, match="pair 1 of the batch has"):
        collate.collate_pairs([([1], [1]), pair], pad=0, start=0)
    with pytest.raises(QkvError, match="pair 1 of the batch has nothing"):
        collate.collate_prefixes([([1], [1]), pair], pad=0)
