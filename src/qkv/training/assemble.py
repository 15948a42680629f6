"""From a run's description to what the loop takes: data, vocabulary, model, batches. Next: evaluation.py."""

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import torch

from qkv import hub
from qkv.adapt import lora
from qkv.checkpoints.locate import locate
from qkv.data.cache import tell_progress
from qkv.data.mapped_rows import MappedRows
from qkv.data.shards import Mixture
from qkv.devices import parse_device
from qkv.errors import QkvError
from qkv.messages import Message
from qkv.model import Model
from qkv.spec import Spec, as_json
from qkv.tasks import task_format
from qkv.tokenizers import tokenizer as text
from qkv.tokenizers import vocabulary
from qkv.tokenizers.bpe_dropout import join_parts, list_pieces, spell
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.tokenizers.vocabulary import NAMES
from qkv.training import compatibility
from qkv.training.data_files import FILES, encode_large, note_sample
from qkv.training.large_text import SAMPLE, LargeText
from qkv.training.machine import refuse_oversized
from qkv.training.objectives import base, chat
from qkv.training.objectives.base import Batches, HoldOut, Objective
from qkv.training.plan import Plan
from qkv.training.run import Run
from qkv.training.shape import label_head
from qkv.training.splits import Splits, list_words


@dataclass(frozen=True)
class Assembly:
    """A run made ready: the model with first weights, its data, its batches, those of validation and of other data."""

    run: Run
    objective: Objective
    splits: Splits
    model: Model
    plan: Plan
    hold_out: HoldOut
    valid: Batches
    family: str | None = None  # that can say the spec of a new model, so that nothing needs to look for it


def assemble(run: Run, *, directory: Path | None = None, device: str = "auto") -> Assembly:
    """Read the data, make (or load from the run's directory) the vocabulary, build the model or load its base."""
    if not run.base:
        refuse_oversized(run.model.spec(1), device)  # before anything is read or built
    splits = read_splits(run)
    begun = hub.load(run.base, device="cpu", dtype="fp32") if run.base else None
    notes = compatibility.note_overruled(run, splits, begun) if begun or run.tokenizer.of else ()
    if begun is not None:
        context = min(run.model.context, begun.spec.context or run.model.context)
        run = replace(run, model=replace(run.model, context=context))
    objective = compatibility.choose_objective(run, splits, begun)
    splits = splits.as_conversations() if objective.name == "chat" else splits
    tokenizer = text.load(directory) if directory and directory.is_dir() else None
    if tokenizer is None and not begun and not run.tokenizer.of:
        notes += tuple(note_sample(splits))
    said: list[Message] = []
    tokenizer = tokenizer or (begun.tokenizer if begun else make_tokenizer(run, splits, objective, said.append))
    notes += tuple(said)
    if tokenizer is not None:
        splits = encode_large(splits, tokenizer, documents=objective.name == "documents")
    model = build_model(run, splits, objective, begun, tokenizer, device=device)
    compatibility.refuse_misfits(run, splits, objective, model)
    if run.training.lora.rank:
        attach_adapters(model, run)
    model.core.to(parse_device(device)).train()
    plan, hold_out = objective.plan(run, splits, model)
    valid = hold_out(splits.valid)
    compatibility.refuse_unjudged(run, splits, objective, model, valid)
    who = dict(plan.identity)
    if splits.often is not None:  # [how many rows, how often they come] of those that follow one another
        who["often"] = [[len(list(some)), often] for often, some in groupby(splits.often.round(6).tolist())]
    if frozen := checksum(p for p in model.core.parameters() if not p.requires_grad):  # they are in no checkpoint
        who["frozen weights"] = frozen
    judged = checksum(t for batch in valid for t in vars(batch).values() if isinstance(t, torch.Tensor))
    notes = (*plan.notes, *notes, *compatibility.collect_notes(run, splits, objective, model, hold_out))
    plan = replace(plan, identity=who, judged=judged, notes=notes)
    family = None if begun or model.config else run.model.saved_as
    return Assembly(run, objective, splits, model, plan, hold_out, valid, family)


def build_model(
    run: Run, splits: Splits, objective: Objective, begun: Model | None, tokenizer: Tokenizer | None, *, device: str
) -> Model:
    """A new model of the run's shape, or its base, with an output for labels where it learns them."""
    if tokenizer is None:
        raise QkvError("base {base!r} has no tokenizer to read text with", base=run.base)
    judged = objective.answers == "labels" and splits.kind == "pairs"
    labels: list[str] = sorted({label for _, label in splits.train}) if judged else []  # type: ignore[union-attr]
    if begun and set(begun.labels) == set(labels):  # what its outputs stand for
        labels = list(begun.labels)
    labels = [task_format.RIGHT] if objective.name == "choice" else labels  # one logit an answer
    if begun:
        model = add_labels(begun, run, len(labels), words=not objective.labels_texts)
    else:
        spec = run.model.spec(len(tokenizer), labels=len(labels))
        if objective.labels_texts and not spec.decoder:  # nothing would teach it words
            spec = replace(spec, head=None)
        refuse_oversized(spec, device)
        model = hub.build(spec, seed=run.training.seed, tokenizer=tokenizer)
    if objective.labels_texts and model.spec.decoder:
        tokenizer = vocabulary.frame_texts(tokenizer)
    if objective.name == "chat" and not tokenizer.config.get("chat_template"):
        tokenizer.config["chat_template"] = chat.TEMPLATE
    model.tokenizer = tokenizer
    if labels:
        both = {"both_orders": True} if objective.name == "similarity" else {}
        both |= {"two_texts": True} if run.data and run.data.two_texts else {}
        shared = run.model.segments > 2 or (begun and (begun.config or {}).get("shared_words"))
        both |= {"shared_words": True} if shared and "two_texts" in both else {}
        model.config = label_config(model.spec, labels) | both
    return model


def read_splits(run: Run) -> Splits:
    """The data of a run; QkvError if there is nothing to train or validate on."""
    splits = run.splits()
    if splits.train and splits.valid:
        return splits
    if splits.train and run.data and run.data.valid == 0:
        raise QkvError("data.valid: found 0, expected 1 or more rows to hold out; no validation file is named either")
    name = next((file for kind in FILES for file in getattr(run.data, kind, ())), run.name)
    if splits.train or isinstance(splits.train, str):
        what = Message("characters") if isinstance(splits.train, str) else Message("rows")
        count = len(splits.train) + len(splits.valid)
        raise QkvError("{name}: {count:,} {what} are too few to hold some out for validation; give more, or a file to "
                       "validate with: data.valid_file=FILE", name=name, count=count, what=what)
    raise QkvError("{name}: no data to train on; rows with the same text are kept together, so a set of few different "
                   "texts needs a file to validate with: data.valid_file=FILE", name=name)


def checksum(tensors: Iterable[torch.Tensor]) -> int:
    """A checksum of all that tensors hold."""
    found = (t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes() for t in tensors)
    return reduce(lambda crc, values: zlib.crc32(values, crc), found, 0)


def add_labels(begun: Model, run: Run, labels: int, *, words: bool) -> Model:
    """A trained model, with a new output for labels if there are any; without `words` an encoder has no word output."""
    if not labels:
        return begun
    spec, drop = begun.spec, begun.spec.stack.blocks[0].dropout
    head = spec.head if words or spec.decoder else None
    pooled = run.model.pooling or (begun.pooling.states if begun.pooling else "")
    if pooled not in ("", "first", "last", "mean"):
        raise QkvError("base {base!r} pools texts by {states}; labels read the first, the last or the mean: set "
                       "model.pooling", base=run.base, states=pooled)
    spec = replace(spec, head=head, labels=label_head(spec, labels, drop, pooled))
    core = hub.copy_matching_weights(begun.core, spec, run.training.seed)
    return Model(core, begun.tokenizer, begun.special, label_config(spec, ()), begun.generation_config, begun.pooling)


def attach_adapters(model: Model, run: Run) -> None:
    """Put adapters on a model, and freeze the rest; QkvError without a base, as there is nothing to stand beside."""
    if not run.base:
        raise QkvError("training.lora: an adapter needs a trained model; name it: base = a directory or name")
    model.base = run.base
    lora.attach(model.core, run.training.lora, seed=run.training.seed)


def label_config(spec: Spec, labels: Sequence[str]) -> dict[str, Any]:
    """The config of a model whose labels have names."""
    numbers = {label: i for i, label in enumerate(labels)}
    names = {str(i): label for label, i in numbers.items()}
    return {"model_type": "qkv", "spec": as_json(spec), "id2label": names, "label2id": numbers}


def make_tokenizer(
    run: Run, splits: Splits, objective: Objective, note: Callable[[Message], object] = lambda text: None
) -> Tokenizer:
    """The vocabulary of the training data, one for both languages, with the special tokens that the objective needs."""
    how: dict[str, Any] = {"specials": objective.special_tokens, "template": objective.template}
    if objective.labels_texts and run.model.family == "bert":
        how = {"specials": base.BERT_TOKENS, "template": "cls"}
    if run.tokenizer.of:
        framed = how["template"] == "none" and objective.labels_texts  # build_model() puts ends around texts
        return borrow_tokenizer(run.tokenizer.of, how["specials"], "framed" if framed else how["template"])
    if isinstance(splits.train, Mixture):
        found = text.load(splits.train.shards[0].folder)
        if found is None:
            place = splits.train.shards[0].folder
            raise QkvError("{place}: no tokenizer beside the tokens; pack the text again", place=place)
        return vocabulary.equip(found, how["specials"], how["template"])
    if isinstance(splits.train, str):
        texts: Iterable[str] = [splits.train]
    elif isinstance(splits.train, LargeText):
        texts = chain.from_iterable(scan.parts for scan in splits.train.scans)
    elif splits.kind == "conversations":
        texts = (f"{m['role']}\n{m['content']}" for talk in splits.train for m in talk)  # type: ignore[index]
    else:
        sides = (0,) if objective.answers == "labels" else (0, 1)
        rows = splits.train.sample(SAMPLE) if isinstance(splits.train, MappedRows) else splits.train
        texts = (pair[side] for pair in rows for side in sides)
    if run.tokenizer.bpe_dropout and (ranks := run.tokenizer.ranks()):
        texts = list(texts)
        words = list_pieces((word for one in texts for word in join_parts(one)), ranks)
        texts.append(" ".join(map(spell, words)))  # each piece that dropout makes is known
    words = list_words() if run.data and run.data.corpus else ()  # of a lexicon
    kind, size = run.tokenizer.kind, run.tokenizer.size
    how |= {"words": words, "bigrams": run.tokenizer.bigrams, "note": note}
    wait = partial(tell_progress, Message("training the vocabulary"), of=0)
    return vocabulary.train_vocabulary(  # type: ignore[arg-type]
        texts, kind=kind, size=size, wait=lambda seconds: wait(round(seconds)), **how)


def borrow_tokenizer(name: str, specials: Sequence[str], template: str) -> Tokenizer:
    """The vocabulary of another model, for an objective that needs such special tokens and such ends of texts.

    Raises:
        QkvError: it has no tokenizer, or one made for something else.
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
