"""The size of a model to train, and the spec that it means. Next: run.py, which a shape is a part of."""

import typing
from dataclasses import dataclass, replace
from typing import Any, Literal

from qkv.baselines.lstm import lstm_spec
from qkv.checkpoints.model_dir import spec_from_config
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.spec import Block, Dense, Experts, Labels, Mask, Spec
from qkv.training.settings import Part

HEADLESS = ("lstm", "lstm-attention")
SHARING = ("llama", "prefix")  # the families that may have groups and experts
LSTM = {key: key for key in ("width", "layers", "dropout", "context", "tied")}
BART = {
    **{f"{side}_{key}": value for side in ("encoder", "decoder")
       for key, value in (("layers", "layers"), ("attention_heads", "heads"), ("ffn_dim", "ffn"))},
    "d_model": "width", "activation_function": "activation", "dropout": "dropout",
    "attention_dropout": "attention_dropout", "max_position_embeddings": "context", "scale_embedding": False,
}
OPENAI_GPT = {
    "n_embd": "width", "n_layer": "layers", "n_head": "heads", "n_positions": "context", "resid_pdrop": "dropout",
    "embd_pdrop": "dropout", "attn_pdrop": "attention_dropout",
}
LLAMA = {
    "hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": "heads",
    "num_key_value_heads": "groups", "intermediate_size": "ffn", "hidden_act": "activation",
    "max_position_embeddings": "context", "attention_dropout": "attention_dropout", "tie_word_embeddings": "tied",
}
# The config of each family: a text is the field of Shape that a key has, anything else is what it always has. A family
# ignores the fields that its config does not name.
CONFIGS: dict[str, dict[str, Any]] = {
    "lstm": LSTM, "lstm-attention": LSTM, "llama": LLAMA, "prefix": LLAMA, "bart": BART,
    "mixtral": {**LLAMA, "num_local_experts": "experts", "num_experts_per_tok": "top_k"},
    "marian": {**BART, "scale_embedding": True, "tie_word_embeddings": "tied"},
    "openai_gpt": {**OPENAI_GPT, "afn": "activation"},
    "gpt2": {**OPENAI_GPT, "n_inner": "ffn", "activation_function": "activation", "tie_word_embeddings": "tied"},
    "bert": {"hidden_size": "width", "num_hidden_layers": "layers", "intermediate_size": "ffn",
             "num_attention_heads": "heads", "hidden_act": "activation", "max_position_embeddings": "context",
             "hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout",
             "type_vocab_size": "segments"},
    "t5": {"d_model": "width", "num_layers": "layers", "num_heads": "heads", "d_ff": "ffn", "d_kv": "head_dim",
           "feed_forward_proj": "activation", "dropout_rate": "dropout", "tie_word_embeddings": "tied"},
    "glm_blank": {"block_position_encoding": True, "hidden_size": "width", "num_layers": "layers",
                  "num_attention_heads": "heads", "max_sequence_length": "context", "output_dropout_prob": "dropout",
                  "embedding_dropout_prob": "dropout", "attention_dropout_prob": "attention_dropout"},
}
MODEL_TYPES = {"openai_gpt": "openai-gpt", "glm_blank": "glm", "prefix": "llama"}
LEARNT_BY = {  # what a family usually learns
    "marian": "pairs", "gpt2": "text", "llama": "text", "openai_gpt": "text", "bert": "masked", "prefix": "prefixes",
    "t5": "spans", "bart": "denoise", "glm_blank": "blanks", "lstm": "pairs", "lstm-attention": "pairs",
}
# the family that is trained if only the objective is given: the first of those that usually learn it
TRAINED_FOR: dict[str, Any] = {
    **{objective: family for family, objective in reversed(LEARNT_BY.items())},
    "labels": "bert", "similarity": "bert", "choice": "bert", "chat": "gpt2",
}
DEEPEST = 500  # layers of a stack, as many as anybody has trained (DeepNet: Wang et al. 2022)
WIDEST = 10**8  # a width, a context; four times as much is the most that a config may say of an inner width
ACTIVATIONS = {"gpt2": "gelu_new", "llama": "silu", "mixtral": "silu", "prefix": "silu", "bert": "gelu", "bart": "gelu",
               "openai_gpt": "gelu", "marian": "relu", "t5": "relu"}


@dataclass(frozen=True)
class Shape(Part):
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
    # a bias of each expert, moved by training.moe_bias_lr, decides with its score (Wang et al. 2024)
    moe_bias: bool = False
    activation: str = ""  # in the family's own words; empty: its usual one
    dropout: float | None = None  # None: 0.1, where the family has any
    attention_dropout: float = 0.0
    context: int = 256
    tied: bool = True
    pooling: Literal["", "first", "last", "mean"] = ""  # which states labels are read from; empty: the family's usual
    segments: Literal[2, 4] = 2  # of two texts; 4: words that both have are marked (collate.py)

    where = "model"
    ranges = (
        (Message("1 to {widest:,}", widest=WIDEST), lambda n: 1 <= n <= WIDEST, ("width", "heads", "context", "top_k")),
        (Message("1 to {deepest}", deepest=DEEPEST), lambda n: 1 <= n <= DEEPEST, ("layers",)),
        (Message("0 to {widest:,}", widest=WIDEST), lambda n: 0 <= n <= WIDEST, ("groups", "experts", "ffn")),
        (Message("a share from 0 to 0.99"), lambda n: 0 <= n <= 0.99, ("dropout", "attention_dropout")),
    )

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
        self.refuse_idle()
        kind = "mixtral" if self.family == "llama" and self.experts else self.family
        fields: dict[str, Any] = {
            **vars(self), "ffn": self.ffn or 4 * self.width, "groups": self.groups or self.heads,
            "head_dim": self.width // self.heads, "dropout": 0.1 if self.dropout is None else self.dropout,
            "activation": self.activation or ACTIVATIONS.get(kind),
        }
        config = {key: fields[value] if isinstance(value, str) else value for key, value in CONFIGS[kind].items()}
        if self.family in HEADLESS:
            return lstm_spec(vocabulary, attention="additive" if self.family == "lstm-attention" else "none", **config)
        config |= {"model_type": MODEL_TYPES.get(kind, kind), "vocab_size": vocabulary}
        spec = spec_from_config(config, "model")
        spec = change_blocks(spec, self) if self.family == "prefix" or self.moe_bias else spec
        return replace(spec, labels=label_head(spec, labels, fields["dropout"], self.pooling)) if labels else spec

    def refuse_idle(self) -> None:
        """Refuse what this family would ignore, and sizes that do not go together."""
        known = typing.get_args(typing.get_type_hints(Shape)["family"])
        ignored = find_ignored(self.family)
        if self.dropout and "dropout" in ignored:
            fit = ", ".join(family for family in known if "dropout" not in find_ignored(family))
            raise QkvError("model.dropout={dropout}: {family} has no dropout of states; set model.dropout=0, or use a "
                           "family that has it: {fit}", dropout=self.dropout, family=self.family, fit=fit)
        idle = next((key for key in ignored if key not in ("dropout", "ffn")
                     and getattr(self, key) != getattr(Shape, key)), None)
        if idle:
            fit = ", ".join(family for family in known if idle not in find_ignored(family))
            raise QkvError("model.{idle}={value}: {family} ignores it; remove it, or use a family that supports it: "
                           "{fit}", idle=idle, value=getattr(self, idle), family=self.family, fit=fit)
        if self.moe_bias and not self.experts:
            raise QkvError("model.moe_bias=true: there are no experts to balance; set how many: model.experts=8")
        if self.top_k != Shape.top_k and not self.experts:
            raise QkvError("model.top_k={top_k}: there are no experts to choose from; set how many: model.experts=8",
                           top_k=self.top_k)
        if self.family in HEADLESS:
            return
        if self.width % self.heads:
            near = self.width + -self.width % self.heads
            raise QkvError("model.width: found {width}, which {heads} heads do not divide; use {near}, or another "
                           "number of model.heads", width=self.width, heads=self.heads, near=near)
        if "ffn" in ignored and self.ffn not in (0, 4 * self.width):
            raise QkvError("model.ffn: found {ffn}, expected four times the width: {width}", ffn=self.ffn,
                           width=4 * self.width)


def find_ignored(family: str) -> list[str]:
    """The fields of Shape that a family ignores."""
    fields = ("dropout", "activation", "attention_dropout", "tied", "ffn")
    ignored = [key for key in fields if key not in CONFIGS[family].values()]
    return ignored + [key for key in ("groups", "experts") if family not in SHARING]


def label_head(spec: Spec, count: int, dropout: float, pooling: str = "") -> Labels:
    """What labels texts: an encoder by its first state (Devlin et al. 2018), a decoder by its last (GPT-1), or either
    by `pooling`: "first", "last" or "mean" (Reimers & Gurevych 2019).
    """
    token: Any = pooling or ("last" if spec.decoder else "first")
    if spec.decoder:
        return Labels(count, token, bias=False, dropout=dropout)
    return Labels(count, token, dense=Dense("tanh"), dropout=dropout)


def change_blocks(spec: Spec, shape: Shape) -> Spec:
    """The spec of a decoder with what its family's config cannot say: a prefix that is seen freely, with experts where
    the shape has some; or a bias of each expert that decides, with its score, which are chosen.
    """

    def change(b: Block) -> Block:
        if shape.family == "prefix":
            b = replace(b, attn=replace(b.attn, mask=Mask("prefix")))
            if shape.experts and b.ffn:
                b = replace(b, ffn=None, moe=Experts(shape.experts, shape.top_k, b.ffn, shared=b.ffn))
        return replace(b, moe=replace(b.moe, balance="bias")) if b.moe and shape.moe_bias else b

    return replace(spec, decoder=replace(spec.stack, blocks=tuple(map(change, spec.stack.blocks))))
