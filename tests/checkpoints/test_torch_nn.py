"""PyTorch's own modules against our parts: the same numbers under every switch, and the same bits back."""

import itertools
import warnings

import pytest
import torch
from torch import nn

from qkv.checkpoints import torch_nn
from qkv.core.attention import Attention
from qkv.core.init import initialise
from qkv.core.model import Stack, Transformer, build_step
from qkv.core.step import Inputs
from qkv.errors import QkvError

WIDTH, HEADS = 64, 2
REAL = torch.arange(7)[None] < torch.tensor([7, 4, 6])[:, None]
SWITCHES = list(itertools.product((False, True), ("relu", "gelu"), (True, False)))
switched = pytest.mark.parametrize(("first", "activation", "bias"), SWITCHES)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that its nested tensors are a prototype
        yield


def shaken(module):
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return module.eval()


def transformer(first=False, activation="relu", bias=True, **more):
    return shaken(
        nn.Transformer(
            WIDTH, HEADS, 3, 2, 96, activation=activation, batch_first=True, norm_first=first, bias=bias, **more
        )
    )


def states_of(core, source, target, drop=None):
    """Our states of the decoder for embedded source and target: [B, T, D]."""
    ids, wrote = torch.zeros(3, 7, dtype=torch.long), torch.zeros(3, 5, dtype=torch.long)
    memory = core.encoder(source, build_step(core.encoder, ids, Inputs(padding_mask=REAL)))
    return core.decoder(target, build_step(core.decoder, wrote, Inputs(memory=memory, source_padding_mask=REAL)))


def theirs_of(module, source, target):
    mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
    pad = ~REAL
    return module(
        source, target, tgt_mask=mask, tgt_is_causal=True, src_key_padding_mask=pad, memory_key_padding_mask=pad
    )


@switched
def test_the_transformer_equals_pytorchs_with_padding_and_causal_masks(first, activation, bias):
    module = transformer(first, activation, bias)
    core = Transformer(torch_nn.model_spec(module, vocabulary=11)).eval()
    torch_nn.load_into(core, module.state_dict())
    source, target = torch.randn(3, 7, WIDTH), torch.randn(3, 5, WIDTH)
    with torch.no_grad():
        gap = (states_of(core, source, target) - theirs_of(module, source, target)).abs().max()
    assert gap <= 1e-5


@switched
def test_an_encoder_and_an_attention_alone_equal_pytorchs(first, activation, bias):
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 96, activation=activation, batch_first=True, norm_first=first, bias=bias
    )
    norm = nn.LayerNorm(WIDTH, bias=bias) if first else None
    module = shaken(nn.TransformerEncoder(layer, 3, norm, enable_nested_tensor=False))
    stack = Stack(torch_nn.stack_spec(module), "").eval()
    torch_nn.load_into(stack, module.state_dict())
    attention = Attention(torch_nn.attention_spec(module.layers[0].self_attn, "causal"), WIDTH, 0, "attn").eval()
    torch_nn.load_into(attention, module.layers[0].self_attn.state_dict())
    x, ids = torch.randn(3, 7, WIDTH), torch.zeros(3, 7, dtype=torch.long)
    with torch.no_grad():
        ours = stack(x, build_step(stack, ids, Inputs(padding_mask=REAL)))
        theirs = module(x, src_key_padding_mask=~REAL)
        assert (ours - theirs)[REAL].abs().max() <= 1e-5
        alone = Stack(torch_nn.stack_spec(module, "causal"), "")
        future = torch.ones(7, 7).triu(1).bool()
        want = module.layers[0].self_attn(x, x, x, attn_mask=future, need_weights=False)[0]
        assert (attention(x, build_step(alone, ids)) - want).abs().max() <= 1e-5


@switched
def test_weights_that_we_trained_go_back_bit_equal(first, activation, bias):
    module = transformer(first, activation, bias)
    core = Transformer(torch_nn.model_spec(module, vocabulary=11))
    initialise(core, 3)
    embedding = core.embed.weight.detach().clone()
    torch_nn.load_into(core, module.state_dict())
    assert torch.equal(core.embed.weight, embedding)  # PyTorch's module has none
    source, target = torch.randn(3, 7, WIDTH), torch.randn(3, 5, WIDTH)
    optimiser = torch.optim.SGD(core.parameters(), 0.1)
    for _ in range(2):
        states_of(core, source, target).pow(2).mean().backward()
        optimiser.step()
    back = torch_nn.state_dict_of(core)
    assert set(back) == set(module.state_dict())
    assert not any(torch.equal(back[n], t) for n, t in module.state_dict().items() if n.endswith("in_proj_weight"))
    module.load_state_dict(back)
    again = Transformer(core.spec)
    torch_nn.load_into(again, module.state_dict())
    ours = dict(again.named_parameters())
    assert all(torch.equal(ours[n], p) for n, p in core.named_parameters() if n != "embed.weight")
    with torch.no_grad():
        assert (states_of(core, source, target) - theirs_of(module, source, target)).abs().max() <= 1e-5


@pytest.mark.parametrize("bias", [True, False])
def test_an_attention_alone_goes_back_bit_equal(bias):
    theirs = shaken(nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=True))
    ours = Attention(torch_nn.attention_spec(theirs), WIDTH, 0, "attn")
    torch_nn.load_into(ours, theirs.state_dict())
    back = torch_nn.state_dict_of(ours)
    assert set(back) == set(theirs.state_dict())
    assert all(torch.equal(back[n], t) for n, t in theirs.state_dict().items())
    with torch.no_grad():
        ours.k.weight += 1
    moved = torch_nn.state_dict_of(ours)["in_proj_weight"] - theirs.in_proj_weight
    assert moved[:WIDTH].eq(0).all()
    assert moved[WIDTH : 2 * WIDTH].sub(1).abs().max() < 1e-5
    theirs.load_state_dict(torch_nn.state_dict_of(ours))


@pytest.mark.parametrize("fault", ["rolled", "norms", "causal", "eps"])
def test_a_deliberate_fault_shows(fault):
    module = transformer(layer_norm_eps=1e-3)
    spec = torch_nn.model_spec(module, vocabulary=11)
    core, state = Transformer(spec).eval(), dict(module.state_dict())
    if fault == "rolled":  # q, k, v in another order
        name = "decoder.layers.1.self_attn.in_proj_weight"
        state[name] = state[name].roll(WIDTH, 0)
    elif fault == "norms":
        a, b = "decoder.layers.0.norm2.weight", "decoder.layers.0.norm3.weight"
        state[a], state[b] = state[b], state[a]
    elif fault == "causal":
        core.decoder = Stack(torch_nn.stack_spec(module.decoder, "full"), "decoder").eval()
    torch_nn.load_into(core, state)
    if fault == "eps":
        for m in core.modules():
            if type(m).__name__ == "Norm":
                m.spec = type(m.spec)("layer", 1e-5)
    source, target = torch.randn(3, 7, WIDTH), torch.randn(3, 5, WIDTH)
    with torch.no_grad():
        assert (states_of(core, source, target) - theirs_of(module, source, target)).abs().max() > 1e-4


def test_what_does_not_fit_is_named():
    with pytest.raises(QkvError, match="kdim=32"):
        torch_nn.attention_spec(nn.MultiheadAttention(WIDTH, HEADS, kdim=32))
    with pytest.raises(QkvError, match="add_bias_kv=True"):
        torch_nn.attention_spec(nn.MultiheadAttention(WIDTH, HEADS, add_bias_kv=True))
    with pytest.raises(QkvError, match="expected relu or gelu"):
        torch_nn.model_spec(transformer(activation=torch.tanh), 11)
    with pytest.raises(QkvError, match="custom module"):
        torch_nn.model_spec(nn.Transformer(WIDTH, HEADS, custom_encoder=nn.Identity()), 11)
    core = Transformer(torch_nn.model_spec(transformer(), 11))
    state = dict(transformer().state_dict())
    del state["encoder.layers.0.norm1.weight"]
    with pytest.raises(QkvError, match=r"Missing \(1\): encoder.layers.0.norm1.weight.*Never read \(1\): extra"):
        torch_nn.load_into(core, state | {"extra": torch.zeros(1)})
    with pytest.raises(QkvError, match="encoder and a decoder"):
        torch_nn.state_dict_of(Transformer(torch_nn.spec.Spec(11, core.spec.decoder)))
    assert torch_nn.block_spec(nn.TransformerEncoderLayer(WIDTH, HEADS, activation=nn.GELU("tanh")), "full").ffn == (
        torch_nn.spec.Ffn(2048, "gelu_tanh", bias=True, dropout=0.1)
    )
