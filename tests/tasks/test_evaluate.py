"""Evaluation against slow references: perplexity one token at a time, BLEU by sacreBLEU itself, accuracy by hand."""

import math
from pathlib import Path

import pytest
import sacrebleu
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.characters import TEXT, decoder

import qkv
from qkv import hub
from qkv.errors import QkvError
from qkv.model import Model
from qkv.paths import bundled_dir
from qkv.tasks import evaluate
from qkv.tasks.types import Result
from qkv.tokenizers.vocabulary import train_vocabulary
from qkv.training.shape import Shape


def translator() -> Model:
    made = train_vocabulary([TEXT], kind="char", size=200, specials=("<pad>", "</s>", "<unk>"), template="eos")
    shape = Shape("marian", width=32, layers=1, heads=2, ffn=64, dropout=0.0, context=16)
    model = hub.build(shape.spec(len(made)), tokenizer=made)
    model.core.eval()
    return model


def put(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@given(count=st.integers(2, 60), window=st.integers(2, 30), data=st.data())
@settings(max_examples=150, deadline=None)
def test_windows_predict_each_token_once(count: int, window: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, window - 1))
    seen: list[int] = []
    for start, first in evaluate.iter_windows(count, window, stride):
        end = start + min(window, count)
        assert 0 <= start < first < end <= count
        if seen:
            assert first - start >= window - stride, "a token is predicted from too little"
        seen += range(first, end)
    assert seen == list(range(1, count))


@pytest.mark.parametrize(("window", "stride"), [(None, None), (8, 3), (24, 23), (10, 1)])
def test_perplexity_is_the_slow_one(tmp_path: Path, window: int | None, stride: int | None) -> None:
    model = decoder()
    path = put(tmp_path, "f.txt", TEXT[:100])
    found = model.eval(ppl=path, window=window, stride=stride)
    ids = model.ids(TEXT[:100])
    wide, step = window or 24, stride or 12
    total = 0.0
    for at in range(1, len(ids)):
        # the window that predicts it: the first one that reaches it, shifted back at the end of the text
        begins = max(0, min(-(-max(0, at + 1 - wide) // step) * step, len(ids) - wide))
        row = torch.tensor([ids[begins : at + 1]])
        with torch.no_grad():
            states = model.core.hidden(row[:, :-1])
            total -= float(model.core.head(states)[0, -1].log_softmax(-1)[ids[at]])
    assert (found.tokens, found.window, found.stride) == (len(ids) - 1, wide, step)
    assert found.loss == pytest.approx(total / (len(ids) - 1), rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(found.loss), rel=1e-9)
    assert found.bytes == len(TEXT[:100].encode()) - len("我".encode())
    assert found.bits_per_byte == pytest.approx(total / math.log(2) / found.bytes, rel=1e-5)
    assert found.words == len(TEXT[:100].split())
    assert found.loss > 3


def test_perplexity_of_a_whole_window_is_what_score_says(tmp_path: Path) -> None:
    model = decoder()
    found = model.eval(ppl=put(tmp_path, "f.txt", TEXT[:20]))
    assert -found.loss * found.tokens == pytest.approx(model.score(TEXT[:20]), rel=1e-5)


PAIRS = "我喜欢苹果\tthe cat\n\n你\tthe mat sat.\n茶吗\tcat\n"


@torch.no_grad()
def slow(model: Model, source: list[int], target: list[int]) -> float:
    """The loss of a target and its end after a source, everything read anew for each token."""
    row, total = [model.special.start or 0], 0.0
    for token in [*target, *model.special.eos[:1]]:
        logits = model(source=torch.tensor([source]), target=torch.tensor([row])).logits
        total, row = total - float(logits[0, -1].log_softmax(-1)[token]), [*row, token]
    return total


def test_the_perplexity_of_pairs_is_that_of_targets_after_their_sources(tmp_path: Path) -> None:
    model = translator()
    with torch.no_grad():
        for p in model.core.parameters():
            p.mul_(3.0 if p.ndim > 1 else 1.0)
    heard: list[tuple[int, int]] = []
    found = model.eval(ppl=put(tmp_path, "p.tsv", PAIRS), tell=lambda *n: heard.append(n))
    rows = [line.split("\t") for line in PAIRS.splitlines() if line]
    assert model.tokenizer
    targets = [model.tokenizer.encode(target, special=False) for _, target in rows]
    total = sum(slow(model, model.ids(source), ids) for (source, _), ids in zip(rows, targets, strict=True))
    assert found.tokens == sum(len(ids) + 1 for ids in targets)
    assert found.loss == pytest.approx(total / found.tokens, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(found.loss), rel=1e-9)
    assert (found.words, found.bytes) == (6, sum(len(target) for _, target in rows))
    assert found.bits_per_byte == pytest.approx(total / math.log(2) / found.bytes, rel=1e-5)
    assert (found.window, found.stride, heard[-1]) == (None, None, (3, 3))


def test_pairs_are_wanted_where_a_source_is_read_and_a_bad_one_is_named(tmp_path: Path) -> None:
    model = translator()
    with pytest.raises(QkvError, match=r"p.txt: .* expected lines of source TAB target in a \*.tsv"):
        model.eval(ppl=put(tmp_path, "p.txt", PAIRS))
    with pytest.raises(QkvError, match="pairs are read whole; remove window and stride"):
        model.eval(ppl=put(tmp_path, "p.tsv", PAIRS), window=4)
    with pytest.raises(QkvError, match=r"p.tsv:5: found 1 column"):
        model.eval(ppl=put(tmp_path, "p.tsv", PAIRS + "你\n"), stride=None)
    long = PAIRS + "你\t" + "cat " * 8 + "\n"
    with pytest.raises(QkvError, match=r"p.tsv:5: a text has 33 tokens, and the model reads at most 16") as error:
        model.eval(ppl=put(tmp_path, "p.tsv", long))
    assert error.value.message.to("zh").endswith("；请缩短或分开")


@pytest.mark.skipif(not (bundled_dir() / "demo-moe").is_dir(), reason="demo-moe is not bundled")
def test_a_prefix_decoder_reads_pairs_as_learnt_and_a_text_left_to_right(tmp_path: Path) -> None:
    model = qkv.load("demo-moe")
    found = model.eval(ppl=put(tmp_path, "p.tsv", "我喜欢苹果。\tI like apples.\n"))
    assert -found.loss * found.tokens == pytest.approx(model.score(("我喜欢苹果。", "I like apples.")), rel=1e-5)
    text = model.eval(ppl=put(tmp_path, "p.txt", "我喜欢苹果。\tI like apples.\n"))
    assert text.window is not None
    assert text.loss > found.loss + 1


def test_a_window_that_forgets_its_past_would_be_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "iter_windows", lambda n, w, s: ((i, i + 1) for i in range(0, n - w + 1, s)))
    with pytest.raises(AssertionError):
        test_perplexity_is_the_slow_one(tmp_path, 8, 3)


def test_bleu_and_chrf_are_those_of_sacrebleu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = translator()
    wanted = ["the cat sat on the mat .", "I like tea", "", "the mat"]
    said = {"我喜欢": "the cat sat on a mat .", "你": "I like\ntea", "茶吗": "mat the"}
    asked: list[str] = []

    def answer(_: Model, texts: list[str], **options: object) -> list[Result]:
        asked.extend(texts)
        assert options == {"beam": 2}
        return [Result(said[t], [], [], "stop", {}) for t in texts]

    monkeypatch.setattr(evaluate, "translate", answer)
    source = put(tmp_path, "s", "我喜欢\n你\n\n茶吗\n")
    found = evaluate.evaluate(model, bleu=(source, put(tmp_path, "r", "\n".join(wanted) + "\n")), beam=2)
    assert isinstance(found, evaluate.Translation)
    assert found.hypotheses == ("the cat sat on a mat .", "I like tea", "", "mat the")
    assert sorted(asked) == sorted(said), "blank lines are not translated"
    assert found.bleu == round(sacrebleu.corpus_bleu(list(found.hypotheses), [wanted]).score, 2)
    assert found.chrf == round(sacrebleu.corpus_chrf(list(found.hypotheses), [wanted]).score, 2)
    assert found.exact_match == 0.5
    assert found.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


@pytest.mark.parametrize(
    ("references", "tok"),
    [(["我喜欢苹果。", "你好"], "zh"), (["りんごが好きです", "本"], "char"), (["I see 我"], "13a")],
)
def test_the_way_of_cutting_goes_by_the_script(references: list[str], tok: str) -> None:
    assert f"tok:{tok}" in evaluate.score_translations(references, references).signature
    assert evaluate.score_translations(references, references).exact_match == 1


def test_parts_of_words_are_joined_before_they_are_compared() -> None:
    assert [evaluate.join_parts(x, "@@ ") for x in ("a@@ b c", "a@@", "a b", "a@@ @@ b")] == ["ab c", "a", "a b", "ab"]


def test_a_real_translator_and_a_real_decoder_answer(tmp_path: Path) -> None:
    pairs = (["我喜欢", "你"], ["x", "y"])
    for model in (translator(), decoder()):
        found = model.eval(bleu=pairs, beam=2, max_new_tokens=4)
        assert len(found.hypotheses) == 2
        want = model.translate if model.encoder_decoder else model.generate
        assert list(found.hypotheses) == [r.text.replace("\n", " ") for r in want(pairs[0], beam=2, max_new_tokens=4)]


def labeller() -> Model:
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    made = train_vocabulary([TEXT], kind="char", size=200, specials=special, template="cls")
    shape = Shape("bert", width=32, layers=1, heads=2, ffn=64, dropout=0.0, context=64)
    model = hub.build(shape.spec(len(made), labels=3), tokenizer=made)
    model.config = {"id2label": {"0": "no", "1": "yes", "2": "perhaps"}}
    with torch.no_grad():
        for p in model.core.parameters():
            p.mul_(5.0 if p.ndim > 1 else 1.0)
    model.core.eval()
    return model


def test_accuracy_is_counted_by_hand(tmp_path: Path) -> None:
    model = labeller()
    texts = [TEXT.replace("\n", "")[i : i + 3 + i % 7].strip() for i in range(200)]
    wanted = [model.labels[i % 3] for i in range(200)]
    said = [model.classify(t).label for t in texts]
    path = put(tmp_path, "f.tsv", "".join(f"{t}\t{w}\n" for w, t in zip(wanted, texts, strict=True)))
    seen: list[tuple[int, int]] = []
    found = model.eval(accuracy=path, tell=lambda *n: seen.append(n))
    assert found.right == sum(a == b for a, b in zip(said, wanted, strict=True))
    assert found.accuracy == found.right / 200
    assert found.majority == 67 / 200
    assert {k: v[0] for k, v in found.labels.items()} == {n: wanted.count(n) for n in model.labels}
    assert {k: v[2] for k, v in found.labels.items()} == {n: said.count(n) for n in model.labels}
    assert sum(v[1] for v in found.labels.values()) == found.right
    assert seen == [(128, 200), (200, 200)]
    with pytest.raises(QkvError, match=r"g\.tsv:2: label 3 is out of range"):
        model.eval(accuracy=put(tmp_path, "g.tsv", "a\t0\nb\t3\n"))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({}, "found none, expected one of"), ({"ppl": "x", "accuracy": "y"}, "found ppl and accuracy"),
        ({"ppl": "f", "strid": 3}, "unknown option 'strid' of ppl; did you mean 'stride'"),
        ({"ppl": "f", "window": 25}, "window: found 25, expected 2 to 24"),
        ({"ppl": "f", "window": 8, "stride": 8}, "stride: found 8, expected 1 to 7"),
        ({"ppl": "one"}, "1 token, expected at least two"), ({"accuracy": "f"}, "needs a model with labels"),
        ({"ppl": "nope"}, "no such file"), ({"bleu": ("f", "one")}, "f has 6 lines and .*one has 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict, told: str) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path, "f", TEXT)
    put(tmp_path, "one", "我")
    with pytest.raises(QkvError, match=told):
        decoder().eval(**how)


def test_a_source_longer_than_the_encoder_is_told_by_line(tmp_path: Path) -> None:
    source, target = put(tmp_path, "s", "我\n" + "我" * 40 + "\n"), put(tmp_path, "t", "a\nb\n")
    with pytest.raises(QkvError, match=r"s:2: 41 tokens, and the model reads at most 16"):
        translator().eval(bleu=(source, target))
    with pytest.raises(QkvError, match="this model predicts a text from its source; expected lines of source TAB"):
        translator().eval(ppl=source)


def test_a_model_of_nan_says_so(tmp_path: Path) -> None:
    model = decoder()
    with torch.no_grad():
        model.core.embed.weight[:] = math.nan
    with pytest.raises(QkvError, match="not a finite number"):
        model.eval(ppl=put(tmp_path, "f", TEXT))
