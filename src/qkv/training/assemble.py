"""From a run's description to what the loop takes: vocabulary, batches, metrics. Next: session.py."""

import math
import re
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from qkv import hub
from qkv.adapt import lora
from qkv.baselines.ngrams import count_ngrams
from qkv.checkpoints.locate import locate
from qkv.core.model import Transformer
from qkv.data.shards import Mixture
from qkv.devices import parse_device
from qkv.errors import QkvError
from qkv.generation.decoder import batch_by_length
from qkv.messages import Message
from qkv.model import Model
from qkv.spec import Spec, as_json
from qkv.tasks import task_format
from qkv.tasks.evaluate import choose_tokenization
from qkv.tokenizers import tokenizer as text
from qkv.tokenizers import vocabulary
from qkv.tokenizers.bpe_dropout import join_parts as whole_words
from qkv.tokenizers.bpe_dropout import list_pieces, spell
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.vocabulary import NAMES
from qkv.training import compatibility
from qkv.training.compatibility import asked, fits
from qkv.training.loop import Evaluate
from qkv.training.objectives import base, tuning
from qkv.training.objectives.base import Batches, Held, How, Objective
from qkv.training.plan import Plan, placed
from qkv.training.run import Run
from qkv.training.shape import labelling
from qkv.training.splits import Splits


@dataclass(frozen=True)
class Assembly:
    """A run made ready: the model with first weights, its data, its batches, those of validation and of other data."""

    run: Run
    objective: Objective
    splits: Splits
    model: Model
    plan: Plan
    held: Held
    valid: Batches


def assemble(run: Run, *, directory: Path | None = None, device: str = "auto") -> Assembly:
    """Read the data, make (or load from the run's directory) the vocabulary, build the model or go on from its base."""
    splits = read(run)
    begun = hub.load(run.base, device="cpu", dtype="fp32") if run.base else None
    notes = compatibility.overruled(run, begun)
    if run.tokenizer.of and (begun or isinstance(splits.train, Mixture)):
        whose = Message("that of the token shards")
        whose = Message("the base's ({base})", base=run.base) if begun else whose
        raise QkvError("tokenizer.of={of}: this run's vocabulary is {whose}; take tokenizer.of away",
                       of=run.tokenizer.of, whose=whose)
    if begun is not None:
        context = min(run.model.context, begun.spec.context or run.model.context)
        run = replace(run, model=replace(run.model, context=context))
    objective = compatibility.objective_of(run, splits, begun)
    tokenizer = text.load(directory) if directory and directory.is_dir() else None
    tokenizer = tokenizer or (begun.tokenizer if begun else tokenizer_of(run, splits, objective))
    if tokenizer is None:
        raise QkvError("base {base!r} has no tokenizer to read text with", base=run.base)
    judged = objective.answers == "labels" and splits.kind == "pairs"
    labels: list[str] = sorted({label for _, label in splits.train}) if judged else []  # type: ignore[union-attr]
    if begun and set(begun.labels) == set(labels):  # what its outputs stand for
        labels = list(begun.labels)
    labels = [task_format.RIGHT] if objective is tuning.CHOICES else labels  # one logit an answer
    if begun:
        model = grown(begun, run, len(labels), words=objective not in tuning.JUDGING)
    else:
        spec = run.model.spec(len(tokenizer), labels=len(labels))
        model = hub.build(spec, seed=run.training.seed, tokenizer=tokenizer)
    model.tokenizer = ready(tokenizer, objective, model.spec)
    compatibility.refuse_misfits(run, splits, objective, model)
    if labels:
        model.config = named(model.spec, labels) | ({"both_orders": True} if objective is tuning.SIMILAR else {})
    if run.training.lora.rank:
        adapt(model, run)
    model.core.to(parse_device(device)).train()
    plan, held = objective.batches(run, splits, model)
    valid = held(splits.valid)
    compatibility.refuse_unjudged(run, splits, objective, model, valid)
    notes = (*plan.notes, *notes, *compatibility.told(run, splits, objective, model, held))
    mix = {} if splits.often is None else {"often": counted_alike(splits.often.round(6).tolist())}
    plan = replace(plan, identity={**plan.identity, **mix, **frozen(model.core)}, judged=number_of(valid), notes=notes)
    return Assembly(run, objective, splits, model, plan, held, valid)


def read(run: Run) -> Splits:
    """The data of a run; QkvError where there is nothing to learn from, or nothing to judge by."""
    splits = run.splits()
    if splits.train and splits.valid:
        return splits
    if splits.train and run.data and not run.data.valid:
        raise QkvError("data.valid: found 0, expected 1 or more rows to hold out; no file of them is named "
                       "either")
    lacking = Message("validate with") if splits.train else Message("train on")
    raise QkvError("{name}: no data to {lacking}; rows with one and the same text are kept together, so a set of few "
                   "different ones needs a file for each purpose", name=run.name, lacking=lacking)


def counted_alike(numbers: Sequence[float]) -> list[list[float]]:
    """[how many, which] of numbers that follow one another and are alike."""
    return [[len(list(some)), number] for number, some in groupby(numbers)]


def number_of(batches: Batches) -> int:
    """A checksum of all that batches hold."""
    tensors = (t for batch in batches for t in vars(batch).values() if isinstance(t, torch.Tensor))
    return reduce(lambda n, t: zlib.crc32(t.contiguous().numpy().tobytes(), n), tensors, 0)


def grown(begun: Model, run: Run, labels: int, *, words: bool) -> Model:
    """A trained model, with a new output for labels where there are some; without `words` an encoder says none."""
    if not labels:
        return begun
    spec, drop = begun.spec, begun.spec.stack.blocks[0].dropout
    head = spec.head if words or spec.decoder else None
    spec = replace(spec, head=head, labels=labelling(spec, labels, drop))
    core = hub.copy_matching_weights(begun.core, spec, run.training.seed)
    return Model(core, begun.tokenizer, begun.special, named(spec, ()), begun.generation_config)


def adapt(model: Model, run: Run) -> None:
    """Put adapters on a model, and freeze the rest; QkvError without a base, as there is nothing to stand beside."""
    if not run.base:
        raise QkvError("training.lora: an adapter stands beside a trained model; say which: base = a directory or "
                       "name")
    model.base = run.base
    lora.attach(model.core, run.training.lora, seed=run.training.seed)


def frozen(core: torch.nn.Module) -> dict[str, Any]:
    """What tells the weights that do not learn, and are in no checkpoint, from others'."""
    crc = 0
    for p in (p for p in core.parameters() if not p.requires_grad):
        crc = zlib.crc32(p.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes(), crc)
    return {"frozen weights": crc} if crc else {}


def ready(tokenizer: Tokenizer, objective: Objective, spec: Any) -> Tokenizer:
    """The tokenizer as the objective needs it: texts framed for labels, a chat template for conversations."""
    if objective in tuning.JUDGING and spec.decoder:
        return vocabulary.frame_texts(tokenizer)
    if objective is tuning.TALKS and not tokenizer.config.get("chat_template"):
        tokenizer.config["chat_template"] = tuning.TALKING
    return tokenizer


def named(spec: Spec, labels: Sequence[str]) -> dict[str, Any]:
    """The config of a model whose labels have names."""
    numbers = {label: i for i, label in enumerate(labels)}
    names = {str(i): label for label, i in numbers.items()}
    return {"model_type": "qkv", "spec": as_json(spec), "id2label": names, "label2id": numbers}


def tokenizer_of(run: Run, splits: Splits, objective: Objective) -> Tokenizer:
    """The vocabulary of the training data, one for both languages, with the special tokens that the objective needs."""
    how: dict[str, Any] = {"specials": objective.specials, "template": objective.template}
    if objective in tuning.JUDGING and run.model.family == "bert":
        how = {"specials": base.BERT, "template": "cls"}
    if run.tokenizer.of:
        framed = how["template"] == "none" and objective in tuning.JUDGING  # ready() puts ends around texts
        return taken(run.tokenizer.of, how["specials"], "framed" if framed else how["template"])
    if isinstance(splits.train, Mixture):
        found = text.load(splits.train.shards[0].folder)
        if found is None:
            place = splits.train.shards[0].folder
            raise QkvError("{place}: no tokenizer beside the tokens; pack the text again", place=place)
        return vocabulary.equip(found, how["specials"], how["template"])
    if isinstance(splits.train, str):
        texts: Iterable[str] = [splits.train]
    elif splits.kind == "conversations":
        texts = (f"{m['role']}\n{m['content']}" for talk in splits.train for m in talk)  # type: ignore[index]
    else:
        sides = (0,) if objective.answers == "labels" else (0, 1)
        texts = (pair[side] for pair in splits.train for side in sides)
    if run.tokenizer.dropout and (ranks := run.tokenizer.ranks()):
        texts = list(texts)
        words = list_pieces((word for one in texts for word in whole_words(one)), ranks)
        texts.append(" ".join(map(spell, words)))  # each piece that dropout makes is known
    words = run.words() if run.words else ()
    kind, size = run.tokenizer.kind, run.tokenizer.size
    return vocabulary.train(texts, kind=kind, size=size, words=words, **how)  # type: ignore[arg-type]


def taken(name: str, specials: Sequence[str], template: str) -> Tokenizer:
    """The vocabulary of another model, for an objective that needs such special tokens and such ends of texts.

    Raises:
        QkvError: there is none, or it was made for something else.
    """
    found = text.load(name if Path(name).is_dir() else locate(name))
    if found is None:
        raise QkvError("tokenizer.of={name}: no tokenizer there", name=name)
    known = {t: getattr(found, f"{NAMES[t]}_id") if t in NAMES else found.id(t) for t in specials}
    lacking = [token for token, number in known.items() if number is None and NAMES.get(token) != "unk"]
    other = Message("tokenizer.of={name}: made for something else,", name=name)
    if lacking:
        some = ", ".join(lacking[:5])
        raise QkvError("{other} that vocabulary lacks {some}", other=other, some=some)
    end = found.sep_id if template == "cls" else found.eos_id
    ended, what = found.encode("a")[-1:] == [end], "" if end is None else found.token(end)
    if template in ("eos", "cls") and not ended:
        raise QkvError("{other} it ends no text with {what}", other=other, what=what)
    if template == "none" and ended:
        raise QkvError("{other} it ends every text with {what}", other=other, what=what)
    return found


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
        if isinstance(a.splits.valid, str | Mixture):
            prompts = c.prompts if a.objective.answers == "texts" else ()
            texts = a.objective.reply(a.model, prompts, How(longest=c.longest)) if prompts else []
            return found | {"samples": [list(s) for s in zip(prompts, texts, strict=True)]}
        pairs = asked(a.splits.valid)[: c.sentences]
        if not pairs:
            return found
        said = replies(a, [p for p, _ in pairs], How(longest=longest))
        rows = [(p if isinstance(p, str) else p[-1]["content"], t) for p, t in pairs]
        shown = [[joined(t, c.joint) for t in (*row, hyp)] for row, hyp in zip(rows, said, strict=True)]
        return found | judged(a, [t for _, t in pairs], said) | {"samples": shown[: c.samples]}

    return evaluate


def replies(a: Assembly, sources: Sequence[Any], how: How) -> list[str]:
    """The model's answers; nothing to a source that leaves no room for one."""
    short = [n for n, source in enumerate(sources) if a.objective.answers == "labels" or fits(a.model, source)]
    said = dict(zip(short, a.objective.reply(a.model, [sources[n] for n in short], how), strict=True)) if short else {}
    return [said.get(n, "") for n in range(len(sources))]


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
    cut = choose_tokenization(references) if c.tokenize == "auto" else c.tokenize
    metric = BLEU(tokenize=cut, lowercase=c.lowercase, force=True)
    bleu = metric.corpus_score(list(said), [references]).score
    exact = sum(a.strip() == b.strip() for a, b in zip(said, references, strict=True)) / len(references)
    return {"bleu": round(bleu, 2), "exact_match": round(exact, 4), "signature": str(metric.get_signature())}


def joined(line: str, joint: str) -> str:
    """A line whose words were cut into parts, whole again."""
    return re.sub(f"{re.escape(joint.rstrip())}( |$)", "", line) if joint else line


def test(a: Assembly) -> tuple[dict[str, Any], list[str]]:
    """The numbers of the test split with the run's beam, and the answers; nothing where there is none."""
    if not a.splits.test:
        return {}, []
    held = [placed(batch, a.model.device) for batch in a.held(a.splits.test)]
    if isinstance(a.splits.test, str | Mixture):
        return a.objective.measure(a.model.core, held) if held else {}, []
    c, pairs = a.run.check, asked(a.splits.test)
    said = replies(a, [s for s, _ in pairs], How(c.beam, c.length_penalty))
    return a.objective.measure(a.model.core, held) | judged(a, [t for _, t in pairs], said), said


def rehearsal(a: Assembly) -> Callable[[Transformer], float]:
    """Does once what evaluation and test do most at a time, and gives the seconds that one evaluation would take.

    Answers are taken to be about as long as the true ones: those of a young model go on for ever.
    """
    valid = [placed(batch, a.model.device) for batch in a.valid]
    pairs = [] if isinstance(a.splits.valid, str | Mixture) else asked(a.splits.valid)
    tests = [] if isinstance(a.splits.test, str | Mixture) else asked(a.splits.test)

    def rehearse(core: Transformer) -> float:
        start = time.perf_counter()
        a.objective.measure(core, valid)
        seconds = time.perf_counter() - start
        c, sentences = a.run.check, min(len(pairs), a.run.check.sentences)
        if not pairs and c.prompts and a.objective.answers == "texts":
            return seconds + answering(a, [(p, "") for p in c.prompts], How(longest=c.longest))
        for rows, beam, share in ((pairs[:sentences], 1, 1.0), (tests, c.beam, 0.0)):
            some = many(a, rows)
            if some:
                seconds += answering(a, some, How(beam, c.length_penalty)) * share * len(rows) / len(some)
        if tests:
            a.objective.measure(core, [placed(batch, a.model.device) for batch in a.held(a.splits.test)])
        return seconds

    return rehearse


def many(a: Assembly, rows: Sequence[tuple[Any, str]]) -> list[tuple[Any, str]]:
    """The batch with the most rows among those in which a model answers `rows`."""
    rows = [row for row in rows if a.objective.answers == "labels" or fits(a.model, row[0])]
    ids = [a.model.ids(asks) if isinstance(asks, str) else a.model.conversation(asks) for asks, _ in rows]
    boxes = batch_by_length(ids, 2048)
    return [rows[i] for i in max(boxes, key=len)] if boxes else []


def answering(a: Assembly, rows: Sequence[tuple[Any, str]], how: How) -> float:
    """The seconds of answering some sources, judged too."""
    start = time.perf_counter()
    if how.longest is None:
        tokenizer = base.tokenizer_for(a.model)
        how = replace(how, longest=8 + max(len(tokenizer.encode(said, special=False)) for _, said in rows))
    said = a.objective.reply(a.model, [asks for asks, _ in rows], how)
    if any(true for _, true in rows):
        judged(a, [true for _, true in rows], said)
    return time.perf_counter() - start


def ngrams(a: Assembly, *, order: int = 3) -> dict[str, Any]:
    """What an n-gram model of the same tokens is worth: counted on an epoch of the run's own batches, judged on its
    validation; loss per token in nats and perplexity. Of pairs it knows the target side alone.
    """
    plan, s = a.plan, a.run.training
    if s.word_dropout:  # whole texts are counted, as whole ones are judged
        plan, _ = a.objective.batches(replace(a.run, training=replace(s, word_dropout=0.0)), a.splits, a.model)
    batches = (plan.make(key) for key in plan.order(0))
    model = count_ngrams(batches, order=order, vocabulary=a.model.spec.vocabulary)
    loss = model.loss(a.valid)
    return {"order": order, "loss": loss, "perplexity": math.exp(loss)}


def beside(a: Assembly) -> dict[str, Any]:
    """What the n-gram model is worth that `check.ngrams` asks for; nothing where it asks for none."""
    return ngrams(a, order=a.run.check.ngrams) if a.run.check.ngrams else {}


def counted(found: dict[str, Any]) -> Message:
    """What `beside` found, in words."""
    order, loss, perplexity = found["order"], f"{found['loss']:.3f}", f"{found['perplexity']:.2f}"
    return Message("n-grams of order {order}, counted on the same tokens: validation loss {loss}, perplexity "
                   "{perplexity}", order=order, loss=loss, perplexity=perplexity)
