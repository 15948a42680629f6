"""A row of JSON lines: an object, and the texts under its keys."""

import json
from collections.abc import Mapping, Sequence
from typing import cast

from qkv.data.text_files import refuse_blank
from qkv.errors import QkvError, nearest
from qkv.messages import Message

LABEL_KEYS = ("label", "labels", "class", "category", "sentiment", "stars", "rating", "score", "topic", "intent",
              "标签", "类别", "情感")


def parse_object(text: str, place: str) -> dict[str, object]:
    """The JSON object that a line holds."""
    try:
        item: object = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise QkvError("{place}: not JSON: {e}", place=place, e=e) from None
    if not isinstance(item, dict):
        raise QkvError("{place}: found a JSON {kind}, expected an object", place=place, kind=type(item).__name__)
    if "\\ud" in text.lower() and any("\ud800" <= c <= "\udfff" for c in json.dumps(item, ensure_ascii=False)):
        raise QkvError('{place}: contains half of a character (an unpaired \\ud800 to \\udfff), which is not valid '
                       "text",
                       place=place)
    return cast("dict[str, object]", item)


def get_texts(item: Mapping[str, object], keys: Sequence[str], place: str) -> tuple[str, ...]:
    """The strings under keys, none of them blank."""
    return refuse_blank(tuple(get_string(item, key, place) for key in keys), keys, place)


def get_string(item: Mapping[str, object], path: str, place: str) -> str:
    """The string under a key, or under a path of keys with dots between.

    A label, under one of LABEL_KEYS, may be a whole number or true or false, its name then.

    Raises:
        QkvError: no such key, or something other than a string there.
    """
    value: object = item
    for key in [path] if path in item else path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            known = [*map(str, value)] if isinstance(value, Mapping) else []
            hint, there = nearest(key, known), ", ".join(known)
            raise QkvError("{place}: no key {path!r}{hint} (found: {there})", place=place, path=path, hint=hint,
                           there=there or Message("none"))
        value = value[key]
    if path.rpartition(".")[2].lower() in LABEL_KEYS and isinstance(value, int):
        return json.dumps(value)
    if not isinstance(value, str):
        raise QkvError("{place}: key {key!r} holds {kind}, expected a string", place=place, key=path,
                       kind=type(value).__name__)
    return value
