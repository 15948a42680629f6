"""Whether the parts of a run fit together: what it learns from its data, what is refused, and notes on the rest.

All of it happens before step 1, so that no training is lost to it. Next: assemble.py.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from operator import attrgetter
from types import SimpleNamespace as Namespace
from typing import Any

from qkv.data.shards import Mixture
from qkv.errors import QkvError, nearest
from qkv.messages import Message, join
from qkv.model import Model
from qkv.spec import as_json
from qkv.training import optim
from qkv.training.data_files import Data
from qkv.training.objectives import OBJECTIVES
from qkv.training.objectives.base import Batches, HoldOut, Objective
from qkv.training.objectives.chat import split_last_answers
from qkv.training.objectives.spans import SENTINELS
from qkv.training.run import Check, ProbeSettings, Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import LEARNT_BY, Shape
from qkv.training.splits import Splits

LEARNS = {"encoder-decoder": "pairs", "encoder": "masked", "prefix decoder": "prefixes", "causal decoder": "text"}


def choose_objective(run: Run, splits: Splits, begun: Model | None) -> Objective:
    """What the run learns: what it says, else what such data and such a model usually mean.

    Raises:
        QkvError: no such objective, or one that takes other data.
    """
    kind = begun.spec.architecture if begun else ""
    usual = LEARNS[kind] if begun else LEARNT_BY[run.model.family]
    if begun and kind == "encoder-decoder" and splits.kind in ("plain text", "token shards"):
        usual = guess_reconstruction(begun)
    asked = splits.kind == "conversations" or (splits.kind == "pairs" and kind == "causal decoder")
    name = run.objective or ("chat" if asked else usual)
    if name not in OBJECTIVES:
        hint, known = nearest(name, OBJECTIVES), ", ".join(OBJECTIVES)
        raise QkvError("objective: found {name!r}{hint} (known: {known})", name=name, hint=hint, known=known)
    if splits.kind in OBJECTIVES[name].data.split(" or "):
        return OBJECTIVES[name]
    fit = [known for known, o in OBJECTIVES.items() if splits.kind in o.data.split(" or ") and (
           not kind or kind in o.models)]
    if run.objective or begun:
        whose = Message("; for these and this base ({kind})", kind=kind) if kind else Message("; for these")
        raise QkvError("objective {name!r} takes {name_kinds}, found {name_kinds2}{whose} there are: {fit}; set "
                       "objective to one of them", name=name, name_kinds=name_kinds(OBJECTIVES[name].data),
                       name_kinds2=name_kinds(splits.kind), whose=whose, fit=", ".join(fit) or Message("none"))
    families = ", ".join(repr(family) for family, usual in LEARNT_BY.items() if usual in fit)
    raise QkvError("model.family {family!r} does not fit {name_kinds}; these do: {families}; or choose what it "
                   "learns: objective = one of {fit}", family=run.model.family, name_kinds=name_kinds(splits.kind),
                   families=families, fit=", ".join(fit))


def name_kinds(kinds: str) -> Message:
    """The names of kinds of data, such as "pairs or conversations"."""
    names = (Message("pairs"), Message("plain text"), Message("token shards"), Message("conversations"))
    return join(" or ", [name for kind in kinds.split(" or ") for name in names if name == kind])


def guess_reconstruction(begun: Model) -> str:
    """What an encoder-decoder learns from plain text: what its vocabulary has marks for."""
    tokenizer = begun.tokenizer
    if tokenizer is not None and tokenizer.id(SENTINELS[0]) is not None:
        return "spans"
    return "pairs" if tokenizer is None or tokenizer.mask_id is None else "denoise"


def refuse_misfits(run: Run, splits: Splits, objective: Objective, model: Model) -> None:
    """QkvError if a setting would be ignored, or does not fit the objective, the model or another setting."""
    s, dropped = run.training, run.tokenizer.bpe_dropout
    what = Message("token shards are tokenized already") if objective.bpe_dropout else (
        Message("these texts are tokenized only once"))
    rules = (
        (dropped and (not objective.bpe_dropout or isinstance(splits.train, Mixture)),
         Message("tokenizer.bpe_dropout={bpe_dropout}: {what}; remove it (it works with {fit})", bpe_dropout=dropped,
                 what=what, fit=", ".join(name for name, o in OBJECTIVES.items() if o.bpe_dropout))),
        (s.word_dropout and not (objective.name == "pairs" or objective.labels_texts),
         Message("training.word_dropout={word_dropout}: it works only with labelled texts and with pairs; remove it",
                 word_dropout=s.word_dropout)),
        (run.data and run.data.two_texts and objective.answers != "labels",
         Message("{name}: two texts and a label are read of each row, which objective {name2!r} cannot learn; name two "
                 "columns or keys", name=run.name, name2=objective.name)),
        (run.model.segments > 2 and "shared_words" not in (model.config or {}),
         Message("model.segments=4: it works only with two texts that have one label, and a new bert; remove it")),
        (s.rare_words and not objective.labels_texts,
         Message("training.rare_words={rare_words}: it works only with labelled texts; remove it",
                 rare_words=s.rare_words)),
        (run.tokenizer.bigrams and not (objective.labels_texts and not model.spec.decoder),
         Message("tokenizer.bigrams: it works only with labelled texts and an encoder; remove it")),
        (s.refit and (isinstance(splits.train, str | Mixture) or s.shard or s.tensor_parallel > 1),
         Message("training.refit={refit}: it works only with rows, such as labelled texts, and with whole weights in "
                 "each process; remove it", refit=s.refit)),
        (s.word_dropout and s.scheduled_sampling,
         Message("training.scheduled_sampling: the model guesses from true words, which training.word_dropout makes "
                 "unknown; remove one of them")),
        (s.rdrop and not has_dropout(as_json(model.spec)),
         Message("training.rdrop={rdrop}: two passes of a model without dropout are equal; set model.dropout=0.1, or "
                 "remove rdrop", rdrop=s.rdrop)),
        (model.spec.architecture not in objective.models,
         Message("{name}: objective {name2!r} needs a model of kind {fit}; this one is: {architecture}", name=run.name,
                 name2=objective.name, fit=" or ".join(objective.models), architecture=model.spec.architecture)),
    )
    if why := next((why for refused, why in rules if refused), None):
        raise QkvError(why)


def has_dropout(part: Any) -> bool:
    """Whether a spec, as JSON, has a dropout above zero anywhere."""
    if isinstance(part, dict):
        return any((key == "dropout" and bool(value)) or has_dropout(value) for key, value in part.items())
    return isinstance(part, list) and any(map(has_dropout, part))


def refuse_unjudged(run: Run, splits: Splits, objective: Objective, model: Model, valid: Batches) -> None:
    """QkvError where an evaluation would fail: a metric that it does not give, a prompt that cannot be continued."""
    textual = isinstance(splits.valid, str | Mixture)
    for prompt in run.check.prompts if textual and objective.answers == "texts" else ():
        if not prompt.strip() or not leaves_room(model, prompt):
            found = Message("an empty text")
            if prompt.strip():
                found = Message("{ids} tokens", ids=len(model.ids(prompt)))
            raise QkvError("check.prompts: found {found} ({prompt!r}), expected a text that fits into the context of "
                           "{context} tokens and leaves room to continue it", found=found, prompt=prompt[:40],
                           context=run.model.context)
    if not valid or run.training.metric == "loss":
        return
    known = [*objective.measure(model.core, [valid[0].to(model.device)])]
    if not textual and objective.answers == "labels":
        known.append("exact_match")
    elif not textual and run.check.sentences:
        known += ["bleu", "exact_match"]
    elif run.training.metric in ("bleu", "exact_match") and not textual:
        raise QkvError("check.sentences: found 0, expected at least 1: translations of held-out sentences give "
                       "training.metric={metric}", metric=run.training.metric)
    run.training.is_better(dict.fromkeys(known, 0.0), None)


def leaves_room(model: Model, source: Any) -> bool:
    """Whether a source leaves the model that answers it room to begin."""
    ids = model.ids(source) if isinstance(source, str) else model.conversation(source)
    context = model.core.encoder.spec.longest if model.encoder_decoder else model.spec.context
    return context is None or len(ids) + (0 if model.encoder_decoder else 2) <= context


def note_overruled(run: Run, splits: Splits, begun: Model | None) -> tuple[Message, ...]:
    """Notes on settings that a base, or the vocabulary of another model, overrides.

    Raises:
        QkvError: another's vocabulary is named, and the base or the data have theirs.
    """
    cut = run.tokenizer
    own = replace(run.model, context=Shape.context, family=Shape.family, pooling=Shape.pooling) != Shape()
    if cut.of and (begun or isinstance(splits.train, Mixture)):
        whose = Message("that of the token shards")
        whose = Message("the base's ({base})", base=run.base) if begun else whose
        raise QkvError("tokenizer.of={of}: this run's vocabulary is {whose}; remove tokenizer.of", of=cut.of,
                       whose=whose)
    room, whose = (begun.spec.context if begun else None) or 0, run.base or cut.of
    rules = (
        (run.base and own,
         Message("the model is that of {base}: of [model], only context and pooling are used", base=run.base)),
        (room and Shape.context != run.model.context > room,
         Message("model.context={context}: {base} reads at most {room} tokens, so rows are limited to that",
                 context=run.model.context, base=run.base, room=room)),
        (whose and (cut.kind, cut.size) != (Vocabulary.kind, Vocabulary.size),
         Message("the vocabulary is that of {whose}: kind and size in [tokenizer] are ignored", whose=whose)),
    )
    return tuple(note for holds, note in rules if holds)


def collect_notes(run: Run, splits: Splits, objective: Objective, model: Model, hold_out: HoldOut) -> tuple[str, ...]:
    """All notes on how data, model and settings fit together, before step 1."""
    pairs, texts = splits.kind == "pairs", objective.answers == "texts"
    notes: list[Message | None] = []
    if pairs and not texts and objective.name != "choice":
        notes.append(note_unknown_labels(splits, model.labels))
    if texts and not isinstance(splits.valid, str | Mixture):
        notes.append(note_unanswerable(run, splits, model))
    if pairs and not run.objective and (texts or objective.name == "masked"):
        notes.append(note_label_like(splits))
    notes += note_idle_settings(run, splits, objective, model)
    if isinstance(splits.test, str) and splits.test and not hold_out(splits.test):
        notes.append(Message("the test text is too short for this objective: it will not be judged"))
    return tuple(note for note in notes if note)


def note_idle_settings(run: Run, splits: Splits, objective: Objective, model: Model) -> list[Message]:
    """The note on settings that differ from the defaults and have no effect in this run; empty without any."""
    s, data = run.training, run.data or Data()
    textual, adam = isinstance(splits.train, str | Mixture), s.optimizer != "adafactor"
    moe = [block.moe for block in model.spec.stack.blocks if block.moe]
    rows = not textual and not data.corpus
    used_settings = {
        "training.moe_aux_loss": moe, "training.moe_bias_lr": any(m.balance == "bias" for m in moe),
        "training.auxiliary": objective.labels_texts and model.spec.decoder and model.spec.head,
        "training.floor": s.schedule in ("cosine", "linear", "wsd"), "training.decay": s.schedule == "wsd",
        "check.prompts": textual, "training.scheduled_sampling_ramp": s.scheduled_sampling,
        "training.betas": adam, "training.eps": adam,
        "data.columns": data.tsv, "data.keys": data.jsonl or data.dataset, "data.apart": rows and not data.messages,
        "data.overlap": rows, "data.valid": rows, "data.test": rows and not data.dataset,
        "data.quarantine": data.on_bad_row == "quarantine", "tokenizer.merges": run.tokenizer.kind == "split",
        **{f"training.lora.{key}": s.lora.rank for key in ("alpha", "targets", "also")},
        **{f"watch.{f.name}": run.watch.times or run.watch.steps for f in fields(ProbeSettings)},
    }
    usual = Namespace(training=Settings(), check=Check(), data=Data(), tokenizer=Vocabulary(), watch=ProbeSettings())
    own = Namespace(training=s, check=run.check, data=data, tokenizer=run.tokenizer, watch=run.watch)
    found = [name for name, used in used_settings.items()
             if not used and attrgetter(name)(own) != attrgetter(name)(usual)]
    notes = [Message("these settings have no effect in this run: {found}", found=", ".join(found))] if found else []
    if s.optimizer == "muon" and not optim.hidden_matrices(model.core):
        notes.append(Message("training.optimizer=muon: no matrix of a layer is trained here, so AdamW trains all "
                             "weights"))
    return notes


def note_label_like(splits: Splits) -> Message | None:
    """The note on pairs whose second side looks like labels, if no objective was given."""
    sides = Counter[str]()
    for _, side in splits.train:  # type: ignore[misc]
        sides[side] += 1
        if len(sides) > 20:
            return None
    if len(splits.train) < 20 * len(sides):
        return None
    some = ", ".join(repr(side[:20]) for side, _ in sides.most_common(4))
    return Message("the second column has only {sides} different texts ({some}): if these are labels, set "
                   "objective=labels", sides=len(sides), some=some)


def note_unknown_labels(splits: Splits, labels: Sequence[str]) -> Message | None:
    """The note on held-out texts whose label no training text has."""
    if len(labels) == 1:
        return Message("all training texts have one label, {labels!r}: there is nothing to distinguish",
                       labels=labels[0])
    found = Counter(label for part in (splits.valid, splits.test) for _, label in part if label not in labels)  # type: ignore[misc]
    some = ", ".join(map(repr, sorted(found)[:3]))
    return Message("{total} held-out texts have a label that no training text has ({some}): they always count as "
                   "wrong, and the loss ignores them", total=found.total(), some=some) if found else None


def note_unanswerable(run: Run, splits: Splits, model: Model) -> Message | None:
    """The note on held-out sources that are too long to be answered."""
    rows = [*split_questions(splits.valid)[: run.check.sentences], *split_questions(splits.test)]
    over = sum(not leaves_room(model, source) for source, _ in rows)
    return Message("{over:,} of {rows:,} held-out sources do not fit into the context of {room} tokens: they count as "
                   "empty answers; raise model.context", over=over, rows=len(rows),
                   room=run.model.context) if over else None


def split_questions(rows: Any) -> list[tuple[Any, str]]:
    """What a model is asked and what it should answer: pairs as they are, conversations up to their last answer."""
    return split_last_answers(rows) if rows and isinstance(rows[0][0], dict) else list(rows)
