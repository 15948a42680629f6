"""Words find their positions, and characters that a tokenizer cuts into bytes are shown whole."""

import random

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.lens import resolve
from qkv.lens.trace import Trace
from qkv.paths import data_dir
from qkv.spec import Attention, Block, Ffn, Mask, Spec, Stack
from qkv.tokenizers.tokenizer import BYTE_OF, Tokenizer, load


def bytewise(*merged: str) -> Tokenizer:
    """One token per byte, and some pairs of bytes."""
    letter = {b: c for c, b in BYTE_OF.items()}
    pairs = [(letter[a], letter[b]) for a, b in (w.encode()[:2] for w in merged)]
    vocab = {letter[b]: b for b in range(256)} | {a + b: 256 + i for i, (a, b) in enumerate(dict.fromkeys(pairs))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=list(dict.fromkeys(pairs))))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


def test_a_thousand_chinese_sentences_show_no_broken_character() -> None:
    draw, made = random.Random(0), bytewise("我们", "的书", "茶")
    for _ in range(1000):
        text = "".join(chr(draw.randrange(0x4E00, 0x9FA5)) if draw.random() < 0.9 else draw.choice("我的茶，。 ab")
                       for _ in range(12)).strip() or "茶"
        ids = made.encode(text)
        shown = resolve.join_cut_characters(made, ids)
        assert len(shown) == len(ids)
        assert not any("�" in s or resolve.CUT.search(s) for s in shown), (text, shown)
    assert resolve.join_cut_characters(made, made.encode("a书b")) == ["a", "书 1/3", "书 2/3", "书 3/3", "b"]
    assert resolve.join_cut_characters(made, made.encode("的")) == ["的 1/2", "的 2/2"]
    assert resolve.join_cut_characters(made, made.encode("书")[:2]) == ["⟨e4⟩", "⟨b9⟩"], "nothing completes it"
    typed = resolve.join_cut_characters(made, made.encode("⟨e4⟩"))
    assert typed[0].startswith("⟨ 1/"), "typed brackets are characters like others"


def test_a_word_is_found_where_its_last_piece_stands() -> None:
    block = Block(Attention(2, 2, 4, Mask("causal")), Ffn(8, "relu"))
    core, made = Transformer(Spec(300, Stack(8, (block,)))).eval(), bytewise("我们")
    ids = torch.tensor([made.encode("书和茶，我看它")])
    with torch.no_grad(), Trace(core, tokenizer=made) as t:
        core(ids)
    assert resolve.find_position(t, "书") == 2
    assert resolve.find_position(t, "和茶") == 8
    assert resolve.find_position(t, "它") == ids.shape[1] - 1 == resolve.find_position(t, -1)
    assert resolve.show_tokens(t, ids[0, 6:9].tolist()) == ["茶 1/3", "茶 2/3", "茶 3/3"]
    with pytest.raises(QkvError, match="'桌' is not in this text"):
        resolve.find_position(t, "桌")
    with pytest.raises(QkvError, match="3 tokens here"):
        resolve.find_token(t, "茶")
    with pytest.raises(QkvError, match="has no token"):
        resolve.find_token(t, "")
    with torch.no_grad(), t:
        core(ids)
    with pytest.raises(QkvError, match="ran 2 times"):
        resolve.find_position(t, -1)
    assert resolve.find_position(t, -1, run=1) == ids.shape[1] - 1
    with pytest.raises(QkvError, match="expected 0 to 1"):
        resolve.find_position(t, -1, run=2)


@pytest.mark.parametrize("name", ["gpt2", "llama2"])
def test_real_sentences_through_real_byte_level_tokenizers_are_shown_whole(name: str) -> None:
    folder, pairs = data_dir() / "tokenizers" / name, data_dir() / "mt" / "tatoeba_cmn_eng" / "cmn.txt"
    if not (folder.exists() and pairs.exists()):
        pytest.skip("no tokenizers and sentences in the data directory")
    made = load(folder)
    lines = pairs.read_text(encoding="utf-8").splitlines()
    broken = 0
    for line in lines[:: len(lines) // 1000][:1000]:
        shown = resolve.join_cut_characters(made, made.encode(line.split("\t")[1]))
        broken += sum("\ufffd" in s or bool(resolve.CUT.search(s)) for s in shown)
    assert broken == 0
