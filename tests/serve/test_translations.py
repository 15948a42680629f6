"""Translations are the model's own, as its own clients and LibreTranslate's ask for them."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.serving import Client, asking

import qkv

LINES = ["我爱学习。", "书和茶都在桌上，我看完了它。", "我爱喝茶。", "我看完了那本书。"] * 3


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with asking("demo", "demo-lm") as found:
        yield found


def test_translations_are_the_model_s_in_their_order(client: Client) -> None:
    wanted = qkv.load("demo").translate(LINES, nbest=3, align=True)
    body = {"text": LINES, "nbest": 3, "scores": True, "align": True}
    found = client.post("/v1/translate", body).json
    assert found["model"] == "demo"
    for mine, theirs in zip(found["translations"], wanted, strict=True):
        assert mine["text"] == theirs.text
        assert mine["score"] == pytest.approx(theirs.score, abs=1e-4)
        assert [o["text"] for o in mine["others"]] == [o.text for o in theirs.others]
        weights = mine["alignment"]["weights"]
        assert (len(weights), len(weights[0])) == tuple(theirs.alignment.shape)
        assert weights[0] == pytest.approx(theirs.alignment[0].tolist(), abs=1e-5)
        assert len(mine["alignment"]["source"]) == len(weights[0])
    single = client.post("/v1/translate", {"text": LINES[0], "beam": 1}).json
    assert single["translations"][0]["text"] == qkv.load("demo").translate(LINES[0], beam=1).text


def test_a_translation_begins_as_it_is_told(client: Client) -> None:
    wanted = qkv.load("demo").translate(LINES[:4], target_prefix="She", nbest=2)
    found = client.post("/v1/translate", {"text": LINES[:4], "target_prefix": "She", "nbest": 2}).json["translations"]
    assert [row["text"] for row in found] == [r.text for r in wanted]
    assert [row["others"][0]["text"] for row in found] == [r.others[0].text for r in wanted]
    assert all(row["text"].startswith("She") for row in found)
    wrong = client.post("/v1/translate", {"text": LINES[0], "target_prefix": "zzqx"})
    assert (wrong.status, "target_prefix" in wrong.json["error"]["message"]) == (400, True)


def test_languages_of_a_model_that_has_none_are_refused(client: Client) -> None:
    for key in ("source", "target"):
        answer = client.post("/v1/translate", {"text": LINES[0], key: "zho_Hans"})
        assert answer.status == 400
        assert "zho_Hans" in answer.json["error"]["message"]


def test_a_word_that_the_vocabulary_lacks_is_said(client: Client) -> None:
    line = "我爱龘龘。"
    wanted = qkv.load("demo").translate(line)
    found = client.post("/v1/translate", {"text": line}).json["translations"][0]
    assert (found["text"], found["unknown"]) == (wanted.text, list(wanted.unknown))


def test_libretranslate_s_clients_are_answered(client: Client) -> None:
    wanted = [r.text for r in qkv.load("demo").translate(LINES[:2])]
    form = b"q=%E6%88%91%E7%88%B1%E5%AD%A6%E4%B9%A0%E3%80%82&source=zh&target=en&format=text&api_key="
    assert client.post("/translate", form, content_type="application/x-www-form-urlencoded").json == {
        "translatedText": wanted[0]}
    several = {"q": [*LINES[:2], " "], "source": "auto", "target": "en", "alternatives": 2}
    found = client.post("/translate", several).json
    assert found["translatedText"] == [*wanted, " "]
    assert [len(rows) for rows in found["alternatives"]] == [2, 2, 0]
    assert {row["language"] for row in found["detectedLanguage"]} == {"zh"}
    assert client.get("/languages").json == [
        {"code": "zh", "name": "Chinese", "targets": ["en"]}, {"code": "en", "name": "English", "targets": []}]


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("/v1/translate", {}), ("/v1/translate", {"text": 5}), ("/v1/translate", {"text": [5]}),
    ("/v1/translate", {"text": ""}), ("/v1/translate", {"text": ["我", " "]}),
    ("/v1/translate", {"text": ["我"] * 257}),
    ("/v1/translate", {"text": "我", "beam": 0}), ("/v1/translate", {"text": "我", "beam": 2, "nbest": 3}),
    ("/v1/translate", {"text": "我" * 5000}), ("/v1/translate", {"text": "我", "model": "demo-lm"}),
    ("/v1/translate", {"text": "我", "length_penalty": "x"}), ("/v1/translate", {"text": "我", "max_tokens": 0}),
    ("/translate", {"q": "我", "source": "zh", "target": "xx"}), ("/translate", {"q": "<b>我</b>", "format": "html"}),
    ("/translate", {"source": "zh"}), ("/translate", {"q": {"a": 1}}), ("/translate", {"q": "我", "alternatives": 99}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), WRONG, ids=lambda v: str(v)[:40])
def test_what_cannot_be_translated_is_refused(client: Client, path: str, body: dict[str, Any]) -> None:
    reply = client.post(path, body)
    assert reply.status == 400, reply.body
    assert reply.error["message"]


def test_errors_come_in_the_reader_s_language(client: Client) -> None:
    found = client.post("/v1/translate", {}, accept_language="zh-CN,zh;q=0.9").error
    assert found["param"] == "text"
    assert any("\u4e00" <= c <= "\u9fff" for c in found["message"])
