"""Hubs and their mirrors, each played by a server on this machine: redirects, slow, cut, other bytes, HTML, nothing."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

import qkv
from qkv import downloads, hub
from qkv.errors import QkvError

COMMIT = "a" * 40


class Hub(BaseHTTPRequestHandler):
    """One model behind the API of ModelScope and that of Hugging Face; `how` says what is wrong with the answers."""

    files: dict[str, bytes] = {}  # noqa: RUF012
    how: dict[str, object] = {}  # noqa: RUF012
    asked: list[tuple[str, str, str | None]] = []  # noqa: RUF012
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        url, wanted = urlsplit(self.path), self.headers.get("Range")
        self.asked.append((self.command, self.path, wanted))
        path = unquote(url.path)
        if self.how.get("html"):
            return self.answer(b"<html>please log in</html>", "text/html")
        if path == "/api/v1/models/org/small/repo/files":
            assert parse_qs(url.query)["Recursive"] == ["True"]
            rows = [{"Path": n, "Type": "blob", "Size": len(d), "Sha256": hashlib.sha256(d).hexdigest()}
                    for n, d in self.files.items()]
            rows += [{"Path": "1_Pooling", "Type": "tree"}, *self.how.get("rows", ())]
            return self.answer(json.dumps({"Code": 200, "Data": {"Files": rows}}).encode())
        if path.startswith("/api/models/org/small/tree/"):
            rows = [{"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in self.files.items()]
            return self.answer(json.dumps(rows).encode())
        if path.startswith("/api/models/org/small/"):
            said = {"id": "org/small", "sha": COMMIT, "siblings": [{"rfilename": name} for name in self.files]}
            return self.answer(json.dumps(said).encode())
        for head in ("/models/org/small/resolve/master/", f"/org/small/resolve/{COMMIT}/", "/elsewhere/"):
            name = path.removeprefix(head)
            if path.startswith(head) and name in self.files:
                if self.how.get("redirect") and head != "/elsewhere/":
                    return self.answer(b"", status=302, Location=f"/elsewhere/{name}", **self.tags(name))
                return self.send_file(name, wanted)
        return self.answer(b"no such thing", status=404)

    def tags(self, name):
        sha = hashlib.sha256(self.files[name]).hexdigest()
        return {"ETag": f'"{sha}"', "X-Repo-Commit": COMMIT, "X-Linked-Etag": f'"{sha}"',
                "X-Linked-Size": str(len(self.files[name]))}

    def send_file(self, name, wanted):
        data, start = self.files[name], int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        if name in self.how.get("other", ()):
            data = data[:-1] + bytes([data[-1] ^ 1])
        extra = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        time.sleep(float(self.how.get("slow", 0)))
        cut = self.how.get("cut") if name.endswith("safetensors") else None
        return self.answer(data[start:], "application/octet-stream", status=206 if start else 200, cut=cut,
                           **extra, **self.tags(name))

    def answer(self, data, kind="application/json", status=200, cut=None, **headers):
        self.send_response(status)
        for key, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:cut])
        self.close_connection = cut is not None or self.close_connection

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    place = tmp_path_factory.mktemp("m")
    qkv.load("demo-lm", device="cpu").save(place, dtype="bf16")
    return {p.name: p.read_bytes() for p in place.iterdir() if p.is_file()} | {"README.md": b"# words"}


@pytest.fixture
def server(stored, monkeypatch, tmp_path):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "HF_HUB_OFFLINE", "QKV_HUB"):
        monkeypatch.delenv(name, raising=False)
    Hub.files, Hub.how, Hub.asked = dict(stored), {}, []
    made = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{made.server_port}"
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", address + "/")
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    yield address
    made.shutdown()
    made.server_close()
    thread.join()


def load(name="modelscope:org/small"):
    return qkv.load(name, device="cpu")


@pytest.mark.parametrize("redirect", [False, True])
def test_a_model_of_modelscope_is_fetched_once(redirect, server, tmp_path, monkeypatch):
    Hub.how["redirect"] = redirect
    model = load()
    assert model.generate("The cat", max_new_tokens=4).text
    kept = {p.name for p in (tmp_path / "cache/modelscope/org/small/master").iterdir()}
    assert kept == set(Hub.files) - {"README.md"} | {".files.json"}
    asked = len(Hub.asked)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert load().spec == model.spec
    monkeypatch.setenv("QKV_HUB", "modelscope")
    assert hub.spec_of("org/small") == model.spec
    assert len(Hub.asked) == asked


def test_only_what_is_needed_is_fetched(server):
    assert hub.spec_of("modelscope:org/small").vocabulary == 1000
    assert [path for _, path, _ in Hub.asked[1:]] == ["/models/org/small/resolve/master/config.json"]


def test_a_download_that_broke_off_goes_on(server):
    Hub.how["cut"] = 1000
    with pytest.raises(QkvError, match=r"after 1,000 of .*MODELSCOPE_ENDPOINT"):
        load()
    Hub.how = {}
    load()
    assert [wanted for _, path, wanted in Hub.asked if path.endswith("safetensors")] == [None, "bytes=1000-"]


def test_other_bytes_are_not_kept(server, tmp_path):
    Hub.how["other"] = ("model.safetensors",)
    with pytest.raises(QkvError, match=r"SHA-256 of model\.safetensors"):
        load()
    assert not list((tmp_path / "cache").rglob("*model.safetensors*"))


def test_an_address_that_does_not_answer_in_time_is_named(server, monkeypatch):
    monkeypatch.setattr(downloads, "TIMEOUT", 0.2)
    Hub.how["slow"] = 1.0
    with pytest.raises(QkvError, match="could not be fetched"):
        load()


@pytest.mark.parametrize("row", [{"Path": "../out.json", "Type": "blob", "Size": 1, "Sha256": "0"}, 3,
                                 {"Path": "/out.json", "Type": "blob", "Size": 1, "Sha256": "0"},
                                 {"Path": "a.json", "Type": "blob", "Size": "1", "Sha256": "0"}])
def test_a_file_outside_its_folder_is_refused(row, server, tmp_path):
    Hub.how["rows"] = [row]
    with pytest.raises(QkvError, match="below its folder"):
        load()
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_what_is_wrong_is_said(server, monkeypatch, tmp_path):
    with pytest.raises(QkvError, match="404"):
        load("modelscope:org/other")
    Hub.how["html"] = True
    with pytest.raises(QkvError, match="text/html"):
        load()
    Hub.how = {}
    with pytest.raises(QkvError, match=r"unknown hub 'modelscoop'.*did you mean 'modelscope'"):
        load("modelscoop:org/small")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(QkvError, match="nothing of it lies in"):
        load()
    monkeypatch.delenv("HF_HUB_OFFLINE")
    load()
    lost = tmp_path / "cache/modelscope/org/small/master/model.safetensors"
    lost.unlink()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(QkvError, match=r"model\.safetensors is missing in"):
        load()
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "ftp://x")
    with pytest.raises(QkvError, match="MODELSCOPE_ENDPOINT: found"):
        load()


def ask_mirror(server, tmp_path, *args, **more):
    """The verb `info` on a model of a mirror that HF_ENDPOINT names, in a process of its own."""
    env = {**os.environ, "HF_ENDPOINT": server, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", **more}
    done = subprocess.run([sys.executable, "-m", "qkv", *args, "--device", "cpu"], capture_output=True, text=True,
                          env=env, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("redirect", [False, True])
def test_a_mirror_of_hugging_face_is_asked_and_remembered(redirect, server, tmp_path):
    Hub.how["redirect"] = redirect
    code, out, err = ask_mirror(server, tmp_path, "generate", "org/small", "The cat", "--max-new-tokens", "3")
    assert (code, bool(out.strip())) == (0, True), err
    code, again, err = ask_mirror(server, tmp_path, "generate", "org/small", "The cat", "--max-new-tokens", "3",
                                  HF_HUB_OFFLINE="1")
    assert (code, again) == (0, out), err


@pytest.mark.parametrize(("how", "more", "named"), [
    ({"other": ("model.safetensors",)}, {}, "SHA-256"), ({"html": True}, {}, "HF_ENDPOINT"),
    ({}, {"HF_HUB_OFFLINE": "1"}, "models--org--small"),
])
def test_a_mirror_that_lies_is_one_error(how, more, named, server, tmp_path):
    Hub.how.update(how)
    code, out, err = ask_mirror(server, tmp_path, "generate", "org/small", "The cat", **more)
    assert (code, out) == (2, "")
    assert named in err
    assert "Traceback" not in err
