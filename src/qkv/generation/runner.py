"""One thread that steps an engine, for callers on many threads, such as a server's."""

import threading
from typing import Any

from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.generation.engine import Engine
from qkv.generation.request import Handle


class Runner:
    """Owns an engine: `submit` from any thread; handles wait for the stepping thread instead of stepping themselves.

    An error of a whole step, such as memory that is full, ends all its requests with it; the thread goes on.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, self.changed, self.open = engine, threading.Condition(), True
        engine.driver = self
        self.thread = threading.Thread(target=self.run, name="qkv-engine", daemon=True)
        self.thread.start()

    @property
    def core(self) -> Transformer:
        """The core that writes."""
        return self.engine.core

    def submit(self, *args: Any, **how: Any) -> Handle:
        """As `Engine.submit`."""
        with self.changed:
            if not self.open:
                raise QkvError("engine: it is closed and takes no more requests", code="closed")
            handle = self.engine.submit(*args, **how)
            self.changed.notify_all()
            return handle

    def run(self) -> None:
        """Step while there is work, sleep while there is none, until `close`."""
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.engine.busy or not self.open)
                if not self.open:
                    return
                try:
                    self.engine.step()
                except Exception as error:  # whatever it is, nobody may wait for ever
                    self.engine.fail_all(QkvError("engine: a step failed: {error}", code="step", error=error))
                self.changed.notify_all()

    def wait(self, handle: Handle, *, until_done: bool = False) -> None:
        """Sleep until a request has something new, or is done."""
        with self.changed:
            self.changed.wait_for(lambda: handle.done or (bool(handle.events) and not until_done))

    def close(self) -> None:
        """End the thread; requests that still run end as cancelled."""
        with self.changed:
            self.open = False
            self.engine.fail_all(None)
            self.changed.notify_all()
        self.thread.join()
