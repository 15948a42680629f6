"""Every number of the page is given by its own Python line, in every kind of model; runs write what engines write."""

import dataclasses
import functools
import json
import math
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from support import zoo

import qkv
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.explore import answers, heads, scenes
from qkv.explore.answers import ANSWERS, answer
from qkv.explore.body import Answer, Query, dump_json
from qkv.explore.question import (
    BUDGET,
    Cut,
    Question,
    RecentRuns,
    Refused,
    Run,
    ask,
    bytes_per_token,
    kind,
    max_text_tokens,
)
from qkv.model import Model
from qkv.spec import Labels
from qkv.tasks.types import SpecialTokens

WORDS = ["<s>", "</s>", "[M]", *(chr(0x4E00 + i) for i in range(94))]
TEXTS = {"demo": "书和茶都在桌上，我看完了它。", "demo-lm": "One, two, buckle my", "demo-bert": "我爱[MASK]。",
         "demo-moe": "我看完了那本书。"}
TINY = (
    "gqa",
    "window",
    "latent",
    "mixed",
    "relative",
    "parallel",
    "learned",
    "cloze",
    "two_words",
    "experts",
    "stretched",
)
SHOWN = {"anchors": "书,茶", "query": "1", "key": "0", "layer": "0", "head": "1", "top_p": "0.9", "temperature": "0.7"}


class Letters:
    """A tokenizer of single characters."""

    mask_id, cls_id, sep_id, stream = 2, None, None, None

    def encode(self, text: str, *, special: bool = True, side: str = "source") -> list[int]:
        return [WORDS.index(c) if c in WORDS else 3 + ord(c) % 50 for c in text]

    def id(self, token: str) -> int | None:
        return WORDS.index(token) if token in WORDS else None

    def pieces(self, ids: Sequence[int], *, side: str = "target") -> list[str]:
        return [WORDS[i] for i in ids]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return "".join(WORDS[i] for i in ids)

    def find_unknown(self, text: str) -> list[str]:
        return []


@functools.cache
def model_of(name: str) -> Model:
    if name in TEXTS:
        return qkv.load(name)
    core = zoo.made(zoo.ALL.get(name, zoo.experts)())
    both = bool(core.spec.encoder and core.spec.decoder)
    return Model(core.eval(), Letters(), SpecialTokens(start=0 if both else None, forbid=(0,)))  # type: ignore[arg-type]


@functools.cache
def run_of(name: str) -> Run:
    text = TEXTS.get(name, "丐丑且丕世")
    second = text.replace("看", "喝").replace("two", "three").replace("且", "丁").replace("爱", "想")
    return ask(model_of(name), Question(text, second, 6), name)


def asked(run: Run, what: str, **said: str) -> Answer:
    keys = ANSWERS[what][1]
    return answer(run, what, {k: v for k, v in {**SHOWN, **said}.items() if k in keys})


def cells(x: Any, line: str) -> Iterator[tuple[float, str]]:
    """Each number of nested lists, with the line that picks it."""
    if isinstance(x, list | tuple):
        for i, inner in enumerate(x):
            yield from cells(inner, f"{line}[{i}]")
    elif x is not None:
        yield float(x), line


def numbers(run: Run, what: str, found: Answer) -> Iterator[tuple[float, str]]:
    """The numbers of an answer that the page lets one click, each with its line."""
    keys, arrays = found.keys, {k: v.tolist() for k, v in found.arrays.items()}
    lines = keys.get("lines", {})
    if what == "walk":
        for step in keys["steps"]:
            for s in step["strips"]:
                for i, value in enumerate(s["values"]):
                    if value is not None:
                        yield float(value), s["line"] if s["scalar"] else f"({s['line']})[{s['from'] + i}]"
    elif what == "lens":
        yield from cells([[[p for _, p in c] for c in row] for row in keys["cells"]], keys["line"])
        yield from cells(keys["ranks"], lines["ranks"])
    elif what == "parts":
        yield keys["logit"], keys["line"]
        yield from ((p["push"], p["line"]) for p in keys["parts"])
    elif what == "choices":
        for s in keys["stages"]:
            yield from ((float(s[k]), f"{s['line']}.{k}") for k in ("kept", "entropy", "gone"))
            yield from ((w["p"], f"{s['line']}.chances[{w['id']}]") for w in s["top"])
    elif what == "cache":
        for s in keys["steps"]:
            at = {"tokens": "length", "bytes": "bytes", "work": "fresh", "work_without": "again"}
            yield from ((float(s[k]), f"{s['line']}.{name}") for k, name in at.items())
        yield from ((float(v), f"t.cache().kinds[{k!r}]") for k, v in keys["kinds"].items())
    elif what in ("neighbours", "analogy"):
        yield from ((w["cosine"], w["line"]) for w in keys["near"])
    elif what == "meta":
        yield keys["check"], keys["line"]
    elif what == "shift":
        yield from cells(list(keys["cosines"].values()), lines["cosines"])
        yield from cells(keys["between"].tolist(), lines["between"])
        yield from cells(keys["path"].tolist(), lines["path"])
        for name in ("apart", "itself"):
            yield from cells(keys[name].tolist(), lines[name]) if name in keys else ()
    elif what == "attn":
        yield from ((v / 255, f"{n}") for v, n in cells(arrays["weight"], keys["line"]))
    elif what == "cost":
        values = {**keys["bytes"], **keys["flops"], "total": keys["total"], "active": keys["active"]}
        yield from ((float(v), lines[k]) for k, v in values.items())
        yield from ((float(v), f'{lines["parameters"]}["{k}"]') for k, v in keys["parameters"].items())
        yield from ((float(row["numbers"]), row["line"]) for row in keys["shapes"])
    elif what == "proof":
        yield from cells(keys["before"], lines["before"])
        yield from cells(keys["after"], lines["after"])
        yield from cells(keys["heads"], lines["heads"])
    elif what == "diff":
        yield from cells(arrays["changed"], lines["distance"])
        for side in keys["sides"]:
            if side["next"]:
                yield from ((w["p"], f"{side['next']['line']}.chances[{w['id']}]") for w in side["next"]["top"])
    elif what == "beams":
        yield from ((n["sum"], f"{keys['line']}.nodes[{i}].sum") for i, n in enumerate(keys["nodes"]))
        yield from ((h["score"], f"{keys['line']}.found[{i}].score") for i, h in enumerate(keys["found"]))
    elif what == "thumbs":
        yield from cells(arrays["sink"], keys["line"])
    else:
        values = {**arrays, **{k: v.tolist() for k, v in keys.items() if isinstance(v, torch.Tensor)}}
        only = {"mask": "code", "gradient": "push", "alignment": "weight"}.get(what)
        for name, x in values.items():
            if name in lines:
                yield from cells(x, lines[name])
            elif name == only:
                yield from cells(x, keys["line"])


def told(line: str, run: Run) -> float:
    scope = run.scope
    exec(f"found = {line}", scope)
    found = scope["found"]
    return float(found.detach() if isinstance(found, torch.Tensor) else found)


def near(value: float, again: float, what: str) -> bool:
    """Equal at the precision that is shown: four digits, and what a byte can say of a head's map."""
    within = {"attn": 0.5 / 255 + 1e-6, "proof": 6e-5}.get(what, 1e-6)
    low = torch.finfo(torch.float32).min / 2
    return math.isclose(value, again, rel_tol=1e-4, abs_tol=within) or (what == "row" and value == 0 and again < low)


def wrong(names: Sequence[str], seed: int, each: int) -> tuple[int, list[str]]:
    """How many drawn numbers were evaluated through their lines, and those that came out otherwise."""
    draw, count, bad = random.Random(seed), 0, list[str]()
    for name in names:
        run = run_of(name)
        for what in ["meta", "thumbs", *answers.list_panels(run)]:
            if what in answers.TABLES:
                said = (
                    {"word": "书", "a": "书", "b": "茶", "c": "我"}
                    if name in TEXTS
                    else {"word": "且", **dict.fromkeys("abc", "且")}
                )
                keys = {"neighbours": ("word",), "analogy": "abc", "cost": ()}[what]
                found = answers.TABLES[what](run.model, Query({k: said[k] for k in keys}))
            else:
                anchors = "one,two" if name == "demo-lm" else "书,茶" if name in TEXTS else "且,丁"
                side = {"part": "encoder"} if what == "shift" and run.model.encoder_decoder else {}
                side |= {"layer": "1"} if name == "mixed" else {}
                found = asked(run, what, anchors=anchors, **side)
            every = list(numbers(run, what, found))
            if not every:
                bad.append(f"{name} {what}: shows no number")
            for value, line in draw.sample(every, min(each, len(every))):
                again, count = told(line, run), count + 1
                if not near(value, again, what):
                    bad.append(f"{name} {what}: {value} but {line} = {again}")
    return count, bad


@pytest.mark.parametrize("name", [*TEXTS, *TINY])
def test_the_shapes_of_a_model_hold_each_of_its_numbers_once(name: str) -> None:
    model = run_of(name).model
    found = answers.TABLES["cost"](model, Query({})).keys
    whole = sum(p.numel() for p in model.core.parameters())
    assert sum(row["numbers"] for row in found["shapes"]) == found["total"] == whole
    model = qkv.load(name, dtype="int8") if name in TEXTS else model  # its weights are buffers
    few = answers.TABLES["cost"](model, Query({})).keys["shapes"]
    assert sorted((r["part"], r["shape"], r["count"]) for r in few) == sorted(
        (r["part"], r["shape"], r["count"]) for r in found["shapes"])
    assert scenes.model_card(model.core)["parameters"] == whole
    by_part = {part: n for part, n in found["parameters"].items() if n}
    assert {part: sum(r["numbers"] for r in found["shapes"] if r["part"] == part) for part in by_part} == by_part
    if name == "demo":  # three layers of two stacks: q, k, v and W_O of nine attentions
        row = next(r for r in found["shapes"] if r["part"] == "attention" and len(r["shape"]) == 2)
        width = model.spec.stack.width
        assert (row["names"], row["shape"], row["count"]) == (["q", "k", "v", "out"], (width, width), 36)


@pytest.mark.parametrize("name", [*TEXTS, *TINY])
def test_numbers_are_what_their_lines_say(name: str) -> None:
    count, bad = wrong([name], 1, 3)
    assert not bad
    assert count >= 20


@pytest.mark.parametrize("name", ["demo", "demo-lm", "demo-bert", "gqa"])
def test_a_guess_besides_the_word_just_read_and_the_rank_of_the_answer(name: str) -> None:
    run = run_of(name)
    plain, other = (answer(run, "lens", said).keys for said in ({}, {"own": "0"}))
    assert plain["ranks"] == other["ranks"]
    assert plain["ranks"][-1] == [1] * len(plain["used"])  # the answer is the last layer's
    read = [token["id"] for token in (run_meta(run)["decoder"] or run_meta(run)["encoder"])["tokens"]]
    for row, (ids, others) in enumerate(zip(plain["ids"], other["ids"], strict=True)):
        for i, word in enumerate(read):
            assert word not in others[i]
            kept = [x for x in ids[i] if x != word]
            assert others[i][: len(kept)] == kept  # the order of the others stays
            final = plain["ids"][-1][i][0]
            if final in ids[i]:
                assert plain["ranks"][row][i] == ids[i].index(final) + 1
            else:
                assert plain["ranks"][row][i] > 5
    pos = answer(run, "lens", {"own": "0", "pos": "1"}).keys
    assert [row[0] for row in pos["ids"]] == [row[1] for row in other["ids"]]
    assert math.isclose(told(f"({pos['line']})[0, 0, 0]", run), pos["cells"][0][0][0][1], rel_tol=1e-5)
    assert told(f"({pos['lines']['ranks']})[0, 0]", run) == pos["ranks"][0][0]
    again = [told(f"({other['line']})[1, {i}, 0]", run) for i in range(len(read))]
    assert again == pytest.approx([cell[0][1] for cell in other["cells"][1]], rel=1e-5)


def run_meta(run: Run) -> dict[str, Any]:
    return answer(run, "meta", {}).keys


def test_words_worth_looking_at_are_chosen_from_the_text() -> None:
    run = run_of("demo")
    found = asked(run, "shift", pos="0", part="encoder", anchors="")
    assert found.keys["anchors"] == ["茶", "桌上"]  # none too plain (和, 都, 在), not the word itself
    alone = ask(model_of("demo-lm"), Question("One", max_new_tokens=1))
    assert answer(alone, "shift", {"pos": "0"}).keys["anchors"] == []
    proof = asked(run, "proof", side="cross").keys
    goal, query = proof["at"], proof["query"]
    assert goal == query + 1
    after = [row[goal] for row in proof["after"][query]]
    now = proof["instead"][query][after.index(min(after))][goal].strip()
    said = [token["text"].strip() for token in proof["target"]]
    assert now != said[goal]
    assert now in said  # book became tea, or tea book


def test_a_shift_is_held_against_the_word_alone_and_anchors_to_each_other() -> None:
    alone = ask(model_of("demo"), Question("它"), "demo")
    same = asked(alone, "shift", pos="0", part="encoder", anchors="书,书").keys
    assert same["itself"].tolist() == pytest.approx([1.0] * 4, abs=0.2)  # but for the end that a text is given
    assert same["apart"].tolist() == pytest.approx([1.0] * 4, abs=1e-5)
    found = asked(run_of("demo"), "shift", pos="10", part="encoder", anchors="书,茶").keys
    other = asked(run_of("demo"), "shift", pos="10", part="encoder", anchors="它").keys
    assert found["word"] == "它"
    assert found["itself"].tolist() == other["cosines"]["它"]
    assert "apart" not in other
    assert "itself" not in asked(run_of("demo"), "shift", pos="11", part="encoder", anchors="书").keys  # a full stop


def test_a_wrong_number_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = heads.Head.weights
    monkeypatch.setattr(heads.Head, "weights", lambda self, rows=slice(None): right(self, rows).roll(1, -1))
    assert wrong_in(run_of("gqa"), "attn")


# Runs


def test_a_run_writes_what_the_model_writes() -> None:
    demo, lm, moe = (model_of(n) for n in ("demo", "demo-lm", "demo-moe"))
    assert ask(demo, Question(TEXTS["demo"])).first.written == demo.translate(TEXTS["demo"]).tokens
    assert ask(lm, Question(TEXTS["demo-lm"])).first.written == lm.generate(TEXTS["demo-lm"], max_new_tokens=12).tokens
    assert (
        ask(moe, Question(TEXTS["demo-moe"])).first.written == moe.generate(TEXTS["demo-moe"], max_new_tokens=12).tokens
    )
    warm = (("seed", 3), ("temperature", 1.0), ("top_k", 20))
    drawn = lm.generate(TEXTS["demo-lm"], max_new_tokens=12, temperature=1.0, top_k=20, seed=3).tokens
    assert ask(lm, Question(TEXTS["demo-lm"], sampling=warm)).first.written == drawn
    fill = ask(model_of("demo-bert"), Question(TEXTS["demo-bert"]))
    assert fill.first.output == TEXTS["demo-bert"].replace(
        "[MASK]", model_of("demo-bert").fill(TEXTS["demo-bert"])[0][0][0]
    )
    verdict = model_of("demo-bert").classify(TEXTS["demo-bert"]).probabilities
    labels = dict(answer(fill, "meta", {}).keys["labels"])
    assert all(abs(labels[n] - p) < 1e-5 for n, p in verdict.items())


@pytest.mark.parametrize("name", ["demo", "demo-lm", "demo-moe", "latent", "relative"])
def test_the_trace_reads_the_whole_text_as_it_was_written(name: str) -> None:
    """One pass without a cache over the same tokens gives the same logits, at prompt and written positions alike."""
    run = run_of(name)
    core: Transformer = run.model.core
    heard = run.t.ran()
    free = torch.tensor([len(run.first.ids)]) if kind(run.model) == "prefix" else None
    with torch.no_grad():
        given = Inputs(prefix_len=free)
        if run.model.encoder_decoder:
            source = torch.tensor([run.first.ids])
            given = Inputs(memory=core.encode(source))
        logits = core(heard.ids, given).logits
    assert (run.t["logits"] - logits).abs().max() < 1e-4
    assert heard.phases[-1] == "decode"
    assert heard.ids[0, -len(run.first.written) + 1 :].tolist() == run.first.written[:-1]


def test_a_decoder_that_only_classifies_is_shown_too() -> None:
    spec = dataclasses.replace(zoo.gqa(), head=None, labels=Labels(3, "last"))
    model = Model(zoo.made(spec).eval(), Letters(), SpecialTokens())  # type: ignore[arg-type]
    run = ask(model, Question("丐丑且"))
    said = answer(run, "meta", {}).keys
    assert {"lens", "choices", "parts", "proof"} & set(said["panels"]) == set()
    verdict = model.classify("丐丑且").probabilities
    assert dict(said["labels"]) == pytest.approx(verdict, abs=1e-6)
    for what in ("thumbs", "row", "mask", "wavefront", "cache", "walk"):
        asked(run, what)


def test_forced_words_stand_first_and_the_model_goes_on_from_them() -> None:
    demo = model_of("demo")
    other = demo.tokenizer.encode("tea", special=False, side="target")  # type: ignore[union-attr]
    run = ask(demo, Question(TEXTS["demo"], force=tuple(other), beam=1))
    said = answer(run, "meta", {}).keys
    assert [w["id"] for w in said["written"]][: len(other)] == other
    assert [w["forced"] for w in said["written"]][: len(other) + 1] == [*[True] * len(other), False]
    lm = model_of("demo-lm")
    run = ask(lm, Question("One, two", force=(13, 260), max_new_tokens=3))
    again = lm.generate([*lm.ids("One, two"), 13, 260], max_new_tokens=3).tokens
    assert run.first.written == [13, 260, *again]
    assert run.t.ran().ids[0].tolist() == [*lm.ids("One, two"), 13, 260, *again[:-1]]


@pytest.mark.parametrize("name", ["demo", "demo-lm", "demo-bert", "gqa"])
def test_a_cut_edge_has_no_weight_and_a_silenced_head_says_nothing(name: str) -> None:
    model, part = model_of(name), "decoder" if name in ("demo-lm", "gqa") else "encoder"
    text = TEXTS.get(name, "丐丑且丕世")
    edge = ask(model, Question(text, cut=Cut(part, 1, 1, 3, 1), max_new_tokens=4))
    row = answer(edge, "row", {"part": part, "layer": "1", "head": "1", "query": "3"})
    whole = answer(edge, "row", {"part": part, "layer": "1", "head": "0", "query": "3"})
    path = row.keys["path"]
    assert edge.t[f"{path}.pattern"][0, 1, 3, 1] == 0 != edge.t[f"{path}.pattern"][0, 0, 3, 1]
    assert row.arrays["weight"][1] == 0 != whole.arrays["weight"][1]
    assert row.keys["reasons"][1] == "cut"
    assert answer(edge, "meta", {}).keys["cut"] == {"part": part, "layer": 1, "head": 1, "query": 3, "key": 1}
    silent = ask(model, Question(text, cut=Cut(part, 1, 1), max_new_tokens=4))
    assert silent.t[f"{path}.z"][0, 1].abs().max() == 0 != silent.t[f"{path}.z"][0, 0].abs().max()


def test_a_long_text_is_cut_to_what_fits_and_says_so() -> None:
    lm = model_of("demo-lm")
    run = ask(lm, Question("One, two, " * 3000), "demo-lm")
    assert len(run.first.ids) <= max_text_tokens(lm) < 200
    assert f"{len(lm.ids('One, two, ' * 3000))} tokens" in run.first.notes[0]
    assert f"first {max_text_tokens(lm)}" in run.first.notes[0]
    assert run.first.written


def test_what_a_trace_keeps_is_what_was_planned() -> None:
    for name in ("demo-lm", "demo", "demo-moe", "gqa", "latent"):
        run = ask(model_of(name), Question(TEXTS.get(name, "丐丑且丕世"), max_new_tokens=8))
        saved = bytes_per_token(run.model.core, ("check", "lens", "parts", "walk", "choices", "routes", "diff"))
        logits = sum(c.taps["logits"].nbytes for r in run.t.runs for c in r.calls if "logits" in c.taps)
        tokens = (
            len(run.t.ran().ids[0])
            if not run.model.encoder_decoder
            else max(len(run.first.ids), len(run.t.ran().ids[0]))
        )
        assert run.bytes - logits <= saved * tokens <= 1.6 * (run.bytes - logits)


def test_a_model_too_large_for_everything_keeps_attention_and_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model_of("demo-lm")
    monkeypatch.setattr("qkv.explore.question.BUDGET", 30 * bytes_per_token(lm.core, ("patterns", "lens", "routes")))
    run = ask(lm, Question(TEXTS["demo-lm"]))
    assert not run.first.full
    assert not {"walk", "parts", "shift"} & set(answers.list_panels(run))
    for what in ("meta", "thumbs", "lens", "row", "choices"):
        asked(run, what)
    assert wrong_in(run, "row") == 0
    with pytest.raises(QkvError):
        asked(run, "walk")


def wrong_in(run: Run, what: str) -> int:
    return sum(not near(v, told(line, run), what) for v, line in numbers(run, what, asked(run, what)))


def test_the_shelf_keeps_eight_and_no_more_bytes_than_allowed() -> None:
    lm, shelf = model_of("demo-lm"), RecentRuns(2, BUDGET)
    questions = [Question(t, max_new_tokens=1) for t in "abc"]
    made = [shelf.get_or_make(q.id("m"), lambda q=q: ask(lm, q)) for q in questions]
    assert list(shelf.runs) == [Question(t, max_new_tokens=1).id("m") for t in "bc"]
    assert shelf.get_or_make(Question("c", max_new_tokens=1).id("m"), lambda: pytest.fail("was kept")) is made[2]
    with pytest.raises(Refused, match="ask again") as gone:
        shelf.get(Question("a", max_new_tokens=1).id("m"))
    assert gone.value.status == 404
    small = RecentRuns(8, made[1].bytes + 1)
    for q in (Question("b", max_new_tokens=1), Question("c", max_new_tokens=1)):
        small.get_or_make(q.id("m"), lambda q=q: ask(lm, q))
    assert len(small.runs) == 1


# Bodies and bad input


def test_a_body_of_arrays_reads_back() -> None:
    found = asked(run_of("demo"), "row", part="cross")
    raw = found.body()
    size = struct.unpack("<I", raw[:4])[0]
    assert (4 + size) % 8 == 0
    head = json.loads(raw[4 : 4 + size])
    for name, x in found.arrays.items():
        spec = head["arrays"][name]
        assert spec["offset"] % 8 == 0
        assert spec["dtype"] == "f32"
        begins = 4 + size + spec["offset"]
        again = torch.frombuffer(bytearray(raw[begins : begins + 4 * x.numel()]), dtype=torch.float32)
        assert torch.equal(again.view(spec["shape"]), x)
    assert dump_json({"a": [float("nan"), float("inf"), 1.5]}) == b'{"a":[null,null,1.5]}'


def test_pooling_keeps_the_strongest_and_the_sink_can_be_left_out() -> None:
    run = ask(
        model_of("demo-lm"), Question("One, two, buckle my shoe; Three, Four, Knock at the door", max_new_tokens=12)
    )
    full, half = (asked(run, "attn", pool=p).arrays["weight"] for p in ("1", "2"))
    size = -(-len(full) // 2)
    assert half.shape == (size, size)
    assert all(half[i, j] == full[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max() for i in range(size) for j in range(size))
    plain, bare = (asked(run, "thumbs", sink=s).arrays["thumbs"] for s in ("1", "0"))
    assert max(plain.shape[2:]) <= 24
    assert (plain >= bare).all()
    assert (plain[..., 0] > bare[..., 0]).any()


@pytest.mark.parametrize(
    ("what", "said", "fault"),
    [
        ("row", {"layer": "9", "query": "0"}, "expected 0 to 3"),
        ("row", {"head": "7", "query": "0"}, "expected 0 to 3"),
        ("row", {"query": "99"}, "0 to "), ("row", {}, "whole number"), ("row", {"query": "x"}, "whole number"),
        ("attn", {"part": "cross"}, "expected decoder"), ("lens", {"topp": "3"}, "did you mean 'top'"),
        ("lenz", {}, "did you mean 'lens'"), ("choices", {"top_p": "2"}, "top_p"),
        ("choices", {"top_p": "nan"}, "number"),
        ("parts", {"by": "word"}, "sublayer, head, neuron"), ("parts", {"token": "999999"}, "vocabulary"),
        ("routes", {}, "no experts"), ("alignment", {}, "encoder-decoder"), ("diff", {}, "second"),
        ("check", {"x": "1"}, "none"),
        ("shift", {"pos": "0", "anchors": "a,b,c,d,e,f,g,h,i"}, "1 to 8 words"),
        ("proof", {"side": "encoder"}, "expected decoder"),
    ],
)
def test_bad_queries_say_what_is_allowed(what: str, said: dict[str, str], fault: str) -> None:
    run = ask(model_of("demo-lm"), Question("One, two", max_new_tokens=1))
    with pytest.raises(QkvError, match=fault):
        answer(run, what, said)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({}, "no text"), ({"text": "  "}, "no text"), ({"text": 3}, "no text"), ({"text": "a", "secnd": "b"}, "second"),
        ({"text": "a", "beam": 0}, "beam"), ({"text": "a", "max_new_tokens": 1.5}, "whole number"),
        ({"text": "a", "force": ["x"]}, "force"), ({"text": "a", "sampling": {"heat": 1}}, "temperature"),
        ({"text": "a", "sampling": {"top_k": "3"}}, "top_k"),
        ({"text": "a", "cut": {"part": "decoder"}}, "part, layer"),
        ({"text": "a", "cut": {"part": "decoder", "layer": 0, "head": 0, "kye": 1}}, "did you mean 'key'"),
        ({"text": "a", "cut": {"part": "decoder", "layer": 0, "head": 0, "query": 1}}, "query and key"),
    ],
)
def test_bad_questions_say_what_is_expected(body: dict[str, Any], fault: str) -> None:
    with pytest.raises(QkvError, match=fault) as found:
        Question.from_json(body)
    assert found.value.message.to("zh") != str(found.value)


@pytest.mark.parametrize(
    ("question", "fault"),
    [
        (Question("One", force=(10**6,)), "no id"), (Question("One", force=(-1,)), "no id"),
        (Question("One", cut=Cut("cross", 0, 0)), "this model has decoder"),
        (Question("One", cut=Cut("decoder", 8, 0)), "0 to 3"), (Question("One", cut=Cut("decoder", 0, 8)), "0 to 3"),
        (Question("One", cut=Cut("decoder", 0, 0, 90, 0), max_new_tokens=2), "had no effect"),
    ],
)
def test_bad_selectors_of_a_question(question: Question, fault: str) -> None:
    with pytest.raises(QkvError, match=fault):
        ask(model_of("demo-lm"), question)


def test_a_model_without_a_tokenizer_says_so() -> None:
    with pytest.raises(Refused, match="no tokenizer"):
        ask(Model(model_of("gqa").core), Question("a"))


def test_the_python_that_makes_the_trace_makes_it() -> None:
    run = ask(model_of("demo-lm"), Question("One, two", max_new_tokens=2, cut=Cut("decoder", 0, 1)), "demo-lm")
    scope: dict[str, Any] = {}
    exec(answer(run, "meta", {}).keys["how"], scope)
    assert torch.equal(scope["t"]["logits"], run.t["logits"])


def test_about_tells_every_kind() -> None:
    said: Callable[[str], dict[str, Any]] = lambda n: answers.describe_model(model_of(n), n, [n], "zh", []).keys  # noqa: E731
    assert [said(n)["kind"] for n in TEXTS] == ["encoder-decoder", "decoder", "encoder", "prefix"]
    assert said("demo-moe")["card"]["experts"] == {"count": 8, "chosen": 2, "shared": True}
    assert said("latent")["card"]["latent"] == {"rank": 24, "rotary": 8}
    assert dataclasses.is_dataclass(Answer)
