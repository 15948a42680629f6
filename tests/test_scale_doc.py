"""docs/scale.md tells the truth: its batches run, its runs are planned with --dry-run, its files for clusters read."""

import json
import re
import shlex
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from qkv.cli import main
from qkv.cli.common import Common

DOCS = Path(__file__).parents[1] / "docs"
ENGLISH, CHINESE = ((DOCS / name).read_text(encoding="utf-8") for name in ("scale.md", "scale.zh-CN.md"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(kind, body) for kind, body in FENCE.findall(ENGLISH)]
LINES = [line for kind, body in BLOCKS if kind == "sh" for line in body.splitlines()]
JOBS = [body for kind, body in BLOCKS if kind in ("bash", "yaml")]


def words_of(line: str) -> list[str]:
    """The words that qkv gets of a command line, without its comment."""
    words = shlex.split(line, comments=True)
    return words[words.index("qkv") + 1 :]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the page's commands name."""
    monkeypatch.chdir(tmp_path)
    Path("source.txt").write_text("我爱学习。\n\n书放在桌上。\n", encoding="utf-8")
    rows = {"texts": {"text": "书"}, "prompts": {"text": "One, two,"}, "pairs": {"zh": "我爱茶。", "en": "I love tea."}}
    for name, row in rows.items():
        lines = [{**row, "zh": f"{row.get('zh', '')}{n}", "en": f"{row.get('en', '')}{n}"} for n in range(12)]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        Path(f"{name}.jsonl").write_text(text, encoding="utf-8")
    return tmp_path


def test_both_languages_have_the_same_blocks() -> None:
    assert FENCE.findall(ENGLISH) == FENCE.findall(CHINESE)


@pytest.mark.parametrize("line", [line for line in LINES if "--out out/" in line], ids=lambda line: line.split()[1])
def test_each_batch_runs(line: str, folder: Path) -> None:
    words = words_of(line)
    verb = import_module(f"qkv.cli.{words[0]}").command
    params = verb.make_context(words[0], words[1:], obj=Common()).params
    if params["ray"] is not None:
        assert params["ray"].startswith("ray://")
        return
    assert main(words) == 0
    rows = [line for part in params["out"].glob("part-*.jsonl") for line in part.read_text("utf-8").splitlines()]
    assert len(rows) == {"translate": 3}.get(words[0], 12)


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("qkv serve")])
def test_each_server_is_understood(line: str) -> None:
    words = words_of(line)
    found = import_module("qkv.cli.serve").command.make_context("serve", words[1:], obj=Common()).params
    assert found["replicas"] in ((2, 2), (1, 4)) or found["engine"] == "vllm"


def test_the_simulation_is_there_with_its_options() -> None:
    (line,) = [line for line in LINES if line.startswith("python bench/")]
    program, *words = line.split()[1:]
    source = (DOCS.parent / program).read_text(encoding="utf-8")
    assert all(f"{word[2:]}=(" in source for word in words if word.startswith("--"))


def runs() -> list[list[str]]:
    """The words of each `qkv train` on the page, wherever it stands."""
    yaml = pytest.importorskip("yaml", reason="PyYAML reads the files for clusters")
    found = [words_of(line) for line in LINES if line.startswith("torchrun")]
    for body in JOBS:
        if body.startswith("#!"):
            found += [words_of(line) for line in body.splitlines() if "torchrun" in line]
        else:
            for part in yaml.safe_load_all(body):
                if part.get("kind") == "Job":
                    command = part["spec"]["template"]["spec"]["containers"][0]["command"]
                    found.append(command[command.index("qkv") + 1 :])
                elif "run" in part:
                    found += [words_of(line) for line in part["run"].splitlines() if "torchrun" in line]
    return found


def test_each_run_is_planned(folder: Path, capsys: Any) -> None:
    found = runs()
    assert len(found) == 5
    for words in found:
        assert words[0] == "train"
        assert main([*words, "--dry-run", "--json"]) == 0, words
        assert json.loads(capsys.readouterr().out)


def test_the_files_for_clusters_are_what_these_read(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML reads the files for clusters")
    slurm, kubernetes, sky = JOBS
    script = tmp_path / "job.sh"
    script.write_text(slurm, encoding="utf-8")
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert slurm.splitlines()[1].startswith("#SBATCH ")
    service, job = yaml.safe_load_all(kubernetes)
    assert (service["kind"], job["kind"], job["apiVersion"]) == ("Service", "Job", "batch/v1")
    inside = job["spec"]["template"]["spec"]
    name = job["metadata"]["name"]
    assert service["metadata"]["name"] == inside["subdomain"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    assert f"--rdzv-endpoint={name}-0.{inside['subdomain']}:29500" in inside["containers"][0]["command"]
    assert "--nnodes=2" in inside["containers"][0]["command"]
    mounts = {mount["name"] for mount in inside["containers"][0]["volumeMounts"]}
    assert mounts == {volume["name"] for volume in inside["volumes"]}
    assert {"name", "num_nodes", "resources", "file_mounts", "setup", "run"} == set(yaml.safe_load(sky))
    assert all("TORCH_DISABLE_SHARE_RDZV_TCP_STORE" in body for body in JOBS)
