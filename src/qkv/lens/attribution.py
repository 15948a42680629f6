"""Direct logit attribution: what each embedding, head, feed-forward, expert and bias added to a logit, exactly.

Every norm's statistics are frozen at what they were, so the logit is linear in what was written to the residual
stream, and the pushes sum to it. Pre-norm: only the final norm is in between. Post-norm: each later norm's frozen
scale is applied to all that came before it. Letters: D width, H heads, W value head dim, F ffn.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from qkv.arguments import Count
from qkv.core.attention import Attention
from qkv.core.experts import Experts
from qkv.core.ffn import ACTIVATIONS
from qkv.core.latent import Latent
from qkv.core.model import Block, Dense, Head
from qkv.core.norm import Norm
from qkv.core.positions import sinusoid
from qkv.errors import QkvError
from qkv.lens import resolve
from qkv.lens.recording import Recording
from qkv.lens.taps import Run
from qkv.messages import Message, join
from qkv.plots.forms import Bars, Drawn, Form


@dataclass(frozen=True)
class Part:
    """One thing that was written, and how much it pushed the logit."""

    name: str
    push: float


@dataclass(frozen=True)
class Parts(Drawn):
    """Everything that made a logit, or the difference of two, in the order of the forward pass.

    `logit` is the model's own; `gap` is how far the sum of the pushes is from it. `frozen` names the norms whose
    statistics were frozen, in the order of the forward pass. `goal` is the token in words, `after` what was read last.
    """

    token: int
    vs: int | None
    pos: int
    logit: float
    parts: tuple[Part, ...]
    frozen: tuple[str, ...]
    gap: float
    goal: str = ""
    after: str = ""

    def forms(self) -> tuple[Form, ...]:
        """The push of every sub-layer, and of the strongest parts."""
        sums = Message("sum {total}", total=f"{self.logit:+.3f} = logit (±{self.gap:.0e})")
        post = any(name.endswith("_sum") for name in self.frozen)
        note = join("", [Message("later norms act with the scale they had; "), sums]) if post else sums
        title = Message("who pushed {goal} (after {after})", goal=self.goal, after=self.after)
        best = self.best[:10]
        return (
            Bars(title, [p.name for p in self.sublayers], [p.push for p in self.sublayers], note),
            Bars(Message("the strongest parts"), [p.name for p in best], [p.push for p in best]),
        )

    def __getitem__(self, name: str) -> float:
        """The push of a part, or the sum over all parts whose name begins so: `["layers.3.attn"]`."""
        found = [p.push for p in self.parts if p.name == name or p.name.startswith(f"{name}.")]
        if not found:
            raise QkvError("no part is called {name!r}; parts look like {name2!r}", name=name,
                           name2=self.parts[-1].name)
        return sum(found)

    @property
    def best(self) -> tuple[Part, ...]:
        """The parts by the size of their push, the largest first."""
        return tuple(sorted(self.parts, key=lambda p: -abs(p.push)))

    @property
    def sublayers(self) -> tuple[Part, ...]:
        """The same with heads, experts and biases of a sub-layer taken together."""
        sums: dict[str, float] = {}
        for p in self.parts:
            sums[sublayer_of(p.name)] = sums.get(sublayer_of(p.name), 0.0) + p.push
        return tuple(Part(name, push) for name, push in sums.items())


@dataclass(frozen=True)
class Spot:
    """Where the logit stands: a run, its row and its position."""

    t: Recording
    run: Run
    row: int
    pos: int

    def __call__(self, name: str) -> Tensor:
        """What a tap carried here, in fp64: [D], or [H, W]."""
        resolve.require_saved(self.t, "parts", name)
        x = self.t.stitch(self.run, self.t.select(name))[self.row]
        return to_float64(x[:, self.pos] if x.dim() == 3 else x[self.pos])


@dataclass
class Ledger:
    """What was written, by name: leaves of the sum whose gradient gives each push."""

    leaves: dict[str, Tensor] = field(default_factory=dict)
    frozen: list[str] = field(default_factory=list)

    def add(self, name: str, x: Tensor) -> Tensor:
        """One more thing that is added."""
        self.leaves[name] = leaf = to_float64(x).requires_grad_()
        return leaf

    def norm(self, at: nn.Module, x: Tensor) -> Tensor:
        """A norm with frozen statistics: linear in x; its bias is one more part."""
        if not isinstance(at, Norm):
            return x
        self.frozen.append(at.path)
        x = x if at.spec.kind == "rms" else x - x.mean(-1, keepdim=True)
        x = x * (x.detach().square().mean() + at.spec.eps).rsqrt() * (to_float64(at.weight) + at.spec.offset)
        return x + self.add(f"{at.path}.bias", at.bias) if at.spec.kind == "layer" else x


def attribute_logit(
    t: Recording, pos: int | str = -1, token: int | str | None = None, *, vs: int | str | None = None, row: int = 0,
    run: int | None = None,
) -> Parts:
    """Who pushed the logit of a token at a position (default: the likeliest one), or that of `token` minus `vs`.

    Raises:
        QkvError: what it needs was not saved; a word of several tokens; a model without a head.
    """
    at, (first, second), logit = locate_logit(t, pos, token, vs, row, run)
    book, pulls = compute_pulls(at, first, second)
    found: list[Part] = []
    for name, leaf in book.leaves.items():
        push = pulls[name] * leaf.detach()
        push = (push.sum(-1) if push.dim() else push).tolist()
        found += [Part(f"{name}.{i}", p) for i, p in enumerate(push)] if isinstance(push, list) else [Part(name, push)]
    total = sum(p.push for p in found)
    goal = " − ".join(resolve.show_token(t, i) for i in (first, second) if i is not None)
    after = resolve.tokens_read(t, row=row, run=run)[at.pos].strip()
    return Parts(first, second, at.pos, logit, tuple(found), tuple(book.frozen), abs(total - logit), goal, after)


def attribute_to_neurons(
    t: Recording, layer: int, pos: int | str = -1, token: int | str | None = None, *, vs: int | str | None = None,
    top: Count = 10, row: int = 0, run: int | None = None,
) -> tuple[Part, ...]:
    """The neurons of a layer's feed-forward network that pushed the logit most; all of them sum to the `ffn` part."""
    at, (first, second), _ = locate_logit(t, pos, token, vs, row, run)
    path, layers = f"{resolve.prefix_of(t)}layers.{layer}.ffn", t.core.stack.layers
    block = layers[layer] if 0 <= layer < len(layers) else None
    if not isinstance(block, Block) or block.spec.ffn is None:
        raise QkvError("neurons: there is no {path}; experts are parts of their own", path=path)
    pull = compute_pulls(at, first, second)[1][path]  # D
    push = at(f"{path}.act") * (to_float64(block.ffn.down.weight).T @ pull)  # F
    order = push.abs().topk(min(top, len(push))).indices.tolist()
    return tuple(Part(f"{path}.neuron.{i}", float(push[i])) for i in order)


def locate_logit(
    t: Recording, pos: int | str, token: int | str | None, vs: int | str | None, row: int, run: int | None
) -> tuple[Spot, tuple[int, int | None], float]:
    """The spot, the tokens, and the logit (or difference of two) of the model there."""
    resolve.require_head(t, "parts")
    at = Spot(t, resolve.find_run(t, run=run), row, resolve.find_position(t, pos, row=row, run=run))
    state = at(f"{resolve.prefix_of(t)}final_norm")
    with torch.no_grad():
        logits = t.core.head(state.to(t.core.embed.weight)).double()  # V
    first = int(logits.argmax()) if token is None else resolve.find_token(t, token)
    second = None if vs is None else resolve.find_token(t, vs)
    return at, (first, second), float(logits[first] - (0.0 if second is None else logits[second]))


def compute_pulls(at: Spot, first: int, second: int | None) -> tuple[Ledger, dict[str, Tensor]]:
    """The book of a logit and the gradient of each of its lines."""
    book = Ledger()
    with torch.inference_mode(False), torch.enable_grad():
        x = add_embedding(book, at)
        for layer in at.t.core.stack.layers:
            assert isinstance(layer, Block)
            x = add_layer(book, layer, x, at)  # D
        x = book.norm(at.t.core.stack.final_norm, x)
        logit = form_logit(book, at.t.core.head, x, first, second)
        # zeros where nothing is carried on, as there is no residual
        grads = torch.autograd.grad(logit, [*book.leaves.values()], allow_unused=True, materialize_grads=True)
    return book, dict(zip(book.leaves, grads, strict=True))


def add_embedding(book: Ledger, at: Spot) -> Tensor:
    """The token's own vector, its position's, and what else is added before the first layer."""
    core, place, dot = at.t.core, at.run.place, resolve.prefix_of(at.t)
    stack, s = core.stack, core.stack.spec
    table = core.source_embed if resolve.side_of(at.t) == "encoder" and core.spec.sources else core.embed
    x = book.add(f"{dot}embed.token", to_float64(table.weight[at.run.ids[at.row, at.pos]]) * s.embed_scale)
    if s.positions:
        slot = place.token[at.row, at.pos] + s.positions.offset
        learned = s.positions.kind == "learned"
        vector = (stack.positions.weight[slot] if learned else sinusoid(slot, s.width, s.positions.layout))
        x = x + book.add(f"{dot}embed.position", vector)
        if s.positions.blanks == "counted":
            x = x + book.add(f"{dot}embed.blank", stack.blanks.weight[place.blank[at.row, at.pos]])
    if s.segments:
        x = x + book.add(f"{dot}embed.segment", stack.segments.weight[place.segment[at.row, at.pos]])
    x = book.norm(stack.embed_norm, x)
    if s.embed_width:
        project = stack.embed_project
        x = to_float64(project.weight) @ x + book.add(f"{dot}embed.project.bias", project.bias)
    return x


def add_layer(book: Ledger, block: Block, x: Tensor, at: Spot) -> Tensor:
    """One layer: what each sub-layer wrote, and the norms that stand between the residual and the next layer."""
    s = block.spec
    if s.residual == "deepnorm":
        x = book.norm(block.attn_in, x) * s.residual_scale + add_heads(book, block.attn, at)
        return book.norm(block.ffn_in, x) * s.residual_scale + add_ffn(book, block, at)
    if s.residual == "parallel":
        a = book.norm(block.attn_out, add_heads(book, block.attn, at))
        return x + a + book.norm(block.ffn_out, add_ffn(book, block, at))
    for part in ("attn", "cross", "ffn") if s.cross else ("attn", "ffn"):
        update = add_ffn(book, block, at) if part == "ffn" else add_heads(book, getattr(block, part), at)
        update = book.norm(getattr(block, f"{part}_out"), update)
        update = update * s.residual_scale if s.residual == "scaled" else update
        x = book.norm(getattr(block, f"{part}_sum"), update if s.residual == "none" else x + update)
    return x


def add_heads(book: Ledger, at: Attention | Latent, spot: Spot) -> Tensor:
    """What each head wrote: its slice of the output matrix times what it gathered."""
    z = spot(f"{at.path}.z")  # H W
    weight = to_float64(at.out.weight).unflatten(1, z.shape)  # D H W
    x = book.add(f"{at.path}.head", torch.einsum("dhw,hw->hd", weight, z)).sum(0)
    return x if at.out.bias is None else x + book.add(f"{at.path}.out.bias", at.out.bias)


def add_ffn(book: Ledger, block: Block, at: Spot) -> Tensor:
    """What the feed-forward network, or each chosen expert and the shared one, wrote."""
    if block.spec.moe:
        return add_experts(book, block.moe, at)
    path, bias, out = block.ffn.path, block.ffn.down.bias, at(f"{block.ffn.path}.out")
    if bias is None:
        return book.add(path, out)
    return book.add(path, out - to_float64(bias)) + book.add(f"{path}.down.bias", bias)


def add_experts(book: Ledger, moe: Experts, at: Spot) -> Tensor:
    """What each chosen expert wrote, times its weight; the shared one as it was added."""
    x, total = at(f"{moe.path}.norm"), torch.zeros(1, dtype=torch.float64)
    weight = at(f"{moe.path}.weight")  # J
    for e, w in zip(at(f"{moe.path}.index").long().tolist(), weight, strict=True):
        up = to_float64(moe.up.weight[e]) @ x  # F
        act = moe.act(to_float64(moe.gate.weight[e]) @ x) * up if moe.spec.expert.gated else moe.act(up)
        total = total + book.add(f"{moe.path}.expert.{e}", w * (to_float64(moe.down.weight[e]) @ act))
    return total + book.add(f"{moe.path}.shared", at(f"{moe.path}.shared")) if moe.spec.shared else total


def form_logit(book: Ledger, head: nn.Linear, x: Tensor, first: int, second: int | None) -> Tensor:
    """The logit, or the difference of two; a dense layer's activation and a cap are frozen as the factor f(u)/u."""
    if isinstance(head, Head):
        s = head.spec
        if s.dense:
            assert isinstance(head.dense, Dense)
            linear = head.dense.linear
            x = to_float64(linear.weight) @ x
            x = x if linear.bias is None else x + book.add("head.dense.linear.bias", linear.bias)
            was = x.detach()
            x = x * torch.where(was == 0, 0.0, ACTIVATIONS[s.dense.activation](was) / was)
            x = book.norm(head.dense.norm, x)
        x = x * s.scale
    rows = [i for i in (first, second) if i is not None]
    logits = to_float64(head.weight[rows]) @ x
    if head.bias is not None:
        logits = logits + book.add("head.bias", head.bias[rows])
    if isinstance(head, Head) and head.spec.cap:
        was = logits.detach()
        logits = logits * torch.where(was == 0, 1.0, head.limit(was) / was)
    return logits[0] - logits[1:].sum()


def sublayer_of(name: str) -> str:
    """The sub-layer to which a part belongs: `layers.3.attn`, `layers.3.ffn`, `embed`, `head`…"""
    prefix, layers, rest = name.rpartition("layers.")
    if not layers:
        return name
    layer, sub = rest.split(".")[:2]
    return f"{prefix}layers.{layer}.{sub}"


def to_float64(x: Tensor) -> Tensor:
    """A copy in fp64 on the CPU, apart from every graph."""
    return x.detach().cpu().to(torch.float64, copy=True)
