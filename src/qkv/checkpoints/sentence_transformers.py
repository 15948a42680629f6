"""How a text becomes one vector, as the directory of a sentence-transformers model says it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from qkv.checkpoints import storage
from qkv.errors import QkvError, nearest
from qkv.gguf_file import open_gguf
from qkv.json_files import parse_json, read_json
from qkv.paths import is_gguf

Pooled = Literal["first", "last", "mean", "max"]
MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
MODES: dict[str, Pooled] = {
    "cls": "first", "cls_token": "first", "lasttoken": "last", "mean": "mean", "mean_tokens": "mean", "max": "max",
    "max_tokens": "max",
}


GGUF_MODES = {1: "mean_tokens", 2: "cls_token", 3: "lasttoken"}


@dataclass(frozen=True)
class Pooling:
    """Which states make the vector of a text, whether it has length 1, and what is put before each text.

    The default is the mean, of length 1 (Reimers & Gurevych 2019, section 3). `files` are those that said so.
    """

    states: Pooled = "mean"
    normalize: bool = True
    prompt: str = ""
    files: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


def read_pooling(directory: Path) -> Pooling | None:
    """The pooling of a directory; None where there is no modules.json.

    Raises:
        QkvError: other modules than a Transformer, its pooling and a normalisation, or an unknown mode of pooling.
    """
    path = directory / MODULES
    if is_gguf(directory):
        return read_gguf_pooling(open_gguf(directory).metadata, directory)
    if not path.is_file():
        return None
    modules: Any = parse_json(path)
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise QkvError("{path}: found the modules {kinds}, expected Transformer, Pooling and perhaps Normalize: others "
                       "are not supported", path=path, kinds=", ".join(kinds))
    said = f"{modules[1]['path']}/config.json"
    files: dict[str, Any] = {MODULES: modules, said: read_json(directory / said)}
    files |= {name: read_json(directory / name) for name in (PROMPTS, "sentence_bert_config.json")
              if (directory / name).is_file()}
    prompts = files.get(PROMPTS, {})
    prompt = (prompts.get("prompts") or {}).get(prompts.get("default_prompt_name")) or ""
    if prompt and not files[said].get("include_prompt", True):
        raise QkvError("{path}: include_prompt is false, expected true: a prompt that is read and not pooled is not "
                       "supported", path=directory / said)
    return Pooling(read_mode(files[said], directory / said), "Normalize" in kinds, prompt, files)


def read_gguf_pooling(metadata: Mapping[str, Any], path: Path) -> Pooling | None:
    """The pooling of a GGUF file's metadata, as the files of a directory would say it; None where it names none.

    Raises:
        QkvError: a pooling of a kind that is not known.
    """
    number = next((value for key, value in metadata.items() if key.endswith(".pooling_type")), 0)
    if number and number not in GGUF_MODES:
        raise QkvError("{path}: found the pooling {modes}{hint}, expected one of {known}", path=path, modes=number,
                       hint="", known=", ".join(map(str, GGUF_MODES)))
    if not number:
        return None
    kinds, package = ("Transformer", "Pooling", "Normalize"), "sentence_transformers.models"
    modules = [{"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"{package}.{kind}"}
               for i, kind in enumerate(kinds)]
    width = metadata.get(f"{metadata.get('general.architecture')}.embedding_length", 0)
    said = {"word_embedding_dimension": width, f"pooling_mode_{GGUF_MODES[number]}": True}
    return Pooling(MODES[GGUF_MODES[number]], files={MODULES: modules, "1_Pooling/config.json": said})


def read_mode(config: Mapping[str, Any], path: Path) -> Pooled:
    """The mode of a pooling's config, in the spelling of either format; QkvError for an unknown one, or several."""
    flags = [key.removeprefix("pooling_mode_") for key, value in config.items()
             if key.startswith("pooling_mode_") and value is True]
    modes = [str(config["pooling_mode"])] if "pooling_mode" in config else flags
    if len(modes) != 1 or modes[0] not in MODES:
        raise QkvError("{path}: found the pooling {modes}{hint}, expected one of {known}", path=path,
                       modes=" + ".join(modes) or "none", hint=nearest(modes[0], MODES) if modes else "",
                       known=", ".join(MODES))
    return MODES[modes[0]]


def write_pooling(directory: Path, pooling: Pooling) -> None:
    """The files that say a pooling, as they were read."""
    for name, value in pooling.files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        storage.write_json(directory / name, value)
