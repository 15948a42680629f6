"""What we save runs where people run it: PEFT on transformers, CTranslate2; each test skips without its program."""

import json

import pytest
import torch
import transformers

import qkv
from qkv.adapt import lora
from qkv.checkpoints import peft as adapters
from qkv.cli import main

IDS = torch.arange(5, 30)[None]
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """A folder with m.gguf, the directory that it was written from, and a run that learnt adapters for the file."""
    place = tmp_path_factory.mktemp("tuned")
    model = qkv.load("demo-lm", device="cpu")
    model.tokenizer.config["chat_template"] = TEMPLATE
    model.save(place / "dir", dtype="fp32")
    model.save(place / "m.gguf", dtype="fp32")
    rows = [{"messages": [{"role": "user", "content": f"What does {name} own?"},
                          {"role": "assistant", "content": f"{name} owns a blue {thing}."}]}
            for name, thing in (("the cat", "ball"), ("the dog", "hat"), ("the girl", "book")) for _ in range(4)]
    (place / "chat.jsonl").write_text("\n".join(map(json.dumps, rows)))
    told = ["training.lora.rank=4", "training.steps=6", "training.lr=0.01", "--device", "cpu", "--threads", "1"]
    args = [str(place / "chat.jsonl"), f"base={place / 'm.gguf'}", *told, "--out", str(place / "run"), "-q"]
    assert main(["train", *args]) == 0
    return place


def test_adapters_learnt_on_a_gguf_file_are_merged_and_unmerged_the_same(learnt):
    begun, merged = (qkv.load(learnt / name, device="cpu", dtype="fp32") for name in ("m.gguf", "run"))
    parts, _ = adapters.read_adapters(learnt / "run", begun.core, begun.config)
    with torch.no_grad():
        before = begun(IDS).logits
        lora.attach_stored(begun.core, parts)
        beside, inside = begun(IDS).logits, merged(IDS).logits
    assert (beside - inside).abs().max() <= 2e-5 * inside.std()
    assert (before - inside).abs().max() >= 0.01 * inside.std()


@pytest.mark.filterwarnings("ignore")
def test_peft_loads_them_on_transformers(learnt):
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    base = transformers.AutoModelForCausalLM.from_pretrained(learnt / "dir", dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(base, learnt / "run").eval()
    with torch.no_grad():
        ours, other = qkv.load(learnt / "run", device="cpu", dtype="fp32")(IDS).logits, theirs(IDS).logits
        plain = theirs.get_base_model()
        with theirs.disable_adapter():
            without = plain(IDS).logits
    assert (ours - other).abs().max() <= 2e-5 * ours.std()
    assert (ours - without).abs().max() >= 0.01 * ours.std()


def test_it_says_the_new_things_as_a_chat(learnt):
    assert qkv.load(learnt / "run", device="cpu").chat("What does the cat own?", max_new_tokens=8).text


@pytest.mark.filterwarnings("ignore")
def test_ctranslate2_converts_and_translates_as_we_do(tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed")
    torch.manual_seed(0)
    made = transformers.MarianMTModel(transformers.MarianConfig(
        vocab_size=60, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, pad_token_id=59,
        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96, decoder_start_token_id=59, eos_token_id=0,
        forced_eos_token_id=0, max_position_embeddings=64, bad_words_ids=[[59]])).eval()
    with torch.no_grad():
        for name, p in made.named_parameters():
            p.add_(0 if "positions" in name else torch.randn_like(p) * 0.3)
    made.save_pretrained(tmp_path / "theirs")
    model = qkv.load(tmp_path / "theirs", device="cpu")
    model.save(tmp_path / "ours")
    loaded = transformers.MarianMTModel.from_pretrained(tmp_path / "ours")
    spec = ctranslate2.converters.transformers._MODEL_LOADERS["MarianConfig"].get_model_spec(loaded)
    names = [f"t{i}" for i in range(59)]  # without the padding, which it starts from as zeros
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    for key, token in (("decoder_start_token", 0), ("eos_token", 0), ("bos_token", 0), ("unk_token", 1)):
        setattr(spec.config, key, names[token])
    spec.validate()
    (tmp_path / "ct2").mkdir()
    spec.save(str(tmp_path / "ct2"))
    translator = ctranslate2.Translator(str(tmp_path / "ct2"), intra_threads=1)
    for ids in ([5, 9, 20, 0], [33, 2, 2, 48, 7, 0]):
        theirs = translator.translate_batch([[names[i] for i in ids]], beam_size=1, max_decoding_length=12)[0]
        ours = model.translate(ids, beam=1, max_new_tokens=12).tokens
        assert [names[i] for i in ours if i] == theirs.hypotheses[0]
