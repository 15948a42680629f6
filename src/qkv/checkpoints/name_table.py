"""Rows of names <-> tensors, two-way. A row names modules; weight and bias follow; the way out is the way in reversed.

    layers.*.attn.{q,k,v}    transformer.h.*.attn.c_attn    flip split

Ours left, theirs right. `*` is a layer, `{a,b}` a list in step with the other side's, `[x.]` an optional prefix, `|` an
alternative spelling (the first is written). A row that ends in .weight or .bias names tensors. Ops: `flip` transposes,
`split` cuts one tensor into ours, `row` strips a leading 1, `stack` lays theirs, one for each expert `#`, on a pile.
`weave`, before `split`, sorts rows that stand by head and then by q, k, v.
`with:x` and `without:x` say that the row is for cores that have, or lack, a module x.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv.errors import QkvError, nearest
from qkv.messages import Message, join


class Slot(NamedTuple):
    """One tensor of theirs (under any of its spellings) and the one or several of ours that it fills."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    ops: tuple[str, ...]


def named_tensors(core: nn.Module) -> dict[str, Tensor]:
    """What is stored, by tap path: without the prefix of a single stack; a tied head stands beside its embedding."""
    named = {**dict(core.named_parameters(remove_duplicate=False)), **dict(core.named_buffers())}
    if hasattr(core, "encoder") and hasattr(core, "decoder"):
        return dict(named)
    return {re.sub(r"^(en|de)coder\.", "", name): p for name, p in named.items()}


def expand_braces(pattern: str) -> list[str]:
    """`a.{b,c}` -> a.b, a.c."""
    match = re.search(r"\{([^}]*)\}", pattern)
    if not match:
        return [pattern]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [p for word in match[1].split(",") for p in expand_braces(before + word + after)]


def expand_spellings(pattern: str) -> list[str]:
    """`[x.]a|b` -> x.a, a, b."""
    found: list[str] = []
    for choice in pattern.split("|"):
        match = re.search(r"\[([^]]*)\]", choice)
        found += [choice[: match.start()] + match[1] + choice[match.end() :],
                  choice[: match.start()] + choice[match.end() :]] if match else [choice]
    return found


def expand_rows(names: str, ours: Mapping[str, Tensor]) -> list[Slot]:
    """The rows of a table spelled out for the parameters that a core has."""
    found: list[Slot] = []
    for line in filter(None, map(str.strip, names.splitlines())):
        left, right, *ops = line.split()
        if not row_applies(ops, ours):
            continue
        mine, theirs = expand_braces(left), [expand_spellings(t) for t in expand_braces(right)]
        if "split" in ops:
            found += match_modules([mine], theirs, ops, ours)
        else:
            found += match_modules([[m] for m in mine], theirs, ops, ours)
    return found


def row_applies(ops: list[str], ours: Mapping[str, Tensor]) -> bool:
    """Whether a row is for a core with these parameters."""
    asked = [op.split(":") for op in ops if ":" in op]
    return all((word == "with") == any(n.startswith(f"{module}.") for n in ours) for word, module in asked)


def match_modules(
    mine: list[list[str]], theirs: list[list[str]], ops: list[str], ours: Mapping[str, Tensor]
) -> list[Slot]:
    """Each group of our modules with its module of theirs, for every layer and for weight and bias where they exist."""
    found: list[Slot] = []
    for group, spelled in zip(mine, theirs, strict=True):
        for suffix in ("",) if group[0] in ours or group[0].endswith((".weight", ".bias")) else (".weight", ".bias"):
            pattern = re.compile(re.escape(group[0] + suffix).replace(r"\*", r"(\d+)"))
            for name in ours:
                match = pattern.fullmatch(name)
                if match:
                    numbers = list(match.groups())
                    found.append(
                        Slot(
                            tuple(insert_layers(g + suffix, numbers) for g in group),
                            tuple(insert_layers(t + suffix, numbers) for t in spelled),
                            tuple(ops),
                        )
                    )
    return found


def insert_layers(pattern: str, layers: list[str]) -> str:
    """The stars of a pattern replaced by layer numbers."""
    for layer in layers:
        pattern = pattern.replace("*", layer, 1)
    return pattern


def expert_names(name: str, ours: Tensor) -> list[str]:
    """The names behind one of theirs: itself, or one for each expert of ours where it holds a `#`."""
    return [name.replace("#", str(i)) for i in range(len(ours))] if "#" in name else [name]


def woven_heads(core: Any, slot: Slot) -> int:
    """How many heads a `weave` runs through."""
    return core.spec.stack.blocks[0].attn.heads if "weave" in slot.ops else 1


def convert_in(theirs: Tensor, slot: Slot, sizes: list[int], heads: int = 1) -> list[Tensor]:
    """Their tensor as ours: the ops in order."""
    if "row" in slot.ops:
        theirs = theirs.reshape(theirs.shape[-1])
    if "flip" in slot.ops and theirs.ndim == 2:
        theirs = theirs.T
    if "split" in slot.ops:
        if sum(sizes) != theirs.shape[0]:
            raise QkvError("{theirs}: found {shape} rows, expected {sizes} ({map})", theirs=slot.theirs[0],
                           shape=theirs.shape[0], sizes=sum(sizes), map=" + ".join(map(str, sizes)))
        if "weave" in slot.ops:
            theirs = theirs.unflatten(0, (heads, len(sizes), -1)).transpose(0, 1).flatten(0, 2)
        return list(theirs.split(sizes))
    return [theirs]


def convert_out(ours: list[Tensor], slot: Slot, heads: int = 1) -> Tensor:
    """Our tensors as theirs: the ops reversed."""
    theirs = torch.cat(ours) if "split" in slot.ops else ours[0]
    if "weave" in slot.ops:
        theirs = theirs.unflatten(0, (len(ours), heads, -1)).transpose(0, 1).flatten(0, 2)
    if "flip" in slot.ops and theirs.ndim == 2:
        theirs = theirs.T
    if "row" in slot.ops:
        theirs = theirs[None]
    return theirs.contiguous()


def load_tensors(core: nn.Module, names: str, tensors: Mapping[str, Callable[[], Tensor]], ignore: list[str]) -> None:
    """Fill every parameter of `core` and read every tensor of theirs, or raise listing both sides.

    Raises:
        QkvError: tensors missing, unread, of another shape, or a tied pair that differs.
    """
    ours, filled, named, read = named_tensors(core), set[int](), set[int](), set[str]()
    empty: list[Slot] = []
    lacking: list[str] = []
    with torch.no_grad():
        for slot in expand_rows(names, ours):
            named |= {id(ours[o]) for o in slot.ours}
            spelled = next((t for t in slot.theirs if t.replace("#", "0") in tensors), None)
            if spelled is None:
                empty.append(slot)
                continue
            every = expert_names(spelled, ours[slot.ours[0]])
            read.update(every)
            lacking += [t for t in every if t not in tensors]
            if lacking:
                continue
            for i, one in enumerate(every):
                sizes = [ours[o].shape[0] for o in slot.ours]
                parts = convert_in(tensors[one](), slot, sizes, woven_heads(core, slot))
                for name, part in zip(slot.ours, parts, strict=True):
                    target = ours[name][i] if "stack" in slot.ops else ours[name]
                    copy_tensor(name, target, part, one, again=id(ours[name]) in filled)
            filled |= {id(ours[o]) for o in slot.ours}
    missing = [slot.theirs[0] for slot in empty if not all(id(ours[o]) in filled for o in slot.ours)]
    missing += lacking + [f"{n} (no row names it)" for n, p in ours.items() if id(p) not in named]
    skip = [re.compile(p) for p in ignore]
    unread = [t for t in tensors if t not in read and not any(p.fullmatch(t) for p in skip)]
    if missing or unread:
        raise QkvError(describe_mismatch(missing, unread))


def copy_tensor(name: str, ours: Tensor, part: Tensor, spelled: str, *, again: bool) -> None:
    """Copy one tensor into its parameter; where a tied twin was filled before, the two must agree."""
    if part.shape != ours.shape:
        raise QkvError("{spelled}: found the shape {shape}, expected {shape2} for {name}", spelled=spelled,
                       shape=list(part.shape), shape2=list(ours.shape), name=name)
    if again:
        if not part.is_meta and not torch.equal(ours, part.to(ours)):
            raise QkvError("{spelled}: the config ties it to the embedding, but the two tensors differ",
                           spelled=spelled)
        return
    ours.copy_(part)


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
    ours, written, theirs = named_tensors(core), set[int](), dict[str, Tensor]()
    for slot in expand_rows(names, ours):
        parts = [ours[o] for o in slot.ours]
        if all(id(p) in written for p in parts):
            continue
        written |= {id(p) for p in parts}
        tensor = convert_out([p.detach() for p in parts], slot, woven_heads(core, slot))
        every = expert_names(slot.theirs[0], tensor)
        theirs |= zip(every, tensor.unbind() if "stack" in slot.ops else [tensor], strict=True)
    left = [n for n, p in ours.items() if id(p) not in written]
    if left:
        raise QkvError("the family has no names for these parameters: {left}; save it without family=",
                       left=", ".join(left))
    return theirs
