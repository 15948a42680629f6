"""Where a name becomes a model, a spec or a count: `load`, `build`, `show` and `report`."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from qkv import cost
from qkv.adapt import lora, quantise
from qkv.adapt.group_heads import group_spec, groups_of
from qkv.adapt.onednn_linear import pack_weights
from qkv.adapt.row_layers import use_rows
from qkv.arguments import Count, check_arguments
from qkv.baselines.lstm import build_core
from qkv.checkpoints import model_dir, peft, run_weights, sentence_transformers
from qkv.checkpoints.locate import HUBS, find_local, locate
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.devices import parse_device, parse_dtype, read_free_memory
from qkv.errors import QkvError, nearest
from qkv.json_files import read_json
from qkv.messages import Message
from qkv.model import Model
from qkv.paths import is_gguf
from qkv.spec import Spec
from qkv.tasks.special_tokens import default_special_tokens, load_special_tokens
from qkv.tasks.types import SpecialTokens
from qkv.tokenizers import tokenizer as text
from qkv.tokenizers.tokenizer import Tokenizer


@check_arguments
def load(name: str | Path, *, device: str = "auto", dtype: str = "auto", revision: str | None = None) -> Model:
    """The model of a path, a bundled name or a hub id, strictly loaded, in eval mode.

    `dtype` int8 or int4 quantises the linear layers of its blocks and computes in bf16; a model that is stored in few
    bits keeps them with auto, and is written out with fp32, bf16 or fp16.

    Raises:
        QkvError: nothing of that name, or a checkpoint that does not fit its config (both sides are listed).
    """
    return load_dir(locate(name, revision), device, dtype)


@check_arguments
def load_step(name: str | Path, step: int, *, device: str = "auto", dtype: str = "auto") -> Model:
    """The model as its run had it after so many steps, from the weights that the run kept then.

    Raises:
        QkvError: no weights were kept at that step; those that were are named.
    """
    places = ("train/watch/weights", "train/snapshots")
    found = {int(p.stem): p for at in places for p in Path(name, at).glob("*.safetensors") if p.stem.isdigit()}
    if step not in found:
        steps = ", ".join(map(str, sorted(found))) or Message("none")
        raise QkvError("{name}: no weights were kept at step {step} (kept: {steps})", name=name, step=step, steps=steps)
    return load_dir(locate(name), device, dtype, run_weights.read_checkpoint(found[step])[0])


def load_dir(directory: Path, device: str, dtype: str, kept: Mapping[str, torch.Tensor] | None = None) -> Model:
    """The model of a directory, with the weights that learnt as a run of it kept them where they are given."""
    if (directory / peft.CONFIG).is_file():
        return load_with_adapter(directory, device, dtype, kept)
    kinds = quantise.kept_kinds(dtype, gguf=is_gguf(directory))
    core, config = model_dir.load_core(
        directory, device=parse_device(device), dtype=torch.bfloat16 if dtype in quantise.KINDS else parse_dtype(dtype),
        hold=partial(quantise.hold_parameter, kinds) if kinds else None,
    )
    if kept:
        run_weights.fill_weights(core, kept)
    choose_layers(core, dtype)
    tokenizer = text.load(directory)
    if tokenizer is not None:
        tokenizer.fits(core.spec.vocabulary, core.spec.sources)
    generation_config = read_json(directory / "generation_config.json", optional=True)
    special = load_special_tokens(directory, config, tokenizer, core.spec)
    pooling = sentence_transformers.read_pooling(directory)
    made = Model(core, tokenizer, special, config, generation_config, pooling)
    made.place = str(directory / "config.json")
    return made


def choose_layers(core: Transformer, dtype: str) -> None:
    """Give a core whose weights are there the layers that compute fastest with them, of few bits where asked."""
    if dtype in quantise.KINDS:
        quantise.quantise(core, dtype)
        quantise.round_head(core)
    pack_weights(core)
    use_rows(core)


def load_with_adapter(
    directory: Path, device: str, dtype: str, kept: Mapping[str, torch.Tensor] | None = None
) -> Model:
    """A model with the adapters of a directory merged into it; the directory's own config says what else is new."""
    base, file = peft.base_of_adapter(directory), directory / "config.json"
    try:
        begun = load(base, device=device, dtype="bf16" if dtype in quantise.KINDS else dtype)
    except QkvError as e:
        said = directory / peft.CONFIG
        raise QkvError("{said}: {directory} holds adapters of a model that could not be loaded: {e}", said=said,
                       directory=directory, e=e) from e
    config = read_json(file) if file.is_file() else begun.config or {}
    quantise.write_out(begun.core)
    core = copy_matching_weights(begun.core, model_dir.spec_from_config(config, file), 0)
    parts, whole = peft.read_adapters(directory, core, config)
    if kept:
        scale = peft.adapter_scale(directory)
        parts = {n[:-2]: (t, kept[f"{n[:-2]}.b"], scale) for n, t in kept.items() if n.endswith(".a")}
        whole = {n: t for n, t in kept.items() if not n.endswith((".a", ".b"))}
    lora.attach_stored(core, parts)
    own = dict(core.named_parameters())
    with torch.no_grad():
        for key, tensor in whole.items():
            own[key].copy_(tensor)
    lora.merge(core)
    choose_layers(core.eval(), dtype)
    tokenizer = text.load(directory) or begun.tokenizer
    special = load_special_tokens(directory, config, tokenizer, core.spec)
    return Model(core, tokenizer, special, config, begun.generation_config, begun.pooling)


def copy_matching_weights(core: Transformer, spec: Spec, seed: int) -> Transformer:
    """A core of a spec with the weights of another where both have them; the core itself where nothing is new."""
    if core.spec == spec:
        return core
    made = build_core(spec)
    initialise(made, seed)
    made.to(core.embed.weight)
    old = dict(core.named_parameters())
    with torch.no_grad():
        for name, p in made.named_parameters():
            if name in old and old[name].shape == p.shape:
                p.copy_(old[name])
    return made


@check_arguments
def build(
    spec: Spec, *, seed: int = 0, tokenizer: Tokenizer | None = None, special: SpecialTokens | None = None
) -> Model:
    """A new model of a spec with first weights drawn from `seed`, in train mode."""
    with torch.device("meta"):
        need = sum(p.nbytes for p in build_core(spec).parameters())
    model_dir.refuse_oversized(need, read_free_memory("cpu"))
    if tokenizer is not None:
        tokenizer.fits(spec.vocabulary, spec.sources)
    core = build_core(spec)
    initialise(core, seed)
    if special is None and tokenizer is not None:
        special = default_special_tokens(spec, tokenizer)
    return Model(core.train(), tokenizer, special)


@check_arguments
def spec_of(name: str | Path | Model | Spec) -> Spec:
    """The spec of a model, of `family:size`, of a family (its first size), or of a MODEL's config; loads no weights."""
    if isinstance(name, Model | Spec):
        return name if isinstance(name, Spec) else name.spec
    family = model_dir.find_family(str(name))
    preset = f"{name}:{next(iter(family.SIZES))}" if family else str(name)
    config = model_dir.preset_config(preset)
    if config is None and ":" in str(name) and str(name).partition(":")[0] not in HUBS and not Path(name).exists():
        known = [*model_dir.modules(), *(a for m in model_dir.modules().values() for a in getattr(m, "ALSO", ()))]
        family, size = str(name).split(":", 1)
        raise QkvError("{name}: there is no family {family!r} with a size {size!r}{hint} (families: {known})",
                       name=name, family=family, hint=nearest(family, known), size=size, known=", ".join(known))
    if config is None:
        try:
            directory = locate(name, wanted=("config.json", peft.CONFIG))
        except QkvError as e:
            if (hint := nearest(str(name), model_dir.modules())) and find_local(name) is None:
                raise QkvError("{name}: there is no family of this name{hint} As a model: {e}", name=name, hint=hint,
                               e=e) from e
            raise
        if (directory / peft.CONFIG).is_file() and not (directory / "config.json").is_file():
            return spec_of(peft.base_of_adapter(directory))
        return model_dir.read_spec(directory)[0]
    return model_dir.spec_from_config(config, name)


@check_arguments
def show(
    name: str | Path | Model | Spec, *, mode: Literal["core", "train", "prefill", "decode"] | None = None,
    taps: bool = False, language: Literal["python", "typescript"] = "python",
) -> str:
    """One model, or a spec, as a Python program that stands alone: its classes, a loader of its weights, a greedy loop.

    `mode` core, train, prefill or decode gives the core's own text instead, with the forks of this model decided;
    `taps` keeps its taps. A comment comes first where the family's numbers were never published. In `language`
    typescript it is one file for browsers and Node, with taps, cache, greedy, sampled and beam decoding.
    """
    from qkv.specialize.core_text import print_core
    from qkv.specialize.program import print_program

    spec, note = spec_of(name), None if isinstance(name, Spec) else unpublished_note(name)
    if language == "typescript":
        from qkv.specialize.typescript import print_typescript

        if mode is not None:
            raise QkvError("language typescript: found mode {mode}, expected none: one text serves every situation",
                           mode=mode)
        text = print_typescript(spec)
        return f"// {note}\n{text}" if note else text
    if mode is None and not taps:
        text = print_program(spec, "" if isinstance(name, Spec) else checkpoint_names(name))
    else:
        text = print_core(spec, mode=None if mode == "core" else mode, taps=taps)
    return f"# {note}\n{text}" if note else text


def checkpoint_names(name: str | Path | Model) -> str:
    """The table of the names of a model's checkpoints; empty where they are our own."""
    family = None if isinstance(name, Model) else model_dir.find_family(str(name).partition(":")[0])
    if family is not None and (isinstance(name, Model) or not Path(name).exists()):
        return str(family.NAMES)
    config = name.config if isinstance(name, Model) else None
    if not isinstance(name, Model):
        directory = locate(name, wanted=("config.json", peft.CONFIG))
        if (directory / peft.CONFIG).is_file() and not (directory / "config.json").is_file():
            return checkpoint_names(peft.base_of_adapter(directory))
        config = model_dir.read_config(directory)
    if config is None or config["model_type"] in model_dir.OWN:
        return ""
    return str(model_dir.family_of_config(config, name).NAMES)


def unpublished_note(name: str | Path | Model) -> str | None:
    """What a family says of numbers that nobody published and that it has all the same."""
    return getattr(model_dir.find_family(str(name).partition(":")[0]), "UNPUBLISHED", None)


@check_arguments
def report(
    name: str | Path | Model, *, dtype: str = "fp32", context: Count | None = None, attention: str | None = None
) -> dict[str, Any]:
    """Parameters, FLOPs and bytes of a model, counted from the core built without memory.

    Bytes are of numbers in `dtype`; `attention` (mha, mqa, gqa:N) asks what other key/value heads would cost. A family
    whose model was never published says so under `note`, and adapters say whose cost is counted.
    """
    spec = spec_of(name)
    if attention:
        spec = group_spec(spec, groups_of(attention))
    note = unpublished_note(name)
    if not isinstance(name, Model) and (Path(name) / peft.CONFIG).is_file():
        note = f"adapters for {peft.base_of_adapter(Path(name))}; counted as loaded, merged into it"
    return cost.report(spec, dtype=dtype, context=context, note=note)
