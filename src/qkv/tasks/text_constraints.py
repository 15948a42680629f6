"""Constraints on a text as ids and guides: biases, a beginning, phrases to include or avoid."""

from collections.abc import Mapping, Sequence
from typing import Any

from qkv.errors import QkvError
from qkv.generation.constraints import Avoiding, Beginning, Guide, Holding, join_guides
from qkv.tasks.types import Model, Prompt, as_ids, as_list

CONSTRAINTS = ("target_prefix", "must_include", "must_avoid")


def read_bias(model: Model, given: Any) -> tuple[tuple[int, float], ...]:
    """A logit bias of ids, or of texts that are one token each, as pairs.

    Raises:
        QkvError: no such id, or a text of several tokens.
    """
    if not isinstance(given, Mapping):
        raise QkvError("logit_bias: found {given!r}, expected tokens with a number for each, such as {some}",
                       code="logit-bias", given=given, some='{" tea": 2.5, 17: -100}')
    found: dict[int, float] = {}
    for token, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise QkvError("logit_bias[{token!r}]: found {value!r}, expected a number", code="logit-bias", token=token,
                           value=value)
        number = find_token(model, token) if isinstance(token, str) else as_ids([token], model.spec.vocabulary)[0]
        found[number] = float(value)
    return tuple(sorted(found.items()))


def find_token(model: Model, text: str) -> int:
    """The id of a text that is one token."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise QkvError("this model has no tokenizer: give token ids instead of text")
    special = tokenizer.id(text)
    ids = [special] if special in tokenizer.special_ids else tokenizer.encode(text, special=False, side="target")
    if len(ids) != 1 or ids[0] is None or (ids[0] == tokenizer.unk_id and special is None):
        raise QkvError("logit_bias: {text!r} is {count} tokens ({pieces}), expected one; name its tokens or their ids",
                       code="logit-bias", text=text, count=len(ids),
                       pieces=", ".join(map(repr, tokenizer.pieces([i for i in ids if i is not None]))))
    return ids[0]


def make_guides(model: Model, count: int, constraints: Mapping[str, Any]) -> tuple[Guide, ...]:
    """The guide of each of `count` sources; none at all where nothing is asked.

    Raises:
        QkvError: a constraint that cannot be met, such as a word that the vocabulary lacks; it is named.
    """
    if not any(constraints.values()):
        return ()
    beginnings = spread_beginning(constraints.get("target_prefix"), count)
    include, avoid = (spread_phrases(constraints.get(name), count, name) for name in CONSTRAINTS[1:])
    guides: list[Guide] = []
    for beginning, some, others in zip(beginnings, include, avoid, strict=True):
        parts: list[Guide] = []
        if len(beginning):
            parts.append(Beginning(spell_phrase(model, beginning, "target_prefix")[0]))
        if some:
            spelt = [spell_phrase(model, one, "must_include") for one in some]
            parts.append(Holding.from_spellings(spelt, model.special.eos))
        if others:
            parts.append(avoid_phrases(model, others, [beginning, *some]))
        guides.append(join_guides(parts) or Beginning(()))
    return tuple(guides)


def spread_beginning(given: Any, count: int) -> list[Prompt]:
    """The beginning of each target: one for all, or a list with one for each."""
    if given is None:
        return [""] * count
    many, found = as_list(["" if one is None else one for one in given] if isinstance(given, list | tuple) else given)
    return check_count(found, count, "target_prefix") if many else found * count


def spread_phrases(given: Any, count: int, name: str) -> list[list[Prompt]]:
    """The phrases of each target: a list for all, or a list of lists with one for each; a phrase is a text or ids."""
    given = [] if given is None else [given] if isinstance(given, str) else given
    if isinstance(given, list | tuple) and all(is_phrase(one) for one in given):
        return [list(given)] * count
    rows: list[Any] = list(given) if isinstance(given, list | tuple) else [None]
    if not all(isinstance(one, list | tuple) and all(is_phrase(p) for p in one) for one in rows):
        raise QkvError("{name}: found {given!r}, expected a list of texts, or one such list for each source",
                       code="phrases", name=name, given=given)
    return check_count([list(one) for one in rows], count, name)


def is_phrase(one: Any) -> bool:
    """Whether this is a text, or the ids of one."""
    return isinstance(one, str) or (isinstance(one, list | tuple) and bool(one) and all(type(i) is int for i in one))


def check_count(found: list[Any], count: int, name: str) -> list[Any]:
    """A list with one of each for every source; QkvError if it has another length."""
    if len(found) != count:
        raise QkvError("{name}: found {found} for {count} texts, expected one for all or one for each", code="count",
                       name=name, found=len(found), count=count)
    return found


def spell_phrase(model: Model, phrase: Prompt, name: str) -> list[tuple[int, ...]]:
    """The spellings of a phrase in ids, as it begins a text and as it stands within one.

    Raises:
        QkvError: it is empty, or holds what the vocabulary lacks or the model never writes.
    """
    tokenizer = model.tokenizer
    if isinstance(phrase, str):
        if not phrase.strip():
            raise QkvError("{name}: found an empty text; remove it", code="empty", name=name)
        if tokenizer is None:
            raise QkvError("this model has no tokenizer: give token ids instead of text")
        rows = [tokenizer.encode(text, special=False, side="target") for text in (phrase, f" {phrase}")]
    else:
        rows = [as_ids(phrase, model.spec.vocabulary)]
    never = {*model.special.forbid, *model.special.eos}
    never |= set() if tokenizer is None or not isinstance(phrase, str) else {tokenizer.unk_id}
    found = list(dict.fromkeys(tuple(row) for row in rows if row and not never & set(row)))
    if not found:
        parts = phrase.split() if isinstance(phrase, str) else phrase
        wrong = [part for part in parts if isinstance(part, int) and part in never] or [
            part for part in parts if tokenizer and isinstance(part, str)
            and never & set(tokenizer.encode(part, special=False, side="target"))]
        raise QkvError("{name} {phrase!r}: it holds what the vocabulary lacks or this model never writes ({wrong})",
                       code="unknown-words", name=name, phrase=phrase, wrong=", ".join(map(str, wrong or parts)))
    return found


def avoid_phrases(model: Model, phrases: Sequence[Prompt], wanted: Sequence[Prompt]) -> Guide:
    """The guide that keeps phrases out of a text; QkvError where one of them is part of what is wanted."""
    texts = tuple(one for one in phrases if isinstance(one, str))
    for one in texts:
        if not one:
            raise QkvError("{name}: found an empty text; remove it", code="empty", name="must_avoid")
        clash = next((text for text in wanted if isinstance(text, str) and one in text), None)
        if clash is not None:
            raise QkvError("must_avoid {one!r} is part of {clash!r}, which the text must hold; remove one of them",
                           code="contradiction", one=one, clash=clash)
    ids = tuple(tuple(as_ids(one, model.spec.vocabulary)) for one in phrases if not isinstance(one, str))
    ends = set(model.special.eos)
    return Avoiding(texts, ids, lambda tokens: model.text([t for t in tokens if t not in ends]))
