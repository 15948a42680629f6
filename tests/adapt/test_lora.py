"""Adapters: nothing changes before the first step, they alone learn, and merged they say the same."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support import zoo
from torch import Tensor, nn

import qkv
from qkv import cli
from qkv.adapt import lora
from qkv.adapt.lora import Lora
from qkv.core.init import initialise
from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.training import checkpoint, recipes
from qkv.training.run import Run, Vocabulary
from qkv.training.settings import Settings
from qkv.training.shape import Shape
from qkv.training.splits import Splits

V = 40
FAMILIES = ("gpt2", "llama", "t5", "bert", "prefix", "glm_blank")


def core_of(family: str, seed: int = 0) -> Transformer:
    core = Transformer(Shape(family, width=16, layers=2, heads=2, ffn=64, dropout=0.0, context=32).spec(V))  # type: ignore[arg-type]
    initialise(core, seed)
    for i, p in enumerate(p for n, p in core.named_parameters() if n.endswith(".bias")):
        nn.init.normal_(p.data, std=0.1, generator=torch.Generator().manual_seed(i))  # 0 would hide one that is lost
    return core.double()


def logits(core: Transformer) -> Tensor:
    ids = torch.randint(0, V, (2, 9), generator=torch.Generator().manual_seed(1))
    model = qkv.Model(core)
    return model(source=ids, target=ids).logits if model.encoder_decoder else model(ids).logits


def drawn(core: Transformer, s: Lora) -> list[str]:
    """Adapters whose B is no longer 0."""
    names, g = lora.attach(core, s), torch.Generator().manual_seed(2)
    for layer in lora.find_adapters(core).values():
        nn.init.normal_(layer.b, std=3.0, generator=g)
    return names


@pytest.mark.parametrize("family", FAMILIES)
def test_before_the_first_step_nothing_changes_and_merged_says_the_same(family: str) -> None:
    core = core_of(family)
    plain = logits(core)
    names = lora.attach(core, Lora(3))
    assert len(names) == (4 if family != "t5" else 8)
    assert torch.equal(logits(core), plain)
    core = core_of(family)
    drawn(core, Lora(3, alpha=2.0))
    changed = logits(core)
    assert float((changed - plain).detach().abs().max()) > 1e-3
    assert lora.merge(core) == len(names)
    assert float((logits(core) - changed).detach().abs().max()) < 1e-12
    assert not lora.find_adapters(core)
    assert {type(m) for m in lora.find_linears(core).values()} == {nn.Linear}
    assert all(p.requires_grad for p in core.parameters())


def test_a_merged_weight_is_w_and_scale_b_a_to_the_rounding_of_fp32() -> None:
    core = core_of("llama").float()
    drawn(core, Lora(3, alpha=2.0))
    name, layer = next(iter(lora.find_adapters(core).items()))
    want = layer.weight.double() + 2 / 3 * layer.b.double() @ layer.a.double()
    lora.merge(core)
    got = core.get_submodule(name).weight
    assert float((got - want).detach().abs().max()) <= 2**-23 * float(want.detach().abs().max())


def test_a_bf16_weight_is_rounded_once() -> None:
    core = core_of("llama").bfloat16()
    drawn(core, Lora(3, alpha=2.0))
    name, layer = next(iter(lora.find_adapters(core).items()))
    want = (layer.weight.float() + layer.scale * layer.b.float() @ layer.a.float()).bfloat16()
    lora.merge(core)
    assert torch.equal(core.get_submodule(name).weight, want)


def test_a_is_drawn_as_peft_draws_it_from_the_seed() -> None:
    cores = [core_of("llama") for _ in range(3)]
    for core, seed in zip(cores, (0, 0, 1), strict=True):
        lora.attach(core, Lora(8, targets=("*",)), seed=seed)
    one, same, other = (torch.cat([m.a.detach().flatten() for m in lora.find_adapters(c).values()]) for c in cores)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    for layer in lora.find_adapters(cores[0]).values():
        bound = layer.in_features**-0.5
        assert 0.95 * bound < float(layer.a.detach().abs().max()) <= bound
        assert not layer.b.detach().any()


def test_a_merge_that_forgets_the_scale_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lora.merge

    def unscaled(core: nn.Module) -> int:
        for layer in lora.find_adapters(core).values():
            layer.scale = 1.0
        return right(core)

    monkeypatch.setattr(lora, "merge", unscaled)
    with pytest.raises(AssertionError):
        test_before_the_first_step_nothing_changes_and_merged_says_the_same("llama")


def test_globs_choose_by_path_with_or_without_its_beginning() -> None:
    core = core_of("t5")
    every = lora.find_linears(core)
    assert lora.match_targets(core, ["*.attn.q"]) == [n for n in every if n.endswith(".attn.q")]
    assert lora.match_targets(core, ["attn.q"]) == lora.match_targets(core, ["*.attn.q"])
    across = [f"decoder.layers.1.cross.{x}" for x in ("q", "k", "v", "out")]
    assert lora.match_targets(core, ["decoder.layers.1.cross.*"]) == across
    assert len(lora.match_targets(core, ["*"])) == len(every) == 2 * 6 + 2 * 10
    with pytest.raises(QkvError, match=r"'\*.attn.query' matches no layer.*attn\.q"):
        lora.match_targets(core, ["*.attn.query"])
    with pytest.raises(QkvError, match=r"lora.also: 'labels.wieght' matches no weight"):
        lora.attach(core, Lora(2, also=("labels.wieght",)))
    lora.attach(core, Lora(2))  # that a model has no labels is no mistake
    with pytest.raises(QkvError, match="found rank -1"):
        Lora(-1)


def test_routers_heads_and_embeddings_are_no_candidates() -> None:
    shape = Shape("prefix", width=16, layers=1, heads=2, ffn=8, experts=4, context=16)
    found = set(lora.find_linears(Transformer(shape.spec(V))))
    parts = ("attn.q", "attn.k", "attn.v", "attn.out", "moe.shared.gate", "moe.shared.up", "moe.shared.down")
    assert found == {f"decoder.layers.0.{part}" for part in parts}
    latents = {n.rpartition(".")[2] for n in lora.find_linears(zoo.made(zoo.mixed()))}
    assert "out" in latents
    assert not latents & {"kv_up", "router", "shared_gate", "embed", "head"}


# -- trained by settings ----------------------------------------------------------------------------------------------

WORDS = ("one", "two", "three", "four", "five", "six")
TEXT = " ".join(WORDS[(i * i + i // 5) % 6] for i in range(2000))


def run_of(base: str = "", rank: int = 0, **training: Any) -> Run:
    settings = Settings(steps=8, tokens=96, lr=1e-2, warmup=2, precision="fp32", evaluate_every=4, threads=1,
                        lora=Lora(rank, targets=("attn.*", "ffn.*")), **training)  # fmt: skip
    shape = Shape("gpt2", width=16, layers=2, heads=2, ffn=32, dropout=0.1, context=16)
    return Run("lora", lambda: Splits(TEXT, TEXT[:400]), shape, Vocabulary("word", 50), settings, base=base)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    recipes.train(run_of(), out=folder, device="cpu")
    return folder


def test_adapters_alone_learn_are_alone_saved_and_load_with_their_base(base: Path, tmp_path: Path) -> None:
    done = recipes.train(run_of(str(base), 3), out=tmp_path, device="cpu")
    old = dict(qkv.load(base, device="cpu").core.named_parameters())
    new = dict(done.model.core.named_parameters())
    assert all(torch.equal(old[n], new[n]) for n in old)
    learnt = {n for n in new if n not in old}
    assert learnt == {f"{name}.{x}" for name in lora.find_linears(done.model.core) for x in "ab"}
    assert all(new[n].abs().max() > 0 for n in learnt)
    stored = checkpoint.read(tmp_path / "train/last.safetensors")[0]
    assert {n.partition(":")[2] for n in stored} == learnt
    assert not (tmp_path / "model.safetensors").exists()
    loaded = qkv.load(tmp_path, device="cpu")
    ids = torch.randint(2, 8, (2, 10), generator=torch.Generator().manual_seed(0))
    gap = float((loaded(ids).logits - done.model(ids).logits).detach().abs().max())  # type: ignore[operator]
    assert gap < 1e-5
    assert not lora.find_adapters(loaded.core)
    whole = tmp_path / "whole"
    loaded.save(whole)
    assert torch.equal(qkv.load(whole, device="cpu")(ids).logits, loaded(ids).logits)  # type: ignore[arg-type]


def test_a_run_with_adapters_goes_on_bit_for_bit(base: Path, tmp_path: Path) -> None:
    whole = recipes.train(run_of(str(base), 3), out=tmp_path / "a", device="cpu")
    short = run_of(str(base), 3)
    short = dataclasses.replace(short, training=dataclasses.replace(short.training, steps=4))
    recipes.train(short, out=tmp_path / "b", device="cpu")
    again = recipes.train(run_of(str(base), 3), out=tmp_path / "b", device="cpu", resume=True)
    mine, theirs = (dict(done.model.core.named_parameters()) for done in (whole, again))
    assert all(torch.equal(mine[n], theirs[n]) for n in mine)


def test_another_base_under_the_same_adapters_is_refused(base: Path, tmp_path: Path) -> None:
    recipes.train(run_of(str(base), 3), out=tmp_path / "a", device="cpu")
    other = copy.deepcopy(qkv.load(base, device="cpu"))
    with torch.no_grad():
        other.core.embed.weight[0, 0] += 1
    kept = {p.name: p.read_bytes() for p in base.iterdir() if p.is_file()}
    try:
        other.save(base)
        with pytest.raises(QkvError, match=r"data\.frozen weights: was"):
            recipes.train(run_of(str(base), 3), out=tmp_path / "a", device="cpu", resume=True)
    finally:
        for name, data in kept.items():
            (base / name).write_bytes(data)


def test_another_rank_at_resume_and_a_base_that_is_gone_are_told(base: Path, tmp_path: Path) -> None:
    recipes.train(run_of(str(base), 2), out=tmp_path / "a", device="cpu")
    other = run_of(str(base), 3)
    wider = dataclasses.replace(other.training, lora=dataclasses.replace(other.training.lora, rank=7))
    with pytest.raises(QkvError, match=r"to another training\.lora: .*\.q\.a was \[\d+, \d+\], now \[7, "):
        recipes.train(dataclasses.replace(other, training=wider), out=tmp_path / "a", device="cpu", resume=True)
    config = tmp_path / "a" / "adapter_config.json"
    said = json.loads(config.read_text(encoding="utf-8")) | {"base_model_name_or_path": str(tmp_path / "gone")}
    config.write_text(json.dumps(said), encoding="utf-8")
    with pytest.raises(QkvError, match=r"adapter_config\.json: .* could not be loaded: .*gone"):
        qkv.load(tmp_path / "a", device="cpu")


def test_without_a_base_there_is_nothing_to_adapt() -> None:
    with pytest.raises(QkvError, match="an adapter needs a trained model; name it: base ="):
        recipes.train(run_of("", 3), device="cpu")


def test_labels_are_learnt_in_full_beside_adapters(base: Path, tmp_path: Path) -> None:
    rows = [(f"{a} {b}", "low" if a in WORDS[:3] else "high") for a in WORDS for b in WORDS]
    run = run_of(str(base), 3)
    settings = Settings(steps=120, optimizer="adamw", lr=2e-2, tokens=256, schedule="linear", warmup=5, clip=1.0,
                        precision="fp32", metric="label_accuracy", evaluate_every=40, lora=Lora(3))  # fmt: skip
    run = dataclasses.replace(run, splits=lambda: Splits(rows, rows, rows), objective="labels", training=settings)
    done = recipes.train(run, out=tmp_path, device="cpu")
    assert done.test["label_accuracy"] == 1.0
    loaded = qkv.load(tmp_path, device="cpu")
    assert [v.label for v in loaded.classify(["one six", "five two"])] == ["low", "high"]


def test_convert_writes_a_whole_model_that_says_the_same(base: Path, tmp_path: Path) -> None:
    recipes.train(run_of(str(base), 3), out=tmp_path / "adapter", device="cpu")
    words = ["convert", str(tmp_path / "adapter"), str(tmp_path / "merged"), "--device", "cpu", "--json"]
    assert cli.main(words) == 0
    ids = torch.randint(2, 8, (1, 10), generator=torch.Generator().manual_seed(0))
    one, two = (qkv.load(tmp_path / d, device="cpu")(ids).logits for d in ("adapter", "merged"))
    assert torch.equal(one, two)
    assert (tmp_path / "merged" / "model.safetensors").is_file()
