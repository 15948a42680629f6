"""GPT-J: attention and feed-forward network read one norm, rotary positions turn neighbouring numbers (2021)."""

from dataclasses import replace
from typing import Any

from qkv.families import Config, gpt2, llama, name_heads
from qkv.spec import Block, Head, Rotary, Spec

TYPES = ("gptj",)
TOKENS = {"gptj": "bytes"}
SIX: dict[str, Any] = {"vocab_size": 50_400, "n_embd": 4096, "n_layer": 28, "n_head": 16, "n_positions": 2048}
USUAL = SIX | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": False}


def spec(c: Config) -> Spec:
    """The spec that a GPT-J config describes."""
    c = c.with_defaults(**USUAL)
    s, turn = gpt2.spec(c), Rotary(c.size("rotary_dim", 64), pairs="interleaved")
    head, labels = llama.read_heads(c)

    def block(_: int, b: Block) -> Block:
        attn = replace(b.attn, bias=False, out_bias=False, scale=None, rotary=turn)
        return replace(b, attn=attn, residual="parallel", norms="one")

    s = llama.map_blocks(s, block)
    stack = replace(s.stack, positions=None, context=c.size("n_positions"))
    return replace(s, decoder=stack, head=head and Head(head.kind, bias=True), labels=labels,
                   init=replace(s.init, depth_scaled=False))


def config(s: Spec) -> dict[str, Any]:
    """The GPT-J config of a spec; reading it back shows what GPT-J cannot express."""
    attn: Any = s.stack.blocks[0].attn
    said = gpt2.config(replace(s, head=s.head or Head("untied")))
    del said["scale_attn_weights"]
    return said | {**name_heads(s, "GPTJ"), "model_type": "gptj", "rotary_dim": attn.rotary.dim}


SIZES = {"6b": SIX | {"rotary_dim": 64}}
NAMES = """
embed                        [transformer.]wte
layers.*.attn_in             [transformer.]h.*.ln_1
layers.*.attn.{q,k,v,out}    [transformer.]h.*.attn.{q_proj,k_proj,v_proj,out_proj}
layers.*.ffn.{up,down}       [transformer.]h.*.mlp.{fc_in,fc_out}
final_norm                   [transformer.]ln_f
head                         lm_head
labels.out                   score
"""
IGNORE = {
    "n_ctx|rotary|scale_attn_weights": "the same in every GPT-J",
    "summary_.*": "belongs to a classification head",
    r"(transformer\.)?h\.[0-9]+\.attn\.(bias|masked_bias)": "the causal mask, computed",
}
