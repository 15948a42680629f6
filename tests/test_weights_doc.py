"""docs/weights.md tells the truth: its example loads weights of OpenNMT-tf's kind exactly, in both languages."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import qkv

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {name: (DOCS / name).read_text(encoding="utf-8") for name in ("weights.md", "weights.zh-CN.md")}
WIDTH, INNER, HEADS, LAYERS = 32, 48, 4, 2
SOURCES = ["<blank>", "<s>", "</s>", "a", "b", "c", "<unk>"]
TARGETS = ["<blank>", "<s>", "</s>", "u", "<unk>", *"vwxyz"]
Weights = dict[str, np.ndarray]


def draw_weights() -> Weights:
    """Variables by the names of OpenNMT-tf: matrices lie [in, out]."""
    shapes: dict[str, tuple[int, ...]] = {
        "examples_inputter/features_inputter/embedding": (len(SOURCES), WIDTH),
        "examples_inputter/labels_inputter/embedding": (len(TARGETS), WIDTH),
        "decoder/output_layer/kernel": (WIDTH, len(TARGETS)), "decoder/output_layer/bias": (len(TARGETS),),
    }
    inside = {"encoder": ("self_attention", "ffn"), "decoder": ("self_attention", "attention/0", "ffn")}
    for side, parts in inside.items():
        norms = [f"{side}/layer_norm"]
        for layer in range(LAYERS):
            for part in parts:
                at = f"{side}/layers/{layer}/{part}"
                norms.append(f"{at}/input_layer_norm")
                sizes = {"inner": (WIDTH, INNER), "outer": (INNER, WIDTH)}
                if part != "ffn":
                    sizes = {f"linear_{n}": (WIDTH, WIDTH) for n in ("queries", "keys", "values", "output")}
                shapes |= {f"{at}/layer/{name}/kernel": size for name, size in sizes.items()}
                shapes |= {f"{at}/layer/{name}/bias": size[1:] for name, size in sizes.items()}
        shapes |= {f"{norm}/{name}": (WIDTH,) for norm in norms for name in ("gamma", "beta")}
    draw = np.random.default_rng(0)
    found = {name: draw.normal(0, 0.3, shape).astype("float32") for name, shape in shapes.items()}
    found["decoder/output_layer/bias"][TARGETS.index("</s>")] -= 4.0  # so that a translation has words
    return found


def compute_logits(w: Weights, source: list[int], target: list[int]) -> np.ndarray:
    """What OpenNMT-tf's Transformer computes, in numpy: of the target's positions over the target's words."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * w[f"{name}/gamma"] + w[f"{name}/beta"]

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]

    def attend(x: np.ndarray, memory: np.ndarray, at: str, *, causal: bool) -> np.ndarray:
        q, k, v = (dense(y, f"{at}/linear_{n}").reshape(len(y), HEADS, -1).transpose(1, 0, 2)
                   for y, n in ((x, "queries"), (memory, "keys"), (memory, "values")))
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(WIDTH // HEADS)
        scores = np.where(np.tri(len(x), len(memory)) == 0, -1e9, scores) if causal else scores
        pattern = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = pattern / pattern.sum(-1, keepdims=True) @ v
        return dense(mixed.transpose(1, 0, 2).reshape(len(x), WIDTH), f"{at}/linear_output")

    def embed(ids: list[int], name: str) -> np.ndarray:
        rates = np.exp(-np.arange(WIDTH // 2) * math.log(10_000) / (WIDTH // 2 - 1))
        angles = np.arange(1, len(ids) + 1)[:, None] * rates
        return w[f"examples_inputter/{name}/embedding"][ids] * WIDTH**0.5 + np.hstack([np.sin(angles), np.cos(angles)])

    def run(x: np.ndarray, side: str, memory: np.ndarray | None) -> np.ndarray:
        for layer in range(LAYERS):
            at = f"{side}/layers/{layer}"
            h = norm(x, f"{at}/self_attention/input_layer_norm")
            x = x + attend(h, h, f"{at}/self_attention/layer", causal=memory is not None)
            if memory is not None:
                h = norm(x, f"{at}/attention/0/input_layer_norm")
                x = x + attend(h, memory, f"{at}/attention/0/layer", causal=False)
            h = np.maximum(dense(norm(x, f"{at}/ffn/input_layer_norm"), f"{at}/ffn/layer/inner"), 0)
            x = x + dense(h, f"{at}/ffn/layer/outer")
        return norm(x, f"{side}/layer_norm")

    memory = run(embed(source, "features_inputter"), "encoder", None)
    return dense(run(embed(target, "labels_inputter"), "decoder", memory), "decoder/output_layer")


@pytest.mark.parametrize("page", PAGES)
def test_the_example_gives_the_numbers_of_the_other_toolkit(tmp_path, monkeypatch, capsys, page):
    monkeypatch.chdir(tmp_path)
    weights = draw_weights()
    np.savez("averaged.npz", **weights)
    for name, words in (("source.txt", SOURCES), ("target.txt", TARGETS)):
        Path(name).write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGES[page], re.M | re.S)
    exec(block, {})
    said, model = capsys.readouterr().out.split(), qkv.load("mine")
    assert said
    assert set(said) <= set("uvwxyz")
    source, target = model.ids("c a b zzz"), [1, 3, 5, 4]
    assert source == [5, 3, 4, 6, 2]
    with torch.no_grad():
        found = model(source=torch.tensor([source]), target=torch.tensor([target])).logits[0]
    assert np.allclose(found.numpy(), compute_logits(weights, source, target), atol=1e-4)


def test_the_pages_hold_the_same_code():
    english, chinese = (re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) for page in PAGES.values())
    strip = re.compile(r"#.*$", re.M)
    assert [strip.sub("", b) for b in english] == [strip.sub("", b) for b in chinese]
