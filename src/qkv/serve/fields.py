"""What a request may say: JSON that is read with bounds, and tables of fields that are checked one by one.

    FIELDS = {"prompt": string(), "n": whole(1, 16), "stream": flag}
    read_fields(body, FIELDS)            # a RequestError names the field, what was found and what was expected
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from qkv.errors import QkvError, nearest
from qkv.messages import Message

Check = Callable[[Any], Any]
LONGEST_TEXT = 1 << 20  # characters of one text
SHOWN = 60  # characters of a wrong value that an error repeats
DEEPEST = 64  # lists and objects in one another


class RequestError(QkvError):
    """A request that is refused: its HTTP status, the field that is wrong, and the `headers` of the answer."""

    def __init__(
        self, template: str, /, *, status: int = 400, code: str = "invalid_value", param: str | None = None,
        headers: Mapping[str, str] | None = None, **fields: Any,
    ) -> None:
        super().__init__(template, code=code, **fields)
        self.status, self.param, self.headers = status, param, headers or {}


class Wrong(Exception):
    """What a field should have been, in words."""

    def __init__(self, message: Message) -> None:
        super().__init__(message)
        self.message = message


def read_object(data: bytes) -> dict[str, Any]:
    """The JSON object of a body.

    Raises:
        RequestError: it is no UTF-8, no JSON, too deep, no object, or says a key twice.
    """
    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=read_pairs, parse_constant=refuse_constant)
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeDecodeError as e:
        raise RequestError("the body is no UTF-8 at byte {at}", code="invalid_json", at=e.start) from None
    except UnicodeEncodeError:
        raise RequestError("there is half a character in the body: a lone surrogate", code="invalid_json") from None
    except RecursionError:
        raise RequestError("the body has too many lists in lists", code="invalid_json") from None
    except json.JSONDecodeError as e:
        raise RequestError("the body is no JSON: line {line}, column {column}", code="invalid_json", line=e.lineno,
                           column=e.colno) from None
    except RequestError:
        raise
    except ValueError:  # a number of thousands of digits
        raise RequestError("there is a number in the body that is too long", code="invalid_json") from None
    if not isinstance(found, dict):
        raise RequestError("the body is {found}, expected a JSON object", code="invalid_json", found=name_kind(found))
    check_depth(found)
    return found


def read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, in which no key comes twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise RequestError("{key!r} is said twice", code="invalid_json", key=clip_text(twice))
    return found


def refuse_constant(name: str) -> Any:
    """NaN and Infinity, which Python's reader takes."""
    raise RequestError("{name} is no number of JSON", code="invalid_json", name=name)


def check_depth(value: Any) -> None:
    """A RequestError for more than DEEPEST lists and objects in one another."""
    level: list[Any] = [value]
    for _ in range(DEEPEST + 1):
        inside = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for each in inside for one in each if isinstance(one, dict | list)]
        if not level:
            return
    raise RequestError("the body has more than {deepest} lists and objects in one another", code="invalid_json",
                       deepest=DEEPEST)


def read_fields(body: Mapping[str, Any], table: Mapping[str, Check]) -> dict[str, Any]:
    """The fields that a body has, each checked; null is as if it were left out.

    Raises:
        RequestError: a field that is not in the table, with the nearest one, or a value that it cannot have.
    """
    found: dict[str, Any] = {}
    for key, value in body.items():
        if key not in table:
            raise RequestError("{key}: there is no such field{hint}", code="unknown_field", param=clip_text(key),
                               key=clip_text(key), hint=nearest(key[:SHOWN], table))
        if value is not None:
            found[key] = check_field(key, value, table[key])
    return found


def check_field(key: str, value: Any, check: Check) -> Any:
    """A value as its check gives it; a RequestError names the field."""
    try:
        return check(value)
    except Wrong as e:
        raise RequestError("{key}: found {found}, expected {wanted}", param=key, key=key, found=show_value(value),
                           wanted=e.message) from None


def require(found: Mapping[str, Any], key: str) -> Any:
    """A field that must be there."""
    if key not in found:
        raise RequestError("{key} is missing", code="missing_field", param=key, key=key)
    return found[key]


def show_value(value: Any) -> str:
    """The beginning of a value as JSON, or only its kind where that is long."""
    if isinstance(value, list | dict):
        return name_kind(value)
    if isinstance(value, int) and abs(value) > 1 << 63:
        return f"{value:.3g}" if abs(value) < 1e300 else name_kind(value)  # type: ignore[operator]
    return clip_text(json.dumps(value, ensure_ascii=False))


def clip_text(text: str) -> str:
    """The beginning of a text."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def name_kind(value: Any) -> Message:
    """What kind of JSON value this is."""
    kinds = {bool: Message("true or false"), int: Message("a number"), float: Message("a number"),
             str: Message("a text"), list: Message("a list"), dict: Message("an object")}
    return kinds.get(type(value), Message("null"))


# Checks: each gives the value or raises Wrong with what was expected


def whole(low: int, high: int) -> Check:
    """A whole number within bounds."""

    def check(value: Any) -> int:
        if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Wrong(Message("a whole number from {low} to {high}", low=low, high=high))
        return value

    return check


def number(low: float, high: float) -> Check:
    """A number within bounds."""

    def check(value: Any) -> float:
        right = isinstance(value, int | float) and not isinstance(value, bool)
        if not right or not low <= value <= high or not math.isfinite(value):
            raise Wrong(Message("a number from {low} to {high}", low=low, high=high))
        return float(value)

    return check


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise Wrong(Message("true or false"))
    return value


def string(longest: int = LONGEST_TEXT) -> Check:
    """A text of at most so many characters."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or len(value) > longest:
            raise Wrong(Message("a text of at most {longest} characters", longest=longest))
        return value

    return check


def choice(*known: str) -> Check:
    """One of some words."""

    def check(value: Any) -> str:
        if value not in known:
            raise Wrong(Message("one of {known}", known=", ".join(known)))
        return value

    return check


def texts(most: int, longest: int = LONGEST_TEXT) -> Check:
    """A text, or a list of at most so many: always a list."""

    def check(value: Any) -> list[str]:
        found = [value] if isinstance(value, str) else value
        right = isinstance(found, list) and len(found) <= most
        if not right or not all(isinstance(one, str) and len(one) <= longest for one in found):
            raise Wrong(Message("a text, or a list of at most {most} texts", most=most))
        return found

    return check


def prompts(most: int) -> Check:
    """A text or the ids of one, or a list of at most so many: always a list."""

    def check(value: Any) -> list[Any]:
        found = [value] if isinstance(value, str) or is_ids(value) else value
        if not isinstance(found, list) or not 0 < len(found) <= most:
            raise Wrong(Message("a text, token ids, or a list of 1 to {most} of them", most=most))
        if not all((isinstance(one, str) and len(one) <= LONGEST_TEXT) or is_ids(one) for one in found):
            raise Wrong(Message("a text, token ids, or a list of 1 to {most} of them", most=most))
        return found

    return check


def is_ids(value: Any) -> bool:
    """Whether this is a list of whole numbers, at least one."""
    right = isinstance(value, list) and 0 < len(value) <= LONGEST_TEXT
    return right and all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 1 << 31 for one in value)


def objects(most: int, least: int = 1) -> Check:
    """A list of objects."""

    def check(value: Any) -> list[dict[str, Any]]:
        if not (isinstance(value, list) and least <= len(value) <= most and all(isinstance(v, dict) for v in value)):
            raise Wrong(Message("a list of {least} to {most} objects", least=least, most=most))
        return value

    return check


def mapping(most: int = 1024) -> Check:
    """An object of at most so many keys."""

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > most:
            raise Wrong(Message("an object of at most {most} keys", most=most))
        return value

    return check


def anything(value: Any) -> Any:
    """Whatever it is: what clients say about themselves and nobody reads."""
    return value
