"""A sentence-transformers directory says how a text becomes a vector; what cannot be done as it says is an error."""

import json

import pytest
import torch
from safetensors.torch import save_file
from support import small

import qkv
from qkv.checkpoints import model_dir
from qkv.errors import QkvError
from qkv.training.assemble import add_labels
from qkv.training.run import Run
from qkv.training.shape import Shape
from qkv.training.splits import Splits

ROWS = [[5, 6, 7, 8, 9], [3], [11, 12, 13]]


def write(tmp_path, *, normalize: bool = True, module: str = "Pooling", **config):
    """An encoder whose directory pools as `config` says."""
    qkv.Model(small.made(small.encoder())).save(tmp_path)
    modules = [("", "Transformer"), ("1_Pooling", module), *[("2_Normalize", "Normalize")] * normalize]
    said = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(modules)]
    (tmp_path / "modules.json").write_text(json.dumps(said))
    (tmp_path / "1_Pooling").mkdir(exist_ok=True)
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return tmp_path


def flags(mode: str) -> dict[str, object]:
    """A pooling's config as it was written first: a flag for each mode."""
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
    return {"word_embedding_dimension": 32, **{f"pooling_mode_{m}": m == mode for m in modes}}


@pytest.mark.parametrize(("config", "pool"), [
    (flags("cls_token"), lambda x: x[0]), (flags("lasttoken"), lambda x: x[-1]),
    (flags("mean_tokens"), lambda x: x.mean(0)), (flags("max_tokens"), lambda x: x.amax(0)),
    ({"pooling_mode": "cls"}, lambda x: x[0]), (flags("mean_sqrt_len_tokens"), lambda x: x.sum(0) / len(x) ** 0.5),
    ({"pooling_mode": "weightedmean"}, lambda x: sum(x[i] * (i + 1) for i in range(len(x))) / sum(range(len(x) + 1))),
    ({**flags("mean_tokens"), "pooling_mode_cls_token": True}, lambda x: torch.cat([x[0], x.mean(0)])),
    ({"pooling_mode": ["mean", "max"]}, lambda x: torch.cat([x.mean(0), x.amax(0)])),
])  # fmt: skip
@pytest.mark.parametrize("normalize", [True, False])
def test_a_vector_is_pooled_as_the_directory_says(tmp_path, config, pool, normalize):
    made = qkv.load(write(tmp_path / "a", normalize=normalize, **config))
    made.save(tmp_path / "b")
    again = qkv.load(tmp_path / "b")
    for row, vector in zip(ROWS, made.embed(ROWS), strict=True):
        with torch.no_grad():
            expected = pool(made(torch.tensor([row])).hidden[0])
        expected = expected / expected.norm() if normalize else expected
        assert torch.allclose(vector, expected, atol=1e-5)
        assert torch.allclose(again.embed(row), vector, atol=1e-6)


@pytest.mark.parametrize(("changed", "said"), [
    ({"pooling_mode": "attention"}, "attention"), ({**flags("cls_token"), "pooling_mode_new": True}, "new"),
    (flags(""), "none"), ({**flags("cls_token"), "module": "Dense"}, "Dense"),
    ({**flags("cls_token"), "module": "WordWeights"}, "WordWeights"),
])  # fmt: skip
def test_a_pooling_that_is_unknown_is_an_error(tmp_path, changed, said):
    with pytest.raises(QkvError, match=said):
        qkv.load(write(tmp_path, **changed))


def test_the_prompt_that_a_directory_names_is_put_before_texts(tmp_path):
    path = write(tmp_path, **flags("mean_tokens"))
    plain = qkv.load("demo-bert")
    said = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (path / "config_sentence_transformers.json").write_text(json.dumps(said))
    pooling = qkv.load(path).pooling
    prompted = qkv.Model(plain.core, plain.tokenizer, plain.special, plain.config, None, pooling)
    assert torch.allclose(prompted.embed("a cat"), plain.embed("query: a cat"))


@pytest.mark.parametrize(("mode", "token"), [("cls_token", "first"), ("mean_tokens", "mean"), ("lasttoken", "last")])
def test_labels_are_read_from_the_states_that_the_base_pools(tmp_path, mode, token):
    begun = qkv.load(write(tmp_path, **flags(mode)))
    made = add_labels(begun, Run("r", lambda: Splits("", "")), 3, words=False)
    assert made.spec.labels.token == token
    assert made.pooling == begun.pooling
    asked = add_labels(begun, Run("r", lambda: Splits("", ""), model=Shape(pooling="first")), 3, words=False)
    assert asked.spec.labels.token == "first"


TEXTS = ["The cat sat on the mat.", "a dog", "今天天气很好，我们去公园。",
         "one two three four five six seven eight"]
BERT = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 96, "max_position_embeddings": 64}
DENSE = {"in_features": 64, "out_features": 24, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}


def publish(tmp_path, config, *, dense: bool = False, limits=None, prompts=None):
    """An encoder with the bundled one's tokenizer as sentence-transformers publishes one."""
    tokenizer, width = qkv.load("demo-bert").tokenizer, BERT["hidden_size"]
    spec = model_dir.spec_from_config({**BERT, "vocab_size": tokenizer.size}, "test")
    made = qkv.build(spec, tokenizer=tokenizer)
    with torch.no_grad():
        for p in made.core.parameters():
            p.mul_(3.0 if p.dim() > 1 else 1.0)
    made.save(tmp_path, family="bert")
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), *[("2_Dense", "Dense")] * dense,
             ("3_Normalize", "Normalize")]
    files = {"modules.json": [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
                              for i, (path, kind) in enumerate(kinds)],
             "1_Pooling/config.json": {"word_embedding_dimension": width, **config},
             "sentence_bert_config.json": limits or {}, "config_sentence_transformers.json": prompts or {}}
    files |= {"2_Dense/config.json": {**DENSE, "in_features": width}} if dense else {}
    for name, value in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(value))
    if dense:
        torch.manual_seed(0)
        save_file({"linear.weight": torch.randn(24, width), "linear.bias": torch.randn(24)},
                  tmp_path / "2_Dense" / "model.safetensors")
    return tmp_path


PROMPTS = {"prompts": {"query": "question: ", "passage": "text: "}, "default_prompt_name": None}
PUBLISHED = {
    "mean": ({"pooling_mode_mean_tokens": True}, {}),
    "two joined": ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, {}),
    "weighted": ({"pooling_mode": "weightedmean"}, {}),
    "last": ({"pooling_mode": "lasttoken"}, {}),
    "root": ({"pooling_mode": "mean_sqrt_len_tokens"}, {}),
    "dense": ({"pooling_mode": "mean"}, {"dense": True}),
    "cut": ({"pooling_mode": "mean"}, {"limits": {"max_seq_length": 6}}),
    "prompt": ({"pooling_mode": "mean"}, {"prompts": PROMPTS}),
    "prompt not pooled": ({"pooling_mode": "mean", "include_prompt": False}, {"prompts": PROMPTS}),
    "first behind a prompt": ({"pooling_mode": "cls", "include_prompt": False}, {"prompts": PROMPTS}),
    "weighted behind a prompt": ({"pooling_mode": "weightedmean", "include_prompt": False}, {"prompts": PROMPTS}),
}  # fmt: skip


@pytest.mark.parametrize("case", PUBLISHED)
@pytest.mark.filterwarnings("ignore")
def test_vectors_are_those_of_sentence_transformers(case, tmp_path):
    theirs = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    config, how = PUBLISHED[case]
    publish(tmp_path / "m", config, **how)
    oracle, ours = theirs.SentenceTransformer(str(tmp_path / "m"), device="cpu"), qkv.load(tmp_path / "m", device="cpu")
    ours.save(tmp_path / "again")
    for name in ("query", "passage") if "prompts" in how else (None,):
        want = torch.tensor(oracle.encode(TEXTS, prompt_name=name))
        assert torch.cosine_similarity(ours.embed(TEXTS, prompt=name), want).min() > 1 - 1e-6
        again = theirs.SentenceTransformer(str(tmp_path / "again"), device="cpu")  # what we save is theirs again
        assert torch.allclose(torch.tensor(again.encode(TEXTS, prompt_name=name)), want, atol=1e-6)


def test_a_prompt_is_named_or_an_error(tmp_path):
    model = qkv.load(publish(tmp_path / "a", {"pooling_mode": "mean"}, prompts=PROMPTS))
    plain = qkv.load(publish(tmp_path / "b", {"pooling_mode": "mean"}))
    assert torch.allclose(model.embed("a cat", prompt="document"), plain.embed("text: a cat"), atol=1e-6)
    assert torch.allclose(model.embed("a cat"), plain.embed("a cat"), atol=1e-6)
    for one, named in ((model, "query"), (plain, "none")):
        with pytest.raises(QkvError, match=named) as e:
            one.embed("a cat", prompt="qeury")
        assert e.value.code == "prompt-name"


def test_texts_are_written_small_where_the_directory_says_so(tmp_path):
    small, plain = (qkv.load(publish(tmp_path / str(lower), {"pooling_mode": "mean"}, limits={"do_lower_case": lower}))
                    for lower in (True, False))
    assert torch.equal(small.embed("The Cat"), plain.embed("the cat"))
    assert not torch.equal(plain.embed("The Cat"), plain.embed("the cat"))


@pytest.mark.parametrize("kind", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarity_is_the_one_that_the_directory_names(kind, tmp_path):
    model = qkv.load(publish(tmp_path, {"pooling_mode": "mean"}, dense=True, prompts={"similarity_fn_name": kind}))
    a, b = model.embed(TEXTS[:2]).double(), model.embed(TEXTS[1:]).double()
    by = {"cosine": lambda x, y: x @ y / x.norm() / y.norm(), "dot": lambda x, y: x @ y,
          "euclidean": lambda x, y: -(x - y).norm(), "manhattan": lambda x, y: -(x - y).abs().sum()}[kind]
    want = torch.tensor([[by(x, y) for y in b] for x in a])
    assert torch.allclose(model.similarity(TEXTS[:2], TEXTS[1:]).double(), want, atol=1e-5)
    assert torch.allclose(model.similarity(a.float(), b.float()).double(), want, atol=1e-5)


@pytest.mark.parametrize(("changed", "named"), [
    ({"activation_function": "my.Own"}, "Own"), ({"use_residual": True}, "use_residual"),
    ({"out_features": 25}, "linear.weight"), ({"bias": False}, "bias"),
])  # fmt: skip
def test_a_dense_layer_that_is_not_as_it_says_stops_the_load(changed, named, tmp_path):
    path = publish(tmp_path, {"pooling_mode": "mean"}, dense=True) / "2_Dense" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(QkvError, match=named):
        qkv.load(tmp_path)


def test_progress_is_told_batch_by_batch():
    told = []
    qkv.load("demo-bert").embed(["a cat " * 20] * 150, tell=lambda done, of: told.append((done, of)))
    assert told[-1] == (150, 150)
    assert len(told) > 1
    assert told == sorted(told)


def test_a_model_said_to_lie_elsewhere_is_not_read_from_here(tmp_path):
    path = publish(tmp_path, {"pooling_mode": "mean"}) / "modules.json"
    path.write_text(path.read_text().replace('"path": ""', '"path": "0_Transformer"', 1))
    with pytest.raises(QkvError, match="0_Transformer"):
        qkv.load(tmp_path)
