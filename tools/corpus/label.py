"""What a sentence of the corpus says, in a word: the labels that the bundled encoder learns."""

# What the constructions (grammar.py) have in common; see `label_of` for the others.
GROUPS = {
    "command": ("command",),
    "linked": ("because", "but", "chained", "joined", "left"),
    "description": ("describe", "compare", "feel", "manner", "job", "age", "capital", "belong", "relative"),
    "place": ("exist", "locate"),
    "present": ("modal", "skill", "activity", "social", "habit", "often", "progressive", "state"),
    "past": ("give", "past"),
    "future": ("future",),
}
KINDS = {kind: name for name, kinds in GROUPS.items() for kind in kinds}


def label_of(zh: str, en: str, kind: str) -> str:
    """A question, a negation, one with 它, two linked clauses, …, or when it happens.

    A question is asked in any construction; elsewhere 不 and 没 negate a single clause.
    """
    group = KINDS.get(kind)
    if zh.endswith("？"):
        return "question"
    if kind.startswith("it"):
        return "it"
    if group in ("linked", "command"):
        return group
    if "不" in zh or "没" in zh:
        return "negation"
    if group:
        return group
    return "future" if " will " in en else "past" if "了" in zh or "过" in zh else "present"
