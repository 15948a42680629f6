"""`Model.chat`: a conversation as the ids that its chat template writes, and the answer to it."""

from collections.abc import Sequence
from typing import Any

from qkv.chat import template as templates
from qkv.chat.template import Turn
from qkv.errors import QkvError
from qkv.tasks.generate import generate
from qkv.tasks.types import Model, Result


def chat(model: Model, messages: str | Sequence[Turn], **options: Any) -> Result:
    """The answer to a conversation, or to one text of the user; see `Model.chat`."""
    return generate(model, conversation_ids(model, messages), **options)


def conversation_ids(model: Model, messages: str | Sequence[Turn]) -> list[int]:
    """The ids of a conversation up to where the model answers.

    Raises:
        QkvError: the model has no chat template, or its template refuses the messages.
    """
    template = templates.find_template(model.tokenizer) if model.tokenizer else None
    if template is None or model.tokenizer is None:
        raise QkvError("this model has no chat template and is not a chat model: use generate")
    rows = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    return template.ids(model.tokenizer, rows)
