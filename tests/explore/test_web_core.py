"""The printed TypeScript in Node against the core in Python, with the same weights: logits, words, beams, attention."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.web_models import MODELS, load_unpacked, needs_node, run_node
from torch import Tensor, nn

import qkv
from qkv.core.step import Inputs, active_tracer
from qkv.data.corpus import load_corpus, load_text
from qkv.explore.web_model import write_web_model

FOLLOW, FORBIDDEN = 3, 521  # tokens read after a text; "The" of the translator

class Patterns:
    """Records attention patterns by the path of their module."""

    needs_eager_attention = True

    def __init__(self) -> None:
        self.found: dict[str, Tensor] = {}

    def tap(self, module: nn.Module, name: str, x: Tensor) -> Tensor:
        if name == "pattern":
            self.found[str(module.path)] = x[0]
        return x


@contextmanager
def listen() -> Iterator[dict[str, Tensor]]:
    """The patterns of what runs inside."""
    tracer = Patterns()
    token = active_tracer.set(tracer)
    try:
        yield tracer.found
    finally:
        active_tracer.reset(token)


def draw_texts(count: int) -> list[str]:
    """Sentences of the corpus, and of its text, Chinese and English, drawn with a seed."""
    draw = random.Random(28)
    pairs = [*load_corpus().valid, *load_corpus().train]
    lines = [line for line in load_text().splitlines() if 4 < len(line) < 90]
    return [draw.choice((draw.choice(pairs).zh, draw.choice(pairs).zh, draw.choice(pairs).en, draw.choice(lines)))
            for _ in range(count)]


@torch.inference_mode()
def read_in_python(model: Any, ids: list[int], follow: list[int]) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """Logits after the text and after each token that follows it, an encoder's labels, and every pattern."""
    core, start = model.core, [model.special.start] if model.special.start is not None else []
    if model.spec.decoder is None:
        with listen() as patterns:
            logits = core(torch.tensor([ids]), mode="prefill").logits[0]
        return logits, core.classify(torch.tensor([ids]), mode="prefill")[0], patterns
    inputs, row = Inputs(), [*ids, *follow]
    if model.encoder_decoder:
        inputs, row = Inputs(source=torch.tensor([ids])), [*start, *follow]
    elif model.spec.architecture == "prefix decoder":
        inputs, row = Inputs(prefix_len=torch.tensor([len(ids)])), [*ids, *start, *follow]
    with listen() as patterns:
        logits = core(torch.tensor([row]), inputs, mode="prefill").logits[0, -1 - len(follow):]
    return logits, None, patterns


def run_models(
    tmp: Path, dtype: Any, texts: int, few: int, kernel: str
) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """Models with the same weights in Python, what Node answered, and what it was asked."""
    models, asked, draw = dict[str, Any](), list[dict[str, Any]](), random.Random(1)
    for name in MODELS:
        write_web_model(qkv.load(name), tmp / name, name=name, dtype=dtype)
        model = models[name] = load_unpacked(name, tmp / name)
        ids = [model.ids(t)[: 60 if model.spec.decoder is None else 40] for t in draw_texts(texts)]
        follow = [[draw.randrange(4, model.spec.vocabulary) for _ in range(FOLLOW)] for _ in ids]
        if model.encoder_decoder:  # the usual first word is forbidden too
            model.special = replace(model.special, forbid=(*model.special.forbid, FORBIDDEN))
        asked.append({"name": name, "directory": str(tmp / name), "forbid": list(model.special.forbid),
                      "greedy": ids[:few] if model.spec.decoder else [],
                      "texts": [{"ids": i, "follow": f} for i, f in zip(ids, follow, strict=True)]})
    (tmp / "asked.json").write_text(json.dumps(asked))
    run_node("core.mjs", tmp / "asked.json", tmp / "answers.json", kernel)
    return models, json.loads((tmp / "answers.json").read_text()), asked


def tensor_of(x: dict[str, Any]) -> Tensor:
    """An array of JSON."""
    return torch.tensor(x["data"]).view(x["shape"])


def stitch(parts: list[dict[str, Any]]) -> Tensor:
    """A pattern [H, T, S] from the passes that made it, rows below rows, with zeros where nothing was yet."""
    pieces = [tensor_of(p)[0] for p in parts]
    wide = max(p.shape[-1] for p in pieces)
    return torch.cat([torch.nn.functional.pad(p, (0, wide - p.shape[-1])) for p in pieces], 1)


@needs_node
@pytest.mark.parametrize(("dtype", "texts", "kernel"), [
    ("bf16", 6, "plain"), ("int8", 3, "simd"), pytest.param("bf16", 200, "simd", marks=pytest.mark.nightly),
    pytest.param("fp16", 200, "simd", marks=pytest.mark.nightly),
    pytest.param("fp32", 30, "plain", marks=pytest.mark.nightly),
])
def test_the_printed_models_compute_what_the_core_computes(
    dtype: str, texts: int, kernel: str, tmp_path: Path
) -> None:
    models, answers, asked = run_models(tmp_path, dtype, texts, min(texts, 40), kernel)
    for one in asked:
        model, answer = models[one["name"]], answers[one["name"]]
        for text, got in zip(one["texts"], answer["texts"], strict=True):
            logits, labels, patterns = read_in_python(model, text["ids"], text["follow"])
            mine = tensor_of(got["logits"]).view(logits.shape)
            assert (mine - logits).abs().max() <= 1e-4 * logits.std(), one["name"]
            if labels is not None:
                assert (tensor_of(got["labels"])[0] - labels).abs().max() <= 1e-4 * labels.std()
            assert got["maps"].keys() == patterns.keys()
            for path, pattern in patterns.items():
                assert (stitch(got["maps"][path]) - pattern).abs().max() <= 1e-3, (one["name"], path)
        for ids, tokens in zip(one["greedy"], answer["greedy"], strict=True):
            if model.encoder_decoder:
                want = model.translate(ids, beam=1, max_new_tokens=50).tokens
            else:
                want = model.generate(ids, max_new_tokens=50).tokens
            assert tokens == want, one["name"]
        for ids, best in zip(one["greedy"], answer["beams"] or [], strict=False):
            want = model.translate(ids, beam=4)
            assert best["tokens"] == want.tokens
            assert best["score"] == pytest.approx(want.score, abs=1e-4)
