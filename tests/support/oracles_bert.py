"""BERT and its kin, GPT-1 and BART of transformers at drawn shapes, with each of their heads."""

import random
from typing import Any

import torch
import transformers

FAMILIES = {
    "bert": {"words": "BertForMaskedLM", "pairs": "BertForPreTraining", "texts": "BertForSequenceClassification",
             "bare": "BertModel"},
    "roberta": {"words": "RobertaForMaskedLM", "texts": "RobertaForSequenceClassification", "bare": "RobertaModel"},
    "distilbert": {"words": "DistilBertForMaskedLM", "texts": "DistilBertForSequenceClassification",
                   "bare": "DistilBertModel"},
    "electra": {"words": "ElectraForMaskedLM", "texts": "ElectraForSequenceClassification", "bare": "ElectraModel",
                "verdicts": "ElectraForPreTraining"},
    "modernbert": {"words": "ModernBertForMaskedLM", "texts": "ModernBertForSequenceClassification",
                   "bare": "ModernBertModel"},
    "openai_gpt": {"words": "OpenAIGPTLMHeadModel", "texts": "OpenAIGPTForSequenceClassification",
                   "choices": "OpenAIGPTDoubleHeadsModel", "bare": "OpenAIGPTModel"},
    "bart": {"words": "BartForConditionalGeneration", "texts": "BartForSequenceClassification", "bare": "BartModel"},
    "mbart": {"words": "MBartForConditionalGeneration", "texts": "MBartForSequenceClassification"},
}  # fmt: skip


def draw(family: str, seed: int, head: str = "words") -> Any:
    """A random model of transformers with one of the family's heads; None for families that are not ours to draw."""
    if family not in FAMILIES or head not in FAMILIES[family]:
        return None
    from support.oracles import shaken

    pick = random.Random(f"{family} {seed}")
    if family == "bart" and head == "words" and pick.random() < 0.4:
        family = "mbart"
    torch.manual_seed(seed)  # transformers forgets to store that a BART has 2 labels, and reads 3
    cls = getattr(transformers, FAMILIES[family][head])
    model = shaken(cls(config(family, pick, labels=pick.randrange(3 if "bart" in family else 2, 6))))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "embed_positions" in name:  # shaken() leaves them: elsewhere they are sinusoids
                p.add_(torch.randn_like(p) * 0.3)
    return model


def config(family: str, pick: random.Random, labels: int) -> Any:
    """A config in which every switch of the family is thrown both ways over the seeds."""
    heads, dim = pick.choice((2, 4)), pick.choice((32, 48))
    layers, ffn, vocabulary = pick.choice((3, 4)), pick.choice((96, 160)), pick.randrange(70, 120)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "num_labels": labels}
    if family == "distilbert":
        return transformers.DistilBertConfig(
            vocab_size=vocabulary, dim=heads * dim, n_layers=layers, n_heads=heads, hidden_dim=ffn,
            activation=pick.choice(("gelu", "relu")), max_position_embeddings=256, **ids,
        )  # fmt: skip
    if family == "modernbert":
        bases = {kind: {"rope_type": "default", "rope_theta": pick.choice((1e4, 160_000.0))}
                 for kind in ("full_attention", "sliding_attention")}
        return transformers.ModernBertConfig(
            vocab_size=vocabulary, hidden_size=heads * dim, num_hidden_layers=layers, num_attention_heads=heads,
            intermediate_size=ffn, hidden_activation=pick.choice(("gelu", "silu")), norm_eps=pick.choice((1e-5, 1e-6)),
            norm_bias=pick.random() < 0.5, attention_bias=pick.random() < 0.5, mlp_bias=pick.random() < 0.5,
            local_attention=pick.choice((16, 18)), decoder_bias=pick.random() < 0.7, rope_parameters=bases,
            classifier_pooling=pick.choice(("cls", "mean")), classifier_bias=pick.random() < 0.5,
            layer_types=["full_attention" if i % pick.choice((2, 3)) == 0 else "sliding_attention"
                         for i in range(layers)],
            max_position_embeddings=256, cls_token_id=1, sep_token_id=2, **ids,
        )  # fmt: skip
    if family == "electra":
        return transformers.ElectraConfig(
            vocab_size=vocabulary, embedding_size=pick.choice((48, heads * dim)), hidden_size=heads * dim,
            num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=ffn,
            hidden_act=pick.choice(("gelu", "relu")), max_position_embeddings=256,
            classifier_dropout=pick.choice((None, 0.2)), **ids,
        )  # fmt: skip
    if family in ("bert", "roberta"):
        ids["pad_token_id"] = 0 if family == "bert" else pick.choice((0, 1))  # RoBERTa counts positions from there
        kind = transformers.BertConfig if family == "bert" else transformers.RobertaConfig
        return kind(
            vocab_size=vocabulary, hidden_size=heads * dim, num_hidden_layers=layers, num_attention_heads=heads,
            intermediate_size=ffn, hidden_act=pick.choice(("gelu", "gelu_new", "relu", "silu")),
            type_vocab_size=pick.choice((2, 3)), max_position_embeddings=256, layer_norm_eps=pick.choice((1e-12, 1e-5)),
            classifier_dropout=pick.choice((None, 0.2)), **ids,
        )  # fmt: skip
    if family == "openai_gpt":
        return transformers.OpenAIGPTConfig(
            vocab_size=vocabulary, n_embd=heads * dim, n_layer=layers, n_head=heads, n_positions=256,
            afn=pick.choice(("gelu", "relu", "swish")), layer_norm_epsilon=pick.choice((1e-5, 1e-6)), **ids,
        )  # fmt: skip
    kind = transformers.BartConfig if family == "bart" else transformers.MBartConfig
    return kind(
        vocab_size=vocabulary, d_model=heads * dim, max_position_embeddings=256, encoder_layers=layers,
        decoder_layers=3, encoder_attention_heads=heads, decoder_attention_heads=pick.choice((2, heads)),
        encoder_ffn_dim=ffn, decoder_ffn_dim=ffn + 32, activation_function=pick.choice(("gelu", "relu")),
        scale_embedding=pick.random() < 0.5, decoder_start_token_id=2, forced_eos_token_id=None, **ids,
    )  # fmt: skip
