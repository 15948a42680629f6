"""Control tokens that count only where they are trusted: what a user types stays text.

The backend is copied with each control token spelt in a way that no text can hold; trusted parts are respelt to it.
So one pass over the whole text gives exactly the ids of the original backend, but for what was typed.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers

from qkv.errors import QkvError

OPEN, CLOSE = "\ufdd0", "\ufdd1"  # Unicode keeps these for a program's own use: no text holds them
FORGED = re.compile("[\ufdd0-\ufdef]")
LOOKS = re.compile(r"<(?!0x[0-9A-Fa-f]{2}>).+>|\[.+\]", re.DOTALL)  # tags that a vocabulary does not call special


@dataclass(frozen=True)
class ControlTokens:
    """A backend in which control tokens cannot be typed, and their pattern in trusted text."""

    backend: tokenizers.Tokenizer
    pattern: re.Pattern[str] | None
    ids: dict[str, int]
    unknown: int | None

    def encode_parts(self, parts: Sequence[tuple[str, bool]]) -> list[int]:
        """The ids of parts of text, each with whether its control tokens count.

        Raises:
            QkvError: an id of a control token came out of text that is not trusted.
        """
        swapped, expected = list[str](), list[int]()

        def swap(found: re.Match[str]) -> str:
            expected.append(self.ids[found[0]])
            return _respell(self.ids[found[0]])

        for text, trusted in parts:
            clean = FORGED.sub("\ufffd", text)
            swapped.append(self.pattern.sub(swap, clean) if trusted and self.pattern else clean)
        ids = self.backend.encode("".join(swapped), add_special_tokens=False).ids
        kept = set(self.ids.values()) - {self.unknown}
        if [i for i in ids if i in kept] != [i for i in expected if i in kept]:
            raise QkvError("this tokenizer turns ordinary text into control tokens; it cannot keep the two apart")
        return ids


def find_control_tokens(backend: tokenizers.Tokenizer, named: frozenset[str]) -> ControlTokens:
    """The copy of a backend, whose added tokens that are special, `named`, or look like tags are control tokens."""
    state: dict[str, Any] = json.loads(backend.to_str())
    added: list[dict[str, Any]] = state["added_tokens"]
    model: dict[str, Any] = state["model"]
    ids: dict[str, int] = {}
    for token in added:
        content = token["content"]
        if content.strip() and (token["special"] or content in named or LOOKS.fullmatch(content)):
            ids[content] = token["id"]
            token.update(content=_respell(token["id"]), normalized=False)
    rename: Callable[[str], str] = lambda token: _respell(ids[token]) if token in ids else token  # noqa: E731
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {rename(token): i for token, i in vocabulary.items()}
    else:
        model["vocab"] = [[rename(token), score] for token, score in vocabulary]
    if "merges" in model:
        split = (m if isinstance(m, list) else m.split(" ", 1) for m in model["merges"])
        model["merges"] = [[a, b] for a, b in split if not {a, b, a + b} & ids.keys()]
    unknown = model.get("unk_token")
    if isinstance(unknown, str):
        model["unk_token"] = rename(unknown)
    number = vocabulary.get(unknown) if isinstance(vocabulary, dict) else model.get("unk_id")
    state["post_processor"] = None  # it names tokens by their old spelling, and parts get no frame
    longest = sorted(ids, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest))) if ids else None
    return ControlTokens(tokenizers.Tokenizer.from_str(json.dumps(state)), pattern, ids, number)


def _respell(i: int) -> str:
    return f"{OPEN}{i}{CLOSE}"
