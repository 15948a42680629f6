"""Recipes: each runs the whole way, your own data train by a TOML file, and bad data are told by file and line."""

import json
import re
import sys
import zlib
from collections import Counter
from dataclasses import replace
from itertools import compress, product
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv import cli, devices
from qkv.errors import QkvError
from qkv.paths import data_dir
from qkv.training import assemble, evaluation, recipes, run_dir
from qkv.training.own_data import from_toml
from qkv.training.run import Run, Vocabulary, override_run, shrink_run
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits, choose_held_out

NEEDS = {
    "multi30k": "mt/multi30k_bpe_en_de",
    "shakespeare": "lm/tinyshakespeare",
    "tatoeba_zh_en": "mt/tatoeba_cmn_eng",
    "chinese_novels": "lm/chinese_novels",
    "sst2": "cls/sentconv",
}


def copies(rows: int = 60) -> list[tuple[str, str]]:
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight")
    found = []
    for i in range(rows):
        chosen = [words[zlib.crc32(f"{i} {j}".encode()) % 8] for j in range(2 + i % 4)]
        found.append((" ".join(chosen), " ".join(reversed(chosen))))
    return found


def tiny(**training: object) -> Run:
    data = copies()
    shape = Shape("marian", width=16, layers=1, heads=2, ffn=32, dropout=0.1, context=32)
    base = Settings(steps=6, tokens=64, warmup=2, precision="fp32", evaluate_every=2, metric="bleu", average=2)
    run = Run("tiny", lambda: Splits(data[:50], data[50:55], data[55:]), shape, Vocabulary("word", 50), base)
    return override_run(run, [f"training.{k}={v}" for k, v in training.items()])


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_runs_the_whole_way_in_small(name: str, tmp_path: Path) -> None:
    if name in NEEDS and not (data_dir() / NEEDS[name]).is_dir():
        pytest.skip(f"no {NEEDS[name]} in {data_dir()}; set QKV_DATA to its folder")
    run = recipes.configure(name, smoke=True)
    done = recipes.train(run, out=tmp_path, device="cpu")
    assert done.outcome.steps == 6
    loaded = qkv.load(tmp_path, device="cpu")
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    ours = run.model.family in ("bert", "prefix")  # words and labels in one model, and a free prefix, have no family
    assert config["model_type"] == ("qkv" if ours else run.model.family)  # so that other tools load it too
    assert loaded.spec == done.model.spec
    assert bool(done.test) == (run.model.family not in ("gpt2", "llama"))


def test_the_demo_models_fit_their_sizes() -> None:
    runs = {name: recipes.configure(name) for name in ("demo", "demo_lm", "demo_bert", "demo_moe")}
    sizes = dict.fromkeys(runs, 1300) | {"demo_lm": runs["demo_lm"].tokenizer.size}
    count = {n: qkv.build(r.model.spec(sizes[n], labels=10 if n == "demo_bert" else 0)).core for n, r in runs.items()}
    bytes_in_bf16 = {n: 2 * sum(p.numel() for p in core.parameters()) for n, core in count.items()}
    assert bytes_in_bf16["demo_lm"] < 2.6e6
    assert max(bytes_in_bf16["demo_bert"], bytes_in_bf16["demo_moe"]) < 2.8e6
    assert sum(bytes_in_bf16.values()) < 12e6


def test_a_resumed_run_is_kept_with_the_settings_that_it_went_on_with(tmp_path: Path) -> None:
    def said() -> dict[str, Any]:
        kept = json.loads((tmp_path / "train" / "run.json").read_text(encoding="utf-8"))
        return {key: kept["training"][key] for key in ("steps", "metric", "tokens")}

    first = tiny()
    recipes.train(first, out=tmp_path, device="cpu")
    begun = said()
    with pytest.raises(QkvError, match="another run"):
        recipes.train(first, overrides=["training.tokens=80"], out=tmp_path, device="cpu", resume=True)
    assert said() == begun
    more = [f"training.steps={first.training.steps + 2}", "training.metric=perplexity"]
    recipes.train(first, overrides=more, out=tmp_path, device="cpu", resume=True)
    assert said() == {**begun, "steps": first.training.steps + 2, "metric": "perplexity"}


def test_a_run_interrupted_in_a_recipe_goes_on_to_the_same_model(tmp_path: Path) -> None:
    whole = recipes.train(tiny(), out=tmp_path / "a", device="cpu")
    recipes.train(tiny(steps=3), out=tmp_path / "b", device="cpu")
    again = recipes.train(tiny(), out=tmp_path / "b", device="cpu", resume=True)
    one, two = ((tmp_path / d / "train/last.safetensors") for d in "ab")
    from qkv.training import checkpoint

    (a, _), (b, _) = checkpoint.read(one), checkpoint.read(two)
    assert all((a[n] == b[n]).all() for n in a)
    assert whole.test == again.test
    with pytest.raises(QkvError, match="--resume auto"):
        recipes.train(tiny(), out=tmp_path / "a", device="cpu")
    other = override_run(tiny(), ["tokenizer.size=40"])
    with pytest.raises(QkvError, match=r"tokenizer\.size: was 50, now 40"):
        recipes.train(other, out=tmp_path / "a", device="cpu", resume=True)


@pytest.mark.parametrize("name", ["demo_bert", "demo_moe"])
def test_masked_words_and_prefixes_go_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    whole = shrink_run(recipes.configure(name))
    plain = ["training.schedule=constant", "training.tokens=4096", "training.evaluate_every=10"]
    whole = override_run(whole, ["training.steps=30", *plain])
    a = recipes.train(whole, out=tmp_path / "a", device="cpu")
    recipes.train(override_run(whole, ["training.steps=20"]), out=tmp_path / "b", device="cpu")
    b = recipes.train(whole, out=tmp_path / "b", device="cpu", resume=True)
    assert a.outcome.epochs > 2, "it goes on in another epoch, with other words hidden"
    assert a.outcome.loss == b.outcome.loss
    mine, theirs = dict(a.model.core.named_parameters()), dict(b.model.core.named_parameters())
    assert all((mine[n] == theirs[n]).all() for n in mine)
    assert a.test == b.test
    steps = [e for e in run_dir.read_events(tmp_path / "a/train/log.jsonl") if e["kind"] == "step"]
    assert ("loads" in steps[0]) == (name == "demo_moe")


TOML = """
[data]
source = "a.en"
target = "a.fr"
valid = 10
[model]
width = 16
layers = 1
heads = 2
ffn = 32
[tokenizer]
kind = "word"
[training]
steps = 4
tokens = 64
precision = "fp32"
evaluate_every = 2
"""


def own(folder: Path, toml: str = TOML) -> Path:
    for side, name in enumerate(("a.en", "a.fr")):
        (folder / name).write_text("".join(p[side] + "\n" for p in copies()), encoding="utf-8")
    (folder / "mine.toml").write_text(toml, encoding="utf-8")
    return folder / "mine.toml"


def test_your_own_parallel_files_train_by_a_toml_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = own(tmp_path), tmp_path / "out"
    code = cli.main(["train", str(path), "training.lr=1e-3", "--out", str(out), "--json", "--device", "cpu"])
    said = capsys.readouterr().out.splitlines()
    assert code == 0
    assert len(said) == 1
    assert json.loads(said[0])["steps"] == 4
    kept = json.loads((out / "train/run.json").read_text(encoding="utf-8"))
    assert (kept["training"]["lr"], kept["model"]["width"]) == (1e-3, 16)
    assert [json.loads(line)["step"] for line in (out / "train/log.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_dry_run_says_what_it_takes_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = own(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert cli.main(["train", str(path), "--dry-run", "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 4
    assert found["parameters"] > 0
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("[model]", "[modle]", r"unknown table \[modle\]; did you mean 'model'"),
        ("steps = 4", "stesp = 4", r"training.stesp: unknown key; did you mean 'steps'"),
        ("steps = 4", "steps = 4\nwidth = 3", r"mine\.toml: training\.width: unknown key; did you mean 'model\.width'"),
        ("steps = 4", 'objective = "labels"', r"toml: training\.objective: unknown key; did you mean 'objective'"),
        ("[model]", "[lora]\nrank = 4\n[model]", r"unknown table \[lora\]; did you mean 'training\.lora'"),
        ("[data]", "steps = 5\n[data]", r"unknown key 'steps'; did you mean 'training\.steps'"),
        ("width = 16", 'width = "16"', r"model.width: found '16', expected a whole number"),
        ("width = 16", "width = ", r"mine.toml: not TOML.*line 7"),
        ('source = "a.en"', "", r"expected one of: source and target, tsv, jsonl, folders, text"),
        ('kind = "word"', 'kind = "wird"', r"did you mean 'word'"),
        ("width = 16", 'family = "gpt2"', r"model.family 'gpt2' does not fit pairs"),
    ],
)
def test_a_bad_toml_file_is_told_by_key(tmp_path: Path, old: str, new: str, match: str) -> None:
    assert old in TOML
    with pytest.raises(QkvError, match=match):
        recipes.train(own(tmp_path, TOML.replace(old, new)), device="cpu")


def test_a_removed_key_in_a_file_is_named_with_the_file(tmp_path: Path) -> None:
    path = own(tmp_path, TOML.replace("[training]", '[training]\noutputs = "all"'))
    with pytest.raises(QkvError, match=r"\.toml: training\.outputs: this key was removed"):
        from_toml(path)


def test_files_of_unequal_length_and_bad_bytes_are_told_by_line(tmp_path: Path) -> None:
    path = own(tmp_path)
    with (tmp_path / "a.fr").open("a", encoding="utf-8") as file:
        file.write("more\n")
    with pytest.raises(QkvError, match=r"a\.fr:61 is the first line without a partner"):
        from_toml(path).splits()
    (tmp_path / "a.fr").write_bytes(b"good\n\xff\n")
    with pytest.raises(QkvError, match=r"a\.fr:2: invalid UTF-8"):
        from_toml(path).splits()


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["lr=1"], "did you mean 'training.lr'"), (["training=1"], "expected a key in it"),
        (["modle.width=1"], "did you mean 'model"), (["splits=1"], "unknown key"),
        (["model.lr=1"], "^model.lr: unknown key; did you mean 'training.lr'"),
        (["training.outputs=seen"], "^training.outputs: this key was removed"),
    ],
)  # fmt: skip
def test_an_unknown_override_names_the_nearest(words: list[str], match: str) -> None:
    with pytest.raises(QkvError, match=match):
        override_run(tiny(), words)


@pytest.mark.parametrize("family", ["llama", "prefix"])
def test_dropout_that_would_do_nothing_is_refused(family: str) -> None:
    words = [f"model.family={family}", "model.dropout=0.2"]
    told = rf"model\.dropout=0\.2: {family} has no dropout of states.*set model\.dropout=0, or .*: marian, gpt2, bert"
    for run in (tiny(), recipes.configure("shakespeare"), recipes.configure("demo_moe")):
        with pytest.raises(QkvError, match=told):
            override_run(run, words).model.spec(100)
    silent = override_run(recipes.configure("shakespeare"), [f"model.family={family}"]).model
    assert silent.spec(100) == Shape(family, width=128, layers=4, heads=4, ffn=512, context=64).spec(100)  # type: ignore[arg-type]


def test_dropout_that_nobody_names_is_a_tenth_where_there_is_any() -> None:
    assert [b.dropout for b in Shape("gpt2", layers=2).spec(100).stack.blocks] == [0.1, 0.1]
    assert [b.dropout for b in Shape("gpt2", layers=1, dropout=0.0).spec(100).stack.blocks] == [0.0]
    labels = Shape("llama", layers=1).spec(100, labels=2).labels
    assert labels is not None
    assert labels.dropout == 0.1


@pytest.mark.parametrize(
    ("family", "word", "told"),
    [
        ("marian", "experts=4", r"model\.experts=4: marian ignores it.*: llama, prefix$"),
        ("gpt2", "groups=2", r"model\.groups=2: gpt2 ignores it.*: llama, prefix$"),
        ("lstm", "activation=relu", r"lstm ignores it.*: marian, gpt2, llama, bert, prefix, t5, bart, openai_gpt$"),
        ("glm_blank", "activation=relu", "glm_blank ignores it"),
        ("llama", "moe_bias=true", "there are no experts to balance"),
        ("llama", "top_k=1", "there are no experts to choose from"),
        ("t5", "attention_dropout=0.1", "t5 ignores it"),
    ],
)
def test_what_a_family_would_not_heed_is_refused(family: str, word: str, told: str) -> None:
    with pytest.raises(QkvError, match=told):
        override_run(tiny(), [f"model.family={family}", "model.dropout=0", f"model.{word}"]).model.spec(100)


CHANGES = {"width": 96, "layers": 3, "heads": 2, "groups": 1, "ffn": 128, "experts": 4, "top_k": 1, "moe_bias": True,
           "activation": "relu", "dropout": 0.3, "attention_dropout": 0.2, "context": 80, "tied": False}  # fmt: skip
# an LSTM's heads, and a context that bounds the data alone
UNUSED = {*product(("lstm", "lstm-attention"), ("heads", "ffn")), ("t5", "context")}


@pytest.mark.parametrize("key", CHANGES)
@pytest.mark.parametrize("family", get_args(get_type_hints(Shape)["family"]))
def test_each_key_of_a_model_is_heeded_or_refused(family: str, key: str) -> None:
    sparse = family in ("llama", "prefix") and key in ("top_k", "moe_bias")
    base = Shape(family, 64, 2, 4, ffn=256, experts=8 if sparse else 0, dropout=0.0, context=64)  # type: ignore[arg-type]
    plain = base.spec(100)
    values = ["relu", "gelu"] if key == "activation" else [CHANGES[key]]
    made: list[Any] = []
    for value in values:
        try:
            made.append(replace(base, **{key: value}).spec(100))
        except QkvError as error:
            made.append(error)
    told = [str(error) for error in made if isinstance(error, QkvError)]
    assert all(f"model.{key}" in text or "model.ffn" in text for text in told)  # some know one ffn for each width
    assert bool(told or any(spec != plain for spec in made)) == ((family, key) not in UNUSED)


@pytest.mark.parametrize("family", ["marian", "gpt2", "llama", "bert", "t5", "bart", "glm_blank", "openai_gpt"])
def test_the_feed_forward_part_is_four_times_as_wide_where_nobody_says(family: str) -> None:
    made = [Shape(family, 48, 1, 4, **how).spec(100).stack.blocks[0].ffn for how in ({}, {"ffn": 192})]  # type: ignore[arg-type]
    assert [ffn.width for ffn in made if ffn] == [192, 192]


def test_a_llama_with_experts_is_a_mixtral_and_a_bias_may_steer_them(tmp_path: Path) -> None:
    words = ["model.family=llama", "model.experts=4", "training.moe_bias_lr=0.01"]
    run = recipes.configure("demo_lm", [*words, "training.precision=fp32"], smoke=True)
    plain = recipes.train(run, out=tmp_path / "a", device="cpu")
    said = json.loads((tmp_path / "a" / "config.json").read_text(encoding="utf-8"))
    assert (said["model_type"], said["num_local_experts"], said["num_experts_per_tok"]) == ("mixtral", 4, 2)
    moved = recipes.train(override_run(run, ["model.moe_bias=true", "training.moe_aux_loss=0"]), device="cpu")
    for made, count in ((plain, 0), (moved, 2)):
        biases = [b for name, b in made.model.core.named_buffers() if name.endswith("moe.bias")]
        assert len(biases) == count
        assert all(bool(b.any()) for b in biases), "each step moves them by 0.01"


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(QkvError, match="did you mean 'multi30k'"):
        recipes.configure("multi30")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text("ab", max_size=3), max_size=40), st.integers(0, 20) | st.floats(0, 0.9))
def test_no_held_out_text_occurs_in_training(texts: list[str], amount: float) -> None:
    chosen = choose_held_out(lambda: texts, amount)
    assert not {*compress(texts, chosen)} & {*compress(texts, ~chosen)}
    assert bool(chosen.any()) or not amount or len(texts) < 5


def test_every_text_of_the_encoder_has_a_label_and_both_languages_share_it() -> None:
    splits = recipes.configure("demo_bert").splits()
    found = Counter(label for _, label in splits.train)
    assert len(found) == 10
    valid = list(splits.valid)
    assert all(a[1] == b[1] for a, b in zip(valid[::2], valid[1::2], strict=True))
    assert all((label == "question") == text.endswith(("?", "？")) for text, label in valid)
    assert not {text for text, _ in splits.train} & {text for text, _ in valid[::2]}, "no Chinese sentence is in both"


def test_each_epoch_masks_other_words_and_validation_always_the_same() -> None:
    a = assemble.assemble(recipes.configure("demo_bert", smoke=True), device="cpu")
    epochs = [[a.plan.make(key) for key in a.plan.order(e)] for e in (0, 1, 1)]
    asked = [{tuple(row.tolist()) for b in e for row in b.labels} for e in epochs]
    assert asked[1] == asked[2] != asked[0]
    again = a.hold_out(a.splits.valid)
    assert all((x.target == y.target).all() for x, y in zip(a.valid, again, strict=True))
    tokenizer = a.model.tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode("我爱[MASK]。[SEP]I love [MASK].")
    assert ids.count(tokenizer.mask_id or -1) == 2
    assert (ids[0], ids[-1], ids.count(tokenizer.sep_id or -1)) == (tokenizer.cls_id, tokenizer.sep_id, 2)


def test_a_score_joins_the_parts_of_words_and_counts_exact_matches() -> None:
    run = override_run(tiny(), ['check.joint="@@ "', "check.tokenize=none"])
    found = evaluation.score_translations(run, ["ein baum@@ wo@@ lle tuch da", "x y"], ["ein baumwolle tuch da", "x z"])
    assert found["exact_match"] == 0.5
    assert "tok:none" in found["signature"]
    perfect = evaluation.score_translations(run, ["a b c d e"], ["a b c d e"])
    assert perfect["bleu"] == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("references", "words", "cut"),
    [
        (["我爱学习。", "书放在桌上。"], [], "zh"), (["本をよむのがすきです"], [], "char"), (["I love it."], [], "13a"),
        (["我爱学习。"], ["check.tokenize=13a"], "13a"),
    ],
)  # fmt: skip
def test_bleu_cuts_references_by_their_script(references: list[str], words: list[str], cut: str) -> None:
    found = evaluation.score_translations(override_run(tiny(), words), references, references)
    assert f"tok:{cut}" in found["signature"]


def test_without_a_recipe_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--lang", "en"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == [*recipes.names(), "or"]
    assert "nursery rhymes" in said[recipes.names().index("demo_lm")]
    assert cli.main(["train", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == recipes.names()


@pytest.mark.parametrize(("free", "fits"), [(1 << 50, True), (1 << 20, False), (None, True)])
def test_a_dry_run_says_whether_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], free: int | None, fits: bool
) -> None:
    monkeypatch.setattr(devices, "read_free", lambda: free)
    assert cli.main(["train", str(own(tmp_path)), "--dry-run", "--device", "cpu", "--lang", "en"]) == 0
    said = capsys.readouterr().out
    assert ("will not fit" in said) != fits
    assert ("GB free" in said) == (free is not None)


def test_free_memory_is_the_kernels_within_the_containers_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not sys.platform.startswith("linux"):
        assert devices.read_free() is None
        return
    whole = devices.read_free()
    assert whole is not None
    limits = (tmp_path / "v2", tmp_path / "v1")
    for text, found in (("max\n", None), ("1000\n", 1000)):
        limits[0].write_text(text, encoding="ascii")
        monkeypatch.setattr(devices, "LIMITS", limits)
        free = devices.read_free()
        assert free is not None
        assert free == found if found else free > 1 << 20


def test_the_line_of_a_step_says_how_uneven_experts_are() -> None:
    from qkv.cli.train import describe_event

    step = {"kind": "step", "step": 3, "of": 9, "loss": 2.0, "lr": 1e-3, "tokens_per_second": 50.0, "of_peak": 0.5,
            "eta": 60.0}  # fmt: skip
    assert describe_event(step) == ["step 3/9  loss 2.000  lr 1.00e-03  50 tokens/s, 50% of peak  ETA 1:00"]
    assert "lr 1.00e-03  busiest expert 1.25 × its share  50 tokens/s" in describe_event(step | {"busiest": 1.25})[0]


def test_the_lines_of_a_run_are_chinese_where_one_speaks_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["train", str(own(tmp_path)), "--smoke", "--device", "cpu", "--lang", "zh"]) == 0
    heard = capsys.readouterr().err
    assert re.search(r"第 \d+/\d+ 步  损失 [\d.]+  学习率 \S+  每秒 [\d,]+ 个词元，峰值的 \d+%  还需 [\d:]+", heard)
    assert re.search(r"第 \d+ 步  loss ", heard)  # metrics keep the names that the log has
    assert "step" not in heard


def test_plain_lines_in_a_pipe_hold_loss_speed_and_time(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert not sys.stderr.isatty()
    assert cli.main(["train", str(own(tmp_path)), "--smoke", "--device", "cpu", "--lang", "en"]) == 0
    heard = capsys.readouterr()
    assert re.search(r"tokens/s, \d+% of peak  ETA", heard.err)
    assert "perplexity" in heard.err
    assert "trained for" in heard.out
    assert "lies in" not in heard.out  # a smoke run without --out keeps nothing


def test_a_smoke_run_asks_for_nothing_that_so_little_cannot_know(tmp_path: Path) -> None:
    said = ['watch.words=["zebras"]', f'watch.texts=["{"one two " * 60}"]', f'check.prompts=["{"one two " * 60}"]']
    run = recipes.configure("demo_lm", [*said, "watch.times=2"], smoke=True)
    assert (run.watch.words, run.watch.texts, run.check.prompts) == ((), (), ("one two one two one ",))
    recipes.train(run, out=tmp_path, device="cpu")


@pytest.mark.parametrize("family", ["marian", "gpt2", "llama", "bert", "t5", "bart", "glm_blank", "openai_gpt"])
@pytest.mark.parametrize("experts", [0, 4])
def test_a_new_model_is_saved_as_the_family_that_its_shape_names(family: Any, experts: int, tmp_path: Path) -> None:
    if experts and family != "llama":
        return
    shape = Shape(family, width=32, layers=2, heads=2, experts=experts)
    model = qkv.build(shape.spec(100))
    model.save(tmp_path / "named", family=shape.saved_as)
    model.save(tmp_path / "found")
    assert (tmp_path / "named/config.json").read_bytes() == (tmp_path / "found/config.json").read_bytes()
