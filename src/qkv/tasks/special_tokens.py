"""Which special tokens a model has and where they go: what begins a target, which blanks are filled in."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.json_files import read_json
from qkv.spec import Spec
from qkv.tasks.types import Model, SpecialTokens
from qkv.tokenizers.tokenizer import Tokenizer

BLANK_ENDS = ("<|startofpiece|>", "<|endofpiece|>")  # begin and end the words of a blank, as GLM calls them
BLANK_TOKENS = ("[gMASK]", "[MASK]", "[sMASK]", "<mask>")  # stand for words to be filled in; the first for an end


def load_special_tokens(
    directory: Path, config: Mapping[str, Any], tokenizer: Tokenizer | None, spec: Spec
) -> SpecialTokens:
    """The special tokens of a directory: generation_config.json first, then config.json, then the tokenizer's own.

    Raises:
        QkvError: an id that the vocabulary lacks; the key is named.
    """
    vocabulary = max(spec.vocabulary, spec.sources or 0)
    stated = {**config, **read_json(directory / "generation_config.json", optional=True)}

    def read_ids(key: str, value: Any) -> tuple[int, ...]:
        found = value if isinstance(value, list) else [] if value is None else [value]
        for number in found:
            if type(number) is not int or not 0 <= number < vocabulary:
                raise QkvError("{directory}: {key} is {value} in its configs, expected a token's number below "
                               "{vocabulary} or a list of them", directory=directory, key=key,
                               value=repr(value)[:100], vocabulary=vocabulary)
        return tuple(found)

    def read_id(key: str, own: int | None = None) -> int | None:
        return next(iter(read_ids(key, stated.get(key))), own)

    ends = read_ids("eos_token_id", stated.get("eos_token_id"))
    if not ends and tokenizer is not None and tokenizer.eos_id is not None:
        ends = (tokenizer.eos_id,)
    words = stated.get("bad_words_ids")
    words = [] if words is None else words
    if not isinstance(words, list) or not all(isinstance(word, list) and word for word in words):
        raise QkvError("{directory}: bad_words_ids is {value} in its configs, expected a list of lists of tokens' "
                       "numbers", directory=directory, value=repr(words)[:100])
    forbid = tuple(ids[0] for ids in [read_ids("bad_words_ids", word) for word in words] if len(ids) == 1)
    pad = read_id("pad_token_id", tokenizer.pad_id if tokenizer else None)
    start = read_id("decoder_start_token_id")
    if start is not None and start == pad and not forbid:
        forbid = (start,)  # a decoder that starts with padding never writes it
    bos = read_id("bos_token_id", tokenizer.bos_id if tokenizer else None)
    return SpecialTokens(bos, ends, pad, start, forbid, read_id("forced_bos_token_id"))


def check_special(special: SpecialTokens, spec: Spec) -> None:
    """QkvError for the first special id that no vocabulary of the model holds."""
    count = max(spec.vocabulary, spec.sources or 0)
    for name, value in vars(special).items():
        for number in value if isinstance(value, tuple) else () if value is None else (value,):
            if not 0 <= number < count:
                raise QkvError("special: {name}: found {number}, expected a token's number from 0 to {last}",
                               code="token-id", name=name, number=number, last=count - 1)


def default_special_tokens(spec: Spec, tokenizer: Tokenizer) -> SpecialTokens:
    """The special tokens of a new model with this tokenizer."""
    eos = () if tokenizer.eos_id is None else (tokenizer.eos_id,)
    start = tokenizer.bos_id if spec.architecture == "prefix decoder" else None
    if spec.encoder and spec.decoder:
        start = tokenizer.pad_id
    piece = [i for token in BLANK_ENDS if (i := tokenizer.id(token)) is not None]
    if spec.fills_blanks and len(piece) == len(BLANK_ENDS):
        start, eos = piece[0], (piece[1],)
    return SpecialTokens(tokenizer.bos_id, eos, tokenizer.pad_id, start, () if start is None else (start,))


def blank_ids(model: Model) -> tuple[int, ...]:
    """The ids of tokens that stand for words to be filled in, of a model that writes into such blanks."""
    if model.tokenizer is None:
        return ()
    return tuple(i for name in BLANK_TOKENS if (i := model.tokenizer.id(name)) is not None)


def with_blank(ids: list[int], blanks: tuple[int, ...]) -> list[int]:
    """A prompt with a blank: where it has none, one is added at its end."""
    return ids if not blanks or set(blanks) & set(ids) else [*ids, blanks[0]]


def with_end(model: Model, target: str | list[int]) -> list[int]:
    """The ids of a target with its end token; ids stay as they are."""
    if not isinstance(target, str) or model.tokenizer is None:
        return model.ids(target)
    piece = model.tokenizer.id(BLANK_ENDS[1]) if model.spec.fills_blanks else None
    end = model.special.eos[:1] if piece is None else (piece,)
    return [*model.tokenizer.encode(target, special=False, side="target"), *end]
