"""The one thread in which an engine steps, for callers on other threads: what they ask is done between two steps."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.generation.engine import Engine
from qkv.generation.request import Handle

Answer = TypeVar("Answer")


class Runner:
    """Owns an engine, or, of a model that writes nothing, only the thread: `submit` from any other, which waits for no
    more than the step that runs; handles wait for the thread instead of stepping.

    An error of a whole step, such as memory that is full, ends all its requests with it; the thread goes on.
    """

    def __init__(self, engine: Engine | None) -> None:
        self.engine, self.open = engine, True
        self.inbox: deque[Callable[[], None]] = deque()
        self.awake, self.changed = threading.Event(), threading.Condition()
        if engine is not None:
            engine.driver = self
        self.thread = threading.Thread(target=self.run, name="qkv-engine", daemon=True)
        self.thread.start()

    @property
    def core(self) -> Transformer:
        """The core that writes."""
        assert self.engine is not None
        return self.engine.core

    def do(self, function: Callable[..., Answer], *args: Any, **how: Any) -> "Future[Answer]":
        """What a function gives, called in the thread between two steps."""
        answer: Future[Answer] = Future()

        def work() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    found = function(*args, **how)
                except Exception as error:
                    answer.set_exception(error)
                else:
                    answer.set_result(found)

        with self.changed:
            if not self.open:
                raise QkvError("engine: it is closed and takes no more requests", code="closed")
            self.inbox.append(work)
        self.awake.set()
        return answer

    def submit(self, *args: Any, **how: Any) -> Handle:
        """As `Engine.submit`."""
        assert self.engine is not None
        return self.do(self.engine.submit, *args, **how).result()

    def run(self) -> None:
        """Work while there is some, sleep while there is none, until `close`."""
        while self.open:
            self.awake.clear()
            while self.inbox:
                self.inbox.popleft()()
            if self.engine is not None and self.engine.busy:
                try:
                    self.engine.step()
                except Exception as error:  # whatever it is, nobody may wait for ever
                    self.engine.fail_all(self.explain(error))
                self.announce_step()
            elif not self.inbox:
                self.awake.wait()
        while self.inbox:
            self.inbox.popleft()()
        if self.engine is not None:
            self.engine.fail_all(None)
        self.announce_step()

    def explain(self, error: Exception) -> QkvError:
        """What the requests of a step that failed end with."""
        return QkvError("engine: a step failed: {error}", code="step", error=error)

    def announce_step(self) -> None:
        """Tell those who wait that a step is over."""
        with self.changed:
            self.changed.notify_all()

    def wait(self, handle: Handle, *, until_done: bool = False) -> None:
        """Sleep until a request has something new, or is done."""
        with self.changed:
            self.changed.wait_for(lambda: handle.done or (bool(handle.events) and not until_done))

    def close(self) -> None:
        """End the thread; requests that still run end as cancelled."""
        with self.changed:
            self.open = False
        self.awake.set()
        self.thread.join()
