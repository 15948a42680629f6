"""llama.cpp as a reference; what asks for it skips where it is not installed."""

import pytest
import torch


def open_theirs(path, **how):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    return llama_cpp.Llama(str(path), verbose=False, **{"n_ctx": 160, "type_k": 0, "type_v": 0, **how})


def assert_same_text(model, theirs, ids, near):
    """The same 100 greedy tokens, up to a choice between two whose logits differ by less than `near` deviations."""
    theirs.reset()
    drawn = theirs.generate(ids, temp=0.0, repeat_penalty=1.0, top_k=1)
    kept = model.generate(ids, max_new_tokens=100).tokens
    written = [token for token, _ in zip(drawn, kept, strict=False)]
    at = next((i for i, (a, b) in enumerate(zip(kept, written, strict=True)) if a != b), None)
    if at is not None:
        with torch.no_grad():
            logits = model(torch.tensor([[*ids, *kept[:at]]])).logits[0, -1]
        assert logits[kept[at]] - logits[written[at]] < near * logits.std(), f"at token {at} of {len(kept)}"
