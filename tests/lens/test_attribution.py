"""The pushes sum to the logit, and each is what the real forward pass loses when that part alone is taken out."""

from collections.abc import Sequence

import pytest
import torch
from support import zoo
from torch import Tensor

from qkv.core.model import Transformer
from qkv.core.norm import Norm
from qkv.errors import QkvError
from qkv.generation.engine import generate
from qkv.generation.sequence import DecodeOptions
from qkv.lens import attribution, edit
from qkv.lens.trace import Trace

POS, ROW, IDS = 4, 1, zoo.words(2, 9)


class Frozen:
    """Norm.forward that notes its scale in the first run and uses it again in the next ones, in the same order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kept: list[Tensor] = []
        self.turn: int | None = None
        frozen = self

        def forward(norm: Norm, x: Tensor) -> Tensor:
            y = x if norm.spec.kind == "rms" else x - x.mean(-1, keepdim=True)
            if frozen.turn is None:
                frozen.kept.append((y.square().mean(-1, keepdim=True) + norm.spec.eps).rsqrt())
                scale = frozen.kept[-1]
            else:
                scale = frozen.kept[frozen.turn]
                frozen.turn += 1
            return y * scale * (norm.weight + norm.spec.offset) + (norm.bias if norm.spec.kind == "layer" else 0.0)

        monkeypatch.setattr(Norm, "forward", forward)


@torch.no_grad()
def logits(core: Transformer, changes: Sequence[edit.Edit] = ()) -> Tensor:
    with Trace(core, edit=list(changes)):
        return zoo.run(core, IDS)[ROW, POS].double()


@pytest.mark.parametrize("name", zoo.ALL)
@torch.no_grad()
def test_the_pushes_sum_to_the_logit_in_every_kind_of_model(name: str) -> None:
    core = zoo.made(zoo.ALL[name]())
    before = {n: p.clone() for n, p in core.state_dict().items()}
    with Trace(core, save=["parts"]) as t:
        said = zoo.run(core, IDS)[ROW, POS]
    for token, vs in ((None, None), (5, None), (5, 7)):
        found = t.parts(POS, token, vs=vs, row=ROW)
        real = float(said[found.token] - (said[vs] if vs is not None else 0.0))
        largest = max(abs(p.push) for p in found.parts)
        assert abs(sum(p.push for p in found.parts) - real) <= 1e-5 * largest
        assert abs(found.logit - real) <= 1e-5 * largest
        assert found.gap <= 1e-5 * largest
    assert t.parts(POS, row=ROW).token == int(said.argmax())
    assert sum(p.push for p in found.sublayers) == pytest.approx(sum(p.push for p in found.parts))
    assert all(torch.equal(p, before[n]) for n, p in core.state_dict().items())


@pytest.mark.parametrize(
    "name", ["seq2seq", "gqa", "learned", "parallel", "bare", "encoder", "carried", "stretched", "relative", "latent",
             "mixed"]
)
@torch.no_grad()
def test_each_push_is_what_the_model_loses_without_that_part_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, core = Frozen(monkeypatch), zoo.made(zoo.ALL[name]())
    with Trace(core, save=["parts", "*embed"]) as t:
        plain = zoo.run(core, IDS)[ROW, POS].double()
    dot = "decoder." if core.spec.encoder and core.spec.decoder else ""
    outs = [n for n in t.wanted if n.startswith(f"{dot}layers") and n.endswith((".z", ".ffn.out", ".moe.out"))]
    held = [edit.put(n, t[n]) for n in outs]
    found = t.parts(POS, 5, vs=7, row=ROW)

    def lost(change: edit.Edit) -> float:
        frozen.turn = 0
        now = logits(core, [*held, change])
        return float((plain[5] - plain[7]) - (now[5] - now[7]))

    layer = len(core.spec.stack.blocks) - 1
    attentions = [n.removesuffix(".z") for n in outs if n.endswith(".z")]
    for path in attentions:
        for head in (0, 1):
            push = found[f"{path}.head.{head}"]
            assert abs(lost(edit.ablate(f"{path}.z", heads=head)) - push) < 2e-4 * max(1.0, abs(push)), (path, head)
    for i in (0, layer):
        kind = "moe" if core.spec.stack.blocks[i].moe else "ffn"
        push = found[f"{dot}layers.{i}.{kind}"]
        assert abs(lost(edit.ablate(f"{dot}layers.{i}.{kind}.out")) - push) < 2e-4 * max(1.0, abs(push))
    if not core.spec.stack.embed_norm:
        push = found[f"{dot}embed"]
        assert abs(lost(edit.ablate(f"{dot}embed")) - push) < 2e-4 * max(1.0, abs(push))


@torch.no_grad()
def test_one_expert_and_one_neuron_push_what_their_own_words_push(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, core = Frozen(monkeypatch), zoo.made(zoo.mixed())
    with Trace(core, save=["parts"]) as t:
        plain = zoo.run(core, IDS)[ROW, POS].double()
    held = [edit.put(n, t[n]) for n in t.wanted if n.startswith("layers") and n.endswith((".z", "ffn.out", "moe.out"))]
    found = t.parts(POS, 5, row=ROW)
    moe = core.decoder.layers[1].moe
    one = [t[f"layers.1.moe.{n}"][ROW, POS] for n in ("norm", "index", "weight")]

    def lost(name: str, said: Tensor) -> float:
        frozen.turn = 0
        return float(plain[5] - logits(core, [*held, edit.add(name, -said, pos=POS)])[5])

    for e, w in zip(one[1].tolist(), one[2], strict=True):
        said = moe.down.weight[e] @ moe.act(moe.up.weight[e] @ one[0]) * w
        assert abs(lost("layers.1.moe.out", said) - found[f"layers.1.moe.expert.{e}"]) < 1e-4
    best = t.neurons(0, POS, 5, row=ROW, top=80)
    assert sum(p.push for p in best) == pytest.approx(found["layers.0.ffn"], rel=1e-5, abs=1e-6)
    assert [abs(p.push) for p in best] == sorted((abs(p.push) for p in best), reverse=True)
    number = int(best[0].name.rpartition(".")[2])
    said = core.decoder.layers[0].ffn.down.weight[:, number] * t["layers.0.ffn.act"][ROW, POS, number]
    assert abs(lost("layers.0.ffn.out", said) - best[0].push) < 1e-4
    with pytest.raises(QkvError, match=r"no layers\.1\.ffn"):
        t.neurons(1, POS, 5)


@torch.no_grad()
def test_wrong_books_do_not_balance(monkeypatch: pytest.MonkeyPatch) -> None:
    core = zoo.made(zoo.seq2seq())
    with Trace(core, save=["parts"]) as t:
        zoo.run(core, IDS)
    assert t.parts(POS, 5, row=ROW).gap < 1e-5
    right, norm = attribution.add_heads, attribution.Ledger.norm
    with monkeypatch.context() as patch:
        patch.setattr(attribution, "add_heads", lambda book, at, spot: right(book, at, lambda n: spot(n).flip(0)))
        assert t.parts(POS, 5, row=ROW).gap > 1e-2
    with monkeypatch.context() as patch:
        skip = lambda book, at, x: x if "ffn_sum" in getattr(at, "path", "") else norm(book, at, x)  # noqa: E731
        patch.setattr(attribution.Ledger, "norm", skip)
        assert t.parts(POS, 5, row=ROW).gap > 1e-2
    first = [abs(a.push - b.push) for a, b in zip(t.parts(POS, 5).parts, t.parts(POS, 5, row=1).parts, strict=True)]
    assert max(first) > 1e-2, "rows differ"


def test_a_written_word_and_a_silenced_head_balance_too() -> None:
    core = zoo.made(zoo.gqa())
    silent = edit.ablate("layers.1.attn.z", heads=2)
    with Trace(core, save=["parts", "logits"], edit=[silent]) as t:
        written = generate(core, [[1, 8, 9]], options=DecodeOptions(4))[0].tokens
    for pos, token in ((2, written[0]), (-1, written[-1])):
        found = t.parts(pos)
        assert found.token == token
        assert found.gap < 1e-4
        assert found["layers.1.attn.head.2"] == 0.0
    assert found.logit == pytest.approx(float(t["logits"][0, -1, token]), abs=1e-4)
    assert t.parts(0).pos == 0, "a guess of the prompt has parts as well"


def test_mistakes_are_named() -> None:
    core = zoo.made(zoo.gqa())
    with torch.no_grad(), Trace(core, save=["lens"]) as t:
        zoo.run(core, IDS)
    with pytest.raises(QkvError, match=r'save=\["parts"\]'):
        t.parts()
    with torch.inference_mode(), Trace(core, save=["parts"]) as t:
        zoo.run(core, IDS)
        assert t.parts().gap < 1e-4, "inside inference mode too"
    with pytest.raises(QkvError, match="position 9"):
        t.parts(9)
    with pytest.raises(QkvError, match="token 97"):
        t.parts(1, 97)
    with pytest.raises(QkvError, match="no tokenizer"):
        t.parts(1, "旧")
    with pytest.raises(QkvError, match="no part is called"):
        t.parts()["layers.9"]
