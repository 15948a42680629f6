"""Who answers the parts of a file: this process, several of this machine, or those of a Ray cluster.

A worker prepares its verb once and answers part after part. A part whose worker ended early is answered by another one.
"""

import multiprocessing
import re
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import click

from qkv.cli.common import Common, Held, count_cores
from qkv.errors import QkvError

if TYPE_CHECKING:
    from qkv.cli.batches import Part

TRIES = 3  # of a part whose workers end early
ANSWER = 5.0  # seconds in which a Ray cluster takes a connection
Row = dict[str, Any]
Answer = Callable[[Any], Iterable[tuple[Row, Any]]]  # lines to a JSON object for each, as a verb prints them
Done = Iterator[tuple["Part", list[Row]]]


@dataclass(frozen=True)
class Job:
    """A verb with its options, as a worker anywhere prepares it."""

    verb: str
    params: Mapping[str, Any]
    lang: str
    file: str
    keep: bool  # whether a row that cannot be answered has its error in place of an answer
    shown: bool = False  # whether answers have, beside the JSON object, the lines that people read

    def with_threads(self, count: int) -> "Job":
        """The job with so many threads, unless their number was typed."""
        return replace(self, params={**self.params, "threads": self.params.get("threads") or count})

    def prepare_verb(self) -> Answer:
        """What answers lines, with the model in memory."""
        found: list[Answer] = []
        command = import_module(f"qkv.cli.{self.verb}").command
        with click.Context(command, info_name=self.verb, obj=Common(lang=self.lang, receive=found.append)) as context:
            context.params = dict(self.params)
            with suppress(click.exceptions.Exit):
                command.invoke(context)
        return found[0]


class Worker:
    """A job that was prepared."""

    def __init__(self, job: Job) -> None:
        self.job, self.prepared = job, job.prepare_verb()

    def answer(self, part: "Part") -> list[Row]:
        """One object for each row of a part, in its order.

        Raises:
            QkvError: a row that cannot be answered, unless such rows are kept; the message has its place.
        """
        texts = [(number, text) for number, text in part.rows if isinstance(text, str)]
        found = self.answer_some(texts) if texts else {}
        found |= {number: {"error": str(error)} for number, error in part.rows if isinstance(error, QkvError)}
        return [{"row": number, **found[number]} for number, _ in part.rows]

    def answer_some(self, texts: list[tuple[int, str]]) -> dict[int, Row]:
        """The answers by the rows' numbers; where there are none for all, the halves are answered by themselves."""
        try:
            found = self.prepared(Held([text for _, text in texts]))
            answers = [row | ({"shown": shown and list(shown)} if self.job.shown else {}) for row, shown in found]
            return {number: row for (number, _), row in zip(texts, answers, strict=True)}
        except QkvError as error:
            if len(texts) > 1:
                half = len(texts) // 2
                return self.answer_some(texts[:half]) | self.answer_some(texts[half:])
            number = texts[0][0]
            if self.job.keep:
                return {number: {"error": str(error)}}
            raise QkvError("{file}:{number}: {error}", file=self.job.file, number=number, error=error) from None


def choose_crew(job: Job, parts: Iterator["Part"], count: int | None, ray: str | None) -> Done:
    """The parts with their answers, as they are done."""
    if ray is not None:
        return answer_by_ray(job, parts, count, ray)
    if (count or 1) > 1:
        return answer_by_processes(job, parts, count or 1)
    return answer_here(job, parts)


def answer_here(job: Job, parts: Iterator["Part"]) -> Done:
    """By this process alone."""
    worker: Worker | None = None
    for part in parts:
        worker = worker or Worker(job)  # a batch that is complete needs no model
        yield part, worker.answer(part)


def answer_by_processes(job: Job, parts: Iterator["Part"], count: int) -> Done:
    """By processes of this machine, which share its cores; one that ends early is started again.

    Raises:
        QkvError: a part whose workers ended early three times, or what one of them raised.
    """
    job = job.with_threads(max(1, count_cores() // count))
    again, tries, busy = deque["Part"](), Counter[int](), dict[Any, "Part"]()
    context, processes = multiprocessing.get_context("spawn"), list[Any]()

    def start_worker() -> Any:
        own, theirs = context.Pipe()
        processes.append(context.Process(target=answer_pipe, args=(job, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
        return own

    def hand_out(pipe: Any) -> None:
        part = again.popleft() if again else next(parts, None)
        if part is None:
            return pipe.close()
        busy[pipe] = part
        with suppress(OSError):  # it is gone, which the next wait finds
            pipe.send(part)
        return None

    try:
        for _ in range(count):
            hand_out(start_worker())
        while busy:
            for pipe in wait(list(busy)):
                part, found = busy.pop(pipe), receive(pipe)
                if isinstance(found, QkvError):
                    raise found
                if found is None:
                    tries[part.number] += 1
                    if tries[part.number] == TRIES:
                        raise give_up(part)
                    again.append(part)
                    pipe = start_worker()
                hand_out(pipe)
                if found is not None:
                    yield part, found
    finally:
        for process in processes:
            process.terminate()


def receive(pipe: Any) -> Any:
    """What a worker sent; None where it ended early."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        return None


def give_up(part: "Part") -> QkvError:
    """What to say of a part whose workers keep ending."""
    return QkvError("rows {first} to {last}: their workers ended early {times} times; is there too little memory? Try "
                    "fewer --workers or --rows; what is done stays", first=part.rows[0][0], last=part.rows[-1][0],
                    times=TRIES)


def answer_pipe(job: Job, pipe: Any) -> None:
    """Answer the parts that come through a pipe until it is closed."""
    worker: Worker | None = None
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            part = pipe.recv()
            try:
                worker = worker or Worker(job)
                pipe.send(worker.answer(part))
            except QkvError as error:
                pipe.send(error)


def connect_ray(address: str) -> Any:
    """The module ray, connected to the cluster at an address, or to one that it starts on this machine.

    Raises:
        QkvError: Ray is not installed or not there.
    """
    try:
        ray: Any = import_module("ray")
    except ImportError:
        raise QkvError("--ray needs the package ray: pip install 'qkv[scale]'") from None
    place = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address)
    try:
        if place:  # Ray itself would try for minutes
            socket.create_connection((place[1].strip("[]"), int(place[2])), timeout=ANSWER).close()
        ray.init(address or None, ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
    except (OSError, OverflowError, RuntimeError, ValueError) as e:
        raise QkvError("--ray {address}: no Ray cluster answers there ({error})", address=address,
                       error=str(e).split("\n")[0][:200]) from None
    return ray


def answer_by_ray(job: Job, parts: Iterator["Part"], count: int | None, address: str) -> Done:
    """By actors of a Ray cluster, one for each of its GPUs or else of its machines; Ray starts again those that end.

    Raises:
        QkvError: as of connect_ray; a part whose actors ended early; what one of them raised.
    """
    ray = connect_ray(address)
    has = ray.cluster_resources()
    gpus, nodes = int(has.get("GPU", 0)), sum(bool(node["Alive"]) for node in ray.nodes())
    count = count or gpus or nodes
    job = job.with_threads(max(1, int(has.get("CPU", 1)) // count))
    needs = {"num_cpus": job.params["threads"], "num_gpus": min(1, gpus)}
    actor = ray.remote(**needs, max_restarts=TRIES, max_task_retries=TRIES)(Worker)
    idle, busy = [actor.remote(job) for _ in range(count)], dict[Any, tuple[Any, "Part"]]()
    try:
        while True:
            while idle and (part := next(parts, None)):
                worker = idle.pop()
                busy[worker.answer.remote(part)] = worker, part
            if not busy:
                return
            for done in ray.wait(list(busy))[0]:
                worker, part = busy.pop(done)
                try:
                    found = ray.get(done)
                except ray.exceptions.RayTaskError as e:
                    raise (e.cause if isinstance(e.cause, QkvError) else e) from None
                except ray.exceptions.RayActorError:
                    raise give_up(part) from None
                idle.append(worker)
                yield part, found
    finally:
        ray.shutdown()
