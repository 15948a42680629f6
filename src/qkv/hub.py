"""Where core, checkpoint, tokenizer and verbs meet: `load`, `build`, and `Model`, whose methods only delegate."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv import paths
from qkv.convert import checkpoint, store
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.core.dropout import Drop, keep
from qkv.core.step import Given, begin
from qkv.errors import QkvError, nearest
from qkv.spec import Spec
from qkv.text import tokenizer as text
from qkv.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from qkv.lens.trace import Trace


@dataclass(frozen=True)
class Special:
    """The special ids of a model: where to begin, where to stop, what fills up, what is never said."""

    bos: int | None = None
    eos: tuple[int, ...] = ()
    pad: int | None = None
    start: int | None = None
    forbid: tuple[int, ...] = ()

    @property
    def keys(self) -> dict[str, Any]:
        """The same as a Hugging Face config writes it."""
        found = {"bos_token_id": self.bos, "pad_token_id": self.pad, "decoder_start_token_id": self.start}
        found["eos_token_id"] = self.eos[0] if len(self.eos) == 1 else list(self.eos) or None  # type: ignore[assignment]
        return {k: v for k, v in found.items() if v is not None}


@dataclass(frozen=True)
class Output:
    """What one forward pass gives: `logits` [B, T, V] (None without a head) and the last `hidden` states [B, T, D]."""

    logits: Tensor | None
    hidden: Tensor


@dataclass(frozen=True)
class Result:
    """What generation gives: text, token ids, their log-probabilities, why it ended, how long it took.

    `score` ranks beams; `others` are the next best; `alignment` [T, S] says which source token each token looked at.
    """

    text: str
    tokens: list[int]
    logprobs: list[float]
    finish_reason: str
    timing: dict[str, float]
    score: float | None = None
    others: tuple["Result", ...] = ()
    alignment: Tensor | None = None


class Model:
    """A core with its tokenizer and everything that one can ask of it. Not an nn.Module: `.core` is."""

    def __init__(
        self, core: Transformer, tokenizer: Tokenizer | None = None, special: Special | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.core, self.tokenizer, self.config = core, tokenizer, config
        self.special = special or Special()

    @property
    def spec(self) -> Spec:
        """The frozen spec of the core."""
        return self.core.spec

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.core.embed.weight.device

    @property
    def encoder_decoder(self) -> bool:
        """Whether there is a source to read besides the text to write."""
        return bool(self.spec.encoder and self.spec.decoder)

    def __repr__(self) -> str:
        count = sum(p.numel() for p in self.core.parameters())
        kind = (self.config or {}).get("model_type", "qkv")
        return f"Model({kind}, {count:,} parameters, {self.core.embed.weight.dtype}, {self.device})"

    def __call__(
        self, ids: Tensor | None = None, *, source: Tensor | None = None, target: Tensor | None = None,
        padding: Tensor | None = None, drop: Drop = keep,
    ) -> Output:  # fmt: skip
        """One forward pass with autograd on: ids [B, T] -> logits [B, T, V].

        Encoder-decoders take `source` [B, S] and `target` [B, T], and `padding` (True = real) belongs to the source.
        """
        core = self.core
        if self.encoder_decoder:
            if source is None or target is None:
                raise QkvError("this model has an encoder and a decoder: call it with source= and target=")
            memory = core.encode(source, begin(core.encoder, source, Given(real=padding), drop=drop))
            stack, ids, given = core.decoder, target, Given(memory=memory, memory_real=padding)
        else:
            if ids is None or source is not None or target is not None:
                raise QkvError("this model has one stack: call it with ids (and padding=)")
            stack, given = core.decoder if self.spec.decoder else core.encoder, Given(real=padding)
        step = begin(stack, ids, given, drop=drop)
        hidden = core.hidden(ids, step)
        return Output(step.tap(core, "logits", core.head(hidden)) if self.spec.head else None, hidden)

    def save(self, directory: str | Path, *, family: str | None = None, dtype: torch.dtype | None = None) -> Path:
        """Write a Hugging Face directory, whole or not at all; what other files it holds stays.

        The config that was loaded is kept; else the family that can say the spec, else type `qkv` with the spec in it.

        Raises:
            QkvError: `family` cannot say the spec; the message names the field.
        """
        directory = Path(directory)
        with store.replacing(directory) as aside:
            extra = self.special.keys
            checkpoint.write(aside, self.core, family=family, config=self.config, extra=extra, dtype=dtype)
            store.write_json(aside / "generation_config.json", extra)
            if self.tokenizer is not None:
                self.tokenizer.save(aside)
        return directory


def device_of(name: str) -> torch.device:
    """The device of a name: auto takes CUDA, then MPS, then the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.device(name)
    except RuntimeError:
        raise QkvError(f"unknown device {name!r} (known: auto, cpu, cuda, cuda:0, mps)") from None


DTYPES = {"auto": None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
          "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}  # fmt: skip


def dtype_of(name: str) -> torch.dtype | None:
    """The dtype of a name; auto is None: the checkpoint decides."""
    if name not in DTYPES:
        raise QkvError(f"unknown dtype {name!r}{nearest(name, DTYPES)} (known: {', '.join(DTYPES)})")
    return DTYPES[name]


def load(name: str | Path, *, device: str = "auto", dtype: str = "auto", revision: str | None = None) -> Model:
    """The model of a path, a bundled name or a hub id, strictly loaded, in eval mode.

    Raises:
        QkvError: nothing of that name, or a checkpoint that does not fit its config (both sides are listed).
    """
    directory = locate(name, revision)
    core, config = checkpoint.read(directory, device=device_of(device), dtype=dtype_of(dtype))
    tokenizer = text.load(directory)
    if tokenizer is not None:
        tokenizer.fits(core.spec.sources or core.spec.vocabulary)
    return Model(core, tokenizer, special_of(directory, config, tokenizer), config)


def build(spec: Spec, *, seed: int = 0, tokenizer: Tokenizer | None = None, special: Special | None = None) -> Model:
    """A new model of a spec with first weights drawn from `seed`, in train mode."""
    if tokenizer is not None:
        tokenizer.fits(spec.sources or spec.vocabulary)
    core = Transformer(spec)
    initialise(core, seed)
    if special is None and tokenizer is not None:
        eos = () if tokenizer.eos_id is None else (tokenizer.eos_id,)
        start = tokenizer.pad_id if spec.encoder and spec.decoder else None
        forbid = (tokenizer.pad_id,) if start is not None else ()
        special = Special(tokenizer.bos_id, eos, tokenizer.pad_id, start, forbid)
    return Model(core.train(), tokenizer, special)


def locate(name: str | Path, revision: str | None = None) -> Path:
    """The directory of a MODEL: an existing path, else a bundled name, else a hub id (`./x` forces a path)."""
    path, bundled = Path(name), paths.bundled_dir()
    if path.is_dir():
        if (path / "config.json").is_file():
            return path
        here = ", ".join(sorted(p.name for p in path.iterdir())[:8]) or "nothing"
        raise QkvError(f"{path}: no config.json in this directory (found: {here}); is it a model's or a run's directory?")
    known = sorted(p.name for p in bundled.iterdir()) if bundled.is_dir() else []
    if str(name) in known:
        return bundled / str(name)
    if path.is_file():
        raise QkvError(f"{path}: is a file, expected the directory of a model")
    if str(name).startswith((".", "/", "~")) or str(name).count("/") != 1 or os.sep != "/" and os.sep in str(name):
        listed = ", ".join(known) or "none"
        raise QkvError(f"{name}: no such directory and no bundled model{nearest(str(name), known)} (bundled: {listed})")
    return download(str(name), revision)


def download(name: str, revision: str | None) -> Path:
    """The snapshot of a hub id, from the cache where it lies there; only plain data files are ever fetched."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    wanted = ["*.json", "*.safetensors", "*.model", "*.spm", "merges.txt", "vocab.*", "*.jinja"]
    disable_progress_bars()
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
    except Exception as e:
        reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise QkvError(
            f"{name}: no such path or bundled model, and the hub did not give it ({type(e).__name__}: {reason[:160]}). "
            f"Check the name and HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN, HF_HOME; ./{name} forces a path"
        ) from None


def special_of(directory: Path, config: dict[str, Any], tokenizer: Tokenizer | None) -> Special:
    """Special ids: generation_config.json first, then config.json, then the tokenizer's own."""
    file = directory / "generation_config.json"
    stated = {**config, **(store.read_json(file) if file.is_file() else {})}

    def one(key: str, own: int | None = None) -> int | None:
        value = stated.get(key)
        return own if value is None else int(value[0] if isinstance(value, list) else value)

    eos = stated.get("eos_token_id")
    ends = tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),)
    if not ends and tokenizer is not None and tokenizer.eos_id is not None:
        ends = (tokenizer.eos_id,)
    bad = tuple(int(w[0]) for w in stated.get("bad_words_ids") or () if len(w) == 1)
    pad = one("pad_token_id", tokenizer.pad_id if tokenizer else None)
    start = one("decoder_start_token_id")
    if start is not None and start == pad and not bad:
        bad = (start,)  # a decoder that starts with padding never says it
    return Special(one("bos_token_id", tokenizer.bos_id if tokenizer else None), ends, pad, start, bad)
