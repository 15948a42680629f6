"""A file that is changed on the way, as a stream for io.BufferedReader. Next: text_files.py."""

import io
from collections.abc import Callable
from typing import IO, Any


class Stream(io.RawIOBase):
    """What `read(size)` gives, at most so many bytes at a time, once from front to back; `files` are closed with it."""

    def __init__(self, read: Callable[[int], bytes], *files: IO[bytes]) -> None:
        self.read_bytes, self.files, self.count = read, files, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as there are bytes."""
        data = self.read_bytes(len(buffer))
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)

    def tell(self) -> int:
        return self.count

    def close(self) -> None:
        for file in self.files:
            file.close()
        super().close()
