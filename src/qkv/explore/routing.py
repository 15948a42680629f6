"""How a router chose its experts, token by token: the panel Experts. Read answers.py first.

Letters: T positions, E experts, J chosen experts, N which layer of those that have experts.
"""

from qkv.core.experts import mask_closed_groups
from qkv.explore.body import Answer, Query, list_tokens, read_ids
from qkv.explore.question import Refused, Run
from qkv.lens.routing import expert_modules


def routes(run: Run, query: Query) -> Answer:
    """One layer: every expert's logit, score, bias and standing, who was chosen with what weight, and all shares."""
    found = run.t.routes() if expert_modules(run.t) else ()
    if not found:
        raise Refused("this model has no experts; every token passes the same networks")
    layers = [int(r.path.split("layers.")[1].split(".")[0]) for r in found]
    layer = query.get_integer("layer", layers[0])
    if layer not in layers:
        there = ", ".join(map(str, layers))
        raise Refused("layer={layer}: the layers with experts are {there}", layer=layer, there=there)
    n = layers.index(layer)
    one, moe = found[n], expert_modules(run.t)[found[n].path]
    s, at, part = moe.spec, f"t.routes()[{n}]", f'qkv.lens.routing.expert_modules(t)["{one.path}"]'
    shown = {"logits": (run.t[f"{one.path}.logits"][0], f't["{one.path}.logits"][0]'),
             "score": (one.score, f"{at}.score")}
    if s.balance == "bias":
        shown |= {"bias": (moe.bias, f"{part}.bias"), "choice": (one.choice, f"{at}.choice")}
    if s.groups > 1:
        best = 1 if s.group_score == "best" else 2
        shown["left"] = (mask_closed_groups(one.choice, s),  # minus infinity where its group is closed
                         f"qkv.core.experts.mask_closed_groups({at}.choice, {part}.spec)")
        shown["judged"] = (one.choice.float().unflatten(-1, (s.groups, -1)).topk(best, -1).values.sum(-1),
                           f"{at}.choice.unflatten(-1, ({s.groups}, -1)).topk({best}, -1).values.sum(-1)")
    lines = {"index": f"{at}.index", "weight": f"{at}.weight", "load": f"{at}.load",
             "share": f"({at}.load / {at}.load.sum())", **{name: line for name, (_, line) in shown.items()}}
    rules = {"weights": s.weights, "scale": s.scale, "groups": s.groups, "open_groups": s.topk_groups,
             "group_score": s.group_score}
    return Answer({
        "layer": layer, "layers": layers, "path": one.path,
        "tokens": list_tokens(run.t, read_ids(run.t)),
        "experts": s.num_experts, "chosen": s.top_k, "shared": s.shared is not None, "scored": s.score, **rules,
        "index": one.index, "weight": one.weight, "load": one.load, "share": one.load / one.load.sum(),
        "line": lines["weight"], "lines": lines,
    }, {name: x.float() for name, (x, _) in shown.items()})
