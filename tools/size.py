"""Lines of code against their budgets: `python tools/size.py`; `--paths 0 1` lists what stands on floors. Stdlib only.

A line counts when it holds code: no blank line, comment or docstring. Each package and each file of the core has a
budget; more than 5 % above it fails (here and in tests/test_size.py). GOALS are reported, and fail nothing.
"""

import ast
import io
import sys
import tokenize
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "qkv"
SLACK = 1.05
BUDGETS = {
    "spec.py": 290,  # norms, masks and scales of the families since Gemma
    "core/model.py": 330,
    "core/attention.py": 240,
    "core/latent.py": 140,
    "core/experts.py": 150,
    "core/positions.py": 220,
    "core/cache.py": 200,
    "core/kernels.py": 180,
    "core/step.py": 80,  # begin() makes masks and angles once for all layers, which attention.py would do L times
    "core/init.py": 80,
}
PACKAGES = {  # what each package has today, in lines of code
    "spec": 304, "messages": 58, "errors": 21, "options": 119, "paths": 12, "files": 180, "json_files": 41,
    "core": 1000,
    "gguf_file": 239, "families": 2352, "checkpoints": 1912, "tokenizers": 1420, "data": 2520,
    "adapt": 1285, "sampling": 159,
    "cost": 187, "devices": 64, "plots": 492, "baselines": 223, "chat": 387, "generation": 2178, "lens": 2223,
    "specialize": 1887, "tasks": 1544, "model": 175, "hub": 188, "training": 5661, "explore": 2492, "labs": 3544,
    "cli": 3400, "__init__": 24, "__main__": 3,
    "arguments": 155,
    "serve": 1836,
    "downloads": 106,
    "lm_eval": 102,
}  # fmt: skip
CONTENT = ("labs",)  # no library code: what it says is its size
GOALS = {"library": 19_000, "core": 1000, "fmt: skip": 50}
FLOORS = {
    0: ("spec", "messages", "errors", "options", "arguments", "paths", "files", "json_files"),
    1: ("core", "families", "gguf_file", "downloads"),
    2: ("checkpoints", "tokenizers", "data", "adapt", "sampling", "cost", "devices", "plots", "baselines"),
    3: ("chat", "generation", "lens", "specialize"),
    4: ("tasks", "model", "hub"),
    5: ("training", "serve", "lm_eval"),
    6: ("explore",),
    7: ("labs", "cli"),
}
_SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(source: str) -> int:
    """Lines that hold code: neither blank, nor comment, nor docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


@cache
def sizes(package: Path = PACKAGE) -> dict[str, tuple[int, int]]:
    """(code lines, all lines) of each file of the package, by its path within it."""
    found: dict[str, tuple[int, int]] = {}
    for path in sorted(package.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        found[path.relative_to(package).as_posix()] = (code_lines(source), len(source.splitlines()))
    return found


def package_of(name: str) -> str:
    """The package, or the module of the top, that a file belongs to."""
    return name.partition("/")[0].removesuffix(".py")


def packages(found: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """(code lines, all lines) of each package, and of each module of the top."""
    sums: dict[str, tuple[int, int]] = {}
    for name, (code, total) in found.items():
        package = package_of(name)
        before = sums.get(package, (0, 0))
        sums[package] = (before[0] + code, before[1] + total)
    return sums


def over_budget(found: dict[str, tuple[int, int]]) -> list[str]:
    """One sentence for each file or package that has grown more than 5 % past its budget, or has none."""
    counted = [(name, found[name][0], budget) for name, budget in BUDGETS.items() if name in found]
    counted += [(f"{name}/", code, PACKAGES.get(name, 0)) for name, (code, _) in packages(found).items()]
    return [f"{name}: {code} lines of code, budget {budget}" for name, code, budget in counted if code > budget * SLACK]


def goals(found: dict[str, tuple[int, int]], package: Path = PACKAGE) -> list[str]:
    """One sentence for each number to reach: what it is today, and the goal."""
    sums = packages(found)
    texts = (path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    today = {
        "library": sum(code for name, (code, _) in sums.items() if name not in CONTENT),
        "core": sums["core"][0],
        "fmt: skip": sum(text.count("# fmt: skip") for text in texts),
    }
    return [f"{name}: {today[name]:,}, goal {goal:,}" for name, goal in GOALS.items()]


def report(found: dict[str, tuple[int, int]]) -> str:
    """The table that `make size` prints."""
    rows, sums = ["floor  package            code   all   budget"], packages(found)
    for floor, names in FLOORS.items():
        for name in names:
            if name not in sums:
                continue
            code, total = sums[name]
            rows.append(f"{floor:>5}  {name:<17} {code:>5} {total:>5} {PACKAGES.get(name, ''):>8}")
            if name == "core":
                files = {f: n for f, n in found.items() if f.startswith("core/")}
                rows += [f"         {f[5:]:<15} {n[0]:>5} {n[1]:>5} {BUDGETS.get(f, ''):>8}" for f, n in files.items()]
    code, total = sum(n[0] for n in found.values()), sum(n[1] for n in found.values())
    return "\n".join([*rows, f"       all               {code:>5} {total:>5}", *goals(found)])


def list_paths(floors: list[int]) -> list[str]:
    """The files and folders of some floors, from the repository's root."""
    places = (PACKAGE / part for floor in floors for name in FLOORS[floor] for part in (name, f"{name}.py"))
    return [path.relative_to(PACKAGE.parents[1]).as_posix() for path in places if path.exists()]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--paths"]:
        print(*list_paths([int(floor) for floor in sys.argv[2:]]))
        sys.exit()
    found = sizes()
    print(report(found))
    for sentence in over_budget(found):
        print("over budget:", sentence, file=sys.stderr)
    sys.exit(1 if over_budget(found) else 0)
