"""Traces are exact while the fast kernels run: rebuilt maps, stitched decoding, deaf to others, edits that hold."""

import contextlib
import copy
import dataclasses
import math
import threading
from pathlib import Path

import pytest
import torch
from support import zoo
from torch import Tensor

from qkv.core import kernels
from qkv.core.cache import Static
from qkv.core.init import initialise
from qkv.core.model import Transformer, build_step
from qkv.core.step import Inputs, active_tracer
from qkv.errors import QkvError
from qkv.generation.beam import Search, beam
from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions
from qkv.lens import edit, recording, trace_storage
from qkv.lens.taps import tap_names
from qkv.lens.trace import Trace
from qkv.spec import Attention, Block, Ffn, Head, Init, Mask, Norm, Rotary, Spec, Stack, Table


def seq2seq() -> Spec:
    n, ff = Norm("layer"), Ffn(80, "relu", bias=True)
    enc = Block(Attention(4, 4, 8, Mask("full"), True, True), ff, norm_sum=n)
    dec = Block(
        Attention(4, 2, 8, Mask("causal"), True, True), ff, cross=Attention(4, 2, 8, Mask("memory"), True), norm_sum=n
    )
    t = Table("sinusoid", 64)
    return Spec(53, encoder=Stack(32, (enc,) * 3, t, 6.0), decoder=Stack(32, (dec,) * 2, t, 6.0), init=Init("xavier"))


def lm(mask: Mask | None = None) -> Spec:
    b = Block(
        Attention(6, 2, 8, mask or Mask("causal"), rotary=Rotary(8)),
        Ffn(48, "silu", gated=True),
        norm_in=Norm("rms", 1e-6),
    )
    return Spec(53, decoder=Stack(32, (b,) * 3, final_norm=Norm("rms", 1e-6), context=64), head=Head("untied"))


def made(spec: Spec, seed: int = 0) -> Transformer:
    core = Transformer(spec).eval()
    initialise(core, seed)
    with torch.no_grad():
        for p in core.parameters():
            p.mul_(3.0 if p.dim() > 1 and spec.init.kind == "normal" else 1.0)
    return core


def words(rows: int, tokens: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 53, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def translate(core: Transformer, source: Tensor, target: Tensor, real: Tensor | None = None) -> Tensor:
    memory = core.encode(source, Inputs(padding_mask=real))
    return core(target, Inputs(memory=memory, source_padding_mask=real)).logits


def slow(q: Tensor, k: Tensor, scale: float, seen) -> Tensor:
    """Attention weights by loops, in Python's double precision; seen(row, query, key) is the mask."""
    rows, heads, queries, _ = q.shape
    out = torch.zeros(rows, heads, queries, k.shape[2])
    for b in range(rows):
        for h in range(heads):
            g = h // (heads // k.shape[1])
            for i in range(queries):
                keys = [j for j in range(k.shape[2]) if seen(b, i, j)]
                s = [
                    sum(x * y for x, y in zip(q[b, h, i].tolist(), k[b, g, j].tolist(), strict=True)) * scale
                    for j in keys
                ]
                e = [math.exp(x - max(s)) for x in s]
                for j, x in zip(keys, e, strict=True):
                    out[b, h, i, j] = x / sum(e)
    return out


def turned(x: Tensor, dim: int) -> Tensor:
    """Rotary positions by complex numbers, halves paired: an independent way."""
    half, t = dim // 2, torch.arange(x.shape[2], dtype=torch.float64)
    turn = torch.polar(
        torch.ones(x.shape[2], half, dtype=torch.float64), t[:, None] * 10_000.0 ** -(torch.arange(half) / half)
    )
    z = torch.complex(x[..., :half].double(), x[..., half:].double()) * turn
    return torch.cat((z.real, z.imag), -1).float()


@pytest.fixture
def sdpa_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast kernel alone runs: without gradients it is SDPA, and the open maths would be noticed."""

    def never(*_: object) -> Tensor:
        raise AssertionError("the open maths ran")

    monkeypatch.setattr(kernels, "open_attend", never)


@torch.no_grad()
def test_patterns_rebuilt_under_sdpa_equal_a_slow_loop_for_rotary_groups(sdpa_only: None) -> None:
    core, ids = made(lm()), words(2, 7)
    with Trace(core, save=["layers.1.attn.*"]) as t:
        core(ids)
    q, k = turned(t["layers.1.attn.q_pre"], 8), turned(t["layers.1.attn.k_pre"], 8)
    expected = slow(q, k, 8**-0.5, lambda b, i, j: j <= i)
    assert (t["layers.1.attn.pattern"] - expected).abs().max() < 1e-5


@torch.no_grad()
def test_patterns_with_padding_and_a_window_equal_a_slow_loop(sdpa_only: None) -> None:
    core, ids = made(lm(Mask("causal", 3))), words(2, 7)
    real = torch.arange(7) >= torch.tensor([[0], [3]])  # left padding
    with Trace(core, save=["check"]) as t:
        core(ids, Inputs(padding_mask=real))
    got = t["layers.0.attn.pattern"]
    q, k = t.get("layers.0.attn.q"), t.get("layers.0.attn.k")
    expected = slow(q, k, 8**-0.5, lambda b, i, j: i - 3 < j <= i and (bool(real[b, j]) or not real[b, i]))
    assert (got - expected)[real.nonzero(as_tuple=True)[0], :, real.nonzero(as_tuple=True)[1]].abs().max() < 1e-5
    assert max(t.check().values()) < 1e-5


@torch.no_grad()
def test_encoder_decoder_and_cross_patterns_equal_a_slow_loop_with_padding(sdpa_only: None) -> None:
    core, source, target = made(seq2seq()), words(2, 6), words(2, 4, 1)
    real = torch.arange(6) < torch.tensor([[6], [4]])
    with Trace(core, save=["patterns", "*.q", "*.k", "*.k_pre", "check"]) as t:
        translate(core, source, target, real)
    for name, seen in (
        ("encoder.layers.2.attn", lambda b, i, j: real[b, j]),
        ("decoder.layers.1.attn", lambda b, i, j: j <= i),
        ("decoder.layers.1.cross", lambda b, i, j: real[b, j]),
    ):
        k = t[f"{name}.k_pre" if name.endswith("cross") else f"{name}.k"]
        assert (t[f"{name}.pattern"] - slow(t[f"{name}.q"], k, 8**-0.5, seen)).abs().max() < 1e-5
    assert t["decoder.layers.0.cross.pattern"].shape == (2, 4, 4, 6)
    checks = t.check()
    assert len(checks) == 7
    assert max(checks.values()) < 1e-5


@torch.no_grad()
def test_one_row_of_a_map_is_that_row_for_shared_sources_and_cached_calls() -> None:
    core, source, target = made(seq2seq()), words(2, 6), words(6, 1, 1)  # three hypotheses of each source
    real = torch.arange(6) < torch.tensor([[6], [4]])
    with Trace(core, save=["patterns"]) as t:
        translate(core, source, target, real)
    path = "decoder.layers.1.cross"
    for row in range(6):
        assert (t.row(path, 3, 0, row=row) - t[f"{path}.pattern"][row, 3, 0]).abs().max() < 1e-6
    core, ids, cache = zoo.made(zoo.relative()), zoo.words(2, 7), Static(5)  # each head leans by distance
    given = Inputs(memory=core.encode(ids))
    with Trace(core, save=["decoder.*.pattern"]) as t:
        for a, b in ((0, 4), (4, 6), (6, 7)):
            core(ids[:, a:b], given, cache=cache)
    path = "decoder.layers.1.attn"
    for head, query in ((0, 3), (1, 4), (0, 5), (1, 6)):
        found = t.row(path, head, query, row=1)
        assert (found - t[f"{path}.pattern"][1, head, query, : len(found)]).abs().max() < 1e-6
    assert torch.equal(t.row(path, -1, -1), t.row(path, 1, 6))
    for wrong, why in (((f"{path}s", 0, 0), "no attention"), ((path, 2, 0), "2 heads, 0 to 1"), ((path, 0, 7), "7 t")):
        with pytest.raises(QkvError, match=why):
            t.row(*wrong)


@torch.no_grad()
def test_a_map_rebuilt_without_its_scale_or_mask_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    core, ids, right = made(lm()), words(1, 6), recording.compute_pattern
    with Trace(core, save=["check"]) as t:
        core(ids)
    monkeypatch.setattr(recording, "compute_pattern", lambda q, k, bias, scale, cap: right(q * 2, k, bias, scale, cap))
    assert max(t.check().values()) > 1e-3
    monkeypatch.setattr(recording, "compute_pattern", lambda q, k, bias, scale, cap: right(q, k, bias * 0, scale, cap))
    assert max(t.check().values()) > 1e-3


@torch.no_grad()
def test_prefill_chunks_and_decode_stitch_to_one_full_pass() -> None:
    core, ids = made(lm()), words(1, 9)
    with Trace(core, save=["*"]) as whole:
        core(ids)
    cache = Static(3, capacity=2)
    with Trace(core, save=["*"]) as t:
        for a, b, mode in ((0, 4, "prefill"), (4, 6, "prefill"), (6, 7, "decode"), (7, 8, "decode"), (8, 9, "decode")):
            core(ids[:, a:b], cache=cache, mode=mode)
    for name in whole.wanted - {n for n in whole.wanted if n.endswith(".score")}:
        assert (t[name] - whole[name]).abs().max() < 1e-5, name
    run = t.run("embed")
    assert run.phases == ["prefill"] * 6 + ["decode"] * 3
    assert run.used == [False, False, False, True, False, True, True, True, True]
    assert torch.equal(run.ids, ids)
    assert max(t.check().values()) < 1e-5


def test_generation_stitches_and_logits_begin_at_the_last_prompt_token() -> None:
    core = made(lm())
    with Trace(core, save=["check", "logits"]) as t:
        written = generate(core, [[5, 6, 7, 8]], options=DecodeOptions(5))[0].tokens
    ids = torch.tensor([[5, 6, 7, 8, *written]])
    assert t.start("logits") == 3
    assert torch.equal(t["logits"][0].argmax(-1), ids[0, 4:])
    assert torch.equal(t.run("logits").ids, ids[:, :-1])
    with torch.no_grad(), Trace(core, save=["patterns"]) as whole:
        core(ids[:, :-1])
    assert (t["layers.2.attn.pattern"] - whole["layers.2.attn.pattern"]).abs().max() < 1e-5
    assert max(t.check().values()) < 1e-5


def test_a_translation_stitches_cross_attention_and_beams_refuse() -> None:
    core = made(seq2seq())
    how = {"options": DecodeOptions(4, start=(0,))}
    with Trace(core, save=["check"]) as t:
        written = generate(core, [[9, 8, 7]], **how)[0].tokens
    with torch.no_grad(), Trace(core, save=["check"]) as whole:
        translate(core, torch.tensor([[9, 8, 7]]), torch.tensor([[0, *written[:-1]]]))
    for name in ("decoder.layers.1.cross.pattern", "decoder.layers.1.attn.pattern", "encoder.layers.2.attn.pattern"):
        assert (t[name] - whole[name]).abs().max() < 1e-5
    assert max(t.check().values()) < 1e-5
    with Trace(core, save=["patterns"]) as t:
        beam(core, [[9, 8, 7]], search=Search(beams=3), **how)
    assert t["encoder.layers.0.attn.pattern"].shape == (1, 4, 3, 3)
    with pytest.raises(QkvError, match=r"take one of its texts: t.line\(0\)"):
        t["decoder.layers.0.cross.pattern"]


@torch.no_grad()
def test_a_trace_changes_no_bit_and_leaves_nothing_behind() -> None:
    core, source, target = made(seq2seq()), words(2, 6), words(2, 4, 1)
    off = translate(core, source, target)
    with Trace(core, save=["*"]):
        on = translate(core, source, target)
    assert torch.equal(on, off)
    assert torch.equal(translate(core, source, target), off)
    assert active_tracer.get() is None
    with contextlib.suppress(KeyError), Trace(core):
        raise KeyError
    assert active_tracer.get() is None


@torch.no_grad()
def test_two_models_and_two_threads_never_hear_each_other() -> None:
    one, two, ids = made(lm()), made(lm(), 1), words(1, 5)
    cut = edit.cut("layers.0.attn", key=0, query=4)
    with Trace(one, save=["logits"]) as t1, Trace(two, save=["logits"], edit=[cut]) as t2:
        first = one(ids).logits
        second = two(ids).logits
        thread = threading.Thread(target=lambda: two(ids).logits)
        thread.start()
        thread.join()
    assert torch.equal(t1["logits"], first)
    assert torch.equal(t2["logits"], second)
    assert torch.equal(first, one(ids).logits), "the other model's edit opened this one's maths"
    assert len(t1.runs) == len(t2.runs) == 1


@torch.no_grad()
def test_a_trace_in_a_trace_of_one_core_lets_both_hear() -> None:
    core, ids = made(lm()), words(1, 5)
    with Trace(core, save=["logits"]) as outer, Trace(core, save=["logits"], edit=[edit.scale("logits", 2.0)]) as inner:
        core(ids)
    assert torch.equal(outer["logits"], inner["logits"])


def test_names_are_the_taps_that_fire() -> None:
    class Ear:
        needs_eager_attention = True

        def __init__(self) -> None:
            self.heard: list[str] = []

        def tap(self, module, name, x):
            self.heard.append(f"{module.path}.{name}" if module.path else name)
            return x

    for make in (lm, seq2seq, *zoo.ALL.values()):
        ear, core, ids = Ear(), made(make()), words(1, 5)
        token = active_tracer.set(ear)
        zoo.run(core, ids, words(1, 7))
        if core.spec.labels:
            ear.heard = [n for n in ear.heard if "layers" not in n and "embed" not in n and "norm" not in n]
            core.classify(ids)
        active_tracer.reset(token)
        assert sorted(ear.heard) == sorted(tap_names(make()))


@torch.no_grad()
@pytest.mark.parametrize("name", zoo.ALL)
def test_patterns_rebuilt_while_fast_kernels_run_hold_for_every_model(name: str) -> None:
    core, ids = zoo.made(zoo.ALL[name]()), zoo.words(2, 9)
    with Trace(core, save=["check"]) as t:
        zoo.run(core, ids)
    assert max(t.check().values()) < 1e-5
    with Trace(core, save=["*.pattern"], edit=[edit.scale("*.score", 1.0)]) as opened:
        zoo.run(core, ids)
    for path in t.check():
        assert (t[f"{path}.pattern"] - opened[f"{path}.pattern"]).abs().max() < 1e-5, path


@torch.no_grad()
@pytest.mark.parametrize("name", ["relative", "mixed", "latent", "stretched", "blanks", "experts"])
def test_patterns_hold_over_a_prefill_and_decoding(name: str) -> None:
    core, ids, given, cache = zoo.made(zoo.ALL[name]()), zoo.words(2, 9), Inputs(), Static(6)
    if core.spec.encoder:
        given = Inputs(memory=core.encode(ids))
    save = ["decoder.*"] if core.spec.encoder else ["*"]
    with Trace(core, save=save) as whole:
        core(ids, given)
    with Trace(core, save=save) as t:
        for a, b, mode in ((0, 4, "prefill"), (4, 6, "prefill"), (6, 7, "decode"), (7, 9, "decode")):
            core(ids[:, a:b], given, cache=cache, mode=mode)
    assert max(t.check().values()) < 1e-5
    heard = [n for n in whole.wanted if not n.endswith((".score", "labels.out"))]
    for tap in heard if name != "stretched" else ():  # dynamic angles depend on how far one has read
        assert (t[tap].float() - whole[tap].float()).abs().max() < 2e-5, tap


@torch.no_grad()
def test_a_rebuilt_map_without_distances_or_with_other_latents_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    core, ids = zoo.made(zoo.relative()), zoo.words(1, 9)
    with monkeypatch.context() as patch, Trace(core, save=["check"]) as t:
        patch.setattr(recording, "collect_masks", lambda stack, ids, step: dict(step.mask))
        zoo.run(core, ids)
    assert max(t.check().values()) > 1e-3
    core, cache = zoo.made(zoo.mixed()), Static(3)
    with Trace(core, save=["check"]) as t:
        for part in ids.split(3, 1):
            core(part, cache=cache, mode="decode")
    assert max(t.check().values()) < 1e-5
    right = type(core.decoder.layers[0].attn).expand
    monkeypatch.setattr(type(core.decoder.layers[0].attn), "expand", lambda at, c, k: right(at, c.flip(2), k))
    assert max(t.check().values()) > 1e-3


@torch.no_grad()
def test_chosen_experts_are_stored_as_they_are() -> None:
    core, ids = zoo.made(zoo.experts()), zoo.words(2, 7)
    with Trace(core, save=["layers.1.moe.*"]) as t:
        zoo.run(core, ids)
    index, weight, logits = (t[f"layers.1.moe.{n}"] for n in ("index", "weight", "logits"))
    assert index.dtype == torch.int64
    assert index.shape == weight.shape == (2, 7, 2)
    assert logits.shape == (2, 7, 8)
    assert torch.equal(index.sort(-1).values, logits.topk(2, -1).indices.sort(-1).values)
    assert (weight - logits.softmax(-1).gather(-1, index)).abs().max() < 1e-6


def test_wrong_names_and_silence_are_errors_with_the_way_out() -> None:
    core, ids = made(lm()), words(1, 5)
    with pytest.raises(QkvError, match=r"layers\.0\.attn\.q"):
        Trace(core, save=["layers.0.atn.q"])
    with pytest.raises(QkvError, match="no tap matches"):
        Trace(core, save=["layers.7.*"])
    with Trace(core, save=["logits", "layers.0.attn.score"]) as t:
        pass
    with pytest.raises(QkvError, match="was not recorded"):
        t["logits"]
    with Trace(core, save=["logits", "layers.0.attn.score", "layers.1.attn.pattern"]) as t:
        core(ids)
    with pytest.raises(QkvError, match=r'save=\["check"\]'):
        t.check()
    with t:
        core(ids)
    with pytest.raises(QkvError, match="only while an edit"):
        t["layers.0.attn.score"]
    with pytest.raises(QkvError, match=r"save=\['embed'\]"):
        t["embed"]
    with pytest.raises(QkvError, match="2 runs"):
        t["logits"]
    assert torch.equal(t.get("logits", run=0), t.get("logits", run=1))
    with pytest.raises(QkvError, match="had no effect"), Trace(core, edit=[edit.ablate("layers.0.attn.z", pos=9)]):
        core(ids)
    for wrong in (edit.ablate("layers.0.attn.z", heads=6), edit.ablate("embed", heads=0), edit.ablate("embed", pos=-1)):
        with pytest.raises(QkvError), Trace(core, edit=[wrong]):
            core(ids)


@torch.no_grad()
def test_a_cut_edge_has_weight_zero_and_equals_a_mask_written_by_hand() -> None:
    core, ids = made(lm()), words(1, 6)
    cut = edit.cut("layers.*.attn", query=4, key=[1, 2])
    with Trace(core, save=["patterns", "layers.1.attn.v", "layers.1.attn.z"], edit=[cut]) as t:
        got = core(ids).logits
    p = t["layers.1.attn.pattern"]
    assert (p[:, :, 4, 1:3] == 0).all()
    assert (p.sum(-1) - 1).abs().max() < 1e-6
    step = build_step(core.decoder, ids)
    bias = torch.zeros(1, 1, 6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), -1e30)
    bias[..., 4, 1:3] = -1e30
    mask = {m: s._replace(bias=bias, causal=False) for m, s in step.mask.items()}
    expected = core.head(core.stack(core.embed(ids), dataclasses.replace(step, mask=mask)))
    assert (got - expected).abs().max() < 1e-5
    assert (got - core(ids).logits)[:, 4:].abs().max() > 1e-3
    assert (got - core(ids).logits)[:, :4].abs().max() < 1e-5, "earlier positions do not see the cut"
    with pytest.raises(QkvError, match="no key left"), Trace(core, edit=[edit.cut("layers.0.attn", query=0, key=0)]):
        core(ids)


@torch.no_grad()
def test_a_cut_during_cached_decoding_equals_the_cut_in_one_pass() -> None:
    core, ids = made(lm()), words(1, 6)
    cut = edit.cut("layers.*.attn", heads=[1, 5], query=[4, 5], key=2)
    with Trace(core, save=["patterns"], edit=[cut]) as whole:
        expected = core(ids).logits
    cache = Static(3)
    with Trace(core, save=["patterns"], edit=[cut]) as t:
        parts = [core(ids[:, a:b], cache=cache).logits for a, b in ((0, 4), (4, 5), (5, 6))]
    assert (torch.cat(parts, 1) - expected).abs().max() < 1e-5
    for i in range(3):
        assert (t[f"layers.{i}.attn.pattern"] - whole[f"layers.{i}.attn.pattern"]).abs().max() < 1e-6


@torch.no_grad()
def test_an_ablated_head_equals_its_slice_of_the_weights_zeroed_on_a_copy() -> None:
    core, source, target = made(seq2seq()), words(2, 6), words(2, 4, 1)
    before = {n: p.clone() for n, p in core.state_dict().items()}
    with Trace(core, edit=[edit.ablate("encoder.layers.1.attn.z", heads=2)]):
        got = translate(core, source, target)
    other = copy.deepcopy(core)
    other.encoder.layers[1].attn.out.weight[:, 16:24] = 0
    assert (got - translate(other, source, target)).abs().max() < 1e-5
    other.encoder.layers[1].attn.out.weight[:, 8:16] = 0  # a second head: this must be seen
    assert (got - translate(other, source, target)).abs().max() > 1e-4
    assert all(torch.equal(p, before[n]) for n, p in core.state_dict().items())


@torch.no_grad()
def test_put_add_scale_and_swap_change_what_they_name_and_nothing_else() -> None:
    core, ids, others = made(lm()), words(1, 5), words(1, 5, 3)
    with Trace(core, save=["layers.0.resid_out"]) as plain:
        core(ids)
    with Trace(core, save=["layers.0.resid_out", "logits"]) as donor:
        core(others)
    x, name = plain["layers.0.resid_out"], "layers.0.resid_out"
    for change, expected in (
        (edit.scale(name, 2.0, pos=3), x[:, 3] * 2), (edit.add(name, torch.ones(32), pos=3), x[:, 3] + 1),
        (edit.put(name, 7.0, pos=3), torch.full((1, 32), 7.0)),
        (edit.swap(name, donor[name], pos=3, source=1), donor[name][:, 1]),
    ):
        with Trace(core, save=[name], edit=[change]) as t:
            core(ids)
        assert torch.equal(t[name][:, 3], expected)
        assert torch.equal(t[name][:, [0, 1, 2, 4]], x[:, [0, 1, 2, 4]])
    everything = [edit.swap("layers.2.resid_out", donor_all(core, others), pos=i) for i in range(5)]
    with Trace(core, edit=everything):
        assert torch.equal(core(ids).logits, donor["logits"])


def donor_all(core: Transformer, ids: Tensor) -> Tensor:
    with Trace(core, save=["layers.2.resid_out"]) as t:
        core(ids)
    return t["layers.2.resid_out"]


@torch.no_grad()
@pytest.mark.parametrize("name", zoo.ALL)
def test_a_trace_that_stops_has_every_map_and_nothing_later_runs(name: str) -> None:
    core, ids = zoo.made(zoo.ALL[name]()), zoo.words(2, 9)
    with Trace(core, save=["patterns"]) as whole:
        zoo.run(core, ids)
    after: list[str] = []
    last = (core.decoder if core.spec.decoder else core.encoder).layers[-1]
    for part in (last.cross if last.spec.cross else last.attn).out, last.moe if last.spec.moe else last.ffn, core.head:
        part.register_forward_hook(lambda part, *_: after.append(str(part)))
    with Trace(core, save=["patterns"], stop=True) as t:
        zoo.run(core, ids)
        raise AssertionError("the block goes on")
    assert after == []
    assert active_tracer.get() is None
    for tap in whole.wanted:
        assert torch.equal(t[tap], whole[tap]), tap


def test_a_trace_that_stops_waits_for_every_position_and_every_stack() -> None:
    core = made(lm())
    with Trace(core, save=["layers.1.attn.z", "embed"], stop=True) as t:
        generate(core, [[5, 6, 7, 8]], options=DecodeOptions(5))
    assert t.run("embed").phases == ["prefill"] * 4
    with Trace(core, save=["embed@pos=5"], stop=True) as t:
        generate(core, [[5, 6, 7, 8]], options=DecodeOptions(5))
    assert t.run("embed@pos=5").phases == ["prefill"] * 4 + ["decode"] * 2
    core, source, target = made(seq2seq()), words(2, 6), words(2, 4, 1)
    with torch.no_grad(), Trace(core, save=["encoder.embed", "decoder.layers.0.cross.pattern"], stop=True) as t:
        translate(core, source, target)
    with torch.no_grad(), Trace(core, save=["patterns"]) as whole:
        translate(core, source, target)
    assert torch.equal(t["decoder.layers.0.cross.pattern"], whole["decoder.layers.0.cross.pattern"])
    with pytest.raises(QkvError, match=r"decoder\.layers\.1\.attn\.q was not saved"):
        t["decoder.layers.1.attn.q"]


@torch.no_grad()
def test_a_trace_that_stops_makes_its_edits_first() -> None:
    core, ids = made(lm()), words(1, 6)
    for change in (edit.cut("layers.2.attn", query=4, key=1), edit.scale("layers.*.attn.pattern", 0.5)):
        with Trace(core, save=["patterns"], edit=[change]) as whole:
            core(ids)
        with Trace(core, save=["patterns"], edit=[change], stop=True) as t:
            core(ids)
        assert torch.equal(t["layers.2.attn.pattern"], whole["layers.2.attn.pattern"])
    late = edit.ablate("layers.2.ffn.out")
    with Trace(core, save=["embed"], edit=[late], stop=True) as t:
        core(ids)
    assert t.met == {late}
    never = edit.ablate("layers.0.attn.z", pos=9)
    with pytest.raises(QkvError, match="had no effect"), Trace(core, save=["embed"], edit=[never], stop=True):
        core(ids)


@torch.no_grad()
def test_a_trace_that_stops_ends_its_own_block_alone(tmp_path: Path) -> None:
    core, other, ids = made(lm()), made(lm(), 1), words(1, 5)
    with Trace(core, save=["embed", "logits"]) as outer:
        for _ in range(2):  # a second pass is a second run
            with Trace(core, save=["embed"], stop=True) as inner:
                try:
                    core(ids)
                except Exception as e:  # a stop is no error, whoever stands between
                    raise AssertionError from e
        core(ids)
    assert torch.equal(inner["embed"], outer.get("embed", run=1))
    assert outer["logits"].shape == (1, 5, 53), "the last run alone came so far"
    with Trace(core, save=["layers.0.resid_out"], stop=True, to=tmp_path / "t") as outer:
        with Trace(other, save=["logits"], stop=True) as inner:
            core(ids)
        raise AssertionError("the outer one's stop ends both")
    assert inner.runs == []
    stored = trace_storage.load_trace(tmp_path / "t", core)
    assert torch.equal(stored["layers.0.resid_out"], outer["layers.0.resid_out"])
    with pytest.raises(KeyError), Trace(core, save=["embed"], stop=True):
        raise KeyError
    with Trace(core, save=["final_norm"], stop=True) as t:
        core(ids)
    with t:  # it waits anew
        core(ids)
    assert t.get("final_norm", run=1).shape == (1, 5, 32)


def test_a_trace_says_what_it_holds() -> None:
    core, ids = zoo.made(zoo.ALL["gqa"]()), zoo.words(1, 5)
    with Trace(core, save=["lens", "layers.0.attn.pattern"]) as t:
        core(ids)
    head, read, taps, readouts = repr(t).splitlines()
    assert head.startswith("Trace: causal decoder, ")
    assert f"decoder: 5 tokens, 1 calls, 1 rows: {' '.join(map(str, ids[0].tolist()))}" in read
    assert "layers.*.attn.pattern" in taps
    assert " lens," in readouts
    assert "routes" not in readouts  # there are no experts
    assert "walk" not in readouts  # not saved
