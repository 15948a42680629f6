"""What a run is worth beside what needs no learning, and what to try where it has learnt nothing. Next: session.py.

Labels: the commonest one. Pairs: the source as it is, and the target of the nearest training source. Text: unigrams
and 5-grams of the same tokens. Samples bound time and memory: at most TOKENS tokens, ROWS training pairs. Where
check.ngrams asks for it, n-grams of a whole epoch.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.baselines import ngrams
from qkv.data.collate import IGNORED, Batch
from qkv.data.shards import Mixture
from qkv.errors import QkvError
from qkv.messages import Message, join
from qkv.tasks.evaluate import join_parts
from qkv.tasks.label_scores import Accuracy
from qkv.training.assemble import Assembly
from qkv.training.compatibility import split_questions
from qkv.training.control import Outcome
from qkv.training.evaluation import score_translations
from qkv.training.facts import WORDS, choose_metric
from qkv.training.settings import FLOORS

TOKENS, ROWS = 500_000, 20_000
ORDER = 5
PLANNED = ("training.steps", "training.warmup", "training.lr", "training.optimizer", "model.width", "model.layers")

Judged = tuple[dict[str, Any], Message | None, Message | None]  # numbers, they in words, what is wrong


@dataclass(frozen=True)
class Verdict:
    """A run's result beside trivial ones, by name in `trivial` with the `metric` that compares them, and in words.

    `faults` says in sentences what was not learnt and what to try, or that the rate never left its warm-up.
    """

    trivial: dict[str, Any]
    comparison: Message | None
    faults: tuple[Message, ...]


def judge_run(a: Assembly, outcome: Outcome, labels: Accuracy | None) -> Verdict:
    """The verdict on a run; `labels` are the scores of a classifier."""
    faults = list[Message]()
    if labels:
        trivial, comparison, wrong = judge_labels(labels)
    elif a.splits.kind == "pairs" and a.objective.answers == "texts" and "bleu" in outcome.metrics:
        trivial, comparison, wrong = judge_pairs(a, outcome.metrics)
    else:
        trivial, comparison, wrong = judge_text(a, outcome.metrics.get("loss", math.nan))
    s = a.run.training
    if outcome.steps <= s.warmup:
        faults.append(Message("the run ended after {steps:,} of {warmup:,} steps of warm-up, so the learning rate only "
                              "rose; set training.warmup={share}, or train longer", steps=outcome.steps,
                              warmup=s.warmup, share=max(1, round(0.06 * outcome.steps))))
    if wrong:
        faults.append(Message("{wrong}; try {advice}", wrong=wrong, advice=join("; or ", advise(a, outcome))))
    return Verdict({**trivial, "beats_trivial": not wrong}, comparison, tuple(faults))


def judge_labels(found: Accuracy) -> Judged:
    """A classifier beside the commonest label."""
    said = [name for name, (_, _, said) in found.labels.items() if said]
    wrong = None
    if len(said) == 1 and len(found.labels) > 1:
        wrong = Message("this model has learnt nothing: it says {label!r} for everything", label=said[0])
    elif found.accuracy <= found.majority and len(found.labels) > 1:
        wrong = Message("this model is no better than always saying the commonest label")
    comparison = Message("held-out accuracy {model:.2%}; always the commonest label {majority:.2%}",
                         model=found.accuracy, majority=found.majority)
    return {"metric": "accuracy", "model": found.accuracy, "commonest_label": found.majority}, comparison, wrong


def judge_pairs(a: Assembly, found: Mapping[str, float]) -> Judged:
    """A translator beside the source itself and the target of the nearest training source, on an evaluation's pairs.

    By BLEU, or by exact match where BLEU cannot judge them (facts.py).
    """
    pairs = split_questions(a.splits.valid)[: a.run.check.sentences]
    train: Sequence[Any] = a.splits.train  # type: ignore[assignment]
    some, joint = train[:: max(1, math.ceil(len(train) / ROWS))], a.run.check.joint
    sources, wanted = [source for source, _ in pairs], [target for _, target in pairs]
    near = [some[row][1] for row in find_nearest([source for source, _ in some], sources)]
    metric = choose_metric(pairs)
    copy, nearest = (score_translations(a.run, wanted, [join_parts(line, joint) for line in said])[metric]
                     for said in (sources, near))
    model, wrong = found[metric], None
    if model <= FLOORS[metric]:
        wrong = Message("this model has learnt nothing that its translations show (BLEU {model:.2f})", model=model) if (
            metric == "bleu") else Message("this model has learnt nothing: none of its answers is right")
    elif model <= copy:
        wrong = Message("this model is no better than copying the source")
    elif model <= nearest:
        wrong = Message("this model is no better than the target of the nearest training source")
    trivial = {"metric": metric, "model": model, "copy": copy, "nearest": nearest, "rows": len(some)}
    if metric == "bleu":
        return trivial, Message("held-out BLEU {model:.1f}; the source copied {copy:.1f}, the target of the nearest of "
                                "{rows:,} training sources {nearest:.1f}", **trivial), wrong
    return trivial, Message("held-out exact match {model:.1%}; the source copied {copy:.1%}, the target of the "
                            "nearest of {rows:,} training sources {nearest:.1%}", **trivial), wrong


def judge_text(a: Assembly, loss: float) -> Judged:
    """A language model beside n-grams counted on a sample of the training batches; what cannot be is left out."""
    trivial: dict[str, Any] = {"metric": "loss", "model": loss}
    (batches, tokens), size, wanted = take_batches(a), a.model.spec.vocabulary, pick_labels(a.valid)
    comparison = wrong = None
    if tokens and len(wanted):
        counts = np.bincount(pick_labels(batches), minlength=size) + 1e-9
        smooth = 0.99 * counts / counts.sum() + 0.01 / size
        numbers = {"tokens": tokens, "unigram": float(-np.log(smooth[wanted]).mean())}
        comparison = Message("held-out loss {model:.3f} nats; of {tokens:,} training tokens unigrams {unigram:.3f}",
                             model=loss, **numbers)
        trivial |= numbers
        with suppress(QkvError):  # hidden words have no history
            best = ngrams.count_ngrams(batches, order=ORDER, vocabulary=size).loss(a.valid)
            comparison = Message("{said}, 5-grams {loss:.3f}", said=comparison, loss=best)
            trivial["5-gram"] = best
    if not loss < trivial.get("unigram", math.inf):
        wrong = Message("this model has learnt nothing but how often each token comes")
    elif not loss < trivial.get("5-gram", math.inf):
        wrong = Message("this model is no better than counting 5-grams")
    return trivial, comparison, wrong


def measure_ngrams(a: Assembly, *, order: int = 3) -> dict[str, Any]:
    """What an n-gram model of the same tokens is worth: counted on an epoch of the run's own batches, judged on its
    validation; loss per token in nats and perplexity. Of pairs it knows the target side alone.
    """
    plan, s = a.plan, a.run.training
    if s.word_dropout or s.rare_words:  # whole texts are counted, as whole ones are judged
        whole = replace(a.run, training=replace(s, word_dropout=0.0, rare_words=0.0))
        plan, _ = a.objective.plan(whole, a.splits, a.model)
    batches = (plan.make(key) for key in plan.order(0))
    model = ngrams.count_ngrams(batches, order=order, vocabulary=a.model.spec.vocabulary)
    loss = model.loss(a.valid)
    return {"order": order, "loss": loss, "perplexity": math.exp(loss)}


def describe_ngrams(found: dict[str, Any]) -> Message:
    """What `measure_ngrams` found, in words."""
    order, loss, perplexity = found["order"], f"{found['loss']:.3f}", f"{found['perplexity']:.2f}"
    return Message("n-grams of order {order}, counted on the same tokens: validation loss {loss}, perplexity "
                   "{perplexity}", order=order, loss=loss, perplexity=perplexity)


def advise(a: Assembly, outcome: Outcome) -> list[Message | str]:
    """What to try after a run that was too short, or whose rate or data did not do."""
    s, found = a.run.training, list[Message | str]()
    chosen = {choice.key for choice in a.run.choices}
    planned = [key for key in PLANNED if not (a.run.base and key.startswith("model."))]  # a base has its own size
    if typed := [key for key in planned if a.run.choices and key not in chosen]:
        found.append(Message("without {keys}, which your data then choose", keys=", ".join(typed)))
    elif outcome.why == "seconds" or (s.seconds and "training.seconds" not in chosen and "training.steps" in chosen):
        found.append(f"training.seconds={4 * s.seconds:g}")
    elif outcome.why == "patience":
        found.append("training.patience=0 --resume")
    else:
        found.append(f"training.steps={4 * outcome.steps}")
    if not a.run.base:
        found.append(Message("base=MODEL (a trained model to go on from)"))
    rows = 0 if isinstance(a.splits.train, str | Mixture) else len(a.splits.train)
    if 0 < rows < 1000:
        found.append(Message("more than {rows:,} rows", rows=rows))
    return found


def take_batches(a: Assembly) -> tuple[list[Batch], int]:
    """Batches of the first epoch, which are drawn over all of the data, up to TOKENS labels; how many labels."""
    batches, tokens = list[Batch](), 0
    for key in a.plan.order(0):
        batches.append(a.plan.make(key))
        tokens += int((batches[-1].labels != IGNORED).sum())
        if tokens >= TOKENS:
            break
    return batches, tokens


def pick_labels(batches: Iterable[Batch]) -> np.ndarray:
    """The labels that count."""
    rows = [batch.labels.cpu().numpy() for batch in batches]
    return np.concatenate([row[row != IGNORED] for row in rows]) if rows else np.zeros(0, dtype=np.int64)


def find_nearest(known: Sequence[str], texts: Sequence[str]) -> list[int]:
    """Which of `known` shares most of its words with each text (Jaccard; of Chinese its characters)."""
    places: dict[str, list[int]] = defaultdict(list)
    sizes = np.zeros(len(known))
    for row, text in enumerate(known):
        words = set(WORDS.findall(text.lower()))
        sizes[row] = len(words)
        for word in words:
            places[word].append(row)
    index = {word: np.array(rows) for word, rows in places.items()}
    found = list[int]()
    for text in texts:
        words = set(WORDS.findall(text.lower()))
        shared = np.zeros(len(known))
        for word in words & index.keys():
            shared[index[word]] += 1
        found.append(int((shared / np.maximum(sizes + len(words) - shared, 1)).argmax()))
    return found
