"""The browser's tokenizer against the `tokenizers` library: ids of 2,000 texts, and the texts of those ids."""

import json
import random
from pathlib import Path

import tokenizers
from support.web_models import MODELS, needs_node, run_node

import qkv
from qkv import paths
from qkv.data.corpus import load_corpus, load_text
from qkv.lens.resolve import join_cut_characters

ODD = [
    "🙂", "👩\u200d👩\u200d👧", "émigré", "naïve", "Straße", "ｆｕｌｌ", "１２３", "12.5", "don't", "it's", "O'Clock",
    "书book书", "3本", "apple苹果", "<unk>", "</s>", "[MASK]", "<pad>", "カタカナ", "ひらがな", "한국어", "العربية",
    "…", "——", "‘x’", "“y”", "_", "__init__", "a_b", "x²", "½", "№", "é", "ﬁ", "İ", "ß", "〥〸", "Amber",
    "\u200b", "\u00a0", "\u3000", "\ufeff", "",
]
CHARACTERS = "我你他书茶苹果学习中国apple the cat It's Don't,.!?，。！？：；（）()  \t\n_-012é🙂漢字カナ"
RANGES = ((32, 0x2FF), (0x2000, 0x20FF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0x1F300, 0x1F6FF))


def draw_texts(count: int) -> list[str]:
    """Half of them sentences, half words, characters and code points at random."""
    draw = random.Random(5)
    pairs = load_corpus().train
    sentences = [t for p in pairs[:3000] for t in (p.zh, p.en)] + [t for t in load_text().splitlines() if t]
    words = [*ODD, *(w for t in sentences[:600] for w in t.split(" "))]

    def one() -> str:
        kind = draw.randrange(8)
        if kind < 4:
            return draw.choice(sentences)
        if kind < 6:
            return (" " * (kind == 4)).join(draw.choice(words) for _ in range(draw.randrange(1, 9)))
        if kind == 6:
            return "".join(draw.choice(CHARACTERS) for _ in range(draw.randrange(1, 25)))
        return "".join(chr(draw.randrange(*draw.choice(RANGES))) for _ in range(draw.randrange(1, 12)))

    return [one() for _ in range(count)]


@needs_node
def test_the_browser_cuts_texts_as_the_library_does(tmp_path: Path) -> None:
    texts = draw_texts(2000)
    files = {name: str(paths.bundled_dir() / name / "tokenizer.json") for name in MODELS}
    (tmp_path / "asked.json").write_text(json.dumps({"texts": texts, "files": files}))
    run_node("tokenizer.mjs", tmp_path / "asked.json", tmp_path / "answers.json")
    answers = json.loads((tmp_path / "answers.json").read_text())
    for name, file in files.items():
        library, got = tokenizers.Tokenizer.from_file(file), answers[name]
        for n, (text, encoded) in enumerate(zip(texts, library.encode_batch(texts), strict=True)):
            assert got["ids"][n] == encoded.ids, (name, text)
            assert got["texts"][n] == library.decode(encoded.ids), (name, text)
        tokenizer = qkv.load(name).tokenizer
        for ids, pieces in list(zip(got["ids"], got["pieces"], strict=True))[:300]:
            shown = [p["text"] + (f" {p['bytes']}" if "bytes" in p else "") for p in pieces]
            assert shown == join_cut_characters(tokenizer, ids), name
