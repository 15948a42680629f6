"""Multi-head attention made grouped-query: key and value heads of a group averaged into one (Ainslie et al. 2023, 2.1).

The result is a new core with the same numbers everywhere else; a little more training then recovers what was lost.
"""

from dataclasses import replace

import torch
from torch import Tensor

from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.spec import Attention, Block, Latent, Spec


def groups_of(words: str) -> int:
    """How many key/value heads `mha` (0: as many as heads), `mqa` or `gqa:N` mean."""
    kind, _, count = words.partition(":")
    if kind in ("mha", "mqa") and not count:
        return 0 if kind == "mha" else 1
    if kind == "gqa" and count.isdigit() and int(count) > 0:
        return int(count)
    raise QkvError("attention {words}: expected mha, mqa, or gqa:N with a number of groups such as gqa:8",
                   words=words)


def group_heads(core: Transformer, groups: int) -> Transformer:
    """The core with `groups` key/value heads in every attention of its decoder (1: multi-query attention).

    Raises:
        QkvError: there is no decoder, or its key/value heads cannot be pooled into so many groups.
    """
    had = {a.groups for b in core.spec.stack.blocks for a in (b.attn, b.cross) if isinstance(a, Attention)}
    if groups < 1 or any(n % groups for n in had):
        possible = ", ".join(str(n) for n in range(1, min(had) + 1) if all(h % n == 0 for h in had))
        raise QkvError("attention: {had} key/value heads cannot be pooled into {groups} groups; possible are "
                       "{possible}", had=min(had), groups=groups, possible=possible)
    spec = group_spec(core.spec, groups)
    with torch.device("meta"):
        new = Transformer(spec)
    old, state = dict(core.named_parameters()), {}
    for name, p in new.named_parameters():
        before = old[name].detach()
        state[name] = before if before.shape == p.shape else pool_heads(before, spec, name)
    new.to_empty(device=core.embed.weight.device).to(core.embed.weight.dtype).tie()
    with torch.no_grad():
        for name, p in new.named_parameters():
            p.copy_(state[name])
        for name, b in new.named_buffers():
            b.copy_(core.get_buffer(name))
    return new.train(core.training)


def group_spec(spec: Spec, groups: int) -> Spec:
    """The spec with `groups` key/value heads in the attentions of its decoder; 0 stands for as many as heads.

    Raises:
        QkvError: there is no decoder, it caches latents, or so many groups do not divide the heads.
    """
    if spec.decoder is None:
        raise QkvError("attention: this model has no decoder; keys are shared among heads where they are "
                       "cached")
    if not spec.decoder.blocks:
        raise QkvError("attention: an LSTM has no key/value heads to pool")

    def group_attention(a: Attention | Latent | None, where: str) -> Attention | None:
        if a is None:
            return None
        if isinstance(a, Latent):
            raise QkvError("attention: {where} caches a latent, it has no key/value heads to pool",
                           where=where)
        wanted = groups or a.heads
        if a.heads % wanted:
            possible = ", ".join(str(n) for n in range(1, a.heads + 1) if a.heads % n == 0)
            raise QkvError("attention: {heads} heads of {where} cannot share {wanted} keys; possible are {possible}",
                           heads=a.heads, where=where, wanted=wanted, possible=possible)
        return replace(a, groups=wanted)

    def block(b: Block, i: int) -> Block:
        attn = group_attention(b.attn, f"layer {i}")
        assert attn
        return replace(b, attn=attn, cross=group_attention(b.cross, f"layer {i} (cross)"))

    blocks = tuple(block(b, i) for i, b in enumerate(spec.decoder.blocks))
    return replace(spec, decoder=replace(spec.decoder, blocks=blocks))


def pool_heads(heads: Tensor, spec: Spec, name: str) -> Tensor:
    """A key or value projection [G·K, …] with neighbouring heads averaged into the groups that the new spec has."""
    assert spec.decoder
    layer = int(name.split("layers.")[1].partition(".")[0])
    attn = spec.decoder.blocks[layer].attn
    assert isinstance(attn, Attention)
    return heads.unflatten(0, (attn.groups, -1, attn.head_dim)).mean(1).flatten(0, 1)
