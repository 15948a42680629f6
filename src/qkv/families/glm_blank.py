"""GLM (Du et al. 2022): fills a blank in its prompt, which is a free prefix; positions count the text and the blank."""

from typing import Any

from qkv.families import Config, read_architecture
from qkv.messages import Message
from qkv.spec import Attention, Block, Ffn, Head, Init, Mask, Norm, Spec, Stack, Table

TYPES = ("glm+block_position_encoding",)  # the type that GLM-4 took over; this key tells them apart
HEADS = {"GLMForConditionalGeneration": "words", "GLMModel": "words", "GLMForMultipleChoice": "words"}


def spec(c: Config) -> Spec:
    """The spec that a config of GLM-10B's kind describes."""
    width, heads, _ = c.size("hidden_size"), c.size("num_attention_heads"), read_architecture(c, HEADS)
    c.fixed("block_position_encoding", True, Message("true"))
    norm, drop = Norm("layer", c.number("layernorm_epsilon", 1e-5)), c.share("output_dropout_prob", 0.1)
    attn_drop = c.share("attention_dropout_prob", 0.1)
    mask, dim = Mask("prefix"), width // heads
    attn = Attention(heads=heads, groups=heads, head_dim=dim, mask=mask, bias=True, out_bias=True, dropout=attn_drop)
    block = Block(attn, Ffn(width=4 * width, activation="gelu_tanh", bias=True), norm_in=norm, dropout=drop)
    positions = Table("learned", size=c.size("max_sequence_length", 512) + 1, blanks="counted")
    drop = c.share("embedding_dropout_prob", 0.1)
    blocks = (block,) * c.layers("num_layers")
    stack = Stack(width=width, blocks=blocks, positions=positions, final_norm=norm, dropout=drop)
    init = Init("normal", std=c.share("initializer_range", 0.02), depth_scaled=True)
    return Spec(vocabulary=c.size("vocab_size"), decoder=stack, head=Head("tied"), init=init)


def config(s: Spec) -> dict[str, Any]:
    """The config of a spec as GLM-10B's; reading it back shows what it cannot express."""
    stack, block = s.stack, s.stack.blocks[0]
    return {
        "architectures": ["GLMForConditionalGeneration"], "model_type": "glm", "block_position_encoding": True,
        "vocab_size": s.vocabulary, "hidden_size": stack.width, "num_layers": len(stack.blocks),
        "num_attention_heads": block.attn.heads, "max_sequence_length": stack.positions.size - 1,
        "layernorm_epsilon": block.norm_in.eps, "output_dropout_prob": block.dropout,
        "attention_dropout_prob": block.attn.dropout, "embedding_dropout_prob": stack.dropout,
        "initializer_range": s.init.std,
    }


def size(width: int, layers: int, heads: int, vocabulary: int = 50_304, context: int = 1024) -> dict[str, Any]:
    """One of the released models (Du et al. 2022, table 6; model cards)."""
    return {"hidden_size": width, "num_layers": layers, "num_attention_heads": heads, "vocab_size": vocabulary,
            "max_sequence_length": context, "block_position_encoding": True}


SIZES = {
    "10b": size(4096, 48, 64), "10b-chinese": size(4096, 48, 64, 50_048), "2b": size(2048, 36, 32),
    "335m": size(1024, 24, 16, 30_592, 512), "110m": size(768, 12, 12, 30_592, 512),
}

LAYERS = """
layers.*.attn_in         transformer.layers.*.input_layernorm
layers.*.attn.out        transformer.layers.*.attention.dense
layers.*.ffn_in          transformer.layers.*.post_attention_layernorm
layers.*.ffn.up          transformer.layers.*.mlp.dense_h_to_4h
layers.*.ffn.down        transformer.layers.*.mlp.dense_4h_to_h
final_norm               transformer.final_layernorm
"""
ROWS = f"""embed    word_embeddings
positions                  transformer.position_embeddings
blanks                     transformer.block_position_embeddings
layers.*.attn.{{q,k,v}}    transformer.layers.*.attention.query_key_value    split
{LAYERS.strip()}"""
NAMES = "\n".join(  # some releases put glm. before every name
    " ".join((ours, f"{theirs}|glm.{theirs}", *ops)) for ours, theirs, *ops in map(str.split, ROWS.splitlines())
)

IGNORE = {
    "attention_scale": "scores are divided and multiplied by it: the same result, safer in fp16",
    "checkpoint_(activations|num_layers)|parallel_output|use_scaled_init_for_output_weights": "how it was trained",
    "spell_(func|length)|pool_token": "for heads that we do not load",
    "max_memory_length": "how much of an earlier text is kept; a single text has none",
    "bad_words_id": "how to generate",
}
