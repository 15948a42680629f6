"""training.outputs=seen: a translator that chooses among the words its targets hold, against the whole vocabulary."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import qkv
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.data import collate
from qkv.data.collate import Batch, twice
from qkv.errors import QkvError
from qkv.training import assemble, crossentropy, machine
from qkv.training.losses import step_loss
from qkv.training.objectives import pairs as objectives
from qkv.training.probes import readings
from qkv.training.run import Run, Vocabulary
from qkv.training.settings import Lora, Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits

V, WORDS = 48, (3, 5, 6, 9, 12, 17, 20, 31, 40, 47)


def core_of() -> Transformer:
    core = Transformer(Shape("marian", width=64, layers=3, heads=2, ffn=64, dropout=0.2, context=32).spec(V))
    initialise(core, 0)
    with torch.no_grad():
        for p in core.parameters():
            p.copy_(p * 2 if p.ndim > 1 else p + 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))
    return core


def batch() -> Batch:
    g = torch.Generator().manual_seed(1)
    sides = [(torch.randint(1, V, (4 + i,), generator=g).tolist(),
              [WORDS[i] for i in torch.randint(len(WORDS), (3 + 2 * i,), generator=g)]) for i in range(4)]  # fmt: skip
    return replace(collate.seq2seq(sides, pad=0, start=0), words=torch.tensor(WORDS))


def by_hand(core: Transformer, b: Batch, smoothing: float) -> Tensor:
    """The loss of a softmax over all words in which those that are not offered have no share, word by word."""
    from qkv.training.losses import states

    logits = core.head(states(core, b))
    total = logits.new_zeros(())
    for row, labels in zip(logits, b.labels.tolist(), strict=True):
        for at, label in enumerate(labels):
            if label >= 0:
                some = torch.stack([row[at, word] for word in WORDS])
                total = total + F.cross_entropy(some, torch.tensor(WORDS.index(label)), label_smoothing=smoothing)
    return total


def gradients(core: Transformer, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(core.parameters()), allow_unused=False))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighed", [False, True])
def test_loss_and_gradients_are_those_of_the_words_that_are_offered(smoothing: float, weighed: bool) -> None:
    core, b = core_of(), batch()
    given = replace(b, weight=torch.ones(b.labels.shape)) if weighed else b
    ours, theirs = step_loss(core, given, smoothing=smoothing)[0], by_hand(core, b, smoothing)
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-5)
    whole = step_loss(core, replace(given, words=None), smoothing=smoothing)[0]
    assert float(whole.detach()) > 1.02 * float(theirs.detach())  # the words do make a difference
    for one, other in zip(gradients(core, ours), gradients(core, theirs), strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        assert float(step_loss(core, given, smoothing=smoothing)[0]) == pytest.approx(float(theirs.detach()), rel=1e-5)


def test_two_passes_that_shall_agree_do_so_over_those_words() -> None:
    from qkv.core.dropout import dropper
    from qkv.training.losses import states

    core, b, drop = core_of(), batch(), dropper(5, 0, 0, 0, device="cpu")
    found = float(step_loss(core, b, rdrop=3.0, drop=drop)[0].detach())
    both = twice(b)
    logits = core.head(states(core, both, dropper(5, 0, 0, 0, device="cpu")))[..., list(WORDS)].log_softmax(-1)
    total = 0.0
    for i in range(len(b.labels)):
        for at, label in enumerate(b.labels[i].tolist()):
            if label >= 0:
                one, two = logits[i, at], logits[i + len(b.labels), at]
                one, two = one.detach(), two.detach()
                total -= float(one[WORDS.index(label)] + two[WORDS.index(label)])
                total += 1.5 * float(F.kl_div(two, one, log_target=True, reduction="sum")
                                     + F.kl_div(one, two, log_target=True, reduction="sum"))  # fmt: skip
    assert found == pytest.approx(total / 2, rel=1e-5)


def test_a_label_that_is_not_offered_is_refused() -> None:
    b = batch()
    for words in (WORDS[:-1], WORDS[1:]):
        with pytest.raises(QkvError, match=r"label \d+ is none of the 9 words that answers are chosen among"):
            step_loss(core_of(), replace(b, words=torch.tensor(words)))


def test_a_loss_over_the_wrong_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = crossentropy.offered

    def wrong(head: torch.nn.Linear, labels: Tensor, words: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
        weight, bias, places = right(head, labels, words)
        return weight, None if bias is None else bias.roll(1), places

    monkeypatch.setattr(crossentropy, "offered", wrong)
    with pytest.raises(AssertionError):
        test_loss_and_gradients_are_those_of_the_words_that_are_offered(0.1, False)


def test_words_are_no_rows() -> None:
    b = batch()
    assert torch.equal(twice(b).words, b.words)
    assert len(twice(b).labels) == 8
    assert torch.equal(machine.take_rows(b, 2).words, b.words)
    assert len(machine.take_rows(b, 2).labels) == 2
    assert torch.equal(readings.first_row(b).words, b.words)
    assert len(readings.first_row(b).labels) == 1


LINES = [(f"a b c{i % 7} only{i % 3}", f"d e f{i % 7}") for i in range(120)]


def run_of(**training: object) -> Run:
    return Run(
        "seen", partial(Splits, LINES, LINES[:12], LINES[:12]),
        Shape("marian", width=32, layers=1, heads=2, ffn=32, dropout=0.1, context=16), Vocabulary("split", 60),
        Settings(steps=30, evaluate_every=15, outputs="seen", lr=3e-3, precision="fp32", **training),  # type: ignore[arg-type]
    )  # fmt: skip


def test_a_run_says_only_what_its_targets_say_and_its_model_says_no_other_word(tmp_path: Path) -> None:
    qkv.train(run_of(), out=tmp_path / "m", device="cpu")
    model = qkv.load(tmp_path / "m")
    assert model.tokenizer is not None
    words = {model.tokenizer.id(word) for line in LINES for word in line[1].split()} | {model.tokenizer.eos_id}
    bias = model.core.head.bias.detach()
    assert {i for i in range(len(bias)) if bias[i] > -20} == words
    assert all(float(bias[i]) == objectives.SILENT for i in range(len(bias)) if i not in words)
    own = {model.tokenizer.id(word) for line in LINES for word in line[0].split()}
    assert own & set(range(len(bias))) - words  # there are words that only sources have
    said = model.translate([source for source, _ in LINES[:7]], beam=4)
    assert {word for one in said for word in one.text.split()} <= {word for line in LINES for word in line[1].split()}


def test_a_run_tells_of_its_words_and_judges_by_all() -> None:
    a = assemble.assemble(run_of(), device="cpu")
    whole = len(a.model.core.head.bias)
    assert any(note.startswith(f"answers are chosen among the 10 of {whole} words") for note in a.plan.notes)
    key = a.plan.order(0)[0]
    assert len(a.plan.make(key).words) == 10  # type: ignore[arg-type]
    assert all(b.words is None for b in a.valid)
    bart = replace(run_of(), model=small("bart"), objective="pairs")
    assert int((assemble.assemble(bart, device="cpu").model.core.head.bias == objectives.SILENT).sum()) > 0
    plain = assemble.assemble(replace(run_of(), training=replace(run_of().training, outputs="all")), device="cpu")
    assert plain.plan.make(key).words is None
    assert bool((plain.model.core.head.bias == 0).all())


def small(family: str) -> Shape:
    return Shape(family, width=32, layers=1, heads=2, ffn=32, dropout=0.1, context=16)  # type: ignore[arg-type]


@pytest.mark.parametrize(("changes", "why"), [
    ({"model": small("t5"), "objective": "pairs"}, "this model's output has no bias"),
    ({"model": small("lstm")}, "this model's output has no bias"),
    ({"tokenizer": Vocabulary("bpe", 270, bpe_dropout=0.1)}, "each epoch has other words"),
    ({"training": replace(run_of().training, optimizer="adafactor")}, "adafactor measures its steps"),
])  # fmt: skip
def test_what_cannot_keep_to_some_words_is_refused(changes: dict[str, object], why: str) -> None:
    run = replace(run_of(), **changes)  # type: ignore[arg-type]
    with pytest.raises(QkvError, match=f"training.outputs=seen: .*{why}"):
        assemble.assemble(run, device="cpu")


def test_a_base_that_never_says_some_words_can_learn_them(tmp_path: Path) -> None:
    qkv.train(run_of(), out=tmp_path / "m", device="cpu")
    base = qkv.load(tmp_path / "m").core.head.bias.detach()
    silent = base == objectives.SILENT
    turned = replace(
        run_of(),
        base=str(tmp_path / "m"),
        splits=partial(Splits, *([(b, a) for a, b in some] for some in (LINES, LINES[:12], LINES[:12]))),
    )
    a = assemble.assemble(replace(turned, training=replace(turned.training, outputs="all")), device="cpu")
    assert any(f"the base never says {int(silent.sum())} of its" in note for note in a.plan.notes)
    bias = a.model.core.head.bias.detach()
    assert torch.allclose(bias[silent], base[~silent].mean())
    assert torch.equal(bias[~silent], base[~silent])
    told = qkv.train(turned, out=tmp_path / "n", device="cpu").model.translate(LINES[0][1])
    assert set(told.text.split()) <= {word for line in LINES for word in line[0].split()}
    plain = assemble.assemble(
        replace(
            run_of(), base=str(tmp_path / "n"), training=replace(run_of().training, lora=Lora(rank=2), outputs="all")
        ),
        device="cpu",
    )
    assert int((plain.model.core.head.bias == objectives.SILENT).sum()) > 0, "adapters stand beside what is"


def test_a_run_does_not_change_its_mind_about_its_words(tmp_path: Path) -> None:
    qkv.train(run_of(), out=tmp_path / "m", device="cpu")
    for outputs in ("all", "seen"):
        run = replace(run_of(), training=replace(run_of().training, outputs=outputs, steps=32))
        if outputs == "all":
            with pytest.raises(QkvError, match=r"another run: data\.outputs: was \"seen\", now null"):
                qkv.train(run, out=tmp_path / "m", device="cpu", resume=True)
        else:
            assert qkv.train(run, out=tmp_path / "m", device="cpu", resume=True).outcome.steps == 32


def test_where_there_are_no_pairs_it_is_said_to_do_nothing() -> None:
    lines = [(f"a b c{i % 7}", "good" if i % 2 else "bad") for i in range(120)]
    shape = Shape("bert", width=32, layers=1, heads=2, ffn=32)
    run = replace(run_of(), objective="labels", model=shape, splits=partial(Splits, lines, lines[:12], lines[:12]))
    a = assemble.assemble(run, device="cpu")
    assert any("of no use in this run: training.outputs" in note for note in a.plan.notes)


def test_operations_that_are_not_made_are_not_counted() -> None:
    b, work = batch(), machine.Speed(core_of().spec)
    with_all = work.count(replace(b, words=None))
    assert with_all - work.count(b) == 3 * int(b.target_real.sum()) * 2 * 64 * (V - len(WORDS))  # type: ignore[union-attr]
