"""What a family without a peer must be able to do, on a small core of it; used by test_papers.py and test_prefix.py."""

import linecache
from types import ModuleType

import torch
import torch.nn.functional as F

from qkv import cost
from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions
from qkv.lens.trace import Trace
from qkv.specialize.core_text import print_core


def everything(family, core, ids, given, record, feed=None):
    """Writes alike with and without a cache, learns, is traced, is shown bit for bit, is counted; each is recorded."""

    def logits(of=core):
        return of(ids, given).logits

    with Trace(core, save=["*.pattern", "*.v", "*.z"]) as trace, torch.no_grad():
        logits()
    found = trace.check()
    assert found
    assert max(found.values()) <= 1e-4
    record(family, "traces", True)

    text, module = print_core(core.spec, mode="train"), ModuleType("folded")
    linecache.cache["folded.py"] = (len(text), None, text.splitlines(True), "folded.py")
    exec(compile(text, "folded.py", "exec"), vars(module))
    folded = module.Model()
    folded.load_state_dict(core.state_dict())
    with torch.no_grad():
        assert torch.equal(logits(folded), logits())
    record(family, "shows", True)

    assert cost.count(core.spec).parameters == sum(p.numel() for p in core.parameters())
    record(family, "counts", True)

    prompt, ways = ids[0].tolist() if feed is None else feed[0], []
    for cache in (True, False):
        how = DecodeOptions(12, start=feed[1] if feed else (), blanks=feed[2] if feed else (), cache=cache)
        ways.append(generate(core, [prompt], options=how)[0].tokens)
    assert ways[0] == ways[1]
    assert len(ways[0]) == 12
    record(family, "generates", True)

    labels = torch.randint(0, core.spec.vocabulary, ids.shape, generator=torch.Generator().manual_seed(2))
    before = F.cross_entropy(logits().flatten(0, 1), labels.flatten())
    before.backward()
    norm = sum(p.grad.pow(2).sum() for p in core.parameters() if p.grad is not None).sqrt()
    with torch.no_grad():
        for p in core.parameters():
            p -= 0.05 * p.grad / norm if p.grad is not None else 0.0
        assert F.cross_entropy(logits().flatten(0, 1), labels.flatten()) < before
    record(family, "trains", True)
