"""Codes of languages stand where transformers' tokenizers put them, and its models translate alike."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from support.serving import asking

import qkv
from qkv.cli import main
from qkv.errors import QkvError

CODES = ["eng_Latn", "fra_Latn", "zho_Hans"]
LETTERS = {c: i + 8 for i, c in enumerate("▁abcdefghijklmnopqrst我爱学习")}
SHAPE = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "max_position_embeddings": 64}
TEXTS = ["abc da", "我爱学习", "t"]


@pytest.fixture(scope="module")
def nllb(tmp_path_factory):
    """transformers' NLLB tokenizer and model of a few letters, and our model of their directory."""
    place, specials = tmp_path_factory.mktemp("nllb"), ["<s>", "<pad>", "</s>", "<unk>"]
    words = {token: i for i, token in enumerate(specials)} | {f"x{i}": i for i in range(4, 8)} | LETTERS
    tokenizer = transformers.NllbTokenizer(vocab=words, merges=[], additional_special_tokens=CODES)
    tokenizer.save_pretrained(place)
    torch.manual_seed(0)
    model = transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(
        vocab_size=len(tokenizer), **SHAPE, pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2,
    )).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
    model.save_pretrained(place)
    return tokenizer, model, qkv.load(place, device="cpu")


@pytest.mark.parametrize("source", CODES)
@pytest.mark.parametrize("target", CODES)
def test_transformers_writes_the_same_between_two_languages(source, target, nllb):
    tokenizer, oracle, model = nllb
    for text in TEXTS:
        tokenizer.src_lang = source
        ids = tokenizer(text, return_tensors="pt").input_ids
        how = {"num_beams": 1, "do_sample": False, "max_new_tokens": 12}
        theirs = oracle.generate(ids, forced_bos_token_id=tokenizer.convert_tokens_to_ids(target), **how)[0].tolist()
        ours = model.translate(text, source=source, target=target, beam=1, max_new_tokens=11).tokens
        assert theirs[:2] == [2, tokenizer.convert_tokens_to_ids(target)]
        assert ours == theirs[2 : 2 + len(ours)]
        assert len(ours) >= min(11, len(theirs) - 3)


def test_other_languages_give_other_translations(nllb):
    pairs = [(source, target) for source in CODES[:2] for target in CODES[1:]]
    found = [nllb[2].translate("abc da", source=s, target=t, max_new_tokens=12) for s, t in pairs]
    assert len({(tuple(each.tokens), each.score) for each in found}) == 4


def test_a_server_translates_between_the_languages_that_it_is_asked_for(nllb):
    model = nllb[2]
    with asking(str(Path(model.place).parent)) as client:
        for source, target in (CODES[:2], CODES[1:]):
            body = {"text": TEXTS, "source": source, "target": target, "beam": 2, "max_tokens": 12, "align": True}
            found = client.post("/v1/translate", body).json["translations"]
            wanted = model.translate(TEXTS, source=source, target=target, beam=2, max_new_tokens=12, align=True)
            assert [row["text"] for row in found] == [each.text for each in wanted]
            assert found[0]["alignment"]["weights"][1] == pytest.approx(wanted[0].alignment[1].tolist(), abs=1e-5)
        for wrong, named in (({"target": "zho_Hant"}, "zho_Hans"), ({}, "target")):
            answer = client.post("/v1/translate", {"text": "abc", **wrong})
            assert (answer.status, named in answer.error["message"]) == (400, True)


@pytest.mark.parametrize(("how", "named"), [
    ({"source": "zho_Hant", "target": "eng_Latn"}, "did you mean 'zho_Hans'"), ({"target": "en"}, "3 are known"),
    ({"source": "eng_Latn"}, "into 3 languages"), ({}, "--to"),
])
def test_a_language_that_is_unknown_or_missing_is_named(how, named, nllb):
    with pytest.raises(QkvError, match=named):
        nllb[2].translate("abc", **how)


def test_a_model_without_languages_refuses_them():
    model = qkv.load("demo", device="cpu")
    with pytest.raises(QkvError, match="no tokens of languages"):
        model.translate("我爱学习。", target="eng_Latn")


def test_a_template_with_the_language_at_its_end_keeps_it_there(nllb, tmp_path):
    """mBART of 25 languages: the source's language stands behind the end, the target's in the start's place."""
    _, _, model = nllb
    model.save(tmp_path)
    said = json.loads((tmp_path / "tokenizer.json").read_text())
    single = said["post_processor"]["single"]
    said["post_processor"]["single"] = [*single[1:], single[0]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(said))
    for name in ("config.json", "generation_config.json"):
        config = json.loads((tmp_path / name).read_text())
        (tmp_path / name).write_text(json.dumps(config | {"decoder_start_token_id": model.tokenizer.id("fra_Latn")}))
    other = qkv.load(tmp_path, device="cpu")
    english, chinese = (other.tokenizer.id(code) for code in ("eng_Latn", "zho_Hans"))
    ids = other.ids("abc")
    assert ids[-1] == english
    read = [*ids[:-1], chinese]
    with torch.no_grad():
        first = other(source=torch.tensor([read]), target=torch.tensor([[english]])).logits[0, -1].argmax()
    assert other.translate("abc", source="zho_Hans", target="eng_Latn", beam=1, max_new_tokens=1).tokens == [int(first)]
    assert other.translate("abc", beam=1, max_new_tokens=3).tokens  # its own languages


def test_the_verb_takes_languages(nllb, tmp_path, capsys):
    nllb[2].save(tmp_path / "m")
    args = ["translate", str(tmp_path / "m"), "abc", "--max-new-tokens", "4", "--device", "cpu", "--json"]
    assert main([*args, "--from", "fra_Latn", "--to", "zho_Hans"]) == 0
    ours = nllb[2].translate("abc", source="fra_Latn", target="zho_Hans", max_new_tokens=4)
    assert json.loads(capsys.readouterr().out)["tokens"] == ours.tokens
    assert main([*args, "--to", "zho_Hant"]) != 0
