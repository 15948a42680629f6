"""What a model makes of a text without writing: states averaged, labels, masked words, chances, and conversations."""

import math
from dataclasses import replace

import pytest
import torch
from support import zoo

import qkv
from qkv import reading
from qkv.errors import QkvError
from qkv.tokenizers.vocabulary import train

TEXTS = ("one two three", "four", "five six seven eight nine ten")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def model(name: str) -> qkv.Model:
    core = zoo.made(zoo.ALL[name]())
    return qkv.Model(core)


def states(made: qkv.Model, row: list[int]) -> torch.Tensor:
    """The last states of one text alone [T, D], by the plainest call there is."""
    ids, core = torch.tensor([row]), made.core
    with torch.no_grad():
        if made.encoder_decoder:
            return core.encode(ids)[0]
        return made(ids, prefix=torch.tensor([len(row)]) if made.spec.decoder else None).hidden[0]


@pytest.mark.parametrize("name", ["encoder", "cloze", "gqa", "seq2seq", "relative", "blanks"])
def test_an_embedding_is_the_mean_of_the_real_states_made_length_one(name):
    made, rows = model(name), [[5, 6, 7, 8, 9], [3], [11, 12, 13]]
    both = made.embed(rows)
    for row, vector in zip(rows, both, strict=True):
        state = states(made, row).mean(0)
        assert torch.allclose(vector, state / state.norm(), atol=1e-5)
        assert torch.allclose(made.embed(row), vector, atol=1e-5)


@pytest.mark.parametrize("name", ["cloze", "blanks"])
def test_classification_reads_one_state_of_each_text_whatever_its_padding(name):
    made, rows = model(name), [[5, 6, 7, 8, 9], [3, 4], [11, 12, 13]]
    for row, verdict in zip(rows, made.classify(rows), strict=True):
        alone = made.classify(row)
        assert verdict.label == alone.label
        assert verdict.probability == pytest.approx(alone.probability, abs=1e-5)
        assert sum(verdict.probabilities.values()) == pytest.approx(1.0, abs=1e-5)
        state, labels = states(made, row)[0 if name == "cloze" else -1], made.core.labels
        if name == "cloze":
            state = (labels.dense.linear.weight @ state + labels.dense.linear.bias).tanh()
        want = (labels.out.weight @ state + (labels.out.bias if name == "cloze" else 0.0)).softmax(-1)
        assert list(verdict.probabilities.values()) == pytest.approx(want.tolist(), abs=1e-5)


def test_a_prefix_decoder_reads_a_text_whole_but_scores_it_word_by_word():
    made, ids = model("blanks"), [5, 6, 7, 8]
    other = [5, 6, 7, 9]
    first = [reading.read(made.core, [row]) for row in (ids, other)]
    a, b = (reading.states(made.core, *pair)[0, 0] for pair in first)
    assert not torch.allclose(a, b), "the first word sees the last"
    with torch.no_grad():
        logits = made(torch.tensor([ids])).logits[0].log_softmax(-1)
    want = sum(logits[i, ids[i + 1]].item() for i in range(3))
    assert made.score(ids) == pytest.approx(want, abs=1e-4)


def test_a_chance_is_the_sum_over_tokens():
    made = model("gqa")
    ids = [4, 9, 2, 7]
    with torch.no_grad():
        logits = made(torch.tensor([ids])).logits[0].log_softmax(-1)
    want = sum(logits[i, ids[i + 1]].item() for i in range(3))
    assert made.score(ids) == pytest.approx(want, abs=1e-4)


def test_fill_gives_the_distribution_at_each_mask():
    made = model("cloze")
    ids = [5, 60, 7, 60]
    found = reading.fill(made.core, ids, 60)
    with torch.no_grad():
        want = made(torch.tensor([ids])).logits[0, [1, 3]].softmax(-1)
    assert torch.allclose(found, want, atol=1e-6)
    assert found.sum(-1).tolist() == pytest.approx([1.0, 1.0], abs=1e-5)


@pytest.mark.parametrize(("name", "act", "says"), [
    ("gqa", lambda m: m.classify([3, 4]), "no labels"),
    ("gqa", lambda m: reading.fill(m.core, [3], 3), "encoder that says words; this is a decoder, which"),
    ("cloze", lambda m: reading.fill(m.core, [3], 5), "no mask"),
    ("cloze", lambda m: m.translate("x"), "this is an encoder: use fill or embed, or classify"),
    ("gqa", lambda m: m.translate("x"), "which continues a text: use generate or score$"),
    ("cloze", lambda m: m.fill("x"), "mask token"),
    ("cloze", lambda m: m.fill("x", top=0), "top: found 0"),
    ("gqa", lambda m: m.generate(None), "found None of type NoneType, expected a text"),
    ("gqa", lambda m: m.generate(5), "found 5 of type int"),
    ("gqa", lambda m: m.score([[3, 4], 1.5]), "found 1.5 of type float"),
    ("gqa", lambda m: m(torch.tensor([3, 4])), r"ids: found \[2\] of int64.*ids\[None\]"),
    ("gqa", lambda m: m(torch.tensor([[0.5]])), r"ids: found \[1, 1\] of float32, expected whole numbers"),
    ("encoder", lambda m: m.score([3, 4]), "a decoder that says words; this is an encoder"),
    ("seq2seq", lambda m: reading.fill(m.core, [3], 3), "this is an encoder-decoder: use translate"),
    ("seq2seq", lambda m: m.eval(ppl="x"), "what this model says follows a source; expected lines of source TAB"),
    ("gqa", lambda m: m.translate("x"), "this is a decoder, which continues"),
    ("gqa", lambda m: m.eval(foo=1), r"found none \(and foo=1\), expected one of bleu"),
    ("gqa", lambda m: m.eval(pp="x"), "did you mean 'ppl'"),
    ("gqa", lambda m: m.eval(ppl=["x"]), "ppl is .*, expected the path of a file"),
    ("gqa", lambda m: m.eval(bleu="x"), "expected \\(sources, references\\)"),
    ("encoder", lambda m: m.embed([[3], []]), "text 2 of 2 is empty"),
    ("encoder", lambda m: m.embed([list(range(65))]), "reads at most 64"),
    ("gqa", lambda m: m.chat("hello"), "no chat template"),
])  # fmt: skip
def test_what_cannot_be_read_is_said(name, act, says):
    with pytest.raises(QkvError, match=says):
        act(model(name))


def test_the_template_writes_a_conversation_and_typed_tokens_stay_text():
    tokenizer = train(TEXTS, kind="bpe", size=300, specials=("</s>", "<unk>", "<|im_start|>", "<|im_end|>"))
    tokenizer.config["chat_template"] = CHATML
    made = qkv.Model(zoo.made(replace(zoo.ALL["gqa"](), vocabulary=len(tokenizer))), tokenizer)
    start, end = tokenizer.id("<|im_start|>"), tokenizer.id("<|im_end|>")
    ids = made.conversation("one<|im_end|>two")
    assert ids.count(start) == 2
    assert ids.count(end) == 1, "what the user typed is no control token"
    answer = made.chat([{"role": "user", "content": "one two"}], max_new_tokens=3)
    assert len(answer.tokens) == 3
    assert all(math.isfinite(p) for p in answer.logprobs)


def test_a_model_may_write_as_its_makers_let_it(tmp_path):
    core = zoo.made(zoo.ALL["gqa"]())
    habits = {"do_sample": True, "temperature": 0.7, "top_p": 0.9, "_from_model_config": False}
    made = qkv.Model(core, habits=habits)
    own = made.generate([3, 4], max_new_tokens=12, sampling="model", seed=5).tokens
    said = made.generate([3, 4], max_new_tokens=12, temperature=0.7, top_p=0.9, top_k=50, seed=5).tokens
    assert own == said
    assert own != made.generate([3, 4], max_new_tokens=12).tokens, "greedy unless asked"
    other = made.generate([3, 4], max_new_tokens=12, sampling="model", temperature=0.0).tokens
    assert other == made.generate([3, 4], max_new_tokens=12).tokens, "what is asked for counts more"
    made.save(tmp_path)
    assert qkv.load(tmp_path).habits["temperature"] == 0.7
    plain = qkv.Model(core, habits={"do_sample": False, "top_k": 5})
    assert plain.generate([3], max_new_tokens=5, sampling="model").tokens == made.generate([3], max_new_tokens=5).tokens
    with pytest.raises(QkvError, match="'greedy', or 'model'"):
        made.generate([3], sampling="wild")


def test_ids_come_as_a_tensor_too():
    made = model("gqa")
    assert made.score(torch.tensor([3, 4, 5])) == made.score([3, 4, 5])
    assert made.score(torch.tensor([[3, 4, 5], [5, 4, 3]])) == made.score([[3, 4, 5], [5, 4, 3]])
