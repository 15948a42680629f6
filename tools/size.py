"""Lines per floor against their budgets: `python tools/size.py`. Stdlib only.

A line counts when it holds code: no blank line, comment or docstring. The budgets are the design's; a file may pass
its budget by a tenth before tests/test_size.py fails.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "qkv"
SLACK = 1.10
BUDGETS = {
    "spec.py": 220,
    "core/model.py": 330,
    "core/attention.py": 240,
    "core/latent.py": 140,
    "core/experts.py": 150,
    "core/positions.py": 220,
    "core/cache.py": 200,
    "core/kernels.py": 180,
    "core/step.py": 75,  # begin() makes masks and angles once for all layers, which attention.py would do L times
    "core/init.py": 80,
}
CORE_TOTAL = 1700
FLOORS = {
    0: ("spec", "messages", "errors", "options", "paths", "memory"),
    1: ("core", "families"),
    2: ("checkpoints", "tokenizers", "data", "adapt", "sampling", "cost", "uses", "devices", "plots", "baselines"),
    3: ("chat", "generation", "lens", "fold"),
    4: ("tasks", "model", "hub"),
    5: ("training", "serve"),
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


def sizes(package: Path = PACKAGE) -> dict[str, tuple[int, int]]:
    """(code lines, all lines) of each file of the package, by its path within it."""
    found: dict[str, tuple[int, int]] = {}
    for path in sorted(package.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        found[path.relative_to(package).as_posix()] = (code_lines(source), len(source.splitlines()))
    return found


def over_budget(found: dict[str, tuple[int, int]]) -> list[str]:
    """One sentence per file, or the whole core, that has grown past its budget by more than a tenth."""
    wrong = [
        f"{name}: {found[name][0]} lines of code, budget {budget}"
        for name, budget in BUDGETS.items()
        if name in found and found[name][0] > budget * SLACK
    ]
    core = sum(code for name, (code, _) in found.items() if name.startswith("core/"))
    return wrong + ([f"core/: {core} lines of code, budget {CORE_TOTAL}"] if core > CORE_TOTAL else [])


def report(found: dict[str, tuple[int, int]]) -> str:
    """The table that `make size` prints."""
    rows = ["floor  package          code   all   budget"]
    for floor, names in FLOORS.items():
        for name in names:
            files = {f: n for f, n in found.items() if f == f"{name}.py" or f.startswith(f"{name}/")}
            if not files:
                continue
            code, total = sum(n[0] for n in files.values()), sum(n[1] for n in files.values())
            budget = {"core": CORE_TOTAL, "spec": BUDGETS["spec.py"]}.get(name, "")
            rows.append(f"{floor:>5}  {name:<15} {code:>5} {total:>5} {budget:>8}")
            if name == "core":
                rows += [f"         {f[5:]:<13} {n[0]:>5} {n[1]:>5} {BUDGETS.get(f, ''):>8}" for f, n in files.items()]
    code, total = sum(n[0] for n in found.values()), sum(n[1] for n in found.values())
    return "\n".join([*rows, f"       all             {code:>5} {total:>5}"])


if __name__ == "__main__":
    found = sizes()
    print(report(found))
    for sentence in over_budget(found):
        print("over budget:", sentence, file=sys.stderr)
    sys.exit(1 if over_budget(found) else 0)
