"""How much memory does the cache take, and what do shared key/value heads save? Counted, and measured on a cache."""
# ruff: noqa: E501, ISC004  the two languages stand side by side, and Chinese characters count twice

import dataclasses

import torch

from qkv import spec as parts
from qkv.core.cache import Static
from qkv.cost import count
from qkv.hub import spec_of
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, quiet
from qkv.labs.tiny import Tiny, draw

TOKENS = 37


def grouped(spec: parts.Spec, groups: int) -> parts.Spec:
    """The same decoder with other key/value heads."""
    assert spec.decoder
    blocks = tuple(
        dataclasses.replace(b, attn=dataclasses.replace(b.attn, groups=groups)) for b in spec.decoder.blocks
    )  # fmt: skip
    return dataclasses.replace(spec, decoder=dataclasses.replace(spec.decoder, blocks=blocks))


def kib(spec: parts.Spec) -> float:
    """KiB that the cache grows by with each token, in 16-bit numbers."""
    return count(spec).kv_bytes_per_token("fp16") / 1024


@torch.no_grad()
def measured(groups: int, seed: int) -> float:
    """Bytes of a real cache over what was counted, 1 where they agree."""
    model = Tiny(layers=3, heads=8, width=64, groups=groups).model(seed)
    cache = Static(3)
    ids = draw(seed, 2, TOKENS)
    model.core(ids, cache=cache, mode="prefill")
    return cache.bytes / (count(model.spec).kv_bytes_per_token("fp64") * 2 * TOKENS)


def run(seed: int, *, steps: int = 0, tell: Tell = quiet) -> Numbers:
    gpt3, qwen = spec_of("gpt3:175b"), spec_of("qwen2:72b")
    real = [measured(g, seed) for g in (8, 2, 1)]
    return {
        "gpt3_mha": kib(gpt3), "gpt3_mqa": kib(grouped(gpt3, 1)), "llama_7b": kib(spec_of("llama:7b")),
        "qwen_gqa": kib(qwen), "qwen_mha": kib(grouped(qwen, 64)),
        "measured": max(real, key=lambda r: abs(r - 1)),
    }  # fmt: skip


def judge(runs: Runs) -> Verdict:
    gpt3, qwen = runs.mean("gpt3_mha") / runs.mean("gpt3_mqa"), runs.mean("qwen_mha") / runs.mean("qwen_gqa")
    says = (f"每个词元：GPT-3 {runs.mean('gpt3_mha') / 1024:.1f} MiB，MQA {runs.mean('gpt3_mqa'):.0f} KiB（{gpt3:.0f} 倍）；"
            f"Qwen2-72B {runs.mean('qwen_gqa'):.0f} KiB，少 {qwen:.0f} 倍；实际缓存与公式之比 {runs.mean('measured'):.3f}",
            f"a token: GPT-3 {runs.mean('gpt3_mha') / 1024:.1f} MiB, as MQA {runs.mean('gpt3_mqa'):.0f} KiB ({gpt3:.0f} times "
            f"less); Qwen2-72B {runs.mean('qwen_gqa'):.0f} KiB ({qwen:.0f} times less); a real cache over the formula "
            f"{runs.mean('measured'):.3f}")  # fmt: skip
    right = abs(gpt3 - 96) < 1e-6 and abs(qwen - 8) < 1e-6 and abs(runs.mean("measured") - 1) < 0.05
    return runs.verdict("shown" if right else "refuted", "measured", says)


NAMES = {"GPT-3 MHA": "gpt3_mha", "GPT-3 MQA": "gpt3_mqa", "Llama 7B": "llama_7b", "Qwen2 72B GQA": "qwen_gqa",
         "Qwen2 72B MHA": "qwen_mha"}  # fmt: skip


def plot(runs: Runs) -> Plot:
    return Plot("bars", ("每个词元的 KV 缓存（KiB，16 位）", "KV cache for each token (KiB, 16 bits)"), list(NAMES),
                {"KiB": [runs.mean(n) for n in NAMES.values()]}, y_label=Message("KiB"), scale="log")  # fmt: skip


LAB = Lab(
    "exact",
    ("MQA 和 GQA 让 KV 缓存按共享的头数变小。", "MQA and GQA shrink the KV cache by as many heads as share one."),
    ("讲推理成本的文章。", "Texts on the cost of inference."),
    ("GPT-3、LLaMA-7B、Qwen2-72B 每个词元的 KV 字节（16 位）；再填满一个真的缓存，比较字节数。",
     "Bytes of keys and values for each token of GPT-3, LLaMA-7B, Qwen2-72B (16 bits); then a real cache is filled and its "
     "bytes are counted."),
    ("公式：2 × 层 × KV 头 × 头维 × 2 字节；与实测之比应在 5% 内。",
     "The formula: 2 x layers x key/value heads x head dim x 2 bytes; measured within 5 %."),
    ("4.5 MiB → 48 KiB（96 倍）；LLaMA-7B 0.5 MiB；Qwen2-72B 320 KiB 而不是 2.5 MiB（8 倍）。",
     "4.5 MiB to 48 KiB (96 times); LLaMA-7B 0.5 MiB; Qwen2-72B 320 KiB instead of 2.5 MiB (8 times)."),
    {"gpt3_mha": ("GPT-3，96 个 KV 头（KiB）", "GPT-3, 96 key/value heads (KiB)"), "gpt3_mqa": ("GPT-3，1 个", "GPT-3, 1"),
     "llama_7b": Message("LLaMA-7B"), "qwen_mha": ("Qwen2-72B，若 64 个", "Qwen2-72B, if it had 64"),
     "qwen_gqa": ("Qwen2-72B，8 个", "Qwen2-72B, 8"), "measured": ("实测 / 公式", "measured over formula")},
    run, judge, plot,
)  # fmt: skip
