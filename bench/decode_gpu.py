"""Writing one token after another on a GPU reads the weights at 70 % of the memory's rate.

A LLaMA shape of 7B (or 443M: --small) with random bf16 weights, one row or several, greedy, after a prompt of 512.
Beside it the same without captured steps, and transformers' model called token by token. The limit is the time in which
this GPU's memory gives every weight once. Without a GPU nothing is measured, and it says so.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines import CONFIG, TINY, compare, draw_prompt
from harness import compete, need, options, quiet, summary, write

SEVEN = CONFIG | {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
                  "intermediate_size": 11008}  # fmt: skip


def main() -> None:
    given = options(__doc__ or "", small=(False, "443M parameters"), rows=("1,16", "rows at once"),
                    prompt=(512, "tokens to read before"), tokens=(128, "tokens to write"))  # fmt: skip
    import torch

    if not torch.cuda.is_available() and not given.smoke:
        print("skipped: no GPU here, so nothing was measured and nothing written")
        return
    if given.smoke:
        given.rows, given.prompt, given.tokens = "1,2", 24, 8
    found, skipped = compete(given, {"qkv": lambda g, f: ours(g, graphs=True), "qkv without graphs":
                                     lambda g, f: ours(g, graphs=False), "transformers": transformed})  # fmt: skip
    rates: dict[str, Any] = {}
    for rows in map(int, given.rows.split(",")):
        key, read = str(rows), rows * given.prompt
        here = {name: {"tokens_per_second": summary([rows / one[key][1] for one in rounds], 1),
                       "prompt_tokens_per_second": summary([read / one[key][0] for one in rounds], 0)}
                for name, rounds in found.items()}  # fmt: skip
        rates[f"{rows} rows"] = {**here, "ratio": compare(here, "qkv")}
    reads, read_bytes = count_weights(given), read_rate(given)
    one = rates[f"{given.rows.split(',')[0]} rows"]["qkv"]["tokens_per_second"]["median"]
    gpu = None if given.smoke else torch.cuda.get_device_name()
    write("decode_gpu", __doc__ or "", given, gpu=gpu, rates=rates, skipped=skipped, weight_bytes=reads,
          memory_bytes_per_second=read_bytes, of_the_limit=round(one * reads / read_bytes, 3))  # fmt: skip


def shape(given: Any) -> dict[str, Any]:
    return CONFIG | TINY if given.smoke else CONFIG if given.small else SEVEN


def count_weights(given: Any) -> int:
    """Bytes of the weights that a token reads: all but the embedding."""
    from qkv import cost
    from qkv.checkpoints import model_dir

    core = cost.build_meta(model_dir.spec_from_config(shape(given), "bench"))
    return 2 * (sum(p.numel() for p in core.parameters()) - core.embed.weight.numel())


def read_rate(given: Any) -> float:
    """Bytes a second of a product with one row, and of a sum, whichever is faster."""
    import torch

    device, size = ("cpu", 256) if given.smoke else ("cuda", 16384)
    x, row = torch.ones(4 * size, size, dtype=torch.bfloat16, device=device), torch.ones(size, 1, device=device)
    ways = (lambda: x @ row.bfloat16(), lambda: x.sum(dtype=torch.float32))
    return max(x.numel() * 2 / clock(way, given, 10) for way in ways)


def clock(run: Callable[[], Any], given: Any, times: int) -> float:
    """Seconds of a call, the best of several."""
    import torch

    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        run()
        if not given.smoke:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return best


def ours(given: Any, *, graphs: bool) -> Callable[[], dict[str, Any]]:
    import torch

    from qkv.checkpoints import model_dir
    from qkv.core.model import Transformer
    from qkv.generation.decoder import Decoder
    from qkv.generation.sequence import DecodeOptions

    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cpu" if given.smoke else "cuda"):
        core = Transformer(model_dir.spec_from_config(shape(given), "bench")).eval().requires_grad_(False)
    torch.set_default_dtype(torch.float32)

    def measure(rows: int) -> tuple[float, float]:
        decoder = Decoder(core, DecodeOptions())
        if not graphs:
            decoder.replay = None
        prompts = [draw_prompt(given.prompt, core.spec.vocabulary)] * rows
        return follow(given, lambda: decoder.prefill(prompts, given.tokens + 8), decoder.decode)

    return lambda: {rows: measure(int(rows)) for rows in given.rows.split(",")}


def transformed(given: Any, folder: Path) -> Callable[[], dict[str, Any]]:
    transformers = need("transformers")
    import torch

    quiet(transformers)
    config = transformers.LlamaConfig(**{k: v for k, v in shape(given).items() if k != "model_type"})
    torch.set_default_dtype(torch.bfloat16)
    device = "cpu" if given.smoke else "cuda"
    with torch.device(device):
        model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    torch.set_default_dtype(torch.float32)

    def measure(rows: int) -> tuple[float, float]:
        kept: dict[str, Any] = {}

        def read(ids: Any) -> Any:
            out = model(ids, past_key_values=kept.get("keys"), use_cache=True, logits_to_keep=1)
            kept["keys"] = out.past_key_values
            return out.logits[:, -1]

        ids = torch.tensor([draw_prompt(given.prompt, config.vocab_size)] * rows, device=device)
        return follow(given, lambda: read(ids), lambda tokens: read(tokens[:, None]))

    return lambda: {rows: measure(int(rows)) for rows in given.rows.split(",")}


def follow(given: Any, prefill: Callable[[], Any], decode: Callable[[Any], Any]) -> tuple[float, float]:
    """Seconds of the prompt, and of a token after it; the first eight tokens warm up."""
    import torch

    with torch.inference_mode():
        began = time.perf_counter()
        tokens = prefill().argmax(-1)
        tokens.tolist()
        read = time.perf_counter() - began
        for n in range(given.tokens):
            if n == min(8, given.tokens - 1):
                began = time.perf_counter()
            tokens = decode(tokens).argmax(-1)
            tokens.tolist()  # whoever writes a text looks at each token
        return read, (time.perf_counter() - began) / (given.tokens - min(8, given.tokens - 1))


if __name__ == "__main__":
    main()
