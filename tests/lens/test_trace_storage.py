"""A trace's bytes are known before the run, a budget refuses in time, and a trace on disk is the trace in memory."""

from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.errors import QkvError
from qkv.lens import trace_storage
from qkv.lens.taps import tap_names

TEXTS = {
    "demo": "书和茶都在桌上，我看完了它。",
    "demo-lm": "One, two,",
    "demo-moe": "我爱喝茶。",
    "demo-bert": "我爱[MASK]。",
}


@pytest.fixture(scope="module", params=sorted(TEXTS))
def model(request: pytest.FixtureRequest) -> qkv.Model:
    found = qkv.load(request.param, device="cpu", dtype="fp32")
    found.name = request.param  # type: ignore[attr-defined]
    return found


def heard(model: qkv.Model, save: list[str], **how: Any) -> Any:
    """A trace of what the model does with its text: written with a cache where it writes."""
    text = TEXTS[model.name]  # type: ignore[attr-defined]
    with model.trace(save=save, **how) as t, torch.inference_mode():
        if model.encoder_decoder:
            ids = model.tokenizer.encode(text, side="source")
            model(source=torch.tensor([ids]), target=torch.tensor([[model.special.start, 5, 9, 11]]))
        elif model.spec.decoder:
            model.generate(text, max_new_tokens=5)
        else:
            model(torch.tensor([model.ids(text)]))
    return t


def held(t: Any) -> int:
    return sum(x.numel() * x.element_size() for r in t.runs for c in r.calls for x in c.taps.values())


def test_the_plan_is_what_one_pass_holds(model: qkv.Model) -> None:
    save = [n for n in tap_names(model.spec) if not n.endswith((".score", "logits"))]
    t = model.trace(save=save)
    text = TEXTS[model.name]  # type: ignore[attr-defined]
    ids = torch.tensor([model.ids(text) if not model.encoder_decoder else model.tokenizer.encode(text, side="source")])
    with t, torch.inference_mode():
        if model.encoder_decoder:
            model(source=ids, target=ids[:, :4])
        else:
            model(ids)
    plan = t.plan(4, source=ids.shape[1]) if model.encoder_decoder else t.plan(ids.shape[1])
    # keys and values of the memory are heard in every call; patterns are never kept
    assert plan.bytes == held(t)
    assert t.plan(4, source=6, rows=3).bytes == 3 * t.plan(4, source=6).bytes
    assert plan.list_largest(1).split()[0] in plan.taps
    assert not any(n.endswith("pattern") for n in plan.taps)


def test_a_budget_refuses_before_anything_runs(model: qkv.Model) -> None:
    t = model.trace(save=["*resid_out"], budget="1 kB")
    with pytest.raises(QkvError, match=r"budget is 1.0 kB; the largest are .*resid_out"), t:
        model(*(), **inputs(model))
    assert held(t) == 0
    assert held(heard(model, ["*resid_out"], budget="1GB")) > 1000


def inputs(model: qkv.Model) -> dict[str, torch.Tensor]:
    ids = torch.full((2, 9), 7)
    return {"source": ids, "target": ids} if model.encoder_decoder else {"ids": ids}


def test_what_is_kept_counts_against_the_budget() -> None:
    model = qkv.load("demo-lm", device="cpu", dtype="fp32")
    one = trace_storage.bytes_per_token(model.core)["layers.0.resid_out"]
    with pytest.raises(QkvError, match="beside"), model.trace(save=["layers.0.resid_out"], budget=one * 12):
        model.generate("One, two,", max_new_tokens=40)


def test_what_was_admitted_is_what_is_held(model: qkv.Model) -> None:
    """Call by call: a memory's keys and values come once, however many words are written after it."""
    save = [n for n in tap_names(model.spec) if not n.endswith((".score", ".pattern", "logits"))]
    text = TEXTS[model.name]  # type: ignore[attr-defined]
    with model.trace(save=save, budget="1GB") as t, torch.inference_mode():
        if model.encoder_decoder:
            model.translate(text, beam=1, max_new_tokens=4)
        elif model.spec.decoder:
            model.generate(text, max_new_tokens=4)
        else:
            model(torch.tensor([model.ids(text)]))
    assert t.held == held(t) > 0


def test_what_lies_on_disk_counts_no_more(tmp_path: Path) -> None:
    model = qkv.load("demo-lm", device="cpu", dtype="fp32")
    one = trace_storage.bytes_per_token(model.core)["layers.0.resid_out"]
    with model.trace(save=["layers.0.resid_out"], budget=one * 12, to=tmp_path / "t") as t:
        model.generate("One, two,", max_new_tokens=40)
    assert t["layers.0.resid_out"].shape[1] > 12


@pytest.mark.parametrize("way", ["to", "save"])
def test_a_trace_on_disk_is_the_trace_in_memory(model: qkv.Model, way: str, tmp_path: Path) -> None:
    save = [n for n in tap_names(model.spec) if not n.endswith(".score")]
    there, want = tmp_path / "run.trace", heard(model, save)
    if way == "to":
        spilled = heard(model, save, to=there)
        assert all(isinstance(c.taps, trace_storage.TapFile) for r in spilled.runs for c in r.calls)
    else:
        want.save(there)
    found = model.load_trace(there)
    for name in save:
        if not any(name in c.taps or name.endswith(("pattern", ".k", ".v")) for r in want.runs for c in r.calls):
            with pytest.raises(QkvError, match="was not recorded"):
                found[name]
            continue
        mine, value = found[name], want[name]
        rebuilt = name.endswith("pattern")  # its sums follow how their terms lie in memory
        assert (mine - value).abs().max() <= 1e-6 if rebuilt else torch.equal(mine, value), name
    assert max(found.check().values()) < 1e-5
    assert found.tokens() == want.tokens()


def test_readouts_read_a_trace_on_disk(tmp_path: Path) -> None:
    model = qkv.load("demo-lm", device="cpu", dtype="fp32")
    want = heard(_named(model, "demo-lm"), ["lens", "parts", "walk"])
    want.save(tmp_path / "t")
    found = model.load_trace(tmp_path / "t")
    assert torch.equal(found.lens().ids, want.lens().ids)
    assert found.parts(pos=3) == want.parts(pos=3)
    walks = [t.walk("layers.1.attn", head=2, query=3, key=1) for t in (found, want)]
    for mine, theirs in zip(*(sum(w.steps.values(), ()) for w in walks), strict=True):
        assert (mine.name, mine.line, mine.words) == (theirs.name, theirs.line, theirs.words)
        assert (mine.values.double() - theirs.values.double()).abs().max() <= 1e-6


def _named(model: qkv.Model, name: str) -> qkv.Model:
    model.name = name  # type: ignore[attr-defined]
    return model


def test_a_place_with_other_files_is_left_alone(model: qkv.Model, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(QkvError, match="not empty"):
        model.trace(save=["*embed"], to=tmp_path)
    with pytest.raises(QkvError, match="not empty"):
        heard(model, ["*embed"]).save(tmp_path)
    assert (tmp_path / "letter.txt").read_text(encoding="utf-8") == "dear"


def test_another_model_a_newer_format_and_no_trace_are_refused(tmp_path: Path) -> None:
    model = _named(qkv.load("demo-lm", device="cpu", dtype="fp32"), "demo-lm")
    heard(model, ["*embed"]).save(tmp_path / "t")
    with pytest.raises(QkvError, match="another spec"):
        qkv.load("demo-moe", device="cpu").load_trace(tmp_path / "t")
    with pytest.raises(QkvError, match="no such file"):
        model.load_trace(tmp_path / "none")
    index = tmp_path / "t" / "index.json"
    index.write_text(index.read_text(encoding="utf-8").replace('"format": 1', '"format": 9'), encoding="utf-8")
    with pytest.raises(QkvError, match="format 9"):
        model.load_trace(tmp_path / "t")


def test_one_row_is_the_row_of_the_whole_pattern(model: qkv.Model) -> None:
    t = heard(model, ["patterns"])
    seen = 0
    for path, at in t.attentions.items():
        whole = t[f"{path}.pattern"]
        for head in {0, at.spec.heads - 1}:
            for query in {0, whole.shape[2] // 2, whole.shape[2] - 1}:
                row = t.row(path, head, query)
                assert (whole[0, head, query, : len(row)] - row).abs().max() <= 1e-6
                assert whole[0, head, query, len(row) :].sum() == 0
                seen += 1
    assert seen >= 6


def test_braces_stand_for_each_of_their_words(model: qkv.Model) -> None:
    t = model.trace(save=["*layers.0.attn.{q,k}"])
    assert {n.rpartition(".")[2] for n in t.wanted} == {"q", "k"}
    with pytest.raises(QkvError, match="no tap matches"):
        model.trace(save=["layers.0.attn.{q,qq}"])


@pytest.mark.parametrize(
    ("said", "layers"), [("1:3", slice(1, 3)), (":2", slice(2)), ("-1:", slice(-1, None)), ("::2", slice(0, None, 2)),
                         (":", slice(None)), ("1:99", slice(1, 99))],
)
def test_braces_slice_the_layers_as_python_does(said: str, layers: slice, model: qkv.Model) -> None:
    found = model.trace(save=[f"*layers.{{{said}}}.attn.{{q,k}}"]).wanted
    known = [n for n in tap_names(model.spec) if n.endswith((".attn.q", ".attn.k"))]
    numbers = {int(n.split(".")[n.split(".").index("layers") + 1]) for n in known}
    wanted = {f".layers.{i}." for i in sorted(numbers)[layers]}
    assert found == {n for n in known if any(w in f".{n}" for w in wanted)}
    assert found


def test_a_slice_without_a_layer_says_which_there_are() -> None:
    model = qkv.load("demo-lm", device="cpu")
    last = len(model.spec.stack.blocks) - 1
    with pytest.raises(QkvError, match=f"holds none of the layers, which are 0 to {last}"):
        model.trace(save=[f"layers.{{{last + 1}:}}.attn.q"])
    with pytest.raises(QkvError, match="no tap matches"):
        model.trace(save=["layers.{1:2}.attn.qq"])


@pytest.mark.parametrize("words", ["two", "2 XB", "-1", ""])
def test_a_budget_that_is_no_number_of_bytes(words: str) -> None:
    with pytest.raises(QkvError, match="expected bytes"):
        trace_storage.parse_bytes(words)


def test_bytes_in_words() -> None:
    words = ("2GB", "60 MB", "1GiB", "512", 7)
    assert [trace_storage.parse_bytes(x) for x in words] == [2 * 10**9, 60 * 10**6, 2**30, 512, 7]
    assert [trace_storage.parse_bytes(x) for x in ("3kB", "3 KiB", "1.5MiB")] == [3000, 3072, 1_572_864]
    assert trace_storage.format_bytes(60_000_000) == "60.0 MB"
