"""How to train, as frozen data that TOML files and `a.b=c` on the command line can change. Next: loop.py."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from qkv.adapt.lora import Lora
from qkv.errors import QkvError, nearest
from qkv.messages import Message
from qkv.options import AT_LEAST_ONE, NOT_NEGATIVE, SHARE, SHARE_BELOW_1, check_range, validate

FLOORS = {"bleu": 1.0, "exact_match": 0.0, "label_accuracy": 0.0}  # up to here a metric is chance
LABEL_METRICS = ("exact_match", "label_accuracy")  # the commonest label's share is their floor
MOST_STEPS, MOST_TOKENS, MOST_RATE, MOST_PIECES = 100_000_000, 1 << 24, 1000, 1_000_000  # beyond what any run has
THREADS = 1024  # more end the process without a word
# Keys of earlier versions: the new name, or for one that was removed what to do instead. Checkpoints and run.json that
# have them are read all the same.
RENAMED: dict[str, str] = {
    "training.smoothing": "training.label_smoothing", "training.agree": "training.rdrop",
    "training.sampled": "training.scheduled_sampling", "training.sampled_ramp": "training.scheduled_sampling_ramp",
    "training.balance": "training.moe_aux_loss", "training.steer": "training.moe_bias_lr",
    "tokenizer.dropout": "tokenizer.bpe_dropout", "model.chosen": "model.top_k", "model.steered": "model.moe_bias",
}
REMOVED: dict[str, Message] = {
    "training.outputs": Message("a translation is chosen among all words of the vocabulary; delete the key"),
}


class Part:
    """A part of a run's options, checked as it is made: each field by its type, numbers by the `ranges` they keep to.

    A range is (what is expected, in words; whether a number is in it; the fields), also for each number of a tuple.
    """

    where = ""  # the part's name, which stands before the keys in errors
    ranges = tuple[tuple[Message, Callable[[float], bool], tuple[str, ...]], ...]()

    def __post_init__(self) -> None:
        validate(self.where, self)
        for wanted, fits, keys in self.ranges:
            check_range(self.where, self, wanted, fits, *keys)


@dataclass(frozen=True)
class Settings(Part):
    """Everything that decides a training run besides the model and the data; zero switches a part off."""

    steps: int = 0  # optimiser steps; the run ends at `steps` or after `epochs`, whichever comes first
    epochs: int = 0
    seconds: float = 0.0  # ends the run after so much training time
    tokens: int = 4096  # target tokens in a micro-batch, padding included
    accumulate: int = 1  # micro-batches in a step of each process
    shard: bool = False  # of several processes each keeps a part of every weight and of the optimiser (FSDP2)
    tensor_parallel: int = 1  # processes that compute each layer together; it divides heads, groups and widths
    optimizer: Literal["adam", "adamw", "muon", "adafactor"] = "adam"  # adafactor's lr is a share of a weight's size
    lr: float = 1e-3  # the highest rate; with `noam` the factor before the paper's formula
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    weight_decay: float = 0.0
    schedule: Literal["noam", "inverse", "cosine", "linear", "wsd", "constant"] = "inverse"
    warmup: int = 0  # steps
    decay: float = 0.2  # wsd: the last share of the steps, in which the rate falls
    floor: float = 0.0  # cosine, linear, wsd: where the rate ends, as a share of lr
    clip: float = 0.0  # largest gradient norm
    on_bad_step: Literal["stop", "skip", "rewind"] = "stop"  # a loss or gradient that is not finite, or a spike
    spike: float = 0.0  # so many standard deviations above the last 64 steps a loss or gradient is a spike; 0: never
    label_smoothing: float = 0.0
    rdrop: float = 0.0  # each batch is read with two dropouts, and differing costs so much (R-Drop: Liang et al. 2021)
    scheduled_sampling: float = 0.0  # the share of true inputs that the model's own guesses replace at most
    scheduled_sampling_ramp: int = 0  # steps over which that share grows from none
    word_dropout: float = 0.0  # the share of words left out of labelled texts (Iyyer et al. 2015), unknown in pairs
    rare_words: float = 0.0  # n: a word that texts with labels have c times is unknown with probability n / (n + c)
    moe_aux_loss: float = 0.01  # weight of the loss term that balances the experts, if any (Fedus et al. 2021, 2.2)
    moe_bias_lr: float = 1e-3  # how far the bias of an expert moves in a step, if there is one (Wang et al. 2024)
    auxiliary: float = 0.5  # what the loss of words counts beside that of labels (Radford et al. 2018, equation 5)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: Literal["auto", "never", "blocks"] = "auto"  # torch.compile of the blocks; auto: on a GPU
    recompute: Literal["never", "blocks"] = "never"  # blocks: only their inputs are kept, the rest is made again
    seed: int = 0
    evaluate_every: int = 0  # steps; 0: at the end of each epoch
    save_every: int = 0  # steps; 0: at each evaluation
    log_every: int = 10
    average: int = 0  # the mean of the weights at the last n evaluations
    ema: float = 0.0  # how much a moving average of the weights keeps at each step, such as 0.999
    patience: int = 0  # stop after so many evaluations in a row, past the warm-up, without a better metric
    refit: float = 0.0  # then so many more steps on all rows, held-out ones too, as a share of those of the run
    metric: str = "loss"  # of those that evaluation gives; losses are better when lower, all others when higher
    keep: Literal["best", "last"] = "best"  # weights: the best by metric, or the latest, as of what is learnt by heart
    threads: int = 0
    lora: Lora = field(default_factory=Lora)  # with a rank, adapters learn and the rest stays as it is

    where = "training"
    ranges = (
        (AT_LEAST_ONE, lambda n: n >= 1, ("log_every", "tensor_parallel")),
        (Message("1 to {most:,}", most=MOST_PIECES), lambda n: 1 <= n <= MOST_PIECES, ("accumulate",)),
        (Message("1 to {most:,}", most=MOST_TOKENS), lambda n: 1 <= n <= MOST_TOKENS, ("tokens",)),
        (Message("0 to {most:,}", most=MOST_STEPS), lambda n: 0 <= n <= MOST_STEPS, ("steps",)),
        (Message("a rate from 0 to {most}", most=MOST_RATE), lambda n: 0 <= n <= MOST_RATE, ("lr",)),
        (NOT_NEGATIVE, lambda n: n >= 0, (
            "epochs", "seconds", "patience", "warmup", "clip", "average", "weight_decay", "moe_aux_loss", "rare_words",
            "moe_bias_lr", "auxiliary", "scheduled_sampling_ramp", "spike", "refit", "rdrop", "evaluate_every",
            "save_every")),
        (Message("a number above 0, such as 1e-8: Adam divides by it"), lambda n: n > 0, ("eps",)),
        (SHARE, lambda n: 0 <= n <= 1, ("label_smoothing", "decay", "floor", "scheduled_sampling")),
        (SHARE_BELOW_1, lambda n: 0 <= n < 1, ("ema", "word_dropout")),
        (Message("0 (the default) to {threads}", threads=THREADS), lambda n: 0 <= n <= THREADS, ("threads",)),
        (Message("two shares from 0 to below 1"), lambda n: 0 <= n < 1, ("betas",)),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.steps or self.epochs or self.seconds):
            object.__setattr__(self, "epochs", 1)

    def is_better(self, new: Mapping[str, Any], old: Mapping[str, Any] | None) -> bool:
        """Whether the metrics `new` beat `old` in the one that counts."""
        if self.metric not in new:
            known = ", ".join(new) or Message("none")
            hint = nearest(self.metric, new)
            raise QkvError("training.metric: evaluation gives no {metric!r}{hint} (it gives: {known})",
                           metric=self.metric, hint=hint, known=known)
        return old is None or self.keep == "last" or rank(self.metric, new) > rank(self.metric, old)


def rank(metric: str, found: Mapping[str, Any]) -> tuple[float, ...]:
    """An evaluation as numbers that compare: by loss until the metric is above its floor, as a BLEU of 0.4 or the
    share of the commonest label says less than the loss; equal metrics by loss too.
    """
    signed = [(found.get(key), -1 if key in ("loss", "perplexity") else 1) for key in (metric, "loss")]
    value, loss = (-math.inf if n is None or math.isnan(n) else sign * n for n, sign in signed)  # no number is worst
    floor = max(FLOORS.get(metric, -math.inf), found.get("majority", 0.0) if metric in LABEL_METRICS else -math.inf)
    return (1.0, value, loss) if value > floor else (0.0, loss, value)


def rename_keys(part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a part of a run, as an earlier version may have written them, under the names of today."""
    kept = {f"{part}.{key}": value for key, value in values.items() if f"{part}.{key}" not in REMOVED}
    return {RENAMED.get(name, name).partition(".")[2]: value for name, value in kept.items()}
