"""Chat templates: messages to one text, and to ids in which control tokens that a user typed stay text.

A template is a program that came with a checkpoint, so it runs in `sandbox.py`, bounded. Next: `control.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from qkv.chat import sandbox
from qkv.errors import QkvError, nearest
from qkv.messages import Message
from qkv.tokenizers.control_tokens import FORGED
from qkv.tokenizers.tokenizer import Tokenizer

Turn = Mapping[str, Any]


@dataclass(frozen=True)
class Template:
    """The chat templates of a checkpoint by name, and the special tokens (`bos_token`, …) that they may write."""

    sources: Mapping[str, str]
    tokens: Mapping[str, str] = field(default_factory=dict[str, str])

    def render(self, messages: Sequence[Turn], *, add_generation_prompt: bool = True, **extra: Any) -> str:
        """The text of a conversation; `extra` are further names that templates know, as tools or enable_thinking.

        Messages are `{"role": …, "content": text or list of {"type": "text", "text": …}}`; one more key,
        `template`, in `extra` chooses among several templates.

        Raises:
            QkvError: the template refuses the messages, fails, or exceeds its bounds; a message is not one.
        """
        return sandbox.render_source(*self._prepare(messages, add_generation_prompt, extra), marked=False)

    def ids(
        self, tokenizer: Tokenizer, messages: Sequence[Turn], *, add_generation_prompt: bool = True, **extra: Any
    ) -> list[int]:
        """The ids of `render`, in which only what the template itself wrote can be a control token.

        Raises:
            QkvError: as `render`; or the template cuts the messages so that its text cannot be told from theirs.
        """
        given = self._prepare(messages, add_generation_prompt, extra)
        plain, marked = sandbox.render_source(*given, marked=False), sandbox.render_source(*given, marked=True)
        parts = sandbox.split_marked(marked)
        if "".join(text for text, _ in parts) != plain:
            raise QkvError("the chat template mixes its own text with the messages' and then compares or cuts it, so "
                           "that control tokens that a user typed cannot be kept apart; use render() and encode its "
                           "text if you trust it")
        return tokenizer.encode_parts(parts)

    def _prepare(
        self, messages: Sequence[Turn], prompt: bool, extra: dict[str, Any]
    ) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """The template's source, what people wrote, and what the checkpoint says."""
        rows = check_messages(messages)
        usual = "tool_use" if extra.get("tools") and "tool_use" in self.sources else "default"
        name = extra.pop("template", None) or usual
        if name not in self.sources:
            known = ", ".join(self.sources)
            raise QkvError("no chat template {name!r}{hint} (known: {known}): template=…", name=name,
                           hint=nearest(str(name), self.sources), known=known)
        typed = {"messages": rows, "tools": None, "documents": None, **to_plain_data(extra, "extra"),
                 "add_generation_prompt": prompt}
        return self.sources[name], typed, dict(self.tokens)


def find_template(tokenizer: Tokenizer) -> Template | None:
    """The chat template that came with a tokenizer (a text, or a list of named ones), None where there is none."""
    found: object = tokenizer.config.get("chat_template")
    if not found:
        return None
    rows = [{"name": "default", "template": found}] if isinstance(found, str) else found
    sources = {row["name"]: row["template"] for row in cast("list[dict[str, str]]", rows)}
    return Template(sources, {f"{role}_token": token for role, token in tokenizer.roles.items()})


def check_messages(messages: Sequence[Turn]) -> list[Any]:
    """The messages as plain data.

    Raises:
        QkvError: one has no role, or its content is no text; the message's number is named.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise QkvError('messages: found {kind}, expected a list of {{"role": …, "content": …}}',
                       kind=type(messages).__name__)
    for n, message in enumerate(messages):
        where = Message("message {text} of {messages}", text=n + 1, messages=len(messages))
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise QkvError('{where}: expected {{"role": …, "content": …}}, found {message!r}', where=where,
                           message=message)
        if not isinstance(message.get("content"), str | list | None):
            kind = type(message["content"]).__name__
            raise QkvError("{where}: its content is of type {kind}, expected text or a list of parts", where=where,
                           kind=kind)
    return [to_plain_data(message, "messages") for message in messages]


def to_plain_data(value: Any, where: str) -> Any:
    """A copy made of JSON's types alone, without the characters that mark what people wrote.

    Raises:
        QkvError: something else is in it; `where` names it.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return FORGED.sub("\ufffd", str(value))
    if isinstance(value, Mapping):
        return {to_plain_data(k, where): to_plain_data(v, where) for k, v in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [to_plain_data(v, where) for v in cast("list[Any]", value)]
    raise QkvError("{where}: found a {kind}, expected a value that JSON can hold", where=where,
                   kind=type(value).__name__)
