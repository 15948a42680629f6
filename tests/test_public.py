"""The public names are a promise: they exist, they are all, and no module hides one of them."""

import pkgutil
from importlib import import_module

import pytest

import qkv


@pytest.mark.parametrize("name", qkv.__all__)
def test_every_public_name_is_there_and_stays_itself(name: str) -> None:
    first = getattr(qkv, name)
    import_module(getattr(first, "__module__", "qkv"))
    assert getattr(qkv, name) is first
    assert name in dir(qkv)


def test_no_public_name_is_a_module_of_the_library() -> None:
    modules = {module.name for module in pkgutil.iter_modules(qkv.__path__)}
    assert modules & {name.lower() for name in qkv.__all__ if name != "Spec"} == set()
    assert "Spec" not in modules


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'lod'.*load, build"):
        _ = qkv.lod


def test_the_version_is_the_package_s() -> None:
    assert qkv.__version__.count(".") == 2
