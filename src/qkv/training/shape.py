"""The size of a model to train, and the spec that it means. Next: run.py, which a shape is a part of."""

import typing
from dataclasses import dataclass, replace
from typing import Any, Literal

from qkv.baselines.lstm import lstm_spec
from qkv.checkpoints.model_dir import spec_from_config
from qkv.errors import QkvError
from qkv.options import AT_LEAST_ONE, NOT_NEGATIVE, SHARE_BELOW_1, check_range, validate
from qkv.spec import Block, Dense, Experts, Labels, Mask, Spec

HEADLESS = ("lstm", "lstm-attention")
DROPLESS = ("llama", "prefix")  # they know dropout of attention weights alone
SHARING = ("llama", "prefix")  # the families that may have groups and experts
LACKS = {
    "lstm": ("activation", "attention_dropout"), "lstm-attention": ("activation", "attention_dropout"),
    "glm_blank": ("activation", "tied"), "bert": ("tied",), "bart": ("tied",), "openai_gpt": ("tied",),
    "t5": ("attention_dropout",),  # it has one rate for all
}


@dataclass(frozen=True)
class Shape:
    """The size of a model: `marian` translates (encoder and decoder), `gpt2` and `llama` continue text, `bert` guesses
    hidden words and labels texts, and `prefix` is a llama that sees what it is given freely and continues it.
    `lstm` and `lstm-attention` translate as one did before (baselines/lstm.py); they have no heads and no ffn.
    `t5`, `bart` and `glm_blank` put back what their texts lack, and `openai_gpt` is the GPT that was fine-tuned first.
    """

    family: Literal[
        "marian", "gpt2", "llama", "bert", "prefix", "lstm", "lstm-attention", "t5", "bart", "glm_blank", "openai_gpt"
    ] = "marian"
    width: int = 256
    layers: int = 4
    heads: int = 4
    groups: int = 0  # key/value heads of llama and prefix; 0: as many as heads
    ffn: int = 0  # the width within the feed-forward part; 0: four times `width`
    experts: int = 0  # of llama (which is Mixtral then) and prefix (with one more that reads every token); 0: dense
    top_k: int = 2
    moe_bias: bool = (
        False  # a bias of each expert, moved by training.moe_bias_lr, decides with its score (Wang et al. 2024)
    )
    activation: str = ""  # in the family's own words; empty: its usual one
    dropout: float | None = None  # None: 0.1, where the family has any (see DROPLESS)
    attention_dropout: float = 0.0
    context: int = 256
    tied: bool = True

    def __post_init__(self) -> None:
        validate("model", self)
        check_range("model", self, AT_LEAST_ONE, lambda n: n >= 1, "width", "layers", "heads", "context", "top_k")
        check_range("model", self, NOT_NEGATIVE, lambda n: n >= 0, "groups", "experts", "ffn")
        drops = [key for key in ("dropout", "attention_dropout") if getattr(self, key) is not None]
        check_range("model", self, SHARE_BELOW_1, lambda n: 0 <= n < 1, *drops)

    @property
    def inner(self) -> int:
        """The width within the feed-forward part."""
        return self.ffn or 4 * self.width

    @property
    def drop(self) -> float:
        """The dropout of states and embeddings, and before labels."""
        return 0.1 if self.dropout is None else self.dropout

    @property
    def saved_as(self) -> str | None:
        """The Hugging Face family whose config says such a spec without labels; None where none does."""
        if self.family in (*HEADLESS, "prefix") or self.moe_bias:
            return None
        return "mixtral" if self.family == "llama" and self.experts else self.family

    def spec(self, vocabulary: int, *, labels: int = 0) -> Spec:
        """The spec of such a model over a vocabulary and so many labels of texts.

        Hugging Face can load the result, except for `prefix`, `glm_blank` and the LSTMs, if it has no labels.

        Raises:
            QkvError: sizes that the family cannot have, or a dropout where it has none.
        """
        if self.dropout and self.family in DROPLESS:
            fit = ", ".join(f for f in typing.get_args(typing.get_type_hints(Shape)["family"]) if f not in DROPLESS)
            raise QkvError("model.dropout={dropout}: {family} has no dropout of states; set model.dropout=0, or use a "
                           "family that has it: {fit}", dropout=self.dropout,
                           family=self.family, fit=fit)
        self.refuse_idle()
        if self.width % self.heads and self.family not in HEADLESS:
            near = self.width + -self.width % self.heads
            raise QkvError("model.width: found {width}, which {heads} heads do not divide; use {near}, or another "
                           "number of model.heads", width=self.width, heads=self.heads, near=near)
        if self.family in ("lstm", "lstm-attention"):
            attention = "additive" if self.family == "lstm-attention" else "none"
            return lstm_spec(vocabulary, width=self.width, layers=self.layers, attention=attention,
                              dropout=self.drop, context=self.context, tied=self.tied)
        kind = "llama" if self.family == "prefix" else self.family
        made = {"marian": self.marian, "gpt2": self.gpt2, "llama": self.llama, "bert": self.bert, "t5": self.t5,
                "bart": self.bart, "glm_blank": self.glm_blank, "openai_gpt": self.openai_gpt}[kind]()
        common = {"model_type": kind, "vocab_size": vocabulary}
        common |= {} if kind == "glm_blank" else {"tie_word_embeddings": self.tied}
        spec = spec_from_config(common | made, "model")
        spec = make_prefix_decoder(spec, self) if self.family == "prefix" else spec
        spec = add_router_bias(spec) if self.moe_bias else spec
        return replace(spec, labels=label_head(spec, labels, self.drop)) if labels else spec

    def refuse_idle(self) -> None:
        """Refuse what this family would ignore."""
        lacks = (*LACKS.get(self.family, ()), *(() if self.family in SHARING else ("groups", "experts")))
        idle = next((key for key in lacks if getattr(self, key) != getattr(Shape, key)), None)
        if idle:
            known = typing.get_args(typing.get_type_hints(Shape)["family"])
            fit = SHARING if idle in ("groups", "experts") else [f for f in known if idle not in LACKS.get(f, ())]
            raise QkvError("model.{idle}={value}: {family} ignores it; remove it, or use a family that supports it: "
                           "{fit}", idle=idle, value=getattr(self, idle), family=self.family,
                           fit=", ".join(fit))
        if self.moe_bias and not self.experts:
            raise QkvError("model.moe_bias=true: there are no experts to balance; set how many: model.experts=8")
        if self.top_k != Shape.top_k and not self.experts:
            raise QkvError("model.top_k={top_k}: there are no experts to choose from; set how many: model.experts=8",
                           top_k=self.top_k)

    def refuse_narrow(self) -> None:
        """Refuse a feed-forward part of another width than this family knows."""
        if self.inner != 4 * self.width:
            raise QkvError("model.ffn: found {ffn}, expected four times the width: {width}", ffn=self.ffn,
                           width=4 * self.width)

    def bert(self) -> dict[str, Any]:
        drops = {"hidden_dropout_prob": self.drop, "attention_probs_dropout_prob": self.attention_dropout}
        return {**drops, "hidden_size": self.width, "num_hidden_layers": self.layers, "intermediate_size": self.inner,
                "num_attention_heads": self.heads, "hidden_act": self.activation or "gelu",
                "max_position_embeddings": self.context, "type_vocab_size": 2}

    def t5(self) -> dict[str, Any]:
        return {"d_model": self.width, "num_layers": self.layers, "num_heads": self.heads, "d_ff": self.inner,
                "d_kv": self.width // self.heads, "feed_forward_proj": self.activation or "relu",
                "dropout_rate": self.drop}

    def bart(self) -> dict[str, Any]:
        return {**self.marian(), "activation_function": self.activation or "gelu", "scale_embedding": False}

    def openai_gpt(self) -> dict[str, Any]:
        made = self.gpt2()
        self.refuse_narrow()
        return {key: made[key] for key in made if key not in ("n_inner", "activation_function")} | {
            "model_type": "openai-gpt", "afn": self.activation or "gelu"}

    def glm_blank(self) -> dict[str, Any]:
        self.refuse_narrow()
        return {"model_type": "glm", "block_position_encoding": True, "hidden_size": self.width,
                "num_layers": self.layers, "num_attention_heads": self.heads, "max_sequence_length": self.context,
                "output_dropout_prob": self.drop, "embedding_dropout_prob": self.drop,
                "attention_dropout_prob": self.attention_dropout}

    def marian(self) -> dict[str, Any]:
        both = {"layers": self.layers, "attention_heads": self.heads, "ffn_dim": self.inner}
        sides = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in both.items()}
        drops = {"dropout": self.drop, "attention_dropout": self.attention_dropout}
        return {**sides, **drops, "d_model": self.width, "activation_function": self.activation or "relu",
                "max_position_embeddings": self.context, "scale_embedding": True}

    def gpt2(self) -> dict[str, Any]:
        drops = {"attn_pdrop": self.attention_dropout, "resid_pdrop": self.drop, "embd_pdrop": self.drop}
        return {**drops, "n_embd": self.width, "n_layer": self.layers, "n_head": self.heads, "n_inner": self.inner,
                "n_positions": self.context, "activation_function": self.activation or "gelu_new"}

    def llama(self) -> dict[str, Any]:
        sparse = {"model_type": "mixtral", "num_local_experts": self.experts, "num_experts_per_tok": self.top_k}
        return {"hidden_size": self.width, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
                "num_key_value_heads": self.groups or self.heads, "intermediate_size": self.inner,
                "hidden_act": self.activation or "silu", "max_position_embeddings": self.context,
                "attention_dropout": self.attention_dropout,
                **(sparse if self.experts and self.family == "llama" else {})}


def label_head(spec: Spec, count: int, dropout: float) -> Labels:
    """What labels texts: an encoder by its first state (Devlin et al. 2018), a decoder by its last (GPT-1)."""
    if spec.decoder:
        return Labels(count, "last", bias=False, dropout=dropout)
    return Labels(count, dense=Dense("tanh"), dropout=dropout)


def make_prefix_decoder(spec: Spec, shape: Shape) -> Spec:
    """The spec of a decoder that sees a prefix freely, with experts where the shape has some."""

    def block(b: Block) -> Block:
        b = replace(b, attn=replace(b.attn, mask=Mask("prefix")))
        if not shape.experts:
            return b
        assert b.ffn is not None
        return replace(b, ffn=None, moe=Experts(shape.experts, shape.top_k, b.ffn, shared=b.ffn))

    return replace(spec, decoder=replace(spec.stack, blocks=tuple(map(block, spec.stack.blocks))))


def add_router_bias(spec: Spec) -> Spec:
    """The spec with a bias of each expert that decides, with its score, which are chosen."""

    def block(b: Block) -> Block:
        return replace(b, moe=replace(b.moe, balance="bias")) if b.moe else b

    return replace(spec, decoder=replace(spec.stack, blocks=tuple(map(block, spec.stack.blocks))))
