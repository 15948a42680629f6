"""The one thread in which engines step, for callers on other threads: what they ask is done between two steps."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, TypeVar

from qkv.core.model import Transformer
from qkv.errors import QkvError
from qkv.generation.engine import Engine
from qkv.generation.request import Handle

Answer = TypeVar("Answer")


class ComputeThread(Executor):
    """A thread for everything in a process that computes: calls in their order, and between them a step of each engine.

    libgomp keeps a pool for each thread that has computed. With more threads than cores it stops spinning at barriers,
    which can make steps twice as long; so a process that serves several models, or shows the inside of one, has one
    of these.
    """

    def __init__(self) -> None:
        self.inbox: deque[tuple[Future[Any], Callable[[], Any], bool]] = deque()
        self.runners: list[Runner] = []
        self.open, self.awake = True, threading.Event()
        self.thread: threading.Thread | None = None  # begins with the first call
        self.lock = threading.Lock()

    @property
    def alive(self) -> bool:
        """Whether calls are answered."""
        return self.open and (self.thread is None or self.thread.is_alive())

    def submit(self, fn: Callable[..., Answer], /, *args: Any, **kwargs: Any) -> "Future[Answer]":
        """What a function gives, called between two steps."""
        return self.post(partial(fn, *args, **kwargs))

    def post(self, call: Callable[[], Answer], *, deferred: bool = False) -> "Future[Answer]":
        """What a call gives, made between two steps; `deferred`, the future is resolved after the step that follows.

        A caller that wakes up before that step holds the GIL while the step needs it.
        """
        answer: Future[Answer] = Future()
        with self.lock:
            if not self.open:
                raise QkvError("engine: it is closed and takes no more requests", code="closed")
            self.inbox.append((answer, call, deferred))
            if self.thread is None:
                self.thread = threading.Thread(target=self.run, name="qkv-compute", daemon=True)
                self.thread.start()
        self.awake.set()
        return answer

    def run(self) -> None:
        """Work while there is some, sleep while there is none, until `shutdown`."""
        while self.open or self.inbox:
            self.awake.clear()
            resolved_later = self.answer_calls()
            busy = [runner.take_turn() for runner in list(self.runners)]
            for answer, found in resolved_later:
                answer.set_result(found)
            if not any(busy) and self.open and not self.inbox:
                self.awake.wait()
        for runner in list(self.runners):
            runner.leave()

    def answer_calls(self) -> list[tuple[Future[Any], Any]]:
        """Make the calls that wait; the deferred futures with their results. An error is raised to its caller alone."""
        resolved_later: list[tuple[Future[Any], Any]] = []
        while self.inbox:
            answer, call, deferred = self.inbox.popleft()
            if answer.set_running_or_notify_cancel():
                try:
                    found = call()
                except Exception as error:
                    answer.set_exception(error)
                else:
                    if deferred:
                        resolved_later.append((answer, found))
                    else:
                        answer.set_result(found)
        return resolved_later

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread after the calls that wait, or cancel those; requests that still run end as cancelled."""
        with self.lock:
            self.open = False
            if cancel_futures:
                for answer, *_ in list(self.inbox):
                    answer.cancel()
        self.awake.set()
        if wait and self.thread:
            self.thread.join()


class Runner:
    """Owns an engine, or, of a model that writes nothing, only a place in the thread: `submit` from any other, which
    waits for no more than the steps that run; handles wait for the thread instead of stepping.

    An error of a whole step, such as memory that is full, ends all its requests with it; the thread goes on.
    """

    def __init__(self, engine: Engine | None, thread: ComputeThread | None = None) -> None:
        self.engine, self.open, self.changed = engine, True, threading.Condition()
        self.thread, self.owns_thread = thread or ComputeThread(), thread is None
        if engine is not None:
            engine.driver = self
        self.thread.submit(self.thread.runners.append, self)

    @property
    def core(self) -> Transformer:
        """The core that writes."""
        assert self.engine is not None
        return self.engine.core

    def do(self, function: Callable[..., Answer], *args: Any, **how: Any) -> "Future[Answer]":
        """What a function gives, called in the thread between two steps."""
        if not self.open:
            raise QkvError("engine: it is closed and takes no more requests", code="closed")
        return self.thread.submit(function, *args, **how)

    def submit(self, *args: Any, **how: Any) -> Handle:
        """As `Engine.submit`."""
        assert self.engine is not None
        return self.do(self.engine.submit, *args, **how).result()

    def take_turn(self) -> bool:
        """Step the engine where it has something to do; in the thread. False: it had nothing."""
        if self.engine is None or not self.engine.busy:
            return False
        try:
            self.engine.step()
        except Exception as error:  # whatever it is, nobody may wait for ever
            self.engine.fail_all(self.explain(error))
        self.announce_step()
        return True

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
        """Leave the thread, and end it unless it is shared; requests that still run end as cancelled."""
        if self.open:
            self.open = False
            self.thread.submit(self.leave).result()
            if self.owns_thread:
                self.thread.shutdown()

    def leave(self) -> None:
        """Take no more turns; in the thread."""
        self.open = False
        self.thread.runners.remove(self)
        if self.engine is not None:
            self.engine.fail_all(None)
        self.announce_step()
