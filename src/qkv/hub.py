"""Where a name becomes a model, a spec or a count: `load`, `build`, `show` and `report`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from qkv import cost, fold, paths
from qkv.adapt import lora
from qkv.adapt.group_heads import groups_of, regrouped
from qkv.adapt.onednn_linear import pack
from qkv.baselines.lstm import build_core
from qkv.checkpoints import model_dir, peft, storage
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.errors import QkvError, nearest
from qkv.generation.rows import PIECE
from qkv.messages import Message
from qkv.model import Model, Special
from qkv.spec import Spec
from qkv.tokenizers import tokenizer as text
from qkv.tokenizers.tokenizer import Tokenizer
from qkv.training import checkpoint as training
from qkv.uses import fills_blanks
from qkv.writing import free


def load(name: str | Path, *, device: str = "auto", dtype: str = "auto", revision: str | None = None) -> Model:
    """The model of a path, a bundled name or a hub id, strictly loaded, in eval mode.

    Raises:
        QkvError: nothing of that name, or a checkpoint that does not fit its config (both sides are listed).
    """
    return opened(locate(name, revision), device, dtype)


def past(name: str | Path, step: int, *, device: str = "auto", dtype: str = "auto") -> Model:
    """The model as its run had it after so many steps, from the weights that the run kept then.

    Raises:
        QkvError: no weights were kept at that step; those that were are named.
    """
    places = ("train/watch/weights", "train/snapshots")
    found = {int(p.stem): p for at in places for p in Path(name, at).glob("*.safetensors") if p.stem.isdigit()}
    if step not in found:
        steps = ", ".join(map(str, sorted(found))) or Message("none")
        raise QkvError("{name}: no weights were kept at step {step} (kept: {steps})", name=name, step=step,
                       steps=steps)
    return opened(locate(name), device, dtype, training.read(found[step])[0])


def opened(directory: Path, device: str, dtype: str, kept: Mapping[str, torch.Tensor] | None = None) -> Model:
    """The model of a directory, with the weights that learnt as a run of it kept them where they are given."""
    if (directory / peft.CONFIG).is_file():
        return adapted(directory, device, dtype, kept)
    core, config = model_dir.read(directory, device=device_of(device), dtype=dtype_of(dtype))
    if kept:
        training.fill(core, kept)
    pack(core)
    tokenizer = text.load(directory)
    if tokenizer is not None:
        tokenizer.fits(core.spec.sources or core.spec.vocabulary)
    file = directory / "generation_config.json"
    habits = storage.read_json(file) if file.is_file() else {}
    return Model(core, tokenizer, special_of(directory, config, tokenizer), config, habits)


def adapted(directory: Path, device: str, dtype: str, kept: Mapping[str, torch.Tensor] | None = None) -> Model:
    """A model with the adapters of a directory merged into it; the directory's own config says what else is new."""
    base, file = peft.base_of(directory), directory / "config.json"
    try:
        begun = load(base, device=device, dtype=dtype)
    except QkvError as e:
        said = directory / peft.CONFIG
        raise QkvError("{said}: {directory} holds adapters of a model, which is not to be had: {e}", said=said,
                       directory=directory, e=e) from e
    config = storage.read_json(file) if file.is_file() else begun.config or {}
    core = extended(begun.core, model_dir.spec_of(config, file), 0)
    parts, whole = peft.read(directory, core, config)
    if kept:
        scale = peft.scale(directory)
        parts = {n[:-2]: (t, kept[f"{n[:-2]}.b"], scale) for n, t in kept.items() if n.endswith(".a")}
        whole = {n: t for n, t in kept.items() if not n.endswith((".a", ".b"))}
    lora.load(core, parts)
    own = dict(core.named_parameters())
    with torch.no_grad():
        for key, tensor in whole.items():
            own[key].copy_(tensor)
    lora.merge(core)
    pack(core.eval())
    tokenizer = text.load(directory) or begun.tokenizer
    return Model(core, tokenizer, special_of(directory, config, tokenizer), config, begun.habits)


def extended(core: Transformer, spec: Spec, seed: int) -> Transformer:
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


def build(spec: Spec, *, seed: int = 0, tokenizer: Tokenizer | None = None, special: Special | None = None) -> Model:
    """A new model of a spec with first weights drawn from `seed`, in train mode."""
    if tokenizer is not None:
        tokenizer.fits(spec.sources or spec.vocabulary)
    core = build_core(spec)
    initialise(core, seed)
    if special is None and tokenizer is not None:
        eos = () if tokenizer.eos_id is None else (tokenizer.eos_id,)
        start = tokenizer.pad_id if spec.encoder and spec.decoder else tokenizer.bos_id if free(spec) else None
        piece = [i for token in PIECE if (i := tokenizer.id(token)) is not None]
        if fills_blanks(spec) and len(piece) == len(PIECE):
            start, eos = piece[0], (piece[1],)
        forbid = () if start is None else (start,)
        special = Special(tokenizer.bos_id, eos, tokenizer.pad_id, start, forbid)
    return Model(core.train(), tokenizer, special)


FILES = ("*.json", "*.safetensors", "*.model", "*.spm", "merges.txt", "vocab.*", "*.jinja")  # data, never code


def locate(name: str | Path, revision: str | None = None, wanted: Sequence[str] = FILES) -> Path:
    """The directory of a MODEL: an existing path, else a bundled name, else a hub id (`./x` forces a path)."""
    if not str(name):
        raise QkvError("the name of the model is empty, expected a directory, a bundled name or a hub id")
    path, bundled = Path(name), paths.bundled_dir()
    if path.is_dir():
        if (path / "config.json").is_file() or (path / peft.CONFIG).is_file():
            return path
        here = ", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing"
        raise QkvError("{path}: no config.json in this directory (found: {here}); is it a model's or a run's?",
                       path=path, here=here)
    known = sorted(p.name for p in bundled.iterdir()) if bundled.is_dir() else []
    if str(name) in known:
        return bundled / str(name)
    if path.is_file():
        raise QkvError("{path}: is a file, expected the directory of a model", path=path)
    if str(name).startswith((".", "/", "~")) or str(name).count("/") > 1 or (os.sep != "/" and os.sep in str(name)):
        raise QkvError("{name}: no such directory (bundled models: {known})", name=name,
                       known=", ".join(known) or Message("none"))
    return download(str(name), revision, known, wanted)


def download(name: str, revision: str | None, known: Sequence[str], wanted: Sequence[str]) -> Path:
    """The wanted files of a hub id, from the cache where they lie there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(wanted)))
    except Exception as e:
        reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        hint, here, why = nearest(name, known), ", ".join(known), f"{type(e).__name__}: {reason[:160]}"
        raise QkvError("{name}: no such directory and no bundled model{hint} (bundled: {here}), and the hub did not "
                       "give it ({why}). Check the name, and HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN and HF_HOME; "
                       "./{name} forces a path", name=name, hint=hint, here=here or Message("none"), why=why) from None


def special_of(directory: Path, config: dict[str, Any], tokenizer: Tokenizer | None) -> Special:
    """Special ids: generation_config.json first, then config.json, then the tokenizer's own."""
    file = directory / "generation_config.json"
    stated = {**config, **(storage.read_json(file) if file.is_file() else {})}

    def ids(key: str) -> tuple[int, ...]:
        value = stated.get(key)
        found = value if isinstance(value, list) else [] if value is None else [value]
        for number in found:
            if not isinstance(number, int):
                raise QkvError("{directory}: {key} is {value!r} in its configs, expected a token's number or a list "
                               "of them", directory=directory, key=key, value=value)
        return tuple(found)

    def one(key: str, own: int | None = None) -> int | None:
        return next(iter(ids(key)), own)

    ends = ids("eos_token_id")
    if not ends and tokenizer is not None and tokenizer.eos_id is not None:
        ends = (tokenizer.eos_id,)
    bad = tuple(int(w[0]) for w in stated.get("bad_words_ids") or () if len(w) == 1)
    pad = one("pad_token_id", tokenizer.pad_id if tokenizer else None)
    start = one("decoder_start_token_id")
    if start is not None and start == pad and not bad:
        bad = (start,)  # a decoder that starts with padding never says it
    bos = one("bos_token_id", tokenizer.bos_id if tokenizer else None)
    return Special(bos, ends, pad, start, bad, one("forced_bos_token_id"))


def spec_of(name: str | Path | Model) -> Spec:
    """The spec of a model, of `family:size`, of a family (its first size), or of a MODEL's config; loads no weights."""
    if isinstance(name, Model):
        return name.spec
    family = model_dir.called(str(name))
    config = model_dir.named(str(name)) or (model_dir.named(f"{name}:{next(iter(family.SIZES))}") if family else None)
    if config is None and ":" in str(name) and not Path(name).exists():
        known = [*model_dir.modules(), *(a for m in model_dir.modules().values() for a in getattr(m, "ALSO", ()))]
        family, size = str(name).split(":", 1)
        raise QkvError("{name}: there is no family {family!r}{hint} with a size {size!r} (families: {known})",
                       name=name, family=family, hint=nearest(family, known), size=size,
                       known=", ".join(known))
    if config is None:
        directory = locate(name, wanted=("config.json", peft.CONFIG))
        if (directory / peft.CONFIG).is_file() and not (directory / "config.json").is_file():
            return spec_of(peft.base_of(directory))
        return model_dir.spec_of(storage.read_json(directory / "config.json"), directory / "config.json")
    return model_dir.spec_of(config, name)


def show(name: str | Path | Model, *, mode: Any = None, taps: bool = False) -> str:
    """The core folded into the single-model forward pass that one would have written by hand, as Python text.

    A comment comes first where the family's numbers were never published.
    """
    text, note = fold.show(spec_of(name), mode=mode, taps=taps), unpublished(name)
    return f"# {note}\n{text}" if note else text


def unpublished(name: str | Path | Model) -> str | None:
    """What a family says of numbers that nobody published and that it has all the same."""
    return getattr(model_dir.called(str(name).partition(":")[0]), "UNPUBLISHED", None)


def report(
    name: str | Path | Model, *, dtype: str = "fp32", context: int | None = None, attention: str | None = None
) -> dict[str, Any]:
    """Parameters, FLOPs and bytes of a model, counted from the core built without memory.

    Bytes are of numbers in `dtype`; `attention` (mha, mqa, gqa:N) asks what other key/value heads would cost. A family
    whose model was never published says so under `note`, and adapters say whose cost is counted.
    """
    spec = spec_of(name)
    if attention:
        spec = regrouped(spec, groups_of(attention))
    note = unpublished(name)
    if not isinstance(name, Model) and (Path(name) / peft.CONFIG).is_file():
        note = f"adapters for {peft.base_of(Path(name))}; counted as loaded, merged into it"
    return cost.report(spec, dtype=dtype, context=context, note=note)


def device_of(name: str) -> torch.device:
    """The device of a name: auto takes CUDA, then MPS, then the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise QkvError("unknown device {name!r} (known: auto, cpu, cuda, cuda:0, mps)", name=name) from None
    count = {"cuda": torch.cuda.device_count, "mps": torch.backends.mps.is_available}.get(device.type)
    if count and (device.index or 0) >= (there := int(count())):
        raise QkvError("device {name!r}: this machine, or this build of PyTorch, has {there} such; take --device cpu",
                       name=name, there=there)
    return device


DTYPES = {"auto": None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
          "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}  # fmt: skip


def dtype_of(name: str) -> torch.dtype | None:
    """The dtype of a name; auto is None: the checkpoint decides."""
    if name not in DTYPES:
        raise QkvError("unknown dtype {name!r}{hint} (known: {dtypes})", name=name, hint=nearest(name, DTYPES),
                       dtypes=", ".join(DTYPES))
    return DTYPES[name]
