"""Every family in the folder: logits as transformers', both ways, cached as uncached; a new file is tested at once."""

import json
import re
from pathlib import Path

import pytest
import torch
from support import oracles
from support.rounding import EXACT, ROOM, distance

from qkv import hub
from qkv.checkpoints import model_dir, storage
from qkv.core.cache import Static
from qkv.core.step import Inputs
from qkv.errors import QkvError
from qkv.families import Config
from qkv.model import Model

pytest.importorskip("transformers")

KNOWN = sorted(model_dir.modules())
FAMILIES = [f for f in KNOWN if oracles.draw(f, 0) is not None]  # the others: test_papers.py
# transformers computes these in the precision that it is given
IN_DOUBLE = ("gpt2", "bert", "roberta", "distilbert", "electra", "bart", "openai_gpt")
NUMBERS = [0, 1, 2, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(3, 20))]
every = pytest.mark.parametrize("family", FAMILIES)


def ours(model: Model, at: dict[str, torch.Tensor]) -> torch.Tensor:
    """Our logits on real positions: [N, V]."""
    with torch.no_grad():
        if "target" in at:
            return model(source=at["ids"], target=at["target"], padding=at["real"]).logits.flatten(0, 1)
        return model(at["ids"], padding=at["real"]).logits[at["real"]]


@pytest.fixture(params=[(f, n) for f in FAMILIES for n in (0,)], ids=lambda p: f"{p[0]}-{p[1]}")
def pair(request, tmp_path):
    oracle = oracles.draw(*request.param)
    oracle.save_pretrained(tmp_path / "theirs")
    return oracle, hub.load(tmp_path / "theirs")


@pytest.mark.parity
@every
@pytest.mark.parametrize("number", NUMBERS)
def test_logits_equal_transformers(family, number, tmp_path, record):
    oracle = oracles.draw(family, number)
    oracle.save_pretrained(tmp_path)
    at = oracles.batch(oracle, number)
    oracle.set_attn_implementation("eager")
    want = oracles.logits(oracle, at)
    got = ours(hub.load(tmp_path), at)
    off, bound = (got - want).abs().max().item(), ROOM * oracles.rounding(oracle, at)
    assert want.std() >= 1
    assert off <= bound
    record(family, "difference", off)
    record(family, "share_of_bound", off / bound)


@every
def test_logits_equal_transformers_in_double_precision(family, tmp_path, record):
    oracle = oracles.draw(family, 5)
    oracle.save_pretrained(tmp_path)
    oracle = oracles.in_double(oracle)
    oracle.set_attn_implementation("eager")
    at, model = oracles.batch(oracle, 5), hub.load(tmp_path)
    model.core.double()
    gap = (ours(model, at) - oracles.logits(oracle, at)).abs().max()
    # transformers casts to fp32 inside (rotary, sinusoids, RMSNorm, softmax): beyond fp32 there is nothing to compare
    assert gap <= (EXACT if family in IN_DOUBLE else 1e-5)
    record(family, "fp64", gap.item())


def wrong(model: Model, fault: str) -> None:
    """One small mistake in a model: a scale 5 % off, an epsilon, another activation, a bias, a window, a router."""
    stack = model.core.decoder if model.spec.decoder else model.core.encoder
    block = stack.layers[2]
    feed = None if block.spec.moe else block.ffn.spec
    if fault == "scale":
        for layer in stack.layers:
            layer.attn.scale *= 1.05
    elif fault == "eps":
        for m in model.core.modules():
            if type(m).__name__ in ("Norm", "RowNorm"):
                object.__setattr__(m.spec, "eps", 1e-2)
    elif fault == "activation":
        if block.spec.moe:
            block.moe.act = torch.relu
        else:
            object.__setattr__(feed, "activation", "gelu" if feed.activation not in ("gelu", "gelu_tanh") else "relu")
    elif fault == "mask":
        kind = "full" if stack.masks[0].kind != "full" else "causal"
        for m in (*stack.masks, *(layer.attn.spec.mask for layer in stack.layers)):
            object.__setattr__(m, "kind", kind if m.kind != "memory" else "memory")
    elif fault == "weight":
        with torch.no_grad():
            next(p for n, p in block.named_parameters() if "ffn" in n or "moe" in n).add_(1e-2)


@pytest.mark.parametrize("fault", ["scale", "eps", "activation", "mask", "weight"])
@every
def test_a_deliberate_fault_shows(family, fault, tmp_path):
    oracle = oracles.draw(family, 1)
    oracle.save_pretrained(tmp_path)
    oracle.set_attn_implementation("eager")
    model, at = hub.load(tmp_path), oracles.batch(oracle, 1)
    want, right = oracles.logits(oracle, at), ours(model, at)
    wrong(model, fault)
    off, usual = (ours(model, at) - want).abs().max(), (right - want).abs().max()
    assert off > max(1e-3, 30 * usual)


def test_saved_is_bit_equal_to_loaded(pair, tmp_path, record, request):
    model = pair[1]
    model.save(tmp_path / "again")
    first, second = storage.open_tensors(tmp_path / "theirs"), storage.open_tensors(tmp_path / "again")
    assert set(first) == set(second)
    assert all(torch.equal(first[n](), second[n]()) for n in first)
    record(request.node.callspec.params["pair"][0], "loads", True)


def test_saved_by_the_name_of_its_family_its_config_is_read_again(pair, tmp_path, request):
    oracle, model = pair
    model.save(tmp_path / "named", family=request.node.callspec.params["pair"][0])  # what the config said stays
    assert hub.load(tmp_path / "named").spec == model.spec
    again = type(oracle).from_pretrained(tmp_path / "named").eval()
    at = oracles.batch(oracle, 0)
    assert torch.equal(oracles.logits(again, at), oracles.logits(oracle, at))


def test_transformers_loads_what_we_save_and_agrees(pair, tmp_path, record, request):
    oracle, model = pair
    model.config = None  # as for a model that we built; a parent family may say the same, so this one is named
    model.save(tmp_path / "ours", family=request.node.callspec.params["pair"][0])
    again = type(oracle).from_pretrained(tmp_path / "ours").eval()
    at = oracles.batch(oracle, 0)
    assert torch.equal(oracles.logits(again, at), oracles.logits(oracle, at))
    record(request.node.callspec.params["pair"][0], "saves", True)


@pytest.mark.parametrize("family", KNOWN)
def test_config_round_trip(family):
    module = model_dir.modules()[family]
    for size, config in module.SIZES.items():
        spec = module.spec(Config(config, size))
        if hasattr(module, "config"):  # gpt4 is a spec alone
            assert module.spec(Config(module.config(spec), size)) == spec


def uncached_and_cached(model, at):
    """Logits of one pass, and of chunks with a cache that has to grow."""
    core, ids, given = model.core, at.get("target", at["ids"]), Inputs()
    with torch.no_grad():
        if "target" in at:
            memory = core.encode(at["ids"], Inputs(padding_mask=at["real"]))
            given = Inputs(memory=memory, source_padding_mask=at["real"])
        whole = core(ids, given).logits
        cache, parts = Static(len(core.decoder.layers), capacity=4), []
        for a, b in ((0, 3), (3, 4), (4, 5), (5, ids.shape[1])):
            parts.append(core(ids[:, a:b], given, cache, mode="prefill" if a == 0 else "decode").logits)
    return whole, torch.cat(parts, 1)


@pytest.mark.parity
@every
@pytest.mark.parametrize("number", [0, 1, 2])
def test_cached_and_chunked_equal_uncached(family, number, tmp_path, record):
    oracle = oracles.draw(family, number)
    oracle.save_pretrained(tmp_path)
    model, at = hub.load(tmp_path), oracles.batch(oracle, number)
    if not model.spec.decoder:
        pytest.skip("an encoder keeps no cache")
    off = distance(*uncached_and_cached(model, at))
    assert off <= ROOM * oracles.rounding(oracle, at)
    model.core.double()
    assert distance(*uncached_and_cached(model, at)) <= EXACT
    record(family, "cached", off)


def padded_and_alone(model, at):
    """The logits of each row in its padded batch, and of the row alone."""
    with torch.no_grad():
        for row, length in enumerate(at["real"].sum(1).tolist()):
            own = at["ids"][row : row + 1, :length]
            if "target" in at:
                both = model(source=at["ids"], target=at["target"], padding=at["real"]).logits[row]
                yield both, model(source=own, target=at["target"][row : row + 1]).logits[0]
            else:
                yield model(at["ids"], padding=at["real"]).logits[row, :length], model(own).logits[0]


@pytest.mark.parity
@every
def test_a_row_alone_equals_the_same_row_in_a_padded_batch(family, tmp_path):
    oracle = oracles.draw(family, 2)
    oracle.save_pretrained(tmp_path)
    model, at = hub.load(tmp_path), oracles.batch(oracle, 2)
    bound = ROOM * oracles.rounding(oracle, at)
    assert all(distance(both, alone) <= bound for both, alone in padded_and_alone(model, at))
    model.core.double()
    assert all(distance(both, alone) <= EXACT for both, alone in padded_and_alone(model, at))


def in_bfloat16(family, number, path):
    """How far bf16 is from fp32 on one drawn model, ours and transformers' own."""
    oracle = oracles.draw(family, number)
    oracle.save_pretrained(path)
    at = oracles.batch(oracle, number)
    exact, model = oracles.logits(oracle, at), hub.load(path, dtype="bf16")
    theirs = oracles.logits(oracle.to(torch.bfloat16), at).float()
    return torch.stack([(x.float() - exact).pow(2).mean().sqrt() for x in (ours(model, at), theirs)])


@every
def test_bfloat16_errs_no_more_than_transformers(family, tmp_path, record):
    mine, theirs = sum(in_bfloat16(family, number, tmp_path / str(number)) for number in range(3)).tolist()
    assert mine <= 1.25 * theirs
    record(family, "bf16", mine / theirs)


@every
@pytest.mark.nightly
def test_bfloat16_errs_no_more_over_twenty_models(family, tmp_path, record):
    found = torch.stack([in_bfloat16(family, number, tmp_path / str(number)) for number in range(20)])  # 20 2
    mine, theirs = found.sum(0).tolist()
    assert mine <= 1.25 * theirs
    record(family, "bf16 of 20", mine / theirs)
    record(family, "bf16 alone", (found[:, 0] / found[:, 1]).max().item())


def test_no_family_name_in_the_core():
    core = Path(model_dir.__file__).parents[1] / "core"
    text = "\n".join(p.read_text(encoding="utf-8") for p in [*core.glob("*.py"), core.parent / "spec.py"]).lower()
    assert not [name for name in KNOWN if re.search(rf"(?<![a-z]){name}(?![a-z])", text)]  # not the opt in optional


@every
def test_an_unknown_key_is_refused_and_a_falsy_one_passes(family, tmp_path):
    oracles.draw(family, 0).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"new_feature": False}))
    hub.load(tmp_path)
    path.write_text(json.dumps(config | {"new_feature": 3}))
    with pytest.raises(QkvError, match="new_feature = 3"):
        hub.load(tmp_path)
