"""What every family can do besides giving the right logits: write, learn, be traced, be shown, be counted."""

import linecache
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from support import oracles

from qkv import cost, hub
from qkv.adapt.onednn_linear import pack_weights
from qkv.checkpoints import model_dir
from qkv.core.step import Inputs
from qkv.specialize.core_text import print_core
from qkv.tasks.types import SpecialTokens, start_ids

pytest.importorskip("transformers")

FAMILIES = [f for f in sorted(model_dir.modules()) if oracles.draw(f, 0) is not None]
every = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture
def drawn(family, tmp_path):
    """transformers' model, ours of the same files, and a batch."""
    oracle = oracles.draw(family, 3)
    oracle.save_pretrained(tmp_path)
    oracle.set_attn_implementation("eager")
    return oracle, hub.load(tmp_path), oracles.batch(oracle, 3)


def ours(model, at):
    """Our logits on every position, those of padding too."""
    if "target" in at:
        return model(source=at["ids"], target=at["target"], padding=at["real"]).logits
    return model(at["ids"], padding=at["real"]).logits


@every
def test_greedy_tokens_are_transformers_own(family, drawn, record):
    oracle, model, at = drawn
    if not model.spec.decoder:
        pytest.skip("an encoder does not write")
    room = 200 if (model.spec.context or 999) >= 220 else 40
    prompt = at["ids"][0, :9].tolist()
    model.special = SpecialTokens(start=model.special.start)  # nothing ends it and nothing is forbidden
    written = model.generate(prompt, max_new_tokens=room).tokens
    assert len(written) == room
    with torch.no_grad():
        if "target" in at:
            ids = torch.tensor([[model.special.start, *written]])
            logits, first = oracle(input_ids=torch.tensor([prompt]), decoder_input_ids=ids).logits[0], 0
        else:
            logits, first = oracle(torch.tensor([[*prompt, *written]])).logits[0], len(prompt) - 1
    for i, token in enumerate(written):
        best = logits[first + i].topk(2)
        if token != best.indices[0].item():
            gap = (best.values[0] - best.values[1]).item()
            assert gap < 1e-4, f"token {i} of {room} differs where the two best are {gap:.1e} apart"
            break  # a near-tie: from here on the two texts may differ
    record(family, "generates", True)


@every
@pytest.mark.filterwarnings("ignore")  # transformers warns of its own habits
def test_a_release_writes_as_its_generation_config_says(family, tmp_path):
    """Start, forced first token, forbidden ones and several ends: as transformers' own generate."""
    oracle = oracles.draw(family, 6)
    if not oracle.can_generate() or oracle.config.model_type == "bert":
        pytest.skip("an encoder does not write")
    settings, at = oracle.generation_config, oracles.batch(oracle, 6)
    settings.update(eos_token_id=None, forced_bos_token_id=7 if family == "bart" else None)
    ids, how = at["ids"][:1], {"do_sample": False, "num_beams": 1, "max_new_tokens": 16}
    if family == "marian":
        settings.bad_words_ids = [[oracle.generate(ids, **how)[0, 1].item()]]
    settings.eos_token_id = [oracle.generate(ids, **how)[0, -6].item(), 3]  # so that it ends before its time
    oracle.save_pretrained(tmp_path)
    want, model = oracle.generate(ids, **how)[0].tolist(), hub.load(tmp_path)
    prompt = start_ids(model) if "target" in at else tuple(ids[0].tolist())
    found = model.generate(ids[0].tolist(), max_new_tokens=16)
    assert [*prompt, *found.tokens] == want
    assert found.finish_reason == "stop"
    model.save(tmp_path / "again")
    assert hub.load(tmp_path / "again").special == model.special


@every
def test_a_step_of_training_moves_every_weight_downhill(family, drawn, record):
    _, model, at = drawn
    labels = torch.randint(3, model.spec.vocabulary, at.get("target", at["ids"]).shape, generator=torch.Generator())
    before = None
    for _ in range(2):
        logits = ours(model, at)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        if before is None:
            before = loss.item()
            loss.backward()
            idle = [n for n, p in model.core.named_parameters() if p.grad is None]
            assert [n for n in idle if not n.startswith(("labels.", "segments"))] == []
            norm = sum(p.grad.pow(2).sum() for p in model.core.parameters() if p.grad is not None).sqrt()
            assert norm.isfinite()
            with torch.no_grad():
                for p in model.core.parameters():
                    if p.grad is not None:
                        p -= 0.05 * p.grad / norm
    assert loss.item() < before
    record(family, "trains", True)


@every
def test_the_trace_explains_what_ran(family, drawn, record):
    _, model, at = drawn
    with model.trace(save=["*.pattern", "*.v", "*.z"]) as trace, torch.no_grad():
        ours(model, at)
    found = trace.check()
    assert found
    assert max(found.values()) <= 1e-4
    record(family, "traces", True)


@every
def test_the_folded_text_computes_the_same(family, drawn, record):
    _, model, at = drawn
    text = print_core(model.spec, mode="train")
    module = ModuleType("folded")
    linecache.cache["folded.py"] = (len(text), None, text.splitlines(True), "folded.py")
    exec(compile(text, "folded.py", "exec"), vars(module))
    folded = module.Model()
    folded.load_state_dict(model.core.state_dict())
    pack_weights(folded)  # as `load` does with the core
    with torch.no_grad():
        both = []
        for core in (folded, model.core):
            ids, given = at["ids"], Inputs(padding_mask=at["real"])
            if "target" in at:
                memory = core.encode(ids, given)
                ids, given = at["target"], Inputs(memory=memory, source_padding_mask=at["real"])
            both.append(core(ids, given).logits)
    assert torch.equal(*both)
    record(family, "shows", True)


@every
def test_parameters_are_counted_as_transformers_has_them(family, drawn, record):
    oracle, model, _ = drawn
    theirs = {id(p): p for p in oracle.parameters()}
    fixed = sum(p.numel() for n, p in oracle.named_parameters() if not p.requires_grad and "embed_positions" in n)
    held = sum(b.numel() for n, b in oracle.named_buffers() if n == "final_logits_bias")  # theirs is a buffer
    assert cost.count(model.spec).parameters == sum(p.numel() for p in theirs.values()) - fixed + held
    record(family, "counts", True)
