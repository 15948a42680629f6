"""Prefix decoders against slow readings of GLM's paper (Du et al. 2022, section 2) and of ChatGLM-6B's release."""

import math

import pytest
import torch
from support import alone

from qkv import hub
from qkv.checkpoints import model_dir, storage
from qkv.core.cache import Static
from qkv.core.positions import resolve_positions
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.families import chatglm, glm_blank
from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions

MASK, START = 5, 6

CONFIG = {"model_type": "glm"} | glm_blank.size(96, 3, 3, vocabulary=71, context=40)
PREFIX = [9, 11, MASK, 14, 30, 22, 8]  # x1 x2 [M] x4 …: the blank stands third
FILLING = [START, 40, 41, 42, 43]


def drawn(high, **tables):
    """Tensors of three layers of width 96 and three heads under the releases' names, drawn strongly."""
    shapes = {"attention.query_key_value": (288, 96), "attention.dense": (96, 96), "mlp.dense_h_to_4h": (high, 96),
              "mlp.dense_4h_to_h": (96, high), "input_layernorm": (96,), "post_attention_layernorm": (96,)}  # fmt: skip
    shapes = {f"layers.{i}.{n}": shape for i in range(3) for n, shape in shapes.items()} | {"final_layernorm": (96,)}
    shapes = {f"transformer.{n}.{part}": shape if part == "weight" else shape[:1] for n, shape in shapes.items()
              for part in ("weight", "bias")}  # fmt: skip
    shapes |= {f"{name.replace('__', '.')}.weight": (rows, 96) for name, rows in tables.items()}
    return {n: torch.randn(s) * 0.15 + (1.0 if n.endswith("layernorm.weight") else 0.0) for n, s in shapes.items()}


def stored(tensors, config, where):
    """The tensors with the model that we load from them."""
    where.mkdir()
    storage.write_tensors(where, tensors)
    storage.write_json(where / "config.json", config)
    return tensors, hub.load(where)


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    tables = {f"transformer__{n}": 41 for n in ("position_embeddings", "block_position_embeddings")}
    return stored(drawn(4 * 96, word_embeddings=71, **tables), CONFIG, tmp_path / "glm")


@pytest.fixture
def chat(tmp_path):
    torch.manual_seed(1)
    small = {"vocab_size": 71, "hidden_size": 96, "num_layers": 3, "inner_hidden_size": 160, "num_attention_heads": 3}
    config = chatglm.SIZES["6b"] | small | {"model_type": "chatglm", "max_sequence_length": 40, "gmask_token_id": MASK}
    config |= {"tie_word_embeddings": False}
    return stored(drawn(160, transformer__word_embeddings=71, lm_head=71), config, tmp_path / "chat")


def parts(tensors):
    """The tensors in fp64, and the three small functions of the readings below."""
    t = {name: tensor.double() for name, tensor in tensors.items()}

    def norm(x, name):
        x = (x - x.mean()) / torch.sqrt(x.var(unbiased=False) + 1e-5)
        return x * t[f"transformer.{name}.weight"] + t[f"transformer.{name}.bias"]

    def linear(x, name):
        return t[f"transformer.{name}.weight"] @ x + t[f"transformer.{name}.bias"]

    def feed(x, at):
        up = linear(x, at + "mlp.dense_h_to_4h")
        return linear(0.5 * up * (1 + torch.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3))),
                      at + "mlp.dense_4h_to_h")  # fmt: skip

    return t, norm, linear, feed


def slow_chat(tensors, prefix, filling):
    """ChatGLM-6B, one position and one head at a time, in fp64."""
    t, norm, linear, feed = parts(tensors)
    length, place, total = len(prefix), prefix.index(MASK), len(prefix) + len(filling)
    first = [*range(length), *[place] * len(filling)]
    second = [0] * length + list(range(1, len(filling) + 1))

    def turned(x, n):  # 32 numbers: the first 16 by the position in the text, the others by the one in the blank
        x = x.clone()
        for base, position in ((0, first[n]), (16, second[n])):
            for j in range(8):
                angle = position / 10_000 ** (2 * j / 16)
                a, b = x[base + j].clone(), x[base + 8 + j].clone()
                x[base + j] = a * math.cos(angle) - b * math.sin(angle)
                x[base + 8 + j] = b * math.cos(angle) + a * math.sin(angle)
        return x

    alpha = math.sqrt(2 * 3)
    states = [t["transformer.word_embeddings.weight"][w] for w in [*prefix, *filling]]
    for i in range(3):
        at = f"layers.{i}."
        read = [norm(x, at + "input_layernorm") for x in states]
        # each head's q, k and v stand side by side
        fused = [linear(x, at + "attention.query_key_value").view(3, 3, 32) for x in read]
        for n in range(total):
            seen = range(length) if n < length else range(n + 1)
            said = []
            for head in range(3):
                q = turned(fused[n][head, 0], n)
                scores = torch.stack([q @ turned(fused[m][head, 1], m) / math.sqrt(32) for m in seen])
                said.append(sum(p * fused[m][head, 2] for p, m in zip(scores.softmax(0), seen, strict=True)))
            states[n] = alpha * read[n] + linear(torch.cat(said), at + "attention.dense")
        for n in range(total):
            x = norm(states[n], at + "post_attention_layernorm")
            states[n] = alpha * x + feed(x, at)
    return torch.stack([t["lm_head.weight"] @ norm(x, "final_layernorm") for x in states])


def noted(record, family, off, bound):
    """A difference within its bound, recorded."""
    assert off <= bound
    record(family, "difference", float(off))
    record(family, "share_of_bound", float(off / bound))


def test_chatglm_equals_its_slow_reading(chat, record):
    tensors, ours = chat
    want = slow_chat(tensors, PREFIX, FILLING)
    assert want.std() >= 1
    noted(record, "chatglm", (logits(ours.core, PREFIX, FILLING) - want).abs().max(), 1e-5 * want.std())


@pytest.mark.parametrize("name", ["chatglm", "glm_blank"])
def test_it_writes_learns_is_traced_shown_and_counted(name, chat, model, record):
    core = (chat if name == "chatglm" else model)[1].core
    given = Inputs(prefix_len=torch.tensor([len(PREFIX)]), blank_pos=torch.tensor([PREFIX.index(MASK)]))
    alone.everything(name, core, torch.tensor([[*PREFIX, *FILLING]]), given, record, (PREFIX, (START,), (MASK,)))


@pytest.mark.parametrize("fault", ["carry", "axis", "weave"])
def test_a_deliberate_fault_in_chatglm_shows(chat, fault, monkeypatch):
    tensors, ours = chat
    block = ours.core.decoder.layers[1]
    if fault == "carry":
        object.__setattr__(block.spec, "residual_scale", 2.4)
    elif fault == "axis":
        right = resolve_positions
        monkeypatch.setattr(
            "qkv.core.model.resolve_positions", lambda at, s, p, b: right(at, s, p, b)._replace(blank=at * 0)
        )
    else:
        q = block.attn.q.weight
        with torch.no_grad():
            q.copy_(q.unflatten(0, (3, 32)).flip(0).flatten(0, 1))
    assert (logits(ours.core, PREFIX, FILLING) - slow_chat(tensors, PREFIX, FILLING)).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["chatglm", "glm_blank"])
def test_each_token_with_the_cache_equals_the_text_read_at_once(name, chat, model, record):
    core, text = (chat if name == "chatglm" else model)[1].core, torch.tensor([[*PREFIX, *FILLING]])
    given = Inputs(prefix_len=torch.tensor([len(PREFIX)]), blank_pos=torch.tensor([PREFIX.index(MASK)]))
    with torch.no_grad():
        whole = core(text, given).logits[:, len(PREFIX) - 1 :]
        cache, parts = Static(len(core.decoder.layers), capacity=text.shape[1]), list[torch.Tensor]()
        for piece in text.split([len(PREFIX), *[1] * len(FILLING)], 1):
            mode = "decode" if cache.length else "prefill"
            parts.append(core(piece, given, cache, mode=mode).logits[:, -1:])
    gap = (torch.cat(parts, 1) - whole).abs().max().item()
    assert gap <= 1e-5 * max(1.0, whole.std().item())
    record(name, "cached", gap)


@pytest.mark.parametrize("cache", [True, False])
def test_chatglm_writes_as_its_slow_reading(chat, cache):
    tensors, ours = chat
    prompts = [PREFIX, [20, 21, MASK], [60, MASK, 61, 62, 63]]
    found = generate(ours.core, prompts, options=DecodeOptions(4, start=(START,), blanks=(MASK,), cache=cache))
    for prompt, row in zip(prompts, found, strict=True):
        want = slow_chat(tensors, prompt, [START, *row.tokens[:-1]])[len(prompt) :].log_softmax(-1)
        assert len(row.tokens) == 4
        for token, logprob, line in zip(row.tokens, row.logprobs, want, strict=True):
            assert abs(line[token] - logprob) <= 1e-4
            assert line.max() - line[token] < 1e-4


def test_chatglm_is_saved_as_it_was_read_and_counts_its_parameters(chat, tmp_path, record):
    tensors, ours = chat
    for kept in (ours.config, None):
        ours.config = kept
        ours.save(tmp_path / str(kept is None))
        again = storage.open_tensors(tmp_path / str(kept is None))
        assert set(again) == set(tensors)
        assert all(torch.equal(again[n](), tensors[n]) for n in tensors)
    assert hub.load(tmp_path / "True").spec == ours.spec
    with torch.device("meta"):
        core = model_dir.Transformer(model_dir.spec_from_config(model_dir.preset_config("chatglm:6b"), "6b"))
    assert sum(p.numel() for p in core.parameters()) == 6_173_286_400
    with pytest.raises(QkvError, match="only ChatGLM-6B"):
        model_dir.spec_from_config({"model_type": "chatglm", "multi_query_attention": True}, "config.json")
    record("chatglm", "loads", True)
    record("chatglm", "saves", True)


def slow(tensors, prefix, filling):
    """Part A is the corrupted text, part B the blank's tokens: one position and one head at a time, from the paper."""
    t, norm, linear, feed = parts(tensors)
    length, place = len(prefix), prefix.index(MASK)
    # "Part A tokens can attend to each other, but not to any tokens in B. Part B tokens can attend to Part A and
    # antecedents in B"
    sees = [range(length) if i < length else range(i + 1) for i in range(length + len(filling))]
    # "The first positional id represents the position in the corrupted text. For the masked spans, it is the position
    # of the corresponding [MASK] token. The second … for tokens in Part A … are 0. For tokens in Part B, they range
    # from 1 to the length of the span."
    first = [*range(length), *[place] * len(filling)]
    second = [0] * length + list(range(1, len(filling) + 1))

    words, one, two = (t["word_embeddings.weight"], t["transformer.position_embeddings.weight"],
                       t["transformer.block_position_embeddings.weight"])  # fmt: skip
    states = [words[w] + one[a] + two[b] for w, a, b in zip([*prefix, *filling], first, second, strict=True)]
    for i in range(3):
        at = f"layers.{i}."
        fused = [linear(norm(x, at + "input_layernorm"), at + "attention.query_key_value") for x in states]
        q, k, v = ([f.chunk(3)[n].unflatten(0, (3, 32)) for f in fused] for n in range(3))
        for n in range(len(states)):
            said = []
            for head in range(3):
                scores = torch.stack([q[n][head] @ k[m][head] / math.sqrt(32) for m in sees[n]])
                said.append(sum(p * v[m][head] for p, m in zip(scores.softmax(0), sees[n], strict=True)))
            states[n] = states[n] + linear(torch.cat(said), at + "attention.dense")
        for n, x in enumerate(states):
            states[n] = x + feed(norm(x, at + "post_attention_layernorm"), at)
    return torch.stack([words @ norm(x, "final_layernorm") for x in states])


def logits(core, prefix, filling, **more):
    """Ours for one row."""
    ids = torch.tensor([[*prefix, *filling]])
    given = Inputs(prefix_len=torch.tensor([len(prefix)]), blank_pos=torch.tensor([prefix.index(MASK)]), **more)
    with torch.no_grad():
        return core(ids, given).logits[0]


def test_logits_equal_the_paper_read_slowly(model, record):
    tensors, ours = model
    want = slow(tensors, PREFIX, FILLING)
    assert want.std() >= 1
    noted(record, "glm_blank", (logits(ours.core, PREFIX, FILLING) - want).abs().max(), 1e-5 * want.std())
    gap = (logits(ours.core.double(), PREFIX, FILLING) - want).abs().max()
    assert gap <= 1e-9
    record("glm_blank", "fp64", float(gap))


@pytest.mark.parametrize("fault", ["blank", "prefix", "swapped"])
def test_a_deliberate_fault_shows(model, fault):
    tensors, ours = model
    ids, core = torch.tensor([[*PREFIX, *FILLING]]), ours.core
    length, place = (7, 3) if fault == "blank" else (6, 2) if fault == "prefix" else (7, 2)
    if fault == "swapped":
        core.decoder.positions, core.decoder.blanks = core.decoder.blanks, core.decoder.positions
    with torch.no_grad():
        given = Inputs(prefix_len=torch.tensor([length]), blank_pos=torch.tensor([place]))
        got = core(ids, given).logits[0]
    assert (got - slow(tensors, PREFIX, FILLING)).abs().max() > 1e-2


def test_the_prefix_sees_ahead_and_what_is_written_does_not(model):
    core = model[1].core
    base = logits(core, PREFIX, FILLING)
    ahead = logits(core, [*PREFIX[:-1], 33], FILLING)  # position 6 changes: positions i < 6 of the prefix hear of it
    assert ((ahead - base)[:6].abs().amax(1) > 1e-3).all()
    later = logits(core, PREFIX, [*FILLING[:-2], 55, 56])  # positions 10 and 11 change: nobody before them hears
    assert torch.equal(later[:10], base[:10])
    assert ((later - base)[10:].abs().amax(1) > 1e-3).all()


def test_cached_in_chunks_equals_uncached(model):
    core, whole = model[1].core, logits(model[1].core, PREFIX, FILLING)
    ids, cache, parts = torch.tensor([[*PREFIX, *FILLING]]), Static(3, capacity=4), []
    given = Inputs(prefix_len=torch.tensor([7]), blank_pos=torch.tensor([2]))
    with torch.no_grad():
        for a, b in ((0, 8), (8, 9), (9, 12)):
            parts.append(core(ids[:, a:b], given, cache, mode="decode" if a else "prefill").logits[0])
    assert (torch.cat(parts) - whole).abs().max() <= 1e-5 * whole.std()


@pytest.mark.parametrize("cache", [True, False])
def test_writing_into_a_blank_follows_the_slow_reading(model, cache):
    tensors, ours = model
    prompts = [PREFIX, [20, MASK, 21], [MASK, 60, 61, 62, 63, MASK, 64, 65, 66]]
    found = generate(ours.core, prompts, options=DecodeOptions(6, start=(START,), blanks=(4, MASK), cache=cache))
    for prompt, row in zip(prompts, found, strict=True):
        written = [START]
        for token, logprob in zip(row.tokens, row.logprobs, strict=True):
            want = slow(tensors, prompt, written)[-1].log_softmax(-1)
            assert abs(want[token] - logprob) <= 1e-4
            best = want.topk(2)
            assert token == best.indices[0] or best.values[0] - best.values[1] < 1e-4
            written.append(token)
        assert len(row.tokens) == 6


def test_a_prompt_without_a_blank_and_one_too_long_are_named(model):
    core, options = model[1].core, DecodeOptions(2, start=(START,), blanks=(MASK,))
    with pytest.raises(QkvError, match="prompt 1: it contains no blank"):
        generate(core, [PREFIX, [1, 2]], options=options)
    with pytest.raises(QkvError, match="the context holds 41"):
        generate(core, [[MASK] * 41], options=options)


def test_saved_under_the_release_names_and_read_again(model, tmp_path, record):
    tensors, ours = model
    ours.save(tmp_path / "again")
    again = storage.open_tensors(tmp_path / "again")
    assert set(again) == set(tensors)
    assert all(torch.equal(again[n](), tensors[n]) for n in tensors)
    ours.config = None
    ours.save(tmp_path / "built")
    built = hub.load(tmp_path / "built")
    assert built.spec == ours.spec
    assert torch.equal(logits(built.core, PREFIX, FILLING), logits(ours.core, PREFIX, FILLING))
    record("glm_blank", "loads", True)
    record("glm_blank", "saves", True)


def test_one_key_tells_it_from_the_later_family_of_the_same_type():
    assert model_dir.family_of_config(CONFIG, "config.json") is glm_blank
    assert model_dir.family_of_config({"model_type": "glm"}, "config.json") is model_dir.modules()["glm"]
    with pytest.raises(QkvError, match="did you mean 'glm'"):
        model_dir.family_of_config({"model_type": "glm+"}, "config.json")


RELEASED = {  # what a released config holds beside the shape
    "architectures": ["GLMModel"], "attention_dropout_prob": 0.1, "attention_scale": 1.0,
    "auto_map": {"AutoModel": "x"},
    "checkpoint_activations": False, "checkpoint_num_layers": 1, "embedding_dropout_prob": 0.1,
    "initializer_range": 0.02, "output_dropout_prob": 0.1, "output_predict": True, "parallel_output": True,
    "pool_token": "cls", "relative_encoding": False, "spell_func": "lstm", "spell_length": None,
}  # fmt: skip


def test_a_released_config_is_read_and_other_ways_of_positions_are_refused():
    spec = model_dir.spec_from_config(CONFIG, "config.json")
    assert model_dir.spec_from_config({**CONFIG, **RELEASED}, "config.json") == spec
    with pytest.raises(QkvError, match="relative_encoding"):
        model_dir.spec_from_config({**CONFIG, "relative_encoding": True}, "config.json")
    with pytest.raises(QkvError, match="block_position_encoding"):
        model_dir.spec_from_config({**CONFIG, "block_position_encoding": False}, "config.json")


@pytest.mark.parametrize(("name", "billions"), [
    ("10b", 9.88), ("10b-chinese", 9.88), ("2b", 1.92), ("335m", 0.335), ("110m", 0.109),
])  # fmt: skip
def test_sizes_have_about_the_published_parameters(name, billions):
    config = model_dir.preset_config(f"glm_blank:{name}")
    with torch.device("meta"):
        core = model_dir.Transformer(model_dir.spec_from_config(config, name))
    assert sum(p.numel() for p in core.parameters()) / 1e9 == pytest.approx(billions, rel=0.005)
