"""A trace: what the taps carried while the model ran, by name, stitched over prefill and decode. Next: readouts.py.

Attention patterns are not stored: they are rebuilt in fp32 from the recorded q and k, so the fast kernels keep running.
Letters: B rows, T queries, S keys, D width, H heads, G key/value groups, K head dim.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextvars import Token
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.core import attention, kernels
from qkv.core.attention import Attention
from qkv.core.cache import Cache, Static
from qkv.core.latent import Latent
from qkv.core.masks import AttentionBias
from qkv.core.model import Stack, Transformer
from qkv.core.positions import Positions, bucket_distances
from qkv.core.step import Mode, Step, Tracer, active_tracer, pass_through
from qkv.errors import QkvError, nearest
from qkv.lens import consistency, selectors, trace_storage
from qkv.lens.edit import Edit, apply_edit
from qkv.lens.readouts import Readouts
from qkv.messages import Message
from qkv.spec import Block, Spec
from qkv.spec import Latent as Latents

READOUTS = {  # what a readout needs, as globs over tap names
    "lens": ("*embed", "*layers.*.resid_out", "logits"),
    "patterns": ("*attn.pattern", "*cross.pattern"),
    "alignment": ("*cross.pattern",),
    "parts": ("*layers.*.z", "*.ffn.out", "*.ffn.act", "*.moe.*", "*final_norm"),
    "walk": ("*embed", "*resid_*", "*.attn.[!s]*", "*.cross.[!s]*", "*.ffn.*", "*.moe.*", "*final_norm", "logits"),
    "shift": ("*embed", "*layers.*.resid_out"),
    "choices": ("logits",),
    "routes": ("*.moe.logits", "*.moe.index", "*.moe.weight"),
    "mask": (), "wavefront": (), "cache": (), "neighbours": (), "analogy": (), "gradient": (),  # from the run itself
    "diff": ("*embed", "*layers.*.resid_out", "logits"),
    "check": ("*attn.pattern", "*cross.pattern", "*attn.v", "*cross.v", "*attn.z", "*cross.z"),
}


@dataclass(eq=False)
class Call:
    """One pass of one stack: the ids that went in, the slots where they stand, and what its taps carried."""

    stack: Stack
    ids: Tensor  # B T
    start: int
    mode: Mode
    mask: dict[Any, AttentionBias]
    sources: int
    place: Positions
    across: int  # positions of the memory
    taps: dict[str, Tensor] | trace_storage.TapFile = field(default_factory=dict)
    parents: list[int] | None = None  # the row of the call before that each row continues; None: its own


@dataclass(eq=False)
class Run:
    """The calls of one stack that share a cache: a prompt and its continuation, or one plain pass."""

    stack: str
    cache: Cache
    calls: list[Call] = field(default_factory=list)

    @property
    def ids(self) -> Tensor:
        """All ids [B, T] of this run."""
        require_same_rows(self)
        return torch.cat([c.ids for c in self.calls], 1)

    @property
    def place(self) -> Positions:
        """Where each token of this run stands, each [B, T]."""
        rows = [[x.expand(c.ids.shape) for x in c.place] for c in self.calls]
        return Positions(*(torch.cat(parts, 1) for parts in zip(*rows, strict=True)))

    @property
    def phases(self) -> list[Mode]:
        """The mode in which each position was read."""
        return [c.mode for c in self.calls for _ in range(c.ids.shape[1])]

    @property
    def used(self) -> list[bool]:
        """Whether the guess at each position was there to be used: only the last one of each call is."""
        return [i == c.ids.shape[1] - 1 for c in self.calls for i in range(c.ids.shape[1])]


class Stop(BaseException):
    """Unwinds the pass once a trace has recorded all that it waits for; no `except Exception` may catch it."""

    def __init__(self, trace: "Trace") -> None:
        super().__init__("the trace has recorded all that it waits for")
        self.trace = trace


class Trace(Readouts):
    """Records one core while its block runs: `with Trace(core, save=["*.attn.pattern"]) as t: ...`, then `t[name]`.

    `save` holds globs over tap names ("layers.{4:8}.attn.{q,k}", where {4:8} is a slice of the layers), or names of
    READOUTS, which are the methods of readouts.py. "layers.3.attn.z@heads=0:4@pos=-1" keeps those heads and positions
    alone, and is read by that name; of a tap saved whole any cut is read. `edit` holds Edits, applied in their order.
    Other models, threads and contexts are not recorded; a trace inside a trace records first. `budget` ("2GB") bounds
    what it may hold in memory, `to` is a directory that takes each call's taps once it is over. With `stop` the block
    ends where each saved tap was recorded once and each edit was made: what comes after it, in the forward pass (later
    layers, the head) and in the block, is not run, so `out = model(ids)` gives no `out`.

    Raises:
        QkvError: an unknown name (the nearest one is given); a head out of range; a value read that was not saved or
            never recorded; an edit that had no effect; a call that would not fit the budget, before it runs.
    """

    def __init__(
        self, core: Transformer, save: Sequence[str] = (), edit: Sequence[Edit] = (), tokenizer: Any = None, *,
        budget: str | int | None = None, to: Path | str | None = None, stop: bool = False,
    ) -> None:
        if not core.spec.has_blocks and READOUTS.keys() & set(save):
            raise QkvError("an LSTM has no layers to read; translate(align=True) shows where one with attention looked")
        self.core, self.tokenizer, self.edits = core, tokenizer, tuple(edit)
        self.known = tap_names(core.spec)
        self.attentions = {m.path: m for m in core.modules() if isinstance(m, Attention | Latent)}
        self.wanted = {name for one in save for name in self.expand_selector(one)}
        self.at = {e: set(selectors.match_taps(e.name, self.known, READOUTS)) for e in self.edits}
        self.met: set[Edit] = set()
        self.needed = self.wanted | {n for w in self.wanted for n in source_taps(w, self.attentions)}
        self.keeps: dict[str, list[str]] = defaultdict(list)  # the selectors of each tap
        for name in self.needed:
            self.keeps[selectors.parse_selector(name)[0]].append(name)
        self.runs: list[Run] = []
        self.outer: Tracer | None = None
        self.token: Token[Tracer | None] | None = None
        self.needs_eager_attention = any(e.needs_eager_attention for e in self.edits)
        self.budget, self.held = trace_storage.parse_bytes(budget) if budget is not None else 0, 0
        self.each = trace_storage.bytes_per_token(core) if budget is not None else {}
        self.stop, self.awaited = stop, set[str]()
        self.directory = Path(to) if to is not None else None
        if self.directory:
            trace_storage.require_empty(self.directory)

    def expand_selector(self, selector: str) -> list[str]:
        """The names that a selector means, each with its cut: those of a readout, or those that its glob matches."""
        glob, cut = selectors.parse_selector(selector)
        if cut != selectors.Selection() and glob in READOUTS and glob != "patterns":
            raise QkvError("{selector!r}: {glob} reads whole taps; of the readouts only patterns can be cut",
                           selector=selector, glob=glob)
        layers = max(len(s.blocks) for s in (self.core.spec.encoder, self.core.spec.decoder) if s)
        globs = READOUTS.get(glob) or ([] if glob in READOUTS else [*selectors.expand_glob(glob, layers)])
        taps = [n for g in globs for n in selectors.match_taps(g, self.known, READOUTS, strict=glob not in READOUTS)]
        for tap in taps:
            selectors.resolve_heads(f"{tap}{cut}", self.count_heads(tap))
        return [f"{tap}{cut}" for tap in taps]

    def count_heads(self, tap: str) -> int:
        """How many heads a tap carries: those of the queries, those of the keys where they share, 0 where none."""
        path, _, part = tap.rpartition(".")
        at = self.attentions.get(path)
        if at is None or part not in ("q_pre", "k_pre", "q", "k", "v", "score", "pattern", "z"):
            return 0
        return at.spec.groups if isinstance(at, Attention) and part in ("k_pre", "k", "v") else at.spec.heads

    def __enter__(self) -> "Trace":
        self.outer = active_tracer.get()
        self.token = active_tracer.set(self)
        # what is rebuilt need not come; where an edit opens the maths it does
        self.awaited = {n for n in self.needed if self.needs_eager_attention or not source_taps(n, self.attentions)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> bool | None:
        if self.token:
            active_tracer.reset(self.token)
        self.outer, self.token = None, None
        stopped = isinstance(error, Stop) and error.trace is self
        if error and not stopped:
            return None
        if self.directory:
            trace_storage.spill_calls(self, self.directory)
            trace_storage.write_index(self, self.directory)
        idle = [e.name for e in self.edits if e not in self.met]
        if idle:
            raise QkvError("edit of {idle!r} had no effect: the run did not reach that tap, head or position",
                           idle=idle[0])
        return stopped

    def tap(self, module: nn.Module, name: str, x: Tensor) -> Tensor:
        """The identity: `on_forward` gives each call a tap of its own."""
        return x

    def on_forward(self, stack: Stack, ids: Tensor, step: Step) -> Step:
        """The step with this call's own tap; calls of other cores go to the outer tracer."""
        outer = self.outer
        if outer:
            on_forward: Callable[..., Step] | None = getattr(outer, "on_forward", None)
            attend = attention.attend if outer.needs_eager_attention else kernels.attend
            step = replace(step, tap=outer.tap, attend=attend)
            step = on_forward(stack, ids, step) if on_forward else step
        else:
            step = replace(step, tap=pass_through, attend=kernels.attend)
        sides = [n for n in ("encoder", "decoder") if getattr(self.core, n, None) is stack]
        if not sides:
            return step
        if self.directory:
            trace_storage.spill_calls(self, self.directory)
        call = Call(stack, ids, step.cache.length, step.mode, collect_masks(stack, ids, step), len(step.memory),
                    step.positions, step.memory.shape[1], parents=read_parents(step.cache))
        run = next((r for r in self.runs if r.cache is step.cache), None)
        if run is None:
            run = Run(sides[0], step.cache)
            self.runs.append(run)
        if self.budget:
            trace_storage.check_budget(self, call, first=not run.calls)
        run.calls.append(call)
        attend = attention.attend if self.needs_eager_attention else step.attend
        return replace(step, tap=partial(self.record_tap, call, step.tap), attend=attend)

    def record_tap(self, call: Call, outer: Callable[..., Tensor], module: nn.Module, name: str, x: Tensor) -> Tensor:
        """Apply the edits of this tap, note what is wanted, pass it on."""
        path = f"{module.path}.{name}" if module.path else name
        for edit in self.edits:
            if path in self.at[edit]:
                if edit.needs_eager_attention and edit.query is not None and call.sources != len(call.ids):
                    raise QkvError("edit of {name}: beams share a row of scores; leave query out, or use one",
                                   name=edit.name)
                x, met = apply_edit(x, edit, position_axis(x), first_slot(call, path, x))
                if met:
                    self.met.add(edit)
        for kept in self.keeps.get(path, ()):
            self.keep(call, kept, x.detach())
        x = outer(module, name, x)
        if self.stop and not self.awaited and self.met >= set(self.edits):
            raise Stop(self)
        return x

    def keep(self, call: Call, name: str, x: Tensor) -> None:
        """Keep what a selector means of what its tap carried; nothing where the call has none of its positions."""
        assert isinstance(call.taps, dict)
        tap, cut = selectors.parse_selector(name)
        first, axis = first_slot(call, tap, x), position_axis(x)
        picked = selectors.resolve_heads(name, self.count_heads(tap)) if cut.heads else None
        where = [slot - first for slot in selectors.resolve_slots(cut, first, x.shape[axis])] if cut.pos else None
        if where != []:
            call.taps[name] = selectors.slice_tap(x, picked, where, axis) if picked or where else x
            self.awaited.discard(name)

    def __getitem__(self, name: str) -> Tensor:
        return self.get(name)

    def get(self, name: str, *, run: int | None = None) -> Tensor:
        """One tensor for a tap, stitched along its positions over the calls of a run; `run` picks one of several.

        `logits` begin at the position given by `start(name)`: generation asks only for the last position of a prompt.
        A name with @heads or @pos gives those alone, where they or the whole tap were saved; `slots` says where they
        stand.
        """
        tap, cut = selectors.parse_selector(name)
        if tap not in self.known:
            raise QkvError("no tap is called {tap!r}{hint} (of {known} names)", tap=tap, hint=nearest(tap, self.known),
                           known=len(self.known))
        selectors.resolve_heads(name, self.count_heads(tap))
        if name not in self.needed and tap not in self.needed:
            near = [n for n in sorted(self.needed) if n.startswith(f"{tap}@")]
            some = Message("; of it there is {near}", near=", ".join(near)) if near else ""
            raise QkvError("{name} was not saved{some}; add it: save=[{name!r}]", name=name, some=some)
        passed = self.run(name, run)
        if cut.pos:
            selectors.require_positions(name, self.slots(name, run=run), passed.ids.shape[1] - 1)
        if name in self.needed:
            return self.stitch(passed, name)
        where = [slot - self.start(tap, run=run) for slot in self.slots(name, run=run)] if cut.pos else None
        return self.slice_tap(self.stitch(passed, tap), name, where)

    def slice_tap(self, x: Tensor, name: str, where: list[int] | None) -> Tensor:
        """Those positions of what a tap carried, and the heads that the name means."""
        tap, cut = selectors.parse_selector(name)
        heads = selectors.resolve_heads(name, self.count_heads(tap)) if cut.heads else None
        return selectors.slice_tap(x, heads, where, position_axis(x))

    def run(self, name: str, index: int | None = None) -> Run:
        """The run that recorded a tap."""
        source, cut = self.first_source(name), selectors.parse_selector(name)[1]
        runs = [r for r in self.runs if any(source in c.taps for c in r.calls)]
        if not runs and cut.pos and self.runs:
            selectors.require_positions(name, (), max(r.ids.shape[1] for r in self.runs) - 1)
        if not runs:
            why = "" if not name.endswith(".score") else Message(
                "; scores exist only while an edit of a score opens the maths")
            raise QkvError("{name} was not recorded: nothing of this core ran through it inside the block{why}",
                           name=name, why=why)
        if index is None and len(runs) > 1:
            raise QkvError("{name} was recorded in {runs} runs; choose one: get({name!r}, run=0)", name=name,
                           runs=len(runs))
        return runs[index or 0]

    def first_source(self, name: str) -> str:
        """The first name under which calls keep what a name is read from."""
        name = name if name in self.needed else selectors.parse_selector(name)[0]
        return (*source_taps(name, self.attentions), name)[0]

    def slots(self, name: str, *, run: int | None = None) -> list[int]:
        """The slot of each position that `t[name]` has."""
        (tap, cut), source, found = selectors.parse_selector(name), self.first_source(name), list[int]()
        kept = bool(selectors.parse_selector(source)[1].pos)
        for call in (c for c in self.run(name, run).calls if source in c.taps):
            x = call.taps[source]
            count, first = x.shape[position_axis(x)], first_slot(call, tap, x)
            if not kept:
                found += selectors.resolve_slots(cut, first, count)
            elif trace_storage.of_memory(tap):
                found += selectors.resolve_slots(cut, 0, call.across)
            else:  # a call may make its last positions alone, as generation does of logits
                found += selectors.resolve_slots(cut, call.start, call.ids.shape[1])[-count:]
            if trace_storage.of_memory(tap):
                break
        return found

    def stitch(self, run: Run, name: str) -> Tensor:
        """The value of a tap over a whole run."""
        tap, cut = selectors.parse_selector(name)
        if tap.endswith((".pattern", ".score")):
            calls = [c for c in run.calls if name in c.taps or self.first_source(name) in c.taps]
            parts = [c.taps[name] if name in c.taps else self.rebuild_pattern(run, c, name) for c in calls]
            whole = cut.pos and ".cross." not in tap  # the keys of the run, whichever queries were kept
            longest = run.ids.shape[1] if whole else max(p.shape[-1] for p in parts)
            require_same_rows(run)
            return torch.cat([nn.functional.pad(p, (0, longest - p.shape[-1])) for p in parts], 2)  # B H T S
        if source_taps(name, self.attentions):
            slots = (selectors.resolve_slots(cut, c.start, c.ids.shape[1]) for c in run.calls)
            where = [slot for call in slots for slot in call] if cut.pos else None
            return self.slice_tap(self.expand_latent(run, tap), name, where)
        parts = [c.taps[name] for c in run.calls if name in c.taps]
        if trace_storage.of_memory(tap):
            return parts[0]  # the memory's, made once
        require_same_rows(run)
        return torch.cat(parts, position_axis(parts[0])) if len(parts) > 1 else parts[0]

    def rebuild_pattern(self, run: Run, call: Call, name: str) -> Tensor:
        """The pattern [B, H, T, S] of one call, from the q of that call and all keys up to it."""
        tap, cut = selectors.parse_selector(name)
        q, k, *_ = source_taps(name, self.attentions)
        at, end = self.attentions[tap.removesuffix(".pattern")], call.start + call.ids.shape[1]
        # a latent's keys are recorded where they are expanded, never where they are absorbed
        keys = call.taps[k] if isinstance(at, Latent) and k in call.taps else self.stitch(run, k)
        keys, seen = keys if ".cross." in k else keys[:, :, :end], call.mask[at.spec.mask]
        if cut != selectors.Selection():
            heads = selectors.resolve_heads(name, at.spec.heads)
            groups = self.count_heads(selectors.parse_selector(k)[0])
            there, share = selectors.resolve_heads(k, groups), at.spec.heads // groups
            keys = keys[:, [there.index(head // share) for head in heads]] if cut.heads else keys
            rows = [slot - call.start for slot in selectors.resolve_slots(cut, call.start, call.ids.shape[1])]
            seen = selectors.narrow_mask(seen, heads, rows, keys.shape[2])
        return compute_pattern(call.taps[q], keys, seen, at)

    @torch.no_grad()
    def expand_latent(self, run: Run, name: str) -> Tensor:
        """Keys or values [B, H, S, K] of a run, from its latents: decoding keeps those and never expands them."""
        if len(run.calls) == 1 and name in run.calls[0].taps:
            return run.calls[0].taps[name]
        path, _, part = name.rpartition(".")
        at = self.attentions[path]
        assert isinstance(at, Latent)
        both = at.expand(self.stitch(run, f"{path}.latent"), self.stitch(run, f"{path}.k_rope"))
        return both[part == "v"]

    def start(self, name: str, *, run: int | None = None) -> int:
        """The slot of the first position that `t[name]` has."""
        return self.slots(name, run=run)[0]

    def tokens(self, stack: str | None = None) -> list[list[str]]:
        """What went through a stack, as pieces of text; ids as digits where there is no tokenizer."""
        run = next((r for r in self.runs if stack in (None, r.stack)), None)
        if run is None:
            raise QkvError("nothing ran through the {stack} inside the block", stack=stack or Message("core"))
        return [self.tokenizer.pieces(r) if self.tokenizer else [str(i) for i in r] for r in run.ids.tolist()]

    def check(self) -> dict[str, float]:
        """The largest |pattern @ v - z| of each attention: how far the rebuilt maps are from what really ran.

        Queries that see nothing (padding) are left out. Where the readouts `lens` and `parts` were saved they are held
        to the model as well (consistency.py). Raises QkvError where v and z were not saved.
        """
        found: dict[str, float] = {}
        for path, at in self.attentions.items():
            if f"{path}.pattern" not in self.wanted:
                continue
            p = self.get(f"{path}.pattern")
            for name in (f"{path}.v", f"{path}.z"):
                if name not in self.needed:
                    raise QkvError('check: {name} was not saved; add it: save=["check"]', name=name)
            v, z = self.get(f"{path}.v").float(), self.get(f"{path}.z").float()
            copies = p.shape[0] // v.shape[0]
            v = v.repeat_interleave(copies, 0).repeat_interleave(p.shape[1] // v.shape[1], 1)  # B H S K
            gap = (p.float() @ v - z).abs().amax((1, 3))  # B T
            run = self.run(f"{path}.pattern")
            seeing = torch.cat([sees_any_key(c.mask[at.spec.mask], c.ids) for c in run.calls], 1)  # B T
            found[path] = float(gap[seeing].max())
        if not found:
            raise QkvError('check: no pattern was saved; add them: save=["check"]')
        return {**found, **consistency.check_readouts(self)}


    def row(self, path: str, head: int, query: int, *, row: int = 0) -> Tensor:
        """The weights [S] of one query of one head of an attention, rebuilt alone: cheap at any length."""
        if path not in self.attentions:
            raise QkvError("no attention is called {path!r}{hint}", path=path,
                           hint=nearest(path, self.attentions))
        run, at = self.run(f"{path}.pattern"), self.attentions[path]
        (head,) = selectors.resolve_heads(f"{path}.pattern@heads={head}", at.spec.heads)
        q, k = (self.get(n) for n in source_taps(f"{path}.pattern", {path: at})[:2])
        if not -q.shape[2] <= query < q.shape[2]:
            raise QkvError("position {query}: this text has {shape} tokens, 0 to {shape2}", query=query,
                           shape=q.shape[2], shape2=q.shape[2] - 1)
        slot = query % q.shape[2]
        call = next(c for c in run.calls if c.start + c.ids.shape[1] > slot)
        seen, first = call.mask[at.spec.mask], call.start
        share = q.shape[1] // k.shape[1]
        keys = k[row // (q.shape[0] // k.shape[0]), head // share][None, None]  # 1 1 S K
        if at.spec.mask.kind != "memory":
            keys = keys[:, :, : first + call.ids.shape[1]]
        if seen.causal:
            keys, seen = keys[:, :, : slot + 1], AttentionBias(None, causal=False)
        elif seen.bias is not None:
            bias = seen.bias[row * len(seen.bias) // q.shape[0]]  # H or 1, T or 1, S
            bias = bias[head * len(bias) // q.shape[1]]
            seen = AttentionBias(bias[min(slot - first, len(bias) - 1)][None, None, None], causal=False)
        return compute_pattern(q[row, head, slot][None, None, None], keys, seen, at)[0, 0, 0]

    def plan(self, tokens: int, *, source: int = 0, rows: int = 1) -> trace_storage.BytePlan:
        """The bytes that this trace would hold of texts of that many tokens, in all and by tap."""
        return trace_storage.plan_bytes(self, tokens, source=source, rows=rows)

    def save(self, directory: Path | str) -> Path:
        """Write the trace as a directory of safetensors with an index; `model.traced(directory)` opens it."""
        return trace_storage.save_trace(self, directory)


def tap_names(spec: Spec) -> list[str]:
    """Every tap name of a core of this spec, in the order of the forward pass; `pattern` is rebuilt from q and k."""
    found: list[str] = []
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        if stack is None:
            continue
        dot = f"{side}." if spec.encoder and spec.decoder else ""
        found.append(f"{dot}embed")
        for i, block in enumerate(stack.blocks):
            found += [f"{dot}layers.{i}.{n}" for n in block_names(block)]
        found.append(f"{dot}final_norm")
    return [*found, *["logits"] * bool(spec.head), *["labels.out"] * bool(spec.labels)]


def block_names(block: Block) -> list[str]:
    """The tap names of one layer, in the order of its forward pass."""
    ends = ("score", "pattern", "z", "out")
    own = ("norm", "q_pre", "k_pre", "v", "q", "k", *ends)
    taps = ("norm", "q_pre", "q", "latent", "k_rope", "k", "v", *ends) if isinstance(block.attn, Latents) else own
    found = ["resid_in", *(f"attn.{n}" for n in taps)]
    found += [] if block.residual == "parallel" else ["resid_mid"]
    found += [*(f"cross.{n}" for n in own if n != "k"), "resid_cross"] if block.cross else []
    path, ffn = ("moe.shared", block.moe.shared) if block.moe else ("ffn", block.ffn)
    if block.moe:
        found += [f"moe.{n}" for n in ("norm", "logits", "index", "weight", "out")] + ["moe.shared"] * bool(ffn)
    if ffn:
        found += [f"{path}.{n}" for n in ("norm", "up", *["gate"] * ffn.gated, "act", "out")]
    return [*found, "resid_out"]


def source_taps(name: str, parts: dict[str, Attention | Latent]) -> tuple[str, ...]:
    """The taps from which a value is rebuilt; none where it is recorded as it is.

    A pattern comes from q and k (the memory's keys are never rotated); a latent's k and v from what it caches. Some
    heads and queries of it need those of q, and of k the heads that they share, at every position.
    """
    tap, cut = selectors.parse_selector(name)
    path, _, part = tap.rpartition(".")
    at, derived = parts.get(path), (f"{path}.latent", f"{path}.k_rope")
    if part == "pattern" and at:
        q, k = f"{path}.q{cut}", f"{path}.k_pre" if at.spec.mask.kind == "memory" else f"{path}.k"
        if isinstance(at, Latent):
            return (q, k, *derived)
        share = at.spec.heads // at.spec.groups
        groups = sorted({head // share for head in selectors.resolve_heads(name, at.spec.heads)})
        return (q, k + (f"@heads={','.join(map(str, groups))}" if len(groups) < at.spec.groups else ""))
    return derived if part in ("k", "v") and isinstance(at, Latent) else ()


@torch.no_grad()
def collect_masks(stack: Stack, ids: Tensor, step: Step) -> dict[Any, AttentionBias]:
    """The masks of a call with what the stack's relative positions add to its scores."""
    near = stack.spec.relative
    if near is None:
        return dict(step.mask)
    buckets = bucket_distances(step.cache.length, ids.shape[1], near, ids.device)
    return step.with_attention_bias(stack.relative(buckets)).mask


def compute_pattern(q: Tensor, k: Tensor, seen: AttentionBias, at: Attention | Latent) -> Tensor:
    """softmax(q kᵀ · scale + mask) in fp32: q [B, H, T, K] and k [B or fewer, G, S, K] -> [B, H, T, S].

    Key/value groups are views; hypotheses of one source share its row of k.
    """
    copies = q.shape[0] // k.shape[0]
    k = k.float().repeat_interleave(copies, 0) if copies > 1 else k.float()
    score = (q.float().unflatten(1, (k.shape[1], -1)) @ k[:, :, None].mT).flatten(1, 2) * at.scale  # B H T S
    if seen.bias is not None:
        rows = copies if seen.bias.shape[0] > 1 else 1
        score = score + seen.bias.repeat_interleave(rows, 0)
    if seen.causal:
        future = torch.ones(score.shape[-2:], dtype=torch.bool, device=score.device).triu(1)
        score = score.masked_fill(future, torch.finfo(score.dtype).min)
    return score.softmax(-1)


def sees_any_key(seen: AttentionBias, ids: Tensor) -> Tensor:
    """Which queries [B, T] see any key."""
    if seen.bias is None:
        return torch.ones_like(ids, dtype=torch.bool)
    some = (seen.bias > torch.finfo(torch.float32).min / 2).any(-1)[:, 0]  # B T
    return some.repeat_interleave(len(ids) // len(some), 0).expand(ids.shape)


def read_parents(cache: Cache) -> list[int] | None:
    """The row of the call before that each row continues, None where all stayed."""
    rows = cache.parents if isinstance(cache, Static) else None
    return None if rows is None else rows.tolist()


def position_axis(x: Tensor) -> int:
    """The axis of positions: [B, T, D] or [B, H, T, K]."""
    return 2 if x.dim() == 4 else 1


def first_slot(call: Call, name: str, x: Tensor) -> int:
    """The slot of the first position of x: a call's last ones where it has fewer; the memory's slots start at 0."""
    if trace_storage.of_memory(name):
        return 0
    return call.start + call.ids.shape[1] - x.shape[position_axis(x)]


def require_same_rows(run: Run) -> None:
    """A QkvError where rows moved between calls: such values cannot be stitched by row."""
    rows = {len(c.ids) for c in run.calls}
    ends = [c.start + c.ids.shape[1] for c in run.calls]
    gaps = ends[:-1] != [c.start for c in run.calls[1:]]
    reordered = any(c.parents not in (None, [*range(len(c.ids))]) for c in run.calls)
    if len(run.calls) > 1 and (gaps or reordered or len(rows) > 1 or any(c.sources != len(c.ids) for c in run.calls)):
        raise QkvError("rows left the batch or were reordered between calls (beams, or several texts), so positions "
                       "cannot be stitched by row; take one of its texts: t.line(0), and t.lines() lists "
                       "them")
