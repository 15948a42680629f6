"""`qkv convert SRC DST`: a model with fewer key/value heads, in another dtype, or written as another family."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from qkv.cli.common import Common, InputFile, option, verb
from qkv.errors import QkvError

CONTEXT = 256  # tokens a window when the loss is measured


@verb("Write a model in another form: with fewer key/value heads (GQA, MQA), in another dtype, as another family, or "
      "as one .gguf file for llama.cpp, as ONNX graphs, or as a folder for a page that runs the model in the browser. "
      "With --text, report how the loss on that text changes.", examples=(
        "qkv convert ./my-model ./my-model-gqa --attention gqa:2 --to-dtype bf16",
        "qkv convert demo-lm demo-lm.gguf --to-dtype q8_0",
        "qkv convert demo-lm demo-lm-onnx --to onnx",
    ))
@click.argument("source")
@click.argument("target")
@option("--attention", metavar="gqa:N|mqa", help="average the key/value heads into N groups")
@option("--to-dtype", type=click.Choice(["fp32", "bf16", "fp16", "int8", "int4", "q8_0", "q4_0"]),
        help="dtype to save in (default: unchanged, or --dtype int8|int4); q8_0 and q4_0 for .gguf alone")
@option("--family", help="family to save as (default: unchanged)")
@option("--text", type=InputFile(), help="text to measure the loss on")
@option("--to", "form", type=click.Choice(["web", "onnx"]), help="web: a folder with weights (int8 unless --to-dtype), "
        "tokenizer.json and spec.json, which the program of qkv show --language typescript reads; onnx: a folder with "
        "graphs in fp32 for onnxruntime, whose cache goes in and comes out, and graphs.json, which names them")
def command(
    common: Common, source: str, target: str, attention: str | None, to_dtype: str | None, family: str | None,
    text: Path | None, form: str | None,
) -> None:
    from qkv.checkpoints.locate import locate

    place = locate(source, common.revision)  # before torch is imported
    from qkv import hub
    from qkv.adapt import quantise
    from qkv.adapt.group_heads import group_heads, groups_of
    from qkv.data.sources import read_document
    from qkv.model import Model
    from qkv.paths import is_gguf

    groups = groups_of(attention) if attention else None
    if groups == 0:
        raise QkvError("--attention mha: heads that share keys cannot be taken apart again; expected mqa or gqa:N")
    there = Path(target)
    if there.is_file() or (there.is_dir() and any(there.iterdir())):  # another model there would be half replaced
        raise QkvError("{target}: exists already; name a new directory, or remove this one first", target=target)
    if form:
        write = write_for_web if form == "web" else write_for_onnx
        write(common, source, there, to_dtype, refused=bool(attention or family or text))
        return
    if common.dtype in quantise.KINDS:  # of the numbers as they are stored, not as bf16 has them
        to_dtype, common = to_dtype or common.dtype, replace(common, dtype="auto")
    model = common.load_model(source)
    words = read_document(text) if text else ""
    before = measure_loss(model, words) if words else None
    kv = [hub.report(model)["kv_bytes_per_token"]]
    report: dict[str, Any] = {"source": source, "target": target, "kv_bytes_per_token": kv}
    if groups:
        quantise.write_out(model.core)
        model = Model(group_heads(model.core, groups), model.tokenizer, model.special, model.config)
    bits_stay = quantise.find_quantised(model.core) and not is_gguf(there)
    stored = to_dtype or (None if bits_stay else stored_dtype(place))
    model.save(target, family=family or same_family(model), dtype=stored)
    again = hub.load(Path(target), device=common.device)
    report["model_type"] = (again.config or {})["model_type"]
    kv.append(hub.report(again)["kv_bytes_per_token"])
    report["loss"] = None if before is None else [round(before, 4), round(measure_loss(again, words), 4)]
    common.print_result(report, list_changes(report, common.say, pooled=groups is not None))


def write_for_web(common: Common, source: str, target: Path, dtype: str | None, *, refused: bool) -> None:
    """A folder for a page that runs the model in the browser."""
    from qkv.cli.look import list_examples
    from qkv.explore.web_model import write_web_model

    if refused or dtype in ("int4", "q8_0", "q4_0"):
        raise QkvError("--to web: takes --to-dtype fp32, bf16, fp16 or int8, and no other change; convert in two steps")
    kept: Any = dtype or "int8"
    written = write_web_model(common.load_model(source), target, name=Path(source).name, dtype=kept,
                              examples=list_examples(source))
    common.print_result({"source": source, "target": str(target), **written}, [
        common.say("written to {target}: {size:,} bytes of weights in {dtype}", target=target, size=written["bytes"],
                   dtype=written["dtype"])])


def write_for_onnx(common: Common, source: str, target: Path, dtype: str | None, *, refused: bool) -> None:
    """A folder with ONNX graphs."""
    from qkv.checkpoints.onnx_out import write_onnx

    if refused or dtype not in (None, "fp32"):
        raise QkvError("--to onnx: takes --to-dtype fp32 and no other change; convert in two steps")
    model = common.load_model(source)
    words = model.tokenizer.to_json() if model.tokenizer else ""
    files = [str(path) for path in write_onnx(model.core, target, tokenizer=words)]
    common.print_result({"source": source, "target": str(target), "graphs": files}, [
        common.say("written to {target}: {files}, graphs.json", target=target,
                   files=", ".join(Path(file).name for file in files))])


def list_changes(report: dict[str, Any], say: Callable[..., str], *, pooled: bool) -> Iterator[str]:
    """The report as people read it."""
    (old, new), kind = report["kv_bytes_per_token"], report["model_type"]
    yield say("written to {target} as type {kind}", target=report["target"], kind=kind)
    if kind == "qkv":
        yield say("qkv alone loads it: transformers has no family of this shape")
    if old != new:
        yield say("KV per token: {kv} bytes (fp32)", kv=f"{old:,} -> {new:,}")
    if report["loss"]:
        before, after = report["loss"]
        yield say("loss per token: {before} -> {after}", before=before, after=after)
        if pooled and after > before:
            yield say("Pooling cost something; a little more training recovers it (Ainslie et al. 2023: 5 % of the "
                      "original).")


def stored_dtype(directory: Path) -> Any:
    """The dtype in which a model's weights are stored; beside adapters, those of their base."""
    from qkv.checkpoints import peft, storage
    from qkv.checkpoints.locate import locate

    while (directory / peft.CONFIG).is_file():
        directory = locate(peft.base_of_adapter(directory))
    return storage.stored_dtype(directory)


def same_family(model: Any) -> str | None:
    """The family that the model was loaded as, where it can still say what the model is now."""
    from qkv.checkpoints import model_dir

    if (model.config or {}).get("model_type", "qkv") == "qkv":
        return None
    family = model_dir.family_of_config(model.config, "config")
    return None if isinstance(model_dir.family_config(family, model.spec), str) else family.__name__.rpartition(".")[2]


def measure_loss(model: Any, text: str) -> float:
    """The mean loss per token of a text, in windows without a past, in nats."""
    if model.spec.encoder:
        raise QkvError("--text: the loss of plain text is that of a causal decoder; leave --text out, and measure "
                       "this model before and after with qkv eval (--bleu or --accuracy)")
    ids = model.ids(text)
    size = min(model.spec.context or CONTEXT, CONTEXT)
    windows = [w for i in range(0, len(ids), size) if len(w := ids[i : i + size]) > 1]
    if not windows:
        raise QkvError("the text has fewer than two tokens: there is no loss to measure")
    return -sum(model.score(w) for w in windows) / sum(len(w) - 1 for w in windows)
