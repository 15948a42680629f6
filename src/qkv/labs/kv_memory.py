"""How much memory does the cache take, and what do shared key/value heads save? Counted, and measured on a cache."""


import dataclasses

import torch

from qkv import spec as parts
from qkv.core.cache import Static
from qkv.cost import count
from qkv.hub import spec_of
from qkv.labs.lab import Lab, Numbers, Plot, Runs, Tell, Verdict, ignore
from qkv.labs.tiny import Tiny, draw
from qkv.messages import Message

TOKENS = 37


def set_groups(spec: parts.Spec, groups: int) -> parts.Spec:
    """The same decoder with other key/value heads."""
    assert spec.decoder
    blocks = tuple(
        dataclasses.replace(b, attn=dataclasses.replace(b.attn, groups=groups)) for b in spec.decoder.blocks
    )
    return dataclasses.replace(spec, decoder=dataclasses.replace(spec.decoder, blocks=blocks))


def kib(spec: parts.Spec) -> float:
    """KiB that the cache grows by with each token, in 16-bit numbers."""
    return count(spec).kv_bytes_per_token("fp16") / 1024


@torch.no_grad()
def compare_bytes(groups: int, seed: int) -> float:
    """Bytes of a real cache over what was counted, 1 where they agree."""
    model = Tiny(layers=3, heads=8, width=64, groups=groups).model(seed)
    cache = Static(3)
    ids = draw(seed, 2, TOKENS)
    model.core(ids, cache=cache, mode="prefill")
    return cache.bytes / (count(model.spec).kv_bytes_per_token("fp64") * 2 * TOKENS)


def run(seed: int, *, steps: int = 0, tell: Tell = ignore) -> Numbers:
    gpt3, qwen = spec_of("gpt3:175b"), spec_of("qwen2:72b")
    real = [compare_bytes(g, seed) for g in (8, 2, 1)]
    return {
        "gpt3_mha": kib(gpt3), "gpt3_mqa": kib(set_groups(gpt3, 1)), "llama_7b": kib(spec_of("llama:7b")),
        "qwen_gqa": kib(qwen), "qwen_mha": kib(set_groups(qwen, 64)),
        "measured": max(real, key=lambda r: abs(r - 1)),
    }


def judge(runs: Runs) -> Verdict:
    gpt3, qwen = runs.mean("gpt3_mha") / runs.mean("gpt3_mqa"), runs.mean("qwen_mha") / runs.mean("qwen_gqa")
    says = Message("a token: GPT-3 {gpt3_mha:.1f} MiB, as MQA {gpt3_mqa:.0f} KiB ({gpt3:.0f} times less); Qwen2-72B "
                   "{qwen_gqa:.0f} KiB ({qwen:.0f} times less); a real cache over the formula {measured:.3f}",
                   gpt3_mha=runs.mean("gpt3_mha") / 1024, gpt3_mqa=runs.mean("gpt3_mqa"), gpt3=gpt3,
                   qwen_gqa=runs.mean("qwen_gqa"), qwen=qwen, measured=runs.mean("measured"))
    right = abs(gpt3 - 96) < 1e-6 and abs(qwen - 8) < 1e-6 and abs(runs.mean("measured") - 1) < 0.05
    return runs.verdict("shown" if right else "refuted", "measured", says)


NAMES = {"GPT-3 MHA": "gpt3_mha", "GPT-3 MQA": "gpt3_mqa", "Llama 7B": "llama_7b", "Qwen2 72B GQA": "qwen_gqa",
         "Qwen2 72B MHA": "qwen_mha"}


def plot(runs: Runs) -> Plot:
    return Plot("bars", Message("KV cache for each token (KiB, 16 bits)"), list(NAMES),
                {"KiB": [runs.mean(n) for n in NAMES.values()]}, y_label=Message("KiB"), scale="log")


LAB = Lab(
    "exact",
    Message("MQA and GQA shrink the KV cache by as many heads as share one."),
    Message("Texts on the cost of inference."),
    Message("Bytes of keys and values for each token of GPT-3, LLaMA-7B, Qwen2-72B (16 bits); then a real cache is "
            "filled and its bytes are counted."),
    Message("The formula: 2 x layers x key/value heads x head dim x 2 bytes; measured within 5 %."),
    Message("4.5 MiB to 48 KiB (96 times); LLaMA-7B 0.5 MiB; Qwen2-72B 320 KiB instead of 2.5 MiB (8 times)."),
    {"gpt3_mha": Message("GPT-3, 96 key/value heads (KiB)"), "gpt3_mqa": Message("GPT-3, 1"),
     "llama_7b": Message("LLaMA-7B"), "qwen_mha": Message("Qwen2-72B, if it had 64"),
     "qwen_gqa": Message("Qwen2-72B, 8"), "measured": Message("measured over formula")},
    run, judge, plot,
)
