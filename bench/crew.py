"""Batches shared out among processes of one thread each, as `qkv translate MODEL - --workers N` does."""

from collections.abc import Callable
from copy import copy
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

Answer = Callable[..., Any]  # a batch, and more, to its translations


def share(start: Callable[..., Answer], given: Any, folder: Path, **more: Any) -> Callable[..., list[Any]]:
    """What answers a list of batches by as many processes as there are threads, each with what `start` gives."""
    alone = copy(given)
    alone.threads = 1
    context, pipes = get_context("spawn"), list[Any]()
    for _ in range(given.threads):
        own, theirs = context.Pipe()
        context.Process(target=answer, args=(theirs, start, alone, folder, more), daemon=True).start()
        pipes.append(own)
    for pipe in pipes:
        pipe.recv()

    def run(batches: list[Any], *rest: Any) -> list[Any]:
        left, busy, found = iter(enumerate(batches)), dict[Any, int](), dict[int, Any]()

        def hand_out(pipe: Any) -> None:
            for number, batch in left:
                pipe.send((batch, *rest))
                busy[pipe] = number
                return

        for pipe in pipes:
            hand_out(pipe)
        while busy:
            for pipe in wait(list(busy)):
                found[busy.pop(pipe)] = pipe.recv()
                hand_out(pipe)
        return [found[number] for number in range(len(batches))]

    return run


def answer(pipe: Any, start: Callable[..., Answer], given: Any, folder: Path, more: dict[str, Any]) -> None:
    """The life of a process."""
    translate = start(given, folder, **more)
    pipe.send(None)
    while True:
        pipe.send(translate(*pipe.recv()))
