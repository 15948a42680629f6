"""A training step at the multi30k recipe's shape is faster than nn.Transformer's, dropout included.

Both learn from the same batches (bucketed rows of random words, label smoothing 0.1, dropout 0.3, Adam): forward,
backward and optimiser, in target tokens a second, padding not counted. Dropout stands in the paper's places for both;
as it comes, nn.Transformer drops attention patterns and activations too, which is measured beside. transformers' own
Trainer trains its Marian of this shape on the same batches, where transformers and accelerate are installed.
"""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Maker, compete, limits, need, options, quiet, summary, timed, write

WIDTH, LAYERS, HEADS, FFN, VOCABULARY, DROP, TOKENS, SMOOTHING = 128, 4, 4, 256, 9700, 0.3, 4096, 0.1
PAD, EOS, FIRST = 0, 1, 3
CONFIG = {
    "vocab_size": VOCABULARY, "d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": FFN, "decoder_ffn_dim": FFN,
    "activation_function": "relu", "dropout": DROP, "scale_embedding": True, "max_position_embeddings": 256,
}  # fmt: skip


def main() -> None:
    """All in turn; target tokens a second, and the loss as a witness that they learn."""
    given = options(
        __doc__ or "",
        steps=(24, "steps in a round"),
        compile=(False, "nn.Transformer compiled too, in bf16 (needs a C++ compiler, and minutes)"),
    )
    makers: dict[str, Maker] = {}
    for name, low in (("fp32", False), ("bf16", True)):
        makers |= {f"qkv {name}": alone(ours, low=low), f"nn.Transformer {name}": alone(theirs, low=low),
                   f"nn.Transformer {name} as it comes": alone(theirs, low=low, everywhere=True),
                   f"transformers Trainer {name}": alone(trainer, low=low)}  # fmt: skip
    if given.compile:  # the claim is about bf16, and each compilation takes minutes
        makers["nn.Transformer bf16 compiled"] = alone(theirs, low=True, compiled=True)
    found, skipped = compete(given, makers)
    batches = draw_batches(given)
    tokens = sum(b.tokens for b in batches)
    rates = {name: summary([tokens / r["seconds"] for r in rounds], 1) for name, rounds in found.items()}
    most, flops = limits(given.smoke), work(batches) / tokens
    ratio = {f"{mine} over {name}": round(rates[mine]["median"] / r["median"], 3)
             for mine in ("qkv fp32", "qkv bf16") if mine in rates
             for name, r in rates.items() if not name.startswith("qkv") and mine[4:] in name}  # fmt: skip
    loss = {name: {"first round": round(rounds[0]["loss"], 4), "last round": round(rounds[-1]["loss"], 4)}
            for name, rounds in found.items()}  # fmt: skip
    write("training_speed", __doc__ or "", given, target_tokens_per_second=rates, skipped=skipped, limit=most,
          ratio=ratio, loss_per_token=loss, batches=[list(b.target.shape) for b in batches],
          limit_target_tokens_per_second={k: round(most[f"{k}_flops"] / flops, 1) for k in ("fp32", "bf16")},
          )  # fmt: skip


def alone(build: Callable[..., Any], **how: Any) -> Maker:
    """A competitor of a process of its own, which draws the batches there."""

    def prepare(given: Any, folder: Path) -> Callable[[], dict[str, Any]]:
        import torch

        torch.set_num_threads(given.threads)
        run = build(draw_batches(given), **how)
        return lambda: dict(zip(("seconds", "loss"), timed(run), strict=True))

    return prepare


def draw_batches(given: Any) -> list[Any]:
    """The batches of a round, the same for everybody."""
    return made(1 if given.smoke else given.steps, 128 if given.smoke else TOKENS)


def made(steps: int, tokens: int) -> list[Any]:
    """Batches as the recipe's: pairs as long as Multi30k's (about 14 pieces), bucketed by length."""
    from qkv.data.bucket import Buckets
    from qkv.data.collate import collate_pairs

    draw = random.Random(0)
    pairs = []
    for _ in range(29_000 if steps > 1 else 60):
        source = min(40, max(4, round(draw.gauss(14, 4.5))))
        target = min(40, max(4, round(draw.gauss(source, 2))))
        pairs.append(tuple([draw.randrange(FIRST, VOCABULARY) for _ in range(n)] + [EOS] for n in (source, target)))
    buckets = Buckets([(len(s), len(t)) for s, t in pairs], tokens=tokens)
    found = []
    for indices in buckets.batches(0)[:steps]:
        _, s, t = buckets.shape(indices)
        found.append(collate_pairs([pairs[i] for i in indices], pad=PAD, start=2, shape=(s, t)))
    return found


def ours(batches: list[Any], low: bool) -> Any:
    """Our loop's own step: its dropout, its loss, its optimiser."""
    import torch

    from qkv.adapt.onednn_linear import pack_weights
    from qkv.checkpoints import model_dir
    from qkv.core.dropout import make_dropout
    from qkv.core.init import initialise
    from qkv.core.model import Transformer
    from qkv.training import optim
    from qkv.training.losses import token_loss
    from qkv.training.settings import Settings

    core = Transformer(model_dir.spec_from_config({"model_type": "marian", **CONFIG}, "bench")).train()
    initialise(core)
    pack_weights(core)  # as the loop does
    optimizer = optim.make_optimizer(core, Settings(steps=1, lr=1e-4))
    count = 0

    def run() -> float:
        nonlocal count
        total = 0.0
        for batch in batches:
            count += 1
            with torch.autocast("cpu", torch.bfloat16, enabled=low):
                loss = token_loss(core, batch, smoothing=SMOOTHING, drop=make_dropout(0, 0, count, 0)) / batch.tokens
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            total += float(loss.detach())
        return total / len(batches)

    return run


def theirs(batches: list[Any], low: bool, *, compiled: bool = False, everywhere: bool = False) -> Any:
    """nn.Transformer at the same shape, with a tied head, sinusoids and PyTorch's own loss and fused Adam."""
    import torch
    from torch import nn

    from qkv.core.positions import sinusoid

    class Peer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
            nn.init.normal_(self.embed.weight, 0.0, WIDTH**-0.5)
            self.body = nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, FFN, DROP, batch_first=True)
            self.drop = nn.Dropout(DROP)
            self.register_buffer("table", sinusoid(torch.arange(256), WIDTH, "half"))

        def read(self, ids: Any) -> Any:
            return self.drop(self.embed(ids) * math.sqrt(WIDTH) + self.table[: ids.shape[1]])

        def forward(self, source: Any, hidden: Any, target: Any, labels: Any) -> Any:
            causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
            state = self.body(
                self.read(source),
                self.read(target),
                tgt_mask=causal,
                tgt_is_causal=True,
                src_key_padding_mask=hidden,
                memory_key_padding_mask=hidden,
            )
            logits = nn.functional.linear(state, self.embed.weight).flatten(0, 1)
            return nn.functional.cross_entropy(logits, labels.flatten(), label_smoothing=SMOOTHING)

    torch.manual_seed(0)
    model = Peer().train()
    for part in [] if everywhere else model.body.modules():
        if isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
        elif isinstance(part, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            part.dropout = nn.Identity()
    step = torch.compile(model) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98), 1e-9, fused=True)
    low_ = torch.finfo(torch.float32).min
    masks = [
        torch.zeros(b.source.shape).masked_fill(~b.source_real, low_)
        if b.source_real is not None
        else torch.zeros(b.source.shape)
        for b in batches
    ]

    def run() -> float:
        total = 0.0
        for batch, hidden in zip(batches, masks, strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=low):
                loss = step(batch.source, hidden, batch.target, batch.labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            total += float(loss.detach())
        return total / len(batches)

    return run


def trainer(batches: list[Any], low: bool) -> Any:
    """transformers' Trainer over its own Marian and the same batches: its loss, its loop, fused AdamW."""
    import tempfile

    transformers = need("transformers", "accelerate", install="transformers accelerate")
    import torch

    quiet(transformers)
    drops = {"attention_dropout": 0.0, "activation_dropout": 0.0}
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": 2, "forced_eos_token_id": None}
    model = transformers.MarianMTModel(transformers.MarianConfig(**CONFIG, **drops, **ids)).train()
    rows = []
    for b in batches:
        real = torch.ones_like(b.source) if b.source_real is None else b.source_real.long()
        rows.append({"input_ids": b.source, "attention_mask": real, "decoder_input_ids": b.target, "labels": b.labels})

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                output_dir=folder, per_device_train_batch_size=1, num_train_epochs=1, learning_rate=1e-4, bf16=low,
                lr_scheduler_type="constant", label_smoothing_factor=SMOOTHING, max_grad_norm=0.0, report_to=[],
                save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True, optim="adamw_torch_fused",
                dataloader_pin_memory=False,
            )  # fmt: skip
            made = transformers.Trainer(model, arguments, train_dataset=rows, data_collator=lambda r: r[0])
            return float(made.train().training_loss)

    return run


def work(batches: list[Any]) -> float:
    """FLOPs of the products of a forward and a backward pass, attention's left out: three times two per weight."""
    encoder = LAYERS * (4 * WIDTH**2 + 2 * WIDTH * FFN)
    decoder = LAYERS * (6 * WIDTH**2 + 2 * WIDTH * FFN) + WIDTH * VOCABULARY
    memory = LAYERS * 2 * WIDTH**2
    return 6.0 * sum(b.target.numel() * decoder + b.source.numel() * (encoder + memory) for b in batches)


if __name__ == "__main__":
    main()
