"""Stop strings against a search in the whole text, whatever the pieces."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import QkvError
from qkv.generation import sequence
from qkv.generation.sequence import DecodeOptions, Sequence, StopFilter, Writer


def whole(text: str, stops: tuple[str, ...]) -> str:
    """The text before the first stop string to become complete, reading one character after another."""
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stops if text[:end].endswith(s)]
        if starts:
            return text[: min(starts)]
    return text


texts = st.text("ab好", max_size=14)
stop_strings = st.lists(st.text("ab好", min_size=1, max_size=4), max_size=3).map(tuple)


def pushed(text: str, cuts: list[int], stops: tuple[str, ...]) -> list[str]:
    held, edges = StopFilter(stops), [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    shown = [held.push(text[a:b]) for a, b in pairwise(edges)]
    return [*shown, held.end()]


@settings(max_examples=300, deadline=None)
@given(texts, st.lists(st.integers(0, 14), max_size=6), stop_strings)
def test_any_cut_into_pieces_gives_the_same_text(text, cuts, stops):
    shown = pushed(text, cuts, stops)
    assert "".join(shown) == whole(text, stops)


@settings(max_examples=100, deadline=None)
@given(texts, stop_strings)
def test_what_cannot_begin_a_stop_string_is_shown_at_once(text, stops):
    held, shown = StopFilter(stops), ""
    for n, c in enumerate(text, 1):
        shown += held.push(c)
        if held.stopped:
            return
        waiting = text[len(shown) : n]
        assert waiting == "" or any(s.startswith(waiting) for s in stops)


def test_without_holding_back_the_property_would_fail(monkeypatch):
    monkeypatch.setattr(sequence, "overlap", lambda text, stop: 0)
    assert "".join(pushed("xaby", [2], ("ab",))) != whole("xaby", ("ab",))


class Bytes:
    """A stream of UTF-8 bytes as ids: half a character is kept until it is whole."""

    def __init__(self) -> None:
        self.waiting = b""

    def push(self, token: int) -> str:
        self.waiting += bytes([token])
        try:
            text, self.waiting = self.waiting.decode(), b""
        except UnicodeDecodeError:
            return ""
        return text

    def end(self) -> str:
        text, self.waiting = self.waiting.decode(errors="replace"), b""
        return text


def written(ids: bytes, options: DecodeOptions, room: int = 99) -> tuple[Sequence, list[str]]:
    row = Sequence((1,))
    writer = Writer(row, options, room)
    shown = []
    for token in ids:
        shown.append(writer.write(token, -1.0))
        if row.finish_reason:
            break
    return row, shown


def test_a_row_ends_at_the_end_id_which_is_a_token_but_no_text():
    row, shown = written("书好\0x".encode(), DecodeOptions(eos=(0,), text_stream=lambda _: Bytes()))
    assert (row.text, row.finish_reason, row.tokens[-1], len(row.logprobs)) == ("书好", "stop", 0, 7)
    assert shown == ["", "", "书", "", "", "好", ""]


def test_a_partial_match_at_the_end_is_released():
    row, shown = written(b"hello STO\0", DecodeOptions(eos=(0,), stop_strings=("STOP",), text_stream=lambda _: Bytes()))
    assert (row.text, row.finish_reason) == ("hello STO", "stop")
    assert shown[-1] == "STO"
    row, shown = written(b"hello STO", DecodeOptions(stop_strings=("STOP",), text_stream=lambda _: Bytes()), room=9)
    assert (row.text, row.finish_reason, "".join(shown)) == ("hello STO", "length", "hello STO")


def test_a_stop_string_ends_the_row_and_stays_out_of_the_text():
    row, shown = written(b"one\n\ntwo", DecodeOptions(stop_strings=("\n\n",), text_stream=lambda _: Bytes()))
    assert (row.text, row.finish_reason, "".join(shown), len(row.tokens)) == ("one", "stop_string", "one", 5)
    row, _ = written(b"one\n\n", DecodeOptions(stop_strings=("\n\n",), text_stream=lambda _: Bytes()), room=5)
    assert row.finish_reason == "stop_string"


def test_half_a_character_at_the_limit_is_marked_not_lost():
    row, shown = written("书".encode()[:2], DecodeOptions(text_stream=lambda _: Bytes()), room=2)
    assert (row.text, shown) == ("\ufffd", ["", "\ufffd"])


def test_impossible_stops_and_limits_are_named():
    with pytest.raises(QkvError, match="empty string"):
        DecodeOptions(stop_strings=("",), text_stream=lambda _: Bytes())
    with pytest.raises(QkvError, match="tokenizer"):
        DecodeOptions(stop_strings=("x",))
    with pytest.raises(QkvError, match="max_new_tokens: found 0"):
        DecodeOptions(0)
