"""What click says of a command line that it cannot read, in Chinese. Read by main of this folder."""

import re

# Kinds of values, then whole sentences: what click says (8.1 and later), and the Chinese for it.
KINDS = {"integer": "整数", "float": "数", "integer range": "整数", "float range": "数", "boolean": "真假值",
         "File": "文件", "Directory": "目录", "Path": "路径"}  # fmt: skip
SAID = (
    (r"No such option:? '?(--?[^\s'.]+)'?\.?", r"没有选项 \1。"),
    (r"Did you mean one of: ([^?]+)\?", r"是不是其中之一：\1？"),
    (r"\(Possible options: ([^)]+)\)", r"是不是其中之一：\1？"),
    (r"Did you mean ([^?]+)\?", r"是不是 \1？"),
    (r"Missing (?:argument|option|parameter):? ('[^']+')\.?", r"缺 \1。"),
    (r"Choose from:", "请选："),
    (r"Option ('[^']+') requires an argument\.", r"选项 \1 要有一个值。"),
    (r"Option ('[^']+') requires (\d+) arguments\.", r"选项 \1 要有 \2 个值。"),
    (r"Option ('[^']+') does not take a value\.", r"选项 \1 不带值。"),
    (r"Got unexpected extra arguments? \((.+)\)", r"多出了 \1"),
    (r"Invalid value for (.+?): ", r"\1 的值不对："),
    (r"(\S+) is not in the range (.+?)\.$", r"\1 不在范围 \2 之内。"),
    (r"('.*?') is not one of (.+)\.$", r"\1 不是 \2 之一。"),
    (r"('.*?') is not ('.*?')\.$", r"\1 不是 \2。"),
    (r"('.*?') is not a valid ([a-z ]+)\.", lambda m: f"{m[1]} 不是{KINDS.get(m[2], ' ' + m[2])}。"),
    (r"\b(File|Directory|Path) ('.*?') does not exist\.", lambda m: f"{KINDS[m[1]]} {m[2]} 不存在。"),
    (r"\b(File|Directory|Path) ('.*?') is a (file|directory)\.",
     lambda m: f"{m[2]} 是{KINDS[m[3].capitalize()]}，应是{KINDS[m[1]]}。"),
    (r"\b(File|Directory|Path) ('.*?') is not (readable|writable)\.",
     lambda m: f"{KINDS[m[1]]} {m[2]} 不可{'读' if m[3] == 'readable' else '写'}。"),
)  # fmt: skip


def chinese(message: str) -> str:
    """The same in Chinese where click's words are known, and as they are where not."""
    own = getattr(message, "zh", "")
    for said, zh in () if own else SAID:
        message = re.sub(said, zh, message, flags=re.DOTALL)
    return own or re.sub(r"(?<=[。？]) ", "", message)
