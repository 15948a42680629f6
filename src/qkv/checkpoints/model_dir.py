"""A core from a Hugging Face directory and back: strict both ways. Families are found by scanning their folder."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from qkv.baselines.lstm import LSTMSpec, build_core
from qkv.checkpoints import compressed, gguf, name_table, quantized, storage
from qkv.core.init import allocate, build_on_meta
from qkv.core.model import Transformer
from qkv.devices import read_free_memory
from qkv.errors import QkvError, nearest
from qkv.families import Config, modules
from qkv.json_files import read_json
from qkv.messages import Message
from qkv.paths import is_gguf
from qkv.spec import Spec, as_json, from_json

OWN = ("qkv", "lstm")  # types with the spec as JSON; lstm is what LSTMs were once written as
SMALL = 200_000_000  # parameters up to which a CPU computes in fp32 by default: exactness costs little there


def family_of_config(config: Mapping[str, Any], where: object) -> ModuleType:
    """The family that reads a config, by its `model_type`; a type `a+key` takes the configs of type a that have `key`.

    Raises:
        QkvError: the type is unknown; the message lists the known ones and the nearest.
    """
    model_type = str(config.get("model_type"))
    known = {t: module for module in modules().values() for t in module.TYPES}
    with_key = (t for t in known if "+" in t and t.partition("+")[0] == model_type and t.partition("+")[2] in config)
    chosen = next(with_key, model_type)
    if chosen not in known or "+" in model_type:
        listed = sorted({t.partition("+")[0] for t in known})
        hint = nearest(model_type, listed)
        raise QkvError("{where}: model_type is {model_type!r}{hint} (known: {listed}, qkv)", where=where,
                       model_type=model_type, hint=hint, listed=", ".join(listed))
    return known[chosen]


def find_family(name: str) -> ModuleType | None:
    """The family of a name: its file's, or another that it lists under ALSO."""
    return modules().get(name) or next((m for m in modules().values() if name in getattr(m, "ALSO", ())), None)


def spec_from_config(config: dict[str, Any], where: object) -> Spec:
    """The spec that a config describes; every key is read, explained or an error."""
    if "model_type" not in config:
        raise QkvError("{where}: the key 'model_type' is missing; is this a model's config?", where=where)
    if config["model_type"] in OWN:
        return from_json(Spec | LSTMSpec, config.get("spec"), f"{where}: spec")
    own = {key: value for key, value in config.items() if key != quantized.SETTINGS}  # how it is stored, not what it is
    family, reader = family_of_config(config, where), Config(own, str(where))
    try:
        spec = family.spec(reader)
    except QkvError as e:
        raise (e if str(where) in str(e) else explain_sizes(e, reader)) from None
    reader.finish(family.IGNORE)
    return spec


def read_config(directory: Path) -> dict[str, Any]:
    """The config of a model's directory, or that which a GGUF file's metadata mean; how numbers are packed is apart."""
    if is_gguf(directory):
        return gguf.read_config(directory)
    return {k: v for k, v in read_json(directory / "config.json").items() if k != quantized.SETTINGS}


def read_spec(directory: Path) -> tuple[Spec, dict[str, Any]]:
    """The spec of a model's directory (or GGUF file), with its config."""
    config = read_config(directory)
    return spec_from_config(config, directory if is_gguf(directory) else directory / "config.json"), config


def explain_sizes(e: QkvError, reader: Config) -> QkvError:
    """The error of a part of the spec, with the keys of the config that hold the numbers which it names."""
    numbers = [n for n in e.message.fields.values() if type(n) is int]
    keys = [f"{key} = {reader.values[key]}" for key in sorted(reader.read) if reader.values[key] in numbers]
    said = Message(" ({keys})", keys=", ".join(keys)) if keys else Message()
    return QkvError("{where}: {e}{said}{assumed}", where=reader.where, e=e, said=said,
                    assumed=list_assumed(dict(reader.values)))


def preset_config(name: str) -> dict[str, Any] | None:
    """The config of `family:size` such as gpt2:124m, None where the name has no colon or names a path."""
    family, _, size = name.partition(":")
    module = find_family(family)
    if not size or Path(name).exists() or module is None:
        return None
    sizes: dict[str, dict[str, Any]] = module.SIZES
    if size not in sizes:
        raise QkvError("{family} has no size {size!r}{hint} (known: {sizes})", family=family, size=size,
                       hint=nearest(size, sizes), sizes=", ".join(sizes))
    return {"model_type": module.TYPES[0].partition("+")[0]} | sizes[size]


# gives a layer bytes, shaped as those on the meta device, instead of its weight, the first tensor; False: it takes none
Hold = Callable[[Transformer, Tensor, Tensor, Tensor | None], bool]


def load_core(
    directory: Path, *, device: torch.device, dtype: torch.dtype | None, hold: Hold | None = None
) -> tuple[Transformer, dict[str, Any]]:
    """The core of a directory, filled strictly, with its config as loaded; `dtype` None chooses.

    None means: the stored numbers' own type, but fp32 on a CPU for models up to 200M parameters, bf16 for fp16 beyond.
    Matrices of few bits are written out, except for the layers that `hold` gives their bytes.
    """
    spec, config = read_spec(directory)
    if config["model_type"] in OWN:
        config["model_type"] = OWN[0]
    opened, settings = storage.open_tensors(directory), read_packing(directory)
    tensors, zeros = quantized.unpack_tensors(opened, settings, directory / "config.json") if settings else (opened, [])
    few = hold and (settings or is_gguf(directory))
    packed = compressed.find_packed(tensors) if few else {}
    shapes = storage.read_shapes(tensors)
    refuse_missing_layers(spec, shapes, config, directory / "config.json")
    with build_on_meta():
        core = build_core(spec)
    count = sum(p.numel() for p in core.parameters())
    stored = storage.stored_dtype(directory) or torch.bfloat16
    if dtype is None:
        dtype = stored
        if device.type == "cpu" and stored != torch.float32:
            dtype = torch.float32 if count <= SMALL else torch.bfloat16
    names, ignore = gguf.read_names(directory) if is_gguf(directory) else read_names(core, config)
    ignore = [*ignore, *map(re.escape, zeros)]
    try:
        quantized.refuse_transposed(name_table.expand_rows(names, core), tensors)
        # first with shapes only, so that a checkpoint that does not fit fails before any memory is allocated
        empty = {n: partial(torch.empty, s, device="meta") for n, s in shapes.items()}
        name_table.load_tensors(core, names, empty, ignore)
        if hold and packed:
            tensors = {**tensors, **hold_packed(core, names, packed, hold)}
        need = sum(t.numel() * (dtype if t.is_floating_point() else t.dtype).itemsize
                   for t in (*core.parameters(), *core.buffers()))
        refuse_oversized(need, read_free_memory("cpu") if device.type == "cpu" else None)
        allocate(core, device, dtype)
        core.tie()
        for buffer in core.buffers():  # what steers a router is counted in full precision
            buffer.data = buffer.data.float() if buffer.is_floating_point() else buffer.data
        name_table.load_tensors(core, names, tensors, ignore)
    except QkvError as e:
        raise QkvError("{directory}{assumed}: {e}", directory=directory, assumed=list_assumed(config), e=e) from None
    return core.eval(), config


def list_assumed(config: dict[str, Any]) -> Message:
    """What was taken for the keys that a family's config lacks, in brackets, for an error."""
    if config["model_type"] in OWN:
        return Message()
    reader = Config(config, "")
    with suppress(QkvError):
        family_of_config(config, "").spec(reader)
    taken = [f"{key} = {'null' if value is None else value}" for key, value in reader.assumed.items()
             if isinstance(value, int | list) or (value is None and key.startswith("num_"))]
    return Message(" (its config lacks keys, taken were {taken})", taken=", ".join(taken)) if taken else Message()


def read_packing(directory: Path) -> dict[str, Any]:
    """The `quantization_config` of a directory's config, empty where there is none."""
    file = directory / "config.json"
    config = Config({} if is_gguf(directory) else read_json(file), str(file))
    return {} if config.values.get(quantized.SETTINGS) is None else dict(config.part(quantized.SETTINGS).values)


def hold_packed(
    core: Transformer, names: str, packed: Mapping[str, compressed.Packed], hold: Hold
) -> dict[str, Callable[[], Tensor]]:
    """Let the layers of a core on the meta device hold stored bytes; the tensors to fill them with, by stored name."""
    found: dict[str, Callable[[], Tensor]] = {}
    for slot in name_table.expand_rows(names, core):
        name = next((t for t in slot.theirs if t in packed), "")
        if not name or {"flip", "stack"} & set(slot.ops):
            continue
        read = packed[name].read
        weight, scale = packed[name].on_meta()
        parts = name_table.convert_in(weight, slot)
        scales = name_table.convert_in(scale, slot) if scale is not None else [None] * len(parts)
        taken = [hold(core, *one) for one in zip(slot.ours.values(), parts, scales, strict=True)]
        if any(taken):
            found[name] = partial(read_part, read, 0)
            if scale is not None:
                found[f"{name}_scale"] = partial(read_part, read, 1)
    return found


def read_part(read: Callable[[], tuple[Tensor, Tensor | None]], which: int) -> Tensor:
    """The bytes (0) or the scales (1) of a stored matrix."""
    part = read()[which]
    assert part is not None
    return part


def refuse_missing_layers(spec: Spec, names: Iterable[str], config: Mapping[str, Any], where: Path) -> None:
    """QkvError for a spec with more layers than the names of the tensors count, before any is built."""
    numbers = (re.search(r"(?:^|\.)(\d+)\.", name) for name in names)
    held = 1 + max((int(found[1]) for found in numbers if found), default=-1)
    layers = max(len(stack.blocks) for stack in (spec.encoder, spec.decoder) if stack)
    if layers > held:
        keys = ", ".join(key for key, value in config.items() if "layer" in key and value == layers) or "spec"
        raise QkvError("{where}: {keys} says {layers} layers, but the weights hold {held}{assumed}", where=where,
                       keys=keys, layers=layers, held=held, assumed=list_assumed(dict(config)))


def refuse_oversized(need: int, free: int | None) -> None:
    """QkvError where weights need more bytes than are `free`, where that is known."""
    if free is not None and need > free:
        raise QkvError("its weights need {need:.1f} GB, and {free:.1f} GB of memory are free; bf16 needs half as much "
                       "as fp32", need=need / 1e9, free=free / 1e9)


def read_names(core: Transformer, config: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The table of names for a config's type, and what of its checkpoints is ignored; our own type has our names."""
    if config["model_type"] != "qkv":
        family = family_of_config(config, "config")
        return family.NAMES, list(family.IGNORE)
    lines = dict.fromkeys(re.sub(r"\.(weight|bias)$", "", name) for name in name_table.named_tensors(core))
    return "\n".join(f"{line} {line}" for line in lines), []


def family_config(family: ModuleType, spec: Spec) -> dict[str, Any] | str:
    """The family's config of a spec, or, where the family cannot say it, the first field that does not fit."""
    try:
        config = family.config(spec)
        back = family.spec(Config(config, "config"))
    except (AttributeError, KeyError, IndexError, TypeError, StopIteration, QkvError) as e:
        return f"it lacks a part that the family needs, or has one that it does not know ({e})"
    return config if back == spec else first_difference(spec, back)


def first_difference(a: Any, b: Any, where: str = "spec") -> str:
    """The path of the first field in which two specs differ, with both values."""
    if dataclasses.is_dataclass(a) and type(a) is type(b):
        for f in dataclasses.fields(a):
            if getattr(a, f.name) != getattr(b, f.name):
                return first_difference(getattr(a, f.name), getattr(b, f.name), f"{where}.{f.name}")
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        i = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
        return first_difference(a[i], b[i], f"{where}[{i}]")
    return f"{where} is {a!r}, the family would read back {b!r}"


def save_core(
    directory: Path, core: Transformer, *, family: str | None = None, config: dict[str, Any] | None = None,
    extra: dict[str, Any] | None = None, dtype: torch.dtype | None = None,
) -> str:
    """Weights and config into `directory`; returns the model_type written.

    The config that was loaded is kept where it still says the spec; else the family named, or the first that can say
    the spec; else type `qkv` with the spec as JSON. `extra` holds keys such as special ids that stand beside it.

    Raises:
        QkvError: the family named cannot say the spec; the message names the field.
    """
    spec, chosen = core.spec, config
    if family is not None:
        if family not in modules():
            raise QkvError("unknown family {family!r}{hint} (known: {modules})", family=family,
                           hint=nearest(family, modules()), modules=", ".join(modules()))
        said = family_config(modules()[family], spec)
        if isinstance(said, str):
            raise QkvError("cannot save as {family}: {said}; leave out family= to save it as type 'qkv'", family=family,
                           said=said)
        chosen = {**(config or {}), **said} if config and config.get("model_type") == said["model_type"] else said
    elif config is None or spec_from_config(config, "config") != spec:
        options = (family_config(m, spec) for m in modules().values())
        chosen = next((o for o in options if not isinstance(o, str)), {"model_type": "qkv", "spec": as_json(spec)})
    assert chosen is not None
    names = read_names(core, chosen)[0]
    tensors = name_table.export_tensors(core, names)
    if dtype is not None:
        own = {t.data_ptr() for t in core.buffers()}
        floats = {n for n, t in tensors.items() if t.is_floating_point() and not n.endswith(".weight_scale")}
        tensors = {n: t if n not in floats or t.data_ptr() in own else t.to(dtype) for n, t in tensors.items()}
    stored = str(next(t for t in tensors.values() if t.is_floating_point()).dtype).removeprefix("torch.")
    config = {key: value for key, value in chosen.items() if key != quantized.SETTINGS}
    if not all(t.is_floating_point() for t in tensors.values()):
        tensors, config[quantized.SETTINGS] = compressed.compress(tensors, list_linears(core, names))
    storage.write_tensors(directory, tensors)
    storage.write_json(directory / "config.json", {**config, **(extra or {}), "dtype": stored})
    return str(chosen["model_type"])


def list_linears(core: Transformer, names: str) -> list[str]:
    """The stored names of all linear layers, without `.weight`."""
    linears = {f"{path}.weight" for path, m in core.named_modules() if isinstance(m, nn.Linear)}
    short = {re.sub(r"^(en|de)coder\.", "", name) for name in linears}  # where there is one stack
    found = (slot.theirs[0] for slot in name_table.expand_rows(names, core) if (linears | short) & set(slot.ours))
    return [name.removesuffix(".weight") for name in found if name.endswith(".weight") and "#" not in name]
