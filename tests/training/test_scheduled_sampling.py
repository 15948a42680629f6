"""Scheduled sampling: which inputs are the model's own guesses, the same ones for the same key, and never a label."""

import dataclasses
from pathlib import Path

import pytest
import torch

from qkv.core.dropout import make_dropout
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.data import collate
from qkv.data.collate import IGNORED
from qkv.errors import QkvError
from qkv.spec import Attention, Block, Ffn, Head, Init, Mask, Norm, Spec, Stack, Table
from qkv.training import loop, scheduled_sampling
from qkv.training.losses import states
from qkv.training.plan import Plan
from qkv.training.settings import Settings

WORDS = 23


def core_of(kind: str = "causal", seed: int = 0) -> Transformer:
    def block(mask: str, cross: bool = False) -> Block:
        attn = Attention(2, 2, 8, Mask(mask))  # type: ignore[arg-type]
        across = Attention(2, 2, 8, Mask("memory")) if cross else None
        return Block(attn, Ffn(32, "gelu", dropout=0.1), cross=across, norm_in=Norm("layer"), dropout=0.1)

    def stack(mask: str, cross: bool = False) -> Stack:
        return Stack(16, (block(mask, cross),), Table("sinusoid", 64))

    sides = {"encoder": stack("full")} if kind in ("both", "full") else {}
    if kind != "full":
        sides["decoder"] = stack("prefix" if kind == "prefix" else "causal", kind == "both")
    core = Transformer(Spec(WORDS, head=Head("untied"), init=Init("xavier"), **sides))
    initialise(core, seed)
    return core


def pairs(rows: int = 12) -> list[tuple[list[int], list[int]]]:
    g = torch.Generator().manual_seed(3)
    found = []
    for i in range(rows):
        ids = torch.randint(3, WORDS, (3 + i % 4,), generator=g).tolist()
        found.append(([*ids, 2], [*ids, 2]))
    return found


BATCHES = {
    "both": collate.collate_pairs(pairs(), pad=0, start=1),
    "causal": collate.collate_windows(torch.randint(3, WORDS, (8, 12), generator=torch.Generator().manual_seed(1))),
    "prefix": collate.collate_prefixes(pairs(), pad=0, start=[1]),
}
kinds = pytest.mark.parametrize("kind", BATCHES)


@kinds
def test_only_own_guesses_come_in_and_only_where_a_true_word_was_learnt(kind: str) -> None:
    core, batch = core_of(kind), BATCHES[kind]
    new = scheduled_sampling.replace_inputs(core, batch, 0.5, 0, 0, 0, 0)
    guess = core.head(states(core, batch)).argmax(-1)
    changed = new.target != batch.target
    assert bool(changed.any())
    rows, columns = changed.nonzero(as_tuple=True)
    assert torch.equal(new.target[rows, columns], guess[rows, columns - 1])
    assert bool((batch.labels[rows, columns - 1] == batch.target[rows, columns]).all())
    assert bool((batch.labels[rows, columns] != IGNORED).all())
    assert dataclasses.replace(new, target=batch.target) == batch or torch.equal(new.labels, batch.labels)


@kinds
def test_the_share_is_what_was_asked_for(kind: str) -> None:
    batch, core = BATCHES[kind], core_of(kind)
    there = batch.labels != IGNORED
    places = int((there[:, :-1] & there[:, 1:]).sum())
    for part in (0.25, 0.75):
        drawn = [
            int((scheduled_sampling.replace_inputs(core, batch, part, 0, 0, n, 0).target != batch.target).sum())
            for n in range(40)
        ]  # a guess that is right changes nothing, so a little less
        assert 0.8 * part < sum(drawn) / len(drawn) / places <= part + 0.05
    assert scheduled_sampling.replace_inputs(core, batch, 0.0, 0) is batch


def test_the_coins_are_a_function_of_the_key() -> None:
    core, batch = core_of(), BATCHES["causal"]
    draw = lambda *key: scheduled_sampling.replace_inputs(core, batch, 0.5, *key).target  # noqa: E731
    assert torch.equal(draw(0, 1, 2, 3), draw(0, 1, 2, 3))
    for other in ((1, 1, 2, 3), (0, 2, 2, 3), (0, 1, 3, 3), (0, 1, 2, 4)):
        assert not torch.equal(draw(0, 1, 2, 3), draw(*other))


def test_the_coins_are_not_those_of_the_dropout_of_the_same_step() -> None:
    shape, key = torch.Size((40, 40)), (0, 1, 2, 3)
    mine = scheduled_sampling.draw_cells(shape, 0.5, *key, device=torch.device("cpu"))
    dropped = make_dropout(*key, device=torch.device("cpu"))(torch.ones(shape), 0.5) == 0
    assert 0.4 < float((mine == dropped).float().mean()) < 0.6


def test_a_share_of_all_is_nearly_all() -> None:
    coins = scheduled_sampling.draw_cells(torch.Size((100, 100)), 1.0, 5, device=torch.device("cpu"))
    assert float(coins.float().mean()) > 0.98


def test_the_share_grows_in_a_line() -> None:
    shares = [scheduled_sampling.sampling_share(n, most=0.4, ramp=4) for n in (0, 1, 2, 4, 9)]
    assert shares == pytest.approx([0, 0.1, 0.2, 0.4, 0.4])
    assert scheduled_sampling.sampling_share(0, most=0.4, ramp=0) == 0.4


PLAN = Plan(lambda epoch: [0, 1, 2], lambda key: BATCHES["both"], {})
BASE = Settings(
    steps=7, lr=1e-2, schedule="constant", precision="fp32", scheduled_sampling=0.5, scheduled_sampling_ramp=4
)


def weights(settings: Settings, directory: Path | None = None, resume: bool = False) -> list[torch.Tensor]:
    core = core_of("both")
    loop.train(core, PLAN, settings, directory=directory, resume=resume)
    return [p.detach().clone() for p in core.parameters()]


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    weights(dataclasses.replace(BASE, steps=4), tmp_path)
    assert all(map(torch.equal, weights(BASE), weights(BASE, tmp_path, resume=True)))


def test_coins_of_consumed_state_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduled_sampling, "draw_cells", lambda shape, part, *key, device: torch.rand(shape) < part)
    with pytest.raises(AssertionError):
        test_a_resumed_run_is_the_uninterrupted_one(tmp_path)


def test_it_changes_what_is_learnt() -> None:
    assert not all(map(torch.equal, weights(BASE), weights(dataclasses.replace(BASE, scheduled_sampling=0.0))))


def test_an_encoder_that_guesses_hidden_words_is_refused() -> None:
    rows = [([4, 5, 6, 2], [IGNORED, 7, 8, IGNORED])]
    with pytest.raises(QkvError, match="hidden words"):
        scheduled_sampling.replace_inputs(core_of("full"), collate.collate_masked(rows, pad=0), 0.5, 0)


@pytest.mark.parametrize(("key", "value"), [("scheduled_sampling", 1.5), ("scheduled_sampling_ramp", -1)])
def test_shares_that_are_none_are_refused(key: str, value: float) -> None:
    with pytest.raises(QkvError, match=key):
        Settings(**{key: value})  # type: ignore[arg-type]
