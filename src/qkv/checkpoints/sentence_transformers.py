"""How a text becomes one vector, as the directory of a sentence-transformers model says it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from qkv.checkpoints import storage
from qkv.errors import QkvError, nearest
from qkv.families import Config
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
    rows: list[Any] = modules if isinstance(modules, list) else [None]
    if not all(isinstance(row, dict) and isinstance(row.get("type"), str) for row in rows):
        raise QkvError("{path}: expected a list of modules, each an object with a type and a path", path=path)
    kinds = [row["type"].rpartition(".")[2] for row in rows]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise QkvError("{path}: found the modules {kinds}, expected Transformer, Pooling and perhaps Normalize: others "
                       "are not supported", path=path, kinds=", ".join(kinds))
    folder = rows[1].get("path")
    if not isinstance(folder, str) or Path(folder).name != folder or folder in ("", ".."):
        raise QkvError("{path}: the path of the pooling is {folder!r}, expected the name of a folder beside it",
                       path=path, folder=folder)
    said = f"{folder}/config.json"
    files: dict[str, Any] = {MODULES: modules, said: read_json(directory / said)}
    files |= {name: read_json(directory / name) for name in (PROMPTS, "sentence_bert_config.json")
              if (directory / name).is_file()}
    prompts = Config(files.get(PROMPTS, {}), str(directory / PROMPTS))
    pooling = Config(files[said], str(directory / said))
    name = prompts.text("default_prompt_name", None)
    prompt = "" if name is None else prompts.part("prompts").text(name)
    if not pooling.flag("include_prompt", True) and prompt:
        raise QkvError("{path}: include_prompt is false, expected true: a prompt that is read and not pooled is not "
                       "supported", path=directory / said)
    return Pooling(read_mode(pooling), "Normalize" in kinds, prompt, files)


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


def read_mode(config: Config) -> Pooled:
    """The mode of a pooling's config, in the spelling of either format; QkvError for an unknown one, or several."""
    flags = [key for key in config.values if key.startswith("pooling_mode_") and config.flag(key)]
    modes = [config.text("pooling_mode")] if "pooling_mode" in config.values else [
        key.removeprefix("pooling_mode_") for key in flags]
    if len(modes) != 1 or modes[0] not in MODES:
        raise QkvError("{path}: found the pooling {modes}{hint}, expected one of {known}", path=config.where,
                       modes=" + ".join(modes) or "none", hint=nearest(modes[0], MODES) if modes else "",
                       known=", ".join(MODES))
    return MODES[modes[0]]


def write_pooling(directory: Path, pooling: Pooling) -> None:
    """The files that say a pooling, as they were read."""
    for name, value in pooling.files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        storage.write_json(directory / name, value)
