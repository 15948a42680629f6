"""`Model.classify`: labels of texts, pairs, and questions with answers. Letters: B texts, R rows, C labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.data import collate
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.tasks import task_format
from qkv.tasks.batches import Row, map_batches, prepare_batch
from qkv.tasks.types import Model, as_list, check_not_empty, is_text_tuple


@dataclass(frozen=True)
class Classification:
    """What classification gives: the likeliest label, its probability, and the probability of every label."""

    label: str
    probability: float
    probabilities: dict[str, float]

    @staticmethod
    def from_probabilities(probabilities: dict[str, float]) -> "Classification":
        """The classification that some probabilities amount to."""
        label = max(probabilities, key=probabilities.__getitem__)
        return Classification(label, probabilities[label], probabilities)


def classify(model: Model, text: Any, *, both: bool = False, ensemble: Sequence[Model] = ()) -> Any:
    """The label of a text, a pair or a question with answers, or of each of a list; see `Model.classify`."""
    many, texts = (False, [text]) if is_text_tuple(text) else as_list(text)
    found = ensemble_classify([model, *ensemble], texts, both=both) if texts else []
    return found if many else found[0]


def ensemble_classify(models: Sequence[Model], texts: Sequence[Any], *, both: bool) -> list[Classification]:
    """Classify by the mean of several models' probabilities; each model reads the texts with its own tokenizer.

    Raises:
        QkvError: the models have other labels.
    """
    for other in models[1:]:
        if set(other.labels) != set(models[0].labels) or is_multiple_choice(other) != is_multiple_choice(models[0]):
            one, two = (", ".join(m.labels) or Message("none") for m in (models[0], other))
            raise QkvError("ensemble: the models have different labels ({one}; {two}); train them on the same ones",
                           one=one, two=two)
    found = [label_probabilities(model, texts, both=both) for model in models]
    means = ({name: sum(probs[name] for probs in each) / len(each) for name in each[0]}
             for each in zip(*found, strict=True))
    return [Classification.from_probabilities(mean) for mean in means]


def label_probabilities(model: Model, texts: Sequence[Any], *, both: bool) -> list[dict[str, float]]:
    """The probability of each label, or of each answer, for each text (Radford et al. 2018, section 3.3)."""
    check_not_empty(texts)
    examples = [encode_example(model, line, both=both) for line in texts]
    rows = [row for encoded, _ in examples for row in encoded]
    logits = map_batches(rows, lambda ids, segments: label_logits(model.core, ids, segments, model.special.start),
                         model.device)
    found: list[dict[str, float]] = []
    for (_, join), group in zip(examples, logits.split([len(encoded) for encoded, _ in examples]), strict=True):
        names = map(str, range(len(group))) if join == "compared" else model.labels
        probs = task_format.join_logits(group, join).softmax(-1).tolist()
        found.append(dict(zip(names, probs, strict=True)))
    return found


@torch.inference_mode()
def label_logits(
    core: Transformer, rows: Sequence[Row], segments: Sequence[Row] | None = None, start: int | None = None
) -> Tensor:
    """The logit of each label for each text [B, C].

    An encoder-decoder reads the text on both sides, the decoder behind its `start` id.

    Raises:
        QkvError: the model has no labels, a text is too long, or an encoder-decoder's start id is missing.
    """
    if core.spec.labels is None:
        raise QkvError("this model has no labels, so it cannot classify; train or load a classifier")
    ids, inputs = prepare_batch(core, rows, segments)
    if not (core.spec.encoder and core.spec.decoder):
        return core.classify(ids, inputs, mode="prefill").float()
    if start is None:
        raise QkvError("this encoder-decoder has no decoder_start_token_id; add it to its config.json")
    target, mask = F.pad(ids[:, :-1], (1, 0), value=start), inputs.padding_mask
    both = Inputs(padding_mask=mask, source=ids, source_padding_mask=mask)
    return core.classify(target, both, mode="prefill").float()


def encode_example(
    model: Model, line: Any, *, both: bool
) -> tuple[list[tuple[list[int], list[int]]], task_format.Join]:
    """The ids and segments of the rows that a text, a pair, or a question with answers becomes; how they are joined."""
    texts, tokenizer = line if is_text_tuple(line) else (line,), model.tokenizer
    both = both or (len(texts) == 2 and needs_both_orders(model))
    check_example(model, texts, both=both)
    all_text = tokenizer is not None and all(isinstance(text, str) for text in texts)
    if (both or len(texts) > 2) and not all_text:
        raise QkvError("texts that are compared are given as texts, and to a model with a tokenizer")
    if tokenizer and all_text and (tokens := find_task_tokens(model)):
        ids = [tokenizer.encode(text, special=False) for text in texts]
        rows = task_format.format_example(ids, tokens, both=both)
    elif tokenizer and (both or len(texts) > 2):
        rows = task_format.format_without_tokens(texts, tokenizer.encode)
    else:
        return [with_segments(model, line)], "single"
    return [(list(row), [0] * len(row)) for row in rows.ids], rows.join


def check_example(model: Model, texts: Sequence[Any], *, both: bool) -> None:
    """QkvError for a number of texts that does not suit what the model's labels say."""
    if len(texts) > 2 and not is_multiple_choice(model):
        raise QkvError("found {texts} texts in one question, but this model does not compare answers: its labels "
                       "judge a text or a pair", texts=len(texts))
    if is_multiple_choice(model) and len(texts) < 3 and tuple(model.labels) == (task_format.RIGHT,):
        raise QkvError("found {texts} text{plural}, expected a question and two or more answers (a tab between them): "
                       "this model's one logit says which answer fits best", texts=len(texts),
                       plural="s" * (len(texts) > 1))
    if needs_both_orders(model) and len(texts) == 1:
        raise QkvError("found one text, expected two with a tab between them: this model labels pairs of texts")
    if both and len(texts) != 2:
        raise QkvError("both orders: expected a pair of texts, found {texts}", texts=len(texts))


def is_multiple_choice(model: Model) -> bool:
    """Whether the model's one logit says how well an answer fits, so that answers are compared."""
    return model.spec.labels is not None and model.spec.labels.count == 1


def needs_both_orders(model: Model) -> bool:
    """Whether the model learnt pairs in both orders (objective `similarity`)."""
    return bool((model.config or {}).get("both_orders"))


def count_texts(model: Model) -> Literal["one", "two", "all"]:
    """How many texts of a row the model's labels judge together, as its own training says; of other models any may."""
    config = model.config or {}
    if is_multiple_choice(model) or needs_both_orders(model):
        return "all"
    return "two" if config.get("two_texts", config.get("model_type") != "qkv" and find_separator(model)) else "one"


def join_judged(model: Model, texts: Sequence[str]) -> tuple[str, ...]:
    """The texts of a command, which a model that learnt to judge several together reads as one, with tabs between."""
    together = (model.config or {}).get("two_texts") or is_multiple_choice(model) or needs_both_orders(model)
    return ("\t".join(texts),) if together and len(texts) > 1 else tuple(texts)


def find_task_tokens(model: Model) -> list[int]:
    """The ids of the tokens that open a text, stand between two, and end it; none where a decoder lacks one."""
    names = task_format.TASK_TOKENS if model.tokenizer and not model.spec.encoder else ()
    found = [i for name in names if (i := model.tokenizer.id(name)) is not None]  # type: ignore[union-attr]
    return found if len(found) == len(task_format.TASK_TOKENS) else []


def split_line(model: Model, line: str, *, both: bool = False) -> str | tuple[str, ...]:
    """A line as `classify` takes it: a tab separates texts that belong together, if the model distinguishes them.

    If the model learnt to compare, the separator of its training rows separates them too.
    """
    choice, pairs = is_multiple_choice(model), needs_both_orders(model)
    apart = both or pairs or find_separator(model) or find_task_tokens(model) or choice
    between = task_format.SEPARATOR if "\t" not in line and (choice or pairs) else "\t"
    if between not in line or not apart:
        return line
    return tuple(line.split(between, -1 if choice else 1))


def find_separator(model: Model) -> str:
    """What stands between two texts that an encoder reads as a pair: [SEP], or </s></s>; empty where it reads none."""
    tokenizer = model.tokenizer
    if model.spec.decoder or tokenizer is None or tokenizer.cls_id is None or tokenizer.sep_id is None:
        return ""
    between = tokenizer.backend.encode("", "").ids.count(tokenizer.sep_id) - 1  # as its own template has it
    return tokenizer.roles["sep"] * max(1, between)


def find_segments(model: Model, ids: Sequence[int]) -> list[int]:
    """The segment of each id: 1 behind the first separator, where an encoder distinguishes two texts."""
    tokenizer, kinds = model.tokenizer, model.spec.stack.segments > 1
    sep = tokenizer.sep_id if tokenizer and kinds and find_separator(model) else None
    return add_marks(model, ids, task_format.number_segments(ids, sep))


def add_marks(model: Model, ids: Sequence[int], segments: list[int]) -> list[int]:
    """The segments of ids, for a model that learnt so with a mark on each word that both texts have."""
    if not (model.config or {}).get("shared_words") or model.tokenizer is None:
        return segments
    marked = collate.mark_shared(torch.tensor([ids]), torch.tensor([segments]), model.tokenizer.special_ids)
    return marked[0].tolist()


def with_segments(model: Model, line: Any) -> tuple[list[int], list[int]]:
    """The ids of a text, or of a pair for an encoder, and the segment of each."""
    tokenizer, separator = model.tokenizer, find_separator(model)
    kinds = model.spec.stack.segments > 1
    if not is_text_tuple(line):
        ids = model.ids(line)
        return ids, find_segments(model, ids)
    if tokenizer is None or tokenizer.cls_id is None or tokenizer.sep_id is None or not separator:
        raise QkvError("this model cannot read pairs: that needs an encoder with a cls and a sep token in its "
                       "tokenizer, or a decoder whose vocabulary has {task_tokens}; give a list for several texts",
                       task_tokens=", ".join(task_format.TASK_TOKENS))
    first, second = (tokenizer.encode(part, special=False) if isinstance(part, str) else part for part in line)
    between = separator.count(tokenizer.roles["sep"])
    ids, segments = task_format.format_pair(first, second, cls=tokenizer.cls_id, sep=tokenizer.sep_id, between=between)
    return ids, add_marks(model, ids, segments) if kinds else [0] * len(ids)
