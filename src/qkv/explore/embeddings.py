"""Words in the embedding table and their way through the layers: the panel Word shift. Read answers.py first.

Letters: L layers.
"""

import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.explore.body import Answer, Query, list_tokens, read_ids
from qkv.explore.question import Refused, Run
from qkv.lens import embeddings, residual_drift
from qkv.model import Model


def shift(run: Run, query: Query) -> Answer:
    """How a word moves through the layers: its cosine to each anchor, the anchors' own, and the word's read alone."""
    if not run.first.full:
        raise Refused("this text is too long: the states after each layer were not kept")
    both = run.model.encoder_decoder
    side = "encoder." if both and query.get_choice("part", "encoder", "decoder") == "encoder" else ""
    if both and not side:
        raise Refused("a decoder that reads a source cannot read a word alone; look at part=encoder")
    read = read_ids(run.t, side)
    pos = query.get_integer("pos", 0, high=len(read) - 1)
    anchors = [w.strip() for w in query.get_text("anchors").replace("，", ",").split(",") if w.strip()]
    if not query.get_text("anchors") and not (anchors := near_words(list_tokens(run.t, read), pos)):
        return Answer({"pos": pos, "anchors": [], "line": "t"})  # a text of one word: the page says so
    if not anchors or len(anchors) > 8:
        raise Refused("anchors: give 1 to 8 words with commas between them")
    call = f"t.shift({pos}, {anchors!r}, side={side!r})"
    states = f"torch.stack([t[n][0, {pos}].float() for n in {call}.names])"
    plane = "(lambda x: (x - x.mean(0)) @ torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh[:2].T)"
    lines = {"cosines": f"{call}.cosine.T", "between": f"{call}.between", "path": f"{plane}({states})"}
    more: dict[str, Tensor] = {}
    with torch.inference_mode(False), torch.no_grad():
        found = run.t.shift(pos, anchors, side=side)
        if len(anchors) > 1:  # what the cosines are to be held against: the first two anchors' own, [L]
            alone = [residual_drift.read_word_alone(run.t, w, found.names) for w in anchors[:2]]
            more["apart"] = F.cosine_similarity(*alone, dim=-1)
            both_lines = (f"qkv.lens.residual_drift.read_word_alone(t, {w!r}, {call}.names)" for w in anchors[:2])
            lines["apart"] = f"torch.nn.functional.cosine_similarity({', '.join(both_lines)}, dim=-1)"
        if word := whole_words([{"text": found.word}])[0]:  # and that of the word read alone, [L]
            more["itself"] = run.t.shift(pos, [word], side=side).cosine[:, 0]
            lines["itself"] = f"t.shift({pos}, [{word!r}], side={side!r}).cosine[:, 0]"
    x = torch.stack([run.t[n][0, pos].float() for n in found.names])
    x = x - x.mean(0)
    return Answer({
        "word": found.word, "pos": pos, "anchors": anchors,
        "layers": ["embed", *(str(i + 1) for i in range(len(found.names) - 1))],
        "cosines": dict(zip(anchors, found.cosine.T.tolist(), strict=True)), "between": found.between,
        "path": x @ torch.linalg.svd(x, full_matrices=False).Vh[:2].T,  # L 2
        **more, "line": f"{call}.cosine", "lines": lines,
    })


PLAIN = frozenset(re.findall(r"[^\W_]+", """
    和 都 在 我 你 他 她 了 的 是 不 很 那 这 the a an and are is was of to in on both i it you he she that this
"""))


def whole_words(read: list[dict[str, Any]]) -> list[str]:
    """The tokens that are words or parts of words, "" for the others."""
    bare = [piece["text"].lstrip(" ▁Ġ#").strip() for piece in read]
    return [word if re.fullmatch(r"[^\W_]+", word) else "" for word in bare]


def near_words(read: list[dict[str, Any]], at: int) -> list[str]:
    """The first two words of a text that the one at `at` may move towards: none too plain, no lone letter."""
    fits = [w for i, w in enumerate(whole_words(read)) if i != at and (len(w) > 1 or w > "\u2e80")]
    return list(dict.fromkeys(w for w in fits if w.lower() not in PLAIN))[:2]


def neighbours(model: Model, query: Query) -> Answer:
    """The tokens nearest to a word in the embedding table."""
    query.allow_only("word", "n", "model")
    word, n = query.get_text("word").strip(), query.get_integer("n", 10, low=1, high=100)
    if not word:
        raise Refused("word: give a word")
    found = embeddings.find_neighbours(model, word, n)
    return answer_neighbours(found, f"model.trace().neighbours({word!r}, {n})")


def analogy(model: Model, query: Query) -> Answer:
    """a is to b as c is to…"""
    query.allow_only("a", "b", "c", "n", "model")
    a, b, c = (query.get_text(key).strip() for key in "abc")
    if not (a and b and c):
        raise Refused("analogy: give a, b and c")
    n = query.get_integer("n", 5, low=1, high=100)
    found = embeddings.solve_analogy(model, a, b, c, n=n)
    return answer_neighbours(found, f"model.trace().analogy({a!r}, {b!r}, {c!r}, n={n})")


def answer_neighbours(found: list[embeddings.Neighbour], line: str) -> Answer:
    """Tokens with their cosines."""
    return Answer({"near": [{"id": w.id, "text": w.piece, "cosine": w.cosine, "line": f"{line}[{i}].cosine"}
                            for i, w in enumerate(found)], "line": line})
