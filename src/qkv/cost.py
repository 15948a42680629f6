"""What a model costs: parameters, FLOPs, bytes of weights and cache, counted on the built core, not from formulas.

The core is built on the meta device: shapes without memory, so 70 billion parameters are counted in a second.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv import spec as parts
from qkv.baselines.lstm import build_core
from qkv.core.attention import Attention
from qkv.core.experts import ExpertLinear, Experts
from qkv.core.init import build_on_meta
from qkv.core.latent import Latent
from qkv.core.masks import AttentionBias
from qkv.core.model import Stack, Transformer, build_step
from qkv.core.norm import Norm
from qkv.core.step import Inputs, Step
from qkv.errors import QkvError, nearest

BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "fp64": 8, "float64": 8, "int8": 1}


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of one target token at a context, a multiply-add counted as two."""

    prefill: int
    decode: int


@dataclass(frozen=True)
class Cost:
    """Numbers of one spec; counts are of numbers, and bytes are asked for with a dtype."""

    parameters: int
    active_parameters: int  # those that one token meets: of the experts, the chosen ones
    stored: int  # parameters and what else a checkpoint holds, such as a router's bias
    by_part: dict[str, int]
    kv_per_token: int  # numbers kept per position of the decoder
    memory_per_token: int  # numbers kept per source position, once per sentence
    spec: parts.Spec

    def weight_bytes(self, dtype: str = "fp32") -> int:
        """Bytes of all weights in one dtype; a tied matrix counts once."""
        return self.parameters * width(dtype)

    def kv_bytes_per_token(self, dtype: str = "fp32") -> int:
        """Bytes that the cache grows by with each new position, all layers together."""
        return self.kv_per_token * width(dtype)

    def flops_per_token(self, context: int | None = None) -> Flops:
        """Prefill: the mean over `context` tokens at once; decode: the token after `context` others.

        An encoder-decoder is taken to read as many source tokens: prefill holds the encoder's share, decode does not.
        """
        return count_flops(build_meta(self.spec), context or self.spec.context or 1024)

    def activation_bytes_per_token(self, context: int | None = None, dtype: str = "fp32") -> int:
        """Bytes that training keeps for the way back per target token, before the loss, with fused attention.

        Found by a forward pass on the meta device: every tensor that autograd saves, weights left out.
        """
        tokens = min(context or self.spec.context or 1024, self.spec.context or 1 << 30)
        return count_activations(self.spec, tokens) * width(dtype)


@lru_cache(maxsize=64)
def count_activations(spec: parts.Spec, tokens: int) -> int:
    """The numbers that training keeps per token; the forward pass that finds them takes 0.1 s."""
    return count_saved(build_meta(spec), tokens) // tokens


def count_flops(core: Transformer, context: int) -> Flops:
    """The operations of a core that is there; see Cost.flops_per_token."""
    prefill = decode = 0
    for path, module in core.named_modules():
        once = path.startswith("encoder.") if core.spec.decoder else False  # read once, not for every new token
        if isinstance(module, nn.Linear) and not path.startswith("labels."):
            products = 2 * module.in_features * module.out_features
            if path == "decoder.score":  # an LSTM's: for every word of the source, and the mean that it weighs
                products *= 2 * context
            prefill += products
            decode += 0 if once or path.endswith((".cross.k", ".cross.v", "decoder.key")) else products
        elif isinstance(module, nn.LSTM):
            products = 2 * sum(p.numel() for p in module.parameters() if p.ndim > 1)
            prefill += products
            decode += 0 if once else products
        elif isinstance(module, ExpertLinear):
            products = 2 * module.weight[0].numel() * module.spec.top_k
            prefill += products
            decode += 0 if once else products
        elif isinstance(module, Attention | Latent):
            mask, (many, one) = module.spec.mask, count_pair(module.spec)
            prefill += many * pairs(mask, context) // context
            decode += 0 if once else one * keys(mask, context, context)
    return Flops(prefill, decode)


def count_pair(s: parts.Attention | parts.Latent) -> tuple[int, int]:
    """FLOPs of q·k and pattern·v of all heads for one pair of query and key: in a prefill, and in decoding.

    A latent's decoding works on the latents themselves; what leads q down to them and v up costs what expanding does.
    """
    if isinstance(s, parts.Attention):
        return 4 * s.heads * s.head_dim, 4 * s.heads * s.head_dim
    return 2 * s.heads * (s.nope_head_dim + s.rotary.dim + s.value_dim), 4 * s.heads * (s.kv_rank + s.rotary.dim)


def keys(mask: parts.Mask, query: int, context: int) -> int:
    """How many keys the query at a position sees: all or those up to itself, less what lies outside its window."""
    if mask.kind == "full" and mask.window:
        return min(context, query + mask.window) - max(0, query + 1 - mask.window)
    return (context if mask.kind in ("full", "memory") else query + 1) - max(0, query + 1 - (mask.window or query + 1))


def pairs(mask: parts.Mask, context: int) -> int:
    """How many pairs of query and key a context sees: a square or a triangle, less the corners outside a window."""
    whole = context * context if mask.kind in ("full", "memory") else context * (context + 1) // 2
    corner = max(0, context - (mask.window or context))
    return whole - corner * (corner + 1) // 2 * (2 if mask.kind == "full" else 1)


def width(dtype: str) -> int:
    """Bytes of one number of a dtype, by its name."""
    if dtype not in BYTES:
        raise QkvError("dtype {dtype!r} is unknown{hint}; known are {bytes}", dtype=dtype, hint=nearest(dtype, BYTES),
                       bytes=", ".join(BYTES))
    return BYTES[dtype]


def build_meta(spec: parts.Spec) -> Transformer:
    """The core with shapes and without memory."""
    with build_on_meta():
        return build_core(spec)


def count(spec: parts.Spec) -> Cost:
    """The cost of a spec, counted on the built core."""
    core = build_meta(spec)
    inside: tuple[str, ...] = ("attention", "ffn", "experts", "norms") if spec.has_blocks else ("lstm", "attention")
    by_part: dict[str, int] = dict.fromkeys(("embedding", *inside, "head"), 0)
    owners = dict(core.named_modules())
    for name, parameter in core.named_parameters():  # a shared tensor comes once
        by_part[name_part(name, owners[name.rpartition(".")[0]])] += parameter.numel()
    total = sum(by_part.values())
    idle = kv = memory = 0
    for path, module in core.named_modules():
        if isinstance(module, ExpertLinear):
            idle += module.weight[0].numel() * (module.spec.num_experts - module.spec.top_k)
        elif isinstance(module, Attention | Latent) and spec.decoder and not path.startswith("encoder."):
            s, across = module.spec, path.endswith(".cross")
            one = s.kv_rank + s.rotary.dim if isinstance(s, parts.Latent) else 2 * s.groups * s.head_dim
            kv, memory = (kv, memory + one) if across else (kv + one, memory)
    kept = core.state_dict()
    stored = total + sum(b.numel() for name, b in core.named_buffers() if name in kept)
    return Cost(total, total - idle, stored, by_part, kv, memory, spec)


def explain_kv(spec: parts.Spec, dtype: str = "fp32") -> str:
    """How the bytes that the cache grows by are reckoned; empty where layers differ, or keep something else."""
    blocks = spec.decoder.blocks if spec.decoder else ()
    kinds = {(s.groups, s.head_dim) if isinstance(s := block.attn, parts.Attention) else None for block in blocks}
    if len(kinds) != 1 or None in kinds:
        return ""
    groups, head_dim = next(kind for kind in kinds if kind)
    return f"2 x {len(blocks)} layers x {groups} kv heads x {head_dim} head dim x {width(dtype)} bytes"


def name_part(name: str, owner: nn.Module) -> str:
    """Which part of the model a parameter belongs to."""
    if isinstance(owner, Norm):
        return "norms"
    if isinstance(owner, nn.Embedding) or "embed_project" in name:
        return "embedding"
    if name.startswith(("head.", "labels.")):
        return "head"
    if ".layers." not in name:  # an LSTM: what scores its source, and the rest
        return "attention" if name.startswith(("decoder.query.", "decoder.key.", "decoder.score.")) else "lstm"
    return "experts" if ".moe." in name else "ffn" if ".ffn." in name else "attention"


def shapes(spec: parts.Spec) -> dict[str, tuple[int, ...]]:
    """Path and shape of every parameter, in the order of the state dict; a tied head is not listed again."""
    return {name: tuple(p.shape) for name, p in build_meta(spec).named_parameters()}


class Fused(torch.autograd.Function):
    """Stands for a fused attention: it saves what goes in, a learnt bias too, and what comes out; no pattern."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: torch.autograd.function.FunctionCtx, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None
    ) -> Tensor:
        rows, heads, tokens, _ = q.shape
        z = q.new_empty((rows, tokens, heads, v.shape[-1])).transpose(1, 2)  # laid out as the fused kernels do
        ctx.save_for_backward(q, k, v, z, *([bias] if bias is not None and bias.requires_grad else []))
        return z


def dispatch_to_one(moe: Experts, x: Tensor, index: Tensor, weight: Tensor, step: Step) -> Tensor:
    """As Experts.dispatch, with all choices at one expert: without numbers nobody knows who chose whom."""
    s, token = moe.spec, torch.arange(len(x), device=x.device).repeat_interleave(index.shape[1])
    mine = x[token]  # M D
    up = F.linear(mine, moe.up.weight[0])  # M F
    act = moe.act(F.linear(mine, moe.gate.weight[0])) * up if s.expert.gated else moe.act(up)  # M F
    said = F.linear(step.drop(act, s.expert.dropout), moe.down.weight[0]) * weight.flatten()[:, None]  # M D
    return torch.zeros_like(x, dtype=weight.dtype).index_add(0, token, said).to(x.dtype)  # N D


def count_saved(core: Transformer, tokens: int) -> int:
    """How many numbers autograd saves in one forward of one row of tokens."""
    for module in core.modules():
        if isinstance(module, Experts):
            module.dispatch = partial(dispatch_to_one, module)  # this core is nobody else's
    seen: dict[int, torch.UntypedStorage] = {}
    total = 0
    for parameter in core.parameters():
        seen[parameter.untyped_storage()._cdata] = parameter.untyped_storage()  # pyright: ignore[reportPrivateUsage]

    def pack(x: Tensor) -> Tensor:
        nonlocal total
        storage = x.untyped_storage()
        if storage._cdata not in seen and x.is_floating_point():  # pyright: ignore[reportPrivateUsage]
            seen[storage._cdata] = storage  # pyright: ignore[reportPrivateUsage]
            total += storage.nbytes() // x.element_size()
        return x

    def attend(q: Tensor, k: Tensor, v: Tensor, seen: AttentionBias, *_: object) -> Tensor:
        return Fused.apply(q, k, v, seen.bias)  # type: ignore[no-any-return]

    def make_step(stack: Stack, given: Inputs | None = None) -> Step:
        return dataclasses.replace(build_step(stack, ids, given), attend=attend)

    ids = torch.zeros(1, tokens, dtype=torch.int64, device="meta")
    unpack: Callable[[Tensor], Tensor] = lambda x: x  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        memory = None
        if core.spec.encoder and core.spec.decoder:
            embed = core.source_embed if core.spec.sources else core.embed
            memory = core.encoder(embed(ids), make_step(core.encoder))
        core.stack(core.embed(ids), make_step(core.stack, Inputs(memory=memory)))
    return total


def report(
    spec: parts.Spec, *, dtype: str = "fp32", context: int | None = None, note: str | None = None
) -> dict[str, object]:
    """Everything as plain integers, bytes in `dtype`: what `qkv info` prints; `flops_per_token` is the decode's.

    A `note` is what a reader must know first, such as that nobody published these sizes.
    """
    cost, context = count(spec), context or spec.context or 1024
    flops = cost.flops_per_token(context)
    first: dict[str, object] = {"note": note} if note else {}
    return first | {
        "parameters": cost.parameters,
        "active_parameters": cost.active_parameters,
        "stored": cost.stored,
        "by_part": dict(cost.by_part),
        "dtype": dtype,
        "weight_bytes": cost.weight_bytes(dtype),
        "kv_bytes_per_token": cost.kv_bytes_per_token(dtype),
        "kv_formula": explain_kv(spec, dtype),
        "memory_bytes_per_token": cost.memory_per_token * width(dtype),
        "context": context,
        "kv_bytes": cost.kv_bytes_per_token(dtype) * context,
        "flops_per_token": flops.decode,
        "flops_per_token_prefill": flops.prefill,
    } | ({"activation_bytes_per_token": cost.activation_bytes_per_token(context, dtype)} if spec.has_blocks else {})
