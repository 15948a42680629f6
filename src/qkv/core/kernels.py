"""Faster versions of attention.attend, and when each of them runs.

Callers do not choose. tests/core/test_kernels.py compares every kernel with the formula written out, under every mask.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.core.attention import Attention
from qkv.core.attention import attend as open_attend
from qkv.core.dropout import no_dropout
from qkv.core.masks import AttentionBias
from qkv.core.step import Step


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: AttentionBias, at: Attention, step: Step) -> Tensor:
    """PyTorch's fused attention: never stores the [T, S] scores, reads shared key/value heads in place."""
    bias = None if mask.bias is None else mask.bias.to(q.dtype).clamp_min(torch.finfo(q.dtype).min)
    return F.scaled_dot_product_attention(q, k, v, bias, is_causal=mask.causal, scale=at.scale,
                                          enable_gqa=k.shape[1] < q.shape[1])


def gqa_decode(q: Tensor, k: Tensor, v: Tensor, mask: AttentionBias, at: Attention, step: Step) -> Tensor:
    """For one query: the heads of a group become queries of one head, so that shared keys and values are read once."""
    shape, bias = (k.shape[1], -1), mask.bias
    if bias is not None and bias.shape[1] > 1:
        bias = bias.unflatten(1, shape).squeeze(3)
    z = sdpa(q.unflatten(1, shape).squeeze(3), k, v, AttentionBias(bias, causal=False), at, step)
    return z.flatten(1, 2)[:, :, None]


def small_matmul(q: Tensor, k: Tensor, v: Tensor, mask: AttentionBias, at: Attention, step: Step) -> Tensor:
    """Two batched products around a softmax in fp32; heads that share a key are grouped, so that no key is repeated.

    For short rows its backward pass is far faster than the fused kernel's.
    """
    rows, heads, tokens, size = q.shape
    score = (q * at.scale).reshape(rows, k.shape[1], -1, size) @ k.contiguous().mT  # a strided kᵀ is very slow
    score = score.view(rows, heads, tokens, -1).to(torch.promote_types(q.dtype, torch.float32))
    if at.spec.cap:
        score = at.spec.cap * torch.tanh(score / at.spec.cap)
    if mask.bias is not None:
        score = score + mask.bias
    if mask.causal:
        score = score + score.new_full(score.shape[-2:], torch.finfo(score.dtype).min).triu(1 + k.shape[2] - tokens)
    pattern = step.drop(score.softmax(-1).to(v.dtype), at.spec.dropout)
    return (pattern.view(rows, k.shape[1], -1, k.shape[2]) @ v).view(rows, heads, tokens, -1)


def in_blocks(q: Tensor, k: Tensor, v: Tensor, mask: AttentionBias, at: Attention, step: Step) -> Tensor:
    """small_matmul by blocks of queries: a block's scores fit the processor's cache, and it reads no later keys."""
    found = list[Tensor]()
    for end in range(BLOCK, q.shape[2] + BLOCK, BLOCK):
        part = mask if mask.bias is None else mask._replace(bias=mask.bias[:, :, end - BLOCK : end])
        seen = end if mask.causal else k.shape[2]
        found.append(small_matmul(q[:, :, end - BLOCK : end], k[:, :, :seen], v[:, :, :seen], part, at, step))
    return torch.cat(found, 2)


KERNELS = (small_matmul, in_blocks, gqa_decode, sdpa)
BLOCK = 64  # queries


@cache
def has_unit(name: str) -> bool:
    """Whether this CPU has it: amx_bf16, which PyTorch's fused attention uses; avx512_bw, to multiply bf16 at all."""
    return bool(torch.cpu.get_capabilities().get(name))


def attend(q: Tensor, k: Tensor, v: Tensor, mask: AttentionBias, at: Attention, step: Step) -> Tensor:
    """By the fastest kernel that may run, else by the formula written out."""
    short = q.device.type == "cpu" and q.requires_grad and k.shape[2] <= 256  # measured by bench/attention_training.py
    if at.spec.cap or short:  # the fused kernels cannot cap scores
        return small_matmul(q, k, v, mask, at, step)
    if at.spec.dropout == 0.0 or step.drop is no_dropout:  # what follows cannot apply our dropout
        scores = q.shape[0] * q.shape[1] * min(q.shape[2], BLOCK) * k.shape[2]
        slow = q.device.type == "cpu" and q.dtype == torch.bfloat16 and not q.requires_grad  # fused attention is
        if slow and has_unit("avx2") and not has_unit("avx512_bw"):
            return sdpa(q.float(), k.float(), v.float(), mask, at, step).to(q.dtype)
        if slow and scores <= 1 << 22 and (k.shape[2] <= BLOCK or not has_unit("amx_bf16")):
            return in_blocks(q, k, v, mask, at, step)  # bench/attention_inference.py: 2 to 10 times, with AMX half
        if k.shape[1] < q.shape[1] and q.shape[2] == 1:
            return gqa_decode(q, k, v, mask, at, step)
        return sdpa(q, k, v, mask, at, step)
    return open_attend(q, k, v, mask, at, step)
