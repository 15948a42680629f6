"""Labels with the words' loss beside, answers alone in conversations, packed documents that never see each other."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.core.step import Inputs
from qkv.data.collate import IGNORED, Batch
from qkv.errors import QkvError
from qkv.tokenizers.vocabulary import train_vocabulary as vocabulary
from qkv.training import assemble, compatibility, losses, recipes
from qkv.training.data_files import Data, talk_rows
from qkv.training.losses import step_loss
from qkv.training.objectives import chat as objectives
from qkv.training.objectives.base import Decoding, classify_sources
from qkv.training.own_data import from_files, from_toml
from qkv.training.run import ProbeSettings, Run, Vocabulary
from qkv.training.settings import Lora, Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits

GOOD, BAD = ("good", "great", "fine", "warm"), ("bad", "awful", "poor", "cold")
ROWS = [(" ".join((GOOD if i % 2 else BAD)[(i // 2 + j) % 4] for j in range(2 + i % 5)), "up" if i % 2 else "down")
        for i in range(40)]  # fmt: skip
TALKS = [({"role": "user", "content": f"say {w}"}, {"role": "assistant", "content": f"{w} {w}"},
          {"role": "user", "content": f"and {w}"}, {"role": "assistant", "content": w})
         for w in GOOD + BAD]  # fmt: skip
BASE = Settings(steps=6, tokens=128, lr=3e-3, warmup=2, precision="fp32", evaluate_every=3, threads=1)


def run_of(objective: str, family: str = "openai_gpt", base: str = "", **training: Any) -> Run:
    shape = Shape(family, width=16, layers=2, heads=2, ffn=64, dropout=0.0, context=48)  # type: ignore[arg-type]
    data = {"labels": ROWS, "chat": TALKS}.get(objective)
    text = "\n".join(" ".join(words) + "\n" * (i % 3 == 0) for i, words in enumerate([GOOD, BAD, GOOD[::-1]] * 8))
    splits = Splits(data[:-6], data[-6:], data[-3:]) if data else Splits(text, text)
    return Run("tuning", lambda: splits, shape, Vocabulary("bpe", 400), dataclasses.replace(BASE, **training),
               objective=objective, base=base)  # fmt: skip


def ready(objective: str, family: str = "openai_gpt", **training: Any) -> tuple[assemble.Assembly, list[Batch]]:
    a = assemble.assemble(run_of(objective, family, **training), device="cpu")
    with torch.no_grad():  # a spread that shows a fault
        for p in a.model.core.parameters():
            p.mul_(4.0 if p.ndim > 1 else 1.0)
    return a, [a.plan.make(key) for key in a.plan.order(0)]


# -- labels -----------------------------------------------------------------------------------------------------------


def slowly(a: assemble.Assembly, b: Batch, share: float) -> float:
    """-log p(label) and `share` of the mean -log p of a text's words, text by text and without padding."""
    core, total = a.model.core, 0.0
    for i, ids in enumerate(b.target):
        count = len(ids) if b.target_real is None else int(b.target_real[i].sum())
        row = ids[None, :count]
        segments = None if b.segments is None else b.segments[i : i + 1, :count]
        states, step = core.run_stack(row, Inputs(segments=segments))
        assert b.classes is not None
        total -= core.labels(states, step)[0].log_softmax(-1)[b.classes[i]].item()
        if share:
            chances = core.head(states)[0, :-1].log_softmax(-1)
            total -= share * chances.gather(1, row[0, 1:, None]).mean().item()
    return total


@pytest.mark.parametrize(("family", "share"), [("openai_gpt", 0.5), ("openai_gpt", 0.0), ("gpt2", 2.0), ("bert", 0.0)])
def test_the_loss_is_that_of_the_labels_and_a_share_of_the_words(family: str, share: float) -> None:
    a, batches = ready("labels", family, auxiliary=share)
    for b in batches[:2]:
        loss, _ = step_loss(a.model.core, b)
        assert loss.item() == pytest.approx(slowly(a, b, share), rel=1e-4)
        assert b.tokens == len(b.target)
    assert a.model.labels == ("down", "up")


def test_words_that_are_all_counted_alike_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = losses.weighted_cross_entropy
    even = lambda h, head, labels, w, **how: right(h, head, labels, w * 0 + w.mean(), **how)  # noqa: E731
    monkeypatch.setattr(losses, "weighted_cross_entropy", even)
    with pytest.raises(AssertionError):
        test_the_loss_is_that_of_the_labels_and_a_share_of_the_words("openai_gpt", 0.5)


def test_the_gradient_of_weighted_words_is_that_of_plain_pytorch() -> None:
    g = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(7, 5, generator=g, requires_grad=True), torch.rand(7, generator=g)
    head, labels = torch.nn.Linear(5, 11), torch.randint(0, 11, (7,), generator=g)
    got = losses.weighted_cross_entropy(hidden, head, labels, weight, smoothing=0.1)
    mine = torch.autograd.grad(got, [hidden, head.weight, head.bias])
    each = torch.nn.functional.cross_entropy(head(hidden), labels, reduction="none", label_smoothing=0.1)
    theirs = torch.autograd.grad((each * weight).sum(), [hidden, head.weight, head.bias])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("family", ["openai_gpt", "bert"])
def test_labels_are_learnt_and_the_saved_model_gives_them(family: str, tmp_path: Path) -> None:
    done = recipes.train(run_of("labels", family, steps=60, lr=1e-2), out=tmp_path, device="cpu")
    assert done.test["label_accuracy"] == 1.0
    model = qkv.load(tmp_path, device="cpu")
    assert [v.label for v in model.classify(["good great", "poor cold bad"])] == ["up", "down"]
    assert (model.spec.head is None) == (family == "bert")  # an encoder has no output that nothing taught


def test_a_decoder_reads_texts_between_end_symbols_that_long_ones_keep() -> None:
    rows = [("good " * 100, "up"), ("bad", "down")] * 5
    run = dataclasses.replace(run_of("labels"), splits=lambda: Splits(rows, rows))
    a = assemble.assemble(run, device="cpu")
    t = a.model.tokenizer
    assert t is not None
    ids = t.encode("bad")
    assert ids[0] == ids[-1] == t.eos_id
    for b in a.valid:
        there = torch.ones_like(b.target, dtype=torch.bool) if b.target_real is None else b.target_real
        last = there.sum(1) - 1
        assert bool((b.target.gather(1, last[:, None]) == t.eos_id).all())
        assert b.target.shape[1] <= 48
    assert len(classify_sources(a.model, ["good " * 100, "bad"], Decoding())) == 2  # judged as they were learnt


# -- from one run to the next -----------------------------------------------------------------------------------------


def test_a_run_begins_with_the_weights_and_the_words_of_its_base(tmp_path: Path) -> None:
    first = recipes.train(run_of("text"), out=tmp_path / "pre", device="cpu")
    a = assemble.assemble(run_of("labels", base=str(tmp_path / "pre")), device="cpu")
    old, new = dict(first.model.core.named_parameters()), dict(a.model.core.named_parameters())
    assert {n for n in new if n not in old} == {n for n in new if n.startswith("labels.")} != set()
    assert all(torch.equal(old[n], new[n]) for n in old)
    assert a.model.tokenizer is not None
    assert first.model.tokenizer is not None
    assert a.model.tokenizer.encode("good", special=False) == first.model.tokenizer.encode("good", special=False)
    assert a.plan.identity["base"] == str(tmp_path / "pre")
    assert f"the model is that of {tmp_path / 'pre'}: of [model], only context and pooling are used" in a.plan.notes
    bare = dataclasses.replace(run_of("labels", base=str(tmp_path / "pre")), model=Shape(context=48))
    assert not any("[model]" in note for note in assemble.assemble(bare, device="cpu").plan.notes)
    done = recipes.train(run_of("labels", base=str(tmp_path / "pre")), out=tmp_path / "fine", device="cpu")
    assert done.model.labels == ("down", "up")
    moved = dict(done.model.core.named_parameters())
    assert not any(torch.equal(old[n], moved[n]) for n in old if "attn.q.weight" in n)


def test_labels_are_learnt_from_an_encoder_whose_words_are_left_behind(tmp_path: Path) -> None:
    """A trained encoder loses its head and gets labels: demo-bert, and what was fine-tuned from it."""
    first = tmp_path / "first"
    for base, out in (("demo-bert", first), (str(first), tmp_path / "second")):
        result = recipes.train(run_of("labels", base=base), out=out, device="cpu")
        model = qkv.load(out)
        assert model.spec.head is None
        assert model.labels == ("down", "up")
        assert model.classify("good great").label in model.labels
        assert result.outcome.steps == 6


def test_a_base_that_knows_the_labels_keeps_their_order(tmp_path: Path) -> None:
    first = recipes.train(run_of("labels"), out=tmp_path / "pre", device="cpu")
    config = json.loads((tmp_path / "pre" / "config.json").read_text(encoding="utf-8"))
    assert config["id2label"] == {"0": "down", "1": "up"}
    (tmp_path / "pre" / "config.json").write_text(json.dumps(config | {"id2label": {"0": "up", "1": "down"}}))
    a = assemble.assemble(run_of("labels", base=str(tmp_path / "pre")), device="cpu")
    assert a.model.labels == ("up", "down")
    assert torch.equal(a.model.core.labels.out.weight, first.model.core.labels.out.weight)
    batch = a.plan.make(a.plan.order(0)[0])
    assert a.model.tokenizer is not None
    for ids, number in zip(batch.target, batch.classes, strict=True):  # type: ignore[arg-type]
        text = a.model.text([i for i in ids.tolist() if i != (a.model.tokenizer.pad_id or 0)])
        assert a.model.labels[int(number)] == ("up" if any(word in text for word in GOOD) else "down")


def of(objective: str, name: Path | str, **more: Any) -> Run:
    run = run_of(objective, **more)
    return dataclasses.replace(run, tokenizer=dataclasses.replace(run.tokenizer, of=str(name)))


def test_a_run_may_take_the_vocabulary_of_another(tmp_path: Path) -> None:
    other = dataclasses.replace(run_of("text"), splits=lambda: Splits("uno due tre quattro " * 99, "uno due " * 40))
    first = recipes.train(run_of("text"), out=tmp_path / "first", device="cpu").model.tokenizer
    own = recipes.train(other, out=tmp_path / "own", device="cpu").model.tokenizer
    taking = dataclasses.replace(other, tokenizer=Vocabulary("word", 77, of=str(tmp_path / "first")))
    again = recipes.train(taking, out=tmp_path / "again", device="cpu").model.tokenizer
    assert first is not None
    assert own is not None
    assert again is not None
    assert again.vocabulary == first.vocabulary != own.vocabulary
    a = assemble.assemble(taking, directory=tmp_path / "again", device="cpu")
    assert a.plan.identity["tokenizer"] == {}  # where it lay is not what it is
    told = f"the vocabulary is that of {tmp_path / 'first'}: kind and size in [tokenizer] are ignored"
    assert told in a.plan.notes
    plain = dataclasses.replace(other, tokenizer=Vocabulary(of=str(tmp_path / "first")))
    assert not any("are ignored" in note for note in assemble.assemble(plain, device="cpu").plan.notes)


def test_a_vocabulary_made_for_something_else_is_refused(tmp_path: Path) -> None:
    for objective in ("text", "labels"):
        recipes.train(run_of(objective), out=tmp_path / objective, device="cpu")
    (tmp_path / "bare").mkdir()
    whole = ("<pad>", "</s>", "<unk>")
    vocabulary([" ".join(GOOD)] * 9, kind="bpe", size=270, specials=whole).save(tmp_path / "open")
    for objective, name, told in (
        ("labels", "text", "made for something else, that vocabulary lacks <pad>$"),
        ("text", "labels", "made for something else, it ends every text with </s>"),
        ("text", "bare", "no tokenizer there"),
        ("text", "un/known", "no such directory"),
    ):
        with pytest.raises(QkvError, match=told):
            assemble.assemble(of(objective, tmp_path / name), device="cpu")
    with pytest.raises(QkvError, match="this run's vocabulary is the base's"):
        assemble.assemble(of("text", tmp_path / "text", base=str(tmp_path / "text")), device="cpu")
    with pytest.raises(QkvError, match="it ends no text with </s>"):
        assemble.borrow_tokenizer(str(tmp_path / "open"), whole, "eos")
    for name in ("labels", "open"):  # texts with labels get their ends in any case
        found = assemble.assemble(of("labels", tmp_path / name), device="cpu").model.tokenizer
        assert found is not None
        assert found.encode("good")[0] == found.encode("good")[-1] == found.eos_id


# -- packing ----------------------------------------------------------------------------------------------------------


def alone(core: Any, b: Batch, row: int) -> dict[int, torch.Tensor]:
    """The logits of each document of a packed row, read alone."""
    assert b.documents is not None
    found = dict[int, torch.Tensor]()
    for number in set(b.documents[row].tolist()) - {-1}:
        ids = b.target[row, b.documents[row] == number][None]
        found[number] = core(ids, Inputs()).logits[0]
    return found


def check_packed(family: str, objective: str = "documents") -> None:
    a, batches = ready(objective, family)
    core, several = a.model.core, 0
    for b in batches:
        assert b.documents is not None
        logits = core.head(losses.states(core, b))
        for row in range(len(b.target)):
            for number, want in alone(core, b, row).items():
                got = logits[row, b.documents[row] == number]
                assert float((got - want).detach().abs().max()) <= 1e-5 * max(1, float(want.detach().abs().max()))
            several += len(alone(core, b, row)) > 1
    assert several


@pytest.mark.parametrize("family", ["gpt2", "llama", "openai_gpt"])
def test_packed_documents_are_as_separate_ones(family: str) -> None:
    check_packed(family)


def test_packed_conversations_are_as_separate_ones() -> None:
    check_packed("gpt2", "chat")


@pytest.mark.parametrize("lost", ["documents", "positions"])
def test_documents_that_see_each_other_or_count_on_are_found(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.core import model

    if lost == "positions":
        monkeypatch.setattr(model, "position_in_run", lambda groups: torch.arange(groups.shape[1]).expand_as(groups))
    else:
        right = losses.states
        blind = lambda core, b, drop=losses.no_dropout: right(core, dataclasses.replace(b, documents=None), drop)  # noqa: E731
        monkeypatch.setattr(losses, "states", blind)
    with pytest.raises(AssertionError):
        check_packed("gpt2")


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_nothing_leaks_from_one_document_to_another(family: str) -> None:
    """Other words in one document change no bit of its neighbours' states, and their loss has no gradient in it."""
    a, batches = ready("documents", family)
    core = a.model.core
    b = next(b for b in batches if b.documents is not None and len(set(b.documents[0].tolist()) - {-1}) > 1)
    assert b.documents is not None
    mine = b.documents[0] == int(b.documents[0, 0])
    other = b.target.clone()
    other[0, mine] = (other[0, mine] + 7) % len(core.embed.weight)
    before, after = (losses.states(core, dataclasses.replace(b, target=t))[0, ~mine] for t in (b.target, other))
    assert torch.equal(before, after)
    heard = list[torch.Tensor]()
    core.embed.register_forward_hook(lambda module, given, out: heard.append(out) or out.retain_grad())
    losses.states(core, b)[0, ~mine].sum().backward()
    assert heard[0].grad is not None
    assert not heard[0].grad[0, mine].any()
    assert heard[0].grad[0, ~mine].any()


# -- conversations ----------------------------------------------------------------------------------------------------


def spoken(labels: list[int]) -> list[list[int]]:
    """The runs of labels that are learnt."""
    found, now = list[list[int]](), list[int]()
    for x in [*labels, IGNORED]:
        if x != IGNORED:
            now.append(x)
        elif now:
            found, now = [*found, now], []
    return found


def check_answers() -> None:
    a, _ = ready("chat", "gpt2")
    t = a.model.tokenizer
    assert t is not None
    for n, talk in enumerate(TALKS):
        ids, labels = objectives.encode_talk(t, talk, n)
        turns = spoken(labels)
        answers = [m["content"] for m in talk if m["role"] == "assistant"]
        assert [t.decode(turn) for turn in turns] == answers
        assert all(turn[-1] == t.eos_id for turn in turns), "an answer is learnt to end"
        assert all(label in (IGNORED, following) for label, following in zip(labels, ids[1:], strict=False))


def test_only_what_the_assistant_says_is_learnt() -> None:
    check_answers()


def test_a_label_for_the_user_s_words_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = objectives.encode_talk
    monkeypatch.setattr(
        objectives, "encode_talk", lambda t, talk, n: (right(t, talk, n)[0], [*right(t, talk, n)[0][1:], 5])
    )
    with pytest.raises(AssertionError):
        check_answers()


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_template_of_its_own_is_followed_up_to_its_own_end_mark() -> None:
    marks = ("<|im_start|>", "<|im_end|>", "<unk>")
    t = vocabulary(["user assistant say good"] * 3, kind="bpe", size=300, specials=marks)
    t.config["chat_template"] = CHATML
    _, labels = objectives.encode_talk(t, TALKS[0], 1)
    assert [t.decode(turn, special=True) for turn in spoken(labels)] == ["good good<|im_end|>", "good<|im_end|>"]


def test_a_template_that_rewrites_earlier_turns_is_told() -> None:
    t = vocabulary(["user assistant say good"] * 3, kind="bpe", size=300, specials=("</s>", "<unk>"))
    t.config["chat_template"] = "{% for m in messages %}{% if loop.last %}last {% endif %}{{ m.content }}\n{% endfor %}"
    with pytest.raises(QkvError, match="conversation 3, message 2: the chat template writes this turn differently"):
        objectives.encode_talk(t, TALKS[0], 3)


def test_a_conversation_is_learnt_and_the_saved_model_answers(tmp_path: Path) -> None:
    run = run_of("chat", "gpt2", steps=300, lr=5e-3, tokens=400, schedule="cosine", evaluate_every=150)
    shape = dataclasses.replace(run.model, width=32, ffn=128)
    run = dataclasses.replace(run, splits=lambda: Splits(TALKS, TALKS), model=shape)
    done = recipes.train(run, out=tmp_path, device="cpu")
    assert done.outcome.metrics["exact_match"] == 1.0
    assert qkv.load(tmp_path, device="cpu").chat("say warm").text == "warm warm"


def test_conversations_are_answered_together_as_each_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = recipes.train(dataclasses.replace(run_of("chat", "gpt2"), splits=lambda: Splits(TALKS, TALKS))).model
    asked = [source for source, _ in objectives.split_last_answers(TALKS)]
    alone = [model.chat(source, max_new_tokens=5).text for source in asked]
    calls, real = list[int](), type(model).generate

    def generate(self: Any, prompts: Any, **options: Any) -> Any:
        calls.append(len(prompts))
        return real(self, prompts, **options)

    monkeypatch.setattr(type(model), "generate", generate)
    assert objectives.CHAT.answer(model, asked, Decoding(longest=5)) == alone
    assert calls == [len(asked)]


def test_what_is_longer_than_the_context_is_counted_and_told() -> None:
    long = [({"role": "user", "content": "good " * 60}, {"role": "assistant", "content": "bad"})]
    run = dataclasses.replace(run_of("chat", "gpt2"), splits=lambda: Splits(TALKS + long, TALKS))
    a = assemble.assemble(run, device="cpu")
    assert a.plan.notes == ("1 of 9 conversations are longer than the context of 48: their ends are left out",)
    assert sum(a.plan.make(k).tokens for k in a.plan.order(0)) == sum(
        sum(x != IGNORED for x in objectives.encode_talk(a.model.tokenizer, talk, 0)[1])
        for talk in TALKS  # type: ignore[arg-type]
    )


def answer(content: Any, **more: Any) -> str:
    """A line with a question and such an answer."""
    talk = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content, **more}]
    return json.dumps({"messages": talk})


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ('{"messages": [{"role": "user", "content": "x"}]}', r"t\.jsonl:2: no message has the role 'assistant'"),
        ('{"mesages": []}', r"t\.jsonl:2: no key 'messages'; did you mean 'mesages'"),
        ('{"messages": [{"content": "x"}]}', r"t\.jsonl:2: message 1 of 1: expected"),
        ("{", r"t\.jsonl:2: not JSON"),
        (answer([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "y"}}]),
         r"t\.jsonl:2: message 2 of 2: found a part of type 'image_url', expected"),
        (answer([{"type": "text"}]), r"t\.jsonl:2: message 2 of 2: found a part of type 'text', expected .*\"text\": "),
        (answer(["x"]), r"t\.jsonl:2: message 2 of 2: found a part of type 'str'"),
        (answer([]), r"t\.jsonl:2: message 2 of 2, of 'assistant', is empty; fix"),
        (answer(None, tool_calls=[{"function": {"name": "f"}}]),
         r"t\.jsonl:2: message 2 of 2, of 'assistant', is empty; its tool calls"),
        ('{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [1]}]}',
         r"t\.jsonl:2: message 2 of 2, of 'assistant', is empty"),
    ],
)  # fmt: skip
def test_a_bad_conversation_is_told_by_its_line(line: str, match: str, tmp_path: Path) -> None:
    good = json.dumps({"messages": TALKS[0]})
    (tmp_path / "t.jsonl").write_text(f"{good}\n{line}\n", encoding="utf-8")
    with pytest.raises(QkvError, match=match):
        list(talk_rows(tmp_path / "t.jsonl"))


def test_text_in_parts_is_learnt_as_one_text(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    (tmp_path / "t.jsonl").write_text(f"{answer(parts)}\n", encoding="utf-8")
    ((_, talk),) = talk_rows(tmp_path / "t.jsonl")
    assert talk == ({"role": "user", "content": "x"}, {"role": "assistant", "content": "one two"})
    assert objectives.split_last_answers([talk])[0][1] == "one two"


def test_a_toml_file_trains_on_conversations_and_on_labels(tmp_path: Path) -> None:
    lines = [json.dumps({"messages": talk}) for talk in TALKS]
    (tmp_path / "talks.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "rows.tsv").write_text("".join(f"{label}\t{text}\n" for text, label in ROWS), encoding="utf-8")
    small = '[model]\nfamily = "gpt2"\nwidth = 16\nlayers = 1\nheads = 2\nffn = 32\ncontext = 48\n'
    quick = '[tokenizer]\nsize = 300\n[training]\nsteps = 2\ntokens = 96\nprecision = "fp32"\n'
    talk, label = tmp_path / "talk.toml", tmp_path / "label.toml"
    talk.write_text(f'[data]\nmessages = "talks.jsonl"\nvalid = 2\n{small}{quick}', encoding="utf-8")
    data = '[data]\ntsv = "rows.tsv"\ncolumns = [1, 0]\nvalid_file = "rows.tsv"\noverlap = "keep"\n'
    label.write_text(f'objective = "labels"\nbase = "talk"\n{data}{quick}', encoding="utf-8")
    first = recipes.train(talk, out=tmp_path / "talk", device="cpu")
    assert first.model.tokenizer is not None
    assert "chat_template" in first.model.tokenizer.config
    then = recipes.train(label, out=tmp_path / "label", device="cpu")
    assert then.model.labels == ("down", "up")
    training = from_toml(label).training
    assert (training.metric, training.epochs, training.steps, training.tokens) == ("label_accuracy", 0, 2, 96)


# -- what a run takes for granted, and what it says -------------------------------------------------------------------


def test_smoothing_takes_its_share_from_a_text_s_label_too() -> None:
    a, batches = ready("labels", "bert")
    with torch.no_grad():
        for p in a.model.core.labels.parameters():
            p.mul_(100)
    plain, eased = (step_loss(a.model.core, batches[0], smoothing=s)[0].item() for s in (0.0, 0.2))
    count = len(batches[0].classes)  # type: ignore[arg-type]
    with torch.no_grad():
        chances = losses.text_logits(a.model.core, losses.states(a.model.core, batches[0]), batches[0]).log_softmax(-1)
    assert eased == pytest.approx(0.8 * plain - 0.2 * float(chances.mean(-1).sum()), rel=1e-5)
    assert abs(eased - plain) > 1e-3 * count


def test_choices_without_answers_are_told() -> None:
    splits = Splits(ROWS[:-6], ROWS[-6:])
    with pytest.raises(QkvError, match=r"expected a question and 2 answers with \|\|\| between"):
        assemble.assemble(dataclasses.replace(run_of("choice"), splits=lambda: splits), device="cpu")


def test_words_that_would_all_be_left_out_are_refused() -> None:
    with pytest.raises(QkvError, match=r"training.word_dropout: found 1.0, expected a share from 0 to below 1"):
        Settings(steps=1, word_dropout=1.0)


def told(a: assemble.Assembly, start: str) -> str:
    return next((str(note) for note in a.plan.notes if str(note).startswith(start)), "")


def test_muon_without_matrices_is_told(tmp_path: Path) -> None:
    recipes.train(run_of("text"), out=tmp_path / "pre", device="cpu")
    for rank, says in ((0, False), (2, True)):
        run = run_of("labels", base=str(tmp_path / "pre"), optimizer="muon", lora=Lora(rank=rank))
        a = assemble.assemble(run, device="cpu")
        assert bool(told(a, "training.optimizer=muon: no matrix of a layer is trained here")) == says


def test_settings_that_do_nothing_are_named() -> None:
    a, _ = ready("labels", "bert", moe_aux_loss=0.5, auxiliary=0.1, decay=0.7, floor=0.1, schedule="constant")
    assert told(a, "these settings have no effect in this run: ").partition(": ")[2].split(", ") == [
        "training.moe_aux_loss", "training.auxiliary", "training.floor", "training.decay"]  # fmt: skip
    other, _ = ready("labels", "bert", optimizer="adafactor", eps=1e-6, betas=(0.8, 0.9), moe_bias_lr=0.01)
    assert told(other, "these settings have no effect").endswith(": training.moe_bias_lr, training.betas, training.eps")
    run = dataclasses.replace(run_of("labels", lora=Lora(targets=("nosuch",))), watch=ProbeSettings(words=("a",)),
                              tokenizer=Vocabulary(kind="word", size=60, merges="nosuch"))
    idle = told(assemble.assemble(run, device="cpu"), "these settings have no effect in this run: ")
    assert idle.partition(": ")[2].split(", ") == ["tokenizer.merges", "training.lora.targets", "watch.words"]
    heeded, _ = ready("labels", "openai_gpt", auxiliary=0.1, decay=0.7, floor=0.1, schedule="wsd")
    assert not told(heeded, "no effect")


@pytest.mark.parametrize(
    ("data", "idle"),
    [(Data(text=("a.txt",), test=9), True), (Data(dataset="d", test=9), True), (Data(tsv=("a.tsv",), test=9), False)],
)
def test_a_number_of_test_rows_that_nothing_holds_out_is_named(data: Data, idle: bool) -> None:
    model = qkv.build(run_of("labels").model.spec(64))
    splits = Splits("a", "b") if data.text else Splits(ROWS[:-6], ROWS[-6:])
    objective = compatibility.OBJECTIVES["text" if data.text else "labels"]
    said = compatibility.note_idle_settings(dataclasses.replace(run_of("labels"), data=data), splits, objective, model)
    assert (said == ["these settings have no effect in this run: data.test"]) is idle


@pytest.mark.parametrize("name", recipes.names())
def test_no_recipe_has_settings_that_do_nothing(name: str) -> None:
    made = recipes.configure(name)
    objective = compatibility.OBJECTIVES[made.objective or compatibility.LEARNT_BY[made.model.family]]
    train: Any = "" if objective.data.startswith("plain text") else []
    model = qkv.build(made.model.spec(64))
    assert not compatibility.note_idle_settings(made, Splits(train, train), objective, model)


def test_a_second_column_of_few_texts_asks_whether_they_are_labels() -> None:
    rows = [(f"{a} {b} {n}", label) for n in range(10) for (a, label) in ROWS[:4] for b in GOOD]
    other = [(text, text) for text, _ in rows]
    for objective, pairs, says in [("", rows, True), ("", other, False), ("pairs", rows, False)]:
        run = run_of("chat", "marian")
        run = dataclasses.replace(run, objective=objective, splits=lambda p=pairs: Splits(p, p[:4]))
        assert bool(told(assemble.assemble(run, device="cpu"), "the second column has only 2")) is says


def test_what_is_trained_goes_by_the_objective_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in ROWS), encoding="utf-8")
    (tmp_path / "book.txt").write_text("a b c\n" * 40, encoding="utf-8")
    for name, objective, family in [
        ("rows.tsv", "labels", "bert"), ("rows.tsv", "prefixes", "prefix"), ("rows.tsv", "pairs", "marian"),
        ("book.txt", "spans", "t5"), ("book.txt", "denoise", "bart"), ("book.txt", "blanks", "glm_blank"),
        ("book.txt", "text", "gpt2"), ("book.txt", "documents", "gpt2"),
    ]:  # fmt: skip
        assert from_files([Path(name)], [f"objective={objective}"]).model.family == family
    assert from_files([Path("rows.tsv")], ["objective=labels", "model.family=gpt2"]).model.family == "gpt2"


def saved(objective: str, family: str, tmp_path: Path) -> Path:
    a, _ = ready(objective, family)
    a.model.save(tmp_path / family)
    return tmp_path / family


def test_a_base_says_what_is_learnt_of_which_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in ROWS), encoding="utf-8")
    bert, gpt2 = saved("masked", "bert", tmp_path), saved("text", "gpt2", tmp_path)
    t5, bart = saved("spans", "t5", tmp_path), saved("denoise", "bart", tmp_path)
    assert from_files([Path("rows.tsv")], [f"base={bert}"]).objective == "labels"  # few different second texts
    pairs = "".join(f"{a} {n}\t{b} {n}\n" for n, (a, b) in enumerate(ROWS))
    (tmp_path / "pairs.tsv").write_text(pairs, encoding="utf-8")
    assert from_files([Path("pairs.tsv")], [f"base={bert}"]).training.metric == "loss"
    assert from_files([Path("rows.tsv")], [f"base={bert}", "objective=labels"]).training.metric == "label_accuracy"
    for base, objective in ((t5, "spans"), (bart, "denoise")):
        a = assemble.assemble(dataclasses.replace(run_of("text", base=str(base)), objective=""), device="cpu")
        assert a.objective is compatibility.OBJECTIVES[objective]
    asked = assemble.assemble(dataclasses.replace(run_of("labels", base=str(gpt2)), objective=""), device="cpu")
    assert asked.objective is compatibility.OBJECTIVES["chat"]
    with pytest.raises(QkvError, match=r"for these and this base \(causal decoder\) there are: labels, similarity, "):
        assemble.assemble(dataclasses.replace(run_of("labels", base=str(gpt2)), objective="text"), device="cpu")


def test_a_context_beyond_that_of_the_base_is_told(tmp_path: Path) -> None:
    run = run_of("text", base=str(saved("text", "gpt2", tmp_path)))
    wider = dataclasses.replace(run, model=dataclasses.replace(run.model, context=96))
    note = told(assemble.assemble(wider, device="cpu"), "model.context=96: ")
    assert note.endswith("reads at most 48 tokens, so rows are limited to that")
    assert not told(assemble.assemble(run, device="cpu"), "model.context")
