"""The tokenizer in a GGUF file's metadata, and a tokenizer as such metadata; texts are cut as llama.cpp cuts them.

Where its names come from: llama-vocab.cpp.
"""

import base64
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from qkv.errors import QkvError, nearest
from qkv.messages import Message
from qkv.tokenizers import backends, sentencepiece
from qkv.tokenizers.backends import FoundTokenizer, guard_panics
from qkv.tokenizers.sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER

if TYPE_CHECKING:
    from qkv.tokenizers.tokenizer import Tokenizer

KEY = "tokenizer.ggml."
ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "cls": "cls",
         "mask": "mask"}  # GGUF misspells one of them
ABSENT = (1 << 32) - 1  # llama.cpp's -1, an id that no token has
DIGIT, DIGITS = r"\p{N}", r"\p{N}{1,3}"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4 = backends.QWEN2.replace(r"\p{N}|", DIGITS + "|")
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+END|[^\r\n\p{L}\p{N}]?"
         r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*END|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n/]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
PRE: dict[str, tuple[str, ...]] = {  # what the first of these names cuts at, one after the other; all are GGUF's
    "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert mpt olmo jais exaone4 "
    "trillion granite-docling": (GPT2,),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": (DIGIT, GPT2),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2": (backends.QWEN2,),
    "smaug-bpe dbrx chatglm-bpe": (GPT4,),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano glm4 glm5": (GPT4,),
    "tekken": (CASED.replace("END", "").replace("NUMBER", DIGIT),),
    "gpt-4o llama4 kanana2": (CASED.replace("END", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?").replace("NUMBER", DIGITS),),
    "deepseek-coder": (
        r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+", DIGIT),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"),
}
NAMED = {name: cuts for names, cuts in PRE.items() for name in names.split()}
WHOLE = ("tekken", *next(names for names in PRE if "llama3" in names).split())  # a piece that is a token stays whole
COMPOSED = ("qwen2", "deepseek-r1-qwen")  # models whose own tokenizers compose characters first (NFC)
PROBE = ("Hello, World's 1234567 DON'T  I'll\n\n\t x_y==z; naïve Ünïcode 中文，字符。日本語 한국어 🙂👩‍👩‍👧 e\u0301 "
         "\u0344 ﬁ ½ foo(bar)[3]  \n  end ")


def read_tokenizer(metadata: Mapping[str, Any], path: Path) -> tuple[FoundTokenizer, dict[str, Any]] | None:
    """The tokenizer that metadata describe, with what a tokenizer_config.json would say; None where they name none.

    Raises:
        QkvError: something is missing or unknown, so that texts would be cut otherwise than the model learnt.
    """
    kind = metadata.get(f"{KEY}model", "none")
    if kind in ("none", "no_vocab"):
        return None
    if kind not in KINDS:
        raise unreadable(path, "model", kind, nearest(str(kind), KINDS), ", ".join(KINDS))
    tokens = metadata.get(f"{KEY}tokens") or []
    types = metadata.get(f"{KEY}token_type") or [NORMAL] * len(tokens)
    if not tokens or len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise unreadable(path, "tokens", len(tokens), "", Message("{count} different ones", count=len(types)))
    with guard_panics(Message("{directory}: cannot be read as a tokenizer", directory=path)):
        roles = find_roles(metadata, path, tokens)
        if kind == "bert":
            roles = {"cls": roles.get("bos", "")} | {r: token for r, token in roles.items() if r != "bos"}
        backend = KINDS[kind](Vocabulary(metadata, path, tokens, types, roles))
        for add, typed in ((backend.add_special_tokens, (UNKNOWN, CONTROL)), (backend.add_tokens, (USER,))):
            add([AddedToken(t, normalized=False) for t, found in zip(tokens, types, strict=True) if found in typed])
        begin = metadata.get(f"{KEY}add_bos_token", kind == "llama" or metadata.get(f"{KEY}pre") in WHOLE)
        end = metadata.get(f"{KEY}add_eos_token", kind == "t5")
        if kind != "bert":
            wanted = [roles.get(role) if use else None for role, use in (("bos", begin), ("eos", end))]
            backend.post_processor = backends.template(*((t, tokens.index(t)) if t else None for t in wanted))
    more = [n for n in metadata.get("tokenizer.chat_templates", ()) if f"tokenizer.chat_template.{n}" in metadata]
    rows = [{"name": name, "template": metadata[f"tokenizer.chat_template.{name}"]} for name in more]
    one = metadata.get("tokenizer.chat_template")
    template = [{"name": "default", "template": one}, *rows] if one and rows else one or rows
    return FoundTokenizer(backend, roles), {"chat_template": template} if template else {}


def find_roles(metadata: Mapping[str, Any], path: Path, tokens: list[str]) -> dict[str, str]:
    """The special tokens by role.

    Raises:
        QkvError: an id that is no token's.
    """
    ids = {role: metadata.get(f"{KEY}{key}_token_id", ABSENT) for role, key in ROLES.items()}
    ids = {role: i for role, i in ids.items() if i != ABSENT}
    for role, i in ids.items():
        if not 0 <= i < len(tokens):
            raise unreadable(path, f"{ROLES[role]}_token_id", i, "", f"0 … {len(tokens) - 1}")
    return {role: tokens[i] for role, i in ids.items()}


def unreadable(path: Path, key: str, found: object, hint: object, expected: str) -> QkvError:
    """An error that names the key of the metadata, what it is, and what was expected."""
    return QkvError("{path}: tokenizer.ggml.{key} is {found}{hint}, expected {expected}; texts cannot be cut without "
                    "it", path=path, key=key, found=found, hint=hint, expected=expected)


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a file by id, with their types (as sentencepiece numbers them) and special tokens."""

    metadata: Mapping[str, Any]
    path: Path
    tokens: list[str]
    types: list[int]
    roles: Mapping[str, str]

    def need(self, key: str, expected: str) -> Any:
        """A value that the file must have for its tokenizer."""
        value = self.metadata.get(KEY + key)
        if not value:
            raise unreadable(self.path, key, Message("missing"), "", expected)
        return value


def build_bpe(v: Vocabulary) -> tokenizers.Tokenizer:
    """Byte-level BPE, whose way to cut texts first has a name of GGUF's."""
    merges, pre = v.need("merges", Message("pairs of tokens")), str(v.need("pre", ", ".join(NAMED)))
    if pre not in NAMED:
        raise unreadable(v.path, "pre", repr(pre), nearest(pre, NAMED), ", ".join(NAMED))
    names = {token: i for i, token in enumerate(v.tokens)}
    pairs = [(a, b) for a, _, b in (merge.partition(" ") for merge in merges)]
    backend = tokenizers.Tokenizer(models.BPE(names, pairs, ignore_merges=pre in WHOLE))
    if pre in COMPOSED:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer, backend.decoder = cut_at(NAMED[pre]), decoders.ByteLevel()
    return backend


def cut_at(patterns: tuple[str, ...]) -> pre_tokenizers.PreTokenizer:
    """Cut at each pattern in its turn, then spell the bytes of each piece."""
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def build_pieces(v: Vocabulary) -> tokenizers.Tokenizer:
    """A sentencepiece model: BPE where GGUF says llama, unigram where it says t5."""
    kind, types = v.metadata[f"{KEY}model"], list(v.types)
    if "unk" in v.roles:
        types[v.tokens.index(v.roles["unk"])] = UNKNOWN
    if UNKNOWN not in types:
        raise unreadable(v.path, "token_type", Message("without an unknown token"), "", str(UNKNOWN))
    scores = v.need("scores", Message("a number for each token"))
    if len(scores) != len(v.tokens):
        raise unreadable(v.path, "scores", len(scores), "", str(len(v.tokens)))
    prefix = v.metadata.get(f"{KEY}add_space_prefix", True)
    if kind == "llama":  # llama.cpp normalises its texts in no other way
        pieces = sentencepiece.Pieces(tuple(v.tokens), tuple(scores), tuple(types), "bpe", prefix=prefix)
    else:
        pieces = sentencepiece.Pieces(
            tuple(v.tokens), tuple(scores), tuple(types), "unigram", v.metadata.get(f"{KEY}precompiled_charsmap", b""),
            prefix, v.metadata.get(f"{KEY}remove_extra_whitespaces", False))
    return sentencepiece.build_tokenizer(pieces)


def build_wordpieces(v: Vocabulary) -> tokenizers.Tokenizer:
    """WordPieces in lower case; GGUF marks how words begin, where BERT marks how they go on."""
    lacking = [ROLES[role] for role in ("unk", "sep", "cls") if not v.roles.get(role)]
    if lacking:
        raise unreadable(v.path, f"{lacking[0]}_token_id", Message("missing"), "", f"0 … {len(v.tokens) - 1}")
    own = {t for t, kind in zip(v.tokens, v.types, strict=True) if kind != NORMAL or re.fullmatch(r"\[.+\]", t)}
    names = {t if t in own else t[1:] if t[0] == "▁" else f"##{t}": i for i, t in enumerate(v.tokens)}
    return backends.build_word_pieces(names, v.roles, {})


KINDS = {"gpt2": build_bpe, "llama": build_pieces, "t5": build_pieces, "bert": build_wordpieces}


def describe_tokenizer(tokenizer: "Tokenizer", size: int, path: Path) -> dict[str, Any]:
    """A tokenizer as metadata of `size` tokens, read back and tried before it is believed.

    Raises:
        QkvError: GGUF cannot say it, so that llama.cpp would cut texts otherwise.
    """
    backend = tokenizer.backend
    state: dict[str, Any] = json.loads(backend.to_str())
    model, names = state["model"], backend.get_vocab()
    known = {i: token for token, i in names.items()}
    tokens = [known.get(i, f"[PAD{i}]") for i in range(size)]  # llama.cpp wants one for every row of the embedding
    special = {token: UNUSED for token in tokens if token not in names}
    special |= {t.content: CONTROL if t.special else USER for t in backend.get_added_tokens_decoder().values()}
    found = {f"{KEY}{ROLES[role]}_token_id": names[token] for role, token in tokenizer.roles.items()}
    found |= {f"{KEY}tokens": tokens, f"{KEY}token_type": [special.get(t, NORMAL) for t in tokens]}
    spelling, before = tokenizer.spelling, tokenizer.encode("")
    for role in ("bos", "eos"):
        found[f"{KEY}add_{role}_token"] = getattr(tokenizer, f"{role}_id") in before
    if model["type"] == "BPE" and spelling is not None and spelling.level:
        found |= {f"{KEY}model": "gpt2", f"{KEY}pre": find_pre(backend, whole=model["ignore_merges"]),
                  f"{KEY}merges": [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]}
    elif model["type"] in ("BPE", "Unigram"):
        found |= describe_pieces(backend, model, tokens, special)
    elif model["type"] == "WordPiece":
        marked = [t if t in special else t[2:] if t.startswith("##") else f"▁{t}" for t in tokens]
        found |= {f"{KEY}model": "bert", f"{KEY}tokens": marked, f"{KEY}add_bos_token": True}
        found[f"{KEY}bos_token_id"] = found.get(f"{KEY}cls_token_id", 0)  # llama.cpp begins texts by this name
    again = None
    if not tokenizer.files and tokenizer.sources is None:
        with suppress(QkvError):
            again = read_tokenizer(found, path)
    if again is None or again[0].backend.encode(PROBE).ids != tokenizer.encode(PROBE):
        raise QkvError("GGUF cannot say how this tokenizer ({kind}) cuts texts; llama.cpp would cut them otherwise",
                       kind=model["type"])
    template = tokenizer.config.get("chat_template") or ()
    rows = [{"name": "default", "template": template}] if isinstance(template, str) else template
    found |= {f"tokenizer.chat_template.{row['name']}".removesuffix(".default"): row["template"] for row in rows}
    more = [row["name"] for row in rows if row["name"] != "default"]
    return found | ({"tokenizer.chat_templates": more} if more else {})


def find_pre(backend: tokenizers.Tokenizer, *, whole: bool) -> str:
    """GGUF's name for how a backend cuts texts first; the empty string where it has none."""
    def cut(pre: Any) -> list[str]:
        return [piece for piece, _ in pre.pre_tokenize_str(PROBE)]

    names = [names.split()[0] for names in PRE]
    fitting = [n for n in names if backend.pre_tokenizer and cut(cut_at(NAMED[n])) == cut(backend.pre_tokenizer)]
    return next((n for n in fitting if (n in WHOLE) == whole), next(iter(fitting), ""))


def describe_pieces(
    backend: tokenizers.Tokenizer, model: Mapping[str, Any], tokens: list[str], special: Mapping[str, int]
) -> dict[str, Any]:
    """A sentencepiece model's metadata; unions of BPE score by when they are made."""
    steps = json.dumps(json.loads(backend.to_str())["normalizer"])
    charsmap = re.search(r'"precompiled_charsmap": "([^"]*)"', steps)
    unknown = model["unk_token"] if model["type"] == "BPE" else tokens[model["unk_id"]]
    kinds = {t: BYTE for t in tokens if model["byte_fallback"] and re.fullmatch("<0x[0-9A-F]{2}>", t)}
    kinds[unknown] = UNKNOWN
    if model["type"] == "BPE":
        ranks = {"".join(m if isinstance(m, list) else m.split(" ")): -float(i)
                 for i, m in reversed(list(enumerate(model["merges"])))}
        scores = [ranks.get(t, -float(len(ranks))) for t in tokens]
    else:
        scores = [float(score) for _, score in model["vocab"]]
        scores += [0.0] * (len(tokens) - len(scores))
    prefix = backend.encode("a", add_special_tokens=False).tokens[0].startswith("▁")
    return {
        f"{KEY}model": "llama" if model["type"] == "BPE" else "t5", f"{KEY}scores": scores,
        f"{KEY}token_type": [kinds.get(t, special.get(t, NORMAL)) for t in tokens],
        f"{KEY}add_space_prefix": prefix, f"{KEY}remove_extra_whitespaces": " {2,}" in steps,
        **({f"{KEY}precompiled_charsmap": base64.b64decode(charsmap[1])} if charsmap else {}),
    }
