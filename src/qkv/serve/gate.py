"""Who is let in: names of this server, origins, keys. Every answer carries its request's id and is logged in one line.

Keys are held as SHA-256 hashes and compared in constant time. A page in a browser gets a cookie for a key.
"""

import hashlib
import hmac
import json
import re
import secrets
import sys
import time
import traceback
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv.errors import QkvError
from qkv.files import write_text_file
from qkv.json_files import read_text
from qkv.serve.fields import RequestError
from qkv.serve.metrics import Metrics, label
from qkv.serve.service import Caller

OPEN = {"/health", "/login", "/", "/chat.js", "/chat.css"}  # that need no key: none of them says anything of anybody
ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
KEY_LINE = re.compile(r"(?P<name>[\w.-]{1,64})\s+(?P<hash>[0-9a-f]{64})")
SESSIONS = 1000
GUARDS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
}
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


@dataclass(eq=False)
class Keys:
    """The hashes of the keys by name; empty where nobody needs one. `sessions` are browsers that showed one."""

    hashes: dict[str, str] = field(default_factory=dict[str, str])
    sessions: OrderedDict[str, str] = field(default_factory=OrderedDict[str, str])

    @staticmethod
    def from_file(file: Path | None, given: str = "") -> "Keys":
        """The keys of a file, a name and a SHA-256 in hex on each line, and those `given`, separated by commas.

        Raises:
            QkvError: a line of the file is no such line, or a key is short enough to be guessed.
        """
        found: dict[str, str] = {}
        for n, line in enumerate(read_text(file).splitlines() if file else (), 1):
            if not line.strip() or line.startswith("#"):
                continue
            match = KEY_LINE.fullmatch(line.strip())
            if match is None:
                raise QkvError("{file}:{n}: expected a name and the SHA-256 of its key; qkv serve --new-key NAME "
                               "--keys {file} writes one", file=file, n=n)
            found[match["name"]] = match["hash"]
        for n, key in enumerate(filter(None, (key.strip() for key in given.split(","))), 1):
            if len(key) < 16:
                raise QkvError("QKV_API_KEY: key {n} has {length} characters, expected at least 16", n=n,
                               length=len(key))
            found[f"environment-{n}"] = hash_key(key)
        if file and not found:
            raise QkvError("{file}: there is no key in it; qkv serve --new-key NAME --keys {file} writes one",
                           file=file)
        return Keys(found)

    def find_name(self, key: str) -> str | None:
        """Whose key this is, in a time that does not tell how much of it is right."""
        digest, name = hash_key(key), None
        for known, value in self.hashes.items():
            if hmac.compare_digest(digest, value):
                name = known
        return name

    def open_session(self, name: str) -> str:
        """A cookie for a browser that showed a key."""
        cookie = secrets.token_urlsafe(24)
        self.sessions[cookie] = name
        while len(self.sessions) > SESSIONS:
            self.sessions.popitem(last=False)
        return cookie


def hash_key(key: str) -> str:
    """The SHA-256 of a key in hex."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def add_key(file: Path, name: str) -> str:
    """A new key, whose hash is written to a file under a name; the file never holds the key.

    Raises:
        QkvError: the name is there, or is none.
    """
    if not re.fullmatch(r"[\w.-]{1,64}", name):
        raise QkvError("--new-key {name!r}: expected letters, digits, dots and dashes", name=name)
    before = read_text(file) if file.exists() else ""
    if any(line.split()[:1] == [name] for line in before.splitlines()):
        raise QkvError("{file}: there is a key {name} already; remove its line first", file=file, name=name)
    key = f"qkv-{secrets.token_urlsafe(32)}"
    newline = "" if not before or before.endswith("\n") else "\n"
    write_text_file(file, f"{before}{newline}{name} {hash_key(key)}\n")
    return key


@dataclass(frozen=True)
class Access:
    """Under which names the server answers, to pages of which origins, and to whom; None lets every name in."""

    hosts: tuple[str, ...] | None
    origins: tuple[str, ...] = ()
    keys: Keys = field(default_factory=Keys)

    def find_refusal(self, request: Request) -> RequestError | None:
        """Why a name or an origin is refused."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if self.hosts is not None and host.lower() not in self.hosts:
            return RequestError("Host: this server does not answer under this name; --allow-host adds it", status=403,
                                code="host_not_allowed")
        if origin is not None and not self.allows(origin, host):
            return RequestError("Origin: pages of this origin may not ask here; --cors adds it", status=403,
                                code="origin_not_allowed")
        return None

    def allows(self, origin: str, host: str) -> bool:
        """Whether pages of an origin may ask: the server's own, and those that were named."""
        own = origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")
        return own or "*" in self.origins or origin in self.origins

    def find_caller(self, request: Request, cookie: str) -> str | None:
        """The name of the key of a request, "" where none is needed; None where the right one is missing."""
        if not self.keys.hashes:
            return ""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if key:
            return self.keys.find_name(key)
        return self.keys.sessions.get(request.cookies.get(cookie, ""))


@dataclass(frozen=True)
class Log:
    """One line of JSON for each request; never what it said."""

    stream: TextIO = sys.stderr
    quiet: bool = False

    def write_line(self, **said: Any) -> None:
        """A line."""
        if not self.quiet:
            line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S"), **said}
            print(json.dumps(line, ensure_ascii=False), file=self.stream, flush=True)


class Gate:
    """Lets requests in, names and logs them, and turns every error into OpenAI's shape."""

    def __init__(self, app: ASGIApp, access: Access, metrics: Metrics, log: Log, cookie: str) -> None:
        self.app, self.access, self.metrics, self.log, self.cookie = app, access, metrics, log, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no websockets here
        request, began, status = Request(scope), time.perf_counter(), 0
        given = request.headers.get("x-request-id", "")
        number = given if ID.fullmatch(given) else secrets.token_hex(12)
        lang = "zh" if request.headers.get("accept-language", "").lower().startswith("zh") else "en"

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update({"x-request-id": number, **GUARDS, **self.share(request)})
            await send(message)

        caller, error = Caller(id=number, lang=lang), None
        try:
            caller = self.meet(request, caller)
            scope.setdefault("state", {})["caller"] = caller
            answer = self.preflight(request)
            await (answer or self.app)(scope, receive, send_named)
        except ClientDisconnect:
            status = status or 499
        except Exception as e:
            error = e
        if error is not None and not status:
            with suppress(Exception):  # after some rubbish a connection takes no answer
                await say_error(error, caller)(scope, receive, send_named)
        error = error or scope.get("state", {}).get("failure")  # of a stream that had begun
        if status >= 400:
            self.metrics.increase("request_errors_total", label(status=status))
        said = {"key": caller.key} if caller.key else {}
        self.log.write_line(id=number, method=scope["method"], path=scope["path"][:200], status=status,
                       seconds=round(time.perf_counter() - began, 4), **said, **caller.notes)
        if error is not None and not isinstance(error, RequestError):
            frames = traceback.extract_tb(error.__traceback__)[-6:]  # its message might repeat what was asked
            where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
            self.log.write_line(id=number, error=type(error).__name__, where=where)
        elif isinstance(error, RequestError) and error.__cause__ is not None:
            self.log.write_line(id=number, error=str(error.__cause__))

    def meet(self, request: Request, caller: Caller) -> Caller:
        """Who asks; a RequestError for whoever is not let in."""
        if refusal := self.access.find_refusal(request):
            raise refusal
        name = self.access.find_caller(request, self.cookie)
        free = request.url.path in OPEN or request.method == "OPTIONS" or request.url.path == "/translate"
        if name is None and not free:  # a key of LibreTranslate's stands in the body
            raise refuse_key()
        return Caller(name or "", caller.id, caller.lang, caller.notes)

    def share(self, request: Request) -> dict[str, str]:
        """The headers by which a page of another origin may read the answer."""
        origin = request.headers.get("origin")
        if origin is None or not self.access.allows(origin, request.headers.get("host", "")):
            return {}
        return {"access-control-allow-origin": origin, "vary": "origin", "access-control-expose-headers":
                "x-request-id, retry-after"}

    def preflight(self, request: Request) -> Response | None:
        """The answer to a browser that asks whether a page may ask."""
        if request.method != "OPTIONS" or "access-control-request-method" not in request.headers:
            return None
        asked = request.headers.get("access-control-request-headers", "authorization")[:500]
        return Response(status_code=204, headers={
            "access-control-allow-methods": "GET, POST", "access-control-max-age": "600",
            "access-control-allow-headers": asked,
        })


def refuse_key() -> RequestError:
    """The error for a key that is missing or wrong: the same for both."""
    return RequestError("the API key is missing or wrong: send it as Authorization: Bearer KEY", status=401,
                        code="invalid_api_key", headers={"www-authenticate": "Bearer"})


def describe_error(error: Exception, lang: str = "en") -> tuple[int, dict[str, Any], Mapping[str, str]]:
    """The status, body and headers that say an error; of what was not expected only that it was not."""
    if isinstance(error, RequestError):
        status, param, headers = error.status, error.param, error.headers
    elif isinstance(error, QkvError):
        status, param, headers = {"step": 500, "closed": 503, "logits-not-finite": 500}.get(error.code, 400), None, {}
    else:
        error, status, param, headers = RequestError("something went wrong here; the server's log has this request's "
                                                     "id", code="internal_error"), 500, None, {}
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = {"message": error.message.to(lang), "type": kind, "param": param, "code": error.code or "invalid_value"}
    return status, {"error": body}, headers


def say_error(error: Exception, caller: Caller) -> Response:
    """An error as OpenAI's clients read it."""
    status, body, headers = describe_error(error, caller.lang)
    data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
    return Response(data, status, media_type="application/json", headers=dict(headers))


def list_hosts(names: Sequence[str], port: int) -> tuple[str, ...]:
    """Names with and without the port, as a Host header may say them."""
    return tuple(one for name in names for one in (name.lower(), f"{name.lower()}:{port}"))
