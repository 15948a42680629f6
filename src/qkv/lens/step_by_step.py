"""The seven steps of one position, from its id to the next word, with the real numbers of one run.

Every strip of numbers carries the Python expression that gives it, over `t` (the trace), `core` (its `t.core`), `torch`
and core.positions' `sinusoid`.
Letters: B rows, T queries, S keys, D width, H heads, G key/value groups, K head dim, F ffn, V vocabulary.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.core.attention import Attention
from qkv.core.latent import Latent
from qkv.core.positions import sinusoid
from qkv.errors import QkvError, nearest
from qkv.lens import resolve
from qkv.lens.mask_reasons import added_bias, explain_mask
from qkv.lens.recording import Recording
from qkv.messages import Message, join
from qkv.plots.forms import Drawn, Table
from qkv.plots.text import clean, format_signed

LETTERS = {  # of a tap's shape, by the end of its name; others are B T D
    "q_pre": "B H T K", "q": "B H T K", "k_pre": "B G S K", "k": "B G S K", "v": "B G S K", "z": "B H T K",
    "pattern": "B H T S", "up": "B T F", "gate": "B T F", "act": "B T F",
    "logits": "B T E", "index": "B T J", "weight": "B T J",
}
STEPS = (Message("pieces"), Message("embedding"), Message("attention"), Message("heads"), Message("add & norm"),
         Message("ffn"), Message("next word"))
LABELS = {"given": Message("value given")} | {label: label for label in (
    Message("row"), Message("scaled"), Message("position"), Message("q before"), Message("product"), Message("running"),
    Message("sum"), Message("scale"), Message("scaled sum"), Message("score"), Message("mask"), Message("pattern"),
    Message("weight"), Message("all heads"), Message("head weights"), Message("joined"), Message("out"),
    Message("before"), Message("read"), Message("said"), Message("after"), Message("mean"), Message("spread"),
    Message("chances"), Message("next ids"))}  # of the strips that are no taps


@dataclass(frozen=True)
class Strip:
    """Some numbers of one step: `values` is what `line` evaluates to; `whole` is the shape they were taken from."""

    name: str
    line: str
    values: Tensor
    letters: str = ""
    whole: tuple[int, ...] = ()
    words: tuple[str, ...] = ()

    def number_at(self, *index: int) -> tuple[float, str]:
        """One number, and the Python line that gives it."""
        at = "".join(f"[{i}]" for i in index)
        return float(self.values[index] if index else self.values), f"({self.line}){at}"

    @property
    def label(self) -> str:
        """The name as it is read: names of taps and letters stay."""
        stem, _, moment = self.name.rpartition(" ")
        if stem and moment in ("mean", "spread"):
            return join(" ", [LABELS[stem], LABELS[moment]])
        return LABELS.get(self.name, self.name)

    def show(self) -> str:
        """The first numbers, or the words beside them."""
        whole, names = not self.values.is_floating_point(), [clean(w) for w in self.words]
        values = self.values.flatten()[: None if whole and names else 4].tolist()
        if names:
            return " ".join(f"{w}={x}" if whole else f"{w} {x:.3f}" for w, x in zip(names, values, strict=whole))
        shown = " ".join(map(str if whole else format_signed, values))
        return shown + " …" * (self.values.numel() > len(values))


@dataclass(frozen=True)
class Walk(Drawn):
    """One position's way through one attention: `steps` by name, in the order of the forward pass."""

    path: str
    head: int
    query: int
    key: int
    reason: str
    steps: dict[str, tuple[Strip, ...]]

    def forms(self) -> tuple[Table, ...]:
        """A table of each step: names, shapes, the first numbers, and the Python lines."""
        made: list[Table] = []
        for n, (step, strips) in enumerate(self.steps.items(), start=1):
            rows = [(s.label, f"{s.letters} {[*s.whole]}" if s.whole else "", s.show(), s.line) for s in strips]
            note = f"{self.path} head {self.head}: {self.query} → {self.key}" if n == 1 else ""
            made.append(Table(join(" ", [n, step]), [("", "shape", "numbers", "Python"), *rows], note))
        return tuple(made)

    def __getitem__(self, name: str) -> Strip:
        """The strip of a name, such as "score" or "z", whichever step it belongs to."""
        every = {s.name: s for step in self.steps.values() for s in step}
        if name not in every:
            raise QkvError("this walk has no {name!r}{hint}; it has {every}", name=name, hint=nearest(name, every),
                           every=", ".join(every))
        return every[name]


@dataclass(frozen=True)
class Place:
    """Where a walk goes: one row, one head, one query and one key of an attention; `layer` is its layer's path."""

    t: Recording
    path: str
    layer: str
    row: int
    head: int
    query: int
    key: int
    run: int | None

    def take(self, label: str, name: str, *index: int | str) -> Strip:
        """A strip cut out of a tap at an index, without one at the query's position; ":" is all of an axis."""
        resolve.require_saved(self.t, "walk", name)
        whole, index = self.t.get(name, run=self.run), index or (self.row, self.query)
        line = f't["{name}"]' if self.run is None else f't.get("{name}", run={self.run})'
        values = whole[tuple(slice(None) if i == ":" else int(i) for i in index)]
        letters = LETTERS.get(name.rpartition(".")[2], "B T D")
        return Strip(label, f"{line}[{', '.join(map(str, index))}]", values, letters, tuple(whole.shape))


def walk_steps(
    t: Recording, path: str, *, head: int = 0, query: int | str = -1, key: int | str = 0, row: int = 0,
    run: int | None = None,
) -> Walk:
    """The seven steps of the position `query`, and within its attention `head` and `key` element by element.

    Positions are numbers or words of the text. For `cross` the key is a position of the source.

    Raises:
        QkvError: no such attention, head or position; what it needs was not saved.
    """
    heads = resolve.find_attention(t, path).spec.heads
    if not 0 <= head < heads:
        raise QkvError("{path} has heads 0 to {heads}, found {head}", path=path, heads=heads - 1, head=head)
    memory = "encoder." if path.endswith(".cross") else path
    at = Place(
        t, path, path.rpartition(".")[0], row, head, resolve.find_position(t, query, path=path, row=row, run=run),
        resolve.find_position(t, key, path=memory, row=row, run=run), run,
    )
    makers = (piece_strips, embedding_strips, attention_strips, head_strips, norm_strips, ffn_strips, next_word_strips)
    made = [make(at) for make in makers]
    reason = explain_mask(t, path, row=row, run=run).reason(at.query, at.key)
    return Walk(path, head, at.query, at.key, reason, dict(zip(STEPS, made, strict=True)))


def piece_strips(at: Place) -> tuple[Strip, ...]:
    """Step 1: the text in pieces, each with its id."""
    ids = resolve.find_run(at.t, at.path, at.run).ids
    line = f't.ran("{at.layer}", {at.run}).ids[{at.row}]'
    words = tuple(resolve.show_tokens(at.t, ids[at.row].tolist()))
    return (Strip("ids", line, ids[at.row], "B T", tuple(ids.shape), words),)


def embedding_strips(at: Place) -> tuple[Strip, ...]:
    """Step 2: the row of the table, the vector of the position, and what goes into the first layer."""
    core, side, run = at.t.core, resolve.side_of(at.t, at.path), resolve.find_run(at.t, at.path, at.run)
    stack, token = resolve.stack_of(at.t, at.path), int(run.ids[at.row, at.query])
    name = "source_embed" if side == "encoder" and core.spec.sources else "embed"
    table, s = getattr(core, name).weight.detach(), stack.spec
    found = [Strip("row", f"core.{name}.weight[{token}]", table[token], "V D", tuple(table.shape))]
    if s.embed_scale != 1.0:
        found.append(Strip("scaled", f"{found[0].line} * {s.embed_scale!r}", table[token] * s.embed_scale))
    if s.positions:
        slot = int(run.place.token[at.row, at.query]) + s.positions.offset
        if s.positions.kind == "learned":
            rows = stack.positions.weight.detach()
            line = f"core.{side}.positions.weight[{slot}]"
            found.append(Strip("position", line, rows[slot], "T D", tuple(rows.shape)))
        else:
            line = f"sinusoid(torch.tensor({slot}), {s.width}, {s.positions.layout!r})"
            found.append(Strip("position", line, sinusoid(torch.tensor(slot), s.width, s.positions.layout)))
    return (*found, at.take("embed", f"{resolve.prefix_of(at.t, at.path)}embed"))


def attention_strips(at: Place) -> tuple[Strip, ...]:
    """Step 3: one query against one key, element by element, then against all, and what it takes from them."""
    path, module, here = at.path, at.t.attentions[at.path], (at.row, at.head, at.query)
    across = module.spec.mask.kind == "memory"
    key, group = f"{path}.{'k_pre' if across else 'k'}", group_of_head(module, at.head)
    q = at.take("q", f"{path}.q", *here)
    source = at.row // (q.whole[0] // at.t.get(key, run=at.run).shape[0])  # hypotheses share a source
    keys, k = at.take("keys", key, source, group, ":"), at.take("k", key, source, group, at.key)
    v, z = at.take("v", f"{path}.v", source, group, at.key), at.take("z", f"{path}.z", *here)
    row = at.take("pattern", f"{path}.pattern", *here)
    before = () if across else (at.take("q before", f"{path}.q_pre", *here),)  # before positions turned it
    scale = f't.attentions["{path}"].scale'
    asks, cards, card = to_float32(q), to_float32(keys), to_float32(k)
    product = Strip("product", f"{asks.line} * {card.line}", asks.values * card.values)
    total = Strip("sum", f"({product.line}).sum()", product.values.sum())
    score = Strip("score", f"({cards.line} @ {asks.line}) * {scale}", cards.values @ asks.values * module.scale)
    if cap := module.spec.cap:
        score = Strip("score", f"{cap} * torch.tanh({score.line} / {cap})", cap * torch.tanh(score.values / cap))
    bias = added_bias(at.t, path, run=at.run)
    spot = (at.row if len(bias) > 1 else 0, at.head if bias.shape[1] > 1 else 0, at.query)
    run = "" if at.run is None else f", run={at.run}"
    added = Strip("mask", f't.bias("{path}"{run})[{spot[0]}, {spot[1]}, {spot[2]}]', bias[spot])
    weight = Strip("weight", f"{row.line}[{at.key}]", row.values[at.key])
    return (
        *before, q, k, product, Strip("running", f"({product.line}).cumsum(0)", product.values.cumsum(0)), total,
        Strip("scale", f"torch.tensor({scale})", torch.tensor(module.scale)),
        Strip("scaled sum", f"{total.line} * {scale}", total.values * module.scale),
        score, added, row, weight, v, Strip("given", f"{weight.line} * {v.line}", weight.values * v.values), z,
    )


def to_float32(x: Strip) -> Strip:
    """The same in fp32 where the model runs in half precision: scores are made in fp32."""
    half = x.values.dtype in (torch.bfloat16, torch.float16)
    return replace(x, line=f"{x.line}.float()", values=x.values.float()) if half else x


def group_of_head(module: Attention | Latent, head: int) -> int:
    """The key/value group whose keys a head reads."""
    return head // (module.spec.heads // module.spec.groups) if isinstance(module, Attention) else head


def head_strips(at: Place) -> tuple[Strip, ...]:
    """Step 4: all heads side by side, joined, and mixed by the output matrix."""
    z = at.take("all heads", f"{at.path}.z", at.row, ":", at.query)
    weights = at.take("head weights", f"{at.path}.pattern", at.row, ":", at.query, at.key)
    joined = Strip("joined", f"{z.line}.flatten()", z.values.flatten(), "B T HK")
    return z, weights, joined, at.take("out", f"{at.path}.out")


def norm_strips(at: Place) -> tuple[Strip, ...]:
    """Step 5: the stream before and after the sub-layer is added, with the mean and spread that a norm works on."""
    sub = at.path.rpartition(".")[2]
    before, after = ("resid_mid", "resid_cross") if sub == "cross" else ("resid_in", "resid_mid")
    after = after if f"{at.layer}.{after}" in at.t.needed else "resid_out"
    found: list[Strip] = []
    for label, name in (("before", before), ("read", f"{sub}.norm"), ("said", f"{sub}.out"), ("after", after)):
        x = at.take(label, f"{at.layer}.{name}")
        found += [x, Strip(f"{label} mean", f"{x.line}.mean()", x.values.mean()),
                  Strip(f"{label} spread", f"{x.line}.std(correction=0)", x.values.std(correction=0))]
    return tuple(found)


def ffn_strips(at: Place) -> tuple[Strip, ...]:
    """Step 6: up, activation and down, or the router's choice and the experts' outputs; then the end of the layer."""
    names = ("ffn.norm", "ffn.up", "ffn.gate", "ffn.act", "ffn.out", "moe.norm", "moe.logits", "moe.index",
             "moe.weight", "moe.shared", "moe.out", "resid_out")
    return tuple(at.take(n, f"{at.layer}.{n}") for n in names if f"{at.layer}.{n}" in at.t.known)


def next_word_strips(at: Place, top: int = 10) -> tuple[Strip, ...]:
    """Step 7: the last state, the likeliest tokens' logits and chances; a stack without a head ends at its norm."""
    t = at.t
    state = at.take("final_norm", f"{resolve.prefix_of(t, at.path)}final_norm")
    if t.core.spec.head is None or resolve.side_of(t, at.path) != resolve.side_of(t):
        return (state,)
    with torch.no_grad():
        logits = t.core.head(state.values)  # V
    line = f"core.head({state.line})"
    best = logits.topk(min(top, len(logits)))
    ids, size = best.indices.tolist(), (len(logits),)
    words = tuple(resolve.show_tokens(t, ids))
    return (
        state,
        Strip("logits", f"{line}[{ids}]", best.values, "V", size, words),
        Strip("chances", f"{line}.softmax(-1)[{ids}]", logits.softmax(-1)[best.indices], "V", size, words),
        Strip("next ids", f"{line}.topk({len(ids)}).indices", best.indices, "", (), words),
    )
