"""Size is a feature: a package or core file that outgrows its budget by 5 % fails here."""

import re
from statistics import median

import pytest
import size  # tools/size.py


def test_no_package_and_no_core_file_outgrows_its_budget() -> None:
    assert size.over_budget(size.sizes()) == []


def test_half_of_the_families_have_at_most_sixty_lines() -> None:
    families = [code for name, (code, _) in size.sizes().items() if re.fullmatch(r"families/(?!_)\w+\.py", name)]
    assert len(families) > 15
    assert median(families) <= 60


def test_blank_lines_comments_and_docstrings_are_free() -> None:
    head = '"""Doc.\n\nMore.\n"""\n\n# why\ndef f():\n    """Doc."""\n'
    source = head + '    x = """two\nlines"""  # why\n    return (\n        x\n    )\n'
    assert size.code_lines(source) == 6


@pytest.mark.parametrize(("lines", "wrong"), [(231, 0), (232, 1)])
def test_a_file_past_its_budget_by_a_twentieth_is_named(lines: int, wrong: int) -> None:
    named = size.over_budget({"core/positions.py": (lines, lines)})
    assert len(named) == wrong
    assert all("core/positions.py" in sentence for sentence in named)


@pytest.mark.parametrize("package", ["core", "data", "training", "cli"])
def test_a_package_past_its_budget_is_named(package: str) -> None:
    budget = size.PACKAGES[package]
    parts = {f"{package}/one.py": (budget, budget), f"{package}/two.py": (budget // 20 + 2, 0)}
    assert [sentence.split(":")[0] for sentence in size.over_budget(parts)] == [f"{package}/"]
    assert size.over_budget({f"{package}/one.py": (budget, budget)}) == []


def test_every_package_has_a_budget_and_a_new_one_without_is_named() -> None:
    assert set(size.packages(size.sizes())) == set(size.PACKAGES)
    assert size.over_budget({"new/part.py": (1, 1)}) == ["new/: 1 lines of code, budget 0"]
