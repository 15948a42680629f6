"""Conversations in every form that data sets have come out as the same messages."""

from typing import Any

import pytest

from qkv.data.conversations import list_messages

USER, SAID = {"role": "user", "content": "你好"}, {"role": "assistant", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(("row", "expected"), [
    ({"messages": [USER, SAID]}, [USER, SAID]),
    ({"messages": [{**USER, "name": None}, SAID]}, [USER, SAID]),
    ({"conversations": [{"from": "human", "value": "你好"}, {"from": "gpt", "value": "Hi"}]}, [USER, SAID]),
    ({"conversations": [USER, SAID], "system": "Be brief."}, [SYSTEM, USER, SAID]),
    ({"conversation": [{"from": "system", "value": "Be brief."}, USER, SAID], "system": ""}, [SYSTEM, USER, SAID]),
    ({"instruction": "你好", "output": "Hi"}, [USER, SAID]),
    ({"instruction": "你好", "input": " ", "output": "Hi"}, [USER, SAID]),
    ({"instruction": "Sum", "input": "1 2", "output": "3", "history": [["你好", "Hi"]], "system": "Be brief."},
     [SYSTEM, USER, SAID, {"role": "user", "content": "Sum\n\n1 2"}, {"role": "assistant", "content": "3"}]),
    ({"messages": "no list"}, "no list"),
    ({"prompt": "a", "completion": "b"}, None),
])  # fmt: skip
def test_every_form_gives_messages(row: dict[str, Any], expected: object) -> None:
    assert list_messages(row) == expected
