"""Files of a model directory: every way in which one can be broken is named, and a failed save loses nothing."""

import errno
import json
import os
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from qkv import files, hub
from qkv.checkpoints import model_dir, storage
from qkv.errors import QkvError
from qkv.files import replace_dir
from qkv.spec import (
    Attention,
    Block,
    Dense,
    Ffn,
    Head,
    Labels,
    Mask,
    Norm,
    Rotary,
    Spec,
    Stack,
    Table,
    as_json,
    from_json,
)
from qkv.training.assemble import label_config


def tiny(vocabulary: int = 61) -> Spec:
    block = Block(
        Attention(4, 2, 32, Mask("causal"), rotary=Rotary(32)), Ffn(96, "silu", gated=True), norm_in=Norm("rms", 1e-6)
    )
    return Spec(vocabulary, Stack(128, (block,) * 3, final_norm=Norm("rms", 1e-6), context=64), head=Head("untied"))


@pytest.fixture
def saved(tmp_path):
    model = hub.build(tiny())
    model.save(tmp_path / "m")
    return model, tmp_path / "m"


def edit(path, **changes):
    value = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in {**value, **changes}.items() if v is not ...}))


def test_a_saved_model_loads_equal(saved):
    model, path = saved
    again = hub.load(path)
    assert again.spec == model.spec
    assert all(torch.equal(a, b) for a, b in zip(model.core.parameters(), again.core.parameters(), strict=True))


def test_others_may_read_what_we_write(saved):
    path = saved[1]
    assert (path / "model.safetensors").stat().st_mode == (path / "config.json").stat().st_mode


def test_a_spec_that_no_family_can_say_is_saved_as_our_own(tmp_path):
    block = Block(Attention(2, 2, 32, Mask("full")), Ffn(64, "relu"), norm_out=Norm("layer"), residual="none")
    spec = Spec(31, encoder=Stack(64, (block, block), Table("sinusoid", 16)), head=Head("tied", bias=True))
    model = hub.build(spec)
    model.save(tmp_path / "m")
    assert json.loads((tmp_path / "m/config.json").read_text())["model_type"] == "qkv"
    again = hub.load(tmp_path / "m")
    ids = torch.arange(7)[None]
    assert again.spec == spec
    assert torch.equal(again(ids).logits, model(ids).logits)
    with pytest.raises(QkvError, match="cannot save as llama"):
        model.save(tmp_path / "n", family="llama")
    assert not (tmp_path / "n").exists()


def test_a_family_that_cannot_say_the_spec_names_the_field(tmp_path):
    import dataclasses

    spec = tiny()
    block = dataclasses.replace(spec.decoder.blocks[0], dropout=0.5)
    spec = dataclasses.replace(spec, decoder=dataclasses.replace(spec.decoder, blocks=(block,) * 3))
    with pytest.raises(QkvError, match=r"blocks\[0\].dropout is 0.5"):
        hub.build(spec).save(tmp_path / "m", family="llama")


def test_shards_are_written_and_read(saved, tmp_path):
    path = saved[1]
    tensors = {n: get() for n, get in storage.open_tensors(path).items()}
    with replace_dir(tmp_path / "s") as aside:
        storage.write_tensors(aside, tensors, shard_bytes=60_000)
    assert len(list((tmp_path / "s").glob("model-*.safetensors"))) > 2
    again = storage.open_tensors(tmp_path / "s")
    assert all(torch.equal(tensors[n], again[n]()) for n in tensors)


@pytest.mark.parametrize(
    ("breaking", "said"),
    [
        (lambda p: (p / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda p: (p / "model.safetensors").write_bytes(b"\x10" * 100), "not a complete safetensors file"),
        (lambda p: (p / "config.json").write_text('{"model_type": "llama",\n oops}'), "line 2"),
        (lambda p: edit(p / "config.json", hidden_size=...), "hidden_size"),
        (lambda p: edit(p / "config.json", hidden_size=64), "found the shape"),
        (lambda p: edit(p / "config.json", rms_norm_eps=float("nan")), "'rms_norm_eps' is nan"),
        (lambda p: edit(p / "config.json", num_key_value_heads=3), "do not divide"),
        (lambda p: edit(p / "config.json", model_type="lama"), "did you mean 'llama'"),
        (lambda p: edit(p / "config.json", num_hidden_layers=2), "Never read"),
        (lambda p: edit(p / "config.json", num_hidden_layers=4), "num_hidden_layers says 4 layers, but the weights"),
        (lambda p: edit(p / "config.json", hidden_act="sillu"), "did you mean 'silu'"),
    ],
)
def test_a_broken_directory_is_named(saved, breaking, said):
    path = saved[1]
    breaking(path)
    with pytest.raises(QkvError, match=said) as raised:
        hub.load(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("kind", [torch.int64, torch.complex64])
def test_numbers_of_the_wrong_kind_are_refused(saved, kind):
    path = saved[1]
    tensors = {n: get() for n, get in storage.open_tensors(path).items()}
    (path / "model.safetensors").unlink()
    torch.save(tensors | {"model.norm.weight": tensors["model.norm.weight"].to(kind)}, path / "pytorch_model.bin")
    with pytest.raises(QkvError, match=r"model.norm.weight: found numbers of type (int64|complex64)"):
        hub.load(path)


def test_packed_weights_with_an_imaginary_part_are_refused_when_read(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a.qweight": torch.zeros(2, 2, dtype=torch.complex64)}, path)
    with pytest.raises(QkvError, match=r"model.safetensors: a.qweight: found numbers of type complex64"):
        storage.open_tensors(tmp_path)["a.qweight"]()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e38])
def test_weights_that_are_not_finite_are_told_at_load(saved, number):
    path = saved[1]
    tensors = {n: get().clone() for n, get in storage.open_tensors(path).items()}
    tensors["model.norm.weight"][3] = number
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(QkvError, match=r"model.norm.weight: 1 of its numbers are NaN, infinite or beyond"):
        hub.load(path)


def test_layers_that_the_weights_lack_are_counted_first(saved, monkeypatch):
    path = saved[1]
    edit(path / "config.json", num_hidden_layers=1000)
    monkeypatch.setattr(model_dir, "build_core", lambda spec: pytest.fail("built"))
    with pytest.raises(QkvError, match="num_hidden_layers says 1000 layers, but the weights hold 3"):
        hub.load(path)


def test_weights_beyond_the_memory_are_refused_before_it_is_taken(saved, monkeypatch):
    monkeypatch.setattr(model_dir, "read_free_memory", lambda _: 1000)
    monkeypatch.setattr(model_dir, "allocate", lambda *_: pytest.fail("allocated"))
    with pytest.raises(QkvError, match="memory are free"):
        hub.load(saved[1])


@pytest.mark.parametrize("stray", [
    lambda p: os.mkfifo(p), lambda p: p.write_bytes(b"\x10" * 100), lambda p: p.symlink_to("gone"), lambda p: p.mkdir(),
    lambda p: save_file({"model.norm.weight": torch.zeros(3)}, p),
])  # fmt: skip
def test_files_that_no_index_names_are_not_opened(saved, stray):
    stray(saved[1] / "x.safetensors")
    assert hub.load(saved[1]).spec == saved[0].spec


def test_a_pipe_in_place_of_a_config_is_refused(saved):
    (saved[1] / "generation_config.json").unlink(missing_ok=True)
    os.mkfifo(saved[1] / "generation_config.json")
    with pytest.raises(QkvError, match="a pipe or a device, expected a file"):
        hub.load(saved[1])


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize(("text", "said"), [
    ("[" * 100_000, "nested too deeply"), ('{"a": ' + "9" * 10_000 + "}", "too long"),
    ('{"eos_token": "\\ud800"}', "half of a character"), ("[1]", "expected a JSON object"),
])  # fmt: skip
def test_json_that_python_cannot_read_names_its_file(saved, file, text, said):
    (saved[1] / file).write_text(text)
    with pytest.raises(QkvError, match=f"{file}.*{said}"):
        hub.load(saved[1])


@pytest.mark.parametrize("change", [
    {"eos_token_id": -1}, {"eos_token_id": 61}, {"eos_token_id": 10**30}, {"eos_token_id": True},
    {"eos_token_id": [1, 61]}, {"pad_token_id": "1"}, {"bos_token_id": 61}, {"decoder_start_token_id": True},
    {"bad_words_ids": 3}, {"bad_words_ids": "x"}, {"bad_words_ids": [None]}, {"bad_words_ids": [["x"]]},
    {"bad_words_ids": [[10**9]]}, {"bad_words_ids": [[]]},
], ids=str)  # fmt: skip
def test_special_ids_that_no_vocabulary_has_are_refused(saved, change):
    (saved[1] / "generation_config.json").write_text(json.dumps(change))
    with pytest.raises(QkvError, match=f"{next(iter(change))} is .* in its configs"):
        hub.load(saved[1])


@pytest.mark.parametrize(("content", "said"), [
    ([torch.zeros(1)], "found a list"), (torch.zeros(1), "found a Tensor"), ({1: torch.zeros(1)}, "no text for its"),
    ({"a": torch.zeros(2, 2).to_sparse()}, "'a' is sparse"), ({"a": torch.zeros(2, device="meta")}, "without data"),
    ({"state_dict": {"a": torch.zeros(1)}}, "found state_dict, expected tensors by name"), ({}, "found nothing"),
])  # fmt: skip
def test_a_bin_without_plain_tensors_is_named(tmp_path, content, said):
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(QkvError, match=said):
        storage.open_tensors(tmp_path)


def test_safetensors_without_a_tensor_are_named(tmp_path):
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(QkvError, match="holds no tensors"):
        storage.open_tensors(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "said"),
    [
        ({"a": "../outside.safetensors"}, "outside"),
        ({"a": "gone.safetensors"}, "not there"),
        ({"b": "there.safetensors"}, "it is not"),
        ({}, "weight_map"),
    ],
)
def test_a_wrong_index_is_named(tmp_path, weight_map, said):
    save_file({"a": torch.zeros(1)}, tmp_path / "there.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(QkvError, match=said):
        storage.open_tensors(tmp_path)


def test_foreign_weights_are_read_without_running_code(tmp_path):
    torch.save({"a": torch.arange(3)}, tmp_path / "pytorch_model.bin")
    assert storage.open_tensors(tmp_path)["a"]().tolist() == [0, 1, 2]

    class Evil:
        def __reduce__(self):
            return print, ("run",)

    torch.save({"a": Evil()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(QkvError, match="plain weights"):
        storage.open_tensors(tmp_path)


def test_a_full_disk_while_saving_leaves_the_old_checkpoint(saved, monkeypatch):
    model, path = saved
    before = {p.name: p.read_bytes() for p in path.iterdir()}

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    for where, name in ((storage, "save_file"), (storage, "write_json"), (files, "fsync_path")):
        with monkeypatch.context() as m:
            m.setattr(where, name, full)
            with pytest.raises(QkvError, match=r"No space.*is unchanged"):
                model.save(path)
        assert {p.name: p.read_bytes() for p in path.iterdir()} == before
        assert [p for p in path.parent.iterdir() if p != path] == []
        hub.load(path)


def test_a_tied_head_that_differs_is_refused(tmp_path):
    import dataclasses

    spec = dataclasses.replace(tiny(), head=Head("tied"))
    hub.build(spec).save(tmp_path / "m")
    tensors = {n: g() for n, g in storage.open_tensors(tmp_path / "m").items()}
    assert "lm_head.weight" not in tensors
    twin = tensors["model.embed_tokens.weight"].clone()
    save_file({**tensors, "lm_head.weight": twin}, tmp_path / "m/model.safetensors")
    hub.load(tmp_path / "m")
    save_file({**tensors, "lm_head.weight": twin + 1}, tmp_path / "m/model.safetensors")
    with pytest.raises(QkvError, match="ties it"):
        hub.load(tmp_path / "m")


def test_a_missing_tensor_lists_both_sides_with_the_nearest_name(saved):
    _, path = saved
    tensors = {n: g() for n, g in storage.open_tensors(path).items()}
    tensors["model.layers.1.mlp.up_projj.weight"] = tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(QkvError, match=r"Missing \(1\).*up_proj.*did you mean.*Never read \(1\)"):
        hub.load(path)


def test_a_name_that_is_nothing_lists_the_bundled_models(tmp_path):
    with pytest.raises(QkvError, match="no such directory"):
        hub.load(str(tmp_path / "nothing"))
    with pytest.raises(QkvError, match="no such directory and no bundled model"):
        hub.load("demoo")
    (tmp_path / "empty").mkdir()
    with pytest.raises(QkvError, match=r"no config\.json"):
        hub.load(tmp_path / "empty")


def test_spec_json_round_trip_and_unknown_keys():
    spec = tiny()
    assert from_json(Spec, json.loads(json.dumps(as_json(spec)))) == spec
    value = as_json(spec)
    value["decoder"]["blocks"][1]["attn"]["head"] = 3
    with pytest.raises(QkvError, match=r"blocks\[1\]\.attn: unknown key 'head'; did you mean 'heads'"):
        from_json(Spec, value)


def test_sizes_of_the_families_have_names():
    assert model_dir.preset_config("gpt2:124m") is not None
    with pytest.raises(QkvError, match="did you mean '124m'"):
        model_dir.preset_config("gpt2:124")


def test_a_checkpoint_of_another_size_says_so_before_memory_is_taken(saved, monkeypatch):
    _, path = saved
    edit(path / "config.json", intermediate_size=80)
    monkeypatch.setattr(torch.nn.Module, "to_empty", lambda *a, **k: pytest.fail("memory was taken"))
    with pytest.raises(QkvError, match=r"found the shape \[96, 128\], expected \[80, 128\] for layers.0.ffn.gate"):
        hub.load(path)


def test_whole_numbers_where_floats_belong_are_refused(saved):
    _, path = saved
    tensors = {n: g() for n, g in storage.open_tensors(path).items()}
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({**tensors, name: tensors[name].long()}, path / "model.safetensors")
    with pytest.raises(QkvError, match=f"{name}: found numbers of type int64"):
        hub.load(path)


@pytest.mark.parametrize("family", [None, "bert"])
def test_the_names_of_labels_survive_being_saved(tmp_path, family):
    spec = hub.spec_of("bert:tiny")
    spec = replace(spec, head=None, labels=Labels(2, dense=Dense("tanh"), dropout=0.1))
    model = hub.build(spec)
    model.config = label_config(spec, ["没有", "yes"])
    model.save(tmp_path, family=family)
    assert hub.load(tmp_path).labels == ("没有", "yes")
    assert (storage.read_json(tmp_path / "config.json")["model_type"] == "bert") == bool(family)
