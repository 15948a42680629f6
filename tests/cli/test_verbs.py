"""The verbs of encoders and of chat, check and convert: on tiny models made here, and on the bundled ones."""

import io
import json
import shutil
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv import hub
from qkv.checkpoints import storage
from qkv.cli import main
from qkv.cli.common import FiniteRange
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.model import Model
from qkv.paths import bundled_dir
from qkv.spec import Attention, Block, Dense, Ffn, Head, Init, Labels, Mask, Norm, Rotary, Spec, Stack, Table
from qkv.tasks.classify import label_logits, with_segments
from qkv.tasks.task_format import format_pair
from qkv.tokenizers.vocabulary import train_vocabulary
from qkv.training.shape import Shape

sys.path.insert(0, str(Path(__file__).parent))
from test_cli import feed, run

TEXTS = ("我喜欢苹果。", "你喜欢茶吗？", "the cat sat on the mat", "小帅在学校读书，我在家。")
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VERBS = ("embed", "classify", "fill", "chat", "check", "convert")
bundled = {name: pytest.mark.skipif(not (bundled_dir() / name).is_dir(), reason=f"{name} is not bundled yet")
           for name in ("demo", "demo-lm", "demo-bert", "demo-moe")}  # fmt: skip


def encoder(vocabulary: int, *, segments: int = 2) -> Spec:
    """BERT in small, with masked words and two labels."""
    attn, norm = Attention(2, 2, 16, Mask("full"), True, True), Norm("layer", 1e-12)
    block = Block(attn, Ffn(64, "gelu", bias=True), norm_sum=norm)
    stack = Stack(32, (block,) * 2, Table("learned", 24), embed_norm=norm, segments=segments)
    head = Head("tied", bias=True, dense=Dense("gelu", norm))
    return Spec(vocabulary, encoder=stack, head=head, labels=Labels(2, dense=Dense("tanh")), init=Init("normal", 0.3))


def decoder(vocabulary: int) -> Spec:
    """LLaMA in small."""
    attn = Attention(2, 2, 16, Mask("causal"), rotary=Rotary(16))
    block = Block(attn, Ffn(64, "silu", gated=True), norm_in=Norm("rms"))
    return Spec(vocabulary, Stack(32, (block,) * 2, final_norm=Norm("rms"), context=128), init=Init("normal", 0.3))


def shaken(model: Model) -> Model:
    """The model with biases and norms off their first values."""
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.core.parameters():
            if p.ndim == 1:
                p.add_(torch.randn(p.shape, generator=draw) * 0.3)
    return model


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An encoder that fills in, classifies (labels yes and no) and tells pairs apart."""
    made = train_vocabulary(TEXTS, kind="char", size=200, specials=SPECIALS, template="cls")
    folder = tmp_path_factory.mktemp("reads")
    shaken(hub.build(encoder(len(made)), tokenizer=made)).save(folder)
    config = storage.read_json(folder / "config.json")
    storage.write_json(folder / "config.json", config | {"id2label": {"0": "yes", "1": "no"}})
    return str(folder)


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A decoder with a chat template."""
    made = train_vocabulary(TEXTS, kind="bpe", size=300, specials=("</s>", "<unk>", "<|im_start|>", "<|im_end|>"))
    made.config["chat_template"] = CHATML
    folder = tmp_path_factory.mktemp("talks")
    shaken(hub.build(decoder(len(made)), tokenizer=made)).save(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def speaks_english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")


def told(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


# ---- embed, classify, fill


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_embed_writes_a_vector_a_line(reads, flags, capsys):
    code, out, err = run(capsys, "embed", reads, "我喜欢", *flags)
    (found,) = told(out)
    assert (code, err) == (0, "")
    assert found["text"] == "我喜欢"
    assert found["embedding"] == pytest.approx(qkv.load(reads).embed("我喜欢").tolist(), abs=1e-6)
    assert sum(x * x for x in found["embedding"]) == pytest.approx(1, abs=1e-4)


def test_embed_keeps_empty_lines_in_place_and_lines_in_order(reads, monkeypatch, capsys):
    feed(monkeypatch, "我\n\n \n你喜欢茶吗？苹果\n苹果\n".encode())
    code, out, _ = run(capsys, "embed", reads, "-")
    found = told(out)
    assert code == 0
    assert [f["text"] for f in found] == ["我", "", " ", "你喜欢茶吗？苹果", "苹果"]
    assert [f["embedding"] is None for f in found] == [False, True, True, False, False]
    for f in (found[0], found[3], found[4]):
        assert f["embedding"] == pytest.approx(qkv.load(reads).embed(f["text"]).tolist(), abs=1e-5)


def test_two_texts_are_judged_together_by_a_model_that_learnt_so(reads, monkeypatch, capsys):
    shown = [line.split("\t", 2)[2] for line in run(capsys, "classify", reads, "我", "苹果")[1].splitlines()]
    assert shown == ["我", "苹果"]
    model = qkv.load(reads)
    monkeypatch.setattr(model, "config", {"two_texts": True})
    monkeypatch.setattr("qkv.cli.common.Common.load_model", lambda *_: model)
    (line,) = run(capsys, "classify", reads, "我", "苹果")[1].splitlines()
    verdict = model.classify(("我", "苹果"))
    assert line == f"{verdict.label}\t{verdict.probability:.4f}\t我\t苹果"
    assert f"{100 * verdict.probability:.1f}%" in run(capsys, "look", reads, "我", "苹果", "--show", "labels")[1]


def test_classify_says_label_probability_and_text(reads, monkeypatch, capsys):
    code, out, err = run(capsys, "classify", reads, "我喜欢苹果")
    verdict = qkv.load(reads).classify("我喜欢苹果")
    assert (code, err) == (0, "its labels: yes, no\n")
    assert verdict.label in ("yes", "no")
    assert out == f"{verdict.label}\t{verdict.probability:.4f}\t我喜欢苹果\n"
    feed(monkeypatch, "我\n\n你喜欢茶吗？\n".encode())
    out = run(capsys, "classify", reads, "-")[1]
    assert [line.split("\t")[-1] for line in out.split("\n")] == ["我", "", "你喜欢茶吗？", ""]
    feed(monkeypatch, "我\n\n".encode())
    first, empty = told(run(capsys, "classify", reads, "-", "--json")[1])
    assert set(first) == set(empty) == {"text", "label", "probability", "probabilities"}
    assert first["probability"] == pytest.approx(max(first["probabilities"].values()), abs=1e-6)
    assert list(first["probabilities"]) == ["yes", "no"]
    assert empty == {"text": "", "label": None, "probability": None, "probabilities": None}


def test_a_tab_separates_a_pair_whose_texts_lie_in_two_segments(reads, monkeypatch, capsys):
    model = qkv.load(reads)
    made = model.tokenizer
    ids, kinds = format_pair(
        made.encode("我喜欢茶", special=False), made.encode("苹果", special=False), cls=made.cls_id, sep=made.sep_id
    )
    at = torch.tensor([ids])
    with torch.no_grad():
        want = model.core.classify(at, Inputs(segments=torch.tensor([kinds])))[0].softmax(-1)
        flat = label_logits(model.core, [ids])[0].softmax(-1)
    verdict = model.classify(("我喜欢茶", "苹果"))
    assert list(verdict.probabilities.values()) == pytest.approx(want.tolist(), abs=1e-6)
    assert (want - flat).abs().max() > 1e-4, "the segments change nothing here: a poor test"
    assert [v.label for v in model.classify([("我", "你"), "茶", ("我喜欢茶", "苹果")])][2] == verdict.label
    feed(monkeypatch, "我\n我喜欢茶\t苹果\n".encode())
    found = told(run(capsys, "classify", reads, "-", "--json")[1])[1]
    assert found["text"] == "我喜欢茶\t苹果"
    assert found["probability"] == pytest.approx(verdict.probability, abs=1e-5)


def test_an_encoder_without_segments_reads_pairs_between_separators():
    made = train_vocabulary(TEXTS, kind="char", size=200, specials=SPECIALS, template="cls")
    for segments in (0, 1):  # DistilBERT has no segments, RoBERTa a table of one row
        model = hub.build(encoder(len(made), segments=segments), tokenizer=made)
        pair = made.encode("我[SEP]你")
        assert (pair.count(made.sep_id), with_segments(model, ("我", "你"))) == (2, (pair, [0] * 5))
        assert model.classify(("我", "你")) == model.classify(pair)


def test_a_model_without_separators_reads_no_pairs_and_a_tab_is_a_letter(capsys, tmp_path):
    made = train_vocabulary(TEXTS, kind="char", size=200, specials=("[PAD]", "[UNK]", "[CLS]"), template="none")
    model = hub.build(encoder(len(made)), tokenizer=made)
    with pytest.raises(QkvError, match="cannot read pairs"):
        model.classify(("我", "你"))
    model.save(tmp_path)
    code, out, _ = run(capsys, "classify", str(tmp_path), "我\t你")
    assert code == 0
    assert out.endswith("\t我\t你\n")


def test_a_pair_with_an_empty_half_is_refused(reads, capsys):
    code, _, err = run(capsys, "classify", reads, "我\t ")
    assert code == 2
    assert "text 1 of 1 is empty" in err


def test_fill_lists_words_and_numbers_the_masks(reads, capsys):
    code, out, err = run(capsys, "fill", reads, "我喜欢[MASK]。", "--top", "3")
    want = qkv.load(reads).fill("我喜欢[MASK]。", top=3)[0]
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [[f"{p:.2%}", w] for w, p in want]
    assert want == sorted(want, key=lambda wp: -wp[1])
    out = run(capsys, "fill", reads, "[MASK]喜[MASK]", "--top", "1")[1].splitlines()
    assert (out[0], out[2], len(out)) == ("mask 1", "mask 2", 4)
    assert run(capsys, "fill", reads, "[MASK]喜[MASK]", "--top", "1", "--lang", "zh")[1].startswith("第 1 处\n")
    (found,) = told(run(capsys, "fill", reads, "我喜欢[MASK]。", "--top", "3", "--json")[1])
    assert [g["word"] for g in found["masks"][0]] == [w for w, _ in want]
    assert [g["probability"] for g in found["masks"][0]] == pytest.approx([p for _, p in want], abs=1e-6)


def test_fill_of_lines_is_one_line_in_and_one_line_out(reads, monkeypatch, capsys):
    feed(monkeypatch, "我[MASK]。\n\n[MASK]喜[MASK]\n".encode())
    code, out, _ = run(capsys, "fill", reads, "-", "--top", "2")
    lines = out.split("\n")
    assert code == 0
    assert [[len(place.split(" ")) for place in line.split("\t")] for line in lines] == [[2], [1], [2, 2], [1]]
    assert lines[1] == ""
    feed(monkeypatch, "我[MASK]。\n\n我\n".encode())
    code, out, err = run(capsys, "fill", reads, "-", "--json")
    assert code == 2
    assert told(out)[1] == {"text": "", "masks": []}
    assert "line 3: the text has no mask" in err


def test_more_words_than_there_are_is_all_of_them(reads):
    model = qkv.load(reads)
    assert len(model.fill("[MASK]", top=10**6)[0]) == model.spec.vocabulary


@settings(max_examples=10, deadline=None)
@given(st.lists(st.text("我喜欢茶 \t", max_size=6), max_size=5))
def test_as_many_lines_come_out_as_go_in(reads, lines):
    halves = [line.split("\t", 1) for line in lines]
    whole = ["\t".join(h) for h in halves if all(map(str.strip, h)) or not any(map(str.strip, h))]  # no half a pair
    for verb in ("embed", "classify"):
        with pytest.MonkeyPatch.context() as patch:
            feed(patch, "".join(line + "\n" for line in whole).encode())
            patch.setattr(sys, "stdout", out := io.StringIO())
            assert main([verb, reads, "-", "--json"]) == 0
        assert [f["text"] for f in told(out.getvalue())] == whole


# ---- what cannot be done is said


@pytest.mark.parametrize(
    ("verb", "text", "says"),
    [
        ("embed", "", "TEXT is empty"), ("classify", " ", "TEXT is empty"), ("fill", "\t", "TEXT is empty"),
        ("score", "", "TEXT is empty"), ("translate", " ", "TEXT is empty"),
        ("fill", "我喜欢", "the text has no mask"), ("embed", "我" * 30, "reads at most 24"),
        ("classify", "我" * 30, "reads at most 24"), ("fill", "我[MASK]" * 30, "reads at most 24"),
    ],
)  # fmt: skip
def test_a_text_that_cannot_be_read_ends_with_2(verb, text, says, reads, capsys):
    code, out, err = run(capsys, verb, reads, text)
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["classify", "TALKS", "x"], "no labels"),
        (["fill", "TALKS", "x"], "mask token"),
        (["chat", "READS"], "no chat template"),
        (["check", "READS", "--against", "tf"], "hf"),
        *(([verb, "./nowhere", "x"][: 2 if verb in ("chat", "check") else 3], "./nowhere: no such directory")
          for verb in VERBS),
    ],
)  # fmt: skip
def test_a_model_that_cannot_do_it_says_so(args, says, reads, talks, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    feed(monkeypatch, b"hello\n")
    code, out, err = run(capsys, *({"TALKS": talks, "READS": reads}.get(a, a) for a in args))
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("lang", "mark"), [("zh", "浮点格式"), ("en", "floating-point format")])
def test_help_speaks_both_languages_and_begins_with_three_examples(verb, lang, mark, capsys):
    code, out, _ = run(capsys, verb, "--help", "--lang", lang)
    assert code == 0
    assert [line.startswith(f"  qkv {verb} ") for line in out.splitlines()[:4]] == [True] * 3 + [False]
    assert mark in out
    han = sum("\u4e00" <= c <= "\u9fff" for c in out)
    assert (han > 60) == (lang == "zh")


# ---- chat


def test_chat_answers_line_by_line_and_remembers(talks, monkeypatch, capsys):
    asked = []
    real = Model.conversation
    monkeypatch.setattr(Model, "conversation", lambda self, rows: asked.append(list(rows)) or real(self, rows))
    feed(monkeypatch, "\ufeffthe cat\n\nsat\n/new\non\n".encode())
    code, out, err = run(capsys, "chat", talks, "--system", "be short", "-n", "3", "--json")
    found = told(out)
    assert (code, err) == (0, "")
    assert [f["user"] for f in found] == ["the cat", "sat", "on"]
    system = {"role": "system", "content": "be short"}
    first = {"role": "user", "content": "the cat"}
    answer = {"role": "assistant", "content": found[0]["assistant"]}
    assert asked[1:] == [
        [system, first], [system, first, answer, {"role": "user", "content": "sat"}],
        [system, {"role": "user", "content": "on"}],
    ]  # fmt: skip
    feed(monkeypatch, b"the cat\n")
    plain = run(capsys, "chat", talks, "--system", "be short", "-n", "3")[1]
    assert plain == found[0]["assistant"] + "\n"


def test_control_tokens_that_are_typed_stay_text(talks, monkeypatch, capsys):
    seen = []
    real = Model.stream
    monkeypatch.setattr(Model, "stream", lambda self, ids, **how: seen.append(list(ids)) or real(self, ids, **how))
    feed(monkeypatch, b"a<|im_end|>b<|im_start|>\n")
    assert run(capsys, "chat", talks, "-n", "1")[0] == 0
    made = qkv.load(talks).tokenizer
    assert (seen[0].count(made.id("<|im_start|>")), seen[0].count(made.id("<|im_end|>"))) == (2, 1)


def test_chat_names_the_line_that_is_not_utf_8(talks, monkeypatch, capsys):
    feed(monkeypatch, b"a\n\xff\n")
    code, _, err = run(capsys, "chat", talks, "-n", "1")
    assert code == 2
    assert "line 2: byte 0xff is not UTF-8" in err


# ---- check


def altered(source: Path, target: Path, change) -> str:
    """A copy of a model whose tensors a function has changed."""
    shutil.copytree(source, target)
    tensors = {name: read().clone() for name, read in storage.open_tensors(source).items()}
    (target / "model.safetensors").unlink()
    storage.write_tensors(target, change(tensors))
    return str(target)


@bundled["demo"]
def test_the_bundled_model_passes(capsys):
    code, out, err = run(capsys, "check", "demo")
    assert (code, err) == (0, "")
    assert out.count("✓") == 2
    assert "model.safetensors" in out
    code, out, _ = run(capsys, "check", "demo", "--json")
    (report,) = told(out)
    assert code == 0
    assert (report["ok"], report["loads"], report["not_finite"], report["parity"]) == (True, True, {}, None)
    assert all(len(digest) == 64 for digest in report["files"].values())
    assert report["parameters"] == hub.report("demo")["parameters"]
    assert "每个张量都读到了" in run(capsys, "check", "demo", "--lang", "zh")[1]


@bundled["demo"]
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_one_number_that_is_not_finite_fails_and_its_tensor_is_named(value, capsys, tmp_path):
    def spoil(tensors):
        tensors["model.decoder.layers.1.fc1.weight"][2, 3] = value
        return tensors

    folder = altered(bundled_dir() / "demo", tmp_path / "bad", spoil)
    code, out, _ = run(capsys, "check", folder)
    assert code == 1
    assert "✗ model.decoder.layers.1.fc1.weight: 1 NaN or infinite" in out
    code, out, _ = run(capsys, "check", folder, "--json")
    assert code == 1
    assert told(out)[0]["not_finite"] == {"model.decoder.layers.1.fc1.weight": 1}
    assert told(out)[0]["ok"] is False


@bundled["demo"]
def test_a_missing_tensor_ends_with_2_and_is_named(capsys, tmp_path):
    gone = "model.decoder.layers.1.fc1.weight"
    folder = altered(bundled_dir() / "demo", tmp_path / "bad", lambda t: {n: v for n, v in t.items() if n != gone})
    code, out, err = run(capsys, "check", folder, "--json")
    assert (code, out) == (2, "")
    assert f"Missing (1): {gone}" in err
    assert "Traceback" not in err


@bundled["demo-lm"]
def test_parity_with_transformers_and_a_fault_that_shows(monkeypatch, capsys, tmp_path):
    pytest.importorskip("transformers")
    code, out, err = run(capsys, "check", "demo-lm", "--against", "hf", "--json")
    parity = told(out)[0]["parity"]
    assert (code, err, parity["agrees"]) == (0, "", True)
    assert parity["difference"] <= parity["bound"] < 1e-3 < parity["spread"]

    real = hub.load

    def off(*args, **how):
        model = real(*args, **how)
        model.core.decoder.layers[0].attn.scale *= 1.05
        return model

    monkeypatch.setattr(hub, "load", off)
    code, out, _ = run(capsys, "check", "demo-lm", "--against", "hf")
    assert code == 1
    assert "✗ largest difference from transformers" in out


def test_parity_with_labels_and_of_a_model_unknown_to_transformers(reads, capsys, tmp_path):
    pytest.importorskip("transformers")
    code, out, _ = run(capsys, "check", reads, "--against", "hf", "--json")
    assert code == 0
    assert told(out)[0]["parity"]["agrees"]
    bare = hub.load(reads)
    core = Transformer(replace(bare.spec, head=None, labels=replace(bare.spec.labels, count=3)))
    core.load_state_dict({n: p for n, p in bare.core.state_dict().items() if not n.startswith(("head", "labels.out"))},
                         strict=False)  # fmt: skip
    Model(core.eval(), bare.tokenizer, bare.special).save(tmp_path / "labels")
    code, out, _ = run(capsys, "check", str(tmp_path / "labels"), "--against", "hf", "--json")
    assert code == 0
    assert told(out)[0]["parity"]["agrees"]
    spec = encoder(40, segments=0)
    hub.build(replace(spec, init=Init("xavier"))).save(tmp_path / "own")
    code, _, err = run(capsys, "check", str(tmp_path / "own"), "--against", "hf")
    assert code == 2
    assert "does not know the type 'qkv'" in err


# ---- convert


@bundled["demo-lm"]
def test_multi_query_attention_keeps_a_quarter_of_the_cache_at_a_cost(capsys, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("One, two, buckle my shoe; three, four, knock at the door.\n", encoding="utf-8")
    code, out, err = run(capsys, "convert", "demo-lm", str(tmp_path / "out"), "--attention", "mqa", "--text", str(text),
                         "--json")  # fmt: skip
    (report,) = told(out)
    assert (code, err) == (0, "")
    before, after = report["kv_bytes_per_token"]
    assert before == 4 * after == hub.report("demo-lm")["kv_bytes_per_token"]
    assert report["loss"][1] > report["loss"][0] > 0
    assert report["model_type"] == "llama"
    new, old = qkv.load(tmp_path / "out"), qkv.load("demo-lm")
    assert {block.attn.groups for block in new.spec.decoder.blocks} == {1}
    assert torch.equal(new.core.embed.weight, old.core.embed.weight)
    assert new.ids("One") == old.ids("One")
    ids = old.ids(text.read_text(encoding="utf-8"))
    assert report["loss"] == pytest.approx([-m.score(ids) / (len(ids) - 1) for m in (old, new)], abs=1e-3)


def pooled(capsys, model, said):
    """What `qkv convert` says of multi-query attention in `model`, its loss measured on a text."""
    Path("text.txt").write_text(said, encoding="utf-8")
    return run(capsys, "convert", model, "out", "--attention", "mqa", "--text", "text.txt")


@bundled["demo"]
def test_a_shape_that_transformers_lacks_is_told(capsys, tmp_path):
    out = run(capsys, "convert", "demo", str(tmp_path / "mqa"), "--attention", "mqa")[1]
    assert "as type qkv\nqkv alone loads it: transformers has no family of this shape\n" in out


@bundled["demo-lm"]
def test_the_report_for_people(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = pooled(capsys, "demo-lm", "One, two, buckle my shoe.\n")
    assert code == 0
    assert "written to out as type llama\nKV per token: 4,096 -> 1,024 bytes (fp32)\nloss per token: " in out
    assert "a little more training recovers it" in out
    assert "qkv alone" not in out
    assert "每词元的损失：" in run(
        capsys, "convert", "demo-lm", "zh", "--attention", "gqa:2", "--text", "text.txt", "--lang", "zh"
    )[1]


@bundled["demo-lm"]
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--attention", "gqa:3"], "4 key/value heads cannot be pooled into 3 groups; possible are 1, 2, 4"),
        (["--attention", "gqa"], "mqa, or gqa:N"),
        (["--attention", "gqa:0"], "mqa, or gqa:N"),
        (["--attention", "mha"], "expected mqa or gqa:N"),
        (["--family", "qwen2"], "spec.decoder.blocks[0].attn.bias is False"),
        (["--family", "lama"], "did you mean 'llama'?"),
        (["--text", "nowhere.txt"], "nowhere.txt: no such file"),
        (["--to-dtype", "int3"], "bf16"),
    ],
)
def test_a_conversion_that_cannot_be_leaves_nothing(flags, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "convert", "demo-lm", "out", *flags)
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


@bundled["demo"]
def test_a_translator_has_no_loss_of_plain_text(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = pooled(capsys, "demo", "hello")
    assert code == 2
    assert "that of a causal decoder" in err
    assert "qkv eval (--bleu or --accuracy)" in err
    assert not Path("out").exists()


@bundled["demo-lm"]
def test_what_lies_there_already_is_not_touched(capsys, tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "mine.txt").write_text("mine", encoding="utf-8")
    for place in (target, target / "mine.txt"):
        code, _, err = run(capsys, "convert", "demo-lm", str(place), "--attention", "mqa")
        assert code == 2
        assert "exists already" in err
    assert [p.name for p in target.iterdir()] == ["mine.txt"]
    (target / "mine.txt").unlink()
    assert run(capsys, "convert", "demo-lm", str(target), "--attention", "mqa")[0] == 0, "an empty one is welcome"


@bundled["demo-lm"]
def test_dtype_and_family_stay_unless_asked(capsys, tmp_path):
    def kinds(name):
        return {read().dtype for read in storage.open_tensors(tmp_path / name).values()}

    assert run(capsys, "convert", "demo-lm", str(tmp_path / "same"), "--attention", "gqa:2")[0] == 0
    assert run(capsys, "convert", "demo-lm", str(tmp_path / "wide"), "--to-dtype", "fp32")[0] == 0
    assert run(capsys, "convert", str(tmp_path / "wide"), str(tmp_path / "slim"), "--to-dtype", "bf16")[0] == 0
    assert kinds("same") == kinds("slim") == {torch.bfloat16}
    assert kinds("wide") == {torch.float32}
    first, last = storage.open_tensors(bundled_dir() / "demo-lm"), storage.open_tensors(tmp_path / "slim")
    assert all(torch.equal(first[n](), last[n]()) for n in first)
    _, out, _ = run(capsys, "convert", "demo-lm", str(tmp_path / "other"), "--family", "mistral", "--json")
    assert told(out)[0]["model_type"] == "mistral"
    assert qkv.load(tmp_path / "other").spec == qkv.load("demo-lm").spec


def test_labels_keep_their_names(reads, capsys, tmp_path):
    assert run(capsys, "convert", reads, str(tmp_path / "out"), "--to-dtype", "fp16")[0] == 0
    assert qkv.load(tmp_path / "out").labels == ("yes", "no")


@bundled["demo"]
def test_what_no_family_can_say_is_written_as_our_own_type(capsys, tmp_path):
    code, out, _ = run(capsys, "convert", "demo", str(tmp_path / "out"), "--attention", "mqa", "--json")
    assert code == 0
    assert told(out)[0]["model_type"] == "qkv"
    assert qkv.load(tmp_path / "out").translate("我爱学习。").text


# ---- the bundled encoder


@bundled["demo-bert"]
def test_the_bundled_encoder_fills_in_and_classifies(capsys):
    code, out, _ = run(capsys, "fill", "demo-bert", "我爱[MASK]。", "--top", "3")
    assert code == 0
    assert len(out.splitlines()) == 3
    code, out, _ = run(capsys, "classify", "demo-bert", "你喜欢苹果吗？")
    assert code == 0
    assert out.startswith("question\t")
    assert run(capsys, "embed", "demo-bert", "书放在桌上。")[0] == 0
    assert run(capsys, "check", "demo-bert")[0] == 0


def test_a_model_whose_run_was_cut_off_is_told_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("the tea is warm .\n" * 200, encoding="utf-8")
    small = ["model.width=16", "model.layers=1", "model.ffn=32", "model.heads=2", "model.context=16"]
    steps = ["tokenizer.size=280", "training.steps=4", "training.evaluate_every=2", "training.tokens=64"]
    assert main(["train", "t.txt", *small, *steps, "--out", "r", "--quiet"]) == 0
    ask = ["generate", "r", "the", "--max-new-tokens", "1"]

    def told(*more: str) -> str:
        capsys.readouterr()
        assert main([*ask, *more]) == 0
        return capsys.readouterr().err

    assert "run" not in told()
    Path("r/train/result.json").unlink()
    assert "r: its run has not ended; these are its weights of step 4" in told()
    assert "r：它的训练没有结束；这是第 4 步的权重" in told("--lang", "zh")
    assert "ended" not in told("--quiet")
    log = Path("r/train/log.jsonl")
    lines = log.read_text(encoding="utf-8").splitlines()
    log.write_text("\n".join(x for x in lines if '"evaluation"' not in x) + '\n7\n{"ki', encoding="utf-8")
    assert "has not come to an evaluation; these are the weights that it began with" in told()


def judge(folder: Path, seed: int, texts: tuple[str, ...], labels: dict[str, str]) -> str:
    """An encoder of its own weights, vocabulary and order of labels."""
    made = train_vocabulary(texts, kind="char", size=200, specials=SPECIALS, template="cls")
    torch.manual_seed(seed)
    shaken(hub.build(encoder(len(made)), tokenizer=made, seed=seed)).save(folder)
    storage.write_json(folder / "config.json", storage.read_json(folder / "config.json") | {"id2label": labels})
    return str(folder)


def test_several_models_classify_by_the_mean_of_their_probabilities(
    reads: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = judge(tmp_path / "a", 5, TEXTS, {"0": "no", "1": "yes"})
    third = judge(tmp_path / "b", 6, (*TEXTS, "zebra quiz"), {"0": "yes", "1": "no"})
    texts = ["我喜欢苹果", "the cat", "我在家。", "你喜欢茶吗？", "小帅", "on the mat", "读书", "苹果", "cat sat", "。"]
    one, *others = map(qkv.load, (reads, second, third))
    assert others[1].spec.vocabulary != one.spec.vocabulary
    each = [[v.probabilities["yes"] for v in m.classify(texts)] for m in (one, *others)]
    mean = [sum(said) / 3 for said in zip(*each, strict=True)]
    found = one.classify(texts, ensemble=others)
    assert [v.probabilities["yes"] for v in found] == pytest.approx(mean, abs=1e-6)
    wanted = ["yes" if p > 0.5 else "no" for p in mean]
    assert [v.label for v in found] == wanted
    assert wanted not in [["yes" if p > 0.5 else "no" for p in said] for said in each]  # or the first alone would do
    words = ["--ensemble", second, "--ensemble", third]
    for text, label in zip(texts, wanted, strict=True):
        assert run(capsys, "classify", reads, text, *words)[1].startswith(f"{label}\t")
    file = tmp_path / "t.tsv"
    file.write_text("".join(f"{t}\t{w}\n" for t, w in zip(texts, wanted, strict=True)), encoding="utf-8")
    assert "accuracy 100.00% (10/10)" in run(capsys, "eval", reads, "--accuracy", str(file), *words)[1]
    assert "(10/10)" not in run(capsys, "eval", reads, "--accuracy", str(file))[1]
    other = judge(tmp_path / "c", 7, TEXTS, {"0": "good", "1": "bad"})
    code, _, err = run(capsys, "classify", reads, "苹果", "--ensemble", other)
    assert code != 0
    assert "the models have different labels (yes, no; good, bad)" in err


# ---- what a stranger tried


def test_a_line_without_an_answer_is_named_and_those_before_are_answered(
    reads: str, talks: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "the cat " * 60
    for words, text in (
        (["score", talks, "-"], "the cat\n\n the mat\na\nthe cat\n"),
        (["classify", reads, "-"], f"我\n\n你\n{long}\n我\n"),
        (["embed", reads, "-"], f"我\n\n你\n{long}\n我\n"),
    ):
        bad = text.splitlines()[3]
        feed(monkeypatch, text.encode())
        code, out, err = run(capsys, *words)
        assert code == 2
        assert "standard input, line 4: " in err
        assert len(out.splitlines()) == 3
        feed(monkeypatch, text.replace(f"\n{bad}\n", "\nthe cat\n").encode())
        code, whole, _ = run(capsys, *words)
        assert (code, len(whole.splitlines())) == (0, 5)
        if words[0] != "embed":
            assert whole.startswith(out)
            assert whole.splitlines()[1] == ""
    feed(monkeypatch, b"the cat\na\n")
    assert "line 2: score needs a text of at least two tokens" in run(capsys, "score", talks, "-")[2]
    feed(monkeypatch, b"the cat\n" * 39 + b"a\n" + b"the cat\n" * 60)  # beyond the first batch
    code, out, err = run(capsys, "score", talks, "-")
    assert (code, len(out.splitlines()), "line 40: " in err) == (2, 39, True)
    feed(monkeypatch, b"the\n\n")
    found = told(run(capsys, "generate", talks, "-", "-n", "1", "--json")[1])
    assert [f["prompt"] for f in found] == ["the", ""]
    assert (found[1]["text"], found[1]["tokens"]) == ("", None)
    assert run(capsys, "generate", talks, "")[0] == 2


def test_options_of_generate_are_checked_by_type_and_range(talks: str) -> None:
    model = qkv.load(talks)
    for how, says in (
        ({"max_new_tokens": 2.5}, "max_new_tokens: found 2.5, expected a whole number"),
        ({"max_new_tokens": "3"}, "found '3', expected a whole number"), ({"temperature": "1"}, "expected a number"),
        ({"beam": 0}, "beam: found 0, expected 1 to 4,096"), ({"beam": 5000}, "beam: found 5000, expected 1 to 4,096"),
        ({"seed": True}, "seed: found True"), ({"stop": 3}, "stop: found 3, expected text or a list"),
    ):  # fmt: skip
        with pytest.raises(QkvError, match=says):
            model.generate("the", **({"max_new_tokens": 1} | how))
    same = model.generate("the", max_new_tokens=torch.tensor(3), temperature=1, stop=None)
    assert same.tokens == model.generate("the", max_new_tokens=3, temperature=1.0, stop=[]).tokens


def test_nothing_to_read_and_no_name_are_no_accident(
    reads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = qkv.load(reads)
    assert model.classify([]) == []
    assert tuple(model.embed([]).shape) == (0, 32)
    with pytest.raises(QkvError, match="the name of the directory is empty"):
        model.save("")
    assert not list(tmp_path.iterdir())
    model.save("here")
    monkeypatch.chdir("here")
    assert "the name of the model is empty" in run(capsys, "classify", "", "x")[2]
    with pytest.raises(QkvError, match="bytes that are not UTF-8, or half of a character"):
        model.classify("a\udcff")
    storage.write_json(Path("generation_config.json"), {"eos_token_id": "x"})
    code, _, err = run(capsys, "classify", ".", "x")
    assert (code, "eos_token_id is 'x' in its configs" in err) == (2, True)
    with pytest.raises(QkvError, match=r"^/proc/none/x: the folder /proc/none is not there"):
        model.save("/proc/none/x")


@pytest.mark.parametrize("kind", ["char", "word"])
def test_an_unknown_word_is_translated_as_python_and_json_have_it(
    kind: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = train_vocabulary(TEXTS, kind=kind, size=200)
    model = hub.build(Shape("marian", width=16, layers=1, heads=2, ffn=32, context=32).spec(len(made)), tokenizer=made)
    with torch.no_grad():
        model.core.head.bias[made.eos_id] = -9.0  # something is said
    model.save(tmp_path)
    wanted = qkv.load(tmp_path).translate("the 猹 cat", max_new_tokens=6)
    assert wanted.unknown == ("猹",)
    assert wanted.text.strip()
    code, out, err = run(capsys, "translate", str(tmp_path), "the 猹 cat", "--max-new-tokens", "6")
    assert (code, out, err) == (0, f"{wanted.text}\n", "not in the vocabulary: 猹\n")


def test_an_unknown_word_of_a_closed_vocabulary_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "translate", "demo", "我爱猹。")
    assert (code, out, err) == (0, "I love [猹].\n", "not in the vocabulary: 猹; in [ ]\n")
    assert json.loads(run(capsys, "translate", "demo", "我爱猹。", "--json")[1])["text"] == "I love [猹]."
    with pytest.raises(QkvError, match="beem: unknown key; did you mean 'beam'"):
        qkv.load("demo").translate("茶", beem=3)


def test_a_draw_is_fresh_and_its_seed_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("generate", "demo-lm", "One", "-n", "8", "-t", "1")
    code, out, err = run(capsys, *asked)
    assert (code, err.split()[:2]) == (0, ["drawn", "with"])
    assert run(capsys, *asked, "--seed", err.split()[-1])[1] == out


def test_the_bundled_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    from qkv import paths

    found = json.loads(run(capsys, "models", "--json")[1])["bundled"]
    assert {row["name"] for row in found} == {p.name for p in paths.bundled_dir().iterdir()}


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e400"])
def test_no_amount_is_endless_or_no_number(value: str) -> None:
    with pytest.raises(click.BadParameter, match=f"{float(value)} is not in the range x>=0"):
        FiniteRange(0).convert(value, None, None)
    assert FiniteRange(0, 2).convert("1.5", None, None) == 1.5
    verbs = [import_module(f"qkv.cli.{name}").command for name in ("serve", "generate", "chat", "look")]
    ranges = [p.type for verb in verbs for p in verb.params if isinstance(p.type, click.FloatRange)]
    assert len(ranges) > 8
    assert all(isinstance(one, FiniteRange) for one in ranges)
