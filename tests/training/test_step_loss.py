"""One loss over every kind of batch: a slow sum in plain PyTorch, overfitting one batch, and the routers."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.core.step import Inputs, active_tracer
from qkv.data import collate, corrupt
from qkv.data.collate import IGNORED, Batch
from qkv.spec import Dense, Labels, Spec
from qkv.training import load_balancing as balances
from qkv.training import losses
from qkv.training import losses as objectives
from qkv.training.load_balancing import measure_imbalance
from qkv.training.losses import measure, step_loss
from qkv.training.shape import Shape

V, PAD, CLS, SEP, MASK = 40, 0, 1, 2, 3
MARKS = corrupt.TokenIds(MASK, frozenset({PAD, CLS, SEP, MASK}), V)


def encoder() -> Transformer:
    shape = Shape("bert", width=32, layers=2, heads=2, ffn=64, dropout=0.0, context=32)
    return made(shape.spec(V, labels=4))


def decoder() -> Transformer:
    shape = Shape("prefix", width=32, layers=2, heads=2, groups=1, ffn=16, experts=4, dropout=0.0, context=32)
    return made(shape.spec(V))


def made(spec: Spec) -> Transformer:
    core = Transformer(spec)
    initialise(core, 0)
    with torch.no_grad():  # a spread that shows a fault
        for p in core.parameters():
            p.mul_(4.0 if p.ndim > 1 else 1.0)
    return core


def words(seed: int, count: int = 6) -> list[list[int]]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(4, V, (4 + i,), generator=g).tolist() for i in range(count)]


def masked() -> Batch:
    rows = [[CLS, *w, SEP, *reversed(w[:3]), SEP] for w in words(0)]
    hidden = [corrupt.mask_words(row, MARKS, corrupt.Draw(0, 0, i), share=0.3) for i, row in enumerate(rows)]
    return collate.add_labels(collate.collate_masked(hidden, pad=PAD, separator=SEP), [0, 1, 2, 3, IGNORED, 1])


def prefixed() -> Batch:
    pairs = [(w[: 2 + i % 3], [*w[2 + i % 3 :], SEP]) for i, w in enumerate(words(1))]
    return collate.collate_prefixes(pairs, pad=PAD, start=(CLS,))


def slowly(core: Transformer, batch: Batch) -> float:
    """The loss of a batch text by text and word by word, without padding, the labels looked up one at a time."""
    total = 0.0
    for i, ids in enumerate(batch.target):
        real = len(ids) if batch.target_real is None else int(batch.target_real[i].sum())
        row = ids[None, :real]
        given = Inputs(
            segments=None if batch.segments is None else batch.segments[i : i + 1, :real],
            prefix_len=None if batch.prefix is None else batch.prefix[i : i + 1],
        )
        states, step = core.run_stack(row, given)
        chances = core.head(states)[0].log_softmax(-1)
        total -= sum(chances[t, label].item() for t, label in enumerate(batch.labels[i].tolist()) if label != IGNORED)
        if batch.classes is not None and batch.classes[i] != IGNORED:
            total -= core.labels(states, step)[0].log_softmax(-1)[batch.classes[i]].item()
    return total


@pytest.mark.parametrize(("core", "batch"), [(encoder, masked), (decoder, prefixed)], ids=["masked", "prefix"])
def test_the_loss_is_that_of_the_slow_sum(core: Callable[[], Transformer], batch: Callable[[], Batch]) -> None:
    model, b = core(), batch()
    loss, _ = step_loss(model, b)
    assert loss.item() == pytest.approx(slowly(model, b), rel=1e-5)
    assert measure(model, [b])["loss"] == pytest.approx(loss.item() / b.tokens, rel=1e-6)


def test_a_prefix_that_is_not_seen_freely_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = losses.states
    blind = lambda core, batch, drop=losses.no_dropout: right(core, replace(batch, prefix=None), drop)  # noqa: E731
    monkeypatch.setattr(losses, "states", blind)
    with pytest.raises(AssertionError):
        test_the_loss_is_that_of_the_slow_sum(decoder, prefixed)


def test_segments_that_are_forgotten_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = losses.states
    blind = lambda core, batch, drop=losses.no_dropout: right(core, replace(batch, segments=None), drop)  # noqa: E731
    monkeypatch.setattr(losses, "states", blind)
    with pytest.raises(AssertionError):
        test_the_loss_is_that_of_the_slow_sum(encoder, masked)


@pytest.mark.parametrize(("core", "batch"), [(encoder, masked), (decoder, prefixed)], ids=["masked", "prefix"])
def test_one_batch_is_learnt_by_heart(core: Callable[[], Transformer], batch: Callable[[], Batch]) -> None:
    model, b = core(), batch()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(120):
        loss, _ = step_loss(model, b, aux_loss_weight=0.01)
        (loss / b.tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = measure(model, [b])
    assert found["loss"] < 0.05
    assert found["accuracy"] == 1.0
    if b.classes is not None:  # a label that training lacks is wrong, and its text counts
        known = (b.classes != IGNORED).float()
        assert 0 < known.mean() < 1
        assert found["label_accuracy"] == pytest.approx(float(known.mean()))


def test_a_classifier_without_a_head_for_words_learns_labels() -> None:
    spec = encoder().spec
    model = made(replace(spec, head=None, labels=Labels(4, dense=Dense("tanh"))))
    texts = [([CLS, *w, SEP], [IGNORED] * (len(w) + 2)) for w in words(2)]
    b = collate.add_labels(collate.collate_masked(texts, pad=PAD), [0, 1, 2, 3, 0, 1])
    loss, loads = step_loss(model, b)
    assert loads is None
    assert loss.item() / 6 == pytest.approx(1.4, abs=0.5)  # log 4, as nothing is learnt yet


def test_all_labels_left_out_cost_nothing_and_are_no_nan() -> None:
    model = encoder()
    b = collate.add_labels(collate.collate_masked([([CLS, 5, SEP], [IGNORED] * 3)], pad=PAD), [IGNORED])
    loss, _ = step_loss(model, b)
    loss.backward()
    assert (loss.item(), b.tokens) == (0.0, 0)


# -- experts ----------------------------------------------------------------------------------------------------------


def routes(core: Transformer, batch: Batch) -> list[tuple[Tensor, Tensor]]:
    """Logits and chosen experts of each layer, text by text and without padding, from the router's own weights."""
    found = [(list[Tensor](), list[Tensor]()) for _ in core.decoder.layers]
    for i, ids in enumerate(batch.target):
        real = len(ids) if batch.target_real is None else int(batch.target_real[i].sum())
        assert batch.prefix is not None
        heard = dict[str, Tensor]()

        class Ear:
            needs_eager_attention = False

            def tap(self, module: torch.nn.Module, name: str, x: Tensor, heard: dict[str, Tensor] = heard) -> Tensor:
                if name == "norm" and str(getattr(module, "path", "")).endswith("moe"):
                    heard[str(module.path)] = x
                return x

        token = active_tracer.set(Ear())
        core.hidden(ids[None, :real], Inputs(prefix_len=batch.prefix[i : i + 1]))
        active_tracer.reset(token)
        for layer, (logits, index) in zip(core.decoder.layers, found, strict=True):
            logits.append(heard[layer.moe.path][0] @ layer.moe.router.weight.T)
            index.append(logits[-1].topk(2, -1).indices)
    return [(torch.cat(logits), torch.cat(index)) for logits, index in found]


def test_the_balance_is_counted_once_for_each_token_and_leaves_padding_out() -> None:
    core, b = decoder(), prefixed()
    plain, loads = step_loss(core, b)
    with_it, _ = step_loss(core, b, aux_loss_weight=0.5)
    per_layer = routes(core, b)
    assert len(per_layer) == 2
    want = sum(balances.balance_loss(logits, index, 4).item() for logits, index in per_layer) / 2
    assert (with_it - plain).item() == pytest.approx(0.5 * want * b.tokens, rel=1e-4)
    assert loads is not None
    assert b.target_real is not None
    assert loads.sum(-1).tolist() == [2 * int(b.target_real.sum())] * 2  # each real token chose two experts


def test_padding_that_is_counted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = objectives.collect_decisions
    monkeypatch.setattr(objectives, "collect_decisions", lambda r, batch: right(r, replace(batch, target_real=None)))
    with pytest.raises(AssertionError):
        test_the_balance_is_counted_once_for_each_token_and_leaves_padding_out()


def evened(even: float) -> float:
    """How uneven a decoder's experts are after some steps from a router that likes one of them."""
    core, b = decoder(), prefixed()
    with torch.no_grad():
        for layer in core.decoder.layers:
            layer.moe.router.weight[0] += 0.3 * layer.moe.router.weight.norm()
    optimizer = torch.optim.Adam([layer.moe.router.weight for layer in core.decoder.layers], lr=3e-2)
    loads = None
    for _ in range(60):
        loss, loads = step_loss(core, b, aux_loss_weight=even)
        (loss / b.tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loads is not None
    return measure_imbalance(loads)


def test_a_strong_balance_evens_the_experts_out() -> None:
    assert evened(1.0) < evened(0.0)
    assert evened(1.0) < 1.5


def test_who_listened_before_still_hears_and_nothing_stays_behind() -> None:
    class Ear:
        needs_eager_attention = False

        def __init__(self) -> None:
            self.names = set[str]()

        def tap(self, module: torch.nn.Module, name: str, x: Tensor) -> Tensor:
            self.names.add(name)
            return x

    core, b, ear = decoder(), prefixed(), Ear()
    token = active_tracer.set(ear)
    step_loss(core, b)
    assert active_tracer.get() is ear
    active_tracer.reset(token)
    assert {"resid_in", "logits", "index", "z"} <= ear.names
    assert measure_imbalance(torch.tensor([[2.0, 2.0], [3.0, 1.0]])) == 1.5
