"""From a run's description to what the loop takes: vocabulary, batches, metrics. __init__.py puts them to work."""

import dataclasses
import math
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qkv import hub
from qkv.core.model import Transformer
from qkv.data import bucket, collate, pack
from qkv.errors import QkvError
from qkv.recipes.run import Pair, Run, Splits
from qkv.text import tokenizer as text
from qkv.text import train as vocabulary
from qkv.text.tokenizer import Tokenizer
from qkv.training.loop import Evaluate
from qkv.training.losses import mean_loss
from qkv.training.plan import Plan, placed


@dataclass(frozen=True)
class Assembly:
    """A run made ready: the model with first weights, its data, its batches, and those of validation."""

    run: Run
    splits: Splits
    model: hub.Model
    plan: Plan
    valid: tuple[collate.Batch, ...]


def assemble(run: Run, *, directory: Path | None = None, device: str = "auto") -> Assembly:
    """Read the data, make (or load from the run's directory) the vocabulary, build the model."""
    splits = run.splits()
    if not splits.train or not splits.valid:
        raise QkvError(f"{run.name}: no data to train on or to validate with")
    pairs = not isinstance(splits.train, str)
    if pairs != (run.model.family == "marian"):
        raise QkvError(f"model.family {run.model.family!r} does not fit {'pairs' if pairs else 'plain text'}; "
                       f"pairs need 'marian', text needs 'gpt2' or 'llama'")  # fmt: skip
    tokenizer = text.load(directory) if directory and directory.is_dir() else None
    tokenizer = tokenizer or tokenizer_of(run, splits)
    model = hub.build(run.model.spec(len(tokenizer)), seed=run.training.seed, tokenizer=tokenizer)
    model.core.to(hub.device_of(device))
    plan, valid = (of_pairs if pairs else of_text)(run, splits, model)
    return Assembly(run, splits, model, plan, valid)


def tokenizer_of(run: Run, splits: Splits) -> Tokenizer:
    """The vocabulary of the training data, one for both languages; pairs end with </s>, text has no ends."""
    kind, size = run.tokenizer.kind, run.tokenizer.size
    words = run.words() if run.words else ()
    if isinstance(splits.train, str):
        return vocabulary.train([splits.train], kind=kind, size=size, words=words, specials=("</s>", "<unk>"))
    both = (side for pair in splits.train for side in pair)
    return vocabulary.train(both, kind=kind, size=size, words=words, template="eos")


def of_pairs(run: Run, splits: Splits, model: hub.Model) -> tuple[Plan, tuple[collate.Batch, ...]]:
    """Batches of pairs of like length, for teacher forcing."""
    tokenizer, s, context = tokenizer_for(model), run.training, run.model.context
    pad = tokenizer.pad_id or 0

    def batches(pairs: Sequence[Pair]) -> tuple[list[tuple[list[int], list[int]]], bucket.Buckets]:
        left = tokenizer.encode_batch([a for a, _ in pairs])
        right = tokenizer.encode_batch([b for _, b in pairs], side="target")
        both = list(zip(left, right, strict=True))
        lengths = [(len(a), len(b)) for a, b in both]
        return both, bucket.Buckets(lengths, tokens=s.tokens, longest=min(context, s.tokens // 8 * 8), seed=s.seed)

    def maker(both: list[tuple[list[int], list[int]]], boxes: bucket.Buckets) -> Callable[[Any], collate.Batch]:
        # a box may be a little wider than the table of positions is long
        def box(key: tuple[int, ...]) -> tuple[int, int]:
            _, wide, long = boxes.shape(key)
            return min(wide, context), min(long, context)

        return lambda key: collate.seq2seq([both[i] for i in key], pad=pad, start=pad, shape=box(key))

    ids, boxes = batches(splits.train)  # type: ignore[arg-type]
    make, (held, held_boxes) = maker(ids, boxes), batches(splits.valid)  # type: ignore[arg-type]
    valid = tuple(map(maker(held, held_boxes), held_boxes.batches(0)))
    flat = np.fromiter((i for pair in ids for side in pair for i in side), dtype=np.int64)
    return Plan(boxes.batches, make, identity(run, flat)), valid


def of_text(run: Run, splits: Splits, model: hub.Model) -> tuple[Plan, tuple[collate.Batch, ...]]:
    """Windows of one long text, drawn anew for each step; an epoch is as many as cover the text once."""
    tokenizer, s, length = tokenizer_for(model), run.training, run.model.context
    ids, held = (np.array(tokenizer.encode(t, special=False), dtype=np.int32) for t in (splits.train, splits.valid))  # type: ignore[arg-type]
    length = min(length, len(ids) - 1, len(held) - 1)
    if length < 1:
        raise QkvError(
            f"{run.name}: the text has {len(ids)} tokens to train on and {len(held)} to validate; give more text"
        )
    rows = max(1, s.tokens // length)
    each = max(1, len(ids) // (rows * length))

    def order(epoch: int) -> Sequence[int]:
        return range(epoch * each, (epoch + 1) * each)

    def make(key: int) -> collate.Batch:
        return collate.causal(pack.windows(ids, length=length, rows=rows, seed=s.seed, step=key))

    count = min(len(held) // (length + 1), 64 * rows)
    fixed = torch.from_numpy(held[: count * (length + 1)].astype(np.int64)).view(count, length + 1)
    return Plan(order, make, identity(run, ids)), tuple(map(collate.causal, fixed.split(rows)))


def tokenizer_for(model: hub.Model) -> Tokenizer:
    assert model.tokenizer is not None  # assemble() gave it one
    return model.tokenizer


def identity(run: Run, ids: np.ndarray) -> dict[str, Any]:
    """What tells this run's data, vocabulary and order from another's."""
    order = {"seed": run.training.seed, "batch": run.training.tokens, "accumulate": run.training.accumulate}
    return {"ids": len(ids), "crc": zlib.crc32(ids.tobytes()), "tokenizer": dataclasses.asdict(run.tokenizer), **order}


def judge(a: Assembly, directory: Path | None) -> Evaluate:
    """What is measured at each evaluation: loss, and BLEU of greedy translations or a continued text.

    The run's directory holds a loadable model from the first evaluation on.
    """
    device = a.model.device
    valid = [placed(batch, device) for batch in a.valid]
    longest = 8 + max(batch.labels.shape[1] for batch in valid)  # a young model does not know when to stop

    def evaluate(core: Transformer, step: int) -> dict[str, Any]:
        loss = mean_loss(core, valid)
        found: dict[str, Any] = {"loss": loss, "perplexity": math.exp(min(loss, 50.0))}
        if directory is not None:
            a.model.save(directory)
        if isinstance(a.splits.valid, str):
            texts = [a.model.generate(p, max_new_tokens=a.run.check.longest).text for p in a.run.check.prompts]
            return found | {"samples": [list(s) for s in zip(a.run.check.prompts, texts, strict=True)]}
        pairs = a.splits.valid[: a.run.check.sentences]
        if not pairs:
            return found
        said = [r.text for r in a.model.translate([p for p, _ in pairs], beam=1, max_new_tokens=longest)]
        shown = [[joined(t, a.run.check.joint) for t in (*pair, hyp)] for pair, hyp in zip(pairs, said, strict=True)]
        return found | score(a.run, [t for _, t in pairs], said) | {"samples": shown[: a.run.check.samples]}

    return evaluate


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
    """The numbers of the test split with the run's beam, and the translations; nothing where there is none."""
    if isinstance(a.splits.test, str) or not a.splits.test:
        return {}, []
    c = a.run.check
    results = a.model.translate([s for s, _ in a.splits.test], beam=c.beam, length_penalty=c.length_penalty)
    said = [r.text for r in results]
    return score(a.run, [t for _, t in a.splits.test], said), said
