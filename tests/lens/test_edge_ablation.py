"""Causal effects, measured many at a time, equal one run each with the mask or the weights changed by hand."""

import copy
import dataclasses

import pytest
import torch
from support.small import lm, made, seq2seq
from torch import Tensor

from qkv.core.model import Transformer, build_step
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.lens import edge_ablation
from qkv.lens.edge_ablation import Case, EdgeCut
from qkv.lens.trace import Trace
from qkv.spec import Attention, Block, Ffn, Mask, Norm, Rotary, Spec, Stack

CASES = [
    Case((3, 4, 5, 6, 7, 2), (0, 8, 9, 10), 2),
    Case((5, 3, 9), (0, 11, 12, 13, 14), 4),
    Case((7, 7, 8, 1), (0, 8, 3), 1),
]


@torch.no_grad()
def by_hand(core: Transformer, case: Case, query: int, key: int) -> Tensor:
    """Log-probabilities [T, V] of one sentence, the mask of the encoder changed by hand."""
    source, target = torch.tensor([case.source]), torch.tensor([case.target])
    step = build_step(core.encoder, source)
    bias = torch.zeros(1, 1, len(case.source), len(case.source))
    bias[..., query, key] = -1e30
    changed = dataclasses.replace(step, mask={m: s._replace(bias=bias) for m, s in step.mask.items()})
    memory = core.encoder(core.embed(source), changed)
    return core(target, Inputs(memory=memory)).logits[0].log_softmax(-1)


def at(logprobs: Tensor, case: Case) -> float:
    return float(logprobs[case.at - 1, case.target[case.at]])


def test_where_over_many_sentences_equals_one_masked_run_each() -> None:
    core, queries = made(seq2seq()), [2, 1, 3]
    found = edge_ablation.measure_edge_drops(core, CASES, queries)
    assert [len(d) for d in found] == [6, 3, 4]
    for case, query, drops in zip(CASES, queries, found, strict=True):
        source, target = torch.tensor([case.source]), torch.tensor([case.target])
        with torch.no_grad():
            memory = core.encode(source)
            before = core(target, Inputs(memory=memory)).logits[0].log_softmax(-1)
        for key, drop in enumerate(drops.tolist()):
            assert abs(drop - (at(before, case) - at(by_hand(core, case, query, key), case))) < 1e-4
    assert max(float(d.abs().max()) for d in found) > 1e-2


def test_a_cut_that_forgets_its_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = edge_ablation.make_edits
    monkeypatch.setattr(
        edge_ablation, "make_edits", lambda core, cases, cuts, side: right(core, cases, [cuts[-1]] * len(cuts), side)
    )
    with pytest.raises(AssertionError):
        test_where_over_many_sentences_equals_one_masked_run_each()


def test_every_edge_agrees_with_where_and_a_decoders_future_has_no_effect() -> None:
    core, case = made(seq2seq()), CASES[1]
    before, after, instead = edge_ablation.cut_every_edge(core, case)
    assert after.shape == instead.shape == (3, 3, 5)
    for q in range(3):
        drops = edge_ablation.measure_edge_drops(core, [case], [q])[0]
        assert (before[case.at] - after[q, :, case.at] - drops).abs().max() < 1e-5
    only, prompt = made(lm()), Case((), (3, 4, 5, 6), 3)
    before, after, _ = edge_ablation.cut_every_edge(only, prompt, side="decoder")
    assert torch.equal(after[1, 2], before)
    assert (after[2, 1, :3] - before[:3]).abs().max() < 1e-6
    assert float((after[2, 1, 3] - before[3]).abs()) > 1e-4
    drops = edge_ablation.measure_edge_drops(only, [prompt], [2], side="decoder")[0]
    assert len(drops) == 3
    assert (before[3] - after[2, :3, 3] - drops).abs().max() < 1e-5


def test_silenced_heads_equal_zeroed_weights_on_a_copy() -> None:
    core = made(seq2seq())
    other = copy.deepcopy(core)
    with torch.no_grad():
        other.encoder.layers[1].attn.out.weight[:, 24:] = 0
        for case in CASES:
            gone = edge_ablation.score_targets(core, [case], edge_ablation.cut_heads(core, [(1, 3)]))
            copied = edge_ablation.score_targets(other, [case])
            torch.testing.assert_close(gone.logprobs, copied.logprobs, rtol=0, atol=1e-4)
            every = edge_ablation.cut_every_head(core, case)
            assert [len(heads) for heads in every] == [4, 4, 4]
            torch.testing.assert_close(every[1][3], copied.logprobs[0], rtol=0, atol=1e-4)
        with Trace(core, edit=edge_ablation.cut_heads(core, [(1, 3)])):
            a = core.encode(torch.tensor([[3, 4]]))
        b = other.encode(torch.tensor([[3, 4]]))
        assert (a - b).abs().max() < 1e-5


def test_cuts_run_in_batches_that_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    core, case = made(seq2seq()), CASES[1]
    edges, heads = edge_ablation.cut_every_edge(core, case), edge_ablation.cut_every_head(core, case)
    monkeypatch.setattr(edge_ablation, "LOGITS", 3 * len(case.target) * core.spec.vocabulary)
    assert edge_ablation.rows_at_once(core, case) == 3
    for one, other in zip([*edges[:2], *heads], [*edge_ablation.cut_every_edge(core, case)[:2],
                                                 *edge_ablation.cut_every_head(core, case)], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_padding_of_a_batch_changes_nothing_and_its_columns_are_zero() -> None:
    core = made(seq2seq())
    together = edge_ablation.score_targets(core, CASES)
    for row, case in enumerate(CASES):
        alone = edge_ablation.score_targets(core, [case])
        n = len(case.target)
        assert (together.logprobs[row, :n] - alone.logprobs[0]).abs().max() < 1e-5
        assert torch.equal(together.best[row, :n], alone.best[0])
        assert (together.logprobs[row, n:] == 0).all()


def test_impossible_cases_and_cuts_are_errors() -> None:
    with pytest.raises(QkvError, match="at = 0"):
        Case((1,), (0, 1), 0)
    with pytest.raises(QkvError, match="no encoder"):
        edge_ablation.score_cuts(made(lm()), [Case((), (0, 1), 1)], [EdgeCut(0, 0)], side="encoder")


def test_a_cut_edge_to_the_source_equals_cross_attention_masked_by_hand() -> None:
    core, case = made(seq2seq()), CASES[0]
    source, target = torch.tensor([case.source]), torch.tensor([case.target])
    with torch.no_grad():
        memory = core.encode(source)
        step = build_step(core.decoder, target, Inputs(memory=memory))
        bias = torch.zeros(1, 1, 4, 6)
        bias[..., case.at - 1, 3] = -1e30
        mask = {m: s._replace(bias=bias) if m.kind == "memory" else s for m, s in step.mask.items()}
        changed = dataclasses.replace(step, mask=mask)
        hand = core.head(core.stack(core.embed(target), changed))[0].log_softmax(-1)
    before, after, instead = edge_ablation.cut_every_edge(core, case, side="cross")
    assert after.shape == (4, 6, 4)
    assert abs(float(after[case.at - 1, 3, case.at]) - at(hand, case)) < 1e-4
    assert int(instead[case.at - 1, 3, case.at]) == int(hand[case.at - 1].argmax())
    assert (before[case.at] - after[case.at - 1, :, case.at]).abs().max() > 1e-3
    drops = edge_ablation.measure_edge_drops(core, [case], [case.at - 1], side="cross")[0]
    assert (before[case.at] - after[case.at - 1, :, case.at] - drops).abs().max() < 1e-5


def test_one_answer_each_equals_all_that_is_said() -> None:
    rows, at = torch.arange(len(CASES)), torch.tensor([c.at for c in CASES])
    for core, cases in ((made(seq2seq()), CASES), (made(lm()), [Case((), c.target, c.at) for c in CASES])):
        edits = edge_ablation.cut_heads(core, [(1, 0)], side="decoder")
        found, best = edge_ablation.score_answers(core, cases, edits)
        said = edge_ablation.score_targets(core, cases, edits)
        torch.testing.assert_close(found, said.logprobs[rows, at])
        assert best.tolist() == said.best[rows, at].tolist()


def test_sources_read_once_are_given_back_to_their_own_rows() -> None:
    core, queries = made(seq2seq()), [c.at - 1 for c in CASES]
    together = edge_ablation.measure_edge_drops(core, [*CASES, *CASES[::-1]], [*queries, *queries[::-1]], side="cross")
    pairs = zip(CASES, queries, strict=True)
    alone = [edge_ablation.measure_edge_drops(core, [c], [q], side="cross")[0] for c, q in pairs]
    for found, expected in zip(together, [*alone, *alone[::-1]], strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_free_prefix_is_seen_whole() -> None:
    attn = Attention(2, 2, 32, Mask("prefix"), rotary=Rotary(32))
    block = Block(attn, Ffn(96, "relu"), norm_in=Norm("rms"))
    core = made(Spec(53, Stack(48, (block,) * 3, final_norm=Norm("rms"))))
    ids = (3, 9, 27, 4, 11, 8)
    said = edge_ablation.score_targets(core, [Case((), ids, 5, 4), Case((), ids, 5, 0)]).logprobs
    for row, free in enumerate((4, 0)):
        x = torch.tensor([ids])
        with torch.no_grad():
            logits = core(x, Inputs(prefix_len=torch.tensor([free]))).logits[0].log_softmax(-1)
        assert torch.allclose(said[row, 1:], logits[:-1].gather(-1, x[0, 1:, None])[:, 0], atol=1e-5)
    assert not torch.allclose(said[0], said[1], atol=1e-3)
