"""`qkv look` in a pipe: aligned plain text, JSON alone on stdout, one page, errors that name the way out."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import qkv
from qkv import hub
from qkv.baselines.lstm import lstm_spec
from qkv.cli import look, main
from qkv.cli.common import refuse_missing_path
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.model import Model
from qkv.spec import Attention, Block, Ffn, Head, Init, Labels, Mask, Norm, Rotary, Spec, Stack, Table
from qkv.tasks.types import SpecialTokens
from qkv.training import checkpoint
from qkv.training.probes import records

WORDS = ["<pad>", "</s>", *"书和茶都在桌上我看完了它。", *"abcdefghijklmnopqrst"]


class Letters:
    mask_id, stream, unk_id, special_ids = None, None, 0, ()

    def find_unknown(self, text: str) -> list[str]:
        return []

    def encode(self, text: str, *, special: bool = True, side: str = "source") -> list[int]:
        return [*(WORDS.index(c) if c in WORDS else 0 for c in text), 1]

    def pieces(self, ids: Sequence[int], *, side: str = "target") -> list[str]:
        return [WORDS[i] for i in ids]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return "".join(WORDS[i] for i in ids if i > 1)


def made(name: str) -> Model:
    if name in ("additive", "none"):
        spec = lstm_spec(len(WORDS), width=16, attention="additive" if name == "additive" else "none", context=64)
        return spelling(qkv.build(spec, special=SpecialTokens(eos=(1,), pad=0, start=0, forbid=(0,))))
    n, ff, t = Norm("layer"), Ffn(48, "relu"), Table("sinusoid", 64)
    if name in ("lm", "deep"):
        b = Block(
            Attention(4, 2, 8, Mask("causal"), rotary=Rotary(8)), Ffn(48, "silu", gated=True), norm_in=Norm("rms")
        )
        stack = Stack(32, (b,) * (30 if name == "deep" else 2), final_norm=Norm("rms"), context=64)
        spec = Spec(len(WORDS), decoder=stack, head=Head("untied"))
    else:
        enc = Block(Attention(2, 2, 16, Mask("full")), ff, norm_sum=n)
        dec = Block(Attention(2, 2, 16, Mask("causal")), ff, cross=Attention(2, 2, 16, Mask("memory")), norm_sum=n)
        spec = Spec(len(WORDS), encoder=Stack(32, (enc,) * 2, t), decoder=Stack(32, (dec,) * 2, t), init=Init("xavier"))
    core = Transformer(spec).eval()
    initialise(core, 0)
    with torch.no_grad():
        for p in core.parameters():
            p.mul_(2.0 if p.dim() > 1 else 1.0)
    special = SpecialTokens(eos=(1,), pad=0, start=None if name in ("lm", "deep") else 0, forbid=(0,))
    return Model(core, None if name == "mute" else Letters(), special)  # type: ignore[arg-type]


def spelling(model: Model) -> Model:
    model.tokenizer = Letters()  # type: ignore[assignment]
    return model


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qkv, "load", lambda name, **_: made(name))


def test_a_translation_shows_alignment_edges_and_proof(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["look", "nmt", "书和茶我看完了它。", "-n", "5", "--lang", "zh"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out, "no colours in a pipe"
    for part in ("书和茶我看完了它。 → ", "对齐", "最强的边 它", "剪断一条边"):
        assert part in out


def test_columns_align_where_characters_are_two_wide(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.cells import cell_len

    from qkv.cli import look

    weight = [[0.5, 0.005, 0.495], [1.0, 0.0, 0.0]]
    look.print_sheets([look.make_alignment_table(str, ["book", "茶"], ["书", "and", "它"], weight)])
    _, _, head, book, tea = capsys.readouterr().out.splitlines()
    for left, right in ((head[: head.index("它")], book[: book.index("▒ 50", 12)]),):
        assert cell_len(left) == cell_len(right)
    assert cell_len(book[: book.index("·")]) == cell_len(tea[: tea.index("·")]) == cell_len(head[: head.index("and")])


def test_a_language_model_shows_guesses_by_layer_and_the_next_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["look", "lm", "abc", "-n", "3", "--lang", "en", "--layer", "1", "--head", "2"]) == 0
    out = capsys.readouterr().out
    for part in (
        "guesses after each layer",
        "embedding",
        "layer 2",
        "the next word after the prompt",
        "█",
        "(",
        "layer 1 head 2",
    ):
        assert part in out
    assert "layer 2 head" not in out


def test_thirty_layers_fit_a_screen_and_v_shows_them_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = ["look", "deep", "abcdefghijklmnop", "-n", "9", "--lang", "en"]
    assert main(text) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 48
    rows = [line.split()[1] for line in lines if line.startswith("  layer ") and "head" not in line]
    assert rows == [str(n) for n in range(30, 0, -3)], "evenly, from the last layer down"
    read = next(line for line in lines if line.startswith("  read")).split()[1:]
    assert read[0] == "</s>", "the first word is written after the last token of the prompt"
    assert any(line.startswith("  10 of 30 layers") for line in lines)
    assert main([*text, "-v"]) == 0
    out = capsys.readouterr().out
    assert all(f"layer {n} " in out for n in range(1, 31))


def test_json_is_one_object_and_html_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "inside.html"
    assert main(["look", "nmt", "我看茶", "茶", "-n", "4", "--json", "--html", str(file)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["html"] == str(file)
    assert [s["text"] for s in data["scenes"]] == ["我看茶", "茶"]
    page = file.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert 'id="recorded"' in page


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["nmt", " "], "empty"),
        (["nmt", "茶", "--layer", "7"], "layers 1 to 2"),
        (["nmt", "茶和", "--head", "3"], "heads 1 to 2"),
        (["nmt", "茶和", "--word", "书"], "not among the tokens"),
        (["mute", "茶"], "no tokenizer"),
        (["nmt", "茶", "--step", "5"], "no weights were kept at step 5"),
    ],
)
def test_wrong_input_is_named(args: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["look", *args, "-n", "3", "--lang", "en"]) == 2
    out, err = capsys.readouterr()
    assert told in err
    assert out == ""


def test_a_step_of_a_run_brings_its_weights_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(directory: Path, device: str, dtype: str, kept: dict[str, torch.Tensor]) -> Model:
        checkpoint.fill((model := made("nmt")).core, kept)
        return model

    monkeypatch.setattr(hub, "load_dir", opened)
    monkeypatch.setattr(hub, "locate", Path)
    core = made("nmt").core
    with torch.no_grad():
        core.embed.weight.neg_()
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    checkpoint.write(tmp_path / "train/snapshots/20.safetensors", checkpoint.weights(core), {"step": 20})
    told = []
    for more in ([], ["--step", "20"]):
        assert main(["look", str(tmp_path), "茶和书", "-n", "4", "--json", *more]) == 0
        told.append(json.loads(capsys.readouterr().out)["scenes"][0]["proof"]["before"])
    assert told[0] != told[1]


def test_the_page_of_a_run_begins_with_its_watched_sentences(tmp_path: Path) -> None:
    index = {"format": records.FORMAT, "texts": ["我昨天喝了茶。"], "steps": [], "matrices": []}
    records.write_json(tmp_path / records.FOLDER / "index.json", index)
    assert look.list_examples(str(tmp_path)) == ("我昨天喝了茶。",)
    assert look.list_examples("demo")[0] == "书和茶都在桌上，我看完了它。"
    assert len(look.list_examples("gpt2")) == 2


def test_an_lstm_shows_its_alignment_and_says_what_else_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["look", "additive", "书和茶。", "-n", "5", "--lang", "en", "--json"]) == 0
    (text,) = json.loads(capsys.readouterr().out)["texts"]
    said = made("additive").translate("书和茶。", align=True, max_new_tokens=5)
    assert text["alignment"] == said.alignment.tolist()
    assert len(text["target"]) == 5
    assert (text["output"], text["source"]) == (said.text, ["书", "和", "茶", "。", "</s>"])
    assert main(["look", "additive", "书和茶。", "-n", "5", "--lang", "en"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[3].split() == text["source"]
    assert [line.split()[0] for line in shown[4:]] == text["target"]
    for ask in (["--show", "lens"], ["--html", "x.html"], ["--serve"], ["--figures", "x"]):
        assert main(["look", "additive", "书", *ask, "--lang", "en"]) == 2
        assert f"{ask[0]}: an LSTM has no layers of attention" in capsys.readouterr().err
    assert main(["look", "none", "书", "--lang", "en"]) == 2
    assert "into one vector" in capsys.readouterr().err


def test_the_proof_is_of_the_word_that_a_cut_turns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the bundled translator itself
    two = ["书和茶都在桌上，我看完了它。", "书和茶都在桌上，我喝完了它。"]
    assert main(["look", "demo", two[0], "--lang", "en"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("one edge cut, run again: P(book) was 0.9")
    assert lines[3].split()[:3] == ["book", "✂", "书"]
    assert lines[3].endswith("says tea")
    assert main(["look", "demo", *two, "--lang", "en"]) == 0
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines() if "  |  " in line] == [
        ["看完", "|", "喝完"], ["reading", "|", "drinking"], ["book", "|", "tea"]]
    assert "P(tea)" in out
    assert "alignment (" not in out
    assert main(["look", "demo", *two, "--lang", "en", "-v"]) == 0
    assert "alignment (" in capsys.readouterr().out


def test_a_decoder_without_a_head_shows_labels_and_attention(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    core = Transformer(replace(made("lm").spec, head=None, labels=Labels(3, "last"))).eval()
    initialise(core, 0)
    monkeypatch.setattr(qkv, "load", lambda name, **_: Model(core, Letters()))  # type: ignore[arg-type]
    assert main(["look", "judge", "书和茶", "--json"]) == 0
    labels, attention = json.loads(capsys.readouterr().out)["readouts"]
    assert sum(labels["data"].values()) == pytest.approx(1.0)
    assert len(attention["data"]["weight"]) == 4
    assert attention["data"]["weight"][0] == pytest.approx([1.0, 0.0, 0.0, 0.0])


def test_only_a_path_that_does_not_exist_is_refused_early(tmp_path: Path) -> None:
    refuse_missing_path(str(tmp_path))  # a run's records need no config.json
    with pytest.raises(QkvError, match="no such directory"):
        refuse_missing_path(str(tmp_path / "absent"))
