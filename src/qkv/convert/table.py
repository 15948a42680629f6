"""Rows of names <-> tensors, two-way. A row names modules; weight and bias follow; the way out is the way in reversed.

    layers.*.attn.{q,k,v}    transformer.h.*.attn.c_attn    flip split

Ours left, theirs right. `*` is a layer, `{a,b}` a list in step with the other side's, `[x.]` an optional prefix, `|` an
alternative spelling (the first is written). A row that ends in .weight or .bias names tensors. Ops: `flip` transposes,
`split` cuts one tensor into ours, `row` strips a leading 1.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qkv.errors import QkvError, nearest


class Slot(NamedTuple):
    """One tensor of theirs (under any of its spellings) and the one or several of ours that it fills."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    ops: tuple[str, ...]


def parameters(core: nn.Module) -> dict[str, Tensor]:
    """Our parameters by tap path: without the prefix of a single stack; a tied head stands beside its embedding."""
    named = dict(core.named_parameters(remove_duplicate=False))
    if hasattr(core, "encoder") and hasattr(core, "decoder"):
        return dict(named)
    return {re.sub(r"^(en|de)coder\.", "", name): p for name, p in named.items()}


def braces(pattern: str) -> list[str]:
    """`a.{b,c}` -> a.b, a.c."""
    match = re.search(r"\{([^}]*)\}", pattern)
    if not match:
        return [pattern]
    return [p for word in match[1].split(",") for p in braces(pattern[: match.start()] + word + pattern[match.end() :])]


def spellings(pattern: str) -> list[str]:
    """`[x.]a|b` -> x.a, a, b."""
    found: list[str] = []
    for choice in pattern.split("|"):
        match = re.search(r"\[([^]]*)\]", choice)
        found += [choice[: match.start()] + match[1] + choice[match.end() :],
                  choice[: match.start()] + choice[match.end() :]] if match else [choice]  # fmt: skip
    return found


def slots(names: str, ours: Mapping[str, Tensor]) -> list[Slot]:
    """The rows of a table spelled out for the parameters that a core has."""
    found: list[Slot] = []
    for line in filter(None, map(str.strip, names.splitlines())):
        left, right, *ops = line.split()
        mine, theirs = braces(left), [spellings(t) for t in braces(right)]
        if "split" in ops:
            found += fill([mine], theirs, ops, ours)
        else:
            found += fill([[m] for m in mine], theirs, ops, ours)
    return found


def fill(mine: list[list[str]], theirs: list[list[str]], ops: list[str], ours: Mapping[str, Tensor]) -> list[Slot]:
    """Each group of our modules with its module of theirs, for every layer and for weight and bias where they exist."""
    found: list[Slot] = []
    for group, spelled in zip(mine, theirs, strict=True):
        for suffix in ("",) if group[0].endswith((".weight", ".bias")) else (".weight", ".bias"):
            pattern = re.compile(re.escape(group[0] + suffix).replace(r"\*", r"(\d+)"))
            for name in ours:
                match = pattern.fullmatch(name)
                if match:
                    numbers = list(match.groups())
                    found.append(
                        Slot(
                            tuple(number(g + suffix, numbers) for g in group),
                            tuple(number(t + suffix, numbers) for t in spelled),
                            tuple(ops),
                        )
                    )
    return found


def number(pattern: str, layers: list[str]) -> str:
    """The stars of a pattern replaced by layer numbers."""
    for layer in layers:
        pattern = pattern.replace("*", layer, 1)
    return pattern


def inward(theirs: Tensor, slot: Slot, sizes: list[int]) -> list[Tensor]:
    """Their tensor as ours: the ops in order."""
    if "row" in slot.ops:
        theirs = theirs.reshape(theirs.shape[-1])
    if "flip" in slot.ops and theirs.ndim == 2:
        theirs = theirs.T
    if "split" in slot.ops:
        if sum(sizes) != theirs.shape[0]:
            raise QkvError(
                f"{slot.theirs[0]}: found {theirs.shape[0]} rows, expected {sum(sizes)} ({' + '.join(map(str, sizes))})"
            )
        return list(theirs.split(sizes))
    return [theirs]


def outward(ours: list[Tensor], slot: Slot) -> Tensor:
    """Our tensors as theirs: the ops reversed."""
    theirs = torch.cat(ours) if "split" in slot.ops else ours[0]
    if "flip" in slot.ops and theirs.ndim == 2:
        theirs = theirs.T
    if "row" in slot.ops:
        theirs = theirs[None]
    return theirs.contiguous()


def load(core: nn.Module, names: str, tensors: Mapping[str, Callable[[], Tensor]], ignore: list[str]) -> None:
    """Fill every parameter of `core` and read every tensor of theirs, or raise listing both sides.

    Raises:
        QkvError: tensors missing, unread, of another shape, or a tied pair that differs.
    """
    ours, filled, named, read = parameters(core), set[int](), set[int](), set[str]()
    empty: list[Slot] = []
    with torch.no_grad():
        for slot in slots(names, ours):
            named |= {id(ours[o]) for o in slot.ours}
            spelled = next((t for t in slot.theirs if t in tensors), None)
            if spelled is None:
                empty.append(slot)
                continue
            read.add(spelled)
            parts = inward(tensors[spelled](), slot, [ours[o].shape[0] for o in slot.ours])
            for name, part in zip(slot.ours, parts, strict=True):
                place(name, ours, part, spelled, again=id(ours[name]) in filled)
                filled.add(id(ours[name]))
    missing = [slot.theirs[0] for slot in empty if not all(id(ours[o]) in filled for o in slot.ours)]
    missing += [f"{n} (no row names it)" for n, p in ours.items() if id(p) not in named]
    skip = [re.compile(p) for p in ignore]
    unread = [t for t in tensors if t not in read and not any(p.fullmatch(t) for p in skip)]
    if missing or unread:
        raise QkvError(both_sides(missing, unread))


def place(name: str, ours: Mapping[str, Tensor], part: Tensor, spelled: str, *, again: bool) -> None:
    """Copy one tensor into its parameter; where a tied twin was filled before, the two must agree."""
    if part.shape != ours[name].shape:
        raise QkvError(f"{spelled}: found the shape {list(part.shape)}, expected {list(ours[name].shape)} for {name}")
    if again:
        if not torch.equal(ours[name], part.to(ours[name])):
            raise QkvError(f"{spelled}: the config ties it to the embedding, but the two tensors differ")
        return
    ours[name].copy_(part)


def both_sides(missing: list[str], unread: list[str], most: int = 8) -> str:
    """The two lists of a load that does not fit, shortened, with the nearest name where one was likely meant."""

    def listed(names: list[str], others: list[str]) -> str:
        shown = [f"{n}{nearest(n, others)}" for n in names[:most]]
        return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")

    return (
        f"the checkpoint does not fit the config. Missing ({len(missing)}): {listed(missing, unread) or 'none'}. "
        f"Never read ({len(unread)}): {listed(unread, missing) or 'none'}"
    )


def save(core: nn.Module, names: str) -> dict[str, Tensor]:
    """All parameters of `core` under their names; a tied matrix once."""
    ours, written, theirs = parameters(core), set[int](), dict[str, Tensor]()
    for slot in slots(names, ours):
        parts = [ours[o] for o in slot.ours]
        if all(id(p) in written for p in parts):
            continue
        written |= {id(p) for p in parts}
        theirs[slot.theirs[0]] = outward([p.detach() for p in parts], slot)
    left = [n for n, p in ours.items() if id(p) not in written]
    if left:
        raise QkvError(f"the family has no names for these parameters: {', '.join(left)}; save it without family=")
    return theirs
