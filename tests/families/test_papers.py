"""Families without a peer to compare with: slow references in plain PyTorch, written from the papers' own text."""

import math
from dataclasses import replace

import pytest
import torch
from support import alone

from qkv import cost, hub
from qkv.core.cache import Static
from qkv.core.model import Transformer
from qkv.families import Config, gpt3, gpt4, palm
from qkv.spec import Mask

SHAPE = {"n_layers": 4, "d_model": 48, "n_heads": 3, "d_head": 32, "vocab_size": 61, "n_ctx": 32}
DRAWN = {
    "gpt3": (gpt3, SHAPE | {"band": 3}),
    "palm": (palm, SHAPE),
    "gpt4": (gpt4, SHAPE | {"experts": 5, "chosen": 2}),
}


def core_of(name, seed=0):
    """A small model of a family with every weight off its first value."""
    module, config = DRAWN[name]
    torch.manual_seed(seed)
    core = Transformer(module.spec(Config(config, name))).eval()
    with torch.no_grad():
        for p in core.parameters():
            p.copy_(torch.randn_like(p) * 0.2 + (1.0 if p.ndim == 1 else 0.0))
        if name == "palm":
            core.embed.weight.mul_(20.0)
    return core


def ids_of(seed=0):
    return torch.randint(0, 61, (2, 11), generator=torch.Generator().manual_seed(seed))


def logits_of(core, ids):
    with torch.no_grad():
        return core(ids).logits


def layer_norm(x, w, name):
    """(x - mean) / sqrt(variance + eps) * weight, and a bias where there is one (Ba et al. 2016)."""
    eps = 1e-5 if f"{name}.bias" in w else 1e-6
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + eps).sqrt()
    return x * w[f"{name}.weight"] + w.get(f"{name}.bias", 0.0)


def linear(x, w, name):
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


def attention(x, w, name, first, turn=lambda x, t: x):
    """Position t looks at first(t)…t, head by head; heads share a key/value head where there is only one."""
    dim = 32
    q, k, v = (linear(x, w, f"{name}.{part}") for part in "qkv")
    rows = []
    for t in range(len(x)):
        heads = []
        for h in range(q.shape[-1] // dim):
            own = slice(h * dim, (h + 1) * dim) if k.shape[-1] > dim else slice(0, dim)
            asked = turn(q[t, h * dim : (h + 1) * dim], t)
            scores = [torch.dot(asked, turn(k[s, own], s)) / math.sqrt(dim) for s in range(first(t), t + 1)]
            pattern = torch.stack(scores).softmax(0)
            heads.append(pattern @ v[first(t) : t + 1, own])
        rows.append(torch.cat(heads))
    return linear(torch.stack(rows), w, f"{name}.out")


def gelu(x):
    """The approximation that GPT-2 computes with (Hendrycks & Gimpel 2016, section 2)."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def by_gpt3(w, ids, first):
    """GPT-2's architecture with "alternating dense and locally banded sparse attention patterns" (section 2.1)."""
    x = w["embed.weight"][ids] + w["decoder.positions.weight"][: len(ids)]
    for i in range(4):
        at = f"decoder.layers.{i}"
        x = x + attention(layer_norm(x, w, f"{at}.attn_in"), w, f"{at}.attn", lambda t, i=i: first(i, t))
        x = x + feed_forward(layer_norm(x, w, f"{at}.ffn_in"), w, at)
    return layer_norm(x, w, "decoder.final_norm") @ w["embed.weight"].T


def feed_forward(x, w, at):
    """One network, or for each token the two experts that its router prefers, weighted by a softmax over the two."""
    if f"{at}.moe.router.weight" not in w:
        return linear(gelu(linear(x, w, f"{at}.ffn.up")), w, f"{at}.ffn.down")
    rows = []
    for token in x:
        score = token @ w[f"{at}.moe.router.weight"].T
        best = score.argsort(descending=True)[:2]
        said = [w[f"{at}.moe.down.weight"][e] @ gelu(w[f"{at}.moe.up.weight"][e] @ token) for e in best]
        rows.append(score[best].softmax(0) @ torch.stack(said))
    return torch.stack(rows)


def by_palm(w, ids):
    """y = x + MLP(LayerNorm(x)) + Attention(LayerNorm(x)), SwiGLU, one key/value head, logits divided by sqrt(D)."""

    def turn(x, t):  # pairs of neighbours as complex numbers, turned by t * base^(-2i/d) (Su et al. 2021, eq. 15)
        angle = t * 10_000.0 ** (-torch.arange(0, 32, 2) / 32)
        pairs = torch.view_as_complex(x.reshape(16, 2)) * torch.polar(torch.ones(16), angle)
        return torch.view_as_real(pairs).flatten()

    x = w["embed.weight"][ids]
    for i in range(4):
        at = f"decoder.layers.{i}"
        h = layer_norm(x, w, f"{at}.ffn_in")
        gate = linear(h, w, f"{at}.ffn.gate")
        mlp = linear(gate * torch.sigmoid(gate) * linear(h, w, f"{at}.ffn.up"), w, f"{at}.ffn.down")
        x = x + mlp + attention(layer_norm(x, w, f"{at}.attn_in"), w, f"{at}.attn", lambda t: 0, turn)
    return layer_norm(x, w, "decoder.final_norm") @ w["embed.weight"].T / math.sqrt(x.shape[-1])


def reference(name, core, ids):
    w = {n: p.detach() for n, p in core.named_parameters()}
    one = {
        "gpt3": lambda row: by_gpt3(w, row, lambda i, t: max(0, t - 2) if i % 2 else 0),
        "gpt4": lambda row: by_gpt3(w, row, lambda i, t: 0),
        "palm": lambda row: by_palm(w, row),
    }[name]
    return torch.stack([one(row) for row in ids])


every = pytest.mark.parametrize("name", DRAWN)


@every
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_logits_equal_the_papers_own_words(name, seed, record):
    core, ids = core_of(name, seed), ids_of(seed)
    want = reference(name, core, ids)
    assert want.std() >= 1
    off, bound = (logits_of(core, ids) - want).abs().max().item(), 1e-5 * max(1.0, want.std().item())
    assert off <= bound
    record(name, "difference", off)
    record(name, "share_of_bound", off / bound)


@every
def test_it_writes_learns_is_traced_shown_and_counted(name, record):
    alone.everything(name, core_of(name), ids_of(), None, record)


@every
def test_cached_in_chunks_equals_the_paper(name, record):
    core, ids = core_of(name), ids_of()
    want, cache, parts = reference(name, core, ids), Static(4, capacity=2), []
    with torch.no_grad():
        for a, b in ((0, 3), (3, 8), (8, 9), (9, 11)):
            parts.append(core(ids[:, a:b], cache=cache, mode="decode" if a else "prefill").logits)
    off = (torch.cat(parts, 1) - want).abs().max().item()
    assert off <= 1e-5 * max(1.0, want.std().item())
    record(name, "cached", off)


def test_a_band_of_another_width_or_in_other_layers_shows():
    core, ids = core_of("gpt3"), ids_of()
    want = reference("gpt3", core, ids)
    for change in ({"band": 4}, {"band": 100}):
        other = Transformer(gpt3.spec(Config(DRAWN["gpt3"][1] | change, "fault")))
        other.load_state_dict(core.state_dict())
        assert (logits_of(other, ids) - want).abs().max() > 1e-2
    blocks = core.spec.decoder.blocks
    swapped = Transformer(replace(core.spec, decoder=replace(core.spec.decoder, blocks=blocks[1:] + blocks[:1])))
    swapped.load_state_dict(core.state_dict())
    assert (logits_of(swapped, ids) - want).abs().max() > 1e-2


@pytest.mark.parametrize("fault", [{"residual": "serial"}, {"kind": "rms"}, {"pairs": "half"}, {"scale": 1.0}])
def test_a_block_that_is_not_the_papers_shows(fault):
    core, ids = core_of("palm"), ids_of()
    s, block = core.spec, core.spec.decoder.blocks[0]
    if "residual" in fault:
        block = replace(block, **fault)
    elif "kind" in fault:
        block = replace(block, norm_in=replace(block.norm_in, **fault))
    elif "pairs" in fault:
        block = replace(block, attn=replace(block.attn, rotary=replace(block.attn.rotary, **fault)))
    head = replace(s.head, **fault) if "scale" in fault else s.head
    other = Transformer(replace(s, head=head, decoder=replace(s.decoder, blocks=(block,) * 4)))
    other.load_state_dict(core.state_dict())
    assert (logits_of(other, ids) - reference("palm", core, ids)).abs().max() > 1e-2


@every
def test_what_we_build_is_saved_under_our_own_type_and_comes_back(name, tmp_path, record):
    module, config = DRAWN[name]
    model, ids = hub.build(module.spec(Config(config, name))), ids_of()
    model.save(tmp_path)
    again = hub.load(tmp_path)
    assert again.config["model_type"] == "qkv"
    assert again.spec == model.spec
    assert torch.equal(logits_of(again.core, ids), logits_of(model.core.eval(), ids))
    record(name, "loads", True)
    record(name, "saves", True)


# Brown et al. 2020, table 2.1, and Chowdhery et al. 2022, table 1, in billions as printed
STATED = {"125m": 0.125, "350m": 0.35, "760m": 0.76, "1.3b": 1.3, "2.7b": 2.7, "6.7b": 6.7, "13b": 13.0, "175b": 175.0}


@pytest.mark.parametrize("size", STATED)
def test_gpt3_has_the_parameters_that_its_paper_states(size):
    found = cost.count(gpt3.spec(Config(gpt3.SIZES[size], size))).parameters
    assert found == pytest.approx(STATED[size] * 1e9, rel=0.02)


def test_counts_that_were_worked_out_by_hand():
    big = gpt3.spec(Config(gpt3.SIZES["175b"], "175b"))
    width, layers = 12_288, 96
    # q, k, v, out and the two of the ffn with their biases, two norms; tokens, positions, the last norm
    each = 4 * (width * width + width) + 8 * width * width + 5 * width + 4 * width
    assert cost.count(big).parameters == layers * each + (50_257 + 2048) * width + 2 * width == 174_604_259_328
    assert cost.count(big).kv_bytes_per_token("bf16") == 4.5 * 2**20
    one = tuple(replace(b, attn=replace(b.attn, groups=1, mask=Mask("causal"))) for b in big.decoder.blocks)
    mqa = replace(big, decoder=replace(big.decoder, blocks=one))
    assert cost.count(mqa).kv_bytes_per_token("bf16") == 48 * 2**10
    for size, stated in {"8b": 8.63e9, "62b": 62.50e9, "540b": 540.35e9}.items():
        found = cost.count(palm.spec(Config(palm.SIZES[size], size))).parameters
        norms = (2 * palm.SIZES[size]["n_layers"] + 1) * palm.SIZES[size]["d_model"]
        assert found - norms == pytest.approx(stated, abs=5e6)


def test_the_reported_gpt4_is_marked_and_has_the_reported_counts():
    s = gpt4.spec(Config(gpt4.SIZES["as-reported"], "as-reported"))
    block, width = s.decoder.blocks[0], s.decoder.width
    expert = len(s.decoder.blocks) * 2 * width * block.moe.expert.width
    attention = len(s.decoder.blocks) * 2 * width * block.attn.head_dim * (block.attn.heads + 1)
    assert expert == pytest.approx(111e9, rel=0.01)
    assert attention == pytest.approx(55e9, rel=0.02)
    assert cost.count(s).parameters == pytest.approx(1.8e12, rel=0.02)
    assert 2 * expert + attention == pytest.approx(280e9, rel=0.02)
    assert (len(s.decoder.blocks), block.moe.num_experts, block.moe.top_k, block.attn.groups) == (120, 16, 2, 1)
    assert "unpublished" in gpt4.UNPUBLISHED
    assert "not tell" in gpt3.UNPUBLISHED
