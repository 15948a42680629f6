"""Competitors that read a prompt and write tokens greedily with one set of weights: qkv, transformers, llama.cpp.

Each run gives the seconds of reading the prompt and of one written token, and how far its logits after the prompt lie
from those in fp32, in units of their spread. Nothing is sampled, checked or turned into text.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Maker, clocked, limits, middle, need, quiet, summary

CONFIG = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 1024, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 4096, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
TINY = {"vocab_size": 320, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 256}  # fmt: skip
GGUF = {"bf16": "bf16", "int8": "q8_0", "int4": "q4_0"}  # the kind of llama.cpp's with as many bits
GGUF_NAMES = {"bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
LLAMA_CPP = "llama-cpp-python (it builds llama.cpp: a C++ compiler, cmake, 10 minutes)"


def draw_prompt(count: int, vocabulary: int) -> list[int]:
    """Random ids, the same for everybody."""
    return random.Random(0).choices(range(3, vocabulary), k=count)


def write_llama(given: Any, folder: Path) -> None:
    """A LLaMA of 430M random weights: a Hugging Face directory, llama.cpp's files, and the logits after the prompt."""
    import numpy as np
    import torch

    from qkv import hub
    from qkv.checkpoints import model_dir
    from qkv.tasks.types import SpecialTokens

    spec = model_dir.spec_from_config(CONFIG | (TINY if given.smoke else {}), "bench")
    model = hub.build(spec, special=SpecialTokens(1, (2,)))
    model.core.eval().to(torch.bfloat16)
    model.save(folder / "hf", family="llama")
    for kind in given.bits.split(","):
        model.save(folder / f"{kind}.gguf", dtype=GGUF[kind])
    prompt = draw_prompt(given.prompt, spec.vocabulary)
    with torch.inference_mode():
        exact = model.core.float()(torch.tensor([prompt]), logits_to_keep=1).logits[0, -1]
    np.save(folder / "exact.npy", exact.numpy())


def list_competitors(bits: str) -> dict[str, Maker]:
    """By name, for each of the numbers of bits: ours and llama.cpp's; of bf16 also transformers'."""
    found: dict[str, Maker] = {}
    for kind in bits.split(","):
        found[f"qkv {kind}"] = lambda given, folder, kind=kind: ours(given, folder, kind)
        if kind == "bf16":
            found["transformers bf16"] = transformed
        found[f"llama.cpp {GGUF_NAMES[kind]}"] = lambda given, folder, kind=kind: cpp(given, folder, kind)
    return found


def ours(given: Any, folder: Path, kind: str) -> Callable[[], dict[str, Any]]:
    """Our core with its cache, loaded as everybody loads it."""
    import torch

    import qkv
    from qkv.generation.decoder import Decoder
    from qkv.generation.sequence import DecodeOptions

    torch.set_num_threads(given.threads)
    core = qkv.load(folder / "hf", device="cpu", dtype=kind).core
    prompt = draw_prompt(given.prompt, core.spec.vocabulary)

    @torch.inference_mode()
    def run() -> dict[str, Any]:
        decoder = Decoder(core, DecodeOptions())
        return told(given, folder, lambda: decoder.prefill([prompt], given.tokens)[0],
                    lambda token: decoder.decode(torch.tensor([token]))[0])  # fmt: skip

    return run


def transformed(given: Any, folder: Path) -> Callable[[], dict[str, Any]]:
    """transformers without generate()'s overhead: its model called token by token."""
    transformers = need("transformers")
    import torch

    torch.set_num_threads(given.threads)
    quiet(transformers)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "hf", dtype=torch.bfloat16).eval()
    prompt = torch.tensor([draw_prompt(given.prompt, model.config.vocab_size)])

    @torch.inference_mode()
    def run() -> dict[str, Any]:
        kept: dict[str, Any] = {}

        def read(ids: Any) -> Any:
            out = model(ids, past_key_values=kept.get("keys"), use_cache=True, logits_to_keep=1)
            kept["keys"] = out.past_key_values
            return out.logits[0, -1]

        return told(given, folder, lambda: read(prompt), lambda token: read(torch.tensor([[token]])))

    return run


def open_cpp(given: Any, path: Path, tokens: int, **more: Any) -> tuple[Any, Callable[[], Any]]:
    """llama.cpp with a file, and a function of its last logits."""
    library = need("llama_cpp", install=LLAMA_CPP)
    import numpy as np

    llama = library.Llama(str(path), n_ctx=tokens + 8, n_batch=512, n_ubatch=512, n_threads=given.threads,
                          n_threads_batch=given.threads, verbose=False, **more)  # fmt: skip

    def logits() -> Any:
        return np.ctypeslib.as_array(library.llama_get_logits_ith(llama.ctx, -1), (llama.n_vocab(),))

    return llama, logits


def cpp(given: Any, folder: Path, kind: str) -> Callable[[], dict[str, Any]]:
    """llama.cpp on the same weights, in the kind of its own that has as many bits."""
    llama, logits = open_cpp(given, folder / f"{kind}.gguf", given.prompt + given.tokens)
    prompt = draw_prompt(given.prompt, llama.n_vocab())

    def read(ids: list[int]) -> Any:
        llama.eval(ids)
        return logits()

    def run() -> dict[str, Any]:
        llama.reset()
        return told(given, folder, lambda: read(prompt), lambda token: read([token]))

    return run


def told(given: Any, folder: Path, prefill: Callable[[], Any], decode: Callable[[int], Any]) -> dict[str, Any]:
    """Seconds of the prompt and of each token after it, and the error of the logits after the prompt."""
    import numpy as np

    read, read_busy, logits = clocked(prefill)
    first = np.array(logits.float() if hasattr(logits, "float") else logits)
    tokens = [int(first.argmax())]

    def go_on() -> None:
        while len(tokens) < given.tokens:
            tokens.append(int(decode(tokens[-1]).argmax()))

    spent, busy, _ = clocked(go_on)
    exact = np.load(folder / "exact.npy")
    count = max(1, given.tokens - 1)
    return {"prefill": read, "decode": spent / count, "prefill_busy": read_busy, "decode_busy": busy / count,
            "tokens": tokens[:8], "error": round(float(abs(first - exact).max() / exact.std()), 4)}  # fmt: skip


def rate(found: dict[str, list[dict[str, Any]]], what: str, tokens: int) -> dict[str, Any]:
    """Tokens a second by competitor, of all rounds and of processor time, with the error of its logits."""
    return {
        name: {"tokens_per_second": summary([tokens / told[what] for told in rounds], 2),
               "per_second_of_one_core": round(tokens / middle([told[f"{what}_busy"] for told in rounds]), 2),
               "logit_error_of_spread": rounds[-1]["error"], "first_tokens": rounds[-1]["tokens"]}
        for name, rounds in found.items()
    }  # fmt: skip


def compare(rates: dict[str, Any], first: str) -> dict[str, float]:
    """How many times as fast the first is as each of the others that ran."""
    mine = rates.get(first, {}).get("tokens_per_second", {}).get("median")
    others = {n: r["tokens_per_second"]["median"] for n, r in rates.items() if n != first}
    return {f"{first} over {n}": round(mine / other, 3) for n, other in others.items()} if mine else {}


def count_bytes(smoke: bool, prompt: int) -> dict[str, Any]:
    """What one token reads at each number of bits: bytes of weights, and of keys; and what this machine gives."""
    shape = CONFIG | (TINY if smoke else {})
    d, layers, f, v = (shape[k] for k in ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size"))
    kv = d * shape["num_key_value_heads"] // shape["num_attention_heads"]
    inside, head = layers * (2 * d * d + 2 * d * kv + 3 * d * f), v * d
    bits = {"bf16": 16, "int8": 8, "int4": 4.5}
    return {"machine": limits(smoke), "in_blocks": inside, "head": head, "keys": 2 * 2 * kv * layers * prompt,
            "weights": {kind: inside * b / 8 + 2 * head for kind, b in bits.items()}}  # fmt: skip
