"""Text to ids and back: one wrapper round the `tokenizers` library, whatever the vocabulary is made of.

Next: `backends.py` builds the backend from a model's directory, `vocabulary.py` from text.
"""

import codecs
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tokenizers

from qkv.errors import QkvError
from qkv.gguf_file import open_gguf
from qkv.json_files import read_json
from qkv.messages import Message
from qkv.paths import is_gguf
from qkv.tokenizers import backends, control_tokens, gguf
from qkv.tokenizers.backends import ROLES, guard_panics
from qkv.tokenizers.bigrams import Bigrams, find_bigrams

KEPT = ("chat_template", "model_max_length", "padding_side")  # of a loaded tokenizer_config.json
CHARACTER = 4  # bytes of UTF-8 at most
SOURCES = "source_tokenizer"  # the folder of the source side's, where the sides number their tokens apart
Side = Literal["source", "target"]


class Tokenizer:
    """Text to ids and back, with the special tokens of a model by role; ids are None where it has none.

    `target` cuts the target side's text where that has its own rules. Both sides share one numbering, unless `sources`
    has the source side's. `names` are the tokens by id where the backend's own do not say it; ids of the backend beyond
    them mean the unknown.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, *, bos: str | None = None, eos: str | None = None, pad: str | None = None,
        unk: str | None = None, mask: str | None = None, cls: str | None = None, sep: str | None = None,
        target: tokenizers.Tokenizer | None = None, names: Sequence[str] | None = None,
        sources: "Tokenizer | None" = None,
    ) -> None:
        self.sources = sources
        self.backend, self._sides = backend, {"source": backend, "target": target or backend}
        self._numbers = None if names is None else {name: i for i, name in enumerate(names)}
        self.size = backend.get_vocab_size() if names is None else len(names)
        # the id of a token, None if there is no such token; and the token of an id
        self.id: Callable[[str], int | None] = backend.token_to_id if names is None else (self._numbers or {}).get
        self.lookup = backend.id_to_token if names is None else dict(enumerate(names)).get
        self.bigrams: Bigrams | None = None  # which are tokens too
        self.place: str | Path = "tokenizer"  # the file of its vocabulary
        self.config: dict[str, Any] = {}
        self.files: Mapping[str, bytes] = {}  # what save() writes instead of a tokenizer.json
        given = zip(ROLES, (bos, eos, pad, unk, mask, cls, sep), strict=True)
        self.roles = {role: token for role, token in given if token is not None and self.id(token) is not None}
        known = {role: self.id(token) for role, token in self.roles.items()}
        self.bos_id, self.eos_id = known.get("bos"), known.get("eos")  # begin and end a text
        self.pad_id, self.unk_id = known.get("pad"), known.get("unk")  # fill up a batch; what the vocabulary lacks
        self.mask_id = known.get("mask")  # stands where a token is to be guessed
        self.cls_id, self.sep_id = known.get("cls"), known.get("sep")  # stands for a text; stands between two
        added = backend.get_added_tokens_decoder()
        self.special_ids = {i for i, token in added.items() if token.special} | set(known.values())
        self.spelling = Spelling.from_decoder(backend.decoder)
        self._control: control_tokens.ControlTokens | None = None  # made when it is first asked for
        self.grammar_tokens: Any = None  # likewise, by generation/grammar.py

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"Tokenizer({len(self)} tokens, {', '.join(f'{r}={t!r}' for r, t in self.roles.items())})"

    @property
    def vocabulary(self) -> dict[str, int]:
        """Every token with its id."""
        return self.backend.get_vocab() if self._numbers is None else dict(self._numbers)

    def token(self, id: int) -> str:  # noqa: A002
        """The token of an id.

        Raises:
            QkvError: there is no such id.
        """
        found = self.lookup(id) if id >= 0 else None
        if found is None:
            raise QkvError("no token has the id {id}; this tokenizer has {it} tokens", id=id, it=len(self))
        return found

    def guard(self) -> AbstractContextManager[None]:
        """What fails within becomes a QkvError that names the vocabulary's file."""
        return guard_panics(Message("{place}: the tokenizer cannot read this", place=self.place))

    def encode(self, text: str, *, special: bool = True, side: Side = "source") -> list[int]:
        """The ids of a text; `special` adds the tokens that the model's own template puts around it."""
        return self.encode_batch([text], special=special, side=side)[0]

    def encode_batch(self, texts: Sequence[str], *, special: bool = True, side: Side = "source") -> list[list[int]]:
        """The ids of each text, unpadded."""
        if side == "source" and self.sources is not None:
            return self.sources.encode_batch(texts, special=special)
        refuse_halves(texts)
        backend = self._sides[side]
        with self.guard():
            if self._numbers is None:
                rows = [e.ids for e in backend.encode_batch_fast(list(texts), add_special_tokens=special)]
                return [self.bigrams.add_to(row) for row in rows] if self.bigrams else rows
            found = backend.encode_batch(list(texts), add_special_tokens=special)
        return [self._renumber(text, e) for text, e in zip(texts, found, strict=True)]

    def encode_parts(self, parts: Sequence[tuple[str, bool]]) -> list[int]:
        """The ids of a text in parts, in which control tokens count only in the parts marked True.

        Elsewhere they are text, spelt with ordinary tokens; without any the ids are those of the joined text.

        Raises:
            QkvError: the vocabulary is in two parts (source and target).
        """
        if self._control is None:
            if self._numbers is not None:
                raise QkvError("a tokenizer with one model for each side has no control tokens; encode the text")
            self._control = control_tokens.find_control_tokens(self.backend, frozenset(self.roles.values()))
        refuse_halves([text for text, _ in parts])
        with self.guard():
            return self._control.encode_parts(parts)

    def _renumber(self, text: str, found: tokenizers.Encoding) -> list[int]:
        """What one side's pieces lack, the common numbering may still have under its own spelling."""
        unk, numbers = self.unk_id or 0, self._numbers or {}
        known = [i if i < self.size else unk for i in found.ids]
        spans = zip(known, found.offsets, strict=True)
        return [numbers.get(text[start:end], unk) if i == unk else i for i, (start, end) in spans]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids, the same as `stream` gives piece by piece; special tokens are dropped unless `special`.

        Ids that no token has (a vocabulary padded to a round size) give no text.
        """
        kept = [i for i in ids if 0 <= i < self.size and (special or i not in self.special_ids)]
        kept = self.bigrams.remove_from(kept) if self.bigrams else kept
        if self.spelling is None:
            with self.guard():
                return self.backend.decode(kept, skip_special_tokens=False)
        text = b"".join(self.spelling.spell(self.lookup(i) or "") for i in kept).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.spelling.lead else text

    def stream(self, after: Sequence[int] = ()) -> "Stream":
        """A decoder that is given ids one by one; what it says continues the text of the ids `after` which it comes."""
        stream = Stream(self)
        stream.follow(after)
        return stream

    def pieces(self, ids: Sequence[int], *, side: Side = "target") -> list[str]:
        """What each id looks like on a page: no marks for spaces, and bytes of a cut character as ⟨e4⟩."""
        made = self if side == "target" else self.sources or self
        return [made._piece(i) for i in ids]

    def _piece(self, id: int) -> str:  # noqa: A002
        if not 0 <= id < self.size:
            return f"⟨{id}⟩"
        token = self.token(id)
        if id in self.special_ids:
            return token
        text = token.replace("▁", " ") if self.spelling is None else readable(self.spelling.spell(token))
        shown = text.removeprefix(" ") or "␣"
        return shown.replace("\n", "⏎").replace("\t", "⇥") if shown.strip(" ") else "␣" * len(text)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Where in `text` (from, to, in characters) each id of `encode(text)` lies; (0, 0) for the template's own."""
        if self.sources is not None:
            return self.sources.offsets(text)
        with self.guard():
            found = self.backend.encode(text)
        return self.bigrams.add_spans(found.ids, found.offsets) if self.bigrams else found.offsets

    def find_unknown(self, text: str) -> list[str]:
        """The parts of a text that the vocabulary lacks, in their order."""
        if self.sources is not None:
            return self.sources.find_unknown(text)
        with self.guard():
            found = self.backend.encode(text, add_special_tokens=False)
        ids = found.ids if self._numbers is None else self._renumber(text, found)
        spans = [span for i, span in zip(ids, found.offsets, strict=True) if i == self.unk_id]
        return [part for start, end in spans if (part := text[start:end].strip())]

    def fits(self, vocabulary: int, sources: int | None = None) -> None:
        """Nothing, if an embedding of `vocabulary` rows has one for every token, and one of `sources` for the source's.

        Raises:
            QkvError: it has not; both sizes are named.
        """
        if self.sources is not None:
            self.sources.fits(sources or vocabulary)
        elif sources:
            vocabulary = sources
        known = self._numbers or self.backend.get_vocab()
        token, top = max(known.items(), key=lambda item: item[1], default=("", -1))
        around = max(self.encode(""), default=-1)  # what is put before or after each text
        token, top = ("", around) if around > top else (token, top)
        if top >= vocabulary:
            raise QkvError("{place}: the tokenizer does not fit the model: it has {it} tokens (the last, {token!r}, is "
                           "id {top}), the embedding has {vocabulary} rows; are both from the same checkpoint?",
                           place=self.place, it=len(self), token=token, top=top, vocabulary=vocabulary)

    def to_json(self) -> str:
        """The tokenizer.json that other programs read.

        Raises:
            QkvError: it has bigrams, which no such file says.
        """
        if self.bigrams:
            raise QkvError("{place}: bigrams are tokens here, which other programs do not know; train with "
                           "tokenizer.bigrams=false", place=self.place)
        return self.backend.to_str(pretty=True)

    def save(self, directory: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, or the model's own files where one file cannot say it."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in self.files.items():
            (directory / name).write_bytes(data)
        if self.files:
            return
        if self.sources is not None:
            self.sources.save(directory / SOURCES)
        with guard_panics(Message("{directory}: the tokenizer cannot be written", directory=directory)):
            text = self.backend.to_str(pretty=True)
        (directory / "tokenizer.json").write_text(text, encoding="utf-8")
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],
            **{key: self.config[key] for key in KEPT if key in self.config},
            **({"bigrams": True} if self.bigrams else {}),
            **{f"{role}_token": token for role, token in self.roles.items()},
        }
        text = json.dumps(config, ensure_ascii=False, indent=2) + "\n"
        (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")


def refuse_halves(texts: Sequence[str]) -> None:
    """QkvError for a text that is no Unicode."""
    for text in texts:
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            raise QkvError("{text!a}: contains bytes that are not UTF-8, or half of a character", text=text[:40])


@dataclass
class Stream:
    """Text from ids as they come; what is pushed, joined with `end`, is what `decode` gives for all of them."""

    tokenizer: Tokenizer
    _bytes: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))
    _ids: list[int] = field(default_factory=list[int])
    _said: str = ""
    _began: bool = False

    def follow(self, ids: Sequence[int]) -> None:
        """Continue after these ids as if each had been pushed; of their bytes only an unfinished character matters."""
        if self.tokenizer.spelling is None:
            self._ids = list(ids)
            self._said = self.tokenizer.decode(self._ids).rstrip(" \ufffd")
            return
        last = b""
        for id in reversed(ids):  # noqa: A001
            last = self._spell(id) + last
            if len(last) >= CHARACTER:
                break
        self._began = bool(self._bytes.decode(last))

    def _spell(self, id: int) -> bytes:  # noqa: A002
        """The bytes of a token; special ones have none."""
        t, spelling = self.tokenizer, self.tokenizer.spelling
        if spelling is None or not 0 <= id < t.size or id in t.special_ids:
            return b""
        return spelling.spell(t.lookup(id) or "")

    def push(self, id: int | None) -> str:  # noqa: A002
        """The text that this id completes, empty while it is half a character; None gives what was held back."""
        t, final = self.tokenizer, id is None
        if t.spelling is None:
            self._ids += [] if id is None else [id]
            text = t.decode(self._ids)
            # What depends on neighbours (a space, a joint) may still change; only what is final is returned.
            new = text[len(self._said) :] if text.startswith(self._said) else ""
            new = new if final else new.rstrip(" \ufffd")
            self._said += new
            return new
        text = self._bytes.decode(b"" if id is None else self._spell(id), final)
        if t.spelling.lead and text and not self._began:
            text = text.removeprefix(" ")
            self._began = True
        return text

    def end(self) -> str:
        """What was held back."""
        return self.push(None)


@dataclass(frozen=True)
class Spelling:
    """How a token spells bytes, for the decoders that treat each token by itself."""

    level: bool = False  # each character stands for one byte (GPT-2)
    space: bool = False  # ▁ stands for a space, <0xE4> for a byte (sentencepiece)
    lead: bool = False  # a space that begins the text is not part of it

    @staticmethod
    def from_decoder(decoder: object) -> "Spelling | None":
        """The spelling of a backend's decoder; None where neighbours decide and the backend has to be asked."""
        if decoder is None:
            return None
        state: dict[str, Any] = json.loads(decoder.__getstate__())  # pyright: ignore[reportArgumentType]
        steps: list[dict[str, Any]] = state.get("decoders", [state])
        kinds = {step["type"] for step in steps}
        if kinds == {"ByteLevel"}:
            return Spelling(level=True)
        if not kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
            return None
        for step in steps:
            plain = step["type"] != "Replace" or (step["pattern"], step["content"]) == ({"String": "▁"}, " ")
            strip = step["type"] != "Strip" or (step["content"], step["start"], step["stop"]) == (" ", 1, 0)
            if not (plain and strip and step.get("replacement", "▁") == "▁"):
                return None
        lead = any(s["type"] == "Strip" or s.get("prepend_scheme", "never") != "never" for s in steps)
        return Spelling(space=bool(kinds & {"Replace", "Metaspace"}), lead=lead)

    def spell(self, token: str) -> bytes:
        """The bytes of one token."""
        if self.level:
            found = [BYTE_OF.get(c) for c in token]
            return token.encode() if None in found else bytes(b for b in found if b is not None)
        if self.space and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return (token.replace("▁", " ") if self.space else token).encode("utf-8", "replace")


def _byte_of() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for characters from U+0100 on."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in own]
    return {chr(b): b for b in own} | {chr(256 + i): b for i, b in enumerate(rest)}


BYTE_OF = _byte_of()


def readable(data: bytes) -> str:
    """UTF-8 text in which the bytes of a cut character are shown as ⟨e4⟩."""
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        cut = "".join(f"⟨{b:02x}⟩" for b in data[e.start : e.end])
        return data[: e.start].decode() + cut + readable(data[e.end :])


def load(directory: str | Path) -> Tokenizer | None:
    """The tokenizer of a model's directory, by the files that it holds, or of a GGUF file; None where it holds none.

    Known: tokenizer.json; vocab.json (or encoder.json) with merges.txt (or vocab.bpe); source.spm with target.spm and
    vocab.json (and target_vocab.json); tokenizer.model, spiece.model or sentencepiece.bpe.model (sentencepiece);
    vocab.json with sentencepiece.bpe.model (M2M-100); vocab.txt (WordPiece).

    Raises:
        QkvError: a file is broken or its partner is missing; the message names it.
    """
    directory = Path(directory)
    if is_gguf(directory):
        read = gguf.read_tokenizer(open_gguf(directory).metadata, directory)
        made = None if read is None else Tokenizer(read[0].backend, target=None, sources=None, **read[0].roles)
        if made is not None and read is not None:
            made.config, made.place = read[1], directory
        return made
    found = backends.find(directory)
    if found is None:
        return None
    sources = load(directory / SOURCES)
    if found.sources is not None:
        apart = found.sources
        sources = Tokenizer(apart.backend, target=None, names=apart.names, sources=None, **apart.roles)
    made = Tokenizer(found.backend, **found.roles, target=found.target, names=found.names, sources=sources)
    stated = read_json(directory / "tokenizer_config.json", optional=True)
    made.place = next(backends.find_files(directory), directory)
    made.config, made.files = stated | backends.templates(directory), found.files
    if stated.get("bigrams") is True:
        made.bigrams = find_bigrams(made.vocabulary)
    return made
