"""`Model.score`: the log-probability of a text, or of one after another. Letters: T tokens, D width, V vocabulary."""

from typing import Any

import torch
from torch import Tensor

from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.generation.decoder import find_blanks
from qkv.tasks.batches import Row, check_length, last_states, prepare_batch
from qkv.tasks.describe import describe_use
from qkv.tasks.special_tokens import blank_ids, with_blank, with_end
from qkv.tasks.types import Model, as_list, is_text_tuple, start_ids


def score(model: Model, text: Any) -> Any:
    """The log-probability of a text, of the second of two texts in a tuple, or of each of a list; see `Model.score`."""
    many, texts = (False, [text]) if is_text_tuple(text) else as_list(text)
    totals = [logprob(model, one) for one in texts]
    return totals if many else totals[0]


def logprob(model: Model, text: Any) -> float:
    """The log-probability of a text after its first token, or of the second of two texts after the first."""
    return predict_text(model, text)[0].sum().item()


def predict_text(model: Model, text: Any) -> tuple[Tensor, Tensor]:
    """Of each token of a text after its first, or of the second of two texts: its log-probability, and whether it is
    the likeliest [T].
    """
    if not isinstance(text, tuple) or all(isinstance(part, int) for part in text):
        if model.encoder_decoder:
            raise QkvError("score: found one text, expected two: an encoder-decoder scores a target given its source, "
                           "(source, target); on a line, separate them with a tab")
        return predict_ids(model.core, model.ids(text))
    if len(text) != 2:
        raise QkvError("score: found {text} texts in a tuple, expected two: the second is scored after the first",
                       text=len(text))
    source, target = map(model.ids, text)
    if model.spec.architecture in ("encoder-decoder", "prefix decoder"):
        target, place = with_end(model, text[1]), None
        if model.spec.fills_blanks:
            blanks = blank_ids(model)
            source = with_blank(source, blanks)
            place = find_blanks([source], blanks)[0]
        return predict_ids(model.core, target, source, start=start_ids(model), blank=place)
    if all(isinstance(part, str) for part in text) and (both := model.ids("".join(text)))[: len(source)] == source:
        target = both[len(source) :]  # a text is cut into tokens as one
    return predict_ids(model.core, target, source)


@torch.inference_mode()
def predict_ids(
    core: Transformer, target: Row, source: Row = (), *, start: Row = (), blank: int | None = None
) -> tuple[Tensor, Tensor]:
    """The log-probability of each id of a target after those before it (teacher forcing), and whether none is likelier.

    It stands after a `source`, which an encoder or a prefix decoder reads whole, and the ids of `start`; without a
    source the first token is given. `blank` is the place in the source that the target fills.

    Raises:
        QkvError: the model has no decoder with a head, the target is empty, or more is read than its positions hold.
    """
    spec = core.spec
    if spec.decoder is None or spec.head is None:
        raise QkvError("score needs a decoder with an output head; this is {kind}", kind=describe_use(spec))
    inputs, device = Inputs(), core.embed.weight.device
    if spec.encoder:
        inputs, source = Inputs(memory=last_states(core, *prepare_batch(core, [source]))), ()
    elif source and spec.architecture == "prefix decoder":
        place = None if blank is None else torch.tensor([blank], device=device)
        inputs = Inputs(prefix_len=torch.tensor([len(source)], device=device), blank_pos=place)
    elif not source:
        source, target = target[:1], target[1:]
    if not target:
        raise QkvError("score needs a text of at least two tokens: the first is given, the others are scored")
    row = torch.tensor([[*source, *start, *target[:-1]]], device=device)
    check_length(row.shape[1], core.decoder)
    state = core.hidden(row, inputs, mode="prefill")[0, -len(target) :]  # T D
    logprobs = core.head(state).float().log_softmax(-1)  # T V
    ids = torch.tensor(target, device=device)
    return logprobs.gather(-1, ids[:, None])[:, 0], logprobs.argmax(-1) == ids
