"""Plain text with something missing: what goes in and what should come out make up the text again."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.core.model import build_step
from qkv.core.step import Inputs
from qkv.data import collate, corrupt, shards
from qkv.data.collate import IGNORED, Batch
from qkv.data.shards import Mixture
from qkv.errors import QkvError
from qkv.tokenizers.vocabulary import train_vocabulary
from qkv.training import assemble, recipes
from qkv.training.objectives import denoise
from qkv.training.objectives.blanks import BLANK_ENDS as PIECE
from qkv.training.objectives.spans import SENTINELS
from qkv.training.own_data import from_toml
from qkv.training.run import Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits, text_splits

WORDS = [("old", "new", "big", "red"), ("cat", "dog", "man", "car"), ("tree", "house", "ball")]
SAID = [f"The {a} {b} sees a {c}. " for a, b, c in itertools.product(*WORDS)]
TEXT = "\n".join("".join(SAID[i : i + 4]) for i in range(0, len(SAID), 4))
SHAPES = {"spans": "t5", "denoise": "bart", "blanks": "glm_blank", "masked": "bert", "prefixes": "prefix"}


def run_of(objective: str, family: str = "", **training: Any) -> Run:
    shape = Shape(family or SHAPES[objective], width=16, layers=1, heads=2, ffn=64, context=48)  # type: ignore[arg-type]
    base = Settings(steps=6, tokens=256, lr=3e-3, warmup=2, precision="fp32", evaluate_every=3, threads=1)
    splits = text_splits(TEXT, share=0.25)
    return Run("holes", lambda: splits, shape, Vocabulary("word", 200), dataclasses.replace(base, **training),
               objective=objective)  # fmt: skip


def made(objective: str) -> tuple[assemble.Assembly, list[Batch]]:
    a = assemble.assemble(run_of(objective), device="cpu")
    return a, [a.plan.make(key) for key in a.plan.order(0)]


def within(whole: list[int], part: list[int]) -> bool:
    return any(whole[i : i + len(part)] == part for i in range(len(whole) - len(part) + 1))


def real(row: torch.Tensor, there: torch.Tensor | None) -> list[int]:
    return row.tolist() if there is None else row[there].tolist()


def restored(objective: str) -> None:
    """Every row of an epoch, put together again the slow way, is a piece of the text."""
    a, batches = made(objective)
    tokenizer = a.model.tokenizer
    assert tokenizer is not None
    text = tokenizer.encode(str(a.splits.train), special=False)
    rows = 0
    for b in batches:
        for i in range(len(b.target)):
            labels = [x for x in b.labels[i].tolist() if x != IGNORED]
            source = [] if b.source is None else real(b.source[i], None if b.source_real is None else b.source_real[i])
            row = real(b.target[i], None if b.target_real is None else b.target_real[i])
            found = {"spans": spanned, "denoise": denoised, "blanks": filled, "masked": unmasked, "prefixes": joined}
            piece = found[objective](tokenizer, source, row, labels, b, i)
            assert within(text, piece), tokenizer.decode(piece)
            assert len(piece) >= 20
            rows += 1
    assert rows >= 4


def spanned(t: Any, source: list[int], row: list[int], labels: list[int], *_: Any) -> list[int]:
    marks = {t.id(mark) for mark in SENTINELS}
    assert source[-1] == labels[-1] == t.eos_id
    spans, now = dict[int, list[int]](), -1
    for x in labels[:-1]:
        if x in marks:
            now = x
            spans[now] = []
        else:
            spans[now].append(x)
    lost = sum(map(len, spans.values()))
    piece = [y for x in source[:-1] for y in (spans[x] if x in marks else [x])]
    assert lost == max(1, round(0.15 * len(piece)))
    return piece


def denoised(t: Any, source: list[int], row: list[int], labels: list[int], *_: Any) -> list[int]:
    assert labels[-1] == t.eos_id
    kept = [x for x in source[:-1] if x != t.mask_id]
    assert t.mask_id in source
    left = list(labels[:-1])
    for x in kept:  # what is not hidden is of the text, in another order
        left.remove(x)
    assert len(left) == round(0.3 * (len(labels) - 1))
    return labels[:-1]


def filled(t: Any, source: list[int], row: list[int], labels: list[int], b: Batch, i: int) -> list[int]:
    start, end = (t.id(mark) for mark in PIECE)
    assert b.prefix is not None
    assert b.blank is not None
    prefix = int(b.prefix[i])
    place = begin_place(b, i)
    holes_, at = dict[int, list[int]](), prefix
    for x in row[prefix:]:
        where, count = int(place.token[0, at]), int(place.blank[0, at])
        assert row[where] == t.mask_id
        if x == start:
            assert count == 1
            holes_[where] = []
        else:
            holes_[where].append(x)
            assert count == len(holes_[where]) + 1
        at += 1
    assert labels.count(end) == len(holes_)
    assert place.token[0, :prefix].tolist() == list(range(prefix))
    assert not place.blank[0, :prefix].any()
    return [y for k, x in enumerate(row[:prefix]) for y in (holes_[k] if x == t.mask_id else [x])]


def begin_place(b: Batch, i: int) -> Any:
    """The positions that the core gives to a row."""
    stack = assemble.hub.build(run_of("blanks").model.spec(200)).core.decoder
    given = Inputs(prefix_len=b.prefix[i : i + 1], blank_pos=b.blank[i : i + 1])  # type: ignore[index]
    return build_step(stack, b.target[i : i + 1], given).positions


def unmasked(t: Any, source: list[int], row: list[int], labels: list[int], b: Batch, i: int) -> list[int]:
    assert (row[0], row[-1]) == (t.cls_id, t.sep_id)
    asked = [k for k, x in enumerate(b.labels[i].tolist()) if x != IGNORED]
    assert len(asked) == max(1, round(0.15 * (len(row) - 2)))
    for k in asked:
        row[k] = int(b.labels[i, k])
    return row[1:-1]


def joined(t: Any, source: list[int], row: list[int], labels: list[int], b: Batch, i: int) -> list[int]:
    assert b.prefix is not None
    return [*row[: int(b.prefix[i])], *labels]


@pytest.mark.parametrize("objective", SHAPES)
def test_what_goes_in_and_what_comes_out_make_up_the_text(objective: str) -> None:
    restored(objective)


def packed(text: str, tokenizer: Any, folder: Path) -> Mixture:
    """A text as one shard, without an end symbol."""
    found = tokenizer.encode(text, special=False)
    shards.write_shard(folder, [found], vocabulary=len(tokenizer), save=tokenizer.save)
    return Mixture((shards.read_shard(folder),))


@pytest.mark.parametrize("objective", SHAPES)
def test_token_shards_have_the_batches_of_their_text(objective: str, tmp_path: Path) -> None:
    a, _ = made(objective)
    whole = Splits(*(packed(text, a.model.tokenizer, tmp_path / name)
                     for name, text in (("train", a.splits.train), ("valid", a.splits.valid))))  # fmt: skip
    b = assemble.assemble(dataclasses.replace(a.run, splits=lambda: whole), device="cpu")
    assert b.model.tokenizer
    assert b.model.tokenizer.vocabulary == a.model.tokenizer.vocabulary
    for epoch in range(3):
        for one, other in zip(a.plan.order(epoch), b.plan.order(epoch), strict=True):
            same(a.plan.make(one), b.plan.make(other))
    count = len(b.valid[0].target)
    assert count in (len(a.valid[0].target), len(a.valid[0].target) - 1)  # the short end of the text stands behind
    same(a.valid[0], b.valid[0], rows=count)
    assert b.plan.identity["shards"][0][0] == whole.train.shards[0].index["sha256"]


def same(one: Batch, other: Batch, rows: int | None = None) -> None:
    """Two batches hold the same, but for rows behind so many."""
    assert rows or one.rows.keys() == other.rows.keys()
    for name, value in other.rows.items():
        assert torch.equal(one.rows[name][:rows], value), name


@pytest.mark.parametrize("objective", SHAPES)
def test_a_vocabulary_without_marks_gets_them_behind_its_own_tokens(objective: str, tmp_path: Path) -> None:
    bare = train_vocabulary([TEXT], kind="word", size=200, specials=("</s>", "<unk>"))
    whole = Splits(packed(TEXT, bare, tmp_path / "train"), packed(TEXT[-600:], bare, tmp_path / "valid"))
    run = dataclasses.replace(run_of(objective), splits=lambda: whole)
    done = recipes.train(run, out=tmp_path / "run", device="cpu")
    tokenizer = done.model.tokenizer
    assert tokenizer
    assert {**tokenizer.vocabulary, **bare.vocabulary} == tokenizer.vocabulary
    assert tokenizer.encode(SAID[0], special=False) == bare.encode(SAID[0])
    assert len(tokenizer.encode("")) == {"masked": 2, "spans": 1, "denoise": 1}.get(objective, 0)
    if objective == "masked":
        assert done.model.fill("The old [MASK] sees a tree.", top=1)[0]
    again = dataclasses.replace(run, base=str(tmp_path / "run"))
    assert assemble.assemble(again, device="cpu").plan.identity["shards"]
    longer = dataclasses.replace(run, training=dataclasses.replace(run.training, steps=9))
    assert recipes.train(longer, out=tmp_path / "run", device="cpu", resume=True).outcome.steps == 9


def test_shards_of_too_few_tokens_for_holes_are_told(tmp_path: Path) -> None:
    bare = train_vocabulary([TEXT], kind="word", size=200, specials=("</s>", "<unk>"))
    whole = Splits(packed(TEXT, bare, tmp_path / "train"), packed("The old cat", bare, tmp_path / "valid"))
    with pytest.raises(QkvError, match="windows of 3 ids are too short to hide some; found 3 ids of text"):
        assemble.assemble(dataclasses.replace(run_of("spans"), splits=lambda: whole), device="cpu")


def test_blanks_that_all_stand_in_one_place_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = collate.collate_blanks

    def first(rows: Any, *, pad: int) -> Batch:
        b = right(rows, pad=pad)
        assert b.blank is not None
        return dataclasses.replace(b, blank=b.blank.amax(1))

    monkeypatch.setattr(collate, "collate_blanks", first)
    with pytest.raises((AssertionError, KeyError)):
        restored("blanks")


def test_sentences_are_permuted_and_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without infilling, a noised text is the same sentences in another order."""
    monkeypatch.setattr(corrupt, "infill_spans", lambda ids, mask, draw: list(ids))
    a, batches = made("denoise")
    stop = a.model.tokenizer.id(".") if a.model.tokenizer else None
    moved = 0
    for b in batches:
        assert b.source is not None
        for source, target in zip(b.source.tolist(), b.labels.tolist(), strict=True):
            assert sorted(source) == sorted(target)
            assert all(within(source, part) for part in denoise.split_sentences(target[:-1], frozenset([stop or 0])))
            moved += source != target
    assert moved


@pytest.mark.parametrize("objective", SHAPES)
def test_a_run_goes_on_bit_for_bit_with_other_holes_in_each_epoch(objective: str, tmp_path: Path) -> None:
    whole = recipes.train(run_of(objective), out=tmp_path / "a", device="cpu")
    recipes.train(run_of(objective, steps=4), out=tmp_path / "b", device="cpu")
    again = recipes.train(run_of(objective), out=tmp_path / "b", device="cpu", resume=True)
    assert whole.outcome.epochs > 1
    assert (whole.outcome.loss, whole.outcome.metrics) == (again.outcome.loss, again.outcome.metrics)
    mine, theirs = (dict(done.model.core.named_parameters()) for done in (whole, again))
    assert all(torch.equal(mine[n], theirs[n]) for n in mine)
    a, first = made(objective)
    second = [a.plan.make(key) for key in a.plan.order(1)]
    assert not all(torch.equal(x.target, y.target) for x, y in zip(first, second, strict=True))
    held = [a.hold_out(a.splits.valid) for _ in range(2)]
    assert all(torch.equal(x.labels, y.labels) for x, y in zip(*held, strict=True))


@pytest.mark.parametrize(
    ("objective", "family", "match"),
    [
        ("spans", "gpt2", "needs a model of kind encoder-decoder; this one is: causal decoder"),
        ("span", "t5", "objective: found 'span'; did you mean 'spans'"),
        ("pairs", "marian", "objective 'pairs' takes pairs, found plain text; for these there are: text, documents"),
        ("blanks", "llama", "needs a model of kind prefix decoder"),
    ],
)
def test_an_objective_that_does_not_fit_is_told(objective: str, family: str, match: str) -> None:
    with pytest.raises(QkvError, match=match):
        assemble.assemble(run_of(objective, family), device="cpu")


def test_a_text_without_room_for_holes_is_told() -> None:
    short = dataclasses.replace(run_of("spans"), splits=lambda: Splits("a b c", "a b c"))
    with pytest.raises(QkvError, match=r"windows of 3 ids are too short.*found 3 ids of text and model.context 48"):
        assemble.assemble(short, device="cpu")


TOML = """
objective = "denoise"
[data]
text = "book.txt"
[model]
family = "t5"
width = 16
layers = 1
heads = 2
ffn = 32
context = 32
[tokenizer]
kind = "word"
[training]
steps = 2
tokens = 64
"""


def test_a_toml_file_says_what_is_learnt(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "mine.toml").write_text(TOML, encoding="utf-8")
    done = recipes.train(tmp_path / "mine.toml", out=tmp_path / "out", device="cpu")
    assert done.model.tokenizer is not None
    assert done.model.tokenizer.mask_id is not None
    assert from_toml(tmp_path / "mine.toml").objective == "denoise"
    changed = recipes.configure(tmp_path / "mine.toml", ["objective=spans"])
    assert changed.objective == "spans"
    with pytest.raises(QkvError, match="did you mean 'objective'"):
        recipes.configure(tmp_path / "mine.toml", ["objektive=spans"])


def slow_fill(a: assemble.Assembly, ids: list[int], place: int, count: int) -> list[int]:
    """What fills the blank at `place`, word by word, with everything read again for each."""
    core, row = a.model.core, [*ids, a.model.special.start]
    for _ in range(count):
        own = [-1] * len(ids) + [place] * (len(row) - len(ids))
        table = torch.tensor([row])
        given = Inputs(prefix_len=torch.tensor([len(ids)]), blank_pos=torch.tensor([own]))
        with torch.no_grad():
            logits = core.head(core.hidden(table, given))[0, -1]
        logits[list(a.model.special.forbid)] = -torch.inf
        row.append(int(logits.argmax()))
        if row[-1] in a.model.special.eos:
            break
    return row[len(ids) + 1 :]


def test_a_model_that_learnt_blanks_fills_them(tmp_path: Path) -> None:
    a, _ = made("blanks")
    with torch.no_grad():
        for p in a.model.core.parameters():
            p.mul_(4.0 if p.ndim > 1 else 1.0)  # a spread that shows a fault
    a.model.core.eval()
    tokenizer = a.model.tokenizer
    assert tokenizer is not None
    mask, ends = tokenizer.mask_id, tokenizer.id("<|endofpiece|>")
    assert mask is not None
    assert a.model.special.eos == (ends,)
    assert a.model.special.start == tokenizer.id("<|startofpiece|>")
    a.model.save(tmp_path)
    for model in (a.model, qkv.load(tmp_path, dtype="fp32")):
        for text in ("The old cat sees a [MASK].", "[MASK] cat sees a tree. The new dog"):
            ids = tokenizer.encode(text)
            for beam in (1, 2):
                found = model.generate(text, max_new_tokens=6, beam=beam).tokens
                assert beam == 2 or found == slow_fill(a, ids, ids.index(mask), 6)
        ids = [*tokenizer.encode("The old cat"), mask]  # without a blank the end is written
        assert model.generate("The old cat", max_new_tokens=6).tokens == slow_fill(a, ids, len(ids) - 1, 6)
        with pytest.raises(QkvError, match="this is a decoder that writes into blanks: use generate"):
            model.fill("The [MASK] cat")
