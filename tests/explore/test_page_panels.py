"""The page's panels on sums, masks, caches, experts, words, cuts and training, used in a real browser."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support import browsing

import qkv
from qkv.explore import server
from qkv.explore.question import RecentRuns

EXAMPLES = {"demo": ["我爱学习。"], "demo-moe": ["我看完了那本书。"], "demo-bert": ["我爱[MASK]。"]}


def watched(folder: Path) -> Path:
    """A folder with a run of two recorded steps, as training/probes/recorder.py lays it out."""
    home = folder / "toy" / "train" / "watch"
    home.mkdir(parents=True)
    matrices = [{"name": "a", "part": "W_Q"}, {"name": "b", "part": "FFN"}]
    steps = []
    for step in (0, 4):
        arrays = {f"matrices.{n}": torch.full((2,), float(step + 1)) for n in ("weight", "gradient", "update")}
        arrays |= {"matrices.moved": torch.ones(2, dtype=torch.int32), "texts.0.alignment": torch.full((2, 3), 1 / 3),
                   "words.vectors": torch.randn(2, 4, generator=torch.Generator().manual_seed(step)),
                   "teacher.mask": torch.ones(1, 1, dtype=torch.uint8)}
        text = {"text": "甲", "output": "one", "source": ["甲", "乙", "</s>"], "target": ["<s>", "one"], "prompt": 1,
                "chances": [0.5, 0.25], "layer": 0}
        row = {"position": 0, "input": "<s>", "label": "one", "counted": True, "p": 0.5, "loss": 0.69, "guess": "one",
               "chance": 0.5}
        near = [{"text": "丙", "cosine": 0.5}]
        state = {"step": step, "loss": None if step == 0 else 0.7, "lr": 0.1, "gradient": None, "tokens": 9,
                 "seconds": 1.5, "texts": [text], "words": [{"word": w, "near": near} for w in "丁戊"],
                 "teacher": {"source": ["甲"], "rows": [row], "loss": 0.69}}
        save_file(arrays, home / f"{step:06}.safetensors", {"state": json.dumps(state)})
        steps.append({"step": step, "loss": state["loss"], "outputs": ["one"], "weights": False})
    index = {"format": 1, "kind": "encoder-decoder", "texts": ["甲"], "words": ["丁", "戊"], "matrices": matrices,
             "steps": steps}
    (home / "index.json").write_text(json.dumps(index), encoding="utf-8")
    log = "".join(json.dumps({"kind": "step", "step": s, "loss": 1 / s}) + "\n" for s in range(1, 5))
    (folder / "toy" / "train" / "log.jsonl").write_text(log, encoding="utf-8")
    return folder


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_panels_do_what_they_say_when_they_are_used(tmp_path: Path) -> None:
    browsing.chromium()
    desk = server.Desk(list(EXAMPLES), qkv.load, examples=EXAMPLES, shelf=RecentRuns(64), watched=watched(tmp_path))
    for event in ({"kind": "step", "step": 6, "loss": 0.1}, {"kind": "watch", "step": 4, "outputs": ["one"]}):
        desk.events.send(event)
    page = server.Page(desk)
    url = page.start()
    try:
        numbers = browsing.browsed("panels.mjs", url)
    finally:
        page.stop()
    assert len(numbers) >= 60
    assert browsing.wrong(numbers, desk.shelf) == []
