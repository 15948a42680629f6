"""A real checkpoint from end to end: stories260K says its published text byte for byte, and what transformers says."""

from pathlib import Path

import pytest
import torch
from support import stories

import qkv

NEAR = 1e-4  # two likeliest logits closer than this may change places between two implementations
WRITTEN = 256  # the author's program stops after so many tokens unless told otherwise

pytestmark = [
    pytest.mark.needs_data,
    pytest.mark.skipif(not stories.source().is_dir(), reason=f"no {stories.source()}; set QKV_DATA"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stories.convert(tmp_path_factory.mktemp("stories260K"))


@pytest.mark.parametrize("how", [{}, {"chunk": 1}, {"cache": False}], ids=["cached", "chunks", "uncached"])
def test_the_published_text_comes_byte_for_byte(directory: Path, how: dict[str, object]) -> None:
    model = qkv.load(directory, dtype="fp32")
    result = model.generate([1], max_new_tokens=WRITTEN, **how)
    assert result.text.encode() == stories.published().encode()
    assert result.finish_reason == "length"


def test_the_stream_is_the_text_and_one_token_more_goes_on(directory: Path) -> None:
    model = qkv.load(directory, dtype="fp32")
    text = "".join(model.stream([1], max_new_tokens=WRITTEN + 1))
    assert text == stories.published() + '"'


def test_a_prompt_in_words_goes_on_as_published(directory: Path) -> None:
    """The text's own beginning, cut into tokens by our tokenizer, leads to the same text."""
    model = qkv.load(directory, dtype="fp32")
    begun = "Once upon a time, there was a little girl named Lily."
    ids = model.ids(begun)
    assert ids[0] == model.special.bos
    result = model.generate(begun, max_new_tokens=1 + WRITTEN - len(ids))
    assert begun + result.text == stories.published()  # the space between the two is there
    assert model.text([*ids, *result.tokens]) == stories.published()


def test_neighbours_taken_for_halves_would_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stories, "halves", lambda weight, heads: weight)
    wrong = qkv.load(stories.convert(tmp_path), dtype="fp32")
    assert not stories.published().startswith(wrong.generate([1], max_new_tokens=32).text)


def test_200_greedy_tokens_are_those_of_transformers(directory: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    ask = torch.tensor([[1]])
    out = theirs.generate(
        ask, attention_mask=torch.ones_like(ask), do_sample=False, min_new_tokens=200, max_new_tokens=200,
        pad_token_id=2, output_scores=True, return_dict_in_generate=True,
    )  # fmt: skip
    expected = out.sequences[0, 1:].tolist()
    found = qkv.load(directory, dtype="fp32").generate([1], max_new_tokens=200).tokens
    assert len(found) == len(expected) == 200
    apart = next((i for i in range(200) if found[i] != expected[i]), None)
    if apart is not None:
        first, second = out.scores[apart][0].topk(2).values.tolist()
        assert first - second < NEAR, f"token {apart}: {found[apart]}, not {expected[apart]}, and no near tie"
        print(f"equal up to token {apart}, a near tie: the two likeliest are {first - second:.1e} apart")


def test_saved_again_it_is_bit_equal(directory: Path, tmp_path: Path) -> None:
    model = qkv.load(directory, dtype="fp32")
    again = qkv.load(model.save(tmp_path / "copy"), dtype="fp32")
    pairs = zip(model.core.state_dict().items(), again.core.state_dict().items(), strict=True)
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)
    assert again.generate([1], max_new_tokens=40).text == model.generate([1], max_new_tokens=40).text
