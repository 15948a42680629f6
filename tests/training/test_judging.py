"""How alike two texts are in both orders, and which answer is right among several: learnt, and their loss by hand."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.cli import main
from qkv.core.step import Inputs
from qkv.data import collate
from qkv.errors import QkvError
from qkv.tasks.task_format import SEPARATOR as MARK
from qkv.training import assemble, losses, machine, recipes
from qkv.training.losses import step_loss
from qkv.training.objectives import OBJECTIVES
from qkv.training.objectives.base import Decoding
from qkv.training.run import Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits

COLD, HOT = ("snow ice winter", "frost ice north"), ("sun fire summer", "sand sun south")
ALIKE = [(f"{a} ||| {b}", "alike" if (a in COLD) == (b in COLD) else "other") for a in COLD + HOT for b in COLD + HOT]
ASKED = [
    ("what is cold ||| snow ||| fire ||| sun", "0"), ("what is hot ||| snow ||| fire ||| ice", "1"),
    ("what is north ||| sand ||| sun ||| frost", "2"), ("what is cold ||| summer ||| winter ||| sand", "1"),
    ("what is hot ||| sun ||| winter ||| frost", "0"), ("what is south ||| ice ||| snow ||| sand", "2"),
]  # fmt: skip
BASE = Settings(steps=60, tokens=512, lr=3e-3, optimizer="adamw", schedule="constant", precision="fp32",
                evaluate_every=30, threads=1, metric="label_accuracy")  # fmt: skip
# Ten seeds of each end between 0.0001 and 0.0005; at 3e-3 without a bound some heads saturate, and answers tie.
BY_HEART: dict[str, Any] = {
    "steps": 300, "evaluate_every": 300, "auxiliary": 0.0, "lr": 1e-3, "warmup": 30, "clip": 1.0,
}  # fmt: skip
ROWS = {"similarity": ALIKE, "choice": ASKED}


def run_of(objective: str, family: str, rows: Any = None, **training: Any) -> Run:
    rows = rows or ROWS[objective]
    shape = Shape(family, width=32, layers=2, heads=2, ffn=128, dropout=0.0, context=48)  # type: ignore[arg-type]
    return Run("judging", lambda: Splits(rows, rows, rows), shape, Vocabulary("word", 200),
               dataclasses.replace(BASE, **training), objective=objective)  # fmt: skip


def ready(objective: str, family: str, **training: Any) -> tuple[assemble.Assembly, list[collate.Batch]]:
    a = assemble.assemble(run_of(objective, family, **training), device="cpu")
    with torch.no_grad():  # a spread that shows a fault
        for p in a.model.core.parameters():
            p.mul_(4.0 if p.ndim > 1 else 1.0)
    return a, [a.plan.make(key) for key in a.plan.order(0)]


@pytest.mark.parametrize("family", ["openai_gpt", "bert"])
@pytest.mark.parametrize("objective", ["similarity", "choice"])
def test_a_toy_set_is_learnt_by_heart_and_answered(objective: str, family: str) -> None:
    trained = recipes.train(run_of(objective, family, **BY_HEART), device="cpu")
    assert trained.outcome.metrics["label_accuracy"] == 1.0
    assert trained.test["exact_match"] == 1.0  # as answered, source by source
    assert trained.outcome.metrics["loss"] < 0.05
    rows = ROWS[objective]
    asked = [tuple(text.split(MARK)) for text, _ in rows]  # and by the verb's way, beside recipes
    said = [v.label for v in trained.model.classify(asked, both=objective == "similarity")]
    assert said == [label for _, label in rows]


def slowly(a: assemble.Assembly, b: collate.Batch) -> float:
    """-log p(label) of each group of rows, row by row and without padding."""
    core, total, each = a.model.core, 0.0, b.orders * b.choices
    assert b.classes is not None
    for n, label in enumerate(b.classes.tolist()):
        logits: list[torch.Tensor] = []
        for i in range(n * each, (n + 1) * each):
            count = b.target.shape[1] if b.target_real is None else int(b.target_real[i].sum())
            row = b.target[i : i + 1, :count]
            segments = None if b.segments is None else b.segments[i : i + 1, :count]
            logits.append(core.classify(row, Inputs(segments=segments))[0])
        both = torch.stack(logits)  # rows labels
        scores = both.sum(0) if b.orders > 1 else both[:, 0]
        total -= scores.log_softmax(-1)[label].item()
    return total


@pytest.mark.parametrize("family", ["openai_gpt", "bert"])
@pytest.mark.parametrize("objective", ["similarity", "choice"])
def test_the_loss_is_that_of_the_added_orders_or_of_the_choices(objective: str, family: str) -> None:
    a, batches = ready(objective, family, auxiliary=0.0)
    for b in batches:
        assert step_loss(a.model.core, b)[0].item() == pytest.approx(slowly(a, b), rel=1e-4)
        assert b.classes is not None
        assert b.tokens == len(b.classes) == len(b.target) // (2 if objective == "similarity" else 3)


def test_orders_that_are_not_added_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = losses.text_logits

    def first(core: Any, states: Any, batch: collate.Batch, *drop: Any) -> torch.Tensor:
        return right(core, states, dataclasses.replace(batch, orders=1), *drop)[:: batch.orders]

    monkeypatch.setattr(losses, "text_logits", first)
    with pytest.raises(AssertionError):
        test_the_loss_is_that_of_the_added_orders_or_of_the_choices("similarity", "openai_gpt")


def test_which_text_comes_first_changes_no_judgement() -> None:
    a, _ = ready("similarity", "openai_gpt")
    texts = [text for text, _ in ALIKE]
    turned = [" ||| ".join(reversed(text.split(" ||| "))) for text in texts]
    assert OBJECTIVES["similarity"].answer(a.model, texts, Decoding()) == OBJECTIVES["similarity"].answer(
        a.model, turned, Decoding()
    )


def test_a_piece_of_a_batch_keeps_questions_whole() -> None:
    _, batches = ready("choice", "bert")
    piece = machine.take_rows(batches[0], 4)
    assert piece.classes is not None
    assert (len(piece.target), len(piece.classes)) == (3, 1)


@pytest.mark.parametrize(
    ("objective", "row", "said"),
    [
        ("similarity", ("only one", "alike"), r"'only one': expected two texts with \|\|\| between"),
        ("choice", ("what ||| a ||| b", "0"), "expected a question and 3 answers"),
        ("choice", ("what ||| a ||| b ||| c", "3"), "the label '3', expected the number of the right answer, 0 to 2"),
    ],
)  # fmt: skip
def test_a_bad_row_is_told(objective: str, row: tuple[str, str], said: str) -> None:
    with pytest.raises(QkvError, match=said):
        assemble.assemble(run_of(objective, "bert", [*ROWS[objective], row]), device="cpu")


def test_labels_that_do_not_fit_their_rows_are_refused() -> None:
    batch = collate.collate_windows(torch.zeros(4, 5, dtype=torch.long))
    with pytest.raises(QkvError, match="found 3 labels for 4 texts, expected 2 rows each"):
        collate.add_labels(batch, [0, 1, 0], orders=2)


def test_a_toml_file_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "q.tsv").write_text("".join(f"{label}\t{text}\n" for text, label in ASKED * 2), encoding="utf-8")
    (tmp_path / "q.toml").write_text(
        'objective = "choice"\n[data]\ntsv = "q.tsv"\ncolumns = [1, 0]\nvalid = 2\n[model]\nfamily = "gpt2"\n'
        "width = 16\n"
        "layers = 1\nheads = 2\nffn = 32\ncontext = 32\n[training]\nsteps = 2\n", encoding="utf-8",
    )  # fmt: skip
    assert recipes.train(tmp_path / "q.toml", device="cpu").outcome.steps == 2


@pytest.mark.parametrize("family", ["openai_gpt", "bert"])
@pytest.mark.parametrize("objective", ["similarity", "choice"])
def test_the_verbs_ask_what_was_learnt(
    objective: str, family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes.train(run_of(objective, family, **BY_HEART), out=tmp_path, device="cpu")
    tabbed = [(label, text.replace(MARK, "\t")) for text, label in ROWS[objective]]
    for label, text in tabbed[:4]:
        assert main(["classify", str(tmp_path), text, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["label"] == label
        assert len(found["probabilities"]) == (2 if objective == "similarity" else 3)
    if objective == "similarity":  # which of two texts comes first says nothing
        turned = "\t".join(reversed(tabbed[1][1].split("\t")))
        both = [main(["classify", str(tmp_path), text]) or capsys.readouterr().out for text in (tabbed[1][1], turned)]
        assert both[0].split("\t")[:2] == both[1].split("\t")[:2]
    file = tmp_path / "asked.tsv"
    file.write_text("".join(f"{text}\t{label}\n" for label, text in tabbed), encoding="utf-8")
    assert main(["eval", str(tmp_path), "--accuracy", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1.0
    whole = tmp_path / "as_trained.tsv"  # with what stood between the texts in training
    whole.write_text("".join(f"{text}\t{label}\n" for text, label in ROWS[objective]), encoding="utf-8")
    assert main(["eval", str(tmp_path), "--accuracy", str(whole), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1.0


def test_one_text_is_no_question_for_a_model_that_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for objective, asked, says in [
        ("choice", ("what is cold", "what is cold\tsnow"), "expected a question and two or more answers"),
        ("similarity", ("snow ice winter",), "found one text, expected two with a tab between them"),
    ]:
        model = assemble.assemble(run_of(objective, "bert"), device="cpu").model
        model.core.eval()
        model.save(tmp_path / objective)
        for text in asked:
            assert main(["classify", str(tmp_path / objective), text]) == 2
            assert says in capsys.readouterr().err
    rows = tmp_path / "rows.tsv"
    rows.write_text("what is cold\tsnow\tice\t1\nwhat is cold\t0\n", encoding="utf-8")
    assert main(["eval", str(tmp_path / "choice"), "--accuracy", str(rows)]) == 2
    assert "rows.tsv:2: found 1 text, expected a question" in capsys.readouterr().err
