"""Messages: English templates with named fields in the code, every other language in a catalogue. Stdlib only.

Message("{path}: found {count:,} rows", path=path, count=len(rows))   # a str: its English
message.to("zh")                                                      # the same by locale/zh/LC_MESSAGES/qkv.po

Fields that are messages themselves are translated too, and so are errors (their `message`). `tools/catalogue.py` takes
the templates out of the code and compiles the catalogue.
"""

import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from gettext import translation
from pathlib import Path
from typing import Any


class Message(str):
    """A text whose value is its English. Without fields it is taken as it stands: braces in it mean nothing."""

    template: str
    fields: dict[str, Any]

    def __new__(cls, template: str = "", /, **fields: Any) -> "Message":
        if isinstance(template, Message) and not fields:
            return template
        made = super().__new__(cls, template.format(**fields) if fields else template)
        made.template, made.fields = str(template), fields
        return made

    def __reduce__(self) -> Any:
        return partial(Message, self.template, **self.fields), ()

    def to(self, lang: str) -> str:
        """The text in a language; in English where the catalogue lacks it."""
        if lang == "en" or not self.template:
            return str(self)
        template = catalogue(lang)(self.template)
        fields = {k: translate_value(v, lang) for k, v in self.fields.items()}
        return template.format(**fields) if fields else template


class Joined(Message):
    """Parts with a separator between, which is a message too."""

    def __reduce__(self) -> Any:
        return join, (self.fields["separator"], self.fields["parts"])

    def to(self, lang: str) -> str:
        parts = (str(translate_value(part, lang)) for part in self.fields["parts"])
        return self.fields["separator"].to(lang).join(parts)


class Given(Message):
    """A text that is there in several languages already, such as one read from a file: `Given({"en": …, "zh": …})`."""

    def __new__(cls, texts: dict[str, str]) -> "Given":
        made = str.__new__(cls, texts["en"])
        made.template, made.fields = "", texts
        return made

    def __reduce__(self) -> Any:
        return Given, (self.fields,)

    def to(self, lang: str) -> str:
        return self.fields.get(lang, str(self))


class Trimmed(Message):
    """A message without what a pattern matches, in every language."""

    def __new__(cls, message: Message, pattern: str) -> "Trimmed":
        made = str.__new__(cls, re.sub(pattern, "", message))
        made.template, made.fields = "", {"message": message, "pattern": pattern}
        return made

    def __reduce__(self) -> Any:
        return Trimmed, (self.fields["message"], self.fields["pattern"])

    def to(self, lang: str) -> str:
        return re.sub(self.fields["pattern"], "", self.fields["message"].to(lang))


def join(separator: str, parts: Iterable[object]) -> Message:
    """Parts as one message, such as `join(" or ", names)`."""
    parts, separator = list(parts), Message(separator)
    made = str.__new__(Joined, separator.join(str(part) for part in parts))
    made.template, made.fields = "", {"separator": separator, "parts": parts}
    return made


def translate_value(value: Any, lang: str) -> Any:
    """A message or an error in a language; every other value as it is."""
    message = getattr(value, "message", value) if isinstance(value, Exception) else value
    return message.to(lang) if isinstance(message, Message) else value


@cache
def catalogue(lang: str) -> Callable[[str], str]:
    """What gives the template of a language for the English one."""
    return translation("qkv", Path(__file__).parent / "locale", [lang], fallback=True).gettext
