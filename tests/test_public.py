"""The public names are a promise: they exist, they are all, and no module hides one of them."""

import ast
import pkgutil
import sys
from importlib import import_module
from pathlib import Path

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
    assert modules & set(qkv.__all__) == set()  # spec.py holds Spec and model.py Model: another attribute each
    assert modules & {name.lower() for name in qkv.__all__} == {"spec", "model"}


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'lod'.*load, build"):
        _ = qkv.lod


def test_the_version_is_the_package_s() -> None:
    assert qkv.__version__.count(".") == 2


# asked for where it is needed, with a way out
OPTIONAL = {"check.py": {"transformers"}, "figure.py": {"matplotlib"}, "figures.py": {"matplotlib"},
            "forms.py": {"matplotlib"}, "tables.py": {"datasets"}, "grammar.py": {"llguidance"}}  # fmt: skip


def test_the_package_imports_nothing_but_its_dependencies() -> None:
    """Every verb runs from the bare install: whatever a module imports is the stdlib, qkv, or a core dependency."""
    root = Path(qkv.__file__).parent
    allowed = {"torch", "safetensors", "tokenizers", "huggingface_hub", "jinja2", "click", "rich", "numpy", "sacrebleu",
               "starlette", "uvicorn", "filelock", "qkv"} | set(sys.stdlib_module_names)  # fmt: skip
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            foreign = {n.split(".")[0] for n in names} - allowed
            foreign -= OPTIONAL.get(path.name, set())
            assert not foreign, f"{path.relative_to(root)} imports {foreign}"
