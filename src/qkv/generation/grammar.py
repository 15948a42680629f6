"""Text that a grammar allows: a JSON schema, a regular expression or Lark's rules, over the bytes of the tokens.

The parser is llguidance's, an optional package. Letters: V vocabulary.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.generation.constraints import Guide
from qkv.messages import Message
from qkv.tokenizers.tokenizer import Tokenizer

Kind = Literal["json_schema", "regex", "grammar"]
# json.dumps' own; were any white space allowed, a small model would write nothing else
SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True, eq=False)
class Grammar(Guide):
    """The text is one that a grammar generates; one of `ends` follows where it is whole."""

    matcher: Any
    ends: tuple[int, ...]
    spelt: Sequence[bytes]  # what each id says

    def bar(self, barred: Tensor) -> None:
        bits = np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8)
        allowed = torch.from_numpy(np.unpackbits(bits, bitorder="little")).bool()[: len(barred)]
        allowed[list(self.ends)] = self.matcher.is_accepting()  # it would allow an end where it knows no way on
        if forced := self.matcher.compute_ff_bytes():  # if it cannot spell these, it allows what comes after them
            found = allowed.nonzero()[:, 0].tolist()
            allowed[[i for i in found if not (forced.startswith(s := self.spelt[i]) or s.startswith(forced))]] = False
        barred[len(allowed) :] = True
        barred[: len(allowed)] |= ~allowed

    def follow(self, token: int) -> Guide:
        matcher = self.matcher.deep_copy()  # half a microsecond: what was parsed is shared
        if token not in self.ends:
            matcher.consume_token(token)
        return replace(self, matcher=matcher)


def build_grammar(kind: Kind, source: str, tokenizer: Tokenizer | None, size: int, ends: tuple[int, ...]) -> Grammar:
    """The rule that a text follows a grammar, for a vocabulary of `size` ids.

    Raises:
        QkvError: llguidance is not there, the model has no tokenizer or end id that it needs, or the grammar is broken
            or generates no text; nothing was written then.
    """
    if tokenizer is None or not ends:
        raise QkvError("{kind}: it needs a tokenizer and an id that ends a text, and this model lacks one",
                       code="grammar", kind=kind)
    known: GrammarTokens | None = tokenizer.grammar_tokens
    if known is None or known.made_for != (size, ends):
        known = tokenizer.grammar_tokens = prepare_tokens(kind, tokenizer, size, ends)
    matcher = known.matcher
    rules = source
    if any("\ud800" <= c <= "\udfff" for c in source):
        refuse_grammar(kind, source, Message("there is half a character in it: a lone surrogate"))
    if kind == "json_schema":
        rules = matcher.grammar_from_json_schema(read_schema(source), overrides=SPACES)
    elif kind == "regex":
        rules = matcher.grammar_from_regex(source)
    wrong = matcher.validate_grammar(rules, known.tokens)
    if wrong and not wrong.startswith("WARNING"):
        refuse_grammar(kind, source, wrong)
    made = Grammar(matcher(known.tokens, rules, log_level=0), ends, known.spelt)
    if not leads_on(made, size):
        refuse_grammar(kind, source, Message("no text that this vocabulary can spell follows it"))
    return made


def leads_on(grammar: Guide, size: int, steps: int = 32) -> bool:
    """Whether something may be written; where one token alone may, it is followed, so that dead ends show early."""
    for _ in range(steps):
        barred = torch.zeros(size, dtype=torch.bool)
        grammar.bar(barred)
        allowed = (~barred).nonzero()[:, 0].tolist()
        if len(allowed) != 1:
            return bool(allowed)
        grammar = grammar.follow(allowed[0])
    return True


def read_schema(source: str) -> str:
    """A JSON schema as an object in JSON: true is {}, and false allows nothing."""
    try:
        found = json.loads(source)
    except ValueError as error:
        refuse_grammar("json_schema", source, error)
    if found is not True and not isinstance(found, Mapping):
        refuse_grammar("json_schema", source, Message("nothing follows it") if found is False else
                       Message("a JSON schema is an object"))
    return "{}" if found is True else source


def refuse_grammar(kind: Kind, source: str, wrong: object) -> NoReturn:
    """The error for a grammar that nothing can follow; of what is wrong with it the first lines."""
    wrong = wrong if isinstance(wrong, Message) else " ".join(str(wrong).split())[:300]
    shown = source if len(source) <= 100 else f"{source[:100]}…"
    raise QkvError("{kind} {source!r}: {wrong}; nothing was written", code="grammar", kind=kind, source=shown,
                   wrong=wrong) from None


class GrammarTokens(NamedTuple):
    """The tokens of a tokenizer as llguidance knows them, and its parser."""

    matcher: Any
    tokens: Any
    spelt: Sequence[bytes]
    made_for: tuple[int, tuple[int, ...]]  # vocabulary and ends


class Spelled:
    """What llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, size: int, end: int) -> None:
        self.eos_token_id = end
        self.special_token_ids = sorted({end, *filter(None, tokenizer.special_ids)})
        spelling, special = tokenizer.spelling, set[int](self.special_token_ids)
        assert spelling is not None
        self.tokens = [b"" if i in special or i >= len(tokenizer) else spelling.spell(tokenizer.lookup(i) or "")
                       for i in range(size)]
        self.encode, self.numbers = tokenizer.encode, {spelt: i for i, spelt in enumerate(self.tokens) if spelt}
        self.longest = max(map(len, self.numbers))

    def __call__(self, text: str | bytes) -> list[int]:
        """The ids of what must come within a text: the tokenizer's own, where it adds nothing at its beginning."""
        data = text.encode() if isinstance(text, str) else text
        ids = self.encode(data.decode("utf-8", "replace"), special=False)
        return ids if b"".join(self.tokens[i] for i in ids) == data else self.cut_bytes(data)

    def cut_bytes(self, data: bytes) -> list[int]:
        """The longest tokens that bytes consist of, from the left, as far as there are such."""
        ids, at = list[int](), 0
        while at < len(data):
            size = next((n for n in range(self.longest, 0, -1) if data[at : at + n] in self.numbers), 0)
            if not size:
                break
            ids.append(self.numbers[data[at : at + size]])
            at += size
        return ids


def prepare_tokens(kind: Kind, tokenizer: Tokenizer, size: int, ends: tuple[int, ...]) -> GrammarTokens:
    """The tokens as llguidance takes them: made once for a tokenizer.

    Raises:
        QkvError: llguidance is not installed, or what a token says depends on its neighbours.
    """
    try:
        import llguidance
    except ImportError:
        raise QkvError("{kind}: grammars need llguidance: pip install 'qkv[serve]'", code="no-llguidance",
                       kind=kind) from None
    if tokenizer.spelling is None:
        raise QkvError("{kind}: what a token of this tokenizer says depends on its neighbours, so a grammar cannot "
                       "guide it; a model with byte-level or sentencepiece tokens can be guided", code="grammar",
                       kind=kind)
    spelled = Spelled(tokenizer, size, ends[0])
    wrapped: Any = llguidance.TokenizerWrapper(spelled)
    tokens = llguidance.LLTokenizer(wrapped, n_vocab=size, eos_token=ends[0])
    return GrammarTokens(llguidance.LLMatcher, tokens, spelled.tokens, (size, ends))
