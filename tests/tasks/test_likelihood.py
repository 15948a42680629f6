"""Last words and choices against a slow way: one token at a time, through the model's own call."""

import json
import math
from pathlib import Path

import pytest
import torch
from support.characters import decoder

from qkv.errors import QkvError
from qkv.model import Model

LINES = ["the cat sat on the mat.", "我喜欢\t苹果。", "the cat sat on a mat", "我在家。你喜欢茶\t吗？"]


def put(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def predict_slowly(model: Model, before: str, after: str) -> tuple[float, bool]:
    """The log-probability of the ids of `after`, and whether each is the likeliest."""
    ids, total, best = model.ids(before), 0.0, True
    for token in model.ids(after):
        chances = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        total, best, ids = total + chances[token].item(), best and int(chances.argmax()) == token, [*ids, token]
    return total, best


def test_last_words_are_predicted_token_by_token(tmp_path: Path) -> None:
    model = decoder(context=48)
    parts = [tuple(line.split("\t")) if "\t" in line else (line[: line.rindex(" ")], line[line.rindex(" ") :])
             for line in LINES]  # fmt: skip
    likely = model.generate(LINES[0], max_new_tokens=1).text  # one that it does predict
    parts.append((LINES[0], likely))
    path = put(tmp_path, "f.txt", "\n".join([*LINES, f"{LINES[0]}\t{likely}"]) + "\n")
    seen: list[tuple[int, int]] = []
    found, slow = model.eval(last_word=path, tell=lambda *n: seen.append(n)), [predict_slowly(model, *p) for p in parts]
    assert (found.right, found.texts, seen[-1]) == (sum(best for _, best in slow), 5, (5, 5))
    assert found.right >= 1
    assert found.perplexity == pytest.approx(math.exp(-sum(total for total, _ in slow) / 5), rel=1e-4)
    with pytest.raises(QkvError, match=r"g\.txt:2: found one word"):
        model.eval(last_word=put(tmp_path, "g.txt", "a b\n我喜欢苹果\n"))


def test_the_likeliest_choice_is_taken_with_and_without_length(tmp_path: Path) -> None:
    model, rows = decoder(context=64), list[str]()
    asked = [("the cat", ["sat on the mat", "mat", "on"]), ("我喜欢", ["茶", "苹果，我在家"]), ("你", ["c", "d"])]
    for question, choices in asked:
        slow = [predict_slowly(model, question, (" " if question[-1] < "\u2e80" else "") + c)[0] for c in choices]
        each = [s / len(c.encode()) for s, c in zip(slow, choices, strict=True)]
        best, answer = slow.index(max(slow)), each.index(max(each))
        rows.append(json.dumps({"question": question, "choices": choices, "answer": choices[answer]}))
        asked[asked.index((question, choices))] = (question, [str((best, answer))])
    found = model.eval(choice=put(tmp_path, "f.jsonl", "\n".join(rows)))
    assert [str(pair) for pair in found.chosen] == [said for _, (said,) in asked]
    assert found.normalized_accuracy == 1.0
    assert found.accuracy == sum(a == b for a, b in found.chosen) / 3
    assert found.chance == pytest.approx((1 / 3 + 1 / 2 + 1 / 2) / 3)


@pytest.mark.parametrize(("row", "key"), [
    ({"question": "a", "choices": ["b"], "answer": 0}, "choices"),
    ({"question": "a", "choices": ["b", "c"], "answer": 2}, "answer"),
    ({"question": "a", "choices": ["b", "c"], "answer": "d"}, "answer"),
    ({"question": "a", "choices": ["b", "c"], "answer": True}, "answer"),
    ({"choices": ["b", "c"], "answer": 0}, "question"),
])  # fmt: skip
def test_a_broken_question_is_named(row: dict, key: str, tmp_path: Path) -> None:
    with pytest.raises(QkvError, match=rf"f\.jsonl:1: .*{key}"):
        decoder().eval(choice=put(tmp_path, "f.jsonl", json.dumps(row)))
