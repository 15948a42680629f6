"""`qkv serve MODEL …`: an OpenAI-compatible server, with a page to chat, to translate and to look inside."""

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from click.core import ParameterSource

from qkv.cli.common import Common, FiniteRange, count_cores, option, verb
from qkv.errors import QkvError
from qkv.messages import Message

PAIR = re.compile(r"-([a-z]{2,3})-([a-z]{2,3})$")  # at the end of a name such as opus-mt-zh-en
LANGUAGES = {"demo": ("zh", "en")}  # of the bundled translator


class Span(click.ParamType):
    """A number of replicas, or the least and the most of them: N or LEAST:MOST."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        least, colon, most = value.partition(":")
        words = (least, most if colon else least)
        if not all(re.fullmatch("[0-9]{1,3}", word) for word in words) or not 1 <= int(least) <= int(words[1]) <= 256:
            self.fail(Message("{value}: expected a number from 1 to 256, or two such as 1:4", value=value), param, ctx)
        return int(least), int(words[1])


@verb("Serve models over HTTP as OpenAI's clients ask for them, with a page to chat and to translate. A MODEL may be "
      "given a name: NAME=MODEL.", examples=(
        "qkv serve ./smollm2.gguf",
        "qkv serve demo chat=Qwen/Qwen2.5-0.5B-Instruct --port 9000 --memory 4",
        "qkv serve ./my-model --host 0.0.0.0 --keys keys.txt",
    ))
@click.argument("models", nargs=-1)
@option("--host", default="127.0.0.1", help="address to listen on; any but this machine's own needs --keys")
@option("--port", type=click.IntRange(1, 65535), default=8000, help="port")
@option("--keys", type=click.Path(path_type=Path, dir_okay=False), help="file of API keys, hashed; "
        "QKV_API_KEY names one too")
@option("--new-key", metavar="NAME", help="make a key, write its hash into --keys, print the key, and end")
@option("--cors", multiple=True, metavar="ORIGIN", help="web origin whose pages may ask (may be repeated; * for all)")
@option("--allow-host", multiple=True, metavar="NAME", help="name under which this server is reached (may be repeated)")
@option("--languages", multiple=True, metavar="NAME=zh:en", help="what a model translates, for LibreTranslate's "
        "clients")
@option("--memory", type=FiniteRange(0, min_open=True), metavar="GB", help="memory of all models together; those "
        "that are not used make room")
@option("--tokens", type=click.IntRange(16), default=16_384, help="tokens that a model holds of all requests together")
@option("--rows", type=click.IntRange(1, 4096), default=32, help="texts that a model writes at the same time")
@option("--queue", type=click.IntRange(0), default=64, help="requests that may wait beside them; more get status 429")
@option("--max-tokens", type=click.IntRange(1), default=4096, help="maximum number of new tokens of an answer")
@option("--max-prompt", type=click.IntRange(1), help="maximum number of tokens of a prompt")
@option("--max-body", type=FiniteRange(0, min_open=True), default=4.0, metavar="MB", help="maximum size of a "
        "request")
@option("--time", type=FiniteRange(0, min_open=True), default=600.0, metavar="SECONDS", help="maximum time of an "
        "answer")
@option("--streams", type=click.IntRange(1), default=1024, help="requests of one key at a time")
@option("--drain", type=FiniteRange(0), default=30.0, metavar="SECONDS", help="time for answers to end at SIGTERM")
@option("--replicas", type=Span(), default="1", metavar="N", help="processes that serve the same models behind one "
        "address, each with models of its own; with --ray also LEAST:MOST, as the load asks")
@option("--ray", is_flag=False, flag_value="", metavar="[ADDRESS]", help="let Ray Serve run the replicas, on all "
        "machines of a cluster or on this one")
@option("--engine", type=click.Choice(["qkv", "vllm"]), default="qkv", help="vllm: vLLM serves the model, where it is "
        "installed; its own options come after --")
@click.option("--socket", hidden=True, type=click.Path(path_type=Path))
@option("--fast", is_flag=True, help="let company change the last bits of an answer")
def command(common: Common, models: tuple[str, ...], **how: Any) -> None:
    from qkv.serve import listen

    if how["new_key"]:
        return make_key(common, how["new_key"], how["keys"])
    if not models:
        raise click.UsageError(Message("MODEL is missing; qkv models lists those that come with the package"))
    own = next((n for n, word in enumerate(models) if word.startswith("-")), len(models))  # after a bare --
    sources = name_models(models[:own])
    if how["engine"] == "vllm":
        return hand_to_vllm(common, sources, how, list(models[own:]))
    if own < len(models):
        raise click.UsageError(Message("{word}: options after -- are for --engine vllm", word=models[own]))
    if how["ray"] is not None:
        return serve_on_ray(common, sources, how)
    if how["replicas"][1] > 1 and how["socket"] is None:
        return serve_replicas(common, sources, how)
    keys, service = read_keys(how), make_service(common, sources, how)
    socket = listen.bind_socket(how["host"], how["port"]) if how["socket"] is None else listen.bind_file(how["socket"])
    server = listen.Server(make_application(common, service, keys, how), service, drain=how["drain"])
    server.begun = lambda: announce(common, service, how) if how["socket"] is None else None
    with socket, suppress(KeyboardInterrupt):  # the way to end it
        server.run(sockets=[socket])
    return None


def hand_to_vllm(common: Common, sources: dict[str, str], how: dict[str, Any], more: list[str]) -> None:
    """The one model with its options to vLLM, which takes this process's place."""
    from qkv.serve import vllm

    if len(sources) != 1:
        raise QkvError("--engine vllm: vLLM serves one model; found {count}", count=len(sources))
    read_keys(how)
    context, (name, source) = click.get_current_context(), next(iter(sources.items()))
    typed = [key for key in context.params if context.get_parameter_source(key) is ParameterSource.COMMANDLINE]
    vllm.start_vllm(name, source, {**how, "dtype": common.dtype, "revision": common.revision}, typed, more)


def serve_replicas(common: Common, sources: dict[str, str], how: dict[str, Any]) -> None:
    """Processes that each run this command, and a router before them."""
    import asyncio

    from qkv.serve import listen, replicas

    if os.name == "nt":
        raise QkvError("--replicas: not on Windows, where there are no such sockets")
    least, most = how["replicas"]
    if least < most:
        raise QkvError("--replicas {least}:{most}: only --ray starts and ends replicas as the load asks; give one "
                       "number", least=least, most=most)
    read_keys(how)
    context = click.get_current_context()
    words = [word for param in context.command.params for word in list_flags(context, param)]
    threads = [] if common.threads else [f"--threads={max(1, count_cores() // most)}"]
    command = [sys.executable, "-m", "qkv", "serve", *words, *threads, "--socket"]
    with TemporaryDirectory(prefix="qkv-") as folder, listen.bind_socket(how["host"], how["port"]) as socket:
        crew = [replicas.Replica(Path(folder, str(n))) for n in range(most)]
        url = name_address(how)
        begun = lambda: common.print_result({"url": url, "models": list(sources), "replicas": len(crew)}, [url])  # noqa: E731
        asyncio.run(replicas.Router(command, crew, begun).run(socket))


def serve_on_ray(common: Common, sources: dict[str, str], how: dict[str, Any]) -> None:
    """The same service in replicas of Ray Serve, and the keys that this process has read."""
    from qkv.cli.serve_ray import serve_by_ray

    keys = read_keys(how)

    def build_parts(common: Common) -> tuple[Any, Any]:
        import torch

        torch.set_num_threads(common.threads or 1)
        service = make_service(common, sources, how)
        return service, make_application(common, service, keys, how)

    url, (least, most) = name_address(how), how["replicas"]
    shown = {"url": url, "models": list(sources), "replicas": [least, most]}
    serve_by_ray(common, build_parts, how, lambda: common.print_result(shown, [url]))


def list_flags(context: click.Context, param: click.Parameter) -> list[str]:
    """How a parameter was typed."""
    value: Any = context.params.get(param.name or "")
    if param.name == "replicas" or context.get_parameter_source(param.name or "") is not ParameterSource.COMMANDLINE:
        return []
    if isinstance(param, click.Argument):
        return [str(one) for one in value]
    name = param.opts[0]
    return [name] if value is True else [f"{name}={one}" for one in (value if isinstance(value, tuple) else (value,))]


def make_key(common: Common, name: str, file: Path | None) -> None:
    """A new key, printed once."""
    from qkv.serve import gate

    if file is None:
        raise click.UsageError(Message("--new-key needs --keys FILE, where the key's hash is kept"))
    key = gate.add_key(file, name)
    common.note("{file} has its hash; the key itself is kept nowhere", file=file)
    common.print_result({"name": name, "key": key}, [key])


def name_models(given: tuple[str, ...]) -> dict[str, str]:
    """What qkv.load takes, by the name under which it is served: the one given, else the last part of a path."""
    from qkv.cli.common import refuse_missing_path

    found: dict[str, str] = {}
    for one in given:
        name, equals, source = one.partition("=")
        if not equals or "/" in name:
            source, path = one, Path(one)
            name = (path.stem if path.suffix == ".gguf" else path.name) if path.exists() else one
        if not re.fullmatch(r"[\w.:/-]{1,128}", name):
            raise QkvError("{name!r}: a model's name has letters, digits, dots and dashes; give it one with "
                           "NAME={source}", name=name, source=source)
        if name in found:
            raise QkvError("two models are called {name}; give one another name: NAME={source}", name=name,
                           source=source)
        refuse_missing_path(source)
        found[name] = source
    return found


def read_keys(how: dict[str, Any]) -> Any:
    """The keys; a QkvError where others could ask and none is needed."""
    from qkv.serve import gate, listen

    if how["keys"] is not None and not how["keys"].is_file():
        raise QkvError("--keys {file}: no such file; qkv serve --new-key NAME --keys {file} makes it", file=how["keys"])
    keys = gate.Keys.from_file(how["keys"], os.environ.get("QKV_API_KEY", ""))
    if how["host"] not in listen.LOOPBACK and not keys.hashes:
        raise QkvError("--host {host}: others could ask there, so keys are needed: --keys FILE, or QKV_API_KEY",
                       host=how["host"])
    return keys


def make_service(common: Common, sources: dict[str, str], how: dict[str, Any]) -> Any:
    """The models and their bounds."""
    from qkv.serve.models import Holding, Models
    from qkv.serve.service import Bounds, Service

    memory = None if how["memory"] is None else int(how["memory"] * 1e9)
    holding = Holding(memory, how["tokens"], how["rows"], batch_invariant=not how["fast"])
    bounds = Bounds(body=int(how["max_body"] * 1e6), prompt=how["max_prompt"], tokens=how["max_tokens"],
                    queue=how["queue"], seconds=how["time"], streams=how["streams"])
    return Service(Models(sources, common.load_model, holding), bounds,
                   languages=read_languages(sources, how["languages"]))


def read_languages(sources: dict[str, str], given: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """What each model translates: as it was said, or as its name says it."""
    found: dict[str, tuple[str, str]] = {}
    for name in sources:
        if match := PAIR.search(name):
            found[name] = match[1], match[2]
        elif sources[name] in LANGUAGES:
            found[name] = LANGUAGES[sources[name]]
    for one in given:
        match = re.fullmatch(r"(.+)=([\w-]+):([\w-]+)", one)
        if match is None or match[1] not in sources:
            raise QkvError("--languages {one!r}: expected NAME=SOURCE:TARGET, such as {name}=zh:en", one=one,
                           name=next(iter(sources)))
        found[match[1]] = match[2], match[3]
    return found


def make_application(common: Common, service: Any, keys: Any, how: dict[str, Any]) -> Any:
    """The application under the names by which it is reached."""
    from qkv.explore import chat_page
    from qkv.serve import app, gate, listen

    local = how["host"] in listen.LOOPBACK
    names = [*how["allow_host"], *(("127.0.0.1", "localhost", "[::1]") if local else (how["host"],))]
    hosts = gate.list_hosts(names, how["port"]) if local or how["allow_host"] else None
    access = gate.Access(hosts, how["cors"], keys)
    cookie = f"qkv-{how['port']}"
    pages = chat_page.make_routes(service, keys, cookie=cookie, lang=common.lang)
    return app.make_app(service, access, log=gate.Log(quiet=common.quiet), cookie=cookie, more=pages)


def announce(common: Common, service: Any, how: dict[str, Any]) -> None:
    """The address, and a line to try."""
    url, name = name_address(how), service.models.first
    one = service.models.loaded.get(name)
    key = " -H 'Authorization: Bearer KEY'" if how["keys"] or os.environ.get("QKV_API_KEY") else ""
    path, body = "v1/chat/completions", f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hi"}}]}}'
    if one is not None and one.model.encoder_decoder:
        text = "我爱学习。"
        path, body = "v1/translate", f'{{"model": "{name}", "text": "{text}"}}'
    elif one is not None and one.engine is None:
        path, body = "v1/embeddings", f'{{"model": "{name}", "input": "a cup of tea"}}'
    elif one is not None and one.template is None:
        path, body = "v1/completions", f'{{"model": "{name}", "prompt": "One, two,", "max_tokens": 16}}'
    line = f"curl {url}/{path}{key} -d '{body}'"
    common.print_result({"url": url, "models": list(service.models.sources), "try": line}, [url, line])
    common.note("Ctrl-C ends it")


def name_address(how: dict[str, Any]) -> str:
    """Where the server is."""
    host = f"[{how['host']}]" if ":" in how["host"] else how["host"]
    return f"http://{host}:{how['port']}"
