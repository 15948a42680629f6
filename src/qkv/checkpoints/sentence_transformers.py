"""How a text becomes one vector, as the directory of a sentence-transformers model says it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.checkpoints import storage
from qkv.errors import QkvError, nearest
from qkv.families import Config
from qkv.gguf_file import open_gguf
from qkv.json_files import parse_json, read_json
from qkv.messages import Message
from qkv.paths import is_gguf

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
MODULES, PROMPTS, LIMITS = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
MODES = {  # in the order in which several are joined
    "cls": "first", "cls_token": "first", "max": "max", "max_tokens": "max", "mean": "mean", "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "root", "weightedmean": "weighted", "weightedmean_tokens": "weighted", "lasttoken": "last",
}
GGUF_MODES = {1: "mean_tokens", 2: "cls_token", 3: "lasttoken"}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x, "Tanh": torch.tanh, "ReLU": F.relu, "GELU": F.gelu, "SiLU": F.silu,
    "Sigmoid": torch.sigmoid,
}
ALIKE = ("document", "passage", "corpus")  # what models call the texts that are searched


@dataclass(frozen=True)
class Dense:
    """A linear layer behind the pooling, and the folder that it came from."""

    path: str
    weight: Tensor  # O D
    bias: Tensor | None
    activation: str

    def __call__(self, x: Tensor) -> Tensor:  # B D -> B O
        bias = None if self.bias is None else self.bias.to(x)
        return ACTIVATIONS[self.activation](F.linear(x, self.weight.to(x), bias))


@dataclass(frozen=True)
class Pooling:
    """How a text becomes a vector; the default is the mean, of length 1 (Reimers & Gurevych 2019, section 3).

    `states` are first, last, mean, max, root (sum / sqrt(count)) or weighted (by position), several joined by "+";
    `dense` layers follow. `prompt` is put before each text unless another of `prompts` is asked for, and is not pooled
    where `pools_prompt` is false. Texts are cut to `longest` tokens. `files` are those that said so.
    """

    states: str = "mean"
    normalize: bool = True
    prompt: str = ""
    prompts: Mapping[str, str] = field(default_factory=dict)
    pools_prompt: bool = True
    longest: int | None = None
    lower: bool = False
    similarity: Similarity = "cosine"
    dense: tuple[Dense, ...] = field(default=(), compare=False, repr=False)
    files: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def find_prompt(self, name: str | None) -> str:
        """The prompt of a name, by default the model's own; QkvError for a name that it lacks."""
        if name is None:
            return self.prompt
        known = next((n for n in ALIKE if n in self.prompts), name) if name in ALIKE else name
        if name not in self.prompts and known not in self.prompts:
            raise QkvError("there is no prompt {name!r}{hint} (known: {known})", code="prompt-name", name=name,
                           hint=nearest(name, self.prompts), known=", ".join(self.prompts) or Message("none"))
        return self.prompts[name if name in self.prompts else known]


def read_pooling(directory: Path) -> Pooling | None:
    """The pooling of a directory; None where there is no modules.json.

    Raises:
        QkvError: other modules than a Transformer, its pooling, dense layers and a normalisation, in this order; a mode
            of pooling, an activation or a similarity that is not known; dense layers that lack weights.
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
    dense = [row.get("path") for row, kind in zip(rows, kinds, strict=True) if kind == "Dense"]
    order = ["Transformer", "Pooling", *["Dense"] * len(dense)]
    if kinds not in (order, [*order, "Normalize"]):
        raise QkvError("{path}: found the modules {kinds}, expected Transformer, Pooling, perhaps Dense and perhaps "
                       "Normalize, in this order: others are not supported", path=path, kinds=", ".join(kinds))
    if (folder := rows[0].get("path", "")) != "":
        raise QkvError("{path}: the model lies in {folder!r}, expected the folder of this file (an empty path)",
                       path=path, folder=folder)
    for folder in (rows[1].get("path"), *dense):
        if not isinstance(folder, str) or Path(folder).name != folder or folder in ("", ".."):
            raise QkvError("{path}: the path of a module is {folder!r}, expected the name of a folder beside it",
                           path=path, folder=folder)
    said = f"{rows[1]['path']}/config.json"
    files: dict[str, Any] = {MODULES: modules, said: read_json(directory / said)}
    files |= {f"{d}/config.json": read_json(directory / d / "config.json") for d in dense}
    files |= {name: read_json(directory / name) for name in (PROMPTS, LIMITS) if (directory / name).is_file()}
    prompts = Config(files.get(PROMPTS, {}), str(directory / PROMPTS))
    limits, pooling = files.get(LIMITS, {}), Config(files[said], str(directory / said))
    texts = prompts.part("prompts") if prompts.values.get("prompts") else None
    named = {key: texts.text(key, None) or "" for key in texts.values} if texts else {}
    similarity: Any = prompts.choice("similarity_fn_name", {n: n for n in get_args(Similarity)}, "cosine")
    longest, name = limits.get("max_seq_length"), prompts.text("default_prompt_name", None)
    usual = "" if name is None else prompts.part("prompts").text(name)
    return Pooling(
        read_mode(pooling), "Normalize" in kinds, usual, named, pooling.flag("include_prompt", True),
        longest if type(longest) is int and longest > 0 else None, limits.get("do_lower_case") is True, similarity,
        tuple(read_dense(directory, d, files[f"{d}/config.json"]) for d in dense), files)


def read_dense(directory: Path, path: str, config: Mapping[str, Any]) -> Dense:
    """A linear layer of a folder with its activation; QkvError for another kind, or weights that do not fit."""
    folder, activation = directory / path, str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    other = [key for key, usual in (("use_residual", False), ("module_input_name", "sentence_embedding"))
             if config.get(key, usual) != usual]
    if activation not in ACTIVATIONS or other:
        raise QkvError("{where}: the dense layer has {found}, expected one of the activations {known} and nothing else",
                       where=folder / "config.json", found=", ".join(other) or activation, known=", ".join(ACTIVATIONS))
    tensors = {name: read().clone() for name, read in storage.open_tensors(folder).items()}
    weight, bias = tensors.pop("linear.weight", None), tensors.pop("linear.bias", None)
    shape = [config.get("out_features"), config.get("in_features")]
    if weight is None or list(weight.shape) != shape or tensors or (bias is not None) != config.get("bias", True) or (
            bias is not None and list(bias.shape) != shape[:1]):
        raise QkvError("{folder}: the dense layer's tensors do not fit its config: found {found}, expected "
                       "linear.weight {shape} and the bias that it says", folder=folder, shape=shape,
                       found=list(weight.shape) if weight is not None else ", ".join(tensors) or Message("nothing"))
    return Dense(path, weight, bias, activation)


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


def read_mode(config: Config) -> str:
    """The mode of a pooling's config, in the spelling of either format, several joined by "+" as their vectors are.

    Raises:
        QkvError: an unknown mode, or none.
    """
    stated: Any = config.values.get("pooling_mode")
    flags = [key.removeprefix("pooling_mode_") for key in config.values
             if key.startswith("pooling_mode_") and config.flag(key)]
    flags.sort(key=lambda mode: [*MODES].index(mode) if mode in MODES else len(MODES))
    modes = list(stated) if isinstance(stated, list) else [config.text("pooling_mode")] if "pooling_mode" in (
        config.values) else flags
    wrong = [str(mode) for mode in modes if mode not in MODES]
    if not modes or wrong:
        raise QkvError("{path}: found the pooling {modes}{hint}, expected one of {known}", path=config.where,
                       modes=" + ".join(map(str, modes)) or "none", hint=nearest(wrong[0], MODES) if wrong else "",
                       known=", ".join(MODES))
    return "+".join(MODES[mode] for mode in modes)


def write_pooling(directory: Path, pooling: Pooling) -> None:
    """The files that say a pooling, as they were read, and the weights of its dense layers."""
    for name, value in pooling.files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        storage.write_json(directory / name, value)
    for dense in pooling.dense:
        tensors = {"linear.weight": dense.weight} | ({} if dense.bias is None else {"linear.bias": dense.bias})
        storage.write_tensors(directory / dense.path, tensors)
