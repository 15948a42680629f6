"""Messages: English templates with named fields in the code, every other language in a catalogue. Stdlib only.

Message("{path}: found {count:,} rows", path=path, count=len(rows))   # a str: its English
message.to("zh")                                                      # the same by locale/zh/LC_MESSAGES/qkv.po

Fields that are messages themselves are translated too, and so are errors (their `message`). `tools/catalogue.py` takes
the templates out of the code and compiles the catalogue.
"""

from collections.abc import Callable, Iterable
from functools import cache
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
        return restored, (self.template, self.fields)

    def to(self, lang: str) -> str:
        """The text in a language; in English where the catalogue lacks it."""
        if lang == "en" or not self.template:
            return str(self)
        template = catalogue(lang)(self.template)
        return template.format(**{k: translate(v, lang) for k, v in self.fields.items()}) if self.fields else template


class Joined(Message):
    """Messages or words with a separator between, which is a message too: ", " is "、" in Chinese."""

    def to(self, lang: str) -> str:
        return str(translate(self.fields["separator"], lang)).join(str(translate(p, lang)) for p in self.fields["parts"])


def join(separator: str, parts: Iterable[object]) -> Message:
    """Parts as one message, such as `join(" or ", names)`."""
    parts, separator = list(parts), Message(separator)
    made = str.__new__(Joined, separator.join(str(part) for part in parts))
    made.template, made.fields = "", {"separator": separator, "parts": parts}
    return made


def restored(template: str, fields: dict[str, Any]) -> Message:
    """A message again after a copy or a pickle."""
    return join(**fields) if "parts" in fields and not template else Message(template, **fields)


def translate(value: Any, lang: str) -> Any:
    """A message or an error in a language; every other value as it is."""
    message = getattr(value, "message", value) if isinstance(value, Exception) else value
    return message.to(lang) if isinstance(message, Message) else value


@cache
def catalogue(lang: str) -> Callable[[str], str]:
    """What gives the template of a language for the English one."""
    return translation("qkv", Path(__file__).parent / "locale", [lang], fallback=True).gettext
