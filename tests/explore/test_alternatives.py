"""Arrow keys walk through what a model could have written; on a real terminal `qkv look` ends with them."""

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

import qkv
from qkv.explore.alternatives import Branch, walk_alternatives
from qkv.messages import Message

UP, DOWN, RIGHT, LEFT = "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D"


def english(template: str, **fields: object) -> str:
    return Message(template, **fields)


def typed(*keys: str) -> Iterator[str]:
    yield from keys


TEXTS = {"demo-lm": "One, two,", "demo": "我爱喝茶。", "demo-moe": "我爱喝茶。"}


@pytest.mark.parametrize(("name", "text"), TEXTS.items())
def test_the_first_choices_are_what_the_model_writes_greedily(name: str, text: str) -> None:
    model = qkv.load(name, device="cpu")
    branch = Branch(model, model.ids(text))
    for _ in range(4):
        branch.press(RIGHT)
    written = model.translate([text], beam=1)[0] if model.encoder_decoder else model.generate(text, max_new_tokens=4)
    assert branch.written == list(written.tokens[:4])


def test_another_word_is_written_taken_back_and_chances_are_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    model = qkv.load("demo-lm", device="cpu")
    ids = model.ids("One, two,")
    logits = model(torch.tensor([ids])).logits[0, -1].detach()  # pyright: ignore[reportOptionalSubscript]
    order = logits.argsort(descending=True).tolist()
    keys = typed(DOWN, DOWN, UP, RIGHT, "x", RIGHT, LEFT, "q")
    branch = walk_alternatives(model, "One, two,", english, lambda: next(keys))
    assert branch.written == [order[1]]  # the second likeliest; one more was written and taken back
    chance = float(logits.softmax(-1)[order[0]])
    assert Branch(model, ids).list_next()[0] == (order[0], pytest.approx(chance, abs=1e-6))
    out = capsys.readouterr().out
    assert f"{chance:6.1%}" in out
    assert "↑↓ choose" in out


def test_a_context_that_is_full_ends_where_generate_does() -> None:
    model = qkv.load("demo-lm", device="cpu")
    model.special = replace(model.special, eos=())
    longest = model.spec.context or 0
    ids = (model.ids("One, two, three, four, ") * longest)[: longest - 3]
    branch, written = Branch(model, ids), model.generate(ids)
    assert len(written.tokens) == 4
    for _ in range(6):
        branch.press(RIGHT)
    assert branch.written == list(written.tokens)


def test_an_end_token_ends_and_left_goes_on() -> None:
    model = qkv.load("demo", device="cpu")
    branch = Branch(model, model.ids("我爱喝茶。"))
    while not branch.ended:
        assert branch.press(RIGHT)
    assert branch.list_next() == []
    assert "(it ends here)" in "\n".join(branch.compose_lines(english))
    branch.press(RIGHT)
    assert branch.press(LEFT)
    assert branch.list_next()
    assert not branch.press("\x1b")
    assert not branch.press("")  # the keyboard was closed


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pty")
def test_on_a_real_terminal_the_keys_reach_it() -> None:
    import pty

    code = "from qkv.cli import main; raise SystemExit(main(['look', 'demo-lm', 'One, two,', '--lang', 'en']))"
    child, terminal = pty.fork()
    if child == 0:
        os.environ.pop("CI", None)
        os.execv(sys.executable, [sys.executable, "-c", code])
    said = heard(terminal, b"q ends")
    more, status = "", -1
    for _ in range(20):  # what is typed before the terminal is set for single keys is thrown away
        os.write(terminal, DOWN.encode())
        if "\x1b[J" in (more := heard(terminal, b"q ends", 2).decode()):
            break
    for _ in range(20):
        with suppress(OSError):
            os.write(terminal, b"q")
        heard(terminal, b"never", 2)
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
    assert os.waitstatus_to_exitcode(status) == 0
    assert "▸" in said.decode()
    assert more.count("▸") >= 1


def heard(terminal: int, until: bytes, seconds: float = 60) -> bytes:
    """What a terminal says until it has said something, or so many seconds."""
    said, end = b"", time.monotonic() + seconds
    with suppress(OSError):  # Linux says so when the other side is gone
        while until not in said and time.monotonic() < end:
            if select.select([terminal], [], [], 0.2)[0]:
                said += os.read(terminal, 4096)
    return said
