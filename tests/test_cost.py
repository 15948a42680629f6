"""Costs against published numbers, torch's own FLOP counter, a real cache and a real backward pass."""

import dataclasses
import time

import pytest
import torch
from support import zoo
from support.reasons import find_reasons
from torch.utils.flop_counter import FlopCounterMode

from qkv import cost
from qkv.core import attention, kernels
from qkv.core.cache import Static
from qkv.core.masks import MaskContext
from qkv.core.model import build_step
from qkv.core.step import Inputs
from qkv.cost import count, report, shapes
from qkv.errors import QkvError
from qkv.spec import Attention, Block, Experts, Ffn, Head, Latent, Mask, Norm, Rotary, Spec, Stack, Table


def gpt2() -> Spec:
    """124M of Radford et al. 2019: vocabulary 50257, context 1024, 12 layers of 768, biases everywhere, tied."""
    attn = Attention(12, 12, 64, Mask("causal"), True, True)
    block = Block(attn, Ffn(3072, "gelu_tanh", bias=True), norm_in=Norm())
    return Spec(50257, Stack(768, (block,) * 12, Table("learned", 1024), final_norm=Norm()))


def llama() -> Spec:
    """7B of Touvron et al. 2023: vocabulary 32000, 32 layers of 4096, ffn 11008, 32 heads, no bias, untied."""
    attn = Attention(32, 32, 128, Mask("causal"), rotary=Rotary(128))
    block = Block(attn, Ffn(11008, "silu", gated=True), norm_in=Norm("rms", 1e-6))
    stack = Stack(4096, (block,) * 32, final_norm=Norm("rms", 1e-6), context=2048)
    return Spec(32000, stack, head=Head("untied"))


def test_parameters_are_the_published_ones() -> None:
    assert count(gpt2()).parameters == 124_439_808
    start = time.monotonic()
    assert count(llama()).parameters == 6_738_415_616
    assert time.monotonic() - start < 20


def test_parts_add_up_and_a_tied_head_is_free() -> None:
    for make in zoo.ALL.values():
        core, found = zoo.made(make()), count(make())
        assert found.parameters == sum(p.numel() for p in core.parameters()) == sum(found.by_part.values())
        assert shapes(make()) == {n: tuple(p.shape) for n, p in core.named_parameters()}
    assert count(gpt2()).by_part["head"] == 0
    assert count(llama()).by_part["head"] == 32000 * 4096
    assert count(llama()).by_part["norms"] == 65 * 4096


def test_bytes_of_weights_and_cache() -> None:
    assert count(llama()).weight_bytes("bf16") == 2 * 6_738_415_616
    assert count(llama()).kv_bytes_per_token("bf16") == 2 * 2 * 32 * 4096  # half a megabyte, as is well known
    with pytest.raises(QkvError, match=r"'bf15'.*did you mean 'bf16'"):
        count(gpt2()).weight_bytes("bf15")


def test_parameters_at_work_are_those_that_a_token_moves() -> None:
    """Of one token, the gradients of exactly the active parameters are there (embeddings count whole)."""
    for name in ("experts", "mixed"):
        core, found = zoo.made(zoo.ALL[name]()), count(zoo.ALL[name]())
        zoo.run(core, zoo.words(1, 1)).square().sum().backward()
        idle = sum(int((p.grad.flatten(1) == 0).all(1).sum()) * p[0].numel() for n, p in core.named_parameters()
                   if ".moe." in n and p.dim() == 3 and p.grad is not None)  # fmt: skip
        assert found.parameters - idle == found.active_parameters < found.parameters
    assert count(zoo.gqa()).active_parameters == count(zoo.gqa()).parameters


def test_stored_numbers_are_those_of_the_state_dict() -> None:
    for name in ("mixed", "experts", "relative"):  # none of them tied; the router's bias is not a parameter
        core, found = zoo.made(zoo.ALL[name]()), count(zoo.ALL[name]())
        tied = core.embed.weight.numel() if core.spec.head and core.spec.head.kind == "tied" else 0
        assert sum(t.numel() for t in core.state_dict().values()) - tied == found.stored
    assert count(zoo.mixed()).stored - count(zoo.mixed()).parameters == 2 * 8


def deepseek() -> Spec:
    """V3 of DeepSeek-AI 2024, section 4.2: 61 layers of 7168, the first three dense, 8 of 256 experts and a shared."""
    rms = Norm("rms", 1e-6)
    attn = Latent(128, 1536, 512, 128, 128, Mask("causal"), Rotary(64, pairs="interleaved"), rms)
    moe = Experts(
        256, 8, Ffn(2048, "silu", gated=True), "sigmoid", scale=2.5, balance="bias", groups=8, topk_groups=4,
        group_score="best two", shared=Ffn(2048, "silu", gated=True),
    )  # fmt: skip
    dense, sparse = Block(attn, Ffn(18432, "silu", gated=True), norm_in=rms), Block(attn, None, norm_in=rms, moe=moe)
    return Spec(129280, Stack(7168, (dense,) * 3 + (sparse,) * 58, final_norm=rms), head=Head("untied"))


def test_the_published_numbers_of_a_latent_mixture_of_experts() -> None:
    found = count(deepseek())
    assert found.parameters == 671_026_404_352
    assert found.stored - found.parameters == 14_848
    assert 36e9 < found.active_parameters < 38e9  # "37B activated for each token"
    assert found.kv_per_token == 61 * (512 + 64)
    flops = found.flops_per_token(4096)
    matrices = 2 * (found.active_parameters - found.by_part["embedding"] - found.by_part["norms"])
    assert flops.decode == matrices + 61 * 4 * 128 * 576 * 4097
    assert flops.prefill == matrices + 61 * (2 * 128 * 320 * 4097 * 4096 // 2 // 4096)


@pytest.mark.parametrize("name", ["gqa", "seq2seq", "parallel", "relative", "latent", "mixed", "stretched"])
def test_cache_bytes_are_those_of_a_real_cache(name: str) -> None:
    core, found = zoo.made(zoo.ALL[name]()), count(zoo.ALL[name]())
    cache = Static(6)
    zoo.run(core, zoo.words(1, 9), cache=cache, mode="prefill")  # with a source of seven words
    assert cache.bytes == 9 * found.kv_bytes_per_token("fp32") + 7 * 4 * found.memory_per_token


def counted(spec: Spec, tokens: int, past: int = 0) -> int:
    """FLOPs of one row by torch's counter, with the maths in the open (the whole square, masked or not).

    With a `past`, those of the tokens after it, the encoder's not.
    """
    core, cache = zoo.made(spec).requires_grad_(False), Static(6) if past else None
    ids = zoo.words(1, past + tokens)

    def step(stack: object, ids: torch.Tensor, given: Inputs | None = None, mode: str = "prefill") -> object:
        made = build_step(stack, ids, given, cache=cache, mode=mode)  # type: ignore[arg-type]
        return dataclasses.replace(made, attend=attention.attend)

    def logits(ids: torch.Tensor, step: object) -> None:
        states = core.stack(core.embed(ids), step)  # type: ignore[arg-type]
        if spec.head:
            core.head(states)

    with FlopCounterMode(display=False) as counter:
        given = Inputs()
        if spec.encoder and spec.decoder:
            source = ids[:, : past or tokens]
            open_maths = dataclasses.replace(build_step(core.encoder, source), attend=attention.attend)
            table = core.source_embed if spec.sources else core.embed
            given = Inputs(memory=core.encoder(table(source), open_maths))
        stack = core.stack
        if past:
            logits(ids[:, :past], step(stack, ids[:, :past], given))
            before = counter.get_total_flops()
            logits(ids[:, past:], step(stack, ids[:, past:], given, "decode"))
            return counter.get_total_flops() - before
        logits(ids, step(stack, ids, given))
    return counter.get_total_flops()


MODELS = [n for n in zoo.ALL if n != "dropout"]


@pytest.mark.parametrize("name", MODELS)
def test_flops_are_those_that_torch_counts(name: str) -> None:
    spec, tokens = zoo.ALL[name](), 16
    unseen = 0  # cells of the square that the mask hides: torch multiplies them, a reader of the mask need not
    for stack in (spec.encoder, spec.decoder):
        for block in stack.blocks if stack else ():
            mask, at = block.attn.mask, block.attn
            window = mask.window or 99
            cells = [(i, j) for i in range(16) for j in range(16)]
            hidden = sum((j > i and mask.kind != "full") or abs(i - j) >= window for i, j in cells)
            pair = 4 * at.heads * at.head_dim if isinstance(at, Attention) else 2 * at.heads * (
                at.nope_head_dim + at.rotary.dim + at.value_dim)  # fmt: skip
            unseen += hidden * pair
    found = count(spec).flops_per_token(tokens).prefill * tokens
    assert abs(counted(spec, tokens) - unseen - found) <= tokens * len(spec.stack.blocks)  # whole numbers are cut


@pytest.mark.parametrize("name", [n for n in MODELS if zoo.ALL[n]().decoder and n != "window"])
def test_the_flops_of_a_decoded_token_are_those_that_torch_counts(name: str) -> None:
    spec = zoo.ALL[name]()
    assert counted(spec, 1, past=15) == count(spec).flops_per_token(15).decode


@pytest.mark.parametrize("kind", ["causal", "full", "prefix"])
@pytest.mark.parametrize("window", [None, 1, 3, 99])
def test_keys_and_pairs_are_what_the_mask_shows(kind: str, window: int | None) -> None:
    slots = torch.arange(7)
    rule = Mask(kind, window)  # type: ignore[arg-type]
    shown = find_reasons(rule, MaskContext(slots, slots))[0] == 0
    assert [cost.keys(rule, q, 7) for q in range(7)] == shown.sum(1).tolist()
    assert cost.pairs(rule, 7) == int(shown.sum())


def test_decoding_reads_the_whole_past_and_no_source_again() -> None:
    flops = count(llama()).flops_per_token(2048)
    matrices = 2 * (6_738_415_616 - 32000 * 4096 - 65 * 4096)
    assert flops.decode == matrices + 32 * 4 * 4096 * 2049
    s2s = count(zoo.seq2seq()).flops_per_token(16)
    assert s2s.decode < s2s.prefill


@pytest.mark.parametrize("name", ["gqa", "learned", "seq2seq", "encoder", "experts", "mixed", "relative", "cloze"])
def test_activations_are_what_a_real_backward_pass_keeps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "attend", kernels.sdpa)
    spec, tokens = zoo.ALL[name](), 32
    core, kept = zoo.made(spec), {}
    weights = {p.untyped_storage().data_ptr() for p in core.parameters()}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights and x.is_floating_point():
            kept[storage.data_ptr()] = (storage.nbytes(), x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        source = zoo.words(1, tokens)
        given = Inputs()
        if spec.encoder and spec.decoder:
            given = Inputs(memory=core.encode(source))
        core.hidden(source, given)
    real = sum(n for n, _ in kept.values()) / tokens
    found = count(spec).activation_bytes_per_token(tokens)
    if name in ("gqa", "relative"):  # PyTorch on a CPU copies shared heads, and keeps patterns where the bias is learnt
        assert 0.8 * real < found < real
    else:
        assert found == pytest.approx(real, rel=0.05)


def test_the_report_is_plain_integers() -> None:
    found = report(gpt2(), dtype="bf16")
    for key in ("parameters", "active_parameters", "stored", "kv_bytes_per_token", "weight_bytes", "flops_per_token"):
        assert isinstance(found[key], int)
        assert found[key] > 0  # type: ignore[operator]
    assert found["context"] == 1024
    assert "note" not in found
    assert next(iter(report(gpt2(), note="Nobody knows.").items())) == ("note", "Nobody knows.")


def test_a_head_that_is_counted_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.core.model.Transformer.tie", lambda self: None)
    assert count(gpt2()).parameters != 124_439_808
