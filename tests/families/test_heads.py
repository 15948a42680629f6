"""The heads beside the words: logits of labels, pairs and choices equal transformers', padded, with token types."""


import pytest
import torch
from support import oracles, oracles_bert

from qkv import hub
from qkv.checkpoints import name_table, storage
from qkv.cli import main
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.tasks import task_format
from qkv.tokenizers.vocabulary import train_vocabulary

transformers = pytest.importorskip("transformers")


HEADS = [("bert", "pairs"), ("bert", "texts"), ("roberta", "texts"), ("distilbert", "texts"),
         ("electra", "texts"), ("modernbert", "texts"),
         ("openai_gpt", "texts"), ("openai_gpt", "choices"), ("bart", "texts"), ("mbart", "texts")]  # fmt: skip
BARE = [("bert", "bare"), ("roberta", "bare"), ("distilbert", "bare"), ("electra", "bare"), ("modernbert", "bare"),
        ("electra", "verdicts"), ("openai_gpt", "bare"), ("bart", "bare")]


def batch(oracle, seed):
    """Ids of an unequal batch; each row ends in one eos (2), and has segments where the model tells them apart."""
    at = oracles.batch(oracle, seed)
    length = at["real"].sum(1)
    at["ids"][torch.arange(4), length - 1] = 2
    at["segments"] = torch.randint(0, 2, at["ids"].shape, generator=torch.Generator().manual_seed(seed))
    return at


def theirs(oracle, at):
    """transformers' logits over labels [B, labels]."""
    mask = at["real"].long()
    with torch.no_grad():
        kind = type(oracle).__name__
        if kind == "OpenAIGPTDoubleHeadsModel":
            return oracle(at["ids"], attention_mask=mask, mc_token_ids=mask.sum(1) - 1).mc_logits[:, None]
        types = {"token_type_ids": at["segments"]} if kind.startswith(("Bert", "Roberta", "Electra")) else {}
        out = oracle(at["ids"], attention_mask=mask, **types)
    return out.seq_relationship_logits if kind == "BertForPreTraining" else out.logits


def ours(core, at):
    """Our logits over labels [B, labels]; an encoder-decoder reads the text on both sides, shifted on the second."""
    ids, real = at["ids"], at["real"]
    with torch.no_grad():
        if core.spec.encoder and core.spec.decoder:
            memory = core.encode(ids, Inputs(padding_mask=real))
            ids = torch.cat([torch.full((len(ids), 1), 2), ids[:, :-1]], 1)
            return core.classify(ids, Inputs(padding_mask=real, memory=memory, source_padding_mask=real))
        stack = core.encoder if core.spec.encoder else core.decoder
        segments = at["segments"] if stack.spec.segments else None
        return core.classify(ids, Inputs(padding_mask=real, segments=segments))


@pytest.mark.parametrize(("family", "head"), HEADS)
@pytest.mark.parametrize("seed", [0, 1])
def test_label_logits_equal_transformers_and_go_back(family, head, seed, tmp_path):
    oracle = oracles_bert.draw(family, seed, head)
    oracle.save_pretrained(tmp_path / "theirs")
    model, at = hub.load(tmp_path / "theirs"), batch(oracle, seed)
    want, got = theirs(oracle, at), ours(model.core, at)
    assert want.shape == got.shape
    assert (got - want).abs().max() <= 3e-5 * max(1.0, want.std().item())
    model.save(tmp_path / "again")
    first, second = storage.open_tensors(tmp_path / "theirs"), storage.open_tensors(tmp_path / "again")
    assert set(first) == set(second)
    assert all(torch.equal(first[n](), second[n]()) for n in first)
    model.config = None  # as for a model that we built
    model.save(tmp_path / "ours")
    assert torch.equal(theirs(type(oracle).from_pretrained(tmp_path / "ours").eval(), at), want)
    exact = oracle.double()
    room = 1e-5 if family == "modernbert" else 1e-9  # transformers turns positions in fp32
    assert (ours(model.core.double(), at) - theirs(exact, at)).abs().max() <= room


@pytest.mark.parametrize(("family", "head"), HEADS)
def test_a_fault_in_a_head_shows(family, head, tmp_path):
    oracle = oracles_bert.draw(family, 0, head)
    oracle.save_pretrained(tmp_path)
    core, at = hub.load(tmp_path).core, batch(oracle, 0)
    other = {"first": "last", "last": "first", "mean": "first"}[core.spec.labels.token]
    object.__setattr__(core.labels.spec, "token", other)
    assert (ours(core, at) - theirs(oracle, at)).abs().max() > 1e-2


@pytest.mark.parametrize(("family", "head"), BARE)
def test_states_of_a_bare_model_equal_transformers(family, head, tmp_path):
    oracle = oracles_bert.draw(family, 0, head)
    oracle.save_pretrained(tmp_path)
    model, at = hub.load(tmp_path), batch(oracle, 0)
    with torch.no_grad():
        if "target" in at:
            got = model(source=at["ids"], target=at["target"], padding=at["real"]).hidden
            want = oracle(at["ids"], at["real"].long(), decoder_input_ids=at["target"]).last_hidden_state
        else:
            got = model(at["ids"], padding=at["real"]).hidden[at["real"]]
            want = oracle.base_model(at["ids"], at["real"].long()).last_hidden_state[at["real"]]
    assert (got - want).abs().max() <= 1e-5 * max(1.0, want.std().item())


def test_token_types_change_the_logits_of_masked_words(tmp_path):
    oracle = oracles_bert.draw("bert", 1)
    oracle.save_pretrained(tmp_path)
    core, rows = hub.load(tmp_path).core, [task_format.format_pair([5, 6, 7], [8, 9], cls=3, sep=4) for _ in range(2)]
    ids, segments = (torch.tensor(part) for part in zip(*rows, strict=True))
    with torch.no_grad():
        want = oracle(ids, token_type_ids=segments).logits
        got = core(ids, Inputs(segments=segments)).logits
        plain = core(ids).logits
    assert (got - want).abs().max() <= 3e-5 * want.std()
    assert (plain - want).abs().max() > 1e-2


def test_checkpoints_that_say_gamma_and_beta_load(tmp_path):
    oracle = oracles_bert.draw("bert", 0)
    oracle.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    new = {n: t() for n, t in storage.open_tensors(tmp_path).items()}
    old = {n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t.clone()
           for n, t in new.items()}  # fmt: skip
    extra = {"bert.pooler.dense.weight": torch.zeros(3), "cls.seq_relationship.bias": torch.zeros(2),
             "cls.predictions.decoder.weight": new["bert.embeddings.word_embeddings.weight"].clone(),
             "bert.embeddings.position_ids": torch.arange(64)[None]}  # fmt: skip
    path.unlink()
    storage.write_tensors(tmp_path, old | extra)
    at = oracles.batch(oracle, 0)
    with torch.no_grad():
        got = hub.load(tmp_path)(at["ids"], padding=at["real"]).logits[at["real"]]
    assert (got - oracles.logits(oracle, at)).abs().max() <= 1e-4


@pytest.mark.parametrize(
    ("family", "change", "said"),
    [
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert", {"architectures": ["BertForTokenClassification"]}, "expected one of BertForMaskedLM"),
        ("bert", {"add_cross_attention": True}, "add_cross_attention"),
        ("bart", {"normalize_before": True, "model_type": "bart"}, "normalize_before"),
        ("openai_gpt", {"summary_type": "mean", "architectures": ["OpenAIGPTDoubleHeadsModel"]}, "summary_type"),
        ("openai_gpt", {"summary_activation": "tanh", "architectures": ["OpenAIGPTDoubleHeadsModel"]}, "activation"),
    ],
)
def test_what_would_change_the_numbers_is_refused(family, change, said, tmp_path):
    oracles_bert.draw(family, 1).save_pretrained(tmp_path)
    config = storage.read_json(tmp_path / "config.json")
    (tmp_path / "config.json").unlink()
    storage.write_json(tmp_path / "config.json", config | change)
    with pytest.raises(QkvError, match=said):
        hub.load(tmp_path)


def test_dropout_falls_once_before_the_labels(tmp_path):
    oracle = oracles_bert.draw("bert", 0, "texts")
    oracle.save_pretrained(tmp_path)
    core, at, chances = hub.load(tmp_path).core, batch(oracle, 0), []
    core.classify(at["ids"], drop=lambda x, p: chances.append((x.ndim, p)) or x)
    assert [p for ndim, p in chances if ndim == 2] == [core.spec.labels.dropout]


@pytest.mark.parametrize(("family", "head"), [("bert", "texts"), ("openai_gpt", "texts"), ("bart", "texts")])
def test_classify_gives_transformers_own_probabilities(family, head, tmp_path):
    oracle = oracles_bert.draw(family, 2, head)
    oracle.save_pretrained(tmp_path)
    model, at = hub.load(tmp_path), batch(oracle, 2)
    rows = [ids[real].tolist() for ids, real in zip(at["ids"], at["real"], strict=True)]
    for row, verdict in zip(rows, model.classify(rows), strict=True):
        with torch.no_grad():
            want = oracle(torch.tensor([row])).logits[0].softmax(-1)
        assert list(verdict.probabilities.values()) == pytest.approx(want.tolist(), abs=1e-4)
        assert verdict.label == oracle.config.id2label[int(want.argmax())]


SPELLED = ("_start_", "_delimiter_", "_classify_")


@pytest.fixture
def marked(tmp_path):
    """transformers' GPT-1 with a head, saved beside a vocabulary that has the three tokens; and their words' ids."""

    def make(head):
        texts = ["the cat sat on a mat", "a dog ran to the park"]
        made = train_vocabulary(texts, kind="word", size=60, specials=("[UNK]", *SPELLED))
        oracle = oracles_bert.draw("openai_gpt", 4, head)
        assert len(made) <= oracle.config.vocab_size
        oracle.save_pretrained(tmp_path)
        made.save(tmp_path)
        ids = {word: made.encode(word, special=False) for word in ("the cat sat", "a dog ran", "on a mat")}
        return oracle, tmp_path, ids, [made.id(token) for token in SPELLED]

    return make


def scores(oracle, row):
    """What transformers gives for one row of ids: logits over labels, or the one logit of an answer."""
    at = torch.tensor([row])
    with torch.no_grad():
        out = oracle(at)
    return out.mc_logits.flatten() if hasattr(out, "mc_logits") else out.logits[0]


def test_one_text_and_a_pair_stand_between_start_delimiter_and_extract(marked):
    oracle, folder, ids, (start, delimiter, extract) = marked("texts")
    model, a, b = hub.load(folder), ids["the cat sat"], ids["on a mat"]
    single = scores(oracle, [start, *a, extract])
    entailed = scores(oracle, [start, *a, delimiter, *b, extract])
    alike = entailed + scores(oracle, [start, *b, delimiter, *a, extract])  # the states are added; there is no bias
    verdicts = [*model.classify(["the cat sat", ("the cat sat", "on a mat")])]
    verdicts += [model.classify(("the cat sat", "on a mat"), both=True)]
    for verdict, want in zip(verdicts, (single, entailed, alike), strict=True):
        assert list(verdict.probabilities.values()) == pytest.approx(want.softmax(-1).tolist(), abs=1e-4)
    assert (entailed.softmax(-1) - alike.softmax(-1)).abs().max() > 1e-2, "a poor test: both orders change nothing"
    turned = model.classify(("on a mat", "the cat sat"), both=True)
    assert turned.probabilities == pytest.approx(verdicts[2].probabilities, abs=1e-5)


def test_answers_are_compared_by_their_one_logit(marked, capsys):
    oracle, folder, ids, (start, delimiter, extract) = marked("choices")
    first, second, third = (ids[text] for text in ("the cat sat", "a dog ran", "on a mat"))
    rows = [[start, *first, delimiter, *answer, extract] for answer in (second, third)]
    want = torch.cat([scores(oracle, row) for row in rows])
    verdict = hub.load(folder).classify(("the cat sat", "a dog ran", "on a mat"))
    assert list(verdict.probabilities.values()) == pytest.approx(want.softmax(-1).tolist(), abs=1e-4)
    assert verdict.label == str(int(want.argmax()))
    line = "the cat sat\ta dog ran\ton a mat"
    assert main(["classify", str(folder), line]) == 0
    assert capsys.readouterr().out == f"{verdict.label}\t{verdict.probability:.4f}\t{line}\n"
    swapped = hub.load(folder).classify(("the cat sat", "on a mat", "a dog ran"))
    assert swapped.label != verdict.label


def test_texts_that_do_not_belong_together_are_refused(marked, capsys):
    _, folder, _, _ = marked("texts")
    model = hub.load(folder)
    with pytest.raises(QkvError, match="found 3 texts in one question, but this model does not compare answers"):
        model.classify(("the cat", "a dog", "a mat"))
    with pytest.raises(QkvError, match="both orders: expected a pair of texts, found 1"):
        model.classify("the cat", both=True)
    with pytest.raises(QkvError, match="given as texts"):
        model.classify(([5], [6]), both=True)
    assert main(["classify", str(folder), "the cat", "--both", "--lang", "en"]) == 2
    assert "expected a pair" in capsys.readouterr().err


def test_a_row_is_read_only_where_its_condition_holds():
    ours = {"head.weight": torch.zeros(2), "labels.out.weight": torch.zeros(2)}
    names = "labels.out a with:head\nlabels.out b without:head"
    assert [theirs for _, theirs, _ in name_table.read_table(names, ours)] == [("a",)]
    del ours["head.weight"]
    assert [theirs for _, theirs, _ in name_table.read_table(names, ours)] == [("b",)]
