"""From a run's description to what the loop takes: vocabulary, batches, metrics. __init__.py puts them to work."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv import hub
from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.recipes.objectives import OBJECTIVES, Batches, Held, How, Objective
from qkv.recipes.run import Run, Splits
from qkv.spec import Spec, as_json
from qkv.text import tokenizer as text
from qkv.text import train as vocabulary
from qkv.text.tokenizer import Tokenizer
from qkv.training.loop import Evaluate
from qkv.training.plan import Plan, placed


@dataclass(frozen=True)
class Assembly:
    """A run made ready: the model with first weights, its data, its batches, those of validation and of other data."""

    run: Run
    objective: Objective
    splits: Splits
    model: hub.Model
    plan: Plan
    held: Held
    valid: Batches


def assemble(run: Run, *, directory: Path | None = None, device: str = "auto") -> Assembly:
    """Read the data, make (or load from the run's directory) the vocabulary, build the model."""
    objective, splits = OBJECTIVES[run.model.family], run.splits()
    if not splits.train or not splits.valid:
        raise QkvError(f"{run.name}: no data to train on or to validate with")
    found = "plain text" if isinstance(splits.train, str) else "pairs"
    if found != objective.data:
        fit = ", ".join(repr(name) for name, o in OBJECTIVES.items() if o.data == found)
        raise QkvError(f"model.family {run.model.family!r} does not fit {found}; these do: {fit}")
    tokenizer = text.load(directory) if directory and directory.is_dir() else None
    tokenizer = tokenizer or tokenizer_of(run, splits)
    labels = sorted({label for _, label in splits.train}) if objective.answers == "labels" else []
    spec = run.model.spec(len(tokenizer), labels=len(labels))
    model = hub.build(spec, seed=run.training.seed, tokenizer=tokenizer)
    if labels:
        model.config = named(spec, labels)
    model.core.to(hub.device_of(device))
    plan, held = objective.batches(run, splits, model)
    return Assembly(run, objective, splits, model, plan, held, held(splits.valid))


def named(spec: Spec, labels: Sequence[str]) -> dict[str, Any]:
    """The config of a model whose labels have names."""
    numbers = {label: i for i, label in enumerate(labels)}
    names = {str(i): label for label, i in numbers.items()}
    return {"model_type": "qkv", "spec": as_json(spec), "id2label": names, "label2id": numbers}


def tokenizer_of(run: Run, splits: Splits) -> Tokenizer:
    """The vocabulary of the training data, one for both languages, with the special tokens that the objective needs."""
    objective, words = OBJECTIVES[run.model.family], run.words() if run.words else ()
    kind, size = run.tokenizer.kind, run.tokenizer.size
    if isinstance(splits.train, str):
        texts: Iterable[str] = [splits.train]
    else:
        sides = (0,) if objective.answers == "labels" else (0, 1)
        texts = (pair[side] for pair in splits.train for side in sides)
    how = {"specials": objective.specials, "template": objective.template}
    return vocabulary.train(texts, kind=kind, size=size, words=words, **how)  # type: ignore[arg-type]


def judge(a: Assembly, directory: Path | None) -> Evaluate:
    """What is measured at each evaluation: loss, and BLEU of greedy translations or a continued text.

    The run's directory holds a loadable model from the first evaluation on.
    """
    valid = [placed(batch, a.model.device) for batch in a.valid]
    longest = 8 + max(batch.labels.shape[1] for batch in valid)  # a young model does not know when to stop
    c = a.run.check

    def evaluate(core: Transformer, step: int) -> dict[str, Any]:
        found = a.objective.measure(core, valid)
        if directory is not None:
            a.model.save(directory)
        if isinstance(a.splits.valid, str):
            texts = a.objective.reply(a.model, c.prompts, How(longest=c.longest)) if c.prompts else []
            return found | {"samples": [list(s) for s in zip(c.prompts, texts, strict=True)]}
        pairs = a.splits.valid[: c.sentences]
        if not pairs:
            return found
        said = a.objective.reply(a.model, [p for p, _ in pairs], How(longest=longest))
        shown = [[joined(t, c.joint) for t in (*pair, hyp)] for pair, hyp in zip(pairs, said, strict=True)]
        return found | judged(a, [t for _, t in pairs], said) | {"samples": shown[: c.samples]}

    return evaluate


def judged(a: Assembly, references: Sequence[str], said: Sequence[str]) -> dict[str, Any]:
    """What answers are worth: for texts BLEU and the share that equals its reference, for labels the share alone."""
    if a.objective.answers == "labels":
        return {"exact_match": round(sum(x == y for x, y in zip(said, references, strict=True)) / len(references), 4)}
    return score(a.run, references, said)


def score(run: Run, references: Sequence[str], said: Sequence[str]) -> dict[str, Any]:
    """BLEU with sacrebleu's signature, and the share of translations that equal their reference."""
    from sacrebleu.metrics.bleu import BLEU

    c = run.check
    references = [joined(r, c.joint) for r in references]
    metric = BLEU(tokenize=c.tokenize, lowercase=c.lowercase, force=True)
    bleu = metric.corpus_score(list(said), [references]).score
    exact = sum(a.strip() == b.strip() for a, b in zip(said, references, strict=True)) / len(references)
    return {"bleu": round(bleu, 2), "exact_match": round(exact, 4), "signature": str(metric.get_signature())}


def joined(line: str, joint: str) -> str:
    """A line whose words were cut into parts, whole again."""
    return re.sub(f"{re.escape(joint.rstrip())}( |$)", "", line) if joint else line


def test(a: Assembly) -> tuple[dict[str, Any], list[str]]:
    """The numbers of the test split with the run's beam, and the answers; nothing where there is none."""
    if isinstance(a.splits.test, str) or not a.splits.test:
        return {}, []
    c = a.run.check
    said = a.objective.reply(a.model, [s for s, _ in a.splits.test], How(c.beam, c.length_penalty))
    held = [placed(batch, a.model.device) for batch in a.held(a.splits.test)]
    return a.objective.measure(a.model.core, held) | judged(a, [t for _, t in a.splits.test], said), said
