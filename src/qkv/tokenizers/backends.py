"""The tokenizers that checkpoints bring: each way of writing one gives a backend and special tokens.

Which way it is, tokenizer_config.json's class says, else config.json's model type, else the files that are there.
"""

import base64
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from qkv.errors import QkvError, nearest
from qkv.families import Config, modules
from qkv.json_files import parse_json, read_json, read_text
from qkv.messages import Message, join
from qkv.tokenizers import sentencepiece

Kind = Literal["bytes", "bytes-nfc", "bytes-framed", "words", "pieces", "sentence", "sentence-offset", "pair",
               "numbered", "json"]
CLASSES: dict[str, Kind] = {  # the names that tokenizer_class gives, without Tokenizer(Fast)
    "GPT2": "bytes", "CodeGen": "bytes", "Qwen2": "bytes-nfc", "Roberta": "bytes-framed", "Bart": "bytes-framed",
    "OpenAIGPT": "words", "Bert": "pieces", "DistilBert": "pieces", "Electra": "pieces", "T5": "sentence",
    "MT5": "sentence", "Llama": "sentence", "CodeLlama": "sentence", "XLMRoberta": "sentence-offset",
    "Marian": "pair", "M2M100": "numbered", "PreTrained": "json", "TokenizersBackend": "json",
}
QWEN2 = (  # what Qwen2 cuts at before merging: GPT-4's expression with single digits
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
OFFSET: Kind = "sentence-offset"
PREFIX = re.compile(r'"continuing_subword_prefix":\s*"[^"]')
CHARSMAP = re.compile(r'"precompiled_charsmap":\s*"([^"]*)"')
FEW = 8  # tokens, and one in a hundred, that no merge makes (RoBERTa's madeupword0000) or that stand there twice
MOST_TOKENS = 1 << 24  # a number of a token is below it; tables have a row for each
LEAST_SHARE = 0.9  # of the embedding's rows, below which a vocab.txt was cut; some models have rows to spare
GROWTH, LONGEST = 100, 256  # how much longer a text may become; bytes that one character may become
ROLES = ("bos", "eos", "pad", "unk", "mask", "cls", "sep")
FLAGS = ("add_prefix_space", "add_bos_token", "add_eos_token", "do_lower_case", "strip_accents",
         "tokenize_chinese_chars", "separate_vocabs")


@dataclass(frozen=True)
class Stated:
    """What a directory says beside its vocabulary: the tokenizer's config, the special tokens and the kind, if any."""

    directory: Path
    config: dict[str, Any]
    roles: dict[str, str]
    kind: Kind | None


@dataclass(frozen=True)
class FoundTokenizer:
    """A backend with its special tokens; `target`, `names`, `sources` and `files` as Tokenizer has them."""

    backend: tokenizers.Tokenizer
    roles: dict[str, str]
    target: tokenizers.Tokenizer | None = None
    names: Sequence[str] | None = None
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    sources: "FoundTokenizer | None" = None


def find(directory: Path) -> FoundTokenizer | None:
    """The tokenizer of a directory, None where no file of one is there.

    Raises:
        QkvError: a file is broken, one of two that belong together is missing, or the class named needs another file.
    """
    config = read_json(directory / "tokenizer_config.json", optional=True)
    stated, kind = kind_of(directory, config)
    fitting = [names for names, _, kinds in KNOWN if kind is None or "json" in kinds or kind in kinds]
    for names, make, _ in sorted(KNOWN, key=lambda row: row[0] not in fitting):
        there = [name for name in names if (directory / name).is_file()]
        if names not in fitting and (stated is not None or len(there) < len(names)):
            continue  # what the model's type says is a hint, a class is a statement
        if there and (len(there) == len(names) or there != ["vocab.json"]):
            missing = [name for name in names if name not in there]
            if missing:
                raise QkvError("{directory}: found {there}, expected {missing} beside it", directory=directory,
                               there=join(" and ", there), missing=join(" and ", missing))
            if names != ("tokenizer.json",):  # which says all of this itself
                check_config(Config(config, str(directory / "tokenizer_config.json")))
            with guard_panics(Message("{directory}: cannot be read as a tokenizer", directory=directory / names[0])):
                about = Stated(directory, config, roles_of(directory, config), kind)
                return add_extra_tokens(about, make(about, *names))
    if stated is not None:
        wanted = ", or ".join(" and ".join(names) for names in fitting)
        raise QkvError("{directory}: its tokenizer_class is {stated}, expected {wanted}, and found none of them",
                       directory=directory, stated=stated, wanted=wanted)
    if (directory / "vocab.json").is_file():
        raise QkvError("{directory}: found vocab.json, expected merges.txt or source.spm and target.spm beside it",
                       directory=directory)
    return None


def check_config(config: Config) -> None:
    """QkvError for a key of a tokenizer_config.json that holds something else than it should."""
    for key in FLAGS:
        config.flag(key, None)
    config.count("extra_ids", 0)
    rows = config.part("added_tokens_decoder")
    for number in rows.values:
        if not number.isdecimal():
            raise rows.error(number, rows.values[number], Message("the number of a token as the key"))
        row = rows.part(number)
        row.text("content")
        for key in ("single_word", "lstrip", "rstrip", "normalized", "special"):
            row.flag(key, False)
        row.finish(())


def kind_of(directory: Path, own: Mapping[str, Any]) -> tuple[str | None, Kind | None]:
    """The tokenizer's class as the directory states it, and what kind it or the model's type means; None if unsaid.

    Raises:
        QkvError: a class that is not known, and no tokenizer.json, which would say all.
    """
    config = read_json(directory / "config.json", optional=True)
    stated = own.get("tokenizer_class") or config.get("tokenizer_class")
    if not isinstance(stated, str):
        stated = str(config.get("model_type"))
        told = (getattr(family, "TOKENS", {}).get(stated) for family in modules().values())
        return None, cast("Kind | None", next(filter(None, told), None))
    name = stated.removesuffix("Fast").removesuffix("Tokenizer")
    known = [f"{name}Tokenizer" for name in CLASSES]
    if name not in CLASSES and not (directory / "tokenizer.json").is_file():
        raise QkvError("{directory}: tokenizer_class {stated!r} is not known{hint} (known: {known}); a tokenizer.json "
                       "beside it would also work, which transformers' save_pretrained writes", directory=directory,
                       stated=stated, hint=nearest(stated, known), known=", ".join(known))
    return stated, CLASSES.get(name, "json")


@contextmanager
def guard_panics(what: Message) -> Iterator[None]:
    """Turn what the backend raises into one error; its panics are not Exceptions and would end the process."""
    try:
        yield
    except QkvError:
        raise
    except BaseException as e:
        if not isinstance(e, Exception) and type(e).__name__ != "PanicException":
            raise
        said = str(e)  # may quote a whole value of the file; what was expected is at its end
        said = said if len(said) <= 400 else f"{said[:200]} … {said[-200:]}"
        raise QkvError("{what}: {e}", what=what, e=said) from e


def one_file(about: Stated, name: str) -> FoundTokenizer:
    """tokenizer.json; special tokens are named beside it, else by their ids in the model's config."""
    path = about.directory / name
    text = read_text(path)
    refuse_aborts(path, text)
    backend = tokenizers.Tokenizer.from_str(text)
    if isinstance(backend.model, models.BPE):  # whose merges name tokens
        refuse_twins(path, backend.get_vocab(with_added_tokens=False))
    backend.no_truncation()
    backend.no_padding()
    state: Any = backend.normalizer and json.loads(backend.normalizer.__getstate__())  # pyright: ignore[reportArgumentType]
    if state and measure_growth(state) > GROWTH:
        raise QkvError("{path}: its normalizer makes a text more than {most} times as long; refused", path=path,
                       most=GROWTH)
    unk = getattr(backend.model, "unk_token", None)
    own = {"unk": unk} if isinstance(unk, str) else {}
    return FoundTokenizer(backend, own | _ids(about.directory, backend) | about.roles)


def refuse_aborts(path: Path, text: str) -> None:
    """QkvError for a tokenizer.json at which the library would end the process instead of raising."""
    prefix = PREFIX.search(text) if '"merges"' in text else None
    if prefix:
        model = parse_json(path).get("model") or {}
        rows: list[Any] = [m.split(" ", 1) if isinstance(m, str) else m for m in model.get("merges") or []]
        start, bad = model.get("continuing_subword_prefix"), None
        if isinstance(start, str):
            bad = next((row for row in rows if not str(row[-1]).startswith(start)), None)
        if bad:
            raise QkvError("{path}: continuing_subword_prefix is {start!r}, but the merge {bad} does not carry it",
                           path=path, start=start, bad=bad)
    for found in CHARSMAP.finditer(text):
        data = base64.b64decode(found[1])
        trie = 4 + int.from_bytes(data[:4], "little")  # the size of the trie, the trie, the texts that it leads to
        if len(data) < trie or max(map(len, data[trie:].split(b"\0"))) > LONGEST:
            raise QkvError("{path}: precompiled_charsmap is cut or holds texts of more than {most} bytes", path=path,
                           most=LONGEST)


def measure_growth(step: Mapping[str, Any]) -> float:
    """How many times as long a normalizer's replacements may make a text."""
    if step["type"] == "Sequence":
        return math.prod(map(measure_growth, step["normalizers"]))
    if step["type"] != "Replace":
        return 1.0
    return max(1.0, len(step["content"]) / len(step["pattern"].get("String") or "."))


def two_files(about: Stated, vocabulary: str, merges: str) -> FoundTokenizer:
    """A BPE in two files: over bytes (Radford et al. 2019), or over words whose ends are marked (the same, 2018)."""
    names = _vocabulary(about.directory / vocabulary)
    pairs = _merges(about.directory / merges, names)
    kind = about.kind if about.kind in BYTES else _kind_of_names(names)
    space = bool(about.config.get("add_prefix_space", False))
    backend = _words(names, pairs) if kind == "words" else _bytes(names, pairs, kind, space)
    usual = USUAL[kind]
    roles = {role: token for role, token in usual.items() if token in names} | about.roles
    special = [t for t in dict.fromkeys(roles.values()) if t in names]
    backend.add_special_tokens([AddedToken(t, normalized=False, lstrip=t == usual.get("mask")) for t in special])
    if kind == "bytes-framed":
        ends = [(token, names[token]) for token in (roles.get("sep", ""), roles.get("cls", "")) if token in names]
        if len(ends) != 2:
            raise QkvError("{directory}: no <s> or no </s> among its {names} tokens",
                           directory=about.directory / vocabulary, names=len(names))
        backend.post_processor = processors.RobertaProcessing(ends[0], ends[1], True, space)
    elif about.config.get("add_bos_token") and roles.get("bos") in names:
        backend.post_processor = template((roles["bos"], names[roles["bos"]]), None)
    return FoundTokenizer(backend, roles)


END = "<|endoftext|>"
FRAME = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>", "cls": "<s>", "sep": "</s>"}
USUAL = {
    "bytes": {"bos": END, "eos": END, "unk": END}, "bytes-nfc": {"eos": END, "pad": END, "unk": END},
    "bytes-framed": FRAME, "words": {"unk": "<unk>"},
}


def _merges(path: Path, names: Mapping[str, int]) -> list[tuple[str, str]]:
    """The pairs of a merges.txt, one a line."""
    pairs = list[tuple[str, str]]()
    for number, line in enumerate(read_text(path).split("\n"), 1):
        parts = line.rstrip("\r").split(" ")
        if parts == [""] or parts[0] == "#version:":
            continue
        if len(parts) != 2 or "" in parts:
            raise QkvError("{path}, line {number}: found {line}, expected two parts with a space between", path=path,
                           number=number, line=repr(line)[:80])
        pairs.append((parts[0], parts[1]))
    made = {left + right for left, right in pairs}
    left = [n for n in names if len(n.removesuffix("</w>")) > 1 and n not in made and not n.startswith(("<", "["))]
    if len(left) > (FEW + len(names) // 100 if pairs else 0):
        raise QkvError("{path}: its {merges} merges do not make {count} of the {names} tokens, such as {token!r}, "
                       "which only merges can make: is the file complete?", path=path, merges=len(pairs),
                       count=len(left), names=len(names), token=left[-1])
    return pairs


def _kind_of_names(names: Mapping[str, int]) -> Kind:
    """What the tokens themselves reveal: marked ends of words, or the two symbols that frame a text."""
    if sum(name.endswith("</w>") for name in names) > len(names) // 10:
        return "words"
    return "bytes-framed" if {"<s>", "</s>"} <= names.keys() and END not in names else "bytes"


def _bytes(names: dict[str, int], pairs: list[tuple[str, str]], kind: Kind, space: bool) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(names, pairs))
    if kind == "bytes-nfc":
        backend.normalizer = normalizers.NFC()
        cut = pre_tokenizers.Split(Regex(QWEN2), "isolated")
        spell = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([cut, spell])
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    backend.decoder = decoders.ByteLevel()
    return backend


def _words(names: dict[str, int], pairs: list[tuple[str, str]]) -> tokenizers.Tokenizer:
    """Lower-cased words and single marks, the last letter of each marked."""
    unk = "<unk>" if "<unk>" in names else None
    backend = tokenizers.Tokenizer(models.BPE(names, pairs, unk_token=unk, end_of_word_suffix="</w>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return backend


def add_extra_tokens(about: Stated, found: FoundTokenizer) -> FoundTokenizer:
    """With the tokens that the directory adds to its vocabulary; tokenizer.json and pairs of models hold their own.

    Raises:
        QkvError: an added token whose id is not the one stated.
    """
    directory = about.directory
    if found.target is not None or (directory / "tokenizer.json").is_file():
        return found
    stated = {
        int(i): AddedToken(**{"normalized": False, **cast("dict[str, Any]", row)})  # pyright: ignore[reportArgumentType]
        for i, row in cast("dict[str, object]", about.config.get("added_tokens_decoder", {})).items()
    }
    for content, i in _vocabulary(directory / "added_tokens.json", empty=True).items():
        stated.setdefault(i, AddedToken(content, normalized=False, special=content in found.roles.values()))
    for i, token in sorted(stated.items()):
        add = found.backend.add_special_tokens if token.special else found.backend.add_tokens
        add([token])
        if (got := found.backend.token_to_id(token.content)) != i:
            raise QkvError("{directory}: the added token {content!r} is listed with the id {i}, but the vocabulary of "
                           "{get_vocab_size} tokens gives it {got}; do the files belong together?", directory=directory,
                           content=token.content, i=i, get_vocab_size=found.backend.get_vocab_size(), got=got)
    known = [t for t in list_extra_tokens(about.config) if found.backend.token_to_id(t) is not None]
    found.backend.add_special_tokens([AddedToken(t, normalized=False) for t in known])
    return found


def list_extra_tokens(config: Mapping[str, Any]) -> list[str]:
    """The special tokens beside those with a role, as a config lists them."""
    more = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    named = [t.get("content") if isinstance(t, dict) else t for t in more] if isinstance(more, list) else []
    return [t for t in named if isinstance(t, str)]


def require_tokens(path: Path, ids: Mapping[str, int], wanted: Sequence[str]) -> None:
    """QkvError where a vocabulary lacks special tokens."""
    if lacking := [token for token in wanted if token not in ids]:
        raise QkvError("{path}: no token {lacking}, expected the special tokens to be among the {ids}", path=path,
                       lacking=", ".join(lacking), ids=len(ids))


def two_models(about: Stated, source: str, target: str, vocabulary: str) -> FoundTokenizer:
    """A sentencepiece model for each side (Marian), over one numbering or, by `separate_vocabs`, over one for each."""
    found = number_models(about, source, target, vocabulary)
    if not about.config.get("separate_vocabs"):
        return found
    apart = number_models(about, source, target, "target_vocab.json")
    return replace(apart, sources=found, files={**found.files, **apart.files})


def number_models(about: Stated, source: str, target: str, vocabulary: str) -> FoundTokenizer:
    """Two sentencepiece models over the numbering of one file; texts end with the end symbol."""
    directory, path = about.directory, about.directory / vocabulary
    ids = _vocabulary(path)
    if sorted(ids.values()) != list(range(len(ids))):
        raise QkvError("{path}: found {ids} tokens whose ids do not run from 0 to {ids2}", path=path, ids=len(ids),
                       ids2=len(ids) - 1)
    roles = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"} | about.roles
    require_tokens(path, ids, [roles[role] for role in ("eos", "unk", "pad")])
    named = [*roles.values(), *(t for t in ids if t.startswith(">>") and t.endswith("<<"))]  # >>fra<< names a language
    models = (sentencepiece.read_model(directory / name) for name in (source, target))
    sides = [sentencepiece.build_tokenizer(model, ids, named) for model in models]
    for side in sides:
        side.post_processor = template(None, (roles["eos"], ids[roles["eos"]]))
    kept = [source, target, vocabulary, "tokenizer_config.json", "special_tokens_map.json"]
    data = {name: (directory / name).read_bytes() for name in kept if (directory / name).is_file()}
    return FoundTokenizer(sides[0], roles, sides[1], sorted(ids, key=ids.__getitem__), files=data)


def numbered_model(about: Stated, vocabulary: str, name: str) -> FoundTokenizer:
    """A sentencepiece model over the numbering of a file, with the languages behind it as they are listed (M2M-100)."""
    directory, ids = about.directory, _vocabulary(about.directory / vocabulary)
    beside = read_json(directory / "special_tokens_map.json", optional=True) | about.config
    languages = [t for t in list_extra_tokens(beside) if t.startswith("__") and t not in ids]
    ids |= {language: len(ids) + i for i, language in enumerate(languages)}
    roles = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"} | about.roles
    require_tokens(directory / vocabulary, ids, [roles[role] for role in ("eos", "unk", "pad")])
    model = sentencepiece.read_model(directory / name)
    backend = sentencepiece.build_tokenizer(model, ids, [*roles.values(), *languages])
    source, end = f"__{beside.get('src_lang') or 'en'}__", roles["eos"]
    backend.post_processor = template((source, ids[source]) if source in ids else None, (end, ids[end]))
    return FoundTokenizer(backend, roles)


def one_model(about: Stated, name: str) -> FoundTokenizer:
    """A sentencepiece model: BPE texts start with the begin symbol, unigram end with the end symbol, by default."""
    model, config, offset = sentencepiece.read_model(about.directory / name), about.config, about.kind == OFFSET
    ids = _offset(model) if offset else {piece: i for i, piece in enumerate(model.pieces)}
    backend = sentencepiece.build_tokenizer(model, ids if offset else None, FRAME.values() if offset else ())
    roles = (FRAME if offset else model.roles) | about.roles
    extra = 0 if offset else int(config.get("extra_ids", 100 if model.pieces[0] == "<pad>" else 0))
    room = read_json(about.directory / "config.json", optional=True).get("vocab_size", len(model.pieces) + extra)
    if extra and len(model.pieces) + extra <= room:  # sentinels count down to the first piece (Raffel et al. 2020)
        sentinels = [AddedToken(f"<extra_id_{i}>", normalized=False) for i in range(extra - 1, -1, -1)]
        backend.add_special_tokens(sentinels)
    bpe = model.kind == "bpe"
    wanted = {"bos": config.get("add_bos_token", bpe or offset), "eos": config.get("add_eos_token", not bpe or offset)}
    ends = [(t, ids[t]) if use and (t := roles.get(role)) in ids else None for role, use in wanted.items()]
    backend.post_processor = template(*ends)
    return FoundTokenizer(backend, roles)


def _offset(model: sentencepiece.Pieces) -> dict[str, int]:
    """Fairseq's numbering: four symbols of its own in front of the model's pieces, the mask behind them."""
    ids = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    for piece in model.pieces[3:]:
        ids.setdefault(piece, len(ids))
    return {**ids, "<mask>": len(ids)}


def word_pieces(about: Stated, name: str) -> FoundTokenizer:
    """A WordPiece vocabulary, one token a line (Devlin et al. 2019)."""
    path, config = about.directory / name, about.config
    lines = read_text(path).removesuffix("\n").split("\n")
    names = {line.rstrip("\r"): i for i, line in enumerate(lines)}  # of equal ones the last counts; some sets have one
    if (twice := len(lines) - len(names)) > FEW + len(lines) // 100:
        raise QkvError("{path}: {twice} of its {lines} lines stand there twice or are blank, expected a token in each",
                       path=path, twice=twice, lines=len(lines))
    beside = about.directory / "config.json"
    rows = Config(read_json(beside, optional=True), str(beside)).count("vocab_size", 0)
    if len(names) < LEAST_SHARE * rows:
        raise QkvError("{path}: found {lines} tokens, and config.json says {rows}: is the file complete?", path=path,
                       lines=len(names), rows=rows)
    usual = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"} | about.roles
    require_tokens(path, names, [usual[role] for role in ("unk", "sep", "cls")])
    return FoundTokenizer(build_word_pieces(names, usual, config), usual)


def build_word_pieces(
    names: dict[str, int], usual: Mapping[str, str], config: Mapping[str, Any]
) -> tokenizers.Tokenizer:
    """WordPieces by id as a backend, with the special tokens by role and what a tokenizer_config.json says."""
    backend = tokenizers.Tokenizer(models.WordPiece(names, unk_token=usual["unk"], max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=bool(config.get("do_lower_case", True)), strip_accents=config.get("strip_accents"),
        handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens([AddedToken(t, normalized=False) for t in usual.values() if t in names])
    cls, sep = usual["cls"], usual["sep"]
    backend.post_processor = processors.BertProcessing((sep, names[sep]), (cls, names[cls]))
    return backend


BYTES: tuple[Kind, ...] = ("bytes", "bytes-nfc", "bytes-framed", "words")
SENTENCE: tuple[Kind, ...] = ("sentence", OFFSET)
KNOWN: tuple[tuple[tuple[str, ...], Callable[..., FoundTokenizer], tuple[Kind, ...]], ...] = (
    (("tokenizer.json",), one_file, ("json",)),
    (("source.spm", "target.spm", "vocab.json"), two_models, ("pair",)),
    (("vocab.json", "merges.txt"), two_files, BYTES),
    (("encoder.json", "vocab.bpe"), two_files, BYTES),
    (("tokenizer.model",), one_model, SENTENCE),
    (("spiece.model",), one_model, SENTENCE),
    (("sentencepiece.bpe.model",), one_model, SENTENCE),
    (("vocab.json", "sentencepiece.bpe.model"), numbered_model, ("numbered",)),
    (("vocab.txt",), word_pieces, ("pieces",)),
)


def find_files(directory: Path) -> Iterator[Path]:
    """The files of a vocabulary that a directory holds."""
    return (directory / name for names, _, _ in KNOWN for name in names if (directory / name).is_file())


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


def templates(directory: Path) -> dict[str, Any]:
    """The chat template of a directory as `{"chat_template": text or [{name, template}]}`, empty where it has none.

    A file chat_template.jinja (and further ones in additional_chat_templates/) comes before chat_template.json, and
    that before the key in tokenizer_config.json, as in transformers.

    Raises:
        QkvError: a template that is neither text nor a list of named texts.
    """
    file, more = directory / "chat_template.jinja", sorted((directory / "additional_chat_templates").glob("*.jinja"))
    if file.is_file():
        found: object = read_text(file)
        if more:
            named = [{"name": path.stem, "template": read_text(path)} for path in more]
            found = [{"name": "default", "template": found}, *named]
        return {"chat_template": found}
    for name in ("chat_template.json", "tokenizer_config.json"):
        found = read_json(directory / name, optional=True).get("chat_template")
        if found is None:
            continue
        rows = found if isinstance(found, list) else [{"name": "default", "template": found}]
        if not all(isinstance(r, dict) and all(isinstance(r.get(k), str) for k in ("name", "template")) for r in rows):
            raise QkvError("{directory}: chat_template is neither a text nor a list of {{name, template}}",
                           directory=directory / name)
        return {"chat_template": found}
    return {}


def _vocabulary(path: Path, *, empty: bool = False) -> dict[str, int]:
    found = read_json(path, optional=empty)
    wrong = next((t for t, i in found.items() if type(i) is not int or not 0 <= i < MOST_TOKENS), None)
    if wrong is not None:
        raise QkvError("{path}: token {wrong!r} has {found!r} as its id, expected a number from 0 to below {most:,}",
                       path=path, wrong=wrong, found=found[wrong], most=MOST_TOKENS)
    if not found and not empty:
        raise QkvError("{path}: the vocabulary is empty", path=path)
    refuse_twins(path, found)
    return found


def refuse_twins(path: Path, ids: Mapping[str, int]) -> None:
    """QkvError where two tokens have one id, of which a saved file would hold one only."""
    if len(names := {i: token for token, i in ids.items()}) < len(ids):
        token, i = next((token, i) for token, i in ids.items() if names[i] != token)
        raise QkvError("{path}: the tokens {token!r} and {other!r} both have the id {i}, expected one each", path=path,
                       token=token, other=names[i], i=i)


def roles_of(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens by name, as tokenizer_config.json or special_tokens_map.json say."""
    named = {**read_json(directory / "special_tokens_map.json", optional=True), **config}
    said, texts = Config(named, f"{directory}: tokenizer_config.json or special_tokens_map.json"), dict[str, str]()
    for role in ROLES:
        token = named.get(f"{role}_token")
        texts[role] = said.part(f"{role}_token").text("content") if isinstance(token, dict) else said.text(
            f"{role}_token", None)
    return {role: text for role, text in texts.items() if text}


def _ids(directory: Path, backend: tokenizers.Tokenizer) -> dict[str, str]:
    """The special tokens by id, as the model's configs say."""
    stated = {key: value for name in ("config.json", "generation_config.json")
              for key, value in read_json(directory / name, optional=True).items()}
    values = {role: stated.get(f"{role}_token_id") for role in ROLES}
    numbers = {role: value[0] if isinstance(value, list) and value else value for role, value in values.items()}
    tokens = {role: backend.id_to_token(n) for role, n in numbers.items() if type(n) is int and 0 <= n < 2**31}
    return {role: token for role, token in tokens.items() if token is not None}
