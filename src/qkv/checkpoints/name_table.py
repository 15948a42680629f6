"""Rows of names <-> tensors, two-way. A row names modules; weight and bias follow; the way out is the way in reversed.

    layers.*.attn.{q,k,v}    transformer.h.*.attn.c_attn    flip split

Ours left, theirs right. `*` is a layer, `{a,b}` a list in step with the other side's, `[x.]` an optional prefix, `|` an
alternative spelling (the first is written). A row that ends in .weight or .bias names tensors. Ops: `flip` transposes,
`split` cuts one tensor into ours, `row` strips a leading 1, `stack` lays theirs, one for each expert `#`, on a pile.
`weave`, before `split`, sorts rows that stand by key/value head and then by q, k, v; `pairs` rows that turn two by two
in halves. `shift`: theirs are ours plus 1. `with:x` and `without:x` say that the row is for cores that have, or lack, a
module x.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv.errors import QkvError, nearest
from qkv.messages import Message, join

HUGE, SUMMED = 1e30, 1 << 22  # no weight is so large: its products are infinite in fp32; numbers of a tensor
OPTIONAL = re.compile(r"\[([^]]*)\]")
ENDS = (".weight", ".bias", ".weight_scale")  # of the tensors of a module; the last where the first has few bits


class Slot(NamedTuple):
    """One tensor of theirs (under any of its spellings) and the one or several of ours that it fills, by name."""

    ours: dict[str, Tensor]
    theirs: tuple[str, ...]
    ops: tuple[str, ...]
    heads: int = 1  # how many a `weave` or `pairs` runs through


def named_tensors(core: nn.Module) -> dict[str, Tensor]:
    """What is stored, by tap path: without the prefix of a single stack; a tied head stands beside its embedding."""
    named = {**dict(core.named_parameters(remove_duplicate=False)), **dict(core.named_buffers())}
    if hasattr(core, "encoder") and hasattr(core, "decoder"):
        return named
    return {re.sub(r"^(en|de)coder\.", "", name): p for name, p in named.items()}


def expand_pattern(pattern: str) -> list[tuple[str, ...]]:
    """The names that a pattern means, each with its spellings: `[x.]{a,b}|c` -> (x.a, a, c), (x.b, b, c)."""
    parts = re.split(r"\{([^}]*)\}", pattern)
    names = product(*(part.split(",") if i % 2 else [part] for i, part in enumerate(parts)))
    spelled = ("".join(name).split("|") for name in names)
    return [tuple(dict.fromkeys(OPTIONAL.sub(x, s) for s in each for x in (r"\1", ""))) for each in spelled]


def read_table(names: str, ours: Mapping[str, Tensor]) -> Iterator[tuple[list[str], tuple[str, ...], tuple[str, ...]]]:
    """The rows for a core with these parameters: modules of ours, the spellings of the one of theirs, and the ops."""
    for line in filter(None, map(str.strip, names.splitlines())):
        left, right, *ops = line.split()
        asked = [op.split(":") for op in ops if ":" in op]
        if all((word == "with") == any(n.startswith(f"{module}.") for n in ours) for word, module in asked):
            mine = [name for name, *_ in expand_pattern(left)]
            groups = [mine] if "split" in ops else [[name] for name in mine]
            yield from ((g, t, tuple(ops)) for g, t in zip(groups, expand_pattern(right), strict=True))


def expand_rows(names: str, core: nn.Module | Mapping[str, Tensor]) -> list[Slot]:
    """The rows of a table spelled out for every layer of a core (or tensors), for weight and bias where they exist."""
    found, spec = list[Slot](), getattr(core, "spec", None)
    ours = core if isinstance(core, Mapping) else named_tensors(core)
    for group, spellings, ops in read_table(names, ours):
        attn: Any = spec.stack.blocks[0].attn if spec and {"weave", "pairs"} & set(ops) else None
        for suffix in ("",) if group[0] in ours or group[0].endswith(ENDS[:2]) else ENDS:
            pattern = re.compile(re.escape(group[0] + suffix).replace(r"\*", r"(\d+)"))
            for layers in (match.groups() for match in map(pattern.fullmatch, ours) if match):
                mine, theirs = ([(name + suffix).replace("*", "{}").format(*layers) for name in side]
                                for side in (group, spellings))
                heads = 1 if attn is None else min(ours[name].shape[0] for name in mine) // attn.head_dim
                found.append(Slot({name: ours[name] for name in mine}, tuple(theirs), ops, heads))
    return found


def expert_names(name: str, ours: Tensor) -> list[str]:
    """The names behind one of theirs: itself, or one for each expert of ours where it holds a `#`."""
    return [name.replace("#", str(i)) for i in range(len(ours))] if "#" in name else [name]


def convert_in(theirs: Tensor, slot: Slot) -> list[Tensor]:
    """Their tensor as ours: the ops in order."""
    if "row" in slot.ops:
        if theirs.ndim != 2 or len(theirs) != 1:
            raise QkvError("{theirs}: found the shape {shape}, expected one row", theirs=slot.theirs[0],
                           shape=list(theirs.shape))
        theirs = theirs[0]
    if "flip" in slot.ops and theirs.ndim == 2:
        theirs = theirs.T
    if "shift" in slot.ops:
        theirs = theirs.float() - 1
    if "pairs" in slot.ops and theirs.shape[:1] == next(iter(slot.ours.values())).shape[:1]:
        theirs = theirs.unflatten(0, (slot.heads, -1, 2)).transpose(1, 2).flatten(0, 2)
    if "split" not in slot.ops:
        return [theirs]
    sizes = [own.shape[0] for own in slot.ours.values()]
    if [sum(sizes)] != list(theirs.shape[:1]):
        raise QkvError("{theirs}: found {shape} rows, expected {sizes} ({map})", theirs=slot.theirs[0],
                       shape=theirs.shape[0] if theirs.ndim else 0, sizes=sum(sizes), map=" + ".join(map(str, sizes)))
    if "weave" in slot.ops:
        parts = theirs.unflatten(0, (slot.heads, -1)).split([size // slot.heads for size in sizes], 1)
        return [part.flatten(0, 1) for part in parts]
    return list(theirs.split(sizes))


def convert_out(ours: list[Tensor], slot: Slot) -> Tensor:
    """Our tensors as theirs: the ops reversed."""
    theirs = torch.cat(ours) if "split" in slot.ops else ours[0]
    if "weave" in slot.ops:
        theirs = torch.cat([own.unflatten(0, (slot.heads, -1)) for own in ours], 1).flatten(0, 1)
    if "pairs" in slot.ops:
        theirs = theirs.unflatten(0, (slot.heads, 2, -1)).transpose(1, 2).flatten(0, 2)
    if "flip" in slot.ops and theirs.ndim > 1:
        if not theirs.is_floating_point():
            raise QkvError("{name}: this family stores its matrices the other way round, which no layout of few bits "
                           "allows; save it in bf16, or as a model of type qkv", name=slot.theirs[0])
        theirs = theirs.T
    if "shift" in slot.ops:
        theirs = theirs.float() + 1
    if "row" in slot.ops:
        theirs = theirs[None]
    return theirs.contiguous()


def load_tensors(core: nn.Module, names: str, tensors: Mapping[str, Callable[[], Tensor]], ignore: list[str]) -> None:
    """Fill every parameter of `core` and read every tensor of theirs, or raise listing both sides.

    Raises:
        QkvError: tensors missing, unread, of another shape, or a tied pair that differs.
    """
    slots, filled, read = expand_rows(names, core), set[int](), set[str]()
    empty, lacking = list[Slot](), list[str]()
    with torch.no_grad():
        for slot in slots:
            spelling = next((t for t in slot.theirs if t.replace("#", "0") in tensors), None)
            if spelling is None:
                empty.append(slot)
                continue
            spelled = expert_names(spelling, next(iter(slot.ours.values())))
            read.update(spelled)
            lacking += [t for t in spelled if t not in tensors]
            if lacking:
                continue
            for i, one in enumerate(spelled):
                for (name, own), part in zip(slot.ours.items(), convert_in(tensors[one](), slot), strict=True):
                    copy_tensor(name, own[i] if "stack" in slot.ops else own, part, one, again=id(own) in filled)
            filled |= {id(own) for own in slot.ours.values()}
    missing = [s.theirs[0] for s in empty if not {id(own) for own in s.ours.values()} <= filled]
    known = {id(own) for slot in slots for own in slot.ours.values()}
    missing += lacking + [f"{n} (no row names it)" for n, p in named_tensors(core).items() if id(p) not in known]
    skip = [re.compile(p) for p in ignore]
    unread = [t for t in tensors if t not in read and not any(p.fullmatch(t) for p in skip)]
    if missing or unread:
        raise QkvError(describe_mismatch(missing, unread))


def copy_tensor(name: str, ours: Tensor, part: Tensor, spelled: str, *, again: bool) -> None:
    """Copy one tensor into its parameter; where a tied twin was filled before, the two must agree."""
    if part.shape != ours.shape:
        raise QkvError("{spelled}: found the shape {shape}, expected {shape2} for {name}", spelled=spelled,
                       shape=list(part.shape), shape2=list(ours.shape), name=name)
    if ours.is_floating_point() and not (part.is_floating_point() and part.dtype.itemsize > 1):
        raise QkvError("{spelled}: found numbers of type {kind}, expected floating-point ones for {name}; if they are "
                       "quantised, write them out as floats first", spelled=spelled,
                       kind=str(part.dtype).removeprefix("torch."), name=name)
    if not again:
        ours.copy_(part)
        # a sum is one pass and shows each fault; of large tensors it would slow the load, and their logits tell
        if ours.numel() <= SUMMED and not (part.is_meta or abs(float(ours.sum(dtype=torch.float32))) < HUGE):
            raise QkvError("{spelled}: {count} of its numbers are NaN, infinite or beyond {most:.0e}; `check` scans "
                           "all weights", code="not finite", spelled=spelled, most=HUGE,
                           count=int((~(ours.abs() < HUGE)).sum()))
    elif not part.is_meta and not torch.equal(ours, part.to(ours)):
        raise QkvError("{spelled}: the config ties it to the embedding, but the two tensors differ", spelled=spelled)


def describe_mismatch(missing: list[str], unread: list[str], most: int = 8) -> Message:
    """The two lists of a load that does not fit, shortened, with the nearest name where one was likely meant."""

    def join_names(names: list[str], others: list[str]) -> Message:
        shown, more = [(n, nearest(n, others)) for n in names[:most]], len(names) - most
        rest = Message(" and {more} more", more=more) if more > 0 else Message("")
        return Message("{shown}{rest}", shown=join(", ", (f'{n}{hint}' for n, hint in shown)) or Message("none"),
                       rest=rest)

    lacks, besides = join_names(missing, unread), join_names(unread, missing)
    return Message("the checkpoint does not fit the config. Missing ({missing}): {lacks}. Never read ({unread}): "
                   "{besides}", missing=len(missing), lacks=lacks, unread=len(unread), besides=besides)


def export_tensors(core: nn.Module, names: str) -> dict[str, Tensor]:
    """All parameters of `core` under their names; a tied matrix once."""
    written, theirs = set[int](), dict[str, Tensor]()
    for slot in expand_rows(names, core):
        parts = list(slot.ours.values())
        if {id(p) for p in parts} <= written:
            continue
        written |= {id(p) for p in parts}
        tensor = convert_out([p.detach() for p in parts], slot)
        every = expert_names(slot.theirs[0], tensor)
        theirs |= zip(every, tensor.unbind() if "stack" in slot.ops else [tensor], strict=True)
    left = [n for n, p in named_tensors(core).items() if id(p) not in written]
    if left:
        raise QkvError("the family has no names for these parameters: {left}; save it without family=",
                       left=", ".join(left))
    return theirs
