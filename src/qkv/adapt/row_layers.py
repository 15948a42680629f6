"""Attention, feed-forward networks and norms that run by the compiled kernels where few rows are read on a CPU.

`use_rows` changes the classes of a core's modules from outside, by what they are; weights, names and checkpoints stay.
A pass that somebody listens to, that learns, or in fp32 over more than one token a row runs as the core has it.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv import spec
from qkv.adapt import native, onednn_linear, row_ops, row_products
from qkv.adapt.native import Library, is_plain
from qkv.adapt.onednn_linear import Packed
from qkv.adapt.quantise import FEW, Quantised
from qkv.adapt.row_block import (
    Angles,
    Keys,
    NormWeights,
    Parts,
    Prepared,
    find_keys,
    find_memory,
    note_stored,
    step_blocks,
)
from qkv.adapt.row_products import Matrix
from qkv.core import kernels
from qkv.core.attention import Attention
from qkv.core.dropout import no_dropout
from qkv.core.experts import Experts
from qkv.core.ffn import Ffn
from qkv.core.model import Block
from qkv.core.norm import Norm
from qkv.core.positions import rotate
from qkv.core.step import Step, pass_through

DONE = "qkv_done"  # attribute of a tensor that came out of several blocks: the last of them


class RowNorm(Norm):
    """A norm of decoding steps in one pass over each row; RMSNorm in bf16, where PyTorch makes many, of prompts too."""

    def forward(self, x: Tensor) -> Tensor:
        s, found = self.spec, native.library()
        one = x.shape[-2:-1] == (1,) or (x.dtype == torch.bfloat16 and s.kind == "rms")
        if not found or not one or not is_plain(x) or x.dtype != self.weight.dtype:
            return super().forward(x)
        return row_ops.norm(found, x, self.weight, s, self.bias if s.kind == "layer" else None)


class RowFfn(Ffn):
    """Gate and up in one product where few rows are read, and the activation in one pass."""

    def forward(self, x: Tensor, step: Step) -> Tensor:
        s, found = self.spec, find_kernels(x, step, self.spec.dropout)
        if not found:
            return super().forward(x, step)
        layers = (self.gate, self.up) if s.gated else (self.up,)
        if matrices := list_matrices(x, layers):
            both = row_products.multiply_together(found, x, matrices)  # B T F
        else:
            both = [layer(x) for layer in layers]  # B T F
        return self.down(row_ops.gate(found, both[0], both[1] if s.gated else None, s.activation))  # B T D


class RowBlock(Block):
    """One token of each row through the whole block in one call, where all its parts have kernels.

    In a stack of such blocks the first one computes all of them in one call, and the others return what it gave them.
    """

    prepared: Mapping[tuple[int, torch.dtype], Prepared] = MappingProxyType({})  # by how many blocks, and type
    stack: Mapping[str, nn.Module] = MappingProxyType({})  # all blocks of its stack, as they are registered

    def forward(self, x: Tensor, step: Step) -> Tensor:
        if (last := getattr(x, DONE, None)) is not None:
            if last is self:
                delattr(x, DONE)
            return x
        found = find_kernels(x, step, 0.0) if x.shape[1] == 1 and step.drop is no_dropout else None
        for blocks in (self.find_stack(), (self,)) if found else ():
            out = self.run_blocks(found, blocks, x, step) if found and blocks else None
            if out is not None:
                if blocks[-1] is not self:
                    setattr(out, DONE, blocks[-1])
                return out
        return super().forward(x, step)

    def run_blocks(self, found: Library, blocks: "Sequence[RowBlock]", x: Tensor, step: Step) -> Tensor | None:
        """x through blocks in one call; None if the kernel does not support one of them, or the cache."""
        if self.spec.cross and not getattr(step.cache, "memory", None):  # at first, and where pages hold it
            return None
        prepared = self.prepare(found, blocks, x)
        if prepared is None:
            return None
        attns, cache, known = prepared.attns, step.cache, dict[Any, Any]()
        keys = list[tuple[Keys, Keys | None]]()
        for layer, s, cross in attns:
            own = find_keys(cache, layer, len(x), s.mask.window, step.mask[s.mask].bias, known)
            source = find_memory(cache, layer, len(x), step.mask[cross.mask].bias, known) if cross else None
            if any(one is None or one.k.dtype != x.dtype for one in (own, *((source,) if cross else ()))):
                return None
            keys.append((own, source))  # type: ignore[arg-type]
        angles = {rotary: Angles(*pair) for rotary, pair in step.angles.items()}
        turns = [angles[s.rotary] if s.rotary else None for _, s, _ in attns]
        out = step_blocks(found, prepared, x, keys, turns)
        for layer, _, _ in attns:
            note_stored(cache, layer)
        return out

    def prepare(self, found: Library, blocks: "Sequence[RowBlock]", x: Tensor) -> Prepared | None:
        """The blocks as the kernel reads them, kept from step to step; None if it does not support one of them."""
        key = len(blocks), x.dtype
        if (kept := self.prepared.get(key)) and kept.blocks == blocks and kept.is_current():
            return kept if len(x) <= kept.most else None
        parts = list[Parts]()
        for block in blocks:
            if (one := block.read_parts(x)) is None:
                return None
            parts.append(one)
        most = min(row_products.most_rows(m.kind, m.weight.numel(), low=one.low) for one in parts for m in one.matrices)
        kept = Prepared(parts, blocks, most)
        still = {n: one for n, one in self.prepared.items() if one.is_current()}  # others keep weights alive
        self.prepared = {**still, key: kept}
        return kept

    def read_parts(self, x: Tensor) -> Parts | None:
        """The block as the kernel reads it; None if it does not support one of its parts with such an x."""
        attn, ffn, cross = self.attn, self.ffn, getattr(self, "cross", None)
        assert isinstance(attn, Attention)
        named = [(attn, name) for name in ("q", "k", "v", "out")]
        named += [(ffn, name) for name in (("gate", "up", "down") if ffn.spec.gated else ("up", "down"))]
        named += [(cross, name) for name in ("q", "out")] if cross else []
        normed = [(self, f"{part}_{place}") for part in ("attn", "cross", "ffn") for place in ("in", "out", "sum")]
        normed += [(attn, name) for name in ("q_norm", "k_norm")]
        matrices = list_matrices(x, [getattr(part, name) for part, name in named])
        norms = [read_norm(getattr(part, name, None)) for part, name in normed]
        if matrices is None or any(norm and norm.weight.dtype != x.dtype for norm in norms):
            return None
        children = [(part._modules, name) for part, name in (*named, *normed) if name in part._modules]
        modules = [child for table, name in children if (child := table[name]) is not None]
        weights = [(table, name) for module in modules for table in (module._parameters, module._buffers)
                   for name, t in table.items() if t is not None]
        return Parts(attn.layer, attn.spec, ffn.spec, norms, matrices, (*children, *weights),
                     low=x.dtype == torch.bfloat16, cross=cross.spec if cross else None)

    def find_stack(self) -> "tuple[RowBlock, ...]":
        """All blocks of the stack if this is the first one and they can be one call; none if one has hooks."""
        blocks = tuple(self.stack.values())
        if len(blocks) < 2 or blocks[0] is not self:
            return ()
        alone = any(type(one) is not RowBlock or one._forward_hooks or one._forward_pre_hooks for one in blocks)
        return () if alone else blocks  # type: ignore[return-value]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "prepared": {}}  # a copied block has weights of its own


class RowAttention(Attention):
    """Queries, keys and values in one product where few rows are read, and each row's query to its keys in one pass."""

    def forward(self, x: Tensor, step: Step) -> Tensor:
        s, found = self.spec, find_kernels(x, step, self.spec.dropout)
        if not found:
            return super().forward(x, step)
        if matrices := list_matrices(x, (self.q, self.k, self.v)):
            parts = row_products.multiply_together(found, x, matrices)  # B T HK, B T GK, B T GK
            turned = ((parts[0], s.heads + s.groups),)  # keys stand behind queries
        else:
            parts = self.q(x), self.k(x), self.v(x)  # B T HK, B T GK, B T GK
            turned = (parts[0], s.heads), (parts[1], s.groups)
        if s.rotary and not s.qk_norm:
            for part, heads in turned:
                row_ops.rotate(found, part, heads, s.head_dim, step.angles[s.rotary],
                               neighbours=s.rotary.pairs != "half")
        q, k, v = (part.view(*x.shape[:2], -1, s.head_dim).transpose(1, 2) for part in parts)
        if s.qk_norm:  # by head: `fits` takes no other
            q, k = self.q_norm(q), self.k_norm(k)
        if s.rotary and s.qk_norm:
            q, k = rotate(q, step.angles[s.rotary], s.rotary), rotate(k, step.angles[s.rotary], s.rotary)
        k, v = step.cache.append(self.layer, k, v)
        mask = step.mask[s.mask]
        if x.shape[1] == 1 and step.attend is kernels.attend and k.stride(3) == v.stride(3) == 1:
            z = row_ops.attend(found, q, k, v, scale=self.scale, cap=s.cap or 0.0, bias=mask.bias)[:, None]
        elif step.attend is kernels.attend and row_ops.attends_prompts(found) and row_ops.fits_prompt(q, k, v):
            z = row_ops.attend_prompt(found, q, k, v, mask, scale=self.scale, cap=s.cap or 0.0)
        else:
            z = step.attend(q, k, v, mask, self, step).transpose(1, 2).flatten(2)
        return self.out(z)  # B T D


class RowCross(Attention):
    """Each row's query to the keys of its source in one pass, where one token of each row is read."""

    def cross_attend(self, q: Tensor, k: Tensor, v: Tensor, step: Step) -> Tensor:
        s = self.spec
        found = find_kernels(q.transpose(1, 2), step, s.dropout) if q.shape[2] == 1 and k.dtype == q.dtype else None
        if not found or step.attend is not kernels.attend:
            return super().cross_attend(q, k, v, step)
        bias = step.mask[s.mask].bias
        z = row_ops.attend(found, q, k, v, scale=self.scale, cap=s.cap or 0.0, bias=bias)  # B HK
        return z.unflatten(-1, (s.heads, 1, -1))  # B H 1 K


class RowExperts(Experts):
    """Experts in bf16 where the processor does not multiply it: by our kernel for few tokens, for many in fp32."""

    @staticmethod
    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        if x.dtype != torch.bfloat16 or torch.is_grad_enabled():
            return F.linear(x, weight)
        few = onednn_linear.multiply_few(x, weight)
        return onednn_linear.multiply(x, weight) if few is None else few


def find_kernels(x: Tensor, step: Step, dropout: float) -> Library | None:
    """The kernels, where a pass of x [B, T, D] is one for them: nobody listens, nothing is dropped.

    In fp32 of single tokens alone; in bf16 PyTorch makes many passes of what is one here.
    """
    few = x.shape[1] == 1 or x.dtype == torch.bfloat16
    plain = few and step.tap is pass_through and (dropout == 0.0 or step.drop is no_dropout) and is_plain(x)
    return native.library() if plain else None


def read_norm(module: nn.Module | None) -> NormWeights | None:
    """A norm as the kernels read it; None where there is none."""
    if not isinstance(module, Norm):
        return None
    return NormWeights(module.spec, module.weight, module.bias if module.spec.kind == "layer" else None)


def list_matrices(x: Tensor, layers: Sequence[nn.Module]) -> list[Matrix] | None:
    """The layers' weights where one call can multiply all of them with x; None where it cannot."""
    rows, dtype, found = x.numel() // x.shape[-1], x.dtype, list[Matrix]()
    for layer in layers:
        matrix = read_matrix(layer, dtype)
        if matrix is None or rows > row_products.most_rows(
            matrix.kind, matrix.weight.numel(), low=dtype == torch.bfloat16, tokens=x.shape[1]
        ):
            return None
        found.append(matrix)
    return found


def read_matrix(layer: nn.Module, dtype: torch.dtype) -> Matrix | None:
    """The weight of a linear layer as the kernels read it, where they know it and multiply it with such numbers."""
    if isinstance(layer, nn.Linear) and type(layer) in (nn.Linear, Packed):
        weight = layer.weight  # a step asks often
        kind = row_products.DTYPES[dtype]
        known = weight.dtype == dtype and row_products.fits_kernels(kind, weight.shape[1]) and weight.is_contiguous()
        return Matrix(kind, weight, None, layer.bias) if known else None
    if isinstance(layer, Quantised) and layer.like.dtype == dtype:
        return Matrix(layer.kind, *layer.stored_bytes(), layer.bias)
    return None


def fits(module: nn.Module) -> bool:
    """Whether the kernels know what such a module computes."""
    if type(module) is Norm:
        return len(module.weight) % row_ops.STEP == 0
    if type(module) is Ffn:
        return module.spec.activation in row_ops.ACTIVATIONS and module.spec.width % row_ops.STEP == 0
    if type(module) is Attention:
        s = module.spec
        turned = s.rotary is None or s.rotary.axes == 1
        return turned and not (s.qk_norm and (s.qk_normed == "together" or s.head_dim % row_ops.STEP))
    if type(module) is Experts:
        return row_products.lacks_bf16_products()
    if type(module) is Block:
        return fits_whole(module.spec) and all(fits(m) for m in module.children() if not isinstance(m, nn.Identity))
    return False


def fits_whole(s: spec.Block) -> bool:
    """Whether a block is what row_block.c computes: no experts, one thing after the other, each with its norms."""
    return not s.moe and (s.residual, s.norms) == ("serial", "each")


ROWS: dict[type[nn.Module], type[nn.Module]] = {
    Norm: RowNorm, Ffn: RowFfn, Attention: RowAttention, Block: RowBlock, Experts: RowExperts,
}


def use_rows(core: nn.Module) -> int:
    """Let all modules of a core that the kernels know run by them where they can; how many, without linear layers."""
    for layer in core.modules():
        if type(layer) is nn.Linear and layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu":
            layer.__class__ = Packed
    found = [m for m in core.modules() if fits(m)]
    for module in found:
        reads_memory = type(module) is Attention and module.spec.mask.kind == "memory"
        module.__class__ = RowCross if reads_memory else ROWS[type(module)]  # type: ignore[assignment]
    for layers in core.modules():
        for block in layers if isinstance(layers, nn.ModuleList) else ():
            if isinstance(block, RowBlock):
                block.stack = layers._modules  # type: ignore[assignment]
    return len(found)


def name_kernels() -> dict[str, str]:
    """What multiplies and attends on this CPU, by kind of layer: a kernel, up to how many rows, and the next one."""
    found = native.library()
    most = row_products.MOST | {"bf16": row_products.most_rows("bf16", row_products.SMALL + 1, low=True)}
    small = {"bf16": f", of small matrices {most['int8']}"} if row_products.has_bf16_units() else {}
    small |= {kind: ", of bf16 any number" for kind in most
              if row_products.most_rows(kind, 0, low=True) == row_products.EVERY}
    own = {kind: f"row_products.c (rows <= {most[kind]}{small.get(kind, '')}), " if found else "" for kind in most}
    packed = "oneDNN" if onednn_linear.has_bf16_products() else "F.linear in fp32"
    few = {"int8": "_weight_int8pack_mm", "Q4_0": "_weight_int4pack_mm_for_cpu"}
    said = {"linear_bf16": own["bf16"] + packed,
            "linear_fp32": own["fp32"] + ("oneDNN" if onednn_linear.fits(torch.empty(0)) else "F.linear")}
    for name, kind in (("int8", "int8"), ("int4", "Q4_0")):
        said[f"linear_{name}"] = (own[kind] or f"{few[kind]} (rows <= {FEW}), ") + "F.linear"
    for name in ("attention", "ffn", "norm"):
        said[f"{name}_of_a_step"] = f"row_ops.c, {found.isa}" if found else "torch"
    prompts = found and row_ops.attends_prompts(found)
    said["attention_of_a_prompt"] = f"row_prompt.c, {found.isa}" if found and prompts else "torch"
    return said
