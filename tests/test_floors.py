"""The house rules, read off the syntax tree: imports point down, families are blind, no pickle, a light start."""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest
import size  # tools/size.py holds the table of floors

from qkv.families import modules

PACKAGE = size.PACKAGE
FLOOR = {package: floor for floor, packages in size.FLOORS.items() for package in packages}
# The command line is the door: its verbs run recipes and labs. errors is for everybody.
SIDEWAYS = {("cli", "labs")} | {(name, "errors") for name in ("spec", "paths", "options", "files", "json_files")}
SIDEWAYS |= {(name, "messages") for name in ("errors", "files", "options", "paths", "spec", "arguments", "json_files")}
SIDEWAYS |= {("arguments", "errors"), ("arguments", "options"), ("spec", "arguments")}
# hub makes a Model, a Model delegates to tasks, and tasks know of it only what their Protocol says.
SIDEWAYS |= {("hub", "model"), ("hub", "tasks"), ("model", "tasks")}
# the LSTM baselines learn from the same batches; a checkpoint or a count may be of one, and is weighed against memory
SIDEWAYS |= {("baselines", "data"), ("checkpoints", "baselines"), ("checkpoints", "devices"), ("cost", "baselines")}
PUBLIC = {"load", "build", "Model", "Spec", "train", "show", "QkvError"}  # what `from qkv import x` brings from the top


parse = cache(ast.parse)  # each file is read for several rules


def files() -> dict[str, str]:
    """Dotted name below qkv -> source, for every file of the package ('' is the package itself)."""
    found: dict[str, str] = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts)] = path.read_text(encoding="utf-8")
    return found


def imported(tree: ast.AST, name: str = "") -> Iterator[tuple[int, str]]:
    """Every imported module (line, dotted name), wherever in the file; `from a import b` gives a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ["qkv", *name.split(".")[: -node.level]] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def at_import(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The imports that run when the file is imported: not those in functions or under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imported(node)
        else:
            yield from at_import(node)


def wrong_imports(name: str, source: str) -> list[str]:
    """What the file imports against the rules of its floor."""
    package = name.split(".")[0]
    if package in ("__init__", "__main__"):
        return []
    wrong: list[str] = []
    tree = parse(source)
    for line, module in imported(tree, name):
        top, _, rest = module.partition(".")
        target = rest.split(".")[0]
        if top != "qkv":
            allowed = {"core": {"torch"}, "families": set[str]()}.get(package)
            if allowed is not None and top not in sys.stdlib_module_names | allowed:
                wrong.append(f"{name}:{line} {package} may not import {top}")
        elif not target or target in PUBLIC:
            if FLOOR[package] < 7:
                wrong.append(f"{name}:{line} imports the public names; import from the module itself")
        elif target in FLOOR and target != package:
            down = FLOOR[target] < FLOOR[package] or (package, target) in SIDEWAYS
            if not down:
                wrong.append(f"{name}:{line} floor {FLOOR[package]} may not see {target} on floor {FLOOR[target]}")
            if package in ("core", "families") and target not in ("spec", "errors", "messages"):
                wrong.append(f"{name}:{line} {package} may not see {target}")
    return wrong


def unsafe(name: str, source: str) -> list[str]:
    """Pickle, and code that comes with a checkpoint: only checkpoints/storage.py may read, and weights only."""
    tree = parse(source)
    wrong = [
        f"{name}:{line} imports {module}"
        for line, module in imported(tree)
        if module.split(".")[0] in ("pickle", "cloudpickle", "dill", "joblib") and name != "checkpoints.storage"
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "torch.save"):
            only = any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords)
            if not (name == "checkpoints.storage" and only):
                wrong.append(f"{name}:{node.lineno} calls {ast.unparse(node.func)}")
        if isinstance(node, ast.keyword) and node.arg in ("trust_remote_code", "allow_pickle"):
            wrong.append(f"{name}:{node.lineno} passes {node.arg}")
    return wrong


def heavy_at_start(name: str, source: str) -> list[str]:
    """What `import qkv` and `qkv --help` may not load: only stdlib, click and what lies on the lowest floor."""
    if name != "__init__" and not name.startswith("cli"):
        return []
    light = ("qkv.errors", "qkv.messages", "qkv.paths", "qkv.files", "qkv.cli", "qkv.__version__", "click")
    if name.startswith("cli.") and name != "cli.common":
        light += ("qkv.plots", "rich.cells")  # a verb's file is imported when it is typed; pictures need no torch
    return [
        f"{name}:{line} imports {module} at module level"
        for line, module in at_import(parse(source))
        if module.split(".")[0] not in sys.stdlib_module_names and not module.startswith(light)
    ]


def family_names() -> list[str]:
    return [p.stem for p in sorted((PACKAGE / "families").glob("*.py")) if not p.stem.startswith("_")]


def named_families(text: str, names: list[str]) -> list[str]:
    """Families named in a text; names under five letters must stand alone (t5 is no part of float5)."""
    patterns = {n: re.escape(n) if len(n) >= 5 else rf"(?<![a-z0-9]){re.escape(n)}(?![a-z])" for n in names}
    return [n for n, pattern in patterns.items() if re.search(pattern, text, re.IGNORECASE)]


def words_of_code(source: str) -> set[str]:
    """Strings, variables, attributes and functions of a file: where a branch by name would begin."""
    found: set[str] = set()
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.Name | ast.Attribute | ast.FunctionDef | ast.ClassDef | ast.alias):
            found.add(getattr(node, "id", "") or getattr(node, "attr", "") or getattr(node, "name", ""))
    return found


FILES = files()


def test_every_package_has_a_floor() -> None:
    assert {name.split(".")[0] for name in FILES} - set(FLOOR) - {"__init__", "__main__"} == set()


@pytest.mark.parametrize("name", FILES)
def test_imports_point_down_only(name: str) -> None:
    assert wrong_imports(name, FILES[name]) == []


@pytest.mark.parametrize("name", FILES)
def test_no_pickle_and_no_remote_code(name: str) -> None:
    assert unsafe(name, FILES[name]) == []


@pytest.mark.parametrize("name", FILES)
def test_the_start_is_light(name: str) -> None:
    assert heavy_at_start(name, FILES[name]) == []


def import_graph(sources: Mapping[str, str], folder: str = "") -> dict[str, set[str]]:
    """Who imports whom, also within functions and for types alone: the packages, or the files of one `folder`."""
    graph: dict[str, set[str]] = {}
    for name, source in sources.items():
        inside = name.removeprefix(f"{folder}.") if folder else name
        if folder and inside == name:
            continue
        start = f"qkv.{folder}." if folder else "qkv."
        found = (module for _, module in imported(parse(source), name) if module.startswith(start))
        targets = {module.removeprefix(start).split(".")[0] for module in found}
        graph.setdefault(inside.split(".")[0], set()).update(targets)
    return {name: (targets & set(graph)) - {name, "__init__"} for name, targets in graph.items() if name != "__main__"}


def find_circle(graph: Mapping[str, set[str]]) -> list[str]:
    """A circle of the graph, its first member again at the end; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        return circle.args[1]
    return []


@pytest.mark.parametrize("folder", ["", "core", "families"])
def test_nothing_imports_in_a_circle(folder: str) -> None:
    graph = import_graph(FILES, folder)
    assert len(graph) > 10
    assert find_circle(graph) == []


@pytest.mark.parametrize(
    ("folder", "more"),
    [
        ("", {"spec": "def f():\n    from qkv.core.model import Transformer"}),
        ("core", {"core.masks": "if TYPE_CHECKING:\n    from qkv.core.step import Step"}),
        ("core", {"core.norm": "from qkv.core import model"}),
        ("families", {"families.llama": "from qkv.families import mistral"}),
    ],
)
def test_a_circle_of_imports_is_found(folder: str, more: dict[str, str]) -> None:
    assert find_circle(import_graph({**FILES, **more}, folder)) != []


@pytest.mark.parametrize("name", [n for n in FILES if n == "spec" or n.startswith("core")])
def test_the_core_names_no_family(name: str) -> None:
    assert named_families(FILES[name], family_names()) == []


def test_only_training_and_labs_choose_a_family_by_its_name() -> None:
    names = {t for module in modules().values() for t in module.TYPES} | set(family_names())
    free = {name for name in FILES if name.split(".")[0] not in ("families", "training", "labs")}
    free -= {"tokenizers.gguf"}  # GGUF calls kinds of tokenizers by such names
    assert {name: hits for name in free if (hits := words_of_code(FILES[name]) & names)} == {}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("core.model", "from qkv.families import gpt2"),
        ("core.model", "import numpy"),
        ("core.model", "from qkv import tokenizers"),
        ("core.model", "def f():\n    from qkv.paths import data_dir"),
        ("families.gpt2", "import torch"),
        ("families.gpt2", "from qkv.core.model import Block"),
        ("tokenizers.tokenizer", "from qkv.data import packing"),
        ("generation.beam", "from qkv.training.loop import Loop"),
        ("generation.beam", "import qkv.hub"),
        ("generation.beam", "import qkv"),
        ("lens.trace", "from qkv import load"),
        ("training.run", "from qkv.labs import lab"),
        ("spec", "from qkv.core import model"),
        ("data.corpus.reader", "from ...tokenizers import tokenizer"),
        ("data.order", "from ..hub import load"),
        ("model", "from qkv.hub import load"),
        ("tasks.generate", "from qkv.model import Model"),
        ("tasks.score", "def f():\n    from qkv.model import Model"),
        ("tasks.classify", "if TYPE_CHECKING:\n    from qkv.hub import load"),
    ],
)
def test_a_wrong_import_is_caught(name: str, source: str) -> None:
    assert wrong_imports(name, source) != []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("core.model", "import torch.nn.functional as F\nfrom qkv.spec import Spec\nfrom qkv.core.step import Step"),
        ("families.qwen", "import math\nfrom qkv.families import llama\nfrom qkv.errors import QkvError"),
        ("cli.demo", "from qkv.training import recipes\nimport qkv"),
        ("hub", "from qkv.generation import engine\nfrom qkv import tokenizers"),
        ("model", "from qkv.tasks import generate"),
        ("data.corpus.__init__", "from .reader import pairs\nfrom ..order import batch"),
    ],
)
def test_a_right_import_passes(name: str, source: str) -> None:
    assert wrong_imports(name, source) == []


def test_the_other_rules_catch_their_faults() -> None:
    assert unsafe("training.checkpoint", "import torch\ntorch.save(x, 'f')") != []
    assert unsafe("checkpoints.storage", "import torch\ntorch.load('f')") != []
    assert unsafe("checkpoints.storage", "import torch\ntorch.load('f', weights_only=True)") == []
    assert unsafe("tokenizers.tokenizer", "f(trust_remote_code=True)") != []
    assert unsafe("data.sources", "import pickle") != []
    assert heavy_at_start("cli.doctor", "import torch") != []
    assert heavy_at_start("cli.doctor", "import click\ndef f():\n    import torch") == []
    assert heavy_at_start("__init__", "from qkv.hub import load") != []
    assert named_families("class LlamaRotary: ...", ["llama"]) == ["llama"]
    assert named_families("x = float5; y = 't5'", ["t5"]) == ["t5"]
    assert named_families("x = float5", ["t5"]) == []
    assert "bert" in words_of_code("if kind == 'bert': pass")
    assert "gpt2" in words_of_code("from qkv.families import gpt2")
    assert "t5" in words_of_code("def f(x): return x.t5")
