"""Every family on a CUDA device against itself on the host, in float64: logits, texts, gradients, pages, graphs.

Angles and the sums of the loss are float32 on either side, so logits and gradients are held to what float32 makes of
the same model on the host. Without a GPU all are skipped; `test_devices.py` then holds devices apart by fake tensors.
"""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from support import oracles
from support.rounding import EXACT, ROOM, distance

from qkv import hub
from qkv.core.model import Transformer
from qkv.core.step import Inputs
from qkv.data.collate import Batch
from qkv.generation.beam import Search, beam
from qkv.generation.decoder import Decoder
from qkv.generation.engine import Engine, Settings, generate
from qkv.generation.graphs import Replay, can_capture
from qkv.generation.sequence import DecodeOptions
from qkv.sampling import Sampling
from qkv.training.losses import step_loss

from .test_families import FAMILIES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
PROMPTS = [[5, 9, 11, 6], [7, 8], [3, 4, 8, 12, 13, 2, 30]]
OPTIONS = DecodeOptions(16, start=(1,), blanks=(7, 5, 3))
every = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture
def pair(request, tmp_path) -> tuple[Transformer, Transformer]:
    """The family's model on the host and on the device, float64."""
    oracles.draw(request.getfixturevalue("family"), 0).save_pretrained(tmp_path)
    host = hub.load(tmp_path, device="cpu").core.double()
    return host, deepcopy(host).to("cuda")


def hold(pair: tuple[Transformer, Transformer], run) -> None:
    """What a run gives on the device, as near to the host's as the host's own float32 is."""
    cores = (*pair, deepcopy(pair[0]).float())
    here, there, rough = (run(core, core.embed.weight.device) for core in cores)
    assert (here.device.type, there.device.type) == ("cpu", "cuda")
    assert distance(there.cpu(), here) <= ROOM * distance(rough, here)


def writes(core: Transformer) -> bool:
    return core.spec.decoder is not None and core.spec.head is not None


def inputs(core: Transformer, device: torch.device) -> tuple[torch.Tensor, Inputs]:
    ids = torch.tensor([[3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 0, 0]], device=device)
    real = torch.tensor([[True] * 6, [True] * 4 + [False] * 2], device=device)
    if core.spec.encoder and core.spec.decoder:
        return ids, Inputs(source=ids, source_padding_mask=real)
    return ids, Inputs(padding_mask=real)


@every
def test_logits_are_those_of_the_host(family, pair):
    def run(core, device):
        ids, given = inputs(core, device)
        with torch.no_grad():
            found = core(ids, given).logits if core.spec.head else core.hidden(ids, given)
        return found if given.padding_mask is None else found[given.padding_mask]

    hold(pair, run)


@every
def test_texts_are_those_of_the_host(family, pair):
    if not writes(pair[0]):
        pytest.skip("it writes no text")
    here, there = (generate(core, PROMPTS, options=OPTIONS) for core in pair)
    assert [row.tokens for row in here] == [row.tokens for row in there]
    assert torch.allclose(*(torch.tensor([row.logprobs for row in rows]) for rows in (here, there)), atol=1e-5)
    here, there = (beam(core, PROMPTS, search=Search(3), options=OPTIONS) for core in pair)
    assert [[text.tokens for text in row] for row in here] == [[text.tokens for text in row] for row in there]


@every
def test_pages_write_what_a_batch_writes(family, pair):
    if not writes(pair[0]):
        pytest.skip("it writes no text")
    engine = Engine(pair[1], Settings(1024, 4))
    handles = [engine.submit(prompt, OPTIONS) for prompt in PROMPTS]
    want = [generate(pair[0], [prompt], options=OPTIONS)[0].tokens for prompt in PROMPTS]
    assert [handle.result().tokens for handle in handles] == want


@every
def test_gradients_are_those_of_the_host(family, pair):
    if not writes(pair[0]):
        pytest.skip("its head is for labels")

    def run(core, device):
        ids, given = inputs(core, device)
        free = torch.full((2,), 3, device=device) if core.spec.architecture == "prefix decoder" else None
        batch = Batch(ids, ids.roll(1, 1), source=given.source, prefix=free, blank=free, tokens=12)
        loss, _ = step_loss(core, batch, smoothing=0.1)
        loss.backward()
        return torch.cat([p.grad.flatten() for p in core.parameters() if p.grad is not None])

    hold(pair, run)


@every
def test_a_captured_step_is_the_step(family, pair):
    core = pair[1]
    if not writes(core) or not can_capture(core):
        pytest.skip("its steps cannot be captured")
    plain, quick = Decoder(core, OPTIONS), Decoder(core, OPTIONS)
    plain.replay = None
    assert isinstance(quick.replay, Replay)
    with torch.inference_mode():
        tokens = plain.prefill(PROMPTS, 32).argmax(-1)
        quick.prefill(PROMPTS, 32)
        for n in range(24):
            if n == 12:  # a row leaves: another shape
                stay = torch.tensor([0, 2], device="cuda")
                plain.select_rows(stay, stay)
                quick.select_rows(stay, stay)
                tokens = tokens[stay]
            want, got = plain.decode(tokens), quick.decode(tokens)
            assert (want - got).abs().max() <= EXACT * want.std(), n
            assert (quick.replay.graph is not None) == (n % 12 > 2), n
            tokens = want.argmax(-1)


@pytest.mark.parametrize("family", ["llama", "bart"])
def test_a_captured_step_follows_beams_and_draws(family, pair):
    drawn = Sampling(0.9, top_k=20, top_p=0.95, seed=3)
    options = replace(OPTIONS, max_new_tokens=40)
    here, there = (generate(core, PROMPTS, options=options, sampling=drawn) for core in pair)
    assert [row.tokens for row in here] == [row.tokens for row in there]
    here, there = (beam(core, PROMPTS, search=Search(4), options=options) for core in pair)
    assert [[text.tokens for text in row] for row in here] == [[text.tokens for text in row] for row in there]
