"""`qkv serve --engine vllm`: the same model and options for vLLM's server; what it cannot do is refused by name."""

import json
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from qkv.checkpoints.locate import find_local
from qkv.errors import QkvError
from qkv.json_files import read_json
from qkv.paths import is_gguf

DTYPES = {"auto": "auto", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
UNKNOWN = ("keys", "languages", "memory", "tokens", "queue", "max_tokens", "max_prompt", "max_body", "time", "streams",
           "drain", "allow_host", "replicas", "ray", "fast", "device", "threads")  # options that vLLM has no like of


def start_vllm(name: str, source: str, how: Mapping[str, Any], typed: Collection[str], more: list[str]) -> None:
    """Become vLLM's server of a model; `typed` are the options that were given, `more` are vLLM's own words.

    Raises:
        QkvError: vLLM is not installed, or cannot do what was asked of it.
    """
    words = list_flags(name, source, how, typed)
    if (program := shutil.which("vllm")) is None:
        raise QkvError("--engine vllm needs the package vllm, on a machine that it runs on: pip install vllm")
    key = os.environ.get("QKV_API_KEY", "")
    os.execve(program, [program, *words, *more], {**os.environ, **({"VLLM_API_KEY": key} if key else {})})


def list_flags(name: str, source: str, how: Mapping[str, Any], typed: Collection[str]) -> list[str]:
    """vLLM's command line for a model."""
    if wrong := [key for key in UNKNOWN if key in typed]:
        raise QkvError("--{option}: vLLM has no such option; leave it out, or give vLLM's own after --",
                       option=wrong[0].replace("_", "-"))
    if how["dtype"] not in DTYPES:
        raise QkvError("--dtype {dtype}: vLLM reads weights of {known}; quantised ones as their directory says",
                       dtype=how["dtype"], known=", ".join(DTYPES))
    place = refuse_model(source)
    words = ["serve", str(place or source), "--served-model-name", name, "--host", how["host"],
             "--port", str(how["port"]), "--dtype", DTYPES[how["dtype"]], "--max-num-seqs", str(how["rows"])]
    words += ["--revision", how["revision"]] if how["revision"] else []
    return words + (["--allowed-origins", json.dumps(list(how["cors"]))] if how["cors"] else [])


def refuse_model(source: str) -> Path | None:
    """Where a model lies, if it is here; a QkvError for one that vLLM cannot read."""
    place = find_local(source)
    if place is None:
        return None
    if is_gguf(place) or not (place / "config.json").is_file():
        raise QkvError("{place}: vLLM wants a Hugging Face directory with the whole model; `qkv convert` writes one",
                       place=place)
    config = read_json(place / "config.json")
    if config.get("is_encoder_decoder"):
        raise QkvError("{place}: an encoder-decoder, which vLLM does not run; leave out --engine vllm", place=place)
    if config.get("model_type") == "qkv":
        raise QkvError("{place}: a model of qkv's own type, which no other program reads; leave out --engine vllm",
                       place=place)
    return place
