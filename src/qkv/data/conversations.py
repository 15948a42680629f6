"""Conversations in the forms that data sets have: messages, turns (ShareGPT), instructions (Alpaca). Next: kind.py."""

from collections.abc import Collection, Mapping
from typing import Any

LISTED = ("messages", "conversations", "conversation")  # keys of a list of turns
ASKED = {"instruction", "output"}  # and `input`, `system`, `history`, where a row has them
ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant"}


def holds_conversations(keys: Collection[str], objective: str) -> bool:
    """Whether rows with these keys are conversations; an instruction and its output may be learnt as a pair, too."""
    return any(key in keys for key in LISTED) or ({*keys} >= ASKED and objective in ("", "chat"))


def list_messages(item: Mapping[str, Any]) -> Any:
    """The messages of a row, {"role": …, "content": …} each; what is none comes as it is, None without a key of them.

    A turn may have `from` and `value` instead; an instruction with its input is what a user says, its output the
    answer, after the turns of `history` if there are any.
    """
    key = next((key for key in LISTED if key in item), "")
    if key and not isinstance(item[key], list):
        return item[key]
    if key:
        said = [*map(rename_turn, item[key])]
    elif item.keys() >= ASKED:
        asked = [str(item[key]) for key in ("instruction", "input") if str(item.get(key) or "").strip()]
        earlier = [pair for pair in item.get("history") or () if isinstance(pair, list)]  # [question, answer] each
        turns = [turn for pair in earlier for turn in pair] + ["\n\n".join(asked), item["output"]]
        said = [{"role": "assistant" if n % 2 else "user", "content": turn} for n, turn in enumerate(turns)]
    else:
        return None
    return [{"role": "system", "content": item["system"]}, *said] if item.get("system") else said


def rename_turn(turn: Any) -> Any:
    """A turn with a role and a content, without what a table has no value for."""
    if not isinstance(turn, Mapping):
        return turn
    named = {{"from": "role", "value": "content"}.get(key, key): v for key, v in turn.items() if v is not None}
    role = named.get("role")
    return named | ({"role": ROLES.get(role, role)} if isinstance(role, str) else {})
