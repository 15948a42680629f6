"""The languages that a translation model has tokens for, and where these stand in NLLB, M2M-100 and mBART."""

import re
from dataclasses import replace

from qkv.errors import QkvError, nearest
from qkv.messages import Message
from qkv.tasks.types import Model, SpecialTokens

CODE = re.compile(r"__([a-z]{2,3})__|([a-z]{2,3}_[A-Z][A-Za-z]{1,3})")  # __zh__, zh_CN, zho_Hans


def list_languages(model: Model) -> dict[str, int]:
    """The token of each language by its code; of __zh__ the code is zh."""
    if model.tokenizer is None:
        return {}
    special = ((i, model.tokenizer.lookup(i)) for i in model.tokenizer.special_ids if i is not None)
    found = ((CODE.fullmatch(token or ""), i) for i, token in special)
    return dict(sorted((match[1] or match[2], i) for match, i in found if match))


def find_language(model: Model, option: str, code: str) -> int:
    """The token of a language.

    Raises:
        QkvError: the model has no tokens of languages, or none of this one; the nearest is named.
    """
    known = list_languages(model)
    if not known:
        raise QkvError("{option}={language!r}: the tokenizer of this model has no tokens of languages; it translates "
                       "between those that it was trained on", option=option, language=code)
    if code not in known:
        raise QkvError("{option}: unknown language {language!r}{hint} ({count} are known: {listed})", option=option,
                       language=code, hint=nearest(code, known), count=len(known), listed=shorten(list(known)))
    return known[code]


def shorten(codes: list[str], most: int = 12) -> str:
    """The first codes of many."""
    return ", ".join(codes[:most]) + (", …" if len(codes) > most else "")


def mark_source(model: Model, ids: list[int], language: int) -> list[int]:
    """The ids of a source with this language where its template has one: before the text, or behind its end."""
    known = set(list_languages(model).values())
    at = next((i for i in (0, -1) if ids and ids[i] in known), None)
    if at is None:
        return [language, *ids]
    return [language, *ids[1:]] if at == 0 else [*ids[:-1], language]


def mark_target(model: Model, code: str | None) -> SpecialTokens:
    """The special tokens with which a translation begins in this language: behind the start, or in its place.

    Raises:
        QkvError: the model has languages, and neither is one named here nor in its configs.
    """
    known, special = list_languages(model), model.special
    if code is not None:
        language = find_language(model, "target", code)
        return replace(special, **{"start" if special.start in known.values() else "forced": language})
    if known and special.forced is None and special.start not in known.values():
        raise QkvError("this model translates into {count} languages; name one with {option} ({listed})",
                       count=len(known), option=Message("target=, or --to"), listed=shorten(list(known)))
    return special
