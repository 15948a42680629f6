"""Every family forward, decoding, searching and learning on a device that is not the host: nothing is made on the wrong
one, and the host reads at most once for each token. Fake tensors stand for the device (support/elsewhere.py).
"""

from dataclasses import replace

import pytest
import torch
from support.elsewhere import DEVICE, elsewhere, shorten

from qkv import hub
from qkv.checkpoints import model_dir
from qkv.core import masks
from qkv.core.dropout import make_dropout
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.data.collate import Batch
from qkv.generation.beam import Search, beam
from qkv.generation.engine import Engine, Settings, generate
from qkv.generation.sampler import Sampler
from qkv.generation.sequence import DecodeOptions
from qkv.sampling import Sampling
from qkv.spec import Spec
from qkv.training import optim, settings
from qkv.training.losses import step_loss

SPECS = {name: shorten(hub.spec_of(name)) for name in sorted(model_dir.modules())}
WRITERS = [name for name, spec in SPECS.items() if spec.decoder and spec.head]
KINDS = ("bart", "bloom", "deepseek", "gemma3", "glm_blank", "gpt2", "mixtral", "t5")  # of attention and positions
PROMPTS = [[1, 2, 3], [4, 5]]
TOKENS = 2
OPTIONS = DecodeOptions(TOKENS, start=(1,), blanks=(2, 4), eos=(9,), top_logprobs=2)


def routers(spec: Spec) -> int:
    """Layers whose experts the host picks: in each pass it reads which were chosen, and where."""
    return sum(bool(block.moe) for block in spec.stack.blocks)


def forward(core: Transformer) -> torch.Tensor:
    ids = torch.zeros(2, 7, dtype=torch.long, device=DEVICE)
    real = torch.ones(2, 7, dtype=torch.bool, device=DEVICE)
    if core.spec.encoder and core.spec.decoder:
        return core(ids, Inputs(source=ids, source_padding_mask=real), mode="prefill").logits
    given = Inputs(padding_mask=real, prefix_len=torch.full((2,), 3, device=DEVICE))
    return core.hidden(ids, given) if not core.spec.head else core(ids, given, mode="prefill").logits


@pytest.mark.parametrize("name", sorted({*SPECS} - {*WRITERS}))
def test_a_reader_stays_on_its_device_and_the_host_reads_nothing(name):
    with elsewhere(SPECS[name]) as (core, reads), torch.inference_mode():
        assert forward(core).device == DEVICE
        assert reads == []


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_stays_on_its_device_and_is_read_once_a_token(name):
    with elsewhere(SPECS[name]) as (core, reads):
        experts = routers(core.spec)
        found = generate(core, PROMPTS, options=OPTIONS)
        assert [len(row.tokens) for row in found] == [TOKENS] * 2
        assert reads.count("tolist") == TOKENS * (1 + experts)
        assert len(reads) <= TOKENS * (1 + 3 * experts)
        reads.clear()
        assert all(beam(core, PROMPTS, search=Search(2), options=replace(OPTIONS, top_logprobs=0)))
        assert len(reads) <= TOKENS * (1 + 3 * experts)


@pytest.mark.parametrize("name", WRITERS)
def test_a_training_step_stays_on_its_device_and_reads_nothing(name):
    with elsewhere(SPECS[name]) as (core, reads):
        ids = torch.zeros(2, 7, dtype=torch.long, device=DEVICE)
        both, free = core.spec.encoder is not None, torch.full((2,), 3, device=DEVICE)
        free = free if core.spec.architecture == "prefix decoder" else None
        batch = Batch(ids, ids, source=ids if both else None, prefix=free, blank=free, tokens=14)
        optimizer = optim.make_optimizer(core, settings.Settings())
        loss, _ = step_loss(core, batch, smoothing=0.1, drop=make_dropout(0, 0, 0, 0, device=DEVICE))
        loss.backward()
        optimizer.step()
        grads = [p.grad for p in core.parameters() if p.grad is not None]
        assert {x.device for x in (loss, *grads)} == {DEVICE}
        assert len(reads) <= 3 * routers(core.spec)


@pytest.mark.parametrize("name", KINDS)
def test_pages_stay_on_their_device(name):
    with elsewhere(SPECS[name]) as (core, reads):
        engine = Engine(core, Settings(64, 4))
        handles = [engine.submit(prompt, OPTIONS) for prompt in PROMPTS]
        steps = 0
        while engine.step():
            steps += 1
        assert [len(handle.result().tokens) for handle in handles] == [TOKENS] * 2
        assert len(reads) <= steps or routers(core.spec)


def test_drawing_is_read_once_a_token_too():
    with elsewhere(SPECS["gpt2"]) as (core, reads):
        generate(core, PROMPTS, options=OPTIONS, sampling=Sampling(0.8, top_k=20, top_p=0.9, min_p=0.1))
        assert reads == ["tolist"] * TOKENS


def test_a_mask_made_on_the_host_is_noticed(monkeypatch):
    right = masks.build_mask

    def wrong(rule, at):
        bias, causal = right(rule, at)
        return masks.AttentionBias(torch.zeros(7, 7) if bias is None else bias + torch.zeros(bias.shape), causal)

    monkeypatch.setattr("qkv.core.model.build_mask", wrong)
    with elsewhere(SPECS["gpt2"]) as (core, _), pytest.raises(RuntimeError):
        forward(core)


def test_a_second_read_is_counted(monkeypatch):
    right = Sampler.choose
    monkeypatch.setattr(Sampler, "choose", lambda self, x, rows: (x.sum().item(), right(self, x, rows))[1])
    with pytest.raises(AssertionError):
        test_a_writer_stays_on_its_device_and_is_read_once_a_token("gpt2")
