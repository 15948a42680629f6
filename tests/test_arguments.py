"""Arguments of public functions: what does not fit an annotation is refused by name, and the rest passes unchanged."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pytest

from qkv.arguments import Count, Range, check_arguments
from qkv.errors import QkvError

if TYPE_CHECKING:
    from fractions import Fraction as Ghost  # imported for types alone: it counts by name


@check_arguments
def ask(
    text: str, number: int = 0, *, share: Annotated[float, Range(0, 1)] = 0.5, top: Count = 1, flag: bool = False,
    kind: Literal["a", "b"] = "a", path: "str | Path | Ghost | None" = None, ids: Sequence[int] = (),
    words: Iterable[str] = (), pair: tuple[int, str] | None = None, tell: Callable[..., Any] | None = None,
    free: Any = None,
) -> tuple[Any, ...]:
    """What people read in help()."""
    return text, number, share, top, flag, kind, path, ids, words, pair, tell, free


GHOST = type("Ghost", (), {})()
FITS: dict[str, list[Any]] = {
    "number": [-1, 2**62, np.int64(3)], "share": [0, 1, 0.5, np.float32(0.5)], "top": [1, np.int64(9)], "flag": [True],
    "kind": ["b"], "path": ["a", Path("a"), GHOST, None], "ids": [[1, 2], (), range(3)], "words": [["a"], iter("ab")],
    "pair": [(1, "a"), None], "tell": [print, None], "free": [object()],
}
WRONG: dict[str, list[Any]] = {
    "number": ["4", True, 2.0, None, [1], 2**63, np.array([1])],
    "share": ["0.5", True, float("nan"), float("inf"), 1.1, -0.1, 1e40, None, 1 + 0j], "top": [0, -1, True, "1"],
    "flag": [0, 1, "true", None], "kind": ["c", ["a"], None, "A"], "path": [b"a", 3, "a\0b", "\ud800", object()],
    "ids": ["12", b"12", [1, "2"], [True], {1: 2}, None, 3], "words": ["ab", [1], {"a": 1}, None, 3],
    "pair": [(1,), (1, 2), ("a", 1), [1, "a"], 3], "tell": [3, "print"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, some in FITS.items() for value in some])
def test_what_fits_passes(name: str, value: Any) -> None:
    got = ask("a", **{name: value})[list(inspect.signature(ask).parameters).index(name)]
    assert got == value
    assert type(got).__module__ != "numpy"


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, some in WRONG.items() for value in some])
def test_what_does_not_fit_is_named(name: str, value: Any) -> None:
    with pytest.raises(QkvError, match=rf"^ask: {name}: found .* of type {type(value).__name__}, expected ") as e:
        ask("a", **{name: value})
    assert e.value.code == "argument"
    assert not e.value.message.to("zh").isascii()


@pytest.mark.parametrize(("given", "named", "says"), [
    (("a",), {"shre": 1}, "unknown argument 'shre'.*'share'"), ((), {}, "text is missing"),
    (("a", 1, 2), {}, "3 arguments in order"), (("a",), {"text": "b"}, "text is given twice"),
])  # fmt: skip
def test_names_are_checked(given: tuple[Any, ...], named: dict[str, Any], says: str) -> None:
    with pytest.raises(QkvError, match=says) as e:
        ask(*given, **named)
    assert e.value.code == "argument"


def test_the_function_stays_what_it_was() -> None:
    assert inspect.signature(ask).parameters["top"].default == 1
    assert (ask.__name__, ask.__doc__) == ("ask", "What people read in help().")
