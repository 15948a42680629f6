"""Layers that run by the compiled kernels say what the core says, for few rows, and are the core's for all else."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import qkv
from qkv import hub, spec
from qkv.adapt import native, onednn_linear, quantise, row_layers, row_ops, row_products
from qkv.core.cache import Static
from qkv.core.experts import Experts
from qkv.core.model import Block
from qkv.core.norm import Norm
from qkv.core.step import Inputs
from qkv.generation.engine import Engine, Settings
from qkv.generation.pages import Paged
from qkv.generation.scheduler import Limits
from qkv.generation.sequence import DecodeOptions
from qkv.spec import Rotary

able = pytest.mark.skipif(native.library() is None, reason="no compiler, or switched off")


def build(**changes):
    """A small decoder in two copies, one of which runs by the kernels; its attention is changed."""
    attn = spec.Attention(heads=6, groups=2, head_dim=32, mask=spec.Mask("causal"), rotary=Rotary(32))
    attn = replace(attn, **changes.pop("attn", {}))
    ffn = replace(spec.Ffn(width=96, activation="silu", gated=True), **changes.pop("ffn", {}))
    norm = replace(spec.Norm("rms"), **changes.pop("norm", {}))
    after = norm if changes.pop("after", False) else None
    masks = changes.pop("masks", (attn.mask, attn.mask))  # of each block
    blocks = tuple(spec.Block(attn=replace(attn, mask=m), ffn=ffn, norm_in=norm, norm_out=after) for m in masks)
    stack = spec.Stack(width=64, blocks=blocks, final_norm=norm, context=64)
    plain = hub.build(spec.Spec(vocabulary=50, decoder=stack, head=spec.Head("untied"))).core.eval()
    with torch.no_grad():
        for p in plain.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.3)
    return plain, copy.deepcopy(plain)


def decode(core, rows, left=0):
    """The logits of three decoding steps after a prompt, whose first rows may be padded on the left."""
    draw = torch.Generator().manual_seed(1)
    ids, found = torch.randint(0, 50, (rows, 12), generator=draw), []
    real = torch.ones(rows, 9, dtype=torch.bool)
    real[0, :left] = False
    cache = Static(len(core.decoder.layers))
    with torch.inference_mode():
        core(ids[:, :9], Inputs(padding_mask=real if left else None), cache, mode="prefill")
        for at in range(9, 12):
            found.append(core(ids[:, at : at + 1], Inputs(), cache, mode="decode").logits)
    return torch.cat(found, 1)


CASES = {
    "plain": {},
    "bias": {"attn": {"bias": True, "out_bias": True}, "ffn": {"bias": True}},
    "one key head": {"attn": {"groups": 1}},
    "cap": {"attn": {"cap": 5.0}},
    "heads of 44": {"attn": {"heads": 8, "head_dim": 44}},
    "window": {"attn": {"mask": spec.Mask("causal", 4)}},
    "alibi": {"attn": {"mask": spec.Mask("causal", alibi_heads=6), "rotary": None}},
    "normed heads": {"attn": {"qk_norm": spec.Norm("rms")}},
    "pairs": {"attn": {"rotary": Rotary(16, pairs="interleaved")}},
    "offset": {"norm": {"offset": 1.0}},
    "layer norm": {"norm": {"kind": "layer"}, "attn": {"bias": True, "out_bias": True, "rotary": None}},
    "unbiased": {"norm": {"kind": "unbiased"}},
    "normed after": {"norm": {"offset": 1.0}, "after": True},
    "gelu": {"ffn": {"activation": "gelu_tanh", "gated": False}},
    "relu": {"ffn": {"activation": "relu"}},
}


@able
@pytest.mark.parametrize("name", CASES)
def test_a_step_says_what_the_core_says(name):
    plain, twin = build(**copy.deepcopy(CASES[name]))
    assert row_layers.use_rows(twin) == ({"normed heads": 15, "normed after": 15}.get(name, 11))
    for rows, left in ((1, 0), (3, 0), (3, 4)):
        want, got = decode(plain.double(), rows, left), decode(twin, rows, left)
        assert (got - want).abs().max() <= 2e-5 * want.std()


@able
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["bf16", "int8", "int4"])
def test_a_block_in_one_call_has_the_bits_of_its_parts(name, kind, monkeypatch):
    _, core = build(**copy.deepcopy(CASES[name]))
    core.to(torch.bfloat16)
    if kind == "bf16":
        onednn_linear.pack_weights(core)  # as a model that is loaded: PyTorch's own products add up otherwise
    else:
        quantise.quantise(core, kind)
    row_layers.use_rows(core)
    calls, run = [], row_layers.step_blocks
    monkeypatch.setattr(row_layers, "step_blocks", lambda *a: (calls.append((len(a[3]), len(a[2]))), run(*a))[1])
    cases = ((1, 0), (3, 0), (3, 4))
    whole = [decode(core, rows, left) for rows, left in cases]
    many = 0 if kind == "bf16" and row_products.most_rows("bf16", 1, low=True) < 3 else 6
    assert calls == [(2, 1)] * 3 + [(2, 3)] * many  # both blocks at once
    monkeypatch.setattr(row_layers, "find_keys", lambda *_: None)
    parts = [decode(core, rows, left) for rows, left in cases]
    if name == "normed heads":  # its parts are turned by PyTorch, which rounds more often
        quantise.write_out(core)
        want = [decode(core.double(), rows, left) for rows, left in cases]
        off = [sum(float((a - b).square().mean()) for a, b in zip(of, want, strict=True)) for of in (whole, parts)]
        assert off[0] <= 1.5 * off[1]
    else:
        assert all(torch.equal(got, part) for got, part in zip(whole, parts, strict=True))


@able
def test_a_block_sees_that_its_weights_are_others(monkeypatch):
    _, core = build()
    row_layers.use_rows(core)

    def check(dtype=torch.float32):
        found = decode(core, 1)
        with monkeypatch.context() as patch:
            patch.setattr(row_layers, "find_keys", lambda *_: None)
            assert (found - decode(core, 1)).abs().max() <= (2e-5 if dtype == torch.float32 else 0) * found.std()
        assert found.dtype == dtype

    first = core.decoder.layers[0]
    check()
    with torch.no_grad():
        first.ffn.up.weight.mul_(2)  # in place
    check()
    first.attn.q.weight.data = first.attn.q.weight.data * 2  # at another address
    check()
    first.attn.k.weight = torch.nn.Parameter(torch.randn(64, 64), requires_grad=False)  # another parameter
    check()
    first.attn.v = torch.nn.Linear(64, 64)  # another layer
    check()
    quantise.quantise(core, "int8")
    check()
    core.to(torch.bfloat16)
    check(torch.bfloat16)
    decode(core, 2)
    ways = {key for block in core.decoder.layers for key in block.prepared}
    assert (2, torch.bfloat16) in ways  # both blocks, of any number of rows
    assert {dtype for _, dtype in ways} == {torch.bfloat16}  # nothing of before is kept
    assert torch.equal(decode(copy.deepcopy(core), 1), decode(core, 1))


@able
def test_threads_wait_for_one_another_between_blocks():
    _, core = build(masks=(spec.Mask("causal"),) * 12, ffn={"width": 1536})
    row_layers.use_rows(core)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)  # of the prompt as well: its last bits depend on how many there are
        whole = [decode(core, 3) for _ in range(10)]
        core.decoder.layers[0].register_forward_hook(lambda *_: None)  # now each block is a call
        want = decode(core, 3)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(got, want) for got in whole)


@able
def test_hooks_of_blocks_get_what_each_block_reads_and_gives(monkeypatch):
    _, core = build()
    row_layers.use_rows(core)
    want = decode(core, 1)
    seen, calls, run = [], [], row_layers.step_blocks
    monkeypatch.setattr(row_layers, "step_blocks", lambda *a: (calls.append(len(a[3])), run(*a))[1])
    core.decoder.layers[0].register_forward_hook(lambda module, given, out: seen.append((given[0], out)))
    core.decoder.layers[1].register_forward_hook(lambda module, given, out: seen.append((given[0], out)))
    assert torch.equal(decode(core, 1), want)
    assert calls == [1] * 6
    assert all(torch.equal(seen[n][1], seen[n + 1][0]) for n in range(0, 8, 2))
    assert not any(torch.equal(given, out) for given, out in seen)


@able
@pytest.mark.parametrize("change", ["one fewer", "another order", "a plain one"])
def test_blocks_are_those_that_are_registered_now(change):
    plain, twin = build(masks=(spec.Mask("causal"),) * 3)
    with torch.no_grad():
        plain.decoder.layers[1].ffn.up.weight.mul_(-1.5)
        twin.load_state_dict(plain.state_dict())
    row_layers.use_rows(twin)
    decode(twin, 1)
    for core in (plain, twin):
        layers = core.decoder.layers
        if change == "one fewer":
            layers[1] = torch.nn.Identity()
            layers[1].forward = lambda x, step: x
        elif change == "another order":
            layers[1], layers[2] = layers[2], layers[1]
        else:
            layers[1].__class__ = Block
    want = decode(plain.double(), 1)
    assert (decode(twin, 1) - want).abs().max() <= 2e-5 * want.std()


@able
def test_the_states_of_a_stack_carry_no_mark():
    _, core = build()
    row_layers.use_rows(core)
    core.decoder.final_norm = torch.nn.Identity()  # or it would be another tensor in any case
    with torch.inference_mode():
        cache = Static(2)
        core(torch.tensor([[3]]), Inputs(), cache, mode="decode")
        x = core.hidden(torch.tensor([[4]]), Inputs(), cache, mode="decode")
    assert not hasattr(x, row_layers.DONE)


@able
def test_the_kernels_are_what_runs(monkeypatch):
    plain, twin = build()
    row_layers.use_rows(twin)
    monkeypatch.setattr(row_layers, "find_keys", lambda *_: None)  # else a block is one call
    calls = []

    def count(name, run):
        return lambda *a, **k: (calls.append(name), run(*a, **k))[1]

    for name in ("norm", "rotate", "gate", "attend"):
        monkeypatch.setattr(row_ops, name, count(name, getattr(row_ops, name)))
    decode(plain, 2)
    assert not calls
    decode(twin, 2)
    assert {name: calls.count(name) for name in ("rotate", "attend", "gate")} == dict.fromkeys(
        ("rotate", "attend", "gate"), 6)


@able
@pytest.mark.parametrize("kind", ["bf16", "int8", "int4"])
def test_in_few_bits_they_are_no_further_from_the_truth(kind):
    plain, twin = build()
    for core in (plain, twin):
        core.to(torch.bfloat16)
        if kind != "bf16":
            quantise.quantise(core, kind)
    row_layers.use_rows(twin)
    exact = copy.deepcopy(plain)
    quantise.write_out(exact)
    want = decode(exact.double(), 2)
    ours, open_ = ((decode(core, 2) - want).square().mean().sqrt() for core in (twin, plain))
    assert ours <= 1.25 * open_


@able
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("fault", ["", "turn"])
def test_prompts_in_bf16_are_no_further_from_the_truth(name, fault, monkeypatch):
    plain, twin = (core.to(torch.bfloat16) for core in build(**copy.deepcopy(CASES[name])))
    row_layers.use_rows(twin)
    ids = torch.randint(0, 50, (3, 9), generator=torch.Generator().manual_seed(1))
    real = torch.arange(9) >= torch.tensor([[0], [4], [2]])
    if fault:  # every row turned by the first one's angles
        turn = row_ops.rotate
        monkeypatch.setattr(row_ops, "rotate", lambda found, x, heads, size, by, **k: turn(
            found, x, heads, size, tuple(t[:1].roll(1, 2) for t in by), **k))
    with torch.inference_mode():
        want, ours, open_ = (core(ids, Inputs(padding_mask=real), mode="prefill").logits[real]
                             for core in (copy.deepcopy(plain).double(), twin, plain))
    turned = fault and CASES[name].get("attn", {}).keys().isdisjoint(("rotary", "qk_norm"))
    room = 1.25 * (open_ - want).square().mean().sqrt()
    assert ((ours - want).square().mean().sqrt() > room) == bool(turned or (fault and name == "pairs"))


@able
def test_a_row_says_the_same_in_any_company():
    _, core = build()
    quantise.quantise(core, "int8")
    row_layers.use_rows(core)
    ids = torch.randint(0, 50, (5, 1), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        both = core.hidden(ids, Inputs(), Static(2), mode="decode")
        alone = [core.hidden(ids[i : i + 1], Inputs(), Static(2), mode="decode") for i in range(5)]
    assert torch.equal(both, torch.cat(alone))


def test_who_listens_or_learns_gets_the_core():
    model = qkv.load("demo-lm", device="cpu")
    ids = torch.tensor([model.ids("The cat")[:1]])
    with model.trace(save=["layers.*.attn.q", "layers.0.ffn.act"]) as trace:
        model(ids)
    assert trace["layers.0.ffn.act"].shape[-1] == model.spec.decoder.blocks[0].ffn.width
    model(ids).logits.sum().backward()
    assert all(p.grad is not None for p in model.core.parameters())
    assert list(model.core.state_dict()) == list(hub.build(model.spec).core.state_dict())


@able
@pytest.mark.parametrize("window", [None, 7])
def test_rows_in_pages_are_read_in_one_pass(window):
    draw = torch.Generator().manual_seed(0)
    k, v = torch.randn(64, 2, 32, generator=draw), torch.randn(64, 2, 48, generator=draw)
    q = torch.randn(3, 6, 1, 32, generator=draw)
    places = [5, torch.randperm(64, generator=draw)[:20], 40]
    lengths = [17, 20, 1]
    begins = [max(0, n - window) if window else 0 for n in lengths]
    where = [p + b if isinstance(p, int) else p[b:] for p, b in zip(places, begins, strict=True)]
    counts = [n - b for n, b in zip(lengths, begins, strict=True)]
    got = row_ops.attend_pages(native.library(), q, k, v, where, counts, scale=0.3)
    for r in range(3):
        slots = torch.arange(lengths[r]) + places[r] if isinstance(places[r], int) else places[r][: lengths[r]]
        keys, values = (t[slots[begins[r] :]].double().transpose(0, 1).repeat_interleave(3, 0) for t in (k, v))
        want = (q[r].double() @ keys.mT * 0.3).softmax(-1) @ values
        assert (got[r] - want.flatten()).abs().max() <= 1e-5


@able
@pytest.mark.parametrize("windows", [(None, None), (None, 4), (4, 3)])
def test_an_engine_of_many_rows_reads_its_pages_so(windows, monkeypatch):
    core, twin = build(masks=tuple(spec.Mask("causal", window) for window in windows))
    row_layers.use_rows(twin)
    calls, real, whole, run = [], row_ops.attend_pages, [], row_layers.step_blocks
    monkeypatch.setattr(row_ops, "attend_pages", lambda *a, **k: (calls.append(1), real(*a, **k))[1])
    monkeypatch.setattr(row_layers, "step_blocks", lambda *a: (whole.append(len(a[2])), run(*a))[1])
    texts = []
    for one, by_parts in ((core.double(), False), (twin, False), (twin, True)):
        if by_parts:
            assert 5 in whole
            assert len(calls) == 2  # of each block in the first pass, before there are pages to write to
            calls.clear()
            monkeypatch.setattr(row_layers, "find_keys", lambda *_: None)
        engine = Engine(one, Settings(tokens=256, page_size=4))
        handles = [engine.submit([3, 1, 4, n], DecodeOptions(8)) for n in range(5)]
        texts.append([handle.result().tokens for handle in handles])
    assert texts[0] == texts[1] == texts[2]
    assert calls


@able
@pytest.mark.parametrize("windows", [(None, None), (4, 3)])
@pytest.mark.parametrize("fault", ["", "a key too few"])
def test_a_few_tokens_of_a_prompt_are_rows_among_those_that_write(windows, fault, monkeypatch):
    core, twin = build(masks=tuple(spec.Mask("causal", window) for window in windows))
    row_layers.use_rows(twin)
    rows, run, find = [], row_layers.step_blocks, Paged.find_read
    monkeypatch.setattr(row_layers, "step_blocks", lambda *a: (rows.append(len(a[2])), run(*a))[1])

    def misread(self, window):
        places, lengths = find(self, window)
        return places, [max(1, n - 1) for n in lengths] if fault else lengths

    monkeypatch.setattr(Paged, "find_read", misread)
    texts, logprobs = [], []
    for one in (core.double(), twin):
        engine = Engine(one, Settings(tokens=256, page_size=4, limits=Limits(beside=5)))
        handles = [engine.submit([3, 1, 4], DecodeOptions(12)), engine.submit([2, 7, 1], DecodeOptions(12))]
        engine.step()
        handles.append(engine.submit([(7 * n) % 50 for n in range(33)], DecodeOptions(4)))
        found = [handle.result() for handle in handles]
        texts.append([one.tokens for one in found])
        logprobs += [torch.tensor([p for one in found for p in one.logprobs])]
    assert 7 in rows
    assert (texts[0] == texts[1] and (logprobs[0] - logprobs[1]).abs().max() < 1e-4) != bool(fault)


@able
@pytest.mark.parametrize("kind", ["layer", "unbiased", "rms"])
@pytest.mark.parametrize("shape", [(64,), (1, 64), (3, 64), (2, 1, 64), (2, 3, 64)])
def test_a_norm_takes_states_of_any_shape(kind, shape):
    norm = Norm(spec.Norm(kind), 64, "norm").double().requires_grad_(False)
    torch.nn.init.normal_(norm.weight, generator=torch.Generator().manual_seed(0))
    twin, x = copy.deepcopy(norm).float(), torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    assert row_layers.use_rows(torch.nn.Sequential(twin)) == 1
    assert (twin(x) - norm(x.double())).abs().max() <= 1e-5


ROWS = ((1, 1), (2, 1), (2, 3))  # sources, beams
PLACES = {"sum": "norm_sum", "before": "norm_in", "before and after": "norm_in norm_out"}


def build_translator(place):
    """A small encoder-decoder whose blocks have their norms in a place."""
    own = spec.Attention(heads=4, groups=4, head_dim=32, mask=spec.Mask("causal"), bias=True)
    read, norms = replace(own, head_dim=40, mask=spec.Mask("memory"), out_bias=True), PLACES[place].split()
    block = spec.Block(
        attn=own, cross=read, ffn=spec.Ffn(width=96, activation="relu", gated=False), norm_in=None,
    )  # fmt: skip
    block = replace(block, **dict.fromkeys(norms, spec.Norm("layer")))
    first = replace(block, attn=replace(own, mask=spec.Mask("full")), cross=None)
    encoder, decoder = (spec.Stack(width=64, blocks=(one,) * 3, context=64) for one in (first, block))
    whole = spec.Spec(vocabulary=50, encoder=encoder, decoder=decoder, head=spec.Head("untied"))
    core = hub.build(whole).core.eval()
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in core.parameters():
            p.copy_(torch.randn(p.shape, generator=draw) * 0.2)
    return core


def translate_step_by_step(core, sources, beams):
    """The logits of four tokens of each beam of some sources, the last of which is padded."""
    draw = torch.Generator().manual_seed(4)
    source, real = torch.randint(0, 50, (sources, 11), generator=draw), torch.ones(sources, 11, dtype=torch.bool)
    real[-1, 7:] = False
    ids = torch.randint(0, 50, (sources * beams, 4), generator=draw)
    with torch.inference_mode():
        memory = core.encode(source, Inputs(padding_mask=real))
        given, cache = Inputs(memory=memory, source_padding_mask=real), Static(3)
        return torch.cat([core(ids[:, at : at + 1], given, cache, mode="decode").logits for at in range(4)], 1)


@able
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("sources", "beams"), ROWS)
@pytest.mark.parametrize("way", ["blocks", "parts"])
def test_a_step_reads_its_source_as_the_core_does(sources, beams, place, way, monkeypatch):
    plain = build_translator(place)
    twin, calls, attend, run = copy.deepcopy(plain), [], row_ops.attend, row_layers.step_blocks
    row_layers.use_rows(twin)
    monkeypatch.setattr(row_ops, "attend", lambda found, q, k, *a, **b: (calls.append((len(q), len(k))),
                                                                         attend(found, q, k, *a, **b))[1])  # fmt: skip
    monkeypatch.setattr(row_layers, "step_blocks", lambda *a: (calls.append(len(a[3])), run(*a))[1])
    if way == "parts":
        monkeypatch.setattr(row_layers, "find_memory", lambda *_: None)
    want, got = (translate_step_by_step(core, sources, beams) for core in (plain.double(), twin))
    by_part = 4 if way == "parts" else 1  # steps: in the first one the source's keys are not there yet
    own = int(beams == 1)  # attention to the text then has as many keys
    # by our own kernel, in each of three layers
    assert calls.count((sources * beams, sources)) == 3 * by_part * (1 + own)
    assert calls.count(3) == 4 - by_part
    assert (got - want).abs().max() <= 2e-5 * want.std()


@able
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_blocks_that_read_a_source_have_the_bits_of_their_parts(place, kind, monkeypatch):
    core = build_translator(place).to(torch.bfloat16)
    if kind != "bf16":
        quantise.quantise(core, kind)
    onednn_linear.pack_weights(core)  # or PyTorch multiplies what the block does not, and adds up in its own order
    row_layers.use_rows(core)
    calls, run = [], row_layers.step_blocks
    monkeypatch.setattr(row_layers, "step_blocks", lambda *a: (calls.append(len(a[3])), run(*a))[1])
    whole = [translate_step_by_step(core, *rows) for rows in ROWS]
    alone = kind == "bf16" and row_products.most_rows("bf16", 1, low=True) < 2  # one row at a time
    assert calls == [3] * (3 if alone else 9)
    monkeypatch.setattr(row_layers, "find_memory", lambda *_: None)
    parts = [translate_step_by_step(core, *rows) for rows in ROWS]
    assert all(torch.equal(got, part) for got, part in zip(whole, parts, strict=True))


@able
@pytest.mark.parametrize("tokens", [1, 3, 50])
def test_experts_in_bf16_say_what_the_core_says(tokens, monkeypatch):
    monkeypatch.setattr(row_products, "lacks_bf16_products", lambda: True)
    s = spec.Experts(num_experts=4, top_k=2, expert=spec.Ffn(width=96, activation="silu", gated=True))
    draw = torch.Generator().manual_seed(4)
    torch.manual_seed(4)
    plain, calls, run = Experts(s, 64, "moe").to(torch.bfloat16), [], row_products.multiply
    monkeypatch.setattr(row_products, "multiply", lambda *a: (calls.append(len(a[1])), run(*a))[1])
    x = torch.randn(1, tokens, 64, generator=draw).to(torch.bfloat16)
    ids = plain.router(x).topk(2).indices[0]
    weight = torch.rand(tokens, 2, generator=draw)
    twin, step = copy.deepcopy(plain), SimpleNamespace(drop=lambda x, p: x)
    assert row_layers.use_rows(twin) == 1
    with torch.inference_mode():
        want = copy.deepcopy(plain).double().dispatch(x[0].double(), ids, weight.double(), step)
        off = [(core.dispatch(x[0], ids, weight, step).double() - want).square().mean() for core in (plain, twin)]
    assert off[1] <= 1.5 * off[0]
    assert calls or tokens == 50


@pytest.mark.skipif(native.library() is None, reason="no compiler, or switched off")
@pytest.mark.parametrize(("name", "kind"), [("linear_int8", "int8"), ("linear_int4", "Q4_0"), ("linear_bf16", "bf16")])
def test_it_is_said_which_kernels_multiply_any_number_of_rows(name, kind):
    many = row_products.most_rows(kind, row_products.SMALL + 1, low=True) == row_products.EVERY
    assert ("any number" in row_layers.name_kernels()[name]) == many
