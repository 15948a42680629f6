"""The baselines: an LSTM is trained, saved and asked as any model is; n-grams are counted as Kneser and Ney say."""

import dataclasses
import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import qkv
import qkv.hub
from qkv.baselines import lstm, ngrams
from qkv.baselines.lstm import LSTMDecoder, LSTMModel
from qkv.core.init import initialise
from qkv.data import collate
from qkv.data.order import draw_permutation
from qkv.errors import QkvError
from qkv.training import assemble, loop, recipes, trivial
from qkv.training.losses import mean_loss
from qkv.training.plan import Plan
from qkv.training.run import Check, Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits

WORDS, END, START = 20, 2, 1
KINDS = ("none", "additive")


def reversals(rows: int) -> list[tuple[list[int], list[int]]]:
    g = torch.Generator().manual_seed(7)
    found = []
    for _ in range(rows):
        n = int(torch.randint(2, 7, (1,), generator=g))
        ids = torch.randint(3, WORDS, (n,), generator=g).tolist()
        found.append(([*ids, END], [*ids[::-1], END]))
    return found


PAIRS = reversals(120)


def plan(pairs: Sequence[tuple[list[int], list[int]]] = PAIRS, rows: int = 24) -> Plan:
    def order(epoch: int) -> list[tuple[int, ...]]:
        mixed = draw_permutation(len(pairs), seed=0, epoch=epoch).tolist()
        return [tuple(mixed[i : i + rows]) for i in range(0, len(mixed), rows)]

    return Plan(order, lambda key: collate.collate_pairs([pairs[i] for i in key], pad=0, start=START), {})


def small(kind: Any, **more: Any) -> LSTMModel:
    core = LSTMModel(lstm.lstm_spec(WORDS, width=48, attention=kind, **more))
    initialise(core)
    return core


SETTINGS = Settings(steps=150, lr=1e-2, schedule="cosine", warmup=20, clip=1.0, precision="fp32", log_every=100)


@pytest.fixture(scope="module")
def trained() -> dict[str, LSTMModel]:
    found = {kind: small(kind) for kind in KINDS}
    for core in found.values():
        loop.train(core, plan(), SETTINGS)
    return found


def said(core: LSTMModel, sources: Sequence[Sequence[int]]) -> list[list[int]]:
    return [w.tokens for w in lstm.translate(core, sources, start=START, ends=[END], longest=12)]


def test_the_loop_trains_them(trained: dict[str, LSTMModel]) -> None:
    right = {kind: sum(a == b for a, (_, b) in zip(said(core, [s for s, _ in PAIRS]), PAIRS, strict=True)) / len(PAIRS)
             for kind, core in trained.items()}  # fmt: skip
    assert min(right.values()) > 0.9


def test_attention_points_at_the_word_that_is_written(trained: dict[str, LSTMModel]) -> None:
    hits = []
    for source, target in PAIRS[:20]:
        pattern = lstm.compute_alignment(trained["additive"], source, [START, *target[:-1]])  # T S
        assert pattern.shape == (len(target), len(source))
        assert torch.allclose(pattern.sum(-1), torch.ones(len(target)))
        words = len(target) - 1
        # a bidirectional state knows its neighbours too, so one place off is no mistake
        hits += [abs(int(pattern[t].argmax()) - (words - 1 - t)) <= 1 for t in range(words)]
    assert sum(hits) / len(hits) > 0.8
    with pytest.raises(QkvError, match="one vector"):
        lstm.compute_alignment(trained["none"], [3, END], [START])


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_what_the_whole_pass_says(kind: str, trained: dict[str, LSTMModel]) -> None:
    core = trained[kind]
    for source, _ in PAIRS[:5]:
        (written,) = lstm.translate(core, [source], start=START, ends=[END], longest=12)
        batch = collate.collate_pairs([(source, written.tokens)], pad=0, start=START)
        assert mean_loss(core, [batch]) * len(written.tokens) == pytest.approx(-sum(written.logprobs), abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_its_rows_alone(kind: str) -> None:
    core = small(kind, layers=2).double()
    rows = PAIRS[:6]
    alone = sum(mean_loss(core, [collate.collate_pairs([r], pad=0, start=START)]) * len(r[1]) for r in rows)
    batch = collate.collate_pairs(rows, pad=0, start=START, shape=(11, 9))
    assert batch.source_real is not None
    assert mean_loss(core, [batch]) * batch.tokens == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_translated_as_its_rows_alone(kind: str, trained: dict[str, LSTMModel]) -> None:
    sources = [source for source, _ in PAIRS[:8]]
    assert said(trained[kind], sources) == [said(trained[kind], [source])[0] for source in sources]
    assert len({len(source) for source in sources}) > 2


def test_forbidden_words_are_never_said(trained: dict[str, LSTMModel]) -> None:
    source, target = PAIRS[0]
    (row,) = lstm.translate(trained["none"], [source], start=START, ends=[END], longest=9, forbid=[target[0]])
    assert target[0] not in row.tokens
    assert target[0] in said(trained["none"], [source])[0]


def test_an_untied_head_has_a_matrix_of_its_own() -> None:
    for tied in (True, False):
        core = LSTMModel(lstm.lstm_spec(WORDS, width=8, tied=tied))
        assert (core.head.weight is core.embed.weight) == tied


def test_the_top_layer_asks_the_source() -> None:
    core = small("additive", layers=2).double()
    ids = torch.tensor([[START]])
    step = lstm.begin_decoding(core, [[3, 9, 4]], ids)
    w, state = core.lstm_decoder, core.lstm_decoder.initial_state(1, step)
    energy = w.score(torch.tanh(w.key(step.memory) + w.query(state[0][1])[:, None]))[..., 0]
    assert torch.allclose(w.unroll(core.embed(ids), state, step)[1][0], energy.softmax(-1))


def test_dropout_meets_what_is_read_and_what_is_said() -> None:
    core, seen = small("none", dropout=0.25), list[tuple[int, ...]]()

    def drop(x: Tensor, p: float) -> Tensor:
        assert p == 0.25
        seen.append(tuple(x.shape))
        return x

    qkv.Model(core)(source=torch.tensor([[3, 4, END]]), target=torch.tensor([[START, 5]]), drop=drop)
    assert seen == [(1, 3, 48), (1, 3, 48), (1, 2, 48), (1, 2, 48)]


def test_padding_that_is_read_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LSTMDecoder.initial_state

    def careless(self: LSTMDecoder, rows: int, step: Any) -> Any:
        open_to_all = {m: seen._replace(bias=None) for m, seen in step.mask.items()}
        return whole(self, rows, dataclasses.replace(step, mask=open_to_all))

    monkeypatch.setattr(LSTMDecoder, "initial_state", careless)
    with pytest.raises(AssertionError):
        test_a_batch_is_its_rows_alone("none")


def by_hand(core: LSTMModel, source: Tensor, target: Tensor) -> Tensor:
    """The equations of Bahdanau et al. 2014, appendix A, with an LSTM cell, one word at a time."""
    w, scale = dict(core.named_parameters()), core.spec.stack.width**0.5

    def cell(x: Tensor, h: Tensor, c: Tensor, rnn: str) -> tuple[Tensor, Tensor]:
        end = "_reverse" if rnn.endswith("back") else ""
        name = rnn.removesuffix(" back")
        sides = (("i", x), ("h", h))
        gates = sum(w[f"{name}.weight_{a}h_l0{end}"] @ v + w[f"{name}.bias_{a}h_l0{end}"] for a, v in sides)
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    def run(x: Tensor, rnn: str) -> list[Tensor]:
        h = c = torch.zeros(core.spec.stack.width // 2, dtype=x.dtype)
        out = []
        for one in x:
            h, c = cell(one, h, c, rnn)
            out.append(h)
        return out

    x = w["embed.weight"][source] * scale
    ahead, back = run(x, "encoder.rnn"), run(x.flip(0), "encoder.rnn back")[::-1]
    memory = torch.stack([torch.cat(pair) for pair in zip(ahead, back, strict=True)])
    ends = torch.cat((ahead[-1], back[0]))
    h, c = (w["decoder.bridge.weight"] @ ends + w["decoder.bridge.bias"]).chunk(2)
    h, out = h.tanh(), []
    for y in w["embed.weight"][target] * scale:
        keys = memory @ w["decoder.key.weight"].T + w["decoder.key.bias"]
        energy = torch.tanh(keys + w["decoder.query.weight"] @ h) @ w["decoder.score.weight"][0]
        context = energy.softmax(0) @ memory
        h, c = cell(torch.cat((y, context)), h, c, "decoder.rnn")
        state = torch.tanh(w["decoder.readout.weight"] @ torch.cat((h, context)) + w["decoder.readout.bias"])
        out.append(w["embed.weight"] @ state)
    return torch.stack(out)


def test_attention_is_the_papers_equations() -> None:
    core = small("additive").double()
    source, target = torch.tensor([3, 9, 4, 7, END]), torch.tensor([START, 5, 6])
    logits = qkv.Model(core)(source=source[None], target=target[None]).logits
    assert logits is not None
    assert torch.allclose(logits[0], by_hand(core, source, target), atol=1e-12)


def test_another_score_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "tanh", torch.sigmoid)
    with pytest.raises(AssertionError):
        test_attention_is_the_papers_equations()


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_uninterrupted_one(kind: str, tmp_path: Path) -> None:
    s = dataclasses.replace(SETTINGS, steps=8, schedule="constant", scheduled_sampling=0.5)
    whole, parts = small(kind, dropout=0.2), small(kind, dropout=0.2)
    loop.train(whole, plan(), s)
    loop.train(parts, plan(), dataclasses.replace(s, steps=3), directory=tmp_path)
    parts = small(kind, dropout=0.2)
    loop.train(parts, plan(), s, directory=tmp_path, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_loads_as_it_was(kind: Any, tmp_path: Path) -> None:
    model = qkv.build(lstm.lstm_spec(WORDS, width=16, layers=2, attention=kind), seed=3)
    model.save(tmp_path)
    again = qkv.load(tmp_path, device="cpu")
    assert again.spec == model.spec
    assert all(torch.equal(a, b) for a, b in zip(model.core.parameters(), again.core.parameters(), strict=True))
    other = qkv.build(lstm.lstm_spec(WORDS, width=16, layers=1, attention=kind))
    other.save(tmp_path)
    (tmp_path / "config.json").write_text(
        (tmp_path / "config.json").read_text(encoding="utf-8").replace('"layers": 1', '"layers": 2'), encoding="utf-8"
    )
    with pytest.raises(QkvError, match=r"bridge.weight: found the shape"):
        qkv.load(tmp_path, device="cpu")


@pytest.mark.parametrize("family", ["lstm", "lstm-attention"])
def test_a_recipe_trains_saves_and_translates(family: Any, tmp_path: Path) -> None:
    names = ["one", "two", "three", "four", "five", "six"]
    data = [(f"{a} {b}", f"{b} {a}") for a in names for b in names]
    run = Run("tiny", lambda: Splits(data[:24], data[24:30], data[30:]), Shape(family, width=16, layers=1, context=32),
              Vocabulary("word", 50), Settings(steps=4, tokens=64, precision="fp32", metric="bleu"))  # fmt: skip
    done = recipes.train(run, out=tmp_path, device="cpu")
    assert {"loss", "bleu"} <= done.test.keys()
    loaded = qkv.load(tmp_path, device="cpu")
    (result,) = loaded.translate(["one two"], beam=1)
    with pytest.raises(QkvError, match="nbest: found 2, but an LSTM baseline translates greedily"):
        loaded.translate("one two", nbest=2)
    assert result.text == done.model.translate("one two").text
    assert result.finish_reason in ("stop", "length")
    if family == "lstm-attention":
        assert loaded.translate("one two", align=True).alignment.shape[0] == len(result.tokens)
    with pytest.raises(QkvError, match="an LSTM baseline can translate"):
        loaded.generate("one")


@pytest.mark.parametrize("kind", KINDS)
def test_what_lstms_cost_is_counted(kind: Any) -> None:
    spec, d, v = lstm.lstm_spec(WORDS, width=16, layers=2, attention=kind, context=10), 16, WORDS
    said = qkv.hub.report(qkv.build(spec))
    rnns = {n: p.numel() for n, p in LSTMModel(spec).named_parameters() if ".rnn." in n}
    own = sum(rnns.values()) + 4 * d * (d + 1)  # the bridge: two states of two layers
    attention = {"none": 0, "additive": d * d + d * (d + 1) + d}[kind]
    own += {"none": 0, "additive": d * (2 * d + 1)}[kind]  # the readout
    assert said["by_part"] == {"embedding": v * d, "lstm": own, "attention": attention, "head": 0}
    assert said["parameters"] == v * d + own + attention
    assert said["kv_bytes"] == 0
    assert "activation_bytes_per_token" not in said  # not counted yet
    matrices = sum(p.numel() for n, p in LSTMModel(spec).named_parameters() if "decoder.rnn.weight" in n)
    across = {"none": 0, "additive": d * d + 2 * d * d + 2 * d * 10}[kind]  # query, readout; score and mean of 10 words
    assert said["flops_per_token"] == 2 * (matrices + 4 * d * d + across + v * d)


def test_what_an_lstm_lacks_is_said(tmp_path: Path) -> None:
    model = qkv.build(lstm.lstm_spec(WORDS, width=16, attention="additive"))
    model.save(tmp_path)
    with pytest.raises(QkvError, match="no forks"):
        qkv.show(tmp_path)
    with pytest.raises(QkvError, match="LSTM has no key/value heads"):
        qkv.hub.report(tmp_path, attention="mqa")
    with pytest.raises(QkvError, match="no layers to read"):
        model.trace(save=["lens"])
    with model.trace(save=["decoder.embed"]) as t:
        model(source=torch.tensor([[3, END]]), target=torch.tensor([[START]]))
    assert t["decoder.embed"].shape == (1, 1, 16)


def test_an_lstm_of_an_older_version_still_loads(tmp_path: Path) -> None:
    model = qkv.build(lstm.lstm_spec(WORDS, width=16, attention="additive"), seed=3)
    model.save(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text(encoding="utf-8").replace('"qkv"', '"lstm"'), encoding="utf-8")
    again = qkv.load(tmp_path, device="cpu")
    again.save(tmp_path / "new")
    assert '"qkv"' in (tmp_path / "new" / "config.json").read_text(encoding="utf-8")
    assert torch.equal(again.core.embed.weight, model.core.embed.weight)


def test_shapes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(QkvError, match="even width"):
        lstm.lstm_spec(9, width=15)
    with pytest.raises(QkvError, match="no encoder"):
        lstm.lstm_spec(9, width=16, attention="additive", source=False)
    with pytest.raises(QkvError, match="order 0"):
        ngrams.count_ngrams([], order=0, vocabulary=9)


def test_a_language_model_without_a_source_is_trained_too() -> None:
    ids = torch.arange(3, 15).repeat(4)[None, :33]
    core = small("none", source=False)
    loop.train(
        core, Plan(lambda epoch: [0], lambda key: collate.collate_windows(ids)), dataclasses.replace(SETTINGS, steps=80)
    )
    assert mean_loss(core, [collate.collate_windows(ids)]) < 0.2


def kneser_ney(grams: list[tuple[int, ...]], order: int, vocabulary: int) -> Any:
    """Interpolated Kneser-Ney (Chen & Goodman 1998, section 3), word by word with dictionaries."""
    tables = [Counter(grams)]
    for k in range(order - 1, 0, -1):
        tables.append(Counter(g[-k:] for g in {h[-k - 1 :] for h in grams}))
    tables.reverse()  # of order 1 to n

    def chance(word: int, history: tuple[int, ...], k: int) -> float:
        if k == 0:
            return 1 / vocabulary
        table = tables[k - 1]
        once, twice = (sum(c == n for c in table.values()) for n in (1, 2))
        d = min(0.95, once / (once + 2 * twice)) if once else 0.5
        after: dict[int, int] = defaultdict(int)
        for g, c in table.items():
            if g[:-1] == history[len(history) - k + 1 :]:
                after[g[-1]] += c
        lower = chance(word, history, k - 1)
        if not after:
            return lower
        total = sum(after.values())
        return max(after.get(word, 0) - d, 0) / total + d * len(after) / total * lower

    return chance


ROWS = [[1, 4, 5, 4, 6, 2], [1, 4, 5, 3, 2], [1, 5, 5, 4, 5, 3, 7], [1, 3, 3, 4, 5, 4]]


def batches(rows: Sequence[Sequence[int]] = ROWS) -> list[collate.Batch]:
    """Rows of unequal length, each word asked for behind those before it; the first behind the edge's stand-in 8."""
    width = max(map(len, rows))
    target = collate.pad_rows([[8, *r[:-1]] for r in rows], 0, width=width)
    return [collate.Batch(target, collate.pad_rows(rows, collate.IGNORED, width=width), tokens=sum(map(len, rows)))]


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_ngrams_are_kneser_ney(order: int) -> None:
    model = ngrams.count_ngrams(batches(), order=order, vocabulary=9)
    grams = ngrams.extract_grams(batches()[0], order, 9)
    seen = [tuple([*[9] * order, 8, *r[: i + 1]][-order:]) for r in ROWS for i in range(len(r))]
    assert list(map(tuple, grams.tolist())) == seen
    chance = kneser_ney(seen, order, 9)
    for history in ([9, 9, 8], [8, 1, 4], [1, 4, 5], [6, 6, 6], [0, 4, 5]):
        history = history[len(history) - order + 1 :]
        mine = model.probabilities(np.array([[*history, w] for w in range(9)]))
        assert mine.sum() == pytest.approx(1.0)
        assert mine == pytest.approx([chance(w, tuple(history), order) for w in range(9)])


def test_counts_alone_lose_to_kneser_ney_on_new_text() -> None:
    g = torch.Generator().manual_seed(0)
    rows = [torch.randint(0, 9, (12,), generator=g).cumsum(0).remainder(9).tolist() for _ in range(40)]
    uniform, model = math.log(9), ngrams.count_ngrams(batches(rows[:20]), order=3, vocabulary=9)
    assert model.loss(batches(rows[:20])) < uniform
    assert model.loss(batches(rows[20:])) < uniform * 1.3


def test_a_runs_own_batches_are_counted() -> None:
    text = "the cat sat on the mat and the dog sat on the log " * 20
    run = Run("tiny", lambda: Splits(text[:800], text[800:]), Shape("gpt2", width=16, layers=1, heads=2, context=16),
              Vocabulary("char", 40), Settings(steps=1, tokens=64, precision="fp32"))  # fmt: skip
    made = assemble.assemble(run, device="cpu")
    losses = [trivial.measure_ngrams(made, order=n)["loss"] for n in (1, 2, 4)]
    assert losses[0] > losses[1] > losses[2] > 0


def test_ngrams_are_counted_on_words_that_the_model_does_not_read() -> None:
    rows = [(f"a{i % 5} b{i % 3}", f"x{i % 5} y{i % 3} z{i % 2}") for i in range(40)]
    shape = Shape("marian", width=16, layers=1, heads=2, ffn=16, context=16)
    run = Run("pairs", lambda: Splits(rows[:30], rows[30:]), shape, Vocabulary("split", 60),
              Settings(steps=1, tokens=64, precision="fp32"))  # fmt: skip
    blurred = dataclasses.replace(run, training=dataclasses.replace(run.training, word_dropout=0.6))
    whole, same = (trivial.measure_ngrams(assemble.assemble(r, device="cpu"), order=2) for r in (run, blurred))
    assert whole == same


def test_a_run_counts_ngrams_beside_it_and_keeps_what_they_are_worth(tmp_path: Path) -> None:
    text = "the cat sat on the mat and the dog sat on the log " * 20
    run = Run("tiny", lambda: Splits(text[:800], text[800:]), Shape("gpt2", width=16, layers=1, heads=2, context=16),
              Vocabulary("char", 40), Settings(steps=1, tokens=64, precision="fp32"), Check(ngrams=2))  # fmt: skip
    told: list[str] = []
    recipes.train(run, out=tmp_path, device="cpu", report=lambda event: told.append(str(event.get("text"))))
    kept = json.loads((tmp_path / "train" / "result.json").read_text(encoding="utf-8"))["ngrams"]
    assert kept == trivial.measure_ngrams(assemble.assemble(run, device="cpu"), order=2)
    assert f"n-grams of order 2, counted on the same tokens: validation loss {kept['loss']:.3f}" in " ".join(told)
    hidden = dataclasses.replace(run, model=Shape("bert", width=16, layers=1, heads=2, ffn=16, context=16),
                                 splits=lambda: Splits([("a b", "1"), ("b a", "0")] * 4, [("a b", "1")]),
                                 tokenizer=Vocabulary("word", 40), objective="labels")  # fmt: skip
    with pytest.raises(QkvError, match="n-grams predict the next word"):
        recipes.train(hidden, device="cpu")
    with pytest.raises(QkvError, match=r"check\.ngrams: found -2, expected an order"):
        Check(ngrams=-2)
