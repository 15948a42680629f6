"""Sentencepiece models: a reader of their file and the same tokenizer built from its pieces.

Kudo and Richardson 2018. The file is one protobuf message, of which a few fields matter here; so the reader is our own.
"""

import struct
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from qkv.errors import QkvError

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
KINDS: dict[int, Literal["unigram", "bpe"]] = {1: "unigram", 2: "bpe"}


@dataclass(frozen=True)
class Pieces:
    """What a sentencepiece model says: its pieces in the order of their ids, and how text is prepared for them."""

    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    types: tuple[int, ...]
    kind: Literal["unigram", "bpe"] = "bpe"
    charsmap: bytes = b""
    prefix: bool = True
    collapse: bool = False

    @property
    def unknown(self) -> int:
        """The id of the piece for what no piece covers."""
        return self.types.index(UNKNOWN)

    @property
    def roles(self) -> dict[str, str]:
        """The special pieces by their role, as far as it follows from their usual names."""
        usual = {"<s>": "bos", "</s>": "eos", "<pad>": "pad", "<mask>": "mask", "[CLS]": "cls", "[SEP]": "sep"}
        found = {usual[p]: p for p, t in zip(self.pieces, self.types, strict=True) if t == CONTROL and p in usual}
        return {**found, "unk": self.pieces[self.unknown]}


def read_model(path: Path) -> Pieces:
    """The model in a sentencepiece file (`.model`, `.spm`).

    Raises:
        QkvError: the file is cut short or is something else, or its kind is neither unigram nor BPE.
    """
    try:
        return _parse(path.read_bytes(), path)
    except (IndexError, ValueError, struct.error, TypeError, AttributeError) as e:
        raise QkvError("{path}: not a sentencepiece model, or cut short ({e})", path=path, e=e) from None


def _parse(data: bytes, path: Path) -> Pieces:
    pieces: list[tuple[str, float, int]] = []
    kind, charsmap, prefix, collapse, found = 1, b"", True, True, set[int]()
    for field, value in _fields(data):
        found.add(field)
        if field == 1:  # SentencePiece: piece, score, type
            part = dict(_fields(value))
            pieces.append((part[1].decode(), *struct.unpack("<f", part.get(2, bytes(4))), int(part.get(3, NORMAL))))
        elif field == 2:  # TrainerSpec
            kind = int(dict(_fields(value)).get(3, 1))
        elif field == 3:  # NormalizerSpec
            part = dict(_fields(value))
            charsmap, prefix, collapse = part.get(2, b""), bool(part.get(3, 1)), bool(part.get(4, 1))
    if not any(t == UNKNOWN for _, _, t in pieces) or not {2, 3} <= found:  # the specs come behind the pieces
        raise QkvError("{path}: found {pieces} pieces, and none for unknown text or no specs behind them: not a "
                       "sentencepiece model, or cut short", path=path, pieces=len(pieces))
    if kind not in KINDS:
        raise QkvError("{path}: a sentencepiece model of kind {kind}, expected 1 (unigram) or 2 (BPE)", path=path,
                       kind=kind)
    names, scores, types = zip(*pieces, strict=True)
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise QkvError("{path}: the piece {piece!r} is in it twice", path=path, piece=twice)
    return Pieces(names, scores, types, KINDS[kind], charsmap, prefix, collapse)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message: number and value (an int, or the bytes of what has a size)."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise IndexError(f"wire type {wire} at byte {at}")
        if at + size > len(data):
            raise IndexError(f"a field of {size} bytes at byte {at} of {len(data)}")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def build_tokenizer(model: Pieces, ids: Mapping[str, int] | None = None, named: Collection[str] = ()) -> Tokenizer:
    """A tokenizer that cuts text as sentencepiece does, without a template.

    `ids` renumbers the pieces: those that it lacks come behind its last, those that only it has are never cut.
    `named` are further special tokens among them.
    """
    vocabulary = dict(zip(model.pieces, range(len(model.pieces)), strict=True)) if ids is None else dict(ids)
    for piece in model.pieces:
        vocabulary.setdefault(piece, len(vocabulary))
    backend = Tokenizer(_bpe(model, vocabulary) if model.kind == "bpe" else _unigram(model, vocabulary, named))
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.collapse:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if model.prefix:
        steps.append(normalizers.Prepend("▁"))
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    if model.kind == "unigram":  # no piece spans words, so cutting at them first saves time; pieces stay the same
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    end: list[decoders.Decoder] = [decoders.Strip(" ", 1, 0)] if model.prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *end])
    typed = list(zip(model.pieces, model.types, strict=True))
    backend.add_special_tokens([AddedToken(p, normalized=False) for p, t in typed if t in (UNKNOWN, CONTROL)])
    backend.add_special_tokens([AddedToken(p, normalized=False) for p in named if p in vocabulary])
    backend.add_tokens([AddedToken(p, normalized=False) for p, t in typed if t == USER])
    return backend


def _unigram(model: Pieces, vocabulary: Mapping[str, int], named: Collection[str]) -> models.Unigram:
    rows = [(f"\0{i}", 0.0) for i in range(max(vocabulary.values()) + 1)]  # a piece that no text holds
    for piece, score in [*((n, 0.0) for n in named if n in vocabulary), *zip(model.pieces, model.scores, strict=True)]:
        rows[vocabulary[piece]] = (piece, score)
    return models.Unigram(rows, vocabulary[model.pieces[model.unknown]], BYTE in model.types)


def _bpe(model: Pieces, vocabulary: dict[str, int]) -> models.BPE:
    """Sentencepiece joins the two neighbours whose union scores best; so each union's halves rank by its score."""
    normal = {p for p, t in zip(model.pieces, model.types, strict=True) if t in (NORMAL, USER, UNUSED)}
    ranked: list[tuple[float, int, int, tuple[str, str]]] = []
    for i, (piece, score, kind) in enumerate(zip(model.pieces, model.scores, model.types, strict=True)):
        if kind != NORMAL:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in normal and right in normal:
                ranked.append((-score, i, cut, (left, right)))
    ranked.sort()
    unknown = model.pieces[model.unknown]
    return models.BPE(
        vocabulary, [pair for *_, pair in ranked], unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in model.types
    )
