"""The gradient of a logit is what small steps of the embeddings make of it."""


import pytest
import torch
from support import zoo

import qkv
from qkv.checkpoints import model_dir
from qkv.core.model import Transformer
from qkv.core.step import Inputs, active_tracer
from qkv.families import glm_blank
from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions
from qkv.lens import edit, gradient
from qkv.lens.trace import Trace

IDS, SOURCE = [5, 6, 7, 8], [9, 10, 11]


@torch.no_grad()
def logit(core: Transformer, token: int, change: edit.Edit | None = None, pos: int = -1) -> float:
    with Trace(core, edit=[change] if change else []):
        given, ids, source = Inputs(), torch.tensor([IDS]), torch.tensor([SOURCE])
        if core.spec.encoder and core.spec.decoder:
            given = Inputs(memory=core.encode(source))
        return float(core(ids, given).logits[0, pos, token])


@pytest.mark.parametrize("name", ["gqa", "seq2seq", "latent"])
def test_gradient_times_input_is_the_slope_along_each_embedding(name: str) -> None:
    core = zoo.made(zoo.ALL[name]()).double()
    both = name == "seq2seq"
    with torch.inference_mode(), Trace(core) as t:
        core(torch.tensor([IDS]), Inputs(source=torch.tensor([SOURCE]) if both else None))
    found = t.gradient(-1, 7)
    assert found.logit == pytest.approx(logit(core, 7))
    tap = "encoder.embed" if both else "embed"
    for pos in range(len(SOURCE if both else IDS)):
        up, down = (logit(core, 7, edit.scale(tap, 1 + h, pos=pos)) for h in (1e-5, -1e-5))
        assert float(found.times[pos]) == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-6)
    assert (found.size > 0).all()
    last = len(found.size) - 1
    slopes = [(logit(core, 7, edit.add(tap, h, pos=last)) - logit(core, 7, edit.add(tap, -h, pos=last))) / 2e-5
              for h in 1e-5 * torch.eye(core.spec.stack.width, dtype=torch.float64)]
    assert float(found.size[last]) == pytest.approx(float(torch.tensor(slopes).norm()), rel=1e-4)
    assert all(p.grad is None for p in core.parameters())
    assert active_tracer.get() is None


def test_a_trace_asks_for_its_own_text_and_later_words_have_no_say() -> None:
    core = zoo.made(zoo.gqa())
    with torch.inference_mode(), Trace(core) as t:
        core(torch.tensor([IDS]))
    found = t.gradient(1)
    assert found.token == int(torch.tensor([logit(core, i, pos=1) for i in range(97)]).argmax())
    assert (found.times[2:] == 0).all()
    assert (found.times[:2] != 0).all()


@pytest.mark.parametrize("name", ["demo-moe", "glm"])
def test_a_free_prefix_is_read_freely(name: str) -> None:
    """The logit of the second reading is the run's own, and words that stand later in the prefix have a say."""
    if name == "glm":
        torch.manual_seed(0)
        config = {"model_type": "glm"} | glm_blank.size(64, 3, 2, vocabulary=71, context=40)
        spec = model_dir.spec_from_config(config, "here")
        core = qkv.build(spec).core.eval()
        options, prompt = DecodeOptions(4, start=(6,), blanks=(5,)), [9, 11, 5, 14, 30]
    else:
        model = qkv.load(name, device="cpu", dtype="fp32")
        core, prompt = model.core, model.ids("我看完了那本书。")
        options = DecodeOptions(4, start=(model.special.start,))
    with torch.inference_mode(), Trace(core, save=["logits"]) as t:
        generate(core, [prompt], options=options)
    pos = t.start("logits") + 2
    token = int(t["logits"][0, 2].argmax())
    found = t.gradient(pos, token)
    assert found.logit == pytest.approx(float(t["logits"][0, 2, token]), abs=1e-4)
    early = t.gradient(1, token)
    assert (early.times[2 : len(prompt)] != 0).all()
    assert (early.times[len(prompt) + 1 :] == 0).all()


@torch.no_grad()
def test_each_row_of_a_batch_is_read_as_it_was() -> None:
    """Prompts of unequal length before a free prefix, and sources: a row has its own gradient, not the first one's."""
    model = qkv.load("demo-moe", device="cpu", dtype="fp32")
    prompts = [model.ids(text) for text in ("我看完了那本书。", "我爱喝茶。")]
    alone = []
    for group in ([prompts[1]], prompts):
        with torch.inference_mode(), Trace(model.core, save=["logits"]) as t:
            generate(model.core, group, options=DecodeOptions(3, start=(model.special.start,)))
        alone.append(gradient.rebuild_inputs(t.ran(), len(group) - 1).prefix_len)
    assert alone[0].tolist() == alone[1].tolist() == [len(prompts[1])]
    core, target, source = zoo.made(zoo.seq2seq()), torch.tensor([IDS, IDS]), torch.tensor([SOURCE, [12, 13, 14]])
    with torch.inference_mode(), Trace(core) as t:
        memory = core.encode(source)
        core(target, Inputs(memory=memory))
    with torch.inference_mode(), Trace(core) as single:
        core(target[1:], Inputs(source=source[1:]))
    assert t.gradient(-1, 7, row=1).logit == pytest.approx(single.gradient(-1, 7).logit, abs=1e-5)


def test_a_gradient_at_another_tap_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gradient.EmbeddingLeaf.__init__
    monkeypatch.setattr(gradient.EmbeddingLeaf, "__init__", lambda ear, name: right(ear, "layers.0.resid_mid"))
    with pytest.raises(AssertionError):
        test_gradient_times_input_is_the_slope_along_each_embedding("gqa")
