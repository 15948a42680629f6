"""R-Drop: a batch read with two dropouts, whose predictions shall agree, against PyTorch's own divergence."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.core.dropout import Drop, make_dropout
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.data import collate
from qkv.data.collate import IGNORED, Batch, duplicate_rows
from qkv.errors import QkvError
from qkv.training import assemble, loop, losses
from qkv.training.losses import step_loss
from qkv.training.run import Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits

V, PAD = 40, 0


def rows(seed: int, count: int = 5) -> list[list[int]]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(4, V, (3 + 2 * i,), generator=g).tolist() for i in range(count)]


def pairs() -> Batch:
    return collate.collate_pairs(list(zip(rows(0), rows(1), strict=True)), pad=PAD, start=1)


def labelled() -> Batch:
    texts = [(row, [IGNORED] * len(row)) for row in rows(2)]
    return collate.add_labels(collate.collate_masked(texts, pad=PAD), [0, 1, IGNORED, 2, 1])


def telling() -> Batch:
    return collate.add_labels(collate.collate_labelled_text(rows(2), pad=PAD, share=0.7), [0, 1, IGNORED, 2, 1])


def core_of(family: str, *, labels: int = 0, dropout: float = 0.3) -> Transformer:
    ffn = 256 if family == "openai_gpt" else 64
    shape = Shape(family, width=64, layers=3, heads=2, ffn=ffn, dropout=dropout, context=32)
    core = Transformer(shape.spec(V, labels=labels))
    initialise(core, 0)
    with torch.no_grad():
        for p in core.parameters():
            p.copy_(p * 2 if p.ndim > 1 else p + 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))
    return core


def translator() -> Transformer:
    return core_of("marian")


def judge() -> Transformer:
    return core_of("bert", labels=3)


def teller() -> Transformer:
    return core_of("openai_gpt", labels=3)


def drop() -> Drop:
    return make_dropout(5, 0, 0, 0, device="cpu")


def slowly(core: Transformer, batch: Batch, agree: float, smoothing: float) -> Tensor:
    """Half of (both cross-entropies + agree / 2 · (KL + KL)), each word or text for itself, by PyTorch's functions."""
    both, draws = duplicate_rows(batch), drop()
    hidden = losses.states(core, both, draws)
    asked = [(core.head(hidden), both.labels, both.weight)] if bool((both.labels != IGNORED).any()) else []
    if both.classes is not None:
        asked += [(losses.text_logits(core, hidden, both, draws)[:, None], both.classes[:, None], None)]
    half, total = len(batch.target), hidden.new_zeros(())
    for logits, wanted, weight in asked:
        for i in range(half):
            for t, label in enumerate(wanted[i].tolist()):
                if label == IGNORED:
                    continue
                counts = 1.0 if weight is None else float(weight[i, t])
                one, two = (logits[row, t].log_softmax(-1) for row in (i, i + half))
                for seen in (one, two):
                    total = total + counts * F.cross_entropy(seen, torch.tensor(label), label_smoothing=smoothing)
                for p, q in ((one, two), (two, one)):  # KL(p | q)
                    total = total + counts * agree / 2 * F.kl_div(q, p, log_target=True, reduction="sum")
    return total / 2


def gradients(core: Transformer, loss: Tensor) -> dict[str, Tensor]:
    named = dict(core.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: g for name, g in zip(named, found, strict=True) if g is not None}


CASES = [
    pytest.param(translator, pairs, 0.1, id="words"), pytest.param(judge, labelled, 0.0, id="texts"),
    pytest.param(teller, telling, 0.0, id="texts and words"),
]  # fmt: skip


@pytest.mark.parametrize(("made", "batch", "smoothing"), CASES)
def test_loss_and_gradients_are_the_slow_loops(
    made: Callable[[], Transformer], batch: Callable[[], Batch], smoothing: float
) -> None:
    core, b = made(), batch()
    loss, _ = step_loss(core, b, smoothing=smoothing, rdrop=5.0, drop=drop())
    slow = slowly(core, b, 5.0, smoothing)
    assert float(loss.detach()) == pytest.approx(float(slow.detach()), rel=1e-5)
    assert float(slow.detach()) > 1.005 * float(slowly(core, b, 0.0, smoothing).detach())  # the two passes do differ
    ours, theirs = gradients(core, loss), gradients(core, slow)
    assert ours.keys() == theirs.keys()
    largest = max(float(g.abs().max()) for g in theirs.values())  # a bias of keys moves nothing but rounding
    for name, g in theirs.items():
        assert torch.allclose(ours[name], g, rtol=1e-3, atol=1e-5 * largest), name


@pytest.mark.parametrize("fault", ["one way", "no gradient", "of other words"])
def test_a_pull_that_is_wrong_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = losses.add_rdrop_gradient

    def wrong(p: Tensor, logits: Tensor, agree: float) -> Tensor:
        if fault == "one way":
            return right(p, logits, agree / 2)
        if fault == "no gradient":
            return right(p.clone(), logits, agree)
        turned = torch.arange(len(p))
        turned[1::2] = turned[1::2].roll(1)
        other = p[turned].clone()
        differ = right(other, logits[turned], agree)
        p[turned] = other
        return differ

    monkeypatch.setattr(losses, "add_rdrop_gradient", wrong)
    with pytest.raises(AssertionError):
        test_loss_and_gradients_are_the_slow_loops(translator, pairs, 0.1)


def test_chunks_of_rows_pair_the_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(0)
    many = 1_201  # several chunks of a vocabulary of 4,000, and no whole number of them
    head = torch.nn.Linear(16, 4_000)
    hidden = torch.randn(2 * many, 16, generator=g, requires_grad=True)
    labels = torch.randint(4_000, (many,), generator=g).repeat(2)
    found = losses.linear_cross_entropy(hidden, head, labels, rdrop=2.0)
    logits = head(hidden)
    one, two = logits.log_softmax(-1).chunk(2)
    apart = F.kl_div(one, two, log_target=True, reduction="sum") + F.kl_div(two, one, log_target=True, reduction="sum")
    slow = F.cross_entropy(logits, labels, reduction="sum") + apart
    assert float(found.detach()) == pytest.approx(float(slow.detach()), rel=1e-5)
    assert torch.allclose(*(torch.autograd.grad(x, hidden, retain_graph=True)[0] for x in (found, slow)), atol=1e-5)


def test_chunks_of_weighted_rows_pair_the_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(0)
    many = 1_201
    head = torch.nn.Linear(16, 4_000)
    hidden = torch.randn(2 * many, 16, generator=g, requires_grad=True)
    labels, weight = (torch.randint(4_000, (many,), generator=g).repeat(2), torch.rand(many, generator=g).repeat(2))

    def checked() -> None:
        found = losses.weighted_cross_entropy(hidden, head, labels, weight, smoothing=0.0, rdrop=2.0)
        one, two = head(hidden).log_softmax(-1).chunk(2)
        gap = (one.exp() * (one - two) + two.exp() * (two - one)).sum(-1)
        slow = (F.cross_entropy(head(hidden), labels, reduction="none") * weight).sum() + (gap * weight[:many]).sum()
        assert float(found.detach()) == pytest.approx(float(slow.detach()), rel=1e-5)
        assert torch.allclose(*(torch.autograd.grad(x, hidden)[0] for x in (found, slow)), atol=1e-5)

    checked()
    right = losses.rdrop_kl
    monkeypatch.setattr(
        losses, "rdrop_kl", lambda logits, agree, counts=1.0: right(logits, agree)
    )  # a fault: unweighted
    with pytest.raises(AssertionError):
        checked()


@pytest.mark.parametrize(("made", "batch", "smoothing"), CASES)
def test_without_dropout_both_passes_agree(
    made: Callable[[], Transformer], batch: Callable[[], Batch], smoothing: float
) -> None:
    core, b = made(), batch()
    with_it, without = (step_loss(core, b, smoothing=smoothing, rdrop=agree)[0].detach() for agree in (5.0, 0.0))
    assert float(with_it) == pytest.approx(float(without), rel=1e-5)


def test_experts_are_evened_out_over_both_passes() -> None:
    shape = Shape("prefix", width=32, layers=2, heads=2, groups=1, ffn=16, experts=4, dropout=0.0, context=32)
    core = Transformer(shape.spec(V))
    initialise(core, 0)
    b = collate.collate_prefixes(list(zip(rows(0), rows(1), strict=True)), pad=PAD, start=(1,))
    (two, loads), (one, alone) = (step_loss(core, b, aux_loss_weight=0.5, rdrop=agree) for agree in (5.0, 0.0))
    assert float(two.detach()) == pytest.approx(float(one.detach()), rel=1e-5)
    assert loads is not None
    assert alone is not None
    assert torch.equal(loads, 2 * alone)


def test_every_part_of_a_batch_stands_twice() -> None:
    for b in (pairs(), labelled()):
        both = duplicate_rows(b)
        assert both.tokens == 2 * b.tokens
        for name, x in vars(b).items():
            if isinstance(x, Tensor):
                assert torch.equal(getattr(both, name), x.repeat(2, *[1] * (x.ndim - 1))), name


def run_of(family: str, **shape: float) -> Run:
    lines = [(f"a b c{i % 3}", f"d e f{i % 3}") for i in range(24)]
    return Run(
        "agree", partial(Splits, lines, lines[:6], lines[:6]),
        replace(Shape(family, width=32, layers=1, heads=2, ffn=32, context=16), **shape),  # type: ignore[arg-type]
        Vocabulary("split", 60), Settings(steps=3, rdrop=2.0, precision="fp32"),
    )  # fmt: skip


def test_a_model_without_dropout_is_refused() -> None:
    with pytest.raises(QkvError, match=r"training\.rdrop=2\.0: two passes of a model without dropout are equal"):
        assemble.assemble(run_of("marian", dropout=0.0), device="cpu")
    for family, drops in (("marian", {"dropout": 0.0, "attention_dropout": 0.1}), ("lstm", {})):
        assert assemble.assemble(run_of(family, **drops), device="cpu").plan
    with pytest.raises(QkvError, match=r"training\.rdrop: found -1"):
        Settings(rdrop=-1.0)


def test_a_run_learns_with_it_and_repeats_itself() -> None:
    def ended(agree: float) -> dict[str, Tensor]:
        run = run_of("marian")
        a = assemble.assemble(replace(run, training=replace(run.training, rdrop=agree)), device="cpu")
        loop.train(a.model.core, a.plan, a.run.training)
        return dict(a.model.core.state_dict())

    one, again, without = ended(2.0), ended(2.0), ended(0.0)
    assert all(torch.equal(one[k], again[k]) for k in one)
    assert any(not torch.equal(one[k], without[k]) for k in one)
