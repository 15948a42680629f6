"""The page at `/` of `qkv serve`: chat and translate, and from any word of an answer to the inside of that answer.

Nothing is computed for those who do not look: the server keeps ids, and the pass that records runs when it is asked.
"""

import hashlib
import secrets
from collections.abc import Iterator, Mapping
from functools import partial
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Receive, Scope, Send

from qkv.explore import record, server
from qkv.explore.question import BUDGET, RecentRuns, Refused, Run, read_again
from qkv.model import Model
from qkv.serve.app import dump_json, read_body
from qkv.serve.fields import RequestError, read_fields, read_object, require, string
from qkv.serve.gate import Keys, refuse_key
from qkv.serve.service import Service, Written
from qkv.tasks.types import start_ids

FILES = {"/": ("chat.html", "text/html"), "/chat.js": ("chat.js", "text/javascript"),
         "/chat.css": ("chat.css", "text/css")}


class LoadedModels(Mapping[str, Model]):
    """The models that the server has loaded now, by name."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def __getitem__(self, name: str) -> Model:
        return self.service.models.loaded[name].model

    def __iter__(self) -> Iterator[str]:
        return iter(self.service.models.loaded)

    def __len__(self) -> int:
        return len(self.service.models.loaded)


class Answers:
    """The answers that the server kept, as runs of the page; a run's name tells nobody else's."""

    def __init__(self, service: Service) -> None:
        self.service, self.models, self.salt = service, LoadedModels(service), secrets.token_hex(16)

    def name_run(self, number: str) -> str:
        """The name of an answer's run."""
        return "r" + hashlib.sha256(f"{self.salt} {number}".encode()).hexdigest()[:12]

    def make_run(self, run: str) -> Run | None:
        """The run of a name; None where no such answer is kept."""
        number = next((one for one in list(self.service.kept) if self.name_run(one) == run), None)
        answer = self.service.kept.get(number or "")
        if answer is None:
            return None
        model = self.models.get(answer.model) or refuse_unloaded(answer.model)
        words = list(answer.tokens), list(answer.logprobs)
        return read_again(model, answer.model, run, answer.prompt, words)

    def find_position(self, answer: Written, token: int) -> int:
        """The position that wrote a token of an answer, among those that the decoder read."""
        model = self.models.get(answer.model) or refuse_unloaded(answer.model)
        before = () if model.encoder_decoder else answer.prompt
        return max(0, min(token, len(answer.tokens) - 1)) + len(before) + len(start_ids(model)) - 1


def refuse_unloaded(name: str) -> Model:
    """The error for a model that made room for another."""
    raise Refused("the model {name} is not loaded now; ask it something first", status=404, name=name)


def make_routes(service: Service, keys: Keys, *, cookie: str, lang: str) -> list[BaseRoute]:
    """The addresses of the page."""
    found = Answers(service)
    desk = server.Desk(list(service.models.sources), refuse_unloaded, lang, models=found.models,  # type: ignore[arg-type]
                       shelf=RecentRuns(4, BUDGET), replay=found.make_run, worker=service.models.thread)
    inside = server.make_page(desk)

    async def answer_inside(scope: Scope, receive: Receive, send: Send) -> None:
        await inside({**scope, "root_path": "", "path_params": {}}, receive, send)  # its own addresses begin with /api

    return [
        *(Route(path, partial(show_file, keys, cookie, path)) for path in FILES),
        Route("/login", partial(open_session, service, keys, cookie), methods=["POST"]),
        Route("/inside", partial(show_inside, found), methods=["GET"]),
        Mount("/look", inside), Mount("/api", answer_inside),
    ]


async def show_file(keys: Keys, cookie: str, path: str, request: Request) -> Response:
    """A file of the page, which learns whether a key is needed and not there yet."""
    name, kind = FILES[path]
    text = record.read_page_file(server.STATIC / name)
    if name == "chat.html" and keys.hashes and request.cookies.get(cookie, "") not in keys.sessions:
        text = text.replace("<q-chat>", "<q-chat locked>")
    return Response(text, media_type=kind, headers={"cache-control": "no-cache"})


async def open_session(service: Service, keys: Keys, cookie: str, request: Request) -> Response:
    """A cookie for a browser that shows a key."""
    key = require(read_fields(read_object(await read_body(request, service)), {"key": string(512)}), "key")
    if (name := keys.find_name(key)) is None:
        raise refuse_key()
    answer = Response(dump_json({"key": name}), media_type="application/json", headers=server.UNSTORED)
    answer.set_cookie(cookie, keys.open_session(name), httponly=True, samesite="strict", path="/",
                      secure=request.url.scheme == "https")
    return answer


async def show_inside(found: Answers, request: Request) -> Response:
    """From a word of an answer to the page that shows its inside: only whose answer it is gets there."""
    number, token = request.query_params.get("answer", ""), request.query_params.get("token", "0")
    answer = found.service.find_kept(number, request.state.caller.key)
    if answer is None:
        raise RequestError("this answer is not kept any more; ask again", status=404, code="not_found")
    position = found.find_position(answer, int(token[:9]) if token[:9].isdecimal() else 0)
    one = found.models.get(answer.model) or refuse_unloaded(answer.model)
    place = {"run": found.name_run(number), "panel": "alignment" if one.encoder_decoder else "next-word",
             "layer": str(len(one.spec.stack.blocks) - 1), "query": str(position)}
    if request.query_params.get("lang") in ("zh", "en"):
        place["lang"] = request.query_params["lang"]
    return RedirectResponse(f"/look/#{urlencode(place)}", 303)
