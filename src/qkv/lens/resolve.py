"""Resolve what a user gives ("它", -1) to a run, a position or a token. Used by every readout."""

import re
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.core.attention import Attention
from qkv.core.latent import Latent
from qkv.core.model import Stack
from qkv.errors import QkvError, nearest
from qkv.lens.taps import Run

if TYPE_CHECKING:
    from qkv.lens.recording import Recording

CUT = re.compile("⟨[0-9a-f]{2}⟩")  # how a tokenizer shows a byte of a cut character


def side_of(t: "Recording", path: str = "") -> str:
    """The stack to which a path belongs; without a path the one whose states become logits."""
    s = t.core.spec
    return "encoder" if s.encoder and (path.startswith("encoder.") or not s.decoder) else "decoder"


def prefix_of(t: "Recording", path: str = "") -> str:
    """What stands before `layers` in the names of that stack: empty where there is one stack."""
    return f"{side_of(t, path)}." if t.core.spec.encoder and t.core.spec.decoder else ""


def stack_of(t: "Recording", path: str = "") -> Stack:
    """That stack itself."""
    return getattr(t.core, side_of(t, path))


def find_run(t: "Recording", path: str = "", run: int | None = None) -> Run:
    """The run of the stack to which a path belongs, with its ids, phases and places; `run` picks one of several."""
    name = side_of(t, path)
    runs = [r for r in t.runs if r.stack == name]
    if not runs:
        raise QkvError("nothing ran through the {name} inside the block", name=name)
    if run is None and len(runs) > 1:
        raise QkvError("the {name} ran {runs} times inside the block; choose one: run=0", name=name, runs=len(runs))
    if not 0 <= (run or 0) < len(runs):
        raise QkvError("run {index}: the {name} ran {runs} times; expected 0 to {runs2}", index=run, name=name,
                       runs=len(runs), runs2=len(runs) - 1)
    return runs[run or 0]


def require_row(t: "Recording", row: int) -> None:
    """QkvError for a row of the batch that no call read."""
    rows = max((len(call.ids) for run in t.runs for call in run.calls), default=1)
    if not 0 <= row < rows:
        raise QkvError("row {row}: the calls had {rows} rows, expected 0 to {last}", row=row, rows=rows, last=rows - 1)


def find_attention(t: "Recording", path: str) -> Attention | Latent:
    """The attention of a path; a QkvError where there is none."""
    if path not in t.attentions:
        raise QkvError("no attention is called {path!r}{hint}", path=path, hint=nearest(path, t.attentions))
    return t.attentions[path]


def require_head(t: "Recording", readout: str) -> None:
    """A QkvError where a readout needs logits and the model gives none."""
    if t.core.spec.head is None:
        raise QkvError("{readout}: this model has no head, so it gives no logits", readout=readout)


def require_saved(t: "Recording", readout: str, *names: str) -> None:
    """A QkvError with the exact `save=` where a tap that a readout needs was not saved."""
    for name in names:
        if name not in t.needed:
            raise QkvError('{readout}: {name} was not saved; add it: save=["{readout}"]', readout=readout, name=name)


def read_states(
    t: "Recording", readout: str, where: int | slice | list[int], *, prefix: str = "", row: int, run: int | None
) -> tuple[tuple[str, ...], Tensor]:
    """The taps of a stack's states before the first layer and after each, and what they held there [L+1, T, D]."""
    prefix = prefix or prefix_of(t)
    layers = range(len(stack_of(t, prefix).layers))
    names = (f"{prefix}embed", *(f"{prefix}layers.{i}.resid_out" for i in layers))
    if not set(names) <= t.needed:
        raise QkvError('{readout}: the states after each layer were not saved; add them: save=["{readout}"]',
                       readout=readout)
    return names, torch.stack([t.get(n, run=run)[row, where] for n in names])


def find_position(t: "Recording", pos: int | str, *, path: str = "", row: int = 0, run: int | None = None) -> int:
    """The slot of a position: a number (from the end where negative), or a word, whose last piece is meant."""
    ids = find_run(t, path, run).ids[row].tolist()
    if isinstance(pos, str):
        return find_word(t, ids, pos)
    if not -len(ids) <= pos < len(ids):
        raise QkvError("position {pos}: this text has {ids} tokens, 0 to {ids2}", pos=pos, ids=len(ids),
                       ids2=len(ids) - 1)
    return pos % len(ids)


def find_word(t: "Recording", ids: list[int], word: str) -> int:
    """The slot of the last piece of a word's first occurrence: pieces that spell it, or one that contains it."""
    made = require_tokenizer(t)
    size = len(word.encode(errors="surrogatepass"))
    for i in range(len(ids)):
        for j in range(i + 1, min(len(ids), i + size) + 1):
            if made.decode(ids[i:j]).strip() == word.strip():
                return j - 1
    pieces = made.pieces(ids)
    inside = [i for i, piece in enumerate(pieces) if word.strip() in piece]
    if not inside:
        raise QkvError("{word!r} is not in this text; its tokens are {pieces}", word=word,
                       pieces=" ".join(p.strip() or "␣" for p in pieces))
    return inside[0]


def require_tokenizer(t: "Recording"):
    """The tokenizer of a trace; a QkvError where words were given and there is none."""
    if t.tokenizer is None:
        raise QkvError("this trace has no tokenizer, so it cannot look up words: give ids, or Trace(…, tokenizer=…)")
    return t.tokenizer


def find_token(t: "Recording", word: str | int) -> int:
    """The id of one token, given as an id or as its text.

    Raises:
        QkvError: the text is several tokens; they are named.
    """
    size = t.core.spec.vocabulary
    if isinstance(word, int):
        if not 0 <= word < size:
            raise QkvError("token {word}: the vocabulary has {size}, 0 to {size2}", word=word, size=size,
                           size2=size - 1)
        return word
    ids = encode_word(require_tokenizer(t), word, "target")
    if len(ids) != 1:
        listed = ", ".join(f"{p!r} = {i}" for p, i in zip(t.tokenizer.pieces(ids), ids, strict=True))
        raise QkvError("{word!r} is {ids} tokens here ({told}); give one of them, as text or as its id", word=word,
                       ids=len(ids), told=listed)
    return ids[0]


def encode_word(tokenizer, word: str, at: str = "source") -> list[int]:
    """The ids of a word without the tokens that a template puts around a text."""
    ids: list[int] = tokenizer.encode(word, special=False, side=at)
    if not ids:
        raise QkvError("{word!r} has no token; give a word", word=word)
    if getattr(tokenizer, "unk_id", None) in ids:  # every such word would be the same one
        raise QkvError("{word!r} is not in this model's vocabulary; give another word", word=word)
    return ids


def show_tokens(t: "Recording", ids: list[int]) -> list[str]:
    """Ids as text."""
    return join_cut_characters(t.tokenizer, ids) if t.tokenizer else [str(i) for i in ids]


def tokens_read(t: "Recording", path: str = "", *, row: int = 0, run: int | None = None) -> tuple[str, ...]:
    """The tokens that the stack of a path read, as text."""
    return tuple(show_tokens(t, find_run(t, path, run).ids[row].tolist()))


def show_token(t: "Recording", token: int) -> str:
    """A token as text."""
    return show_tokens(t, [token])[0].strip()


def join_cut_characters(tokenizer, ids: list[int]) -> list[str]:
    """The pieces of a text; where a character is cut into several, each shows it whole, with its share: 旧 1/3.

    Bytes that no neighbour completes stay ⟨e4⟩.
    """
    pieces: list[str] = tokenizer.pieces(ids)
    found: list[str] = []
    while len(found) < len(ids):
        i = len(found)
        ends = range(i + 1, min(len(ids), i + 8) + 1) if CUT.search(pieces[i]) else ()
        end = next((j for j in ends if "\ufffd" not in tokenizer.decode(ids[i:j], special=True)), i + 1)
        text = tokenizer.decode(ids[i:end], special=True).strip() if end > i + 1 else ""
        found += [f"{text} {n + 1}/{end - i}" for n in range(end - i)] if text else [pieces[i]]
    return found
