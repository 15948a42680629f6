"""A state of the first text put into the second: what it says then, and how likely each text's own word becomes.

The measure is that of lens/activation_patching.py. Read question.py first.
"""

from dataclasses import replace
from typing import Any

from qkv.explore.body import Answer, Query, read_ids
from qkv.explore.question import Pass, Refused, Run, make_case, mask_token, read_text
from qkv.lens import activation_patching, edit
from qkv.model import Model


def patch(run: Run, query: Query) -> Answer:
    """What the second text says with the state that the first had after `layer` (0: the embedding) at `source`.

    `words` are the first word in which the two answers differ, as each text has it: its chance in the second text
    before and after, and in the first one.
    """
    first, second, model = run.first, run.second, run.model
    there = list_movable(run)
    if second is None or not there:
        raise Refused("two texts are needed, and a model that writes words, or [MASK] in both")
    side = query.get_choice("part", *there)
    depth, ids = there[side]
    layer = query.get_integer("layer", 0, high=depth)
    pairs = zip(("source", "pos"), ids, strict=True)
    source, pos = (query.get_integer(key, 0, high=len(one) - 1) for key, one in pairs)
    dot = f"{side}." if model.encoder_decoder else ""
    name = f"{dot}layers.{layer - 1}.resid_out" if layer else f"{dot}embed"
    moved = read_text(model, second.text, run.question, [edit.swap(name, run.t[name], pos=pos, source=source)])
    words = [measure_patch(run, token, (name, source, pos)) for token in find_difference(model, first, second)]
    return Answer({"name": name, "output": moved.output, "before": second.output, "donor": first.output,
                   "words": words, "line": words[0]["line"] if words else None})


def list_movable(run: Run) -> dict[str, tuple[int, list[list[int]]]]:
    """The sides whose states can be moved, none where no word is guessed: their layers, and each text's ids."""
    spec = run.model.spec
    texts = [one for one in (run.first, run.second) if one]
    blank = spec.decoder is None and not all(mask_token(run.model) in one.ids for one in texts)
    if spec.head is None or blank:
        return {}
    return {side: (len(stack.blocks), [read_ids(one.t, f"{side}.") for one in texts])
            for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)) if stack}


def find_difference(model: Model, first: Pass, second: Pass) -> list[tuple[int, int]]:
    """The first place where two answers differ, and the word that each has there: (place, id), at most two.

    An encoder answers at its first [MASK], which may stand elsewhere in each text: the place is 0.
    """
    if model.spec.decoder is None:
        best = [int(one.t["logits"][0, one.ids.index(mask_token(model))].argmax()) for one in (first, second)]
        return [(0, token) for token in dict.fromkeys(best)]
    pairs = enumerate(zip(first.written, second.written, strict=False))
    return next(([(i, a), (i, b)] for i, (a, b) in pairs if a != b), [(0, token) for token in first.written[:1]])


def measure_patch(run: Run, token: tuple[int, int], at: tuple[str, int, int]) -> dict[str, Any]:
    """A word's chance in the second text before and after the graft, and in the first."""
    place, wanted = token
    name, source, pos = at
    assert run.second is not None
    cases = [make_case(run.model, one, (*one.written[:place], wanted)) for one in (run.first, run.second)]
    cases = [replace(case, at=len(case.target) - 1) for case in cases]
    found = activation_patching.patch_activation(run.model.core, *cases, name=name, source=source, pos=pos)
    both = ", ".join(f"qkv.lens.edge_ablation.Case({c.source!r}, {c.target!r}, {c.at}, {c.free})" for c in cases)
    call = "qkv.lens.activation_patching.patch_activation"
    line = f"{call}(model.core, {both}, name={name!r}, source={source}, pos={pos})"
    assert run.model.tokenizer is not None
    logs = {key: getattr(found, key) for key in ("before", "after", "donor")}
    return {"text": run.model.tokenizer.pieces([wanted])[0], "id": wanted, **logs, "line": line}
