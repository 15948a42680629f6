"""A LLaMA of 443M parameters reads 512 tokens in bf16 at least as fast as transformers does; llama.cpp's BF16 beside.

Random weights, one sequence, greedy. Decoding is bound by reading every weight once for each token: the limit says how
fast this machine's memory lets anybody do that.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from common import in_turn, limits, options, peer, quiet, summary, write

CONFIG = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 4096,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
}
TINY = {
    "vocab_size": 320,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
}


def main() -> None:
    given = options(__doc__ or "", prompt=(512, "tokens to read"), tokens=(64, "tokens to write"))
    import torch

    from qkv import hub
    from qkv.adapt.onednn_linear import pack_weights
    from qkv.checkpoints import model_dir
    from qkv.tasks.types import SpecialTokens

    torch.set_num_threads(given.threads)
    if given.smoke:
        given.prompt, given.tokens = 24, 6
    spec = model_dir.spec_from_config(CONFIG | (TINY if given.smoke else {}), "bench")
    model = hub.build(spec, special=SpecialTokens(1, (2,)))
    model.core.eval().to(torch.bfloat16)
    pack_weights(model.core)  # as load() does
    prompt = torch.randint(
        3, model.spec.vocabulary, (given.prompt,), generator=torch.Generator().manual_seed(0)
    ).tolist()
    skipped: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "hf", family="llama")
        runs = {"qkv bf16": lambda: ours(model.core, prompt, given.tokens)}
        runs |= transformed(folder, prompt, given, skipped) | cpp(model, folder, prompt, given, skipped)
        found = in_turn(runs, given.rounds)
    said = {name: rounds[-1][1]["logits"]() for name, rounds in found.items()}
    exact = last(model.core.float(), prompt)
    count = sum(p.numel() for p in model.core.parameters())
    rates = {name: rated([r for _, r in rounds], said[name], exact, given.prompt) for name, rounds in found.items()}
    most = limits(given.smoke)
    attn = model.spec.decoder.blocks[0].attn
    kept = 2 * 2 * attn.groups * attn.head_dim * len(model.spec.decoder.blocks)
    table = model.core.embed.weight.numel()
    mine = rates["qkv bf16"]
    write(
        "llama_430m",
        __doc__ or "",
        given,
        parameters=count,
        results=rates,
        skipped=skipped,
        limit=most,
        ratio={
            f"{what} over {name}": round(mine[what]["median"] / r[what]["median"], 3)
            for name, r in rates.items()
            if name != "qkv bf16"
            for what in ("prefill_tokens_per_second", "decode_tokens_per_second")
        },
        limit_tokens_per_second={
            "prefill (products in bf16)": round(most["bf16_flops"] / (2 * (count - 2 * table)), 1),
            "decode (reading weights and cache)": round(
                most["read_bytes"] / (2 * (count - table) + kept * given.prompt), 1
            ),
        },
    )


def ours(core: Any, prompt: list[int], tokens: int) -> dict[str, Any]:
    """Our engine as it is used: its own clock, every token chosen and checked."""
    from qkv.generation.engine import generate
    from qkv.generation.sequence import DecodeOptions

    row = generate(core, [prompt], options=DecodeOptions(tokens))[0]
    return {
        "prefill": row.timing.prefill,
        "decode": row.timing.decode / row.timing.decoded,
        "tokens": row.tokens,
        "logits": lambda: last(core, prompt),
    }


def last(core: Any, prompt: list[int]) -> Any:
    """The logits [V] after the prompt, in fp32."""
    import torch

    from qkv.generation.decoder import Decoder
    from qkv.generation.sequence import DecodeOptions

    with torch.inference_mode():
        return Decoder(core, DecodeOptions()).prefill([prompt])[0].float()


def transformed(folder: str, prompt: list[int], given: Any, skipped: dict[str, str]) -> dict[str, Any]:
    """transformers in bf16, without generate()'s overhead: its model called token by token."""
    transformers = peer("transformers", skipped)
    if not transformers:
        return {}
    import torch

    quiet(transformers)
    model = transformers.LlamaForCausalLM.from_pretrained(folder + "/hf", dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def run() -> dict[str, Any]:
        start = time.perf_counter()
        out = model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
        chosen = [int(out.logits[0, -1].argmax())]
        read, first = time.perf_counter(), out.logits[0, -1].float()
        while len(chosen) < given.tokens:
            out = model(torch.tensor([chosen[-1:]]), past_key_values=out.past_key_values, use_cache=True)
            chosen.append(int(out.logits[0, -1].argmax()))
        spent = time.perf_counter() - read
        return {
            "prefill": read - start,
            "decode": spent / (given.tokens - 1),
            "tokens": chosen,
            "logits": lambda: first,
        }

    return {"transformers bf16": run}


def cpp(model: Any, folder: str, prompt: list[int], given: Any, skipped: dict[str, str]) -> dict[str, Any]:
    """llama.cpp on the same weights in BF16, where llama-cpp-python and gguf are installed."""
    library, gguf = peer("llama_cpp", skipped), peer("gguf", skipped)
    if not (library and gguf):
        return {}
    import numpy as np
    import torch

    path = f"{folder}/model.gguf"
    as_gguf(gguf, model, path)
    llama = library.Llama(
        path,
        n_ctx=given.prompt + given.tokens + 8,
        n_batch=max(512, given.prompt),
        n_ubatch=512,
        n_threads=given.threads,
        n_threads_batch=given.threads,
        verbose=False,
    )

    def logits() -> Any:
        return np.ctypeslib.as_array(library.llama_get_logits_ith(llama.ctx, -1), (model.spec.vocabulary,))

    def run() -> dict[str, Any]:
        llama.reset()
        start = time.perf_counter()
        llama.eval(prompt)
        chosen = [int(logits().argmax())]
        read, first = time.perf_counter(), torch.tensor(logits().copy())
        while len(chosen) < given.tokens:
            llama.eval(chosen[-1:])
            chosen.append(int(logits().argmax()))
        spent = time.perf_counter() - read
        return {
            "prefill": read - start,
            "decode": spent / (given.tokens - 1),
            "tokens": chosen,
            "logits": lambda: first,
        }

    return {"llama.cpp BF16": run}


def as_gguf(gguf: Any, model: Any, path: str) -> None:
    """The model in llama.cpp's format; its rotary pairs are neighbours, so rows of q and k move."""
    s, attn = model.spec, model.spec.decoder.blocks[0].attn
    out = gguf.GGUFWriter(path, "llama")
    out.add_context_length(s.decoder.context)
    out.add_embedding_length(s.decoder.width)
    out.add_block_count(len(s.decoder.blocks))
    out.add_feed_forward_length(s.decoder.blocks[0].ffn.width)
    out.add_head_count(attn.heads)
    out.add_head_count_kv(attn.groups)
    out.add_rope_dimension_count(attn.head_dim)
    out.add_rope_freq_base(attn.rotary.base)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(s.vocabulary)
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    pieces += [f"w{i}" for i in range(s.vocabulary - len(pieces))]
    out.add_tokenizer_model("llama")
    out.add_token_list(pieces)
    out.add_token_scores([0.0] * s.vocabulary)
    out.add_token_types([2, 3, 3] + [6] * 256 + [1] * (s.vocabulary - 259))
    core = model.core
    parts = {"token_embd": core.embed, "output_norm": core.decoder.final_norm, "output": core.head}
    for i, layer in enumerate(core.decoder.layers):
        a, f = layer.attn, layer.ffn
        parts |= {
            f"blk.{i}.{name}": part
            for name, part in {
                "attn_norm": layer.attn_in,
                "attn_q": a.q,
                "attn_k": a.k,
                "attn_v": a.v,
                "attn_output": a.out,
                "ffn_norm": layer.ffn_in,
                "ffn_gate": f.gate,
                "ffn_up": f.up,
                "ffn_down": f.down,
            }.items()
        }
    for name, part in parts.items():
        weight = part.weight.detach()
        if name.endswith(("attn_q", "attn_k")):
            weight = weight.unflatten(0, (-1, 2, attn.head_dim // 2)).transpose(1, 2).flatten(0, 2)
        add(gguf, out, f"{name}.weight", weight)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def add(gguf: Any, out: Any, name: str, weight: Any) -> None:
    """Matrices as bf16, norms as fp32."""
    import torch

    if weight.ndim == 1:
        out.add_tensor(name, weight.float().numpy())
        return
    data = weight.contiguous().to(torch.bfloat16).view(torch.uint8).numpy()
    out.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.BF16)


def rated(rounds: list[dict[str, Any]], logits: Any, exact: Any, prompt: int) -> dict[str, Any]:
    """Rates of all rounds, and how far the logits after the prompt lie from fp32's, in units of their spread."""
    return {
        "prefill_tokens_per_second": summary([prompt / r["prefill"] for r in rounds], 2),
        "decode_tokens_per_second": summary([1 / r["decode"] for r in rounds], 2),
        "logit_error_of_spread": round(float((logits - exact).abs().max() / exact.std()), 4),
        "first_tokens": rounds[-1]["tokens"][:8],
    }


if __name__ == "__main__":
    main()
