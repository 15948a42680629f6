"""How a run is judged: at each evaluation and on its test. Next: trivial.py, which says what that is worth."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from qkv.core.model import Transformer
from qkv.data.shards import Mixture
from qkv.generation.decoder import batch_by_length
from qkv.tasks.evaluate import join_parts, measure_bleu
from qkv.tasks.label_scores import Accuracy, score_labels
from qkv.training.assemble import Assembly
from qkv.training.checkpoint import Evaluate
from qkv.training.compatibility import leaves_room, split_questions
from qkv.training.objectives import base
from qkv.training.objectives.base import Decoding
from qkv.training.run import Run


def make_evaluation(a: Assembly, directory: Path | None) -> Evaluate:
    """What is measured at each evaluation: loss, and BLEU of greedy translations or a continued text.

    The run's directory holds a loadable model from the first evaluation on.
    """
    valid = [batch.to(a.model.device) for batch in a.valid]
    longest = 8 + max(batch.labels.shape[1] for batch in valid)  # a young model does not know when to stop
    c, labelled = a.run.check, a.objective.answers == "labels"
    common = measure_majority(cast(Any, a.splits.valid)) if labelled and a.splits.kind == "pairs" else 0.0

    def evaluate(core: Transformer, step: int) -> dict[str, Any]:
        found = a.objective.measure(core, valid)
        if directory is not None:
            a.model.save(directory, family=a.family)
        if isinstance(a.splits.valid, str | Mixture):
            prompts = c.prompts if a.objective.answers == "texts" else ()
            texts = a.objective.answer(a.model, prompts, Decoding(longest=c.longest)) if prompts else []
            return found | {"samples": [list(s) for s in zip(prompts, texts, strict=True)]}
        if labelled:  # one accuracy over all rows, under both of its names
            found |= {"exact_match": found["label_accuracy"], "majority": common}
        pairs = split_questions(a.splits.valid)[: min(c.samples, c.sentences) if labelled else c.sentences]
        if not pairs:
            return found
        said = answer_all(a, [p for p, _ in pairs], Decoding(longest=longest))
        rows = [(p if isinstance(p, str) else p[-1]["content"], t) for p, t in pairs]
        shown = [[join_parts(t, c.joint) for t in (*row, hyp)] for row, hyp in zip(rows, said, strict=True)]
        judged = {} if labelled else judge_answers(a, [t for _, t in pairs], said)
        return found | judged | {"samples": shown[: c.samples]}

    return evaluate


def answer_all(a: Assembly, sources: Sequence[Any], how: Decoding) -> list[str]:
    """The model's answers; nothing to a source that leaves no room for one."""
    short = [n for n, source in enumerate(sources) if a.objective.answers == "labels" or leaves_room(a.model, source)]
    said = dict(zip(short, a.objective.answer(a.model, [sources[n] for n in short], how), strict=True)) if short else {}
    return [said.get(n, "") for n in range(len(sources))]


def judge_answers(a: Assembly, references: Sequence[str], said: Sequence[str]) -> dict[str, Any]:
    """What answers are worth: for texts BLEU and the share that equals its reference, for labels the share alone."""
    if a.objective.answers == "labels":
        return {"exact_match": round(sum(x == y for x, y in zip(said, references, strict=True)) / len(references), 4)}
    return score_translations(a.run, references, said)


def score_translations(run: Run, references: Sequence[str], said: Sequence[str]) -> dict[str, Any]:
    """BLEU with sacrebleu's signature, and the share of translations that equal their reference."""
    c = run.check
    found = measure_bleu([join_parts(r, c.joint) for r in references], said, tokenize=c.tokenize, lowercase=c.lowercase)
    return dict(zip(("bleu", "exact_match", "signature"), found, strict=True))


def evaluate_test(a: Assembly) -> tuple[dict[str, Any], list[str]]:
    """The numbers of the test split with the run's beam, and the answers; empty without a test split."""
    if not a.splits.test:
        return {}, []
    held = [batch.to(a.model.device) for batch in a.hold_out(a.splits.test)]
    if isinstance(a.splits.test, str | Mixture):
        return a.objective.measure(a.model.core, held) if held else {}, []
    c, pairs = a.run.check, split_questions(a.splits.test)
    said = answer_all(a, [s for s, _ in pairs], Decoding(c.beam, c.length_penalty))
    return a.objective.measure(a.model.core, held) | judge_answers(a, [t for _, t in pairs], said), said


def score_held_labels(a: Assembly, said: Sequence[str]) -> Accuracy | None:
    """The scores of a classifier's labels: those it `said` of the test, where there is none, of validation."""
    if a.objective.answers != "labels" or a.splits.kind != "pairs":
        return None
    pairs = split_questions(a.splits.test or a.splits.valid)
    return score_labels([label for _, label in pairs], said or answer_all(a, [text for text, _ in pairs], Decoding()))


def measure_majority(pairs: Sequence[Any] | str | Mixture) -> float:
    """The share of the commonest label."""
    labels = Counter(label for _, label in pairs)  # type: ignore[misc]
    return max(labels.values()) / labels.total()


def make_rehearsal(a: Assembly) -> Callable[[Transformer], float]:
    """Does once what evaluation and test do most at a time, and gives the seconds that one evaluation would take.

    Answers are taken to be about as long as the true ones: an untrained model writes without end.
    """
    valid = [batch.to(a.model.device) for batch in a.valid]
    pairs = [] if isinstance(a.splits.valid, str | Mixture) else split_questions(a.splits.valid)
    tests = [] if isinstance(a.splits.test, str | Mixture) else split_questions(a.splits.test)

    def rehearse(core: Transformer) -> float:
        start = time.perf_counter()
        a.objective.measure(core, valid)
        seconds = time.perf_counter() - start
        c, labelled = a.run.check, a.objective.answers == "labels"
        sentences = min(len(pairs), c.sentences, c.samples if labelled else len(pairs))
        if not pairs and c.prompts and a.objective.answers == "texts":
            return seconds + time_answers(a, [(p, "") for p in c.prompts], Decoding(longest=c.longest))
        for rows, beam, share in ((pairs[:sentences], 1, 1.0), (tests, c.beam, 0.0)):
            some = largest_batch(a, rows)
            if some:
                seconds += time_answers(a, some, Decoding(beam, c.length_penalty)) * share * len(rows) / len(some)
        if tests:
            a.objective.measure(core, [batch.to(a.model.device) for batch in a.hold_out(a.splits.test)])
        return seconds

    return rehearse


def largest_batch(a: Assembly, rows: Sequence[tuple[Any, str]]) -> list[tuple[Any, str]]:
    """The batch with the most rows among those in which a model answers `rows`."""
    rows = [row for row in rows if a.objective.answers == "labels" or leaves_room(a.model, row[0])]
    ids = [a.model.ids(asks) if isinstance(asks, str) else a.model.conversation(asks) for asks, _ in rows]
    boxes = batch_by_length(ids, 2048)
    return [rows[i] for i in max(boxes, key=len)] if boxes else []


def time_answers(a: Assembly, rows: Sequence[tuple[Any, str]], how: Decoding) -> float:
    """The seconds of answering some sources, judged too."""
    start = time.perf_counter()
    if how.longest is None:
        tokenizer = base.tokenizer_for(a.model)
        how = replace(how, longest=8 + max(len(tokenizer.encode(said, special=False)) for _, said in rows))
    said = a.objective.answer(a.model, [asks for asks, _ in rows], how)
    if any(true for _, true in rows):
        judge_answers(a, [true for _, true in rows], said)
    return time.perf_counter() - start
