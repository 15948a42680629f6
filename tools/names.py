"""Function names against the house rule "functions are verbs": `python tools/names.py [FOLDER ...]`. Stdlib only.

It lists functions that are named by a bare participle, adjective, adverb or preposition, and names that occur in more
than three modules without being a protocol (PROTOCOLS). tests/test_names.py holds both to their budget.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "qkv"
BARE_BUDGET = 60
MODULES_BUDGET = 3
PARTICIPLE_WORDS = """
    begun begun bound broken brought built bought chosen cut drawn driven drunk fallen fed felt fetched forgotten found
    given gone grown heard held hidden kept known laid leant learnt led left lent let lost made meant meeting met mixed
    paid put read rebuilt respelt run said seen sent set shown shut spelt spoken spent spilt split spoilt spread spun
    stood struck sunk taken taught thought thrown told torn understood unsaid untaught woven worn written unwritten
    unheard unseen unread
"""
ALSO_VERBS = {"cut", "let", "put", "read", "run", "set", "shut", "split", "spread"}
PARTICIPLES = set(PARTICIPLE_WORDS.split()) - ALSO_VERBS
OTHER_WORDS = """
    able about above absent again ahead aged alike alone along aloud already also anew apart as at awake aware away
    back backward bad bare because before behind below beneath beside best better between beyond big both broad busiest
    busy but by clean clear close common dear dearest dense different due each earlier early elsewhere empty enough
    ever every exact faithful familiar far fast few fewer final fine finite first flat foreign free fresh from full
    good great half hard here high higher highest how idle in inner inside into just large last lasting late later
    latest less like likeliest lone long longer longest loose loud low lower lowest main mean mine missing more most
    much narrow near nearby nearest nearly neat never new newest next nice nigh nor not now odd of off often old on
    once one only onto open opposite other out outer outward over own parallel past plain possible primary proper
    public quick quiet raw ready real regular rest rich right rough round safe same several sharp sharper short
    shorter shortest silent similar simple since single slow slower small smaller smallest so some soon sooner
    soonest sound spare sparse special square stable static steep steepest still strange strict strong stronger
    strongest such sure sweet tall tasty there thereby thick thin thinkable through tight to together too top toward
    towards true twice under unequal unknown unlike unordered until up upon upper upward usual vacant vague very
    warm weak well what when where whether which while whole why wide wider with within without worse worst worth
    wrong young
"""
OTHERS = set(OTHER_WORDS.split()) - {"back", "clean", "clear", "close", "free", "mean", "open", "warm"}  # verbs as well
VERBS_IN_ED = {"embed", "feed", "need", "seed", "shed", "speed", "proceed", "exceed", "shred", "bleed", "breed", "wed"}
# A name that many modules share on purpose, since each stands for the same thing there.
PROTOCOLS = {
    "forward": "nn.Module",
    "backward": "torch.autograd.Function",
    "spec": "families: a config to a Spec",
    "config": "families: a Spec to a config",
    "complete_gguf": "families: the config of a GGUF file with what it leaves unsaid",
    "block": "families: what map_blocks makes of each block",
    "order": "objectives: an epoch to the keys of its batches, as a Plan takes it",
    "make_batch": "objectives: a key to its batch, as a Plan takes it",
    "hold_out": "objectives: held-out data to their batches",
    "corrupt_row": "objectives: a window to a row that lacks something",
    "run": "labs: a lab's experiment; recipes",
    "judge": "labs: the verdict of a lab's results",
    "plot": "labs: the figure of a lab's results",
    "command": "cli: the verb of a file",
    "tell": "io: where a file is",
    "draw_batch": "labs: a seed to a batch of ids and labels",
    "measure_accuracy": "labs: the share of the asked answers that are right",
    "size": "families: the sizes of a published model, as its config.json has them",
    "save": "what can be loaded again: writes it into a directory",
    "get": "mappings: the value of a key, or a default",
    "invoke": "specialize: a call of a function, told by what is printed",
    "main": "the entry point of a program",
    "to": "as torch.Tensor.to: the same in another place, or in another language",
    "tap": "core.step.Tracer",
    **dict.fromkeys(("append", "choose_attend", "get_or_compute"), "core.cache.Cache"),
    **dict.fromkeys(("select_rows", "reorder"), "generation.beam.Rows"),
    "forms": "plots: what a readout draws",
    **dict.fromkeys(("lens", "parts", "walk", "line"), "readouts: the method of Trace, the page's answer, the table"),
}


def functions(path: Path) -> Iterable[tuple[str, int]]:
    """Each function of a file with its line; names with two underscores before and behind are Python's own."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
            decorators = {ast.unparse(d) for d in node.decorator_list}
            if not decorators & {"property", "cached_property", "functools.cached_property"}:  # read as attributes
                yield node.name, node.lineno


def is_bare(name: str) -> bool:
    """Whether a name is one word that is a participle, adjective, adverb or preposition, and not a protocol's."""
    word = name.strip("_")
    if name in PROTOCOLS:
        return False
    participle = re.fullmatch(r"[a-z]{2,}ed", word) is not None and word not in VERBS_IN_ED
    return participle or word in PARTICIPLES or word in OTHERS


def sources(folders: Iterable[Path]) -> list[Path]:
    """The Python files of folders (a file stands for itself)."""
    return sorted(p for f in folders for p in (f.rglob("*.py") if f.is_dir() else [f]))


def bare_names(paths: Iterable[Path]) -> list[str]:
    """`file:line name` of each function with a bare name."""
    return [f"{path}:{line} {name}" for path in paths for name, line in functions(path) if is_bare(name)]


def crowded_names(paths: Iterable[Path]) -> dict[str, list[str]]:
    """The names that functions of more than three modules have, with those modules."""
    homes: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        for name, _ in functions(path):
            homes[name].add(str(path))
    crowded = {n: sorted(where) for n, where in homes.items() if len(where) > MODULES_BUDGET and n not in PROTOCOLS}
    return dict(sorted(crowded.items(), key=lambda item: -len(item[1])))


if __name__ == "__main__":
    paths = sources([Path(word) for word in sys.argv[1:]] or [PACKAGE])
    bare, crowded = bare_names(paths), crowded_names(paths)
    print("\n".join(bare))
    for name, where in crowded.items():
        print(f"{name}: in {len(where)} modules: {' '.join(Path(w).name for w in where)}")
    print(f"{len(bare)} bare names (budget {BARE_BUDGET}), {len(crowded)} names in more than {MODULES_BUDGET} modules")
