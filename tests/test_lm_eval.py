"""lm-evaluation-harness finds of our models what it finds of transformers' on the same files; skips without it."""

import subprocess
import sys

import pytest
import torch
from support.harness_tasks import run_tasks, write_tasks

import qkv
from qkv.errors import QkvError

pytest.importorskip("lm_eval", reason="lm-eval is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")
adapter = pytest.importorskip("qkv.lm_eval")


def test_200_items_of_each_task_are_those_of_transformers(tmp_path):
    qkv.load("demo-lm", device="cpu").save(tmp_path / "m", dtype="fp32")
    write_tasks(tmp_path, 200)
    ours, each = run_tasks(tmp_path, "qkv", {"pretrained": str(tmp_path / "m"), "device": "cpu"})
    how = {"pretrained": str(tmp_path / "m"), "dtype": "float32", "device": "cpu", "batch_size": 16}
    theirs, others = run_tasks(tmp_path, "hf", how)
    for task, numbers in theirs.items():
        for key, value in numbers.items():
            if isinstance(value, float):
                assert ours[task][key] == pytest.approx(value, rel=1e-5), (task, key)
    assert 0 < ours["choose"]["acc,none"] < 1
    assert each[200:400] == others[200:400]
    flat = [torch.tensor([[float(a), float(b)] for a, b in item]) for item in each[:200]]
    wanted = [torch.tensor([[float(a), float(b)] for a, b in item]) for item in others[:200]]
    assert torch.allclose(torch.stack(flat), torch.stack(wanted), atol=1e-4)


def test_long_texts_are_scored_in_windows_and_cut_from_the_left(tmp_path):
    model = adapter.EvaluatedModel("demo-lm", device="cpu", max_length=32)
    long = "The cat sat on the mat and looked at the bird. " * 6

    class Request:
        args = (long,)

    total = model.loglikelihood_rolling([Request()])[0]
    ids, by_hand = [model.prefix_token_id, *model.tok_encode(long)], 0.0
    for at in range(0, len(ids) - 1, 32):  # each window reads its own tokens and the one before them
        window = ids[at : at + 33]
        short = ids[max(0, at + len(window) - 33) : at + len(window)]
        with torch.no_grad():
            chances = model.model(torch.tensor([short[:-1]])).logits[0].log_softmax(-1)
        by_hand += sum(float(chances[-i, short[-i]]) for i in range(1, len(window)))
    assert total == pytest.approx(by_hand, rel=1e-5)
    (kept,) = model.continue_texts([long], {"until": ["\n"], "max_gen_toks": 8})
    assert kept == model.model.generate(model.tok_encode(long)[-24:], max_new_tokens=8, stop=["\n"]).text
    with pytest.raises(QkvError, match="max_gen_toks"):
        model.continue_texts([long], {"max_gen_toks": 40})


@pytest.mark.parametrize("name", ["demo", "demo-bert"])
def test_models_that_go_on_with_no_text_are_refused(name):
    with pytest.raises(QkvError, match=name):
        adapter.EvaluatedModel(name, device="cpu")


def test_the_command_line_knows_the_model(tmp_path):
    write_tasks(tmp_path, 4)
    line = ["--model", "qkv", "--model_args", "pretrained=demo-lm", "--device", "cpu", "--tasks", "choose",
            "--include_path", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "qkv.lm_eval", *line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "|choose" in done.stdout
