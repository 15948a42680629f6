"""What the verbs that judge share: texts, pairs and questions as rows of ids, read in batches, and the Verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv import inputs, reading
from qkv.errors import QkvError
from qkv.generation.rows import by_length
from qkv.messages import Message

if TYPE_CHECKING:
    from qkv.model import Model


@dataclass(frozen=True)
class Verdict:
    """What classification gives: the likeliest label, its probability, and the probability of every label."""

    label: str
    probability: float
    probabilities: dict[str, float]

    @staticmethod
    def of(probabilities: dict[str, float]) -> "Verdict":
        """The verdict that some probabilities amount to."""
        label = max(probabilities, key=probabilities.__getitem__)
        return Verdict(label, probabilities[label], probabilities)


def parted(line: Any) -> bool:
    """Whether texts that belong together were meant, (first, second, ...), and not a list of texts or of ids."""
    return isinstance(line, tuple) and len(line) > 1 and not any(isinstance(part, int) for part in line)


def present(texts: Sequence[Any]) -> Sequence[Any]:
    """The texts, none of which is empty."""
    for n, line in enumerate(texts):
        for part in line if parted(line) else (line,):
            if len(part) == 0 or (isinstance(part, str) and not part.strip()):
                raise QkvError("text {text} of {texts} is empty: there is nothing to read", text=n + 1,
                               texts=len(texts))
    return texts


def judged(model: "Model", texts: Sequence[Any], *, both: bool) -> list[Verdict]:
    """The verdict on each text, pair, or question with its answers (Radford et al. 2018, section 3.3)."""
    tasks = [asked(model, line, both=both) for line in present(texts)]
    rows = [row for laid, _ in tasks for row in laid]
    logits = by_batches(rows, lambda ids, kinds: reading.judge(model.core, ids, kinds, model.special.start))
    verdicts: list[Verdict] = []
    for (_, join), group in zip(tasks, logits.split([len(laid) for laid, _ in tasks]), strict=True):
        names = map(str, range(len(group))) if join == "compared" else model.labels
        chances = inputs.answer(group, join).softmax(-1).tolist()
        verdicts.append(Verdict.of(dict(zip(names, chances, strict=True))))
    return verdicts


def together(models: Sequence["Model"], texts: Sequence[Any], *, both: bool) -> list[Verdict]:
    """The verdicts of the mean of several models' probabilities; each model reads the texts with its own tokenizer.

    Raises:
        QkvError: the models tell other labels apart.
    """
    for other in models[1:]:
        if set(other.labels) != set(models[0].labels) or compares(other) != compares(models[0]):
            one, two = (", ".join(m.labels) or Message("none") for m in (models[0], other))
            raise QkvError("ensemble: the models have other labels ({one}; {two}); train them on the same ones",
                           one=one, two=two)
    found = [[v.probabilities for v in judged(model, texts, both=both)] for model in models]
    return [Verdict.of({name: sum(said[name] for said in each) / len(each) for name in each[0]})
            for each in zip(*found, strict=True)]  # fmt: skip


def asked(model: "Model", line: Any, *, both: bool) -> tuple[list[tuple[list[int], list[int]]], inputs.Join]:
    """The ids and segments of the rows that a text, a pair, or a question with answers becomes; how they are joined."""
    texts, made = line if parted(line) else (line,), model.tokenizer
    both = both or (len(texts) == 2 and unordered(model))
    if len(texts) > 2 and not compares(model):
        raise QkvError("found {texts} texts in one question, but this model does not compare answers: its labels "
                       "judge a text or a pair", texts=len(texts))
    if compares(model) and len(texts) < 3 and tuple(model.labels) == (inputs.RIGHT,):
        raise QkvError("found {texts} text{plural}, expected a question and two or more answers (a tab between them): "
                       "this model's one logit says which answer fits best", texts=len(texts),
                       plural="s" * (len(texts) > 1))
    if unordered(model) and len(texts) == 1:
        raise QkvError("found one text, expected two with a tab between them: this model says how a pair is "
                       "related")
    if both and len(texts) != 2:
        raise QkvError("both orders: expected a pair of texts, found {texts}", texts=len(texts))
    spelled = made is not None and all(isinstance(text, str) for text in texts)
    if (both or len(texts) > 2) and not spelled:
        raise QkvError("texts that are compared are given as texts, and to a model with a tokenizer")
    if made and spelled and marked(model):
        laid = inputs.laid([made.encode(text, special=False) for text in texts], inputs.Marks.of(made), both=both)
    elif made and (both or len(texts) > 2):
        laid = inputs.unmarked(texts, made.encode)
    else:
        return [segmented(model, line)], "single"
    return [(list(row), [0] * len(row)) for row in laid.ids], laid.join


def compares(model: "Model") -> bool:
    """Whether a model's one logit tells how well an answer fits, so that answers are compared."""
    return model.spec.labels is not None and model.spec.labels.count == 1


def unordered(model: "Model") -> bool:
    """Whether a model learnt pairs in both orders (objective `similarity`)."""
    return bool((model.config or {}).get("both_orders"))


def marked(model: "Model") -> bool:
    """Whether a decoder's vocabulary has the tokens that open a text, stand between two, and end it."""
    made = model.tokenizer
    return made is not None and not model.spec.encoder and all(made.id(t) is not None for t in inputs.SPELLED)


def divided(model: "Model", line: str, *, both: bool = False) -> str | tuple[str, ...]:
    """A line as `classify` takes it: a tab parts texts that belong together, where the model tells them apart.

    Where the model learnt to compare, what stood between them in its training rows parts them, too.
    """
    apart = both or unordered(model) or model.spec.stack.segments or marked(model) or compares(model)
    between = inputs.MARK if "\t" not in line and (compares(model) or unordered(model)) else "\t"
    if between not in line or not apart:
        return line
    return tuple(line.split(between, -1 if compares(model) else 1))


def segmented(model: "Model", line: Any) -> tuple[list[int], list[int]]:
    """The ids of a text, or of a pair, and the segment of each."""
    if not parted(line):
        ids = model.ids(line)
        return ids, [0] * len(ids)
    made = model.tokenizer
    if made is None or made.cls_id is None or made.sep_id is None or not model.spec.stack.segments:
        raise QkvError("this model reads no pairs: that takes segments in the model, and a cls and a sep token in its "
                       "tokenizer, or a decoder whose vocabulary has {spelled}; give a list for several texts",
                       spelled=", ".join(inputs.SPELLED))
    first, second = (made.encode(part, special=False) if isinstance(part, str) else part for part in line)
    both = inputs.pair(first, second, cls=made.cls_id, sep=made.sep_id)
    return list(both[0]), list(both[1])


def by_batches(
    rows: Sequence[tuple[list[int], list[int]]], read: Callable[[list[list[int]], list[list[int]]], Tensor]
) -> Tensor:
    """What `read` makes of rows of ids with their segments, those of like length together, in the order of the rows."""
    found: dict[int, Tensor] = {}
    for batch in by_length([ids for ids, _ in rows], 4096):
        found.update(zip(batch, read([rows[r][0] for r in batch], [rows[r][1] for r in batch]), strict=True))
    return torch.stack([found[i] for i in range(len(rows))])
