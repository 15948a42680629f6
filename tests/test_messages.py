"""Messages: English templates with fields in the code, their Chinese in the catalogue, the whole of it and no more."""

import ast
import copy
import json
import pickle
import re
from pathlib import Path

import catalogue
import pytest

from qkv.cli.train import describe_event
from qkv.errors import QkvError, nearest
from qkv.messages import Given, Message, Trimmed, join, translate_value

HAN = re.compile("[\u3400-\u9fff\uff00-\uffef\u3000-\u303f]")
# Files whose Chinese is for models, tokenizers and readers of data, not for people: sentences, words, marks, alphabets.
SENTENCES = {
    "labs": {"analogy", "antecedent", "apple", "arms", "bahdanau", "cache_exact", "one_character",
             "parallel_equals_serial", "temperature_and_top_p", "wo_sum",
             "__init__"},
    "cli": {"classify", "demo", "embed", "fill", "look", "serve", "translate"},
    "explore": {"guesses", "embeddings", "record", "scenes"},
    "data": {"columns", "formats", "sources"},
    "tokenizers": {"vocabulary"}, "objectives": {"denoise"}, "tasks": {"evaluate"},
}  # fmt: skip


def test_a_message_is_its_english_and_keeps_template_and_fields() -> None:
    said = Message("{path}: found {count:,} rows", path="a.tsv", count=1234)
    assert said == "a.tsv: found 1,234 rows"
    assert (said.template, said.fields["count"]) == ("{path}: found {count:,} rows", 1234)
    assert json.dumps(said) == '"a.tsv: found 1,234 rows"'
    assert Message("no field: {braces}") == "no field: {braces}"
    assert Message(said) is said
    assert said.to("zh") == said  # a template that the catalogue lacks
    for again in (copy.deepcopy(said), pickle.loads(pickle.dumps(said))):  # noqa: S301
        assert (again, again.template, again.fields) == (said, said.template, said.fields)


def test_fields_that_are_messages_are_translated_too() -> None:
    hint = nearest("trane", ["train"])
    said = QkvError("{path}: no such file or directory{hint}", path="x", hint=hint)
    assert str(said) == "x: no such file or directory; did you mean 'train'?"
    assert translate_value(said, "zh") == "x：没有这个文件；是不是 'train'？"
    wrapped = QkvError("{name}: {e}", name="a", e=said)
    assert translate_value(wrapped, "zh").endswith("x：没有这个文件；是不是 'train'？")
    assert copy.copy(said).message.to("zh") == said.message.to("zh")
    both = join(", ", [hint, "b"])
    assert (both, both.to("zh")) == ("; did you mean 'train'?, b", "；是不是 'train'？、b")
    assert pickle.loads(pickle.dumps(both)).to("zh") == both.to("zh")  # noqa: S301
    assert Trimmed(said.message, "^x(?:: |：)").to("zh") == "没有这个文件；是不是 'train'？"
    given = Given({"en": "two", "zh": "二"})
    assert (given, given.to("zh"), copy.deepcopy(given).to("zh")) == ("two", "二", "二")


def test_an_error_has_a_code_where_it_was_given_one() -> None:
    assert (QkvError("a").code, QkvError("{n} rows", n=2, code="data.rows").code) == ("", "data.rows")


def test_a_note_of_a_run_is_shown_in_the_language_of_the_reader() -> None:
    event = {"kind": "note", "step": 0, "text": Message("training ended", )}
    assert describe_event(event) == ["training ended"]
    assert describe_event(event, lambda text, **fields: f"<{Message(text, **fields)}>") == ["<training ended>"]


def test_every_template_has_a_translation_with_the_same_fields() -> None:
    known, wanted = catalogue.read(), catalogue.templates()
    assert len(wanted) > 1500
    assert catalogue.faults(known, wanted) == []


def test_the_compiled_catalogue_is_that_of_the_text() -> None:
    assert catalogue.is_current(catalogue.read())


def test_a_fault_of_the_catalogue_is_found() -> None:
    faults = catalogue.faults({"{n} rows": "行", "{n} file{plural}": "{n} 个文件", "gone": "没了"},
                              {"{n} rows", "new", "{n} file{plural}"})  # fmt: skip
    assert [fault.partition(":")[0] for fault in faults] == ["no translation", "not in the code", "other fields"]


@pytest.mark.parametrize("path", sorted(catalogue.PACKAGE.rglob("*.py")), ids=lambda p: p.stem)
def test_no_chinese_stands_in_code(path: Path) -> None:
    """But sentences and words for models; an English message may name a Chinese word."""
    if catalogue.CORPUS in path.parents or path.stem in SENTENCES.get(path.parent.name, ()):
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {id(node.body[0].value) for node in ast.walk(tree)
                  if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                  and node.body and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
             and id(node) not in documented]  # fmt: skip
    assert [t for t in texts if len(HAN.findall(t)) > len(re.findall("[A-Za-z]", t)) / 3] == []


def test_no_message_is_given_in_two_languages() -> None:
    for path in catalogue.PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                assert not [k for k in node.keywords if k.arg == "zh"], f"{path}:{node.lineno}"
