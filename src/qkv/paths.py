"""Where things lie outside the package, named in one place."""

import os
from pathlib import Path


def data_dir() -> Path:
    """The folder of real data for benchmarks and tests: `QKV_DATA`, else ../shared/data beside the checkout."""
    return Path(os.environ.get("QKV_DATA") or Path(__file__).parents[3] / "shared" / "data")


def cache_dir() -> Path:
    """The folder of what was downloaded: `QKV_CACHE`, else qkv in `XDG_CACHE_HOME`, `LOCALAPPDATA` or ~/.cache."""
    own = os.environ.get("QKV_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    return Path(own) if own else Path(base) / "qkv"


def bundled_dir() -> Path:
    """The folder of the models that come with the package."""
    return Path(__file__).parent / "bundled"


def is_gguf(path: str | Path) -> bool:
    """Whether a path names a GGUF file."""
    return Path(path).suffix.lower() == ".gguf"
