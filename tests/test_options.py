"""Options as frozen dataclasses: nested mappings and `a.b=c` words go in, mistakes name the key and the nearest one."""

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from qkv.errors import QkvError
from qkv.options import parse_assignments, parse_value, replace_from_dict, validate


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    count: int = 1
    kind: Literal["left", "right"] = "left"
    limit: int | None = None
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        validate("outer", self)


def test_words_become_nested_options_of_the_right_types() -> None:
    words = ["count=3", "kind=right", "limit=7", "inner.rate=1", "inner.names=a.txt"]
    made = replace_from_dict(Outer(), parse_assignments(words))
    assert made == Outer(3, "right", 7, Inner(1.0, ("a.txt",)))
    assert type(made.inner.rate) is float


@pytest.mark.parametrize(("words", "key"), [
    (["cuont=3"], "cuont: unknown key; did you mean 'count'"), (["kind=rihgt"], "kind.*did you mean 'right'"),
    (["inner.nmaes=a"], "inner.nmaes: unknown key; did you mean 'names'"), (["count=true"], "count.*whole number"),
    (["inner=3"], "inner: found 3"), (["count"], "key=value"), (["a=1", "a.b=2"], "a.b=2.*already"),
])  # fmt: skip
def test_a_mistake_names_its_key(words: list[str], key: str) -> None:
    with pytest.raises(QkvError, match=key):
        replace_from_dict(Outer(), parse_assignments(words))


def test_who_knows_more_of_an_unknown_key_is_asked_first() -> None:
    def explain(name: str) -> None:
        raise QkvError(f"{name} is gone")

    with pytest.raises(QkvError, match=r"inner\.speed is gone"):
        replace_from_dict(Outer(), {"inner": {"speed": 1}}, on_unknown=explain)


def test_values_that_are_given_in_python_are_checked_too() -> None:
    with pytest.raises(QkvError, match=r"outer\.kind: found 'up'"):
        Outer(kind="up")  # type: ignore[arg-type]
    with pytest.raises(QkvError, match=r"outer\.count: found 1\.5"):
        Outer(count=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("word", "value"), [
    (".1", 0.1), ("1.", 1.0), ("-.5e-3", -0.0005), ("1e-3", 0.001), ("3", 3), ("1.5.2", "1.5.2"), (".", "."),
    (".a", ".a"), ("v.1", "v.1"), ("", ""),
])  # fmt: skip
def test_a_number_may_be_written_as_people_write_it(word: str, value: Any) -> None:
    found = parse_value(word)
    assert (found, type(found)) == (value, type(value))
