"""The log-probabilities of a prompt's own tokens, for `echo` with `logprobs`. T tokens, D width, V vocabulary."""

from collections.abc import Sequence
from typing import Any

import torch

from qkv.core.step import Inputs
from qkv.model import Model
from qkv.serve.fields import RequestError
from qkv.serve.models import Loaded

TOGETHER = 256  # positions whose logits are there at a time


def check_echo(one: Loaded) -> None:
    """RequestError for a model that does not read its prompt word by word."""
    if one.model.spec.architecture != "causal decoder":
        raise RequestError("echo with logprobs: the model {name} does not predict its prompt", param="echo",
                           code="model_not_fit", name=one.name)


@torch.inference_mode()
def score_prompt(model: Model, ids: Sequence[int], top: int) -> list[tuple[int, float | None, list[tuple[int, float]]]]:
    """Each id with its log-probability after those before it and the `top` likeliest there; the first has neither."""
    found: list[Any] = [(ids[0], None, [])]
    row = torch.tensor([ids[:-1]], device=model.device)
    states = model.core.hidden(row, Inputs(), mode="prefill")[0] if len(ids) > 1 else row[0]  # T D
    for at in range(0, len(ids) - 1, TOGETHER):
        logprobs = model.core.head(states[at : at + TOGETHER]).float().log_softmax(-1)  # T V
        best = logprobs.topk(max(1, top))
        for n, token in enumerate(ids[at + 1 : at + 1 + TOGETHER]):
            likeliest = list(zip(best.indices[n].tolist(), best.values[n].tolist(), strict=True))[:top]
            found.append((token, logprobs[n, token].item(), likeliest))
    return found
