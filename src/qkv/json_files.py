"""Text and JSON that others wrote: whatever is wrong with a file, the error names it. Stdlib only."""

import json
import re
import stat
from pathlib import Path
from typing import Any, cast

from qkv.errors import QkvError, nearest
from qkv.messages import Message

TOO_DEEP = Message("a number is too long, or lists or objects are nested too deeply")
HALF = re.compile(r"\\u[dD][89a-fA-F]")  # half of a character, unless its other half follows


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        QkvError: no such file, not a regular file, or not UTF-8; the message names the file.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise QkvError("{path}: is a directory, a pipe or a device, expected a file", path=path)
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        beside = [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else []
        raise QkvError("{path}: no such file{hint}", path=path, hint=nearest(path.name, beside)) from None
    except OSError as e:
        raise QkvError("{path}: cannot be read ({reason})", path=path, reason=e.strerror) from None
    except UnicodeDecodeError as e:
        raise QkvError("{path}: not UTF-8 at byte {start}", path=path, start=e.start) from None


def parse_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        QkvError: as of `read_text`, or it is not JSON; the message names the line.
    """
    text = read_text(path)
    try:
        value = json.loads(text)
        if HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise QkvError("{path}: holds half of a character (a lone surrogate)", path=path) from None
    except json.JSONDecodeError as e:
        raise QkvError("{path}, line {lineno}: not JSON ({msg})", path=path, lineno=e.lineno, msg=e.msg) from None
    except (ValueError, RecursionError):
        raise QkvError("{path}: {e}", path=path, e=TOO_DEEP) from None
    return value


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """A JSON object from a file; empty where it is `optional` and nothing of that name is there.

    Raises:
        QkvError: as of `parse_json`, or it holds no object.
    """
    if optional and not path.exists() and not path.is_symlink():
        return {}
    value = parse_json(path)
    if not isinstance(value, dict):
        raise QkvError("{path}: found a {kind}, expected a JSON object", path=path, kind=type(value).__name__)
    return cast("dict[str, Any]", value)
