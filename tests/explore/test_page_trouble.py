"""What goes wrong for a reader of the page, in a real browser: web/tests/trouble.mjs."""


import pytest
from support import browsing

import qkv
from qkv.explore import server

EXAMPLES = {"demo": ["书和茶都在桌上，我看完了它。"], "demo-lm": ["One, two,"]}


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_long_texts_two_tabs_strangers_zoom_and_a_keyboard_alone() -> None:
    browsing.chromium()
    desk = server.Desk(list(EXAMPLES), qkv.load, examples=EXAMPLES)
    page = server.Page(desk)
    url = page.start()
    try:
        assert browsing.browsed("trouble.mjs", url) == []
    finally:
        page.stop()
