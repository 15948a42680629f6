"""What click says of a command line that it cannot read, in the reader's language. Read by main of this folder."""

import re

from qkv.errors import Note
from qkv.messages import Message

# Kinds of values, then whole sentences: what click says (8.1 and later), and the message that it is.
KINDS = {
    "integer": Note("integer", zh="整数"), "float": Note("number", zh="数"), "integer range": Note("integer", zh="整数"),
    "float range": Note("number", zh="数"), "boolean": Note("true or false value", zh="真假值"), "file": Note("file", zh="文件"),
    "directory": Note("directory", zh="目录"), "path": Note("path", zh="路径"),
}  # fmt: skip
SAID = (
    (r"No such option:? '?(?P<option>--?[^\s'.]+)'?\.?", Note("No such option: {option}.", zh="没有选项 {option}。")),
    (r"Did you mean one of: (?P<names>[^?]+)\?", Note("Did you mean one of: {names}?", zh="是不是其中之一：{names}？")),
    (r"\(Possible options: (?P<names>[^)]+)\)", Note("Did you mean one of: {names}?", zh="是不是其中之一：{names}？")),
    (r"Did you mean (?P<name>[^?]+)\?", Note("Did you mean {name}?", zh="是不是 {name}？")),
    (r"Missing (?:argument|option|parameter):? (?P<name>'[^']+')\.?", Note("Missing {name}.", zh="缺 {name}。")),
    (r"Choose from:", Note("Choose from:", zh="请选：")),
    (r"Option (?P<name>'[^']+') requires an argument\.",
     Note("Option {name} requires an argument.", zh="选项 {name} 要有一个值。")),
    (r"Option (?P<name>'[^']+') requires (?P<count>\d+) arguments\.",
     Note("Option {name} requires {count} arguments.", zh="选项 {name} 要有 {count} 个值。")),
    (r"Option (?P<name>'[^']+') does not take a value\.",
     Note("Option {name} does not take a value.", zh="选项 {name} 不带值。")),
    (r"Got unexpected extra arguments? \((?P<words>.+)\)",
     Note("Got unexpected extra arguments ({words})", zh="多出了 {words}")),
    (r"Invalid value for (?P<name>.+?): ", Note("Invalid value for {name}: ", zh="{name} 的值不对：")),
    (r"(?P<value>\S+) is not in the range (?P<range>.+?)\.$",
     Note("{value} is not in the range {range}.", zh="{value} 不在范围 {range} 之内。")),
    (r"(?P<value>'.*?') is not one of (?P<names>.+)\.$", Note("{value} is not one of {names}.", zh="{value} 不是 {names} 之一。")),
    (r"(?P<value>'.*?') is not (?P<wanted>'.*?')\.$", Note("{value} is not {wanted}.", zh="{value} 不是 {wanted}。")),
    (r"(?P<value>'.*?') is not a valid (?P<kind>[a-z ]+)\.",
     Note("{value} is not a valid {kind}.", zh="{value} 不是{kind}。")),
    (r"\b(?P<kind>File|Directory|Path) (?P<path>'.*?') does not exist\.",
     Note("{kind} {path} does not exist.", zh="{kind} {path} 不存在。")),
    (r"\b(?P<kind>File|Directory|Path) (?P<path>'.*?') is a (?P<found>file|directory)\.",
     Note("{path} is a {found}, not a {kind}.", zh="{path} 是{found}，应是{kind}。")),
    (r"\b(?P<kind>File|Directory|Path) (?P<path>'.*?') is not readable\.",
     Note("{kind} {path} is not readable.", zh="{kind} {path} 不可读。")),
    (r"\b(?P<kind>File|Directory|Path) (?P<path>'.*?') is not writable\.",
     Note("{kind} {path} is not writable.", zh="{kind} {path} 不可写。")),
)  # fmt: skip


def said_by_click(text: str, lang: str) -> str:
    """The same in a language where click's words are known, and as they are where not."""
    if isinstance(text, Message) or lang == "en":
        return Message(text).to(lang)
    for pattern, message in SAID:
        text = re.sub(pattern, lambda m, message=message: filled(message, m.groupdict(), lang), text, flags=re.DOTALL)
    return re.sub(r"(?<=[\u3002\uff1f]) ", "", text)


def filled(message: Message, groups: dict[str, str], lang: str) -> str:
    """A message with what click named put in; kinds of values are translated too."""
    if not groups:
        return message.to(lang)
    kinds = {key: KINDS[groups[key].lower()] for key in ("kind", "found") if groups.get(key, "").lower() in KINDS}
    return Message(message.template, **groups | kinds).to(lang)
