"""A JSON list of objects as lines, one an object, in the memory of the longest. Next: text_files.py."""

import codecs
import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO

from qkv.data.streams import Stream
from qkv.errors import QkvError

PIECE = 1 << 20  # bytes that are read at a time
LONGEST = 1 << 24  # characters of one object
LIST = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*\{")
BETWEEN = re.compile(r"[\s,]*")


def list_objects(path: Path, file: IO[bytes]) -> Stream:
    """The objects of the list that a `file` holds, each as one line of JSON.

    Raises:
        QkvError: while it is read, an element that is not JSON, or a list that does not end, with its number.
    """
    lines, rest = split_list(path, file), b""

    def take_bytes(size: int) -> bytes:
        nonlocal rest
        rest = rest or next(lines, b"")
        data, rest = rest[:size], rest[size:]
        return data

    return Stream(take_bytes, file)


def split_list(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    """The elements of a JSON list, each with a line feed behind it; errors as of list_objects."""
    pieces, decoder, number = decode_pieces(file), json.JSONDecoder(), 1
    text = ""
    while "[" not in text:
        text += next(pieces)
    at = text.index("[") + 1
    while True:
        at = BETWEEN.match(text, at).end()  # type: ignore[union-attr]  it matches nothing too
        if text.startswith("]", at):
            break
        try:
            end = decoder.raw_decode(text, at)[1]
        except (ValueError, RecursionError) as error:  # or it has not been read to its end
            more = next(pieces, "") if len(text) - at < LONGEST else ""
            if not more:
                what = getattr(error, "msg", error) if text[at:] else "the list has no ]"
                raise QkvError("{path}: element {number} of the list is not JSON, or the file is cut off: {what}",
                               path=path, number=number, what=what) from None
            text, at = text[at:] + more, 0
            continue
        yield text[at:end].replace("\n", " ").replace("\r", " ").encode("utf-8", "surrogateescape") + b"\n"
        at, number = end, number + 1
    if any(piece.strip() for piece in chain([text[at + 1 :]], pieces)):
        raise QkvError("{path}: more follows behind the list; put all objects into one list", path=path)


def decode_pieces(file: IO[bytes]) -> Iterator[str]:
    """The text of a file, piece by piece; bytes that are no UTF-8 come out as they went in."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
    while data := file.read(PIECE):
        if text := decoder.decode(data):
            yield text
    yield decoder.decode(b"", final=True)
