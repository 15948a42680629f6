"""What click says of a command line that it cannot read, in the reader's language. Read by main of this folder."""

import re

from qkv.messages import Message

# Kinds of values, then whole sentences: what click says (8.1 and later), and the message that it is.
KINDS = {
    "integer": Message("integer"), "float": Message("number"), "integer range": Message("integer"),
    "float range": Message("number"), "boolean": Message("true or false value"), "file": Message("file"),
    "directory": Message("directory"), "path": Message("path"),
}
SAID = (
    (r"No such option:? '?(?P<option>--?[^\s'.]+)'?\.?", Message("No such option: {option}.")),
    (r"Did you mean one of: (?P<names>[^?]+)\?", Message("Did you mean one of: {names}?")),
    (r"\(Possible options: (?P<names>[^)]+)\)", Message("Did you mean one of: {names}?")),
    (r"Did you mean (?P<name>[^?]+)\?", Message("Did you mean {name}?")),
    (r"Missing (?:argument|option|parameter):? (?P<name>'[^']+')\.?", Message("Missing {name}.")),
    (r"Choose from:", Message("Choose from:")),
    (r"Option (?P<name>'[^']+') requires an argument\.", Message("Option {name} requires an argument.")),
    (r"Option (?P<name>'[^']+') requires (?P<count>\d+) arguments\.",
     Message("Option {name} requires {count} arguments.")),
    (r"Option (?P<name>'[^']+') does not take a value\.", Message("Option {name} does not take a value.")),
    (r"Got unexpected extra arguments? \((?P<words>.+)\)", Message("Got unexpected extra arguments ({words})")),
    (r"Invalid value for (?P<name>.+?): ", Message("Invalid value for {name}: ")),
    (r"(?P<value>\S+) is not in the range (?P<range>.+?)\.$", Message("{value} is not in the range {range}.")),
    (r"(?P<value>'.*?') is not one of (?P<names>.+)\.$", Message("{value} is not one of {names}.")),
    (r"(?P<value>'.*?') is not (?P<wanted>'.*?')\.$", Message("{value} is not {wanted}.")),
    (r"(?P<value>'.*?') is not a valid (?P<kind>[a-z ]+)\.", Message("{value} is not a valid {kind}.")),
    (r"\b(?P<kind>File|Directory|Path) (?P<path>'.*?') does not exist\.", Message("{kind} {path} does not exist.")),
    (r"\b(?P<kind>File|Directory|Path) (?P<path>'.*?') is a (?P<found>file|directory)\.",
     Message("{path} is a {found}, not a {kind}.")),
    (r"\b(?P<kind>File|Directory|Path) (?P<path>'.*?') is not readable\.", Message("{kind} {path} is not readable.")),
    (r"\b(?P<kind>File|Directory|Path) (?P<path>'.*?') is not writable\.", Message("{kind} {path} is not writable.")),
)

# What click writes round the help of a verb: pattern, then the message that stands there.
FRAME = (
    (r"\[default: ", Message("[default: ")), (r"^Show this message and exit\.$", Message("show this help")),
    (r"\[OPTIONS\]", Message("[OPTIONS]")), (r"\bINTEGER(?: RANGE)?\b", Message("INTEGER")),
    (r"\bFLOAT(?: RANGE)?\b", Message("NUMBER")), (r"\bTEXT\b", Message("TEXT")), (r"\bPATH\b", Message("PATH")),
    (r"\bFILE\b", Message("FILE")), (r"\bDIRECTORY\b", Message("DIRECTORY")),
)


def translate_frame(text: str, lang: str) -> str:
    """A piece of click's help in a language."""
    for pattern, message in FRAME:
        text = re.sub(pattern, message.to(lang), text)
    return text


def said_by_click(text: str, lang: str) -> str:
    """The same in a language where click's words are known, and as they are where not."""
    if isinstance(text, Message):
        return text.to(lang)
    if lang == "en":
        return re.sub(r"is not a valid (integer|float) range", lambda m: f"is not a valid {KINDS[m[1]]}", text)
    for pattern, message in SAID:
        fill = lambda m, message=message: fill_message(message, m.groupdict(), lang)  # noqa: E731
        text = re.sub(pattern, fill, text, flags=re.DOTALL)
    return re.sub(r"(?<=[\u3002\uff1f]) ", "", text)


def fill_message(message: Message, groups: dict[str, str], lang: str) -> str:
    """A message with what click named put in; kinds of values are translated too."""
    if not groups:
        return message.to(lang)
    kinds = {key: KINDS[groups[key].lower()] for key in ("kind", "found") if groups.get(key, "").lower() in KINDS}
    return Message(message.template, **groups | kinds).to(lang)
