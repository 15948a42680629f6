"""Every panel's numbers from the client that computes, in Node, against those of the server, with the same weights."""

import json
import math
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import torch
from support.web_models import load_unpacked, needs_node, run_node

import qkv
from qkv.explore import answers
from qkv.explore.body import Query, to_json_value
from qkv.explore.question import Question, ask
from qkv.explore.web_model import pack_tensor, unpack_tensors, write_web_model

CUT = {"part": "cross", "layer": 2, "head": 1}
EDGE = {"part": "cross", "layer": 1, "head": 3, "query": 3, "key": 2}
SILENT = {"part": "encoder", "layer": 1, "head": 2}
INSIDE = {"part": "encoder", "layer": 1, "head": 0, "query": 2, "key": 4}
LATER = {"part": "decoder", "layer": 1, "head": 0, "query": 5, "key": 2}
DRAWN = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "seed": 7}
QUESTIONS: list[dict[str, Any]] = [
    {"text": "书和茶都在桌上，我看完了它。", "model": "demo"},
    {"text": "我看完了那本书。", "model": "demo", "beam": 1, "force": [521, 1104]},
    {"text": "我看完了那本书。", "model": "demo", "cut": CUT},
    {"text": "我看完了那本书。", "model": "demo", "cut": SILENT},
    {"text": "我看完了那本书。", "model": "demo", "cut": INSIDE},
    {"text": "我看完了那本书。", "model": "demo", "cut": EDGE},
    {"text": "One, two, buckle my 你好", "model": "demo-lm"},
    {"text": "Twinkle, twinkle", "model": "demo-lm", "sampling": DRAWN},
    {"text": "我爱[MASK]。", "model": "demo-bert"},
    {"text": "书和茶都在桌上，我喝完了它。", "model": "demo-moe"},
    {"text": "书和茶都在桌上，我看完了它。", "second": "书和茶都在桌上，我喝完了它。", "model": "demo"},
    {"text": "One, two, buckle my", "second": "Three, four, open the", "model": "demo-lm"},
    {"text": "我爱[MASK]。", "second": "他不爱[MASK]了。", "model": "demo-bert"},
    {"text": "我看完了那本书。", "second": "我喝完了那杯茶。", "model": "demo-moe", "cut": LATER},
]
PATHS = ("meta", "thumbs", "thumbs?sink=0", "attn?layer=1&head=2", "row?layer=2&head=1&query=3", "mask?layer=0",
         "wavefront", "walk?layer=1&head=2&query=3&key=2", "walk?layer=0&head=0&query=1&key=4", "lens",
         "lens?top=3&own=0", "lens?pos=2", "choices", "parts", "parts?pos=2&by=head&token=40", "parts?token=40&vs=50",
         "choices?pos=2&temperature=0.7&top_k=40&top_p=0.9&min_p=0.02")
WRITES = ("cache", "shift?pos=1", "shift?pos=3&anchors=tea, book,drink", "proof")
SECOND = ("diff", "patch?layer=0&source=1&pos=2", "patch?layer=3&source=2&pos=2")
SIDES = {"demo": ("encoder", "decoder"), "demo-lm": ("decoder",), "demo-bert": ("encoder",), "demo-moe": ("decoder",)}
TABLES = ("neighbours?word={w}", "neighbours?n=4&word={w}", "analogy?a={w}&b={x}&c={y}", "cost",
          "cost?context=4096&batch=8", "cost?dtype=int8&context=16", "cost?dtype=bfloat16")
WORDS = {"demo": ("书", "茶", "love"), "demo-lm": ("two", "One", "Twinkle"), "demo-bert": ("我", "爱", "苹果"),
         "demo-moe": ("书", "茶", "book")}
OF_MODEL = {
    "demo": ("alignment", "alignment?layer=0", "row?part=cross&layer=1&head=3&query=3", "thumbs?part=encoder",
             "attn?part=encoder&layer=0&head=0", "mask?part=cross&layer=1", "thumbs?part=encoder",
             "walk?part=cross&layer=2&head=1&query=4&key=3", "walk?part=encoder&layer=1&head=0&query=2&key=0",
             "parts?pos=3&by=neuron&layer=1&token=book&vs=tea", "proof?side=cross", "proof?side=decoder",
             "proof?side=encoder&ask=书"),
    "demo-lm": ("parts?pos=3&by=neuron&layer=2",), "demo-bert": ("parts?pos=1&by=neuron&layer=0",),
    "demo-moe": ("routes", "routes?layer=3"),
}
FEWER = ("question", "how", "said", "check", "checks", "panels", "model", "ms", "cut", "text", "full",
         "line")
ROUGH = {"u8": 1.01, "f": 2e-4}  # a byte is rounded; a chance or a score of fp32 sums in another order


def list_differences(got: Any, want: Any, where: str) -> list[str]:
    """Where two answers are not one, but for rounding."""
    if isinstance(want, dict) and isinstance(got, dict):
        return [d for k, v in want.items() for d in list_differences(got.get(k, "nothing"), v, f"{where}.{k}")]
    if isinstance(want, list) and isinstance(got, list) and len(got) == len(want):
        pairs = enumerate(zip(got, want, strict=True))
        return [d for i, (a, b) in pairs for d in list_differences(a, b, f"{where}[{i}]")]
    if isinstance(want, float) and isinstance(got, float | int):
        return [] if math.isclose(got, want, rel_tol=2e-3, abs_tol=ROUGH["f"]) else [f"{where}: {got} for {want}"]
    return [] if got == want else [f"{where}: {got} for {want}"]


@needs_node
def test_the_browser_answers_what_the_server_answers(tmp_path: Path) -> None:
    names = list(dict.fromkeys(q["model"] for q in QUESTIONS))
    models = {}
    for name in names:
        write_web_model(qkv.load(name), tmp_path / name, name=name)
        models[name] = load_unpacked(name, tmp_path / name)
    asked: list[Any] = [{"question": q, "paths": [*PATHS, *OF_MODEL.get(q["model"], ())]} for q in QUESTIONS]
    for one in asked:
        name = one["question"]["model"]
        w, x, y = WORDS[name]
        one["paths"] += [f"/api/{path}&model={name}".format(w=w, x=x, y=y) if "?" in path else
                         f"/api/{path}?model={name}" for path in TABLES]
        if "second" in one["question"]:
            moved = [f"patch?part={side}&layer=2&source=3&pos=3" for side in SIDES[name]]
            one["paths"] = ["meta", *SECOND, *moved]
        one["paths"] += [f"shift?pos=2&anchors={w},{x}", *(WRITES if name != "demo-bert" else ())]
    given = {"base": f"file://{tmp_path}", "models": names, "questions": asked}
    (tmp_path / "asked.json").write_text(json.dumps(given))
    run_node("answers.mjs", tmp_path / "asked.json", tmp_path / "answers.json")
    faults = list[str]()
    for one, said in zip(asked, json.loads((tmp_path / "answers.json").read_text()), strict=True):
        q = one["question"]
        run = ask(models[q["model"]], Question.from_json({k: v for k, v in q.items() if k != "model"}), q["model"])
        for path, got in zip(one["paths"], said, strict=True):
            url, where = urlsplit(path), f"{q} {path}"
            what, query = url.path.removeprefix("/api/"), dict(parse_qsl(url.query))
            table = answers.TABLES.get(what)
            want = table(run.model, Query(query)) if table else answers.answer(run, what, query)
            keys = {k: v for k, v in to_json_value(want.keys).items() if not (what == "meta" and k in FEWER)}
            if what == "parts":  # neurons that pushed nothing stand in any order
                for each in (got, keys):
                    each["parts"] = [p for p in each["parts"] if abs(p["push"]) > 1e-7]
            for unseen in ("per_token",) if what == "cost" else ("real",) if what == "cache" else ():
                del keys[unseen]  # which no panel shows
            for each in (got, keys) if what == "shift" else ():  # an axis may point either way
                each["path"] = [[abs(x) for x in row] for row in each["path"]]
            faults += list_differences(got, keys, where)
            for name, x in want.arrays.items():
                mine = torch.tensor(got["arrays"][name]["data"]).view(got["arrays"][name]["shape"])
                rough = ROUGH["u8" if x.dtype == torch.uint8 else "f"] * max(1.0, float(x.float().std()))
                if mine.shape != x.shape or (mine.float() - x.float()).abs().max() > rough:
                    faults.append(f"{where} {name}: {mine} for {x}")
    assert not faults, "\n".join(faults)


def test_int8_rounds_each_number_to_a_127th_of_its_row() -> None:
    x = torch.randn(40, 96, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 1, 40)[:, None]
    x[7] = 0
    kept = pack_tensor("w", x, "int8")
    assert kept["w"].dtype == torch.int8
    gap = (unpack_tensors(kept)["w"] - x).abs().amax(-1)
    assert (gap <= x.abs().amax(-1) / 127 * 0.501).all()
    assert torch.equal(unpack_tensors(pack_tensor("b", x[0], "int8"))["b"], x[0])  # vectors stay
