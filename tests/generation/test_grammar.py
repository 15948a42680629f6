"""Texts that a grammar guides are texts of the grammar, whatever the tokens; one that nothing follows ends at once."""

import json
import random
import re
import sys
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

import qkv
from qkv.errors import QkvError
from qkv.generation import grammar
from qkv.generation.beam import Search, beam
from qkv.generation.engine import Engine, generate
from qkv.generation.grammar import Grammar, build_grammar
from qkv.generation.sequence import DecodeOptions
from qkv.sampling import Sampling
from qkv.tokenizers.tokenizer import Tokenizer

pytest.importorskip("llguidance", reason="grammars need llguidance: pip install 'qkv[serve]'")


@pytest.fixture(scope="module")
def lm() -> qkv.Model:
    return qkv.load("demo-lm")


def draw_schema(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema whose every value is short, so that it ends within the context."""
    kinds = ["integer", "boolean", "string", "enum", "null"] + (["object", "array"] if depth < 2 else [])
    match draw.choice(kinds):
        case "integer":
            low = draw.randint(-50, 50)
            return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 99)}
        case "string":
            return {"type": "string", "maxLength": draw.randint(1, 5)}
        case "enum":
            return {"enum": draw.sample(["red", "blue", 3, None, True, "你好"], draw.randint(1, 4))}
        case "object":
            names = draw.sample(["name", "age", "x y", "id"], draw.randint(1, 2))
            return {"type": "object", "properties": {n: draw_schema(draw, depth + 1) for n in names},
                    "required": draw.sample(names, draw.randint(0, len(names))), "additionalProperties": False}
        case "array":
            least = draw.randint(0, 1)
            return {"type": "array", "items": draw_schema(draw, depth + 1), "maxItems": 2, "minItems": least}
        case kind:
            return {"type": kind}


def follows(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is one of the schema: the few words of it that are drawn above."""
    if "enum" in schema:
        return any(value == one and type(value) is type(one) for one in schema["enum"])
    match schema["type"]:
        case "integer":
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case "string":
            return isinstance(value, str) and len(value) <= schema["maxLength"]
        case "object":
            return (isinstance(value, dict) and set(schema["required"]) <= set(value) <= set(schema["properties"])
                    and all(follows(one, schema["properties"][name]) for name, one in value.items()))
        case "array":
            return (isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
                    and all(follows(one, schema["items"]) for one in value))
        case "boolean":
            return isinstance(value, bool)
    return value is None


def test_a_hundred_schemas_give_json_that_follows_them(lm):
    draw = random.Random(7)
    options = DecodeOptions(120, eos=lm.special.eos, text_stream=lm.tokenizer.stream)
    for n in range(100):
        schema = draw_schema(draw)
        guide = build_grammar("json_schema", json.dumps(schema), lm.tokenizer, lm.spec.vocabulary, lm.special.eos)
        how = Sampling(1.5 * (n % 2), seed=n)
        rows = generate(lm.core, [lm.ids("One, two,")] * 2, sampling=how,
                        options=DecodeOptions(**{**vars(options), "guides": (guide,)}))
        for row in rows:
            assert row.finish_reason == "stop", schema
            assert follows(json.loads(row.text), schema), (schema, row.text)


@pytest.mark.parametrize(("kind", "source", "pattern"), [
    ("regex", "[0-9]{3}-[0-9]{4}", "[0-9]{3}-[0-9]{4}"), ("regex", "(yes|no), 你好.", "(yes|no), 你好."),
    ("grammar", 'start: "(" in ")"\nin: "a" | "(" "b" ")"\n', r"\((a|\(b\))\)"),
    ("grammar", "start: /[a-c]{2,5}/\n", "[a-c]{2,5}"),
])
def test_a_text_is_one_of_its_grammar_drawn_searched_and_in_the_engine(lm, kind, source, pattern):
    for how in ({}, {"temperature": 1.2, "seed": 3}, {"beam": 3}):
        result = lm.generate("One, two,", max_new_tokens=60, **{kind: source}, **how)
        assert re.fullmatch(pattern, result.text)
        assert result.finish_reason == "stop"
    assert "".join(lm.stream("One, two,", max_new_tokens=60, **{kind: source})) == lm.generate(
        "One, two,", max_new_tokens=60, **{kind: source}).text
    guide = build_grammar(kind, source, lm.tokenizer, lm.spec.vocabulary, lm.special.eos)
    options = DecodeOptions(60, eos=lm.special.eos, guides=(guide,), text_stream=lm.tokenizer.stream)
    engine = Engine(lm.core)
    asked = [engine.submit(lm.ids("One, two,"), options, sampling=Sampling(0.0)),
             engine.submit(lm.ids("One, two,"), DecodeOptions(8, eos=lm.special.eos)),
             engine.submit(lm.ids("One, two,"), options, search=Search(3, length_penalty=0.0))]
    first, free, searched = (handle.result() for handle in asked)
    assert first.text == lm.generate("One, two,", max_new_tokens=60, **{kind: source}).text
    assert free.tokens == lm.generate("One, two,", max_new_tokens=8).tokens, "its neighbour obeys nothing"
    assert re.fullmatch(pattern, searched.text)


def test_the_guided_text_is_the_likeliest_of_the_grammar(lm):
    words = ["three", "a horse", "no", "Humpty"]
    best = max(words, key=lambda word: sum(
        beam(lm.core, [lm.ids("One, two,")], search=Search(8, length_penalty=0.0), options=DecodeOptions(
            30, eos=lm.special.eos, guides=(build_grammar("regex", word, lm.tokenizer, lm.spec.vocabulary,
                                                          lm.special.eos),)))[0][0].logprobs))
    found = lm.generate("One, two,", beam=64, regex="|".join(words))
    assert found.text == best


def make_tokenizer(kind: str) -> Tokenizer:
    """A byte-level one, one of byte pieces as sentencepiece has them, and one of pieces with ▁."""
    specials = ["</s>"]
    if kind == "byte-level":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        words = [*specials, *alphabet, "Ġth", '{"', '":']
        backend = Backend(models.BPE({w: i for i, w in enumerate(words)}, []))
        backend.decoder = decoders.ByteLevel()
    else:
        pieces = ["▁", "a", "b", "0", "1", "2", '"', "{", "}", ":", ",", "▁a", "x", "▁{"]
        bytes_ = [f"<0x{b:02X}>" for b in range(256)] if kind == "byte pieces" else []
        backend = Backend(models.Unigram([(w, -1.0) for w in ["<unk>", *specials, *pieces, *bytes_]], unk_id=0,
                                         byte_fallback=bool(bytes_)))
        steps = [decoders.ByteFallback(), decoders.Fuse()] if bytes_ else [decoders.Fuse()]
        backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), *steps])
    backend.add_special_tokens(specials)
    return Tokenizer(backend, eos="</s>", unk="<unk>")


@pytest.mark.parametrize("kind", ["byte-level", "byte pieces", "pieces"])
def test_every_kind_of_token_is_guided(kind):
    tokenizer = make_tokenizer(kind)
    size, ends = len(tokenizer) + 3, (tokenizer.eos_id,)  # a vocabulary that is padded
    for source in ("[ab]{3}[012]", '\\{"a": [0-2]\\}', "x a"):
        guide = build_grammar("regex", source, tokenizer, size, ends)
        draw, tokens = random.Random(1), []
        while not tokens or tokens[-1] not in ends:
            barred = torch.zeros(size, dtype=torch.bool)
            guide.bar(barred)
            tokens.append(draw.choice((~barred).nonzero()[:, 0].tolist()))
            guide = guide.follow(tokens[-1])
        assert re.fullmatch(source, tokenizer.decode(tokens))
    if kind == "byte pieces":
        assert build_grammar("regex", "你", tokenizer, size, ends)
    for name, source in (("regex", "你"), ("regex", "~[0-2]"), ("json_schema", '{"const": ["~"]}')):
        if kind == "pieces":  # which have no such characters
            with pytest.raises(QkvError) as caught:
                build_grammar(name, source, tokenizer, size, ends)
            assert caught.value.code == "grammar"
        else:
            build_grammar(name, source, tokenizer, size, ends)


@pytest.mark.parametrize("given", [
    {"regex": "(a"}, {"regex": "[^\\s\\S]"}, {"json_schema": False}, {"json_schema": "{"}, {"json_schema": [1]},
    {"json_schema": {"type": "integer", "minimum": 5, "maximum": 1}}, {"json_schema": {"enum": []}},
    {"json_schema": {"type": "nonsense"}}, {"json_schema": {"not": {}}}, {"grammar": 'start: "a" | b'},
    {"grammar": "begin: /a/"},
])  # fmt: skip
def test_a_grammar_that_nothing_follows_ends_before_anything_is_written(lm, given, monkeypatch):
    monkeypatch.setattr(type(lm.core), "forward", lambda *a, **k: pytest.fail("something was read"))
    for write in (lm.generate, lm.stream):
        with pytest.raises(QkvError) as caught:
            write("One, two,", **given)
        assert caught.value.code == "grammar"
        assert next(iter(given)) in str(caught.value)


def test_a_dead_end_on_the_way_is_an_error_of_its_request_alone(lm):
    options = DecodeOptions(9, eos=lm.special.eos)
    source = 'start: FIRST rest\nFIRST: /[a-c]/\nrest: "a" rest\n'
    endless = build_grammar("grammar", source, lm.tokenizer, lm.spec.vocabulary, lm.special.eos)
    engine = Engine(lm.core)
    bad = engine.submit([5], DecodeOptions(9, eos=lm.special.eos, guides=(endless,)))
    good = engine.submit([5], options)
    assert good.result().tokens == generate(lm.core, [[5]], options=options)[0].tokens
    with pytest.raises(QkvError) as caught:
        bad.result()
    assert caught.value.code == "no-token"


def test_what_cannot_be_guided_is_said(lm, monkeypatch):
    for name, given in (("demo-moe", {"regex": "a"}),):
        with pytest.raises(QkvError) as caught:
            qkv.load(name).generate("我", **given)
        assert caught.value.code == "grammar"
    with pytest.raises(QkvError) as caught:
        lm.generate("One", regex="a", json_schema={})
    assert caught.value.code == "contradiction"
    with pytest.raises(QkvError) as caught:
        build_grammar("regex", "a", None, 10, (1,))
    assert caught.value.code == "grammar"
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.setattr(lm.tokenizer, "grammar_tokens", None)
    with pytest.raises(QkvError, match=r"qkv\[serve\]") as caught:
        lm.generate("One", regex="a")
    assert caught.value.code == "no-llguidance"


@pytest.mark.parametrize(("name", "wrong"), [
    ("bar", lambda self, barred: None), ("follow", lambda self, token: self),
])  # fmt: skip
def test_a_fault_is_noticed(lm, name, wrong, monkeypatch):
    monkeypatch.setattr(Grammar, name, wrong)
    with pytest.raises((AssertionError, QkvError, ValueError)):
        test_a_hundred_schemas_give_json_that_follows_them(lm)


def test_the_tokens_of_a_tokenizer_are_listed_once(lm, monkeypatch):
    lm.generate("One", regex="a")
    monkeypatch.setattr(grammar, "prepare_tokens", lambda *a: pytest.fail("listed again"))
    lm.generate("One", regex="b")
