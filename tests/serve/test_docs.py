"""docs/serve.md tells the truth: one real server as its first lines start it, and every command and client after it."""

import importlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv import paths
from qkv.cli import main
from qkv.cli import serve as verb
from qkv.cli.common import Common
from qkv.tasks.score import predict_text

ROOT = Path(__file__).parents[2]
PAGES = ("serve.md", "serve.zh-CN.md")
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}One, two,"


def blocks(page: str, kind: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [part.split("```")[0] for part in text.split(f"```{kind}\n")[1:]]


COMMANDS = [line for block in blocks("serve.md", "sh") for line in block.splitlines()]
CURLS = [line for line in COMMANDS if line.startswith("curl")]
SERVES = [shlex.split(line, comments=True)[2:] for line in COMMANDS if line.startswith("qkv serve")]


@dataclass
class Served:
    port: int
    process: Any
    said: dict[str, Any]

    def move(self, text: str) -> str:
        return text.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`qkv serve` with a model that converses, under the name of the page's."""
    chat = tmp_path_factory.mktemp("models") / "smollm2"
    shutil.copytree(paths.bundled_dir() / "demo-lm", chat)
    (chat / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "qkv", "serve", str(chat), "demo", "demo-lm", "demo-bert", "--port", str(port),
               "--json"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said, process.communicate()[1]
    yield Served(port, process, json.loads(said))
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    assert process.returncode in (143, -signal.SIGTERM)
    assert "Traceback" not in log


def test_the_verb_says_where_it_is_and_a_line_to_try(served: Served, capsys) -> None:
    assert served.said["url"] == f"http://127.0.0.1:{served.port}"
    assert served.said["models"] == ["smollm2", "demo", "demo-lm", "demo-bert"]
    assert served.said["try"].startswith(f"curl {served.said['url']}/v1/chat/completions -d ")
    assert main(["serve", "demo-lm", "--port", str(served.port)]) == 2
    assert str(served.port) in capsys.readouterr().err


@pytest.mark.parametrize("line", [*CURLS, "said"], ids=lambda line: line.split("8000")[-1][:24])
def test_each_line_of_curl_is_answered(served: Served, line: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    line = served.said["try"] if line == "said" else served.move(line)
    done = subprocess.run([*shlex.split(line), "-sS", "--max-time", "60"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "error" not in found, found


@pytest.mark.parametrize("args", SERVES, ids=lambda args: " ".join(args)[:30])
def test_each_command_line_is_understood(args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("smollm2.gguf").touch()
    found = verb.command.make_context("serve", [*args], obj=Common()).params
    if not found["new_key"]:
        assert list(verb.name_models(found["models"]))
    else:
        assert main(["serve", *args]) == 0
        assert Path("keys.txt").read_text(encoding="utf-8").startswith("ann ")


@pytest.mark.parametrize("page", PAGES)
def test_the_example_in_python_runs(served: Served, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    need("openai")
    (code,) = blocks(page, "python")
    scope: dict[str, Any] = {}
    exec(compile(served.move(code), page, "exec"), scope)
    scope["client"].close()
    assert "three" in capsys.readouterr().out


def test_both_languages_have_the_same_lines() -> None:
    for kind in ("sh", "python"):
        one, two = ([line.split("  #")[0].rstrip() for block in blocks(page, kind) for line in block.splitlines()]
                    for page in PAGES)  # fmt: skip
        assert one == two


def test_the_container_runs_what_the_page_says() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    entry, usual = (json.loads(next(line for line in lines if line.startswith(word)).removeprefix(word))
                    for word in ("ENTRYPOINT", "CMD"))  # fmt: skip
    assert entry[:2] == ["qkv", "serve"]
    found = verb.command.make_context("serve", [*entry[2:], *usual], obj=Common()).params
    assert (found["host"], found["port"]) == ("0.0.0.0", 8000)
    assert "USER qkv" in lines
    check = next(line for line in lines if "urlopen" in line)
    compile(json.loads(check.strip().removeprefix("CMD "))[2], "HEALTHCHECK", "exec")
    for line in (line for line in lines if line.startswith("COPY")):
        assert all((ROOT / name).exists() for name in line.split()[1:-1])


# Clients that others wrote


def need(name: str) -> Any:
    """A client's package; skips with a reason where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(f"the package {name} is not installed")


@pytest.fixture
def client(served: Served) -> Any:
    need("openai")
    from openai import OpenAI

    found = OpenAI(base_url=f"{served.said['url']}/v1", api_key="none", max_retries=0)
    yield found
    found.close()


def test_openai_s_client_reads_every_answer(client: Any) -> None:
    import openai

    assert [m.id for m in client.models.list()] == ["smollm2", "demo", "demo-lm", "demo-bert"]
    cold = {"model": "demo-lm", "prompt": "One, two,", "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**cold, logprobs=0)
    assert whole.usage.completion_tokens == len(whole.choices[0].logprobs.tokens) == 8
    parts = list(client.completions.create(**cold, stream=True, stream_options={"include_usage": True}))
    assert "".join(p.choices[0].text for p in parts if p.choices) == whole.choices[0].text
    assert parts[-1].usage == whole.usage
    chat = {"model": "smollm2", "messages": [{"role": "user", "content": "Count."}], "temperature": 0}
    answer = client.chat.completions.create(**chat, max_completion_tokens=8, n=2, logprobs=True)
    assert answer.choices[0].message.content == answer.choices[1].message.content
    assert len(answer.choices[0].logprobs.content) == 8
    assert len(client.embeddings.create(model="demo-bert", input=["a", "b"]).data) == 2
    for kind, body in ((openai.BadRequestError, {**cold, "n": 99}), (openai.NotFoundError, {**cold, "model": "x"})):
        with pytest.raises(kind) as error:
            client.completions.create(**body)
        assert error.value.body["message"]
        assert error.value.request_id


def test_litellm_is_answered(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = need("litellm")
    found = litellm.completion(model="openai/smollm2", messages=[{"role": "user", "content": "Count."}], temperature=0,
                               api_base=f"{served.said['url']}/v1", api_key="none", max_tokens=8)  # fmt: skip
    assert "three" in found.choices[0].message.content


def test_langchain_is_answered(served: Served) -> None:
    found = need("langchain_openai").ChatOpenAI(
        model="smollm2", base_url=f"{served.said['url']}/v1", api_key="none", temperature=0, max_tokens=8)  # fmt: skip
    assert "three" in found.invoke("Count.").content
    assert "three" in "".join(part.content for part in found.stream("Count."))


def test_a_browser_extension_s_request_is_answered(served: Served) -> None:
    body = json.dumps({"q": ["我爱学习。"], "source": "auto", "target": "en", "format": "html", "api_key": ""}).encode()
    request = urllib.request.Request(f"{served.said['url']}/translate", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.loads(answer.read())["translatedText"] == ["I love studying."]


def test_keys_of_the_environment_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "QKV_API_KEY", "short")
    assert main(["serve", "demo-lm"]) == 2


def test_libretranslate_s_own_client_is_answered(served: Served) -> None:
    found = need("libretranslatepy").LibreTranslateAPI(f"{served.said['url']}/")
    assert found.translate("我爱学习。", "zh", "en") == "I love studying."
    assert {row["code"] for row in found.languages()} == {"zh", "en"}


def test_lm_evaluation_harness_is_answered(served: Served) -> None:
    need("lm_eval")
    from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
    from lm_eval.models.openai_completions import LocalChatCompletion  # pyright: ignore[reportMissingImports]

    model = LocalChatCompletion(model="smollm2", base_url=f"{served.said['url']}/v1/chat/completions",
                                tokenizer_backend=None, max_retries=1)  # fmt: skip
    context = model.apply_chat_template([{"role": "user", "content": "Count."}])
    how = {"until": ["five"], "max_gen_toks": 12, "temperature": 0}
    asked = Instance(request_type="generate_until", doc={}, arguments=(context, how), idx=0)
    (found,) = model.generate_until([asked])
    assert found.strip().startswith("three")
    assert "five" not in found


def test_lm_evaluation_harness_scores_as_the_model_does(served: Served) -> None:
    need("lm_eval")
    from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
    from lm_eval.models.openai_completions import LocalCompletionsAPI  # pyright: ignore[reportMissingImports]

    url, tokenizer = f"{served.said['url']}/v1/completions", str(paths.bundled_dir() / "demo-lm")
    model = LocalCompletionsAPI(model="demo-lm", base_url=url, max_retries=1, tokenizer=tokenizer,
                                tokenizer_backend="huggingface")  # fmt: skip
    pairs = [("One, two,", " three, four"), ("One, two, buckle", " my hat;")]
    found = model.loglikelihood([Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=n)
                                 for n, pair in enumerate(pairs)])  # fmt: skip
    for (total, _), pair in zip(found, pairs, strict=True):
        assert total == pytest.approx(qkv.load("demo-lm").score(pair), abs=1e-3)
    likeliest = [bool(predict_text(qkv.load("demo-lm"), pair)[1].all()) for pair in pairs]
    assert [greedy for _, greedy in found] == likeliest
