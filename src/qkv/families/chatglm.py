"""ChatGLM-6B: fills a blank as GLM does, with rotary positions on two axes and DeepNorm residuals."""

from typing import Any

from qkv.families import Config, glm_blank
from qkv.messages import Message
from qkv.spec import Attention, Block, Ffn, Head, Mask, Norm, Rotary, Spec, Stack

TYPES = ("chatglm",)


def spec(c: Config) -> Spec:
    """The spec that a ChatGLM-6B config describes."""
    if not c.flag("position_encoding_2d", False):
        raise c.error("position_encoding_2d", False,
                      Message("true: of this type, only ChatGLM-6B is supported, no later model"))
    width, heads, layers = c.size("hidden_size"), c.size("num_attention_heads"), c.layers("num_layers")
    dim, norm = width // heads, Norm("layer", c.number("layernorm_epsilon", 1e-5))
    mask, turn = Mask("prefix"), Rotary(dim // 2, axes=2)
    attn = Attention(heads=heads, groups=heads, head_dim=dim, mask=mask, bias=True, out_bias=True, rotary=turn)
    ffn = Ffn(width=c.size("inner_hidden_size", 16_384), activation="gelu_tanh", bias=True)
    block = Block(attn, ffn, norm_in=norm, residual="deepnorm", residual_scale=(2 * layers) ** 0.5)
    stack = Stack(width=width, blocks=(block,) * layers, final_norm=norm, context=c.size("max_sequence_length", 2048))
    # transformers ties the head by default; the release stores a second copy of it
    head = Head("tied" if c.flag("tie_word_embeddings", True) else "untied")
    return Spec(vocabulary=c.size("vocab_size"), decoder=stack, head=head)


def config(s: Spec) -> dict[str, Any]:
    """The ChatGLM config of a spec; reading it back shows what ChatGLM cannot express."""
    stack, block = s.stack, s.stack.blocks[0]
    return {
        "architectures": ["ChatGLMModel"], "model_type": "chatglm", "position_encoding_2d": True,
        "vocab_size": s.vocabulary, "hidden_size": stack.width, "inner_hidden_size": block.ffn.width,
        "num_layers": len(stack.blocks), "num_attention_heads": block.attn.heads,
        "max_sequence_length": stack.longest, "layernorm_epsilon": block.norm_in.eps,
        "tie_word_embeddings": s.head.kind == "tied",
    }


SIZES = {
    "6b": {"vocab_size": 130_528, "hidden_size": 4096, "inner_hidden_size": 16_384, "num_layers": 28,
           "num_attention_heads": 32, "max_sequence_length": 2048, "position_encoding_2d": True},
}

NAMES = f"""
embed                      transformer.word_embeddings
layers.*.attn.{{q,k,v}}    transformer.layers.*.attention.query_key_value    weave split
{glm_blank.LAYERS}
head                       lm_head
"""

IGNORE = {
    "gmask_token_id": "an id that prompts use",
    r"transformer\.layers\.[0-9]+\.attention\.rotary_emb\.inv_freq": "rotary frequencies, computed",
}
