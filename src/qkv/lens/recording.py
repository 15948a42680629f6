"""Records what the taps carry while the model runs, and reads it back by name, stitched over prefill and decode.

Attention patterns are not stored: they are rebuilt in fp32 from the recorded q and k, so the fast kernels keep running.
Next: trace.py, which adds the readouts. Letters: B rows, T queries, S keys, H heads, G key/value groups, K head dim.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextvars import Token
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from qkv.adapt.quantise import count_parameters
from qkv.arguments import Count, check_arguments
from qkv.core import attention, kernels
from qkv.core.attention import Attention
from qkv.core.cache import Static
from qkv.core.latent import Latent
from qkv.core.model import Stack, Transformer
from qkv.core.step import Step, Tracer, active_tracer, pass_through
from qkv.errors import QkvError, nearest
from qkv.lens import resolve, selectors, trace_storage
from qkv.lens.edit import Edit, apply_edit
from qkv.lens.selectors import Selector
from qkv.lens.taps import Call, Run, collect_masks, compute_pattern, of_memory, open_bias, position_axis, tap_names
from qkv.messages import Message

STATES = ("*embed", "*layers.*.resid_out")
READOUTS = {  # what a readout needs, as globs over tap names
    "lens": (*STATES, "logits"),
    "patterns": ("*attn.pattern", "*cross.pattern"),
    "alignment": ("*cross.pattern",),
    "parts": ("*layers.*.z", "*.ffn.out", "*.ffn.act", "*.moe.*", "*final_norm"),
    "walk": ("*embed", "*resid_*", "*.attn.[!s]*", "*.cross.[!s]*", "*.ffn.*", "*.moe.*", "*final_norm", "logits"),
    "shift": STATES,
    "choices": ("logits",),
    "routes": ("*.moe.logits", "*.moe.index", "*.moe.weight"),
    "mask": (), "wavefront": (), "cache": (), "neighbours": (), "analogy": (), "gradient": (),  # from the run itself
    "diff": (*STATES, "logits"),
    "check": ("*attn.pattern", "*cross.pattern", "*attn.v", "*cross.v", "*attn.z", "*cross.z"),
}


class Stop(BaseException):
    """Unwinds the pass once a trace has recorded all that it waits for; no `except Exception` may catch it."""

    def __init__(self, trace: "Recording") -> None:
        super().__init__("the trace has recorded all that it waits for")
        self.trace = trace


class Recording:
    """Records one core while its block runs: `with Trace(core, save=["*.attn.pattern"]) as t: ...`, then `t[name]`.

    `save` holds globs over tap names ("layers.{4:8}.attn.{q,k}", where {4:8} is a slice of the layers), or names of
    READOUTS, which are the methods of Trace. "layers.3.attn.z@heads=0:4@pos=-1" keeps those heads and positions
    alone, and is read by that name; of a tap saved whole any cut is read. `edit` holds Edits, applied in their order.
    Other models, threads and contexts are not recorded; a trace inside a trace records first. `budget` ("2GB") bounds
    what it may hold in memory, `to` is a directory that takes each call's taps once it is over. With `stop` the block
    ends where each saved tap was recorded once and each edit was made: what comes after it, in the forward pass (later
    layers, the head) and in the block, is not run, so `out = model(ids)` gives no `out`.

    Raises:
        QkvError: an unknown name (the nearest one is given); a head out of range; a value read that was not saved or
            never recorded; an edit that had no effect; a call that would not fit the budget, before it runs.
    """

    @check_arguments
    def __init__(
        self, core: Transformer, save: Sequence[str] = (), edit: Sequence[Edit] = (), tokenizer: Any = None, *,
        budget: str | Count | None = None, to: Path | str | None = None, stop: bool = False,
    ) -> None:
        if not core.spec.has_blocks and READOUTS.keys() & set(save):
            raise QkvError("an LSTM has no layers to read; translate(align=True) shows where one with attention looked")
        self.core, self.tokenizer, self.edits = core, tokenizer, tuple(edit)
        self.known = tap_names(core.spec)
        self.attentions = {m.path: m for m in core.modules() if isinstance(m, Attention | Latent)}
        self.wanted = {name for one in save for name in self.expand_selector(one)}
        self.at = {e: set(selectors.match_taps(e.name, self.known, READOUTS)) for e in self.edits}
        self.met: set[Edit] = set()
        self.needed = self.wanted | {n for w in self.wanted for n in self.list_sources(self.select(w))}
        self.keeps: dict[str, list[Selector]] = defaultdict(list)  # the selectors of each tap
        for kept in map(self.select, self.needed):
            self.keeps[kept.tap].append(kept)
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

    def __repr__(self) -> str:
        """The model, the tokens that each stack read, the taps that were saved, and the readouts they suffice for."""
        count = count_parameters(self.core)
        lines = [f"{type(self).__name__}: {self.core.spec.architecture}, {count:,} parameters"]
        for run in self.runs:
            ids = [i for call in run.calls for i in call.ids[0].tolist()]
            words = " ".join(self.tokenizer.pieces(ids) if self.tokenizer else map(str, ids))
            read = f"{len(ids)} tokens, {len(run.calls)} calls, {len(run.calls[0].ids)} rows"
            lines.append(f"  {run.stack}: {read}: {words[:72]}{' …' * (len(words) > 72)}")
        taps = sorted({re.sub(r"layers\.\d+", "layers.*", name) for name in self.wanted})
        ready = [name for name, globs in READOUTS.items() if self.core.spec.has_blocks
                 and (taken := set(self.expand_selector(name))) <= self.needed and (taken or not globs)]
        return "\n".join([*lines, f"  taps: {', '.join(taps) or '–'}", f"  readouts: {', '.join(ready)}"])

    def expand_selector(self, selector: str) -> list[str]:
        """The names that a selector means, each with its cut: those of a readout, or those that its glob matches."""
        glob, cut = selectors.parse_selector(selector)
        if cut and glob in READOUTS and glob != "patterns":
            raise QkvError("{selector!r}: {glob} reads whole taps; of the readouts only patterns can be cut",
                           selector=selector, glob=glob)
        layers = max(len(s.blocks) for s in (self.core.spec.encoder, self.core.spec.decoder) if s)
        globs = READOUTS[glob] if glob in READOUTS else selectors.expand_glob(glob, layers)
        taps = [n for g in globs for n in selectors.match_taps(g, self.known, READOUTS, strict=glob not in READOUTS)]
        return [self.select(selector.replace(glob, tap, 1)).name for tap in taps]

    def select(self, name: str) -> Selector:
        """A selector of one tap, its heads looked up."""
        tap = name.partition("@")[0]
        if tap not in self.known:
            raise QkvError("no tap is called {tap!r}{hint} (of {known} names)", tap=tap, hint=nearest(tap, self.known),
                           known=len(self.known))
        return selectors.make_selector(name, self.count_heads(tap))

    def count_heads(self, tap: str) -> int:
        """How many heads a tap carries: those of the queries, those of the keys where they share, 0 where none."""
        path, _, part = tap.rpartition(".")
        at = self.attentions.get(path)
        if at is None or part not in ("q_pre", "k_pre", "q", "k", "v", "score", "pattern", "z"):
            return 0
        return at.spec.groups if isinstance(at, Attention) and part in ("k_pre", "k", "v") else at.spec.heads

    def list_sources(self, s: Selector) -> tuple[str, ...]:
        """The taps from which a value is rebuilt; none where it is recorded as it is.

        A pattern comes from q and k (the memory's keys are never rotated); a latent's k and v from what it caches. Some
        heads and queries of it need those of q, and of k the heads that they share, at every position.
        """
        path, _, part = s.tap.rpartition(".")
        at, derived = self.attentions.get(path), (f"{path}.latent", f"{path}.k_rope")
        if part == "pattern" and at:
            q, k = f"{path}.q{s.cut}", f"{path}.k_pre" if at.spec.mask.kind == "memory" else f"{path}.k"
            if isinstance(at, Latent):
                return (q, k, *derived)
            groups = sorted({head * at.spec.groups // at.spec.heads for head in s.heads or range(at.spec.heads)})
            return (q, k + (f"@heads={','.join(map(str, groups))}" if len(groups) < at.spec.groups else ""))
        return derived if part in ("k", "v") and isinstance(at, Latent) else ()

    def __enter__(self) -> Self:
        self.outer = active_tracer.get()
        self.token = active_tracer.set(self)
        # what is rebuilt need not come; where an edit opens the maths it does
        self.awaited = {n for n in self.needed if self.needs_eager_attention or not self.list_sources(self.select(n))}
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
        outer, step = self.outer, replace(step, tap=pass_through, attend=kernels.attend)
        if outer:
            on_forward: Callable[..., Step] | None = getattr(outer, "on_forward", None)
            step = replace(step, tap=outer.tap, attend=choose_attend(outer, step))
            step = on_forward(stack, ids, step) if on_forward else step
        sides = [n for n in ("encoder", "decoder") if getattr(self.core, n, None) is stack]
        if not sides:
            return step
        if self.directory:
            trace_storage.spill_calls(self, self.directory)
        parents = step.cache.parents if isinstance(step.cache, Static) else None
        call = Call(stack, ids, step.cache.length, step.mode, collect_masks(stack, ids, step), len(step.memory),
                    step.positions, step.memory.shape[1], parents=None if parents is None else parents.tolist())
        run = next((r for r in self.runs if r.cache is step.cache), None)
        if run is None:
            run = Run(sides[0], step.cache)
            self.runs.append(run)
        if self.budget:
            trace_storage.check_budget(self, call, first=not run.calls)
        run.calls.append(call)
        return replace(step, tap=partial(self.record_tap, call, step.tap), attend=choose_attend(self, step))

    def record_tap(self, call: Call, outer: Callable[..., Tensor], module: nn.Module, name: str, x: Tensor) -> Tensor:
        """Apply the edits of this tap, note what is wanted, pass it on."""
        path = f"{module.path}.{name}" if module.path else name
        for edit in self.edits:
            if path in self.at[edit]:
                if edit.needs_eager_attention and edit.query is not None and call.sources != len(call.ids):
                    raise QkvError("edit of {name}: beams share a row of scores; leave query out, or use one",
                                   name=edit.name)
                x, met = apply_edit(x, edit, position_axis(x), call.first_slot(path, x))
                if met:
                    self.met.add(edit)
        for kept in self.keeps.get(path, ()):
            self.keep(call, kept, x.detach())
        x = outer(module, name, x)
        if self.stop and not self.awaited and self.met >= set(self.edits):
            raise Stop(self)
        return x

    def keep(self, call: Call, kept: Selector, x: Tensor) -> None:
        """Keep what a selector means of what its tap carried; nothing where the call has none of its positions."""
        assert isinstance(call.taps, dict)
        first, where = call.first_slot(kept.tap, x), None
        if kept.pos:
            where = [slot - first for slot in kept.list_slots(first, x.shape[position_axis(x)])]
        if where != []:
            call.taps[kept.name] = kept.slice_tap(x, where)
            self.awaited.discard(kept.name)

    @check_arguments
    def __getitem__(self, name: str) -> Tensor:
        return self.get(name)

    def get(self, name: str, *, run: int | None = None) -> Tensor:
        """One tensor for a tap, stitched along its positions over the calls of a run; `run` picks one of several.

        `logits` begin at the position given by `start(name)`: generation asks only for the last position of a prompt.
        A name with @heads or @pos gives those alone, where they or the whole tap were saved; `slots` says where they
        stand.
        """
        s = self.select(name)
        if s.name not in self.needed and s.tap not in self.needed:
            near = [n for n in sorted(self.needed) if n.startswith(f"{s.tap}@")]
            some = Message("; of it there is {near}", near=", ".join(near)) if near else ""
            raise QkvError("{name} was not saved{some}; add it: save=[{name!r}]", name=name, some=some)
        passed, slots = self.run(name, run), self.slots(name, run=run) if s.pos else []
        if s.pos:
            s.require_positions(slots, passed.ids.shape[1] - 1)
        if s.name in self.needed:
            return self.stitch(passed, s)
        first = self.start(s.tap, run=run)
        return s.slice_tap(self.stitch(passed, self.select(s.tap)), [x - first for x in slots] if s.pos else None)

    def run(self, name: str, index: int | None = None) -> Run:
        """The run that recorded a tap."""
        s = self.select(name)
        source = self.first_source(s)
        runs = [r for r in self.runs if any(source in c.taps for c in r.calls)]
        if not runs and s.pos and self.runs:
            s.require_positions((), max(r.ids.shape[1] for r in self.runs) - 1)
        if not runs:
            why = "" if not name.endswith(".score") else Message(
                "; scores exist only while an edit of a score opens the maths")
            raise QkvError("{name} was not recorded: nothing of this core ran through it inside the block{why}",
                           name=name, why=why)
        if index is None and len(runs) > 1:
            raise QkvError("{name} was recorded in {runs} runs; choose one: get({name!r}, run=0)", name=name,
                           runs=len(runs))
        if not 0 <= (index or 0) < len(runs):
            raise QkvError("run {index}: {name} was recorded in {runs} runs, expected 0 to {last}", index=index,
                           name=name, runs=len(runs), last=len(runs) - 1)
        return runs[index or 0]

    def first_source(self, s: Selector) -> str:
        """The first name under which calls keep what a selector is read from."""
        s = s if s.name in self.needed else self.select(s.tap)
        return (*self.list_sources(s), s.name)[0]

    def slots(self, name: str, *, run: int | None = None) -> list[int]:
        """The slot of each position that `t[name]` has."""
        s, found = self.select(name), list[int]()
        source = self.first_source(s)
        for call in (c for c in self.run(name, run).calls if source in c.taps):
            x = call.taps[source]
            count = x.shape[position_axis(x)]
            if self.select(source).pos:  # a call may make its last positions alone, as generation does of logits
                whole = (0, call.across) if of_memory(s.tap) else (call.start, call.ids.shape[1])
                found += s.list_slots(*whole)[-count:]
            else:
                found += s.list_slots(call.first_slot(s.tap, x), count)
            if of_memory(s.tap):
                break
        return found

    def start(self, name: str, *, run: int | None = None) -> int:
        """The slot of the first position that `t[name]` has."""
        return self.slots(name, run=run)[0]

    def stitch(self, run: Run, s: Selector) -> Tensor:
        """The value of a selector over a whole run."""
        if s.tap.endswith((".pattern", ".score")):
            calls = [c for c in run.calls if s.name in c.taps or self.first_source(s) in c.taps]
            parts = [c.taps[s.name] if s.name in c.taps else self.rebuild_pattern(run, c, s) for c in calls]
            whole = s.pos and ".cross." not in s.tap  # the keys of the run, whichever queries were kept
            longest = run.ids.shape[1] if whole else max(p.shape[-1] for p in parts)
            run.require_same_rows()
            return torch.cat([nn.functional.pad(p, (0, longest - p.shape[-1])) for p in parts], 2)  # B H T S
        if self.list_sources(s):
            where = [slot for c in run.calls for slot in s.list_slots(c.start, c.ids.shape[1])] if s.pos else None
            return s.slice_tap(self.expand_latent(run, s.tap), where)
        parts = [c.taps[s.name] for c in run.calls if s.name in c.taps]
        if of_memory(s.tap):
            return parts[0]  # the memory's, made once
        run.require_same_rows()
        return torch.cat(parts, position_axis(parts[0])) if len(parts) > 1 else parts[0]

    def rebuild_pattern(self, run: Run, call: Call, s: Selector) -> Tensor:
        """The pattern [B, H, T, S] of one call, from the q of that call and all keys up to it."""
        q_name, k_name, *_ = self.list_sources(s)
        at = self.attentions[s.tap.removesuffix(".pattern")]
        k = self.select(k_name if k_name in self.needed else k_name.partition("@")[0])
        # a latent's keys are recorded where they are expanded, never where they are absorbed
        keys = call.taps[k.name] if isinstance(at, Latent) and k.name in call.taps else self.stitch(run, k)
        keys = keys if ".cross." in k.tap else keys[:, :, :call.end]
        rows = [slot - call.start for slot in s.list_slots(call.start, call.ids.shape[1])]
        q = call.taps[q_name] if q_name in call.taps else s.slice_tap(call.taps[f"{at.path}.q"], rows)
        if s.heads is not None:
            groups = self.count_heads(k.tap)
            there, share = k.heads or range(groups), at.spec.heads // groups
            shared = torch.tensor([there.index(head // share) for head in s.heads], device=keys.device)
            keys = keys.index_select(1, shared)
        bias = open_bias(call.mask[at.spec.mask], rows, keys.shape[2], s.heads)
        return compute_pattern(q, keys, bias, at.scale, at.spec.cap)

    @torch.no_grad()
    def expand_latent(self, run: Run, name: str) -> Tensor:
        """Keys or values [B, H, S, K] of a run, from its latents: decoding keeps those and never expands them."""
        if len(run.calls) == 1 and name in run.calls[0].taps:
            return run.calls[0].taps[name]
        path, _, part = name.rpartition(".")
        at = self.attentions[path]
        assert isinstance(at, Latent)
        both = at.expand(*(self.stitch(run, self.select(f"{path}.{n}")) for n in ("latent", "k_rope")))
        return both[part == "v"]

    @check_arguments
    def row(self, path: str, head: int, query: int, *, row: int = 0) -> Tensor:
        """The weights [S] of one query of one head of an attention, rebuilt alone: cheap at any length."""
        resolve.find_attention(self, path)
        resolve.require_row(self, row)
        slot = resolve.find_position(self, query, path=path)
        one = self.select(f"{path}.pattern@heads={head}@pos={slot}")
        run = self.run(one.tap)
        return self.rebuild_pattern(run, next(c for c in run.calls if c.end > slot), one)[row, 0, 0]

    @check_arguments
    def tokens(self, stack: str | None = None) -> list[list[str]]:
        """What went through a stack, as pieces of text; ids as digits where there is no tokenizer."""
        run = next((r for r in self.runs if stack in (None, r.stack)), None)
        if run is None:
            raise QkvError("nothing ran through the {stack} inside the block", stack=stack or Message("core"))
        rows: list[list[int]] = run.ids.tolist()
        if self.tokenizer is None:
            return [[str(i) for i in row] for row in rows]
        return [self.tokenizer.pieces(row, side="source" if run.stack == "encoder" else "target") for row in rows]


def choose_attend(tracer: Tracer, step: Step) -> Callable[..., Tensor]:
    """The attention of a step: in the open where a tracer changes scores or patterns."""
    return attention.attend if tracer.needs_eager_attention else step.attend
