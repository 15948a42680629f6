"""The chance of a text, a translation or a continuation, against models that are asked for one word at a time."""

from dataclasses import replace

import pytest
import torch
from support import zoo

import qkv
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.tasks.special_tokens import with_end
from qkv.tasks.types import SpecialTokens
from qkv.tokenizers.vocabulary import train_vocabulary

SOURCE, TARGET = [5, 6, 7, 8], [9, 4, 11, 2]


def last(logits: torch.Tensor, token: int) -> float:
    return logits[0, -1].log_softmax(-1)[token].item()


@torch.no_grad()
def translated(made: qkv.Model, start: list[int]) -> float:
    """The target's chance by an encoder-decoder that reads everything anew for each token."""
    rows = [[*start, *TARGET[:i]] for i in range(len(TARGET))]
    logits = [made(source=torch.tensor([SOURCE]), target=torch.tensor([row])).logits for row in rows]
    return sum(last(each, token) for each, token in zip(logits, TARGET, strict=True))


@torch.no_grad()
def carried_on(made: qkv.Model, start: list[int], blank: int | None) -> float:
    """The same by a prefix decoder, whose prefix is the source alone."""
    core, total = made.core, 0.0
    for i, token in enumerate(TARGET):
        ids = torch.tensor([[*SOURCE, *start, *TARGET[:i]]])
        at = None if blank is None else torch.tensor([blank])
        given = Inputs(prefix_len=torch.tensor([len(SOURCE)]), blank_pos=at)
        total += last(core.head(core.hidden(ids, given)), token)
    return total


@pytest.mark.parametrize("forced", [None, 3])
@pytest.mark.parametrize("name", ["seq2seq", "two_words"])
def test_a_translation_is_scored_after_its_source(name: str, forced: int | None) -> None:
    made = qkv.Model(zoo.made(zoo.ALL[name]()), special=SpecialTokens(start=1, forced=forced, eos=(2,)))
    want = translated(made, [1] if forced is None else [1, forced])
    assert made.score((SOURCE, TARGET)) == pytest.approx(want, abs=1e-4)
    assert made.score([(SOURCE, TARGET), (SOURCE, TARGET[:1])])[0] == pytest.approx(want, abs=1e-4)


def test_a_beam_gives_its_translation_the_same_chance() -> None:
    made = qkv.Model(zoo.made(zoo.ALL["seq2seq"]()), special=SpecialTokens(start=1, eos=(2,)))
    found = made.translate(SOURCE, beam=1, max_new_tokens=6)
    assert made.score((SOURCE, found.tokens)) == pytest.approx(sum(found.logprobs), abs=1e-4)


@pytest.mark.parametrize("start", [None, 1])
def test_a_prefix_decoder_reads_what_is_given_freely(start: int | None) -> None:
    made = qkv.Model(zoo.made(zoo.ALL["parallel"]()), special=SpecialTokens(start=start))
    want = carried_on(made, [] if start is None else [start], None)
    assert made.score((SOURCE, TARGET)) == pytest.approx(want, abs=1e-4)
    assert made.score([*SOURCE, *TARGET]) - made.score(SOURCE) != pytest.approx(want, abs=1e-3), "that is causal"


@pytest.mark.parametrize("name", ["blanks", "carried"])
def test_what_fills_a_blank_knows_its_place(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = qkv.Model(zoo.made(zoo.ALL[name]()), special=SpecialTokens(start=1))
    monkeypatch.setattr("qkv.tasks.score.blank_ids", lambda _: (7,))  # the source's third id
    assert made.score((SOURCE, TARGET)) == pytest.approx(carried_on(made, [1], 2), abs=1e-4)
    assert made.score((SOURCE, TARGET)) != pytest.approx(carried_on(made, [1], 0), abs=1e-3)


def test_a_decoder_s_pair_is_the_rest_of_one_text() -> None:
    made = qkv.Model(zoo.made(zoo.ALL["gqa"]()))
    want = made.score([*SOURCE, *TARGET]) - made.score(SOURCE)
    assert made.score((SOURCE, TARGET)) == pytest.approx(want, abs=1e-4)


def test_texts_are_cut_as_one_and_a_target_has_its_end() -> None:
    tokenizer = train_vocabulary(["one two three one two", "four onetwo"] * 3, kind="bpe", size=280)
    decoder = qkv.Model(zoo.made(replace(zoo.ALL["gqa"](), vocabulary=300)), tokenizer, special=SpecialTokens(eos=(1,)))
    both, first = tokenizer.encode("one two three"), tokenizer.encode("one two")
    assert both[: len(first)] == first
    assert decoder.score(("one two", " three")) == pytest.approx(decoder.score((first, both[len(first) :])), abs=1e-5)
    core = zoo.made(replace(zoo.ALL["seq2seq"](), vocabulary=300))
    pair = qkv.Model(core, tokenizer, special=SpecialTokens(start=0, eos=(1,)))
    assert with_end(pair, "two") == [*tokenizer.encode("two"), 1]
    assert with_end(pair, [4]) == [4]
    assert pair.score(("one", "two")) == pytest.approx(pair.score((tokenizer.encode("one"), with_end(pair, "two"))))


@pytest.mark.parametrize(("name", "text", "says"), [
    ("seq2seq", SOURCE, "found one text, expected two"),
    ("gqa", (SOURCE, TARGET, TARGET), "found 3 texts in a tuple, expected two"),
    ("gqa", [3], "at least two tokens"),
    ("gqa", (SOURCE, []), "at least two tokens"),
    ("seq2seq", (SOURCE, [4] * 5000), "and the model reads at most"),
])  # fmt: skip
def test_what_cannot_be_scored_is_told(name: str, text: object, says: str) -> None:
    made = qkv.Model(zoo.made(zoo.ALL[name]()), special=SpecialTokens(start=1))
    with pytest.raises(QkvError, match=says):
        made.score(text)


def test_a_chance_is_the_sum_over_tokens():
    made = qkv.Model(zoo.made(zoo.ALL["gqa"]()))
    ids = [4, 9, 2, 7]
    with torch.no_grad():
        logits = made(torch.tensor([ids])).logits[0].log_softmax(-1)
    want = sum(logits[i, ids[i + 1]].item() for i in range(3))
    assert made.score(ids) == pytest.approx(want, abs=1e-4)
