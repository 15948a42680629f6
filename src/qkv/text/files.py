"""The tokenizers that checkpoints bring, by the files in their directory: each gives a backend and special tokens."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from qkv.errors import QkvError
from qkv.text import sentencepiece

ROLES = ("bos", "eos", "pad", "unk", "mask", "cls", "sep")


@dataclass(frozen=True)
class Found:
    """A backend with what its directory says about it."""

    backend: tokenizers.Tokenizer
    roles: dict[str, str]
    target: tokenizers.Tokenizer | None = None
    names: Sequence[str] | None = None
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


def find(directory: Path) -> Found | None:
    """The tokenizer of a directory, None where no file of one is there.

    Raises:
        QkvError: a file is broken, or one of two that belong together is missing.
    """
    for names, make in KNOWN:
        there = [name for name in names if (directory / name).is_file()]
        if there and (len(there) == len(names) or there != ["vocab.json"]):
            missing = [name for name in names if name not in there]
            if missing:
                raise QkvError(f"{directory}: found {' and '.join(there)}, expected {' and '.join(missing)} beside it")
            with guarded(f"{directory / names[0]}: does not read as a tokenizer"):
                return make(directory, *names)
    if (directory / "vocab.json").is_file():
        raise QkvError(f"{directory}: found vocab.json, expected merges.txt or source.spm and target.spm beside it")
    return None


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Turn what the backend throws into one error; its panics are no Exceptions and would end the process."""
    try:
        yield
    except QkvError:
        raise
    except BaseException as e:
        if not isinstance(e, Exception) and type(e).__name__ != "PanicException":
            raise
        raise QkvError(f"{what}: {e}") from e


def one_file(directory: Path, name: str) -> Found:
    """tokenizer.json; special tokens are named beside it, else by their ids in the model's config."""
    backend = tokenizers.Tokenizer.from_str((directory / name).read_text(encoding="utf-8"))
    config = read_json(directory / "tokenizer_config.json")
    backend.no_truncation()
    backend.no_padding()
    roles = _ids(directory, backend) | _roles(directory)
    unk = getattr(backend.model, "unk_token", None)
    return Found(backend, {"unk": unk, **roles} if isinstance(unk, str) else roles, config=config)


def two_files(directory: Path, vocabulary: str, merges: str) -> Found:
    """A byte-level BPE as GPT-2 wrote it (Radford et al. 2019)."""
    lines = (directory / merges).read_text(encoding="utf-8").split("\n")
    pairs = [
        (a, b) for a, space, b in (line.rstrip("\r").partition(" ") for line in lines) if space and a != "#version:"
    ]
    names = _vocabulary(directory / vocabulary)
    backend = tokenizers.Tokenizer(models.BPE(names, pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    end = "<|endoftext|>"
    roles = (dict.fromkeys(("bos", "eos", "unk"), end) if end in names else {}) | _roles(directory)
    backend.add_special_tokens([AddedToken(t, normalized=False) for t in dict.fromkeys(roles.values()) if t in names])
    return Found(backend, roles, config=read_json(directory / "tokenizer_config.json"))


def two_models(directory: Path, source: str, target: str, vocabulary: str) -> Found:
    """A sentencepiece model for each side over one numbering (Marian); texts end with the end symbol."""
    path = directory / vocabulary
    ids = _vocabulary(path)
    if sorted(ids.values()) != list(range(len(ids))):
        raise QkvError(f"{path}: found {len(ids)} tokens whose ids do not run from 0 to {len(ids) - 1}")
    roles = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"} | _roles(directory)
    lacking = [roles[role] for role in ("eos", "unk", "pad") if roles[role] not in ids]
    if lacking:
        raise QkvError(f"{path}: no token {', '.join(lacking)}, expected the special tokens to be among the {len(ids)}")
    named = [*roles.values(), *(t for t in ids if t.startswith(">>") and t.endswith("<<"))]  # >>fra<< names a language
    sides = [sentencepiece.build(sentencepiece.read(directory / name), ids, named) for name in (source, target)]
    for side in sides:
        side.post_processor = template(None, (roles["eos"], ids[roles["eos"]]))
    kept = [source, target, vocabulary, "tokenizer_config.json", "special_tokens_map.json"]
    data = {name: (directory / name).read_bytes() for name in kept if (directory / name).is_file()}
    return Found(sides[0], roles, sides[1], sorted(ids, key=ids.__getitem__), files=data)


def one_model(directory: Path, name: str) -> Found:
    """A sentencepiece model: BPE texts start with the begin symbol, unigram end with the end symbol, by default."""
    model = sentencepiece.read(directory / name)
    backend = sentencepiece.build(model)
    config = read_json(directory / "tokenizer_config.json")
    roles = model.roles | _roles(directory)
    extra = int(config.get("extra_ids", 100 if model.pieces[0] == "<pad>" else 0))
    room = read_json(directory / "config.json").get("vocab_size", len(model.pieces) + extra)
    if extra and len(model.pieces) + extra <= room:  # sentinels count down to the first piece (Raffel et al. 2020)
        sentinels = [AddedToken(f"<extra_id_{i}>", normalized=False) for i in range(extra - 1, -1, -1)]
        backend.add_special_tokens(sentinels)
    bpe = model.kind == "bpe"
    around = [
        (token, model.pieces.index(token)) if use and token in model.pieces else None
        for token, use in (
            (roles.get("bos"), config.get("add_bos_token", bpe)),
            (roles.get("eos"), config.get("add_eos_token", not bpe)),
        )
    ]
    backend.post_processor = template(around[0], around[1])
    return Found(backend, roles, config=config)


def word_pieces(directory: Path, name: str) -> Found:
    """A WordPiece vocabulary, one token a line (Devlin et al. 2019)."""
    lines = (directory / name).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    names = {line.rstrip("\r"): i for i, line in enumerate(lines)}
    usual = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"} | _roles(directory)
    lacking = [usual[role] for role in ("unk", "sep", "cls") if usual[role] not in names]
    if lacking:
        raise QkvError(
            f"{directory / name}: no {', '.join(lacking)} among its {len(names)} tokens, expected WordPieces"
        )
    config = read_json(directory / "tokenizer_config.json")
    backend = tokenizers.Tokenizer(models.WordPiece(names, unk_token=usual["unk"], max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(lowercase=bool(config.get("do_lower_case", True)))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens([AddedToken(t, normalized=False) for t in usual.values() if t in names])
    cls, sep = usual["cls"], usual["sep"]
    backend.post_processor = processors.BertProcessing((sep, names[sep]), (cls, names[cls]))
    return Found(backend, usual, config=config)


KNOWN: tuple[tuple[tuple[str, ...], Callable[..., Found]], ...] = (
    (("tokenizer.json",), one_file),
    (("source.spm", "target.spm", "vocab.json"), two_models),
    (("vocab.json", "merges.txt"), two_files),
    (("encoder.json", "vocab.bpe"), two_files),
    (("tokenizer.model",), one_model),
    (("spiece.model",), one_model),
    (("vocab.txt",), word_pieces),
)


def template(before: tuple[str, int] | None, after: tuple[str, int] | None) -> Any:
    """A post-processor that puts a token (with its id) before or after each text; None without either."""
    tokens = [t for t in (before, after) if t is not None]
    if not tokens:
        return None
    shape = [*([before[0]] if before else []), "$A", *([after[0]] if after else [])]
    second = [*([before[0] + ":1"] if before else []), "$B:1", *([after[0] + ":1"] if after else [])]
    return processors.TemplateProcessing(
        single=shape, pair=[*shape, *second], special_tokens=list(dict.fromkeys(tokens))
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty where there is no file.

    Raises:
        QkvError: it is not JSON, or not an object.
    """
    if not path.is_file():
        return {}
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise QkvError(f"{path}: not JSON: {e}") from None
    if not isinstance(found, dict):
        raise QkvError(f"{path}: found a JSON {type(found).__name__}, expected an object")
    return cast("dict[str, Any]", found)


def _vocabulary(path: Path) -> dict[str, int]:
    found = read_json(path)
    wrong = next((t for t, i in found.items() if not isinstance(i, int) or i < 0), None)
    if wrong is not None:
        raise QkvError(f"{path}: token {wrong!r} has {found[wrong]!r} as its id, expected a number from 0 on")
    if not found:
        raise QkvError(f"{path}: the vocabulary is empty")
    return found


def _roles(directory: Path) -> dict[str, str]:
    """The special tokens by name, as tokenizer_config.json or special_tokens_map.json say."""
    named = {**read_json(directory / "special_tokens_map.json"), **read_json(directory / "tokenizer_config.json")}
    found: dict[str, str] = {}
    for role in ROLES:
        token: object = named.get(f"{role}_token")
        token = cast("dict[str, object]", token).get("content") if isinstance(token, dict) else token
        if isinstance(token, str) and token:
            found[role] = token
    return found


def _ids(directory: Path, backend: tokenizers.Tokenizer) -> dict[str, str]:
    """The special tokens by id, as the model's configs say."""
    stated = {**read_json(directory / "config.json"), **read_json(directory / "generation_config.json")}
    found: dict[str, str] = {}
    for role in ROLES:
        value = stated.get(f"{role}_token_id")
        number = cast("list[object]", value)[0] if isinstance(value, list) and value else value
        token = backend.id_to_token(number) if isinstance(number, int) and number >= 0 else None
        if token is not None:
            found[role] = token
    return found
