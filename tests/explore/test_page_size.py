"""The page at the size of real models, in a real browser: 30 layers of 32 heads, and a text of 2,000 tokens."""

import pytest
from explore.test_answers import WORDS, Letters
from support import browsing, zoo

from qkv.explore import server
from qkv.model import Model
from qkv.spec import Attention, Block, Ffn, Head, Mask, Norm, Rotary, Spec, Stack
from qkv.tasks.types import SpecialTokens

LONG = "".join(WORDS[3 + i * 7 % 90] for i in range(2000))


def thirty_by_thirty_two() -> Spec:
    attn = Attention(32, 8, 4, Mask("causal"), rotary=Rotary(4))
    block = Block(attn, Ffn(32, "silu", gated=True), norm_in=Norm("rms", 1e-6))
    return Spec(97, Stack(32, (block,) * 30, final_norm=Norm("rms", 1e-6)), head=Head("untied"))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_heads_and_guesses_stay_in_sight_at_the_size_of_real_models() -> None:
    browsing.chromium()
    model = Model(zoo.made(thirty_by_thirty_two()), Letters(), SpecialTokens(forbid=(0,)))  # type: ignore[arg-type]
    first = {"text": LONG, "max_new_tokens": 8}
    desk = server.Desk(["drawn"], lambda _: model, "en", {"drawn": [LONG[:20]]}, first=first)
    page = server.Page(desk)
    url = page.start()
    try:
        browsing.browsed("size.mjs", url)
    finally:
        page.stop()
