"""The directory (or .gguf file) of a model: a path, a bundled name, or a hub id, downloaded or cached already."""

import os
from collections.abc import Sequence
from pathlib import Path

from qkv import paths
from qkv.errors import QkvError, nearest
from qkv.messages import Message
from qkv.paths import is_gguf

ADAPTER = "adapter_config.json"  # beside the adapters of a model that lies elsewhere
WANTED_FILES = ("*.json", "*.safetensors", "*.model", "*.spm", "merges.txt", "vocab.*", "*.jinja")  # data, never code


def locate(name: str | Path, revision: str | None = None, wanted: Sequence[str] = WANTED_FILES) -> Path:
    """The directory of a MODEL: an existing path, else a bundled name, else a hub id (`./x` forces a path)."""
    return find_local(name) or download_from_hub(str(name), revision, list_bundled(), wanted)


def list_bundled() -> list[str]:
    """The names of the models that come with the package."""
    bundled = paths.bundled_dir()
    return sorted(p.name for p in bundled.iterdir()) if bundled.is_dir() else []


def find_local(name: str | Path) -> Path | None:
    """The directory of a MODEL on this machine; None for what can only be a hub id.

    Raises:
        QkvError: an empty name, a file, a directory without a model, or a path that does not exist.
    """
    if not str(name):
        raise QkvError("the name of the model is empty, expected a directory, a bundled name or a hub id")
    path, known = Path(name), list_bundled()
    if path.is_dir():
        if (path / "config.json").is_file() or (path / ADAPTER).is_file():
            return path
        here = ", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing"
        raise QkvError("{path}: no config.json in this directory (found: {here}); is it the directory of a model or a "
                       "run?", path=path, here=here)
    if str(name) in known:
        return paths.bundled_dir() / str(name)
    if path.is_file() and is_gguf(path):
        return path
    if path.is_file():
        raise QkvError("{path}: is a file, expected the directory of a model, or a .gguf file", path=path)
    if is_gguf(path):
        beside = [p.name for p in path.parent.glob("*.gguf")]
        raise QkvError("{path}: no such file{hint}", path=path, hint=nearest(path.name, beside))
    if str(name).startswith((".", "/", "~")) or str(name).count("/") > 1 or (os.sep != "/" and os.sep in str(name)):
        raise QkvError("{name}: no such directory (bundled models: {known})", name=name,
                       known=", ".join(known) or Message("none"))
    return None


def download_from_hub(name: str, revision: str | None, known: Sequence[str], wanted: Sequence[str]) -> Path:
    """The wanted files of a hub id, from the cache where they lie there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(wanted)))
    except Exception as e:
        reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        hint, here, why = nearest(name, known), ", ".join(known), f"{type(e).__name__}: {reason[:160]}"
        raise QkvError("{name}: no such directory and no bundled model{hint} (bundled: {here}), and it could not be "
                       "loaded from the hub ({why}). Check the name, and HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN and "
                       "HF_HOME; ./{name} forces a "
                       "path", name=name, hint=hint, here=here or Message("none"), why=why) from None
