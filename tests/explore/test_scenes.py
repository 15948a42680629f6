"""A text looked into: every number is the model's own."""

from collections.abc import Sequence

import pytest
import torch

from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.explore.question import Question
from qkv.explore.scenes import describe_text
from qkv.model import Model
from qkv.spec import Attention, Block, Ffn, Head, Init, Mask, Norm, Rotary, Spec, Stack, Table
from qkv.tasks.types import SpecialTokens

WORDS = ["<pad>", "</s>", *"书和茶都在桌上我看完了它。", *"abcdefghijklmnopqrst", "</script><b>"]


class Letters:
    """A tokenizer of single characters."""

    mask_id, stream = None, None

    def find_unknown(self, text: str) -> list[str]:
        return []

    def encode(self, text: str, *, special: bool = True, side: str = "source") -> list[int]:
        return [*(WORDS.index(c) for c in text), *([1] if side == "source" and special else [])]

    def pieces(self, ids: Sequence[int], *, side: str = "target") -> list[str]:
        return [WORDS[i] for i in ids]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return "".join(WORDS[i] for i in ids if i > 1)


def made(*, both: bool) -> Transformer:
    n, ff, t = Norm("layer"), Ffn(48, "relu"), Table("sinusoid", 64)
    if both:
        enc = Block(Attention(2, 2, 16, Mask("full")), ff, norm_sum=n)
        dec = Block(Attention(2, 2, 16, Mask("causal")), ff, cross=Attention(2, 2, 16, Mask("memory")), norm_sum=n)
        spec = Spec(len(WORDS), encoder=Stack(32, (enc,) * 2, t), decoder=Stack(32, (dec,) * 2, t), init=Init("xavier"))
    else:
        b = Block(
            Attention(4, 2, 8, Mask("causal"), rotary=Rotary(8)), Ffn(48, "silu", gated=True), norm_in=Norm("rms")
        )
        spec = Spec(len(WORDS), decoder=Stack(32, (b,) * 2, final_norm=Norm("rms"), context=64), head=Head("untied"))
    core = Transformer(spec).eval()
    initialise(core, 0)
    with torch.no_grad():
        for p in core.parameters():
            p.mul_(1.5 if p.dim() > 1 else 1.0)
    return core


SPECIAL = SpecialTokens(start=0, eos=(1,), forbid=(0,))
TEXT = "书和茶都在桌上我看完了它。"


@torch.no_grad()
def test_a_translations_numbers_are_those_of_the_model_alone() -> None:
    core, letters = made(both=True), Letters()
    scene = describe_text(Model(core, letters, SPECIAL), Question(TEXT, max_new_tokens=5))  # type: ignore[arg-type]
    source = torch.tensor([letters.encode(TEXT)])
    target = [0, *(WORDS.index(w) for w in scene["target"][1:])]
    memory = core.encode(source)
    ids = torch.tensor([target[:-1]])
    chance = core(ids, Inputs(memory=memory)).logits[0].softmax(-1)
    size, read = source.shape[1], len(target) - 1
    assert scene["check"] < 1e-5
    for t in range(read):
        assert abs(scene["proof"]["before"][t + 1] - float(chance[t, target[t + 1]])) < 1e-4
        assert abs(scene["guesses"]["cells"][-1][t][0][1] - float(chance[t].max())) < 1e-4
    assert scene["proof"]["query"] == TEXT.index("它")
    assert scene["proof"]["asked"]
    assert torch.tensor(scene["attention"]["encoder"]).shape == (2, 2, size, size)
    cross = torch.tensor(scene["attention"]["cross"])
    assert cross.shape == (2, 2, read, size)
    layer = scene["alignment"]["layer"]
    assert (torch.tensor(scene["alignment"]["weight"]) - cross[layer].mean(0)).abs().max() < 2e-4
    assert all(scene["guesses"]["used"])
    assert len(scene["proof"]["heads"]) == len(scene["proof"]["heads"][0]) == 2


@torch.no_grad()
def test_a_continuation_marks_rejected_guesses_and_proves_on_the_decoder() -> None:
    core = made(both=False)
    scene = describe_text(Model(core, Letters()), Question("书和茶", max_new_tokens=4))  # type: ignore[arg-type]
    assert scene["prompt"] == 4
    assert scene["guesses"]["used"] == [False, False, False, True, True, True, True]
    ids = torch.tensor([[WORDS.index(w) for w in scene["target"]]])
    chance = core(ids).logits[0].softmax(-1)
    for t in range(3, 7):
        assert scene["guesses"]["cells"][-1][t][0][0] == scene["target"][t + 1]
        assert abs(scene["proof"]["before"][t + 1] - float(chance[t, ids[0, t + 1]])) < 1e-4
    assert scene["proof"]["side"] == "decoder"
    assert scene["proof"]["asked"] == ("它" in scene["target"][:-1])


def test_an_encoder_alone_writes_no_scene() -> None:
    b = Block(Attention(2, 2, 16, Mask("full")), Ffn(48, "gelu"), norm_sum=Norm("layer"))
    core = Transformer(Spec(len(WORDS), encoder=Stack(32, (b,), Table("learned", 64)))).eval()
    with pytest.raises(QkvError, match="encoder alone"):
        describe_text(Model(core, Letters(), SPECIAL), Question("我"))  # type: ignore[arg-type]


def test_what_a_long_text_leaves_out_is_said() -> None:
    model = Model(made(both=False), Letters())  # type: ignore[arg-type]
    scene = describe_text(model, Question("书" * 100, max_new_tokens=1))
    assert "tokens" in scene["said"][0]
    assert len(scene["target"]) < 100
    assert "said" not in describe_text(model, Question("书和茶", max_new_tokens=1))
