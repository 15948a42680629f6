"""A model's directory, examined before it is trusted: hashes of files, numbers that are not finite."""

import hashlib
from pathlib import Path

import torch

from qkv.checkpoints import storage


def hash_files(directory: Path) -> dict[str, str]:
    """The SHA-256 of each file that holds weights, vocabulary or config, by its name."""
    found: dict[str, str] = {}
    for path in sorted(p for p in directory.iterdir() if p.is_file()):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def count_nonfinite(directory: Path, file: str = "") -> dict[str, int]:
    """How many numbers of each tensor of a model, or of one safetensors `file`, are NaN or infinite; 0 is left out."""
    tensors = storage.open_safetensors(directory / file) if file else storage.open_tensors(directory)
    counts = {name: int((~torch.isfinite(read())).sum()) for name, read in tensors.items()}
    return {name: n for name, n in counts.items() if n}
