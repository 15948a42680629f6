"""PyTorch's own nn.Transformer, its encoder, decoder and nn.MultiheadAttention: specs of them, weights in and out.

They hold no embedding and no head, so those of a core stay as they are. Its q, k and v lie in one tensor (table.py).
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from qkv import spec
from qkv.checkpoints import name_table
from qkv.core.attention import Attention
from qkv.core.model import Stack, Transformer
from qkv.errors import QkvError

Sight = Literal["full", "causal", "memory"]

TOWER = """
@layers.*.attn.{q,k,v}.weight    @layers.*.self_attn.in_proj_weight         split
@layers.*.attn.{q,k,v}.bias      @layers.*.self_attn.in_proj_bias           split
@layers.*.attn.out               @layers.*.self_attn.out_proj
@layers.*.cross.{q,k,v}.weight   @layers.*.multihead_attn.in_proj_weight    split
@layers.*.cross.{q,k,v}.bias     @layers.*.multihead_attn.in_proj_bias      split
@layers.*.cross.out              @layers.*.multihead_attn.out_proj
@layers.*.ffn.{up,down}          @layers.*.{linear1,linear2}
@layers.*.attn_{in,sum}          @layers.*.{norm1,norm1}
@layers.*.cross_{in,sum}         @layers.*.{norm2,norm2}
@layers.*.ffn_{in,sum}           @layers.*.{norm3,norm3}    with:@layers.0.cross
@layers.*.ffn_{in,sum}           @layers.*.{norm2,norm2}    without:@layers.0.cross
@final_norm                      @norm
"""
NAMES = f"""
{{q,k,v}}.weight    in_proj_weight    split
{{q,k,v}}.bias      in_proj_bias      split
out                 out_proj
{TOWER.replace("@", "")}{TOWER.replace("@", "encoder.")}{TOWER.replace("@", "decoder.")}
"""


def attention_spec(module: nn.MultiheadAttention, sight: Sight = "full") -> spec.Attention:
    """The spec of an nn.MultiheadAttention; `sight` is what PyTorch gets as a mask at every call.

    Raises:
        QkvError: keys or values of another width than the queries, or the rows that `add_bias_kv` and the like add.
    """
    heads, width = module.num_heads, module.embed_dim
    if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
        raise QkvError("nn.MultiheadAttention: found kdim={kdim}, vdim={vdim}, add_bias_kv={text}, "
                       "add_zero_attn={add_zero_attn}; expected {width} and neither", kdim=module.kdim,
                       vdim=module.vdim, text=module.bias_k is not None, add_zero_attn=module.add_zero_attn,
                       width=width)
    bias = module.in_proj_bias is not None
    mask, drop = spec.Mask(sight), float(module.dropout)
    return spec.Attention(heads, heads, width // heads, mask, bias, bias, dropout=drop)


def stack_spec(module: nn.TransformerEncoder | nn.TransformerDecoder, sight: Sight | None = None) -> spec.Stack:
    """The spec of an encoder (which sees everything) or a decoder (which sees the past), unless `sight` says otherwise.

    Raises:
        QkvError: an activation that is neither ReLU nor GELU, or an attention that attention_spec refuses.
    """
    decodes = isinstance(module, nn.TransformerDecoder)
    blocks = tuple(block_spec(layer, sight or ("causal" if decodes else "full")) for layer in checked_layers(module))
    width = checked_layers(module)[0].linear1.in_features
    return spec.Stack(width, blocks, final_norm=None if module.norm is None else norm_spec(module.norm))


def model_spec(module: nn.Transformer, vocabulary: int, *, sources: int | None = None) -> spec.Spec:
    """The spec of an nn.Transformer above an embedding of `vocabulary` tokens (or two, with `sources`), no head."""
    encoder, decoder = module.encoder, module.decoder
    if not (isinstance(encoder, nn.TransformerEncoder) and isinstance(decoder, nn.TransformerDecoder)):
        raise QkvError("nn.Transformer: its encoder or decoder is a custom module, expected PyTorch's")
    return spec.Spec(vocabulary, stack_spec(decoder), stack_spec(encoder), head=None, sources=sources)


def checked_layers(module: nn.TransformerEncoder | nn.TransformerDecoder) -> list[Any]:
    """The layers of a tower, each of PyTorch's own kind."""
    known = nn.TransformerDecoderLayer if isinstance(module, nn.TransformerDecoder) else nn.TransformerEncoderLayer
    for i, layer in enumerate(module.layers):
        if not isinstance(layer, known):
            raise QkvError("layers.{i}: found {kind}, expected nn.{kind2}", i=i, kind=type(layer).__name__,
                           kind2=known.__name__)
    return list(module.layers)


def block_spec(layer: Any, sight: Sight) -> spec.Block:
    """The spec of one layer of a tower."""
    act, drop = layer.activation, float(layer.dropout1.p)
    if act is F.relu or isinstance(act, nn.ReLU):
        activation = "relu"
    elif act is F.gelu or isinstance(act, nn.GELU):
        activation = "gelu_tanh" if getattr(act, "approximate", "none") == "tanh" else "gelu"
    else:
        raise QkvError("nn.Transformer: the activation is {act!r}, expected relu or gelu", act=act)
    bias, norm = layer.linear1.bias is not None, norm_spec(layer.norm1)
    ffn = spec.Ffn(layer.linear1.out_features, activation, bias=bias, dropout=float(layer.dropout.p))
    cross = attention_spec(layer.multihead_attn, "memory") if isinstance(layer, nn.TransformerDecoderLayer) else None
    before, after = (norm, None) if layer.norm_first else (None, norm)
    return spec.Block(attention_spec(layer.self_attn, sight), ffn, cross, norm_in=before, norm_sum=after, dropout=drop)


def norm_spec(module: nn.Module) -> spec.Norm:
    """The spec of an nn.LayerNorm; one without weight is refused."""
    if not isinstance(module, nn.LayerNorm) or not module.elementwise_affine:
        raise QkvError("nn.Transformer: found {module} as a norm, expected nn.LayerNorm with a weight", module=module)
    return spec.Norm("unbiased" if module.bias is None else "layer", module.eps)  # pyright: ignore[reportUnnecessaryComparison]


def load_into(part: Attention | Stack | Transformer, state: Mapping[str, Tensor]) -> None:
    """Fill a part of a core from PyTorch's state dict, strictly: what is missing and what is left over are both listed.

    Raises:
        QkvError: a tensor is missing, left over, or of another shape.
    """
    name_table.load_tensors(module_of(part), NAMES, {name: tensor.detach for name, tensor in state.items()}, [])


def state_dict_of(part: Attention | Stack | Transformer) -> dict[str, Tensor]:
    """The weights of a part of a core under PyTorch's names, the same bits: for `load_state_dict`.

    Raises:
        QkvError: the part holds weights that PyTorch's module has no place for.
    """
    return name_table.export_tensors(module_of(part), NAMES)


def module_of(part: Attention | Stack | Transformer) -> nn.Module:
    """What of a part PyTorch's module holds: of a whole core its two stacks."""
    if not isinstance(part, Transformer):
        return part
    if not (part.spec.encoder and part.spec.decoder):
        raise QkvError("nn.Transformer has an encoder and a decoder: give a core that has both, or its one stack")
    return nn.ModuleDict({"encoder": part.encoder, "decoder": part.decoder})
