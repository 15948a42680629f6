"""What family tests measure goes into a JSON file where QKV_RECORD names one: docs/families.md is made from it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

FOUND: dict[str, dict[str, Any]] = {}


@pytest.fixture
def record():
    """`record(family, key, value)`: the worst value of each key stays."""

    def note(family: str, key: str, value: float | bool) -> None:
        own = FOUND.setdefault(family, {})
        if isinstance(value, bool):
            own[key] = value and own.get(key, True)
        else:
            own[key] = max(float(value), own.get(key, 0.0))

    return note


def pytest_sessionfinish() -> None:
    path = os.environ.get("QKV_RECORD")
    if path and FOUND:
        Path(path).write_text(json.dumps(FOUND, indent=1, sort_keys=True) + "\n", encoding="utf-8")
