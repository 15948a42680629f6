"""Words of our names become words of theirs; what no word can say is left over."""

from qkv.specialize.naming import match_words


def test_words_take_what_is_left_of_theirs_or_nothing() -> None:
    pairs = [("layers.*.attn.q", "h.*.attention.self.query"), ("layers.*.ffn.up", "h.*.fc1")]
    words = {"layers": "h", "attn": "attention", "q": "self.query", "ffn": "", "up": "fc1"}
    assert match_words(pairs) == (words, set())


def test_a_name_that_no_word_can_say_is_left_over() -> None:
    pairs = [("attn.q", "attention.query"), ("attn.k", "attention.key"), ("attn.out", "output")]
    words, failed = match_words(pairs)
    assert words == {"attn": "attention", "q": "query", "k": "key"} | ({} if failed else {"out": "output"})
    assert failed == {("attn.out", "output")}
