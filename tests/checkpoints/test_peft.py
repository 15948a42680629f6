"""PEFT's files: its key names and its config, both ways, held to transformers' own modules and PEFT's own formula."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import qkv
from qkv import hub
from qkv.adapt import lora
from qkv.adapt.lora import Lora
from qkv.checkpoints import peft
from qkv.errors import QkvError
from qkv.training.shape import Shape

V = 40
CLASSES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "t5": "T5ForConditionalGeneration",
           "bert": "BertForMaskedLM", "bart": "BartForConditionalGeneration",
           "openai_gpt": "OpenAIGPTLMHeadModel"}  # fmt: skip
TARGETS = {"qv": ("attn.q", "attn.v"), "all": ("*",), "some": ("layers.1.attn.k", "layers.0.ffn.up")}


def based(family: str, folder: Path) -> qkv.Model:
    model = hub.build(Shape(family, width=16, layers=2, heads=2, ffn=64, dropout=0.0, context=32).spec(V))  # type: ignore[arg-type]
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in model.core.parameters():
            p.add_(torch.randn(p.shape, generator=g) * 0.1)
    model.save(folder, family=family)
    return hub.load(folder, device="cpu", dtype="fp32")


def adapted(model: qkv.Model, base: Path, targets: tuple[str, ...], folder: Path) -> qkv.Model:
    lora.attach(model.core, Lora(3, alpha=5.0, targets=targets))
    g = torch.Generator().manual_seed(6)
    for layer in lora.find_adapters(model.core).values():
        nn.init.normal_(layer.b, std=0.3, generator=g)
    model.base = str(base)
    model.save(folder)
    return model


def theirs(family: str, base: Path, folder: Path) -> nn.Module:
    """transformers' model with each adapter added by PEFT's own formula, found by PEFT's own rules for names."""
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, CLASSES[family]).from_pretrained(base, attn_implementation="eager").eval()
    stated = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "adapter_model.safetensors")
    modules, used = dict(model.named_modules()), set()
    for name, module in modules.items():
        if not any(name == t or name.endswith(f".{t}") for t in stated["target_modules"]):
            continue
        keys = [f"base_model.model.{name}.lora_{side}.weight" for side in "AB"]
        a, b = (tensors[key] for key in keys)  # PEFT would draw a missing one anew
        used |= set(keys)

        def of(pattern: dict[str, Any], usual: Any, name: str = name) -> Any:
            return next((v for k, v in pattern.items() if re.match(rf"(.*\.)?({k})$", name)), usual)

        assert of(stated["rank_pattern"], stated["r"]) == len(a)
        delta = of(stated["alpha_pattern"], stated["lora_alpha"]) / len(a) * (b @ a)
        turned = type(module).__name__ == "Conv1D"
        assert turned == stated["fan_in_fan_out"] or type(module) is nn.Linear
        module.weight.data += delta.T if turned else delta
    assert used == set(tensors), "every tensor has a module"
    return model


def said(model: Any, ids: Tensor, both: bool) -> Tensor:
    with torch.no_grad():
        return (model(input_ids=ids, decoder_input_ids=ids) if both else model(ids)).logits


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("family", CLASSES)
def test_what_we_write_says_the_same_in_transformers_and_comes_back(family: str, targets: str, tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "adapter"
    model = adapted(based(family, base), base, TARGETS[targets], folder)
    ids = torch.randint(3, V, (2, 7), generator=torch.Generator().manual_seed(0))

    def ours(m: qkv.Model) -> Tensor:
        with torch.no_grad():
            found = m(source=ids, target=ids).logits if m.encoder_decoder else m(ids).logits
        assert found is not None
        return found

    plain, want = ours(hub.load(base, device="cpu")), ours(model)
    assert float((want - plain).abs().max()) > 0.05
    assert float((said(theirs(family, base, folder), ids, model.encoder_decoder) - want).abs().max()) < 1e-4
    assert float((ours(hub.load(folder, device="cpu")) - want).abs().max()) < 1e-4
    files = {p.name for p in folder.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files
    assert not files & {"config.json", "model.safetensors"}


def test_parts_of_one_fused_layer_keep_their_own_scales(tmp_path: Path) -> None:
    """GPT-2's c_attn holds q, k and v: adapters that count differently, and of other ranks, are one of theirs."""
    base, folder = tmp_path / "base", tmp_path / "adapter"
    model = based("gpt2", base)
    lora.attach(model.core, Lora(3, alpha=5.0, targets=("attn.q", "attn.v")))
    g = torch.Generator().manual_seed(6)
    for name, layer in lora.find_adapters(model.core).items():
        layer.b.data.normal_(0, 0.3, generator=g)
        layer.scale *= 4 if name.endswith(".v") else 1
    model.base = str(base)
    model.save(folder)
    again, merged = hub.load(folder, device="cpu"), model.core
    lora.merge(merged)
    for mine, theirs in zip(again.core.parameters(), merged.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


def test_a_file_that_adapts_nothing_is_told(tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "adapter"
    adapted(based("llama", base), base, TARGETS["qv"], folder)
    whole = {"base_model.model.model.norm.weight": torch.ones(16)}
    save_file(whole, folder / "adapter_model.safetensors")
    with pytest.raises(QkvError, match="no module of this model matches any of it"):
        hub.load(folder, device="cpu")


def test_an_adapter_as_peft_writes_it_is_read(tmp_path: Path) -> None:
    """GPT-2's c_attn with one A for q, k and v, as PEFT's documentation of the format has it."""
    base, folder, g = tmp_path / "base", tmp_path / "adapter", torch.Generator().manual_seed(0)
    model = based("gpt2", base)
    folder.mkdir()
    tensors = {}
    for i in range(2):
        name = f"base_model.model.transformer.h.{i}.attn.c_attn"
        tensors |= {f"{name}.lora_A.weight": torch.randn(4, 16, generator=g),
                    f"{name}.lora_B.weight": torch.randn(48, 4, generator=g)}  # fmt: skip
    save_file(tensors, folder / "adapter_model.safetensors")
    stated = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "../base", "r": 4,
              "lora_alpha": 8, "lora_dropout": 0.05, "bias": "none", "target_modules": ["c_attn"],
              "fan_in_fan_out": True, "inference_mode": True, "modules_to_save": None, "use_rslora": False}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(stated), encoding="utf-8")
    loaded = hub.load(folder, device="cpu")
    for i in range(2):
        a, b = (tensors[f"base_model.model.transformer.h.{i}.attn.c_attn.lora_{s}.weight"] for s in "AB")
        for part, x in zip(b.split(16), "qkv", strict=True):
            old, new = (getattr(m.core.decoder.layers[i].attn, x).weight for m in (model, loaded))
            assert torch.allclose(new, old + 2.0 * part @ a, atol=1e-5)
    stated |= {"use_rslora": True}
    (folder / "adapter_config.json").write_text(json.dumps(stated), encoding="utf-8")
    stabler = hub.load(folder, device="cpu")
    old, one, two = (m.core.decoder.layers[0].attn.q.weight for m in (model, loaded, stabler))
    assert torch.allclose((two - old), (one - old) * 2, atol=1e-4)


def test_a_b_that_is_turned_like_its_weight_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peft, "without_flip", lambda slot: slot)
    with pytest.raises((AssertionError, QkvError, RuntimeError)):
        test_what_we_write_says_the_same_in_transformers_and_comes_back("gpt2", "all", tmp_path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', expected 'LORA'"),
        ({"use_dora": True}, "not supported: use_dora"),
        ({"bias": "all"}, "not supported: bias"),
        ({"base_model_name_or_path": None}, "names no base_model_name_or_path"),
        ({"base_model_name_or_path": "../adapter"}, "itself an adapter of this one"),
        ({"lora_alpha": "8"}, "'lora_alpha' is '8', expected a number"),
        ({"alpha_pattern": [1]}, r"'alpha_pattern' is \[1\], expected an object"),
        ({"alpha_pattern": {"(": 3}}, "expected a regular expression"),
        ({"alpha_pattern": {"(.+)+!": 3}}, "expected no repeated group"),
    ],
)
def test_another_kind_of_adapter_is_told(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "adapter"
    adapted(based("llama", base), base, TARGETS["qv"], folder)
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(QkvError, match=match):
        hub.load(folder, device="cpu")


def test_an_adapter_of_another_model_is_told(tmp_path: Path) -> None:
    adapted(based("llama", tmp_path / "base"), tmp_path / "base", TARGETS["qv"], tmp_path / "adapter")
    based("gpt2", tmp_path / "base")
    for name in (p.name for p in (tmp_path / "base").glob("*.index.json")):
        (tmp_path / "base" / name).unlink()
    with pytest.raises(QkvError, match=r"no module of this model matches base_model\.model\.model\.layers\.0"):
        hub.load(tmp_path / "adapter", device="cpu")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
def test_an_adapter_that_is_not_finite_is_told(tmp_path: Path, bad: float) -> None:
    adapted(based("gpt2", tmp_path / "base"), tmp_path / "base", TARGETS["qv"], tmp_path / "a")
    file = tmp_path / "a" / peft.WEIGHTS
    tensors = load_file(file)
    next(tensors[name] for name in tensors if "lora_B" in name)[0, 0] = bad
    save_file(tensors, file)
    with pytest.raises(QkvError, match=r"lora_B\.weight holds NaN, infinite numbers"):
        hub.load(tmp_path / "a")
