"""Two texts with one label: training reads them as `classify` does, with the separators of the model's own template."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import processors

import qkv
from qkv import hub
from qkv.errors import QkvError
from qkv.explore import question, tables
from qkv.spec import Attention, Block, Dense, Ffn, Head, Init, Labels, Mask, Norm, Spec, Stack, Table
from qkv.tasks.classify import find_separator, with_segments
from qkv.tokenizers.vocabulary import train_vocabulary
from qkv.training import losses
from qkv.training.assemble import Assembly, assemble
from qkv.training.data_files import Data
from qkv.training.own_data import from_files
from qkv.training.run import Run

WORDS = ("red", "blue", "green", "black", "white", "small", "large")
ROWS = [(f"the {WORDS[i % 7]} cat sees {WORDS[i % 5]}", f"a {WORDS[i % 7]} dog sees {WORDS[i % 3]} {i}",
         ("no", "yes")[i % 2]) for i in range(60)]  # fmt: skip
BASE = ("training.steps=2", "training.tokens=256", "training.precision='fp32'", "training.warmup=1",
        "training.word_dropout=0.0", "training.rare_words=0.0", "tokenizer.bpe_dropout=0.0")  # fmt: skip


def write_rows(path: Path) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def make_roberta(folder: Path, segments: int = 1) -> Path:
    """An encoder in small with one kind of segment and two separators between texts, as RoBERTa has them; BERT, 2."""
    made = train_vocabulary([" ".join(row) for row in ROWS], kind="word", size=100,
                            specials=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), template="cls")  # fmt: skip
    sep, cls = made.sep_id, made.cls_id
    if segments == 1:
        made.backend.post_processor = processors.RobertaProcessing(("[SEP]", sep), ("[CLS]", cls), True, False)
    attn, norm = Attention(2, 2, 32, Mask("full"), True, True), Norm("layer", 1e-12)
    block = Block(attn, Ffn(64, "gelu", bias=True), norm_sum=norm)
    stack = Stack(64, (block,) * 3, Table("learned", 64), embed_norm=norm, segments=segments)
    head = Head("tied", bias=True, dense=Dense("gelu", norm))
    spec = Spec(len(made), encoder=stack, head=head, labels=Labels(2, dense=Dense("tanh")), init=Init("normal", 0.3))
    hub.build(spec, tokenizer=made).save(folder)
    return folder


def read_batches(a: Assembly) -> dict[tuple[int, ...], list[int]]:
    """The ids of each row of an epoch, and the segments that its batch gives them."""
    pad, found = a.model.special.pad, dict[tuple[int, ...], list[int]]()
    for key in a.plan.order(0):
        batch = a.plan.make(key)
        assert batch.segments is not None
        for ids, kinds in zip(batch.target.tolist(), batch.segments.tolist(), strict=True):
            real = sum(i != pad for i in ids)
            found[tuple(ids[:real])] = kinds[:real]
    return found


def check_rows(run: Run) -> Assembly:
    """The rows of a run are those that `classify` makes of the same two texts."""
    a = assemble(run, device="cpu")
    kinds = a.model.spec.stack.segments > 1
    for ids, segments in read_batches(a).items():
        halves = [[i for i, kind in zip(ids, segments, strict=True) if kind % 2 == half] for half in (0, 1)]
        first, second = map(a.model.tokenizer.decode, halves)
        assert first.startswith("the ")
        assert second.startswith("a ")
    want = dict[tuple[int, ...], list[int]]()
    for text, _ in a.splits.train:  # type: ignore[misc]
        ids, segments = with_segments(a.model, tuple(text.split("\t")))
        want[tuple(ids)] = segments
    found = read_batches(a)
    assert found.keys() == want.keys()
    assert not kinds or found == want
    return a


def make_run(tmp_path: Path, *words: str) -> Run:
    return from_files([write_rows(tmp_path / "nli.tsv")], [*BASE, *words])


@pytest.mark.parametrize("words", [(), ("tokenizer.kind='char'",), ("tokenizer.kind='bpe'", "tokenizer.size=320"),
                                   ("model.segments=2",)])  # fmt: skip
def test_training_reads_two_texts_as_classify_does(words: tuple[str, ...], tmp_path: Path) -> None:
    a = check_rows(make_run(tmp_path, *words))
    config = a.model.config or {}
    assert config["two_texts"]
    marked = "segments" not in str(words)
    assert (a.model.spec.stack.segments, config.get("shared_words", False)) == (4 if marked else 2, marked)


def test_words_that_both_texts_have_are_marked(tmp_path: Path) -> None:
    a = check_rows(make_run(tmp_path))
    tokenizer = a.model.tokenizer
    assert tokenizer is not None
    ids, segments = with_segments(a.model, ("the red cat sees blue", "a red unseen dog sees strange red"))
    said = dict(zip(map(tokenizer.lookup, ids), segments, strict=True))
    assert ids.count(tokenizer.unk_id) == 2
    assert {word for word, kind in said.items() if kind == 0} == {"[CLS]", "the", "cat", "blue"}
    assert {word for word, kind in said.items() if kind == 1} == {"[SEP]", "a", "[UNK]", "dog"}
    assert {word for word, kind in said.items() if kind == 3} == {"red", "sees"}
    assert segments[2] == segments[ids.index(tokenizer.id("sees"))] == 2
    assert with_segments(a.model, "the red cat red")[1] == [0] * 6, "one text shares nothing"
    for row, kinds in read_batches(a).items():
        first = {i for i, kind in zip(row, kinds, strict=True) if kind % 2 == 0}
        second = {i for i, kind in zip(row, kinds, strict=True) if kind % 2}
        shared = (first & second) - {tokenizer.sep_id, tokenizer.unk_id}
        assert [kind >= 2 for kind in kinds] == [i in shared for i in row]


def test_a_mark_on_shared_words_needs_two_texts_and_is_kept(tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text("".join(f"{a}\t{label}\n" for a, _, label in ROWS), encoding="utf-8")
    with pytest.raises(QkvError, match=r"model\.segments=4"):
        assemble(from_files([tmp_path / "one.tsv"], [*BASE, "model.segments=4"]), device="cpu")
    begun = assemble(make_run(tmp_path), device="cpu").model
    begun.save(tmp_path / "begun")
    again = check_rows(make_run(tmp_path, f"base={tmp_path / 'begun'}"))
    assert (again.model.config or {})["shared_words"]


def test_a_tab_within_a_text_makes_no_second_one(tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"{a}\t{b}", "label": label}) for a, b, label in ROWS]
    (tmp_path / "tabs.jsonl").write_text("\n".join(rows), encoding="utf-8")
    run = from_files([tmp_path / "tabs.jsonl"], [*BASE])
    assert (run.data.two_texts, run.model.segments) == (False, 2)  # type: ignore[union-attr]
    assemble(run, device="cpu")


@pytest.mark.parametrize("segments", [1, 2])
def test_the_page_and_the_readouts_show_two_texts_as_classify_reads_them(segments: int, tmp_path: Path) -> None:
    model, (first, second, _) = qkv.load(make_roberta(tmp_path / "model", segments), device="cpu"), ROWS[3]
    said, text = model.classify((first, second)).probabilities, f"{first}\t{second}"
    page = question.read_text(model, text, question.Question(text))
    assert page.ids == with_segments(model, (first, second))[0]
    for trace in (page.t, tables.trace_text(model, text, ["labels"], {})):
        shown = trace["labels.out"].float().softmax(-1).flatten().tolist()
        assert shown == pytest.approx(list(said.values()), abs=1e-5)
    plain = question.read_text(model, f"{first} {second}", question.Question(text)).t["labels.out"].softmax(-1)
    assert plain.flatten().tolist() != pytest.approx(list(said.values()), abs=1e-3), "a space is no separator"


def test_words_that_are_left_out_leave_two_texts(tmp_path: Path) -> None:
    a = assemble(make_run(tmp_path, "training.word_dropout=0.5", "training.rare_words=2.0"), device="cpu")
    sep = a.model.tokenizer.sep_id  # type: ignore[union-attr]
    for ids, segments in read_batches(a).items():
        halves = [kind % 2 for kind in segments]
        assert (ids.count(sep), halves) == (2, [0] * (ids.index(sep) + 1) + [1] * (len(ids) - ids.index(sep) - 1))


def test_rows_on_disk_are_read_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.data.mapped_rows.LARGE", 20)
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))  # or ids that were made before would be read
    check_rows(make_run(tmp_path))


def test_a_base_with_one_kind_of_segment_and_two_separators_learns_labels(tmp_path: Path) -> None:
    base = make_roberta(tmp_path / "roberta")
    assert find_separator(qkv.load(base)) == "[SEP][SEP]"
    a = check_rows(make_run(tmp_path, f"base={base}"))
    batch = a.plan.make(next(iter(a.plan.order(0))))
    assert torch.isfinite(losses.states(a.model.core, batch)).all()
    pair = with_segments(a.model, ("the cat", "a dog"))
    assert pair == (a.model.tokenizer.backend.encode("the cat", "a dog").ids, [0] * 8)  # type: ignore[union-attr]


def test_two_texts_are_no_pair_to_translate(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="cannot learn; name two columns or keys"):
        assemble(make_run(tmp_path, "objective=pairs", "data.columns=[0,1,2]"), device="cpu")


@pytest.mark.parametrize("columns", [(0, 1, 1), (0,), (0, 1, 2, 3), (-1, 0, 1)])
def test_columns_that_cannot_be_read_are_refused(columns: Any) -> None:
    with pytest.raises(QkvError, match=r"data\.columns: found "):
        Data(tsv=("a.tsv",), columns=columns)
