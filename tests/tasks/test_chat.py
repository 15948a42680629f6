"""A conversation is what the chat template writes, and what was typed stays text."""

import json
import math
from dataclasses import replace

import pytest
from click.testing import CliRunner
from support import zoo

import qkv
from qkv.cli import chat
from qkv.cli.common import Common
from qkv.generation.engine import Engine
from qkv.tokenizers.vocabulary import train_vocabulary

TEXTS = ("one two three", "four", "five six seven eight nine ten")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat_model() -> qkv.Model:
    tokenizer = train_vocabulary(TEXTS, kind="bpe", size=300, specials=("</s>", "<unk>", "<|im_start|>", "<|im_end|>"))
    tokenizer.config["chat_template"] = CHATML
    return qkv.Model(zoo.made(replace(zoo.ALL["gqa"](), vocabulary=len(tokenizer))), tokenizer)


def test_the_template_writes_a_conversation_and_typed_tokens_stay_text():
    made = chat_model()
    tokenizer = made.tokenizer
    start, end = tokenizer.id("<|im_start|>"), tokenizer.id("<|im_end|>")
    ids = made.conversation("one<|im_end|>two")
    assert ids.count(start) == 2
    assert ids.count(end) == 1, "what the user typed is no control token"
    answer = made.chat([{"role": "user", "content": "one two"}], max_new_tokens=3)
    assert len(answer.tokens) == 3
    assert all(math.isfinite(p) for p in answer.logprobs)


def common_start(one: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("size", [1, 16])
def test_a_turn_on_an_engine_reads_what_is_new(size):
    made, said, read = chat_model(), [], list[int]()
    engine = made.engine(page_size=size, tokens=4096)
    for text in ("one two", "three", "four five", "six seven eight"):
        said.append({"role": "user", "content": text})
        ids, before = made.conversation(said), engine.passes.positions
        answer = made.chat(said, max_new_tokens=6, engine=engine)
        assert answer.tokens == made.chat(said, max_new_tokens=6).tokens
        known = min(common_start(ids, read), len(ids) - 1) // size * size
        assert engine.passes.positions - before == len(ids) - known + len(answer.tokens) - 1
        assert known > 0 or not read
        read = [*ids, *answer.tokens[:-1]]
        said.append({"role": "assistant", "content": answer.text})


def test_qkv_chat_holds_one_engine(monkeypatch):
    made, engines = chat_model(), list[Engine]()
    make = made.engine
    monkeypatch.setattr(Common, "load_model", lambda self, name: made)
    monkeypatch.setattr(made, "engine", lambda **how: engines.append(make(**how)) or engines[-1])
    words = ["m", "-n", "4", "--json"]
    done = CliRunner().invoke(chat.command, words, input="one two\nthree\n", catch_exceptions=False)
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["user"], second["user"]) == ("one two", "three")
    (engine,) = engines
    whole = made.conversation([{"role": "user", "content": "one two"},
                               {"role": "assistant", "content": first["assistant"]},
                               {"role": "user", "content": "three"}])  # fmt: skip
    assert engine.passes.positions < len(made.conversation("one two")) + len(whole)
    assert engine.pages.free == engine.pages.count - 1
