"""`qkv check MODEL`: does it load strictly, are its numbers sound, does it compute what transformers computes?"""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from qkv.cli.common import Common, option, verb
from qkv.errors import QkvError


@verb("Check a model: load it strictly, verify the hashes of its files and scan for NaN; with --against hf, also "
      "compare it with transformers. The exit code is 1 if a check fails.",
      examples=("qkv check demo", "qkv check ./my-model --against hf", "qkv check gpt2 --json"))
@click.argument("model")
@option("--against", type=click.Choice(["hf"]), help="compare the logits with those of transformers")
def command(common: Common, model: str, against: str | None) -> int:
    from qkv.checkpoints.locate import locate

    directory = locate(model, common.revision)  # before torch is imported
    from qkv import hub
    from qkv.adapt import quantise
    from qkv.checkpoints import peft, storage

    adapters = (directory / peft.CONFIG).is_file()
    if adapters and against:
        raise QkvError("--against hf: these are adapters; qkv convert writes them and their base as one model to check")
    report: dict[str, Any] = {
        "model": model, "files": storage.hash_files(directory),
        "base": peft.base_of_adapter(directory) if adapters else None,
        "not_finite": storage.count_nonfinite(directory, *[peft.WEIGHTS] * adapters),
    }
    loaded = None if report["not_finite"] else hub.load(directory, device="cpu", dtype="fp32")
    parity = measure_parity(directory, loaded) if against and loaded else None
    count = quantise.count_parameters(loaded.core) if loaded else None
    report |= {"parameters": count, "loads": loaded is not None, "parity": parity,
               "lacking_tokens": list_lacking(directory, loaded.tokenizer) if loaded else [],
               "ok": not report["not_finite"] and (parity is None or parity["agrees"])}
    common.print_result(report, list_checks(report, common.say))
    return 0 if report["ok"] else 1


def list_lacking(directory: Path, tokenizer: Any) -> list[str]:
    """The special tokens that stand beside a vocabulary and not in it."""
    from qkv.json_files import read_json
    from qkv.tokenizers.backends import roles_of

    named = roles_of(directory, read_json(directory / "tokenizer_config.json", optional=True)) if tokenizer else {}
    return sorted({text for text in named.values() if tokenizer.id(text) is None})


def list_checks(report: dict[str, Any], say: Callable[..., str]) -> Iterator[str]:
    """The report as people read it."""
    yield from (f"  {digest[:16]}…  {name}" for name, digest in report["files"].items())
    if report["base"]:
        yield say("✓ adapters, loaded with {base}", base=report["base"])
    if report["loads"]:
        yield say("✓ loads strictly: {count:,} parameters, every tensor read", count=report["parameters"])
    for name, n in report["not_finite"].items():
        yield say("✗ {name}: {n} NaN or infinite", name=name, n=n)
    if not report["not_finite"]:
        yield say("✓ all numbers are finite")
    if report["lacking_tokens"]:
        yield say("! the vocabulary lacks special tokens that are named beside it: {tokens}",
                  tokens=", ".join(report["lacking_tokens"]))
    if p := report["parity"]:
        yield say("{mark} largest difference from {theirs}: {difference:.2e} (spread {spread:.2f}, bound {bound:.2e})",
                  mark="✓" if p["agrees"] else "✗", theirs=f"transformers {p['transformers']}", **p)


def measure_parity(directory: Path, loaded: Any) -> dict[str, Any]:
    """Our numbers beside transformers' own on drawn ids, fp32; the bound: 1e-5 of the spread, 3x its kernels' gap."""
    import torch

    oracle, version = load_theirs(directory, loaded)
    top = min(loaded.spec.vocabulary, loaded.spec.sources or loaded.spec.vocabulary)
    ids = torch.randint(0, top, (2, min(24, loaded.spec.context or 24)), generator=torch.Generator().manual_seed(0))
    pad = loaded.special.pad
    if pad is not None:
        ids = ids.where(ids != pad, (ids + 1) % top)  # transformers would look for a text's end before it
    name, both = "", []
    with torch.no_grad():
        for way in ("sdpa", "eager"):
            oracle.set_attn_implementation(way)
            out = oracle(ids, decoder_input_ids=ids) if loaded.encoder_decoder else oracle(ids)
            name = next(n for n in ("logits", "prediction_logits", "last_hidden_state") if n in out)
            both.append(out[name])
        fast, want = both
        ours = compute_output(loaded, ids, "labels" if want.ndim == 2 else name)
    if ours.shape != want.shape:
        raise QkvError("--against hf: {kind} gives {shape}, we give {shape2}", kind=type(oracle).__name__,
                       shape=list(want.shape), shape2=list(ours.shape))
    spread, difference = want.std().item(), (ours - want).abs().max().item()
    bound = max(1e-5 * spread, 3 * (fast - want).abs().max().item())
    return {"transformers": version, "difference": difference, "spread": spread, "bound": bound,
            "agrees": difference <= bound}


def compute_output(loaded: Any, ids: Any, name: str) -> Any:
    """What we give for what transformers calls so: logits over labels [B, labels], states or logits [B, T, …]."""
    if name == "labels":
        return loaded.core.classify(ids)
    out = loaded(source=ids, target=ids) if loaded.encoder_decoder else loaded(ids)
    return out.hidden if name == "last_hidden_state" else out.logits


def load_theirs(directory: Path, loaded: Any) -> tuple[Any, str]:
    """transformers' own model of a directory, quiet and on its own code alone, and transformers' version."""
    try:
        transformers: Any = import_module("transformers")  # by name: its index alone costs a type check 10 s
    except ImportError:
        raise QkvError("--against hf needs transformers: pip install transformers") from None
    import torch

    from qkv.paths import is_gguf

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = loaded.config or {}
    if config.get("model_type") == "qkv":
        raise QkvError("--against hf: transformers does not know the type 'qkv'; qkv convert --family NAME writes it "
                       "as one that it knows, or says what does not fit")
    kind: Any = getattr(transformers, (config.get("architectures") or [""])[0], None)
    known = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    if not known or (loaded.encoder_decoder and loaded.spec.head is None):
        kind = transformers.AutoModel
    where, more = (directory.parent, {"gguf_file": directory.name}) if is_gguf(directory) else (directory, {})
    try:
        return kind.from_pretrained(where, dtype=torch.float32, **more).eval(), transformers.__version__
    except (ValueError, OSError, KeyError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise QkvError("--against hf: transformers {version} cannot load it: {reason}",
                       version=transformers.__version__, reason=reason) from None
