"""A row of JSON lines: an object, and the texts under its keys."""

import json
from collections.abc import Mapping
from typing import cast

from qkv.errors import QkvError, nearest


def parse_object(text: str, place: str) -> dict[str, object]:
    """The JSON object that a line holds."""
    try:
        item: object = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise QkvError(f"{place}: not JSON: {e}", zh=f"{place}：不是 JSON：{e}") from None
    if not isinstance(item, dict):
        raise QkvError(f"{place}: found a JSON {type(item).__name__}, expected an object",
                       zh=f"{place}：是 JSON 的 {type(item).__name__}，应是对象")  # fmt: skip
    if "\\ud" in text.lower() and any("\ud800" <= c <= "\udfff" for c in json.dumps(item, ensure_ascii=False)):
        raise QkvError(f"{place}: holds half of a character (a lone \\ud800 to \\udfff), which no text can hold",
                       zh=f"{place}：有半个字符（单独的 \\ud800 到 \\udfff），文本里不能有")  # fmt: skip
    return cast("dict[str, object]", item)


def get_string(item: Mapping[str, object], key: str, place: str) -> str:
    return to_string(look_up(item, key, place), key, place)


def look_up(item: Mapping[str, object], path: str, place: str) -> object:
    """What lies under a key, or under a path of keys with dots between; QkvError where there is none."""
    if path in item:
        return item[path]
    value: object = item
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            known = [*map(str, value)] if isinstance(value, Mapping) else []
            hint, there = nearest(key, known), ", ".join(known)
            raise QkvError(f"{place}: no key {path!r}{hint} (found: {there or 'none'})",
                           zh=f"{place}：没有键 {path!r}{hint.zh}（有：{there or '无'}）")  # fmt: skip
        value = value[key]
    return value


def to_string(value: object, key: str, place: str) -> str:
    """The string under a key; a label may be a whole number or true or false, its name then."""
    if key.rpartition(".")[2] == "label" and isinstance(value, int):
        return json.dumps(value)
    if not isinstance(value, str):
        raise QkvError(f"{place}: key {key!r} holds {type(value).__name__}, expected a string",
                       zh=f"{place}：键 {key!r} 的值是 {type(value).__name__}，应是字符串")  # fmt: skip
    return value
