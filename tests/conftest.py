"""What every test starts from: one torch thread, no network, real data only where it lies, the same drawn examples."""

import os

import pytest
from hypothesis import settings

from qkv.paths import data_dir

# Tests are small; on shared machines more threads only wait for each other. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# `make test` says the same twice; `make nightly` draws fresh examples (QKV_EXAMPLES=fresh) and looks for new faults.
settings.register_profile("same", derandomize=True)
settings.register_profile("fresh", derandomize=False)
settings.load_profile(os.environ.get("QKV_EXAMPLES", "same"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not data_dir().is_dir():
        skip = pytest.mark.skip(reason=f"no real data at {data_dir()}; set QKV_DATA to its folder")
        for item in items:
            if "needs_data" in item.keywords:
                item.add_marker(skip)
