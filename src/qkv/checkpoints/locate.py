"""The directory (or .gguf file) of a model: a path, a bundled name, or a hub id, downloaded or cached already.

`modelscope:Qwen/Qwen3-0.6B` is a model of ModelScope's; with QKV_HUB=modelscope all hub ids are.
"""

import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qkv import paths
from qkv.checkpoints import modelscope
from qkv.downloads import Tell, hash_file
from qkv.errors import QkvError, nearest
from qkv.messages import Message
from qkv.paths import is_gguf

HUBS = ("huggingface", "modelscope")
SHA256 = re.compile("[0-9a-f]{64}")
ADAPTER = "adapter_config.json"  # beside the adapters of a model that lies elsewhere
WANTED_FILES = ("*.json", "*.safetensors", "*.model", "*.spm", "merges.txt", "vocab.*", "*.jinja")  # data, never code


def locate(name: str | Path, revision: str | None = None, wanted: Sequence[str] = WANTED_FILES) -> Path:
    """The directory of a MODEL: an existing path, else a bundled name, else a hub id (`./x` forces a path)."""
    if (found := find_local(name)) is not None:
        return found
    hub, _, own = str(name).rpartition(":")
    hub = hub or os.environ.get("QKV_HUB") or HUBS[0]
    if hub not in HUBS:
        raise QkvError("{name}: unknown hub {hub!r}{hint} (known: {known})", name=name, hub=hub,
                       hint=nearest(hub, HUBS), known=", ".join(HUBS))
    if hub == HUBS[1]:
        return modelscope.fetch_model(own, revision, wanted, tell_progress())
    return download_from_hub(own, revision, list_bundled(), wanted)


def tell_progress() -> Tell | None:
    """A line on the terminal that says how far a download is; None where nobody looks."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console
    from rich.progress import Progress

    def draw_bar(file: str, done: int, size: int) -> None:
        if file not in bars:
            progress.start()
            bars[file] = progress.add_task(file, total=size)
        progress.update(bars[file], completed=done)
        if progress.finished:
            progress.stop()

    bars, progress = dict[str, Any](), Progress(console=Console(stderr=True))
    return draw_bar


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
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    begun = time.time()
    try:
        found = Path(snapshot_download(name, revision=revision, allow_patterns=list(wanted)))
    except Exception as e:
        if constants.HF_HUB_OFFLINE:
            folder = Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}")
            raise QkvError("{name}: no such directory and no bundled model{hint}, HF_HUB_OFFLINE is set, and {folder} "
                           "lacks files of it", name=name, hint=nearest(name, known), folder=folder) from None
        reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        hint, here, why = nearest(name, known), ", ".join(known), f"{type(e).__name__}: {reason[:160]}"
        raise QkvError("{name}: no such directory and no bundled model{hint} (bundled: {here}), and it could not be "
                       "loaded from the hub ({why}). Check the name, and HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN and "
                       "HF_HOME; ./{name} forces a "
                       "path", name=name, hint=hint, here=here or Message("none"), why=why) from None
    check_new_files(found, begun)
    return found


def check_new_files(directory: Path, begun: float) -> None:
    """QkvError for a file of the hub's cache, written since then, whose bytes are not those of its name, a SHA-256."""
    for path in directory.rglob("*"):
        blob = path.resolve()
        if SHA256.fullmatch(blob.name) and blob.stat().st_mtime >= begun - 1 and hash_file(blob) != blob.name:
            blob.unlink()
            path.unlink()
            raise QkvError("{path}: its SHA-256 is not {sha256}, which the hub said; it was removed. Try again, or "
                           "another HF_ENDPOINT", path=path, sha256=blob.name)
